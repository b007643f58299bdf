"""Densities against formulas written a second time, gradients against differences, maps against their inverse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from problems import SHAPES, implied_rewards, log_determinant, noisy_experience, random_problem
from qposterior.model.kernels.density import log_prior
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior, RewardPrior
from qposterior.model.target import leapfrog_by_gradient
from targets import BellmanTarget, LinearQTarget, QTarget, RewardTarget

LIKELIHOODS = {
    "gaussian kernel": Tolerance(tolerance=0.7),
    "uniform kernel": Tolerance(tolerance=0.7, kernel="uniform"),
    "gaussian noise": Noise(scale=0.8),
    "gaussian noise, learned": Noise(log_scale_mean=0.3, log_scale_sd=0.6),
    "student noise": Noise(kind="student", scale=0.8, degrees=3.0),
    "student noise, learned": Noise(kind="student", degrees=3.0),
    "laplace noise": Noise(kind="laplace", scale=0.8),
    "laplace noise, learned": Noise(kind="laplace"),
}
PRIORS = {
    "gaussian": GaussianPrior(mean=0.4, scale=1.7),
    "soft wall on q": BoundedPrior(upper=0.3, softness=0.9, mean=0.4, scale=1.7),
    "soft wall on rewards": BoundedPrior(upper=-0.4, softness=0.9, on="reward", scale=1.7),
    "hard wall on q": BoundedPrior(upper=30.0, scale=1.7),
    "hard wall on rewards": BoundedPrior(upper=30.0, on="reward", scale=1.7),
}


def problem(shape, seed, likelihood):
    mdp, seen = random_problem(shape, seed)
    if isinstance(likelihood, Noise):
        pairs = [(int(seen.space.pair_state[k]), int(seen.space.pair_action[k])) for k in seen.observed_pairs]
        seen = noisy_experience(mdp, pairs, seed=seed)
    return seen


def every_target(seen, prior, likelihood):
    targets = [QTarget(seen, prior, likelihood), BellmanTarget(seen, prior, likelihood)]
    if isinstance(likelihood, Tolerance) and likelihood.kernel == "gaussian":
        targets.append(BellmanTarget(seen, prior, Tolerance()))
    # Three features cannot fit every reading within a hard tolerance, so the uniform kernel has no support there.
    if isinstance(prior, GaussianPrior) and getattr(likelihood, "kernel", "") != "uniform":
        features = np.random.default_rng(5).standard_normal((seen.space.num_pairs, 3))
        targets.append(LinearQTarget(seen, features, prior, likelihood))
    return targets


def read_likelihood(seen, likelihood, g, log_scale):
    """Σ log p(readings | g), reading by reading, from scipy."""
    total = 0.0
    if isinstance(likelihood, Tolerance):
        for i, k in enumerate(seen.observed_pairs):
            if likelihood.kernel == "gaussian":
                total += stats.norm.logpdf(seen.reward_mean[k], g[i], likelihood.tolerance)
            else:
                total += stats.uniform.logpdf(
                    seen.reward_mean[k], g[i] - likelihood.tolerance, 2 * likelihood.tolerance
                )
        return total
    scale = np.exp(log_scale) if likelihood.is_learned else likelihood.scale
    starts, values, weights = seen.readings()
    family = {
        "gaussian": lambda y, m: stats.norm.logpdf(y, m, scale),
        "student": lambda y, m: stats.t.logpdf(y, likelihood.degrees, m, scale),
        "laplace": lambda y, m: stats.laplace.logpdf(y, m, scale),
    }[likelihood.kind]
    for i in range(seen.num_observed):
        for j in range(starts[i], starts[i + 1]):
            total += weights[j] * family(values[j], g[i])
    if likelihood.is_learned:
        total += stats.norm.logpdf(log_scale, likelihood.log_scale_mean, likelihood.log_scale_sd)
    return total


def read_prior(seen, prior, theta, g):
    total = stats.norm.logpdf(theta, prior.mean, prior.scale).sum()
    if isinstance(prior, BoundedPrior):
        where = theta if prior.on == "q" else g
        if prior.softness is None:
            return total if np.all(where <= prior.upper) else -np.inf
        total -= 0.5 * np.sum((np.maximum(where - prior.upper, 0.0) / prior.softness) ** 2)
    return total


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("shape", ["looping", "deterministic loops"])  # the second has a kernel of its own
def test_q_density_is_prior_times_likelihood(shape, prior, likelihood):
    seen = problem(shape, 2, LIKELIHOODS[likelihood])
    target = QTarget(seen, PRIORS[prior], LIKELIHOODS[likelihood])
    x = target.initial(4, np.random.default_rng(0))
    for row, density in zip(x, target.log_density(x).stacked(), strict=True):
        theta = row[: seen.space.num_pairs]
        g = implied_rewards(seen, theta)
        expected = read_prior(seen, PRIORS[prior], theta, g)
        expected += read_likelihood(seen, LIKELIHOODS[likelihood], g, row[-1])
        np.testing.assert_allclose(density, [expected, 0.0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", range(1, 10))
def test_the_prior_adds_up_every_pair(size):
    theta, slope = np.random.default_rng(size).standard_normal(size), np.empty(size)
    found = log_prior(GaussianPrior(mean=0.4, scale=1.7).compiled(size), theta, slope)
    np.testing.assert_allclose(found, stats.norm.logpdf(theta, 0.4, 1.7).sum(), rtol=1e-13)
    np.testing.assert_allclose(slope, (0.4 - theta) / 1.7**2, rtol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_bellman_density_is_the_q_density_over_the_determinant_and_the_jacobian_of_the_scale(shape, likelihood):
    chosen = LIKELIHOODS[likelihood]
    seen = problem(shape, 1, chosen)
    prior = PRIORS["soft wall on q"]
    target, plain = BellmanTarget(seen, prior, chosen), QTarget(seen, prior, chosen)
    x = target.initial(4, np.random.default_rng(0))
    theta = target.to_q(x)
    learned = target.data.learned
    q_point = np.concatenate([theta, x[:, -1:]], axis=1) if learned else theta
    expected = plain.log_density(q_point).smooth - [log_determinant(seen, row) for row in theta]
    if learned:  # ρ = r̄ + s z / √n on the observed pairs
        expected += seen.num_observed * x[:, -1] - 0.5 * np.log(seen.count[seen.observed_pairs]).sum()
    np.testing.assert_allclose(target.log_density(x).total, expected, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_tolerance_zero_is_the_prior_over_the_determinant_on_the_free_pairs(shape):
    _, seen = random_problem(shape, 1)
    prior = GaussianPrior(mean=0.4, scale=1.7)
    target = BellmanTarget(seen, prior, Tolerance())
    assert target.num_coordinates == seen.space.num_pairs - seen.num_observed
    x = target.initial(4, np.random.default_rng(0))
    theta = target.to_q(x)
    expected = [read_prior(seen, prior, row, None) - log_determinant(seen, row) for row in theta]
    np.testing.assert_allclose(target.log_density(x).total, expected, rtol=1e-10)
    np.testing.assert_allclose(target.residuals(x), 0.0, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS)
def test_gradients_are_finite_differences(shape, likelihood, prior):
    seen = problem(shape, 4, LIKELIHOODS[likelihood])
    rng = np.random.default_rng(1)
    for target in every_target(seen, PRIORS[prior], LIKELIHOODS[likelihood]):
        x = target.initial(2, rng)
        _, gradient = target.log_density_and_grad(x)
        for n in range(2):
            for j in range(target.num_coordinates):
                ends = np.repeat(x[n : n + 1], 2, axis=0)
                ends[:, j] += [1e-6, -1e-6]
                smooth = target.log_density(ends).smooth
                slope = (smooth[0] - smooth[1]) / 2e-6
                np.testing.assert_allclose(gradient[n, j], slope, atol=2e-5 * (1 + abs(slope)))


@pytest.mark.parametrize("kind", ["gaussian", "student", "laplace"])
def test_gradients_are_finite_differences_of_repeated_readings(kind):
    """One pair that paid the same five times, one that did not: the slope in a learned log-scale, in both systems."""
    edges = [(0, 0, 1, 1.0, 0.0), (0, 1, 2, 1.0, 0.0), (1, 0, 2, 1.0, 0.0), (1, 1, 2, 1.0, 0.0)]
    seen = qp.Experience(qp.FiniteMDP.from_edges(edges, goal=[2]).space, rewards="noisy")
    for action, readings in ((0, [0.7] * 5), (1, [0.2, -0.4, 1.1])):
        for reading in readings:
            seen.record(1, action, reading, 2, row=(np.array([2]), np.array([1.0])))
    rng = np.random.default_rng(1)
    for target in (
        QTarget(seen, GaussianPrior(), Noise(kind=kind)),
        BellmanTarget(seen, GaussianPrior(), Noise(kind=kind)),
    ):
        x = target.initial(1, rng)
        ends = np.repeat(x, 2, axis=0)
        ends[:, -1] += [1e-6, -1e-6]
        slope = np.diff(target.log_density(ends[::-1]).smooth)[0] / 2e-6
        np.testing.assert_allclose(target.log_density_and_grad(x)[1][0, -1], slope, atol=2e-5 * (1 + abs(slope)))


@pytest.mark.parametrize("shape", SHAPES)
def test_psi_to_theta_to_psi_is_the_identity(shape):
    _, seen = random_problem(shape, 2)
    target = BellmanTarget(seen, GaussianPrior(), Tolerance(tolerance=0.5))
    x = target.initial(5, np.random.default_rng(0))
    theta = target.to_q(x)
    np.testing.assert_allclose(target.from_parameters(theta), x, atol=1e-10)
    np.testing.assert_allclose(target.residuals(x), x[:, seen.observed_pairs] - target.data.mean, atol=1e-10)


def test_a_psi_with_a_paying_loop_has_density_zero():
    mdp = qp.make_environment("two-state")
    target = BellmanTarget(qp.Experience.of_pairs(mdp, [(0, 0)]), GaussianPrior(), Tolerance(tolerance=5.0))
    density = target.log_density(np.array([[0.5, 1.0], [-0.5, 1.0]]))
    assert density.smooth[0] == -np.inf
    assert np.isfinite(density.total[1])


@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
def test_hard_walls_cut_the_density_and_tell_the_sampler(make):
    _, seen = random_problem("acyclic", 1)
    prior = BoundedPrior(upper=0.5, scale=1.5)
    target = make(seen, prior, Tolerance(tolerance=0.6))
    x = target.initial(6, np.random.default_rng(3))
    assert np.all(target.to_q(x) <= 0.5)
    outside = x.copy()
    outside[:, np.flatnonzero(np.isfinite(target.upper_walls))[0]] = 0.6
    assert np.all(target.log_density(outside).smooth == -np.inf)
    assert np.isfinite(target.upper_walls).sum() == (
        seen.space.num_pairs if make is QTarget else seen.space.num_pairs - seen.num_observed
    )


def test_the_compiled_leapfrog_is_the_plain_one():
    seen = problem("looping", 3, LIKELIHOODS["gaussian kernel"])
    for make in (QTarget, BellmanTarget):
        target = make(seen, BoundedPrior(upper=2.0, scale=1.5), Tolerance(tolerance=0.8))
        rng = np.random.default_rng(0)
        x, p = target.initial(5, rng), rng.standard_normal((5, target.num_coordinates))
        arguments = np.full(5, 0.05), np.array([0, 1, 7, 20, 3]), rng.uniform(0.5, 2.0, target.num_coordinates)
        ours = target.leapfrog(x, p, step=arguments[0], num_steps=arguments[1], inverse_mass=arguments[2])
        plain = leapfrog_by_gradient(target, x, p, *arguments)
        for one, two in zip(ours, plain, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-9)


def test_the_reward_target_is_independent_normals_and_its_q_solves_the_mdp():
    mdp, seen = random_problem("acyclic", 3)
    prior = RewardPrior(mean=-0.5, scale=1.3, upper=1.0)
    target = RewardTarget(seen, mdp.transitions, prior, Tolerance(tolerance=0.4))
    x = target.chart.draw(50, np.random.default_rng(0))
    expected = stats.norm.logpdf(x, -0.5, 1.3).sum(axis=1)
    expected += stats.norm.logpdf(x[:, seen.observed_pairs], seen.reward_mean[seen.observed_pairs], 0.4).sum(axis=1)
    np.testing.assert_allclose(target.log_density(x).smooth, expected)
    from dataclasses import replace

    for row, q in zip(x[:5], target.to_q(x[:5]), strict=True):
        np.testing.assert_allclose(q, qp.solve(replace(mdp, rewards=row)).pair_q, atol=1e-9)
    _, gradient = target.log_density_and_grad(x[:1])
    moved = np.repeat(x[:1], 2, axis=0)
    moved[:, 2] += [1e-6, -1e-6]
    np.testing.assert_allclose(gradient[0, 2], np.diff(target.log_density(moved).smooth[::-1])[0] / 2e-6, rtol=1e-5)


def test_likelihood_is_constant_along_u_where_a_state_can_recur():
    # Paper, thm. loopthm: u = probability of reaching the recurrent state; two-state: u = (1, 0), O = {θ1 ≥ θ2}.
    mdp = qp.make_environment("two-state")
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (0, 1)])
    target = QTarget(seen, GaussianPrior(scale=1e6), Tolerance(tolerance=2.0))
    theta = np.array([[1.0, -0.5]])
    steps = np.array([-1.5, -1.0, 0.0, 3.0, 40.0])
    moved = theta + steps[:, None] * np.array([1.0, 0.0])
    level = target.log_density(moved).smooth
    np.testing.assert_allclose(level, level[0], atol=1e-6)  # c > c_θ = θ2 − θ1 = −1.5
    below = target.log_density(theta - np.array([[2.5, 0.0]])).smooth[0]
    assert abs(below - level[0]) > 0.1
    bellman = BellmanTarget(seen, GaussianPrior(scale=1e6), Tolerance(tolerance=2.0))
    # Bellman coordinates cannot express such a θ: its ρ is a loop of mean 0, whose solution leaves by the exit.
    assert np.abs(bellman.to_q(bellman.from_parameters(theta)) - theta).max() > 1.0
