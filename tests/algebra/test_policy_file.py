"""A policy in a file: what is read from it, and what is said of one that cannot be read."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from qposterior.logs.choices import UNKNOWN_ACTION
from qposterior.logs.columns import LogError
from qposterior.logs.policy_file import read_policy

STATES, ACTIONS = ["low", "high", "done", "7"], ["wait", "order", "sell"]


def space():
    """`sell` is not possible in `low`; `done` is a goal."""
    mask = np.ones((4, 3), dtype=bool)
    mask[0, 2] = False
    return qp.StateActionSpace.from_mask(mask, np.arange(4) == 2, discount=0.9)


def read(tmp_path, text, name="policy.csv"):
    path = tmp_path / name
    path.write_text(text)
    return read_policy(path, STATES, ACTIONS, space())


def test_one_action_a_state(tmp_path):
    found = read(tmp_path, "state,action\nhigh,sell\n7.0,wait\n low ,order\n")
    np.testing.assert_array_equal(found, [0, 1, 0, 0, 1, 1, 0, 0])


def test_probabilities_in_any_order_with_other_columns_and_separators(tmp_path):
    text = "note;probability;action;state\nx;0.25;order;low\ny;0.75;wait;low\n;1;sell;high\n;.333;wait;7\n"
    text += ";.333;order;7\n;.333;sell;7\n"
    found = read(tmp_path, text)
    np.testing.assert_allclose(found, [0.75, 0.25, 0, 0, 1, 1 / 3, 1 / 3, 1 / 3], rtol=1e-15)


def test_gzip_and_parquet(tmp_path):
    packed = tmp_path / "policy.csv.gz"
    packed.write_bytes(gzip.compress(b"state,action\nhigh,sell\n7,wait\nlow,order\n"))
    expected = [0, 1, 0, 0, 1, 1, 0, 0]
    np.testing.assert_array_equal(read_policy(packed, STATES, ACTIONS, space()), expected)
    table = pd.DataFrame({"state": ["high", "7", "low"], "action": ["sell", "wait", "order"], "probability": 1})
    import duckdb

    path = tmp_path / "policy.parquet"
    duckdb.from_df(table).write_parquet(str(path))
    np.testing.assert_array_equal(read_policy(path, STATES, ACTIONS, space()), expected)


def test_states_in_which_nothing_was_tried_need_no_row(tmp_path):
    mask = np.array([[True, True, False], [False, False, True]])
    problem = qp.StateActionSpace.from_mask(mask, np.zeros(2, dtype=bool), discount=0.9)
    path = tmp_path / "policy.csv"
    path.write_text("state,action\na,go\n")
    found = read_policy(path, ["a", "b"], ["stay", "go", UNKNOWN_ACTION], problem)
    np.testing.assert_array_equal(found, [0.0, 1.0, 1.0])


GOOD = "state,action\nhigh,sell\n7,wait\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state,act\nlow,wait\n", r"row 1: there is no column 'action' \(columns are 'state', 'act'\)"),
        ("state,state,action\nlow,low,wait\n", "the column 'state' twice"),
        ("", "the first line is empty"),
        (GOOD + "hi,wait\n", r"row 4: unknown state 'hi'; did you mean 'high'\? \(labels are those of the log\)"),
        (GOOD + "low,walt\n", r"row 4: unknown action 'walt'; did you mean 'wait'\?"),
        (GOOD + "low,sell\n", "row 4: state 'low', action 'sell': that action was never tried there"),
        (GOOD + "done,wait\n", "row 4: state 'done' is a goal, where nothing is decided; delete the row"),
        (GOOD + "low,wait\nhigh,sell\n", "row 5: state 'high', action 'sell' stands there twice"),
        (GOOD + "low,wait\nhigh,wait\n", "state 'high' has 2 actions; keep one, or add a column probability"),
        (GOOD, "a policy says what to do in every state; add a row for each of those that are missing: 'low'$"),
        (GOOD + "low\n", "row 4: must have 2 cells like the header"),
        (GOOD + "low,wait,3\n", "row 4: has more cells|row 4: must have 2 cells"),
        ("state,action,probability\nlow,wait,x\n", "row 2: probability must be a number from 0 to 1, got 'x'"),
        ("state,action,probability\nlow,wait,\n", "row 2: probability must be a number from 0 to 1, got ''"),
        ("state,action,probability\nlow,wait,nan\n", "row 2: probability must be a number from 0 to 1, got 'nan'"),
        ("state,action,probability\nlow,wait,-0.1\n", "row 2: probability must be a number from 0 to 1, got '-0.1'"),
        (
            "state,action,probability\nlow,wait,0.9\nhigh,wait,1\n7,wait,1\n",
            "the probabilities of a state must sum to 1, those of state 'low' sum to 0.9; correct them",
        ),
        ("state,action\nlow,wait\n\nhigh,wait\n7,wait\n", "row 3: the row is blank"),
    ],
)
def test_what_is_wrong_is_said_with_row_rule_and_remedy(tmp_path, text, message):
    with pytest.raises(LogError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).count("\n") == 0


def test_at_most_five_missing_states_are_named(tmp_path):
    many = [f"s{i}" for i in range(9)]
    problem = qp.StateActionSpace.from_mask(np.ones((9, 1), dtype=bool), np.zeros(9, dtype=bool), discount=0.9)
    path = tmp_path / "policy.csv"
    path.write_text("state,action\ns3,go\n")
    with pytest.raises(LogError, match=r"missing: 's0', 's1', 's2', 's4', 's5', … \(8 in all\)"):
        read_policy(path, many, ["go"], problem)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LogError, match="there is no such file"):
        read_policy(tmp_path / "none.csv", STATES, ACTIONS, space())
