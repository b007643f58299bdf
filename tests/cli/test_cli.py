"""The command line, as a user meets it: real processes, real exit codes."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import qposterior as qp

ENVIRONMENT = os.environ | {"PYTHONWARNINGS": "default"}


def call(*arguments, **options):
    command = [sys.executable, "-m", "qposterior", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False, **options)


FIELDS = [
    "seed",
    "episodes",
    "found_episode",
    "learning_time",
    "cumulative_regret",
    "posterior_updates",
    "seconds",
]


def test_explore_prints_one_object_per_seed():
    answer = call("explore", "deep-sea", "--agent", "r-max", "--depth", 10, "--seeds", 3, "--seed", 4, "--json", "-")
    assert answer.returncode == 0
    assert answer.stderr == ""
    rows = json.loads(answer.stdout)
    assert [row["seed"] for row in rows] == [4, 5, 6]
    assert all(list(row) == FIELDS for row in rows)
    assert all(30 <= row["learning_time"] <= 36 for row in rows)


def test_priors_and_particles_reach_the_agent():
    arguments = ["explore", "deep-sea", "--agent", "abrl", "--depth", 4, "--episodes", 20, "--json", "-"]
    priors = ("gaussian:scale=4", "gaussian:scale=4.0,mean=0", "gaussian:scale=1", "bounded:upper=2", "reward:scale=4")
    answers = [call(*arguments, "--prior", prior, "--particles", 10) for prior in priors]
    rows = [json.loads(answer.stdout)[0]["cumulative_regret"] for answer in answers]
    assert rows[0] == rows[1]
    assert len(set(rows)) > 1


def test_an_unlearned_run_says_null():
    answer = call("explore", "deep-sea", "--agent", "random", "--depth", 12, "--episodes", 5, "--json", "-")
    row = json.loads(answer.stdout)[0]
    assert row["learning_time"] is None
    assert row["found_episode"] is None


def test_until_learned_ends_a_seed_early():
    answer = call("explore", "deep-sea", "--agent", "r-max", "--depth", 8, "--until", "learned", "--json", "-")
    row = json.loads(answer.stdout)[0]
    assert row["episodes"] == row["learning_time"] < 40


def read_everything(folder):
    """Every byte that must repeat: all but the seconds."""
    with gzip.open(folder / "transitions.csv.gz", "rt") as stream:
        transitions = stream.read()
    with (folder / "episodes.csv").open() as stream:
        episodes = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(stream)]
    summary = [
        {k: v for k, v in row.items() if k != "seconds"} for row in json.loads((folder / "summary.json").read_text())
    ]
    picture = (folder / "regret.png").read_bytes()
    return transitions, episodes, summary, picture


def test_the_run_directory_holds_everything_and_repeats_byte_by_byte(tmp_path):
    arguments = ["explore", "deep-sea", "--agent", "psrl-deterministic", "--depth", 6, "--seeds", 2, "--episodes", 30]
    for name, threads in (("one", "1"), ("two", "2")):
        answer = subprocess.run(
            [sys.executable, "-m", "qposterior", *map(str, arguments), "--out", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=True,
            env=ENVIRONMENT
            | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads},
        )
        assert answer.stdout.strip().splitlines()[-1] == str(tmp_path / name)
    one, two = read_everything(tmp_path / "one"), read_everything(tmp_path / "two")
    assert one == two
    settings = json.loads((tmp_path / "one" / "settings.json").read_text())
    assert settings["settings"]["depth"] == 6
    assert "numpy" in settings["versions"]
    transitions = list(csv.DictReader(one[0].splitlines()))
    assert len(transitions) == 2 * 30 * 5
    assert list(transitions[0]) == ["seed", "episode", "step", "state", "action", "reward", "next_state", "terminated"]
    assert {row["seed"] for row in transitions} == {"0", "1"}
    assert (tmp_path / "one" / "regret.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("agent", ["abrl", "abrl-paper"])
def test_the_report_shows_regret_trace_cells_and_map(tmp_path, agent):
    out = tmp_path / "run"
    call("explore", "deep-sea", "--agent", agent, "--depth", 4, "--episodes", 8, "--seeds", 2, "--out", str(out))
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page.replace("http-equiv", "")  # opens without a network
    for name in ("regret.png", "trace.png", "cells.png", "map.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    with (out / "trace.csv").open() as stream:
        trace = list(csv.DictReader(stream))
    assert {row["seed"] for row in trace} == {"0", "1"}
    assert all(float(row["ess_before"]) <= 20.0 + 1e-9 for row in trace)
    assert any(float(row["tolerance"]) > 0.0 for row in trace) == (agent == "abrl-paper")
    with (out / "beliefs.csv").open() as stream:
        beliefs = list(csv.DictReader(stream))
    assert len(beliefs) == 2 * 8 * 12  # seeds, episodes, pairs
    last = [row for row in beliefs if row["seed"] == "1" and row["episode"] == "8" and row["state"] == "0"]
    np.testing.assert_allclose(sum(float(row["prob_optimal"]) for row in last), 1.0)
    # A second run with --force replaces the whole report.
    call("explore", "deep-sea", "--agent", "random", "--depth", 4, "--episodes", 2, "--out", str(out), "--force")
    assert not (out / "trace.csv").exists()
    assert (out / "index.html").read_text().count("data:image/png;base64,") == 1


def test_labels_in_the_report_are_escaped(tmp_path):
    from qposterior.experiments.explore import explore, make_world
    from qposterior.experiments.run_directory import RunDirectory
    from qposterior.report.explore_report import write_explore_report

    world = make_world(qp.make_environment("deep-sea", depth=3))
    world.name = "<script>alert(1)</script>"
    run = explore(qp.make_agent("random", world.mdp, horizon=2), world, episodes=2)
    folder = RunDirectory(tmp_path / "run", settings={})
    folder.add(run)
    write_explore_report(folder.path, [run], world)
    assert "<script>" not in (folder.path / "index.html").read_text()


def test_an_existing_directory_is_refused_unless_forced_and_foreign_files_are_never_removed(tmp_path):
    out = tmp_path / "run"
    arguments = ["explore", "deep-sea", "--depth", 4, "--episodes", 3, "--out", out]
    assert call(*arguments).returncode == 0
    again = call(*arguments)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert call(*arguments, "--force").returncode == 0
    (out / "thesis.tex").write_text("years of work")
    foreign = call(*arguments, "--force")
    assert foreign.returncode == 2
    assert "thesis.tex" in foreign.stderr
    assert (out / "thesis.tex").read_text() == "years of work"


def test_a_json_file_is_not_overwritten_without_force(tmp_path):
    target = tmp_path / "rows.json"
    arguments = ["explore", "deep-sea", "--depth", 4, "--episodes", 3, "--json", target]
    assert call(*arguments).returncode == 0
    assert json.loads(target.read_text())[0]["episodes"] == 3
    assert call(*arguments).returncode == 2
    assert call(*arguments, "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explore", "deep-sea", "--depth", "1"], "at least 2, got 1"),
        (["explore", "deep-sea", "--depth", "-3"], "at least 2, got -3"),
        (["explore", "deep-sea", "--depth", "ten"], "ten"),
        (["explore", "deep-sea", "--seeds", "0"], "at least 1, got 0"),
        (["explore", "deep-sea", "--episodes", "0"], "at least 1, got 0"),
        (["explore", "deep-sae"], "did you mean 'deep-sea'"),
        (["explore", "FrozenLak-v1"], "did you mean 'FrozenLake-v1'"),
        (["explore", "deep-sea", "--agent", "psrl-deterministc"], "did you mean 'psrl-deterministic'"),
        (["explore", "CartPole-v1", "--agent", "random"], "Discrete"),
        (["explore", "deep-sea", "--out", "/proc/nowhere"], "cannot write"),
        (["explore", "deep-sea", "--json", "/nowhere/x.json"], "no directory"),
        (["explore", "deep-sea", "--env-option", "depth"], "KEY=VALUE"),
        (["explore", "deep-sea", "--env-option", "depth=[1]"], "depth must be a whole number"),
        (["explore", "two-state", "--depth", "3"], "no depth"),
        (["explore", "deep-sea", "--agent", "abrl", "--prior", "gausian"], "did you mean 'gaussian'"),
        (["explore", "deep-sea", "--agent", "abrl", "--prior", "gaussian:scale=-1"], "positive"),
        (["explore", "deep-sea", "--agent", "abrl", "--prior", "gaussian:colour=1"], "colour"),
        (["explore", "deep-sea", "--agent", "abrl", "--particles", "1"], "at least 2"),
        (["explore", "deep-sea", "--agent", "abrl-paper", "--transitions", "dirichlet"], "revealed"),
        (["explore", "deep-sea", "--max-steps", "0"], "at least 1"),
        (["explore"], "ENV"),
        (["explor"], "explor"),
        (["list", "colours"], "colours"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exit_code_2(arguments, words):
    answer = call(*arguments)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "Traceback" not in answer.stderr
    assert words in answer.stderr


def test_an_environment_of_one_s_own_without_a_table(tmp_path, monkeypatch):
    """MODULE:ID on the command line: explored, compared on two workers, and reported by returns, not by regret."""
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(Path(__file__).parents[2] / "examples" / "environments"))
    name, run, sweep = "corridors:Corridor-v0", tmp_path / "run", tmp_path / "sweep"
    answer = call("explore", name, "--agent", "abrl", "--episodes", 25, "--out", run, "--json", "-")
    assert answer.returncode == 0, answer.stderr
    row = json.loads(answer.stdout)[0]
    assert (row["cumulative_regret"], row["learning_time"]) == (None, None)
    assert (run / "return.png").exists()
    assert not (run / "regret.png").exists()
    assert "there is no truth" in (run / "index.html").read_text()
    common = [name, "--seeds", 2, "--episodes", 20, "--full", "--out", sweep]
    answer = call("compare", *common, "--agents", "psrl,q-learning", "--json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)
    assert [row["agent"] for row in rows] == ["psrl", "q-learning"]
    assert all(-60.0 <= row["mean_return_low"] <= row["mean_return"] <= row["mean_return_high"] <= -6.0 for row in rows)
    answer = call("report", sweep)
    assert answer.returncode == 0, answer.stderr
    page = (sweep / "report.html").read_text()
    assert "mean return, last quarter" in page
    assert "neither regret nor learning time" in page
    assert "Who learns first" not in page
    for arguments, words in (
        ([name, "--agent", "r-max"], "max_reward"),
        ([name, "--agent", "psrl", "--transitions", "known"], "needs a table"),
        (["no_such_module:Corridor-v0"], "no_such_module"),
    ):
        refused = call("explore", *arguments)
        assert refused.returncode == 2
        assert words in refused.stderr


def test_a_bad_agent_is_found_before_the_directory_is_made(tmp_path):
    out = tmp_path / "run"
    assert call("explore", "deep-sea", "--agent", "nobody", "--out", out).returncode == 2
    assert not out.exists()


def test_ctrl_c_leaves_readable_files_and_exit_code_130(tmp_path):
    out = tmp_path / "run"
    # A shell's background jobs ignore Ctrl-C, and so would their children: put the default back, then become it.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-m", "qposterior", "explore", "deep-sea", "--depth", "40", "--agent"]
    command += ["psrl-deterministic", "--episodes", "100000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", heed, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    started = time.monotonic()
    while not (out / "transitions.csv.gz").exists() and time.monotonic() < started + 60:
        time.sleep(0.05)
    time.sleep(1.5 + (time.monotonic() - started))  # on a busy machine the first episodes take longer, too
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert stderr.strip() == "qposterior: interrupted"
    with (out / "episodes.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    with gzip.open(out / "transitions.csv.gz", "rt") as stream:
        assert len(list(csv.DictReader(stream))) == 39 * len(rows)
    assert (out / "regret.png").exists()


def test_help_version_and_lists():
    assert "Examples" in call("--help").stdout
    assert "explore" in call("explore", "--help").stdout
    assert call("--version").stdout.startswith("qposterior, version ")
    assert "psrl-deterministic" in call("list", "agents").stdout
    assert "deep-sea-loops" in call("list", "environments").stdout


def test_help_does_not_load_the_heavy_libraries():
    code = (
        "import sys, runpy; sys.argv = ['qposterior', '--help']\n"
        "try: runpy.run_module('qposterior', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'scipy', 'pandas', 'gymnasium', 'numba', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert answer.stdout.strip().splitlines()[-1] == "[]"


SWEEP = """
agents = ["q-learning", "psrl"]
depths = [4]
seeds = 1
episodes = 5
workers = 1
json = true
out = {out}

