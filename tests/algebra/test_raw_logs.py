"""Raw logs against loops over their rows: successors, ends, missing cells, costs, slips, folders, frames, previews."""

from __future__ import annotations

import csv
import io
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from qposterior.errors import InvalidInputError
from qposterior.logs.columns import Columns, LogError, canonical_label, folded
from qposterior.logs.files import log_from_dict, log_to_dict
from qposterior.logs.preview import inspect_log
from qposterior.logs.raw import END, MISSING, RawRows
from qposterior.logs.read import read_log
from qposterior.logs.settings import FitSettings

VISITS = """patient,when,state,action,reward,out
b,2024-01-02,Ill,drug,-2,
a,2024-01-03,ok,none,-1,home
a,2024-01-01,ill,drug,-3,
b,2024-01-05,,none,NA,
a,2024-01-02,ill,none,,home
b,2024-01-07,ok,none,-1,
"""


@pytest.fixture
def visits(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text(VISITS)
    return path


def moves(log):
    """How often each transition was made, and the mean reward of each pair, by labels."""
    pair = [(log.states[s], log.actions[a]) for s, a in log.pairs]
    count = {(*pair[k], log.states[t]): float(n) for (k, t), n in zip(log.moves, log.move_count, strict=True)}
    return count, {key: pytest.approx(mean) for key, mean in zip(pair, log.reward_mean, strict=True)}


def by_hand(text, *, key, order, outcome=None, ends="terminated", sign=1.0, normalise=False):
    """The same by dictionaries and loops: transitions, rewards, starts and the number of rows kept."""

    def is_missing(cell):
        return (cell or "").strip(" \t").lower() in MISSING

    rows = list(csv.DictReader(io.StringIO(text)))
    sequences, spelt, first = defaultdict(list), {}, {}
    for row in rows:
        if not is_missing(row[key]) and not is_missing(row[order]):
            sequences[row[key]].append(row)
    for row in (row for name in sequences for row in sorted(sequences[name], key=lambda row: row[order])):
        first.setdefault(id(row), row)

    def label(kind, cell):
        text = canonical_label(cell)
        return spelt.setdefault((kind, folded(text)), text) if normalise else text

    count, rewards, starts, kept = defaultdict(float), defaultdict(list), defaultdict(float), 0
    stops = len(sequences) > 1 and outcome is None and ends not in rows[0]
    for name in sequences:
        sequence = sorted(sequences[name], key=lambda row: row[order])
        begins = True
        for here, after in zip(sequence, [*sequence[1:], None], strict=True):
            has_ended = here.get(ends) in ("1", "true")
            if after is None and outcome is not None and not is_missing(here[outcome]):
                following = here[outcome]
            elif has_ended or (after is None and stops):
                following = END
            else:
                following = None if after is None else after["state"]
            begun, begins = begins, has_ended
            if any(is_missing(cell) for cell in (here["state"], here["action"], here["reward"], following)):
                continue
            state, action = label("state", here["state"]), label("action", here["action"])
            count[state, action, label("state", following)] += 1.0
            rewards[state, action].append(sign * float(here["reward"]))
            starts[state] += float(begun)
            kept += 1
    means = {pair: float(np.mean(values)) for pair, values in rewards.items()}
    return dict(count), means, {state: number for state, number in starts.items() if number}, kept


def random_log(rng, *, with_ends):
    """A shuffled log of individuals with missing cells and slips, times in order of text."""
    lines = []
    for name in range(int(rng.integers(2, 12))):
        for step in range(int(rng.integers(1, 9))):
            cells = [
                f"p{name}",
                f"2024-01-{step + 1:02d}",
                rng.choice(["A", "a ", "B", "c d", "CD"]),
                rng.choice(["x", "Y", "y"]),
            ]
            cells += [f"{rng.normal():.3f}", rng.choice(["", "gone", "A"]), rng.choice(["0", "1"], p=[0.8, 0.2])]
            for place in np.flatnonzero(rng.random(7) < 0.06):
                cells[place] = str(rng.choice(["", "NA", " null "])) if place < 5 else cells[place]
            lines.append(cells if with_ends else cells[:-1])
    header = ["who", "when", "state", "action", "reward", "out", "terminated"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [header if with_ends else header[:-1], *rng.permutation(lines).tolist()]
    )
    return text.getvalue()


@pytest.mark.parametrize("with_ends", [False, True])
@pytest.mark.parametrize("outcome", [None, "out"])
@pytest.mark.parametrize("seed", range(12))
def test_successors_are_those_of_a_loop_over_each_individual(tmp_path, seed, outcome, with_ends):
    text = random_log(np.random.default_rng(seed), with_ends=with_ends)
    path = tmp_path / "raw.csv"
    path.write_text(text)
    count, means, starts, kept = by_hand(text, key="who", order="when", outcome=outcome, sign=-1.0)
    raw = RawRows.parse("who,when", outcome=outcome, cost=True, missing="drop")
    if not kept:
        with pytest.raises(LogError, match="there are no rows"):
            read_log(path, raw=raw)
        return
    log = read_log(path, raw=raw)
    assert moves(log) == (count, means)
    assert {log.states[s]: n for s, n in log.starts.items()} == starts
    assert log.num_rows == kept
    assert moves(read_log(pd.read_csv(io.StringIO(text), dtype=str), raw=raw)) == (count, means)


def test_a_row_with_a_missing_state_takes_its_predecessor_with_it_and_is_counted(visits):
    log = read_log(visits, raw=RawRows.parse("patient,when", outcome="out", missing="drop", normalise=True))
    assert moves(log)[0] == {("ill", "drug", "ill"): 1.0, ("ok", "none", "home"): 1.0}
    assert {log.states[s] for s in log.ended} == {"home"}
    [rows] = [note for note in log.notes if "left out for missing" in note]
    assert rows.startswith("3 of 6 rows")
    assert "state 1, reward 2, the state of the next row 1; " in rows
    assert rows.endswith("first in rows 5, 6")
    assert any("one row was left out: the last of a 'patient'" in note for note in log.notes)


def test_what_is_missing_is_counted_by_column_and_refused_unless_told_to_drop(visits):
    for missing in ("fail", None):
        with pytest.raises(LogError, match=r"state 1, reward 2 in 6 rows \(first in rows 5, 6\).*--missing drop"):
            read_log(visits, raw=RawRows.parse("patient,when", missing=missing))
    columns = Columns(next_state="out")
    with pytest.raises(LogError, match="state 1, reward 2, out 4"):
        read_log(visits, columns=columns, raw=RawRows(missing="fail"))
    log = read_log(visits, columns=columns, raw=RawRows(missing="drop"))
    assert moves(log)[0] == {("ok", "none", "home"): 1.0}


def test_without_an_order_rows_follow_each_other_as_in_the_file(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("who,state,action,reward\n1,a,x,1\n2,c,x,2\n1,b,x,3\n2,d,y,4\n")
    log = read_log(path, raw=RawRows.parse("who"))
    assert moves(log)[0] == {("a", "x", "b"): 1, ("b", "x", END): 1, ("c", "x", "d"): 1, ("d", "y", END): 1}
    assert log.num_episodes == 2
    assert any(f"a state called {END}" in note for note in log.notes)


def test_the_record_of_one_individual_stops_without_an_end(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("who,state,action,reward\n1,a,x,1\n1,b,x,3\n1,a,y,4\n")
    log = read_log(path, raw=RawRows.parse("who"))
    assert moves(log)[0] == {("a", "x", "b"): 1, ("b", "x", "a"): 1}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["2024-01-02", "03/02/2024"], r"row 3: when must be a number in all rows.*got '03/02/2024'"),
        (["2024-01-02T10:00:00+02:00", "2024-01-02"], r"row 2: .*no offset.*\+02:00"),
        (["2024-01-02 10:00:00 PM", "2024-01-02"], "row 2: .*24 hours"),
        (["5", "2024-01-02"], "row 3: "),
        (["2024-02-31", "2024-01-02"], "row 2: "),
    ],
)
def test_an_order_that_would_have_to_be_guessed_is_refused_with_its_row(tmp_path, cells, words):
    path = tmp_path / "log.csv"
    path.write_text("who,when,state,action,reward\n" + "".join(f"1,{cell},a,x,1\n" for cell in cells))
    with pytest.raises(LogError, match=words):
        read_log(path, raw=RawRows.parse("who,when"))


