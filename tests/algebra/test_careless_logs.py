"""What real exports get wrong, and what is said of it: records that only stop, rows between rows, stand-ins, copies."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from qposterior.logs.columns import Columns, LogError
from qposterior.logs.files import Policy, log_from_dict, log_to_dict, save_fit
from qposterior.logs.preview import inspect_log
from qposterior.logs.raw import END, RawRows
from qposterior.logs.read import read_log
from qposterior.logs.settings import FitSettings

TWO = "who,when,state,action,reward\nx,1,a,go,1\nx,2,b,go,2\ny,1,b,go,3\ny,2,a,go,4\n"


@pytest.fixture
def write(tmp_path):
    def to(text, name="log.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return to


def raw(**options):
    return RawRows.parse("who,when", **options)


def test_records_that_only_stop_may_be_said_to_and_a_guess_is_flagged(write):
    path = write(TWO)
    guessed, ends, stops = (read_log(path, raw=raw(ends=ends)) for ends in (None, "last", "none"))
    assert (guessed.guessed_ends, ends.guessed_ends, stops.guessed_ends) == (2, 0, 0)
    assert guessed.num_rows == ends.num_rows == 4
    assert END in ends.states
    assert stops.num_rows == 2  # of the last row of each nobody knows what came next
    assert END not in stops.states
    assert log_from_dict(log_to_dict(guessed)).guessed_ends == 2
    settings = {"next_from": "who,when", "discount": 0.9, "particles": 100}
    flagged = [check for check in qp.fit(path, **settings).checks if check.name == "records"]
    assert [check.fits for check in flagged] == [False]
    assert "--ends none" in flagged[0].note
    for told in ("last", "none"):
        assert not [check for check in qp.fit(path, ends=told, **settings).checks if check.name == "records"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ends": "last"}, "next_from"),
        ({"ends": "last", "next_from": "who", "outcome": "end"}, "no outcome"),
        ({"ends": "first", "next_from": "who"}, "last"),
    ],
)
def test_ends_that_are_told_otherwise_are_not_told_twice(options, match):
    with pytest.raises(qp.InvalidInputError, match=match):
        FitSettings(**options)


def test_ends_are_not_told_beside_a_column_that_says_them(write):
    path = write("who,when,state,action,reward,terminated\nx,1,a,go,1,0\nx,2,b,go,1,1\n")
    with pytest.raises(LogError, match="leave --ends out"):
        read_log(path, raw=raw(ends="none"))


def test_rows_of_others_between_those_of_an_episode_are_counted(write):
    rows = ["x,a,b", "y,a,b", "x,b,a", "y,b,a", "x,a,b"]
    text = "episode,state,next_state,action,reward\n" + "".join(f"{row},go,1\n" for row in rows)
    mixed = read_log(write(text))
    assert (mixed.num_returns, mixed.num_episodes) == (3, 5)
    header, *lines = text.splitlines()
    ordered = read_log(write("\n".join([header, *sorted(lines, key=lambda line: line[0])]) + "\n"))
    assert (ordered.num_returns, ordered.num_episodes) == (0, 2)
    notes = qp.fit(write(text), discount=0.9, particles=100).chosen.notes
    assert any("3 rows go on with an episode after rows of others" in note for note in notes)
    write(text, "again.csv")
    assert read_log(write(text).parent).num_returns == 6  # names of episodes are those of a file


def test_outcomes_before_the_last_row_and_copies_are_said(write):
    rows = "x,2,b,go,1,\nx,1,a,go,1,home\nx,1,a,go,1,home\nx,1,a,go,5,\ny,1,a,go,1,home\n"
    path = write("who,when,state,action,reward,out\n" + rows)
    notes = " ".join(read_log(path, raw=raw(outcome="out")).notes)
    assert "2 rows have an outcome and are not the last" in notes
    assert "2 rows have the same 'when'" in notes
    assert "1 are copies in all that is read" in notes


def test_cells_that_are_said_to_say_nothing_are_missing(write):
    path = write("state,action,reward,next_state\na,go,1,b\n?,go,2,b\nb, N.B. ,3,a\nb,go,it's,a\nb,go,4,-\n")
    log = read_log(path, raw=RawRows.parse(None, missing="drop", na="?, n.b.,it's,-"))
    assert (log.num_rows, sorted(log.states), log.actions) == (1, ["a", "b"], ["go"])
    assert "4 of 5 rows were left out" in " ".join(log.notes)
    with pytest.raises(LogError, match="cells are missing"):
        read_log(path, raw=RawRows.parse(None, na="?"))


def test_labels_that_look_like_missing_cells_are_pointed_out(write):
    path = write("state,action,reward,next_state\na,go,1,b\n?,go,2,b\nb,Unknown,3,a\n")
    notes = qp.fit(path, discount=0.9, particles=100).chosen.notes
    assert any("--na '?'" in note for note in notes)
    assert any("--na Unknown" in note for note in notes)


@pytest.mark.parametrize(
    ("cell", "remedy"),
    [("1,5", r"--sql 'SELECT \* REPLACE \(replace\(\"cost\""), ("-", "--na -"), ("much", r"1e3\)$")],
)
def test_numbers_for_people_name_the_remedy(write, cell, remedy):
    path = write(f"state;action;cost;next_state\na;go;{cell};b\n")
    with pytest.raises(LogError, match=remedy):
        read_log(path, columns=Columns(reward="cost"))


def test_the_remedies_of_decimal_commas_and_other_dates_work(write):
    path = write("who;when;state;action;reward\nx;13.02.2026 08:00;a;go;1,5\nx;02.03.2026 07:00;b;go;2,5\n")
    with pytest.raises(LogError, match=r"strptime\(\"when\"") as caught:
        read_log(path, raw=raw())
    assert "%d.%m.%Y %H:%M" in str(caught.value)
    sql = """SELECT * REPLACE (replace("reward", $$,$$, $$.$$) AS "reward",
             strptime("when", $$%d.%m.%Y %H:%M$$) AS "when") FROM log"""
    log = read_log(path, raw=RawRows.parse("who,when", ends="last", sql=sql))
    np.testing.assert_array_equal(log.reward_mean, [1.5, 2.5])
    assert [log.states[s] for s in log.pairs[:, 0]] == ["a", "b"]


def test_a_file_with_a_column_more_is_asked_with_the_others_and_shown_with_them(write):
    write("state,action,reward,next_state\na,go,1,b\n", "1.csv")
    folder = write("state,action,remark,reward,next_state\nc,stay,odd,2,a\n", "2.csv").parent
    log = read_log(folder, raw=RawRows(sql="SELECT * FROM log WHERE remark IS NULL OR remark = 'odd'"))
    assert log.num_rows == 2
    facts = {column.name: column for column in inspect_log(folder).columns}
    assert facts["state"].distinct == 2
    assert facts["remark"].missing == 1


def test_a_guess_keeps_what_was_said(write):
    path = write(
        "Patient ID;Timestamp;Severity;Treatment;Cost EUR\n7;2026-01-01;ill;drug;3\n7;2026-01-02;well;none;1\n"
    )
    guess = inspect_log(path).guess
    assert guess.columns == {"state": "Severity", "action": "Treatment", "reward": "Cost EUR"}
    assert guess.settings["next_from"] == "Patient ID,Timestamp"
    assert guess.settings["cost"] is True
    said = inspect_log(
        path, columns=Columns(action="Cost EUR", reward="Treatment"), settings=FitSettings(next_from="Timestamp")
    ).guess
    assert (said.columns["action"], said.settings["next_from"]) == ("Cost EUR", "Timestamp")


def test_another_separator_is_named(write):
    with pytest.raises(LogError, match="only one column was found: cells are separated by commas"):
        read_log(write("state|action|reward|next_state\na|go|1|b\n"))


def test_case_does_not_matter_to_a_policy_that_is_asked(write, tmp_path):
    rows = "Ill,go,1,Ill\nIll,stay,0,Ill\nWell,go,1,Ill\nwell,go,2,Ill\n"
    path = write("state,action,reward,next_state\n" + rows * 5)
    settings = FitSettings(discount=0.9)
    save_fit(qp.fit(path, settings=settings), tmp_path / "answer", settings)
    policy = Policy.load(tmp_path / "answer")
    assert policy.act(" ill") == policy.act("Ill")
    assert policy.act("Well") == "go"
    with pytest.raises(qp.InvalidInputError, match="unknown state"):
        policy.act("WELL")  # two states are spelt alike


def test_months_are_times_and_other_dates_name_their_format(write):
    months = write("who,month,state,action,reward\nx,2026-02,b,go,2\nx,2025-12,a,go,1\nx,2026-03,a,go,5\n")
    log = read_log(months, raw=RawRows.parse("who,month", ends="none"))
    assert [log.states[s] for s in log.pairs[:, 0]] == ["a", "b"]
    assert [log.states[t] for t in log.moves[:, 1]] == ["b", "a"]
    for cell, form in (
        ("13.02.2026", "%d.%m.%Y$$"),
        ("13/02/2026 08:00:10", "%d/%m/%Y %H:%M:%S$$"),
        ("May", "the format"),
    ):
        path = write(f"who,when,state,action,reward\nx,{cell},a,go,1\nx,{cell},b,go,1\n")
        with pytest.raises(LogError) as caught:
            read_log(path, raw=raw())
        assert form in str(caught.value)
        assert "--sql 'SELECT * REPLACE" in str(caught.value)
        with pytest.raises(LogError, match="in the REPLACE of --sql"):
            read_log(path, raw=RawRows.parse("who,when", sql="SELECT * FROM log"))


def test_a_discount_that_was_told_is_said(write):
    path = write("state,action,reward,next_state\na,go,1,b\nb,go,2,a\n")
    assert any("counts 0.9 times" in note for note in qp.fit(path, discount=0.9, particles=100).chosen.notes)
