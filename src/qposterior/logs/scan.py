"""The rows of a log, checked, in the order of the log and in pieces that do not depend on the number of threads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.logs.columns import quoted
from qposterior.logs.relations import Relation, quoted_name, too_many_cells
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import duckdb

CHUNK = 250_000
"""Rows that are added up in one go: sums are the same to the last bit on one thread or many."""

LARGEST = 1e100
"""Of rewards and weights: squares of what is beyond are not numbers any more."""

DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")

LONGEST_LABELS = 3000
"""Characters that the three labels of a row may have together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of a log."""

    code: IntArray  # (N,)  which of the `labels` a row has
    labels: list[str]  # state, action and successor as one text; those of all rows so far
    reward: FloatArray  # (N,)
    weight: FloatArray  # (N,)
    ended: BoolArray | None  # (N,)
    episode: Any  # (N,)  names, or None
    line: IntArray  # (N,)  the numbers of the rows in their file
    begins: BoolArray | None  # (N,)  whether an episode begins with a row, where that is known


def scan(connection: duckdb.DuckDBPyConnection, relation: Relation) -> Generator[Rows]:
    """Yield the rows of a relation, `CHUNK` at a time."""
    result = connection.execute(
        f"SELECT {relation.labels(LONGEST_LABELS)} AS labels, {', '.join(relation.values())} FROM {relation.table}",
        relation.parameters,
    )
    row, labels = relation.first_row, list[str]()
    for table in _of_equal_size(_with_codes(result, labels)):
        _check(connection, relation, table, first_row=row)
        yield Rows(
            line=table.get("line", np.arange(row, row + table["labels"].size)),
            begins=table.get("begins"),
            code=table["labels"],
            labels=labels,
            reward=table["reward"],
            weight=table.get("weight", np.ones(table["labels"].size)),
            ended=table["terminated"] == 1 if "terminated" in table else None,
            episode=table.get("episode"),
        )
        row += table["labels"].size
    if relation.text is not None:
        relation.text.check_number_of_rows(row - relation.first_row)


def _with_codes(result: duckdb.DuckDBPyConnection, labels: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the columns of a result, piece by piece; texts become codes, and new ones are added to `labels`."""
    import pandas as pd

    codes: dict[str, int] = {}
    while len(frame := result.fetch_df_chunk(49)):
        local, texts = pd.factorize(frame.pop("labels"))
        code = np.array([codes.setdefault(text, len(codes)) for text in texts], dtype=np.int64)[local]
        labels.extend(list(codes)[len(labels) :])
        yield {"labels": code} | {str(name): column.to_numpy() for name, column in frame.items()}


def _of_equal_size(pieces: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield columns of `CHUNK` rows; pieces as DuckDB returns them depend on the number of threads."""
    held: list[dict[str, Any]] = []
    for piece in pieces:
        held.append(piece)
        while sum(piece["labels"].size for piece in held) >= CHUNK:
            table = {name: np.concatenate([piece[name] for piece in held]) for name in piece}
            yield {name: column[:CHUNK] for name, column in table.items()}
            held = [{name: column[CHUNK:] for name, column in table.items()}]
    if any(piece["labels"].size for piece in held):
        yield {name: np.concatenate([piece[name] for piece in held]) for name in held[0]}


def _check(connection: duckdb.DuckDBPyConnection, relation: Relation, table: dict[str, Any], *, first_row: int) -> None:
    """Raise where a row is ragged, a reward or a weight is not a number in range, or `terminated` is not a truth."""
    rules: dict[str, Callable[[Any], Any]] = {
        "is_ragged": lambda ragged: ragged,
        "reward": lambda reward: ~(np.abs(reward) <= LARGEST),
        "weight": lambda weight: ~((weight >= 0.0) & (weight <= LARGEST)),
        "terminated": lambda truth: truth == 2,
    }
    for name, breaks in rules.items():
        if name in table and (is_wrong := breaks(table[name])).any():
            first = int(np.argmax(is_wrong))
            row = first_row + first
            place = "*" if name == "is_ragged" else f"{relation.places[name]}::VARCHAR"
            query = f"SELECT {place} FROM {relation.table} LIMIT 1 OFFSET {row - relation.first_row}"
            cells = connection.execute(query, relation.parameters).fetchone() or (None,)
            line = int(table["line"][first]) if "line" in table else row
            raise relation.error(_what_is_wrong(name, relation.names.get(name, ""), cells), line)


def _remedy(cell: str, column: str) -> str:
    """Return what helps where a cell is a number for people, or says that there is none."""
    if DECIMAL_COMMA.fullmatch(cell.strip()):
        name = quoted_name(column)
        read = f"replace({name}, $$,$$, $$.$$) AS {name}"
        return f"; for decimal commas: --sql 'SELECT * REPLACE ({read}) FROM log', other columns behind a comma"
    if cell.strip() and not any(character.isalnum() for character in cell):
        return f"; where {quoted(cell)} stands for a missing cell: --missing drop --na {shlex.quote(cell.strip())}"
    return ""


def _what_is_wrong(name: str, theirs: str, cells: tuple[Any, ...]) -> str:
    if name == "is_ragged":
        number, most = sum(cell is not None for cell in cells), len(cells) - 1
        return too_many_cells(most) if number > most else f"has {number} cells, the header {most}; correct the row"
    cell = str(cells[0] or "")
    if name == "terminated":
        return f"{theirs} must be 1 or 0 (true or false), got {quoted(cell)}"
    try:
        value = float(cell.encode("ascii", "replace").replace(b"_", b"?"))  # float() would take more than we do
    except ValueError:
        return f"{theirs} must be a number, got {quoted(cell)} (write it like -1.5 or 1e3{_remedy(cell, theirs)})"
    rule = "finite" if name == "reward" else "finite and 0 or more"
    if np.isfinite(value) and abs(value) > LARGEST:
        rule = f"at most {LARGEST:g} in size (choose a larger unit)"
    return f"{theirs} must be {rule}, got {quoted(cell)[1:-1]}"
