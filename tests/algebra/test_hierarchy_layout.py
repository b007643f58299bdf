"""The arrays of the model's sampler against plain loops over raw readings."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from hierarchies import plain_space, random_log, record_all
from qposterior.model import hierarchy as module
from qposterior.model.hierarchy import build_hierarchy
from qposterior.model.reward_noise import constant_pairs, reward_noise, shape_of_noise
from qposterior.model.row_worth import variance_of_mean, variance_within
from qposterior.model.solve_models import logged_policy
from qposterior.model.successor_rewards import (
    SuccessorRewards,
    permutation_moments,
    successor_rewards,
    successors_explain,
)
from qposterior.model.successor_values import followed_values, logged_values
from qposterior.world.space import StateActionSpace


def candidates_of(space, steps):
    """Candidates of every state and the odds of unseen ones, by loops over the docstring's words."""
    follows = {s: {} for s in range(space.num_states)}
    popularity = np.zeros(space.num_states)
    for s, _, _, t in steps:
        follows[s][t] = follows[s].get(t, 0) + 1
        popularity[t] += 1
    others = [sum(t in follows[s] for s in follows) for t in range(space.num_states)]
    popular = sorted(range(space.num_states), key=lambda t: (-others[t], -popularity[t]))[:8]
    once = {s: sum(n == 1 for n in follows[s].values()) for s in follows}
    overall = sum(once.values()) / len(steps)
    wanted = {}
    for s in range(space.num_states):
        if space.is_goal[s]:
            wanted[s] = {}
        elif not follows[s]:
            wanted[s] = dict.fromkeys(sorted({*popular, s}), (0, 1.0))
        else:
            share = min((once[s] + 2 * overall) / (sum(follows[s].values()) + 2), 0.5)
            new = [t for t in popular if t not in follows[s]][:2] if share > 0 else []
            wanted[s] = {t: (n, 0.0) for t, n in follows[s].items()}
            wanted[s] |= {t: (0, share / (1 - share) / len(new)) for t in new}
    return wanted


@pytest.mark.parametrize(
    ("num_states", "num_actions", "readings", "goals"),
    [(5, 3, 60, ()), (12, 2, 40, (3, 7)), (12, 2, 25, (0,)), (1, 1, 1, ()), (1, 3, 4, ()), (2, 1, 2, (1,))],
)
def test_candidates_edges_and_counts_are_those_of_the_readings(num_states, num_actions, readings, goals):
    rng = np.random.default_rng(num_states + readings)
    space = plain_space(num_states, num_actions, goals=goals)
    deciding = space.deciding_states
    steps = [
        (int(rng.choice(deciding)), int(rng.integers(num_actions)), rng.normal(), int(num_states * rng.random() ** 2))
        for _ in range(readings)
    ]
    value = rng.normal(size=num_states)
    hierarchy = build_hierarchy(record_all(space, steps).sums(), value)
    layout, facts = hierarchy.whole.layout, hierarchy.whole.data
    wanted = candidates_of(space, steps)
    for s in range(num_states):
        part = slice(layout.first_candidate[s], layout.first_candidate[s + 1])
        assert hierarchy.candidates.successor[part].tolist() == sorted(wanted[s])
        np.testing.assert_allclose(facts.unseen_odds[part], [wanted[s][t][1] for t in sorted(wanted[s])])
        total = np.array([wanted[s][t][0] for t in sorted(wanted[s])], float)
        if total.sum():
            guess = total + 0.5 * (total > 0) + facts.unseen_odds[part]
            np.testing.assert_allclose(hierarchy.whole.initial[part], guess / guess.sum())
            assert facts.base[part].sum() == pytest.approx(1.0)
            np.testing.assert_array_equal(facts.base[part] > 0.0, total > 0.0)
            assert total @ facts.value[part] == pytest.approx(0.0, abs=1e-9)
        elif total.size:
            np.testing.assert_allclose(hierarchy.whole.initial[part], 1.0 / total.size)
            assert not facts.base[part].any()
    assert layout.first_edge[-1] == facts.edge_count.size == hierarchy.candidates.of_edges.size
    for k in range(space.num_pairs):
        s, a = space.pair_state[k], space.pair_action[k]
        edges = np.arange(layout.first_edge[k], layout.first_edge[k + 1])
        successors = hierarchy.candidates.successor[hierarchy.candidates.of_edges[edges]]
        assert successors.tolist() == sorted(wanted[s])
        of_pair = [t for x, y, _, t in steps if (x, y) == (s, a)]
        assert facts.edge_count[edges].tolist() == [of_pair.count(t) for t in successors]
        assert facts.count[k] == len(of_pair)
        seen = layout.seen_edge[layout.first_seen[k] : layout.first_seen[k + 1]]
        assert seen.tolist() == edges[facts.edge_count[edges] > 0.0].tolist()
    tried = [len({y for x, y, _, _ in steps if x == s}) for s in range(num_states)]
    np.testing.assert_array_equal(hierarchy.whole.units.is_read, np.array(tried) >= 1)
    np.testing.assert_array_equal(hierarchy.whole.units.is_compared, np.array(tried) >= 2)


