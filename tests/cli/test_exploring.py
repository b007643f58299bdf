"""Worlds at the command line: those without a truth, and those that are too large."""

from __future__ import annotations

import json

from test_cli import call


def test_an_environment_without_a_unique_solution_is_explored_and_compared_and_said_so_once(tmp_path):
    answer = call(
        "explore", "FrozenLake8x8-v1", "--agent", "q-learning", "--episodes", "3", "--seeds", "2", "--json", "-"
    )
    assert answer.returncode == 0, answer.stderr
    assert [run["cumulative_regret"] for run in json.loads(answer.stdout)] == [None, None]
    (said,) = answer.stderr.splitlines()
    assert "FrozenLake8x8-v1: returns are known" in said
    assert "step_cost=0.001" in said
    assert "discount below" not in said
    common = ["--agents", "q-learning,random", "--seeds", "2", "--episodes", "3", "--out", str(tmp_path / "sweep")]
    answer = call("compare", "FrozenLake8x8-v1", *common)
    assert answer.returncode == 0, answer.stderr
    assert sum("returns are known" in line for line in answer.stderr.splitlines()) == 1


def test_a_depth_that_no_memory_holds_is_one_line():
    for command in (["explore"], ["compare", "--agents", "random", "--out", "never"]):
        depth = "--depths" if command[0] == "compare" else "--depth"
        answer = call(command[0], "deep-sea", *command[1:], depth, "100000")
        assert answer.returncode == 2
        (said,) = answer.stderr.splitlines()
        assert "depth must be at most 1000" in said
