"""The next tolerance: the ESS rule in closed form, and the gains of sharpening and relaxing against the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from problems import noisy_experience, random_problem
from qposterior.inference.diagnostics import weighted_ess
from qposterior.inference.smc.tolerance import LEAST_PROGRESS, PowerGain, ToleranceGain, ess_adapt
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import GaussianPrior
from targets import BellmanTarget, QTarget

RNG = np.random.default_rng(0)
RESIDUALS = RNG.standard_normal((7, 5)) ** 3 + 0.2  # skewed
TAUS = np.array([0.5, 2.0, 0.5, 2.0, np.inf])


def log_kernels(residuals, tolerances, kernel):
    known = np.isfinite(tolerances)
    if kernel == "gaussian":
        return stats.norm.logpdf(residuals[:, known], scale=tolerances[known]).sum(axis=1)
    with np.errstate(divide="ignore"):
        width = 2 * tolerances[known]
        return stats.uniform.logpdf(residuals[:, known], -tolerances[known], width).sum(axis=1)


def test_next_tolerance_hits_the_ess_target_exactly():
    # One particle in ten fits, the rest are off: w = 1 and e^(−S/2ε²). ESS = 7 of 10 where the small weight solves
    # (1 + 9w)² = 7 (1 + 9w²).
    misfit = np.where(np.arange(10) == 0, 0.0, 3.0)
    small = max(np.roots([81.0 - 63.0, 18.0, 1.0 - 7.0]).real)
    expected = np.sqrt(-0.5 * 3.0 / np.log(small))
    found = ess_adapt(np.full(10, -np.log(10)), lambda e: -0.5 * misfit / e**2, start=np.inf, target=1e-3, factor=0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_next_tolerance_under_unequal_incoming_weights_is_relative_to_their_ess():
    log_weights = np.log(stats.dirichlet.rvs(np.full(40, 0.5), random_state=1)[0])
    misfit = RNG.standard_gamma(2.0, 40)

    def gain(e):
        return -0.5 * misfit * (e**-2.0 - 1.0)

    found = ess_adapt(log_weights, gain, start=1.0, target=1e-4, factor=0.6)
    assert found < 1.0
    ratio = weighted_ess(log_weights + gain(found)) / weighted_ess(log_weights)
    np.testing.assert_allclose(ratio, 0.6, rtol=1e-4)


def test_a_target_within_reach_is_taken_whole_upwards_and_downwards():
    log_weights, misfit = np.full(5, -np.log(5)), np.linspace(1.0, 1.01, 5)

    def gain(e):
        return -0.5 * misfit * (e**-2.0 - 1.0)

    assert ess_adapt(log_weights, gain, start=1.0, target=0.9, factor=0.7) == 0.9
    assert ess_adapt(log_weights, gain, start=1.0, target=2.0, factor=0.7) == 2.0
    steep = ess_adapt(log_weights, lambda e: 5000.0 * gain(e), start=1.0, target=2.0, factor=0.7)
    assert 1.0 < steep < 2.0
    np.testing.assert_allclose(weighted_ess(5000.0 * gain(steep)), 3.5, rtol=1e-4)


def test_where_a_jump_leaves_no_solution_the_tolerance_still_moves():
    log_weights = np.full(2, -np.log(2))
    gain = {1.0: np.zeros(2)}
    found = ess_adapt(log_weights, lambda e: gain.get(e, np.array([0.0, -np.inf])), start=1.0, target=0.1, factor=0.7)
    np.testing.assert_allclose(np.log(found), -LEAST_PROGRESS)


@pytest.mark.parametrize("kernel", ["gaussian", "uniform"])
def test_gains_are_differences_of_the_kernels_for_tolerances_that_differ_by_pair(kernel):
    residuals = RESIDUALS if kernel == "gaussian" else 0.3 * np.tanh(RESIDUALS)
    gain = ToleranceGain.of(residuals, TAUS, kernel)
    before = log_kernels(residuals, TAUS, kernel)
    for ceiling in (5.0, 1.0, 0.3):
        expected = log_kernels(residuals, np.minimum(TAUS, ceiling), kernel) - before
        np.testing.assert_allclose(gain.lower(ceiling), expected, atol=1e-10)
    for floor in (0.7, 3.0):
        expected = log_kernels(residuals, np.maximum(TAUS, floor), kernel) - before
        np.testing.assert_allclose(gain.lift(floor), expected, atol=1e-10)


def test_a_particle_outside_the_uniform_kernel_stays_dead():
    gain = ToleranceGain.of(np.array([[0.9], [0.1]]), np.array([0.5]), "uniform")
    np.testing.assert_array_equal(np.isfinite(gain.lift(1.0)), [False, True])


def test_powers_of_the_likelihood_add_up():
    ratio = RNG.standard_normal(6)
    first = PowerGain(tolerance=np.inf, log_ratio=ratio).lower(3.0)
    second = PowerGain(tolerance=3.0, log_ratio=ratio).lower(1.0)
    np.testing.assert_allclose(first, ratio / 9.0)
    np.testing.assert_allclose(first + second, ratio)


@pytest.mark.parametrize("kind", ["gaussian", "student", "laplace"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
def test_blended_readings_have_the_blended_log_likelihood(kind, learned, make):
    mdp, plain = random_problem("acyclic", 1, share=0.6)
    pairs = [(int(plain.space.pair_state[k]), int(plain.space.pair_action[k])) for k in plain.observed_pairs]
    old = noisy_experience(mdp, pairs[:-2], readings=3)
    new = old.merge(noisy_experience(mdp, pairs[1:], readings=2, seed=5))
    noise = Noise(kind=kind, scale=None if learned else 0.7)
    prior = GaussianPrior()
    before, after = make(old, prior, noise), make(new, prior, noise)
    theta = np.random.default_rng(1).normal(0.0, 2.0, (4, mdp.space.num_pairs))
    log_scale = np.array([-0.5, 0.0, 0.3, 1.0]) if learned else None
    for share in (0.1, 0.8, 1.0):
        mixed = after.with_readings(after.parts.readings.blend(old, share))
        expected = (1 - share) * before.log_likelihood(theta, log_scale) + share * after.log_likelihood(
            theta, log_scale
        )
        np.testing.assert_allclose(mixed.log_likelihood(theta, log_scale), expected, rtol=1e-9)
        # And what the moves see is that likelihood: density in the coordinates minus its prior part.
        x = mixed.from_parameters(theta, log_scale)
        np.testing.assert_allclose(mixed.to_q(x), theta, atol=1e-9)


@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
def test_tolerances_put_in_later_are_tolerances_given_first(make):
    _, seen = random_problem("looping", 1, share=0.5)
    tolerances = np.linspace(0.2, 1.5, seen.num_observed)
    given = make(seen, GaussianPrior(), Tolerance(tolerance=tolerances))
    later = make(seen, GaussianPrior(), Tolerance(tolerance=1.0))
    later = later.with_readings(later.parts.readings.at_tolerance(tolerances))
    x = given.initial(5, np.random.default_rng(0))
    for ours, theirs in zip(later.log_density_and_grad(x), given.log_density_and_grad(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_particles_outside_the_reach_of_bellman_coordinates_are_known():
    # Discount 1, a loop 0 → 1 → 0 with an exit that was not seen: θ is proper where the exit is worth more.
    mdp = qp.FiniteMDP.from_edges(
        [(0, 0, 1, 1.0, -1.0), (1, 0, 0, 1.0, -1.0), (0, 1, 2, 1.0, 0.0), (1, 1, 2, 1.0, 0.0)], goal=[2]
    )
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])
    target = BellmanTarget(seen, GaussianPrior(), Tolerance(tolerance=0.5))
    proper = np.array([[0.0, 1.0, 0.0, -1.0], [5.0, 1.0, 6.0, 2.0]])
    assert target.contains(proper).tolist() == [True, False]
    assert QTarget(seen, GaussianPrior(), Tolerance(tolerance=0.5)).contains(proper).all()


def test_a_cloud_without_weight_is_an_error_not_a_search_without_end():
    with pytest.raises(qp.QPosteriorError, match="none is proper"):
        ess_adapt(np.full(3, -np.inf), lambda e: np.zeros(3), start=np.inf, target=1.0, factor=0.7)


@pytest.mark.parametrize("kind", ["gaussian", "student", "laplace"])
def test_a_deterministic_reward_is_one_reading_whatever_the_noise(kind):
    mdp, plain = random_problem("acyclic", 1, share=0.6)
    repeated, noisy = qp.Experience(mdp.space), qp.Experience(mdp.space, rewards="noisy")
    for k in plain.observed_pairs:
        place = int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])
        row = mdp.transitions.row(int(k))
        for seen, times in ((repeated, 5), (noisy, 1)):
            for _ in range(times):
                seen.record(*place, float(mdp.rewards[k]), int(row[0][0]), row=row)
    theta = np.random.default_rng(1).normal(0.0, 2.0, (4, mdp.space.num_pairs))
    noise = Noise(kind=kind, scale=0.7)
    ours, theirs = (QTarget(seen, GaussianPrior(), noise).log_likelihood(theta) for seen in (repeated, noisy))
    np.testing.assert_allclose(ours, theirs)
