"""Raw logs: the rows of individuals, in the order of a column, become decisions with successors.

DuckDB does it on a temporary table of the columns that are needed. Rows keep the number that they have in their file,
so that what is wrong is named as in any log. Successors are built before rows with missing cells are left out: a row
that is left out does not make its neighbours follow each other.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qposterior.errors import InvalidInputError
from qposterior.logs.columns import LABELS, Columns, LogError, check_that_columns_differ, missing_column, quoted
from qposterior.logs.relations import TRUE, Relation, quoted_name

if TYPE_CHECKING:
    import duckdb

END = "(end)"
"""The state in which an episode ends whose last row does not say how."""

MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "null")
"""Cells that say nothing, in any case. `none` is not among them: actions that do nothing are called so."""

NEEDED = {"key": "whose", "order": "stamp", "state": "state", "action": "action", "reward": "reward"}
"""Columns without which a row says nothing, and what they are called in the table."""

MOST_NUMBERS = 50
"""Numeric columns that a state may have."""

MOST_NAMED = 10
"""Rows with missing cells that are named."""

MONTH = r"\d{4}-\d{1,2}"
TIME = rf"{MONTH}(-\d{{1,2}}([T ]\d{{1,2}}:\d{{2}}(:\d{{2}}(\.\d+)?)?)?Z?)?"
"""Months, dates and times; DuckDB would take more, and pass over an offset or PM."""

OTHER_DATE = re.compile(r"\d{1,2}([./])\d{1,2}[./]\d{4}(?P<time> \d{1,2}:\d{2})?(?P<seconds>:\d{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeric:
    """The columns whose numbers are the state, and what bins of them are learned with."""

    columns: tuple[str, ...]
    discount: float | None = None  # None: as near to 1 as bins are learned with
    seed: int = 0

    @classmethod
    def parse(cls, columns: str | None, **others: Any) -> Numeric | None:
        """Return the same from ``"COLUMN,…"``, where a name with a comma stands in double quotes."""
        if columns is None:
            return None
        names = tuple(name.strip() for name in next(csv.reader([str(columns)], skipinitialspace=True), []))
        if not names or not all(names) or len(set(names)) < len(names) or len(names) > MOST_NUMBERS:
            raise InvalidInputError(
                f"numeric must name up to {MOST_NUMBERS} different columns, such as temperature,load, got "
                f"{quoted(str(columns))}"
            )
        return cls(columns=names, **others)

    @property
    def here(self) -> dict[str, str]:
        """Our names of the columns of a state, and theirs."""
        return {f"number_{i}": name for i, name in enumerate(self.columns)}

    @property
    def next(self) -> dict[str, str]:
        """The same of the columns of the next state."""
        return {f"next_number_{i}": f"next_{name}" for i, name in enumerate(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """How the rows of a file become those of a log."""

    key: str | None = None  # the column that says whose row it is; None: rows have their successors
    order: str | None = None  # the column by which the rows of each are ordered; None: as they stand in the file
    outcome: str | None = None  # the column that says in the last row of each how it ended
    cost: bool = False  # rewards are costs
    missing: str | None = None  # "drop" rows with missing cells, or "fail"; None: what is missing is met while reading
    normalise: bool = False  # labels that differ only in case or blanks are one
    ends: str | None = None  # "last": the last row of each ends an episode; "none": records stop; None: as it seems
    na: tuple[str, ...] = ()  # cells that say nothing, beside `MISSING`
    sql: str | None = None  # a SELECT over the table `log`, whose rows are read in place of those of the file
    numeric: Numeric | None = None  # numbers that are the state

    @classmethod
    def parse(cls, next_from: str | None, *, na: str | None = None, **others: Any) -> RawRows:
        """Return the same from ``"ID"`` or ``"ID,ORDER"``, and from cells that say nothing, as in ``"-,?"``."""
        names = [] if next_from is None else [name.strip() for name in str(next_from).split(",")]
        if len(names) > 2 or not all(names):
            raise InvalidInputError(
                "next_from must name one column or two, ID or ID,ORDER, such as patient_id,timestamp, got "
                f"{quoted(str(next_from))}"
            )
        key, order = (*names, None, None)[:2]
        cells = () if na is None else tuple(dict.fromkeys(cell.strip(" \t").lower() for cell in str(na).split(",")))
        raw = cls(key=key, order=order, na=cells, **others)
        if raw.ends is not None and (raw.key is None or raw.outcome is not None):
            raise InvalidInputError(
                "ends says what the last row of each ID is: give next_from=ID,ORDER too, and no outcome, which says it"
            )
        if raw.outcome is not None and raw.key is None:
            raise InvalidInputError("an outcome stands in the last row of each individual: give next_from=ID,ORDER too")
        return raw

    @property
    def is_plain(self) -> bool:
        """Whether rows are scanned as they stand."""
        return not (self.key or self.missing or self.na or self.sql or self.numeric)

    @property
    def built(self) -> tuple[str, ...]:
        """The columns of a log that are built."""
        numbers = () if self.numeric is None else ("state", "next_state")
        return numbers if self.key is None else (*numbers, "next_state", "episode")

    @property
    def named(self) -> dict[str, str]:
        """The columns that are read beside those of a log."""
        given = {"key": self.key, "order": self.order, "outcome": self.outcome}
        return {ours: theirs for ours, theirs in given.items() if theirs is not None} | self.numbers

    @property
    def numbers(self) -> dict[str, str]:
        """The numeric columns that are read, of the state and, unless it is built, of the next one."""
        if self.numeric is None:
            return {}
        return self.numeric.here | (self.numeric.next if self.key is None else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RawColumns:
    """The columns of a raw log: those of a log, less what is built, with those it is built from."""

    columns: Columns
    raw: RawRows

    @property
    def required(self) -> set[str]:
        """The names in the file of the columns without which nothing can be read."""
        built = {getattr(self.columns, name) for name in self.raw.built}
        return (self.columns.required - built) | set(self.raw.named.values())

    def present(self, path: object, header: list[str]) -> dict[str, str]:
        """Return {our name: name in the file} of the columns that are there, or say what is wrong with them."""
        check_that_columns_differ(path, header)
        read_too = {getattr(self.columns, name): name for name in ("action", "reward")}
        for theirs in self.raw.numbers.values():
            if theirs in read_too:
                raise LogError(path, f"{quoted(theirs)} is the {read_too[theirs]}, not a part of the state (--numeric)")
        for ours, theirs in self.raw.named.items():
            if theirs not in header:
                raise missing_column(path, header, theirs, _where_from(ours))
        found = self.columns.present(path, header, built=self.raw.built)
        return {name: theirs for name, theirs in found.items() if name not in self.raw.built} | self.raw.named


def _where_from(ours: str) -> str:
    """Return what helps where a column is missing that is read beside those of a log."""
    if ours.startswith("next_number"):
        return "the next state has columns of its own; or build it from ordered rows with --next-from ID,ORDER"
    option = {"outcome": "--outcome", "key": "--next-from", "order": "--next-from"}.get(ours, "--numeric")
    return f"{option} takes columns of the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """What is scanned, one after the other, in place of the rows of files."""

    relations: Sequence[Relation]
    notes: list[str]  # what was done
    guessed_ends: int = 0  # last rows that were taken for the end of an episode, of which nothing says so


def as_logs(connection: duckdb.DuckDBPyConnection, relations: Sequence[Relation], raw: RawRows) -> Scanned:
    """Return the rows of a log that those of files are made into.

    Files are joined where rows follow each other, and read one by one where they stand for themselves.
    """
    notes = list[str]()
    if raw.cost:
        notes.append(f"{quoted(relations[0].names['reward'])} is a cost: its sign was turned (--cost)")
        relations = [replace(relation, is_cost=True) for relation in relations]
    if raw.sql is not None:
        notes.append(f"rows are those of a question (--sql): {' '.join(raw.sql.split())}")
    if not (raw.key or raw.missing or raw.na or raw.numeric):
        return Scanned(relations=relations, notes=notes)
    whole = _joined(connection, relations, raw)
    needed = {name: column for name, column in NEEDED.items() if name in whole.names} | _here(raw)
    left_out = _LeftOut(connection, whole)
    left_out.check(needed | ({} if raw.key is not None else _there(raw)), may_be=raw.missing == "drop")
    guessed_ends = 0
    if raw.key is not None:
        left_out.drop({name: needed[name] for name in ("key", "order") if name in needed})
        told, guessed_ends = _follow(connection, whole, raw)
        notes += told
    # What a row led to is missing where the state of the next row is.
    left_out.drop({name: needed[name] for name in needed if name not in ("key", "order")} | _there(raw))
    return Scanned(relations=_scanned(whole, raw), notes=[*notes, *left_out.notes()], guessed_ends=guessed_ends)


def _here(raw: RawRows) -> dict[str, str]:
    """Return the expressions of the numbers of a state, which is a list of them; NULL where a cell is no number."""
    return {} if raw.numeric is None else {name: f"state[{i}]" for i, name in enumerate(raw.numeric.here, start=1)}


def _there(raw: RawRows) -> dict[str, str]:
    """Return the expressions of what a row led to, which are missing where that is not known."""
    if raw.numeric is None:
        return {"next_state": "next_state"}
    # Where an episode has ended the next state has a name, and no numbers.
    texts = {
        name: f"CASE WHEN next_state IS NULL THEN following[{i}]::VARCHAR ELSE '{END}' END"
        for i, name in enumerate(raw.numeric.next, start=1)
    }
    if raw.key is None:
        return texts
    return {"next_state": f"CASE WHEN {' OR '.join(map(is_missing, texts.values()))} THEN '' ELSE '{END}' END"}


def _lists(relation: Relation, raw: RawRows) -> Iterator[str]:
    """Yield the numbers of a state as a list, and those of the next one, which has a name where an episode ended."""
    if raw.numeric is None:
        return

    def finite(names: dict[str, str]) -> str:
        numbers = (relation.number(name) for name in names)
        return f"[{', '.join(f'CASE WHEN isfinite({number}) THEN {number} END' for number in numbers)}]"

    yield f"{finite(raw.numeric.here)} AS state"
    if raw.key is None:
        ended = f"lower({relation.trimmed('terminated')}) IN {TRUE}" if "terminated" in relation.names else "false"
        yield f"{finite(raw.numeric.next)} AS following"
        yield f"CASE WHEN {ended} THEN '{END}' END AS next_state"


def _joined(connection: duckdb.DuckDBPyConnection, relations: Sequence[Relation], raw: RawRows) -> Relation:
    """Copy the columns that are needed of all files, as text, into the table `raw`; refuse ragged rows."""
    first, starts, before = relations[0], list[tuple[int, object]](), 0
    for relation in relations:
        if relation.names.keys() != first.names.keys():
            differ = ", ".join(sorted(relation.names.keys() ^ first.names.keys()))
            raise LogError(relation.name, f"has other columns than {first.name} ({differ}); give files of one kind")
        texts = {name: f"{place}::VARCHAR" for name, place in relation.places.items()}
        texts |= {name: relation.label(name) for name in LABELS if name in texts}
        texts = {name: _unless_missing(text, raw) for name, text in texts.items()}
        cells = [f"{texts[name]} AS {NEEDED.get(name, name)}" for name in first.names if name not in raw.numbers]
        cells += _lists(relation, raw)
        line = f"row_number() OVER () + {before + relation.first_row - 1} AS line"
        into = "INSERT INTO raw" if starts else "CREATE TEMP TABLE raw AS"
        connection.execute(
            f"{into} SELECT {', '.join(cells)}, {line}, {relation.is_ragged} AS is_ragged FROM {relation.table}",
            relation.parameters,
        )
        starts.append((before, relation.name))
        [(num_rows, ragged)] = connection.execute(
            "SELECT count(*), min(line) FILTER (is_ragged) FROM raw WHERE line > ?", [before]
        ).fetchall()
        if ragged is not None:
            size = len(relation.header)
            raise relation.error(
                f"has not as many cells as the header, which has {size}; correct the row", ragged - before
            )
        if relation.text is not None:
            relation.text.check_number_of_rows(num_rows)
        before += num_rows + relation.first_row - 1
    return replace(first, starts=tuple(starts))


def _unless_missing(text: str, raw: RawRows) -> str:
    """Return an expression that is NULL where a cell is one of those that say nothing here."""
    cells = ", ".join("'" + cell.replace("'", "''") + "'" for cell in raw.na)
    return f"CASE WHEN lower(trim({text}, ' \t')) NOT IN ({cells}) THEN {text} END" if cells else text


def _scanned(whole: Relation, raw: RawRows) -> list[Relation]:
    """Return the rows as they are now: each individual's in their order, or those of each file."""
    places = {name: NEEDED.get(name, name) for name in whole.names if name not in raw.named}
    places |= {name: name for name in (("next_state", "terminated", "episode", "begins") if raw.key else ())}
    places |= {name: name for name in (("state", "next_state") if raw.numeric else ())}
    scanned = replace(
        whole,
        parameters=[],
        names=whole.names | {name: name for name in places if name not in whole.names},
        places=places | {"line": "line"},
        kinds=dict.fromkeys(places, "VARCHAR"),
        text=None,
    )
    if raw.key is not None:
        return [replace(scanned, table="(SELECT * FROM raw ORDER BY began, place)")]
    ends = [f" AND line <= {start}" for start, _ in whole.starts[1:]] + [""]
    return [
        replace(scanned, table=f"(SELECT * FROM raw WHERE line > {start}{end})")
        for (start, _), end in zip(whole.starts, ends, strict=True)
    ]


