"""Step sizes by regression, trajectory lengths, and the mixing ratio against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from qposterior.inference.smc.adaptation import (
    GOOD_ERROR,
    LARGEST_STEP,
    MOST_LEAPFROG,
    Bounds,
    MixingMonitor,
    adapt_kernel,
    next_leapfrog_bound,
    next_step_bound,
)
from qposterior.inference.smc.one_step import weighted_variance
from qposterior.model.target import Density, LogDensity


class Gaussian(Density):
    """N(0, diag(scales²))."""

    def __init__(self, scales):
        self.scales = np.asarray(scales, dtype=float)

    @property
    def num_coordinates(self):
        return self.scales.size

    def log_density_and_grad(self, x):
        smooth = -0.5 * np.sum((x / self.scales) ** 2, axis=1)
        return LogDensity(smooth, np.zeros_like(smooth)), -x / self.scales**2


def test_the_step_bound_is_the_weighted_median_regression():
    rng = np.random.default_rng(0)
    step = rng.uniform(0.05, 1.0, 25)
    error = 3.0 * step**2 * rng.lognormal(0.0, 0.8, 25) + GOOD_ERROR  # no trial is good: the regression decides
    grid = np.linspace(0.0, 60.0, 400_001)
    loss = np.abs(error[:, None] - grid[None, :] * step[:, None] ** 2).sum(axis=0)
    np.testing.assert_allclose(next_step_bound(step, error), np.sqrt(GOOD_ERROR / grid[loss.argmin()]), rtol=1e-3)


def test_the_step_bound_keeps_the_largest_good_trial_and_its_guards():
    step = np.array([0.1, 0.4, 0.8])
    # The regression alone would say √(0.105 / (1 / 0.64)) = 0.26.
    assert next_step_bound(step, np.array([1.0, 0.01, 1.0])) == 0.4
    assert next_step_bound(step, np.zeros(3)) == 0.8  # α* = 0
    assert next_step_bound(step, np.full(3, np.inf)) == 0.05  # an empty maximum and an infinite slope
    assert next_step_bound(np.full(3, 0.01), np.full(3, 1e-12)) == LARGEST_STEP


def test_the_leapfrog_bound_grows_and_shrinks_by_five():
    tried = np.arange(1, 21)
    assert next_leapfrog_bound(20, tried=tried, chosen=np.full(20, 19)) == 25
    assert next_leapfrog_bound(20, tried=tried, chosen=np.full(20, 2)) == 15
    assert next_leapfrog_bound(20, tried=tried, chosen=np.full(20, 10)) == 20
    assert next_leapfrog_bound(5, tried=np.arange(1, 6), chosen=np.full(5, 1)) == 5
    assert next_leapfrog_bound(MOST_LEAPFROG, tried=tried, chosen=np.full(20, 20)) == MOST_LEAPFROG


def test_kernels_are_drawn_by_jump_distance_per_gradient():
    # Wide and narrow coordinates: the distance is measured in their own standard deviations, so the mass matrix makes
    # them equal and steps near the bound are useful; had Var been inverted, only tiny steps would be accepted.
    scales = np.array([100.0, 1.0, 0.01])
    target = Gaussian(scales)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 3)) * scales
    kernel, bounds = adapt_kernel(
        target, x, variance=weighted_variance(x, np.full(4000, 1 / 4000)), bounds=Bounds(step=1.0, leapfrog=3), rng=rng
    )
    # Reference: E[Λ] over (δ, L) by the exact rotation of a unit Gaussian; mean δ of the chosen trials.
    step, length = rng.uniform(0.0, 1.0, 200_000), rng.integers(1, 4, 200_000)
    jump = (2.0 - 2.0 * np.cos(step * length)) / length
    np.testing.assert_allclose(kernel.step.mean(), np.average(step, weights=jump), atol=0.03)
    np.testing.assert_allclose(kernel.num_steps.mean(), np.average(length, weights=jump), atol=0.08)
    assert 0.5 < bounds.step <= LARGEST_STEP


def test_jump_distances_count_in_standard_deviations():
    # The second coordinate is given a hundredth of its variance: its jumps count a hundredfold and favour long moves;
    # had wide directions counted, the first alone would decide.
    target = Gaussian([100.0, 1.0])
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6000, 2)) * target.scales
    bounds = Bounds(step=1.0, leapfrog=5)
    kernel, _ = adapt_kernel(target, x, variance=np.array([100.0**2, 0.01]), bounds=bounds, rng=rng)
    step, length = rng.uniform(0.0, 1.0, 400_000), rng.integers(1, 6, 400_000)
    time = step * length
    jump = (2.0 - 2.0 * np.cos(time) + 100.0 * (2.0 - 2.0 * np.cos(0.1 * time))) / length
    wide = (2.0 - 2.0 * np.cos(time)) / length
    expected = np.average(length, weights=jump)
    assert expected > np.average(length, weights=wide) + 0.25
    np.testing.assert_allclose(kernel.num_steps.mean(), expected, atol=0.1)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_where_every_trial_is_lost_the_steps_become_small():
    target = Gaussian([1e-6])
    x = np.random.default_rng(0).standard_normal((10, 1)) * 1e-6
    lost = Bounds(step=1.0, leapfrog=200)
    kernel, bounds = adapt_kernel(target, x, variance=np.array([1e12]), bounds=lost, rng=np.random.default_rng(0))
    assert bounds.step <= 0.5
    assert np.ptp(kernel.step) == 0.0


def mixing_by_definition(chains):
    """(D,) ((M − 1)/M · W + B) / W of (M, N, D) chains, as printed."""
    length = chains.shape[0]
    within = chains.var(axis=0, ddof=1).mean(axis=0)
    between = chains.mean(axis=0).var(axis=0, ddof=1)
    return ((length - 1) / length * within + between) / within


def test_the_mixing_ratio_is_the_printed_one_for_equal_weights():
    rng = np.random.default_rng(0)
    chains = rng.standard_normal((6, 9, 4)) + 3.0 * rng.standard_normal((1, 9, 4)) + 1e4
    monitor = MixingMonitor(np.full(9, 1 / 9))
    for state in chains:
        monitor.add(state)
    np.testing.assert_allclose(monitor.ratios(), mixing_by_definition(chains), rtol=1e-6)


def test_weights_count_in_the_mixing_ratio_and_still_chains_are_infinitely_bad():
    rng = np.random.default_rng(1)
    chains = rng.standard_normal((5, 4, 2)) + 2.0 * rng.standard_normal((1, 4, 2))
    weights = np.array([0.5, 0.5, 0.0, 0.0])
    weighted, alone = MixingMonitor(weights), MixingMonitor(np.full(2, 0.5))
    for state in chains:
        weighted.add(state)
        alone.add(state[:2])
    np.testing.assert_allclose(weighted.ratios(), alone.ratios())
    still = MixingMonitor(np.full(4, 0.25))
    still.add(chains[0])
    assert np.isinf(still.ratios()).all()
    still.add(chains[0])
    assert np.isinf(still.ratios()).all()


@pytest.mark.parametrize("weights", [[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
def test_the_mass_matrix_is_the_weighted_variance(weights):
    x = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [9.0, 5.0]])
    mean = np.average(x[:, 0], weights=weights)
    found = weighted_variance(x, np.array(weights))
    np.testing.assert_allclose(found[0], np.average((x[:, 0] - mean) ** 2, weights=weights))
    assert found[1] > 0.0
