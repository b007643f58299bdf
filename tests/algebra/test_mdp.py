"""FiniteMDP: what it accepts, what it merges, what it refuses and in which words."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp


def arrays():
    """Three states, the last a goal; action 1 of state 1 inadmissible and full of nonsense."""
    transitions = np.zeros((3, 2, 3))
    transitions[0, 0] = [0.2, 0.5, 0.3]
    transitions[0, 1] = [0.0, 1.0, 0.0]
    transitions[1, 0] = [0.0, 0.0, 1.0]
    transitions[1, 1] = [np.nan, -3.0, 0.0]
    transitions[2, :, 2] = 1.0
    rewards = np.array([[-1.0, 2.0], [-0.5, np.inf], [0.0, 0.0]])
    actions = np.array([[True, True], [True, False], [True, True]])
    return transitions, rewards, actions


def build(**changes):
    transitions, rewards, actions = arrays()
    given = {"transitions": transitions, "rewards": rewards, "goal": [2], "actions": actions} | changes
    return qp.FiniteMDP.from_arrays(given.pop("transitions"), given.pop("rewards"), **given)


def test_flat_layout_orders_pairs_by_state_then_action_and_ignores_inadmissible_entries():
    mdp = build()
    assert mdp.space.pair_state.tolist() == [0, 0, 1]
    assert mdp.space.pair_action.tolist() == [0, 1, 0]
    assert mdp.space.pairs() == [(0, 0), (0, 1), (1, 0)]
    assert mdp.space.first_pair.tolist() == [0, 2, 3, 3]
    assert mdp.space.pair_index.tolist() == [[0, 1], [2, -1], [-1, -1]]
    assert mdp.rewards.tolist() == [-1.0, 2.0, -0.5]
    assert [x.tolist() for x in mdp.transitions.row(0)] == [[0, 1, 2], [0.2, 0.5, 0.3]]
    assert mdp.transitions.successor.tolist() == [0, 1, 2, 1, 2]
    assert mdp.initial.tolist() == [0.5, 0.5, 0.0]


def test_edges_with_the_same_ends_are_merged_and_rewards_are_averaged_with_the_row():
    edges = [(0, 0, 0, 0.25, 4.0), (0, 0, 1, 0.5, 0.0), (0, 0, 0, 0.25, -2.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[1])
    assert [x.tolist() for x in mdp.transitions.row(0)] == [[0, 1], [0.5, 0.5]]
    assert mdp.rewards.tolist() == [0.25 * 4.0 - 0.25 * 2.0]


def test_edges_and_arrays_give_the_same_mdp():
    transitions, rewards, actions = arrays()
    edges = [
        (s, a, t, transitions[s, a, t], rewards[s, a])
        for s in range(2)
        for a in range(2)
        for t in range(3)
        if actions[s, a] and transitions[s, a, t]
    ]
    one, two = build(), qp.FiniteMDP.from_edges(edges, goal=[2])
    assert one.space == two.space
    np.testing.assert_array_equal(one.transitions.matrix.toarray(), two.transitions.matrix.toarray())
    np.testing.assert_allclose(one.rewards, two.rewards, rtol=1e-15)


def test_selected_rows_are_the_rows():
    table = build().transitions
    chosen = table.select(np.array([2, 0]))
    np.testing.assert_array_equal(chosen.matrix.toarray(), table.matrix.toarray()[[2, 0]])


def test_tables_spread_pairs_with_nan_where_inadmissible_and_zero_at_goals():
    table = build().space.to_table(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    np.testing.assert_array_equal(table[0], [[1.0, 2.0], [3.0, np.nan], [0.0, 0.0]])
    np.testing.assert_array_equal(table[1], [[4.0, 5.0], [6.0, np.nan], [0.0, 0.0]])


def test_greedy_takes_the_lowest_tied_action():
    mdp = build()
    assert mdp.space.greedy(np.array([1.0, 1.0, -2.0])).tolist() == [0, 0, -1]
    assert mdp.space.greedy(np.array([1.0, 1.0 + 1e-3, -2.0])).tolist() == [1, 0, -1]
    assert mdp.space.greedy(np.array([1.0, 1.0 + 1e-3, -2.0]), tolerance=1e-2).tolist() == [0, 0, -1]


def broken_row():
    transitions = arrays()[0]
    transitions[0, 1, 1] = 0.9
    return transitions


def negative_entry():
    transitions = arrays()[0]
    transitions[0, 0] = [-0.1, 0.8, 0.3]
    return transitions


def nan_entry():
    transitions = arrays()[0]
    transitions[0, 0, 1] = np.nan
    return transitions


def leaky_goal():
    transitions = arrays()[0]
    transitions[2, 0] = [1.0, 0.0, 0.0]
    return transitions


def paying_goal():
    rewards = arrays()[1]
    rewards[2, 1] = 1.0
    return rewards


def nan_reward():
    rewards = arrays()[1]
    rewards[1, 0] = np.nan
    return rewards


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transitions": broken_row()}, ["state 0, action 1", "0.9", "sum to 1"]),
        ({"transitions": negative_entry()}, ["state 0, action 0", "-0.1", "0 or more"]),
        ({"transitions": nan_entry()}, ["state 0, action 0", "nan", "finite"]),
        ({"transitions": leaky_goal()}, ["goal state 2", "absorbing"]),
        ({"rewards": paying_goal()}, ["goal state 2", "pay 0"]),
        ({"rewards": nan_reward()}, ["state 1, action 0", "nan"]),
        ({"rewards": np.zeros((3, 3))}, ["(3, 2)", "(3, 3)"]),
        ({"transitions": np.zeros((3, 2, 2))}, ["(S, A, S)", "(3, 2, 2)"]),
        ({"actions": np.array([[True, True], [False, False], [True, True]])}, ["state 1", "no admissible action"]),
        ({"discount": 1.2}, ["(0, 1]", "1.2"]),
        ({"discount": 0.0}, ["(0, 1]", "0.0"]),
        ({"initial": [0.5, 0.0, 0.5]}, ["state 2", "goal"]),
        ({"initial": [0.5, 0.0, 0.0]}, ["sum to 1", "0.5"]),
        ({"initial": [1.5, -0.5, 0.0]}, ["state 1", "-0.5"]),
        ({"initial": [1.0]}, ["(3,)", "(1,)"]),
        ({"goal": [7]}, ["0 … 2", "7"]),
        ({"reward_sd": -1.0}, ["reward_sd", "-1"]),
    ],
)
def test_bad_input_is_named_with_its_value(changes, words):
    with pytest.raises(qp.InvalidInputError) as error:
        build(**changes)
    for word in words:
        assert word in str(error.value)


def test_edges_from_a_goal_that_pay_or_lead_away_are_refused():
    for edge in [(1, 0, 0, 1.0, 0.0), (1, 0, 1, 1.0, 2.0)]:
        with pytest.raises(qp.InvalidInputError, match="goal state 1"):
            qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), edge], goal=[1])


def test_inputs_are_not_modified_and_not_shared():
    transitions, rewards, actions = arrays()
    copies = transitions.copy(), rewards.copy(), actions.copy()
    mdp = qp.FiniteMDP.from_arrays(transitions, rewards, goal=[2], actions=actions)
    for given, copy in zip((transitions, rewards, actions), copies, strict=True):
        np.testing.assert_array_equal(given, copy)
    rewards[0, 0] = 99.0
    assert mdp.rewards[0] == -1.0


def test_asking_for_an_inadmissible_pair_names_the_admissible_ones():
    space = build().space
    with pytest.raises(qp.InvalidInputError, match=r"action 1 is not admissible in state 1; admissible are \[0\]"):
        space.pair(1, 1)
    with pytest.raises(qp.InvalidInputError, match="goal"):
        space.pair(2, 0)
    with pytest.raises(qp.InvalidInputError, match="0 … 2"):
        space.pair(5, 0)


def test_layers_exist_where_every_state_has_one_step_only():
    assert qp.make_environment("deep-sea", depth=4).space.layer.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert qp.make_environment("deep-sea-loops", depth=4).space.layer is None
    shortcut = [(0, 0, 1, 1.0, 0.0), (0, 1, 2, 1.0, 0.0), (1, 0, 2, 1.0, 0.0)]
    assert qp.FiniteMDP.from_edges(shortcut, goal=[2], initial=[1, 0, 0]).space.layer is None


def test_gymnasium_tables_keep_their_states_and_end_in_goals():
    taxi = qp.FiniteMDP.from_gymnasium("Taxi-v4")
    assert taxi.space.num_states == 500
    assert taxi.space.goals.size == 4
    lake = qp.FiniteMDP.from_gymnasium("FrozenLake-v1", is_slippery=True, step_cost=0.25)
    assert lake.space.goals.tolist() == [5, 7, 11, 12, 15]
    # State 14, action 2 (right) slips down, right or up, a third each; right pays 1: (1/3)·1 − 0.25.
    k = lake.space.pair(14, 2)
    np.testing.assert_allclose(lake.rewards[k], 1 / 3 - 0.25)
    assert lake.transitions.row(k)[0].tolist() == [10, 14, 15]
    # State 0, action 0 (left) stays with 2/3: two outcomes merged.
    np.testing.assert_allclose(lake.transitions.row(0)[1], [2 / 3, 1 / 3])


def test_a_state_that_only_sometimes_ends_an_episode_gets_an_end_of_its_own():
    class Odd:
        spec = None
        P = {0: {0: [(0.5, 1, 1.0, True), (0.5, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}  # noqa: RUF012

    import gymnasium

    odd = Odd()
    odd.unwrapped = odd
    odd.observation_space, odd.action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(1)
    mdp = qp.FiniteMDP.from_gymnasium(odd)
    assert mdp.space.num_states == 3
    assert mdp.space.goals.tolist() == [2]
    assert mdp.transitions.row(0)[0].tolist() == [1, 2]


def test_continuous_spaces_and_missing_tables_are_refused():
    with pytest.raises(qp.InvalidInputError, match="Discrete"):
        qp.FiniteMDP.from_gymnasium("CartPole-v1")
    with pytest.raises(qp.InvalidInputError, match="Taxi-v4"):
        qp.FiniteMDP.from_gymnasium("Taxy-v4")


def test_a_state_that_the_table_of_an_environment_forgets_is_named():
    import gymnasium

    odd = gymnasium.Env()
    odd.P = {0: {0: [(1.0, 2, 1.0, True)]}, 1: {0: []}}
    odd.observation_space, odd.action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(1)
    with pytest.raises(qp.InvalidInputError, match=r"'Env', unwrapped\.P: state 1 must have an outcome"):
        qp.FiniteMDP.from_gymnasium(odd)


def test_the_constructors_take_lists_and_give_what_the_builders_give():
    mask, goal = [[1, 1], [1, 0], [0, 0]], [False, False, True]
    built = qp.StateActionSpace.from_mask(mask, goal, discount=0.5, layer=[0, 1, 2])
    direct = qp.StateActionSpace(
        num_states=3,
        num_actions=2,
        pair_state=[0, 0, 1],
        pair_action=[0, 1, 0],
        first_pair=[0, 2, 3, 3],
        is_goal=goal,
        discount=0.5,
        layer=[0, 1, 2],
    )
    assert direct == built
    for field in ("pair_state", "pair_action", "first_pair", "is_goal", "layer"):
        one, other = getattr(direct, field), getattr(built, field)
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
        assert not one.flags.writeable
    edges = [(0, 0, 1, 1.0, 4.0), (0, 1, 2, 1.0, 3.0), (1, 0, 2, 1.0, -1.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[2], discount=0.5)
    again = qp.FiniteMDP(
        space=direct, transitions=mdp.transitions, rewards=[4, 3, -1], reward_sd=[0, 0, 0], initial=[1, 0, 0]
    )
    assert again.transitions is mdp.transitions  # and so what it has worked out
    np.testing.assert_allclose(qp.solve(again).pair_q, [4.0 - 0.5, 3.0, -1.0])


def test_the_space_of_a_caller_does_not_change_with_his_arrays():
    pair_state, is_goal = np.array([0, 1]), np.array([False, False, True])
    space = qp.StateActionSpace(
        num_states=3,
        num_actions=1,
        pair_state=pair_state,
        pair_action=np.zeros(2, dtype=int),
        first_pair=np.array([0, 1, 2, 2]),
        is_goal=is_goal,
        discount=1.0,
    )
    pair_state[1], is_goal[0] = 0, True  # still his to write to
    assert space.pair_state.tolist() == [0, 1]
    assert not space.is_goal[0]
