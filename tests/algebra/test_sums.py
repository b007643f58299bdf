"""Sums of an experience: those of the rows it was made of, however it was made."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import qposterior as qp
from qposterior.logs import scan
from qposterior.logs.choices import choose
from qposterior.logs.files import log_from_dict, log_to_dict
from qposterior.logs.read import read_log
from qposterior.logs.settings import FitSettings
from qposterior.world.sums import Edges

SPACE = qp.make_environment("random-mdp", num_states=4, num_actions=2, seed=1).space
REWARD = st.sampled_from([0.0, 1.0, 2.5, -40.0]) | st.floats(-50, 50, allow_subnormal=False)
OF_A_PAIR = ("count", *(f"reward_{name}" for name in ("mean", "deviation", "third", "fourth", "low", "high")))
STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), REWARD, st.integers(0, 3)), max_size=30)


def record_all(steps, **kinds):
    seen = qp.Experience(SPACE, **({"transitions": "counted", "rewards": "noisy"} | kinds))
    for step in steps:
        seen.record(*step)
    return seen


def assert_sums_of(sums, rows, *, rel=1e-8, atol=1e-6):
    """Compare with (pair, reward, successor, weight) of every reading, one pair after the other."""
    assert sums.first_edge[-1] == sums.successor.size == sums.edge_count.size == sums.edge_reward.size
    np.testing.assert_array_equal(sums.edge_pair, np.repeat(np.arange(sums.count.size), np.diff(sums.first_edge)))
    for k in range(sums.space.num_pairs):
        reward, successor, weight = (np.array([row[i] for row in rows if row[0] == k]) for i in (1, 2, 3))
        mean = np.average(reward, weights=weight) if reward.size else 0.0
        gap = reward - mean
        wanted = [weight.sum(), mean, *(weight @ gap**power if gap.size else 0.0 for power in (2, 3, 4))]
        wanted += [reward.min(initial=np.inf), reward.max(initial=-np.inf)] if reward.size else [0.0, 0.0]
        names = (
            "count",
            "reward_mean",
            "reward_deviation",
            "reward_third",
            "reward_fourth",
            "reward_low",
            "reward_high",
        )
        for name, value in zip(names, wanted, strict=True):
            assert getattr(sums, name)[k] == pytest.approx(value, rel=rel, abs=atol), name
        edges = slice(sums.first_edge[k], sums.first_edge[k + 1])
        np.testing.assert_array_equal(sums.successor[edges], np.unique(successor))
        for s, count, edge_reward in zip(
            sums.successor[edges], sums.edge_count[edges], sums.edge_reward[edges], strict=True
        ):
            led_there = successor == s
            assert count == pytest.approx(weight[led_there].sum())
            wanted_reward = np.average(reward[led_there], weights=weight[led_there])
            assert edge_reward == pytest.approx(wanted_reward, rel=1e-9, abs=1e-2 * atol)


def rows_of(steps):
    return [(SPACE.pair(state, action), reward, successor, 1.0) for state, action, reward, successor in steps]


def same(one, two):
    """Whether two sums agree to the last bit."""
    names = [name for name in one.__slots__ if name != "space"]
    return all(np.array_equal(getattr(one, n), getattr(two, n), equal_nan=True) for n in names)


@given(STEPS, STEPS, STEPS)
def test_recorded_and_merged_experience_has_the_sums_of_its_rows(one, two, three):
    seen = record_all(one)
    assert_sums_of(seen.sums(), rows_of(one))
    left = seen.merge(record_all(two)).merge(record_all(three))
    right = seen.merge(record_all(two).merge(record_all(three)))
    for merged in (left, right):
        assert_sums_of(merged.sums(), rows_of(one + two + three))
    for step in two:
        left.record(*step)
    assert_sums_of(left.sums(), rows_of(one + two + three + two))
    assert_sums_of(seen.sums(), rows_of(one))  # what was merged is left as it was


@given(STEPS)
@example([(0, 0, 1.0, 1), (0, 0, 2.5, 2)])
def test_copies_and_texts_have_the_same_sums(steps):
    seen = record_all(steps)
    wanted = seen.sums()
    assert same(seen.copy().sums(), wanted)
    assert same(qp.Experience.from_text(seen.to_text(), SPACE).sums(), wanted)
    revealed = qp.Experience(SPACE, transitions="counted", rewards="noisy")
    for k in seen.observed_pairs:
        revealed.reveal(int(k), seen)
    assert same(revealed.sums(), wanted)
    if steps:
        changed = seen.copy()
        state, action, reward, successor = steps[0]
        changed.record(state, action, reward + 7.0, successor)
        assert same(seen.sums(), wanted)


def test_a_text_without_rewards_of_successors_still_reads():
    head = f"qposterior-experience 1 counted noisy pairs={SPACE.num_pairs}\n"
    seen = qp.Experience.from_text(head + "0 0 3 2.0 6.0 3:2.0 1:1.0 | 0.0:1.0 3.0:2.0\n0 1 2 1.0 2.0 1:2.0\n", SPACE)
    sums = seen.sums()
    np.testing.assert_array_equal(sums.edge_reward, [np.nan, np.nan, 1.0])  # the last is the only one of its pair
    np.testing.assert_allclose(sums.reward_third[:2], [-6.0, np.nan])
    np.testing.assert_array_equal(sums.reward_low[:2], [0.0, np.nan])  # a pair without readings
    seen.record(0, 0, 5.0, 2)
    seen.record(0, 0, 5.0, 1)
    np.testing.assert_array_equal(seen.sums().edge_reward[:3], [np.nan, 5.0, np.nan])
    mixed = qp.Experience.from_text(head + "0 0 3 2.0 6.0 3:2.0:1.5 1:1.0\n", SPACE)
    np.testing.assert_array_equal(mixed.sums().edge_reward, [np.nan, 1.5])
    assert qp.Experience.from_text(mixed.to_text(), SPACE) == mixed


@pytest.mark.parametrize("kinds", ["revealed noisy", "counted deterministic"])
def test_only_counted_noisy_texts_have_rewards_of_successors(kinds):
    head = f"qposterior-experience 1 {kinds} pairs={SPACE.num_pairs}\n"
    with pytest.raises(qp.InvalidInputError, match=r"line 2 .* counted, noisy"):
        qp.Experience.from_text(head + "0 0 1 2.0 0.0 3:1.0:2.0\n", SPACE)
    for entry in ("3:1.0:nan", "3:1.0:inf", "3:1.0:x", "3:1.0:2.0:3.0"):
        with pytest.raises(qp.InvalidInputError, match="line 2"):
            qp.Experience.from_text(head.replace(kinds, "counted noisy") + f"0 0 1 2.0 0.0 {entry}\n", SPACE)


def test_deterministic_rewards_are_their_own_extremes():
    seen = record_all([(0, 0, 0.1, 1), (0, 0, 0.1, 2), (1, 1, -3.0, 0)], rewards="deterministic")
    sums = seen.sums()
    k, other = SPACE.pair(0, 0), SPACE.pair(1, 1)
    assert sums.reward_low[[k, other]].tolist() == sums.reward_high[[k, other]].tolist() == [0.1, -3.0]
    for name in ("reward_deviation", "reward_third", "reward_fourth"):
        assert getattr(sums, name).tolist() == [0.0] * SPACE.num_pairs
    assert sums.edge_reward.tolist() == [0.1, 0.1, -3.0]
    assert (sums.count[k], sums.count[other], sums.rows_known) == (2.0, 1.0, False)


def test_known_rows_are_the_edges():
    lake = qp.FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=True)
    seen = qp.Experience.of_pairs(lake, [(14, 2), (14, 2), (0, 0)])
    sums = seen.sums()
    k, corner = lake.space.pair(14, 2), lake.space.pair(0, 0)
    edges = slice(sums.first_edge[k], sums.first_edge[k + 1])
    assert sums.rows_known
    assert sums.successor[edges].tolist() == [10, 14, 15]
    np.testing.assert_allclose(sums.edge_count[edges], 2 / 3)
    assert np.isnan(sums.edge_reward[edges]).all()  # the pair's is a mean over them
    np.testing.assert_allclose(sums.edge_count[sums.edge_pair == corner].sum(), 1.0)
    single = record_all([(0, 0, 1.0, 1), (0, 0, 2.0, 1)], transitions="revealed").sums()
    assert (single.edge_reward.tolist(), single.edge_count.tolist()) == ([1.5], [2.0])


def test_frequencies_taken_for_rows_keep_the_rewards_of_successors():
    seen = record_all([(0, 0, 1.0, 3), (0, 0, 2.0, 1), (0, 0, 6.0, 3)])
    sums = seen.with_frequencies().sums()
    assert sums.rows_known
    np.testing.assert_allclose(sums.edge_count, [1.0, 2.0])
    assert sums.edge_reward.tolist() == [2.0, 3.5]
    assert sums.reward_third[0] == pytest.approx(seen.sums().reward_third[0])
    other = seen.with_rows({0: (np.array([1, 2]), np.array([0.5, 0.5]))}).sums()
    assert np.isnan(other.edge_reward).all()


def log_table(rows=400, seed=0, offset=1e8):
    """A log whose weights are not whole, rewards far from 0 that depend on where they led, skewed."""
    rng = np.random.default_rng(seed)
    following = rng.integers(0, 4, rows)
    return pd.DataFrame(
        {
            "state": rng.choice(["a", "b", "c"], rows),
            "action": rng.choice(["x", "y"], rows),
            "reward": offset + (rng.exponential(size=rows) + 3.0 * following).round(4),
            "next_state": np.array(["a", "b", "c", "end"])[following],
            "weight": rng.choice([0.5, 1.0, 1.25, 3.0], rows),
        }
    )


def rows_of_table(table, chosen):
    state, action = ({label: i for i, label in enumerate(labels)} for labels in (chosen.states, chosen.actions))
    pair = [chosen.seen.space.pair(state[s], action[a]) for s, a in zip(table["state"], table["action"], strict=True)]
    return list(zip(pair, table["reward"], table["next_state"].map(state), table["weight"], strict=True))


def assert_sums_of_table(chosen, table):
    """Compare about the offset, where rows keep their digits; merged means of 1e8 are known to 1e-8 of a reward."""
    sums = chosen.seen.sums()
    shifted = {name: getattr(sums, name) - 1e8 for name in ("reward_mean", "reward_low", "reward_high", "edge_reward")}
    rows = [(k, reward - 1e8, s, weight) for k, reward, s, weight in rows_of_table(table, chosen)]
    assert_sums_of(replace(sums, **shifted), rows, rel=1e-6, atol=1e-4)


@pytest.mark.parametrize("chunk", [7, 100, 100_000])
def test_the_sums_of_a_log_are_those_of_its_rows(monkeypatch, chunk):
    monkeypatch.setattr(scan, "CHUNK", chunk)
    table = log_table()
    assert_sums_of_table(choose(read_log(table), FitSettings()), table)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_logs_added_up_in_any_order_by_way_of_files_have_the_sums_of_all_rows(order):
    parts = [log_table(rows, seed) for seed, rows in enumerate((300, 40, 150))]
    log = None
    for i in order:
        log = read_log(parts[i], before=None if log is None else log_from_dict(log_to_dict(log)))
    assert_sums_of_table(choose(log, FitSettings()), pd.concat(parts))


def record_rows(seen, rows):
    for k, reward, successor, _ in rows:
        seen.record(int(seen.space.pair_state[k]), int(seen.space.pair_action[k]), reward, int(successor))
    return seen


def test_experiences_of_logs_go_on_by_merging_revealing_and_recording():
    one, two = (log_table(rows, seed).assign(weight=1.0) for seed, rows in enumerate((200, 150)))
    first = choose(read_log(one), FitSettings())
    rows = rows_of_table(two, first)
    blank = qp.Experience(first.seen.space, transitions="counted", rewards="noisy")
    second = record_rows(blank.copy(), rows)
    for seen in (record_rows(first.seen.copy(), rows), first.seen.merge(second), second.merge(first.seen)):
        assert_sums_of_table(replace(first, seen=seen), pd.concat([one, two]))
    assert_sums_of_table(first, one)  # what was merged is left as it was
    for k in first.seen.observed_pairs:
        blank.reveal(int(k), first.seen)
    assert same(blank.sums(), first.seen.sums())
    before, known = blank.sums(), blank.with_frequencies()
    record_rows(blank, rows)
    np.testing.assert_array_equal(before.reward_fourth, first.seen.sums().reward_fourth)
    np.testing.assert_array_equal(before.reward_mean, first.seen.sums().reward_mean)
    np.testing.assert_array_equal(known.sums().reward_fourth, before.reward_fourth)
    assert_sums_of_table(first, one)


def test_the_first_reading_that_weighs_makes_the_reward_of_a_successor_known():
    row, unknown = (np.array([1, 4]), np.array([2.0, 0.0])), np.array([3.0, np.nan])
    successors, counts, rewards = Edges(*row, unknown).with_reading(4, 5.0)
    assert (successors.tolist(), counts.tolist(), rewards.tolist()) == ([1, 4], [2.0, 1.0], [3.0, 5.0])


def test_sums_of_an_earlier_version_are_unknown_but_no_error():
    names = ("reward_third", "reward_fourth", "move_reward")
    stored = {k: v for k, v in log_to_dict(read_log(log_table(60))).items() if k not in names}
    sums = choose(log_from_dict(stored), FitSettings()).seen.sums()
    assert np.isnan(sums.reward_third).all()
    assert np.isnan(sums.reward_fourth).all()
    assert np.isnan(sums.edge_reward).all()
    assert np.isfinite(sums.reward_deviation).all()
    assert np.isfinite(sums.reward_low).all()


def test_a_pair_that_hardly_weighs_was_not_tried():
    rows = [
        ("a", "x", 1.0, "b", 1.0),
        ("a", "x", 2.0, "c", 1.0),
        ("a", "y", 5.0, "b", 0.25),
        ("b", "x", 0.0, "c", 0.75),
    ]
    columns = ["state", "action", "reward", "next_state", "weight"]
    sums = choose(read_log(pd.DataFrame(rows, columns=columns)), FitSettings(actions="seen")).seen.sums()
    assert sums.count.tolist() == [2.0, 0.0, 0.75]
    assert sums.first_edge.tolist() == [0, 2, 2, 3]
    assert (sums.reward_low[1], sums.reward_high[1], sums.reward_mean[1]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("rewards", ["deterministic", "noisy"])
def test_four_hundred_thousand_pairs_take_seconds(rewards):
    number, rng = 400_000, np.random.default_rng(0)
    space = qp.StateActionSpace.from_mask(np.ones((number // 4 + 1, 4), dtype=bool), np.arange(number // 4 + 1) == 0)
    pair = np.repeat(np.arange(number), 2)
    mean = rng.normal(size=number)
    seen = qp.Experience.from_sums(
        space,
        pair=np.arange(number),
        count=np.full(number, 4.0),
        reward_mean=mean,
        reward_deviation=np.ones(number),
        move_pair=pair,
        move_state=np.tile([3, 1], number),
        move_count=np.tile([3.0, 1.0], number),
        move_reward=np.arange(2.0 * number),
        transitions="counted",
        rewards=rewards,
    )
    before = time.process_time()
    sums = seen.sums()
    assert time.process_time() - before < 10.0  # about one; what is quadratic would take hours
    assert sums.successor[:4].tolist() == [1, 3, 1, 3]
    assert sums.edge_count[:2].tolist() == [1.0, 3.0]
    np.testing.assert_array_equal(sums.reward_mean, mean)
    wanted = [1.0, 0.0, 3.0, 2.0] if rewards == "noisy" else mean[[0, 0, 1, 1]].tolist()
    assert sums.edge_reward[:4].tolist() == wanted
