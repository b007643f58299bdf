"""Comparisons: the same rows whatever the engine; nothing lost to a kill, a failure, a timeout or a second sweep."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import qposterior as qp
from damage import damaged, line_of
from qposterior.experiments.compare import read_comparison, read_settings
from qposterior.experiments.statistics import censored_times, summarise_runs
from qposterior.storage import locked, write_record

GRID = {"agents": ["r-max", "psrl"], "depths": [4, 5], "seeds": 2, "episodes": 60}


def without_seconds(found):
    return found.runs.drop(columns="seconds"), found.episodes.drop(columns="seconds")


def assert_same(one, other):
    for ours, theirs in zip(without_seconds(one), without_seconds(other), strict=True):
        assert ours.to_csv() == theirs.to_csv()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return qp.compare("deep-sea", out=tmp_path_factory.mktemp("reference") / "sweep", **GRID)


def test_a_comparison_keeps_a_row_per_run_and_per_episode(reference):
    assert len(reference.runs) == 8
    assert set(reference.runs["status"]) == {"done"}
    assert reference.runs["error"].isna().all()
    run = reference.runs.iloc[0]
    mine = reference.episodes.query("agent == @run.agent and depth == @run.depth and seed == @run.seed")
    assert len(mine) == run["episodes"]
    np.testing.assert_allclose(mine["regret"].sum(), run["cumulative_regret"])
    # The same run by hand.
    sea = qp.make_environment("deep-sea", depth=4)
    from qposterior.experiments.explore import make_world, spawn_seeds

    world = make_world(sea)
    agent = qp.make_agent("r-max", sea, horizon=world.cap, seed=spawn_seeds(1)[1])
    alone = qp.explore(agent, world, episodes=60, seed=1, until_learned=True)
    kept = reference.runs.query("agent == 'r-max' and depth == 4 and seed == 1").iloc[0]
    assert (kept["learning_time"], kept["episodes"]) == (alone.learning_time, len(alone.rows))
    table = summarise_runs(reference.runs)
    assert table[["agent", "depth", "runs"]].to_numpy().tolist()[0] == ["psrl", 4, 2]


def test_dask_gives_the_same_rows(reference, tmp_path):
    pytest.importorskip("distributed")
    assert_same(qp.compare("deep-sea", out=tmp_path / "dask", engine="dask", workers=2, **GRID), reference)


def start(arguments, **options):
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )


def wait_for(condition, seconds=90.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.1)


def count_runs(path):
    if not path.exists():
        return 0
    try:
        with sqlite3.connect(path) as connection:
            return connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_a_real_cluster_survives_the_loss_of_a_worker(reference, tmp_path):
    pytest.importorskip("distributed")
    scheduler_file = tmp_path / "scheduler.json"
    scheduler = start(
        [
            "-m",
            "distributed.cli.dask_scheduler",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            str(scheduler_file),
        ]
    )
    workers = []
    try:
        wait_for(lambda: scheduler_file.exists() and scheduler_file.read_text().strip())
        address = json.loads(scheduler_file.read_text())["address"]
        workers = [
            start(["-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"])
            for _ in range(2)
        ]
        killed = []

        def kill_one(done, total, row):
            if not killed:
                os.killpg(workers[0].pid, signal.SIGKILL)
                killed.append(row)

        found = qp.compare(
            "deep-sea", out=tmp_path / "cluster", engine="dask", scheduler=address, progress_fn=kill_one, **GRID
        )
    finally:
        for process in [*workers, scheduler]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert killed
    assert_same(found, reference)


def test_a_killed_comparison_resumes_without_repeating_or_losing_a_run(reference, tmp_path):
    out = tmp_path / "killed"
    command = ["-m", "qposterior", "compare", "deep-sea", "--agents", "r-max,psrl", "--depths", "4,5", "--seeds", "2"]
    command += ["--episodes", "60", "--workers", "1", "--out", str(out)]
    process = start(command)
    wait_for(lambda: count_runs(out / "runs.sqlite") >= 2 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = count_runs(out / "runs.sqlite")
    assert before >= 2
    ran = []
    found = qp.compare("deep-sea", out=out, resume=True, progress_fn=lambda done, total, row: ran.append(row), **GRID)
    assert len(ran) == 8 - before
    assert_same(found, reference)
    # A finished one has nothing left to do, and one that was never begun just begins.
    assert_same(
        qp.compare("deep-sea", out=out, resume=True, progress_fn=lambda *_: pytest.fail("ran again"), **GRID), found
    )
    fresh = qp.compare("deep-sea", out=tmp_path / "fresh", resume=True, **GRID)
    assert_same(fresh, reference)


def test_workers_end_with_the_comparison_that_started_them(tmp_path):
    out = tmp_path / "killed"
    command = ["-m", "qposterior", "compare", "deep-sea", "--agents", "random", "--depths", "4", "--seeds", "5000"]
    process = start([*command, "--episodes", "200", "--workers", "2", "--out", str(out)])
    wait_for(lambda: count_runs(out / "runs.sqlite") >= 1 or process.poll() is not None)  # the workers are at work
    process.kill()  # alone, not its group
    process.wait()
    wait_for(lambda: not has_processes(process.pid))


def has_processes(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_timeout_does_not_wait_for_the_end_of_an_episode(monkeypatch):
    from qposterior.environments.simulator import TableSimulator
    from qposterior.experiments.compare import run_one
    from qposterior.experiments.run_spec import RunSpec

    step = TableSimulator.step

    def slow_step(self, action):
        time.sleep(0.02)
        return step(self, action)

    monkeypatch.setattr(TableSimulator, "step", slow_step)
    started = time.perf_counter()
    spec = RunSpec(agent="random", environment="river-swim", depth=300, seed=0, episodes=1, timeout=0.3)
    row, episodes = run_one(spec)  # an episode of 1,200 steps would take 24 seconds
    assert time.perf_counter() - started < 10.0
    assert (row["status"], row["episodes"], episodes) == ("timeout", 0, [])


def test_failures_and_timeouts_are_recorded_and_the_rest_goes_on(tmp_path):
    options = {"agents": ["random", "q-learning"], "depths": [6], "seeds": 1, "episodes": 40, "workers": 1}
    options["agent_options"] = {"epsilon": 0.2}  # the random agent has no such setting
    found = qp.compare("deep-sea", out=tmp_path / "one", **options)
    status = found.runs.set_index("agent")
    assert status.loc["q-learning", "status"] == "done"
    assert status.loc["random", "status"] == "failed"
    assert "epsilon" in status.loc["random", "error"]
    slow = qp.compare("deep-sea", agents=["random"], depths=[6], seeds=1, timeout=1e-9, out=tmp_path / "two", workers=1)
    assert slow.runs["status"].tolist() == ["timeout"]
    assert slow.runs["episodes"].tolist() == [0]
    # Failed runs are tried again on resume; those past their time are not.
    again = []
    qp.compare(
        "deep-sea",
        out=tmp_path / "one",
        resume=True,
        progress_fn=lambda d, t, row: again.append(row["agent"]),
        **options,
    )
    assert again == ["random"]


def test_what_cannot_be_is_refused_before_anything_is_lost(tmp_path, reference):
    with pytest.raises(qp.InvalidInputError, match="--resume"):
        qp.compare("deep-sea", out=reference.folder, **GRID)
    with pytest.raises(qp.InvalidInputError, match="psrl"):
        qp.compare("deep-sea", agents=["prsl"], out=tmp_path / "a")
    with pytest.raises(qp.InvalidInputError, match="engine"):
        qp.compare("deep-sea", agents=["psrl"], out=tmp_path / "a", engine="ray")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(qp.InvalidInputError, match="not empty"):
        qp.compare("deep-sea", agents=["psrl"], out=tmp_path / "mine")
    assert not (tmp_path / "a").exists()
    with locked(reference.folder, "comparison"), pytest.raises(qp.InvalidInputError, match="another comparison"):
        qp.compare("deep-sea", out=reference.folder, resume=True, **GRID)
    with pytest.raises(qp.InvalidInputError, match="holds no comparison"):
        read_comparison(tmp_path / "nowhere")
    assert_same(read_comparison(reference.folder), reference)


def test_a_store_that_cannot_be_written_says_so_and_keeps_what_is_there(tmp_path, reference, monkeypatch):
    from qposterior.experiments.store import Store

    store = Store(reference.folder)
    before = store.runs()
    store._connection.execute("PRAGMA query_only = ON")  # as a full disk would: every write fails
    with pytest.raises(qp.QPosteriorError, match="finished runs are kept"):
        store.add(before.iloc[0].to_dict() | {"seed": 99}, [])
    assert len(store.runs()) == len(before)
    store.close()


def test_the_command_line_reads_a_settings_file(tmp_path):
    settings = tmp_path / "sweep.toml"
    settings.write_text('agents = ["r-max", "random"]\ndepths = [4]\nseeds = 3\nepisodes = 20\n')
    command = [sys.executable, "-m", "qposterior", "compare", "deep-sea", "--settings", str(settings), "--seeds", "1"]
    answer = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--json"], capture_output=True, text=True, check=True
    )
    rows = json.loads(answer.stdout)
    assert [(row["agent"], row["depth"], row["runs"]) for row in rows] == [("r-max", 4, 1), ("random", 4, 1)]
    settings.write_text("agnets = 1\n")
    answer = subprocess.run([*command, "--out", str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "no option 'agnets'" in answer.stderr


def test_a_resumed_comparison_may_grow_but_not_change(tmp_path):
    out, options = tmp_path / "sweep", {"agents": ["random"], "depths": np.array([4]), "workers": 1}
    qp.compare("deep-sea", out=out, seeds=np.arange(1), episodes=5, **options)
    with pytest.raises(qp.InvalidInputError, match="episodes=5, not 50"):
        qp.compare("deep-sea", out=out, seeds=1, episodes=50, resume=True, **options)
    assert {run["episodes"] for run in json.loads((out / "settings.json").read_text())["runs"]} == {5}
    found = qp.compare("deep-sea", out=out, seeds=np.arange(3), episodes=5, resume=True, **options)
    assert found.runs["seed"].tolist() == [0, 1, 2]


def test_runs_that_have_not_learned_are_censored_where_they_could_have_shown_it(reference):
    runs = reference.runs.head(2).assign(learning_time=[np.nan, 30.0], episodes=[500, 60])
    times, solved = censored_times(runs)
    assert (times.tolist(), solved.tolist()) == ([500.0, 30.0], [False, True])
    times, _ = censored_times(runs.assign(environment="river-swim"))
    assert times.tolist() == [401.0, 30.0]


def test_labels_tell_runs_of_one_agent_apart_and_keys_pick_them_out(tmp_path):
    from qposterior.experiments.compare import run_grid
    from qposterior.experiments.run_spec import RunSpec
    from qposterior.experiments.store import with_keys

    grid = [
        RunSpec(
            agent="q-learning", environment=name, depth=depth, seed=1, episodes=5, label=label, full=True, **options
        )
        for name, depth in (("deep-sea", 3), ("river-swim", None))
        for label, options in ((None, {}), ("greedy", {"agent_options": {"epsilon": 0.0}}))
    ]
    found = run_grid(grid, out=tmp_path / "store", workers=1)
    assert sorted(found.runs["agent"]) == ["greedy", "greedy", "q-learning", "q-learning"]
    for rows in (found.runs, found.episodes):
        for spec in grid:
            chosen = rows[with_keys(rows, [spec.key])]
            assert set(chosen["agent"]) == {spec.label or "q-learning"}
            assert set(chosen["environment"]) == {spec.environment}
            assert len(chosen) == (1 if rows is found.runs else 5)
    again = run_grid(grid, out=tmp_path / "store", workers=1, resume=True)
    assert again.runs.equals(found.runs)


def test_failed_runs_are_left_out_of_curves_and_returns(tmp_path, reference):
    from qposterior.experiments.statistics import summarise_returns
    from qposterior.report.compare_report import regret_curves

    runs, episodes = reference.runs.copy(), reference.episodes.copy()
    broken = (episodes["agent"] == "psrl") & (episodes["depth"] == 5) & (episodes["seed"] == 1)
    runs.loc[(runs["agent"] == "psrl") & (runs["depth"] == 5) & (runs["seed"] == 1), "status"] = "failed"
    found = type(reference)(folder=tmp_path, runs=runs, episodes=episodes[~broken | (episodes["episode"] <= 2)])
    kept = found.without_failures
    assert len(kept.runs) == 7
    assert kept.episodes.equals(episodes[~broken])
    whole = episodes[(episodes["agent"] == "psrl") & (episodes["depth"] == 5) & (episodes["seed"] == 0)]
    curves, depth = regret_curves(kept.episodes)
    assert depth == 5
    np.testing.assert_allclose(curves["psrl"][1], whole["regret"].cumsum())
    assert summarise_returns(kept.episodes).set_index(["agent", "depth"]).loc[("psrl", 5), "runs"] == 1
    # Agents that share no depth have no curve in common.
    apart = kept.episodes[(kept.episodes["agent"] == "psrl") == (kept.episodes["depth"] == 5)]
    assert regret_curves(apart) == ({}, None)


def test_depths_reach_gymnasium_environments_and_bad_ones_are_found_at_once(tmp_path):
    common = {"agents": ["r-max"], "seeds": 1, "workers": 1}
    ours = qp.compare("deep-sea", out=tmp_path / "ours", depths=[4, 6], **common)
    theirs = qp.compare("qposterior/DeepSea-v0", out=tmp_path / "theirs", depths=[4, 6], **common)
    assert theirs.runs["learning_time"].tolist() == ours.runs["learning_time"].tolist()
    for bad, words in (
        ({"depths": [4, -3]}, "-3"),
        ({"depths": [4.5]}, "whole numbers"),
        ({"depths": 4}, "whole numbers"),
        ({"agents": "psrl"}, "list of names"),
        ({"seeds": [-1]}, "seed"),
        ({"episodes": 0}, "episodes"),
        ({"timeout": -5.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"transitions": "no"}, "transitions"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "dask"),
        ({"prior": qp.GaussianPrior()}, "takes a prior"),
        ({"agent_options": {"psrl": {"repeats": 2}}}, "not among"),
    ):
        with pytest.raises(qp.InvalidInputError, match=words):
            qp.compare("deep-sea", out=tmp_path / "bad", **({"depths": [4]} | common | bad))
    with pytest.raises(qp.InvalidInputError, match="depth"):
        qp.compare("FrozenLake-v1", out=tmp_path / "bad", depths=[4], **common)
    with pytest.raises(qp.InvalidInputError, match="did you mean 'deep-sea'"):
        qp.compare("depsea", out=tmp_path / "bad", **common)
    assert not (tmp_path / "bad").exists()
    with pytest.raises(qp.InvalidInputError, match="on 'deep-sea'; give 'river-swim' a directory"):
        qp.compare("river-swim", out=tmp_path / "ours", resume=True, **common)


def test_settings_go_to_the_agents_that_they_are_meant_for_and_nothing_runs_twice(tmp_path):
    from qposterior.experiments.compare import make_grid, run_grid

    grid = make_grid(
        "deep-sea",
        agents=["psrl", "abrl", "psrl"],
        depths=[4, 4],
        seeds=[1, 2, 1],
        prior=qp.GaussianPrior(scale=3.0),
        agent_options={"psrl": {"repeats": 1}},
    )
    assert [(spec.agent, spec.depth, spec.seed) for spec in grid] == [
        ("psrl", 4, 1),
        ("abrl", 4, 1),
        ("psrl", 4, 2),
        ("abrl", 4, 2),
    ]
    with pytest.raises(qp.InvalidInputError, match="'prsl', which is not among"):
        make_grid("deep-sea", agents=["psrl"], depths=[4], seeds=[1], agent_options={"prsl": {"repeats": 1}})
    with pytest.raises(qp.InvalidInputError, match="episodes=1000, not 5"):
        run_grid([grid[0], replace(grid[0], episodes=5)], out=tmp_path / "twice")
    psrl, abrl = grid[:2]
    assert (psrl.prior, psrl.agent_options) == (None, {"repeats": 1})
    assert (abrl.prior["scale"], abrl.agent_options) == (3.0, {})


def test_an_environment_that_exits_is_a_failed_run(tmp_path, monkeypatch):
    from qposterior.experiments import compare as module

    def leave(*_args, **_options):
        raise SystemExit(3)

    monkeypatch.setattr(module, "explore", leave)
    found = qp.compare("deep-sea", agents=["random"], depths=[4], seeds=1, workers=1, out=tmp_path / "sweep")
    assert found.runs["status"].tolist() == ["failed"]
    assert "SystemExit" in found.runs["error"].iloc[0]


def test_the_record_of_a_folder_is_kept_and_a_broken_one_is_named(tmp_path):
    options = {"agents": ["random"], "depths": [4], "episodes": 5, "workers": 1}
    out = tmp_path / "sweep"
    out.mkdir()
    (out / ".settings.json.half").write_text("{")  # a kill in the middle of the first write
    qp.compare("deep-sea", out=out, seeds=1, resume=True, **options)
    record = json.loads((out / "settings.json").read_text())
    assert not (out / ".settings.json.half").exists()
    write_record(out / "settings.json", record | {"versions": {"qposterior": "0.0"}})
    qp.compare("deep-sea", out=out, seeds=2, resume=True, **options)
    again = json.loads((out / "settings.json").read_text())
    assert (again["versions"], again["earlier_versions"]) == (record["versions"], [{"qposterior": "0.0"}])
    (out / "settings.json").write_text("{}")
    with pytest.raises(qp.InvalidInputError, match=r"cannot read the record of a comparison from .*'runs' is missing"):
        qp.compare("deep-sea", out=out, seeds=2, resume=True, **options)


def test_a_scheduler_that_cannot_be_used_is_one_line(tmp_path):
    pytest.importorskip("distributed")
    with pytest.raises(qp.QPosteriorError, match="cannot use the Dask scheduler nonsense"):
        qp.compare("deep-sea", out=tmp_path / "sweep", engine="dask", scheduler="nonsense://", **GRID)


# -- checksums ---------------------------------------------------------------------------------------------------------

SMALL = {"agents": ["random", "q-learning"], "depths": [4], "seeds": 3, "episodes": 12, "full": True, "workers": 1}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return qp.compare("deep-sea", out=tmp_path_factory.mktemp("small") / "sweep", **SMALL)


def copy_of(found, folder):
    return shutil.copytree(found.folder, folder)


def change(folder, statement):
    with closing(sqlite3.connect(folder / "runs.sqlite")) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET cumulative_regret = cumulative_regret + 1e-9 WHERE agent = 'random' AND seed = 1",
        "UPDATE runs SET status = 'failed' WHERE agent = 'random' AND seed = 1",
        "UPDATE runs SET seed = 7 WHERE agent = 'random' AND seed = 1",
        "DELETE FROM runs WHERE agent = 'random' AND seed = 1",
        "UPDATE episodes SET steps = 9 WHERE agent = 'random' AND seed = 1 AND episode = 3",
        "UPDATE episodes SET seed = 8 WHERE agent = 'random' AND seed = 1 AND episode = 3",
        "UPDATE episodes SET seed = NULL WHERE agent = 'random' AND seed = 1 AND episode = 3",
        "UPDATE episodes SET environment = x'ff00' WHERE agent = 'random' AND seed = 1 AND episode = 3",
        "DELETE FROM episodes WHERE agent = 'random' AND seed = 1 AND episode = 12",
        "DELETE FROM checksums WHERE agent = 'random' AND seed = 1",
        "UPDATE checksums SET checksum = 'x' WHERE agent = 'random' AND seed = 1",
        "UPDATE checksums SET seed = 9 WHERE agent = 'random' AND seed = 1",
    ],
)
def test_a_run_that_is_not_as_it_was_written_is_named_and_run_again(small, tmp_path, caplog, statement):
    out = copy_of(small, tmp_path / "sweep")
    change(out, statement)
    with pytest.raises(qp.InvalidInputError, match=r"is damaged: the run random on .* --resume runs again"):
        read_comparison(out)
    ran = []
    again = qp.compare("deep-sea", out=out, resume=True, progress_fn=lambda d, t, row: ran.append(row), **SMALL)
    assert [(row["agent"], row["seed"]) for row in ran] == [("random", 1)]
    assert "is damaged" in caplog.text
    assert_same(again, small)
    assert_same(read_comparison(out), small)


def test_a_store_of_an_earlier_version_is_read_as_it_is(small, tmp_path):
    out = copy_of(small, tmp_path / "sweep")
    change(out, "DROP TABLE checksums")
    change(out, "PRAGMA user_version = 0")
    assert_same(read_comparison(out), small)
    more = qp.compare("deep-sea", out=out, resume=True, **(SMALL | {"seeds": 4}))
    assert len(more.runs) == 8
    change(out, "UPDATE runs SET episodes = 3 WHERE agent = 'random' AND seed = 3")  # made with checksums
    with pytest.raises(qp.InvalidInputError, match="seed 3 is not as it was written"):
        read_comparison(out)


def test_flipped_bytes_in_a_store_change_no_value_without_a_word(small, tmp_path, caplog):
    """At 120 places in use: an error that names the store, or the values as they were; --resume mends it or refuses."""
    whole = np.frombuffer((small.folder / "runs.sqlite").read_bytes(), dtype=np.uint8)
    rng, used = np.random.default_rng(0), np.flatnonzero(whole)
    outcomes = {"unchanged": 0, "mended": 0, "refused": 0}
    for i in range(120):
        out = tmp_path / str(i)
        out.mkdir()
        shutil.copy(small.folder / "settings.json", out)
        data = whole.copy()
        data[used[int((i + rng.random()) / 120 * used.size)]] ^= 1 << int(rng.integers(8))
        (out / "runs.sqlite").write_bytes(data.tobytes())
        words = []
        for read_fn in (read_comparison, lambda out: qp.compare("deep-sea", out=out, resume=True, **SMALL)):
            try:
                assert_same(read_fn(out), small)
            except qp.QPosteriorError as error:
                words.append(str(error))
        assert all("runs.sqlite" in line and len(line.splitlines()) == 1 for line in words)
        outcomes[("unchanged", "mended", "refused")[len(words)]] += 1
    assert outcomes["mended"] > 40
    assert outcomes["mended"] + outcomes["refused"] > 60


def test_a_damaged_record_of_a_comparison_is_refused_or_unchanged(small, tmp_path):
    out = copy_of(small, tmp_path / "sweep")
    data, expected, refused = (out / "settings.json").read_bytes(), read_settings(out), 0
    for copy in damaged(data, 60):
        (out / "settings.json").write_bytes(copy)
        if line_of(read_settings, out) is None:
            assert read_settings(out) == expected
        else:
            refused += 1
    assert refused > 40
    for changes in ({"runs": 3}, {"runs": [3]}, {"runs": [{"agent": "psrl"}]}, {"versions": "x"}):
        write_record(out / "settings.json", json.loads(data) | changes)
        assert "cannot read the record of a comparison" in line_of(read_settings, out)
