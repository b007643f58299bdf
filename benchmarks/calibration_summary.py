"""What the page of a fit says of its calibration, as JSON, read off the page of results docs/calibration.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from families import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "calibration.md"
SUMMARY = ROOT / "src" / "qposterior" / "report" / "calibration.json"
METHOD = "model"


def summary_of(text: str) -> dict[str, Any]:
    """Return the means over the families of the default method, by readings, and where it misses a bar."""
    short = text.partition("## In short")[2].partition("\n## ")[0]
    header, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in short.splitlines()
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    means = [dict(zip(header, row, strict=True)) for row in rows]
    missed = re.findall(r"^- the intervals of .+ hold the truth too seldom: (.+)$", text, flags=re.MULTILINE)
    names = {re.sub(r" [\d/]+$", "", cell) for cells in missed for cell in cells.split(", ")}
    columns = {"advantages": "advantages", "V^π at start": "value", "gain": "gain", "false gains": "false_gains"}
    return {
        "families": int(re.findall(r"(\d+) families of them", text)[0]),
        "readings": [
            {"readings": int(row["readings"])} | {ours: float(row[theirs]) for theirs, ours in columns.items()}
            for row in means
            if row["method"] == METHOD
        ],
        "missed": {name: " ".join((FAMILIES[name.replace(" ", "_")].__doc__ or "").split()) for name in sorted(names)},
    }


def main() -> None:
    """Write the summary beside the template that shows it."""
    SUMMARY.write_text(json.dumps(summary_of(PAGE.read_text()), indent=1) + "\n")


if __name__ == "__main__":
    main()
