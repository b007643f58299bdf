"""Which pages of measured results were made from other sources than those that are here.

A page carries the hash of the source folders that its numbers depend on. `make test` lists the pages whose hash is not
today's: their numbers may still hold, but nobody has looked.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, FIGURES = "src/qposterior/", "src/qposterior_paper/"

AGENTS = ("world", "environments", "model", "inference", "answers.py", "agents", "experiments")
POSTERIORS = ("world", "environments", "model", "inference", "answers.py", "front_door.py")
SOURCES: Mapping[str, tuple[str, ...]] = {
    "agents.md": AGENTS,
    "benchmarks.md": (*AGENTS, "logs", "cli"),  # reads a log, starts the command line
    "calibration.md": (*POSTERIORS, "logs"),
    "paper.md": (*AGENTS, "front_door.py", "paper"),
    "results.md": AGENTS,
    "verification.md": (*POSTERIORS, "agents", "experiments"),
}
"""What each page depends on, below the package: folders and modules whose change may change its numbers.

`paper` are the figures, a folder of the package once and now a package of their own; `answers.py` and `front_door.py`
stand for the modules of `RENAMED`, by the names under which the hashes of older pages were taken.
"""

RENAMED = {
    "weighted_draws.py": "answers.py",
    "api.py": "front_door.py",
    "arguments.py": "front_door.py/arguments.py",
    "methods.py": "front_door.py/methods.py",
}

LINE = re.compile(r"^Sources: (?P<names>[\w. ]+) \(sha256 (?P<hashes>[0-9a-f, ]+|unknown)\)\.$", re.MULTILINE)


def read_sources(names: Iterable[str], commit: str | None = None) -> dict[str, bytes]:
    """Return the Python files of folders and modules by their path below the package: those here, or of a commit."""
    if commit is None:
        files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in (ROOT / "src").rglob("*.py")}
    else:
        command = ["git", "archive", commit, "src"]
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            members = [member for member in archive.getmembers() if member.name.endswith(".py")]
            files = {member.name: archive.extractfile(member).read() for member in members}
    below = {path.replace(FIGURES, f"{PACKAGE}paper/").removeprefix(PACKAGE): text for path, text in files.items()}
    named = {RENAMED.get(path, path): text for path, text in below.items()}
    return {path: text for path, text in named.items() if path.split("/")[0] in names}


def hash_of(files: Mapping[str, bytes]) -> str:
    """Return the first twelve digits of the SHA-256 of files, names and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.encode() + b"\0" + hashlib.sha256(files[path]).digest())
    return digest.hexdigest()[:12]


def source_line(page: str, commits: Iterable[str] = ()) -> str:
    """Return the line that a page carries: of the sources here, or of the commits that its parts were made at."""
    names = SOURCES[page]
    try:
        hashes = {hash_of(read_sources(names, commit)) for commit in commits or [None]}
    except subprocess.CalledProcessError:  # a commit that is not in the history, or "with changes"
        hashes = {"unknown"}
    return f"Sources: {' '.join(names)} (sha256 {', '.join(sorted(hashes))}).\n"


def is_stale(text: str, page: str) -> bool:
    """Return whether a page was made, as a whole or in part, from other sources than those here."""
    found = LINE.search(text)
    return found is None or f"{found[0]}\n" != source_line(page)


def main() -> None:
    stale = [page for page in SOURCES if is_stale((ROOT / "docs" / page).read_text(encoding="utf-8"), page)]
    for page in stale:
        print(f"stale: docs/{page} was measured with other sources ({' '.join(SOURCES[page])})")
    if not stale:
        print("no page of results is stale")


if __name__ == "__main__":
    main()
