"""Environments: closed forms, the published package step by step, and the Gymnasium contract."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest

import qposterior as qp
from qposterior.environments import gymnasium_env
from qposterior.environments.registry import ENVIRONMENTS

gymnasium.register_envs(gymnasium_env)


def cell(mdp, row, column):
    return int(np.flatnonzero((mdp.layout == [row, column]).all(axis=1))[0])


def outcome(mdp, state, action):
    """Successors with probabilities, mean reward and noise of a pair."""
    k = mdp.space.pair(state, action)
    successors, probabilities = mdp.transitions.row(k)
    return dict(zip(successors.tolist(), probabilities.tolist(), strict=True)), mdp.rewards[k], mdp.reward_sd[k]


def test_paper_variant_has_the_published_rewards_and_sizes():
    depth = 7
    sea = qp.make_environment("deep-sea", depth=depth)
    assert sea.space.num_states == depth * (depth + 1) // 2
    assert sea.space.goals.tolist() == [cell(sea, depth - 1, c) for c in range(depth)]
    small = 1 / (100 * depth)
    for row in range(depth - 1):
        for column in range(row + 1):
            bonus = 1.0 if row == column == depth - 2 else 0.0
            here = cell(sea, row, column)
            assert outcome(sea, here, 0)[0] == {cell(sea, row + 1, column + 1): 1.0}
            np.testing.assert_allclose(outcome(sea, here, 0)[1], bonus - small)
            assert outcome(sea, here, 1)[0] == {cell(sea, row + 1, max(column - 1, 0)): 1.0}
            np.testing.assert_allclose(outcome(sea, here, 1)[1], small)


def test_action_meanings_drawn_per_cell_only_permute_the_actions():
    fixed, drawn = qp.make_environment("deep-sea", depth=6), qp.make_environment("deep-sea", depth=6, mapping_seed=3)
    swapped = 0
    for state in fixed.space.deciding_states:
        ours = [outcome(fixed, state, a) for a in (0, 1)]
        theirs = [outcome(drawn, state, a) for a in (0, 1)]
        assert theirs in (ours, ours[::-1])
        swapped += theirs != ours
    assert 0 < swapped < fixed.space.deciding_states.size
    np.testing.assert_allclose(qp.solve(drawn).value, qp.solve(fixed).value)


class Puppet:
    """Stands in for bsuite's generator: no noise, and slips exactly when told."""

    def __init__(self, slips):
        self.slips = slips

    def rand(self):
        return 0.0 if self.slips else 1.0

    def randn(self):
        return 0.0


@pytest.mark.parametrize("variant", ["bsuite", "bsuite-stochastic"])
@pytest.mark.parametrize("depth", [2, 5])
@pytest.mark.parametrize("mapping_seed", [42, 7])
def test_bsuite_variants_agree_with_the_package_step_by_step(variant, depth, mapping_seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bsuite.environments.deep_sea import DeepSea
    stochastic = variant == "bsuite-stochastic"
    theirs = DeepSea(depth, deterministic=not stochastic, mapping_seed=mapping_seed, seed=0)
    ours = qp.make_environment("deep-sea", depth=depth, variant=variant, mapping_seed=mapping_seed)
    for row in range(depth):
        for column in range(row + 1):
            for action in (0, 1):
                successors, reward, sd = outcome(ours, cell(ours, row, column), action)
                expected = {}
                for slips, share in ((False, 1 - 1 / depth), (True, 1 / depth)) if stochastic else ((False, 1.0),):
                    theirs._row, theirs._column, theirs._rng = row, column, Puppet(slips)
                    theirs._reset_next_step = False
                    step = theirs._step(action)
                    np.testing.assert_allclose(step.reward, reward)
                    there = (
                        ours.space.goals[0]
                        if step.last()
                        else cell(ours, *np.argwhere(np.asarray(step.observation))[0])
                    )
                    expected[there] = expected.get(there, 0.0) + share
                assert successors == pytest.approx(expected)
                assert sd == float(stochastic and row == depth - 1 and column in (0, depth - 1))


def test_bsuite_episode_returns_are_the_published_optimum():
    sea = qp.make_environment("deep-sea", depth=8, variant="bsuite")
    np.testing.assert_allclose(qp.solve(sea).value[0], 0.99)


def test_the_looping_sea_has_improper_policies_that_lose():
    sea = qp.make_environment("deep-sea-loops", depth=6)
    assert qp.check_uniqueness(sea).holds
    plain = qp.solve(qp.make_environment("deep-sea", depth=6))
    np.testing.assert_allclose(qp.solve(sea).value[0], plain.value[0])
    assert outcome(sea, cell(sea, 3, 3), 2)[0] == {cell(sea, 2, 2): 1.0}
    assert outcome(sea, cell(sea, 3, 1), 2)[0] == {cell(sea, 2, 1): 1.0}
    assert outcome(sea, 0, 2)[0] == {0: 1.0}


def test_five_state_example_has_the_paper_s_four_pairs():
    mdp = qp.make_environment("five-state", rewards=[1, 2, 3, 4])
    assert list(zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 1),
    ]
    np.testing.assert_allclose(qp.solve(mdp).pair_q, [4.0, 6.0, 3.0, 4.0])


@pytest.mark.parametrize("noise", ["gaussian", "bernoulli"])
def test_bandit_rewards_have_the_stated_mean_and_sd(noise):
    import gymnasium

    env = gymnasium.make("qposterior/Bandit-v0", means=[0.2, 0.7], noise=noise, reward_sd=0.5)
    readings = []
    for i in range(4000):
        env.reset(seed=0 if i == 0 else None)
        _, reward, terminated, _, _ = env.step(1)
        assert terminated
        readings.append(reward)
    sd = 0.5 if noise == "gaussian" else np.sqrt(0.7 * 0.3)
    # False-alarm rate 6e-5 at 4 standard errors, fixed seed.
    assert abs(np.mean(readings) - 0.7) < 4 * sd / np.sqrt(4000)
    assert abs(np.var(readings) / sd**2 - 1) < 4 * np.sqrt(2 / 4000)
    assert noise == "gaussian" or set(readings) == {0.0, 1.0}


