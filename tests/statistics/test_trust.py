"""An answer is right or says that it may not be: posteriors of several modes, and easy ones that must be trusted."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import qposterior as qp
from problems import (
    KNOWN,
    SHAPES,
    competing_hub,
    deep_hub,
    deterministic_mdp,
    noisy_experience,
    random_problem,
    symmetric_hub,
)
from qposterior.inference import cross_check
from qposterior.inference.hmc import HMCSettings, run_hmc
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.inference.trust import compare_islands, describe_draws, describe_indicators, reliability_warning
from qposterior.model.noise import Tolerance
from targets import BellmanTarget, QTarget

NARROW = qp.GaussianPrior(scale=2.0)
HUBS = {
    "competing": (competing_hub, 10, KNOWN["many_modes"][0]),
    "symmetric": (symmetric_hub, 5, KNOWN["many_modes"][1]),
}


def prob_first(known):
    return known.get("prob_x_optimal", known.get("prob_first_optimal"))


@pytest.fixture
def unchecked(monkeypatch):
    """No help from enumeration: the samplers must know by themselves."""
    monkeypatch.setattr(cross_check, "CHECKED_PAIRS", 0)


def sampled(seen, **options):
    """Return the posterior and whether a warning not to trust it was given."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = qp.posterior(seen, **options)
    return post, any("do not trust" in str(each.message) for each in caught)


@pytest.mark.parametrize("name", HUBS)
def test_enumeration_knows_all_modes(name):
    make, hub, known = HUBS[name]
    post = qp.posterior(make()[1], prior=NARROW, method="exact", particles=10)
    assert post.prob_optimal(hub)[0] == pytest.approx(prob_first(known), abs=1e-3)
    assert post.log_evidence == pytest.approx(known["log_evidence"], abs=1e-3)
    assert post.trusted


@pytest.mark.parametrize("method", ["hmc", "smc"])
@pytest.mark.parametrize("name", HUBS)
@pytest.mark.usefixtures("unchecked")
def test_a_posterior_of_several_modes_is_right_or_distrusted(name, method):
    make, hub, known = HUBS[name]
    for seed in range(3):
        post, warned = sampled(make()[1], prior=NARROW, method=method, seed=seed)
        is_right = abs(post.prob_optimal(hub)[0] - prob_first(known)) <= 0.05
        assert is_right or (warned and not post.trusted)
        assert warned != post.trusted
        assert ("NOT TRUSTED" in repr(post)) != post.trusted


@pytest.mark.usefixtures("unchecked")
def test_tempering_over_tolerances_is_right_or_distrusted():
    post, warned = sampled(competing_hub()[1], prior=NARROW, method="tempering", tolerance=0.05, seed=0)
    exact = qp.posterior(competing_hub()[1], prior=NARROW, method="exact", tolerance=0.05, particles=10)
    assert abs(post.prob_optimal(10)[0] - exact.prob_optimal(10)[0]) <= 0.05 or (warned and not post.trusted)


def test_what_enumeration_can_reach_is_checked_by_it(monkeypatch):
    """A sampler that is content with one mode, as chains that all start in it are, is contradicted by enumeration."""
    monkeypatch.setattr(BellmanTarget, "disperse", lambda self, x, rng, *, turn=0: x)
    post, warned = sampled(competing_hub()[1], prior=NARROW, method="hmc", seed=1)
    assert warned
    assert "enumeration" in post.reliability_warning
    monkeypatch.setattr(cross_check, "CHECKED_PAIRS", 0)
    post, warned = sampled(competing_hub()[1], prior=NARROW, method="hmc", seed=1)
    assert not warned, "the case must fool the chains, or it shows nothing"