def is_time(text: str) -> str:
    """Return the condition that a text is a date or a time."""
    return f"(regexp_full_match({text}, '{TIME}') AND {_moment_of(text)} IS NOT NULL)"


def _moment_of(text: str) -> str:
    """Return the moment that a text names, the first of a month; NULL where it names none."""
    return f"TRY_CAST({text} || CASE WHEN regexp_full_match({text}, '{MONTH}') THEN '-01' ELSE '' END AS TIMESTAMP)"


def is_missing(column: str) -> str:
    """Return the condition that the cell of a text column says nothing."""
    return f"lower(trim(coalesce({column}::VARCHAR, ''), ' \t')) IN {MISSING}"


# -- successors --------------------------------------------------------------------------------------------------------


def _follow(connection: duckdb.DuckDBPyConnection, whole: Relation, raw: RawRows) -> tuple[list[str], int]:
    """Give each row its successor, whether its episode ends with it, and whether one begins.

    Return what was done, in sentences, and how many ends were guessed.
    """
    moment = "line" if raw.order is None else _moment(connection, whole, raw)
    says_ends = "terminated" in whole.names
    ended = f"lower(trim(coalesce(terminated, ''), ' \t')) IN {TRUE}" if says_ends else "false"
    if says_ends and raw.ends is not None:
        raise LogError(whole.name, f"ends come from the column {quoted(whole.names['terminated'])}; leave --ends out")
    has_outcome = "false" if raw.outcome is None else f"NOT {is_missing('outcome')}"
    told = f"is_last AND {has_outcome}"
    [(num_keys,)] = connection.execute("SELECT count(DISTINCT whose) FROM raw").fetchall()
    # The rows of one individual may just stop. Those of many stop where their episodes end, if nothing else says so.
    is_guess = num_keys > 1 and raw.outcome is None and not says_ends and raw.ends is None
    stops = str(is_guess or raw.ends == "last").lower()
    connection.execute(
        f"""CREATE TEMP TABLE ordered AS
        SELECT *, {ended} AS has_ended, whose AS episode, {moment} AS moment, row_number() OVER w AS place,
               min(line) OVER (PARTITION BY whose) AS began, lead(state) OVER w AS following,
               lead(line) OVER w IS NULL AS is_last, coalesce(lag({ended}) OVER w, true) AS begins
        FROM raw WINDOW w AS (PARTITION BY whose ORDER BY {moment}, line)"""
    )
    connection.execute("DROP TABLE raw")
    ends = f"(has_ended OR (is_last AND {stops}) OR ({told}))"
    outcome = "NULL" if raw.outcome is None else "outcome"
    # Numbers of the next state stay: their bins are not known yet.
    left_out, label = ("has_ended", "NULL") if raw.numeric else ("following, has_ended", "following")
    connection.execute(
        f"""CREATE TEMP TABLE raw AS
        SELECT * EXCLUDE ({left_out}{", terminated" if says_ends else ""}),
               CASE WHEN {told} THEN {outcome} WHEN {ends} THEN '{END}' ELSE {label} END AS next_state,
               CASE WHEN {ends} THEN '1' ELSE '0' END AS terminated
        FROM ordered"""
    )
    connection.execute("DROP TABLE ordered")
    [(fewest, most, ties, copies, cut, early)] = connection.execute(
        f"""SELECT min(size), max(size), sum(ties)::BIGINT, sum(copies)::BIGINT, sum(cut)::BIGINT, sum(early)::BIGINT
        FROM (SELECT count(*) AS size, count(*) - count(DISTINCT moment) AS ties,
                count(*) - count(DISTINCT (moment, state, action, reward)) AS copies,
                count(*) FILTER (is_last AND terminated = '0') AS cut,
                count(*) FILTER (NOT is_last AND {has_outcome}) AS early FROM raw GROUP BY whose)"""
    ).fetchall()
    connection.execute("DELETE FROM raw WHERE is_last AND terminated = '0'")
    key, order = quoted(whole.names["key"]), quoted(whole.names.get("order", ""))
    sizes = f"{fewest:,} rows each" if fewest == most else f"{fewest:,} to {most:,} rows each"
    by = "in the order of the file" if raw.order is None else f"in the order of {order}"
    notes = [f"successors were built from the rows of each {key}, {by} (--next-from): {num_keys:,} of them, {sizes}"]
    if raw.order is not None and ties:
        exact = f", of which {copies:,} are copies in all that is read (--sql with SELECT DISTINCT leaves them out)"
        notes.append(
            f"{ties:,} rows have the same {order} as the row of their {key} before{exact if copies else ''}: these "
            "follow as in the file"
        )
    if early:
        notes.append(
            f"{early:,} rows have an outcome and are not the last of their {key}: it was not read there; are rows "
            "in the right order?" + (" --next-from takes the column that orders them, too" if raw.order is None else "")
        )
    if stops == "true":
        notes.append(f"the last row of each {key} ends its episode, in a state called {END}")
    if cut:
        notes.append(f"{_rows(cut)} left out: the last of a {key}, and nothing says what came next")
    return notes, num_keys if is_guess else 0