def test_worth_is_that_of_the_successors_of_each_pair():
    space, steps = random_log(np.random.default_rng(1), skip={(0, 1), (2, 0), (2, 1), (2, 2)})
    value = np.random.default_rng(2).normal(4.0, 3.0, 5)
    sums = record_all(space, steps).sums()
    hierarchy = build_hierarchy(sums, value)
    parts = {k: np.array([0.9 * value[t] for s, a, _, t in steps if space.pair(s, a) == k]) for k in range(15)}
    squares = np.array([((part - part.mean()) ** 2).sum() if part.size else 0.0 for part in parts.values()])
    within, freedom = variance_within(space, count=sums.count, squares=squares, spread=hierarchy.whole.units.worth_unit)
    np.testing.assert_allclose(hierarchy.whole.units.worth_freedom, freedom + 4.0)
    for s in range(5):
        all_worth = np.array([0.9 * value[t] for x, _, _, t in steps if x == s])
        candidates = slice(hierarchy.whole.layout.first_candidate[s], hierarchy.whole.layout.first_candidate[s + 1])
        known = 0.9 * value[hierarchy.candidates.successor[candidates]]
        centre = all_worth.mean() if all_worth.size else known.mean()
        spread = all_worth.std() if all_worth.size else known.std()
        np.testing.assert_allclose(hierarchy.whole.data.value[candidates], known - centre, atol=1e-12)
        assert hierarchy.whole.units.worth_unit[s] == pytest.approx(spread)
        assert hierarchy.whole.units.is_varied[s]
        for a in range(3):
            worth = np.array([0.9 * value[t] for x, y, _, t in steps if (x, y) == (s, a)])
            k = space.pair(s, a)
            if worth.size:
                assert hierarchy.whole.data.worth[k] == pytest.approx(worth.mean() - centre)
                wanted = (squares[k] + 8.0 * within[s]) / ((worth.size + 7.0) * worth.size)
                assert hierarchy.whole.data.worth_variance[k] == pytest.approx(wanted, rel=1e-6)


def test_goals_are_worth_nothing_as_successors_whatever_their_value():
    space = plain_space(3, 2, goals=[2])
    steps = [(0, 0, 1.0, 1), (0, 0, 1.0, 2), (0, 1, 2.0, 1), (1, 0, 1.0, 2), (1, 1, 0.5, 0)]
    one, two = (build_hierarchy(record_all(space, steps).sums(), np.array([1.0, 2.0, v])) for v in (0.0, 77.0))
    np.testing.assert_array_equal(one.whole.data.value, two.whole.data.value)


def test_states_whose_successors_are_worth_the_same_up_to_rounding_are_flat():
    space = plain_space(4, 2)
    steps = [(0, a, 0.0, t) for a in (0, 1) for t in (1, 2)] + [(s, 0, 1.0, t) for s in (1, 2, 3) for t in (0, 3)]
    value = np.array([0.0, 3.0, 3.0 * (1.0 + 2e-16), 5.0])
    hierarchy = build_hierarchy(record_all(space, steps).sums(), value)
    assert hierarchy.whole.units.is_varied.tolist() == [False, True, True, True]
    start, stop = hierarchy.whole.layout.first_candidate[:2]
    np.testing.assert_array_equal(hierarchy.whole.data.value[start:stop], 0.0)
    nowhere = build_hierarchy(record_all(space, steps).sums(), 1e6 + np.arange(4) * 1e-10)
    assert not nowhere.whole.units.is_varied.any()
    assert not nowhere.whole.data.value.any()


