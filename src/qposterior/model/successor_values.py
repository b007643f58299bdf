"""What successors are taken to be worth while models are drawn: W, a guess of the values of states.

docs/explanation/model-prior.md, "What is approximate".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qposterior.model.hierarchy import build_hierarchy
from qposterior.model.solve_models import ModelSolver, logged_policy, policy_values, solve_models
from qposterior.world.arrays import FloatArray, sum_by
from qposterior.world.models import ModelDraws
from qposterior.world.sums import PairSums

SURELY, MOST_COMPARED = 1.645, 60
"""Standard deviations by which a policy must be better than the logged one to be followed, over so many draws."""

TOLERANCE = 1e-6
"""Relative error of the guess in large problems."""

LONGEST = 0.99
"""Discount at which successors are valued at most: at 1 a mean model may have no finite solution."""


def logged_values(sums: PairSums) -> FloatArray:
    """Return ``(S,)`` what states are worth to the logged policy where frequencies are rows and means are rewards."""
    models = build_hierarchy(sums, np.zeros(sums.space.num_states)).estimate()
    policy = logged_policy(sums.space, sums.count)
    return np.asarray(policy_values(_discounted(models), policy, tolerance=TOLERANCE)[0])


def followed_values(models: ModelDraws, sums: PairSums) -> FloatArray:
    """Return ``(S,)`` what states are worth, in the mean of some models, to the policy that one would follow.

    That is the optimum of the mean model of one half of the draws, among pairs that were tried, if it is surely better
    than the logged policy in the other half, and the logged policy otherwise: an optimum that is none chases noise, and
    where all that was tried ties, actions would not tie at its values.
    """
    space, discounted = models.space, _discounted(models)
    logged, tried = logged_policy(space, sums.count), sums.count > 0.0
    halves = np.arange(models.num_draws) % 2 == 0
    mean = discounted.mean(np.flatnonzero(halves))
    q = solve_models(mean, tolerance=TOLERANCE).q[0]
    is_open = tried | (sum_by(space.pair_state, sums.count, space.num_states) == 0.0)[space.pair_state]
    best = space.optimal_share(np.where(is_open, q, q.min() - np.ptp(q) - 1.0), "lowest")
    visits = sum_by(space.pair_state, sums.count, space.num_states)
    rest = np.flatnonzero(~halves)[:MOST_COMPARED]
    solver = ModelSolver(discounted, TOLERANCE)
    gain = (solver.values(best, rest) - solver.values(logged, rest)) @ (visits / visits.sum())
    is_better = gain.mean() > SURELY * gain.std()
    return np.asarray(policy_values(mean, best if is_better else logged, tolerance=TOLERANCE)[0])


def _discounted(models: ModelDraws) -> ModelDraws:
    space = models.space
    return replace(models, space=replace(space, discount=min(space.discount, LONGEST)))
