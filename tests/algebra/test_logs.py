"""Decision logs: sums against pandas whatever the chunks, every mistake in one line, choices from the data."""

from __future__ import annotations

import contextlib
import gzip

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qposterior as qp
from qposterior.logs import scan
from qposterior.logs.choices import choose
from qposterior.logs.columns import Columns, LogError
from qposterior.logs.files import log_from_dict, log_to_dict
from qposterior.logs.read import _factorize, log_of_table, read_log
from qposterior.logs.settings import FitSettings


def random_table(seed=0, rows=200):
    rng = np.random.default_rng(seed)
    state = rng.choice(["a", "b", "c d", "é"], rows)
    return pd.DataFrame(
        {
            "state": state,
            "action": rng.choice(["left", "right"], rows),
            "reward": rng.normal(1e6, 1.0, rows).round(6),  # far from 0: naive sums of squares would fail
            "next_state": rng.choice(["a", "b", "c d", "é", "end"], rows),
            "episode": np.sort(rng.integers(0, 20, rows)),
            "weight": rng.integers(1, 4, rows),
        }
    ).assign(terminated=lambda t: (t["next_state"] == "end").astype(int))


def rewards_of(table, log, i):
    s, a = log.pairs[i]
    return table.loc[(table["state"] == log.states[s]) & (table["action"] == log.actions[a]), "reward"].to_numpy()


def mean_by_move(table, log):
    means = table.groupby(["state", "action", "next_state"])["reward"].mean()
    pair = [(log.states[s], log.actions[a]) for s, a in log.pairs]
    return [means[(*pair[p], log.states[s])] for p, s in log.moves]


