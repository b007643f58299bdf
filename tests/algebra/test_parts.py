"""Logs that are summed file by file, on a cluster or here: equal to those that one machine reads."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from qposterior.errors import InvalidInputError
from qposterior.logs.columns import LogError
from qposterior.logs.raw import RawRows
from qposterior.logs.read import Log, LogBuilder, read_log


def folder_of(path, *, seed, sizes, slips=False):
    """Write files of random rows, weights and episodes; some labels are met in one file only."""
    rng = np.random.default_rng(seed)
    path.mkdir()
    for number, size in enumerate(sizes):
        states = np.array([f"s{i}" for i in range(2 + number)])
        if slips:
            states = np.array([state.upper() if number % 2 else state for state in states])
        rows = pd.DataFrame(
            {
                "state": rng.choice(states, size),
                "action": rng.choice(["a", "b"], size),
                "reward": 1e6 + rng.gamma(0.5, size=size),
                "next_state": rng.choice([*states, "end"], size),
                "weight": rng.choice([0.0, 0.5, 3.0], size, p=[0.1, 0.4, 0.5]),
                "episode": np.sort(rng.integers(0, 1 + size // 5, size)),
            }
        )
        rows["terminated"] = (rows["next_state"] == "end").astype(int)
        rows.loc[rng.random(size) < 0.05, "action"] = None
        rows.to_csv(path / f"{number}.csv", index=False)
    return path


def assert_same(one: Log, two: Log) -> None:
    for item in fields(Log):
        left, right = getattr(one, item.name), getattr(two, item.name)
        if item.name in ("first_row", "ended", "notes"):  # rows are numbered in each file, or in all
            assert len(left) == len(right) or item.name == "notes"
        elif isinstance(left, np.ndarray):
            np.testing.assert_allclose(left, right, rtol=1e-12, err_msg=item.name)
        elif item.name in ("starts", "contexts"):
            assert left == pytest.approx(right, rel=1e-12), item.name
        else:
            assert left == right, item.name


def joined(folder, raw, *, before=None):
    """What `read_parts` does, without a cluster."""
    builder = LogBuilder(raw=raw, before=before)
    for number, file in enumerate(sorted(folder.iterdir())):
        part = LogBuilder(raw=raw)
        part.read(file)
        builder.join(pickle.loads(pickle.dumps(part.labelled())))
        builder.respelt |= part.respelt
        if number == 0:
            builder.log.unread = part.log.unread
    return builder.built(folder)


@pytest.mark.parametrize("slips", [False, True])
@pytest.mark.parametrize("sizes", [(300, 200, 100), (50, 0, 80), (1, 1, 1, 1)])
def test_sums_that_are_joined_are_those_of_one_reader(tmp_path, sizes, slips):
    folder = folder_of(tmp_path / "logs", seed=len(sizes), sizes=sizes, slips=slips)
    raw = RawRows(missing="drop", normalise=slips)
    one = read_log(folder, raw=raw)
    assert_same(joined(folder, raw), one)
    assert len({state.lower() for state in one.states}) == len(one.states)


def test_sums_are_joined_to_those_of_an_earlier_log(tmp_path):
    raw = RawRows(missing="drop")
    early = folder_of(tmp_path / "early", seed=5, sizes=(60,))
    late = folder_of(tmp_path / "late", seed=6, sizes=(70, 30))
    before = read_log(early, raw=raw)
    assert_same(joined(late, raw, before=before), read_log(late, raw=raw, before=before))
    assert before.num_rows == read_log(early, raw=raw).num_rows  # it has not changed


def test_nothing_in_one_file_follows_what_stands_in_another(tmp_path):
    (tmp_path / "1.csv").write_text("state,action,reward,next_state,episode\nx,a,1,y,e\n")
    (tmp_path / "2.csv").write_text("state,action,reward,next_state,episode\ny,a,1,x,e\n")
    plain, dropping = read_log(tmp_path), read_log(tmp_path, raw=RawRows(missing="drop"))
    assert plain.num_episodes == dropping.num_episodes == 2
    assert plain.contexts == dropping.contexts == {}


def test_a_cluster_gives_the_same_answer_and_says_what_it_did(tmp_path):
    pytest.importorskip("distributed")
    folder = folder_of(tmp_path / "logs", seed=1, sizes=(300, 200, 100), slips=True)
    options = {"missing": "drop", "normalise": True, "discount": 0.9, "particles": 100}
    one = qp.fit(folder, **options)
    many = qp.fit(folder, engine="dask", **options)
    assert_same(many.log, one.log)
    assert many.policy == one.policy
    np.testing.assert_allclose(many.table["mean"], one.table["mean"], rtol=1e-9)
    slips = [[note for note in fit.chosen.notes if "--normalise" in note] for fit in (one, many)]
    assert slips[0] == slips[1] != []
    left_out = [note for note in many.chosen.notes if "left out" in note]
    assert [note.split(":")[0] for note in left_out] == ["0.csv", "1.csv", "2.csv"]
    (folder / "1.csv").write_text("state,action,reward,next_state\nx,a,much,y\n")
    with pytest.raises(LogError, match=r"1\.csv, row 2: reward must be a number, got 'much'"):
        qp.fit(folder, engine="dask", missing="drop")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"next_from": "who,when"}, "next_from needs all rows in one place"),
        ({"numeric": "load"}, "numeric needs all rows in one place"),
        ({"sql": "SELECT * FROM log"}, "sql needs all rows in one place"),
        ({"noise": qp.Noise(kind="student", scale=1.0)}, "student noise needs single readings"),
        ({"source": pd.DataFrame({"state": []})}, "reads files"),
    ],
)
def test_what_sums_do_not_tell_is_refused_by_name(tmp_path, options, match):
    with pytest.raises(InvalidInputError, match=match):
        qp.fit(**{"source": tmp_path, "engine": "dask"} | options)


def test_a_folder_without_rows_is_refused(tmp_path):
    (tmp_path / "1.csv").write_text("state,action,reward,next_state\n")
    part = LogBuilder(raw=RawRows())
    part.read(tmp_path / "1.csv")
    builder = LogBuilder(raw=RawRows())
    builder.join(part.labelled())
    with pytest.raises(LogError, match="there are no rows"):
        builder.built(tmp_path)
    with pytest.raises(InvalidInputError, match="a scheduler needs"):
        qp.fit(tmp_path, scheduler="tcp://127.0.0.1:1")


def test_what_is_wrong_in_a_file_comes_back_whole_from_another_process():
    error = pickle.loads(pickle.dumps(LogError("a.csv", "is odd", 3)))
    assert isinstance(error, LogError)
    assert str(error) == "a.csv, row 3: is odd"