def test_the_worth_of_a_known_row_is_known():
    space = plain_space(2, 2)
    known = qp.Experience(space, rewards="noisy")
    row = np.array([0, 1]), np.array([0.25, 0.75])
    for reward in (1.0, 2.0, 4.0):
        known.record(0, 0, reward, 1, row=row)
    known.record(1, 1, 3.0, 0)
    hierarchy = build_hierarchy(known.sums(), np.array([2.0, -2.0]))
    assert hierarchy.whole.units.rows_known
    np.testing.assert_allclose(hierarchy.whole.data.edge_count[:2], [0.75, 2.25])
    unit = hierarchy.whole.units.worth_unit.max() ** 2
    assert np.all(hierarchy.whole.data.worth_variance < 1e-8 * unit)
    assert np.all(np.isinf(hierarchy.whole.units.worth_freedom))


def effects_by_least_squares(space, steps):
    """Fitted rewards α_sa + e_ss' of every reading, by dense least squares."""
    pairs = sorted({(s, a) for s, a, _, _ in steps})
    cells = sorted({(s, t) for s, _, _, t in steps})
    design = np.zeros((len(steps), len(pairs) + len(cells)))
    for i, (s, a, _, t) in enumerate(steps):
        design[i, pairs.index((s, a))] = design[i, len(pairs) + cells.index((s, t))] = 1.0
    reward = np.array([r for _, _, r, _ in steps])
    return design @ np.linalg.lstsq(design, reward, rcond=None)[0]


def edge_pairs(hierarchy):
    """The pair of each edge."""
    return np.repeat(np.arange(hierarchy.space.num_pairs), np.diff(hierarchy.whole.layout.first_edge))


def of_edges(sums, hierarchy):
    """The candidate of each edge of the sums."""
    edge_of = {
        (int(k), int(hierarchy.candidates.successor[c])): int(c)
        for k, c in zip(edge_pairs(hierarchy), hierarchy.candidates.of_edges, strict=True)
    }
    return np.array([edge_of[int(k), int(t)] for k, t in zip(sums.edge_pair, sums.successor, strict=True)])


@pytest.mark.parametrize("shift", [0.0, 5000.0])
def test_successor_effects_are_the_least_squares_ones(shift):
    space, steps = random_log(np.random.default_rng(3), effect=2.0, skip={(4, 0), (4, 1)})
    steps = [(s, a, r + shift, t) for s, a, r, t in steps]
    sums = record_all(space, steps).sums()
    hierarchy = build_hierarchy(sums, np.zeros(5))
    rewards = successor_rewards(sums, of_edges(sums, hierarchy), hierarchy.candidates.successor.size)
    assert rewards.is_used
    fitted = effects_by_least_squares(space, steps)
    place = {
        (s, int(hierarchy.candidates.successor[c])): c
        for s in range(5)
        for c in range(hierarchy.whole.layout.first_candidate[s], hierarchy.whole.layout.first_candidate[s + 1])
    }
    found = [rewards.mean[space.pair(s, a)] + rewards.effect[place[s, t]] for s, a, _, t in steps]
    np.testing.assert_allclose(found, fitted, atol=1e-7)
    left = np.zeros(space.num_pairs)
    for (s, a, r, _), fit in zip(steps, fitted, strict=True):
        left[space.pair(s, a)] += (r - fit) ** 2
    used = [len({t for x, _, _, t in steps if x == s}) - 1 for s in range(5)]
    freedom = [sum(max(sums.count[space.pair(s, a)] - 1, 0) for a in range(3)) for s in range(5)]
    factor = np.array([f / (f - u) for f, u in zip(freedom, used, strict=True)])[space.pair_state]
    np.testing.assert_allclose(rewards.deviation, factor * left, atol=1e-5)
    for s in range(5):  # effects are centred: 0 is the best guess for a successor that was not seen
        assert sum(rewards.effect[place[x, t]] for x, _, _, t in steps if x == s) == pytest.approx(0.0, abs=1e-7)
    np.testing.assert_allclose(
        hierarchy.whole.data.value, build_hierarchy(sums, np.ones(5)).whole.data.value, atol=1e-9
    )


