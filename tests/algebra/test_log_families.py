"""The families of the calibration sweep: their truth, their logs, the sums of a log and the methods of comparison."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from families import FAMILIES, NULL_FAMILIES, Problem, draw_problem, exact, simulate, value_of
from log_methods import METHODS, bootstrap, plain_conjugate, point_estimate, read_log


def log_of(problem, readings, seed):
    frame = simulate(problem, readings, np.random.default_rng(seed))
    return read_log(frame, discount=problem.discount, is_goal=problem.is_goal, num_actions=problem.behaviour.shape[1])


def test_there_are_enough_families_and_each_says_what_it_is():
    assert len(FAMILIES) >= 13
    assert all(family.__doc__.endswith(".") for family in FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_truth_is_that_of_solve(family):
    for seed in range(3):
        problem = draw_problem(family, seed)
        mdp = qp.FiniteMDP.from_arrays(
            problem.rows, problem.mean_reward, np.flatnonzero(problem.is_goal), discount=problem.discount
        )
        solution = qp.solve(mdp)
        q, value = exact(problem)
        np.testing.assert_allclose(q, solution.q, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(value, solution.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_problem_has_the_promised_size_and_is_the_same_for_the_same_seed(family):
    for seed in range(20):
        problem = draw_problem(family, seed)
        num_states, num_actions = problem.behaviour.shape
        assert 5 <= num_states <= 30
        assert 2 <= num_actions <= 10
        assert (problem.rows >= 0).all()
        np.testing.assert_allclose(problem.rows.sum(axis=2), 1.0)
        np.testing.assert_allclose(problem.behaviour[~problem.is_goal].sum(axis=1), 1.0)
        assert (problem.behaviour[~problem.is_goal].sum(axis=0) > 0).all(), "an action the log knows nothing of"
    again = draw_problem(family, 19)
    np.testing.assert_array_equal(problem.rows, again.rows)
    assert simulate(problem, 3, np.random.default_rng(1)).equals(simulate(again, 3, np.random.default_rng(1)))
    assert not np.array_equal(draw_problem(family, 18).reward, problem.reward)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_value_of_a_policy_is_where_its_backups_settle(family):
    problem = draw_problem(family, 4)
    policy = np.random.default_rng(0).dirichlet(np.ones(problem.behaviour.shape[1]), problem.is_goal.size)
    rows = np.einsum("sa,sat->st", policy, problem.rows)
    reward = np.einsum("sa,sa->s", policy, problem.mean_reward)
    value = np.zeros(problem.is_goal.size)
    for _ in range(20000):
        value = np.where(problem.is_goal, 0.0, reward + problem.discount * rows @ value)
    np.testing.assert_allclose(value_of(problem, policy), value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", NULL_FAMILIES)
def test_no_policy_is_better_than_the_logged_one_of_a_null_family(family):
    for seed in range(10):
        problem = draw_problem(family, seed)
        np.testing.assert_allclose(value_of(problem, problem.behaviour), exact(problem)[1], atol=1e-9)


def test_what_was_never_logged_where_the_logged_policy_is_optimal_is_worse():
    problem = draw_problem("null_optimal", 0)
    q, value = exact(problem)
    gap = value[:, None] - q
    assert (gap[problem.behaviour > 0] < 1e-9).all()
    assert (gap[problem.behaviour == 0] > 0.29).all()
    assert (problem.behaviour == 0).any()


@pytest.mark.parametrize(("family", "sign"), [("successor_good", 1.0), ("successor_bad", -1.0)])
def test_the_successor_decides_rewards_with_the_sign_that_the_family_is_there_for(family, sign):
    correlations = []
    for seed in range(10):
        problem = draw_problem(family, seed)
        value = exact(problem)[1]
        deviation = problem.reward - problem.mean_reward[:, :, None]
        ahead = value - (problem.rows @ value)[:, :, None]
        correlations.append(np.sum(problem.rows * deviation * ahead))
    assert (np.sign(correlations) == sign).all()


def test_a_balanced_log_has_as_many_readings_of_each_pair_as_were_asked_for():
    problem = draw_problem("slippery_grid", 0)
    frame = simulate(problem, 7, np.random.default_rng(0))
    counts = frame.groupby(["state", "action"]).size()
    assert (counts == 7).all()
    assert len(counts) == 4 * (problem.is_goal.size - 1)
    goals = {f"s{s:02d}" for s in np.flatnonzero(problem.is_goal)}
    assert not goals & set(frame["state"])
    np.testing.assert_array_equal(frame["terminated"], frame["next_state"].isin(goals))
    assert frame["episode"].is_unique


def test_an_unbalanced_log_follows_the_behaviour_and_never_tries_the_rest():
    problem = draw_problem("unbalanced", 0)
    log = log_of(problem, 2000, 1)
    assert log.tried.sum() == 2000 * (problem.behaviour > 0).sum()
    assert (log.tried[problem.behaviour == 0] == 0).all()
    expected = problem.start[:, None] * problem.behaviour * log.tried.sum()
    z = (log.tried - expected)[expected > 0] / np.sqrt(expected[expected > 0])
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(log.policy, log.tried / log.tried.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(log.start, log.tried.sum(axis=1) / log.tried.sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_log_has_the_frequencies_and_mean_rewards_of_its_problem(family):
    """z-scores of about 200 to 6,000 cells; 5.5 is passed by chance in fewer than 1 in 1,000 of these tests."""
    problem = draw_problem(family, 2)
    log = log_of(problem, 2000, 3)
    tried = log.tried[:, :, None]
    expected = tried * problem.rows
    error = np.sqrt(np.maximum(expected * (1.0 - problem.rows), 1e-300))
    often = (expected > 20) & (problem.rows < 1)
    assert (log.counts[(problem.rows == 0) & (tried > 0)] == 0).all()
    assert np.abs((log.counts - expected)[often] / error[often]).max(initial=0.0) < 5.5
    # The spread of a pair, not of a cell: where purchases are rare a cell without any would have none.
    residual = log.reward - problem.reward[log.state, log.action, log.following]
    spread = np.full(log.tried.shape, np.nan)
    for state, action in np.argwhere(log.tried > 0):
        spread[state, action] = residual[(log.state == state) & (log.action == action)].std()
    seen = log.counts > 600
    mean = log.successor_reward_sum[seen] / log.counts[seen] + log.reward.mean()
    error = np.broadcast_to(spread[:, :, None], seen.shape)[seen] / np.sqrt(log.counts[seen]) + 1e-9
    assert np.abs((mean - problem.reward[seen]) / error).max() < 5.5


def test_the_sums_of_a_log_are_those_of_pandas():
    problem = draw_problem("clinical", 1)
    log = log_of(problem, 9, 4)
    frame = log.frame.assign(deviation=log.frame["reward"] - log.frame["reward"].mean())
    for (state, action), part in frame.groupby(["state", "action"]):
        place = int(state[1:]), int(action[1:])
        assert log.tried[place] == len(part)
        np.testing.assert_allclose(log.reward_sum[place], part["reward"].sum(), atol=1e-9)
        np.testing.assert_allclose(log.reward_square_sum[place], (part["deviation"] ** 2).sum(), atol=1e-9)
        for following, readings in part.groupby("next_state"):
            cell = (*place, int(following[1:]))
            assert log.counts[cell] == len(readings)
            np.testing.assert_allclose(log.successor_reward_sum[cell], readings["deviation"].sum(), atol=1e-9)
            np.testing.assert_allclose(log.successor_square_sum[cell], (readings["deviation"] ** 2).sum(), atol=1e-9)


def test_the_point_estimate_takes_an_untried_pair_for_the_average_of_its_state():
    problem = draw_problem("unbalanced", 5)
    log = log_of(problem, 30, 6)
    (rows,), (rewards,) = point_estimate(log, 1, np.random.default_rng(0))
    state, action = np.argwhere((log.tried == 0) & (log.tried.sum(axis=1, keepdims=True) > 0))[0]
    np.testing.assert_allclose(rows[state, action], log.counts[state].sum(axis=0) / log.counts[state].sum())
    np.testing.assert_allclose(rewards[state, action], log.reward_sum[state].sum() / log.counts[state].sum())
    tried = log.tried > 0
    np.testing.assert_allclose(rows[tried], log.counts[tried] / log.tried[tried][:, None])
    np.testing.assert_allclose(rewards[tried], log.reward_sum[tried] / log.tried[tried])


def test_the_bootstrap_has_the_moments_of_drawing_the_readings_of_a_pair_anew():
    problem = draw_problem("successor_good", 0)
    log, num = log_of(problem, 6, 7), 20000
    rows, rewards = bootstrap(log, num, np.random.default_rng(0))
    share = log.counts / 6
    error = np.sqrt(share * (1 - share) / 6)
    np.testing.assert_allclose(rows.mean(axis=0), share, atol=5 * error.max() / np.sqrt(num))
    np.testing.assert_allclose(rows.std(axis=0), error, atol=0.01)
    mean = log.reward_sum / 6
    variance = log.reward_square_sum / 6 - (mean - log.reward.mean()) ** 2
    np.testing.assert_allclose(rewards.mean(axis=0), mean, atol=5 * np.sqrt(variance.max() / 6 / num))
    np.testing.assert_allclose(rewards.var(axis=0), variance / 6, rtol=0.06)
    # Rewards are drawn with their successors: their covariance with a row is that of the readings.
    state, action = 3, 1
    chosen = (log.state == state) & (log.action == action)
    most = np.bincount(log.following[chosen]).argmax()
    covariance = np.cov(log.reward[chosen], log.following[chosen] == most, ddof=0)[0, 1] / 6
    found = np.cov(rewards[:, state, action], rows[:, state, action, most])[0, 1]
    np.testing.assert_allclose(found, covariance, atol=5 * np.sqrt(variance.max()) / 6 / np.sqrt(num))


def test_the_plain_posterior_has_the_moments_of_its_conjugate_form():
    problem = draw_problem("garnet", 0)
    log, num = log_of(problem, 12, 8), 20000
    rows, rewards = plain_conjugate(log, num, np.random.default_rng(0))
    seen = log.counts.sum(axis=1) > 0
    shape = log.counts + (seen / seen.sum(axis=1, keepdims=True))[:, None, :]
    np.testing.assert_allclose(rows.mean(axis=0), shape / shape.sum(axis=2, keepdims=True), atol=0.006)
    assert (rows[:, ~seen[:, None, :].repeat(shape.shape[1], axis=1)] == 0).all()
    # A t posterior with n degrees of freedom, shrunk a little to the mean of all rewards.
    mean = log.reward_sum / 12
    squares = log.reward_square_sum - 12 * (mean - log.reward.mean()) ** 2
    within = squares.sum() / (log.tried.sum() - log.tried.size)
    variance = (within + squares) / 10 / 12
    np.testing.assert_allclose(rewards.mean(axis=0), mean, atol=0.35)
    np.testing.assert_allclose(np.median(rewards.var(axis=0) / variance), 0.95, atol=0.05)


def test_draws_of_every_method_are_models():
    problem = draw_problem("unbalanced", 1)
    log = log_of(problem, 5, 9)
    for method in METHODS.values():
        if method.draw_fn is not None:
            rows, rewards = method.draw_fn(log, 20, np.random.default_rng(1))
            assert rows.shape[1:] == log.counts.shape
            assert rewards.shape == rows.shape[:3]
            assert np.isfinite(rewards).all()
            np.testing.assert_allclose(rows.sum(axis=3), 1.0)


def test_a_problem_without_a_finite_optimum_is_refused():
    problem = Problem(
        rows=np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]),
        reward=np.ones((2, 2, 2)),
        noise=lambda rng, state, action, following: np.zeros(state.size),
        discount=1.0,
        is_goal=np.array([False, True]),
        behaviour=np.full((2, 2), 0.5),
    )
    with pytest.raises(ValueError, match="a loop pays"):
        exact(problem)
