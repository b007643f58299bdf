"""A run on disk: settings, versions, rows and transitions, written so that a kill loses nothing that was finished."""

from __future__ import annotations

import csv
import gzip
import io
import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qposterior.errors import InvalidInputError
from qposterior.experiments.beliefs import BELIEF_COLUMNS, TRACE_COLUMNS, Beliefs
from qposterior.experiments.explore import EPISODE_COLUMNS, TRANSITION_COLUMNS, Run
from qposterior.experiments.tensorboard import FOLDER as TENSORBOARD_FOLDER
from qposterior.world.files import write_atomically

SETTINGS_FILE = "settings.json"
EPISODES_FILE = "episodes.csv"
TRANSITIONS_FILE = "transitions.csv.gz"
SUMMARY_FILE = "summary.json"
TRACE_FILE = "trace.csv"
BELIEFS_FILE = "beliefs.csv"
REPORT_FILE = "index.html"
FIGURES = ("regret.png", "return.png", "trace.png", "cells.png", "map.png")
OUR_FILES = (
    *(SETTINGS_FILE, EPISODES_FILE, TRANSITIONS_FILE, SUMMARY_FILE, TRACE_FILE, BELIEFS_FILE, REPORT_FILE),
    *FIGURES,
    TENSORBOARD_FOLDER,
)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, and the commit where there is one."""
    found = {"python": platform.python_version()}
    for package in ("qposterior", "numpy", "scipy", "numba", "gymnasium"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


class RunDirectory:
    """The folder of an `explore` call: `add` writes the rows of one seed as soon as it is done."""

    def __init__(self, path: str | Path, *, settings: dict[str, Any], force: bool = False) -> None:
        self.path = Path(path)
        _prepare(self.path, force=force)
        self._summaries: list[dict[str, Any]] = []
        self._episodes = self.path / EPISODES_FILE
        self._transitions = self.path / TRANSITIONS_FILE
        record = {"settings": settings, "versions": versions()}
        write_atomically(self.path / SETTINGS_FILE, json.dumps(record, indent=2, default=str) + "\n")
        self._episodes.write_text(_csv([EPISODE_COLUMNS]))
        self._transitions.write_bytes(_gzipped(_csv([TRANSITION_COLUMNS])))

    def add(self, run: Run, beliefs: Beliefs | None = None) -> None:
        """Append the rows of a run, finished or interrupted, and bring the summary up to date."""
        with self._episodes.open("a", newline="") as stream:
            stream.write(_csv([[_cell(row[name]) for name in EPISODE_COLUMNS] for row in run.rows]))
        # A gzip file may have several members, so appending keeps what is there readable at every moment.
        with self._transitions.open("ab") as binary:
            binary.write(_gzipped(_csv([[_cell(value) for value in row] for row in run.transitions])))
        if beliefs is not None and beliefs.tables:
            trace = [[_cell(row.get(name)) for name in TRACE_COLUMNS] for row in beliefs.trace]
            _append(self.path / TRACE_FILE, TRACE_COLUMNS, trace)
            _append(self.path / BELIEFS_FILE, BELIEF_COLUMNS, [[_cell(v) for v in row] for row in beliefs.rows()])
        self._summaries.append(run.summary())
        write_atomically(self.path / SUMMARY_FILE, json.dumps(self._summaries, indent=2) + "\n")


def _append(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("a", newline="") as stream:
        stream.write(_csv(rows if stream.tell() else [columns, *rows]))


def _prepare(path: Path, *, force: bool) -> None:
    try:
        if path.exists() and not path.is_dir():
            raise InvalidInputError(f"{path} is a file; give a directory")
        if path.exists() and any(path.iterdir()):
            if not force:
                raise InvalidInputError(f"{path} exists and is not empty; choose another directory or pass --force")
            _clear(path)
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InvalidInputError(f"cannot write to {path}: {error.strerror}") from error


def _clear(path: Path) -> None:
    """Remove an earlier run; a folder that holds anything else is not ours to empty."""
    foreign = [entry.name for entry in path.iterdir() if entry.name not in OUR_FILES]
    if foreign:
        raise InvalidInputError(f"{path} holds files that no run wrote ({foreign[0]}, …); --force only replaces a run")
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, bool):
        return int(value)
    return "" if value is None else value


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _gzipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)  # a time stamp would make equal runs differ


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
