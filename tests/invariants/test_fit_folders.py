"""The folder of a fit: the old answer or the new one whatever happens, no log counted twice, nothing mixed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import qposterior as qp
from damage import damaged, line_of
from qposterior import progress
from qposterior.cli.main import cli
from qposterior.logs import files
from qposterior.logs.files import load_fit, load_sums
from qposterior.storage import locked

FILES = {"fit.json", "rows.csv", "draws.npz", "sums.json", "index.html"}
HEADER = "state,action,reward,next_state\n"
FIRST = HEADER + "a,left,1,b\na,right,2,b\nb,left,0,end\nb,right,3,end\n"
SECOND = HEADER + "a,left,1,b\nb,right,3,end\n"
THIRD = HEADER + "b,left,0,end\n"


def write_logs(folder):
    for name, text in (("first", FIRST), ("second", SECOND), ("third", THIRD)):
        (folder / f"{name}.csv").write_text(text)


def run(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def fit(folder, log, *arguments):
    return run("fit", folder / f"{log}.csv", *arguments)


@pytest.fixture(scope="module")
def first_answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    write_logs(folder)
    result = fit(folder, "first", "--particles", 100, "--out", folder / "answer")
    assert result.exit_code == 0, result.output
    return folder / "answer"


@pytest.fixture
def answer(first_answer, tmp_path):
    write_logs(tmp_path)
    return shutil.copytree(first_answer, tmp_path / "answer", symlinks=True)


def rows_counted(folder):
    """Return the number of rows of the log that the answer knows of, after having found all files to agree on it."""
    rows = load_sums(folder).log.num_rows
    stored = json.loads((folder / "fit.json").read_text())
    assert stored["settings"]["rows_read"] == rows
    assert pd.read_csv(folder / "rows.csv")["count"].sum() == rows
    assert f"{rows} decisions" in (folder / "index.html").read_text()
    assert qp.Policy.load(folder).act("b") == stored["policy"]["b"] == "right"
    return rows


def assert_tidy(folder):
    assert {name for name in os.listdir(folder) if name != ".lock"} == FILES | {"current", "generations"}
    assert len(os.listdir(folder / "generations")) <= 2


def test_an_update_replaces_the_answer_and_keeps_the_names_at_the_top(answer, tmp_path):
    assert rows_counted(answer) == 4
    assert fit(tmp_path, "second", "--update", answer).exit_code == 0
    assert rows_counted(answer) == 6
    assert fit(tmp_path, "third", "--update", answer).exit_code == 0
    assert rows_counted(answer) == 7
    assert_tidy(answer)
    shutil.copytree(answer, tmp_path / "copy", symlinks=True)
    shutil.rmtree(answer)
    assert rows_counted(tmp_path / "copy") == 7


def test_a_log_that_has_gone_in_is_refused_under_any_name_unless_again(answer, tmp_path):
    shutil.copy(tmp_path / "first.csv", tmp_path / "other.csv")
    refused = fit(tmp_path, "other", "--update", answer)
    assert "has gone in already (as first.csv); pass --again" in str(refused.exception)
    assert rows_counted(answer) == 4
    assert fit(tmp_path, "second", "--update", answer).exit_code == 0
    assert "has gone in already" in str(fit(tmp_path, "second", "--update", answer).exception)
    assert fit(tmp_path, "second", "--update", answer, "--again").exit_code == 0
    assert rows_counted(answer) == 8
    assert [source["name"] for source in load_sums(answer).sources] == ["first.csv", "second.csv", "second.csv"]
    assert run("fit", tmp_path / "first.csv", "--again").exit_code == 2


def test_an_update_into_another_folder_replaces_a_fit_there_only_if_forced(answer, tmp_path):
    other = tmp_path / "other"
    assert fit(tmp_path, "third", "--particles", 100, "--out", other).exit_code == 0
    refused = fit(tmp_path, "second", "--update", answer, "--out", other)
    assert "holds a fit" in str(refused.exception)
    assert load_sums(other).log.num_rows == 1
    assert fit(tmp_path, "second", "--update", answer, "--out", other, "--force").exit_code == 0
    assert (rows_counted(answer), rows_counted(other)) == (4, 6)
    assert fit(tmp_path, "third", "--update", answer, "--out", tmp_path / "new").exit_code == 0
    assert rows_counted(tmp_path / "new") == 5
    assert fit(tmp_path, "third", "--update", answer, "--out", f"{answer}/../answer").exit_code == 0
    assert rows_counted(answer) == 5


def test_two_updates_at_once_are_one_update_and_one_line(answer, tmp_path):
    with locked(answer, "fit"):
        refused = fit(tmp_path, "second", "--update", answer)
    assert "another fit is writing to" in str(refused.exception)
    assert rows_counted(answer) == 4


def test_an_update_of_nothing_makes_no_folder_and_a_bad_log_leaves_none(tmp_path):
    write_logs(tmp_path)
    assert "holds no fit" in str(fit(tmp_path, "first", "--update", tmp_path / "nowhere").exception)
    (tmp_path / "bad.csv").write_text("state,action\n")
    assert fit(tmp_path, "bad", "--out", tmp_path / "nowhere").exit_code != 0
    assert not (tmp_path / "nowhere").exists()


def test_what_others_leave_in_the_folder_is_let_be_and_what_a_kill_left_is_removed(answer, tmp_path):
    (answer / ".DS_Store").write_text("theirs")
    (answer / "generations" / "Thumbs.db").write_text("theirs")
    (answer / ".current.abcd").symlink_to("generations/9")
    (answer / "generations" / "9").mkdir()
    assert fit(tmp_path, "second", "--update", answer).exit_code == 0
    assert rows_counted(answer) == 6
    assert sorted(os.listdir(answer / "generations")) == ["1", "2", "Thumbs.db"]
    assert {name for name in os.listdir(answer) if name.startswith(".")} == {".DS_Store", ".lock"}
    (answer / "thesis.txt").write_text("precious")
    assert "thesis.txt" in str(fit(tmp_path, "third", "--update", answer).exception)


def flatten(folder):
    """Turn a fit into what earlier versions wrote: plain files, without digests."""
    for name in FILES:
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).write_bytes(data)
    (folder / "current").unlink()
    shutil.rmtree(folder / "generations")
    (folder / ".lock").unlink()
    for name in ("fit.json", "sums.json"):
        record = json.loads((folder / name).read_text())
        kept = {key: value for key, value in record.items() if key not in ("sha256", "files", "sources")}
        (folder / name).write_text(json.dumps(kept))


def test_a_fit_of_an_earlier_version_is_read_and_updated(answer, tmp_path):
    flatten(answer)
    assert rows_counted(answer) == 4
    assert fit(tmp_path, "second", "--update", answer).exit_code == 0
    assert rows_counted(answer) == 6
    assert_tidy(answer)


def test_without_symbolic_links_the_files_stand_at_the_top_and_a_mixture_is_refused(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    write_logs(tmp_path)
    out = tmp_path / "answer"
    assert fit(tmp_path, "first", "--particles", 100, "--out", out).exit_code == 0
    assert rows_counted(out) == 4
    old = (out / "sums.json").read_bytes()
    assert fit(tmp_path, "second", "--update", out).exit_code == 0
    assert rows_counted(out) == 6
    assert set(os.listdir(out)) == FILES | {".lock"}
    (out / "sums.json").write_bytes(old)
    assert "changed or damaged" in line_of(load_sums, out)


def test_a_copy_whose_links_became_folders_is_read_but_not_written_to(answer, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(answer, copy)
    assert rows_counted(copy) == 4
    assert "can be read, not written to" in str(fit(tmp_path, "second", "--update", copy).exception)
    assert fit(tmp_path, "second", "--update", copy, "--out", tmp_path / "new").exit_code == 0
    assert rows_counted(tmp_path / "new") == 6
    (answer / "current").unlink()
    (answer / "current").symlink_to(copy / "current")  # somebody else's link
    assert "not written to" in str(fit(tmp_path, "second", "--update", answer).exception)


# -- kills -------------------------------------------------------------------------------------------------------------

KILLED_AT = """
import os, shutil, sys
from pathlib import Path
from types import SimpleNamespace

