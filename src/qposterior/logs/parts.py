"""Logs on many machines: each file is summed where it lies, and the sums are joined here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from qposterior.cluster import cluster_results
from qposterior.errors import InvalidInputError
from qposterior.logs.columns import Columns
from qposterior.logs.raw import MOST_NAMED, RawRows
from qposterior.logs.read import Log, LogBuilder
from qposterior.logs.sources import files_of, is_minari


def read_parts(
    source: Any,
    *,
    columns: Columns | None = None,
    before: Log | None = None,
    raw: RawRows | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
) -> Log:
    """Return the sums of the files of a source, each read by a worker of a Dask cluster: those that `read_log` returns.

    Workers read the files under the paths that they have here. What needs all rows in one place is refused.
    """
    raw = raw or RawRows()
    for option, value in (("next_from", raw.key), ("sql", raw.sql), ("numeric", raw.numeric)):
        if value is not None:
            raise InvalidInputError(
                f'engine="dask" reads each file by itself, and {option} needs all rows in one place; leave one out'
            )
    if not isinstance(source, str | Path) or is_minari(source):
        raise InvalidInputError('engine="dask" reads files; give the path of one, of a folder, or a pattern')
    files = [file.absolute() for file in files_of(Path(source))]
    builder, notes = LogBuilder(before=before, raw=raw), dict[str, list[Path]]()
    work_fn = partial(_read_part, columns=columns, raw=raw)
    parts = cluster_results(work_fn, files, scheduler=scheduler, workers=workers, in_order=True)
    for file, (log, respelt) in zip(files, parts, strict=True):
        builder.join(log)
        if file == files[0]:
            builder.log.unread = log.unread
        builder.respelt |= respelt
        for note in log.notes:
            notes.setdefault(note, []).append(file)
    builder.log.notes = list(_of_all(notes, len(files)))
    return builder.built(source)


def _read_part(file: Path, *, columns: Columns | None, raw: RawRows) -> tuple[Log, dict[str, str]]:
    """Return the sums of one file, which may have no rows, and how its labels were spelt."""
    builder = LogBuilder(raw=raw)
    builder.read(file, columns=columns)
    return builder.labelled(), builder.respelt


def _of_all(notes: dict[str, list[Path]], number: int) -> Iterator[str]:
    """Yield what is true of all files once, and of the rest which file it is of, for the first ones."""
    yield from (note for note, files in notes.items() if len(files) == number)
    some = [f"{file.name}: {note}" for note, files in notes.items() if len(files) < number for file in files]
    yield from some[:MOST_NAMED]
    if len(some) > MOST_NAMED:
        yield f"the same of {len(some) - MOST_NAMED:,} more files"
