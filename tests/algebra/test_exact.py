"""The tabular theorem: known values, the lemma, brute force, and the degenerate cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import qposterior as qp
from problems import KNOWN, importance_sample, looping_two_state, random_problem, weighted_optimality


def exact(seen, **options):
    return qp.posterior(seen, method="exact", **options)


def test_the_looping_example_has_its_known_values():
    _, seen = looping_two_state()
    known = KNOWN["looping_two_state"]["exact"]
    post = exact(seen, prior=qp.GaussianPrior(scale=2.0))
    np.testing.assert_allclose(post.prob_optimal(0), known["prob_optimal_s0"], atol=3e-4)
    np.testing.assert_allclose(post.prob_optimal(1), known["prob_optimal_s1"], atol=3e-4)
    np.testing.assert_allclose(post.prob_policy({0: 0, 1: 0}), known["prob_both_observed_optimal"], rtol=0.01)
    np.testing.assert_allclose(post.mean()[:2].ravel(), known["mean_q"], atol=1e-3)
    # The determinant matters: without it P(action 0 in state 0) would be 0.174.
    assert abs(post.prob_optimal(0)[0] - 0.174) > 0.1
    # Z_O by two-dimensional quadrature, written out in docs/explanation/bellman-coordinates.md.
    np.testing.assert_allclose(np.exp(post.log_evidence), 0.0354100, rtol=1e-4)


@pytest.mark.parametrize("case", KNOWN["two_state_self_loop"]["values"], ids=lambda c: f"{c['data']}-{c['eps']}")
def test_the_paper_s_first_example_in_q_coordinates(case):
    mdp = qp.make_environment("two-state")
    pairs = [(0, 0)] + ([(0, 1)] if case["data"] == "D2" else [])
    seen = qp.Experience.of_pairs(mdp, pairs)
    prior = qp.GaussianPrior(scale=10.0)
    post = exact(seen, prior=prior, tolerance=case["eps"], coordinates="q")
    np.testing.assert_allclose(post.prob_optimal(0)[1], case["prob_a2_optimal"], atol=1e-4)
    np.testing.assert_allclose(post.mean()[0], case["mean"], atol=1e-2)  # 1e-3 prior scales
    # Action 0 stays in state 0 for ever: improper, so Bellman coordinates give it no mass at all.
    proper = exact(seen, prior=prior, tolerance=case["eps"], coordinates="bellman")
    assert proper.prob_optimal(0)[0] == 0.0
    if case["eps"] == 2.0:
        assert post.prob_optimal(0)[0] > 0.75


def lemma(rewards, sigma, eps):
    """Paper, lem. 5dmdp."""
    d, c, k = rewards[0] - rewards[1], rewards[1] + rewards[3] - rewards[0] - rewards[2], (eps / sigma) ** 2
    return norm.cdf((k * d - c) / (sigma * np.sqrt(2 * k * (k + 2) * (k**2 + 3 * k + 1))))


@pytest.mark.parametrize("sigma", [0.5, 4.0])
@pytest.mark.parametrize("ratio", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.0, 2.0), (0.5, -0.2, -1.0, 0.3), (2.0, 0.0, 0.0, 3.0)])
def test_the_five_state_lemma_on_a_grid(sigma, ratio, rewards):
    mdp = qp.make_environment("five-state", rewards=rewards)
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (0, 1), (1, 0), (2, 1)])
    post = exact(seen, prior=qp.GaussianPrior(scale=sigma), tolerance=ratio * sigma)
    np.testing.assert_allclose(post.prob_optimal(0)[0], lemma(rewards, sigma, ratio * sigma), atol=1e-9)


def test_the_lemma_s_known_values():
    for case in KNOWN["five_state_lemma"]:
        mdp = qp.make_environment("five-state", rewards=case["rewards"])
        seen = qp.Experience.of_pairs(mdp, [(0, 0), (0, 1), (1, 0), (2, 1)])
        post = exact(seen, prior=qp.GaussianPrior(scale=case["sigma"]), tolerance=case["eps"])
        np.testing.assert_allclose(post.prob_optimal(0)[0], case["prob_a1"], atol=1e-9)


@pytest.mark.parametrize("shape", ["acyclic", "looping", "discounted"])
@pytest.mark.parametrize("tolerance", [0.0, 0.8])
def test_agrees_with_brute_force(shape, tolerance):
    _, seen = random_problem(shape, 1, num_states=4)
    num = 3000 if tolerance == 0.0 else 200_000
    theta, weights = importance_sample(seen, 1.5, tolerance, num, seed=0)
    # Every policy of these problems is proper, so both coordinate systems mean the same.
    post = exact(seen, prior=qp.GaussianPrior(scale=1.5), tolerance=tolerance, coordinates="q")
    share = weighted_optimality(seen.space, theta, weights)
    size = weights.sum() ** 2 / np.sum(weights**2)
    table = post.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
    # 4.5 standard errors, about 8 pairs and 6 cases: false-alarm rate 4e-4, fixed seed.
    assert np.all(np.abs(share - table) < 4.5 * np.sqrt(np.maximum(table * (1 - table), 1e-4) / size))
    mean = weights @ theta / weights.sum()
    spread = np.sqrt(weights @ (theta - mean) ** 2 / weights.sum())
    pairs = seen.space.pair_state, seen.space.pair_action
    assert np.all(np.abs(mean - post.mean()[pairs]) < 4.5 * spread / np.sqrt(size) + 1e-9)
    np.testing.assert_allclose(post.sd()[pairs], spread, rtol=6 / np.sqrt(size), atol=1e-6)


def test_exact_draws_have_the_exact_moments():
    _, seen = looping_two_state()
    post = exact(seen, prior=qp.GaussianPrior(scale=2.0), particles=20_000, seed=3)
    pairs = seen.space.pair_state, seen.space.pair_action
    z = (post.draws.mean(axis=0) - post.mean()[pairs]) / (post.sd()[pairs] / np.sqrt(20_000))
    assert np.all(np.abs(z) < 4.5)  # false-alarm rate 3e-5
    np.testing.assert_allclose(post.draws.std(axis=0), post.sd()[pairs], rtol=0.03)
    share = weighted_optimality(seen.space, post.draws, np.ones(20_000))
    np.testing.assert_allclose(share, post.prob_optimal_table()[pairs], atol=4.5 * 0.5 / np.sqrt(20_000))


def test_small_tolerances_tend_to_tolerance_zero():
    _, seen = random_problem("acyclic", 2)
    limit = exact(seen, prior=qp.GaussianPrior(scale=2.0))
    near = exact(seen, prior=qp.GaussianPrior(scale=2.0), tolerance=1e-3)
    np.testing.assert_allclose(near.prob_optimal_table(), limit.prob_optimal_table(), atol=2e-3)
    np.testing.assert_allclose(near.mean(), limit.mean(), atol=4e-3)
    np.testing.assert_allclose(near.log_evidence, limit.log_evidence, atol=1e-2)


def test_no_data_is_the_prior():
    mdp = qp.make_environment("random-mdp", num_states=4, num_actions=3, seed=1)
    post = exact(qp.Experience(mdp.space), prior=qp.GaussianPrior(mean=1.0, scale=2.0))
    pairs = mdp.space.pair_state, mdp.space.pair_action
    np.testing.assert_allclose(post.prob_optimal_table()[pairs], 1 / 3)
    np.testing.assert_allclose(post.mean()[pairs], 1.0)
    np.testing.assert_allclose(post.sd()[pairs], 2.0)
    assert post.log_evidence == 0.0


def test_every_pair_seen_is_a_point_mass_at_the_truth():
    mdp = qp.make_environment("deep-sea", depth=3)
    pairs = list(zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist(), strict=True))
    seen = qp.Experience.of_pairs(mdp, pairs)
    truth = qp.solve(mdp)
    for method in ("exact", "hmc"):
        post = qp.posterior(seen, method=method, particles=5)
        np.testing.assert_allclose(post.mean(), truth.q, atol=1e-9)
        np.testing.assert_allclose(post.sd()[mdp.space.pair_state], 0.0, atol=1e-6)
        for state in mdp.space.deciding_states:
            np.testing.assert_allclose(post.prob_optimal(state)[truth.policy[state]], 1.0)


def test_identical_actions_share_their_probability():
    edges = [(0, 0, 1, 1.0, -1.0), (0, 1, 1, 1.0, -1.0), (0, 2, 1, 1.0, 0.0), (1, 0, 2, 1.0, 0.0), (1, 1, 2, 1.0, 0.0)]
    mdp = qp.FiniteMDP.from_edges([*edges, (3, 0, 0, 1.0, -1.0)], goal=[2], initial=[0, 0, 0, 1])
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (0, 1), (3, 0)])
    prior = qp.GaussianPrior(scale=2.0)
    posts = [qp.posterior(seen, prior=prior, method=m, particles=4000, seed=1) for m in ("exact", "hmc")]
    for post in posts:
        table = post.prob_optimal(0)
        assert table[0] == pytest.approx(table[1], abs=1e-12)
        assert table.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(posts[0].prob_optimal(0), posts[1].prob_optimal(0), atol=0.05)
    np.testing.assert_allclose(posts[0].prob_policy({0: 1}), posts[0].prob_optimal(0)[1], atol=1e-9)
    lowest = posts[1].prob_optimal(0, ties="lowest")
    assert lowest[1] == 0.0
    np.testing.assert_allclose(lowest[0], 2 * posts[1].prob_optimal(0)[0])


def test_policies_are_joint_probabilities_and_add_up():
    _, seen = random_problem("looping", 4, num_states=4)
    post = exact(seen, prior=qp.GaussianPrior(scale=2.0))
    total = sum(post.prob_policy({0: a, 1: b, 2: c}) for a in (0, 1) for b in (0, 1) for c in (0, 1))
    np.testing.assert_allclose(total, 1.0, atol=2e-3)
    for state in range(3):
        np.testing.assert_allclose(post.prob_policy({state: 0}), post.prob_optimal(state)[0], atol=2e-3)
    assert post.prob_policy({}) == 1.0


def test_a_state_that_nothing_leads_to_with_three_actions():
    edges = [(0, a, 1, 1.0, r) for a, r in enumerate((-1.0, -1.5, 0.0))] + [(1, 0, 2, 1.0, 0.0), (1, 1, 2, 1.0, 0.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[2], initial=[1, 0, 0])
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (0, 1)])
    post = exact(seen, prior=qp.GaussianPrior(scale=1.0))
    theta, weights = importance_sample(seen, 1.0, 0.0, 4000, seed=2)
    share = weighted_optimality(seen.space, theta, weights)
    np.testing.assert_allclose(post.prob_optimal(0), share[:3], atol=0.04)
    assert post.prob_optimal(0)[1] == 0.0  # action 1 pays less than action 0 and leads to the same state


def test_noise_of_known_scale_is_covered_with_its_evidence():
    bandit = qp.make_environment("bandit", means=[0.0, 0.0])
    seen = qp.Experience(bandit.space, rewards="noisy")
    readings = [0.3, -0.5, 1.1]
    for y in readings:
        seen.record(0, 0, y, 1)
    post = exact(seen, prior=qp.GaussianPrior(scale=2.0), noise=qp.Noise(scale=0.7))
    from scipy.stats import multivariate_normal

    covariance = 4.0 + 0.49 * np.eye(3)
    np.testing.assert_allclose(post.log_evidence, multivariate_normal.logpdf(readings, np.zeros(3), covariance))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior": qp.BoundedPrior()}, "GaussianPrior"),
        ({"tolerance": 0.5, "kernel": "uniform"}, "Gaussian kernel"),
        ({"noise": qp.Noise()}, "known scale"),
        ({"noise": qp.Noise(kind="student", scale=1.0)}, "known scale"),
        ({"max_cells": 3}, "4 policy cells, more than the limit of 3"),
    ],
)
def test_what_the_theorem_does_not_cover_is_said(options, words):
    _, seen = looping_two_state()
    with pytest.raises(qp.InvalidInputError, match=words):
        exact(seen, **options)


def test_too_many_cells_names_number_limit_and_alternative():
    sea = qp.make_environment("deep-sea", depth=10)
    pairs = zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True)
    with pytest.raises(qp.InvalidInputError, match=r"1.76e\+13 policy cells.*limit of 4096.*hmc"):
        exact(qp.Experience.of_pairs(sea, pairs))


def test_a_loop_of_mean_zero_is_refused_in_q_coordinates_and_left_in_bellman_coordinates():
    mdp = qp.make_environment("two-state", rewards=[0.0, -1.0])
    seen = qp.Experience.of_pairs(mdp, [(0, 0)])
    with pytest.raises(qp.NoUniqueSolutionError, match="mean reward 0"):
        exact(seen, coordinates="q")
    post = exact(seen, coordinates="bellman")
    # θ_0 = 0 + V and V = θ_1: the two actions tie all over, and the exit shares with the loop.
    assert post.prob_optimal(0).sum() == pytest.approx(1.0)
    assert np.isfinite(post.mean()[0]).all()


@pytest.mark.parametrize("num_actions", [2, 3])
def test_ties_of_several_states_share_a_policy_s_probability_as_a_product(num_actions):
    """Two states that nothing leads to, all of whose actions tie: every joint choice is as probable as any other."""
    edges = [(s, a, 2, 1.0, -1.0) for s in (0, 1) for a in range(num_actions)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[2])
    seen = qp.Experience.of_pairs(mdp, [(s, a) for s in (0, 1) for a in range(num_actions)])
    post = qp.posterior(seen, method="exact", particles=10)
    for first in range(num_actions):
        for second in range(num_actions):
            np.testing.assert_allclose(post.prob_policy({0: first, 1: second}), num_actions**-2.0)