import qposterior as qp
from qposterior.logs.files import load_sums, save_fit
from qposterior.report.fit_report import write_fit_report

second, *earlier = map(Path, sys.argv[1:])
sums = load_sums(earlier[0])
found = qp.fit(second, before=sums.log, settings=sums.settings)
whole = found.to_dict()
page = write_fit_report(found, second.parent).read_text()
stored = SimpleNamespace(
    believed=found.believed, table=found.table, log=found.log, finest=found.finest, chosen=found.chosen, given={},
    to_dict=lambda: whole,
)
CHANGES = {"os.rename", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile"}
left = [10**9]

def count(event, arguments):
    if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)

sys.addaudithook(count)
for folder in earlier:
    for number in range(1, 1000):
        copy = folder.with_name(f"{folder.name}-{number}")
        shutil.copytree(folder, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            left[0] = number
            save_fit(stored, copy, sums.settings, page_fn=lambda where: (where / "index.html").write_text(page))
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    print(number)
"""


def test_a_kill_at_any_change_of_the_disk_leaves_the_old_answer_or_the_new_one(answer, tmp_path):
    flat, empty = shutil.copytree(answer, tmp_path / "flat", symlinks=True), tmp_path / "empty"
    flatten(flat)
    empty.mkdir()
    command = [sys.executable, "-c", KILLED_AT, *map(str, (tmp_path / "second.csv", answer, flat, empty))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found, settings = load_fit(answer), load_sums(answer).settings
    plain = found.to_dict()
    found.to_dict = lambda: plain  # slow to make, and the same every time
    for earlier, number, before in zip((answer, flat, empty), map(int, done.stdout.split()), (4, 4, 0), strict=True):
        assert number > 15
        folders = [earlier.with_name(f"{earlier.name}-{i}") for i in range(1, number + 1)]
        counted = [rows_counted(folder) if files.holds_fit(folder) else 0 for folder in folders]
        assert set(counted) == {before, 6}
        assert counted == sorted(counted)  # a single moment at which the new answer takes the place of the old one
        for folder, rows in zip(folders, counted, strict=True):  # and the next one works
            files.check_folder(folder, force=rows > 0)
            files.save_fit(found, folder, settings, page_fn=lambda where: (where / "index.html").write_text(""))
            assert load_sums(folder).log.num_rows == 4
            assert_tidy(folder)


def kill_updates(folder, number, seed=0):
    """Kill `number` updates at random moments; return after how many the new answer stood, having checked every one."""
    rng, took = random.Random(seed), 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    base = rows_counted(folder)
    longest = 0.0
    for i in range(-1, number):
        log = folder.parent / f"log-{seed}-{i}.csv"
        log.write_text(HEADER + f"a,left,1,b\nb,right,3,end\nb,left,{i * 0},end\n" + "a,right,2,b\n" * (i + 2))
        rows = i + 5
        command = [sys.executable, "-m", "qposterior", "fit", str(log), "--update", str(folder)]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        if i < 0:  # one that is left alone shows how long they take
            assert process.wait(timeout=300) == 0
            longest = time.monotonic() - started
        else:
            # Most of the time goes by before anything is written: aim at the end.
            time.sleep(longest * (0.75 + 0.3 * rng.random()))
            process.send_signal(signal.SIGKILL)
            process.wait()
        now = rows_counted(folder)
        assert now in (base, base + rows)
        took += now != base
        base = now
    return took


def test_killed_updates_leave_a_whole_answer_and_the_next_one_works(answer):
    kill_updates(answer, 2)
    log = answer.parent / "last.csv"
    log.write_text(HEADER + "a,left,1,b\n" * 20)
    before = rows_counted(answer)
    assert run("fit", log, "--update", answer).exit_code == 0
    assert rows_counted(answer) == before + 20
    assert_tidy(answer)


# -- damaged files -----------------------------------------------------------------------------------------------------


def test_damaged_files_of_a_fit_are_refused_or_unchanged(answer):
    generation = (answer / "current").resolve()
    whole = load_sums(answer)
    expected = files.log_to_dict(whole.log), whole.settings, whole.sources
    stored = json.loads((generation / "fit.json").read_text())
    draws = qp.Policy.load(answer)._draws.draws.tobytes()
    for name, number in (("fit.json", 60), ("sums.json", 40), ("draws.npz", 20)):
        data = (generation / name).read_bytes()
        for copy in damaged(data, number):
            (generation / name).write_bytes(copy)
            if line_of(load_sums, answer) is None:
                again = load_sums(answer)
                assert (files.log_to_dict(again.log), again.settings, again.sources) == expected
            if line_of(qp.Policy.load, answer) is None:
                policy = qp.Policy.load(answer)
                assert policy._draws.draws.tobytes() == draws
                assert policy._answer["policy"] == stored["policy"]
                assert policy._answer["rows"] == stored["rows"]
        (generation / name).write_bytes(data)


def nested(record, path, value):
    *parents, last = path
    for name in parents:
        record = record[name]
    record[last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["log"], [1, 2]),
        (["log", "states"], None),
        (["log", "pairs"], [[0, 0], [0, 1], [1, 0], [7, 1]]),
        (["log", "pairs"], [[0, 0], [0, -1], [1, 0], [1, 1]]),
        (["log", "moves"], [[0, 99]]),
        (["log", "count"], [1, 1, 1, -1]),
        (["log", "count"], [1, 1, 1]),
        (["log", "count"], [1, 1, 1, float("nan")]),
        (["log", "reward_mean"], [1, 1, 1, float("inf")]),
        (["log", "reward_mean"], "abc"),
        (["log", "move_count"], [1.0]),
        (["log", "move_reward"], [1.0]),
        (["log", "reward_third"], [1, 1, 1, float("inf")]),
        (["log", "reward_fourth"], [1, 1, 1, -1]),
        (["log", "ended"], {"a": 1}),
        (["log", "starts"], [[99, 1.0]]),
        (["log", "contexts"], [[0, 0, 99, 1.0]]),
        (["log", "contexts"], [[0, 0]]),
        (["log", "readings"], [[0, [1.0], [-1.0]]]),
        (["log", "num_rows"], "many"),
        (["log", "num_rows"], 10**400),
        (["settings"], []),
        (["settings", "prior"], {"name": "none"}),
        (["settings", "prior"], {"name": "reward"}),
        (["settings", "noise"], {"colour": 1}),
        (["settings", "discount"], 7),
        (["settings", "particles"], -1),
        (["sources"], 3),
        (["sources"], [{"name": "x"}]),
    ],
)
def test_sums_that_cannot_be_are_refused(answer, path, value):
    flatten(answer)  # without a digest that would tell
    record = json.loads((answer / "sums.json").read_text())
    nested(record, path, value)
    (answer / "sums.json").write_text(json.dumps(record))
    assert "cannot read the sums of a fit" in line_of(load_sums, answer)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["labels"], []),
        (["labels", "states"], ["a"]),
        (["labels", "actions"], None),
        (["policy"], 3),
        (["policy"], {"nowhere": "left"}),
        (["format"], "else"),
        (["files"], []),
        (["files"], {"draws.npz": "x"}),
    ],
)
def test_answers_that_cannot_be_are_refused(answer, path, value):
    flatten(answer)
    record = json.loads((answer / "fit.json").read_text())
    nested(record, path, value)
    (answer / "fit.json").write_text(json.dumps(record))
    assert "cannot read a fit" in line_of(qp.Policy.load, answer)


# -- what the command line says ----------------------------------------------------------------------------------------


def test_labels_that_a_spreadsheet_would_run_are_text_and_numbers_stay_numbers(tmp_path):
    labels = ["=1+1", "+cmd", "-2+3", "@sum", "\tx", "-1", "+1.5e3", "plain", "a=b", "'quoted"]
    table = pd.DataFrame({"state": labels, "action": labels[::-1], "mean": [-1.5] * len(labels)})
    safe = ["'=1+1", "'+cmd", "'-2+3", "'@sum", "'\tx", "-1", "+1.5e3", "plain", "a=b", "'quoted"]
    path = tmp_path / "rows.csv"
    path.write_text(files.spreadsheet(table))
    again = pd.read_csv(path, dtype=str)
    assert (again["state"].tolist(), again["action"].tolist()) == (safe, safe[::-1])
    assert set(again["mean"]) == {"-1.5"}
    log = tmp_path / "log.csv"
    log.write_text(HEADER + '"=cmd|1",go,1,end\n"=cmd|1",-stay,0,end\n')
    assert run("fit", log, "--particles", 100, "--out", tmp_path / "answer").exit_code == 0
    rows = pd.read_csv(tmp_path / "answer" / "rows.csv")
    assert set(rows["state"]) == {"'=cmd|1"}
    assert set(rows["action"]) == {"go", "'-stay"}
    assert qp.Policy.load(tmp_path / "answer").act("=cmd|1") == "go"  # the label of the log


def test_json_that_could_not_be_written_is_refused_before_the_work(tmp_path):
    write_logs(tmp_path)
    for target, words in ((tmp_path / "no" / "x.json", "no directory"), (tmp_path, "is a directory")):
        refused = fit(tmp_path, "first", "--json", target, "--out", tmp_path / "answer", "--force")
        assert refused.exit_code == 2
        assert words in refused.output
    assert not (tmp_path / "answer").exists()


def test_a_line_says_now_and_then_how_far_it_is_where_there_is_no_terminal(tmp_path, monkeypatch):
    from qposterior.logs import fit as module

    whole = module.fit

    def slow(*arguments, progress_fn, **options):
        time.sleep(0.1)
        progress_fn(3, 10)
        time.sleep(0.1)
        return whole(*arguments, progress_fn=None, **options)

    write_logs(tmp_path)
    monkeypatch.setattr(module, "fit", slow)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    result = fit(tmp_path, "first", "--particles", 100)
    assert result.exit_code == 0
    assert set(result.stderr.splitlines()) == {
        "qposterior: reading the log",
        "qposterior: drawing models and solving them: 30%",
    }
    monkeypatch.setattr(progress, "EVERY", 30.0)
    assert fit(tmp_path, "first", "--particles", 100).stderr == ""


def test_report_writes_the_page_of_a_fit_again(answer):
    page = Path(answer / "index.html")
    text = page.read_text()
    page.unlink()
    (answer / "current" / "index.html").unlink()
    result = run("report", answer)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(page)
    assert page.read_text() == text
    assert_tidy(answer)


def test_a_workbook_has_the_numbers_and_no_label_is_a_formula(tmp_path):
    from openpyxl import load_workbook

    from qposterior.report.fit_workbook import write_fit_workbook

    evil, link = '=HYPERLINK("http://x","y")', "http://example.org"
    rng = np.random.default_rng(3)
    rows = [
        (evil, action, float(rng.normal(mean)), link) for action, mean in (("+1+1", 0.0), ("-2", 1.0)) for _ in range(9)
    ]
    fit = qp.fit(pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"]), particles=400)
    path = write_fit_workbook(fit, tmp_path / "answer.xlsx")
    again = write_fit_workbook(fit, tmp_path / "again.xlsx")
    assert path.read_bytes() == again.read_bytes()
    book = load_workbook(path)
    assert book.sheetnames == ["policies", "actions", "try next", "assumptions"]
    cells = list(book["actions"].iter_rows(min_row=2))
    assert [row[0].value for row in cells] == [evil, evil]
    assert {cell.data_type for row in cells for cell in row} <= {"s", "n"}  # text and numbers, no formula
    assert not any(cell.hyperlink for row in cells for cell in row)
    table = fit.table
    assert [row[3].value for row in cells] == pytest.approx(table["mean"].tolist())
    assert [row[6].value for row in cells] == pytest.approx(table["prob_optimal"].tolist())
    [done] = [row[1].value for row in cells if row[-1].value == "yes"]
    assert done == fit.policy[evil]
    values = {row[0].value: row[1].value for row in book["policies"].iter_rows(min_row=2)}
    assert values["gain over logged"] == pytest.approx(fit.policies.gain.mean())


def test_a_workbook_is_refused_before_the_work_where_it_cannot_be_written(tmp_path, monkeypatch):

    log = tmp_path / "log.csv"
    log.write_text("state,action,reward,next_state\na,x,1,b\na,y,2,b\n")
    (tmp_path / "there.xlsx").write_text("mine")
    for target, words in (
        (tmp_path / "there.xlsx", "choose another --xlsx file"),
        (tmp_path / "no" / "a.xlsx", "no directory"),
    ):
        result = CliRunner().invoke(cli, ["fit", str(log), "--xlsx", str(target)])
        assert result.exit_code == 2
        assert words in result.output
    assert (tmp_path / "there.xlsx").read_text() == "mine"
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(qp.MissingExtraError, match=r'pip install "qposterior\[xlsx\]"'):
        CliRunner().invoke(cli, ["fit", str(log), "--xlsx", str(tmp_path / "a.xlsx")], catch_exceptions=False)


def test_notebooks_show_the_verdict_and_no_label_as_markup():
    evil = "<script>alert(1)</script>"
    rows = [
        (evil, action, reward, "end")
        for action, reward in (("x", 1.0), ("y", 2.0), ("y", 2.5), ("x", 0.8))
        for _ in range(5)
    ]
    fit = qp.fit(pd.DataFrame(rows, columns=["state", "action", "reward", "next_state"]), particles=400)
    shown = fit._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "policy" in shown
    post = qp.posterior(qp.Experience.of_pairs(qp.make_environment("deep-sea", depth=3), [(0, 0)]), method="exact")
    assert f"{post.prob_optimal(0)[0]:.3f}" in post._repr_html_()
