"""Samplers against exact answers and brute force: z-scores with the Monte Carlo error the chains report themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from calibration import hmc_draws, rank_statistic, simulate
from problems import (
    KNOWN,
    SHAPES,
    implied_rewards,
    importance_sample,
    log_determinant,
    looping_two_state,
    noisy_experience,
    random_problem,
    values_of,
)
from qposterior.inference.diagnostics import effective_sample_size
from qposterior.inference.hmc import HMCSettings, run_hmc
from qposterior.inference.tempering import ladder, run_tempering
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior, RewardPrior
from targets import BellmanTarget, QTarget, RewardTarget

LONG = HMCSettings(chains=8, warm_up=400, max_iterations=1500, block=1500, min_ess=0.0)
LIMIT = 4.5
"""|z| beyond this happens to a right sampler in 7 of a million tests; seeds are fixed."""


def z_scores(chains, target, functions, expected):
    """z of each function of θ against its exact value, by the effective sample size of that function."""
    flat = target.to_q(chains.draws.reshape(-1, target.num_coordinates))
    values = functions(flat).reshape(*chains.draws.shape[:2], -1)
    size = effective_sample_size(values)
    flat_values = values.reshape(-1, values.shape[2])
    error = np.sqrt(flat_values.var(axis=0) / np.where(np.isnan(size), 1.0, size))
    gap = flat_values.mean(axis=0) - expected
    return np.where(np.abs(gap) < 1e-9, 0.0, gap / np.maximum(error, 1e-12))


def optimal_and_mean(space):
    """Functions of θ: whether each pair is optimal, and θ itself."""

    def both(theta):
        best = values_of(space, theta)[:, space.pair_state]
        return np.concatenate([(theta >= best - 1e-12).astype(float), theta], axis=1)

    return both


def exact_answers(seen, prior, **options):
    post = qp.posterior(seen, prior=prior, method="exact", particles=1, **options)
    pairs = seen.space.pair_state, seen.space.pair_action
    return np.concatenate([post.prob_optimal_table()[pairs], post.mean()[pairs]])


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("make", "tolerance"), [(BellmanTarget, 0.0), (BellmanTarget, 0.6), (QTarget, 0.6)])
@pytest.mark.filterwarnings("ignore:one can circle:RuntimeWarning")
def test_hmc_agrees_with_exact(shape, make, tolerance):
    _, seen = random_problem(shape, 1, share=0.5)
    prior = GaussianPrior(mean=0.3, scale=1.6)
    target = make(seen, prior, Tolerance(tolerance=tolerance))
    chains = run_hmc(target, np.random.default_rng(5), LONG)
    coordinates = "bellman" if make is BellmanTarget else "q"
    expected = exact_answers(seen, prior, tolerance=tolerance, coordinates=coordinates)
    z = z_scores(chains, target, optimal_and_mean(seen.space), expected)
    assert np.abs(z).max() < LIMIT


@pytest.mark.parametrize("gibbs", [True, False])
def test_the_looping_example_by_hmc_with_and_without_sweeps(gibbs):
    _, seen = looping_two_state()
    known = KNOWN["looping_two_state"]["exact"]
    target = BellmanTarget(seen, GaussianPrior(scale=2.0), Tolerance())
    settings = HMCSettings(chains=8, warm_up=400, max_iterations=4000, block=4000, min_ess=0.0, gibbs=gibbs)
    chains = run_hmc(target, np.random.default_rng(2), settings)
    expected = np.array([*known["prob_optimal_s0"], *known["prob_optimal_s1"], *known["mean_q"]])
    z = z_scores(chains, target, optimal_and_mean(seen.space), expected)
    assert np.abs(z).max() < LIMIT


def test_sweeps_alone_have_the_posterior_as_their_limit():
    _, seen = looping_two_state()
    target = BellmanTarget(seen, GaussianPrior(scale=2.0), Tolerance())
    rng = np.random.default_rng(0)
    x = target.initial(2000, rng)
    for _ in range(25):
        x = target.sweep(x, rng)
    share = optimal_and_mean(seen.space)(target.to_q(x))
    expected = exact_answers(seen, GaussianPrior(scale=2.0))
    z = (share.mean(axis=0) - expected) / (share.std(axis=0) / np.sqrt(2000))
    assert np.abs(z).max() < LIMIT


def test_the_first_example_has_improper_mass_in_q_coordinates_only():
    seen = qp.Experience.of_pairs(qp.make_environment("two-state"), [(0, 0), (0, 1)])
    prior = GaussianPrior(scale=10.0)
    case = next(c for c in KNOWN["two_state_self_loop"]["values"] if c["data"] == "D2" and c["eps"] == 2.0)
    target = QTarget(seen, prior, Tolerance(tolerance=2.0))
    chains = run_hmc(target, np.random.default_rng(0), LONG)
    expected = np.array([1 - case["prob_a2_optimal"], case["prob_a2_optimal"], *case["mean"]])
    z = z_scores(chains, target, optimal_and_mean(seen.space), expected)
    assert np.abs(z).max() < LIMIT
    proper = BellmanTarget(seen, prior, Tolerance(tolerance=2.0))
    draws = run_hmc(proper, np.random.default_rng(0), LONG).draws
    theta = proper.to_q(draws.reshape(-1, 2))
    assert np.all(theta[:, 1] > theta[:, 0])


def test_tempering_agrees_with_exact():
    _, seen = random_problem("acyclic", 1, share=0.5)
    prior = GaussianPrior(mean=0.3, scale=1.6)
    settings = HMCSettings(chains=4, warm_up=200, max_iterations=1200, block=1200, min_ess=0.0)
    rungs = ladder(0.3, 1.6, seen.num_observed)
    chains = run_tempering(
        lambda e: QTarget(seen, prior, Tolerance(tolerance=e)), rungs, np.random.default_rng(1), settings
    )
    expected = exact_answers(seen, prior, tolerance=0.3, coordinates="q")
    target = QTarget(seen, prior, Tolerance(tolerance=0.3))
    assert np.abs(z_scores(chains, target, optimal_and_mean(seen.space), expected)).max() < LIMIT
    assert min(chains.diagnostics["swap_acceptance"]) > 0.1


@pytest.mark.parametrize("kind", ["q hard", "q soft", "reward hard", "reward soft", "uniform kernel"])
@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
def test_walls_and_the_uniform_kernel_agree_with_importance_sampling(kind, make):
    _, seen = random_problem("acyclic", 2, num_states=4)
    walls = {
        "q hard": {"upper": 0.5},
        "q soft": {"upper": -0.5, "softness": 0.7},
        "reward hard": {"upper": -0.4, "on": "reward"},
        "reward soft": {"upper": -1.2, "softness": 0.6, "on": "reward"},
        "uniform kernel": {},
    }[kind]
    uniform = kind == "uniform kernel"
    prior = GaussianPrior(scale=1.5) if uniform else BoundedPrior(scale=1.5, **walls)
    likelihood = Tolerance(tolerance=1.2 if uniform else 0.9, kernel="uniform" if uniform else "gaussian")
    # Brute force: θ from the Gaussian prior, weighted by kernel and wall, both written out here.
    theta, weight = importance_sample(seen, 1.5, 0.9, 300_000, seed=1)
    g = implied_rewards(seen, theta)
    if uniform:
        weight = np.all(np.abs(g - seen.reward_mean[seen.observed_pairs]) < 1.2, axis=1).astype(float)
    else:
        where = theta if prior.on == "q" else g
        beyond = np.maximum(where - prior.upper, 0.0)
        if prior.softness is None:
            weight = weight * np.all(beyond == 0.0, axis=1)
        else:
            weight = weight * np.exp(-0.5 * np.sum((beyond / prior.softness) ** 2, axis=1))
    functions = optimal_and_mean(seen.space)
    values = functions(theta)
    expected = weight @ values / weight.sum()
    error = np.sqrt(weight**2 @ (values - expected) ** 2) / weight.sum()
    target = make(seen, prior, likelihood)
    chains = run_hmc(target, np.random.default_rng(3), LONG)
    flat = functions(target.to_q(chains.draws.reshape(-1, target.num_coordinates)))
    size = effective_sample_size(flat.reshape(*chains.draws.shape[:2], -1))
    both = np.sqrt(flat.var(axis=0) / np.where(np.isnan(size), 1.0, size) + error**2)
    gap = flat.mean(axis=0) - expected
    assert np.abs(np.where(np.abs(gap) < 1e-9, 0.0, gap / np.maximum(both, 1e-9))).max() < LIMIT


@pytest.mark.parametrize("kind", ["gaussian", "student", "laplace"])
@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
def test_learned_scales_agree_with_a_grid_on_a_bandit(kind, make):
    # One arm: p(θ, η | readings) on a two-dimensional grid.
    bandit = qp.make_environment("bandit", means=[0.0])
    readings = [0.3, -0.9, 1.4, 2.2, -0.1]
    seen = qp.Experience(bandit.space, rewards="noisy")
    for y in readings:
        seen.record(0, 0, y, 1)
    noise = Noise(kind=kind, degrees=3.0, log_scale_mean=-0.2, log_scale_sd=0.8)
    theta, eta = np.meshgrid(np.linspace(-8, 8, 801), np.linspace(-4, 4, 401), indexing="ij")
    family = {"gaussian": stats.norm, "laplace": stats.laplace}.get(kind)
    log_p = stats.norm.logpdf(theta, 0.5, 1.5) + stats.norm.logpdf(eta, -0.2, 0.8)
    for y in readings:
        scale = np.exp(eta)
        log_p += family.logpdf(y, theta, scale) if family else stats.t.logpdf(y, 3.0, theta, scale)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    expected = np.array([(p * f).sum() for f in (theta, theta**2, eta, eta**2)])
    target = make(seen, GaussianPrior(mean=0.5, scale=1.5), noise)
    chains = run_hmc(target, np.random.default_rng(4), LONG)
    flat = chains.draws.reshape(-1, 2)
    theta_draws, eta_draws = target.to_q(flat)[:, 0], flat[:, 1]
    values = np.stack([theta_draws, theta_draws**2, eta_draws, eta_draws**2], axis=1)
    size = effective_sample_size(values.reshape(*chains.draws.shape[:2], 4))
    z = (values.mean(axis=0) - expected) / np.sqrt(values.var(axis=0) / size)
    assert np.abs(z).max() < LIMIT


def test_a_bandit_s_probabilities_are_those_of_thompson_sampling():
    # Two Gaussian arms, conjugate: P(arm 1 best) = Φ((m1 − m0)/√(v0 + v1)).
    bandit = qp.make_environment("bandit", means=[0.0, 1.0])
    seen = noisy_experience(bandit, [(0, 0), (0, 1)], sd=0.8, readings=3)
    precision = 1 / 4.0 + 3 / 0.64
    means = seen.reward_mean * (3 / 0.64) / precision
    closed = stats.norm.cdf((means[1] - means[0]) / np.sqrt(2 / precision))
    post = qp.posterior(seen, prior=GaussianPrior(scale=2.0), noise=Noise(scale=0.8), method="exact")
    np.testing.assert_allclose(post.prob_optimal(0)[1], closed, atol=1e-6)
    chains = qp.posterior(seen, prior=GaussianPrior(scale=2.0), noise=Noise(scale=0.8), particles=4000, seed=1)
    assert abs(chains.prob_optimal(0)[1] - closed) < 4.5 * np.sqrt(closed * (1 - closed) / 1000)
    policies = chains.sample_policy(4000, seed=2)[:, 0]
    assert abs(policies.mean() - chains.prob_optimal(0)[1]) < 4.5 * 0.5 / np.sqrt(4000)


def test_conjugate_reward_draws_have_the_closed_form_and_chains_agree():
    mdp, seen = random_problem("acyclic", 3)
    prior = RewardPrior(mean=-0.5, scale=1.3, upper=0.2)
    target = RewardTarget(seen, mdp.transitions, prior, Tolerance(tolerance=0.4))
    draws = target.chart.draw(20_000, np.random.default_rng(0))
    for k in range(mdp.space.num_pairs):
        observed = seen.observed[k]
        precision = 1 / 1.69 + (1 / 0.16 if observed else 0.0)
        mean = (-0.5 / 1.69 + (seen.reward_mean[k] / 0.16 if observed else 0.0)) / precision
        sd = precision**-0.5
        expected = stats.truncnorm(-np.inf, (0.2 - mean) / sd, mean, sd)
        assert abs(draws[:, k].mean() - expected.mean()) < 4.5 * expected.std() / np.sqrt(20_000)
        assert draws[:, k].max() <= 0.2
    chains = run_hmc(target, np.random.default_rng(1), LONG)
    z = (chains.draws.mean(axis=(0, 1)) - draws.mean(axis=0)) / draws.std(axis=0)
    size = np.minimum(effective_sample_size(chains.draws), 20_000)
    assert np.abs(z * np.sqrt(size / 2)).max() < LIMIT


def test_a_five_percent_error_in_a_weight_would_be_seen():
    # The same test as above, told a probability that is off by 5 % of itself: it must object.
    _, seen = looping_two_state()
    target = BellmanTarget(seen, GaussianPrior(scale=2.0), Tolerance())
    settings = HMCSettings(chains=8, warm_up=400, max_iterations=12_000, block=12_000, min_ess=0.0)
    chains = run_hmc(target, np.random.default_rng(2), settings)
    expected = exact_answers(seen, GaussianPrior(scale=2.0))
    functions = optimal_and_mean(seen.space)
    assert np.abs(z_scores(chains, target, functions, expected)).max() < LIMIT
    wrong = expected.copy()
    wrong[0] *= 1.05
    wrong[1] = 1 - wrong[0]
    assert np.abs(z_scores(chains, target, functions, wrong)).max() > LIMIT


@pytest.mark.parametrize("make", [QTarget, BellmanTarget])
@pytest.mark.parametrize("learned", [False, True])
def test_hmc_is_calibrated(make, learned):
    # Chi-square of 40 ranks in 5 bins, every parameter at once: false-alarm rate 1e-4. `make verify` runs 400.
    mdp = qp.make_environment("random-mdp", num_states=3, acyclic=True, seed=5)
    prior = GaussianPrior(mean=0.5, scale=1.5)
    noise = Noise(log_scale_mean=-0.5, log_scale_sd=0.5) if learned else Noise(scale=0.6)

    def simulate_fn(rng):
        log_scale = rng.normal(-0.5, 0.5) if learned else np.log(0.6)
        theta, seen = simulate(mdp, prior, np.exp(log_scale), 3, rng)
        return (np.append(theta, log_scale) if learned else theta), seen

    statistic, bound = rank_statistic(
        hmc_draws(lambda seen: make(seen, prior, noise), scale_too=learned), simulate_fn, 40, 0
    )
    assert statistic.max() < bound


def test_bellman_hmc_is_calibrated_where_policies_loop():
    mdp = qp.make_environment("random-mdp", num_states=3, seed=5)
    prior = GaussianPrior(mean=0.5, scale=1.5)
    noise = Noise(scale=0.6)

    def simulate_fn(rng):
        return simulate(
            mdp, prior, 0.6, 3, rng, accept_fn=lambda seen, theta: np.isfinite(log_determinant(seen, theta))
        )

    statistic, bound = rank_statistic(hmc_draws(lambda seen: BellmanTarget(seen, prior, noise)), simulate_fn, 40, 0)
    assert statistic.max() < bound
