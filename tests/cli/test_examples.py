"""The scripts in `examples/` run as they stand, stay short, and print numbers that are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
MOST_LINES = 60


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def lines(printed: str, start: str) -> list[str]:
    """Return what follows `start` in each line that begins with it, apart from spaces."""
    return [line.strip()[len(start) :] for line in printed.splitlines() if line.strip().startswith(start)]


def check_exact_posterior(printed):
    before, after = (numbers(line)[0] for line in lines(printed, "right"))
    assert before == pytest.approx(0.469, abs=0.005)
    assert after == pytest.approx(0.823, abs=0.005)
    assert "home in 3.5 miles" in printed


def check_two_coordinate_systems(printed):
    rows = [numbers(line) for line in printed.splitlines()[3:6]]
    ratios = [row[3] for row in rows]
    assert ratios == sorted(ratios)
    assert ratios[-1] > 20.0
    assert all(gap < 2.5 * error for *_, gap, error in rows)


def check_agent_on_deep_sea(printed):
    ours, theirs, never, _, high_start = numbers(lines(printed, "8")[0])
    assert ours < 100.0
    assert ours < high_start
    assert (theirs, never) == (1000.0, 5.0)


def check_your_own_gymnasium_environment(printed):
    first, _, last = numbers(lines(printed, "Mean regret")[0].split("[")[1])
    assert last < first / 3.0
    assert "v 1.00" in printed


def check_bandit(printed):
    assert numbers(lines(printed, "0 ")[0])[:3] == [0.333, 0.333, 0.333]
    *shares, _, _, often = numbers(lines(printed, "100 ")[0])
    assert sum(shares) == pytest.approx(1.0, abs=0.002)
    assert shares[2] > 0.8
    assert often > 60.0
    assert numbers(printed.splitlines()[-1])[-1] < 1e-9


def check_your_own_prior(printed):
    for name in ("fork", "room with a bad action", "room not seen"):
        alone, by_chains, by_particles, by_weights = numbers(lines(printed, name)[0])
        assert by_chains == pytest.approx(by_weights, abs=0.05)
        assert by_particles == pytest.approx(by_weights, abs=0.05)
        # Where nothing was seen the actions are alike under either prior; elsewhere the priors disagree.
        assert (abs(alone - by_weights) > 0.05) == (name != "room not seen")


def check_your_own_noise(printed):
    (exact,) = numbers(lines(printed, "delays, by a grid")[0])
    for method in ("hmc", "smc"):
        assert numbers(lines(printed, f"delays, {method}")[0])[0] == pytest.approx(exact, abs=0.07)
    assert numbers(lines(printed, "gaussian, hmc")[0])[0] < 0.5 < exact


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def test_there_are_seven_examples_and_each_is_checked():
    assert len(SCRIPTS) == 7
    assert sorted(CHECKS) == [script.stem for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_is_short_runs_without_warnings_and_is_right(script, tmp_path):
    source = script.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MOST_LINES
    assert source.startswith('"""')
    # Kernels may have to be compiled first, hence the long timeout.
    command = [sys.executable, "-W", "error", str(script)]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()
    CHECKS[script.stem](answer.stdout)
    assert not list(tmp_path.iterdir())


def test_the_logs_of_the_worked_cases_are_those_of_their_script(tmp_path):
    """Seeded, so that the pages that quote them can be checked."""
    root = Path(__file__).parents[2]
    command = f"import sys, pathlib; sys.path.insert(0, {str(root / 'benchmarks')!r}); import cases; "
    subprocess.run(
        [sys.executable, "-c", command + f"cases.write_logs(pathlib.Path({str(tmp_path)!r}))"], check=True, timeout=300
    )
    for name in ("inventory", "machines", "maintenance", "support", "tickets"):
        assert (tmp_path / f"{name}.csv").read_bytes() == (root / "examples" / "logs" / f"{name}.csv").read_bytes()


@pytest.mark.parametrize("name", ["bench", "log_calibration", "paper_page", "tables", "verify"])
def test_the_scripts_behind_the_long_targets_of_make_start(name):
    """They are run seldom: at least their imports must be found (a module of theirs once hid one of the tests)."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "tests")}
    command = [sys.executable, str(root / "benchmarks" / f"{name}.py"), "--help"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "--out" in answer.stdout
