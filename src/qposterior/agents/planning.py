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
    discount: float | None = None,
) -> IntArray:
    """Return ``(H, S)`` optimal actions by step and state (−1 at goals) of the model with `horizon` steps to go.

    Backward induction: Q_t = r + γ P V_{t+1}, V_H = 0. Ties are broken at random, one draw per plan. `bonus`, where
    it is not nan, is a ``(K,)`` value per remaining step for pairs whose model is unknown: Q_t = bonus · (H − t). The
    `discount` is that of the space unless given.
    """
    from qposterior.model.kernels.planning import plan_backwards

    states = space.deciding_states
    discount = space.discount if discount is None else discount
    chosen = plan_backwards(
        states,
        np.append(space.first_pair[states], space.num_pairs),
        table.row_start,
        table.successor,
        table.probability,
        rewards,
        np.full(space.num_pairs, np.nan) if bonus is None else bonus,
        np.array([_discounted_steps(discount, steps) for steps in range(1, horizon + 1)]),
        rng.random(space.num_pairs),
        discount,
        space.num_states,
        TIE,
    )
    missing = horizon - len(chosen)  # where the values became stationary all earlier steps have this same policy
    held = np.full((horizon, space.num_states), -1, dtype=np.int64)
    held[:, states] = space.pair_action[np.concatenate([np.repeat(chosen[-1:], missing, axis=0), chosen[::-1]])]
    return held


def act_on(held: IntArray, step: int, state: int) -> int:
    """Return the plan's action at this step of the episode."""
    return int(held[min(step, held.shape[0] - 1), state])


def _discounted_steps(discount: float, steps: int) -> float:
    return float(steps) if discount == 1.0 else (1.0 - discount**steps) / (1.0 - discount)
