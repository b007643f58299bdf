"""How particles are moved: step sizes and trajectory lengths found by trial, and whether the moves did their work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.inference.hmc import Tuning, leap
from qposterior.model.target import Density
from qposterior.world.arrays import FloatArray, IntArray

GOOD_ERROR = float(abs(np.log(0.9)))
"""|ΔH| of a step size that is accepted nine times in ten."""

LEAPFROG_CHANGE = 5
MOST_LEAPFROG = 100
"""L* grows no further: in Q coordinates at a small tolerance it would for ever."""

LARGEST_STEP = 2.0
"""In standard deviations, the stability limit of the leapfrog on a normal target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """δ* and L*: the ranges that trial steps are drawn from, handed from one step of the sampler to the next."""

    step: float = 0.5
    leapfrog: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A step size and a number of leapfrog steps for every particle, and the common mass matrix."""

    step: FloatArray  # (N,)
    num_steps: IntArray  # (N,)
    inverse_mass: FloatArray  # (D,)


def adapt_kernel(
    target: Density, x: FloatArray, *, variance: FloatArray, bounds: Bounds, rng: np.random.Generator
) -> tuple[Kernel, Bounds]:
    """Return the kernel for the particles `x` ``(N, D)`` and new bounds (paper, alg. smchmcadptmove, AdaptKernel).

    Every particle makes a trial with δ̃ ~ U[0, δ*], L̃ ~ U{1 … L*}. With ζ its energy error and Λ = Δᵀ Var⁻¹ Δ / L̃ ·
    min(1, e^ζ) its jump per gradient, kernels are drawn from the trials with probability ∝ Λ; δ* follows the regression
    of the absolute ζ on δ̃², L* the lengths that were chosen.
    """
    num = x.shape[0]
    step = np.maximum(rng.uniform(0.0, bounds.step, num), 1e-3 * bounds.step)
    num_steps: IntArray = rng.integers(1, bounds.leapfrog, size=(num,), endpoint=True)
    tuning = Tuning(step=bounds.step, trajectory=1.0, inverse_mass=variance)
    end, gains = leap(target, x, target.log_density(x), tuning, num_steps, rng, step)
    smooth_gain, gain = gains.T
    with np.errstate(invalid="ignore", over="ignore"):
        jump = np.sum((end - x) ** 2 / variance, axis=1) / num_steps * np.exp(np.minimum(gain, 0.0))
    jump = np.where(np.isfinite(gain), jump, 0.0)
    if not jump.sum() > 0.0:  # every trial was lost: the smallest steps, and a smaller range
        calm = Kernel(step=np.full(num, step.min()), num_steps=num_steps, inverse_mass=variance)
        return calm, Bounds(step=0.5 * bounds.step, leapfrog=bounds.leapfrog)
    chosen = rng.choice(num, size=num, p=jump / jump.sum())
    kernel = Kernel(step=step[chosen], num_steps=num_steps[chosen], inverse_mass=variance)
    return kernel, Bounds(
        step=next_step_bound(step, np.abs(smooth_gain)),
        leapfrog=next_leapfrog_bound(bounds.leapfrog, tried=num_steps, chosen=num_steps[chosen]),
    )


def next_step_bound(step: FloatArray, error: FloatArray) -> float:
    """Return δ* = max(√(c / α*), the largest δ̃ whose error is below c = −log 0.9), at most the stability limit.

    α* minimises the sum of the absolute differences of error and α δ̃²: the median of error / δ̃², weighted by δ̃².
    """
    ratio = error / step**2
    order = np.argsort(ratio)
    total = np.cumsum(step[order] ** 2)
    slope = ratio[order[np.searchsorted(total, 0.5 * total[-1])]]
    by_regression = np.sqrt(GOOD_ERROR / slope) if 0.0 < slope < np.inf else 0.0
    by_trial = step[error < GOOD_ERROR].max(initial=0.0)
    best = max(by_regression, by_trial)
    return float(min(best if best > 0.0 else 0.5 * step.min(), LARGEST_STEP))


def next_leapfrog_bound(bound: int, *, tried: IntArray, chosen: IntArray) -> int:
    """Return L* five larger where most chosen L lie above the 80th percentile of the tried, smaller below the 20th."""
    low, high = np.quantile(tried, [0.2, 0.8])
    if np.mean(chosen > high) > 0.5:
        return min(bound + LEAPFROG_CHANGE, MOST_LEAPFROG)
    if np.mean(chosen < low) > 0.5 and bound > LEAPFROG_CHANGE:
        return bound - LEAPFROG_CHANGE
    return bound


class MixingMonitor:
    """Whether chains started at the particles have moved as far as the particles lie apart (app. mcmceffectiveness).

    σ̂² = ((M − 1)/M · W + B) / W with W the variance within chains and B that of their means, both weighted. Sums are
    kept, not the chains.
    """

    def __init__(self, weights: FloatArray) -> None:
        self.weights = weights
        self.length = 0
        self._first: FloatArray | None = None
        self._sum: FloatArray | float = 0.0
        self._squares: FloatArray | float = 0.0

    def add(self, x: FloatArray) -> None:
        """Take in the next state of every chain, ``(N, D)``."""
        if self._first is None:
            self._first = x
        moved = x - self._first  # sums of squares lose less about a nearby point
        self._sum = self._sum + moved
        self._squares = self._squares + moved**2
        self.length += 1

    def ratios(self) -> FloatArray:
        """Return ``(D,)`` σ̂²: infinite where no chain has moved, about 1 where the chains have mixed."""
        if self._first is None or self.length < 2:
            return np.full(0 if self._first is None else self._first.shape[1], np.inf)
        mean = self._sum / self.length
        variance = np.maximum(self._squares - self.length * mean**2, 0.0) / (self.length - 1)
        within = self.weights @ variance
        place = self._first + mean
        share = 1.0 - np.sum(self.weights**2)  # the weighted form of N / (N − 1)
        between = self.weights @ (place - self.weights @ place) ** 2 / share if share > 0.0 else np.zeros_like(within)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = ((self.length - 1) / self.length * within + between) / within
        return np.where(within > 0.0, ratio, np.inf)
