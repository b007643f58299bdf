"""Planning against solve and brute force; learning times on hand-made sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qposterior as qp
from qposterior.agents.planning import plan
from qposterior.experiments.metrics import (
    bsuite_learning_time,
    found_episode,
    learning_time,
    plan_value,
    random_policy_regret,
    trailing_learning_time,
)


@given(seed=st.integers(0, 10**6), states=st.integers(2, 4), discount=st.sampled_from([1.0, 0.8]))
def test_a_plan_is_the_best_of_all_plans_even_where_loops_pay(seed, states, discount):
    mdp = qp.make_environment("random-mdp", num_states=states, discount=discount, seed=seed)
    rewards = np.random.default_rng(seed).normal(1.0, 2.0, mdp.space.num_pairs)
    from dataclasses import replace

    mdp = replace(mdp, rewards=rewards)
    horizon = 2
    best = plan(mdp.space, mdp.transitions, rewards, horizon=horizon, rng=np.random.default_rng(0))
    policies = [np.append(p, -1) for p in itertools.product(range(2), repeat=states - 1)]
    values = [plan_value(mdp, np.array(steps), horizon) for steps in itertools.product(policies, repeat=horizon)]
    np.testing.assert_allclose(plan_value(mdp, best, horizon), np.max(values, axis=0), atol=1e-12)


def test_a_long_plan_starts_with_the_stationary_optimum():
    mdp = qp.make_environment("random-mdp", num_states=7, seed=5)
    truth = qp.solve(mdp)
    held = plan(mdp.space, mdp.transitions, mdp.rewards, horizon=3000, rng=np.random.default_rng(0))
    assert held.shape == (3000, 7)
    np.testing.assert_array_equal(held[0], truth.policy)
    np.testing.assert_allclose(plan_value(mdp, held, 3000), truth.value, atol=1e-8)


def test_ties_are_broken_evenly():
    mdp = qp.FiniteMDP.from_edges([(0, a, 1, 1.0, 1.0) for a in range(3)], goal=[1])
    picks = [
        plan(mdp.space, mdp.transitions, mdp.rewards, horizon=1, rng=np.random.default_rng(i))[0, 0]
        for i in range(3000)
    ]
    # Chi-square with 2 degrees of freedom: 18.4 is exceeded with probability 1e-4.
    assert ((np.bincount(picks, minlength=3) - 1000) ** 2 / 1000).sum() < 18.4


def test_learning_time_of_the_paper():
    assert learning_time([0.0, 0.0]) == 2  # never episode 1
    assert learning_time([1.0, 1.0, 0.0, 0.0, 0.0]) == 4
    assert learning_time([1.0, 0.1, 0.1]) == 3  # 1.1/2 = 0.55 > 0.5
    assert learning_time([1.0, 1.0, 1.0]) is None
    assert learning_time([]) is None


def test_bsuite_rule_counts_bad_episodes():
    assert bsuite_learning_time([1] * 9 + [0]) is None  # exactly 90 % is not below
    assert bsuite_learning_time([1] * 9 + [0, 0]) == 11
    assert bsuite_learning_time([0]) == 1


def test_trailing_rule_wants_the_mean_to_stay_low():
    assert trailing_learning_time(np.zeros(150), 1.0) == 1
    assert trailing_learning_time(np.zeros(50), 1.0) is None  # too short to have shown it
    early = np.concatenate([np.ones(10), np.zeros(300)])
    # Mean below 0.1 from the first e with 10/e < 0.1.
    assert trailing_learning_time(early, 1.0) == 101
    relapse = np.concatenate([np.zeros(200), np.ones(50), np.zeros(200)])
    # 9 ones or fewer in the window: the window of 100 ending at e holds 250 − (e − 100) ones from e = 250 on.
    assert trailing_learning_time(relapse, 1.0) == 341


def test_found_episode_is_the_first_optimal_return():
    assert found_episode([0.1, 0.99, 0.99], 0.99) == 2
    assert found_episode([0.1], 0.99) is None


@pytest.mark.parametrize("environment", ["deep-sea", "two-state", "river-swim"])
def test_random_regret_is_that_of_random_episodes(environment):
    mdp = qp.make_environment(environment)
    agent = qp.make_agent("random", mdp, horizon=9, seed=1)
    result = qp.explore(agent, mdp, episodes=3000, seed=0, keep_transitions=False)
    exact = random_policy_regret(mdp, qp.solve(mdp).value, result.world.cap)
    error = np.std(result.regret) / np.sqrt(3000)
    assert abs(np.mean(result.regret) - exact) < 4 * error  # false-alarm rate 6e-5, fixed seed
