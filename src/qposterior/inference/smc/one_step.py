"""One step of sequential Monte Carlo: reweight, resample where the weights have become uneven, adapt, move."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qposterior.checks import check_count, check_number
from qposterior.errors import InvalidInputError
from qposterior.inference.hmc import Tuning, gibbs, hmc_move
from qposterior.inference.smc.adaptation import Bounds, Kernel, MixingMonitor, adapt_kernel
from qposterior.inference.smc.cloud import Cloud
from qposterior.inference.smc.resampling import find_resampling
from qposterior.model.tabular import TabularTarget
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
    moves: int
    acceptance: float
    step_size: float  # mean over the particles
    trajectory: float  # mean number of leapfrog steps
    mixing_ratio: float  # median over the coordinates
    is_effective: bool
    log_increment: float
    bounds: Bounds

    def to_row(self) -> dict[str, Any]:
        """Return the record as a row of the trace."""
        names = ("ess_before", "ess_after", "resampled", "moves", "acceptance", "step_size", "trajectory")
        return {name: getattr(self, name) for name in (*names, "mixing_ratio", "is_effective", "log_increment")}


def smc_one_step(
    cloud: Cloud,
    target: TabularTarget,
    log_gain: FloatArray,
    *,
    bounds: Bounds,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float = np.inf,
) -> StepRecord:
    """Take the cloud from the last posterior to that of `target`, in place (paper, alg. smcbase, SMCOneStep).

    `log_gain` ``(N,)`` is log p_j(θ) − log p_{j−1}(θ), with its normalising terms. No move is begun after the time
    `stop_at` of the performance counter: the weights alone make the cloud a valid approximation.
    """
    ess_before = cloud.ess
    log_increment = cloud.reweight(log_gain)
    ess_after = cloud.ess
    x = target.from_q(cloud.theta, cloud.log_scale)
    variance = weighted_variance(x, cloud.weights)  # before resampling, which only loses information
    resampled = settings.waste_free is not None or ess_after < settings.resample_below * cloud.log_weights.size
    if resampled:
        num = cloud.log_weights.size // (settings.waste_free or 1)
        cloud.select(find_resampling(settings.resampling)(cloud.weights, rng, num))
        x = target.from_q(cloud.theta, cloud.log_scale)
    record: dict[str, Any] = {
        "ess_before": ess_before,
        "ess_after": ess_after,
        "resampled": resampled,
        "log_increment": log_increment,
    }
    return move_cloud(cloud, target, x, variance, record, bounds=bounds, settings=settings, rng=rng, stop_at=stop_at)


def move_cloud(
    cloud: Cloud,
    target: TabularTarget,
    x: FloatArray,
    variance: FloatArray,
    record: dict[str, Any],
    *,
    bounds: Bounds,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float = np.inf,
) -> StepRecord:
    """Adapt the kernel, then move every particle by it until the chains have mixed or M moves are made."""
    is_late = time.perf_counter() >= stop_at and settings.waste_free is None
    if is_late or x.shape[1] == 0 or settings.max_moves == 0:
        nothing: dict[str, Any] = dict.fromkeys(("acceptance", "step_size", "trajectory", "mixing_ratio"), np.nan)
        return StepRecord(**record, **nothing, moves=0, is_effective=not is_late, bounds=bounds)
    kernel, bounds = adapt_kernel(target, x, variance=variance, bounds=bounds, rng=rng)
    path, monitor, acceptance = _move(cloud, target, x, kernel, settings, rng, stop_at)
    ratios = monitor.ratios()
    _settle(cloud, target, path, settings)
    return StepRecord(
        **record,
        moves=len(acceptance),
        acceptance=float(np.mean(acceptance)),
        step_size=float(kernel.step.mean()),
        trajectory=float(kernel.num_steps.mean()),
        mixing_ratio=float(np.median(ratios)),
        is_effective=bool(np.mean(ratios < settings.mixing_threshold) > 0.5),
        bounds=bounds,
    )


def _move(
    cloud: Cloud,
    target: TabularTarget,
    x: FloatArray,
    kernel: Kernel,
    settings: MoveSettings,
    rng: np.random.Generator,
    stop_at: float,
) -> tuple[list[FloatArray], MixingMonitor, list[float]]:
    """Return the states to keep (the last, or all of waste-free chains), the monitor, and the acceptance per move."""
    tuning = Tuning(step=float(kernel.step.mean()), trajectory=1.0, inverse_mass=kernel.inverse_mass)
    density = target.log_density(x)
    monitor = MixingMonitor(cloud.weights)
    monitor.add(x)
    path, acceptance = [x], list[float]()
    most = settings.max_moves if settings.waste_free is None else settings.waste_free - 1
    while len(acceptance) < most:
        move = hmc_move(target, x, density, tuning, kernel.num_steps, rng, kernel.step)
        x, density = gibbs(target, move.x, move.density, rng)
        acceptance.append(float(move.acceptance.mean()))
        monitor.add(x)
        if settings.waste_free is not None:
            path.append(x)
            continue
        path = [x]
        due = len(acceptance) % settings.check_every == 0
        mixed = due and np.mean(monitor.ratios() < settings.mixing_threshold) > 0.5
        if mixed or time.perf_counter() >= stop_at:
            break
    return path, monitor, acceptance


def _settle(cloud: Cloud, target: TabularTarget, path: list[FloatArray], settings: MoveSettings) -> None:
    """Put the moved states back into the cloud; waste-free chains become particles of equal weight, state by state."""
    x = path[-1] if settings.waste_free is None else np.concatenate(path)
    cloud.theta = target.to_q(x)
    if cloud.log_scale is not None:
        cloud.log_scale = x[:, -1].copy()
    if settings.waste_free is not None:
        cloud.log_weights = np.full(x.shape[0], -np.log(x.shape[0]))


def weighted_variance(x: FloatArray, weights: FloatArray) -> FloatArray:
    """Return ``(D,)`` weighted variances, none of them 0."""
    variance = weights @ (x - weights @ x) ** 2
    floor = max(SMALLEST_VARIANCE * float(variance.max(initial=0.0)), np.finfo(float).tiny)
    return np.asarray(np.maximum(variance, floor))