def test_a_model_pays_alpha_and_the_effects_of_its_successors():
    space, steps = random_log(np.random.default_rng(4), effect=2.0)
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(5))
    rng = np.random.default_rng(5)
    rows = rng.random((130, hierarchy.whole.data.edge_count.size))  # more than one block
    rows /= np.add.reduceat(rows, hierarchy.whole.layout.first_edge[:-1], axis=1)[:, edge_pairs(hierarchy)]
    alpha = rng.normal(size=(130, space.num_pairs))
    models = hierarchy.models(rows, alpha.copy())
    effect = hierarchy.rewards.effect[hierarchy.candidates.of_edges]
    for k in range(space.num_pairs):
        edges = slice(models.first_edge[k], models.first_edge[k + 1])
        np.testing.assert_allclose(models.rewards[:, k], alpha[:, k] + rows[:, edges] @ effect[edges])
    estimate = hierarchy.estimate()
    for k in range(space.num_pairs):  # frequencies and their effects give back the mean reward
        paid = [r for s, a, r, _ in steps if space.pair(s, a) == k]
        assert estimate.rewards[0, k] == pytest.approx(np.mean(paid))


def test_successors_that_explain_nothing_have_no_effect():
    rejected = 0
    for seed in range(40):
        space, steps = random_log(np.random.default_rng(seed), readings=120)
        hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(5))
        assert isinstance(hierarchy.rewards, SuccessorRewards)
        assert hierarchy.rewards.is_used == bool(hierarchy.rewards.effect.any())
        rejected += hierarchy.rewards.is_used
    assert rejected <= 4  # at a level of 1 %: five or more in 40 have a probability of 5e-5


def test_between_squares_have_the_moments_of_all_permutations():
    """Every permutation of a pair's skewed readings among its successors, against the closed form."""
    rng, space = np.random.default_rng(6), plain_space(4, 1)
    for counts in ((3, 2, 1), (1, 1, 1), (4, 2), (2,), (1, 2), (6,), (1,)):
        rewards = rng.exponential(2.0, sum(counts)) ** 2
        leads = np.repeat(np.arange(len(counts)), counts)
        sums = record_all(space, [(0, 0, r, t) for r, t in zip(rewards, leads, strict=True)]).sums()
        gap = rewards - rewards.mean()
        orders = np.array(list(permutations(range(len(leads)))))
        squares = sum(gap[orders][:, leads == t].sum(axis=1) ** 2 / n for t, n in enumerate(counts))
        mean, variance = permutation_moments(sums)
        assert mean[0] == pytest.approx(np.mean(squares), abs=1e-9)
        assert variance[0] == pytest.approx(np.var(squares), rel=1e-9, abs=1e-9 * np.sum(gap**2) ** 2)


def test_rare_large_rewards_are_no_effects_of_successors_and_real_ones_are_found():
    """95 of 100 readings pay nothing, and the noise of all others is skewed."""
    rng, space, found = np.random.default_rng(16), plain_space(8, 3), {0.0: 0, 30.0: 0}
    for strength in found:
        for _ in range(60):
            state, action = np.repeat(np.arange(8), 15), np.tile(np.repeat(np.arange(3), 5), 8)
            leads = rng.integers(0, 4, state.size)
            paid = (rng.random(state.size) < 0.05) * rng.lognormal(3.0, 1.0, state.size) + strength * (leads == 2)
            sums = record_all(space, zip(state, action, paid, leads, strict=True)).sums()
            found[strength] += successors_explain(sums)
    assert found[0.0] <= 7  # at two tests of 1 %: eight or more in 60 have a probability of 3e-5
    assert found[30.0] == 60


def test_without_fourth_moments_the_f_test_is_the_one_of_the_textbook():
    """Readings of few pairs just above and just below the level, with the F of the readings themselves."""
    rng, both = np.random.default_rng(6), set()
    space = plain_space(3, 1)
    for strength in np.linspace(0.0, 1.5, 40):
        steps = [(s, 0, rng.normal() + strength * t, t) for s in range(3) for t in (0, 1, 2) for _ in range(5)]
        sums = record_all(space, steps).sums()
        sums = replace(sums, reward_fourth=np.full(sums.count.size, np.nan))
        cells = [[r for s, _, r, t in steps if (s, t) == (x, y)] for x in range(3) for y in range(3)]
        within = sum(np.var(c) * len(c) for c in cells)
        of_pairs = [[r for s, _, r, _ in steps if s == x] for x in range(3)]
        between = sum(np.var(p) * len(p) for p in of_pairs) - within
        p_value = stats.f.sf((between / 6) / (within / 36), 6, 36)
        assert successors_explain(sums) == (p_value <= 0.01)
        both.add(successors_explain(sums))
    assert both == {True, False}


