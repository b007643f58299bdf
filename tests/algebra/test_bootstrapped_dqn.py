"""Bootstrapped DQN on its own terms: one step against NumPy by hand, masks, noise, priors that stay, fixed points."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

import qposterior as qp
from qposterior.agents.bootstrapped_dqn import BootstrappedDQNAgent
from qposterior.agents.protocol import Observation
from qposterior.agents.q_ensemble import draw_weights

pytest.importorskip("jax")


def ladder():
    """0 → 1 → goal 3 by action 0 (rewards 1, 2); action 1 goes to the goal at once; state 2 has one action."""
    edges = [(0, 0, 1, 1.0, 1.0), (0, 1, 3, 1.0, 0.5), (1, 0, 3, 1.0, 2.0), (1, 1, 2, 1.0, 0.25), (2, 0, 3, 1.0, -1.0)]
    return qp.FiniteMDP.from_edges(edges, goal=[3])


STEPS = [(0, 0, 1.0, 1, False), (1, 1, 0.25, 2, False), (2, 0, -1.0, 3, True), (0, 1, 0.5, 3, True)]


def see(agent, *steps):
    for state, action, reward, next_state, terminated in steps:
        agent.observe(
            Observation(state=state, action=action, reward=reward, next_state=next_state, terminated=terminated)
        )


def forward(weights, head, state):
    """One head by hand, on an explicit one-hot vector: the output and what came before it."""
    (w1, b1), (w2, b2), (w3, b3) = [(w[head].astype(float), b[head].astype(float)) for w, b in weights]
    x = np.eye(w1.shape[0])[state]
    h1 = x @ w1 + b1
    h2 = np.maximum(h1, 0) @ w2 + b2
    return np.maximum(h2, 0) @ w3 + b3, (x, h1, h2)


def hand_gradient(weights, target, prior, head, batch, *, discount, scale, noise_scale, admissible):
    """The gradient of the mean masked squared error of one head, layer by layer, without JAX."""
    gradients = [[np.zeros(w[head].shape), np.zeros(b[head].shape)] for w, b in weights]
    for i, (state, action, reward, next_state, terminated) in enumerate(STEPS):
        following = forward(target, head, next_state)[0] + scale * forward(prior, head, next_state)[0]
        best = 0.0 if terminated else following[admissible[next_state]].max()
        wanted = reward + noise_scale * batch["noise"][i, head] + discount * best
        out, (x, h1, h2) = forward(weights, head, state)
        error = wanted - out[action] - scale * forward(prior, head, state)[0][action]
        back = np.zeros(out.size)
        back[action] = -2.0 * error * batch["mask"][i, head] / len(STEPS)
        w2, w3 = weights[1][0][head].astype(float), weights[2][0][head].astype(float)
        gradients[2][0] += np.outer(np.maximum(h2, 0), back)
        gradients[2][1] += back
        back2 = (w3 @ back) * (h2 > 0)
        gradients[1][0] += np.outer(np.maximum(h1, 0), back2)
        gradients[1][1] += back2
        back1 = (w2 @ back2) * (h1 > 0)
        gradients[0][0] += np.outer(x, back1)
        gradients[0][1] += back1
    return gradients


def test_two_training_steps_are_those_computed_by_hand():
    """Adam's first step knows only the sign of a gradient; the second, with other masks and noise, its size too."""
    mdp, heads, rate = ladder(), 3, 0.01
    known = {"discount": 0.8, "scale": 2.0, "noise_scale": 0.7, "admissible": mdp.space.pair_index >= 0}
    agent = BootstrappedDQNAgent(
        mdp.space,
        heads=heads,
        hidden=5,
        prior_scale=known["scale"],
        discount=known["discount"],
        learning_rate=rate,
        noise_scale=known["noise_scale"],
        min_replay=1000,
        batch_size=4,
        seed=4,
    )
    target, prior = agent.weights, agent.prior
    rng = np.random.default_rng(1)
    first = {
        "state": np.array([s[0] for s in STEPS], np.int32),
        "action": np.array([s[1] for s in STEPS], np.int32),
        "reward": np.array([s[2] for s in STEPS], np.float32),
        "next_state": np.array([s[3] for s in STEPS], np.int32),
        "is_going_on": np.array([not s[4] for s in STEPS], np.float32),
    }
    moments = None
    for step in (1, 2):
        batch = first | {
            "mask": (rng.random((4, heads)) < 0.7).astype(np.float32),
            "noise": rng.standard_normal((4, heads)).astype(np.float32),
        }
        before = [(np.asarray(w), np.asarray(b)) for w, b in agent.weights]
        agent._train(batch)
        g = [hand_gradient(before, target, prior, head, batch, **known) for head in range(heads)]
        if moments is None:
            moments = [[[[0.0, 0.0] for _ in layer] for layer in one] for one in g]
        for head, layer, part in np.ndindex(heads, 3, 2):
            gradient, moment = g[head][layer][part], moments[head][layer][part]
            moment[0] = 0.9 * moment[0] + 0.1 * gradient
            moment[1] = 0.999 * moment[1] + 0.001 * gradient**2
            unbiased = moment[0] / (1 - 0.9**step), moment[1] / (1 - 0.999**step)
            wanted = -rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
            moved = np.asarray(agent.weights[layer][part])[head] - before[layer][part][head]
            sure = np.sqrt(unbiased[1]) > 1e-3
            np.testing.assert_allclose(moved[sure], wanted[sure], rtol=5e-3, atol=2e-6)
            assert np.abs(moved[unbiased[1] == 0.0]).max(initial=0.0) < 1e-6


