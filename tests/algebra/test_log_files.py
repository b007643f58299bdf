"""Whole log files, made at random or damaged on purpose: the sums of another parser, or a line that says why not."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import subprocess
import sys
import tracemalloc
from collections import defaultdict

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qposterior.errors import InvalidInputError
from qposterior.logs import relations, scan
from qposterior.logs.choices import choose
from qposterior.logs.columns import Columns, LogError, canonical_label
from qposterior.logs.files import log_to_dict
from qposterior.logs.read import log_of_table, read_log
from qposterior.logs.settings import FitSettings

HEADER = "state,action,reward,next_state\n"
FUZZED = settings(
    max_examples=int(os.environ.get("FUZZED_LOGS", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read_or_refuse(path):
    """Return the log, or None where it is refused in one short line that names the file; any other error fails."""
    try:
        return read_log(path)
    except LogError as error:
        line = str(error)
    assert line.startswith(str(path))
    assert line.isprintable()
    assert len(line) < len(str(path)) + 700
    return None


def sums(log):
    """What a log says, by labels: rows, pairs, moves and ends."""
    pair = [(log.states[s], log.actions[a]) for s, a in log.pairs]
    values = zip(
        log.count, log.reward_mean, log.reward_deviation, log.reward_low, log.reward_high, log.first_row, strict=True
    )
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
    records = list(
        csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=separator, skipinitialspace=True)
    )
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
    return {
        "rows": len(rows),
        "states": list(states),
        "actions": list(actions),
        "pairs": pairs,
        "moves": moves,
        "ended": ended,
    }


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
    assert (np.abs(ours[:, 1] - theirs[:, 1]) <= 1e-12 * size + 1e-320).all()  # the last bit of the smallest numbers
    assert (np.abs(ours[:, 2] - theirs[:, 2]) <= 1e-12 * theirs[:, 0] * size**2 + 1e-300).all()


LABEL = st.sampled_from(
    ["a", "b", "A", "left right", "é", "日本", "1", "1.0", "01", "-2.0", "0", "x,y", "x;y", 'say "hi"', " a", "b ",
     "nan", "NULL", "#c", "\\"]
) | st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=4)  # fmt: skip
NUMBER = st.sampled_from(
    ["1", "-1.5", " 2.5 ", "1e3", "+4", ".5", "7.", "-0.0", "1e100", "-9.99e99", "5e-324", "0.1"]
) | (st.floats(-1e6, 1e6).map(repr))
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
            more = [
                separator,
                '"',
                "\n",
                "\r",
                "\r\n",
                "\n\n",
                " ",
                "\0",
                "\x1f",
                "é",
                "-",
                "_",
                "nan",
                "1e400",
                separator * 2,
            ]
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
    found = read_or_refuse(write(tmp_path, data))
    if found is not None:
        assert_same_sums(sums(found), sums_by_hand(data, separator))


def test_whole_numbers_are_labels(tmp_path):
    for rows, states in (("1,1,5,2\n2,1,0,3\n", ["1", "2", "3"]), ("0,0,0,1\n1,0,-1,0\n", ["0", "1"])):
        log = read_log(write(tmp_path, HEADER + rows))
        assert (log.states, log.count.tolist()) == (states, [1.0, 1.0])


def test_01_is_not_1_but_1_0_is(tmp_path):
    text = "1,x,1,2\n01,x,1,02\n1.0,x,1,2.00\n 1 ,x,1,-0.0\n1.5,x,1,1e0\n"
    log = read_log(write(tmp_path, HEADER + text))
    assert log.states == ["1", "2", "01", "02", "-0.0", "1.5", "1e0"]
    assert log.count.tolist() == [3.0, 1.0, 1.0]
    gaps = pd.DataFrame({"state": [1, 2], "action": "x", "reward": 0.0, "next_state": [2.0, 3.0]})
    assert log_of_table(gaps).states == ["1", "2", "3"]


def test_one_cell_too_many_or_too_few_is_named_with_its_row(tmp_path):
    for rows, row, found in (
        ("7,a,b,1,c\n" * 3, 2, "more cells than the header, which has 4"),
        ("7,1,2,3,\n" * 3, 2, "more cells than the header, which has 4"),
        ("a,b,1,c\n" * 3 + "a,b,1,c,,\n", 5, "more cells than the header, which has 4"),
        ("a,b,1,c\n" * 3 + "a,b,1,c,d,e,f\n", 5, "more cells than the header, which has 4"),
        ("a,b,1,c\n" * 3 + "a,b,1\n", 5, "3 cells, the header 4"),
        ("a,b,1,c\n" * 3 + ",\n", 5, "2 cells, the header 4"),
    ):
        with pytest.raises(LogError, match=f"row {row}: has {found}"):
            read_log(write(tmp_path, HEADER + rows))
    noted = "state,action,reward,next_state,note\n7,1,2,3,4,\n"  # columns would shift, and the last cell be empty
    with pytest.raises(LogError, match="row 2: has more cells than the header, which has 5"):
        read_log(write(tmp_path, noted))


def test_a_blank_line_is_named_unless_the_file_ends_in_it(tmp_path):
    assert read_log(write(tmp_path, HEADER + "a,b,1,c\n\n\n")).num_rows == 1
    with pytest.raises(LogError, match="row 3: the row is blank"):
        read_log(write(tmp_path, HEADER + "a,b,1,c\n\na,b,1,c\n"))


def test_an_episode_goes_on_while_its_name_stays_however_long(tmp_path):
    names = ["1", " 1", "2", "x" * 500, "x" * 500, "x" * 499 + "y"]
    rows = "".join(f"a,b,1,a,{name}\n" for name in names)
    assert read_log(write(tmp_path, "state,action,reward,next_state,episode\n" + rows)).starts == {0: 4.0}


def test_every_cell_is_utf_8_also_those_that_are_not_asked_for(tmp_path):
    data = "state,action,note,reward,next_state\na,b,caf\u00e9,1,c\n"
    assert read_log(write(tmp_path, data)).num_rows == 1
    for encoding in ("latin-1", "utf-16"):
        with pytest.raises(LogError, match="not UTF-8"):
            read_log(write(tmp_path, data.encode(encoding)))


def test_line_breaks_in_quotes_are_part_of_a_cell(tmp_path):
    text = 'state,action,note,reward,next_state\na,b,"one\n\ntwo",1,c\na,b,plain,oops,c\n'
    with pytest.raises(LogError, match="row 3: reward must be a number, got 'oops'"):
        read_log(write(tmp_path, text))
    assert read_log(write(tmp_path, text.replace("oops", "3"))).reward_mean.tolist() == [2.0]
    with pytest.raises(LogError, match="row 2: state has a control character: 'a"):
        read_log(write(tmp_path, HEADER + '"a\nb",b,1,c\n'))


@pytest.mark.parametrize("number", ["1_000", "0x10", "1,5", "١", "1 000", "", "one", "--1"])
def test_what_is_not_a_number_is_named(tmp_path, number):
    with pytest.raises(LogError, match="row 2: reward must be a number"):
        read_log(write(tmp_path, f'{HEADER}a,b,"{number}",c\n'))


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "-inf", "1e101", "-0.1"])
def test_a_weight_is_finite_and_0_or_more(tmp_path, weight):
    with pytest.raises(LogError, match="row 3: weight must be"):
        read_log(write(tmp_path, f"state,action,reward,next_state,weight\na,b,1,c,1\na,b,1,c,{weight}\n"))
    rows = pd.DataFrame({"state": ["a"], "action": "b", "reward": 1.0, "next_state": "c", "weight": float(weight)})
    with pytest.raises(LogError, match="row 1: weight must be"):
        log_of_table(rows)


def test_the_same_sums_on_one_thread_and_on_two(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    rows = 200_000  # several buffers of the scan
    state = rng.integers(0, 2000, rows)
    table = pd.DataFrame(
        {
            "state": state,
            "action": rng.integers(0, 3, rows),
            "reward": rng.normal(1e3, 1, rows),
            "next_state": state // 2,
        }
    )
    table.to_csv(tmp_path / "log.csv", index=False)
    duckdb.from_df(table).write_parquet(str(tmp_path / "log.parquet"))
    monkeypatch.setattr(scan, "CHUNK", 30_000)
    found = []
    for threads in (1, 2, 2):
        monkeypatch.setattr(relations, "THREADS", threads)
        found += [log_to_dict(read_log(tmp_path / name)) for name in ("log.csv", "log.parquet")]
        found[-1]["first_row"] = [row + 1 for row in found[-1]["first_row"]]  # no header
    found.append(log_to_dict(log_of_table(table)) | {"first_row": found[0]["first_row"]})
    assert all(log == found[0] for log in found)
    assert found[0]["states"] == list(dict.fromkeys(table[["state", "next_state"]].to_numpy().ravel().astype(str)))


@pytest.mark.parametrize(
    "name", ["a[1].csv", "it's.csv", "*.csv", "?.csv", "a b.csv", "x=1.csv", "{a,b}.csv", '"; --.csv', "a\nb.csv"]
)
def test_a_file_s_name_stands_for_itself(tmp_path, name):
    write(tmp_path, HEADER + "wrong,b,1,c\n", "other.csv")
    write(tmp_path, HEADER + "wrong,b,1,c\n", "a1.csv")
    assert read_log(write(tmp_path, HEADER + "a,b,1,c\n", name)).states == ["a", "c"]
    if "'" not in name and '"' not in name:
        frame = pd.DataFrame({"state": ["a"], "action": "b", "reward": 1.0, "next_state": "c"})
        duckdb.from_df(frame).write_parquet(str(tmp_path / "plain"))
        (tmp_path / "plain").rename(tmp_path / name.replace(".csv", ".parquet"))
        assert read_log(tmp_path / name.replace(".csv", ".parquet")).states == ["a", "c"]


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path, tmp_path / "pipe.csv", "/dev/zero"):
        with pytest.raises(LogError, match="is a directory, a pipe or a device"):
            read_log(path)


def test_a_line_that_never_ends_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(HEADER.encode() + b"a,b,1,c\n")
        for _ in range(64):
            stream.write(b"x" * (1 << 20))
    with pytest.raises(LogError, match="row 3: the line is longer than 1048576 bytes"):
        read_log(path)
    tracemalloc.start()
    with contextlib.suppress(LogError):
        read_log(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    with pytest.raises(LogError, match="row 2: the labels have more than 3000 characters"):
        read_log(write(tmp_path, HEADER + "x" * 100_000 + ",b,1,c\n"))
    with pytest.raises(LogError, match="row 1: the line is longer"):
        read_log(write(tmp_path, b"\0" * (2 << 20)))


def test_a_strange_header_is_named_in_a_short_line(tmp_path):
    assert read_log(write(tmp_path, "state , action,reward ,next_state \na,b,1,c\n")).states == ["a", "c"]
    assert read_log(write(tmp_path, '"state" , "action","reward","next_state"\na,b,1,c\n')).states == ["a", "c"]
    for header in (
        "s" * 200_000,
        ",".join(["s"] * 100_000),
        ",".join(map(str, range(100_000))),
        '"state,action',
        "state\0",
        "\n",
    ):
        with pytest.raises(LogError) as caught:
            read_log(write(tmp_path, header + "\na,b,1,c\n"))
        assert len(str(caught.value)) < len(str(tmp_path)) + 300
        assert str(caught.value).isprintable()


def test_two_of_our_columns_cannot_be_one_of_theirs(tmp_path):
    path = write(tmp_path, "state,action,reward,next_state,weight\na,b,1,c,9\n")
    with pytest.raises(LogError, match="state and next_state are both read from the column 'state'"):
        read_log(path, columns=Columns(next_state="state"))
    with pytest.raises(LogError, match="episode and weight are both"):
        read_log(path, columns=Columns(episode="x", weight="x"))
    with pytest.raises(LogError, match=r"no column 'wieght'.*--column weight=NAME"):
        read_log(path, columns=Columns(weight="wieght"))
    assert read_log(path, columns=Columns(reward="weight")).reward_mean.tolist() == [9.0]  # and no weights
    swapped = read_log(path, columns=Columns(state="next_state", next_state="state"))
    assert swapped.states == ["c", "a"]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(0, 8))
def test_a_damaged_gzip_file_is_noticed(tmp_path, at, bit):
    text = (HEADER + "".join(f"a{i % 7},b,{i},c\n" for i in range(200))).encode()
    whole = gzip.compress(text, compresslevel=0, mtime=0)  # flips change the text, not the packing
    assert_same_sums(sums(read_log(write(tmp_path, whole, "log.csv.gz"))), sums_by_hand(whole, ","))
    at %= len(whole)
    data = whole[:at] if bit == 8 else whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
    found = read_or_refuse(write(tmp_path, data, "log.csv.gz"))
    if found is not None:
        assert_same_sums(sums(found), sums_by_hand(whole, ","))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(0, 8))
def test_damaged_parquet_is_a_log_or_one_line(tmp_path, at, bit):
    """Parquet has no checksums, so a flipped bit may be another value; a file that is cut off is always noticed."""
    frame = pd.DataFrame({"state": ["a", "b"] * 50, "action": "x", "reward": np.arange(100.0), "next_state": "c"})
    if not (tmp_path / "whole.parquet").exists():
        duckdb.from_df(frame).write_parquet(str(tmp_path / "whole.parquet"))
    whole = (tmp_path / "whole.parquet").read_bytes()
    at %= len(whole)
    data = whole[:at] if bit == 8 else whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
    found = read_or_refuse(write(tmp_path, data, "log.parquet"))
    assert found is None or (bit < 8 and found.num_rows > 0)


def test_parquet_of_any_types_is_read_as_text_first(tmp_path):
    path = str(tmp_path / "log.parquet")

    def read(columns):
        duckdb.sql(f"SELECT {columns}, 'x' AS action").write_parquet(path)
        return read_log(path)

    log = read("1::DOUBLE AS state, ' 2.5 ' AS reward, 1::BIGINT AS next_state, true AS terminated")
    assert (log.states, log.reward_mean.tolist(), log.ended) == (["1"], [2.5], {0: 1})
    assert read("true AS state, 3::DECIMAL(9, 2) AS reward, 'a'::BLOB AS next_state").states == ["True", "a"]
    for columns, wanted in (
        ("'a' AS state, 'much' AS reward, 'b' AS next_state", "row 1: reward must be a number, got 'much'"),
        ("'a' AS state, NULL::DOUBLE AS reward, 'b' AS next_state", "row 1: reward must be a number, got ''"),
        ("'a' AS state, 'nan'::DOUBLE AS reward, 'b' AS next_state", "row 1: reward must be finite, got nan"),
        ("'a' AS state, DATE '2020-01-01' AS reward, 'b' AS next_state", "row 1: reward must be a number, got '2020"),
        ("NULL::INTEGER AS state, 1 AS reward, 'b' AS next_state", "row 1: state is empty"),
        ("'nan'::DOUBLE AS state, 1 AS reward, 'b' AS next_state", "row 1: state is empty"),
        ("'a' AS state, 1 AS rewards, 'b' AS next_state", "no column 'reward'"),
    ):
        with pytest.raises(LogError, match=wanted):
            read(columns)


def test_a_table_of_any_types_is_read_like_a_file():
    good = {"state": ["a"], "action": [True], "reward": ["1.5"], "next_state": [("b", 1)]}
    log = log_of_table(pd.DataFrame(good))
    assert (log.states, log.actions, log.reward_mean.tolist()) == (["a", "('b', 1)"], ["True"], [1.5])
    typed = pd.DataFrame(good | {"state": pd.array([1], dtype="Int64"), "action": pd.Categorical(["go"])})
    assert (log_of_table(typed).states[0], log_of_table(typed).actions) == ("1", ["go"])
    for wrong, wanted in (
        ({"reward": ["much"]}, "table, row 1: reward must be a number, got 'much'"),
        ({"reward": [None]}, "table, row 1: reward must be a number, got ''"),
        ({"state": [None]}, "table, row 1: state is empty"),
        ({"state": []} | {name: [] for name in good}, "there are no rows"),
    ):
        with pytest.raises(LogError, match=wanted):
            log_of_table(pd.DataFrame(good | wrong))


def test_labels_that_differ_only_in_case_or_blanks_are_warned_of(tmp_path):
    text = "Left,go,1,right side\nleft,go,1,right  side\nup,Go,1,end\nright side,go,1,end\nright  side,go,1,end\n"
    words = choose(read_log(write(tmp_path, HEADER + text)), FitSettings()).notes
    assert (
        "the states 'Left' and 'left' differ only in case or blanks: they are kept apart; is one of them a slip?"
        in words
    )
    assert any(word.startswith("the states 'right side' and 'right  side' differ") for word in words)
    assert any(word.startswith("the actions 'go' and 'Go' differ") for word in words)
    clean = choose(read_log(write(tmp_path, HEADER + "a,b,1,c\n")), FitSettings()).notes
    assert not any("differ only" in word for word in clean)


def test_a_goal_is_named_as_the_log_names_it(tmp_path):
    log = read_log(write(tmp_path, HEADER + "1,x,-1,2.0\n2,x,-1,3\n"))
    chosen = choose(log, FitSettings(goals=("3.0",)))
    assert [chosen.states[s] for s in chosen.seen.space.goals] == ["3"]


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read_log(write(tmp_path, HEADER + "a,b,1,c\n"))
    with pytest.raises(InvalidInputError):
        read_log(write(tmp_path, HEADER + "a,b,x,c\n"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_reading_prints_nothing_not_even_in_an_interpreter(tmp_path):
    path = write(tmp_path, HEADER + "a,b,1,c\n")
    with relations.connected(path) as connection:
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (False,)


def test_the_command_line_refuses_a_bad_log_with_exit_code_2(tmp_path):
    path = write(tmp_path, HEADER + "a,b,1,c\n")
    for arguments in (["fit", str(path), "--column", "next_state=state"], ["fit", "/dev/zero"]):
        run = subprocess.run(
            [sys.executable, "-m", "qposterior", *arguments], capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stdout) == (2, "")
        assert len(run.stderr.splitlines()) == 1
