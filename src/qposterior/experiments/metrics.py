"""How well an agent learned: regret and learning times, from the rows of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray, sum_by

if TYPE_CHECKING:
    import numpy.typing as npt

    from qposterior.world.mdp import FiniteMDP

PAPER_THRESHOLD = 0.5
BSUITE_THRESHOLD = 0.9
TRAILING_EPISODES = 100
TRAILING_SHARE = 0.1
SAME_RETURN = 1e-9


def learning_time(regret: npt.ArrayLike) -> int | None:
    """Return the first episode E > 1 with Regret(E)/E ≤ 0.5 (paper, eq. learning_time), or None."""
    mean = _running_mean(regret)
    return _first(mean[1:] <= PAPER_THRESHOLD, offset=2)


def bsuite_learning_time(is_bad: npt.ArrayLike) -> int | None:
    """Return the first episode at which fewer than 90 % of the episodes so far were bad (bsuite's rule), or None."""
    return _first(_running_mean(is_bad) < BSUITE_THRESHOLD, offset=1)


def trailing_learning_time(regret: npt.ArrayLike, random_regret: float) -> int | None:
    """Return the first episode from which the trailing-100 mean regret stays below 10 % of a random agent's, or None.

    The mean of an earlier episode than the hundredth is over all episodes so far. A run that ends before it has stayed
    below for 100 episodes has not shown it, and counts as not learned.
    """
    regret = np.asarray(regret, dtype=float)
    total = np.concatenate([[0.0], np.cumsum(regret)])
    end = np.arange(1, regret.size + 1)
    start = np.maximum(end - TRAILING_EPISODES, 0)
    below = (total[end] - total[start]) / (end - start) < TRAILING_SHARE * random_regret
    stays = np.logical_and.accumulate(below[::-1])[::-1]
    first = _first(stays, offset=1)
    return first if first is not None and regret.size - first + 1 >= TRAILING_EPISODES else None


def found_episode(returns: npt.ArrayLike, optimal_return: npt.ArrayLike) -> int | None:
    """Return the first episode with the optimal return, or None."""
    returns = np.asarray(returns, dtype=float)
    return _first(returns >= np.asarray(optimal_return) - SAME_RETURN, offset=1)


def random_policy_regret(mdp: FiniteMDP, value: FloatArray, cap: int) -> float:
    """Return the expected regret per episode of the uniformly random policy, episodes cut at `cap` steps: exact."""
    space = mdp.space
    weight = 1.0 / np.diff(space.first_pair)[space.pair_state]
    following = np.zeros(space.num_states)
    for _ in range(cap):
        q = mdp.rewards + space.discount * mdp.transitions.expect(following)
        updated = sum_by(space.pair_state, weight * q, space.num_states)
        if np.array_equal(updated, following):
            break
        following = updated
    return float(mdp.initial @ (value - following))


def plan_value(mdp: FiniteMDP, plan: IntArray, cap: int) -> FloatArray:
    """Return ``(S,)`` the expected return of following a plan from each state for at most `cap` steps: exact."""
    space = mdp.space
    states = space.deciding_states
    rows = np.minimum(np.arange(cap), plan.shape[0] - 1)
    following = np.zeros(space.num_states)
    for row in rows[::-1]:
        pairs = space.pair_index[states, plan[row, states]]
        q = mdp.rewards + space.discount * mdp.transitions.expect(following)
        following = np.zeros(space.num_states)
        following[states] = q[pairs]
    return following


def _running_mean(values: npt.ArrayLike) -> FloatArray:
    values = np.asarray(values, dtype=float)
    return np.asarray(np.cumsum(values) / np.arange(1, values.size + 1))


def _first(condition: npt.NDArray[np.bool_], offset: int) -> int | None:
    hits = np.flatnonzero(condition)
    return int(hits[0]) + offset if hits.size else None