def test_where_effects_were_fitted_pairs_are_constant_all_together_or_not_at_all():
    """A pair whose successors it alone leads to is fitted without a rest, however noisy its rewards are."""
    rng, space = np.random.default_rng(17), plain_space(6, 2)
    steps = [(0, 0, rng.normal(), 1), (0, 0, rng.normal() + 5.0, 2)]
    steps += [
        (s, a, rng.normal() + 9.0 * t, t) for s in range(1, 6) for a in range(2) for t in (3, 4) for _ in range(6)
    ]
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(6))
    assert hierarchy.rewards.is_used
    assert not hierarchy.whole.data.is_constant.any()
    exact = [(s, a, 2.0 * s + a + 9.0 * t, t) for s, a, _, t in steps]
    hierarchy = build_hierarchy(record_all(space, exact).sums(), np.zeros(6))
    assert hierarchy.rewards.is_used
    np.testing.assert_array_equal(hierarchy.whole.data.is_constant, hierarchy.whole.data.count > 0.0)


def without_effects(sums):
    """Rewards that do not depend on successors."""
    return SuccessorRewards(effect=np.zeros(0), mean=sums.reward_mean, deviation=sums.reward_deviation, is_used=False)


def noise_of(sums):
    return reward_noise(sums, without_effects(sums))


def test_units_of_rewards_are_those_of_the_readings():
    space, steps = random_log(np.random.default_rng(7), skip={(1, 0), (1, 1), (1, 2), (3, 2)})
    noise = noise_of(record_all(space, steps).sums())
    rewards = np.array([r for _, _, r, _ in steps])
    residual, freedom = np.zeros(5), np.zeros(5)
    for s in range(5):
        of_state = [r for x, _, r, _ in steps if x == s]
        assert noise.offset[s] == pytest.approx(np.mean(of_state) if of_state else rewards.mean())
        for a in range(3):
            paid = np.array([r for x, y, r, _ in steps if (x, y) == (s, a)])
            if paid.size:
                residual[s] += ((paid - paid.mean()) ** 2).sum()
                freedom[s] += paid.size - 1
    pooled = residual.sum() / freedom.sum()
    assert noise.pooled_variance == pytest.approx(pooled)
    np.testing.assert_allclose(noise.unit**2, (residual + 2 * pooled) / (freedom + 2))
    assert noise.centre_spread == pytest.approx(np.std(noise.offset[[0, 2, 3, 4]]))


@pytest.mark.parametrize(("kind", "is_skewed"), [("normal", False), ("heavy", False), ("skewed", True)])
def test_the_shape_of_noise_is_that_of_the_readings(kind, is_skewed):
    rng = np.random.default_rng(8)
    draw = {"normal": rng.standard_normal, "heavy": lambda: rng.standard_t(5), "skewed": rng.standard_exponential}[kind]
    space, steps = random_log(rng, readings=400)
    steps = [(s, a, s + 0.3 * a + draw(), t) for s, a, _, t in steps]
    sums = record_all(space, steps).sums()
    mean = {s: np.mean([r for x, _, r, _ in steps if x == s]) for s in range(5)}
    of_pair = {(s, a): np.mean([r for x, y, r, _ in steps if (x, y) == (s, a)]) for s in range(5) for a in range(3)}
    gaps = np.array([r - of_pair[s, a] for s, a, r, _ in steps])
    skewness = (gaps**3).mean() / (gaps**2).mean() ** 1.5
    fourth = sum((r - mean[s]) ** 4 for s, _, r, _ in steps)
    normal = sum(
        sum((r - mean[s]) ** 2 for x, _, r, _ in steps if x == s) ** 2 / sum(x == s for x, _, _, _ in steps)
        for s in range(5)
    )
    found = shape_of_noise(sums, np.array([mean[s] for s in range(5)]))
    assert found == pytest.approx((skewness, fourth / normal))
    noise = noise_of(sums)
    assert noise.is_pooled == is_skewed
    assert noise.tempering == pytest.approx(min(1.0, 2.0 / (fourth / normal - 1.0)))