def test_numbers_are_ordered_as_numbers_and_ties_are_told(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("who,when,state,action,reward\n1,10,c,x,1\n1,9,b,x,1\n1,-1e2,a,x,1\n1,9,d,x,1\n")
    log = read_log(path, raw=RawRows.parse("who,when"))
    assert set(moves(log)[0]) == {("a", "x", "b"), ("b", "x", "d"), ("d", "x", "c")}
    assert any(note.startswith("1 rows have the same 'when'") for note in log.notes)


def test_errors_name_the_row_of_the_file_however_rows_are_ordered(tmp_path):
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("who,when,state,action,reward\n1,3,a,x,1\n1,2,a,x,1\n")
    second.write_text("who,when,state,action,reward\n2,3,a,x,1\n1,1,a,x,much\n")
    with pytest.raises(LogError, match=r"2\.csv, row 3: reward must be a number, got 'much'"):
        read_log(tmp_path, raw=RawRows.parse("who,when"))
    second.write_text("who,when,state,action,reward\n2,3,a,x,1,7\n")
    with pytest.raises(LogError, match=r"2\.csv, row 2: has not as many cells as the header, which has 5"):
        read_log(tmp_path, raw=RawRows.parse("who,when"))
    second.write_text("who,when,state,action,reward\n2,3,a\tb\n")
    with pytest.raises(LogError, match=r"2\.csv, row 2"):
        read_log(tmp_path, raw=RawRows.parse("who,when"))


def test_slips_are_one_label_and_said_so(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("state,action,reward,next_state\nWorn,Fix,1,new\nworn,fix,2,New\n w orn,FIX,3,new\n")
    apart, joined = read_log(path), read_log(path, raw=RawRows(normalise=True))
    assert len(apart.states) == 5
    assert (joined.states, joined.actions) == (["Worn", "new"], ["Fix"])
    assert joined.reward_mean == pytest.approx([2.0])
    assert any("5 labels that differ only in case or blanks" in note for note in joined.notes)
    again = read_log(path, raw=RawRows(normalise=True), before=joined)  # an update goes on with the spellings it has
    assert (again.states, again.count.tolist()) == (["Worn", "new"], [6.0])


def test_a_cost_is_a_reward_with_the_other_sign(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("state,action,price,next_state\na,x,1.5,b\na,x,2.5,b\n")
    log = read_log(path, columns=Columns(reward="price"), raw=RawRows(cost=True))
    assert (log.reward_mean.tolist(), log.reward_low.tolist(), log.reward_high.tolist()) == ([-2.0], [-2.5], [-1.5])
    path.write_text("state,action,price,next_state\na,x,-,b\n")
    with pytest.raises(LogError, match="price must be a number, got '-'"):
        read_log(path, columns=Columns(reward="price"), raw=RawRows(cost=True))


def test_a_folder_and_a_pattern_are_their_files_one_after_the_other(tmp_path):
    header, rows = "state,action,reward,next_state,episode\n", ["a,x,1,b,1\n", "b,x,2,a,1\n", "a,y,3,b,2\n"]
    whole = tmp_path / "whole.csv"
    whole.write_text(header + "".join(rows))
    folder = tmp_path / "logs"
    folder.mkdir()
    for number, row in enumerate(rows):
        (folder / f"part{number}.csv").write_text(header + row)
    (folder / "notes.txt").write_text("not a log")
    one = read_log(whole)
    for source in (folder, folder / "part*.csv"):
        parts = read_log(source)
        assert moves(parts) == moves(one)
        assert parts.num_episodes == 3  # a file begins an episode: what follows in another one is not known
    with pytest.raises(LogError, match="no file has a name like that"):
        read_log(folder / "none*.csv")
    odd = tmp_path / "a[1].csv"
    odd.write_text(header + rows[0])
    assert read_log(odd).num_rows == 1


def test_files_of_other_columns_are_not_joined(tmp_path):
    (tmp_path / "1.csv").write_text("who,state,action,reward\n1,a,x,1\n")
    (tmp_path / "2.csv").write_text("who,state,action,reward,weight\n1,a,x,1,2\n")
    with pytest.raises(LogError, match=r"2\.csv: has other columns than .*1\.csv \(weight\)"):
        read_log(tmp_path, raw=RawRows.parse("who"))


class Frame:
    """What is used of a Polars frame: names of columns, and columns that become arrays."""

    def __init__(self, table):
        self.columns, self._table = list(table.columns), table

    def __getitem__(self, name):
        return self._table[name]


def test_a_frame_that_is_not_of_pandas_is_read_by_its_columns(visits):
    raw = RawRows.parse("patient,when", missing="drop")
    table = pd.read_csv(visits)
    assert moves(read_log(Frame(table), raw=raw)) == moves(read_log(table, raw=raw))
    polars = pytest.importorskip("polars")
    assert moves(read_log(polars.read_csv(visits), raw=raw)) == moves(read_log(table, raw=raw))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"next_from": "a,b,c"}, "next_from must name one column or two"),
        ({"next_from": ""}, "next_from must name one column or two"),
        ({"outcome": "out"}, "give next_from=ID,ORDER too"),
        ({"missing": "keep"}, "what is done with missing cells"),
    ],
)
def test_settings_of_raw_logs_are_checked(options, words):
    with pytest.raises(InvalidInputError, match=words):
        FitSettings(**options)


