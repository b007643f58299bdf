"""Transition rows of state-action pairs, sparse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qposterior.checks import check_floats, check_indices, check_shape, check_type, shown
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray, offsets, segments, sum_by

if TYPE_CHECKING:
    import scipy.sparse as sp

ROW_SUM_TOLERANCE = 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionTable:
    """Rows P(· | k) of K pairs over S states in compressed sparse row form; successors of a row are sorted.

    Agents build one in every episode, so it is `check_rows`, where a table comes in from outside, that checks it.
    """

    num_states: int
    row_start: IntArray  # (K + 1,)
    successor: IntArray  # (nnz,)
    probability: FloatArray  # (nnz,)

    @property
    def num_rows(self) -> int:
        """K, the number of rows."""
        return int(self.row_start.size - 1)

    @cached_property
    def matrix(self) -> sp.csr_array:
        """The rows as a ``(K, S)`` sparse matrix."""
        import scipy.sparse as sp

        return sp.csr_array(
            (self.probability, self.successor, self.row_start), shape=(self.num_rows, self.num_states), copy=True
        )

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether every row has a single successor."""
        return bool(np.all(np.diff(self.row_start) == 1))

    def row(self, pair: int) -> tuple[IntArray, FloatArray]:
        """Return the successors of one pair and their probabilities."""
        window = slice(self.row_start[pair], self.row_start[pair + 1])
        return self.successor[window], self.probability[window]

    def expect(self, values: FloatArray) -> FloatArray:
        """Return ``(K,)`` expected values Σ P(s'|k) values(s') of ``(S,)`` values."""
        if self.is_deterministic:
            return values[self.successor]
        return np.asarray(self.matrix @ values, dtype=np.float64)

    def spread(self, places: IntArray, num_rows: int) -> TransitionTable:
        """Return a table of `num_rows` rows with these rows at `places` (ascending) and empty rows elsewhere."""
        lengths = np.zeros(num_rows, dtype=np.int64)
        lengths[places] = np.diff(self.row_start)
        return TransitionTable(
            num_states=self.num_states,
            row_start=offsets(lengths),
            successor=self.successor,
            probability=self.probability,
        )

    def select(self, pairs: IntArray) -> TransitionTable:
        """Return the table of these rows, in this order."""
        row_start, entry = segments(self.row_start, np.asarray(pairs, dtype=np.int64))
        return TransitionTable(
            num_states=self.num_states,
            row_start=row_start,
            successor=self.successor[entry],
            probability=self.probability[entry],
        )


def check_rows(table: TransitionTable, num_rows: int, num_states: int) -> None:
    """Raise unless a table has a distribution over the states for each of the pairs, in the form that it must have."""
    check_type("transitions", table, TransitionTable)
    for field, kinds in (("row_start", "iu"), ("successor", "iu"), ("probability", "f")):
        value = getattr(table, field)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            number = "floats" if kinds == "f" else "whole numbers"
            raise InvalidInputError(f"transitions.{field} must be a NumPy array of {number}, got {shown(value)}")
    check_shape("transitions.row_start", table.row_start.shape, (-1,))
    if (table.num_rows, table.num_states) != (num_rows, num_states):
        raise InvalidInputError(
            f"transitions must have a row for each of the {num_rows} pairs over {num_states} states, got "
            f"{table.num_rows} rows over {shown(table.num_states)}; pass mdp.transitions"
        )
    _check_rows_are_distributions(table)


def _check_rows_are_distributions(table: TransitionTable) -> None:
    probability = check_floats("transitions.probability", table.probability, (-1,), "(0, inf)")
    start, size = table.row_start, probability.size
    if start[0] != 0 or start[-1] != size or np.any(np.diff(start) < 0):
        raise InvalidInputError(
            f"transitions.row_start must rise from 0 to {size}, the entries of probability, got {shown(start)}"
        )
    successor = check_indices("transitions.successor", table.successor, table.num_states, shape=(size,))
    row = np.repeat(np.arange(table.num_rows), np.diff(start))
    late = np.flatnonzero(np.diff(row * table.num_states + successor) <= 0)
    if late.size:
        i = late[0]
        raise InvalidInputError(
            f"transitions.successor must rise within a row; in row {row[i]} {successor[i + 1]} follows {successor[i]}: "
            "sort the entries of the row and add up equal ones"
        )
    total = sum_by(row, probability, table.num_rows)
    off = np.flatnonzero(~(np.abs(total - 1.0) <= ROW_SUM_TOLERANCE))
    if off.size:
        raise InvalidInputError(f"transitions: row {off[0]} must sum to 1, got {total[off[0]]:.10g}; normalise it")
