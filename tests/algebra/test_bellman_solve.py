"""The Bellman solve, its adjoint and its determinant, against value iteration, finite differences and dense algebra."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from itertools import permutations
from math import log

import numpy as np
import pytest

import qposterior as qp
from problems import SHAPES, log_determinant, random_problem, slow_solution
from qposterior.model.kernels import bellman
from qposterior.model.kernels.layout import build_layout


def layout_of(seen):
    return build_layout(seen.space, seen.observed_pairs, seen.table())


def random_psi(seen, rng):
    psi = rng.normal(0.0, 2.0, seen.space.num_pairs)
    psi[seen.observed_pairs] = -np.abs(psi[seen.observed_pairs]) - 0.01
    return psi


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_theta_is_the_smallest_solution_and_the_determinant_is_the_dense_one(shape, seed):
    _, seen = random_problem(shape, seed)
    layout = layout_of(seen)
    work = bellman.new_work(layout)
    rng = np.random.default_rng(seed)
    for _ in range(3):  # the second and third solve start from the policy of the one before
        psi = random_psi(seen, rng)
        fine, log_det = bellman.solve(layout, psi, work)
        assert fine
        np.testing.assert_allclose(work.theta, slow_solution(seen, psi), atol=1e-9)
        np.testing.assert_allclose(log_det, log_determinant(seen, work.theta), atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_the_adjoint_is_the_derivative_of_every_theta(shape, seed):
    _, seen = random_problem(shape, seed)
    layout = layout_of(seen)
    rng = np.random.default_rng(seed)
    psi, slope = random_psi(seen, rng), rng.standard_normal(seen.space.num_pairs)
    work = bellman.new_work(layout)
    bellman.solve(layout, psi, work)
    gradient = slope.copy()
    bellman.pull_back(layout, gradient, work)
    for k in range(seen.space.num_pairs):
        ends = []
        for shift in (1e-6, -1e-6):
            moved = psi.copy()
            moved[k] += shift
            other = bellman.new_work(layout)
            bellman.solve(layout, moved, other)
            ends.append(slope @ other.theta)
        np.testing.assert_allclose(gradient[k], (ends[0] - ends[1]) / 2e-6, atol=1e-6)


def test_components_come_successors_first_and_cover_the_deciding_states():
    _, seen = random_problem("looping", 3, num_states=8)
    layout = layout_of(seen)
    met = {int(seen.space.pair_state[k]) for k in seen.observed_pairs}
    met |= {int(t) for k in seen.observed_pairs for t in seen.row(int(k))[0] if not seen.space.is_goal[t]}
    assert sorted(layout.component_state.tolist()) == sorted(met)
    for i, k in enumerate(layout.observed):
        source = layout.component_of[seen.space.pair_state[k]]
        for t in layout.successor[layout.row_start[i] : layout.row_start[i + 1]]:
            assert seen.space.is_goal[t] or layout.component_of[t] <= source
    sea = qp.make_environment("deep-sea", depth=6)
    pairs = zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True)
    assert not layout_of(qp.Experience.of_pairs(sea, pairs)).has_loop.any()


def ring(length, reward, exit_payoff_unknown=True):
    """A ring of states 0 → 1 → … → 0 that pays `reward` a step; from state 0 an unknown second action."""
    edges = [(s, 0, (s + 1) % length, 1.0, reward) for s in range(length)]
    edges += [(0, 1, length, 1.0, 0.0)] if exit_payoff_unknown else []
    mdp = qp.FiniteMDP.from_edges([*edges, (length - 1, 1, length, 1.0, 0.0)], goal=[length])
    pairs = [(s, 0) for s in range(length)] + ([] if exit_payoff_unknown else [(length - 1, 1)])
    return qp.Experience.of_pairs(mdp, pairs)


def test_a_loop_that_pays_has_no_solution_and_one_of_mean_zero_goes_to_the_exit():
    for reward, fine in ((-0.5, True), (0.0, True), (1e-3, False)):
        seen = ring(4, reward)
        layout = layout_of(seen)
        work = bellman.new_work(layout)
        psi = seen.reward_mean.copy()
        exits = np.flatnonzero(~seen.observed)
        psi[exits] = [2.0, -1.0]
        assert bellman.solve(layout, psi, work)[0] == fine
        if fine:
            # From state s the best exit is at 0 (payoff 2) after the steps that are left, or the one of state 3 (−1).
            np.testing.assert_allclose(work.value[0], 2.0)
            np.testing.assert_allclose(work.value[1:4], 2.0 + reward * np.array([3, 2, 1]))
            assert work.greedy[0] == exits[0]


def test_a_trap_has_no_solution_at_discount_one_and_one_below():
    edges = [(0, 0, 1, 1.0, -1.0), (1, 0, 0, 1.0, -2.0), (2, 0, 3, 1.0, 0.0), (2, 1, 0, 1.0, 0.0)]
    for discount, fine in ((1.0, False), (0.5, True)):
        mdp = qp.FiniteMDP.from_edges(edges, goal=[3], discount=discount)
        seen = qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])
        layout = layout_of(seen)
        work = bellman.new_work(layout)
        answer, log_det = bellman.solve(layout, seen.reward_mean, work)
        assert answer == fine
        if fine:
            np.testing.assert_allclose(work.value[:2], [(-1 - 0.5 * 2) / (1 - 0.25), (-2 - 0.5 * 1) / (1 - 0.25)])
            np.testing.assert_allclose(log_det, np.log(1 - 0.25))


def test_the_quick_sweeps_are_the_general_ones():
    sea = qp.make_environment("deep-sea", depth=6)
    rng = np.random.default_rng(0)
    pairs = zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True)
    seen = qp.Experience.of_pairs(sea, [pair for pair in pairs if rng.random() < 0.6])
    quick = layout_of(seen)
    assert quick.is_simple
    for discount in (1.0, 0.8):
        found = []
        for layout in (quick._replace(discount=discount), quick._replace(discount=discount, is_simple=False)):
            work, psi = bellman.new_work(layout), np.random.default_rng(1).normal(0.0, 2.0, sea.space.num_pairs)
            assert bellman.solve(layout, psi, work) == (True, 0.0)
            slope = np.random.default_rng(2).normal(size=psi.size)
            bellman.pull_back(layout, slope, work)
            found.append((work.theta.copy(), slope))
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


HARDLY_LEFT = np.array(
    [
        [1e-18, 1e-15, 1.0, 1e-16],
        [1e-15, 1.0, 1e-15, 1e-16],
        [1e-18, 1.0, 1e-16, 1e-16],
        [1e-17, 1e-18, 1.0, 1e-16],
        [1.0, 1e-15, 1e-15, 1e-15],
        [1e-16, 1e-16, 1.0, 1e-15],
    ]
)
"""Rows of three states with two actions each; column 3 is the goal. I − P is singular but for rounding."""
COSTS = np.array([-0.03, -0.01, -0.03, -0.01, -0.02, -0.03])


def solve_hardly_left(rows=HARDLY_LEFT, rewards=COSTS):
    """Solve a component of three states, all pairs seen; return whether it was solved, the log determinant and V."""
    from qposterior.world.transitions import TransitionTable

    space = qp.StateActionSpace.from_mask(np.ones((4, 2)), [False, False, False, True])
    every = np.arange(6)
    table = TransitionTable(
        num_states=4, row_start=np.arange(7) * 4, successor=np.tile(np.arange(4), 6), probability=rows.ravel()
    )
    layout = build_layout(space, every, table)
    work = bellman.new_work(layout)
    fine, log_det = bellman.solve(layout, rewards.copy(), work)
    return fine, log_det, work.value[:3].copy(), work.greedy[:3].copy()


def policy_in_fractions(rows, rewards, policy):
    """Return V of one policy and det(I − P), by Gauss–Jordan elimination without rounding; P(stay) is what is left."""
    size = len(policy)
    exact = [[Fraction(float(p)) for p in row] for row in rows]
    a = [[-p / sum(exact[k]) for p in exact[k][:size]] + [Fraction(float(rewards[k]))] for k in policy]
    for i in range(size):
        a[i][i] += 1
    det = Fraction(1)
    for i in range(size):
        det *= a[i][i]
        a[i] = [entry / a[i][i] for entry in a[i]]
        for j in {*range(size)} - {i}:
            a[j] = [mine - a[j][i] * pivot for mine, pivot in zip(a[j], a[i], strict=True)]
    return [row[size] for row in a], det


def log_of(fraction):
    """Return the log of a fraction that may be too small for a float."""
    return log(fraction.numerator) - log(fraction.denominator)


def check_that_it_returns(function):
    """Call a function of this file as plain Python in a process with a time limit: a kernel cannot be interrupted.

    Rounding once made policies take turns for ever.
    """
    code = f"import test_bellman_solve as t; t.{function}()"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True)


def test_a_component_that_is_hardly_ever_left_is_solved_to_full_relative_precision():
    check_that_it_returns("solve_hardly_left")
    fine, log_det, value, greedy = solve_hardly_left()
    assert fine
    values, det = policy_in_fractions(HARDLY_LEFT, COSTS, greedy)
    np.testing.assert_allclose(value, [float(v) for v in values], rtol=1e-13)
    np.testing.assert_allclose(log_det, log_of(det), rtol=1e-13)


SLIP = 1e-5
LADDER = np.array(
    [
        [0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0 - SLIP, 0.0, 0.0, SLIP],
        [SLIP, 0.0, 0.0, 1.0 - SLIP, 0.0, 0.0],
        [0.0, 0.0, SLIP, 0.0, 1.0 - SLIP, 0.0],
        [0.0, 0.0, 0.0, SLIP, 1.0 - SLIP, 0.0],
    ]
)
"""The rows that a particle of `abrl` drew in episode 13 of MiniGrid-Empty-6x6, less the states that only pass on.

