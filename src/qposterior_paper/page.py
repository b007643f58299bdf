"""The page of a folder of figures: each with the paper's claim and what was found, in the order of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qposterior.report.page import write_page
from qposterior.storage import reading
from qposterior_paper.figure import ANSWERS, read_figure
from qposterior_paper.registry import FIGURES

PAGE_FILE = "index.html"
TEMPLATE = Path(__file__).parent / "templates" / "figures.html"


def write_paper_page(folder: Path) -> Path | None:
    """Write the page of the figures in a folder and return its path; None where there are none."""
    figures: list[Any] = []
    for item in FIGURES.values():
        if (folder / f"{item.name}.json").exists():
            record, picture = read_figure(folder / f"{item.name}.json"), folder / f"{item.name}.png"
            with reading(picture, "a figure"):
                figures.append((item, record, ANSWERS[record["holds"]], picture.read_bytes()))
    if not figures:
        return None
    return write_page(folder / PAGE_FILE, TEMPLATE, title="The paper, figure by figure", figures=figures)
