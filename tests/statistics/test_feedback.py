"""Feedback tempering and exchanges: the density at every β, what leaves it invariant, and many modes against exact."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from own_parts import Boxed, Exponential, RelatedActions
from problems import (
    KNOWN,
    SHAPES,
    competing_hub,
    deep_hub,
    diamonds,
    log_determinant,
    multimodal_problems,
    random_problem,
    rooms,
    slow_solution,
    values_of,
    weighted_optimality,
)
from qposterior.inference import cross_check, modes
from qposterior.inference.chains import HMCSettings
from qposterior.inference.feedback import next_feedback, run_feedback, stepping_stones
from qposterior.inference.hmc import run_hmc
from qposterior.model.kernels.compile import over_particles
from qposterior.model.kernels.exchange import exchange_sweep
from qposterior.model.noise import Tolerance
from targets import BellmanTarget, QTarget

NARROW = qp.GaussianPrior(scale=2.0)
PRIORS = {
    "gaussian": qp.GaussianPrior(mean=0.3, scale=1.6),
    "hard wall": qp.BoundedPrior(upper=1.5, mean=0.3, scale=1.6),
    "soft wall": qp.BoundedPrior(upper=-0.5, softness=0.7, mean=0.3, scale=1.6),
    "related": RelatedActions(),
}
QUICK = HMCSettings(chains=4, warm_up=80, max_iterations=100, block=100, min_ess=0.0)


@pytest.fixture
def unchecked(monkeypatch):
    """No help from enumeration: the samplers must know by themselves."""
    monkeypatch.setattr(cross_check, "CHECKED_PAIRS", 0)


def quietly(seen, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qp.posterior(seen, **options)


# -- the density -------------------------------------------------------------------------------------------------------


def log_prior(prior, theta, space):
    """Written down without the package: a product of normals, less the penalty of a wall; one's own as it says."""
    if isinstance(prior, RelatedActions):
        return prior.log_density_and_grad(theta[None], space)[0][0]
    total = stats.norm.logpdf(theta, prior.mean, prior.scale).sum()
    beyond = np.maximum(theta - getattr(prior, "upper", np.inf), 0.0)
    if getattr(prior, "softness", None) is not None:
        return total - 0.5 * np.sum((beyond / prior.softness) ** 2)
    return -np.inf if beyond.any() else total


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("shape", ["acyclic", "looping", "discounted", "deterministic loops"])
def test_the_density_lies_between_the_reference_and_the_posterior(shape, name):
    r"""log p_β = (1 − β) log q(φ) + β (log prior(θ) − log det), and its gradient, at skewed points; −∞ past a wall."""
    _, seen = random_problem(shape, 2, num_states=4)
    prior, free = PRIORS[name], np.flatnonzero(~seen.observed)
    target = BellmanTarget(seen, prior, Tolerance())
    x = target.chart.draw_reference(6, np.random.default_rng(0))
    for share in (0.0, 0.3, 1.0):
        tempered = target.with_feedback(share)
        density, grad = tempered.log_density_and_grad(x)
        for n in range(x.shape[0]):
            psi = seen.reward_mean.copy()
            psi[free] = x[n]
            theta = slow_solution(seen, psi)
            full = log_prior(prior, theta, seen.space)
            reference = stats.norm.logpdf(x[n], prior.mean, prior.scale).sum()
            jump = -share * log_determinant(seen, theta)
            expected = (1.0 - share) * reference + share * full if np.isfinite(full) else -np.inf
            np.testing.assert_allclose(density.smooth[n], expected, rtol=1e-7, atol=1e-7)
            if np.isfinite(full):
                np.testing.assert_allclose(density.jump[n], jump, rtol=1e-7, atol=1e-7)
        nudge = 1e-6
        for j in range(x.shape[1]):
            there, back = x.copy(), x.copy()
            there[:, j] += nudge
            back[:, j] -= nudge
            gap = tempered.log_density(there).smooth - tempered.log_density(back).smooth
            inside = np.isfinite(gap)
            np.testing.assert_allclose(grad[inside, j], gap[inside] / (2.0 * nudge), rtol=1e-4, atol=1e-5)
        for one, two in zip(tempered._by_parts(x), (density, grad), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PRIORS)
