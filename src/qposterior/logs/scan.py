"""The rows of a log, checked, in the order of the log and in pieces that do not depend on the number of threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.logs.columns import LogError, quoted
from qposterior.logs.relations import Relation
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import duckdb
    import pandas as pd

CHUNK = 100_000
"""Rows that are added up in one go: sums are the same to the last bit on one thread or many."""

LARGEST = 1e100
"""Of rewards and weights: squares of what is beyond are not numbers any more."""

LONGEST_LABELS = 3000
"""Characters that the three labels of a row may have together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of a log."""

    first_row: int
    code: IntArray  # (N,)  which of the `labels` a row has
    labels: list[str]  # state, action and successor as one text; those of all rows so far, in no order
    reward: FloatArray  # (N,)
    weight: FloatArray  # (N,)
    ended: BoolArray | None  # (N,)
    episode: Any  # (N,)  names, or None


def scan(connection: duckdb.DuckDBPyConnection, relation: Relation) -> Generator[Rows]:
    """Yield the rows of a relation, `CHUNK` at a time.

    The labels of the first rows become an enumeration, so that most rows come back as a number; only labels that turn
    up later come back as text.
    """
    text = f"left({relation.labels}, {LONGEST_LABELS + 1})"
    first = f"SELECT {text} AS labels FROM {relation.table} LIMIT {CHUNK}"
    connection.execute(f"CREATE TYPE known AS ENUM (SELECT DISTINCT labels FROM ({first}))", relation.parameters)
    (labels,) = connection.execute("SELECT enum_range(NULL::known)").fetchone() or ([],)
    codes = {label: code for code, label in enumerate(labels)}
    known = f"TRY_CAST({relation.labels} AS known)"
    values = ", ".join(relation.values())
    query = (
        f"SELECT coalesce(enum_code({known})::INTEGER, -1) AS code, CASE WHEN {known} IS NULL THEN encode({text}) END "
        f"AS labels, {values} FROM {relation.table}"
    )
    row = relation.first_row
    for table in _of_equal_size(connection.execute(query, relation.parameters)):
        _check(connection, relation, row, table)
        code, texts = table["code"].to_numpy(copy=True), table["labels"].to_numpy()
        for at in np.flatnonzero(code == -1).tolist():
            label = bytes(texts[at]).decode()
            code[at] = codes.setdefault(label, len(codes))
            if len(codes) > len(labels):
                labels.append(label)
        yield Rows(
            first_row=row,
            code=code,
            labels=labels,
            reward=table["reward"].to_numpy(),
            weight=table["weight"].to_numpy() if "weight" in table else np.ones(len(table)),
            ended=table["terminated"].to_numpy() == 1 if "terminated" in table else None,
            episode=table["episode"].to_numpy() if "episode" in table else None,
        )
        row += len(table)
    if relation.text is not None:
        relation.text.check_number_of_rows(row - relation.first_row)


def _of_equal_size(result: duckdb.DuckDBPyConnection) -> Iterator[pd.DataFrame]:
    """Yield a result in tables of `CHUNK` rows; those that DuckDB hands out depend on the number of threads."""
    import pandas as pd

    pieces: list[pd.DataFrame] = []
    while len(piece := result.fetch_df_chunk(16)):
        pieces.append(piece)
        while sum(map(len, pieces)) >= CHUNK:
            rows = pd.concat(pieces, ignore_index=True)
            yield rows[:CHUNK]
            pieces = [rows[CHUNK:]]
    if any(map(len, pieces)):
        yield pd.concat(pieces, ignore_index=True)


def _check(connection: duckdb.DuckDBPyConnection, relation: Relation, first_row: int, rows: pd.DataFrame) -> None:
    """Raise where a row is ragged, a reward or a weight is not a number in range, or `terminated` is not a truth."""
    rules = {
        "is_ragged": lambda ragged: ragged,
        "reward": lambda reward: ~(np.abs(reward) <= LARGEST),
        "weight": lambda weight: ~((weight >= 0.0) & (weight <= LARGEST)),
        "terminated": lambda truth: truth == 2,
    }
    for name, breaks in rules.items():
        if name in rows and (is_wrong := breaks(rows[name].to_numpy())).any():
            row = first_row + int(np.argmax(is_wrong))
            place = "*" if name == "is_ragged" else f"{relation.places[name]}::VARCHAR"
            query = f"SELECT {place} FROM {relation.table} LIMIT 1 OFFSET {row - relation.first_row}"
            cells = connection.execute(query, relation.parameters).fetchone() or (None,)
            raise LogError(relation.name, _what_is_wrong(name, relation.names.get(name, ""), cells), row)


def _what_is_wrong(name: str, theirs: str, cells: tuple[Any, ...]) -> str:
    if name == "is_ragged":
        number = sum(cell is not None for cell in cells)
        return f"has {number} cells, the header {len(cells) - 1}; correct the row"
    cell = str(cells[0] or "")
    if name == "terminated":
        return f"{theirs} must be 1 or 0 (true or false), got {quoted(cell)}"
    try:
        value = float(cell.replace("_", "?"))
    except ValueError:
        return f"{theirs} must be a number, got {quoted(cell)} (write it like -1.5 or 1e3)"
    rule = "finite" if name == "reward" else "finite and 0 or more"
    if np.isfinite(value) and abs(value) > LARGEST:
        rule = f"at most {LARGEST:g} in size (choose a larger unit)"
    return f"{theirs} must be {rule}, got {quoted(cell)[1:-1]}"
