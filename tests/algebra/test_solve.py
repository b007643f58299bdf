"""solve: closed forms, an independent oracle, and the two ways in which the equations can fail."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qposterior as qp


def value_iteration(mdp, sweeps=20000):
    """The slow way, densely, as an independent answer."""
    space = mdp.space
    rows = mdp.transitions.matrix.toarray()
    value = np.zeros(space.num_states)
    for _ in range(sweeps):
        q = mdp.rewards + space.discount * rows @ value
        new = np.zeros(space.num_states)
        for s in space.deciding_states:
            new[s] = q[space.first_pair[s] : space.first_pair[s + 1]].max()
        if np.abs(new - value).max() < 1e-14:
            break
        value = new
    return q, value


@given(
    seed=st.integers(0, 10**6),
    states=st.integers(2, 9),
    actions=st.integers(1, 4),
    acyclic=st.booleans(),
    discount=st.sampled_from([1.0, 0.9, 0.999]),
)
def test_agrees_with_value_iteration_on_random_problems(seed, states, actions, acyclic, discount):
    mdp = qp.make_environment(
        "random-mdp", num_states=states, num_actions=actions, acyclic=acyclic, discount=discount, seed=seed
    )
    truth = qp.solve(mdp)
    q, value = value_iteration(mdp)
    np.testing.assert_allclose(truth.pair_q, q, atol=1e-8)
    np.testing.assert_allclose(truth.value, value, atol=1e-8)
    best = truth.pair_q[mdp.space.pair_index[mdp.space.deciding_states, truth.policy[mdp.space.deciding_states]]]
    np.testing.assert_allclose(best, truth.value[mdp.space.deciding_states], atol=1e-8)


def test_deep_sea_pays_one_less_the_way():
    for depth in (2, 10, 100):
        truth = qp.solve(qp.make_environment("deep-sea", depth=depth))
        np.testing.assert_allclose(truth.value[0], 1 - (depth - 1) / (100 * depth), rtol=1e-12)
        assert truth.policy[0] == 0


def test_two_state_example_of_the_paper():
    truth = qp.solve(qp.make_environment("two-state"))
    np.testing.assert_allclose(truth.q[0], [-2.0, -1.0])
    np.testing.assert_array_equal(truth.q[1], [0.0, 0.0])
    assert truth.policy.tolist() == [1, -1]


def test_known_gymnasium_values():
    cliff = qp.FiniteMDP.from_gymnasium("CliffWalking-v1")
    np.testing.assert_allclose(cliff.initial @ qp.solve(cliff).value, -13.0)
    lake = qp.FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=True, discount=0.99)
    np.testing.assert_allclose(qp.solve(lake).value[0], 0.5420259, atol=1e-6)
    taxi = qp.FiniteMDP.from_gymnasium("Taxi-v4")
    np.testing.assert_allclose(taxi.initial @ qp.solve(taxi).value, 7.93, atol=1e-9)


def edges_with_loop(loop_reward):
    """0 ⇄ 1 pays −1 and 1 + loop_reward·2, and 1 → 2 = goal costs 5."""
    return [(0, 0, 1, 1.0, -1.0), (1, 0, 0, 1.0, 1.0 + 2 * loop_reward), (1, 1, 2, 1.0, -5.0)]


@pytest.mark.parametrize("mean", [0.0, 0.25])
def test_a_loop_that_does_not_lose_is_named_with_its_mean(mean):
    mdp = qp.FiniteMDP.from_edges(edges_with_loop(mean), goal=[2])
    report = qp.check_uniqueness(mdp)
    assert report.proper_policy_exists
    assert not report.improper_policies_lose
    assert report.surviving_loop.tolist() == [0, 1]
    np.testing.assert_allclose(report.loop_mean_reward, mean, atol=1e-9)
    with pytest.raises(qp.NoUniqueSolutionError, match="states 0, 1 for ever") as error:
        qp.solve(mdp)
    assert error.value.states == (0, 1)


def test_a_loop_that_loses_a_little_is_fine_and_one_exits_at_once():
    truth = qp.solve(qp.FiniteMDP.from_edges(edges_with_loop(-0.01), goal=[2]))
    np.testing.assert_allclose(truth.value, [-6.0, -5.0, 0.0])


def test_a_stochastic_loop_of_mean_zero_is_found():
    # From 0 to 0 or 1 with ½, from 1 back to 0: stationary (2/3, 1/3), rewards −1 and 2, mean 0.
    edges = [(0, 0, 0, 0.5, -1.0), (0, 0, 1, 0.5, -1.0), (1, 0, 0, 1.0, 2.0), (1, 1, 2, 1.0, -9.0)]
    report = qp.check_uniqueness(qp.FiniteMDP.from_edges(edges, goal=[2]))
    assert report.surviving_loop.tolist() == [0, 1]
    np.testing.assert_allclose(report.loop_mean_reward, 0.0, atol=1e-9)


@pytest.mark.parametrize(("reward", "survives"), [(-1.0, []), (0.0, [0]), (1.0, [0])])
def test_a_trap_is_named_and_whether_it_pays_is_told(reward, survives):
    mdp = qp.FiniteMDP.from_edges([(0, 0, 0, 1.0, reward), (1, 0, 2, 1.0, 0.0), (1, 1, 0, 1.0, 0.0)], goal=[2])
    report = qp.check_uniqueness(mdp)
    assert report.trapped_states.tolist() == [0]
    assert report.surviving_loop.tolist() == survives
    with pytest.raises(qp.NoUniqueSolutionError, match="no goal can be reached from state 0"):
        qp.solve(mdp)


def test_free_frozen_lake_is_ill_posed_and_a_step_cost_cures_it():
    with pytest.raises(qp.NoUniqueSolutionError, match="step cost"):
        qp.solve(qp.FiniteMDP.from_gymnasium("FrozenLake-v1"))
    assert qp.solve(qp.FiniteMDP.from_gymnasium("FrozenLake-v1", step_cost=0.001)).value[0] > 0.7


def test_a_discount_needs_no_goal():
    swim = qp.make_environment("river-swim")
    q, value = value_iteration(swim)
    np.testing.assert_allclose(qp.solve(swim).pair_q, q, atol=1e-9)
    assert qp.solve(swim).policy.tolist() == [1] * 6
    assert value[-1] > value[0]


def test_a_table_whose_goal_is_hardly_ever_reached_is_named_instead_of_solved_by_rounding():
    # Every step costs, yet elimination once gave values of +1e13: I − P is singular up to rounding.
    edges = [(0, 0, 1, 1.0, -0.03), (1, 0, 0, 1.0, -0.01), (0, 0, 2, 1e-17, -0.03)]
    with pytest.raises(qp.NoUniqueSolutionError, match=r"states 0, 1 a goal is reached so rarely") as caught:
        qp.solve(qp.FiniteMDP.from_edges(edges, goal=[2]))
    assert caught.value.states == (0, 1)
    slow = [(0, 0, 1, 1.0, -1.0), (1, 0, 0, 1.0 - 1e-9, -1.0), (1, 0, 2, 1e-9, -1.0)]
    np.testing.assert_allclose(qp.solve(qp.FiniteMDP.from_edges(slow, goal=[2])).value[0], -2e9, rtol=1e-6)
