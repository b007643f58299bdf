"""Which states may follow which: the successors that were seen, and a few that were not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray, offsets, segments, sum_by
from qposterior.world.space import StateActionSpace
from qposterior.world.sums import PairSums

EXTRAS = 2
"""States that were never seen as successors of a state, and may be some of its successors nevertheless."""

TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The C candidates for successors, state by state; all pairs of a state have an edge to each of them."""

    space: StateActionSpace
    first: IntArray  # (S + 1,)  the candidates of state s are first[s]:first[s + 1]
    successor: IntArray  # (C,)  ascending within a state
    count: FloatArray  # (C,)  how often each followed its state
    unseen_odds: FloatArray  # (C,)  of those that never did against all that were seen; 0 for these

    @property
    def state(self) -> IntArray:
        """``(C,)`` the state that a candidate may follow."""
        return np.repeat(np.arange(self.space.num_states), np.diff(self.first))

    @property
    def first_edge(self) -> IntArray:
        """``(K + 1,)`` the edges of pair k are first_edge[k]:first_edge[k + 1]."""
        return offsets(np.diff(self.first)[self.space.pair_state])

    @property
    def of_edges(self) -> IntArray:
        """``(E,)`` the candidate that an edge leads to: those of the pair's state, in their order."""
        return segments(self.first, self.space.pair_state)[1]

    def cells(self, sums: PairSums) -> IntArray:
        """Return the candidate that each edge of the sums leads to."""
        num_states, state = self.space.num_states, self.space.pair_state[sums.edge_pair]
        key = self.state * num_states + self.successor
        return np.asarray(np.searchsorted(key, state * num_states + sums.successor))

    def places(self, sums: PairSums) -> IntArray:
        """Return where the edges of the sums, which were seen, stand among all edges."""
        pair = sums.edge_pair
        return np.asarray(self.first_edge[pair] + self.cells(sums) - self.first[self.space.pair_state[pair]])

    def sum_by_state(self, weights: FloatArray) -> FloatArray:
        """Return ``(S,)`` sums over the candidates of a state."""
        return sum_by(self.state, weights, self.space.num_states)

    def base_measure(self) -> FloatArray:
        """Return ``(C,)`` m_s: how large the share of a successor is in the states that lead to it, on average."""
        seen, state, num_states = self.unseen_odds == 0.0, self.state, self.space.num_states
        share = np.where(seen, self.count / np.maximum(self.sum_by_state(self.count), TINY)[state], 0.0)
        number = sum_by(self.successor, seen.astype(float), num_states)
        usual = sum_by(self.successor, share, num_states) / np.maximum(number, 1.0)
        base = np.where(seen, np.maximum(usual[self.successor], 1e-4), 0.0)
        return base / np.maximum(self.sum_by_state(base), TINY)[state]

    def initial_mean_row(self) -> FloatArray:
        """Return ``(C,)`` a first guess of p̄: frequencies, half a reading more for each that was seen."""
        guess = self.count + 0.5 * (self.count > 0.0) + self.unseen_odds
        return np.asarray(guess / self.sum_by_state(guess)[self.state])


def candidates_of(sums: PairSums) -> Candidates:
    """Return the successors seen from each state by any action, and a few of all states by how many others they follow.

    These share the probability that a reading leads to a state not met before, estimated (Good and Turing) by the share
    of successors that were met just once; where none was, there are none of them. A state from which nothing was seen
    may lead to any of the eight states that follow most often, or to itself.
    """
    space = sums.space
    state = space.pair_state[sums.edge_pair]
    key, cell = np.unique(state * space.num_states + sums.successor, return_inverse=True)
    owner, successor = key // space.num_states, key % space.num_states
    total = sum_by(cell, sums.edge_count, key.size)
    readings = sum_by(owner, total, space.num_states)
    once = sum_by(owner, ((total > 0.0) & (total < 1.5)).astype(float), space.num_states)
    overall = once.sum() / max(readings.sum(), 1.0)
    share = np.minimum((once + 2.0 * overall) / (readings + 2.0), 0.5)
    share[(readings == 0.0) | sums.rows_known] = 0.0
    # A state that follows many others is a likelier surprise than one that follows a few of them often.
    often = sum_by(successor, total, space.num_states)
    followed = np.bincount(successor, minlength=space.num_states)
    popular = np.lexsort((-often, -followed))[: EXTRAS * 4]
    new_owner, new_successor = np.repeat(np.arange(space.num_states), popular.size), np.tile(popular, space.num_states)
    new_key = new_owner * space.num_states + new_successor
    is_new = ~np.isin(new_key, key) & ~space.is_goal[new_owner]
    empty = (readings == 0.0)[new_owner]
    # The first few in the order of popularity that are new to the state; all of them where it has no other.
    rank = np.cumsum(is_new.reshape(space.num_states, -1), axis=1).ravel()
    is_new &= (rank <= EXTRAS) & (share[new_owner] > 0.0) | empty
    key = np.concatenate([key, new_key[is_new], np.flatnonzero(readings == 0.0) * (space.num_states + 1)])
    total = np.concatenate([total, np.zeros(key.size - total.size)])
    key, first = np.unique(key, return_index=True)
    owner, successor, total = key // space.num_states, key % space.num_states, total[first]
    kept = ~space.is_goal[owner]
    owner, successor, total = owner[kept], successor[kept], total[kept]
    extra = total == 0.0
    number = sum_by(owner, extra.astype(float), space.num_states)
    odds = np.where(extra, (share / (1.0 - share) / np.maximum(number, 1.0))[owner], 0.0)
    return Candidates(
        space=space,
        first=np.searchsorted(owner, np.arange(space.num_states + 1)).astype(np.int64),
        successor=successor,
        count=total,
        unseen_odds=np.where(extra & (readings == 0.0)[owner], 1.0, odds),
    )


def num_edges(sums: PairSums) -> int:
    """Return E, how many pairs of pair and candidate a draw of the model has."""
    return int(candidates_of(sums).first_edge[-1])
