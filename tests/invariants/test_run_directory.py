"""The folder of `explore`: interrupted, killed and resumed it ends as if nothing had happened; damage is named."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import qposterior as qp
from damage import damaged, line_of
from qposterior import progress, versions
from qposterior.cli import explore as module
from qposterior.cli.main import cli
from qposterior.experiments.explore import make_world
from qposterior.experiments.run_directory import RunDirectory
from qposterior.storage import locked

COMMAND = ["explore", "deep-sea", "--agent", "r-max", "--depth", "5", "--episodes", "6", "--seeds", "2"]


def run(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def contents(folder):
    """Every file that must repeat, without the seconds."""
    with gzip.open(folder / "transitions.csv.gz", "rt") as stream:
        found = {"transitions": stream.read()}
    for name in ("episodes.csv", "trace.csv"):
        if (folder / name).exists():
            with (folder / name).open() as stream:
                rows = list(csv.DictReader(stream))
            found[name] = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
    summary = json.loads((folder / "summary.json").read_text())
    found["summary"] = [{k: v for k, v in row.items() if k != "seconds"} for row in summary]
    found["raw"] = (folder / "transitions.csv.gz").read_bytes()
    if (folder / "beliefs.csv").exists():
        found["beliefs"] = (folder / "beliefs.csv").read_bytes()
    found["settings"] = (folder / "settings.json").read_bytes()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    result = run(*COMMAND, "--out", out)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def without_page(monkeypatch):
    """Pictures take a second each and are drawn from the rows."""
    monkeypatch.setattr(module, "_draw", lambda *_: None)


KILLED_AT = """
import json, os, shutil, sys
from pathlib import Path
from click.testing import CliRunner
from qposterior.cli import explore
from qposterior.cli.main import cli

explore._draw = lambda *_: None
whole, jobs = json.loads(sys.argv[1])
assert CliRunner().invoke(cli, whole).exit_code == 0  # imports what there is to import
CHANGES = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"}
left = [10**9]

def count(event, arguments):
    writes = event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in CHANGES or writes:
        left[0] -= 1
        if left[0] == 0:
            os._exit(9)

