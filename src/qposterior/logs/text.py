"""A first look at a CSV file of unknown origin: its header and the number of its lines, in bounded memory.

DuckDB does not verify the checksum of a gzip file nor the encoding of cells that are not asked for, passes over blank
lines (so that rows are numbered wrongly), and loses lines that are longer than its buffer without a word. All of that
is noticed here, on the bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from qposterior.logs.columns import ColumnNames, LogError

SEPARATORS = (",", ";", "\t")
LONGEST_LINE = 1 << 20
"""Bytes; also how many are looked at in one go."""

MOST_COLUMNS = 2000
NOT_UTF8 = "the file is not UTF-8 text; save it as UTF-8 (or give Parquet)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """What the bytes of a CSV file say about it."""

    path: Path
    is_gzip: bool
    separator: str
    header: list[str]
    num_lines: int
    has_quotes: bool

    def check_number_of_rows(self, num_rows: int) -> None:
        """Raise unless `num_rows` were all rows below the header; the file may end in blank lines, but have no others.

        Lines and rows differ only where there are blank lines or line breaks within quotes; then the rows are counted
        by another parser.
        """
        if num_rows == self.num_lines - 1:
            return
        last = 0
        with _opened(self.path, self.is_gzip) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            for row, cells in enumerate(csv.reader(text, delimiter=self.separator), start=1):
                if cells and row > last + 1:
                    raise LogError(self.path, "the row is blank; delete it", last + 1)
                last = row if cells else last
        if last != num_rows + 1:
            raise LogError(self.path, f"only {num_rows} of {last - 1} rows could be made out; check the quotes")


def look_at(path: Path, columns: ColumnNames) -> TextFile:
    """Return the header, the separator and the number of lines of a CSV file, or say what is wrong with it."""
    with _opened(path) as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    with _opened(path, is_gzip) as stream:
        block = stream.read(LONGEST_LINE)
        first = block.splitlines(keepends=True)[0] if block else b""
        separator, header = _header(path, first, columns.required)
        end = b"\r" if first.endswith(b"\r") else b"\n"
        num_lines, has_quotes, line_length, last = 0, False, 0, b""
        decoder = getincrementaldecoder("utf-8")()
        while block:
            decoder.decode(block)
            begins = block.find(end)
            if line_length + (begins if begins >= 0 else len(block)) > LONGEST_LINE:
                raise LogError(path, f"the line is longer than {LONGEST_LINE} bytes; is this a log?", num_lines + 1)
            line_length = len(block) - block.rfind(end) - 1 if begins >= 0 else line_length + len(block)
            num_lines += block.count(end)
            has_quotes = has_quotes or b'"' in block
            last, block = block, stream.read(LONGEST_LINE)
        decoder.decode(b"", final=True)
    return TextFile(
        path=path,
        is_gzip=is_gzip,
        separator=separator,
        header=header,
        num_lines=num_lines + (not last.endswith(end)),
        has_quotes=has_quotes,
    )


@contextmanager
def _opened(path: Path, is_gzip: bool = False) -> Iterator[IO[bytes]]:
    """Open the (unpacked) bytes of a file; what goes wrong while they are read is a `LogError`."""
    try:
        with cast("IO[bytes]", gzip.open(path) if is_gzip else path.open("rb")) as stream:
            yield stream
    except UnicodeDecodeError as error:
        raise LogError(path, NOT_UTF8) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LogError(path, f"the gzip file is damaged ({error}); pack it again") from error
    except (OSError, csv.Error) as error:
        raise LogError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _header(path: Path, line: bytes, wanted: set[str]) -> tuple[str, list[str]]:
    """Return the separator under which most of the wanted columns are there, and the names of all columns."""
    if len(line) >= LONGEST_LINE:
        raise LogError(path, f"the line is longer than {LONGEST_LINE} bytes; is this a log?", 1)
    text = line.decode("utf-8-sig").rstrip("\r\n")
    if not text.strip():
        raise LogError(path, "the first line is empty; a log has a header line and a row per decision")
    if text.count('"') % 2:
        raise LogError(path, "a name in the header has a quote that is not closed", 1)

    def names(separator: str) -> list[str]:
        cells = next(csv.reader([text], delimiter=separator, skipinitialspace=True))
        return [cell.strip() for cell in cells]

    separator = max(SEPARATORS, key=lambda one: (len(wanted & set(names(one))), len(names(one))))
    header = names(separator)
    if len(header) > MOST_COLUMNS:
        raise LogError(path, f"the header has {len(header)} columns; at most {MOST_COLUMNS} are read", 1)
    return separator, header
