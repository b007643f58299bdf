"""Many models at once: optima, values and visits against enumeration of all policies, dense algebra and `solve`."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qposterior as qp
from qposterior.errors import InvalidInputError
from qposterior.model import model_order
from qposterior.model.solve_models import ModelSolver, policy_values, solve_ending, solve_models
from qposterior.world import models as records
from qposterior.world.models import ModelDraws


def random_models(
    seed, *, states=5, actions=3, branching=3, draws=4, discount=0.9, goals=0, dtype=np.float64, cost=0.0, acyclic=False
):
    """Models with ragged actions and rows of ragged length; the last states are goals."""
    rng = np.random.default_rng(seed)
    is_goal = np.arange(states) >= states - goals
    mask = rng.random((states, actions)) < 0.7
    mask[:, rng.integers(actions)] = True
    space = qp.StateActionSpace.from_mask(mask, is_goal, discount=discount)
    successors = []
    for s in space.pair_state:
        among = np.arange(s + 1, states) if acyclic else np.arange(states)
        size = min(int(rng.integers(1, branching + 1)), among.size)
        row = rng.choice(among, size, replace=False)
        successors.append(np.sort(row))
    lengths = [len(row) for row in successors]
    first = np.concatenate([[0], np.cumsum(lengths)])
    rows = rng.standard_gamma(0.7, (draws, first[-1])) + 1e-3
    rows /= np.repeat(np.add.reduceat(rows, first[:-1], axis=1), lengths, axis=1)
    rewards = rng.normal(-cost, 1.0, (draws, space.num_pairs))
    return ModelDraws(
        space=space,
        first_edge=first,
        successor=np.concatenate(successors),
        rows=rows.astype(dtype),
        rewards=rewards if cost == 0.0 else -np.abs(rewards),
    )


def walking(seed, *, states=300, draws=3, discount=0.95, ends=True, shift=0.0):
    """A long walk whose states lead to near ones: it mixes slowly, and everything is one component."""
    rng = np.random.default_rng(seed)
    space = qp.StateActionSpace.from_mask(
        np.ones((states, 2), dtype=bool), np.arange(states) >= states - int(ends), discount=discount
    )
    low = np.maximum(space.pair_state - 1, 0)
    high = np.minimum(space.pair_state + 1, states - 1)
    successor, lengths, chance = [], [], []
    for k, s in enumerate(space.pair_state):
        near = sorted({low[k], s, high[k]})
        lengths.append(len(near))
        successor += near
        up = 0.6 if space.pair_action[k] else 0.2
        weights = {low[k]: 0.3, s: 0.1}
        weights[high[k]] = weights.get(high[k], 0.0) + up
        chance += [weights[t] for t in near]
    first = np.concatenate([[0], np.cumsum(lengths)])
    rows = rng.standard_gamma(30.0 * np.array(chance), (draws, first[-1]))
    rows /= np.repeat(np.add.reduceat(rows, first[:-1], axis=1), lengths, axis=1)
    return ModelDraws(
        space=space,
        first_edge=first,
        successor=np.array(successor),
        rows=rows,
        rewards=shift - 1.0 + 0.1 * rng.standard_normal((draws, space.num_pairs)),
    )


@pytest.fixture(params=["elimination", "sweeps"])
def method(request, monkeypatch):
    use(request.param, monkeypatch)
    return request.param


def use(method, patch):
    """Let all components be solved by one method."""
    for name in ("SURE_STATES", "MOST_DENSE"):
        patch.setattr(model_order, name, 2000 if method == "elimination" else 0)
    patch.setattr(model_order, "WORK_AN_EDGE", 10**9)


def dense(models, draw):
    """(K, S) rows, normalised, of one model."""
    rows = np.zeros((models.space.num_pairs, models.space.num_states))
    pair = np.repeat(np.arange(models.space.num_pairs), np.diff(models.first_edge))
    rows[pair, models.successor] = models.rows[draw]
    return rows / rows.sum(axis=1, keepdims=True)


def system(models, draw, policy):
    """(I − γ P_π, r_π) over all states, goals included as states that are left at once."""
    space = models.space
    choice = np.zeros((space.num_states, space.num_pairs))
    choice[space.pair_state, np.arange(space.num_pairs)] = policy
    step = choice @ dense(models, draw)
    step[:, space.is_goal] = 0.0
    return np.eye(space.num_states) - space.discount * step, choice @ models.rewards[draw]


def random_policy(space, seed):
    weights = np.random.default_rng(seed).standard_gamma(0.5, space.num_pairs) + 1e-6
    return weights / np.bincount(space.pair_state, weights, space.num_states)[space.pair_state]


def enumerated(models, draw):
    """V* as the largest value of all deterministic policies, state by state."""
    space, best = models.space, np.full(models.space.num_states, -np.inf)
    pairs = [range(space.first_pair[s], space.first_pair[s + 1]) for s in space.deciding_states]
    for chosen in itertools.product(*pairs):
        policy = np.zeros(space.num_pairs)
        policy[list(chosen)] = 1.0
        matrix, right = system(models, draw, policy)
        best = np.maximum(best, np.linalg.solve(matrix, right))
    return best


@given(
    seed=st.integers(0, 10**6),
    states=st.integers(2, 5),
    actions=st.integers(1, 3),
    goals=st.integers(0, 1),
    discount=st.sampled_from([0.5, 0.95, 0.999]),
    method=st.sampled_from(["elimination", "sweeps"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_that_of_all_policies(seed, states, actions, goals, discount, method, dtype):
    models = random_models(
        seed, states=states + goals, actions=actions, goals=goals, discount=discount, dtype=dtype, draws=3
    )
    with pytest.MonkeyPatch.context() as patch:
        use(method, patch)
        solution = solve_models(models, tolerance=1e-10)
    assert solution.num_unsolved == 0
    for d in range(3):
        value = enumerated(models, d)
        q = models.rewards[d] + discount * dense(models, d) @ np.where(models.space.is_goal, 0.0, value)
        np.testing.assert_allclose(solution.q[d], q, rtol=1e-9, atol=1e-8 * (1.0 + np.ptp(q)))
        allowed = max(1e-10 * np.ptp(q), 1e-11 * np.abs(q).max() / (1.0 - discount))
        assert solution.bounds[d] <= (allowed if method == "sweeps" else 0.0)


def test_undiscounted_optima_are_those_of_solve(method):
    for seed in range(8):
        models = random_models(seed, states=9, goals=1, discount=1.0, cost=1.0, branching=5)
        solution = solve_models(models)
        for d in range(models.num_draws):
            try:
                truth = qp.solve(models.mdp(d)).pair_q
            except qp.NoUniqueSolutionError:
                assert not solution.solved[d]
                assert np.isnan(solution.q[d]).all()
                continue
            np.testing.assert_allclose(solution.q[d], truth, rtol=1e-8)


def test_large_components_are_within_the_bound_of_solve(method):
    for seed in range(2):
        for discount, ends in ((0.9, True), (0.99, False), (0.999, True), (1.0, True)):
            models = walking(seed, discount=discount, ends=ends, states=600)
            solution = solve_models(models)
            for d in range(models.num_draws):
                truth = qp.solve(models.mdp(d))
                error = np.abs(models.space.maximum(solution.q[d]) - truth.value).max()
                # `solve` itself is right up to rounding times the largest value.
                assert error <= solution.bounds[d] + 1e-11 * np.abs(truth.value).max() / (1.0 - min(discount, 0.999))
                assert solution.bounds[d] <= 1e-9 * np.ptp(truth.pair_q)


def test_the_bound_holds_where_sweeps_stop_early(monkeypatch):
    use("sweeps", monkeypatch)
    # With a loose tolerance the error is of the size of the bound, not of rounding; it must stay below it.
    ratios = []
    for seed in range(5):
        for discount, ends in ((0.95, True), (0.95, False), (0.99, True), (0.99, False)):
            models = walking(seed, discount=discount, ends=ends)
            exact, rough = solve_models(models, tolerance=1e-10), solve_models(models, tolerance=1e-2)
            error = np.abs(models.space.maximum(rough.q) - models.space.maximum(exact.q)).max(axis=1)
            assert np.all(error <= rough.bounds + exact.bounds)
            assert np.all(rough.bounds <= 1e-2 * np.ptp(rough.q, axis=1))
            ratios.append((error / rough.bounds).max())
    assert max(ratios) > 0.01


def test_a_level_of_rewards_that_dwarfs_their_spread_does_not_prevent_a_solution(method):
    near = walking(3, discount=0.99, ends=False)
    far = walking(3, discount=0.99, ends=False, shift=1e6)
    np.testing.assert_allclose(solve_models(far).q - 1e8, solve_models(near).q, atol=1e-3)


@pytest.mark.parametrize("discount", [0.9, 0.99, 1.0])
@pytest.mark.parametrize("goals", [1, 2])
def test_values_and_visits_of_a_stochastic_policy_are_those_of_dense_algebra(method, discount, goals):
    for seed in range(5):
        models = random_models(seed, states=9, goals=goals, discount=discount, branching=5)
        space, rng = models.space, np.random.default_rng(seed)
        policy = random_policy(space, seed)
        start = np.where(space.is_goal, 0.0, rng.random(space.num_states))
        start /= start.sum()
        values = policy_values(models, policy)
        visits = ModelSolver(models).visits(policy, start)
        for d in range(models.num_draws):
            matrix, right = system(models, d, policy)
            if np.linalg.cond(matrix) > 1e9:
                continue
            np.testing.assert_allclose(values[d], np.linalg.solve(matrix, right), rtol=1e-7, atol=1e-7)
            expected = np.where(space.is_goal, 0.0, np.linalg.solve(matrix.T, start))
            np.testing.assert_allclose(visits[d], expected, rtol=1e-6, atol=1e-7)
            payoff = np.bincount(space.pair_state, policy * models.rewards[d], space.num_states)
            np.testing.assert_allclose(start @ values[d], visits[d] @ payoff, rtol=1e-6, atol=1e-8)


def test_slow_walks_are_evaluated_within_the_tolerance(method):
    for discount, ends in ((0.99, False), (0.999, True), (1.0, True)):
        models = walking(0, discount=discount, ends=ends, states=700)
        policy = random_policy(models.space, 1)
        policy[models.space.pair_action == 1] += 1.0
        policy /= np.bincount(models.space.pair_state, policy)[models.space.pair_state]
        start = np.zeros(models.space.num_states)
        start[0] = 1.0
        values, visits = policy_values(models, policy), ModelSolver(models).visits(policy, start)
        for d in range(models.num_draws):
            matrix, right = system(models, d, policy)
            value = np.linalg.solve(matrix, right)
            np.testing.assert_allclose(values[d], value, atol=2e-9 * np.ptp(value) + 1e-10 * np.abs(value).max())
            expected = np.where(models.space.is_goal, 0.0, np.linalg.solve(matrix.T, start))
            assert np.abs(visits[d] - expected).sum() <= 2e-9 * expected.sum()


def test_an_acyclic_problem_is_solved_without_error():
    models = random_models(2, states=40, goals=1, discount=1.0, branching=4, acyclic=True)
    solution = solve_models(models)
    np.testing.assert_array_equal(solution.bounds, 0.0)
    policy = random_policy(models.space, 2)
    values = policy_values(models, policy)
    for d in range(models.num_draws):
        np.testing.assert_allclose(solution.q[d], qp.solve(models.mdp(d)).pair_q, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(values[d], np.linalg.solve(*system(models, d, policy)), rtol=1e-11, atol=1e-12)


def two_states(loop_reward, exit_chance=0.5, second=0.0):
    """State 0 may stay for `loop_reward` or try to leave at a cost of 1; the try succeeds with `exit_chance`."""
    space = qp.StateActionSpace.from_mask(np.ones((2, 2), dtype=bool), np.array([False, True]))
    rows = np.array([[1.0, 1.0 - chance, chance] for chance in (exit_chance, second)])
    rewards = np.array([[loop_reward, -1.0], [-1.0, -1.0]])
    return ModelDraws(
        space=space, first_edge=np.array([0, 1, 3]), successor=np.array([0, 0, 1]), rows=rows, rewards=rewards
    )


def test_a_loop_that_pays_and_a_trap_are_counted_and_nothing_else_is(method):
    fine = solve_models(two_states(-0.5, second=0.25))
    np.testing.assert_allclose(fine.q, [[-2.5, -2.0], [-5.0, -4.0]], rtol=1e-8)
    assert fine.num_unsolved == 0
    assert solve_models(two_states(0.5, second=0.25)).solved.tolist() == [False, True]
    # The successor that leads out has probability 0 in the second model, although the first one has it.
    trap = solve_models(two_states(-0.5, second=0.0))
    assert trap.solved.tolist() == [True, False]
    assert trap.num_unsolved == 1


@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_models_whose_best_decisions_hardly_ever_end_are_left_out(unit):
    """To stay pays 0.1 in one model of ten and ends once in 10⁶ steps; elsewhere it costs, and one leaves at once."""
    space = qp.StateActionSpace.from_mask(np.array([[True, True], [False, False]]), np.array([False, True]))
    pays = np.arange(10) == 3
    models = ModelDraws(
        space=space,
        first_edge=np.array([0, 2, 3]),
        successor=np.array([0, 1, 1]),
        rows=np.tile([1.0 - 1e-6, 1e-6, 1.0], (10, 1)),
        rewards=unit * np.column_stack([np.where(pays, 0.1, -0.1), np.full(10, 1.0)]),
    )
    plain, ending = solve_models(models), solve_ending(models)
    assert plain.solved.all()
    assert plain.q[3, 0] == pytest.approx(1e5 * unit, rel=1e-3)
    np.testing.assert_array_equal(ending.solved, ~pays)
    np.testing.assert_array_equal(np.isnan(ending.q).all(axis=1), pays)
    np.testing.assert_array_equal(ending.q[~pays], plain.q[~pays])
    discounted = replace(models, space=replace(space, discount=0.9))
    assert solve_ending(discounted).solved.all()
    # A loop that pays for certain has no solution at all, and does not hide the others.
    trapped = replace(models, rows=np.where(pays[:, None], [1.0, 0.0, 1.0], models.rows))
    np.testing.assert_array_equal(solve_ending(trapped).solved, ~pays)


def test_a_policy_that_never_leaves_has_no_value_and_the_other_states_have_theirs():
    # 0 → 1 or goal; 1 stays for ever under the policy; 2 → goal.
    space = qp.StateActionSpace.from_mask(np.ones((4, 1), dtype=bool), np.arange(4) == 3)
    models = ModelDraws(
        space=space,
        first_edge=np.array([0, 2, 3, 4]),
        successor=np.array([1, 3, 1, 3]),
        rows=np.array([[0.5, 0.5, 1.0, 1.0]]),
        rewards=np.array([[-1.0, -1.0, -3.0]]),
    )
    np.testing.assert_array_equal(policy_values(models, np.ones(3)), [[np.nan, np.nan, -3.0, 0.0]])
    start = np.array([0.0, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(ModelSolver(models).visits(np.ones(3), start), [[0.0, 0.0, 1.0, 0.0]])
    assert np.isnan(ModelSolver(models).visits(np.ones(3), np.array([1.0, 0.0, 0.0, 0.0]))).all()


def test_actions_that_agree_tie_exactly_whatever_solves_them(method):
    models = walking(5, discount=0.99)
    copies = np.flatnonzero(models.space.pair_action == 1)
    rows, rewards = models.rows.copy(), models.rewards.copy()
    for k in copies:
        a, b, c = models.first_edge[k - 1 : k + 2]
        rows[:, b:c] = rows[:, a:b]
    rewards[:, copies] = rewards[:, copies - 1]
    same = ModelDraws(
        space=models.space, first_edge=models.first_edge, successor=models.successor, rows=rows, rewards=rewards
    )
    q = solve_models(same).q
    np.testing.assert_array_equal(q[:, copies], q[:, copies - 1])
    np.testing.assert_array_equal(models.space.optimal_share(q), 0.5)


def test_blocks_selections_and_mapped_files_give_the_same_bytes(tmp_path, monkeypatch):
    models = random_models(7, states=90, draws=11, dtype=np.float32, branching=6)
    path = tmp_path / "rows.dat"
    stored = np.memmap(path, dtype=np.float32, mode="w+", shape=models.rows.shape)
    stored[:] = models.rows
    stored.flush()
    mapped = ModelDraws(
        space=models.space,
        first_edge=models.first_edge,
        successor=models.successor,
        rows=np.memmap(path, dtype=np.float32, mode="r", shape=models.rows.shape),
        rewards=models.rewards,
    )
    whole = solve_models(models)
    np.testing.assert_array_equal(solve_models(mapped).q, whole.q)
    some = np.array([1, 4, 5])
    mean = models.mean(some)
    np.testing.assert_allclose(mean.rows[0], models.rows[some].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(solve_models(models, draws=some).q, whole.q[some], rtol=1e-7)
    policy = random_policy(models.space, 0)
    np.testing.assert_array_equal(policy_values(mapped, policy, draws=some), policy_values(models, policy)[some])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_BYTES", 8 * models.num_edges * 4)
        blocks = list(ModelSolver(models).solve_blocks())
        assert len(blocks) > 2
    np.testing.assert_allclose(np.concatenate([block.q for block in blocks]), whole.q, rtol=1e-7)
    out = np.zeros((11, models.space.num_pairs), dtype=np.float32)
    assert solve_models(models, out=out).q is out
    np.testing.assert_allclose(out, whole.q, rtol=1e-5)


def test_rows_of_single_precision_are_normalised():
    # At discount 0.999 rows that sum to 1 + 1e-7 would be off by a ten-thousandth of V.
    models = random_models(4, states=12, discount=0.999)
    single = models.rows.astype(np.float32)
    total = np.add.reduceat(single.astype(float), models.first_edge[:-1], axis=1)
    exact = single / np.repeat(total, np.diff(models.first_edge), axis=1)
    found = [
        solve_models(
            ModelDraws(
                space=models.space,
                first_edge=models.first_edge,
                successor=models.successor,
                rows=rows,
                rewards=models.rewards,
            )
        ).q
        for rows in (single, exact)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-11)


THREADS = """
import sys, hashlib
sys.path.insert(0, "tests/algebra")
from test_models import *
digest = hashlib.sha256()
for models in (random_models(1, states=30, draws=400), random_models(2, states=200, draws=40, discount=0.99)):
    policy = random_policy(models.space, 3)
    start = np.where(models.space.is_goal, 0.0, 1.0)
    visits = ModelSolver(models).visits(policy, start / start.sum())
    for found in (solve_models(models).q, policy_values(models, policy), visits):
        digest.update(found.tobytes())
