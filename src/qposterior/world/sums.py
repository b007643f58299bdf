"""All that readings sum up to, as flat arrays: what a model of rewards and transitions is fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray, sum_by
from qposterior.world.moments import mean_by
from qposterior.world.space import StateActionSpace

Row = tuple[IntArray, FloatArray]
"""Successors, ascending, and their probabilities (revealed) or counts (counted)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSums:
    """What all readings sum up to: per pair, and per pair and successor; a pair never tried has zeros and no edges.

    Counts are sums of weights and need not be whole. nan stands for what is not known: third and fourth sums and
    extremes where single readings were not kept, the reward of an edge where only the pair's was.
    """

    space: StateActionSpace
    count: FloatArray  # (K,)
    reward_mean: FloatArray  # (K,)
    reward_deviation: FloatArray  # (K,)  Σ w (r − mean)²
    reward_third: FloatArray  # (K,)  Σ w (r − mean)³
    reward_fourth: FloatArray  # (K,)  Σ w (r − mean)⁴
    reward_low: FloatArray  # (K,)  smallest and largest reading
    reward_high: FloatArray  # (K,)
    first_edge: IntArray  # (K + 1,)  the edges of pair k are first_edge[k]:first_edge[k + 1]
    successor: IntArray  # (E,)  ascending within a pair
    edge_count: FloatArray  # (E,)  counts; where rows are known, probability x count
    edge_reward: FloatArray  # (E,)  mean reward of the readings that led there
    rows_known: bool  # revealed rows: the edges are the rows themselves
    rewards_known: bool = False  # deterministic rewards: the mean of a pair is what it pays

    @property
    def edge_pair(self) -> IntArray:
        """``(E,)`` the pair of each edge."""
        return np.repeat(np.arange(self.space.num_pairs), np.diff(self.first_edge))


class Edges(NamedTuple):
    """Where a pair has led: a row, and the mean reward on the way to each successor, nan where it is not known.

    Copies of an experience share theirs, so they are never written to.
    """

    successors: IntArray
    weights: FloatArray
    rewards: FloatArray

    @property
    def row(self) -> Row:
        """Successors and their probabilities or counts."""
        return self.successors, self.weights

    def with_reading(self, successor: int, reward: float) -> Edges:
        """Return the edges after one more reading; under a reward that is nan the mean of its edge is not known."""
        i = int(np.searchsorted(self.successors, successor))
        if i == self.successors.size or self.successors[i] != successor:
            new = (successor, 1.0, reward)
            return Edges(*(np.insert(column, i, value) for column, value in zip(self, new, strict=True)))
        weights, rewards = self.weights.copy(), self.rewards.copy()
        weights[i] += 1.0
        rewards[i] = rewards[i] + (reward - rewards[i]) / weights[i] if self.weights[i] > 0.0 else reward
        return Edges(self.successors, weights, rewards)

    def merge(self, other: Edges) -> Edges:
        """Return the counts of both, and their mean rewards where both have them."""
        successors, weights, rewards = (np.concatenate(columns) for columns in zip(self, other, strict=True))
        successors, where = np.unique(successors, return_inverse=True)
        mean = mean_by(where, rewards, weights, successors.size)
        return Edges(successors, sum_by(where, weights, successors.size), mean)


def led_to(row: Row) -> Edges:
    """Return the edges of a row whose rewards are not known."""
    return Edges(*row, np.full(row[0].size, np.nan))


NOWHERE = led_to((np.empty(0, dtype=np.int64), np.empty(0)))
"""The edges of a pair that was never tried."""
