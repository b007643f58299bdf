"""Experience: sufficient statistics, contradictions, merging, and the text form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qposterior as qp

SPACE = qp.make_environment("random-mdp", num_states=4, num_actions=2, seed=1).space
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(-50, 50, allow_subnormal=False), st.integers(0, 3)),
    max_size=40,
)


def record_all(steps):
    seen = qp.Experience(SPACE, transitions="counted", rewards="noisy")
    for step in steps:
        seen.record(*step)
    return seen


@given(STEPS)
def test_statistics_are_those_of_the_rows(steps):
    seen = record_all(steps)
    for k in range(SPACE.num_pairs):
        pair = (SPACE.pair_state[k], SPACE.pair_action[k])
        rewards = [r for s, a, r, _ in steps if (s, a) == pair]
        following = [t for s, a, _, t in steps if (s, a) == pair]
        assert seen.count[k] == len(rewards)
        if rewards:
            np.testing.assert_allclose(seen.reward_mean[k], np.mean(rewards), atol=1e-9)
            np.testing.assert_allclose(seen.reward_deviation[k], np.var(rewards) * len(rewards), atol=1e-8)
            successors, counts = np.unique(following, return_counts=True)
            np.testing.assert_array_equal(seen.row(k)[0], successors)
            np.testing.assert_array_equal(seen.row(k)[1], counts)


@given(STEPS, STEPS)
def test_merging_is_seeing_both(one, two):
    merged, together = record_all(one).merge(record_all(two)), record_all(one + two)
    np.testing.assert_array_equal(merged.count, together.count)
    np.testing.assert_allclose(merged.reward_mean, together.reward_mean, atol=1e-9)
    np.testing.assert_allclose(merged.reward_deviation, together.reward_deviation, atol=1e-7)
    table, same = merged.table(), together.table()
    np.testing.assert_array_equal(table.successor, same.successor)
    np.testing.assert_allclose(table.probability, same.probability)


@given(STEPS)
def test_the_text_form_gives_the_same_experience_back(steps):
    seen = record_all(steps)
    assert qp.Experience.from_text(seen.to_text(), SPACE) == seen
    assert seen.copy() == seen


@pytest.mark.parametrize("entries", ["1:1 | inf:1", "1:1 | 2:nan", "1:1 | 2", "1:1 | 2:1:1", "1:1:inf", "1:1:2:3"])
def test_entries_of_a_text_are_finite_numbers_two_or_three_at_a_time(entries):
    seen = record_all([(0, 0, 2.0, 1)])
    head = seen.to_text().splitlines()[0]
    assert qp.Experience.from_text(f"{head}\n0 0 1 2.0 0.0 1:1:2 | 2:1\n", SPACE) == seen
    with pytest.raises(qp.InvalidInputError, match="finite numbers with a colon between"):
        qp.Experience.from_text(f"{head}\n0 0 1 2.0 0.0 {entries}\n", SPACE)


def test_a_repeated_deterministic_observation_adds_nothing_but_a_count():
    mdp = qp.make_environment("deep-sea", depth=4)
    seen = qp.Experience(mdp.space)
    assert seen.record(0, 0, -0.1, 2)
    assert not seen.record(0, 0, -0.1, 2)
    assert seen.num_observed == 1
    assert seen.count[0] == 2
    assert seen.reward_deviation[0] == 0.0


def test_two_values_of_a_deterministic_reward_are_named_with_their_pair():
    seen = qp.Experience(SPACE)
    seen.record(1, 0, 0.5, 2)
    with pytest.raises(qp.ContradictionError, match=r"state 1, action 0 has paid both 0.5 and 0.75"):
        seen.record(1, 0, 0.75, 2)
    assert seen.count[SPACE.pair(1, 0)] == 1


def test_two_successors_of_a_revealed_row_are_named():
    seen = qp.Experience(SPACE)
    seen.record(1, 0, 0.5, 2)
    with pytest.raises(qp.ContradictionError, match=r"led both to \[2\] and to 0"):
        seen.record(1, 0, 0.5, 0)
    seen.record(0, 0, 0.5, 2, row=(np.array([0, 2]), np.array([0.5, 0.5])))
    with pytest.raises(qp.ContradictionError, match="two transition rows"):
        seen.record(0, 0, 0.5, 2, row=(np.array([0, 2]), np.array([0.4, 0.6])))


def test_a_revealed_mean_stands_for_rewards_that_depend_on_the_successor():
    lake = qp.FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=True)
    k = lake.space.pair(14, 2)
    seen = qp.Experience(lake.space)
    for reward, successor in ((1.0, 15), (0.0, 10), (0.0, 14)):
        seen.record(14, 2, reward, successor, row=lake.transitions.row(k), mean_reward=float(lake.rewards[k]))
    np.testing.assert_allclose(seen.reward_mean[k], 1 / 3)
    assert seen.row(k)[0].tolist() == [10, 14, 15]


def test_of_pairs_reveals_reward_and_row():
    mdp = qp.make_environment("random-mdp", num_states=5, seed=3)
    seen = qp.Experience.of_pairs(mdp, [(0, 1), (2, 0)])
    for state, action in [(0, 1), (2, 0)]:
        k = mdp.space.pair(state, action)
        assert seen.reward_mean[k] == mdp.rewards[k]
        np.testing.assert_array_equal(seen.row(k)[1], mdp.transitions.row(k)[1])
    assert seen.observed_pairs.tolist() == [1, 4]
    np.testing.assert_array_equal(
        seen.table().matrix.toarray(), mdp.transitions.select(np.array([1, 4])).matrix.toarray()
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"state": 9}, "0 … 3, got 9"),
        ({"action": 5}, "not admissible"),
        ({"next_state": -1}, "next_state"),
        ({"reward": float("nan")}, "finite"),
        ({"terminated": True, "next_state": 1}, "state 1 is not a goal"),
        ({"terminated": False, "next_state": 3}, "state 3 is a goal"),
        ({"row": ([0, 1], [0.5, 0.6])}, "sum to 1"),
    ],
)
def test_bad_records_are_refused_and_leave_no_trace(step, words):
    seen = qp.Experience(SPACE)
    with pytest.raises(qp.QPosteriorError, match=words):
        seen.record(**({"state": 0, "action": 0, "reward": 0.0, "next_state": 1} | step))
    assert seen.num_observed == 0


def test_experiences_of_different_spaces_or_kinds_do_not_merge():
    other = qp.make_environment("two-state").space
    with pytest.raises(qp.InvalidInputError, match="two spaces"):
        qp.Experience(SPACE).merge(qp.Experience(other))
    with pytest.raises(qp.InvalidInputError, match="noisy"):
        qp.Experience(SPACE).merge(qp.Experience(SPACE, rewards="noisy"))
    with pytest.raises(qp.InvalidInputError, match="header"):
        qp.Experience.from_text("something else", SPACE)


def test_sums_give_the_experience_of_the_transitions_they_were_taken_over():
    steps = [(2, 1, 4.0, 3), (0, 0, 1.0, 2), (0, 0, 3.0, 1), (2, 1, 4.0, 0), (0, 0, 2.0, 2)]
    first, second = SPACE.pair(2, 1), SPACE.pair(0, 0)
    sums = qp.Experience.from_sums(
        SPACE,
        pair=[first, second],
        count=[2.2, 2.6],  # sums of weights: rounded
        reward_mean=[4.0, 2.0],
        reward_deviation=[0.0, 2.0],
        move_pair=[second, first, second, first],  # in any order
        move_state=[2, 3, 1, 0],
        move_count=[2.0, 1.0, 1.0, 1.0],
        move_reward=[1.5, 4.0, 3.0, 4.0],
        transitions="counted",
        rewards="noisy",
        readings={second: ([3.0, 1.0, 2.0], [1.0, 1.0, 1.0]), first: ([4.0], [2.0])},
    )
    assert sums == record_all(steps)
    assert [sums.first_seen(k) for k in (first, second)] == [0, 1]


def test_a_pair_is_revealed_as_another_experience_knows_it():
    source = record_all([(2, 1, 4.0, 3), (0, 0, 1.0, 2), (2, 1, 5.0, 0)])
    k = SPACE.pair(2, 1)
    target = qp.Experience(SPACE, transitions="counted", rewards="noisy")
    target.reveal(k, source)
    assert target == record_all([(2, 1, 4.0, 3), (2, 1, 5.0, 0)])
