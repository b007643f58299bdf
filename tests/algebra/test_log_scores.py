"""The judge of the calibration sweep: solving many models at once, improving a policy, scoring intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dense import Models, improve, optimal_values, policy_values, single_changes
from families import draw_problem, exact, simulate
from log_calibration import judge_log, key_of, open_tasks, read_options, read_store, run
from log_methods import read_log
from log_page import write_calibration_page
from log_scores import natural_scale, recommend, score_draws, score_interval, score_optimum
from log_summary import summarise, summary_text


def random_models(num, states, actions, *, seed=0, discount=0.9):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(states, 0.5), (num, states, actions))
    return Models(rows=rows, rewards=rng.normal(size=(num, states, actions)), discount=discount)


def one_hot(choice, actions):
    return np.eye(actions)[np.asarray(choice)]


def test_optimal_values_solve_every_model_of_a_batch():
    models = random_models(40, 6, 3, discount=0.97)
    q, value, is_finite = optimal_values(models)
    assert is_finite.all()
    np.testing.assert_allclose(value, q.max(axis=2))
    backup = models.rewards + 0.97 * np.einsum("dsat,dt->dsa", models.rows, value)
    np.testing.assert_allclose(q, backup, atol=1e-8)


def test_with_discount_one_a_loop_that_pays_and_a_trap_are_left_out_and_the_rest_is_exact():
    # One state; action 0 stays with probability p and pays r, action 1 leaves and pays 0.
    stay, pay = np.array([0.5, 1.0, 0.5, 1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    rows = np.stack([stay, np.zeros(4)], axis=1)[:, None, :, None]
    rewards = np.stack([pay, np.zeros(4)], axis=1)[:, None, :]
    q, value, is_finite = optimal_values(Models(rows=rows, rewards=rewards, discount=1.0))
    np.testing.assert_array_equal(is_finite, [True, False, True, True])
    np.testing.assert_allclose(value[[0, 2, 3], 0], [2.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(q[3, 0], [-1.0, 0.0], atol=1e-6)
    trap = Models(rows=np.ones((1, 1, 2, 1)), rewards=np.full((1, 1, 2), -1.0), discount=1.0)
    assert not optimal_values(trap)[2][0]


def test_the_value_of_a_policy_is_nan_where_it_never_ends():
    rows = np.array([0.5, 1.0]).reshape(2, 1, 1, 1)
    value = policy_values(Models(rows=rows, rewards=-np.ones((2, 1, 1)), discount=1.0), np.ones((1, 1)))
    np.testing.assert_allclose(value[:, 0], [-2.0, np.nan], atol=1e-6)


def test_models_leave_out_their_goals():
    rng = np.random.default_rng(0)
    rows, rewards = rng.dirichlet(np.ones(3), (2, 3, 2)), rng.normal(size=(2, 3, 2))
    models = Models.of(rows, rewards, discount=1.0, is_goal=np.array([False, True, False]))
    np.testing.assert_array_equal(models.rows, rows[:, [0, 2]][..., [0, 2]])
    np.testing.assert_array_equal(models.rewards, rewards[:, [0, 2]])


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_no_single_change_raises_an_improved_policy(is_deterministic):
    models = random_models(30, 5, 3, seed=1)
    rng = np.random.default_rng(2)
    start = rng.dirichlet(np.ones(5))
    first = one_hot(rng.integers(0, 3, 5), 3) if is_deterministic else rng.dirichlet(np.ones(3), 5)
    policy = improve(models, first, start)
    worth = np.mean(policy_values(models, policy) @ start)
    assert worth > np.mean(policy_values(models, first) @ start)
    for state in range(5):
        for action in range(3):
            changed = policy.copy()
            changed[state] = np.eye(3)[action]
            assert np.mean(policy_values(models, changed) @ start) <= worth + 1e-8


def test_what_a_single_change_adds_is_exact():
    models = random_models(7, 4, 3, seed=6, discount=0.95)
    start, policy = np.array([0.1, 0.2, 0.3, 0.4]), np.random.default_rng(0).dirichlet(np.ones(3), 4)
    worth, gains = single_changes(models, policy, start)
    assert worth == pytest.approx(np.mean(policy_values(models, policy) @ start))
    for state in range(4):
        for action in range(3):
            changed = policy.copy()
            changed[state] = np.eye(3)[action]
            assert gains[state, action] == pytest.approx(np.mean(policy_values(models, changed) @ start) - worth)


def test_a_policy_that_cannot_be_improved_is_left_alone():
    models = random_models(1, 5, 3, seed=3)
    best = one_hot(optimal_values(models)[0][0].argmax(axis=1), 3)
    np.testing.assert_array_equal(improve(models, best, np.full(5, 0.2)), best)


def test_the_recommended_policy_is_at_least_as_good_as_each_candidate():
    models = random_models(50, 4, 3, seed=4)
    start, logged = np.full(4, 0.25), np.full((4, 3), 1 / 3)
    q = optimal_values(models)[0]
    policy = recommend(models, q, logged, start)
    greedy = one_hot(q.mean(axis=0).argmax(axis=1), 3)
    mean_model = one_hot(optimal_values(models.mean())[0][0].argmax(axis=1), 3)
    worth = [np.mean(policy_values(models, one) @ start) for one in (policy, greedy, mean_model, logged)]
    assert worth[0] >= max(worth[1:]) - 1e-9


def test_where_all_actions_are_alike_in_every_draw_the_logged_policy_is_kept():
    models = random_models(20, 4, 1, seed=5)
    alike = Models(rows=models.rows.repeat(3, axis=2), rewards=models.rewards.repeat(3, axis=2), discount=0.9)
    logged = np.random.default_rng(0).dirichlet(np.ones(3), 4)
    policy = recommend(alike, optimal_values(alike)[0], logged, np.full(4, 0.25))
    np.testing.assert_array_equal(policy, logged)


def test_a_policy_is_chosen_on_the_first_half_of_the_draws_and_valued_on_the_second():
    problem = draw_problem("garnet", 0)
    frame = simulate(problem, 3, np.random.default_rng(0))
    actions = problem.behaviour.shape[1]
    log = read_log(frame, discount=problem.discount, is_goal=problem.is_goal, num_actions=actions)
    rows, rewards = problem.rows[None].repeat(4, axis=0), problem.mean_reward[None].repeat(4, axis=0)
    # The first half is the truth, negated: the worst policy looks best. The second half is the truth.
    rewards[:2] *= -1.0
    scores = score_draws(problem, log, (rows, rewards), 4)
    assert scores["gain_said"] == pytest.approx(scores["gain_true"])
    assert scores["gain_true"] < 0.0
    worst, best = -exact(replace(problem, reward=-problem.reward))[1], exact(problem)[1]
    true_q = exact(problem)[0]
    assert scores["regret"] == pytest.approx((best - worst) @ log.start / natural_scale(problem, true_q))
    assert scores["bias_policy"] == pytest.approx(0.0, abs=1e-9)


def test_an_interval_is_charged_its_width_and_twenty_times_what_it_misses_by():
    draws = np.linspace(0.0, 1.0, 101)[:, None].repeat(3, axis=1)
    scores = score_interval("x", draws, np.array([0.5, 1.05, -0.05]), 2.0)
    assert scores["x_covered"] == pytest.approx(1 / 3)
    assert scores["x_width"] == pytest.approx(0.9 / 2)
    assert scores["x_score"] == pytest.approx((0.9 + 20 * (0.0 + 0.1 + 0.1) / 3) / 2)


def test_the_log_score_counts_every_best_action_as_right_and_is_bounded():
    # State 0: actions 0 and 1 tie; state 1: action 2 is best and never greedy.
    true_q = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    q = np.zeros((10, 2, 3))
    q[:4, 0, 0], q[4:8, 0, 1], q[8:, 0, 2], q[:, 1, 0] = 1.0, 1.0, 1.0, 1.0
    scores = score_optimum(q, true_q, np.ones((2, 3), dtype=bool), num=10, scale=1.0)
    assert scores["log_score"] == pytest.approx(-(np.log(0.8) + np.log(0.05)) / 2)
    assert "untried_advantage_covered" not in scores


def test_pairs_that_draws_of_q_do_not_know_are_never_greedy():
    q = np.array([[[1.0, np.nan], [0.0, 2.0]]]).repeat(5, axis=0)
    true_q = np.array([[1.0, 5.0], [0.0, 2.0]])
    scores = score_optimum(q, true_q, ~np.isnan(q[0]), num=5, scale=1.0)
    assert scores["log_score"] == pytest.approx(-(np.log(0.1) + np.log(1.0)) / 2)


ARGUMENTS = ["--families", "null_identical", "--readings", "3", "--logs", "3", "--draws", "40", "--workers", "1"]
ARGUMENTS += ["--methods", "point,bootstrap,plain"]


def test_a_sweep_goes_on_where_it_was_stopped_and_forgets_what_was_judged_otherwise(tmp_path):
    options = read_options([*ARGUMENTS, "--store", str(tmp_path / "store.jsonl")])
    tasks = list(open_tasks(options, set()))
    assert [(task.seed, task.methods) for task in tasks] == [
        (seed, ("point", "bootstrap", "plain")) for seed in (1000, 1001, 1002)
    ]
    run(tasks[:1], options.store, 1)
    results = read_store(options.store)
    assert [result["method"] for result in results] == ["point", "bootstrap", "plain"]
    for one, other in zip(results, judge_log(tasks[0]), strict=True):
        assert {**one, "cpu": 0, "cpu_all": 0} == {**other, "cpu": 0, "cpu_all": 0}
    with options.store.open("a") as file:
        file.write('{"key": "cut o')
    run(tasks[1:2], options.store, 1)
    done = {result["key"] for result in read_store(options.store)}
    assert key_of("null_identical", 3, 1000, "plain", 40) in done
    assert [task.seed for task in open_tasks(options, done)] == [1002]
    more = read_options([*ARGUMENTS, "--store", str(options.store), "--draws", "50"])
    assert len(list(open_tasks(more, done))) == 3


def test_worked_cases_are_judged_beside_the_families_of_the_same_name(monkeypatch):
    monkeypatch.setattr("log_calibration.judge_case", lambda name, seed: [[0.5, 1.0, 1.0, 1.0, 1.0]])
    options = read_options([*ARGUMENTS, "--families", "maintenance", "--logs", "1", "--case-logs", "1"])
    tasks = list(open_tasks(options, set()))
    results = [result for task in tasks for result in judge_log(task)]
    assert [one.get("method", one.get("case")) for one in results] == [
        *("point", "bootstrap", "plain"),
        *("maintenance", "inventory", "support"),
    ]
    assert not list(open_tasks(options, {one["key"] for one in results}))


def test_the_summary_marks_what_is_below_its_bar_and_the_page_says_it(tmp_path):
    rows = []
    for seed in range(1000, 1040):
        good = {"advantage_covered": 0.9, "claims_gain": 0.0, "regret": 0.1, "log_score": 1.0}
        bad = {"advantage_covered": 0.8, "claims_gain": 1.0, "regret": 0.1, "log_score": 1.0 + 0.01 * (seed % 2 + 1)}
        for method, scores in (("plain", good), ("bootstrap", bad)):
            place = {"family": "null_identical", "readings": 5, "seed": seed, "method": method, "cpu": 1.0}
            rows.append(place | scores)
    fails = dict(zip(*summarise(rows)[["method", "fails"]].to_numpy().T, strict=True))
    assert fails == {"plain": [], "bootstrap": ["advantage covered", "false gains", "log_score worse"]}
    assert "0.80!" in summary_text(rows)
    case = {"case": "support", "seed": 1000, "pairs": [[0.9, 1.0, 1.0, 0.0, 1.0], [0.1, 0.0, 1.0, 1.0, 1.0]]}
    write_calibration_page(tmp_path / "page.md", [*rows, case], first_seed=1000, draws=40)
    page = (tmp_path / "page.md").read_text()
    assert "0.80!" in page
    assert "| gains are found where there are none | 0 | 1 |" in page
    assert "Seeds 1000 to 1039, none of which was used to choose a setting." in page
    assert "What `fit` says" not in page
    assert "hold the truth in 50.0%" in page
    as_default = [row | {"method": row["method"].replace("bootstrap", "model")} for row in rows]
    write_calibration_page(tmp_path / "page.md", as_default, first_seed=0, draws=40)
    page = (tmp_path / "page.md").read_text()
    assert "to be taken with care:** the intervals of Q(s, a) − V(s) hold the truth too seldom (5 readings); " in page
    assert "- gains are found where there are none: null identical 5" in page
    assert "settings were chosen on these" in page