def test_random_mdps_are_seeded_acyclic_or_looping():
    from qposterior.world.structure import is_acyclic

    one, two = (qp.make_environment("random-mdp", num_states=6, seed=4) for _ in range(2))
    assert np.array_equal(one.rewards, two.rewards)
    assert not is_acyclic(one.space, one.transitions)
    line = qp.make_environment("random-mdp", num_states=6, seed=4, acyclic=True)
    assert is_acyclic(line.space, line.transitions)
    assert np.any(line.rewards != qp.make_environment("random-mdp", num_states=6, seed=5, acyclic=True).rewards)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("deep-sea", {"depth": 1}, "at least 2, got 1"),
        ("deep-sea", {"variant": "bsuit"}, "did you mean 'bsuite'"),
        ("deep-sea", {"colour": 1}, "colour"),
        ("two-state", {"depth": 3}, "has no depth"),
        ("river-swim", {"discount": 1.0}, "no goal"),
        ("bandit", {"means": [2.0], "noise": "bernoulli"}, "lie in"),
        ("deepsea", {}, "did you mean 'deep-sea'"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(qp.InvalidInputError) as error:
        qp.make_environment(name, **options)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "lines",
    [
        "import gymnasium, qposterior; gymnasium.make('qposterior/TwoState-v0')",
        "import gymnasium; gymnasium.make('qposterior:qposterior/DeepSea-v0', depth=4)",
        "import qposterior.environments.gymnasium_env, gymnasium; gymnasium.make('qposterior/DeepSea-v0', depth=4)",
        "import qposterior, gymnasium\n"
        "gymnasium.make('qposterior.environments.gymnasium_env:qposterior/DeepSea-v0', depth=4)",
        "import qposterior as qp; qp.make_environment('qposterior/DeepSea-v0', depth=4)",
        "import qposterior as qp; qp.make_environment('qposterior:qposterior/DeepSea-v0', depth=4)",
        "import qposterior as qp; qp.FiniteMDP.from_gymnasium('qposterior/TwoState-v0')",
        "import qposterior as qp; qp.FiniteMDP.from_gymnasium('qposterior:qposterior/TwoState-v0')",
        "import qposterior as qp; qp.make_agent('r-max', 'qposterior/DeepSea-v0', seed=0)",
    ],
)
def test_ids_are_known_in_whatever_order_things_are_imported(lines):
    subprocess.run([sys.executable, "-W", "error", "-c", lines], check=True)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_registered_environments_pass_gymnasium_s_own_check(name):
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(ENVIRONMENTS[name].gymnasium_id)
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_gymnasium_table_is_the_mdp(name):
    import gymnasium

    env = gymnasium.make(ENVIRONMENTS[name].gymnasium_id)
    mdp = env.unwrapped.mdp
    read = qp.FiniteMDP.from_gymnasium(env, discount=mdp.space.discount)
    assert read.space == mdp.space
    np.testing.assert_allclose(read.rewards, mdp.rewards, rtol=1e-12)
    np.testing.assert_allclose(read.transitions.matrix.toarray(), mdp.transitions.matrix.toarray(), rtol=1e-12)


def test_a_gymnasium_environment_with_a_table_is_made_by_its_id():
    taxi = qp.make_environment("Taxi-v3" if "Taxi-v3" in gymnasium.registry else "Taxi-v4")
    assert taxi.space.num_states == 500
    lake = qp.make_environment("FrozenLake-v1", is_slippery=False, step_cost=0.25, discount=0.5)
    assert (lake.rewards.max(), lake.space.discount) == (0.75, 0.5)
    assert qp.make_environment("qposterior/DeepSea-v0", depth=5).space.num_states == 15
    for name, words in (
        ("Taxy-v4", "did you mean 'Taxi-v"),
        ("CartPole-v1", "must be Discrete"),
        ("deepsea", "deep-sea"),
    ):
        with pytest.raises(qp.InvalidInputError, match=words):
            qp.make_environment(name)


def test_an_id_without_a_table_is_told_what_works_instead():
    class Plain(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    gymnasium.register("test/Plain-v0", Plain)
    try:
        with pytest.raises(qp.InvalidInputError, match=r"no transition table .* pass gymnasium.make"):
            qp.make_environment("test/Plain-v0")
    finally:
        del gymnasium.registry["test/Plain-v0"]


@pytest.mark.parametrize("name", ["deep-sea", "deep-sea-loops"])
def test_a_sea_too_deep_for_the_memory_is_refused(name):
    with pytest.raises(qp.InvalidInputError, match=r"at most 1000 .* got 100000"):
        qp.make_environment(name, depth=100_000)


def test_a_drawn_mapping_swaps_the_two_actions_of_a_cell_and_nothing_else():
    plain, drawn = (qp.make_environment("deep-sea", depth=12, mapping_seed=seed) for seed in (None, 7))
    assert plain.space == drawn.space
    outcomes = [np.stack([mdp.transitions.successor, mdp.rewards], axis=1).reshape(-1, 2, 2) for mdp in (plain, drawn)]
    same = (outcomes[0] == outcomes[1]).all(axis=(1, 2))
    swapped = (outcomes[0] == outcomes[1][:, ::-1]).all(axis=(1, 2))
    assert np.all(same ^ swapped)
    assert 20 <= same.sum() <= 46  # of 66 cells, a half each: 8e-4 to lie outside
