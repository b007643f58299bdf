"""A run on disk: settings, versions, rows and transitions, written so that a kill loses nothing that was finished."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qposterior.errors import InvalidInputError
from qposterior.experiments.beliefs import BELIEF_COLUMNS, TRACE_COLUMNS, Beliefs
from qposterior.experiments.explore import EPISODE_COLUMNS, TRANSITION_COLUMNS, Run, World
from qposterior.experiments.tensorboard import FOLDER as TENSORBOARD_FOLDER
from qposterior.storage import (
    check_is_file,
    entries,
    foreign_entries,
    read_record,
    reading,
    remove_leftovers,
    write_atomically,
    write_record,
)
from qposterior.versions import versions

logger = logging.getLogger(__name__)

SETTINGS_FILE = "settings.json"
EPISODES_FILE = "episodes.csv"
TRANSITIONS_FILE = "transitions.csv.gz"
SUMMARY_FILE = "summary.json"
TRACE_FILE = "trace.csv"
BELIEFS_FILE = "beliefs.csv"
PROGRESS_FILE = "progress.json"
REPORT_FILE = "index.html"
FIGURES = ("regret.png", "return.png", "trace.png", "cells.png", "map.png")
OUR_FILES = (
    *(SETTINGS_FILE, EPISODES_FILE, TRANSITIONS_FILE, SUMMARY_FILE, TRACE_FILE, BELIEFS_FILE, REPORT_FILE),
    *FIGURES,
    PROGRESS_FILE,
    TENSORBOARD_FOLDER,
)
PART_FILES = (EPISODES_FILE, TRANSITIONS_FILE, TRACE_FILE, BELIEFS_FILE)
MAY_CHANGE = ("seeds", "tensorboard")
"""Settings that a run may be gone on with differently."""

READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("agent", "environment"), str),
    **dict.fromkeys(("seed", "episode", "new_pairs", "steps"), int),
    **dict.fromkeys(("reached_goal", "bad"), lambda text: bool(int(text))),
    **dict.fromkeys(("return", "regret", "policy_regret", "seconds"), float),
    "depth": lambda text: int(text) if text else None,
}
"""How the cells of a row of episodes are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one seed has added to the files of a run."""

    summary: dict[str, Any]
    is_finished: bool  # or interrupted
    files: dict[str, tuple[int, str]]  # where the part ends in a file, and its SHA-256; it begins where the last ended


class RunDirectory:
    """The folder of an `explore` call: `add` writes the rows of one seed as soon as it is done.

    Rows are appended to the files first; then `progress.json` says up to where they count. What a kill left behind that
    is cut off when the folder is next opened. The caller holds the lock.
    """

    def __init__(
        self, path: str | Path, *, settings: dict[str, Any], force: bool = False, resume: bool = False
    ) -> None:
        self.path = Path(path)
        check_folder(self.path, force=force, resume=resume)
        self._parts: list[Part] = []
        record: dict[str, Any] = {"settings": json.loads(json.dumps(settings, default=str)), "versions": versions()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.path, OUR_FILES)
            if resume and (self.path / SETTINGS_FILE).exists():
                record |= self._go_on(record)
            else:
                _clear(self.path)
            self._write_progress()
            self._cut()
            write_record(self.path / SETTINGS_FILE, record)  # the last: without it there is no run to go on with
        except OSError as error:
            raise InvalidInputError(f"cannot write to {path}: {error.strerror}") from error

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Return the folder of an earlier run, finished or not; one that is damaged is refused."""
        folder = cls.__new__(cls)
        folder.path = Path(path)
        if (folder.path / PROGRESS_FILE).exists():
            folder._parts, damage = _whole_parts(folder.path)
            if damage is not None:
                raise InvalidInputError(f"{damage}; explore with --resume runs again what is damaged")
            folder._cut()
        else:
            folder._parts = _unchecked_parts(folder.path)
        return folder

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the run was made with."""
        path = self.path / SETTINGS_FILE
        record = read_record(path, "the settings of a run")
        with reading(path, "the settings of a run"):
            return dict(record["settings"])

    def runs(self, world: World) -> list[Run]:
        """Return the runs whose rows are here, without their transitions."""
        path = self.path / EPISODES_FILE
        with reading(path, "the episodes of a run"), path.open(newline="", encoding="utf-8") as stream:
            rows: dict[int, list[dict[str, Any]]] = {part.summary["seed"]: [] for part in self._parts}
            for row in csv.DictReader(stream):
                read = {name: READ[name](text) for name, text in row.items()}
                rows[read["seed"]].append(read)
            return [
                Run(
                    agent=str(mine[0]["agent"]),
                    world=world,
                    seed=part.summary["seed"],
                    depth=mine[0]["depth"],
                    rows=mine,
                    posterior_updates=int(part.summary["posterior_updates"]),
                    seconds=float(part.summary["seconds"]),
                )
                for part, mine in zip(self._parts, rows.values(), strict=True)
            ]

    def add(self, run: Run, beliefs: Beliefs | None = None, *, is_finished: bool = True) -> None:
        """Append the rows of a run, finished or interrupted, and bring the summary up to date."""
        parts = {
            EPISODES_FILE: _csv([[_cell(row[name]) for name in EPISODE_COLUMNS] for row in run.rows]).encode(),
            # A gzip file may have several members, so appending keeps what is there readable at every moment.
            TRANSITIONS_FILE: _gzipped(_csv([[_cell(value) for value in row] for row in run.transitions])),
        }
        if beliefs is not None and beliefs.tables:
            trace = [[_cell(row.get(name)) for name in TRACE_COLUMNS] for row in beliefs.trace]
            believed = [[_cell(value) for value in row] for row in beliefs.rows()]
            for file, columns, rows in ((TRACE_FILE, TRACE_COLUMNS, trace), (BELIEFS_FILE, BELIEF_COLUMNS, believed)):
                parts[file] = _csv([columns, *rows] if self._ends()[file] == 0 else rows).encode()
        ends = self._ends()
        for file, data in parts.items():
            with (self.path / file).open("ab") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        files = {
            file: (ends[file] + len(parts.get(file, b"")), hashlib.sha256(parts.get(file, b"")).hexdigest())
            for file in PART_FILES
        }
        self._parts.append(Part(summary=run.summary(), is_finished=is_finished, files=files))
        self._write_progress()

    def _go_on(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Keep the finished seeds of an earlier run with the same settings, and return what else its record keeps."""
        before = read_record(self.path / SETTINGS_FILE, "the settings of a run")
        with reading(self.path / SETTINGS_FILE, "the settings of a run"):
            had, earlier = dict(before["settings"]), list(before.get("earlier_versions", []))
        kept = {name: value for name, value in wanted["settings"].items() if name not in MAY_CHANGE}
        check_same_settings(self.path, "a run", had=had, wanted=kept)
        parts, damage = _whole_parts(self.path)
        if damage is not None:
            logger.warning("%s; run again from there", damage)
        self._parts = [part for part in parts if part.is_finished]  # only the last can be unfinished
        if "seeds" in wanted["settings"] and len(self._parts) > wanted["settings"]["seeds"]:
            raise InvalidInputError(f"{self.path} has {len(self._parts)} finished seeds; give --seeds as many or more")
        if before["versions"] != wanted["versions"]:
            earlier.append(before["versions"])
        return {"earlier_versions": earlier} if earlier else {}

    def _ends(self) -> dict[str, int]:
        """Return up to where the rows of each file count."""
        return {file: self._parts[-1].files[file][0] for file in PART_FILES} if self._parts else dict(BEGINNINGS)

    def _cut(self) -> None:
        """Remove what stands behind the rows that count, and leave the headers where there are none."""
        for file, end in self._ends().items():
            path = self.path / file
            if not end:
                path.unlink(missing_ok=True)
            elif self._parts:
                os.truncate(path, end)
            else:
                path.write_bytes(HEADERS[file])

    def _write_progress(self) -> None:
        write_record(self.path / PROGRESS_FILE, {"seeds": [asdict(part) for part in self._parts]})
        summaries = [part.summary for part in self._parts]
        if summaries:
            write_atomically(self.path / SUMMARY_FILE, json.dumps(summaries, indent=2) + "\n")
        else:
            (self.path / SUMMARY_FILE).unlink(missing_ok=True)