sys.addaudithook(count)
for folder, command in jobs:
    for number in range(1, 1000):
        out = f"{folder}-{number}"
        if os.path.exists(folder):
            shutil.copytree(folder, out)
        child = os.fork()
        if child == 0:
            left[0] = number
            os._exit(CliRunner().invoke(cli, [*command, "--out", out]).exit_code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 9:
            break
    print(number, code)
"""


def test_a_run_that_is_killed_at_any_change_of_the_disk_is_resumed_to_the_same_files(whole, tmp_path, without_page):
    none, other, part = tmp_path / "none", tmp_path / "other", tmp_path / "part"
    assert run("explore", "deep-sea", "--agent", "random", "--depth", 4, "--episodes", 3, "--out", other).exit_code == 0
    assert run(*COMMAND[:-1], 1, "--out", part).exit_code == 0
    jobs = [(str(none), COMMAND), (str(other), [*COMMAND, "--force"]), (str(part), [*COMMAND, "--resume"])]
    command = [sys.executable, "-c", KILLED_AT, json.dumps([COMMAND, jobs])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    expected = contents(whole)
    for folder, line in zip((none, other, part), done.stdout.splitlines(), strict=True):
        number, code = map(int, line.split())
        assert code == 0
        assert number > 15
        for i in range(1, number + 1):
            out = folder.with_name(f"{folder.name}-{i}")
            resumed = run(*COMMAND, "--out", out, "--resume")
            if resumed.exit_code != 0:  # what was there before still is, whole
                assert folder == other
                assert "give the same settings" in str(resumed.exception)
                assert run(*COMMAND, "--out", out, "--force").exit_code == 0
            assert contents(out) == expected
            assert not [name for name in os.listdir(out) if name.startswith(".") and name != ".lock"]


def test_a_finished_run_is_resumed_without_running_and_may_get_more_seeds(whole, tmp_path, monkeypatch, without_page):
    from qposterior.experiments import explore as runner

    out = shutil.copytree(whole, tmp_path / "run")
    shorter = tmp_path / "shorter"
    assert run(*COMMAND[:-1], 1, "--out", shorter).exit_code == 0
    assert run(*COMMAND, "--out", shorter, "--resume").exit_code == 0
    assert contents(shorter) == contents(whole)
    monkeypatch.setattr(runner, "explore", lambda *_args, **_options: pytest.fail("ran again"))
    result = run(*COMMAND, "--out", out, "--resume", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((whole / "summary.json").read_text())
    assert contents(out) == contents(whole)


def test_a_run_with_other_settings_or_of_an_earlier_version_is_not_gone_on_with(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    for changes, words in (
        (["--depth", 6], "depth=5, not 6"),
        (["--episodes", 9], "episodes=6, not 9"),
        (["--agent", "random"], "agent_name='r-max', not 'random'"),
        (["--env-option", "variant=bsuite"], "env_option={}, not"),
        (["--seeds", 1], "2 finished seeds"),
        (["--seed", 1], "seed=0, not 1"),
    ):
        assert words in str(run(*COMMAND, *changes, "--out", out, "--resume").exception)
    assert contents(out) == contents(whole)
    assert run(*COMMAND, "--out", out, "--resume", "--force").exit_code == 2
    assert run(*COMMAND, "--resume").exit_code == 2
    (out / "progress.json").unlink()
    assert "earlier version" in str(run(*COMMAND, "--out", out, "--resume").exception)
    page = (out / "index.html").read_text()
    (out / "index.html").unlink()
    assert run("report", out).exit_code == 0  # it can be reported on
    assert (out / "index.html").read_text() == page


def test_a_folder_in_use_is_neither_replaced_nor_gone_on_with(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    for option in ("--force", "--resume"):
        with locked(out, "run"):
            refused = run(*COMMAND, "--out", out, option)
        assert "another run is writing to" in str(refused.exception)
    assert contents(out) == contents(whole)
    (out / ".DS_Store").write_text("theirs")
    assert run(*COMMAND[:-1], 1, "--out", out, "--force").exit_code == 0
    assert (out / ".DS_Store").exists()
    (out / "thesis.txt").write_text("precious")
    for option in ("--force", "--resume"):
        assert "thesis.txt" in str(run(*COMMAND, "--out", out, option).exception)


def test_the_posterior_of_a_sampling_agent_is_resumed_too(tmp_path, without_page):
    command = ["explore", "deep-sea", "--agent", "abrl", "--depth", "3", "--episodes", "4"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(*command, "--seeds", 3, "--out", one).exit_code == 0
    assert run(*command, "--seeds", 1, "--out", two).exit_code == 0
    with (two / "trace.csv").open("a") as stream:
        stream.write("1,1,half a row")
    assert run(*command, "--seeds", 3, "--out", two, "--resume").exit_code == 0
    assert "beliefs" in contents(one)
    assert contents(two) == contents(one)


def start(*arguments):
    # A shell's background jobs ignore Ctrl-C, and so would their children: put the default back, then become it.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", heed, sys.executable, "-m", "qposterior", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_seed(folder, process, number=1):
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        path = folder / "summary.json"
        if path.exists() and len(json.loads(path.read_text())) >= number:
            return
        time.sleep(0.02)
    pytest.fail("waited too long")


LONG = ["explore", "deep-sea", "--agent", "psrl-deterministic", "--depth", "12", "--episodes", "400", "--seeds", "3"]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_from_outside_is_resumed_to_the_same_files(tmp_path, sent, code, without_page):
    out = tmp_path / "run"
    process = start(*LONG, "--out", out)
    wait_for_seed(out, process)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    seeds = [row["seed"] for row in json.loads((out / "summary.json").read_text())]
    assert seeds in ([0], [0, 1], [0, 1, 2])
    if sent == signal.SIGTERM:
        assert stderr.strip() == "qposterior: terminated"
        assert (out / "regret.png").exists()
    with gzip.open(out / "transitions.csv.gz", "rt") as stream:
        assert len(list(csv.DictReader(stream))) >= 400 * 11
    assert run(*LONG, "--out", out, "--resume").exit_code == 0
    assert run(*LONG, "--out", tmp_path / "whole").exit_code == 0
    assert contents(out) == contents(tmp_path / "whole")


# -- damaged files -----------------------------------------------------------------------------------------------------


def test_a_damaged_run_is_named_by_report_and_run_again_by_resume(whole, tmp_path, caplog, without_page):
    def rows_of(folder):
        opened = RunDirectory.open(folder)
        return [opened.settings, *(found.rows for found in opened.runs(world))]

    world = make_world(qp.make_environment("deep-sea", depth=5))
    expected, before = rows_of(shutil.copytree(whole, tmp_path / "first")), contents(whole)
    refused, number = 0, 0
    for name, times in (("episodes.csv", 30), ("transitions.csv.gz", 30), ("progress.json", 30), ("settings.json", 20)):
        for copy in damaged((whole / name).read_bytes(), times):
            number += 1
            out = shutil.copytree(whole, tmp_path / str(number))
            (out / name).write_bytes(copy)
            words = line_of(rows_of, out)
            refused += words is not None
            if words is None:
                assert rows_of(out) == expected
            shutil.rmtree(out)
            if number % 5 == 0:
                out = shutil.copytree(whole, tmp_path / f"again-{number}")
                (out / name).write_bytes(copy)
                result = run(*COMMAND, "--out", out, "--resume")
                if result.exit_code == 0:
                    assert contents(out) == before
                else:
                    assert isinstance(result.exception, qp.QPosteriorError)
    assert refused > 90


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("progress.json", '{"seeds": 3}'),
        ("progress.json", '{"seeds": [{"summary": [], "is_finished": true, "files": {}}]}'),
        ("progress.json", "[]"),
        ("settings.json", '{"settings": 3, "versions": {}}'),
        ("settings.json", '{"settings": {}, "versions": {}}'),
        ("settings.json", '{"settings": {"environment": ["x"], "env_option": 3}, "versions": {}}'),
        ("settings.json", "null"),
    ],
)
def test_records_that_cannot_be_are_one_line(whole, tmp_path, name, text):
    out = shutil.copytree(whole, tmp_path / "run")
    (out / name).write_text(text)
    result = run("report", out)
    assert isinstance(result.exception, qp.InvalidInputError)
    assert name in str(result.exception)
    assert len(str(result.exception).splitlines()) == 1


def test_report_writes_the_page_of_a_run_again_and_leaves_out_what_a_kill_left(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    page = (out / "index.html").read_text()
    (out / "index.html").unlink()
    with (out / "episodes.csv").open("a") as stream:
        stream.write("r-max,deep-sea,5,3,1,0.5")
    result = run("report", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out / "index.html")
    assert (out / "index.html").read_text() == page


# -- small things ------------------------------------------------------------------------------------------------------


def test_a_line_says_now_and_then_how_far_it_is_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.01)
    long = ["--agent", "random", "--depth", 12, "--seeds", 1, "--episodes", 600]
    lines = run("explore", "deep-sea", *long).stderr.splitlines()
    assert lines
    assert all(line.startswith("qposterior: ") for line in lines)
    assert "seed 0  episode" in lines[-1]


def test_the_commit_is_that_of_the_package_not_of_a_repository_around_it(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    def commit():
        versions._commit.cache_clear()
        return versions._commit(package)

    package = tmp_path / ".venv" / "lib" / "versions.py"
    package.parent.mkdir(parents=True)
    package.write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "qposterior"\n')
    assert commit() is None
    git("init")
    git("add", "pyproject.toml")
    git("commit", "-m", "theirs")
    assert commit() is None  # below somebody's repository, but not in it
    git("add", "--force", ".venv")
    git("commit", "-m", "all of it")
    assert len(commit()) >= 7
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "theirs"\n')
    assert commit() is None  # a copy in a project of theirs
    versions._commit.cache_clear()
