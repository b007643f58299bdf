"""Pages of results: a Markdown file that says what was measured, at which commit, on which class of machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stale_pages import LINE, SOURCES, source_line

COMMIT = re.compile(r"^Made at commit ([^,.\n]+)[,.]", re.MULTILINE)


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


def replace_sections(path: str | Path, sections: Sequence[tuple[str, str]]) -> None:
    """Put sections in the place of those with the same headings on a page that is there.

    Each says at which commit it was made, where that is not said at the top for all of them, and the page carries the
    hashes of all the sources that its parts were made from.
    """
    path = Path(path)
    head, *parts = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_heading = {part.partition("\n")[0]: part for part in parts}
    for heading, text in sections:
        if heading not in by_heading:
            raise SystemExit(f"{path} has no section {heading!r}; remake the page as a whole")
        by_heading[heading] = f"{heading}\n\n{PROVENANCE}\n{text}"
    made = [COMMIT.search(part) or COMMIT.search(head) for part in by_heading.values()]
    head = LINE.sub(source_line(path.name, {found[1] for found in made}).strip(), head)
    path.write_text("\n## ".join(part.strip("\n") + "\n" for part in (head, *by_heading.values())), encoding="utf-8")
