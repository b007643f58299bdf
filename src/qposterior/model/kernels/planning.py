"""Backward induction over the steps of an episode."""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.compile import kernel
from qposterior.world.arrays import FloatArray, IntArray


@kernel
def plan_backwards(
    state: IntArray,
    first: IntArray,
    row_start: IntArray,
    successor: IntArray,
    probability: FloatArray,
    rewards: FloatArray,
    bonus: FloatArray,
    worth: FloatArray,
    preference: FloatArray,
    discount: float,
    num_states: int,
    tie: float,
) -> IntArray:
    """Return ``(T, D)`` the pair chosen in each of D deciding states with 1, 2, … steps to go.

    Q_t = r + γ P V_{t−1}, or bonus · worth_t where the bonus is not nan. Pairs within `tie` times the largest |Q| of
    the best tie, and the largest preference decides. T is the length of `worth`, or fewer where the values, without a
    bonus, have become stationary: the last row then holds for all steps before. Entries of a row may come in any order
    and name a successor twice.
    """
    horizon, num_deciding = worth.size, state.size
    chosen = np.zeros((horizon, num_deciding), dtype=np.int64)
    value, q = np.zeros(num_states), np.zeros(rewards.size)
    best = np.zeros(num_deciding)
    has_bonus = not np.all(np.isnan(bonus))
    for step in range(horizon):
        largest = 0.0
        for k in range(rewards.size):
            total = 0.0
            for i in range(row_start[k], row_start[k + 1]):
                total += probability[i] * value[successor[i]]
            q[k] = rewards[k] + discount * total if np.isnan(bonus[k]) else bonus[k] * worth[step]
            largest = max(largest, abs(q[k]))
        is_stationary = not has_bonus
        for d in range(num_deciding):
            most = -np.inf
            for k in range(first[d], first[d + 1]):
                most = max(most, q[k])
            liked = -1.0
            for k in range(first[d], first[d + 1]):
                if q[k] >= most - tie * largest and preference[k] > liked:
                    liked, chosen[step, d] = preference[k], k
            best[d] = most
            is_stationary = is_stationary and most == value[state[d]]
        if is_stationary:
            return chosen[: step + 1]
        for d in range(num_deciding):
            value[state[d]] = best[d]
    return chosen