def test_sums_without_higher_moments_are_taken_for_normal():
    space, steps = random_log(np.random.default_rng(9))
    sums = record_all(space, steps).sums()
    unknown = replace(sums, reward_third=sums.reward_third * np.nan, reward_fourth=sums.reward_fourth * np.nan)
    assert shape_of_noise(unknown, np.zeros(5)) == (0.0, 3.0)
    assert noise_of(unknown).tempering == 1.0


def constants(steps, *, weights=None):
    """By (state, action) whether its rewards are taken for constant."""
    space = plain_space(3, 2)
    sums = record_all(space, steps).sums()
    if weights is not None:
        sums = replace(sums, count=sums.count * weights)
    found = constant_pairs(sums, without_effects(sums))
    return {(int(s), int(a)): bool(x) for s, a, x in zip(space.pair_state, space.pair_action, found, strict=True)}


def test_pairs_that_pay_the_same_every_time_are_constant_unless_noisy_pairs_begin_or_end_there():
    noisy = [(0, 0, r, 1) for r in (0.0, 0.5, 3.0)]
    found = constants([*noisy, *[(0, 1, 0.0, 1)] * 3, *[(1, 0, 1.0, 1)] * 2, (1, 1, 7.0, 2), *[(2, 0, 3.0, 0)] * 4])
    assert found == {(0, 0): False, (0, 1): False, (1, 0): True, (1, 1): False, (2, 0): False, (2, 1): False}


@pytest.mark.parametrize("weight", [1.0, 0.7, 1.4])
def test_one_trial_is_enough_where_all_others_are_constant(weight):
    steps = [*[(0, 0, 5.0, 1)] * 3, *[(0, 1, 2.0, 1)] * 3, (1, 0, -1.0, 2)]
    assert constants(steps, weights=weight) == {
        (s, a): (s, a) in {(0, 0), (0, 1), (1, 0)} for s in range(3) for a in range(2)
    }


def test_rounding_is_no_noise():
    steps = [*[(0, 0, 0.1 + 0.2, 1), (0, 0, 0.3, 1)] * 2, *[(0, 1, r, 1) for r in (5.0, 6.0)]]
    assert constants(steps)[0, 0]


def test_the_variance_within_pairs_is_pooled_with_four_readings_of_the_whole_log():
    space = plain_space(3, 2)
    count = np.array([5.0, 2.0, 1.0, 0.0, 0.0, 0.4])
    squares, spread = np.array([8.0, 3.0, 0.0, 0.0, 0.0, 0.0]), np.array([2.0, 1.5, 0.5])
    share = 11.0 / (5 * 2.0**2)  # five degrees of freedom, all of them in state 0
    wanted = [(11.0 + 4 * share * 4.0) / 9.0, share * 1.5**2, share * 0.5**2]
    within, freedom = variance_within(space, count=count, squares=squares, spread=spread)
    np.testing.assert_allclose(within, wanted)
    np.testing.assert_array_equal(freedom, [5.0, 0.0, 0.0])
    flat, _ = variance_within(space, count=np.minimum(count, 1.0), squares=0 * squares, spread=spread)
    np.testing.assert_allclose(flat, 0.5 * spread**2)
    noise = variance_of_mean(space, count=count, squares=squares, within=within)
    np.testing.assert_allclose(noise[:2], [(8.0 + 8 * wanted[0]) / (12 * 5), (3.0 + 8 * wanted[0]) / (9 * 2)])


