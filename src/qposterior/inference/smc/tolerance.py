"""The next tolerance: how far the data may be sharpened (or relaxed) before the weights become too uneven.

Every observed pair has a tolerance τ_k, infinite until its reading has been taken in. The stages of the paper are two
operations on them. *Lowering the ceiling* to c, τ_k ← min(τ_k, c), brings new readings in (stage I, from c = ∞),
sharpens them until they match the old ones (stage II), then all of them (stage III). *Raising the floor*,
τ_k ← max(τ_k, c), relaxes the sharpest (stages IVa and IVb). Tolerances that differ from pair to pair need nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.inference.diagnostics import weighted_ess
from qposterior.world.arrays import FloatArray, IntArray

CLOSE = 1e-6
"""Relative precision of a tolerance found by bisection."""

LEAST_PROGRESS = 1e-3
"""A tolerance moves at least by this share, also where a jump of the effective sample size leaves no solution."""


def ess_adapt(
    log_weights: FloatArray,
    gain_fn: Callable[[float], FloatArray],
    *,
    start: float,
    target: float,
    factor: float,
) -> float:
    """Return the tolerance nearest to `target` at which the effective sample size is still `factor` of what it was.

    Paper, alg. smcessscheme (ESSAdapt): ESS({W_n w_n(ε)}) = α ESS({W_n}), by bisection in log ε between the tolerance
    now, `start` (infinite for new data), and `target`. `gain_fn(ε)` gives the ``(N,)`` log w_n(ε). The incoming weights
    may be unequal.
    """
    if not np.isfinite(log_weights.max()):
        raise QPosteriorError(
            "every particle has weight 0: none is proper on what is new; use more particles, bring the data in bit by "
            'bit, or use coordinates="q"'
        )
    wanted = factor * weighted_ess(log_weights)

    def is_fine(tolerance: float) -> bool:
        return _ess_after(log_weights, gain_fn(tolerance)) >= wanted

    if is_fine(target):
        return target
    fine = start
    if np.isinf(start):  # the effective sample size tends to its old value as the tolerance grows
        fine = 2.0 * target
        while not is_fine(fine):
            fine *= 2.0
            if not np.isfinite(fine):
                raise QPosteriorError('no tolerance leaves enough particles; use more of them, or method="hmc"')
    low, high = np.log(fine), np.log(target)  # fine at `low`, not at `high`, whichever of the two is larger
    while abs(high - low) > CLOSE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_fine(float(np.exp(middle))) else (low, middle)
    if np.isfinite(start) and abs(low - np.log(start)) < LEAST_PROGRESS:
        low = np.log(start) + np.sign(np.log(target) - np.log(start)) * LEAST_PROGRESS
        low = min(low, np.log(target)) if target > start else max(low, np.log(target))
    return float(np.exp(low))


def _ess_after(log_weights: FloatArray, log_gain: FloatArray) -> float:
    total = log_weights + log_gain
    return weighted_ess(total) if np.isfinite(total.max()) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceGain:
    """log Π K_τ'(g_k, r_k) − log Π K_τ(g_k, r_k) of every particle, for tolerances τ → τ' (tab. smcweightupdate).

    Pairs of equal tolerance are one group: a gain costs O(particles × groups), not O(particles × pairs).
    """

    tolerance: FloatArray  # (G,)  of each group, infinite where its readings are not in yet
    members: IntArray  # (G,)
    misfit: FloatArray  # (N, G)  Σ residual² of the Gaussian kernel, max |residual| of the uniform one
    kernel: str

    @classmethod
    def of(cls, residuals: FloatArray, tolerances: FloatArray, kernel: str) -> ToleranceGain:
        """Group ``(N, n)`` residuals g_k(θ) − r_k by the ``(n,)`` tolerances of their pairs."""
        levels, group = np.unique(tolerances, return_inverse=True)
        order = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[order], np.arange(levels.size))
        part = residuals[:, order]
        misfit = (
            np.add.reduceat(part**2, starts, axis=1)
            if kernel == "gaussian"
            else np.maximum.reduceat(np.abs(part), starts, axis=1)
        )
        return cls(tolerance=levels, members=np.bincount(group), misfit=misfit, kernel=kernel)

    def lower(self, ceiling: float) -> FloatArray:
        """Return the ``(N,)`` gain of τ ← min(τ, ceiling)."""
        return self._gain(np.minimum(self.tolerance, ceiling))

    def lift(self, floor: float) -> FloatArray:
        """Return the ``(N,)`` gain of τ ← max(τ, floor); readings that are not in stay out."""
        return self._gain(np.maximum(self.tolerance, floor))

    def _gain(self, tolerance: FloatArray) -> FloatArray:
        changed = tolerance != self.tolerance
        before = self._log_kernels(self.tolerance, changed & np.isfinite(self.tolerance))
        alive = np.isfinite(before)  # outside the uniform kernel a particle has weight 0 and keeps it
        return np.where(alive, self._log_kernels(tolerance, changed) - np.where(alive, before, 0.0), -np.inf)

    def _log_kernels(self, tolerance: FloatArray, groups: np.ndarray) -> FloatArray:
        """Return the ``(N,)`` sum of log K over some groups, normalised as a density of the reward."""
        tau, members, misfit = tolerance[groups], self.members[groups], self.misfit[:, groups]
        if self.kernel == "gaussian":
            constant = members @ (np.log(tau) + 0.5 * np.log(2.0 * np.pi))
            return np.asarray(-0.5 * misfit @ tau**-2.0 - constant)
        inside = np.all(misfit < tau, axis=1)
        return np.where(inside, -float(members @ np.log(2.0 * tau)), -np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerGain:
    """The same for readings with noise: new ones enter as likelihood^λ, λ = τ⁻², τ from ∞ to 1 (data annealing)."""

    tolerance: float
    log_ratio: FloatArray  # (N,)  log p(all readings | θ) − log p(old readings | θ)

    def lower(self, ceiling: float) -> FloatArray:
        """Return the ``(N,)`` gain of lowering τ to `ceiling`."""
        return np.asarray((min(self.tolerance, ceiling) ** -2.0 - self.tolerance**-2.0) * self.log_ratio)