print(digest.hexdigest())
"""


def test_the_number_of_threads_does_not_matter():
    found = {
        subprocess.run(
            [sys.executable, "-c", THREADS],
            env=os.environ | {"NUMBA_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(found) == 1


def test_what_is_not_a_set_of_models_is_refused():
    models = random_models(0)
    parts = {name: getattr(models, name) for name in ("space", "first_edge", "successor", "rows", "rewards")}
    for change, message in (
        ({"first_edge": models.first_edge[:-1]}, "first_edge must ascend"),
        ({"successor": models.successor + 5}, "successors must lie in"),
        ({"successor": models.successor[::-1]}, "must ascend"),
        ({"rows": models.rows[:, :-1]}, "rows must have shape"),
        ({"rows": np.ones(models.rows.shape, dtype=int)}, "float32 or float64"),
        ({"rewards": models.rewards[1:]}, "rewards must have shape"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            ModelDraws(**(parts | change))
    with pytest.raises(InvalidInputError, match=r"sum to 1; 1 of 1 models"):
        solve_models(ModelDraws(**(parts | {"rows": 2.0 * models.rows})))
    with pytest.raises(InvalidInputError, match="sum to 1"):
        policy_values(models, np.zeros(models.space.num_pairs))
    with pytest.raises(InvalidInputError, match="draws must lie in 0 … 3, got 4 to 4"):
        solve_models(models, draws=np.array([4]))
