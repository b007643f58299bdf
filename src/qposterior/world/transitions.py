"""Transition rows of state-action pairs, sparse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    import scipy.sparse as sp


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionTable:
    """Rows P(· | k) of K pairs over S states in compressed sparse row form; successors of a row are sorted."""

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
            row_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            successor=self.successor,
            probability=self.probability,
        )

    def select(self, pairs: IntArray) -> TransitionTable:
        """Return the table of these rows, in this order."""
        pairs = np.asarray(pairs, dtype=np.int64)
        lengths = (self.row_start[1:] - self.row_start[:-1])[pairs]
        row_start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        entry = np.arange(row_start[-1]) + np.repeat(self.row_start[pairs] - row_start[:-1], lengths)
        return TransitionTable(
            num_states=self.num_states,
            row_start=row_start,
            successor=self.successor[entry],
            probability=self.probability[entry],
        )