def test_columns_that_are_not_there_are_named_with_the_option(visits):
    with pytest.raises(LogError, match=r"no column 'visit'.*--next-from takes columns of the log"):
        read_log(visits, raw=RawRows.parse("patient,visit"))
    with pytest.raises(LogError, match=r"no column 'result'.*--outcome takes"):
        read_log(visits, raw=RawRows.parse("patient,when", outcome="result"))
    with pytest.raises(LogError, match=r"no column 'next_state'.*--next-from ID,ORDER"):
        read_log(visits)


def test_notes_are_stored_and_said(visits):
    found = qp.fit(visits, next_from="patient,when", outcome="out", missing="drop", normalise=True)
    assert found.chosen.notes[: len(found.log.notes)] == found.log.notes
    assert log_from_dict(log_to_dict(found.log)).notes == found.log.notes


def test_gaps_are_counted_where_the_episode_goes_on(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("state,action,reward,next_state,episode\na,x,1,b,1\nb,x,1,c,1\na,x,1,b,1\na,x,1,b,2\n")
    assert read_log(path).num_gaps == 1


def test_a_preview_finds_columns_and_guesses_what_they_are(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(
        VISITS.replace("patient,when,state,action,reward,out", "patient_id,visited,Status,treatment,price,out")
    )
    found = inspect_log(path)
    assert found.log is None
    assert "no column 'state'" in found.problem
    facts = {column.name: column for column in found.columns}
    kinds = {"patient_id": "labels", "visited": "times", "Status": "labels", "treatment": "labels"}
    assert {name: column.kind for name, column in facts.items()} == kinds | {"price": "numbers", "out": "labels"}
    assert (facts["price"].missing, facts["Status"].missing, facts["treatment"].distinct) == (2, 1, 2)
    assert found.guess.columns == {"state": "Status", "action": "treatment", "reward": "price"}
    assert found.guess.settings == {"cost": True, "next_from": "patient_id,visited", "missing": "drop"}
    assert found.guess.options[-5:] == ["--cost", "--next-from", "patient_id,visited", "--missing", "drop"]
    path.write_text(path.read_text().replace(",out", ",closed_as", 1))
    assert inspect_log(path).guess.settings["outcome"] == "closed_as"
    settings = FitSettings(next_from="patient_id,visited", cost=True, missing="drop", normalise=True)
    read = inspect_log(path, columns=Columns(state="Status", action="treatment", reward="price"), settings=settings)
    assert read.problem is None
    assert read.facts["states"] == {"ok": 2.0, "ill": 1.0}
    assert read.facts["rows"] == 3


def test_facts_of_a_log_by_hand(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "state,action,reward,next_state,terminated\na,x,1,a,0\na,x,3,b,0\nb,x,-4,c,0\nc,y,0,b,0\nb,x,2,end,1\n"
    )
    facts = inspect_log(path).facts
    assert facts["states"] == {"a": 2.0, "b": 2.0, "c": 1.0}
    assert facts["actions"] == {"x": 4.0, "y": 1.0}
    assert (facts["pairs_tried"], facts["pairs_never_tried"], facts["tried_once"]) == (3, 3, 1)
    assert (facts["reward_lowest"], facts["reward_mean"], facts["reward_highest"]) == (-4.0, pytest.approx(0.4), 3.0)
    assert (facts["states_on_loops"], facts["pairs_with_several_successors"]) == (3, 2)
    assert facts["never_decided_in"] == ["end"]


def test_the_shipped_export_is_the_log_that_it_was_made_from():
    """A ticket's costs, times, slips and missing cells cleaned by the options of the README, against the clean log."""
    from cases import LOGS, SUPPORT

    clean = SUPPORT.simulate(seed=1)
    raw = RawRows.parse("ticket_id,time", outcome="closed_as", cost=True, missing="drop", normalise=True)
    columns = Columns(state="status", action="decision", reward="cost")
    log = read_log(LOGS / "tickets.csv", columns=columns, raw=raw)
    kept = pd.read_csv(LOGS / "tickets.csv")["cost"].notna().sum()
    assert log.num_rows == kept == len(clean) - 8
    whole = moves(read_log(clean))[0]
    lost = {key: whole[key] - number for key, number in ((k, moves(_folded(log))[0].get(k, 0.0)) for k in whole)}
    assert min(lost.values()) >= 0.0
    assert sum(lost.values()) == 8.0


def _folded(log):
    log.states = [label.lower() for label in log.states]
    return log


QUESTION = "SELECT state, action, reward::DOUBLE / 2 AS reward, 'b' AS next_state FROM log WHERE patient = 'a'"


def test_a_question_in_sql_makes_the_rows(visits):
    raw = RawRows(sql=QUESTION + " AND reward <> ''")
    for source in (visits, pd.read_csv(visits, dtype=str, keep_default_na=False)):
        log = read_log(source, raw=raw)
        assert moves(log)[0] == {("ok", "none", "b"): 1.0, ("ill", "drug", "b"): 1.0}
        assert sorted(log.reward_mean.tolist()) == [-1.5, -0.5]
        assert any("--sql" in note for note in log.notes)
    built = RawRows.parse("patient,when", sql="SELECT * FROM log WHERE patient = 'a'", missing="drop", cost=True)
    assert moves(read_log(visits, raw=built))[0] == {("ill", "drug", "ill"): 1.0}


@pytest.mark.parametrize(
    "question",
    [
        "SELECT * FROM read_csv('{path}')",
        "SELECT * FROM '{path}'",
        "SELECT * FROM glob('/*')",
        "COPY log TO '{folder}/out.csv'",
        "SELECT 1; SELECT 2",
        "DROP TABLE log",
        "SET lock_configuration = false",
        "ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "SELECT nothing FROM log",
        "SELEC",
        "",
    ],
)
def test_a_question_sees_the_log_alone(visits, question):
    question = question.format(path=visits, folder=visits.parent)
    with pytest.raises(LogError, match="--sql"):
        read_log(visits, raw=RawRows(sql=question))
    assert [path.name for path in visits.parent.iterdir()] == ["visits.csv"]


def test_a_column_that_a_file_has_not_is_missing_in_its_rows(tmp_path):
    (tmp_path / "1.csv").write_text("state,action,reward,next_state\na,x,1,b\n")
    (tmp_path / "2.csv").write_text("state,action,reward,after\na,x,1,b\n")
    with pytest.raises(LogError, match="row 2: next_state is empty"):
        read_log(tmp_path, raw=RawRows(sql="SELECT * FROM log"))
    (tmp_path / "2.csv").write_text("state,action,reward,next_state\na,x,1\n")
    with pytest.raises(LogError, match="1 rows have not as many cells"):
        read_log(tmp_path, raw=RawRows(sql="SELECT * FROM log"))
    (tmp_path / "2.csv").write_text("state,action,reward,next_state\na,x,3,b\n")
    assert read_log(tmp_path, raw=RawRows(sql="SELECT * FROM log")).count.tolist() == [2.0]
