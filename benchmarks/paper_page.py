"""The page `docs/paper.md` from the figures of a run of `qposterior paper`: picture, claim, finding, command, time."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from qposterior.experiments.compare import read_comparison
from qposterior_paper.registry import FIGURES
from result_page import table
from stale_pages import source_line

ANSWERS = {True: "holds", False: "**does not hold**", None: "not decided"}
COMMENTS = Path(__file__).with_name("paper_comments.json")
"""What a number alone does not say, figure by figure."""


def time_of(figures: Path, record: dict[str, Any]) -> str:
    """Return the seconds that a figure took, with those of the runs in its store: a redrawn figure finds them there."""
    own = f"{record['seconds']:.0f} s"
    store = figures / "stores" / record["name"]
    if not store.exists():
        return own
    seconds = read_comparison(store).runs["seconds"]
    return f"{seconds.sum() / 60:.0f} min in {len(seconds)} runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    pictures = options.out.with_suffix("")
    pictures.mkdir(exist_ok=True)
    comments = json.loads(COMMENTS.read_text(encoding="utf-8"))
    rows, parts, commits = [], [], set()
    for item in FIGURES.values():
        record_file = options.figures / f"{item.name}.json"
        if not record_file.exists():
            rows.append((item.name, item.label, "not made at full size", "–"))
            continue
        record = json.loads(record_file.read_text(encoding="utf-8"))
        shutil.copy(options.figures / f"{item.name}.png", pictures / f"{item.name}.png")
        size = " --quick" if record["quick"] else ""
        commits.add(record["versions"].get("commit", "unknown"))
        rows.append(
            (f"[{item.name}](#{item.name})", item.label, ANSWERS[record["holds"]], time_of(options.figures, record))
        )
        parts.append(
            f"## {item.name}\n\n![{item.name}]({pictures.name}/{item.name}.png)\n\n"
            f"**The paper** ({item.label}): {item.claim}\n\n"
            f"**Found** ({ANSWERS[record['holds']]}): {record['found']}.\n\n"
            + (f"{comments[item.name]}\n\n" if item.name in comments else "")
            + f"`qposterior paper {item.name}{size} --out figures`, {time_of(options.figures, record)}.\n"
        )
    introduction = (
        "# The paper, figure by figure\n\n"
        "Every figure, example and theorem of the paper, made by one command each, with the paper's claim in our words "
        "and what was found. Rebuilt by `make paper`. Long figures keep their runs in a store; the times of those are "
        "summed over the runs, two of which went on at a time.\n"
    )
    summary = table(("name", "label in the paper", "the claim", "time"), rows)
    made = f"Made at commit {', '.join(sorted(commits))}, Python {platform.python_version()}, {os.cpu_count()} cores.\n"
    sources = source_line("paper.md", commits)
    options.out.write_text("\n".join([introduction, made, sources, summary, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
