"""The posterior of Q* under a prior on the model: models are drawn, and each is solved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qposterior.errors import NoUniqueSolutionError
from qposterior.inference.trust import describe_draws, reliability_warning, reliability_warning_of_few
from qposterior.model.model_prior import CHAINS, ModelPrior
from qposterior.model.solve_models import TOLERANCE, solve_ending
from qposterior.weighted_draws import Posterior, judged
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.models import ModelDraws
from qposterior.world.solve import check_uniqueness
from qposterior.world.space import StateActionSpace

CHECKED_MODEL_PAIRS = 400
"""Pairs on which the chains that draw models are compared, evenly spread where there are more."""

MOST_NAMED_STATES = 2000
"""States of a problem up to which it is found out where a model without a solution has none."""

FEWEST_MODELS = 50
ENOUGH_MODELS = 400
"""Models from which P(optimal) is known to 0.025 everywhere, as is asked of other methods."""

FEW_TOLERANCE = 1e-6
"""Of Q* in large problems, relative to its spread: few draws know it to a tenth of that at best."""

MOST_Q = 20_000_000
"""Values of Q* of models that are held in double precision, and looked at in one go."""

MOST_LEFT_OUT = 0.05
MANY_LEFT_OUT = (
    "{:.0%} of the models that were drawn have no finite solution at discount 1, or next to none, and were left out: "
    "in those a loop pays, or a state has no way out; use a discount below 1, or name more goals"
)


def run(seen: Experience, prior: ModelPrior, particles: int, rng: np.random.Generator) -> Posterior:
    """Return the posterior of Q* under a prior on the model: models are drawn, and each is solved.

    Models without a finite solution (at discount 1: a loop pays, or a state has no way out) are left out, which
    conditions the posterior on there being one: `diagnostics["left_out"]` is their share.
    """
    return solved_posterior(prior.draw(seen, particles, rng), CHAINS, method="model", prior=prior)


def solved_posterior(
    models: ModelDraws,
    chains: int,
    *,
    method: str,
    prior: ModelPrior | None = None,
    are_few: bool = False,
    progress_fn: Callable[[float], None] = lambda share: None,
) -> Posterior:
    """Return the posterior of Q* that draws of models, chain after chain, stand for.

    `are_few` says that there are no more of them because the problem is large (`reliability_warning_of_few`).
    `progress_fn` gets the share of them that is solved.
    """
    size = models.num_draws, models.space.num_pairs
    out = np.empty(size, dtype=np.float32 if size[0] * size[1] > MOST_Q else np.float64)
    tolerance = FEW_TOLERANCE if are_few else TOLERANCE
    solutions = solve_ending(models, tolerance=tolerance, out=out, progress_fn=progress_fn)
    left_out = solutions.num_unsolved / models.num_draws
    chain = np.arange(models.num_draws) * chains // models.num_draws
    choosing = np.zeros(models.num_draws, dtype=bool)
    for number in range(chains):
        solved = np.flatnonzero((chain == number) & solutions.solved)
        choosing[solved[: (solved.size + 1) // 2]] = True
    kept = np.flatnonzero(solutions.solved)
    if kept.size < FEWEST_MODELS:
        states = _unsolvable_states(models)
        raise NoUniqueSolutionError(
            f"only {kept.size} of {models.num_draws} models that were drawn have a finite solution: with discount 1 a "
            "loop pays in the others, or some state has no way to a goal; use a discount below 1, or name more goals",
            states=states,
        )
    q = solutions.q if kept.size == models.num_draws else solutions.q[kept]
    facts = {"left_out": left_out, "total_draws": models.num_draws} | _agreement(models.space, q, chain[kept], chains)
    reason = (
        reliability_warning_of_few(facts, CHECKED_MODEL_PAIRS, models.space)
        if are_few
        else reliability_warning(facts, models.space)
    )
    if reason is None and left_out > MOST_LEFT_OUT:
        reason = MANY_LEFT_OUT.format(left_out)
    return Posterior(
        space=models.space,
        draws=q,
        weights=np.full(kept.size, 1.0 / kept.size),
        method=method,
        diagnostics=facts | judged(reason),
        settings={} if prior is None else {"prior": prior.describe()},
        models=models if kept.size == models.num_draws else models.part(kept),
        choosing=choosing[kept],
    )


def _unsolvable_states(models: ModelDraws) -> IntArray:
    """Return states of the mean model that lead to no goal or that one can circle in; none in large problems."""
    if models.space.num_states > MOST_NAMED_STATES:
        return np.empty(0, dtype=np.int64)
    report = check_uniqueness(models.mean().mdp(0))
    return report.trapped_states if report.trapped_states.size else report.surviving_loop


def _agreement(space: StateActionSpace, q: FloatArray, chain: IntArray, chains: int) -> dict[str, Any]:
    """Return how well the chains agree: on Q* and on which pairs are greedy, of at most `CHECKED_MODEL_PAIRS` pairs."""
    length = int(np.bincount(chain, minlength=chains).min())
    rows = np.stack([np.flatnonzero(chain == number)[:length] for number in range(chains)])
    some = np.unique(np.linspace(0, space.num_pairs - 1, CHECKED_MODEL_PAIRS).round().astype(np.int64))
    shares = np.concatenate([space.optimal_share(part)[:, some] for part in np.array_split(q, -(-q.size // MOST_Q))])
    return describe_draws(q[:, some][rows].astype(np.float64), shares[rows])