def _moment(connection: duckdb.DuckDBPyConnection, whole: Relation, raw: RawRows) -> str:
    """Return the expression to order by: all numbers, or all dates and times as in 2024-03-01 14:30."""
    text = "trim(stamp, ' \t')"
    number, moment = f"TRY_CAST({text} AS DOUBLE)", _moment_of(text)
    is_number, is_moment = f"isfinite({number}) IS TRUE", is_time(text)
    for kind, is_kind in ((number, is_number), (moment, is_moment)):
        [(are_all,)] = connection.execute(f"SELECT bool_and({is_kind}) FROM raw").fetchall()
        if are_all in (True, None):
            return kind
    # The first that is of no kind, else the first that is not like the first row.
    line, cell = connection.execute(
        f"SELECT line, {text} FROM raw ORDER BY {is_number} OR {is_moment}, {is_number}, line LIMIT 1"
    ).fetchall()[0]
    name = quoted_name(whole.names["order"])
    other = OTHER_DATE.fullmatch(cell or "")
    form = "the format of yours" if other is None else f"%d{other[1]}%m{other[1]}%Y"
    form += "" if other is None else " %H:%M" * bool(other["time"]) + ":%S" * bool(other["seconds"])
    read = f"strptime({name}, $${form}$$) AS {name}"
    remedy = f"--sql 'SELECT * REPLACE ({read}) FROM log'" if raw.sql is None else f"{read}, in the REPLACE of --sql"
    raise whole.error(
        f"{whole.names['order']} must be a number in all rows, or a date or time such as 2024-03-01 or 2024-03-01 "
        f"14:30:05 (one time zone, no offset, 24 hours), got {quoted(cell)}; to read others: {remedy}",
        line,
    )


