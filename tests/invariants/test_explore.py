"""explore: caps, seeds, regret, and worlds of every kind."""

from __future__ import annotations

import time

import gymnasium
import numpy as np
import pytest

import qposterior as qp
from qposterior.experiments.explore import EPISODE_COLUMNS, _warn_once, default_cap, make_world, spawn_seeds


class Circler:
    """Always takes action 0."""

    name, transitions, num_updates = "circler", "revealed", 0
    begin_episode = end_episode = observe = lambda self, *_: None

    def act(self, state):
        return 0

    def held_plan(self):
        return None


def test_the_cap_truncates_and_is_never_a_goal():
    seen = []
    circler = Circler()
    circler.observe = seen.append
    run = qp.explore(circler, qp.make_environment("two-state"), episodes=2, cap=7, seed=0)
    assert [row["steps"] for row in run.rows] == [7, 7]
    assert not any(row["reached_goal"] for row in run.rows)
    assert not any(o.terminated for o in seen)
    assert [row["return"] for row in run.rows] == [-7.0, -7.0]
    assert [row["regret"] for row in run.rows] == [6.0, 6.0]
    assert run.found_episode is None


def test_streams_of_environment_and_agent_are_independent_and_repeatable():
    one, two = spawn_seeds(5), spawn_seeds(5)
    draws = [np.random.default_rng(seed).random(4).tolist() for seed in (*one, *two)]
    assert draws[0] == draws[2]
    assert draws[1] == draws[3]
    assert draws[0] != draws[1]
    expected = np.random.SeedSequence(5).spawn(2)
    assert draws[0] == np.random.default_rng(expected[0]).random(4).tolist()


def test_rows_have_the_agreed_columns_and_new_pairs_add_up():
    sea = qp.make_environment("deep-sea", depth=5)
    agent = qp.make_agent("random", sea, horizon=4, seed=0)
    run = qp.explore(agent, sea, episodes=50, seed=0)
    assert tuple(run.episodes.columns) == EPISODE_COLUMNS
    assert run.episodes["new_pairs"].sum() == len({row[3:5] for row in run.transitions})
    np.testing.assert_allclose(run.episodes["regret"], qp.solve(sea).value[0] - run.episodes["return"])


def test_policy_regret_is_exact_where_a_plan_is_held_in_a_random_world():
    swim = qp.make_environment("river-swim", length=3)
    agent = qp.make_agent("r-max", swim, horizon=100, seed=0)
    run = qp.explore(agent, swim, episodes=400, seed=0, cap=100)
    settled = run.episodes.iloc[-1]["policy_regret"]
    # The settled plan is optimal over 100 steps; what is missing is the tail beyond the cap.
    tail = swim.space.discount**100 * qp.solve(swim).value.max()
    assert 0.0 <= settled <= tail
    noise = run.episodes["regret"].tail(300).mean()
    assert abs(noise - settled) < 4 * run.episodes["regret"].tail(300).std() / np.sqrt(300)


@pytest.mark.parametrize("as_id", [True, False])
def test_gymnasium_environments_run_as_ids_and_as_objects(as_id):
    mdp = qp.FiniteMDP.from_gymnasium("CliffWalking-v1")
    agent = qp.make_agent("r-max", mdp, horizon=100, seed=0)
    env = "CliffWalking-v1" if as_id else gymnasium.make("CliffWalking-v1")
    run = qp.explore(agent, env, episodes=120, seed=0, cap=100)
    assert run.rows[-1]["regret"] == 0.0
    assert run.rows[-1]["reached_goal"]


def test_registered_environments_give_the_run_of_their_mdp():
    sea = qp.make_environment("deep-sea", depth=6)
    runs = [
        qp.explore(qp.make_agent("r-max", sea, horizon=5, seed=2), env, episodes=20, seed=0)
        for env in (sea, gymnasium.make("qposterior.environments.gymnasium_env:qposterior/DeepSea-v0", depth=6))
    ]
    assert runs[0].transitions == runs[1].transitions


def test_slippery_lake_is_no_contradiction_when_rows_are_revealed():
    lake = qp.FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=True, step_cost=0.001)
    world = make_world("FrozenLake-v1", is_slippery=True, step_cost=0.001)
    agent = qp.make_agent("r-max", lake, horizon=world.cap, transitions="revealed", seed=0)
    run = qp.explore(agent, world, episodes=60, seed=0)
    assert world.cap == 100
    np.testing.assert_allclose(
        agent.experience.reward_mean[agent.experience.observed], lake.rewards[agent.experience.observed]
    )
    assert len(run.rows) == 60


def test_until_learned_stops_at_the_learning_time():
    sea = qp.make_environment("deep-sea", depth=6)
    run = qp.explore(qp.make_agent("r-max", sea, horizon=5, seed=0), sea, episodes=500, seed=0, until_learned=True)
    assert len(run.rows) == run.learning_time < 40


