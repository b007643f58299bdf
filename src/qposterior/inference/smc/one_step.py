"""One step of sequential Monte Carlo: reweight, resample where the weights have become uneven, adapt, move."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number
from qposterior.errors import InvalidInputError
from qposterior.inference.hmc import ChainState, Tuning, hmc_move, redraw
from qposterior.inference.records import Particles
from qposterior.inference.smc.adaptation import Bounds, Kernel, MixingMonitor, adapt_kernel
from qposterior.inference.smc.resampling import find_resampling
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray

SMALLEST_VARIANCE = 1e-8
"""Of the mass matrix, relative to the largest: a coordinate on which all particles agree can still be moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSettings:
    """How a step resamples and moves; the paper leaves these numbers open."""

    resampling: str = "systematic"
    resample_below: float = 0.5  # share of N
    max_moves: int = 50  # M
    check_every: int = 5  # moves between two looks at the mixing, which may stop them
    mixing_threshold: float = 1.5
    waste_free: int | None = None  # chain length P: resample N / P particles, keep all P states of each

    def __post_init__(self) -> None:
        find_resampling(self.resampling)
        check_number("resample_below", self.resample_below, "[0, 1]")
        check_count("max_moves", self.max_moves, 0)
        check_count("check_every", self.check_every)
        check_number("mixing_threshold", self.mixing_threshold, "[0, inf]")
        if self.waste_free is not None and (check_count("waste_free", self.waste_free, 2) and self.max_moves == 0):
            raise InvalidInputError(f"waste_free={self.waste_free} keeps the states of moves; max_moves must not be 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What one step did."""

    ess_before: float
    ess_after: float  # of the weights, before resampling
    resampled: bool
    log_increment: float
    bounds: Bounds
    moves: int = 0
    acceptance: float = np.nan
    step_size: float = np.nan  # mean over the particles
    trajectory: float = np.nan  # mean number of leapfrog steps
    mixing_ratio: float = np.nan  # median over the coordinates
    is_effective: bool = True  # whether most coordinates have mixed; also where there was nothing to move

    def to_row(self) -> dict[str, Any]:
        """Return the record as a row of the trace."""
        names = ("ess_before", "ess_after", "resampled", "moves", "acceptance", "step_size", "trajectory")
        return {name: getattr(self, name) for name in (*names, "mixing_ratio", "is_effective", "log_increment")}


def smc_one_step(
    particles: Particles,
    target: Target,
    log_gain: FloatArray,
    *,
    bounds: Bounds,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float = np.inf,
) -> tuple[Particles, StepRecord]:
    r"""Return the particles of the posterior `target`, the next, and what was done (paper, alg. smcbase, SMCOneStep).

    `log_gain` ``(N,)`` is log p_j(θ_n) − log p_{j−1}(θ_n), with its normalising terms, so that the log-evidence grows
    by log Σ W_n exp(gain_n). Reweight; resample if the effective sample size is below a share of N; adapt the kernel to
    the variance of the weighted particles (taken before resampling, which only loses information); move. The moves
    leave the *new* target invariant, so they come after the weights. None is begun after the time `stop_at` of the
    performance counter: the weights alone make the particles a valid approximation.
    """
    weighted, increment = particles.reweighted(log_gain)
    record = StepRecord(
        ess_before=particles.ess, ess_after=weighted.ess, resampled=False, log_increment=increment, bounds=bounds
    )
    is_uneven = weighted.ess < settings.resample_below * weighted.num
    return resample_and_move(weighted, target, record, is_uneven=is_uneven, settings=settings, rng=rng, stop_at=stop_at)


def resample_and_move(
    particles: Particles,
    target: Target,
    record: StepRecord,
    *,
    is_uneven: bool,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float = np.inf,
) -> tuple[Particles, StepRecord]:
    """Resample where weights are uneven, or N / P particles for waste-free chains; then adapt the kernel and move."""
    variance = weighted_variance(target.from_parameters(particles.parameters, particles.log_scale), particles.weights)
    if is_uneven or settings.waste_free is not None:
        num = particles.num // (settings.waste_free or 1)
        particles = particles.select(find_resampling(settings.resampling)(particles.weights, rng, num))
        record = replace(record, resampled=True)
    x = target.from_parameters(particles.parameters, particles.log_scale)
    is_late = time.perf_counter() >= stop_at and settings.waste_free is None
    if is_late or x.shape[1] == 0 or settings.max_moves == 0:
        return particles, replace(record, is_effective=not is_late)
    kernel, bounds = adapt_kernel(target, x, variance=variance, bounds=record.bounds, rng=rng)
    path, monitor, acceptance = _move(particles, target, x, kernel, settings, rng, stop_at)
    ratios = monitor.ratios()
    return _settled(particles, target, path, settings), replace(
        record,
        bounds=bounds,
        moves=len(acceptance),
        acceptance=float(np.mean(acceptance)),
        step_size=float(kernel.step.mean()),
        trajectory=float(kernel.num_steps.mean()),
        mixing_ratio=float(np.median(ratios)),
        is_effective=bool(np.mean(ratios < settings.mixing_threshold) > 0.5),
    )


def _move(
    particles: Particles,
    target: Target,
    x: FloatArray,
    kernel: Kernel,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float,
) -> tuple[list[FloatArray], MixingMonitor, list[float]]:
    """Return the states to keep (the last, or all of waste-free chains), the monitor, and the acceptance per move."""
    tuning = Tuning(step=float(kernel.step.mean()), trajectory=1.0, inverse_mass=kernel.inverse_mass)
    state = ChainState(x=x, density=target.log_density(x), tuning=tuning)
    monitor = MixingMonitor(particles.weights)
    monitor.add(x)
    path, acceptance = [x], list[float]()
    most = settings.max_moves if settings.waste_free is None else settings.waste_free - 1
    while len(acceptance) < most:
        move = hmc_move(target, state.x, state.density, tuning, kernel.num_steps, rng, kernel.step)
        state = redraw(target, replace(state, x=move.x, density=move.density), rng)
        acceptance.append(float(move.acceptance.mean()))
        monitor.add(state.x)
        if settings.waste_free is not None:
            path.append(state.x)
            continue
        path = [state.x]
        due = len(acceptance) % settings.check_every == 0
        mixed = due and np.mean(monitor.ratios() < settings.mixing_threshold) > 0.5
        if mixed or time.perf_counter() >= stop_at:
            break
    return path, monitor, acceptance


def _settled(particles: Particles, target: Target, path: list[FloatArray], settings: MoveSettings) -> Particles:
    """Return the particles where they have moved to; states of waste-free chains are particles of equal weight."""
    x = path[-1] if settings.waste_free is None else np.concatenate(path)
    moved = particles.at(target.to_parameters(x), target.log_scale_of(x))
    if settings.waste_free is None:
        return moved
    ancestors = None if moved.ancestors is None else np.tile(moved.ancestors, len(path))
    return replace(moved, log_weights=np.full(x.shape[0], -np.log(x.shape[0])), ancestors=ancestors)


def weighted_variance(x: FloatArray, weights: FloatArray) -> FloatArray:
    """Return ``(D,)`` weighted variances, none of them 0."""
    variance = weights @ (x - weights @ x) ** 2
    floor = max(SMALLEST_VARIANCE * float(variance.max(initial=0.0)), np.finfo(float).tiny)
    return np.asarray(np.maximum(variance, floor))
