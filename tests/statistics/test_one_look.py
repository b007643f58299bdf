"""The one-look update against exact answers: probabilities, evidence, unequal weights, agents' data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from problems import (
    SHAPES,
    competing_hub,
    deterministic_mdp,
    multimodal_problems,
    noisy_experience,
    random_problem,
    weighted_optimality,
)
from qposterior.inference.smc.one_look import OneLookSampler, OneLookSettings
from qposterior.inference.smc.resampling import RESAMPLING
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior

LIMIT = 4.5
"""|z| beyond this happens to a right sampler in 7 of a million tests; seeds are fixed."""


def repeat(seen, prior, likelihood, *, repeats=30, particles=300, **settings):
    """(repeats, K) weighted P(optimal) and (repeats,) evidence."""
    shares, evidence = [], []
    for seed in range(repeats):
        sampler = OneLookSampler.start(
            seen,
            prior=prior,
            noise=likelihood,
            particles=particles,
            rng=np.random.default_rng(seed),
            settings=OneLookSettings(**settings),
        )
        sampler.update(seen)
        shares.append(weighted_optimality(seen.space, sampler.particles.parameters, sampler.particles.weights))
        evidence.append(np.exp(sampler.particles.log_evidence))
    return np.array(shares), np.array(evidence)


def z_of(estimates, expected):
    error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
    gap = estimates.mean(axis=0) - expected
    return np.abs(np.where(np.abs(gap) < 1e-9, 0.0, gap / np.maximum(error, 1e-12))).max()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:one can circle:RuntimeWarning")
def test_probabilities_and_evidence_agree_with_exact(shape):
    _, seen = random_problem(shape, 1, share=0.5)
    prior = GaussianPrior(mean=0.3, scale=1.6)
    exact = qp.posterior(seen, prior=prior, method="exact", particles=1)
    shares, evidence = repeat(seen, prior, Tolerance())
    table = exact.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
    assert z_of(shares, table) < LIMIT
    assert z_of(evidence, np.exp(exact.log_evidence)) < LIMIT
    # The evidence is known to 1 % here, so a weight that is off by 5 % would show.
    assert evidence.std() / np.sqrt(30) < 0.02 * evidence.mean()


def test_weights_alone_are_right_without_any_move_or_resampling():
    # Nothing but the incremental weights: importance sampling from the prior, cumulative and unequal.
    _, seen = random_problem("looping", 1, share=0.5)
    prior = GaussianPrior(mean=0.3, scale=1.6)
    exact = qp.posterior(seen, prior=prior, method="exact", particles=1)
    shares, evidence = repeat(seen, prior, Tolerance(), particles=1500, moves=0, resample_below=0.0)
    table = exact.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
    assert z_of(shares, table) < LIMIT
    assert z_of(evidence, np.exp(exact.log_evidence)) < LIMIT


@pytest.mark.parametrize("resampling", RESAMPLING)
def test_every_resampling_scheme_is_unbiased(resampling):
    weights = np.array([0.05, 0.4, 0.0, 0.3, 0.25])
    rng = np.random.default_rng(0)
    counts = np.array([np.bincount(RESAMPLING[resampling](weights, rng, 5), minlength=5) for _ in range(4000)])
    assert np.all(counts.sum(axis=1) == 5)
    assert np.all(counts[:, 2] == 0)
    error = counts.std(axis=0) / np.sqrt(4000)
    assert np.all(np.abs(counts.mean(axis=0) - 5 * weights) < LIMIT * error + 1e-12)
    if resampling != "multinomial":
        assert np.all(np.abs(counts - 5 * weights) < 2 + 1e-9) or resampling == "residual"


@pytest.mark.parametrize("learned", [False, True])
def test_noisy_readings_multiply_their_likelihood(learned):
    mdp, plain = random_problem("acyclic", 1, share=0.4)
    pairs = [(int(plain.space.pair_state[k]), int(plain.space.pair_action[k])) for k in plain.observed_pairs]
    seen = noisy_experience(mdp, pairs, sd=0.8, readings=2)
    prior = GaussianPrior(scale=1.2)
    noise = Noise(log_scale_mean=-0.2, log_scale_sd=0.3) if learned else Noise(scale=0.8)
    shares, _ = repeat(seen, prior, noise, particles=600)
    if learned:
        chains = qp.posterior(seen, prior=prior, noise=noise, particles=8000, seed=1)
        expected = chains.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
        error = np.sqrt(shares.var(axis=0, ddof=1) / 30 + 0.25 / 1000)
        assert np.abs((shares.mean(axis=0) - expected) / error).max() < LIMIT
        return
    exact = qp.posterior(seen, prior=prior, noise=noise, method="exact", particles=1)
    assert z_of(shares, exact.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]) < LIMIT


def test_noisy_readings_arrive_in_parts():
    mdp, plain = random_problem("acyclic", 1, share=0.4)
    pairs = [(int(plain.space.pair_state[k]), int(plain.space.pair_action[k])) for k in plain.observed_pairs]
    early = noisy_experience(mdp, pairs, sd=0.8, readings=1)
    seen = early.merge(noisy_experience(mdp, pairs, sd=0.8, readings=2, seed=3))
    prior, noise = GaussianPrior(scale=1.2), Noise(scale=0.8)
    exact = qp.posterior(seen, prior=prior, noise=noise, method="exact", particles=1)
    evidence = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        sampler = OneLookSampler.start(seen, prior=prior, noise=noise, particles=400, rng=rng)
        sampler.update(early)
        sampler.update(seen)
        evidence.append(np.exp(sampler.particles.log_evidence))
    assert z_of(np.array(evidence), np.exp(exact.log_evidence)) < LIMIT


def test_hard_walls_on_q_keep_their_place():
    _, seen = random_problem("acyclic", 1, share=0.4)
    prior = BoundedPrior(upper=1.0, scale=1.5)
    shares, _ = repeat(seen, prior, Tolerance(), particles=400)
    chains = qp.posterior(seen, prior=prior, particles=8000, seed=2)
    expected = chains.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
    error = np.sqrt(shares.var(axis=0, ddof=1) / 30 + 0.25 / 1000)
    assert np.abs((shares.mean(axis=0) - expected) / error).max() < LIMIT


def test_the_agent_s_particles_agree_with_exact_on_what_it_has_seen():
    sea = qp.make_environment("deep-sea", depth=4)
    agent = qp.PosteriorSamplingAgent(sea.space, particles=3000, seed=3)
    qp.explore(agent, sea, episodes=3, seed=3)
    agent.sampler.update(agent.experience)
    ours = agent.posterior()
    exact = qp.posterior(agent.experience, method="exact", particles=1)
    gap = np.abs(ours.prob_optimal_table() - exact.prob_optimal_table()).max()
    assert gap < LIMIT * 0.5 / np.sqrt(0.3 * ours.effective_draws)


def test_smc_offline_is_the_same_code_and_gives_the_evidence():
    _, seen = random_problem("looping", 1, share=0.5)
    prior = GaussianPrior(mean=0.3, scale=1.6)
    post = qp.posterior(seen, prior=prior, method="smc", particles=2000, seed=0)
    exact = qp.posterior(seen, prior=prior, method="exact", particles=1)
    np.testing.assert_allclose(post.log_evidence, exact.log_evidence, atol=0.15)
    np.testing.assert_allclose(post.prob_optimal_table(), exact.prob_optimal_table(), atol=0.08)
    for options, words in (
        ({"coordinates": "q"}, "bellman"),
        ({"prior": BoundedPrior(softness=1.0)}, "hard wall"),
    ):
        with pytest.raises(qp.InvalidInputError, match=words):
            qp.posterior(seen, method="smc", **options)


@pytest.mark.parametrize("inference", ["one-look", "adaptive"])
def test_policies_are_drawn_with_their_posterior_probability(inference):
    bandit = qp.make_environment("bandit", means=[0.0, 1.0])
    told = {"rewards": "noisy", "noise": Noise(scale=1.0), "particles": 200, "seed": 0}
    agent = qp.PosteriorSamplingAgent(bandit.space, **told, inference=inference)
    agent.begin_episode(0)
    skewed = np.linspace(0.0, 4.0, 200) * np.sign(
        agent.sampler.particles.parameters[:, 1] - agent.sampler.particles.parameters[:, 0]
    )
    agent.sampler.particles, _ = agent.sampler.particles.reweighted(skewed)
    share = agent.posterior().prob_optimal(0)[1]
    assert share > 0.8
    picks = np.array([agent._draw_policy()[0] for _ in range(4000)])
    assert abs(picks.mean() - share) < LIMIT * 0.5 / np.sqrt(4000)
    assert agent.predict(0) == int(np.argmax(agent.posterior().prob_optimal(0)))


def test_a_held_policy_does_not_circle_for_ever_on_what_it_has_just_seen():
    sea = qp.make_environment("deep-sea-loops", depth=4)
    agent = qp.PosteriorSamplingAgent(sea.space, seed=1)
    run = qp.explore(agent, sea, episodes=60, seed=1)
    assert all(row["reached_goal"] for row in run.rows)
    assert run.rows[-1]["regret"] < 0.1


def test_alone_pairs_have_the_prior_density_as_weight():
    # One pair, nothing else seen: the evidence is N(r; 0, scale²) exactly, whatever the particles.
    sea = qp.make_environment("deep-sea", depth=3)
    seen = qp.Experience.of_pairs(sea, [(2, 0)])
    prior = GaussianPrior(mean=0.2, scale=1.5)
    sampler = OneLookSampler.start(seen, prior=prior, noise=Tolerance(), particles=5, rng=np.random.default_rng(0))
    sampler.update(seen)
    np.testing.assert_allclose(sampler.particles.log_evidence, stats.norm.logpdf(seen.reward_mean[4], 0.2, 1.5))


def test_the_same_pairs_in_another_unit_are_weighed_by_the_ratio_of_the_densities():
    # Weights alone, without a move: rewards of one unit, then twice as large.
    mdp, seen = random_problem("looping", 1, share=0.5)
    told = {}
    for unit in (1.0, 2.0):
        told[unit] = qp.Experience(seen.space)
        for k in seen.observed_pairs:
            state, action = mdp.space.pairs()[k]
            row = seen.row(k)
            told[unit].record(state, action, unit * seen.reward_mean[k], int(row[0][0]), row=row)
    prior, shares = GaussianPrior(mean=0.3, scale=1.6), []
    for seed in range(30):
        sampler = OneLookSampler.start(
            told[1.0],
            prior=prior,
            noise=Tolerance(),
            particles=2000,
            rng=np.random.default_rng(seed),
            settings=OneLookSettings(moves=0),
        )
        sampler.update(told[1.0])
        assert not sampler.update(told[1.0])
        sampler.update(told[2.0])
        shares.append(weighted_optimality(seen.space, sampler.particles.parameters, sampler.particles.weights))
    truth = {}
    for unit, known in told.items():
        table = qp.posterior(known, prior=prior, method="exact", particles=1).prob_optimal_table()
        truth[unit] = table[seen.space.pair_state, seen.space.pair_action]
    assert z_of(np.array(shares), truth[2.0]) < LIMIT
    assert z_of(np.array(shares), truth[1.0]) > 2 * LIMIT


def test_readings_on_loops_at_discount_one_give_no_weight_to_policies_that_never_end():
    """θ whose greedy policy circles for ever has no place here: weights alone, without a move, against enumeration."""
    mdp = deterministic_mdp(4, 7)
    seen = noisy_experience(mdp, [(0, 0), (1, 0), (1, 1), (2, 0)], sd=1.0, readings=1, seed=7)
    exact = qp.posterior(seen, method="exact", noise=Noise(scale=4.0), particles=1).prob_optimal_table()
    shares, evidence = repeat(seen, GaussianPrior(), Noise(scale=4.0), particles=2000, moves=0, resample_below=0.0)
    assert z_of(shares, exact[seen.space.pair_state, seen.space.pair_action]) < LIMIT
    assert np.all(evidence > 0.0)


@pytest.mark.parametrize("in_blocks", [False, True])
def test_particles_know_the_draws_of_the_prior_that_they_stem_from(in_blocks):
    """Without moves a particle is its ancestor: the same free values, in blocks as they were drawn when met."""
    seen = competing_hub()[1] if in_blocks else random_problem("looping", 1, share=0.5)[1]
    settings = OneLookSettings(moves=0, moves_between=0, resample_below=1.0)
    common = {"prior": GaussianPrior(mean=0.3, scale=0.8), "noise": Tolerance(), "particles": 40}
    sampler = OneLookSampler.start(seen, **common, rng=np.random.default_rng(3), settings=settings)
    first = sampler.particles.parameters.copy()
    np.testing.assert_array_equal(sampler.particles.ancestors, np.arange(40))
    sampler.update(seen)
    now, free = sampler.particles, ~seen.observed
    assert (sampler._blocks is not None) == in_blocks
    assert now.num_ancestors == np.unique(now.ancestors).size == sampler.trace[-1]["ancestors"] < 40
    same = now.ancestors[:, None] == now.ancestors
    assert np.all(same == (now.parameters[:, None, free] == now.parameters[None, :, free]).all(axis=2))
    if not in_blocks:
        np.testing.assert_array_equal(now.parameters[:, free], first[now.ancestors][:, free])
    again = OneLookSampler.start(seen, **common, rng=np.random.default_rng(4), settings=settings)
    again.unpack(*sampler.pack())
    np.testing.assert_array_equal(again.particles.ancestors, now.ancestors)


def test_moves_between_resamplings_steady_the_evidence():
    """Ten runs on a hub of two modes: the root of the mean square error of the log-evidence is not half as large."""
    _, seen = multimodal_problems()["hub 2"]
    exact = qp.posterior(seen, prior=GaussianPrior(scale=2.0), method="exact", particles=1).log_evidence
    spread, common = {}, {"prior": GaussianPrior(scale=2.0), "noise": Tolerance(), "particles": 125}
    for moves_between in (0, 3):
        found, settings = [], OneLookSettings(moves_between=moves_between)
        for seed in range(10):
            sampler = OneLookSampler.start(seen, **common, rng=np.random.default_rng(seed), settings=settings)
            sampler.update(seen)
            found.append(sampler.particles.log_evidence - exact)
        spread[moves_between] = np.sqrt(np.mean(np.square(found)))
    assert spread[3] < 0.5 * spread[0]
