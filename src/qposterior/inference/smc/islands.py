"""The posterior by independent islands of a sequential sampler, averaged by their evidence."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.checks import check_settings_kind
from qposterior.errors import InvalidInputError, QPosteriorError
from qposterior.inference.problem import Problem
from qposterior.inference.smc.annealed import AnnealedSampler, AnnealedSettings
from qposterior.inference.smc.one_look import OneLookSampler, OneLookSettings
from qposterior.inference.smc.resampling import systematic
from qposterior.inference.smc.sampler import SequentialSampler
from qposterior.inference.trust import ISLANDS, compare_islands
from qposterior.weighted_draws import Posterior, judged

SMALLEST_ISLAND = 125
"""Particles of an island, at least: smaller ones lose modes."""


def run(
    problem: Problem, rng: np.random.Generator, settings: AnnealedSettings | OneLookSettings | None = None
) -> Posterior:
    """Return the posterior of independent islands of a sequential sampler, averaged by their evidence.

    Each island is what an agent would have made of the same data. As many equally weighted draws as were asked for are
    kept where the islands together have more.
    """
    problem.target()  # traps, loops that pay and the like are named before anything is sampled
    islands = run_islands(problem, rng, settings)
    log_evidence = np.array([island.particles.log_evidence for island in islands])
    q = [island.q_of_particles() for island in islands]
    shares = np.array(
        [island.particles.weights @ problem.space.optimal_share(part) for island, part in zip(islands, q, strict=True)]
    )
    reason, facts = compare_islands(log_evidence, shares, problem.space)
    reason = _distrust_moves(islands) or reason
    island_weight = np.exp(log_evidence - log_evidence.max())
    weights = np.concatenate([w * island.particles.weights for w, island in zip(island_weight, islands, strict=True)])
    weights /= weights.sum()
    facts["effective_draws"] = float(1.0 / np.sum(weights**2))
    facts["ancestors"] = sum(island.particles.num_ancestors for island in islands)  # draws of the prior behind them all
    scales = [np.exp(s) for island in islands if (s := island.particles.log_scale) is not None]
    draws, scale = np.concatenate(q), np.concatenate(scales) if scales else None
    if weights.size > problem.num_draws:
        kept = systematic(weights, rng, problem.num_draws)
        draws, scale = draws[kept], None if scale is None else scale[kept]
        weights = np.full(problem.num_draws, 1.0 / problem.num_draws)
    return problem.posterior(
        draws=draws,
        weights=weights,
        method="smc",
        log_evidence=float(log_evidence.max() + np.log(island_weight.mean())),
        diagnostics=facts | judged(reason) | {"trace": islands[0].trace},
        noise_scale=scale,
    )


def run_islands(
    problem: Problem, rng: np.random.Generator, settings: AnnealedSettings | OneLookSettings | None
) -> list[SequentialSampler]:
    """Return the samplers that have particles left, one after the other brought to what was seen.

    One-look updates at tolerance 0. At a positive tolerance, or with noise, the paper's annealed sampler: from the
    prior to all readings at once the weights would collapse.
    """
    islands = list[SequentialSampler]()
    lost: QPosteriorError | None = None
    for _ in range(ISLANDS):
        sampler = _start(problem, rng, settings)
        try:
            sampler.update(problem.seen)
        except InvalidInputError:
            raise
        except QPosteriorError as error:  # no particle of this island is left
            lost = error
            continue
        islands.append(sampler)
    if len(islands) < 2 and lost is not None:
        raise lost
    return islands


def _start(
    problem: Problem, rng: np.random.Generator, settings: AnnealedSettings | OneLookSettings | None
) -> SequentialSampler:
    kind = OneLookSettings if problem.noise.is_exact else AnnealedSettings
    chosen: Any = kind() if settings is None else settings
    check_settings_kind(chosen, kind)
    common: dict[str, Any] = {"prior": problem.prior, "noise": problem.noise, "rng": rng, "settings": chosen}
    wanted = max(SMALLEST_ISLAND, -(-problem.num_draws // ISLANDS))
    if problem.noise.is_exact:
        if not problem.is_bellman:
            raise InvalidInputError(
                'at tolerance 0 method="smc" weighs first looks in Bellman coordinates; give a positive tolerance, or '
                'use method="hmc"'
            )
        return OneLookSampler.start(problem.seen, **common, particles=wanted)
    if problem.has_many_tolerances:
        raise InvalidInputError('method="smc" takes one tolerance for all pairs; use hmc, tempering or exact')
    final = None if problem.noise.is_noisy else problem.tolerance
    chain = chosen.moves.waste_free or 1
    common |= {"chart": problem.chart, "q_function": problem.q_function, "final_tolerance": final}
    return AnnealedSampler.start(problem.seen, **common, particles=-(-wanted // chain) * chain)


def _distrust_moves(islands: list[SequentialSampler]) -> str | None:
    """Return that islands were lost, or that their last moves have not mixed, or None."""
    if len(islands) < ISLANDS:
        return f"{ISLANDS - len(islands)} of {ISLANDS} independent runs lost all their particles; use more of them"
    ratios = [island.last_mixing for island in islands if island.last_mixing is not None]
    if 2 * len(ratios) < ISLANDS:
        return None
    return (
        f"the last moves did not mix (ratio {np.median(ratios):.1f}); use Bellman coordinates, a larger tolerance, or "
        "more moves"
    )
