"""The columns of a decision log; what is wrong with a file is said in one line: the file, the row, the remedy."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from qposterior.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

REQUIRED = ("state", "action", "reward", "next_state")
OPTIONAL = ("terminated", "episode", "weight")
LABELS = ("state", "action", "next_state")
SEPARATORS = (",", ";", "\t")
CHUNK = 500_000
TRUE, FALSE = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0", "")


class LogError(InvalidInputError):
    """A log cannot be read; the message names the file, the row where there is one, and the remedy."""

    def __init__(self, path: object, message: str, row: int | None = None) -> None:
        place = f"{path}" if row is None else f"{path}, row {row}"
        super().__init__(f"{place}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the columns are called in the file."""

    state: str = "state"
    action: str = "action"
    reward: str = "reward"
    next_state: str = "next_state"
    terminated: str = "terminated"
    episode: str = "episode"
    weight: str = "weight"

    def present(self, path: object, header: list[str]) -> dict[str, str]:
        """Return {our name: name in the file} of the columns that are there, or say what is missing."""
        doubled = sorted({name for name in header if header.count(name) > 1})
        if doubled:
            raise LogError(path, f"the header has the column {doubled[0]!r} twice; rename one of them", 1)
        missing = [getattr(self, name) for name in REQUIRED if getattr(self, name) not in header]
        if missing:
            raise LogError(
                path,
                f"there is no column {missing[0]!r} (columns are {', '.join(header[:12])}); name yours with "
                f"--column {_ours(self, missing[0])}=NAME",
                1,
            )
        return {name: getattr(self, name) for name in (*REQUIRED, *OPTIONAL) if getattr(self, name) in header}


def _ours(columns: Columns, theirs: str) -> str:
    return next(name for name in REQUIRED if getattr(columns, name) == theirs)


def open_text(path: Path) -> IO[str]:
    """Return the text of a file, unpacked where it is gzipped."""
    open_fn: Any = gzip.open if _is_gzip(path) else open
    return cast("IO[str]", open_fn(path, "rt", encoding="utf-8-sig", newline=""))


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _has_spaces(path: Path) -> bool:
    """Return whether there is a space anywhere in a file (a packed one may have some)."""
    with path.open("rb") as stream:
        return _is_gzip(path) or any(b" " in block for block in iter(lambda: stream.read(1 << 20), b""))


def read_header(path: Path, columns: Columns) -> tuple[str, dict[str, str], int]:
    """Return separator, columns and number of columns of a CSV file, or say what is wrong with its first line."""
    try:
        with open_text(path) as stream:
            first = stream.readline()
    except UnicodeDecodeError as error:
        raise LogError(path, "the file is not UTF-8 text; save it as UTF-8 (or give Parquet)", 1) from error
    except (OSError, EOFError) as error:
        raise LogError(path, f"cannot be read: {error}") from error
    if not first.strip():
        raise LogError(path, "the file is empty; a log has a header line and a row per decision")
    wanted = {getattr(columns, name) for name in REQUIRED}

    def names(separator: str) -> list[str]:
        return [name.strip() for name in next(csv.reader([first.rstrip("\r\n")], delimiter=separator))]

    separator = max(SEPARATORS, key=lambda one: (len(wanted & set(names(one))), len(names(one))))
    return separator, columns.present(path, names(separator)), len(names(separator))


def read_chunks(path: Path, columns: Columns) -> Generator[tuple[int, pd.DataFrame]]:
    """Yield (number of the first row, rows) with our column names: labels as categories of strings, numbers as floats.

    Row 1 is the header of a CSV file; Parquet counts its rows from 1.
    """
    if not path.exists():
        raise LogError(path, "there is no such file")
    if path.suffix.lower() in (".parquet", ".pq"):
        yield from _parquet_chunks(path, columns)
        return
    import pandas as pd

    separator, present, num_columns = read_header(path, columns)
    kinds: dict[str, Any] = {theirs: "category" for ours, theirs in present.items() if ours in LABELS}
    kinds |= {theirs: str for ours, theirs in present.items() if ours in ("terminated", "episode")}
    numbers = {theirs: "float64" for ours, theirs in present.items() if ours in ("reward", "weight")}
    common: dict[str, Any] = {
        "sep": separator,
        # Where all columns are wanted none is named: rows with too many cells are then noticed.
        "usecols": list(present.values()) if len(present) < num_columns else None,
        "na_filter": False,
        "encoding": "utf-8-sig",
        "compression": "gzip" if _is_gzip(path) else None,
        "skipinitialspace": _has_spaces(path),  # costs a third of the reading
        "skip_blank_lines": False,
    }
    row = 2
    try:
        with pd.read_csv(path, chunksize=CHUNK, dtype=kinds | numbers, **common) as reader:
            for chunk in reader:
                yield row, chunk.rename(columns={theirs: ours for ours, theirs in present.items()})
                row += len(chunk)
    except UnicodeDecodeError as error:
        raise LogError(path, "the file is not UTF-8 text; save it as UTF-8 (or give Parquet)") from error
    except (ValueError, pd.errors.ParserError, OSError, EOFError) as error:
        if isinstance(error, LogError):
            raise
        raise _find_bad_row(path, present, separator, error) from error


