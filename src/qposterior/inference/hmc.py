"""Hamiltonian Monte Carlo (paper, alg. hmc), several chains side by side, with a warm-up that tunes itself.

Where greedy policies can loop, the determinant of Bellman coordinates jumps and costs acceptance; there each
trajectory is followed by a Gibbs sweep over the free coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number
from qposterior.inference.trust import describe_chains, is_enough
from qposterior.model.target import Target, energy_gain
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

DIVERGENT = 50.0
"""An energy error beyond this is a divergence: the trajectory left where the integrator is any good."""

TRAJECTORIES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidate trajectory lengths of the warm-up, in units of π/2 standard deviations."""

TRIALS = 50
"""Trajectories by which the warm-up judges a candidate."""

MOST_SCOUTS = 16
"""Batches of further chains that look for modes, at most."""

NUMBERS_AT_ONCE = 1 << 18
"""Momenta drawn for one call of the kernel: moves of small problems take less time than the way from Python to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HMCSettings:
    """How to run the chains. `min_ess` and `max_r_hat` are the default early-stopping criterion of alg. hmc."""

    chains: int = 8
    warm_up: int = 600
    max_iterations: int = 3000
    block: int = 250
    target_acceptance: float = 0.8
    max_leapfrog: int = 512
    min_ess: float = 400.0
    max_r_hat: float = 1.01
    gibbs: bool = True  # sweep after each trajectory where the target has jumps

    def __post_init__(self) -> None:
        for name in ("chains", "max_iterations", "block", "max_leapfrog"):
            check_count(name, getattr(self, name))
        check_count("warm_up", self.warm_up, 0)
        check_number("target_acceptance", self.target_acceptance, "(0, 1)")
        check_number("min_ess", self.min_ess, "[0, inf]")
        check_number("max_r_hat", self.max_r_hat, "[1, inf]")


@dataclass(slots=True, kw_only=True)
class Tuning:
    """What the warm-up found: step size, trajectory length and the diagonal of the inverse mass matrix."""

    step: float
    trajectory: float
    inverse_mass: FloatArray  # (D,)

    def num_steps(self, jitter: float, most: int) -> int:
        """Return the leapfrog steps of a trajectory of uniformly jittered length."""
        return int(self.many_steps(np.asarray(jitter), most))

    def many_steps(self, jitter: FloatArray, most: int) -> IntArray:
        """Return the same for many."""
        steps = np.ceil(2.0 * jitter * self.trajectory / self.step)
        return np.minimum(np.maximum(steps, 1.0), most).astype(np.int64)


@dataclass(slots=True, kw_only=True)
class Move:
    """What one or more trajectories of every chain did."""

    path: FloatArray  # (C, M, D)  where they were after each
    density: FloatArray  # (C, 2)  at the end
    acceptance: FloatArray  # (C, M)  acceptance probability
    smooth_acceptance: FloatArray  # (C, M)  the same without the jumps of the determinant, nan beyond an edge
    divergent: BoolArray  # (C, M)
    gradients: int

    @property
    def integrator_acceptance(self) -> float:
        """The mean of `smooth_acceptance`, by which the step is tuned; 0 where every trajectory left the support."""
        is_in = np.isfinite(self.smooth_acceptance)
        return float(self.smooth_acceptance[is_in].mean()) if is_in.any() else 0.0

    @property
    def x(self) -> FloatArray:
        """``(C, D)`` where they are at the end."""
        return np.ascontiguousarray(self.path[:, -1])


@dataclass(kw_only=True)
class Chains:
    """Draws of all chains after the warm-up."""

    draws: FloatArray  # (C, M, D)
    tuning: Tuning
    diagnostics: dict[str, Any] = field(default_factory=dict)


def leap(
    target: Target,
    x: FloatArray,
    density: FloatArray,
    tuning: Tuning,
    num_steps: IntArray,
    rng: np.random.Generator,
    step: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Run one trajectory of every particle from a fresh momentum, each with a step and a number of steps of its own.

    Return where they end and ``(N, 2)`` the energy they lost, without and with the jumps of the determinant.
    """
    p = rng.standard_normal(x.shape) / np.sqrt(tuning.inverse_mass)
    new_x, new_p, new_density = target.leapfrog(x, p, step=step, num_steps=num_steps, inverse_mass=tuning.inverse_mass)
    return new_x, energy_gain(density, p, new_density, new_p, tuning.inverse_mass)