def test_without_feedback_the_draws_are_independent_and_have_the_density(name):
    _, seen = random_problem("looping", 2, num_states=4)
    prior = PRIORS[name]
    target = BellmanTarget(seen, prior, Tolerance()).with_feedback(0.0)
    x = target.chart.draw_reference(20_000, np.random.default_rng(0))
    upper = (getattr(prior, "upper", np.inf) - prior.mean) / prior.scale
    law = stats.truncnorm(-np.inf, upper if getattr(prior, "softness", None) is None else np.inf)
    z = (x - prior.mean) / prior.scale
    assert all(stats.kstest(z[:, j], law.cdf).pvalue > 1e-5 for j in range(x.shape[1]))
    inside = np.isfinite(target.log_density(x).smooth)
    np.testing.assert_allclose(target.log_density(x).smooth[inside], target.chart.reference(x)[0][inside], rtol=1e-9)


# -- exchanges ---------------------------------------------------------------------------------------------------------


def exchange(target, x, state, other, log_uniform=-700.0):
    """One proposal in a state, with the `other`-th of the pairs that are not greedy; taken wherever it is allowed."""
    moved, here, taken = x.copy(), np.empty((x.shape[0], 2)), np.empty(x.shape[0])
    others = int(np.diff(target.seen.space.first_pair)[state]) - 1
    uniforms = np.tile([0.5, (other + 0.5) / others, np.exp(log_uniform)], (x.shape[0], 1, 1))
    given = moved, here, np.array([state]), uniforms, taken
    over_particles(exchange_sweep, x.shape[0], target.parts.rows, *target._model(), *given, work=1)
    return moved, here, taken.astype(bool)


def test_exchanges_are_their_own_inverse_and_keep_v_and_volume():
    """At random points of all problems: back is where one came from, V of the state stays, the map has |det| = 1."""
    done = 0
    problems = [deep_hub()[1], competing_hub()[1], *(seen for _, seen in list(multimodal_problems().values())[::4])]
    problems += [random_problem("deterministic loops", seed, num_states=6)[1] for seed in range(6)]
    problems += [random_problem("looping", seed, num_states=6)[1] for seed in range(3)]
    for seen in problems:
        target, rng, space = BellmanTarget(seen, qp.GaussianPrior(), Tolerance()), np.random.default_rng(1), seen.space
        x = target.initial(40, rng)
        for state in target.chart.exchange_states:
            for other in range(int(np.diff(space.first_pair)[state]) - 1):
                moved, here, taken = exchange(target, x, state, other)
                np.testing.assert_array_equal(moved[~taken], x[~taken])
                np.testing.assert_allclose(here, target.log_density(moved).stacked(), rtol=1e-9, atol=1e-9)
                if not taken.any():
                    continue
                theta, after = target.to_q(x), target.to_q(moved)
                pairs = slice(space.first_pair[state], space.first_pair[state + 1])
                before = pairs.start + theta[:, pairs].argmax(axis=1)
                now = pairs.start + after[:, pairs].argmax(axis=1)
                assert np.all(before[taken] != now[taken])
                np.testing.assert_allclose(space.maximum(after)[taken, state], space.maximum(theta)[taken, state])
                assert np.all(np.sum(moved != x, axis=1)[taken] == 2)
                for n in np.flatnonzero(taken):
                    back, _, again = exchange(
                        target, moved[[n]], state, before[n] - pairs.start - int(before[n] > now[n])
                    )
                    assert again[0]
                    np.testing.assert_allclose(back[0], x[n], rtol=1e-9, atol=1e-9)
                    columns = np.flatnonzero(moved[n] != x[n])
                    slope = np.empty((2, 2))
                    for i, column in enumerate(columns):
                        near = x[[n]].copy()
                        near[0, column] += 1e-5
                        slope[:, i] = (exchange(target, near, state, other)[0][0, columns] - moved[n, columns]) / 1e-5
                    assert abs(np.linalg.det(slope)) == pytest.approx(1.0, abs=1e-3)
                    done += 1
    assert done > 200