def check_folder(path: Path, *, force: bool, resume: bool) -> None:
    """Say why a folder cannot be used, before anything is computed; a folder that holds anything else is not ours."""
    foreign = foreign_entries(path, OUR_FILES)
    if entries(path, OUR_FILES) and not (force or resume):
        raise InvalidInputError(f"{path} exists and is not empty; choose another directory or pass --force or --resume")
    if foreign:
        raise InvalidInputError(f"{path} holds files that no run wrote ({foreign[0]}, …); --force only replaces a run")
    if resume and (path / SETTINGS_FILE).exists() and not (path / PROGRESS_FILE).exists():
        raise InvalidInputError(f"{path} holds a run of an earlier version, which cannot be gone on with; pass --force")


def check_same_settings(folder: Path, what: str, *, had: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise unless what a folder holds was made with the settings that are wanted now: nothing is mixed in."""
    for name, value in wanted.items():
        if had.get(name) != value:
            raise InvalidInputError(
                f"{folder} has {what} with {name}={had.get(name)!r}, not {value!r}; give the same settings to go "
                "on with it, or choose another directory"
            )


def _clear(path: Path) -> None:
    """Remove an earlier run, its settings first: what is left of it by a kill is then no run."""
    for name in sorted(entries(path), key=lambda name: name != SETTINGS_FILE):
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()


def _whole_parts(path: Path) -> tuple[list[Part], str | None]:
    """Return the seeds up to the first whose rows are not as they were written, and what is wrong with that one."""
    record = read_record(path / PROGRESS_FILE, "the progress of a run")
    with reading(path / PROGRESS_FILE, "the progress of a run"):
        parts = [Part(**fields) for fields in record["seeds"]]
        begin = dict(BEGINNINGS)
        for file, header in HEADERS.items():
            if _read_between(path / file, 0, len(header)) != header:
                return [], f"{path / file} is damaged: it does not begin with its header"
        for number, part in enumerate(parts):
            for file in PART_FILES:
                end, digest = part.files[file]
                data = _read_between(path / file, begin[file], end)
                if hashlib.sha256(data).hexdigest() != digest:
                    damage = f"{path / file} is damaged: seed {part.summary['seed']} is not as it was written"
                    return parts[:number], damage
                begin[file] = end
    return parts, None


def _read_between(path: Path, begin: int, end: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as stream:
        stream.seek(begin)
        return stream.read(end - begin)


def _unchecked_parts(path: Path) -> list[Part]:
    """Return the seeds of a run of an earlier version, which said nothing of its files."""
    with reading(path / SUMMARY_FILE, "the summary of a run"):
        check_is_file(path / SUMMARY_FILE)
        summaries = json.loads((path / SUMMARY_FILE).read_text(encoding="utf-8"))
        return [Part(summary=dict(summary), is_finished=True, files={}) for summary in summaries]


def _cell(value: Any) -> Any:
    """Return what is written for a value: 1 or 0 for true and false; the rest is left to the writer."""
    return int(value) if isinstance(value, bool) else value


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _gzipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)  # a time stamp would make equal runs differ


HEADERS = {
    EPISODES_FILE: _csv([EPISODE_COLUMNS]).encode(),
    TRANSITIONS_FILE: _gzipped(_csv([TRANSITION_COLUMNS])),
}
"""How the files begin that every run has; the others come with their first rows."""

BEGINNINGS = {file: len(HEADERS.get(file, b"")) for file in PART_FILES}
"""Where the rows of the first seed begin."""
