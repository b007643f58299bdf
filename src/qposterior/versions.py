"""What a result was made with: versions of the packages it depends on, and the commit of this one."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, and the commit where there is one."""
    found = {"python": platform.python_version()}
    for package in ("qposterior", "numpy", "scipy", "numba", "gymnasium"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    commit = _commit(Path(__file__).resolve())
    return found | ({"commit": commit} if commit else {})


@cache
def _commit(here: Path) -> str | None:
    """Return the commit of this package's own repository, not of one that it happens to be installed below."""
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    top = _git(here.parent, "rev-parse", "--show-toplevel")
    project = Path(top or "") / "pyproject.toml"
    if tracked is None or top is None or not project.is_file():
        return None
    if 'name = "qposterior"' not in project.read_text(encoding="utf-8", errors="replace"):
        return None
    return _git(here.parent, "rev-parse", "--short", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