def hmc_move(
    target: Target,
    x: FloatArray,
    density: FloatArray,
    tuning: Tuning,
    num_steps: IntArray | int,
    rng: np.random.Generator,
    step: FloatArray | None = None,
) -> Move:
    """One trajectory and its accept step for every particle (alg. hmc), or M of them with `num_steps` ``(1, M)``.

    `num_steps` may differ by particle, ``(N,)``, and so may `step`.
    """
    num, size = x.shape
    steps = np.atleast_1d(np.asarray(num_steps, dtype=np.int64))
    if steps.ndim == 1:
        steps = steps[:, None]
    times = steps.shape[1]
    p = rng.standard_normal((num, times, size)) / np.sqrt(tuning.inverse_mass)
    path, density, gain = target.run_chains(
        x,
        density,
        p,
        np.log(rng.random((num, times))),
        step=np.full(num, tuning.step) if step is None else step,
        num_steps=np.ascontiguousarray(np.broadcast_to(steps, (num, times))),
        inverse_mass=tuning.inverse_mass,
    )
    acceptance = np.exp(np.minimum(gain, 0.0))
    # A trajectory that has left a support with edges says nothing of the integrator.
    is_out = np.isinf(gain[:, :, 0]) & target.has_edge
    return Move(
        path=path,
        density=density,
        acceptance=acceptance[:, :, 1],
        smooth_acceptance=np.where(is_out, np.nan, acceptance[:, :, 0]),
        divergent=(gain[:, :, 0] < -DIVERGENT) & ~is_out,
        gradients=int(steps.sum()) * (num // steps.shape[0]) + num,  # the next trajectory starts where one was taken
    )


def run_moves(
    target: Target,
    x: FloatArray,
    density: FloatArray,
    tuning: Tuning,
    times: int,
    rng: np.random.Generator,
    settings: HMCSettings,
) -> Move:
    """Run that many trajectories of jittered length, each followed by a sweep where the target has jumps."""
    swept = settings.gibbs and target.has_jumps
    at_once = 1 if swept else max(1, NUMBERS_AT_ONCE // x.size)
    parts = list[Move]()
    while times > 0:
        together = min(times, at_once)
        steps = tuning.many_steps(rng.random((1, together)), settings.max_leapfrog)
        move = hmc_move(target, x, density, tuning, steps, rng)
        if swept:
            x, density = gibbs(target, move.x, move.density, rng)
            move.path, move.density = x[:, None], density
        x, density = move.x, move.density
        parts.append(move)
        times -= together
    return Move(
        path=np.concatenate([move.path for move in parts], axis=1),
        density=density,
        acceptance=np.concatenate([move.acceptance for move in parts], axis=1),
        smooth_acceptance=np.concatenate([move.smooth_acceptance for move in parts], axis=1),
        divergent=np.concatenate([move.divergent for move in parts], axis=1),
        gradients=sum(move.gradients for move in parts),
    )


def run_hmc(
    target: Target,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    stopping_fn: Callable[[FloatArray], bool] | None = None,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> Chains:
    """Run the chains until `stopping_fn` says of the ``(C, M, D)`` draws that they will do, or the iterations are used.

    They do not stop before `min_draws` draws. The default criterion asks for R-hat and effective sample sizes of Q.
    `progress_fn` gets (iterations, most).
    """
    settings = settings or HMCSettings()
    x = target.initial(settings.chains, rng)
    if target.num_coordinates == 0:
        still = Tuning(step=1.0, trajectory=1.0, inverse_mass=np.ones(0))
        return Chains(
            draws=x[:, None, :], tuning=still, diagnostics={"chains": settings.chains, "draws": settings.chains}
        )
    x = target.disperse(x, rng)
    tuning, x, density, used = warm_up(target, x, rng, settings)
    draws = np.empty((settings.chains, settings.max_iterations, target.num_coordinates))
    acceptance, divergences, gradients, done = 0.0, 0, used, 0
    while done < settings.max_iterations:
        times = min(settings.block, settings.max_iterations - done)
        move = run_moves(target, x, density, tuning, times, rng, settings)
        x, density = move.x, move.density
        acceptance += times * float(move.acceptance.mean())
        divergences += int(move.divergent.sum())
        gradients += move.gradients
        draws[:, done : done + times] = move.path
        done += times
        if progress_fn is not None:
            progress_fn(done, settings.max_iterations)
        if settings.chains * done >= min_draws and (stopping_fn or _default_rule(target, settings))(draws[:, :done]):
            break
    kept = draws[:, :done].copy()
    visited = target.optimal_share(target.to_q(kept.reshape(-1, kept.shape[2]))).max(axis=0) > 0.0
    return Chains(
        draws=kept,
        tuning=tuning,
        diagnostics=describe_chains(target, kept)
        | {
            "unvisited_modes": scout(target, visited, rng, settings, tuning=tuning),
            "acceptance": acceptance / done,
            "divergences": divergences,
            "gradients": gradients,
            "step_size": tuning.step,
            "trajectory": tuning.trajectory,
        },
    )


def gibbs(
    target: Target, x: FloatArray, density: FloatArray, rng: np.random.Generator, *, wanted: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Sweep the free coordinates where the target has jumps; else return what came in."""
    if not (wanted and target.has_jumps):
        return x, density
    swept = target.gibbs_sweep(x, rng)
    return swept, target.log_density(swept)


def warm_up(
    target: Target, x: FloatArray, rng: np.random.Generator, settings: HMCSettings
) -> tuple[Tuning, FloatArray, FloatArray, int]:
    """Tune step size (dual averaging on the smooth acceptance), mass (pooled variances) and trajectory length."""
    density = target.log_density(x)
    tuning = Tuning(step=0.1, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
    # The first guess of the scales is the spread of the starting points.
    tuning.inverse_mass = _regular_variance(x)
    gradients = 0
    windows = _windows(settings.warm_up)
    for number, length in enumerate(windows):
        averaging = DualAveraging(tuning.step, settings.target_acceptance)
        seen = np.empty((length, *x.shape))
        for i in range(length):
            steps = tuning.num_steps(rng.random(), min(settings.max_leapfrog, 32 if number == 0 else 512))
            move = hmc_move(target, x, density, tuning, steps, rng)
            x, density = gibbs(target, move.x, move.density, rng, wanted=settings.gibbs)
            tuning.step = averaging.update(move.integrator_acceptance)
            gradients += move.gradients
            seen[i] = x
        tuning.step = averaging.settled
        if number < len(windows) - 1:
            tuning.inverse_mass = _regular_variance(seen[length // 4 :].reshape(-1, x.shape[1]))
            # Momenta now have another scale; distances are measured in standard deviations.
            tuning.step = _reasonable_step(target, x, density, tuning, rng)
        if number == len(windows) - 2:
            tuning.trajectory, x, density, used = _best_trajectory(target, x, density, tuning, rng, settings)
            gradients += used
    return tuning, x, density, gradients


def _best_trajectory(
    target: Target,
    x: FloatArray,
    density: FloatArray,
    tuning: Tuning,
    rng: np.random.Generator,
    settings: HMCSettings,
) -> tuple[float, FloatArray, FloatArray, int]:
    """Return the candidate of most effective draws per gradient, and where its trials left the chains.

    Judged by the slowest tenth of the coordinates: from the correlation r of neighbouring draws, (1 − r) / (1 + r).
    """
    best, best_score, gradients = tuning.trajectory, -np.inf, 0
    for factor in TRAJECTORIES:
        trial = Tuning(step=tuning.step, trajectory=factor * np.pi / 2, inverse_mass=tuning.inverse_mass)
        if trial.trajectory / trial.step > settings.max_leapfrog:
            break
        move = run_moves(target, x, density, trial, TRIALS, rng, settings)
        path = np.concatenate([x[:, None], move.path], axis=1)
        x, density = move.x, move.density
        gradients += move.gradients
        score = float(np.quantile(_effective_share(path), 0.1)) / move.gradients
        if score > best_score:
            best, best_score = trial.trajectory, score
    return best, x, density, gradients


def _effective_share(path: FloatArray) -> FloatArray:
    """Return (1 − r) / (1 + r) per coordinate of ``(C, T, D)`` draws, r the correlation of neighbours, 0 or more."""
    deviation = path - path.mean(axis=(0, 1))
    variance = np.maximum(np.mean(deviation**2, axis=(0, 1)), np.finfo(float).tiny)
    r = np.clip(np.mean(deviation[:, 1:] * deviation[:, :-1], axis=(0, 1)) / variance, 0.0, 1.0)
    return np.asarray((1.0 - r) / (1.0 + r))


def _reasonable_step(
    target: Target, x: FloatArray, density: FloatArray, tuning: Tuning, rng: np.random.Generator
) -> float:
    """Return a step at which a single leapfrog step is accepted about four times in five, found by halving."""
    step = 1.0
    for _ in range(40):
        trial = Tuning(step=step, trajectory=step, inverse_mass=tuning.inverse_mass)
        if hmc_move(target, x, density, trial, 4, rng).integrator_acceptance > 0.7:
            break
        step *= 0.7
    return step


@dataclass(slots=True)
class DualAveraging:
    """Nesterov's averaging of log step sizes (Hoffman and Gelman 2014, section 3.2)."""

    first: float
    target: float
    count: int = 0
    error: float = 0.0
    log_mean: float = 0.0

    def update(self, acceptance: float) -> float:
        """Take in an acceptance rate; return the step to try next."""
        self.count += 1
        weight = 1.0 / (self.count + 10.0)
        self.error = (1.0 - weight) * self.error + weight * (self.target - acceptance)
        log_step = np.log(10.0 * self.first) - np.sqrt(self.count) / 0.05 * self.error
        log_step = float(np.clip(log_step, np.log(self.first) - 8.0, np.log(self.first) + 5.0))
        share = self.count**-0.75
        self.log_mean = share * log_step + (1.0 - share) * self.log_mean
        return float(np.exp(log_step))

    @property
    def settled(self) -> float:
        """The averaged step."""
        return float(np.exp(self.log_mean))


def _windows(length: int) -> list[int]:
    """Return the lengths of the warm-up windows: each about twice the one before."""
    return [max(20, length // 8), max(20, length // 4), max(20, length * 3 // 8), max(20, length // 4)]


def _regular_variance(draws: FloatArray) -> FloatArray:
    """Return variances, the smallest of the others in place of 0: coordinates need not have a unit in common."""
    variance = draws.var(axis=0, ddof=1)
    positive = variance[variance > 0.0]
    return np.where(variance > 0.0, variance, positive.min() if positive.size else 1.0)


def scout(
    target: Target,
    visited: BoolArray,
    rng: np.random.Generator,
    settings: HMCSettings,
    *,
    tuning: Tuning | None = None,
) -> int:
    """Return how many pairs are optimal where dispersed chains stay and never in the draws, whose pairs are `visited`.

    Chains start with each action of each state and run for a third of a warm-up: either they leave, or there is a mode
    that the draws know nothing of. With a `tuning` the first of them have run already: those of the draws themselves,
    so that only states with more actions than there are chains leave anything to do.
    """
    batches = min(-(-target.most_actions // settings.chains), MOST_SCOUTS)
    times, stayed = max(settings.warm_up // 3, 8), np.zeros_like(visited)
    for turn in range(0 if tuning is None else 1, batches):
        x = target.disperse(target.initial(settings.chains, rng), rng, turn=turn)
        if tuning is None:
            tuning, x, _, _ = warm_up(target, x, rng, settings)
        path = run_moves(target, x, target.log_density(x), tuning, times, rng, settings).path[:, times // 2 :]
        share = target.optimal_share(target.to_q(path.reshape(-1, path.shape[2]))).reshape(*path.shape[:2], -1)
        stayed |= (share.mean(axis=1) > 0.5).any(axis=0)
    return int(np.sum(stayed & ~visited))


def _default_rule(target: Target, settings: HMCSettings) -> Callable[[FloatArray], bool]:
    def stop(draws: FloatArray) -> bool:
        summary = describe_chains(target, draws)
        return is_enough(summary, min_ess=settings.min_ess, max_r_hat=settings.max_r_hat)

    return stop