def test_the_logged_policy_is_valued_by_frequencies_and_mean_rewards():
    space, steps = random_log(np.random.default_rng(10), skip={(0, 1), (2, 0), (2, 1), (2, 2)})
    sums = record_all(space, steps).sums()
    policy = logged_policy(sums.space, sums.count).reshape(5, 3)
    np.testing.assert_allclose(policy.sum(axis=1), 1.0)
    np.testing.assert_allclose(policy[2], 1.0 / 3.0)
    model = build_hierarchy(sums, np.zeros(5)).estimate()
    rows, reward = np.zeros((15, 5)), model.rewards[0].reshape(5, 3)
    rows[np.repeat(np.arange(15), np.diff(model.first_edge)), model.successor] = model.rows[0]
    rows = rows.reshape(5, 3, 5)
    for s, a in np.ndindex(5, 3):
        of_pair = [(r, t) for x, y, r, t in steps if (x, y) == (s, a)]
        if of_pair:
            assert reward[s, a] == pytest.approx(np.mean([r for r, _ in of_pair]))
            np.testing.assert_allclose(rows[s, a], np.bincount([t for _, t in of_pair], minlength=5) / len(of_pair))
    for a in range(3):  # nothing is known of state 2
        assert reward[2, a] == pytest.approx(np.mean([r for _, _, r, _ in steps]))
    assert reward[0, 1] == pytest.approx(np.mean([r for s, _, r, _ in steps if s == 0]))
    of_policy = np.einsum("sa,sat->st", policy, rows)
    value = np.linalg.solve(np.eye(5) - 0.9 * of_policy, (policy * reward).sum(axis=1))
    np.testing.assert_allclose(logged_values(sums), value, rtol=1e-6)


@pytest.mark.parametrize("is_better", [True, False])
def test_successors_are_worth_what_the_policy_that_one_would_follow_makes_of_them(is_better):
    """Draws around one model: its optimum among tried pairs is followed only where it is surely better than the log."""
    space, steps = random_log(np.random.default_rng(18), skip={(0, 1)}, readings=600)
    sums = record_all(space, steps).sums()
    model = build_hierarchy(sums, np.zeros(5)).estimate()
    rng = np.random.default_rng(19)
    rewards = model.rewards + (0.01 if is_better else 30.0) * rng.normal(size=(80, space.num_pairs))
    draws = replace(model, rows=np.repeat(model.rows, 80, axis=0), rewards=rewards)
    rows, reward = np.zeros((15, 5)), rewards[::2].mean(axis=0).reshape(5, 3)
    rows[np.repeat(np.arange(15), np.diff(model.first_edge)), model.successor] = model.rows[0]
    rows, q = rows.reshape(5, 3, 5), np.zeros((5, 3))
    for _ in range(600):
        q = reward + 0.9 * rows @ q.max(axis=1)
    q[0, 1] = -np.inf  # never tried
    policy = np.eye(3)[q.argmax(axis=1)] if is_better else logged_policy(space, sums.count).reshape(5, 3)
    of_policy = np.einsum("sa,sat->st", policy, rows)
    value = np.linalg.solve(np.eye(5) - 0.9 * of_policy, (policy * reward).sum(axis=1))
    np.testing.assert_allclose(followed_values(draws, sums), value, rtol=1e-6)


def test_at_discount_one_successors_are_valued_a_little_below_it():
    steps = [(0, 0, 1.0, 0), (0, 1, 1.0, 1), (1, 0, 2.0, 0), (1, 1, 0.0, 1)]
    space = StateActionSpace.from_mask(np.ones((2, 2), bool), np.zeros(2, bool), discount=1.0)
    sums = record_all(space, steps).sums()
    assert np.all(np.isfinite(logged_values(sums)))
    assert np.abs(logged_values(sums)).max() == pytest.approx(100.0, rel=0.2)


def test_rows_are_expected_to_lead_where_those_of_other_states_lead():
    space, steps = random_log(np.random.default_rng(11), num_states=7, readings=60, skip={(6, 0), (6, 1), (6, 2)})
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(7))
    follows = {s: [t for x, _, _, t in steps if x == s] for s in range(7)}
    usual = {
        t: np.mean([follows[s].count(t) / len(follows[s]) for s in range(7) if t in follows[s]] or [0.0])
        for t in range(7)
    }
    for s in range(6):
        part = slice(hierarchy.whole.layout.first_candidate[s], hierarchy.whole.layout.first_candidate[s + 1])
        base = np.array(
            [max(usual[t], 1e-4) if t in follows[s] else 0.0 for t in hierarchy.candidates.successor[part].tolist()]
        )
        np.testing.assert_allclose(hierarchy.whole.data.base[part], base / base.sum())