def test_exchanges_do_not_depend_on_the_last_digit_of_ways_that_tie():
    """All are taken, and back; told apart by their last digits, three in four of these ways would change and refuse."""
    target = BellmanTarget(diamonds()[1], NARROW, Tolerance())
    x = target.initial(200, np.random.default_rng(1))
    moved, _, taken = exchange(target, x, 0, 0)
    back, _, again = exchange(target, moved, 0, 0)
    assert taken.all()
    assert again.all()
    np.testing.assert_allclose(moved, x[:, ::-1] + [0.8, -0.8], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [competing_hub, deep_hub, lambda: multimodal_problems()["near-tie 3"]])
def test_exchanges_leave_the_posterior_as_it_is(make):
    """Independent draws by enumeration stay what they are after exchanges: z of P(optimal) and of means below 4.5."""
    _, seen = make()
    post = qp.posterior(seen, prior=NARROW, method="exact", particles=20_000, seed=1)
    target, rng = BellmanTarget(seen, NARROW, Tolerance()), np.random.default_rng(0)
    x, moves = target.from_parameters(post.draws), 0.0
    for _ in range(6):
        x, density, taken = target.exchange(x, rng)
        moves += taken.mean()
    theta = target.to_q(x)
    np.testing.assert_allclose(density.total, target.log_density(x).total)
    pairs = seen.space.pair_state, seen.space.pair_action
    share, exact = seen.space.optimal_share(theta).mean(axis=0), post.prob_optimal_table()[pairs]
    assert np.abs((share - exact) / np.sqrt(np.maximum(exact * (1.0 - exact), 1e-4) / 20_000)).max() < 4.5
    sd = np.maximum(post.draws.std(axis=0), 1e-6)
    assert np.abs((theta.mean(axis=0) - post.pair_mean) / (sd / np.sqrt(20_000))).max() < 4.5
    assert np.abs((theta.std(axis=0) - sd) / (sd / np.sqrt(20_000.0))).max() < 6.0
    assert moves > 0.01


def test_chains_with_exchanges_pass_between_modes():
    """Without tempering: 0.841 by quadrature, where chains that only follow trajectories disagree."""
    target = BellmanTarget(competing_hub()[1], NARROW, Tolerance())
    known = KNOWN["many_modes"][0]["prob_x_optimal"]
    settings = HMCSettings(exchange=True, max_iterations=1000, min_ess=1000.0)
    chains = run_hmc(target, np.random.default_rng(3), settings)
    assert chains.diagnostics["max_indicator_r_hat"] < 1.05
    assert target.optimal_share(chains.q(target))[:, 10].mean() == pytest.approx(known, abs=0.04)
    apart = run_hmc(target, np.random.default_rng(3), HMCSettings(max_iterations=1000, min_ess=1000.0))
    assert apart.diagnostics["max_indicator_r_hat"] > 1.05


# -- the sampler -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_feedback_tempering_agrees_with_exact(shape):
    """P(optimal) and means of all pairs, |z| ≤ 4.5 by effective draws, and the evidence; loops and determinants too."""
    from test_samplers import exact_answers, optimal_and_mean, z_scores

    _, seen = random_problem(shape, 1, share=0.5)
    prior = qp.GaussianPrior(mean=0.3, scale=1.6)
    target = BellmanTarget(seen, prior, Tolerance())
    settings = HMCSettings(chains=8, warm_up=200, max_iterations=500, block=500, min_ess=0.0)
    chains = run_feedback(target, np.random.default_rng(1), settings)
    z = z_scores(chains, target, optimal_and_mean(seen.space), exact_answers(seen, prior))
    assert np.abs(z).max() < 4.5
    evidence = qp.posterior(seen, prior=prior, method="exact", particles=1).log_evidence
    error = chains.diagnostics["log_evidence_error"]
    assert abs(chains.diagnostics["log_evidence"] - evidence) < 4.5 * error + 0.02
    assert error < 0.3
    assert chains.diagnostics["round_trips"] >= 100


def test_steps_fit_the_narrowest_of_several_modes():
    """Tuned to 0.8, as other chains are, 4 % of the trajectories diverge with these seeds and the answer is flagged."""
    target = BellmanTarget(multimodal_problems()["chain 6"][1], NARROW, Tolerance())
    for seed in (100, 103):
        found = run_feedback(target, np.random.default_rng(seed)).diagnostics
        assert found["divergences"] < 0.005 * found["draws"]


