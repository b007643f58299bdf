"""The recommended policy and what it is worth, against all policies and dense algebra, draw by draw."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qposterior as qp
from qposterior.errors import InvalidInputError
from qposterior.inference import policies
from qposterior.inference.policies import Policies, PolicyValue, first_halves, recommend
from qposterior.inference.policy_search import PolicySearch, Risk
from qposterior.model.solve_models import ModelSolver, logged_policy, solve_models
from qposterior.world.models import ModelDraws


def noisy_models(seed, *, states=4, actions=3, draws=20, discount=0.9, goals=0, noise=0.7):
    """Models that scatter around one: all rows over all states, rewards with noise; the last states are goals."""
    rng = np.random.default_rng(seed)
    is_goal = np.arange(states) >= states - goals
    space = qp.StateActionSpace.from_mask(np.ones((states, actions), dtype=bool), is_goal, discount=discount)
    centre = rng.dirichlet(np.full(states, 0.5), space.num_pairs) + 0.02
    rows = rng.standard_gamma(8.0 * centre, (draws, space.num_pairs, states)) + 1e-9
    rows /= rows.sum(axis=2, keepdims=True)
    mean = rng.normal(0.0, 1.0, space.num_pairs)
    return ModelDraws(
        space=space,
        first_edge=np.arange(space.num_pairs + 1) * states,
        successor=np.tile(np.arange(states), space.num_pairs),
        rows=rows.reshape(draws, -1),
        rewards=mean + noise * rng.standard_normal((draws, space.num_pairs)),
    )


def some_start(space, seed=0):
    start = np.random.default_rng(seed).random(space.num_states) * ~space.is_goal
    return start / start.sum()


def some_policy(space, seed=0):
    weights = np.random.default_rng(seed).standard_gamma(0.5, space.num_pairs) + 1e-3
    return logged_policy(space, weights)


def dense_values(models, policy, start):
    """(D,) values at the start and (D, K) Q of a policy, by dense algebra."""
    space = models.space
    choice = np.zeros((space.num_states, space.num_pairs))
    choice[space.pair_state, np.arange(space.num_pairs)] = policy
    values, q = [], []
    for d in range(models.num_draws):
        rows = models.rows[d].reshape(space.num_pairs, space.num_states) * ~space.is_goal
        v = np.linalg.solve(np.eye(space.num_states) - space.discount * choice @ rows, choice @ models.rewards[d])
        values.append(start @ v)
        q.append(models.rewards[d] + space.discount * rows @ v)
    return np.array(values), np.array(q)


def deterministic_policies(space):
    pairs = [range(space.first_pair[s], space.first_pair[s + 1]) for s in space.deciding_states]
    for chosen in itertools.product(*pairs):
        policy = np.zeros(space.num_pairs)
        policy[list(chosen)] = 1.0
        yield policy


def test_the_recommended_policy_is_as_a_rule_the_best_of_all_by_the_mean():
    # The posterior is wide and the draws are few: single changes end in a lesser optimum in about one case of fifty.
    best_of_all, origins = 0, set()
    for seed in range(12):
        models = noisy_models(seed, noise=3.0)
        start, half = some_start(models.space, seed), first_halves(20, 2)
        found = recommend(models, start=start, logged=some_policy(models.space, seed), half=half)
        every = {p.tobytes(): dense_values(models, p, start)[0] for p in deterministic_policies(models.space)}
        chosen = every[found.recommended.probabilities.tobytes()]
        np.testing.assert_allclose(found.recommended.values, chosen[~half], rtol=1e-10)
        best_of_all += chosen[half].mean() >= max(values[half].mean() for values in every.values()) - 1e-9
        origins.add((found.origin, found.num_changes > 0))
    assert best_of_all >= 11
    assert {("greedy", False), ("greedy", True)} <= origins


@pytest.mark.parametrize("risk", ["mean", "cvar:0.2"])
def test_improvement_beats_its_candidates_and_finds_what_single_changes_find(risk):
    changed = 0
    for seed in range(12):
        models = noisy_models(seed, noise=2.0)
        space, start = models.space, some_start(models.space, seed)
        search = PolicySearch(
            solver=ModelSolver(models),
            start=start,
            draws=np.arange(20),
            risk=Risk.parse(risk),
            allowed=np.ones(models.space.num_pairs, dtype=bool),
        )
        begun = some_policy(space, seed)
        policy = search.improved(begun)
        score = search.score(policy)
        assert score > search.score(begun)
        changed += not np.array_equal(policy, begun)
        for k in range(space.num_pairs):
            single = np.where(space.pair_state == space.pair_state[k], 0.0, policy)
            single[k] = 1.0
            value = Risk.parse(risk).score(dense_values(models, single, start)[0])
            if risk == "mean":
                assert value <= score + 1e-9
    assert changed == 12


def test_slopes_are_the_derivatives_of_the_weighted_value():
    models = noisy_models(3, goals=1, discount=1.0)
    space, start, policy = models.space, some_start(models.space), some_policy(models.space)
    weights = np.random.default_rng(0).random(20)
    weights[3] = 0.0
    slopes = ModelSolver(models).slopes(policy, start, weights)
    for k in range(space.num_pairs):
        ends = []
        for step in (1e-6, -1e-6):
            moved = np.where(space.pair_state == space.pair_state[k], (1.0 - step) * policy, policy)
            moved[k] += step
            ends.append(weights @ dense_values(models, moved, start)[0])
        np.testing.assert_allclose(slopes[k], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_draws_that_report_have_no_part_in_choosing_and_the_reverse():
    models = noisy_models(5, noise=3.0)
    start, logged, half = some_start(models.space), some_policy(models.space), first_halves(20, 2)
    found = recommend(models, start=start, logged=logged, half=half)
    for altered, same in ((~half, "policy"), (half, "logged")):
        rewards = models.rewards.copy()
        rewards[altered] = rewards[altered][:, ::-1] * 2.0 + 1.0
        other = recommend(
            ModelDraws(
                space=models.space,
                first_edge=models.first_edge,
                successor=models.successor,
                rows=models.rows,
                rewards=rewards,
            ),
            start=start,
            logged=logged,
            half=half,
        )
        if same == "policy":
            np.testing.assert_array_equal(other.recommended.probabilities, found.recommended.probabilities)
            assert np.all(other.recommended.values != found.recommended.values)
        else:
            np.testing.assert_array_equal(other.logged.values, found.logged.values)
            assert not np.array_equal(other.recommended.probabilities, found.recommended.probabilities)


def test_all_values_are_those_of_dense_algebra_and_none_exceeds_the_optimum():
    models = noisy_models(8, states=5, goals=1, discount=0.95)
    space, start, logged = models.space, some_start(models.space), some_policy(models.space)
    mine = some_policy(space, 9)
    half = first_halves(20, 4)
    found = recommend(models, start=start, logged=logged, half=half, given={"mine": mine})
    for one in (found.recommended, found.logged, *found.given):
        np.testing.assert_allclose(one.values, dense_values(models, one.probabilities, start)[0][~half], rtol=1e-9)
        assert np.all(one.values <= found.optimum + 1e-9)
        np.testing.assert_allclose(one.interval, np.quantile(one.values, [0.05, 0.95]))
    np.testing.assert_array_equal(found.given[0].probabilities, mine)
    np.testing.assert_allclose(found.gain, found.recommended.values - found.logged.values, rtol=1e-12)
    value = solve_models(models).q.reshape(20, 4, 3).max(axis=2) @ start[:4]
    np.testing.assert_allclose(found.optimum, value[~half], rtol=1e-10)
    said = json.loads(json.dumps(found.to_dict()))
    assert said["recommended"] == {"value": [found.recommended.mean, *found.recommended.interval]}
    assert said["logged"]["value"][0] == found.logged.mean
    assert said["gain"]["value"] == [found.gain.mean(), *np.quantile(found.gain, [0.05, 0.95])]
    assert said["gain"]["prob_better"] == np.mean(found.recommended.values > found.logged.values)
    assert said["optimum"]["value"][0] == found.optimum.mean()
    assert said["given"]["mine"]["gain"]["value"][0] == np.mean(found.given[0].values - found.logged.values)
    assert said["num_draws"] == {"choosing": 12, "reporting": 8}


def test_where_the_logged_policy_is_recommended_the_gain_is_exactly_zero():
    models = noisy_models(2, noise=0.0)
    start = some_start(models.space)
    best = recommend(models, start=start, logged=some_policy(models.space)).recommended.probabilities
    found = recommend(models, start=start, logged=best)
    assert found.origin == "logged"
    np.testing.assert_array_equal(found.recommended.probabilities, best)
    assert found.to_dict()["gain"] == {"value": [0.0, 0.0, 0.0], "prob_better": 0.0}


def test_differences_of_rounding_are_no_gain():
    space = noisy_models(0).space
    policy = some_policy(space)
    values = np.array([1e6, 2e6, -3e6])
    found = Policies(
        recommended=PolicyValue(name="recommended", probabilities=policy, values=values * (1.0 + 1e-13)),
        logged=PolicyValue(name="logged", probabilities=policy, values=values),
        given=(),
        optimum=values,
        origin="logged",
        num_changes=0,
        num_choosing=3,
    )
    assert found.prob_better == 0.0
    np.testing.assert_array_equal(found.gain, 0.0)


def test_equal_actions_leave_the_logged_policy_alone():
    models = noisy_models(4, noise=0.0)
    rows = models.rows.reshape(20, 4, 3, -1)
    same = ModelDraws(
        space=models.space,
        first_edge=models.first_edge,
        successor=models.successor,
        rows=np.repeat(rows[:, :, :1], 3, axis=2).reshape(20, -1),
        rewards=np.repeat(models.rewards.reshape(20, 4, 3)[:, :, :1], 3, axis=2).reshape(20, -1),
    )
    logged = some_policy(models.space)
    found = recommend(same, start=some_start(models.space), logged=logged)
    np.testing.assert_array_equal(found.recommended.probabilities, logged)
    assert found.prob_better == 0.0


@given(share=st.floats(0.01, 1.0), seed=st.integers(0, 1000), size=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_the_mean_of_the_worst_share_is_that_of_the_quantile_function(share, seed, size):
    values = np.random.default_rng(seed).standard_exponential(size)
    risk = Risk(share=share)
    np.testing.assert_allclose(risk.weights(values).sum(), 1.0)
    mass = max(1.0, share * size)
    # ∫ of the step function of the sorted values up to the mass, exactly.
    edges = np.minimum(np.arange(1, size + 1), mass) - np.minimum(np.arange(size), mass)
    np.testing.assert_allclose(risk.score(values), np.sort(values) @ edges / mass, rtol=1e-12)


def test_known_values_of_the_risk_measures():
    values = np.array([5.0, -1.0, 2.0, 8.0, 1.0])
    np.testing.assert_allclose(Risk.parse("mean").score(values), 3.0)
    np.testing.assert_allclose(Risk.parse("cvar:0.2").score(values), -1.0)
    np.testing.assert_allclose(Risk.parse("cvar:0.5").score(values), (-1.0 + 1.0 + 0.5 * 2.0) / 2.5)
    assert Risk.parse("mean").score(np.append(values, -np.inf)) == -np.inf
    for text in ("cvar", "cvar:0", "cvar:1.5", "var:0.1", "mean:0.1", "cvar:x"):
        with pytest.raises(InvalidInputError, match="risk must be"):
            Risk.parse(text)


def test_risk_aversion_prefers_the_sure_action_and_the_mean_the_better_one():
    # Action 0 pays 1 in every model; action 1 pays 2 on average, and −10 in every tenth one.
    space = qp.StateActionSpace.from_mask(np.ones((1, 2), dtype=bool), np.zeros(1, dtype=bool), discount=0.5)
    risky = np.where(np.arange(100) % 10 == 0, -10.0, 2.0 + 1.0 / 3.0 + 1.0)
    models = ModelDraws(
        space=space,
        first_edge=np.array([0, 1, 2]),
        successor=np.zeros(2, dtype=np.int64),
        rows=np.ones((100, 2)),
        rewards=np.stack([np.ones(100), risky], axis=1),
    )
    start, logged = np.ones(1), np.array([0.5, 0.5])
    half = first_halves(100, 1)
    assert recommend(models, start=start, logged=logged, half=half).recommended.probabilities.tolist() == [0.0, 1.0]
    careful = recommend(models, start=start, logged=logged, half=half, risk="cvar:0.1")
    assert careful.recommended.probabilities.tolist() == [1.0, 0.0]
    np.testing.assert_allclose(careful.recommended.values, 2.0)


def test_a_cautious_policy_leaves_the_usual_action_only_where_it_is_that_sure():
    left, stayed = 0, 0
    for seed in range(15):
        models = noisy_models(seed, noise=1.0, draws=60)
        space, start, logged = models.space, some_start(models.space, seed), some_policy(models.space, seed)
        half = first_halves(60, 3)
        found = recommend(models, start=start, logged=logged, half=half, cautious=0.9)
        policy = found.recommended.probabilities
        if np.array_equal(policy, logged):
            continue
        _, q = dense_values(models, policy, start)
        for s in range(space.num_states):
            pairs = np.arange(3 * s, 3 * s + 3)
            usual = pairs[np.argmax(logged[pairs])]
            taken = pairs[np.argmax(policy[pairs])]
            assert policy[taken] == 1.0
            sure = (q[half][:, pairs] > q[half][:, [usual]]).mean(axis=0) >= 0.9
            if taken != usual:
                left += 1
                assert sure[taken - 3 * s]
            else:
                stayed += 1
                assert not sure.any()
    assert left > 5
    assert stayed > 5


def test_models_without_a_solution_are_left_out_of_both_halves():
    models = noisy_models(6, states=4, goals=1, discount=1.0, noise=0.1)
    rewards = models.rewards - 3.0
    rows = models.rows.reshape(20, -1, 4).copy()
    for d in (2, 13):  # the first action of state 0 stays, and pays
        rows[d, 0], rewards[d, 0] = [1.0, 0.0, 0.0, 0.0], 1.0
    broken = ModelDraws(
        space=models.space,
        first_edge=models.first_edge,
        successor=models.successor,
        rows=rows.reshape(20, -1),
        rewards=rewards,
    )
    half = first_halves(20, 1)
    found = recommend(broken, start=some_start(models.space), logged=some_policy(models.space), half=half)
    assert (found.num_choosing, found.optimum.size) == (9, 9)
    assert np.isfinite(found.recommended.values).all()
    with pytest.raises(InvalidInputError, match="each half needs a model that has a solution; 0 of 1 draws"):
        recommend(broken, start=some_start(models.space), logged=some_policy(models.space), half=np.arange(20) == 2)


def test_a_policy_that_never_ends_is_not_chosen_and_its_value_is_not_a_number_in_the_answer():
    # Action 0 of state 0 stays for −1, action 1 reaches the goal for −5.
    space = qp.StateActionSpace.from_mask(np.ones((2, 2), dtype=bool), np.array([False, True]))
    models = ModelDraws(
        space=space,
        first_edge=np.array([0, 1, 2]),
        successor=np.array([0, 1]),
        rows=np.ones((6, 2)),
        rewards=np.tile([-1.0, -5.0], (6, 1)),
    )
    found = recommend(models, start=np.array([1.0, 0.0]), logged=np.array([1.0, 0.0]))
    assert found.recommended.probabilities.tolist() == [0.0, 1.0]
    assert found.to_dict()["logged"]["value"] == [None, None, None]
    assert found.prob_better == 1.0


def test_halves_of_chains_have_all_chains():
    assert first_halves(10, 2).tolist() == [True] * 3 + [False] * 2 + [True] * 3 + [False] * 2
    with pytest.raises(InvalidInputError, match="10 draws cannot come from 3 chains"):
        first_halves(10, 3)


def test_the_logged_policy_has_the_frequencies_and_nothing_is_known_where_nothing_was_done():
    space = noisy_models(0, states=2, actions=3).space
    np.testing.assert_allclose(
        logged_policy(space, np.array([1.0, 3.0, 0.0, 0.0, 0.0, 0.0])), [0.25, 0.75, 0.0, 1 / 3, 1 / 3, 1 / 3]
    )


def test_arguments_that_do_not_fit_the_models_are_refused():
    models = noisy_models(0)
    good = {"start": some_start(models.space), "logged": some_policy(models.space)}
    for change, message in (
        ({"logged": np.ones(12)}, "sum to 1"),
        ({"start": np.ones(4)}, "initial must sum to 1"),
        ({"q": np.zeros((3, 12))}, "q must have shape"),
        ({"half": np.ones(20, dtype=bool)}, "each half needs a model"),
        ({"half": np.ones(3, dtype=bool)}, "half must have"),
        ({"cautious": 1.0}, "cautious must lie in"),
        ({"risk": "worst"}, "risk must be"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            recommend(models, **(good | change))


def test_of_many_large_models_policies_are_compared_on_some_and_valued_on_all(monkeypatch):
    models = noisy_models(31, draws=200)
    start, logged = some_start(models.space), some_policy(models.space)
    monkeypatch.setattr(policies, "MOST_JUDGED", 60 * models.num_edges)
    fewer = recommend(models, start=start, logged=logged)
    assert (fewer.num_choosing, fewer.recommended.values.size) == (60, 100)
    assert np.ptp(np.diff(policies._evenly(np.arange(0, 400, 2), 60))) <= 2
    monkeypatch.setattr(policies, "MOST_JUDGED", 1)
    assert recommend(models, start=start, logged=logged).num_choosing == policies.FEWEST_JUDGED
    assert recommend(noisy_models(31, draws=20), start=start, logged=logged).num_choosing == 10
