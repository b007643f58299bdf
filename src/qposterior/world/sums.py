"""All that readings sum up to, as flat arrays: what a model of rewards and transitions is fitted to."""

from __future__ import annotations

from dataclasses import dataclass

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


def count_one(row: Row, rewards: FloatArray | None, successor: int, reward: float) -> tuple[Row, FloatArray | None]:
    """Return the counts of a pair, and its mean rewards by successor where they are kept, after one more reading."""
    successors, counts = row
    i = int(np.searchsorted(successors, successor))
    if i == successors.size or successors[i] != successor:
        more = np.insert(successors, i, successor), np.insert(counts, i, 1.0)
        return more, None if rewards is None else np.insert(rewards, i, reward)
    before = counts[i]
    counts = counts.copy()  # copies of an experience share their rows
    counts[i] = before + 1.0
    if rewards is not None:
        rewards = rewards.copy()
        rewards[i] = rewards[i] + (reward - rewards[i]) / counts[i] if before > 0.0 else reward
    return (successors, counts), rewards


def add_counts(
    one: Row, one_rewards: FloatArray | None, two: Row, two_rewards: FloatArray | None
) -> tuple[Row, FloatArray | None]:
    """Return the counts of both rows of a pair, and their mean rewards by successor where both have them."""
    successors, where = np.unique(np.concatenate([one[0], two[0]]), return_inverse=True)
    weights = np.concatenate([one[1], two[1]])
    row = successors, sum_by(where, weights, successors.size)
    if one_rewards is None or two_rewards is None:
        return row, None
    return row, mean_by(where, np.concatenate([one_rewards, two_rewards]), weights, successors.size)
