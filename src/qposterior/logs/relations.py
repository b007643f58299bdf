"""A log as a relation that DuckDB scans: a CSV file, a Parquet file and a table in memory differ only in that.

Cells of a CSV file are read as text, never guessed. Nothing that a file contains becomes part of a statement, except
the names of Parquet columns, in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.logs.columns import LABELS, ColumnNames, LogError
from qposterior.logs.text import LONGEST_LINE, NOT_UTF8, TextFile, look_at

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

THREADS: int | None = None
"""Of the scan; None is one a core."""

MEMORY = "2GB"
BETWEEN = "\x1f"
"""Stands between the labels of a row, and for a cell that is not there: no label may have it."""

NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
TRUE, FALSE = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """What is scanned: a table expression, and which of our columns are in it, under which name and of which type."""

    name: object  # of the log, for messages
    table: str
    parameters: list[str] = field(default_factory=list)
    names: dict[str, str]  # our name → name in the log
    places: dict[str, str]  # our name → expression
    kinds: dict[str, str]  # our name → SQL type
    text: TextFile | None = None
    header: list[str]  # every column of the log
    is_cost: bool = False  # rewards count with the other sign
    words: dict[str, str] = field(default_factory=dict)  # labels of states that stand for others: those of bins
    starts: tuple[tuple[int, object], ...] = ()  # of rows joined from files: how many lie before each, and its name

    @property
    def unread(self) -> list[str]:
        """The columns that are none of ours."""
        return [name for name in self.header if name not in self.names.values()]

    @property
    def first_row(self) -> int:
        """The number of the first row: the header of a CSV file is row 1."""
        return 1 if self.text is None else 2

    def error(self, message: str, row: int) -> LogError:
        """Return the error that names a row, and its file where there are several."""
        before, name = max(
            (start for start in self.starts if start[0] < row), key=itemgetter(0), default=(0, self.name)
        )
        return LogError(name, message, row - before)

    def labels(self, most: int) -> str:
        """Return the labels of a row as one text, cut where it has more than `most` characters."""
        between = f", '{BETWEEN}', "
        text = f"concat({between.join(self.label(name) for name in LABELS)})"  # what is missing is empty
        return f"CASE WHEN strlen({text}) > {most} THEN left({text}, {most + 1}) ELSE {text} END"

    def values(self) -> Iterator[str]:
        """Yield what is read beside the labels: numbers, truths (2 is neither), episodes, whether a row is ragged.

        Of rows that are not in the order of a file also their numbers, and whether an episode begins with them.
        """
        yield f"{'-' if self.is_cost else ''}{self.number('reward')} AS reward"
        if "weight" in self.names:
            yield f"{self.number('weight')} AS weight"
        yield from (name for name in ("line", "begins") if name in self.places)
        if "terminated" in self.names:
            word = f"lower({self.trimmed('terminated')})"
            yield f"CASE WHEN {word} IN {TRUE} THEN 1 WHEN {word} IN {FALSE} THEN 0 ELSE 2 END AS terminated"
        if "episode" in self.names:
            name = self.trimmed("episode")  # only ever compared with the row before
            yield f"encode(CASE WHEN strlen({name}) > 100 THEN md5({name}) ELSE {name} END) AS episode"
        if self.text is not None:
            yield f"{self.is_ragged} AS is_ragged"

    @property
    def is_ragged(self) -> str:
        """Whether a row has not as many cells as the header."""
        if self.text is None:
            return "false"
        size = len(self.text.header)
        return f"(c{size - 1} IS NULL OR c{size} IS NOT NULL)"

    def trimmed(self, name: str) -> str:
        """Return the text of a cell without blanks around it."""
        return f"trim(coalesce({self.places[name]}::VARCHAR, ''), ' \t')"

    def label(self, name: str) -> str:
        """Return the text of a cell."""
        place, kind = self.places[name], self.kinds[name]
        if kind == "BOOLEAN":
            place = f"CASE WHEN {place} THEN 'True' WHEN NOT {place} THEN 'False' END"
        return f"nullif({place}::VARCHAR, 'nan')" if kind in ("FLOAT", "DOUBLE") else f"{place}::VARCHAR"

    def number(self, name: str) -> str:
        """Return a float or NULL. Text may be `-1.5`, `.5` or `1e3`, with blanks around it; not `1_000` or `1,5`."""
        place, kind = self.places[name], self.kinds[name]
        if kind.split("(")[0].removeprefix("U") in NUMBERS:
            return f"{place}::DOUBLE"
        return f"CASE WHEN contains({place}::VARCHAR, '_') THEN NULL ELSE TRY_CAST({place}::VARCHAR AS DOUBLE) END"


def relation_of_file(connection: duckdb.DuckDBPyConnection, path: Path, columns: ColumnNames) -> Relation:
    """Return the relation of a Parquet file, by its name, or of a CSV file."""
    if not path.exists():
        raise LogError(path, "there is no such file")
    if not path.is_file():
        raise LogError(path, "is a pipe or a device; give a file")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(connection, path, columns)
    return _csv(path, columns)


def relation_of_table(connection: duckdb.DuckDBPyConnection, table: Any, columns: ColumnNames) -> Relation:
    """Return the relation of a pandas or Polars frame: numbers as they are, anything else as text."""
    import pandas as pd

    header = [str(column) for column in table.columns]
    names = columns.present("table", header)
    if not hasattr(table, "iloc"):  # Polars, whose columns have names of their own
        table = pd.DataFrame({name: table[name].to_numpy() for name in dict.fromkeys(names.values())})
        header = [str(column) for column in table.columns]
    plain = pd.DataFrame({ours: _plain(table.iloc[:, header.index(theirs)]) for ours, theirs in names.items()})
    connection.register("frame", plain)
    kinds = _kinds(connection, "frame", [])
    return Relation(
        name="table",
        table="frame",
        names=names,
        places={name: quoted_name(name) for name in names},
        kinds=kinds,
        header=header,
    )


def _plain(column: pd.Series) -> pd.Series:
    import pandas as pd

    if column.dtype.kind in "iu" or column.dtype == np.float64:
        return pd.Series(column.to_numpy())
    cells = zip(column.tolist(), column.isna().tolist(), strict=True)
    return pd.Series([None if is_missing else str(cell) for cell, is_missing in cells], dtype=object)


def _csv(path: Path, columns: ColumnNames) -> Relation:
    """Return the relation of a CSV file, with one column more than its header; cells that are not there are NULL.

    Without that column empty cells at the end of a row that the header has no names for would be passed over.
    """
    text = look_at(path, columns)
    names = columns.present(path, text.header)
    cells = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(text.header) + 1))
    options = {
        "columns": f"{{{cells}}}",
        "auto_detect": "false",
        "header": "true",
        "delim": f"'{text.separator}'",
        "quote": "'\"'",
        "escape": "'\"'",
        "nullstr": f"'{BETWEEN}'",
        "null_padding": "true",
        "strict_mode": "true",
        "compression": "'gzip'" if text.is_gzip else "'none'",
        "hive_partitioning": "false",
        "parallel": "false" if text.has_quotes else "true",  # line breaks within quotes cannot be padded in parallel
        "max_line_size": f"{2 * LONGEST_LINE}",
        "buffer_size": f"{4 * LONGEST_LINE}",
    }
    return Relation(
        name=path,
        table=f"read_csv(?, {', '.join(f'{name}={value}' for name, value in options.items())})",
        parameters=[_literal(path)],
        names=names,
        places={ours: f"c{text.header.index(theirs)}" for ours, theirs in names.items()},
        kinds=dict.fromkeys(names, "VARCHAR"),
        text=text,
        header=text.header,
    )


def _parquet(connection: duckdb.DuckDBPyConnection, path: Path, columns: ColumnNames) -> Relation:
    table, parameters = "read_parquet(?, hive_partitioning=false, binary_as_string=true)", [_literal(path)]
    return relation_of_view(connection, path, table, columns, parameters=parameters)


def relation_of_view(
    connection: duckdb.DuckDBPyConnection,
    name: object,
    table: str,
    columns: ColumnNames,
    *,
    parameters: Sequence[str] = (),
) -> Relation:
    """Return the relation of what DuckDB itself knows the columns of."""
    kinds = _kinds(connection, table, list(parameters))
    names = columns.present(name, list(kinds))
    return Relation(
        name=name,
        table=table,
        parameters=list(parameters),
        names=names,
        places={ours: quoted_name(theirs) for ours, theirs in names.items()},
        kinds={ours: kinds[theirs] for ours, theirs in names.items()},
        header=list(kinds),
    )


def union_of(relations: Sequence[Relation]) -> Relation:
    """Return the rows of several files, of all their columns, as one relation; what a file lacks is missing there."""
    header = list(dict.fromkeys(name for relation in relations for name in relation.header))
    parts = []
    for relation in relations:
        cells = ", ".join(f"{relation.places[name]} AS {quoted_name(name)}" for name in relation.header)
        parts.append(f"SELECT {cells} FROM {relation.table}")
    kinds = {name: kind for relation in reversed(relations) for name, kind in relation.kinds.items()}
    return replace(
        relations[0],
        table=f"({' UNION ALL BY NAME '.join(parts)})",
        parameters=[parameter for relation in relations for parameter in relation.parameters],
        names={name: name for name in header},
        places={name: quoted_name(name) for name in header},
        kinds=kinds,
        text=None,
        header=header,
    )


def quoted_name(column: str) -> str:
    """Return the name of a column as it stands in a statement, whatever it contains."""
    return '"' + column.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class AllColumns:
    """Every column, under its own name."""

    required: set[str] = field(default_factory=set)

    def present(self, path: object, header: list[str]) -> dict[str, str]:
        """Return them."""
        return {name: name for name in header}


def _kinds(connection: duckdb.DuckDBPyConnection, table: str, parameters: list[str]) -> dict[str, str]:
    described = connection.execute(f"DESCRIBE SELECT * FROM {table}", parameters).fetchall()
    return {str(row[0]): str(row[1]) for row in described}


def _literal(path: Path) -> str:
    """Return a path in which `*`, `?` and `[` stand for themselves."""
    return re.sub(r"[*?\[]", r"[\g<0>]", str(path.absolute()))


@contextmanager
def connected(name: object, *, may_spill: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database in memory that loads and fetches nothing; its errors become a line about the log.

    It writes nothing either, unless it may spill what does not fit into memory to a folder that is removed.
    """
    import duckdb

    config: dict[str, Any] = {
        "memory_limit": MEMORY,
        "temp_directory": "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_persistent_secrets": False,
        "python_enable_replacements": False,
    } | ({} if THREADS is None else {"threads": THREADS})
    try:
        with ExitStack() as stack:
            if may_spill:
                config["temp_directory"] = stack.enter_context(TemporaryDirectory(prefix="qposterior-"))
            connection = stack.enter_context(duckdb.connect(":memory:", config=config))
            # A progress bar would be written to stdout; in a notebook without widgets it is off and cannot be set.
            [(has_bar,)] = connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()
            if has_bar:
                connection.execute("SET enable_progress_bar = false")
            yield connection
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise _translated(name, str(error)) from error


def too_many_cells(most: int) -> str:
    """Return what is wrong with a row that is longer than the header."""
    return f"has more cells than the header, which has {most}; correct the row"


def _translated(name: object, message: str) -> LogError:
    """Return what DuckDB found wrong, without its advice on options that a user of ours does not have."""
    line = re.search(r"Error on Line: (\d+)", message)
    row = int(line[1]) if line else None
    cells = re.search(r"Expected Number of Columns: (\d+)", message)
    if cells:  # fewer are padded
        return LogError(name, too_many_cells(int(cells[1]) - 1), row)
    for sign, rule in (
        ("utf-8", NOT_UTF8),
        ("codec", NOT_UTF8),
        ("unterminated quote", "a quote is not closed, or text follows it; write a quote within a cell twice"),
        ("invalid state", "some lines end in LF, others in CR or CRLF; give all lines the same end"),
        ("could not allocate", f"reading needs more than {MEMORY} of memory; split the log and add it part by part"),
    ):
        if sign in message.lower():
            return LogError(name, rule, row)
    kind = "as Parquet " if str(name).lower().endswith((".parquet", ".pq")) else ""
    first = message.replace(str(name), "the file").partition("\n")[0]
    return LogError(name, f"cannot be read {kind}({first[:160]})", row)
