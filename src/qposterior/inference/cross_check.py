"""What a sampled posterior is held against before it is trusted: scouts in other policy cells, and enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.inference.chains import HMCSettings
from qposterior.inference.exact import EXACT_ERROR, Enumeration
from qposterior.inference.hmc import scout
from qposterior.inference.problem import Problem
from qposterior.inference.trust import contradiction, reliability_warning
from qposterior.model.charts import CHARTS
from qposterior.model.target import Target
from qposterior.weighted_draws import Posterior, judged

CHECKED_CELLS, CHECKED_PAIRS = 64, 64
"""Up to this size what was sampled is checked against enumeration, which costs a fraction of the sampling there."""

SCOUTING = HMCSettings(warm_up=300)


def scouted(post: Posterior, problem: Problem, rng: np.random.Generator, *, exchange: bool = False) -> Posterior:
    """Return the posterior, distrusted where short chains from other policy cells stay where it has no weight.

    They run in Bellman coordinates, in which a chain that stays is held by a mode and not by a narrow tolerance; with
    exchanges where the draws come from chains that make them too.
    """
    try:
        target = Target(problem.seen, problem.prior, problem.noise)
    except QPosteriorError:  # Bellman coordinates have no support where Q coordinates have: nothing to scout
        return post
    if not post.trusted or target.num_coordinates == 0:
        return post
    visited = post.expectation(post.space.optimal_share(post.draws)) > 1.0 / post.weights.size
    stray = scout(target, visited, rng, replace(SCOUTING, exchange=exchange))
    return replace(post, diagnostics=post.diagnostics | judged(reliability_warning({"unvisited_modes": stray})))


def cross_checked(post: Posterior, problem: Problem) -> Posterior:
    """Return the posterior, distrusted where enumeration is in reach and says something else."""
    space = post.space
    if space.num_pairs > CHECKED_PAIRS or not post.trusted or problem.chart not in CHARTS.values():
        return post
    rng = np.random.default_rng(0)  # a stream of its own: the draws do not depend on whether they are checked
    coordinates = "bellman" if problem.is_bellman else "q"
    try:
        exact = Enumeration(
            problem.seen, problem.prior, problem.noise, coordinates=coordinates, max_cells=CHECKED_CELLS, rng=rng
        )
    except QPosteriorError:  # too many cells, or a prior or noise that enumeration does not cover
        return post
    share = post.prob_optimal_table()[space.pair_state, space.pair_action]
    if exact.prob_error > EXACT_ERROR:
        return post
    reason = contradiction(share, exact.prob_optimal(), space, num=post.weights.size)
    return replace(post, diagnostics=post.diagnostics | judged(reason) | {"checked_by_enumeration": True})
