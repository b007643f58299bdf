"""Agents that are saved, loaded, hurried or given another number of threads go on as they would have."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from own_parts import RelatedActions
from qposterior.agents.protocol import Observation
from qposterior.experiments.explore import make_world
from qposterior.model.kernels import compile as compiled

AGENTS = ["abrl", "abrl-paper", "abrl-fixed", "abrl-exact"]


def rows_of(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows]


@pytest.mark.parametrize("name", AGENTS)
def test_a_loaded_agent_goes_on_byte_for_byte(name, tmp_path):
    world = make_world(qp.make_environment("deep-sea", depth=4))
    options = {"pilot_updates": 2} if name == "abrl-fixed" else {}
    agent = qp.make_agent(name, world.mdp, horizon=world.cap, seed=5, **options)
    first = qp.explore(agent, world, episodes=3, seed=5)
    agent.save(tmp_path / "agent.npz")
    loaded = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    one, two = (qp.explore(a, world, episodes=4, after=first) for a in (agent, loaded))
    assert len(first.rows) == 3
    assert rows_of(one) == rows_of(two)
    assert one.transitions == two.transitions
    assert agent.sampler.particles.parameters.tobytes() == loaded.sampler.particles.parameters.tobytes()
    assert agent.sampler.particles.log_weights.tobytes() == loaded.sampler.particles.log_weights.tobytes()
    assert agent.name == loaded.name == name
    with pytest.raises(qp.InvalidInputError, match="exists"):
        agent.save(tmp_path / "agent.npz")


def test_an_agent_saved_in_the_middle_of_an_episode_goes_on(tmp_path):
    sea = qp.make_environment("deep-sea-loops", depth=4)
    agent = qp.PosteriorSamplingAgent(sea.space, prior=qp.BoundedPrior(upper=3.0), particles=10, seed=1)
    qp.explore(agent, sea, episodes=2, seed=1)
    agent.begin_episode(0)
    action = agent.act(0)
    k = sea.space.pair(0, action)
    row = sea.transitions.row(k)
    agent.observe(
        Observation(
            state=0, action=action, reward=float(sea.rewards[k]), next_state=int(row[0][0]), terminated=False, row=row
        )
    )
    agent.save(tmp_path / "agent.npz")
    loaded = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    for one in (agent, loaded):
        one.redraw()
    np.testing.assert_array_equal(agent.held_plan(), loaded.held_plan())
    np.testing.assert_array_equal(agent.sampler.particles.parameters, loaded.sampler.particles.parameters)


def test_noisy_agents_are_saved_with_their_readings_and_scale(tmp_path):
    bandit = qp.make_environment("bandit")
    for inference in ("one-look", "adaptive"):
        agent = qp.PosteriorSamplingAgent(bandit.space, rewards="noisy", inference=inference, seed=2)
        run = qp.explore(agent, bandit, episodes=5, seed=2)
        agent.save(tmp_path / f"{inference}.npz")
        loaded = qp.PosteriorSamplingAgent.load(tmp_path / f"{inference}.npz")
        one, two = (qp.explore(a, bandit, episodes=3, after=run) for a in (agent, loaded))
        assert rows_of(one) == rows_of(two)
        np.testing.assert_array_equal(agent.sampler.particles.log_scale, loaded.sampler.particles.log_scale)


def test_files_that_are_no_agents_are_named(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, facts=np.frombuffer(b'{"format": "else"}', dtype=np.uint8))
    with pytest.raises(qp.InvalidInputError, match="not an agent"):
        qp.PosteriorSamplingAgent.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(qp.InvalidInputError, match="cannot read"):
        qp.PosteriorSamplingAgent.load(path)


@pytest.mark.parametrize("name", ["abrl", "abrl-paper"])
def test_a_deadline_leaves_a_valid_cloud_and_the_next_calls_go_on(name):
    sea = qp.make_environment("deep-sea", depth=5)
    pairs = list(zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True))
    seen = qp.Experience.of_pairs(sea, pairs[:10])
    sampler = qp.make_agent({"abrl": "abrl-iid"}.get(name, name), sea, horizon=4, seed=0).sampler
    calls = 0
    while not (sampler.update(seen, deadline=2e-4) and sampler.is_finished):
        calls += 1
        cloud = sampler.particles
        np.testing.assert_allclose(cloud.weights.sum(), 1.0)
        assert np.isfinite(cloud.parameters).all()
        assert set(sampler.seen.observed_pairs) <= set(seen.observed_pairs)
        # New readings stand at a finite tolerance of their own, or are not in yet.
        if name == "abrl-paper" and sampler.seen.num_observed:
            known = sampler.tolerances[sampler.seen.observed_pairs]
            assert np.all(np.isfinite(known)) or np.isinf(sampler.ceiling)
        assert calls < 5000
    assert calls > 1
    assert sampler.seen.num_observed == 10


def test_deadlines_must_be_positive():
    sea = qp.make_environment("deep-sea", depth=4)
    with pytest.raises(qp.InvalidInputError, match="deadline must be positive"):
        qp.make_agent("abrl", sea, horizon=3, deadline=0.0)


@pytest.mark.parametrize("name", ["abrl", "abrl-paper"])
def test_one_thread_or_two_give_the_same_bytes(name, monkeypatch):
    sea = qp.make_environment("deep-sea", depth=4)
    draws = []
    for threads in {1, compiled.ALL_THREADS}:
        monkeypatch.setattr(compiled, "SMALL_WORK", 0)
        monkeypatch.setattr(compiled, "ALL_THREADS", threads)
        agent = qp.make_agent(name, sea, horizon=3, seed=0)
        qp.explore(agent, sea, episodes=3, seed=0)
        draws.append(agent.sampler.particles.parameters.tobytes())
    assert len(set(draws)) == 1


def test_states_may_be_numpy_integers_and_other_generators_are_refused(tmp_path):
    sea = qp.make_environment("deep-sea", depth=4)
    agent = qp.PosteriorSamplingAgent(sea.space, seed=0)
    agent.begin_episode(np.int64(0))
    agent.act(np.int64(0))
    agent.save(tmp_path / "agent.npz")
    assert qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz").held_plan() is not None
    other = qp.PosteriorSamplingAgent(sea.space, seed=np.random.Generator(np.random.Philox(1)))
    with pytest.raises(qp.InvalidInputError, match="Philox"):
        other.save(tmp_path / "other.npz")


class Narrow(qp.GaussianPrior):
    """A prior of the library with another density."""

    def log_density_and_grad(self, theta, space):
        return qp.GaussianPrior(scale=0.5 * self.scale).log_density_and_grad(theta, space)

    def draw(self, num, space, rng):
        return 0.5 * super().draw(num, space, rng)


@pytest.mark.parametrize("kind", [RelatedActions, Narrow])
def test_an_agent_with_a_prior_of_ones_own_is_saved_and_goes_on_when_the_prior_is_given_again(kind, tmp_path):
    mdp = qp.make_environment("deep-sea", depth=3)
    mine = kind()
    agent = qp.PosteriorSamplingAgent(mdp.space, prior=mine, particles=10, seed=1)
    qp.explore(agent, mdp, episodes=2, seed=0)
    agent.save(tmp_path / "agent.npz")
    again = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz", prior=mine)
    for one in (agent, again):
        one.begin_episode(0)
    np.testing.assert_array_equal(agent.held_plan(), again.held_plan())
    np.testing.assert_array_equal(agent.sampler.particles.parameters, again.sampler.particles.parameters)
    with pytest.raises(qp.InvalidInputError, match=f"a prior of its own, {kind.__name__}; load it with prior="):
        qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    with pytest.raises(qp.InvalidInputError, match="not with"):
        qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz", prior=kind(scale=2.0))
    with pytest.raises(qp.InvalidInputError, match="not with"):
        qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz", prior=qp.GaussianPrior())