@pytest.mark.parametrize("method", ["hmc", "smc"])
@pytest.mark.usefixtures("unchecked")
def test_easy_posteriors_are_trusted_and_right(method):
    """Twenty problems under a wide prior, none of which may be distrusted more than once in twenty; five errors."""
    trusted = 0
    for shape in SHAPES:
        for number in range(4):
            _, seen = random_problem(shape, 100 + number, num_states=4)
            post, _ = sampled(seen, method=method, seed=number)
            trusted += post.trusted
            if number == 0:
                exact = qp.posterior(seen, method="exact", particles=10).prob_optimal_table()
                assert np.abs(post.prob_optimal_table() - exact).max() < 5.0 * 0.5 / np.sqrt(1000.0)
    assert trusted >= 19


def test_every_method_says_whether_to_trust_it():
    mdp, seen = random_problem("acyclic", 3, num_states=4)
    counted = qp.Experience(mdp.space, transitions="counted")
    for k in seen.observed_pairs:
        state, action = int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])
        counted.record(state, action, float(mdp.rewards[k]), int(mdp.transitions.row(int(k))[0][0]))
    quick = HMCSettings(chains=4, warm_up=160, max_iterations=500, block=250, min_ess=50.0)
    for given, options in [
        (seen, {"method": "exact"}),
        (seen, {"method": "hmc", "settings": quick}),
        (seen, {"method": "tempering", "tolerance": 0.5, "settings": quick}),
        (seen, {"method": "smc"}),
        (seen, {"method": "smc", "tolerance": 0.5}),
        (seen, {"prior": qp.RewardPrior(upper=-0.01), "transitions": mdp.transitions}),
        (counted, {"settings": quick}),
    ]:
        post, warned = sampled(given, particles=400, **options)
        assert isinstance(post.diagnostics["trusted"], bool)
        assert warned != post.trusted


def seen_hub():
    """The competing hub with every pair seen, those that decide only roughly."""
    mdp, _ = competing_hub()
    pairs = [*((s, 0) for s in range(10)), (10, 0), (10, 1), (11, 0)]
    return qp.Experience.of_pairs(mdp, pairs), np.array([0.02] * 10 + [20.0, 0.02, 20.0])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", ["hmc", "smc", "tempering"])
def test_modes_that_values_further_on_decide_are_found(method):
    tolerance = 0.0 if method == "hmc" else 0.1
    _, seen = deep_hub()
    exact = qp.posterior(seen, prior=NARROW, method="exact", tolerance=tolerance, particles=10).prob_optimal(5)[0]
    for seed in range(2):
        post, _ = sampled(seen, prior=NARROW, method=method, tolerance=tolerance, seed=seed)
        assert abs(post.prob_optimal(5)[0] - exact) <= 0.05 or not post.trusted


@pytest.mark.usefixtures("unchecked")
def test_modes_of_values_that_were_seen_roughly_are_found():
    seen, tolerance = seen_hub()
    exact = qp.posterior(seen, prior=NARROW, method="exact", tolerance=tolerance, particles=10).prob_optimal(10)[0]
    for seed in range(2):
        post, _ = sampled(seen, prior=NARROW, tolerance=tolerance, seed=seed)
        assert abs(post.prob_optimal(10)[0] - exact) <= 0.05 or not post.trusted


def test_heavy_tails_have_modes_at_their_readings():
    """Three readings near 0, two near 10, one far off: the mean lies near 10, nearly all of the mass near 0."""
    mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
    seen = qp.Experience(mdp.space, rewards="noisy")
    for action, readings in ((0, (0.0, 0.1, -0.1, 10.0, 10.1, 39.9)), (1, (5.0, 5.1, 4.9))):
        for reading in readings:
            seen.record(0, action, reading, 1, row=([1], [1.0]))
    target = BellmanTarget(seen, qp.GaussianPrior(), qp.Noise(kind="student", scale=0.1))
    starts = target.initial(60, np.random.default_rng(0))[:, 0]
    assert all(np.abs(starts - reading).min() < 0.1 for reading in (0.0, 10.0, 39.9))
    for noise in (qp.Noise(kind="student", scale=0.1), qp.Noise(kind="student", log_scale_mean=-2.3, log_scale_sd=0.1)):
        post, _ = sampled(seen, noise=noise, seed=1)
        assert abs(post.mean()[0, 0]) < 0.2 or not post.trusted