def test_sums_are_those_of_pandas_in_one_chunk_or_many(tmp_path, monkeypatch):
    table = random_table()
    path = tmp_path / "log.csv"
    table.to_csv(path, index=False)
    repeated = table.loc[table.index.repeat(table["weight"])]
    wanted = repeated.groupby(["state", "action"])["reward"].agg(["count", "mean", "var", "min", "max"])
    for chunk in (7, 10_000):
        monkeypatch.setattr(scan, "CHUNK", chunk)
        log = read_log(path)
        assert log.num_rows == 200
        for i, (s, a) in enumerate(log.pairs):
            row = wanted.loc[(log.states[s], log.actions[a])]
            assert log.count[i] == row["count"]
            np.testing.assert_allclose(log.reward_mean[i], row["mean"], rtol=1e-14)
            np.testing.assert_allclose(log.reward_deviation[i], row["var"] * (row["count"] - 1), rtol=1e-6)
            assert (log.reward_low[i], log.reward_high[i]) == (row["min"], row["max"])
            gap = rewards_of(repeated, log, i) - row["mean"]
            np.testing.assert_allclose(log.reward_third[i], np.sum(gap**3), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(log.reward_fourth[i], np.sum(gap**4), rtol=1e-6)
        moves = repeated.groupby(["state", "action", "next_state"]).size()
        found = {
            (log.states[log.pairs[p, 0]], log.actions[log.pairs[p, 1]], log.states[s]): c
            for (p, s), c in zip(log.moves, log.move_count, strict=True)
        }
        assert found == moves.to_dict()
        np.testing.assert_allclose(log.move_reward, mean_by_move(repeated, log), rtol=1e-14)
        assert {log.states[s] for s in log.ended} == {"end"}
        first = table.drop_duplicates(["state", "action"]).index + 2  # the header is row 1
        assert sorted(log.first_row.tolist()) == sorted(first.tolist())
    assert list(log.states)[:1] == [table["state"].iloc[0]]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("packed", [False, True])
def test_separators_gzip_and_other_names(tmp_path, separator, packed):
    table = random_table().rename(columns={"state": "where", "reward": "gain"})
    text = table.to_csv(index=False, sep=separator)
    path = tmp_path / ("log.csv.gz" if packed else "log.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode("utf-8-sig"))
    log = read_log(path, columns=Columns(state="where", reward="gain"))
    other = log_of_table(random_table())
    assert log_to_dict(log)["count"] == log_to_dict(other)["count"]
    assert log.states == other.states


def test_spaces_after_separators_do_not_count_however_late_they_come(tmp_path):
    path = tmp_path / "log.csv"
    rows = "left,go,1.5,right\n" * 60_000  # more than a megabyte before the first space
    path.write_text("state,action,reward,next_state\n" + rows + 'left, go, 2.5, "right"\n', encoding="utf-8")
    log = read_log(path)
    assert (log.states, log.actions, log.count.tolist()) == (["left", "right"], ["go"], [60_001.0])
    assert log.reward_high.tolist() == [2.5]


@pytest.mark.parametrize("largest", [3, 50, 10**12])  # a table of all keys, or hashing
def test_keys_are_numbered_in_the_order_of_their_first_row(largest):
    keys = np.random.default_rng(1).integers(0, largest + 1, 40)
    keys[5] = largest
    codes, distinct = _factorize(keys)
    assert distinct.tolist() == list(dict.fromkeys(keys.tolist()))
    np.testing.assert_array_equal(distinct[codes], keys)


def test_parquet_is_the_same_log(tmp_path):
    table = random_table()
    duckdb.from_df(table).write_parquet(str(tmp_path / "log.parquet"))
    one, two = read_log(tmp_path / "log.parquet"), log_of_table(table)
    one_dict, two_dict = log_to_dict(one), log_to_dict(two)
    assert one_dict == two_dict
    assert log_to_dict(log_from_dict(one_dict)) == one_dict


def test_a_log_in_two_parts_is_the_log(tmp_path):
    table = random_table()
    first = log_of_table(table[:90])
    both = log_of_table(table[90:], before=first)
    whole = log_of_table(table)
    assert first.num_rows == 90  # what was there is left as it was
    assert both.states == whole.states
    np.testing.assert_allclose(both.reward_mean, whole.reward_mean)
    np.testing.assert_allclose(both.reward_deviation, whole.reward_deviation, rtol=1e-6)
    np.testing.assert_allclose(both.reward_third, whole.reward_third, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(both.reward_fourth, whole.reward_fourth, rtol=1e-6)
    np.testing.assert_array_equal(both.move_count, whole.move_count)
    np.testing.assert_allclose(both.move_reward, whole.move_reward, rtol=1e-14)


def test_sums_of_an_earlier_version_leave_unknown_only_what_they_had_counted():
    names = ("reward_third", "reward_fourth", "move_reward")
    rows = [("a", "x", 1.0, "b", 1.0), ("b", "x", 2.0, "a", 1.0), ("a", "x", 4.0, "c", 0.0)]
    columns = "state action reward next_state weight"
    old = {k: v for k, v in log_to_dict(log_of_table(table_of(rows, columns))).items() if k not in names}
    before = log_from_dict(old)
    assert all(np.isnan(getattr(before, name)).all() for name in names)
    more = [("a", "x", 5.0, "b", 1.0), ("a", "x", 7.0, "c", 2.0), ("c", "x", 1.0, "a", 1.0)]
    log = log_of_table(table_of(more, columns), before=before)
    np.testing.assert_array_equal(log.reward_third, [np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(log.reward_fourth, [np.nan, np.nan, 0.0])
    np.testing.assert_array_equal(log.move_reward, [np.nan, np.nan, 7.0, 1.0])
    assert log.reward_deviation.tolist() == [24.0, 0.0, 0.0]
    stored = log_to_dict(log)
    assert stored["reward_third"] == [None, None, 0.0]
    assert log_to_dict(log_from_dict(stored)) == stored
    assert choose(log, FitSettings()).seen.num_observed == 3


HEADER = "state,action,reward,next_state\n"
MISTAKES = {
    "empty": ("", "empty"),
    "header only": (HEADER, "no rows"),
    "missing column": ("state,action,next_state\na,b,c\n", "'reward'.*--column reward=NAME"),
    "duplicate header": ("state,action,reward,next_state,state\na,b,1,c,a\n", "row 1.*'state' twice"),
    "not a number": (HEADER + "a,b,1,c\na,b,much,c\n", "row 3: reward must be a number, got 'much'"),
    "nan": (HEADER + "a,b,1,c\na,b,nan,c\n", "row 3: reward must be finite"),
    "infinity": (HEADER + "a,b,inf,c\n", "row 2: reward must be finite, got inf"),
    "too large": (HEADER + "a,b,1,c\na,b,-1e200,c\n", "row 3: reward must be at most 1e\\+100 in size"),
    "empty label": (HEADER + "a,b,1,c\n,b,1,c\n", "row 3: state is empty"),
    "control character": (HEADER + "a,b,1,c\na,b\x07,1,c\n", "row 3: action has a control character"),
    "too few cells": (HEADER + "a,b,1,c\na,b\n", "row 3"),
    "too many cells": (HEADER + "a,b,1,c\na,b,1,c,d\n", "row 3"),
    "a goal that acts": (
        "state,action,reward,next_state,terminated\na,b,1,g,1\ng,b,1,a,0\n",
        "row 3: the goal 'g' acts",
    ),
    "bad truth": ("state,action,reward,next_state,terminated\na,b,1,g,maybe\n", "row 2: terminated must be 1 or 0"),
    "negative weight": ("state,action,reward,next_state,weight\na,b,1,c,-1\n", "row 2: weight must be"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_said_in_one_line_with_its_row(tmp_path, name):
    text, wanted = MISTAKES[name]
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(LogError, match=wanted) as caught:
        qp.fit(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_other_encodings_and_missing_files_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes((HEADER + "caf\u00e9,b,1,c\n").encode("latin-1"))
    with pytest.raises(LogError, match="not UTF-8"):
        read_log(path)
    with pytest.raises(LogError, match="no such file"):
        read_log(tmp_path / "nothing.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(LogError, match="Parquet"):
        read_log(tmp_path / "bad.parquet")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=12), max_size=8), st.binary(max_size=30))
def test_any_bytes_give_a_log_or_one_line(tmp_path, lines, tail):
    path = tmp_path / "any.csv"
    path.write_bytes((HEADER + "\n".join(lines)).encode("utf-8", "surrogatepass") + tail)
    with contextlib.suppress(LogError):  # any other error fails the test
        assert read_log(path).num_rows > 0


def table_of(rows, names="state action reward next_state"):
    return pd.DataFrame(rows, columns=names.split())


def test_what_is_chosen_from_the_data():
    chain = [("a", "x", -1.0, "b"), ("b", "x", -1.0, "end"), ("a", "y", -3.0, "end"), ("a", "x", -1.0, "b")]
    chosen = choose(log_of_table(table_of(chain)), FitSettings())
    assert (chosen.rewards, chosen.transitions, chosen.discount) == ("deterministic", "deterministic", 1.0)
    assert [chosen.states[s] for s in chosen.seen.space.goals] == ["end"]
    assert chosen.untried == [("b", "y")]
    noisy = choose(log_of_table(table_of([*chain, ("a", "x", -1.5, "b")])), FitSettings(method="q"))
    assert (noisy.rewards, noisy.noise.is_learned) == ("noisy", True)
    unsure = choose(log_of_table(table_of([*chain, ("a", "x", -1.0, "end")])), FitSettings())
    assert unsure.transitions == "dirichlet"
    free_loop = choose(log_of_table(table_of([*chain, ("b", "y", 0.0, "b")])), FitSettings())
    assert free_loop.discount == 0.99
    no_goal = choose(log_of_table(table_of([("a", "x", 1.0, "b"), ("b", "x", 0.0, "a")])), FitSettings())
    assert no_goal.discount == 0.99
    assert len(chosen.notes) == 6
    everything = choose(log_of_table(table_of(chain)), FitSettings(actions="all"))
    assert everything.seen.space.num_pairs == 4
    assert everything.untried == [("b", "y")]


def test_the_method_is_that_of_the_model_unless_a_prior_or_noise_of_q_is_given():
    assert FitSettings().chosen_method == "model"
    assert FitSettings(prior=qp.ModelPrior()).chosen_method == "model"
    assert FitSettings(prior=qp.GaussianPrior()).chosen_method == "q"
    assert FitSettings(noise=qp.Noise()).chosen_method == "q"
    for wrong in (
        {"method": "model", "noise": qp.Noise()},
        {"method": "bootstrap", "prior": qp.ModelPrior()},
        {"method": "q", "cautious": 0.9},
        {"method": "q", "risk": "cvar:0.1"},
    ):
        with pytest.raises(qp.InvalidInputError, match="leave"):
            FitSettings(**wrong)


def test_best_decisions_that_put_the_end_off_are_discounted():
    """Waiting pays and ends one time in a thousand; the log's episodes are short because it mostly did not wait."""
    names = "state action reward next_state terminated episode"
    rows = [("a", "leave", 0.0, "end", 1, i) for i in range(1000)]
    rows += [("a", "wait", 1.0, "a", 0, 2000 + i) for i in range(999)] + [("a", "wait", -2000.0, "end", 1, 9999)]
    chosen = choose(log_of_table(table_of(rows, names)), FitSettings())
    assert chosen.discount == 1.0  # waiting costs more in the end than it pays
    rows[-1] = ("a", "wait", -1.0, "end", 1, 9999)
    chosen = choose(log_of_table(table_of(rows, names)), FitSettings())
    assert chosen.discount == 0.99
    assert any("put the end off" in words for words in chosen.notes)


def test_the_prior_is_as_wide_as_the_longest_way_to_a_goal():
    """Four rows in no order: no two make an episode, yet the first state is three steps away from the end."""
    rows = [("b", "x", -1.0, "c"), ("a", "x", -2.0, "b"), ("c", "x", -1.0, "end"), ("b", "y", -1.0, "a")]
    chosen = choose(log_of_table(table_of(rows)), FitSettings(method="q"))
    assert chosen.discount == 1.0
    assert chosen.prior.scale == pytest.approx(2.0 * 2.0 * 3.0)
    discounted = choose(log_of_table(table_of(rows)), FitSettings(method="q", discount=0.5))
    assert discounted.prior.scale == pytest.approx(2.0 * 2.0 * 2.0)
    long = [(f"s{i}", "x", -1.0, f"s{i + 1}") for i in range(6)] * 2  # two episodes of six rows
    assert choose(log_of_table(table_of(long)), FitSettings(method="q")).prior.scale == pytest.approx(2.0 * 6.0)
    no_end = table_of([("a", "x", 1.0, "a", 0)], "state action reward next_state terminated")
    assert "there are no goals: no episode terminated" in choose(log_of_table(no_end), FitSettings()).notes


def test_settings_that_contradict_the_log_name_the_pair():
    rows = [("a", "x", 1.0, "b"), ("a", "x", 2.0, "c"), ("b", "x", 0.0, "c")]
    log = log_of_table(table_of(rows))
    with pytest.raises(LogError, match="'a', action 'x' has paid both 1 and 2"):
        choose(log, FitSettings(rewards="deterministic"))
    with pytest.raises(LogError, match="'a', action 'x' has led to several states"):
        choose(log, FitSettings(transitions="deterministic"))
    with pytest.raises(LogError, match="goal 'z' does not occur"):
        choose(log, FitSettings(goals=("z",)))
    for wrong in ({"discount": 1.2}, {"rewards": "noizy"}, {"particles": 3}):
        with pytest.raises(qp.InvalidInputError):
            FitSettings(**wrong)


def test_a_state_that_was_cut_off_is_not_a_goal_and_keeps_the_prior():
    names = "state action reward next_state terminated"
    rows = [("a", "x", -1.0, "end", 1), ("a", "y", -1.0, "b", 0)]
    chosen = choose(log_of_table(table_of(rows, names)), FitSettings(actions="seen"))
    assert [chosen.states[s] for s in chosen.seen.space.goals] == ["end"]
    assert chosen.seen.space.num_pairs == 3  # b has one action that nothing is known of
    assert chosen.actions[-1] == "(nothing tried)"


def test_many_states_are_read_quickly_enough():
    number = 100_000
    table = pd.DataFrame(
        {
            "state": np.arange(number).astype(str),
            "action": "x",
            "reward": 1.0,
            "next_state": np.arange(1, number + 1).astype(str),
        }
    )
    log = log_of_table(table)
    assert len(log.states) == number + 1
    assert log.is_deterministic
    assert log.has_constant_rewards
