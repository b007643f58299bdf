"""Pages of results: a Markdown file that says what was measured, at which commit, on which class of machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stale_pages import SOURCES, source_line


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def provenance() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    label = (commit.stdout.strip() or "none") + (" with changes" if changed.stdout.strip() else "")
    return (
        f"Made at commit {label}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}.\n"
    )


# Of what is about to run, not of what is there when it has run.
PROVENANCE = provenance()
SOURCE_LINES = {page: source_line(page) for page in SOURCES}


def write_page(path: str | Path, title: str, introduction: str, sections: Sequence[tuple[str, str]]) -> None:
    body = [f"# {title}\n", introduction + "\n", PROVENANCE, SOURCE_LINES.get(Path(path).name, "")]
    for heading, text in sections:
        body.append(f"## {heading}\n\n{text}")
    Path(path).write_text("\n".join(body), encoding="utf-8")