def test_too_few_draws_are_never_trusted():
    draws = np.random.default_rng(0).normal(size=(4, 7, 2))
    assert describe_draws(draws, np.ones((4, 7, 2)))["max_r_hat"] == np.inf
    assert reliability_warning(describe_draws(draws, np.ones((4, 7, 2)))) is not None
    _, seen = random_problem("acyclic", 3, num_states=4)
    few = HMCSettings(chains=2, warm_up=20, max_iterations=5)
    post, warned = sampled(seen, settings=few, particles=10)
    assert warned
    assert not post.trusted


def test_linear_classes_and_priors_on_rewards_are_judged_by_what_is_optimal_too():
    mdp, seen = random_problem("acyclic", 7, num_states=4)
    pairs = [(int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])) for k in seen.observed_pairs]
    few = HMCSettings(chains=4, max_iterations=50, block=50, min_ess=0.0)
    for given, options in [
        (
            noisy_experience(mdp, pairs[:2]),
            {"prior": qp.RewardPrior(), "transitions": mdp.transitions, "noise": qp.Noise()},
        ),
        (seen, {"features": np.eye(mdp.space.num_pairs), "tolerance": 0.5}),
    ]:
        post, _ = sampled(given, settings=few, particles=100, **options)
        assert post.diagnostics["max_probability_error"] > 0.01


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BellmanTarget, QTarget])
def test_chains_start_with_every_action_of_every_state(kind):
    _, seen = random_problem("acyclic", 2, num_states=5, share=0.5)
    target = kind(seen, qp.GaussianPrior(), Tolerance(tolerance=0.5))
    rng = np.random.default_rng(0)
    x = target.disperse(target.initial(4, rng), rng)
    assert np.isfinite(target.log_density(x)).all()
    greedy = target.optimal_share(target.to_q(x)).max(axis=0)
    controlled = target.chart.value_columns >= 0
    assert greedy[controlled].all()  # each free pair is the best of its state somewhere
    if kind is QTarget:
        assert controlled.all()


def test_a_start_leaves_the_competition_where_a_seen_action_is_wanted():
    """A seen action that ends the episode has no value further on to raise: the untried one is lowered."""
    mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, -4.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
    target = BellmanTarget(qp.Experience.of_pairs(mdp, [(0, 0)]), NARROW, Tolerance())
    rng = np.random.default_rng(0)
    x = target.disperse(target.initial(60, rng), rng)
    assert target.optimal_share(target.to_q(x))[:, 1].mean() == 0.5


def test_states_with_more_actions_than_chains_are_scouted(monkeypatch):
    """Six unseen actions in a hub that five seen losses pull on: two chains cannot start in all of the six modes."""
    edges = [(s, 0, 5, 1.0, -12.0) for s in range(5)] + [(5, a, 6, 1.0, 0.0) for a in range(6)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[6])
    target = BellmanTarget(qp.Experience.of_pairs(mdp, [(s, 0) for s in range(5)]), NARROW, Tolerance())
    few = HMCSettings(chains=2, warm_up=150, max_iterations=200, block=200, min_ess=0.0)
    chains = run_hmc(target, np.random.default_rng(0), few)
    assert chains.diagnostics["unvisited_modes"] == 4  # the actions that neither of the two chains started with
    assert "stayed there" in reliability_warning({"unvisited_modes": chains.diagnostics["unvisited_modes"]})
    many = HMCSettings(chains=6, warm_up=150, max_iterations=200, block=200, min_ess=0.0)
    assert run_hmc(target, np.random.default_rng(0), many).diagnostics["unvisited_modes"] == 0


