"""Parallel tempering over tolerances: hot rungs forgive Bellman errors, cold ones do not, and neighbours swap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.inference import feedback
from qposterior.inference.chains import Chains, Counts, HMCSettings, sample, thinned
from qposterior.inference.hmc import ChainState, Move, warm_up
from qposterior.inference.hmc import step as hmc_step
from qposterior.inference.problem import Problem
from qposterior.model.target import Target
from qposterior.weighted_draws import Posterior
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


def run(
    problem: Problem,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
) -> Posterior:
    """Return the posterior by parallel tempering: from its tolerance to the spread of the prior.

    At tolerance 0 along the feedback (`feedback`), in Bellman coordinates.
    """
    if problem.noise.is_exact:
        return feedback.run(problem, rng, settings, progress_fn=progress_fn)
    if problem.tolerance <= 0.0:
        raise InvalidInputError('method="tempering" takes a tolerance, not noise; with noise use method="hmc"')
    target = problem.target()
    rungs = ladder(problem.tolerance, target.typical_spread, problem.seen.num_observed)
    chains = run_tempering(
        lambda tolerance: problem.at_tolerance(tolerance).target(),
        rungs,
        rng,
        settings,
        progress_fn=progress_fn,
        min_draws=problem.num_draws,
    )
    return thinned(chains, target, problem, method="tempering")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rungs:
    """The chains of every tolerance, cold first."""

    states: tuple[ChainState, ...]
    is_odd: bool = False  # whether the odd pairs of neighbours are the next to swap


def run_tempering(
    make_target_fn: Callable[[float], Target],
    tolerances: FloatArray,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> Chains:
    """Run HMC at every tolerance and propose swaps between neighbours after each move; return the coldest chains."""
    settings = settings or HMCSettings(chains=4, warm_up=300)
    targets = [make_target_fn(float(tolerance)) for tolerance in tolerances]
    rungs, gradients = start(targets, rng, settings)

    def advance(rungs: Rungs, times: int) -> tuple[Rungs, FloatArray, None, Counts]:
        path, total = [], Counts()
        for _ in range(times):
            rungs, counts = step(targets, rungs, rng, settings)
            path.append(rungs.states[0].x)
            total = total + counts
        return rungs, np.stack(path, axis=1), None, total

    rungs, chains, counts = sample(
        advance, rungs, target=targets[0], settings=settings, progress_fn=progress_fn, min_draws=min_draws
    )
    return chains.told(
        {
            "acceptance": counts.acceptance / counts.iterations,
            "divergences": counts.divergences,
            "gradients": gradients + counts.gradients,
            "tolerances": tolerances.tolist(),
            "swap_acceptance": (2.0 * np.asarray(counts.swaps) / counts.iterations).tolist(),
        }
    )


def start(targets: list[Target], rng: np.random.Generator, settings: HMCSettings) -> tuple[Rungs, int]:
    """Return the rungs, cold first, warmed up; hot ones first: their chains are where the colder ones start."""
    states, gradients = list[ChainState](), 0
    for target in reversed(targets):
        x = states[-1].x if states else target.disperse(target.initial(settings.chains, rng), rng)
        if not np.isfinite(target.log_density(x).total).all():
            x = target.initial(settings.chains, rng)
        state, used = warm_up(target, ChainState.untuned(target, x), rng, settings)
        states.append(state)
        gradients += used
    return Rungs(states=tuple(reversed(states))), gradients


def step(targets: list[Target], rungs: Rungs, rng: np.random.Generator, settings: HMCSettings) -> tuple[Rungs, Counts]:
    """Move the chains of every rung, then propose swaps between neighbours: even pairs of rungs and odd ones in turns.

    Acceptance and divergences are those of the coldest rung.
    """
    states, moves = list[ChainState](), list[Move]()
    for target, state in zip(targets, rungs.states, strict=True):
        moved, move = hmc_step(target, state, rng, settings)
        states.append(moved)
        moves.append(move)
    swaps = np.zeros(len(targets) - 1)
    for r in range(int(rungs.is_odd), len(targets) - 1, 2):
        states[r], states[r + 1], swaps[r] = swap(targets[r : r + 2], states[r], states[r + 1], rng)
    gradients = sum(move.gradients for move in moves)
    after = Rungs(states=tuple(states), is_odd=not rungs.is_odd)
    return after, replace(moves[0].counts(), gradients=gradients, swaps=swaps)


def swap(
    targets: list[Target], cold: ChainState, hot: ChainState, rng: np.random.Generator
) -> tuple[ChainState, ChainState, float]:
    r"""Propose to swap two rungs, chain by chain; return both and the share that was swapped.

    The swap of x and y under p (cold) and q (hot) is taken with min(1, p(y) q(x) / (p(x) q(y))), which leaves the
    product of the two targets invariant.
    """
    to_cold, to_hot = targets[0].log_density(hot.x), targets[1].log_density(cold.x)
    gain = to_cold.total + to_hot.total - cold.density.total - hot.density.total
    swapped = np.log(rng.random(gain.size)) < gain
    where = swapped[:, None]
    colder = replace(cold, x=np.where(where, hot.x, cold.x), density=to_cold.where(swapped, cold.density))
    hotter = replace(hot, x=np.where(where, cold.x, hot.x), density=to_hot.where(swapped, hot.density))
    return colder, hotter, float(swapped.mean())