def _find_bad_row(path: Path, present: dict[str, str], separator: str, problem: Exception) -> LogError:
    """Return the error of the first row that cannot be parsed; only a file that has failed is read this slowly."""
    try:
        with open_text(path) as stream:
            reader = csv.reader(stream, delimiter=separator)
            header = [name.strip() for name in next(reader)]
            for row, cells in enumerate(reader, start=2):
                if len(cells) != len(header):
                    return LogError(path, f"has {len(cells)} cells, the header {len(header)}; correct the row", row)
                for ours in ("reward", "weight"):
                    if ours in present:
                        text = cells[header.index(present[ours])]
                        try:
                            number = float(text)
                        except ValueError:
                            return LogError(path, f"{present[ours]} must be a number, got {text[:40]!r}", row)
                        if not np.isfinite(number):
                            return LogError(path, f"{present[ours]} must be finite, got {text[:40]!r}", row)
    except (UnicodeDecodeError, csv.Error, OSError, EOFError) as error:
        return LogError(path, f"cannot be read: {' '.join(str(error).split())}")
    return LogError(path, f"cannot be read: {' '.join(str(problem).split())[:200]}")


def _parquet_chunks(path: Path, columns: Columns) -> Iterator[tuple[int, pd.DataFrame]]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "parquet") from error
    try:
        file = pq.ParquetFile(path)
    except Exception as error:  # pyarrow has its own zoo of errors
        raise LogError(path, f"cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from error
    present = columns.present(path, list(file.schema_arrow.names))
    row = 1
    for batch in file.iter_batches(batch_size=CHUNK, columns=list(present.values())):
        chunk = batch.to_pandas().rename(columns={theirs: ours for ours, theirs in present.items()})
        for name in LABELS:
            missing = chunk[name].isna().to_numpy()
            if missing.any():
                raise LogError(path, f"{present[name]} is missing", row + int(np.argmax(missing)))
            chunk[name] = chunk[name].astype(str).astype("category")
        for name in ("terminated", "episode"):
            if name in chunk:
                chunk[name] = chunk[name].astype(str)
        for name in ("reward", "weight"):
            if name in chunk:
                chunk[name] = chunk[name].astype(float)
        yield row, chunk
        row += len(chunk)


LARGEST = 1e100
"""Of rewards and weights: squares of what is beyond are not numbers any more."""


def check_chunk(path: Path, first_row: int, chunk: pd.DataFrame) -> None:
    """Raise where a reward or a weight is not finite, or a label is empty or has control characters."""
    for name in ("reward", "weight"):
        if name in chunk:
            values = chunk[name].to_numpy()
            bad = ~(np.abs(values) <= LARGEST) | ((values < 0.0) if name == "weight" else False)
            if bad.any():
                at = int(np.argmax(bad))
                rule = "finite" if name == "reward" else "finite and 0 or more"
                if np.isfinite(values[at]) and abs(values[at]) > LARGEST:
                    rule = f"at most {LARGEST:g} in size (choose a larger unit)"
                raise LogError(path, f"{name} must be {rule}, got {values[at]}", first_row + at)
    for name in LABELS:
        for code, label in enumerate(chunk[name].cat.categories):
            if not label or not label.isprintable():
                at = int(np.argmax(chunk[name].cat.codes.to_numpy() == code))
                what = "is empty" if not label else f"has a control character: {label[:40]!r}"
                raise LogError(path, f"{name} {what}; give every {name} a printable name", first_row + at)


def is_true(path: Path, first_row: int, column: pd.Series) -> np.ndarray:
    """Return the truth of a column of words: 1/0, true/false, yes/no."""
    words = column.str.strip().str.lower()
    true, false = words.isin(TRUE).to_numpy(), words.isin(FALSE).to_numpy()
    if not (true | false).all():
        at = int(np.argmin(true | false))
        raise LogError(path, f"terminated must be 1 or 0 (true or false), got {column.iloc[at][:40]!r}", first_row + at)
    return np.asarray(true)