def test_priors_are_never_trained_and_count_in_the_values():
    mdp = ladder()
    agent = BootstrappedDQNAgent(mdp.space, heads=2, hidden=4, prior_scale=3.0, batch_size=4, min_replay=4, seed=0)
    before = [np.array(w) for layer in agent.prior for w in layer]
    see(agent, *STEPS * 10)
    assert agent.num_updates == 37
    assert all(np.array_equal(a, b) for a, b in zip(before, [w for layer in agent.prior for w in layer], strict=True))
    for head in range(2):
        weights = [(np.asarray(w), np.asarray(b)) for w, b in agent.weights]
        want = forward(weights, head, 1)[0] + 3.0 * forward(agent.prior, head, 1)[0]
        np.testing.assert_allclose(agent.head_values(head, 1), want, rtol=1e-5)
    assert agent.head_values(0, 2)[1] == -np.inf  # not admissible


def test_a_head_learns_only_from_what_its_mask_lets_through():
    mdp = ladder()
    agent = BootstrappedDQNAgent(mdp.space, heads=3, hidden=4, mask_probability=0.0, batch_size=4, min_replay=2, seed=0)
    before = agent.weights
    see(agent, *STEPS)
    assert agent.num_updates == 3
    assert all(
        np.array_equal(np.asarray(a), b)
        for new, old in zip(agent.weights, before, strict=True)
        for a, b in zip(new, old, strict=True)
    )
    shares = BootstrappedDQNAgent(mdp.space, heads=50, hidden=2, mask_probability=0.3, min_replay=10_000, seed=1)
    see(shares, *STEPS * 50)
    seen = shares._memory["mask"][:200]
    # 10,000 draws: five standard deviations are 0.023, a false alarm in 2 million.
    assert abs(seen.mean() - 0.3) < 0.023
    assert shares._memory["mask"][200:].sum() == 0


@pytest.mark.parametrize("prior_scale", [0.0, 2.0])
def test_every_head_converges_to_the_values_of_the_problem(prior_scale):
    mdp = ladder()
    agent = BootstrappedDQNAgent(
        mdp.space, heads=3, hidden=20, prior_scale=prior_scale, discount=0.5, batch_size=16, min_replay=1, seed=2
    )
    see(agent, *[*STEPS, (1, 0, 2.0, 3, True)] * 300)
    for head in range(3):
        np.testing.assert_allclose(agent.head_values(head, 0), [1.0 + 0.5 * 2.0, 0.5], atol=0.03)
        np.testing.assert_allclose(agent.head_values(head, 1), [2.0, 0.25 - 0.5], atol=0.03)


