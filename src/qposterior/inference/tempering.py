"""Parallel tempering over tolerances: hot rungs forgive Bellman errors, cold ones do not, and neighbours swap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qposterior.inference.hmc import Chains, HMCSettings, Tuning, gibbs, hmc_move, warm_up
from qposterior.inference.trust import describe_chains, is_enough
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray

MOST_RUNGS = 24


def ladder(tolerance: float, highest: float, num_observed: int) -> FloatArray:
    """Return tolerances from cold to hot, evenly spaced in log.

    Each observed residual is Gaussian at tolerance ε, so neighbours swap at a fair rate where log ε differs by about
    1/√n.
    """
    if highest <= tolerance:
        return np.array([tolerance])
    rungs = 2 + int(np.sqrt(max(num_observed, 1)) * np.log(highest / tolerance) / 1.5)
    return np.geomspace(tolerance, highest, min(rungs, MOST_RUNGS))


def run_tempering(
    make_target_fn: Callable[[float], Target],
    tolerances: FloatArray,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> Chains:
    """Run HMC at every tolerance and propose swaps between neighbours after each move; return the coldest chains.

    The swap of x_i and x_j is accepted with min(1, p_i(x_j) p_j(x_i) / (p_i(x_i) p_j(x_j))).
    """
    settings = settings or HMCSettings(chains=4, warm_up=300)
    targets = [make_target_fn(float(tolerance)) for tolerance in tolerances]
    states: list[tuple[Tuning, FloatArray, FloatArray, int]] = []
    for target in reversed(targets):  # hot first: its chains are where the colder ones start
        x = states[-1][1] if states else target.disperse(target.initial(settings.chains, rng), rng)
        if not np.isfinite(target.log_density(x).sum(axis=1)).all():
            x = target.initial(settings.chains, rng)
        states.append(warm_up(target, x, rng, settings))
    states.reverse()
    tunings = [state[0] for state in states]
    xs, densities = [state[1] for state in states], [state[2] for state in states]
    draws = np.empty((settings.chains, settings.max_iterations, targets[0].num_coordinates))
    swaps, acceptance, divergences = np.zeros(len(targets) - 1), 0.0, 0
    gradients, done = sum(state[3] for state in states), 0
    while done < settings.max_iterations:
        for _ in range(min(settings.block, settings.max_iterations - done)):
            for r, target in enumerate(targets):
                steps = tunings[r].num_steps(rng.random(), settings.max_leapfrog)
                move = hmc_move(target, xs[r], densities[r], tunings[r], steps, rng)
                xs[r], densities[r] = gibbs(target, move.x, move.density, rng, wanted=settings.gibbs)
                gradients += move.gradients
                if r == 0:
                    acceptance += float(move.acceptance.mean())
                    divergences += int(move.divergent.sum())
            for r in range(done % 2, len(targets) - 1, 2):
                swaps[r] += _swap(targets, xs, densities, r, rng)
            draws[:, done] = xs[0]
            done += 1
        if progress_fn is not None:
            progress_fn(done, settings.max_iterations)
        summary = describe_chains(targets[0], draws[:, :done])
        is_sound = is_enough(summary, min_ess=settings.min_ess, max_r_hat=settings.max_r_hat)
        if is_sound and settings.chains * done >= min_draws:
            break
    kept = draws[:, :done].copy()
    diagnostics = summary | {
        "acceptance": acceptance / done,
        "divergences": divergences,
        "gradients": gradients,
        "tolerances": tolerances.tolist(),
        "swap_acceptance": (2.0 * swaps / done).tolist(),
    }
    return Chains(draws=kept, tuning=tunings[0], diagnostics=diagnostics)


def _swap(
    targets: list[Target], xs: list[FloatArray], densities: list[FloatArray], r: int, rng: np.random.Generator
) -> float:
    """Propose to swap rungs r and r + 1, chain by chain, in place; return the share that was swapped."""
    cold, hot = targets[r].log_density(xs[r + 1]), targets[r + 1].log_density(xs[r])
    gain = cold.sum(axis=1) + hot.sum(axis=1) - densities[r].sum(axis=1) - densities[r + 1].sum(axis=1)
    swapped = np.log(rng.random(gain.size)) < gain
    where = swapped[:, None]
    xs[r], xs[r + 1] = np.where(where, xs[r + 1], xs[r]), np.where(where, xs[r], xs[r + 1])
    densities[r], densities[r + 1] = np.where(where, cold, densities[r]), np.where(where, hot, densities[r + 1])
    return float(swapped.mean())
