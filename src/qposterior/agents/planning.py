"""Planning in a model over a finite horizon, so that loops that pay in a drawn model do no harm."""

from __future__ import annotations

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable

TIE = 1e-12
"""Values that differ by less than this share of the largest tie."""


def plan(
    space: StateActionSpace,
    table: TransitionTable,
    rewards: FloatArray,
    *,
    horizon: int,
    rng: np.random.Generator,
    bonus: FloatArray | None = None,
) -> IntArray:
    """Return ``(H, S)`` optimal actions by step and state (−1 at goals) of the model with `horizon` steps to go.

    Backward induction: Q_t = r + γ P V_{t+1}, V_H = 0. Ties are broken at random, one draw per plan. `bonus`, where
    it is not nan, is a ``(K,)`` value per remaining step for pairs whose model is unknown: Q_t = bonus · (H − t).
    """
    preference = rng.random(space.num_pairs)
    states = space.deciding_states
    first = space.first_pair[states]
    value = np.zeros(space.num_states)
    later: list[IntArray] = []
    for steps_to_go in range(1, horizon + 1):
        q = rewards + space.discount * table.expect(value)
        if bonus is not None:
            q = np.where(np.isnan(bonus), q, bonus * _discounted_steps(space.discount, steps_to_go))
        best = space.maximum(q)
        tied = np.where(q >= best[space.pair_state] - TIE * np.abs(q).max(initial=0.0), preference, -1.0)
        chosen = tied == np.repeat(np.maximum.reduceat(tied, first), np.diff(np.append(first, space.num_pairs)))
        policy = np.full(space.num_states, -1, dtype=np.int64)
        policy[space.pair_state[chosen]] = space.pair_action[chosen]
        later.append(policy)
        if bonus is None and np.array_equal(best, value):
            break  # stationary: all earlier steps have this same policy
        value = best
    missing = horizon - len(later)
    return np.array([later[-1]] * missing + later[::-1])


def act_on(held: IntArray, step: int, state: int) -> int:
    """Return the plan's action at this step of the episode."""
    return int(held[min(step, held.shape[0] - 1), state])


def _discounted_steps(discount: float, steps: int) -> float:
    return float(steps) if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)