def test_the_target_network_follows_every_so_many_steps_and_memory_is_bounded():
    agent = BootstrappedDQNAgent(
        ladder().space, heads=2, hidden=3, batch_size=2, min_replay=1, target_every=3, replay_capacity=5, seed=0
    )
    see(agent, *STEPS[:2])
    assert agent._target is not agent.weights
    see(agent, STEPS[2])
    assert agent._target is agent.weights
    see(agent, *STEPS)
    assert agent._memory["state"].tolist() == [
        2,
        0,
        2,
        0,
        1,
    ]  # the last two took the first places
    assert agent._num_seen == 7


def test_first_weights_have_the_published_spread():
    (w, b), *_ = draw_weights(np.random.default_rng(0), 20, (100, 50))
    # A normal cut off at two standard deviations has sd 0.8796; 100,000 draws know it to 0.5 % (five sigma).
    assert w.std() * 10 == pytest.approx(0.8796, rel=0.01)
    assert np.abs(w).max() <= 0.2 + 1e-6
    assert not b.any()


def test_one_head_is_followed_through_an_episode():
    agent = BootstrappedDQNAgent(ladder().space, heads=20, hidden=3, min_replay=1000, seed=0)
    followed = set()
    for _ in range(200):
        agent.begin_episode(0)
        followed.add(agent._head)
        assert agent.act(0) == int(np.argmax(agent.head_values(agent._head, 0)))
    assert len(followed) == 20  # 200 draws miss one of 20 in 7 of 10,000 runs; the seed is fixed


@pytest.mark.parametrize(("name", "value"), [("heads", 0), ("batch_size", 0), ("epsilon", 1.5), ("discount", -0.1)])
def test_settings_out_of_range_are_named(name, value):
    with pytest.raises(qp.InvalidInputError, match=f"{name} must"):
        BootstrappedDQNAgent(ladder().space, **{name: value})


def test_without_the_extra_one_line_names_the_pip_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optax", None)
    for use in (
        lambda: qp.make_agent("bootstrapped-dqn", ladder(), horizon=3),
        lambda: qp.compare("deep-sea", agents=["random", "bootstrapped-dqn"], depths=[3], seeds=1, out=tmp_path / "c"),
    ):
        with pytest.raises(qp.MissingExtraError) as caught:
            use()
        assert (
            str(caught.value) == 'agent bootstrapped-dqn needs an optional dependency: pip install "qposterior[deep]"'
        )
    assert not (tmp_path / "c").exists()


def test_the_settings_are_the_published_ones():
    given = {name: one.default for name, one in inspect.signature(BootstrappedDQNAgent).parameters.items()}
    wanted = {"heads": 20, "hidden": 50, "batch_size": 128, "replay_capacity": 10_000, "min_replay": 128}
    wanted |= {"train_every": 1, "target_every": 4, "learning_rate": 1e-3, "mask_probability": 1.0}
    wanted |= {"noise_scale": 0.0, "epsilon": 0.0, "discount": 0.99}
    assert {name: given[name] for name in wanted} == wanted
    sea = qp.make_environment("deep-sea", depth=3)
    for name, scale in (("bootstrapped-dqn", 5.0), ("bootstrapped-dqn-no-prior", 0.0)):
        agent = qp.make_agent(name, sea, horizon=2, seed=0)
        trained = qp.make_agent("bootstrapped-dqn", sea, horizon=2, seed=0, prior_scale=scale)
        np.testing.assert_array_equal(agent.head_values(3, 0), trained.head_values(3, 0))


def test_training_and_dithering_happen_as_often_as_they_are_told():
    sea = qp.make_environment("deep-sea", depth=4)
    agent = qp.make_agent(
        "bootstrapped-dqn", sea, horizon=3, seed=0, heads=2, hidden=4, min_replay=4, batch_size=4, train_every=3
    )
    qp.explore(agent, sea, episodes=4, seed=0)
    assert agent.num_updates == 3  # of 12 steps those numbered 6, 9 and 12
    dithering = qp.make_agent("bootstrapped-dqn", sea, horizon=3, seed=0, heads=2, hidden=4, epsilon=0.2)
    best = int(np.argmax(dithering.head_values(dithering._head, 0)))
    other = sum(dithering.act(0) != best for _ in range(1000))
    assert abs(other - 100) < 45  # Binomial(1000, 0.1): 4.7 standard deviations
