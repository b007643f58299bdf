"""What must not matter to draws of the model: units, labels, threads; and what they must always be."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import qposterior as qp
from hierarchies import plain_space, random_log, record_all
from qposterior.model.hierarchy import build_hierarchy
from qposterior.model.model_prior import ModelPrior
from qposterior.world.space import StateActionSpace


def draw(space, steps, *, num=40, seed=1, **kinds):
    return ModelPrior().draw(record_all(space, steps, **kinds), num, np.random.default_rng(seed))


def some_log(effect, seed=0):
    """A log with untried pairs and a state without readings."""
    return random_log(np.random.default_rng(seed), effect=effect, skip={(0, 1), (2, 0), (2, 1), (2, 2)})


@pytest.mark.parametrize("effect", [0.0, 2.0])
@pytest.mark.parametrize(("scale", "shift"), [(1000.0, 0.0), (1e-3, 0.0), (1.0, 5000.0), (1000.0, -5000.0)])
def test_draws_go_with_the_unit_and_the_zero_of_rewards(scale, shift, effect):
    """Without goals every value moves by shift / (1 − γ), and no model is more likely than before."""
    space, steps = some_log(effect)
    plain, moved = draw(space, steps), draw(space, [(s, a, scale * r + shift, t) for s, a, r, t in steps])
    np.testing.assert_allclose(moved.rows, plain.rows, atol=2e-5)
    np.testing.assert_allclose(moved.rewards, scale * plain.rewards + shift, atol=1e-4 * scale)


@pytest.mark.parametrize("power", [-12, 12])
@pytest.mark.parametrize("effect", [0.0, 2.0])
def test_rewards_may_be_of_any_size(power, effect):
    space, steps = some_log(effect)
    models = draw(space, [(s, a, r * 10.0**power, t) for s, a, r, t in steps])
    assert_proper(models)
    assert 0.1 < np.abs(models.rewards).max() / 10.0**power < 1e3


def assert_proper(models):
    """Rows are probabilities and all numbers are finite."""
    assert np.all(np.isfinite(models.rewards))
    assert np.all((models.rows >= 0.0) & (models.rows <= 1.0 + 1e-6))
    np.testing.assert_allclose(np.add.reduceat(models.rows, models.first_edge[:-1], axis=1), 1.0, atol=1e-5)


def one_reading(space):
    return [(0, 0, 3.0, space.num_states - 1)]


LOGS = {
    "a single reading": (plain_space(3, 2), one_reading),
    "one state, one action": (plain_space(1, 1), lambda _: [(0, 0, r, 0) for r in (1.0, 2.0, 0.5)]),
    "one action": (plain_space(4, 1), lambda _: [(s, 0, float(s), t) for s in range(4) for t in range(4)]),
    "one successor": (plain_space(3, 2), lambda _: [(s, a, 1.0 * s + a, 1) for s in range(3) for a in (0, 1)] * 3),
    "equal rewards": (plain_space(3, 2), lambda _: [(s, a, 2.5, (s + a) % 3) for s in range(3) for a in (0, 1)] * 3),
    "rewards of zero": (plain_space(3, 2), lambda _: [(s, a, 0.0, (s + a) % 3) for s in range(3) for a in (0, 1)]),
    "goals": (plain_space(4, 2, goals=[1, 3]), lambda _: [(s, a, 1.0 + a, 1 + a * s) for s in (0, 2) for a in (0, 1)]),
    "discount 1": (plain_space(4, 2, discount=1.0), lambda _: [(0, 0, 1.0, 1), (1, 1, 0.0, 2)]),
    "one huge": (plain_space(3, 2), lambda _: [(s, a, 1.0, 1) for s in range(3) for a in (0, 1)] + [(0, 0, 1e12, 2)]),
    "one tiny": (plain_space(3, 2), lambda _: [(s, a, 0.0, 1) for s in range(3) for a in (0, 1)] + [(0, 0, 1e-12, 2)]),
    "most states unread": (plain_space(40, 3), lambda _: [(s, a, s * a, 7) for s in range(3) for a in range(3)] * 4),
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("kind", ["counted", "revealed"])
def test_draws_of_odd_logs_are_proper(name, kind):
    space, steps_fn = LOGS[name]
    steps = steps_fn(space)
    if kind == "revealed":  # one row a pair
        steps = [(s, a, r, {(x, y): z for x, y, _, z in reversed(steps)}[s, a]) for s, a, r, _ in steps]
    models = draw(space, steps, num=24, transitions=kind)
    assert_proper(models)
    paid = np.array([r for _, _, r, _ in steps])
    assert np.abs(models.rewards).max() < 1e4 * (np.abs(paid).max() or 1.0)


def test_deterministic_rewards_are_drawn_as_they_were_seen():
    space, steps = plain_space(3, 2), [(s, a, 10.0 * s - a, (s + a) % 3) for s in range(3) for a in (0, 1)] * 3
    models = draw(space, steps, rewards="deterministic")
    np.testing.assert_allclose(models.rewards, np.tile([0.0, -1.0, 10.0, 9.0, 20.0, 19.0], (40, 1)), atol=1e-2)


def test_counts_need_not_be_whole():
    space, steps = some_log(0.0)
    sums = record_all(space, steps).sums()
    parts = {
        name: getattr(sums, name) * 0.37 for name in ("count", "reward_deviation", "reward_third", "reward_fourth")
    }
    models = ModelPrior().draw_from(
        replace(sums, edge_count=sums.edge_count * 0.37, **parts), 40, np.random.default_rng(0)
    )
    assert_proper(models)
    whole = ModelPrior().draw_from(sums, 40, np.random.default_rng(0))
    tried = sums.count > 0.0
    assert np.median((models.rewards.std(axis=0) / whole.rewards.std(axis=0))[tried]) > 1.2  # less was seen


def test_known_rows_are_kept_and_untried_ones_lead_to_one_successor():
    space, rng = plain_space(3, 2), np.random.default_rng(0)
    seen = qp.Experience(space, rewards="noisy")
    row = np.array([0, 2]), np.array([0.3, 0.7])
    for _ in range(4):
        seen.record(0, 0, rng.normal(), 2, row=row)
        seen.record(1, 1, rng.normal(), 0)
    models = ModelPrior().draw(seen, 40, rng)
    assert_proper(models)
    edges = slice(models.first_edge[0], models.first_edge[1])
    assert models.successor[edges].tolist() == [0, 2]
    np.testing.assert_allclose(models.rows[:, edges], np.tile([0.3, 0.7], (40, 1)), rtol=1e-6)
    for k in np.flatnonzero(seen.count == 0):
        edges = slice(models.first_edge[k], models.first_edge[k + 1])
        np.testing.assert_allclose(models.rows[:, edges].max(axis=1), 1.0)


@pytest.mark.parametrize("num", [4, 5, 41, 42, 43])
def test_fewer_draws_are_the_first_of_more(num):
    """Successor rewards are added once, whatever the number; chains are as long as the next multiple of four."""
    space, steps = some_log(2.0)
    seen = record_all(space, steps)
    assert build_hierarchy(seen.sums(), np.zeros(5)).rewards.is_used
    some = ModelPrior().draw(seen, num, np.random.default_rng(1))
    more = ModelPrior().draw(seen, -(-num // 4) * 4, np.random.default_rng(1))
    assert some.num_draws == num
    np.testing.assert_array_equal(some.rewards, more.rewards[:num])
    np.testing.assert_array_equal(some.rows, more.rows[:num])


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_input_alone():
    space, steps = some_log(2.0)
    seen = record_all(space, steps)
    sums = seen.sums()
    before = {item.name: np.copy(getattr(sums, item.name)) for item in fields(sums) if item.name != "space"}
    one, two = (ModelPrior().draw_from(sums, 20, np.random.default_rng(3)) for _ in range(2))
    assert one.rows.tobytes() == two.rows.tobytes()
    assert one.rewards.tobytes() == two.rewards.tobytes()
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(sums, name), value)
    assert seen == record_all(space, steps)
    other = ModelPrior().draw_from(sums, 20, np.random.default_rng(4))
    assert other.rewards.tobytes() != one.rewards.tobytes()


def test_a_chain_changes_nothing_but_its_state():
    space, steps = some_log(0.0)
    hierarchy = build_hierarchy(record_all(space, steps).sums(), np.arange(5.0))
    parts = {
        f"{kind}.{name}": value
        for kind in ("layout", "data", "units")
        for name, value in getattr(hierarchy.whole, kind)._asdict().items()
    }
    before = {name: np.copy(value) for name, value in parts.items()}
    ModelPrior().run(hierarchy, 5, np.random.default_rng(0), warm_up=5)
    for name, value in parts.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


THREADS = """
import hashlib
import numpy as np
from hierarchies import random_log, record_all
from qposterior.model.model_prior import ModelPrior
models = ModelPrior().draw(record_all(*random_log(np.random.default_rng(0))), 20, np.random.default_rng(3))
print(hashlib.sha256(models.rows.tobytes() + models.rewards.tobytes()).hexdigest())
"""


def test_threads_do_not_matter():
    digests = set()
    for threads in ("1", "2"):
        environment = os.environ | {"NUMBA_NUM_THREADS": threads}
        paths = [str(Path(__file__).parents[1]), *sys.path]
        answer = subprocess.run(
            [sys.executable, "-c", THREADS],
            env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(answer.stdout.strip())
    assert len(digests) == 1


def shares_of(models, pair):
    """The draws of P(t | pair) by successor t."""
    edges = range(models.first_edge[pair], models.first_edge[pair + 1])
    return {int(models.successor[e]): models.rows[:, e].astype(float) for e in edges}


def distance(one, two):
    """Difference of two means in standard errors, by means of 40 batches."""
    batches = [x.reshape(40, -1).mean(axis=1) for x in (one, two)]
    error = np.sqrt(sum(x.var(ddof=1) / 40 for x in batches))
    return abs(one.mean() - two.mean()) / error


def test_labels_do_not_matter():
    """States and actions in another order: means and spreads of rewards and rows agree within 6 standard errors.

    That is some 120 comparisons, each with a false-alarm rate of 1e-7 (t with 78 degrees of freedom), so 1e-5 in all.
    """
    rng = np.random.default_rng(5)
    space, steps = random_log(rng, num_states=4, readings=900)
    states, actions, num = rng.permutation(4), rng.permutation(3), 1600
    plain = draw(space, steps, num=num)
    other = draw(space, [(states[s], actions[a], r, states[t]) for s, a, r, t in steps], num=num, seed=2)
    for s, a in np.ndindex(4, 3):
        k, j = space.pair(s, a), space.pair(int(states[s]), int(actions[a]))
        here, there = shares_of(plain, k), shares_of(other, j)
        assert {int(states[t]) for t in here} == set(there)
        both = [(here[t], there[int(states[t])]) for t in here]
        for one, two in [(plain.rewards[:, k], other.rewards[:, j]), *both]:
            assert distance(one, two) < 6.0
            assert distance((one - one.mean()) ** 2, (two - two.mean()) ** 2) < 6.0


def test_nothing_seen_is_refused():
    with pytest.raises(qp.InvalidInputError, match="at least one reading"):
        ModelPrior().draw(qp.Experience(plain_space(2, 2)), 8, np.random.default_rng(0))
    with pytest.raises(qp.InvalidInputError, match="num"):
        draw(*some_log(0.0), num=3)


@pytest.mark.parametrize("name", ["reward_scale", "row_scale", "alike"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_scales_must_be_positive(name, value):
    with pytest.raises(qp.InvalidInputError, match=name):
        ModelPrior(**{name: value})


def test_at_discount_one_draws_are_those_of_the_log():
    space, steps = some_log(0.0)
    free = StateActionSpace.from_mask(np.ones((5, 3), bool), np.zeros(5, bool), discount=1.0)
    one, two = draw(space, steps, num=200), draw(free, steps, num=200)
    tried = record_all(space, steps).count > 0
    spread = one.rewards.std(axis=0)[tried]
    assert np.all(np.abs(one.rewards.mean(axis=0) - two.rewards.mean(axis=0))[tried] < 0.7 * spread)
    assert_proper(two)
