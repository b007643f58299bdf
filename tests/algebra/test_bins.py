"""Bins against hand-made splits, scikit-learn's own leaves and pandas; rows that lack a number; acting on numbers."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from numeric_problems import PROBLEMS
from qposterior.cli.main import cli
from qposterior.errors import InvalidInputError, MissingExtraError
from qposterior.logs import relations
from qposterior.logs.binning import FittedValues, _splits, learn_bins, roundest
from qposterior.logs.bins import Bins, Split, parse_state
from qposterior.logs.columns import Columns, LogError
from qposterior.logs.files import Policy, load_fit, load_sums, save_fit
from qposterior.logs.join import as_shown, joined
from qposterior.logs.preview import inspect_log
from qposterior.logs.raw import END, Numeric
from qposterior.logs.read import read_log
from qposterior.logs.sample import Sample
from qposterior.logs.settings import FitSettings

HOSTILE = ("=cmd|' /C calc'!A0", '"x"; DROP TABLE raw; --', "<script>document.title='ran'</script>")


def raw_of(columns, **settings):
    return FitSettings(numeric=columns, **settings).raw


def tree_of(*splits, columns=("a", "b")):
    return Bins(
        columns=columns,
        splits=tuple(Split(*one) for one in splits),
        coarser=1,
        shown=len(splits) + 1,
        low=(0.0,) * len(columns),
        high=(1.0,) * len(columns),
    )


def sample_of(x, action, reward, following=None):
    size = len(x)
    return Sample(
        labels=[str(a) for a in range(int(max(action)) + 1)],
        digest=np.linspace(0.0, 1.0, size),
        x=x,
        action=action,
        reward=reward,
        following=x if following is None else following,
        ended=np.full(size, following is None),
    )


def moved_problem(rng, size=4000):
    """One step: action 1 pays above 3 where the second number is at most 7, and is as good as 0 elsewhere."""
    x = np.column_stack([rng.integers(0, 10, size), rng.integers(0, 10, size), rng.integers(0, 10, size)]).astype(float)
    action = rng.integers(0, 2, size)
    reward = 5.0 * (action == 1) * (x[:, 0] > 3) * (x[:, 1] <= 7) + rng.normal(0, 0.5, size)
    return sample_of(x, action, reward)


def test_bins_are_cut_where_rewards_change_and_nowhere_else():
    bins = learn_bins(moved_problem(np.random.default_rng(0)), Numeric(columns=("one", "two", "three")))
    first = {(split.column, split.threshold) for split in bins.splits[:2]}
    assert {column for column, _ in first} == {0, 1}
    cuts = dict(first)
    assert 3 <= cuts[0] < 4
    assert 7 <= cuts[1] < 8
    assert "three" not in " ".join(bins.labels(3))


def test_what_the_successor_is_worth_is_a_reason_to_cut():
    # Rewards say nothing of the second number, but where it is large the next state is one that pays.
    rng = np.random.default_rng(1)
    x, action = rng.integers(0, 10, (6000, 2)).astype(float), rng.integers(0, 2, 6000)
    following = np.column_stack([np.where((x[:, 1] > 5) == (action == 1), 9.0, 0.0), rng.integers(0, 10, 6000)])
    sample = sample_of(x, action, (x[:, 0] > 6) + rng.normal(0, 0.2, 6000), following)
    bins = learn_bins(sample, Numeric(columns=("pay", "way"), discount=0.8))
    assert {1: 5.0}.items() <= {split.column: np.floor(split.threshold) for split in bins.splits[2::-1]}.items()


@pytest.mark.parametrize("seed", range(3))
def test_bins_are_the_leaves_of_the_tree_row_by_row_and_fewer_bins_those_of_a_smaller_one(seed):
    from sklearn.tree import DecisionTreeRegressor

    rng = np.random.default_rng(seed)
    sample = moved_problem(rng)
    values = FittedValues(sample, 0.9, rng)
    code = values.code(sample.x)
    target = np.column_stack([np.sin(sample.x[:, 0]) + sample.x[:, 1], sample.x[:, 2] ** 2 - sample.x[:, 0]])
    grown = [DecisionTreeRegressor(max_leaf_nodes=k, random_state=5).fit(code, target) for k in (24, 7, 2)]
    bins = Bins(columns=("a", "b", "c"), splits=_splits(grown[0].tree_, values, sample.x), coarser=1, shown=7)
    for tree, number in zip(grown, (24, 7, 2), strict=True):
        np.testing.assert_array_equal(bins.find(sample.x, number), tree.apply(code))
        assert sorted(bins.nodes(number)) == sorted(set(tree.apply(code).tolist()))
    for node in bins.nodes(24):
        assert bins.above(node, 7) in bins.nodes(7)
    np.testing.assert_array_equal([bins.above(node, 7) for node in bins.find(sample.x)], bins.find(sample.x, 7))


def test_the_expression_in_sql_agrees_row_by_row_at_thresholds_and_beyond():
    import duckdb

    bins = tree_of((0, 0, 0.1), (2, 1, -1e-7), (1, 1, 12345.678901234567), (4, 0, 1e300))
    edges = [0.1, np.nextafter(0.1, 1), np.nextafter(0.1, 0), -1e-7, 0.0, 12345.678901234567, 1e300, -1e300, 1e301]
    x = np.array([(a, b) for a in edges for b in edges])
    connection = duckdb.connect()
    frame = pd.DataFrame({"state": [list(row) for row in x.tolist()]})
    connection.register("rows_of_numbers", frame)
    found = connection.execute(f"SELECT {bins.sql('state')} AS bin FROM rows_of_numbers").fetchnumpy()["bin"]
    np.testing.assert_array_equal(found, bins.find(x))
    assert len(set(found.tolist())) == 5


def test_labels_are_ranges_and_long_or_unprintable_names_still_differ():
    bins = tree_of((0, 0, 71.5), (2, 1, 0.4), (1, 0, 3.0), columns=("temperature", "load"))
    assert bins.labels(4) == ["temperature ≤ 3", "3 < temperature ≤ 71.5", "temperature > 71.5, load ≤ 0.4",
                              "temperature > 71.5, load > 0.4"]  # fmt: skip
    assert bins.labels(1) == ["any temperature and load"]
    assert bins.ranges(4) == {0: (71.5, float("inf")), 1: (0.4, float("inf"))}
    long = tree_of((0, 0, 1.0), (1, 1, 1.0), columns=("x" * 60 + "1", "x" * 60 + "\t2"))
    assert len(set(long.labels(3))) == 3
    assert all(label.isprintable() for label in long.labels(3))


@pytest.mark.parametrize(
    ("low", "high", "number"), [(71.483, 71.612, 71.5), (0.0, 1.0, 0.5), (-0.01, 3.0, 1.0), (1e9, 1e9 + 1, 1e9)]
)
def test_thresholds_are_round(low, high, number):
    assert low <= roundest(low, high) < high
    assert len(repr(roundest(low, high))) <= len(repr(number)) + 1


def written(path, frame):
    frame.to_csv(path, index=False)
    return path


def machine(rows=1500, seed=0):
    log = PROBLEMS["machine"].log(seed, rows)
    return log.rename(columns={"unit": "episode"}).reset_index(drop=True)


@pytest.mark.parametrize("columns", [("temperature", "load", "vibration"), HOSTILE])
def test_sums_are_those_of_pandas_at_every_number_of_bins(tmp_path, columns):
    frame = machine()
    names = dict(zip(("temperature", "load", "vibration"), columns, strict=True))
    frame = frame.rename(columns=names | {f"next_{old}": f"next_{new}" for old, new in names.items()})
    frame.loc[frame["episode"] % 3 == 0, "terminated"] = 0
    frame.loc[frame.groupby("episode").tail(1).index, "terminated"] = 1
    asked = ",".join('"' + name.replace('"', '""') + '"' for name in columns)
    log = read_log(written(tmp_path / "log.csv", frame), raw=raw_of(asked, discount=0.9))
    bins = log.bins
    assert bins.columns == columns
    for number in (bins.finer, bins.shown, bins.coarser):
        part = joined(log, number)
        frame["s"] = [bins.label(node) for node in bins.find(frame[list(columns)].to_numpy(), number)]
        after = bins.find(frame[[f"next_{name}" for name in columns]].to_numpy(), number)
        frame["t"] = np.where(frame["terminated"] == 1, END, [bins.label(node) for node in after])
        pairs = frame.groupby(["s", "action"])["reward"]
        found = pd.DataFrame(
            {"n": part.count, "m": part.reward_mean, "d": part.reward_deviation, "f": part.reward_fourth,
             "l": part.reward_low, "h": part.reward_high},
            index=pd.MultiIndex.from_tuples([(part.states[s], part.actions[a]) for s, a in part.pairs]),
        ).sort_index()  # fmt: skip
        hand = pd.DataFrame(
            {"n": pairs.size().astype(float), "m": pairs.mean(),
             "d": pairs.apply(lambda r: ((r - r.mean()) ** 2).sum()),
             "f": pairs.apply(lambda r: ((r - r.mean()) ** 4).sum()), "l": pairs.min(), "h": pairs.max()}
        ).sort_index()  # fmt: skip
        pd.testing.assert_frame_equal(found, hand, check_names=False, rtol=1e-9, atol=1e-9)
        moves = {
            (
                *[labels[i] for labels, i in zip((part.states, part.actions), part.pairs[k], strict=True)],
                part.states[t],
            ): n
            for (k, t), n in zip(part.moves.tolist(), part.move_count.tolist(), strict=True)
        }
        assert moves == frame.groupby(["s", "action", "t"]).size().astype(float).to_dict()
        starts = frame.groupby("episode").head(1)["s"].value_counts().to_dict()
        assert {part.states[s]: n for s, n in part.starts.items()} == starts
        assert {part.states[s] for s in part.ended} == {END}
        assert sum(part.contexts.values()) == len(frame) - frame["episode"].nunique()


def test_successors_from_the_next_row_are_those_of_the_next_columns(tmp_path):
    frame = machine()
    shuffled = frame.drop(columns=[name for name in frame if name.startswith("next_")]).drop(columns="terminated")
    shuffled = shuffled.sample(frac=1.0, random_state=0).rename(columns={"episode": "unit"})
    raw = raw_of("temperature,load,vibration", next_from="unit,step", discount=0.9)
    built = read_log(written(tmp_path / "raw.csv", shuffled), raw=raw)
    x = frame[["temperature", "load", "vibration"]].to_numpy()
    label = np.array([built.bins.label(node) for node in built.bins.find(x)])
    same = frame["episode"].to_numpy()[1:] == frame["episode"].to_numpy()[:-1]
    follows = np.where(np.append(same, False), np.append(label[1:], ""), END)
    hand = pd.Series(1.0, index=[label, frame["action"], follows]).groupby(level=[0, 1, 2]).sum().to_dict()
    found = {
        (built.states[built.pairs[k, 0]], built.actions[built.pairs[k, 1]], built.states[t]): n
        for (k, t), n in zip(built.moves.tolist(), built.move_count.tolist(), strict=True)
    }
    assert found == hand


MISSING = """a,b,action,reward,next_a,next_b,terminated
1,2,x,1,2,2,0
oops,2,x,1,2,2,0
1,,x,1,2,2,0
1,2,y,1,,2,0
1,2,y,1,,,1
inf,2,x,1,2,2,0
1,2,x,NA,2,2,0
2,2,y,0,1,2,0
"""


def test_cells_without_a_number_are_counted_refused_or_left_out(tmp_path):
    path = tmp_path / "holes.csv"
    path.write_text(MISSING)
    for missing in (None, "fail"):
        with pytest.raises(
            LogError, match=r"missing or are no numbers: reward 1, a 2, b 1, next_a 1 in 8 rows .*3, 4, 5, 7, 8"
        ):
            read_log(path, raw=raw_of("a,b", missing=missing))
    log = read_log(path, raw=raw_of("a,b", missing="drop"))
    assert log.num_rows == 3
    assert log.notes[0].startswith("5 of 8 rows were left out for missing cells or are no numbers (--missing drop)")
    assert {log.states[s] for s in log.ended} == {END}


def test_a_row_whose_next_row_has_no_number_has_no_successor(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text("id,t,a,action,reward\nu,1,1,x,1\nu,2,?,x,1\nu,3,1,y,1\nu,4,2,y,1\nv,1,1,x,1\n")
    with pytest.raises(LogError, match=r"missing or are no numbers: a 1 in 5 rows \(first in row 3\)"):
        read_log(path, raw=raw_of("a", next_from="id,t"))
    log = read_log(path, raw=raw_of("a", next_from="id,t", missing="drop"))
    assert log.num_rows == 3  # rows 2 and 3 are lost
    assert "the state of the next row 1" in " ".join(log.notes)


def test_the_same_file_and_seed_give_the_same_bins_on_any_number_of_threads(tmp_path, monkeypatch):
    path = written(tmp_path / "log.csv", machine(6000))
    logs = []
    for threads in (1, 4):
        monkeypatch.setattr(relations, "THREADS", threads)
        logs.append(read_log(path, raw=raw_of("temperature,load,vibration", seed=3)))
    assert logs[0].bins == logs[1].bins
    assert logs[0].states == logs[1].states
    np.testing.assert_array_equal(logs[0].reward_mean, logs[1].reward_mean)
    other = read_log(path, raw=raw_of("temperature,load,vibration", seed=4))
    assert other.bins != logs[0].bins


@pytest.fixture(scope="module")
def fitted():
    settings = FitSettings(numeric="level,severity", discount=0.9, particles=400)
    return qp.fit(PROBLEMS["dosing"].log(0, 1200), settings=settings), settings


def test_acting_on_numbers_is_acting_in_their_bin(fitted, tmp_path):
    fit, settings = fitted
    save_fit(fit, tmp_path / "answer", settings)
    policy, bins = Policy.load(tmp_path / "answer"), fit.log.bins
    x = np.random.default_rng(0).uniform([0, 0], [5, 12], (200, 2))
    for numbers, node in zip(x.tolist(), bins.find(x, bins.shown), strict=True):
        state = {"severity": numbers[1], "level": numbers[0]}
        assert policy.act(state) == fit.policy[bins.label(node)]
        assert policy.act(f"level={numbers[0]!r}, severity={numbers[1]!r}") == policy.act(state)
        assert policy.act(bins.label(node)) == policy.act(state)
    assert policy.act({"level": 0.1, "severity": 5}, explore=True, seed=1) in fit.chosen.actions
    for state, rule in (
        ({"level": 1.0}, "'severity' is missing"),
        ({"level": 1.0, "severity": 2, "sevrity": 1}, "did you mean 'severity'"),
        ({"level": float("nan"), "severity": 2}, "must be a finite number"),
        ("level=1,severity=high", "must be a finite number, got 'high'"),
        ("worn", "unknown column of the state 'worn'|unknown column of the state ''"),
    ):
        with pytest.raises(InvalidInputError, match=rule):
            policy.act(state)


def test_what_is_stored_is_read_again_and_an_update_keeps_the_bins(fitted, tmp_path):
    fit, settings = fitted
    save_fit(fit, tmp_path / "answer", settings)
    again = load_fit(tmp_path / "answer")
    assert again.log.bins == fit.log.bins
    pd.testing.assert_frame_equal(again.table, fit.table)
    sums = load_sums(tmp_path / "answer")
    more = PROBLEMS["dosing"].log(7, 900)
    updated = read_log(more, raw=sums.settings.raw, before=sums.log)
    assert updated.bins == fit.log.bins
    assert updated.num_rows == sums.log.num_rows + len(more)
    assert len(updated.sample.x) == updated.num_rows
    assert as_shown(updated).count.sum() == updated.num_rows
    with pytest.raises(LogError, match="other states than bins of these columns"):
        read_log(more, raw=raw_of("severity,level"), before=sums.log)
    answer = fit.to_dict()
    assert [one["label"] for one in answer["bins"]["bins"]] == fit.log.bins.labels(fit.log.bins.shown)
    assert Bins.from_dict(json.loads(json.dumps(answer["bins"]))) == fit.log.bins


@pytest.mark.parametrize(
    "damage",
    [{"coarser": 0}, {"shown": 99}, {"low": [0.0]}, {"splits": [{"node": 5, "column": 0, "threshold": 1.0}]},
     {"splits": [{"node": 0, "column": 7, "threshold": 1.0}]},
     {"splits": [{"node": 0, "column": 0, "threshold": float("nan")}]}],
)  # fmt: skip
def test_damaged_bins_are_refused(damage):
    bins = tree_of((0, 0, 0.5))
    assert Bins.from_dict(bins.to_dict()) == bins
    with pytest.raises(InvalidInputError, match="its bins"):
        Bins.from_dict(bins.to_dict() | damage)


def test_what_is_asked_for_must_be_there():
    frame = machine(200)
    for columns, rule in (
        ("temperature,lod", "no column 'lod'.*--numeric takes columns of the log"),
        ("temperature,reward", "'reward' is the reward, not a part of the state"),
    ):
        with pytest.raises(LogError, match=rule):
            read_log(frame, raw=raw_of(columns))
    with pytest.raises(LogError, match=r"no column 'next_load'.*--next-from"):
        read_log(frame.drop(columns="next_load"), raw=raw_of("temperature,load"))
    for columns in ("", "a,,b", "a,a"):
        with pytest.raises(InvalidInputError, match="different columns, such as temperature,load"):
            FitSettings(numeric=columns)
    with pytest.raises(InvalidInputError, match="numeric states need draws of the model"):
        FitSettings(numeric="a", method="q")
    assert parse_state("a=b=1, c = 2") == {"a=b": "1", "c": "2"}
    assert Columns().state == "state"


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch, tmp_path):
    from click.testing import CliRunner

    path = written(tmp_path / "log.csv", machine(200))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    found = CliRunner().invoke(cli, ["fit", str(path), "--numeric", "temperature,load"])
    assert isinstance(found.exception, MissingExtraError)
    assert found.exception.exit_code == 2
    assert str(found.exception) == '--numeric needs an optional dependency: pip install "qposterior[numeric]"'


def test_inspect_proposes_columns_with_many_numbers(tmp_path):
    frame = machine(300).rename(columns={"episode": "unit"})
    found = inspect_log(written(tmp_path / "log.csv", frame))
    assert found.guess.options[-2:] == ["--numeric", "temperature,load,vibration"]
    state = pd.DataFrame({"state": np.linspace(0, 1, 300), "action": "a", "reward": 1.0})
    state["next_state"] = state["state"].shift(-1).fillna(0.5)
    notes = inspect_log(written(tmp_path / "state.csv", state)).notes
    assert any("'state' is a number with about" in note and "--numeric state" in note for note in notes)
    told = inspect_log(tmp_path / "log.csv", settings=FitSettings(numeric="temperature,load"))
    assert told.problem is None
    assert len(told.facts["states"]) == told.log.bins.shown