@pytest.mark.parametrize("name", ["hard wall", "soft wall"])
def test_walls_are_kept_at_every_feedback(name):
    """Against weighted draws; a wall takes mass away that its density is not normalised by: no evidence."""
    _, seen = random_problem("acyclic", 2, num_states=4)
    prior, rng = PRIORS[name], np.random.default_rng(5)
    target = BellmanTarget(seen, prior, Tolerance())
    x = target.with_feedback(0.0).chart.draw_reference(100_000, rng)
    log_weight = target.log_density(x).total - target.chart.reference(x)[0]
    weight = np.exp(log_weight - log_weight.max())
    expected = weighted_optimality(seen.space, target.to_q(x), weight)
    assert weight.sum() ** 2 / np.sum(weight**2) > 1000.0
    post = quietly(seen, prior=prior, method="tempering", particles=4000, seed=1)
    pairs = seen.space.pair_state, seen.space.pair_action
    assert np.abs(post.prob_optimal_table()[pairs] - expected).max() < 0.08  # 400 effective draws: 3.2 errors, as above
    assert np.isnan(post.log_evidence)


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("kind", [Boxed, Exponential])
def test_priors_of_ones_own_with_edges_are_right(kind, declares):
    """Against draws of the free values weighted by the prior of the implied ones; evidence too; 4.5 errors, as above.

    No draw lies outside the support, seen pairs included. Trajectories are shortened, and their steps need not be:
    where these are, it takes ten times the gradients.
    """
    prior, rng = kind(has_edge=declares), np.random.default_rng(0)
    _, seen = rooms([None, (0.5, 1)], losses=[1.5, 2.5, 2.0])
    target = BellmanTarget(seen, prior, Tolerance())
    theta = target.to_q(prior.draw(200_000, seen.space, rng)[:, target.chart.free])
    log_weight = prior.log_density_and_grad(theta, seen.space)[0]
    log_weight -= prior.log_density_and_grad(theta[:, target.chart.free], seen.space)[0]
    weight = np.exp(np.where(np.isfinite(log_weight), log_weight, -np.inf))
    expected = weighted_optimality(seen.space, theta, weight)
    assert weight.sum() ** 2 / np.sum(weight**2) > 20_000.0
    settings = HMCSettings(warm_up=80, target_acceptance=0.9, max_iterations=400, block=400)
    post = quietly(seen, prior=prior, method="tempering", seed=1, settings=settings)
    found = post.diagnostics
    assert np.isfinite(prior.log_density_and_grad(post.draws, seen.space)[0]).all()
    assert 0.05 < found["fresh_acceptance"] < 0.95
    assert found["gradients"] < 150_000
    assert found["acceptance"] > 0.5
    gap = np.abs(post.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action] - expected).max()
    error = np.sqrt(found["max_probability_error"] ** 2 + 0.25 / 1000.0)
    is_right = (
        gap <= 4.5 * error
        and abs(post.log_evidence - np.log(weight.mean())) <= 5.0 * found["log_evidence_error"] + 0.02
    )
    assert is_right
    share = found["fresh_acceptance"]
    assert found["log_evidence_error"] > np.sqrt((1.0 - share) / (share * found["total_draws"]))


def test_edges_are_known_where_nothing_reflects_a_trajectory():
    """Values of seen pairs are no coordinates of Bellman's; in Q coordinates all are. One's own is asked far out."""
    _, seen = random_problem("acyclic", 2, num_states=4)
    walled = PRIORS["hard wall"]
    assert BellmanTarget(seen, walled, Tolerance()).has_edge
    assert not QTarget(seen, walled, Tolerance(tolerance=0.5)).has_edge
    for prior, ends in ((Boxed(has_edge=False), True), (Exponential(has_edge=False), True), (RelatedActions(), False)):
        assert BellmanTarget(seen, prior, Tolerance()).has_edge == ends


def test_stepping_stones_of_normal_gains_have_the_closed_form():
    """Gains ~ N(m_r, s²) at each rung: log E exp(step · gain) = step m_r + step² s² / 2, skewed by unequal rungs."""
    rng, feedback = np.random.default_rng(0), np.array([1.0, 0.7, 0.2, 0.0])
    mean, sd = np.array([5.0, -3.0, -7.0, -20.0]), 1.5
    gain = mean[None, :, None] + sd * rng.standard_normal((20_000, 4, 8))
    step = -np.diff(feedback)
    expected = np.sum(step * mean[1:] + 0.5 * step**2 * sd**2)
    found = stepping_stones(gain, feedback)
    assert abs(found["log_evidence"] - expected) < 4.5 * found["log_evidence_error"]
    assert found["log_evidence_error"] == pytest.approx(np.sqrt(np.sum(np.expm1(step**2 * sd**2)) / 160_000), rel=0.6)