[env-option]
variant = "bsuite"

[agent-option.psrl]
repeats = 2
"""


def test_every_option_of_a_comparison_may_stand_in_a_toml_file(tmp_path):
    out = tmp_path / "sweep"
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(out=json.dumps(str(out))), encoding="utf-8")
    answer = call("compare", "deep-sea", "--settings", str(path), "--episodes", "6")
    assert answer.returncode == 0, answer.stderr
    assert {row["agent"] for row in json.loads(answer.stdout)} == {"psrl", "q-learning"}
    runs = json.loads((out / "settings.json").read_text())["runs"]
    assert {run["agent"]: run["agent_options"] for run in runs} == {"psrl": {"repeats": 2}, "q-learning": {}}
    assert {run["env_options"]["variant"] for run in runs} == {"bsuite"}
    assert {run["episodes"] for run in runs} == {6}  # what stands on the command line wins


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("colour = 1", "no option 'colour'"),
        ('settings = "x.toml"', "no option 'settings'"),
        ("seeds = 2.5", "2.5"),
        ("episodes = true", "episodes"),
        ("resume = 1", "true or false"),
        ('agents = ["psrl"', "--settings"),
    ],
)
def test_what_is_wrong_in_a_toml_file_is_one_line(tmp_path, line, words):
    path = tmp_path / "sweep.toml"
    path.write_text(line, encoding="utf-8")
    answer = call("compare", "deep-sea", "--settings", str(path), "--agents", "psrl", "--out", str(tmp_path / "out"))
    assert answer.returncode == 2
    assert words in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_a_comparison_of_which_every_run_fails_has_failed(tmp_path):
    common = ("--depths", "4", "--seeds", "1", "--episodes", "5", "--workers", "1", "--agent-option", "r-max:colour=3")
    answer = call("compare", "deep-sea", "--agents", "r-max", *common, "--out", str(tmp_path / "one"))
    assert answer.returncode == 1
    assert "every run failed" in answer.stderr
    assert "colour" in answer.stderr
    answer = call("compare", "deep-sea", "--agents", "r-max,random", *common, "--out", str(tmp_path / "two"))
    assert answer.returncode == 0
    assert "1 runs failed" in answer.stderr


def test_compiling_is_announced_once_on_a_terminal_and_loading_is_not(tmp_path):
    """Seen through a terminal's stderr, from a cache of its own: the first process compiles, the second one loads."""
    code = (
        "from qposterior.cli.main import _show_log; _show_log()\n"
        "from qposterior.model.kernels.normal import log_mass, log_tail\n"
        "log_tail(0.5); log_mass(0.0, 1.0)"
    )
    said = []
    for _ in range(2):
        terminal, end = os.openpty()
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], stderr=end, env=environment, check=True, timeout=300)
        os.write(end, b"end\n")
        shown = b""
        while b"end" not in shown:  # a terminal may hand out its lines one by one
            shown += os.read(terminal, 4096)
        os.close(end)
        os.close(terminal)
        said.append(shown.decode().splitlines()[:-1])
    assert [len(lines) for lines in said] == [1, 0]
    assert said[0][0].startswith("qposterior: compiling")
