"""Whole log files, made at random or damaged on purpose: the sums of another parser, or one line that says what is wrong."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
from collections import defaultdict

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qposterior.errors import InvalidInputError
from qposterior.logs import relations, scan
from qposterior.logs.choices import FitSettings, choose
from qposterior.logs.columns import Columns, LogError, canonical_label
from qposterior.logs.files import log_to_dict
from qposterior.logs.read import log_of_table, read_log

HEADER = "state,action,reward,next_state\n"
FUZZED = settings(
    max_examples=int(os.environ.get("FUZZED_LOGS", "250")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def sums(log):
    """What a log says, by labels: rows, pairs, moves and ends."""
    pair = [(log.states[s], log.actions[a]) for s, a in log.pairs]
    values = zip(log.count, log.reward_mean, log.reward_deviation, log.reward_low, log.reward_high, log.first_row, strict=True)
    return {
        "rows": log.num_rows,
        "states": log.states,
        "actions": log.actions,
        "pairs": {key: tuple(map(float, value)) for key, value in zip(pair, values, strict=True)},
        "moves": {(*pair[p], log.states[s]): float(n) for (p, s), n in zip(log.moves, log.move_count, strict=True)},
        "ended": {log.states[s]: row for s, row in log.ended.items()},
    }


def sums_by_hand(data, separator):
    """The same by the csv module and dictionaries; ValueError where it is not a log."""
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    records = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=separator, skipinitialspace=True))
    while records and not records[-1]:
        records.pop()
    header, rows = [name.strip() for name in records[0]], records[1:]
    states, actions, moves, ended = {}, {}, defaultdict(float), {}
    readings = defaultdict(list)
    for row, cells in enumerate(rows, start=2):
        (cell,) = [dict(zip(header, cells, strict=True))]
        label = {name: canonical_label(cell[name]) for name in ("state", "action", "next_state")}
        if not all(text and text.isprintable() for text in label.values()):
            raise ValueError("label")
        reward, weight = float(cell["reward"].replace("_", "?")), float(cell.get("weight", "1").replace("_", "?"))
        if not (abs(reward) <= 1e100 and 0.0 <= weight <= 1e100):
            raise ValueError("number")
        for name in ("state", "next_state"):
            states.setdefault(label[name])
        actions.setdefault(label["action"])
        readings[label["state"], label["action"]].append((reward, weight, row))
        moves[tuple(label[name] for name in ("state", "action", "next_state"))] += weight
        word = cell.get("terminated", "0").strip().lower()
        if word not in ("1", "1.0", "true", "yes", "0", "0.0", "false", "no", ""):
            raise ValueError("truth")
        if word in ("1", "1.0", "true", "yes"):
            ended.setdefault(label["next_state"], row)
    if not rows:
        raise ValueError("empty")
    pairs = {}
    for key, found in readings.items():
        reward, weight = np.array([r for r, _, _ in found]), np.array([w for _, w, _ in found])
        total = weight.sum()
        mean = float(reward @ weight / total) if total else 0.0
        deviation = float(weight @ (reward - mean) ** 2)
        pairs[key] = (total, mean, deviation, reward.min(), reward.max(), found[0][2])
    return {"rows": len(rows), "states": list(states), "actions": list(actions), "pairs": pairs, "moves": moves, "ended": ended}


def assert_same_sums(found, wanted):
    assert {k: v for k, v in found.items() if k not in ("pairs", "moves")} == {
        k: v for k, v in wanted.items() if k not in ("pairs", "moves")
    }
    assert list(found["pairs"]) == list(wanted["pairs"])
    assert list(found["moves"]) == list(wanted["moves"])
    np.testing.assert_allclose(list(found["moves"].values()), list(wanted["moves"].values()), rtol=1e-12)
    ours, theirs = np.array(list(found["pairs"].values())), np.array(list(wanted["pairs"].values()))
    size = np.maximum(np.abs(theirs[:, 3]), np.abs(theirs[:, 4]))
    np.testing.assert_allclose(ours[:, [0, 3, 4, 5]], theirs[:, [0, 3, 4, 5]], rtol=1e-12)
    assert (np.abs(ours[:, 1] - theirs[:, 1]) <= 1e-12 * size).all()
    assert (np.abs(ours[:, 2] - theirs[:, 2]) <= 1e-12 * theirs[:, 0] * size**2 + 1e-300).all()


LABEL = st.sampled_from(
    ["a", "b", "A", "left right", "é", "日本", "1", "1.0", "01", "-2.0", "0", "x,y", "x;y", 'say "hi"', " a", "b ", "nan", "NULL", "#c", "\\"]
) | st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=4)  # fmt: skip
NUMBER = st.sampled_from(["1", "-1.5", " 2.5 ", "1e3", "+4", ".5", "7.", "-0.0", "1e100", "-9.99e99", "5e-324", "0.1"]) | (
    st.floats(-1e6, 1e6).map(repr)
)
WEIGHT = st.sampled_from(["1", "2", "0", "0.5", "1e-3"])
TRUTH = st.sampled_from(["0", "1", "true", "No", " yes", "", "0.0"])
NOTE = st.sampled_from(["", "fine", "a, b", "two\nlines", '"', "x" * 300])


@st.composite
def logs(draw):
    """A log as a file: its separator, its bytes, and the columns and rows that it was made of."""
    values = {"state": LABEL, "action": LABEL, "reward": NUMBER, "next_state": LABEL}
    for name, value in (("weight", WEIGHT), ("terminated", TRUTH), ("episode", LABEL), ("note", NOTE)):
        if draw(st.booleans()):
            values[name] = value
    header = draw(st.permutations(list(values)))
    rows = draw(st.lists(st.tuples(*(values[name] for name in header)), min_size=1, max_size=12))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    separator = draw(st.sampled_from([",", ";", "\t"]))
    text = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    csv.writer(text, delimiter=separator, lineterminator=end, quoting=quoting).writerows([header, *rows])
    written = text.getvalue() if draw(st.booleans()) else text.getvalue().removesuffix(end)
    if draw(st.booleans()) and quoting == csv.QUOTE_MINIMAL:
        written = written.replace(header[0], f" {header[0]} ", 1)
    data = ("\ufeff" if draw(st.booleans()) else "").encode() + written.encode()
    return separator, gzip.compress(data, mtime=0) if draw(st.integers(0, 3)) == 0 else data


@FUZZED
@given(logs(), st.sampled_from([3, 100_000]), st.sampled_from([1, 2]))
def test_a_well_formed_log_has_the_sums_of_another_parser(tmp_path, monkeypatch, made, chunk, threads):
    separator, data = made
    monkeypatch.setattr(scan, "CHUNK", chunk)
    monkeypatch.setattr(relations, "THREADS", threads)
    assert_same_sums(sums(read_log(write(tmp_path, data))), sums_by_hand(data, separator))


@st.composite
def damaged_logs(draw):
    separator, data = draw(logs())
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "cut", "drop", "add", "line"]))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "drop":
            data = data[:at] + data[at + draw(st.integers(1, 4)) :]
        elif kind == "add":
            more = [separator, '"', "\n", "\r", "\r\n", "\n\n", " ", "\0", "\x1f", "é", "-", "_", "nan", "1e400", separator * 2]
            data = data[:at] + draw(st.sampled_from(more)).encode() + data[at:]
        else:  # a row more, of any cells
            cells = draw(st.lists(LABEL | NUMBER, max_size=9))
            data = data + b"\n" + separator.join(cells).encode()
    return separator, data


@FUZZED
@given(damaged_logs())
@example((",", (HEADER + "a,b,1,c,\n" * 3).encode()))
@example((",", (HEADER + "a,b,1,c\n\na,b,1,c\n").encode()))
def test_a_damaged_log_is_refused_in_one_line_or_read_as_it_stands(tmp_path, made):
    separator, data = made
    path = write(tmp_path, data)
    try:
        found = read_log(path)
    except LogError as error:
        assert str(error).startswith(str(path))
        assert str(error).isprintable()
        assert len(str(error)) < len(str(path)) + 700
    else:
        assert_same_sums(sums(found), sums_by_hand(data, separator))
