"""Every stored format, damaged in every way: one line of ours, or the same numbers as before; never others."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest

import qposterior as qp
from damage import damaged, line_of
from qposterior import storage
from qposterior.storage import (
    LOCK_FILE,
    AnswerFolder,
    entries,
    foreign_entries,
    load_arrays,
    locked,
    read_record,
    remove_leftovers,
    save_arrays,
    write_record,
)


def some_posterior():
    sea = qp.make_environment("deep-sea", depth=3)
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(7))
    return qp.Posterior(
        space=sea.space,
        draws=rng.normal(size=(7, sea.space.num_pairs)),
        weights=weights,
        method="smc",
        diagnostics={"trusted": True},
        noise_scale=rng.random(7),
    )


def test_a_damaged_posterior_is_refused_or_unchanged(tmp_path):
    path, post = tmp_path / "post.npz", some_posterior()
    post.save(path)
    data, refused = path.read_bytes(), 0
    for copy in damaged(data, 80):
        path.write_bytes(copy)
        if line_of(qp.Posterior.load, path) is not None:
            refused += 1
            continue
        again = qp.Posterior.load(path)
        for name in ("draws", "weights", "noise_scale"):
            assert getattr(again, name).tobytes() == getattr(post, name).tobytes()
        assert (again.method, again.diagnostics, again.space) == (post.method, post.diagnostics, post.space)
    assert refused >= 60


@pytest.mark.parametrize(
    "change_fn",
    [
        lambda stored: stored.update(weights=stored["weights"][::-1]),
        lambda stored: stored.pop("noise_scale"),
        lambda stored: stored.update(exact_tables=np.zeros((3, 6))),
        lambda stored: stored.update(renamed=stored.pop("noise_scale")),
        lambda stored: stored.update(is_goal=stored["is_goal"].astype(np.uint8)),
        lambda stored: stored.update(weights=stored["weights"][:, None]),
    ],
)
def test_arrays_other_than_those_that_were_saved_are_refused(tmp_path, change_fn):
    path = tmp_path / "post.npz"
    some_posterior().save(path)
    with np.load(path) as archive:
        stored = dict(archive)
    np.savez(path, **stored)
    assert line_of(qp.Posterior.load, path) is None
    change_fn(stored)
    np.savez(path, **stored)
    assert "changed or damaged" in line_of(qp.Posterior.load, path)


def test_a_damaged_agent_is_refused_or_unchanged(tmp_path):
    sea, path = qp.make_environment("deep-sea", depth=3), tmp_path / "agent.npz"
    agent = qp.make_agent("abrl", sea, horizon=2, seed=1)
    qp.explore(agent, sea, episodes=2, seed=1)
    agent.save(path)
    data, plan, refused = path.read_bytes(), agent.held_plan().tolist(), 0
    for copy in damaged(data, 40):
        path.write_bytes(copy)
        if line_of(qp.PosteriorSamplingAgent.load, path) is not None:
            refused += 1
            continue
        again = qp.PosteriorSamplingAgent.load(path)
        assert again.sampler.particles.parameters.tobytes() == agent.sampler.particles.parameters.tobytes()
        assert (again.held_plan().tolist(), again.experience) == (plan, agent.experience)
    assert refused >= 30


def write_without_digest(path, facts, arrays):
    """A file as an earlier version, or somebody else, would write it."""
    np.savez(path, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **arrays)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": np.array([1.5, -0.5])}, "0 or more and sum to 1"),
        ({"weights": np.array([np.nan, 1.0])}, "0 or more and sum to 1"),
        ({"weights": np.array([0.4, 0.4])}, "0 or more and sum to 1"),
        ({"weights": np.ones(3) / 3}, r"weights must be \(2,\)"),
        ({"weights": np.array(["a", "b"])}, "weights must be"),
        ({"draws": np.full((2, 6), np.inf)}, "not finite"),
        ({"draws": np.zeros((2, 5))}, r"draws must be \(2, 6\)"),
        ({"draws": np.zeros(6)}, "cannot read a posterior"),
        ({"draws": np.zeros((2, 6), dtype=complex)}, "draws must be"),
        ({"admissible": np.zeros((0, 0))}, "cannot read a posterior"),
        ({"is_goal": np.zeros(2)}, "cannot read a posterior"),
        ({"exact_tables": np.zeros((2, 6))}, "exact_tables must be"),
        ({"discount": 1.5}, "discount must lie"),
        ({"discount": "half"}, "cannot read a posterior"),
        ({"chains": 0}, "cannot read a posterior"),
        ({"diagnostics": [1]}, "not those of a posterior"),
        ({"method": None, "log_evidence": "x"}, "cannot read a posterior"),
        ({"format": "else"}, "not a posterior of this version"),
    ],
)
def test_a_posterior_that_cannot_be_is_refused(tmp_path, changes, words):
    path, sea = tmp_path / "post.npz", qp.make_environment("deep-sea", depth=3)
    facts = {"format": "qposterior-posterior 1", "method": "smc", "log_evidence": 0.0, "diagnostics": {}}
    facts |= {"settings": {}, "chains": 1, "discount": 1.0}
    arrays = {"draws": np.zeros((2, 6)), "weights": np.full(2, 0.5)}
    arrays |= {"admissible": sea.space.pair_index >= 0, "is_goal": sea.space.is_goal}
    write_without_digest(path, facts, arrays)
    assert qp.Posterior.load(path).weights.tolist() == [0.5, 0.5]  # a file of an earlier version is still read
    facts |= {name: value for name, value in changes.items() if name in facts}
    arrays |= {name: value for name, value in changes.items() if name not in facts}
    write_without_digest(path, facts, arrays)
    with pytest.raises(qp.InvalidInputError, match=words):
        qp.Posterior.load(path)


def test_facts_that_are_a_list_and_archives_that_are_none_are_one_line(tmp_path):
    path = tmp_path / "post.npz"
    write_without_digest(path, [1, 2], {})
    assert "cannot read a posterior" in line_of(qp.Posterior.load, path)
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    assert "zip" in line_of(qp.Posterior.load, path)
    assert "it is not a file" in line_of(qp.Posterior.load, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "it is not a file" in line_of(qp.Posterior.load, tmp_path / "pipe")


@pytest.mark.parametrize("load_fn", [qp.Posterior.load, qp.PosteriorSamplingAgent.load])
def test_an_archive_that_would_fill_the_memory_is_refused_unread(tmp_path, load_fn, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, draws=np.zeros(2**24))  # 128 MB in 130 kB
    monkeypatch.setattr(storage, "MOST_ARRAYS", 2**22)
    tracemalloc.start()
    assert "at most 8," in line_of(load_fn, path)  # 64 times the size of the file
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_arrays_come_back_as_they_were_saved(tmp_path):
    path = tmp_path / "some.npz"
    arrays = {"empty": np.zeros((0, 3)), "turned": np.arange(6.0).reshape(2, 3).T, "yes": np.array(True)}
    save_arrays(path, {"format": "x 1", "value": float("nan")}, arrays, overwrite=False)
    with pytest.raises(qp.InvalidInputError, match="there is no directory"):
        save_arrays(tmp_path / "nowhere" / "some.npz", {}, arrays, overwrite=True)
    facts, again = load_arrays(path, "a thing", "x 1")
    assert np.isnan(facts["value"])
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)
        assert again[name].dtype == array.dtype


def test_arrays_that_there_are_not_are_left_out(tmp_path):
    save_arrays(tmp_path / "some.npz", {"format": "x 1"}, {"there": np.ones(2), "not": None}, overwrite=False)
    facts, again = load_arrays(tmp_path / "some.npz", "a thing", "x 1")
    assert (facts["format"], list(again)) == ("x 1", ["there"])


def test_a_damaged_record_is_refused_or_unchanged(tmp_path):
    path = tmp_path / "record.json"
    record = {"numbers": [1, 2.5, 1e-300, float("inf")], "words": {"é": "=1+1", "none": None}, "yes": True}
    write_record(path, record)
    data = path.read_bytes()
    assert read_record(path, "a record") == record
    for copy in damaged(data, 120):
        path.write_bytes(copy)
        if line_of(lambda path: read_record(path, "a record"), path) is None:
            assert {name: read_record(path, "a record").get(name) for name in record} == record
    for text in ("[1]", "3", "null", "[" * 100_000, "", "{", '{"a": 1}}', "\ufeff{}"):
        path.write_text(text)
        assert "cannot read a record" in line_of(lambda path: read_record(path, "a record"), path)
    with path.open("wb") as stream:
        stream.truncate(2**40)  # a terabyte of nothing
    assert "bytes" in line_of(lambda path: read_record(path, "a record"), path)


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_held_by_one_and_left_as_it_was_found(tmp_path):
    folder = tmp_path / "new"
    with locked(folder, "fit"):
        with pytest.raises(qp.InvalidInputError, match="another fit is writing to"), locked(folder, "fit"):
            pytest.fail("held twice")
        assert folder.is_dir()
    assert not folder.exists()
    with locked(folder, "fit"):
        (folder / "answer").write_text("")
    assert sorted(os.listdir(folder)) == [LOCK_FILE, "answer"]
    with locked(folder, "fit"):
        pass
    assert entries(folder) == ["answer"]
    with pytest.raises(qp.InvalidInputError, match="cannot write to"), locked(tmp_path / "new" / "answer" / "x", "fit"):
        pytest.fail("below a file")


def test_what_other_programs_leave_behind_is_neither_foreign_nor_removed(tmp_path):
    theirs = [".DS_Store", "Thumbs.db", "desktop.ini", "._rows.csv", ".~lock.rows.csv#", "~$rows.csv"]
    for name in [*theirs, "rows.csv", ".rows.csv.abc123", "thesis.txt"]:
        (tmp_path / name).write_text("")
    assert foreign_entries(tmp_path, ["rows.csv"]) == ["thesis.txt"]
    remove_leftovers(tmp_path, ["rows.csv"])
    assert sorted(os.listdir(tmp_path)) == sorted([*theirs, "rows.csv", "thesis.txt"])


def test_an_answer_that_is_not_written_to_the_end_is_none_and_a_file_of_another_is_refused(tmp_path):
    answers = AnswerFolder(path=tmp_path, what="plan", file_format="plan 1", record="plan.json", others=("steps",))

    def write(text, number):
        with answers.new_answer() as new:
            (new / "steps").write_text(text)
            if number == 0:
                raise KeyboardInterrupt
            answers.seal(new, {"format": "plan 1", "number": number}, ["steps"])

    for number in (0, 1, 0):
        try:
            write(f"step {number}", number)
        except KeyboardInterrupt:
            assert number == 0
        assert answers.has_answer == (tmp_path / "plan.json").exists()
    write("step 2", 2)
    path, record = answers.read("steps")
    assert (path.read_text(), record["number"], (tmp_path / "steps").read_text()) == ("step 2", 2, "step 2")
    assert sorted(os.listdir(tmp_path / "generations")) == ["1", "2"]  # the unfinished ones are gone
    other = AnswerFolder(path=tmp_path, what="plan", file_format="plan 2", record="plan.json", others=("steps",))
    assert "not a plan of this version" in line_of(other.read, "steps")
    path.write_text("step 1")
    assert "changed or damaged" in line_of(answers.read, "steps")
    assert "holds a plan" in line_of(lambda force: answers.check(force=force), False)
