"""The page of a folder of figures: each with the paper's claim and what was found, in the order of the paper."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from qposterior.errors import MissingExtraError
from qposterior.report.page import HEAD
from qposterior.storage import reading, write_atomically
from qposterior_paper.figure import ANSWERS, read_figure
from qposterior_paper.registry import FIGURES

PAGE_FILE = "index.html"
PAGE = (
    HEAD
    + """</head>
<body>
<h1>{{ title }}</h1>
{% for item, record, answer, picture in figures %}<h2>{{ item.name }}</h2>
<p>The paper ({{ item.label }}): {{ item.claim }}</p>
<p>Found ({{ answer }}): {{ record.found }}.</p>
<figure><img alt="{{ item.name }}" src="data:image/png;base64,{{ picture }}">
<figcaption>Seed {{ record.seed }}{% if record.quick %}, quick size{% endif %}, {{ record.seconds }} s.</figcaption>
</figure>
{% endfor %}</body>
</html>
"""
)


def write_paper_page(folder: Path) -> Path | None:
    """Write the page of the figures in a folder and return its path; None where there are none."""
    made = [item for item in FIGURES.values() if (folder / f"{item.name}.json").exists()]
    if not made:
        return None
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("writing the report", "report") from error
    figures: list[Any] = []
    for item in made:
        record, path = read_figure(folder / f"{item.name}.json"), folder / f"{item.name}.png"
        with reading(path, "a figure"):
            picture = base64.b64encode(path.read_bytes()).decode()
        figures.append((item, record, ANSWERS[record["holds"]], picture))
    text = Environment(autoescape=True).from_string(PAGE).render(title="The paper, figure by figure", figures=figures)
    write_atomically(folder / PAGE_FILE, text)
    return folder / PAGE_FILE