def test_a_large_number_of_bad_episodes_is_what_bsuite_counts():
    sea = qp.make_environment("deep-sea", depth=6, variant="bsuite")
    run = qp.explore(qp.make_agent("r-max", sea, horizon=6, seed=0), sea, episodes=60, seed=0)
    # In the deterministic sea an episode is bad exactly when it misses the treasure.
    assert [row["bad"] for row in run.rows] == [row["return"] < 0.5 for row in run.rows]
    first = next(e for e in range(1, 61) if sum(r["bad"] for r in run.rows[:e]) < 0.9 * e)
    assert run.bsuite_learning_time == first


def test_caps_follow_the_shape_of_the_problem():
    assert default_cap(qp.make_environment("deep-sea", depth=9)) == 8
    assert default_cap(qp.make_environment("deep-sea-loops", depth=9)) == max(100, 4 * 45)
    with pytest.raises(qp.InvalidInputError, match="cap"):
        make_world(qp.make_environment("two-state"), cap=0)
    with pytest.raises(qp.InvalidInputError, match="episodes"):
        qp.explore(Circler(), qp.make_environment("two-state"), episodes=0)


def test_the_callback_sees_every_episode():
    lengths = []
    qp.explore(
        Circler(), qp.make_environment("deep-sea", depth=3), episodes=4, callback=lambda r: lengths.append(len(r.rows))
    )
    assert lengths == [1, 2, 3, 4]


def test_a_callback_that_returns_false_ends_the_run_after_that_episode():
    for answer, episodes in ((lambda run: len(run.rows) < 3, 3), (lambda _: None, 5)):
        run = qp.explore(Circler(), qp.make_environment("deep-sea", depth=3), episodes=5, callback=answer)
        assert len(run.rows) == episodes


def test_the_time_limit_of_an_environment_is_the_cap_wherever_it_stands():
    class Timed(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
        max_steps = 37

    assert make_world(Timed()).cap == 37
    assert make_world(gymnasium.wrappers.TimeLimit(Timed(), 12)).cap == 37  # no specification says 12
    assert make_world("FrozenLake-v1", max_episode_steps=23, step_cost=0.001).cap == 23
    assert make_world(Timed(), cap=5).cap == 5


def test_a_run_ends_in_the_middle_of_an_episode_when_its_time_is_up():
    class Slow(Circler):
        def act(self, state):
            time.sleep(0.01)
            return 0

    started = time.perf_counter()
    run = qp.explore(Slow(), qp.make_environment("two-state"), episodes=1, cap=1000, timeout=0.2)
    assert time.perf_counter() - started < 5.0
    assert (run.rows, run.transitions, run.is_timed_out) == ([], [], True)
    more = qp.explore(Slow(), qp.make_environment("two-state"), episodes=1, cap=2, after=run, timeout=60.0)
    assert (len(more.rows), more.is_timed_out) == (1, False)


def test_an_update_of_the_posterior_ends_with_the_time_of_the_run():
    sea = qp.make_environment("deep-sea", depth=6)
    agent = qp.make_agent("abrl", sea, seed=0)
    agent.begin_episode(0)
    run = qp.explore(Circler(), sea, episodes=1)
    agent.stop_at = 0.0  # long ago
    for _, _, _, state, action, reward, next_state, _ in run.transitions:
        agent.experience.record(state, action, reward, next_state)
    agent.end_episode()
    assert not agent.sampler.is_finished
    assert agent.sampler.seen.num_observed == 0
    qp.explore(agent, sea, episodes=1, timeout=60.0)
    assert agent.sampler.is_finished
    assert agent.stop_at == np.inf


@pytest.mark.parametrize("name", ["q-learning", "r-max", "abrl"])
def test_an_environment_whose_truth_cannot_be_solved_is_explored_without_regret(name, caplog):
    _warn_once.cache_clear()
    for _ in range(2):
        agent = qp.make_agent(name, "FrozenLake8x8-v1", seed=0)
        run = qp.explore(agent, "FrozenLake8x8-v1", episodes=2, seed=0)
    assert len(run.rows) == 2
    assert np.isnan(run.regret).all()
    assert np.isfinite([row["return"] for row in run.rows]).all()
    summary = run.summary()
    assert [summary[key] for key in ("found_episode", "learning_time", "cumulative_regret")] == [None] * 3
    assert run.bsuite_learning_time is None
    (said,) = caplog.messages  # once, with the remedy that is none of the traps
    assert "step_cost=0.001" in said
    assert "discount below" not in said


def test_the_environment_draws_from_the_first_stream_of_the_seed():
    world = make_world(qp.make_environment("river-swim", length=4), cap=20)
    seen = []
    for seed in (0, 1, 7):
        agent = qp.make_agent("random", world.problem, horizon=5, seed=3)
        run = qp.explore(agent, world, episodes=2, seed=seed)
        actions = [step[4] for step in run.transitions]
        simulator, rng = world.simulator, np.random.default_rng(spawn_seeds(seed)[0])
        successors = []
        for number, action in enumerate(actions):
            if number % 20 == 0:
                simulator.reset(rng)
            successors.append(simulator.step(action)[0])
        assert [step[6] for step in run.transitions] == successors
        seen.append(tuple(successors))
    assert len(set(seen)) == 3