Column 5 is the goal. The last state pays, and four slips in a row lead out of it: I − P is singular but for rounding.
State 0 has a pair that was never tried as well.
"""
WAGES = np.array([0.0, 0.0, 0.0, 0.0, 0.05])
UNTRIED = 1.6


def solve_ladder(order=(0, 1, 2, 3, 4)):
    """Solve the ladder with its states numbered in an order; return whether it was solved, log det and V by state."""
    from qposterior.world.transitions import TransitionTable

    place = np.argsort(order)  # of a state in the order
    mask = np.ones((6, 2), dtype=bool)
    mask[np.setdiff1d(np.arange(5), place[0]), 1] = False
    space = qp.StateActionSpace.from_mask(mask, np.arange(6) == 5)
    rows = LADDER[np.ix_(order, [*order, 5])]
    pair, successor = np.nonzero(rows)
    table = TransitionTable(
        num_states=6,
        row_start=np.searchsorted(pair, np.arange(6)),
        successor=successor,
        probability=rows[pair, successor],
    )
    psi = np.full(6, UNTRIED)
    tried = space.pair_index[:5, 0]
    psi[tried] = WAGES[list(order)]
    layout = build_layout(space, tried, table)
    work = bellman.new_work(layout)
    fine, log_det = bellman.solve(layout, psi, work)
    return fine, log_det, work.value[place]


def test_the_rows_on_which_minigrid_hung_are_solved_exactly():
    check_that_it_returns("solve_ladder")
    values, det = policy_in_fractions(LADDER, WAGES, range(5))
    assert min(values) > UNTRIED  # climbing for 1e18 and more is better than what was never tried
    for order in permutations(range(5)):
        fine, log_det, value = solve_ladder(order)
        assert fine
        np.testing.assert_allclose(value, [float(v) for v in values], rtol=1e-13)
        np.testing.assert_allclose(log_det, log_of(det), rtol=1e-13)


def test_a_component_that_is_never_left_has_no_solution():
    closed = np.where(np.arange(4) == 3, 0.0, HARDLY_LEFT)  # the rows name the goal, with probability 0
    assert not solve_hardly_left(closed)[0]


def test_random_components_that_are_hardly_ever_left_are_solved_or_given_up_with_finite_numbers():
    # Rows drawn as unknown ones are: gammas of small shape, many of them tiny.
    solved = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        rows = rng.standard_gamma(0.02, (6, 4)) + np.finfo(float).tiny
        rows[np.arange(6), rng.integers(3, size=6)] += 1.0
        rows /= rows.sum(axis=1, keepdims=True)
        rewards = -0.01 * rng.integers(1, 4, size=6)
        fine, log_det, value, greedy = solve_hardly_left(rows, rewards)
        if not fine:
            continue
        values, det = policy_in_fractions(rows, rewards, greedy)
        np.testing.assert_allclose(value, [float(v) for v in values], rtol=1e-12)
        np.testing.assert_allclose(log_det, log_of(det), rtol=1e-12)
        policies = [policy_in_fractions(rows, rewards, (a, 2 + b, 4 + c))[0] for a, b, c in np.ndindex(2, 2, 2)]
        best = np.array([max(float(v[s]) for v in policies) for s in range(3)])
        # Where nothing leaves with more than 1e-11, a better way out cannot be told from rounding: far below any prior.
        is_best = np.all(best <= value + 1e-9 * np.abs(value))
        assert is_best or best.min() < -1e6
        solved += is_best
    assert solved > 200


def test_rows_that_sum_to_one_only_up_to_the_tolerance_of_tables_are_solved():
    # The greedy pair itself then seems better than its own value, round after round.
    rows = np.array([[0.0, 0.9, 0.0, 0.1], [0.2, 0.2, 0.2, 0.4], [0.5, 0.0, 0.4, 0.1]])[[0, 1, 2, 1, 0, 2]]
    for excess in (5e-9, -5e-9):
        fine, log_det, value, _ = solve_hardly_left(rows * (1.0 + excess), 100.0 * COSTS)
        assert fine
        exact = solve_hardly_left(rows, 100.0 * COSTS)
        np.testing.assert_allclose(value, exact[2], rtol=1e-6)
        np.testing.assert_allclose(log_det, exact[1], rtol=1e-6)
