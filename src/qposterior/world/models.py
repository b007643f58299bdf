"""Many models of one problem: draws of all rows and mean rewards, on a support of successors that they share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_type, shown
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray, offsets
from qposterior.world.mdp import FiniteMDP, initial_distribution
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable

BLOCK_BYTES = 2**27
"""Of rows that are looked at in one go: a memory-mapped file need not fit into memory."""

ROW_SUM_TOLERANCE = 1e-5
"""By which a row may miss a sum of 1: rows may be held in single precision, and are normalised where they are used."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelDraws:
    """D models: a row and a mean reward for each of the K pairs, on one set of E edges (pair, successor).

    `rows` may be of single or double precision and may be a memory-mapped file. An edge of probability 0 is as good as
    none. Rows need to sum to 1 only as closely as single precision allows.
    """

    space: StateActionSpace
    first_edge: IntArray  # (K + 1,)  the edges of pair k are first_edge[k]:first_edge[k + 1]
    successor: IntArray  # (E,)  ascending within a pair
    rows: FloatArray  # (D, E)
    rewards: FloatArray  # (D, K)
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)  # what was found out about the support, shared

    def __post_init__(self) -> None:
        check_type("space", self.space, StateActionSpace)
        pairs = self.space.num_pairs
        if np.shape(self.first_edge) != (pairs + 1,) or self.first_edge[0] != 0 or np.any(np.diff(self.first_edge) < 1):
            raise InvalidInputError(
                f"first_edge must ascend from 0 in {pairs + 1} offsets, an edge or more a pair, "
                f"got {shown(self.first_edge)}"
            )
        edges = int(self.first_edge[-1])
        if np.shape(self.successor) != (edges,):
            raise InvalidInputError(
                f"successor must list {edges} states, as first_edge says, got {shown(self.successor)}"
            )
        if self.successor.min() < 0 or self.successor.max() >= self.space.num_states:
            raise InvalidInputError(
                f"successors must lie in 0 … {self.space.num_states - 1}, got {shown(self.successor)}"
            )
        within = np.ones(edges, dtype=bool)
        within[self.first_edge[:-1]] = False
        if np.any(np.diff(self.successor, prepend=-1)[within] < 1):
            raise InvalidInputError("the successors of a pair must ascend; sort them, and merge equal ones")
        if np.ndim(self.rows) != 2 or self.rows.shape[1] != edges or self.rows.shape[0] < 1:
            raise InvalidInputError(f"rows must have shape (draws, {edges}), got {np.shape(self.rows)}")
        if self.rows.dtype not in (np.float32, np.float64):
            raise InvalidInputError(f"rows must be of type float32 or float64, got {self.rows.dtype}")
        if np.shape(self.rewards) != (self.rows.shape[0], pairs):
            raise InvalidInputError(
                f"rewards must have shape {(self.rows.shape[0], pairs)}, got {np.shape(self.rewards)}"
            )

    @property
    def num_draws(self) -> int:
        """D, the number of models."""
        return int(self.rows.shape[0])

    @property
    def num_edges(self) -> int:
        """E, the number of edges of the support."""
        return int(self.successor.size)

    def blocks(self, draws: IntArray | None = None) -> Iterator[IntArray]:
        """Yield the numbers of the draws (all, or those given) block by block, as many as `BLOCK_BYTES` hold.

        The blocks depend on sizes alone, so that sums which are taken block by block are the same on any machine.
        """
        chosen = np.arange(self.num_draws) if draws is None else np.asarray(draws, dtype=np.int64)
        length = max(1, BLOCK_BYTES // (8 * max(self.num_edges, 4 * self.space.num_pairs)))
        for first in range(0, chosen.size, length):
            yield chosen[first : first + length]

    def part(self, draws: IntArray) -> ModelDraws:
        """Return the models of these numbers."""
        return replace(self, rows=self.rows[draws], rewards=self.rewards[draws])

    def mean(self, draws: IntArray | None = None) -> ModelDraws:
        """Return the one model of mean rows and mean rewards."""
        row, reward, number = np.zeros(self.num_edges), np.zeros(self.space.num_pairs), 0
        for block in self.blocks(draws):
            row += self.rows[block].sum(axis=0, dtype=np.float64)
            reward += self.rewards[block].sum(axis=0, dtype=np.float64)
            number += block.size
        return ModelDraws(
            space=self.space,
            first_edge=self.first_edge,
            successor=self.successor,
            rows=row[None] / number,
            rewards=reward[None] / number,
            memo=self.memo,
        )

    def mdp(self, draw: int, initial: FloatArray | None = None) -> FiniteMDP:
        """Return one of the models as an MDP, its rows normalised and edges of probability 0 left out."""
        check_count("draw", draw, 0)
        row = self.rows[draw].astype(np.float64)
        total = np.add.reduceat(row, self.first_edge[:-1])
        kept = row > 0.0
        lengths = np.add.reduceat(kept.astype(np.int64), self.first_edge[:-1])
        return FiniteMDP(
            space=self.space,
            transitions=TransitionTable(
                num_states=self.space.num_states,
                row_start=offsets(lengths),
                successor=self.successor[kept],
                probability=(row / np.repeat(total, np.diff(self.first_edge)))[kept],
            ),
            rewards=self.rewards[draw].astype(np.float64),
            reward_sd=np.zeros(self.space.num_pairs),
            initial=initial_distribution(initial, self.space.is_goal),
        )
