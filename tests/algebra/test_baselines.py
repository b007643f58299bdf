"""Each baseline on its own terms: conjugate updates, regressions, bonuses and moments computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from qposterior.agents.protocol import Observation


def chain(discount=1.0):
    """0 → 1 → goal 2 by action 0; action 1 of state 0 leads to the goal at once."""
    edges = [(0, 0, 1, 1.0, 1.0), (0, 1, 2, 1.0, 0.5), (1, 0, 2, 1.0, 2.0)]
    return qp.FiniteMDP.from_edges(edges, goal=[2], discount=discount)


def see(agent, mdp, state, action, reward, times=1):
    k = mdp.space.pair(state, action)
    successor = int(mdp.transitions.row(k)[0][0])
    for _ in range(times):
        agent.observe(
            Observation(
                state=state,
                action=action,
                reward=reward,
                next_state=successor,
                terminated=bool(mdp.space.is_goal[successor]),
            )
        )


def test_psrl_rewards_follow_the_normal_gamma_posterior_of_repeated_readings():
    mdp = chain()
    agent = qp.make_agent(
        "psrl", mdp, horizon=2, repeats=3, shape=1.5, rate=0.7, mean_count=2.0, reward_mean=0.4, seed=0
    )
    readings = [1.0, 2.5, -0.3]
    for reward in readings:
        see(agent, mdp, 0, 0, reward)
    # The textbook update, one reading at a time, each three times.
    mean, count, shape, rate = 0.4, 2.0, 1.5, 0.7
    for reward in np.repeat(readings, 3):
        rate += 0.5 * count * (reward - mean) ** 2 / (count + 1.0)
        mean = (count * mean + reward) / (count + 1.0)
        count += 1.0
        shape += 0.5
    found = [value[0] for value in agent.reward_posterior()]
    np.testing.assert_allclose(found, [mean, count, shape, rate])
    assert agent.reward_posterior()[0][1] == 0.4  # a pair never seen keeps its prior
    draws = np.array([agent.draw_rewards() for _ in range(4000)])
    law = stats.t(2.0 * shape, loc=mean, scale=np.sqrt(rate / (shape * count)))
    assert stats.kstest(draws[:, 0], law.cdf).pvalue > 1e-4


def test_psrl_rows_count_every_observation_ten_times():
    mdp = qp.make_environment("deep-sea", depth=5)
    agent = qp.make_agent("psrl", mdp, horizon=4, seed=0)
    assert agent.concentration == mdp.space.num_states**-0.5
    k = mdp.space.pair(0, 0)
    successor = int(mdp.transitions.row(k)[0][0])
    agent.begin_episode(0)
    see(agent, mdp, 0, 0, 0.0)
    share = []
    for _ in range(3000):
        rows = agent.draw_rows()
        successors, weights = rows.row(k)
        share.append(weights[successors == successor].sum())
    alpha = agent.concentration
    law = stats.beta(10 + alpha, 13 * alpha)  # its successor, and 13 of 15 states that have not been met
    assert abs(np.mean(share) - law.mean()) < 4.5 * law.std() / np.sqrt(3000)
    assert not agent.is_settled()


def test_rlsvi_is_the_bayesian_regression():
    mdp = chain(discount=0.8)
    agent = qp.make_agent("rlsvi", mdp, horizon=2, noise_sd=0.5, prior_sd=2.0, seed=0)
    see(agent, mdp, 0, 0, 1.5, times=4)
    mean, sd = agent.regression(np.array([0.0, 3.0, 0.0]))
    # n/σ² = 16, 1/λ = 1/4, target 1.5 + 0.8 · 3.
    np.testing.assert_allclose([mean[0], sd[0]], [16 * 3.9 / 16.25, 16.25**-0.5])
    np.testing.assert_allclose([mean[1], sd[1]], [0.0, 2.0])


def test_ucbvi_adds_the_hoeffding_bonus_and_clips_it():
    mdp = chain(discount=0.8)
    options = {"max_reward": 2.0, "bonus_scale": 0.1, "failure": 0.1}
    agent = qp.make_agent("ucbvi", mdp, horizon=2, seed=0, **options)
    see(agent, mdp, 0, 0, 1.0, times=9)
    bonus = 0.1 * 4.0 * np.sqrt(np.log(3 * 2 / 0.1) / 9)
    q = agent.optimistic_q(np.array([0.0, 1.0, 0.0]), steps_left=2)
    np.testing.assert_allclose(q[0], 1.0 + 0.8 * 1.0 + bonus)
    assert q[1] == 4.0  # never seen: all that could still be paid
    clipped = agent.optimistic_q(np.array([0.0, 50.0, 0.0]), steps_left=2)
    assert clipped[0] == 4.0
    # Where nothing pays, ending at once is the best that could be: the bound is 0.
    loser = qp.make_agent("ucbvi", mdp, horizon=2, seed=0, **(options | {"max_reward": -1.0}))
    assert loser.optimistic_q(np.zeros(3), steps_left=2).max() == 0.0


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_bayesian_q_learning_updates_by_the_moments_of_the_return(discount):
    mdp = chain(discount)
    agent = qp.make_agent("bayesian-q-learning", mdp, horizon=2, mean=0.5, mean_count=2.0, shape=3.0, rate=1.2, seed=0)
    see(agent, mdp, 1, 0, 2.0)
    # A return that is known: the plain conjugate update.
    np.testing.assert_allclose(agent.mean[2], (2 * 0.5 + 2.0) / 3)
    np.testing.assert_allclose(agent.rate[2], 1.2 + 2 * 1.5**2 / 6)
    m1, m2 = agent.moments_after(1, False)
    variance = 4.0 / 3.0 * agent.rate[2] / (agent.shape[2] - 1.0)
    np.testing.assert_allclose([m1, m2], [agent.mean[2], variance + agent.mean[2] ** 2])
    see(agent, mdp, 0, 0, 1.0)
    first = 1.0 + discount * m1
    np.testing.assert_allclose(agent.mean[0], (2 * 0.5 + first) / 3)
    np.testing.assert_allclose(agent.rate[0], 1.2 + 0.5 * discount**2 * variance + 2 * (first - 0.5) ** 2 / 6)
    assert (agent.count[0], agent.shape[0]) == (3.0, 3.5)


def test_bayesian_q_learning_acts_with_the_probability_of_being_best():
    bandit = qp.make_environment("bandit", means=[0.0, 1.0])
    agent = qp.make_agent("bayesian-q-learning", bandit, horizon=1, seed=1)
    agent.mean[:], agent.count[:] = [0.0, 0.7], [3.0, 9.0]
    share = np.mean([agent.act(0) for _ in range(4000)])
    rng = np.random.default_rng(0)
    spread = np.sqrt(agent.rate / (agent.shape * agent.count))
    draws = agent.mean + spread * rng.standard_t(4.0, (200_000, 2))
    expected = np.mean(draws[:, 1] > draws[:, 0])
    assert abs(share - expected) < 4.5 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("psrl", {"repeats": 0}),
        ("rlsvi", {"noise_sd": 0.0}),
        ("ucbvi", {"failure": 2.0}),
        ("bayesian-q-learning", {"shape": 1.0}),
    ],
)
def test_bad_settings_are_named(name, options):
    with pytest.raises(qp.InvalidInputError, match=r"must (be|lie in)"):
        qp.make_agent(name, chain(), horizon=2, **options)


@pytest.mark.parametrize("name", ["psrl", "rlsvi", "ucbvi"])
def test_baselines_find_the_treasure_of_a_small_sea(name):
    sea = qp.make_environment("deep-sea", depth=5)
    run = qp.explore(qp.make_agent(name, sea, horizon=4, seed=0), sea, episodes=300, seed=0)
    assert np.mean(run.regret[-50:]) < 0.2


def test_unseen_pairs_lead_to_unmet_states_while_there_are_some():
    mdp = qp.make_environment("deep-sea", depth=4)
    agent = qp.make_agent("psrl-deterministic", mdp, horizon=4, successors="unmet", seed=3)
    agent.begin_episode(0)
    for state, action in [(0, 0), (2, 1), (3, 0)]:
        see(agent, mdp, state, action, 0.0)
    unmet = set(range(10)) - {0, 2, 3, int(mdp.transitions.row(mdp.space.pair(3, 0))[0][0])}
    drawn = [agent.draw_rows().successor for _ in range(300)]
    for k in np.flatnonzero(~agent.experience.observed):
        # 300 draws from 6 states: the chance to miss one is below 1e-22 a pair.
        assert {int(rows[k]) for rows in drawn} == unmet


def test_an_unknown_rule_for_successors_is_named():
    with pytest.raises(qp.InvalidInputError, match="did you mean 'unmet'"):
        qp.make_agent("psrl-deterministic", chain(), horizon=2, successors="unmeet")


def test_layers_are_those_of_the_steps_at_which_states_were_met():
    mdp = qp.make_environment("deep-sea", depth=3)
    layered, flat = (
        qp.make_agent("psrl", mdp, horizon=2, concentration=1.0, layered=layered, seed=0) for layered in (True, False)
    )
    for agent in (layered, flat):
        agent.begin_episode(0)
        see(agent, mdp, 0, 0, 0.0)
        see(agent, mdp, 2, 0, 0.0)
    assert np.diff(flat.draw_rows().row_start).tolist() == [6] * 6
    # Met: 0, then 2, then 5. After 0: 2 or 1, 3, 4; after 1, never met: 1, 3, 4; after 2: 5 or 1, 3, 4.
    assert np.diff(layered.draw_rows().row_start).tolist() == [4, 4, 3, 3, 4, 4]


def test_q_learning_moves_towards_the_target_and_dithers():
    mdp = chain(discount=0.8)
    agent = qp.make_agent("q-learning", mdp, horizon=2, epsilon=0.25, learning_rate=0.5, initial_value=3.0, seed=0)
    see(agent, mdp, 1, 0, 2.0)
    np.testing.assert_allclose(agent.values, [3.0, 3.0, 2.5])  # 3 + (2 − 3) / 2: nothing follows the goal
    see(agent, mdp, 0, 0, 1.0)
    np.testing.assert_allclose(agent.values, [3.0 + 0.5 * (1.0 + 0.8 * 2.5 - 3.0), 3.0, 2.5])
    agent.values[:] = [1.0, 0.0, 0.0]
    worse = sum(agent.act(0) == 1 for _ in range(4000))
    assert abs(worse - 500) < 90  # Binomial(4000, 1/8): 4.3 standard deviations, false alarm 2e-5


def test_r_max_stays_optimistic_where_everything_costs():
    """Four steps at −1 against one: what was not tried may end at once, so it is tried."""
    edges = [(s, 0, s + 1, 1.0, -1.0) for s in range(4)] + [(0, 1, 4, 1.0, -1.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[4], initial=[1.0, 0.0, 0.0, 0.0, 0.0])
    for transitions in ("known", "revealed", "dirichlet"):
        for seed in range(4):
            agent = qp.make_agent("r-max", mdp, horizon=20, transitions=transitions, known_after=1, seed=seed)
            run = qp.explore(agent, mdp, episodes=6, seed=seed)
            assert run.regret[-1] == 0.0


def test_r_max_knows_a_pair_after_as_many_looks_as_it_was_told():
    mdp = chain()
    agent = qp.make_agent("r-max", mdp, horizon=2, known_after=2, seed=0)
    for k in range(2):
        see(agent, mdp, 0, 1, 0.5)
        agent.make_plan()
        assert agent._planned_for.tolist() == [False, k == 1, False]


def test_bonuses_are_paid_at_every_step_that_is_left():
    from qposterior.agents.planning import plan

    space, bonus = chain(discount=0.5).space, np.array([np.nan, 1.0, np.nan])
    rows = chain().transitions
    for paid, action in ((1.74, 1), (1.76, 0)):  # 1 + 0.5 + 0.25 = 1.75 over three steps
        held = plan(space, rows, np.array([paid, 0.0, 0.0]), horizon=3, rng=np.random.default_rng(0), bonus=bonus)
        assert held[0, 0] == action
    # A value that has settled for one step says nothing about later bonuses.
    long = plan(chain().space, rows, np.array([5.0, 0.0, 0.0]), horizon=20, rng=np.random.default_rng(0), bonus=bonus)
    assert (long[0, 0], long[-1, 0]) == (1, 0)


def test_ucbvi_keeps_a_bonus_where_the_best_mean_is_0():
    bandit = qp.make_environment("bandit", means=[0.0, -0.5])
    agent = qp.make_agent("ucbvi", bandit, horizon=1, bonus_scale=1.0, seed=0)
    see(agent, bandit, 0, 0, -0.6)
    see(agent, bandit, 0, 1, -0.5)
    assert agent.size == 0.5
    np.testing.assert_allclose(
        agent.optimistic_q(np.zeros(2), steps_left=1),
        np.minimum(np.array([-0.6, -0.5]) + 0.5 * np.sqrt(np.log(2 / 0.05)), 0.0),
    )


def test_ucbvi_counts_the_steps_that_are_left():
    mdp = chain()
    agent = qp.make_agent("ucbvi", mdp, horizon=5, max_reward=2.0, bonus_scale=0.1, failure=0.1, seed=0)
    see(agent, mdp, 0, 0, 1.0, times=9)
    q = agent.optimistic_q(np.zeros(3), steps_left=2)
    np.testing.assert_allclose(q[:2], [1.0 + 0.1 * 4.0 * np.sqrt(np.log(3 * 5 / 0.1) / 9), 4.0])