def test_the_next_rung_is_where_swaps_are_refused_as_often_as_wanted():
    """Gains ~ N(0, s²): the difference of two is N(0, 2 s²), and E exp(−step |difference|) has a closed form."""
    s = 40.0
    gain = s * np.random.default_rng(0).standard_normal(2000)
    step = next_feedback(gain, 0.1) - 0.1
    a = step * s * np.sqrt(2.0)
    refused = 1.0 - (0.5 + np.exp(0.5 * a**2) * stats.norm.cdf(-a))
    assert refused == pytest.approx(0.35, abs=0.01)
    assert next_feedback(1e-3 * gain, 0.1) == 1.0


# -- what posterior does -----------------------------------------------------------------------------------------------


def test_one_mode_is_left_to_hmc_with_the_draws_that_it_has():
    for shape in SHAPES:
        _, seen = random_problem(shape, 100, num_states=4)
        post = qp.posterior(seen, seed=3, particles=200)
        assert post.method == "hmc"
        assert post.diagnostics["barrier"] <= modes.FEARED
        np.testing.assert_array_equal(post.draws, qp.posterior(seen, seed=3, particles=200, method="hmc").draws)


def test_a_log_concave_posterior_raises_no_fear():
    """One exit, or losses that pull down: no line between two points falls below its ends."""
    edges = [(s, 0, 4, 1.0, 9.0) for s in range(4)] + [(4, a, 5, 1.0, 0.0) for a in range(3)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[5])
    seen = qp.Experience.of_pairs(mdp, [(s, 0) for s in range(4)])
    assert modes.find_barrier(BellmanTarget(seen, qp.GaussianPrior(mean=-5.0), Tolerance())) < 0.1


def test_many_modes_are_tempered_and_what_cannot_be_is_left_to_hmc():
    _, seen = competing_hub()
    post = quietly(seen, prior=NARROW, settings=QUICK, particles=100)
    assert post.method == "tempering"
    assert post.diagnostics["barrier"] > modes.FEARED
    assert quietly(seen, prior=NARROW, settings=QUICK, particles=100, tolerance=0.5).method == "hmc"
    assert quietly(seen, prior=NARROW, settings=QUICK, particles=100, method="hmc").method == "hmc"


def test_chains_that_disagree_although_nothing_was_feared_give_way_to_tempering(monkeypatch):
    monkeypatch.setattr(modes, "FEARED", np.inf)
    post = quietly(competing_hub()[1], prior=NARROW, particles=1000, seed=2)
    assert post.method == "tempering"
    assert "hmc_reliability_warning" in post.diagnostics


def test_few_round_trips_are_a_reason_not_to_trust():
    settings = HMCSettings(chains=2, warm_up=80, max_iterations=40, block=40)
    post = quietly(random_problem("acyclic", 1)[1], method="tempering", settings=settings, particles=50)
    assert not post.trusted
    from qposterior.inference.trust import reliability_warning

    assert "without feedback came to the posterior" in reliability_warning({"round_trips": 99})
    assert reliability_warning({"round_trips": 100}) is None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["hub 3", "chain 5", "near-tie 2", "near-tie 3"])
def test_many_modes_are_right_or_distrusted(name):
    """A small cut of what `make verify` does: four errors of what the draws say of themselves, 6e-5 for each number."""
    _, seen = multimodal_problems()[name]
    exact = qp.posterior(seen, prior=NARROW, method="exact", particles=10).prob_optimal_table()
    for seed in range(2):
        post = quietly(seen, prior=NARROW, seed=seed)
        gap = np.nanmax(np.abs(post.prob_optimal_table() - exact))
        error = np.sqrt(post.diagnostics["max_probability_error"] ** 2 + 0.25 / 1000.0)
        assert gap <= 4.0 * error or not post.trusted
        assert values_of(seen.space, post.draws).shape == (1000, seen.space.num_states)