def test_laws_are_learned_from_some_of_many_states_evenly_spread():
    space = plain_space(1500, 2)
    steps = [(s, a, float(s), s) for s in range(1500) for a in range(2 if s % 2 else 1)]
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(1500))
    teachers = hierarchy.whole.subsample()
    chosen = teachers.units.offset  # the reward of a state is its number
    assert chosen.size == 512
    assert np.all(chosen % 2 == 1)
    assert chosen[0] == 1
    assert chosen[-1] == 1499
    assert np.diff(chosen).max() <= 4
    assert not teachers.units.hyper_given
    few = build_hierarchy(record_all(plain_space(3, 2), [(0, 0, 1.0, 1), (0, 1, 2.0, 2)]).sums(), np.zeros(3))
    assert few.whole.subsample() is None


def test_a_piece_has_what_belongs_to_its_states():
    space, steps = random_log(np.random.default_rng(3), num_states=7, num_actions=3, readings=60, skip={(2, 1), (4, 0)})
    whole = build_hierarchy(record_all(space, steps).sums(), np.arange(7.0)).whole
    states = np.array([1, 2, 4, 6])
    piece = whole.part(states, hyper_given=True)
    layout, part = whole.layout, piece.layout
    assert piece.units.hyper_given
    for i, s in enumerate(states):
        old, new = (slice(*x.first_candidate[[j, j + 1]]) for x, j in ((layout, s), (part, i)))
        np.testing.assert_array_equal(piece.data.value[new], whole.data.value[old])
        np.testing.assert_array_equal(piece.initial[new], whole.initial[old])
        assert piece.units.reward_unit[i] == whole.units.reward_unit[s]
        for a in range(3):
            k, j = 3 * s + a, 3 * i + a
            assert piece.data.count[j] == whole.data.count[k]
            old, new = (slice(*x.first_edge[[y, y + 1]]) for x, y in ((layout, k), (part, j)))
            np.testing.assert_array_equal(piece.data.edge_count[new], whole.data.edge_count[old])
            seen = part.seen_edge[part.first_seen[j] : part.first_seen[j + 1]]
            np.testing.assert_array_equal(np.flatnonzero(piece.data.edge_count[new]) + new.start, seen)


def test_pieces_follow_each_other(monkeypatch):
    monkeypatch.setattr(module, "PAIRS_A_PIECE", 5)
    space, steps = random_log(np.random.default_rng(4), num_states=7, num_actions=3, readings=60)
    whole = build_hierarchy(record_all(space, steps).sums(), np.arange(7.0)).whole
    pieces = whole.pieces()
    assert len(pieces) > 2
    np.testing.assert_array_equal(np.concatenate([piece.data.mean for piece, _, _ in pieces]), whole.data.mean)
    np.testing.assert_array_equal(
        np.concatenate([piece.data.edge_count for piece, _, _ in pieces]), whole.data.edge_count
    )
    for piece, edge, pair in pieces:
        np.testing.assert_array_equal(piece.data.mean, whole.data.mean[pair : pair + piece.data.mean.size])
        size = piece.data.edge_count.size
        np.testing.assert_array_equal(piece.data.edge_count, whole.data.edge_count[edge : edge + size])


def test_a_few_trials_that_are_alike_say_nothing_of_the_noise_of_wins_and_losses():
    space, rng = plain_space(3, 2), np.random.default_rng(5)
    steps = [(s, a, float(rng.random() < 0.4), 0) for s in range(3) for a in range(2) for _ in range(6)]
    steps = [step for step in steps if step[:2] != (1, 1)] + [(1, 1, 0.0, 0)] * 6
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.zeros(3))
    facts, units = hierarchy.whole.data, hierarchy.whole.units
    assert not facts.is_constant.any()
    assert hierarchy.whole.units.is_pooled  # pooled within states
    plain = record_all(space, steps).sums().reward_deviation
    np.testing.assert_allclose(facts.deviation - plain, units.reward_unit[space.pair_state] ** 2)
    assert facts.deviation[3] > 0.0
    models = qp.ModelPrior().draw(record_all(space, steps), 200, np.random.default_rng(0))
    assert models.rewards[:, 3].std() > 0.03
    noisy = [(s, a, r + 0.1 * rng.standard_normal(), t) for s, a, r, t in steps]
    sums = record_all(space, noisy).sums()
    np.testing.assert_array_equal(build_hierarchy(sums, np.zeros(3)).whole.data.deviation, sums.reward_deviation)