def test_indicators_that_differ_between_chains_are_found_and_constant_ones_are_not_blamed():
    shares = np.zeros((4, 100, 3))
    shares[:, :, 0] = 1.0
    shares[:2, :, 1] = 1.0  # two chains say always, two never
    summary = describe_indicators(shares)
    assert summary["max_indicator_r_hat"] == np.inf
    assert summary["worst_pair"] == 1
    rng = np.random.default_rng(0)
    shares[:, :, 1] = rng.random((4, 100)) < 0.3
    summary = describe_indicators(shares)
    assert summary["max_indicator_r_hat"] < 1.05
    assert summary["max_probability_error"] == pytest.approx(np.sqrt(0.3 * 0.7 / 400), rel=0.35)
    assert describe_indicators(shares[:, :, :1]) == {"max_indicator_r_hat": 1.0, "max_probability_error": 0.0}


def test_islands_that_disagree_are_named():
    space = competing_hub()[0].space
    same = np.full((8, space.num_pairs), 0.5)
    level = np.full(8, -3.0)
    assert compare_islands(level, same, space)[0] is None
    words, facts = compare_islands(level + np.linspace(-1.0, 1.0, 8), same, space)
    assert "evidence" in words
    assert facts["log_evidence_sd"] == pytest.approx(np.linspace(-1.0, 1.0, 8).std(ddof=1))
    other = same.copy()
    other[:4, 10], other[4:, 10] = 0.7, 0.3
    words, facts = compare_islands(level, other, space)
    assert "P(optimal) in state 10" in words
    assert facts["max_probability_error"] == pytest.approx(0.2 / np.sqrt(7.0))
    # An island of little evidence counts for little.
    other = same.copy()
    other[0, 10] = 0.0
    weights = np.array([0.5, *np.ones(7)])
    _, facts = compare_islands(np.log(weights), other, space)
    v = weights / weights.sum()
    centre = v @ other[:, 10]
    assert facts["max_probability_error"] == pytest.approx(np.sqrt(8 / 7 * np.sum(v**2 * (other[:, 10] - centre) ** 2)))


def test_islands_average_by_their_evidence():
    """Unequal islands: the mean evidence is unbiased, so many of them give the exact one; five standard errors."""
    _, seen = random_problem("acyclic", 104, num_states=5)
    exact = qp.posterior(seen, method="exact", particles=10).log_evidence
    found = [sampled(seen, method="smc", seed=seed)[0].log_evidence for seed in range(12)]
    ratio = np.exp(np.array(found) - exact)
    assert abs(ratio.mean() - 1.0) < 5.0 * ratio.std(ddof=1) / np.sqrt(12.0)


@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_islands_are_weighted_by_their_evidence(monkeypatch):
    """Island i says that every value is i, with evidence exp(0.2 i)."""
    _, seen = random_problem("acyclic", 104, num_states=4)
    number = iter(range(8))

    def update(sampler, _seen):
        i = next(number)
        values = np.full_like(sampler.particles.parameters, float(i))
        sampler.particles = replace(sampler.particles, parameters=values, log_evidence=0.2 * i)

    monkeypatch.setattr(OneLookSampler, "update", update)
    monkeypatch.setattr(cross_check, "CHECKED_PAIRS", 0)
    post = qp.posterior(seen, method="smc", particles=1000)
    weights = np.exp(0.2 * np.arange(8))
    np.testing.assert_allclose(post.pair_mean, weights @ np.arange(8) / weights.sum())
    assert post.log_evidence == pytest.approx(np.log(weights.mean()))


def test_noisy_readings_on_loops_at_discount_one_agree_with_enumeration():
    """θ whose greedy policy circles for ever has no place here, and so no weight; about six errors."""
    mdp = deterministic_mdp(4, 7)
    seen = noisy_experience(mdp, [(0, 0), (1, 0), (1, 1), (2, 0)], sd=1.0, readings=1, seed=7)
    noise = qp.Noise(scale=4.0)
    exact = qp.posterior(seen, method="exact", noise=noise, particles=10).prob_optimal_table()
    for method in ("hmc", "smc"):
        post, _ = sampled(seen, method=method, noise=noise, particles=8000, seed=1)
        assert post.trusted
        assert np.abs(post.prob_optimal_table() - exact).max() < 0.045