# -- missing cells -----------------------------------------------------------------------------------------------------


class _LeftOut:
    """Rows with missing cells, or without a number where one must be: refused, or left out and counted."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, whole: Relation) -> None:
        self.connection, self.whole = connection, whole
        [(self.num_rows,)] = connection.execute("SELECT count(*) FROM raw").fetchall()
        self.lines, self.counts, self.dropped = list[int](), dict[str, int](), 0

    def check(self, columns: dict[str, str], *, may_be: bool) -> None:
        """Note the first rows with missing cells; raise where there must not be any."""
        query = f"SELECT line FROM raw WHERE {self._any(columns)} ORDER BY line LIMIT {MOST_NAMED}"
        self.lines = [line for (line,) in self.connection.execute(query).fetchall()]
        if self.lines and not may_be:
            self._count(columns)
            raise LogError(
                self.whole.name,
                f"cells are missing{self._or_wrong()}: {self._columns()} in {self.num_rows:,} rows ({self._rows()}); "
                "correct them, or leave these rows out with --missing drop",
            )

    def drop(self, columns: dict[str, str]) -> None:
        """Leave out the rows in which one of the columns is missing."""
        self._count(columns)
        [(dropped,)] = self.connection.execute(f"DELETE FROM raw WHERE {self._any(columns)}").fetchall() or [(0,)]
        self.dropped += dropped

    def notes(self) -> Iterator[str]:
        """Yield the sentence that says what was left out."""
        if self.dropped:
            yield (
                f"{self.dropped:,} of {self.num_rows:,} rows were left out for missing cells{self._or_wrong()} "
                "(--missing drop): "
                f"{self._columns()}; {self._rows()}"
            )

    def _or_wrong(self) -> str:
        return " or are no numbers" if "number_0" in self.whole.names else ""

    def _any(self, columns: dict[str, str]) -> str:
        return " OR ".join(map(is_missing, columns.values())) or "false"

    def _count(self, columns: dict[str, str]) -> None:
        counts = ", ".join(f"count(*) FILTER ({is_missing(column)})" for column in columns.values()) or "0"
        [numbers] = self.connection.execute(f"SELECT {counts} FROM raw").fetchall()
        self.counts |= {name: number for name, number in zip(columns, numbers, strict=False) if number}

    def _columns(self) -> str:
        names = {"next_state": "the state of the next row"} | self.whole.names
        return ", ".join(f"{names[name]} {number:,}" for name, number in self.counts.items())

    def _rows(self) -> str:
        return f"first in row{'s' if len(self.lines) > 1 else ''} {', '.join(map(str, self.lines))}"


def _rows(number: int) -> str:
    return "one row was" if number == 1 else f"{number:,} rows were"
