"""Weights, evidence and noise in closed form, where they were once lost: huge misfits, reweighting, equal repeats."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.stats import laplace, norm, t

import qposterior as qp
from qposterior.inference.records import Particles
from qposterior.model.noise import Noise, blend
from targets import QTarget


def two_steps(reward):
    """A chain of two steps with two actions each, the first of both seen."""
    edges = [(0, 0, 1, 1.0, reward), (0, 1, 2, 1.0, 0.0), (1, 0, 2, 1.0, reward), (1, 1, 2, 1.0, 0.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[2])
    return mdp, qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])


@pytest.mark.parametrize("level", [0.0, 1e16, -1e16])
def test_log_weights_stay_normalised_beside_a_huge_maximum(level):
    cloud = Particles(parameters=np.zeros((3, 1)), log_weights=np.log([0.2, 0.3, 0.5]))
    after, increment = cloud.reweighted(np.array([level, level, -np.inf]))
    np.testing.assert_allclose(after.weights, [0.4, 0.6, 0.0])
    assert increment == after.log_evidence == level + np.log(0.5)
    np.testing.assert_allclose(cloud.weights, [0.2, 0.3, 0.5])


@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_rewards_that_no_prior_expected_leave_probabilities():
    post = qp.posterior(two_steps(1e8)[1], method="smc", prior=qp.GaussianPrior(scale=4.0))
    table = post.prob_optimal_table()[:2]
    np.testing.assert_allclose(table.sum(axis=1), 1.0)
    assert np.all((table >= 0.0) & (table <= 1.0 + 1e-12))


def handmade():
    mdp, _ = two_steps(0.0)
    rng = np.random.default_rng(0)
    weights = rng.random(50)
    return qp.Posterior(
        space=mdp.space,
        draws=rng.normal(size=(50, 4)),
        weights=weights / weights.sum(),
        method="hand",
        log_evidence=-2.0,
        diagnostics={"max_r_hat": 1.0, "min_bulk_ess": 215.0, "trusted": True},
    )


def test_reweighting_brings_evidence_and_diagnostics_along():
    post = handmade()
    log_ratio = 3.0 * post.draws[:, 0] - 700.0
    found = post.reweight(log_ratio)
    ratio = np.exp(log_ratio + 700.0)
    np.testing.assert_allclose(found.weights, post.weights * ratio / (post.weights @ ratio))
    assert found.log_evidence == pytest.approx(-2.0 - 700.0 + np.log(post.weights @ ratio))
    assert found.diagnostics["effective_draws"] == pytest.approx(found.effective_draws)
    assert "min_bulk_ess" not in found.diagnostics
    assert not found.trusted  # a handful of effective draws
    one = qp.Posterior(space=post.space, draws=post.draws[:2], weights=np.array([1.0, 0.0]), method="hand")
    with pytest.raises(qp.InvalidInputError, match="weight 0"):
        one.reweight(np.array([-np.inf, 0.0]))


def test_a_draw_without_weight_has_no_say_in_reweighting():
    post = handmade()
    one = qp.Posterior(
        space=post.space, draws=post.draws[:3], weights=np.array([0.25, 0.75, 0.0]), method="hand", log_evidence=0.0
    )
    found = one.reweight(np.array([-800.0, -801.0, 0.0]))
    np.testing.assert_allclose(found.weights, np.array([0.25, 0.75 / np.e, 0.0]) / (0.25 + 0.75 / np.e))
    assert found.log_evidence == pytest.approx(-800.0 + np.log(0.25 + 0.75 / np.e))
    assert found.reliability_warning == found.diagnostics["reliability_warning"] == "nothing has checked these draws"


def test_expectations_and_quantiles_of_anything_use_the_weights():
    post = handmade()
    square = post.draws**2
    np.testing.assert_allclose(post.expectation(square), post.weights @ square)
    np.testing.assert_allclose(post.expectation(square[:, 0]), post.weights @ square[:, 0])
    order = np.argsort(square[:, 1])
    by_hand = square[order[np.searchsorted(np.cumsum(post.weights[order]), 0.3)], 1]
    assert post.quantile_of(square[:, 1], 0.3) == by_hand
    assert post.quantile_of(square, 0.3)[1] == by_hand
    even = qp.Posterior(space=post.space, draws=post.draws, weights=np.full(50, 0.02), method="hand")
    assert even.quantile_of(square[:, 1], 0.3) == np.sort(square[:, 1])[14]


def test_the_value_of_a_start_is_one_weighted_distribution():
    """Mean and interval from the same weights: with all weight on one draw they agree."""
    log = [("a", x, r, "end") for x in "xy" for r in (0.0, 1.0, 2.0, 1.0)]
    found = qp.fit(pd.DataFrame(log, columns=["state", "action", "reward", "next_state"]), method="q", particles=200)
    one = np.zeros(found.posterior.weights.size)
    one[7] = 1.0
    alone = replace(found, posterior=replace(found.posterior, weights=one))
    value = found.posterior.draws[7].max()
    np.testing.assert_allclose(alone.start_value, value)


# -- equal repeats -----------------------------------------------------------------------------------------------------


def repeated(readings):
    """The last state of the chain, with readings by action."""
    seen = qp.Experience(two_steps(0.0)[0].space, rewards="noisy")
    for action, values in enumerate(readings):
        for value in values:
            seen.record(1, action, value, 2, row=(np.array([2]), np.array([1.0])))
    return seen


@pytest.mark.parametrize("kind", ["gaussian", "student", "laplace"])
def test_a_pair_that_pays_the_same_each_time_tells_only_of_its_mean(kind):
    """log p = Σ log p(reading) + (n − 1) log σ for the constant pair: the density of its mean, up to a constant."""
    seen = repeated([[0.7] * 20, [1.0, -1.0, 0.5]])
    target = QTarget(seen, qp.GaussianPrior(), Noise(kind=kind))
    theta = np.array([[0.0, 0.0, 0.4, 0.3]])
    both = [float(target.log_likelihood(theta, np.array([s]))[0]) for s in (-1.0, 0.8)]

    def plain(log_scale):
        law = {"gaussian": norm, "student": t(4.0), "laplace": laplace}[kind]
        scale = np.exp(log_scale)
        z = np.concatenate([np.full(20, 0.7 - 0.4), np.array([1.0, -1.0, 0.5]) - 0.3]) / scale
        return float(np.sum(law.logpdf(z))) - 4.0 * log_scale  # one of the 20, and the three others

    assert both[1] - both[0] == pytest.approx(plain(0.8) - plain(-1.0), rel=1e-10)


def test_equal_repeats_do_not_drive_a_learned_scale_to_zero():
    rng = np.random.default_rng(0)
    noisy = rng.normal(0.0, 1.0, 30).tolist()
    alone = qp.posterior(repeated([[], noisy]), noise=Noise(), particles=400)
    beside = qp.posterior(repeated([[0.5] * 200, noisy]), noise=Noise(), particles=400)
    assert np.median(beside.noise_scale) == pytest.approx(np.median(alone.noise_scale), rel=0.1)
    assert beside.sd()[1, 0] == pytest.approx(np.median(beside.noise_scale) / np.sqrt(200.0), rel=0.2)


def test_rounding_does_not_make_equal_readings_differ():
    data = Noise().bind(repeated([[0.1 + 0.2, 0.3] * 5, [0.0, 0.0]])).data
    np.testing.assert_array_equal(data.num_spread, [1.0, 1.0])
    data = Noise().bind(repeated([[0.1, 0.1001], [1.0]])).data
    np.testing.assert_array_equal(data.num_spread, [2.0, 1.0])
    known = Noise(scale=1.0).bind(repeated([[0.1] * 5, [1.0]])).data
    np.testing.assert_array_equal(known.num_spread, [5.0, 1.0])  # a known scale is not learned from anything


def test_annealed_readings_keep_their_deviation_beside_a_large_mean():
    """Readings of 1e6 ± 1e-3: half of old and new together, and all of the new, against sums in exact arithmetic."""
    rng = np.random.default_rng(0)
    values = (1e6 + 1e-3 * rng.standard_normal(8)).tolist()
    old, new = (Noise(scale=1e-3).bind(repeated([values[:n], [0.5]])).data for n in (3, 8))
    for share in (0.5, 1.0):
        mixed = blend(old, np.array([0, 1]), new, share)
        weights = [Fraction(share) + (Fraction(1 - share) if i < 3 else 0) for i in range(8)]
        mean = sum(w * Fraction(v) for w, v in zip(weights, values, strict=True)) / sum(weights)
        deviation = sum(w * (Fraction(v) - mean) ** 2 for w, v in zip(weights, values, strict=True))
        assert mixed.mean[0] == pytest.approx(float(mean), rel=1e-15)
        assert mixed.deviation[0] == pytest.approx(float(deviation), rel=1e-6)


def test_a_repeated_deterministic_reward_counts_once_by_every_method():
    seen = qp.Experience(two_steps(0.0)[0].space)
    for _ in range(25):
        seen.record(1, 0, 1.0, 2, row=([2], [1.0]))
    noise = Noise(scale=4.0)
    exact, sampled = (qp.posterior(seen, noise=noise, method=m, particles=4000).sd()[1, 0] for m in ("exact", "hmc"))
    assert exact == pytest.approx(np.sqrt(8.0), rel=1e-6)  # one reading of N(·, 4²) under N(0, 4²)
    assert sampled == pytest.approx(exact, rel=0.1)


def test_a_reason_not_to_rely_on_draws_is_read_under_its_former_name():
    post = handmade()
    assert post.reliability_warning is None
    assert replace(post, diagnostics={}).reliability_warning == "nothing has checked these draws"
    former = replace(post, diagnostics={"trusted": False, "distrust": "two modes"})
    assert former.reliability_warning == "two modes"
    assert "NOT TRUSTED: two modes" in repr(former)
    assert former.reweight(np.zeros(post.weights.size)).diagnostics["distrust"] == "two modes"
