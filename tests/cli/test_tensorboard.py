"""Event files that TensorBoard reads: one folder per run, the columns of the episodes as scalars."""

from __future__ import annotations

import struct

import pytest
from click.testing import CliRunner

from qposterior.cli.main import cli

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")


def scalars(folder):
    """Return {tag: {step: value}} of the event files of a run, by the record format: length, crc, data, crc."""
    found = {}
    for path in folder.iterdir():
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = event_pb2.Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_explore_writes_the_rows_of_every_seed(tmp_path):
    out = tmp_path / "run"
    options = ("explore", "deep-sea", "--agent", "r-max", "--depth", 4, "--episodes", 12, "--seeds", 2)
    assert run(*options, "--out", out, "--tensorboard").exit_code == 0
    rows = [line.split(",") for line in (out / "episodes.csv").read_text().splitlines()]
    regret, seed = rows[0].index("regret"), rows[0].index("seed")
    for number in (0, 1):
        own = [float(row[regret]) for row in rows[1:] if row[seed] == str(number)]
        found = scalars(out / "tensorboard" / f"r-max-depth-4-seed-{number}")
        assert found["episode/regret"] == pytest.approx(dict(enumerate(own, start=1)), rel=1e-6)
        assert found["run/cumulative_regret"][12] == pytest.approx(sum(own), rel=1e-6)
    again = run(*options, "--out", out, "--tensorboard", "--force")
    assert again.exit_code == 0, again.output


def test_compare_writes_them_too_and_a_resumed_one_does_not_write_twice(tmp_path):
    out = tmp_path / "sweep"
    options = ("compare", "deep-sea", "--agents", "r-max,random", "--depths", "3,4", "--workers", 1, "--out", out)
    assert run(*options, "--seeds", 1, "--episodes", 9, "--tensorboard").exit_code == 0
    assert run(*options, "--seeds", 2, "--episodes", 9, "--tensorboard", "--resume").exit_code == 0
    folders = sorted(path.name for path in (out / "tensorboard").iterdir())
    assert len(folders) == 8
    assert all(len(list((out / "tensorboard" / name).iterdir())) == 1 for name in folders)
    assert max(scalars(out / "tensorboard" / "random-depth-4-seed-1")["episode/return"]) == 9


def test_it_needs_a_directory():
    result = run("explore", "deep-sea", "--episodes", 1, "--tensorboard")
    assert result.exit_code == 2
    assert "--out" in result.output
