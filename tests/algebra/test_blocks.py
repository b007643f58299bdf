"""Particles in blocks against the general kernels, against quadrature and against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

import qposterior as qp
from qposterior.inference.smc.blocks import Blocks
from qposterior.model.kernels.blocks import block_densities
from qposterior.model.kernels.lanes import LANES
from qposterior.model.noise import Tolerance
from qposterior.model.target import Target


def acyclic_problem(seed, *, num_states=14, discount=1.0, share=0.6):
    """A random acyclic deterministic problem: one to four actions a state, ways of different length, goals, ties.

    Return the problem, the pairs of a random part of it in random order, and a prior with a mean and scale for each.
    """
    rng = np.random.default_rng(seed)
    edges = []
    for s in range(num_states - 1):
        for action in range(int(rng.integers(1, 5))):
            end = int(rng.integers(s + 1, min(num_states, s + 6)))
            edges.append((s, action, end, 1.0, float(rng.normal(0.2, 1.0))))
        if rng.random() < 0.3:  # the same again: a tie whatever the values are
            edges.append((s, edges[-1][1] + 1, *edges[-1][2:]))
    mdp = qp.FiniteMDP.from_edges(edges, goal=[num_states - 1], discount=discount)
    pairs = [pair for pair in mdp.space.pairs() if rng.random() < share]
    num = mdp.space.num_pairs
    prior = qp.GaussianPrior(mean=rng.normal(0.4, 0.8, num), scale=rng.uniform(0.5, 2.0, num))
    return mdp, [pairs[i] for i in rng.permutation(len(pairs))], prior


def blocks_of(seen, prior, x):
    """Blocks whose ``(N, K)`` free values are x."""
    blocks = Blocks.of(seen, prior.compiled(seen.space.num_pairs), x)
    assert blocks is not None
    return blocks


CASES = [(seed, discount) for seed in range(12) for discount in (1.0, 0.9)]


@pytest.mark.parametrize(("seed", "discount"), CASES)
def test_density_gradient_and_theta_are_those_of_the_general_kernel(seed, discount):
    mdp, pairs, prior = acyclic_problem(seed, discount=discount)
    seen = qp.Experience.of_pairs(mdp, pairs)
    target = Target(seen, prior, Tolerance())
    free, rng = target.chart.free, np.random.default_rng(seed)
    x = np.zeros((2 * LANES, mdp.space.num_pairs))
    x[:] = rng.normal(0.5, 1.5, x.shape)
    blocks = blocks_of(seen, prior, x)
    np.testing.assert_allclose(blocks.parameters(), target.to_parameters(x[:, free]), rtol=1e-12, atol=1e-12)
    opened = blocks.opened()
    inside = blocks.x[opened.exit_pair]
    grad, smooth = np.empty_like(inside), np.empty((1, inside.shape[1]))
    block_densities(0, 2, opened, inside, grad, smooth)
    density, general = target.log_density_and_grad(x[:, free])
    where = {int(k): j for j, k in enumerate(free)}
    columns = [where[int(k)] for k in opened.exit_pair]
    np.testing.assert_allclose(grad.T, general[:, columns], rtol=1e-10, atol=1e-10)
    # What the blocks leave out: exits of states never met, and constants.
    rest = np.setdiff1d(free, opened.exit_pair)
    apart = prior.log_density_and_grad(np.where(np.isin(np.arange(x.shape[1]), rest), x, prior.mean), mdp.space)[0]
    gap = density.total - smooth[0] - apart
    assert opened.exit_pair.size == 0 or np.ptp(density.total) > 1.0
    np.testing.assert_allclose(gap, gap[0], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("seed", "discount"), CASES[:12])
def test_trajectories_are_those_of_the_general_kernel(seed, discount):
    mdp, pairs, prior = acyclic_problem(seed, discount=discount)
    seen = qp.Experience.of_pairs(mdp, pairs)
    target, rng = Target(seen, prior, Tolerance()), np.random.default_rng(seed)
    free = target.chart.free
    x = rng.normal(0.5, 1.0, (LANES, mdp.space.num_pairs))
    blocks = blocks_of(seen, prior, x)
    moves = blocks.begin_moves()
    where = {int(k): j for j, k in enumerate(free)}
    columns = [where[int(k)] for k in moves.opened.exit_pair]
    mass = np.ones(free.size)
    mass[columns] = moves.mass
    state = rng.bit_generator.state
    p = np.zeros((LANES, free.size))
    p[:, columns] = (rng.standard_normal(moves.x.shape) * np.sqrt(moves.mass)[:, None]).T
    log_uniform = np.log(rng.random((1, LANES)))[0]
    start = x[:, free]
    given = {"step": np.full(LANES, 0.6), "num_steps": np.full(LANES, 7), "inverse_mass": 1.0 / mass}
    end, end_p, density = target.leapfrog(start, p, **given)
    kinetic = 0.5 * np.sum((p**2 - end_p**2)[:, columns] / mass[columns], axis=1)
    # Coordinates of states never met stand still here: their part of the energy is left out.
    rest = [j for j in range(free.size) if j not in columns]
    z = ((start, end)[i][:, rest] - np.array(prior.mean)[free[rest]] for i in (0, 1))
    still = [-0.5 * np.sum((part / np.array(prior.scale)[free[rest]]) ** 2, axis=1) for part in z]
    gain = density.total - still[1] - target.log_density(start).total + still[0] + kinetic
    rng.bit_generator.state = state
    share = moves.run(step=0.6, num_steps=7, rng=rng)
    np.testing.assert_allclose(share, np.exp(np.minimum(gain, 0.0)).mean(), rtol=1e-8)
    taken = log_uniform < gain
    expected = np.where(taken[:, None], end, start)[:, columns]
    np.testing.assert_allclose(moves.x.T, expected, rtol=1e-8, atol=1e-9)
    assert 0.0 < share < 1.0 or not columns


@pytest.mark.parametrize(("seed", "discount"), CASES)
def test_weights_of_first_looks_are_those_of_the_general_path(seed, discount):
    """Pair by pair in random order, and the values of all states after each; one by quadrature."""
    mdp, pairs, prior = acyclic_problem(seed, discount=discount)
    rng = np.random.default_rng(seed)
    x = rng.normal(0.5, 1.5, (LANES + 3, mdp.space.num_pairs))
    full, known = qp.Experience.of_pairs(mdp, pairs), qp.Experience(mdp.space)
    blocks = blocks_of(known, prior, x)
    for number, (state, action) in enumerate(pairs):
        k = mdp.space.pair(state, action)
        before = Target(known, prior, Tolerance())
        assert blocks.takes(k, full)
        log_weight = blocks.add(k, full, rng)
        known.reveal(k, full)
        after = Target(known, prior, Tolerance())
        theta = blocks.parameters()
        inside = np.where(known.observed, 0.0, theta)[:, after.chart.free]
        np.testing.assert_allclose(theta, after.to_parameters(inside), rtol=1e-12, atol=1e-12)
        expected = after.log_density(inside).total - before.chart.log_integral(theta, k)
        np.testing.assert_allclose(log_weight, expected, rtol=1e-7, atol=1e-7)
        if number == len(pairs) - 1:
            free, n = before.chart.free, 2
            column = int(np.flatnonzero(free == k)[0])

            shift = float(after.log_density(inside).total[n])

            def density(value, point=theta[n], column=column, before=before, free=free, shift=shift):
                moved = point[free].copy()
                moved[column] = value
                return float(np.exp(before.log_density(moved[None]).total[0] - shift))

            mass = integrate.quad(density, -30.0, 30.0, points=np.linspace(-6, 6, 40).tolist(), limit=400)[0]
            np.testing.assert_allclose(log_weight[n], -np.log(mass), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_masses_are_the_largest_curvatures_and_fade(discount):
    mdp, pairs, prior = acyclic_problem(5, discount=discount, num_states=20)
    seen = qp.Experience.of_pairs(mdp, pairs)
    x = np.random.default_rng(0).normal(0.5, 1.5, (LANES, mdp.space.num_pairs))
    blocks = blocks_of(seen, prior, x)
    opened, step = blocks.opened(), 1e-5
    inside = blocks.x[opened.exit_pair]
    numeric = np.empty_like(inside)
    for u in range(inside.shape[0]):
        slopes = []
        for sign in (-1.0, 1.0):
            moved, grad, smooth = inside.copy(), np.empty_like(inside), np.empty((1, LANES))
            moved[u] += sign * step
            block_densities(0, 1, opened, moved, grad, smooth)
            slopes.append(grad[u])
        numeric[u] = (slopes[0] - slopes[1]) / (2.0 * step)
    np.testing.assert_allclose(blocks.begin_moves().mass, numeric.max(axis=1), rtol=1e-5)
    assert np.max(numeric.max(axis=1) / opened.exit_precision) > 2.0
    # An exit that nothing hangs on any more keeps most of its mass for a while.
    before = blocks.begin_moves().mass
    blocks.x[opened.exit_pair] = -50.0
    after = blocks.begin_moves().mass
    faded = opened.exit_precision + 0.9 * (before - opened.exit_precision)
    assert np.all(after >= faded - 1e-12)
    assert np.any(np.abs(after - faded) < 1e-12)


def test_only_open_states_are_swept_and_values_are_drawn_when_a_state_is_met():
    edges = [(s, a, s + 1, 1.0, 0.1 * a) for s in range(4) for a in range(2)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[4])
    seen, prior = qp.Experience.of_pairs(mdp, mdp.space.pairs()), qp.GaussianPrior()
    x = np.random.default_rng(0).normal(0.0, 4.0, (LANES, 8))
    blocks, rng = blocks_of(qp.Experience(mdp.space), prior, x), np.random.default_rng(1)
    assert blocks.opened().state.size == 0
    for k, states in ((6, [3]), (2, [3, 2, 1]), (4, [3, 2, 1]), (7, [2, 1]), (5, [1]), (0, [1, 0]), (3, [0]), (1, [])):
        met = blocks.graph.status != 0
        blocks.add(k, seen, rng)
        assert sorted(blocks.opened().state.tolist(), reverse=True) == sorted(states, reverse=True)
        new = (blocks.graph.status != 0) & ~met
        for state in np.flatnonzero(new):
            assert not np.any(np.isin(blocks.x[2 * state : 2 * state + 2], x))
        assert np.array_equal(blocks.x[0:2].T, x[:, 0:2]) or blocks.graph.status[0] != 0
    np.testing.assert_allclose(blocks.value[:, 0], [0.4, 0.3, 0.2, 0.1, 0.0])
    np.testing.assert_allclose(blocks.parameters()[0], [0.3, 0.4, 0.2, 0.3, 0.1, 0.2, 0.0, 0.1])


def test_a_block_is_what_its_lanes_are_alone_and_the_order_of_ranges_does_not_matter():
    mdp, pairs, prior = acyclic_problem(3, num_states=30)
    seen = qp.Experience.of_pairs(mdp, pairs)
    x = np.random.default_rng(0).normal(0.5, 1.5, (4 * LANES, mdp.space.num_pairs))
    opened = blocks_of(seen, prior, x).opened()
    inside = np.ascontiguousarray(x.T[opened.exit_pair])
    whole, total = np.empty_like(inside), np.empty((1, inside.shape[1]))
    block_densities(0, 4, opened, inside, whole, total)
    parts, sums = np.empty_like(inside), np.empty_like(total)
    for block in (2, 0, 3, 1):
        block_densities(block, block + 1, opened, inside, parts, sums)
    assert whole.tobytes() == parts.tobytes()
    assert total.tobytes() == sums.tobytes()


def test_losing_exits_are_drawn_from_the_prior_below_the_value_of_their_state():
    """Invariance: exits distributed as they should be, given V, stay so; winners and V do not move."""
    mdp = qp.FiniteMDP.from_edges(
        [(0, 0, 1, 1.0, 0.3), (0, 1, 2, 1.0, 0.0), (1, 0, 2, 1.0, 0.7), (1, 1, 2, 1.0, 0.0), (1, 2, 2, 1.0, 0.0)],
        goal=[2],
    )
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])
    prior = qp.GaussianPrior(mean=[0.2] * 5, scale=[1.0, 1.5, 1.0, 0.8, 1.2])
    num = 60_000
    rng = np.random.default_rng(0)
    x = np.array(prior.mean) + np.array(prior.scale) * rng.standard_normal((num, 5))
    blocks = blocks_of(seen, prior, x)
    before = blocks.value.copy()
    moves = blocks.begin_moves()
    old = moves.x.copy()
    moves.end(rng)
    np.testing.assert_array_equal(blocks.value, before)
    for row, k in enumerate(moves.opened.exit_pair.tolist()):
        state = mdp.space.pair_state[k]
        loses = old[row] < before[state]
        np.testing.assert_array_equal(moves.x[row][~loses], old[row][~loses])
        assert np.all(moves.x[row][loses] < before[state][loses])
        assert np.mean(moves.x[row][loses] != old[row][loses]) > 0.3
        # All draws are of the prior: the joint law of exit and V is what it was, so are its moments.
        for moment in (lambda v: v, lambda v: v**2, lambda v, s=state: v * before[s]):
            gap = moment(moves.x[row, :num]) - moment(old[row, :num])
            assert abs(gap.mean()) < 4.5 * gap.std() / np.sqrt(num)
    assert sorted(moves.opened.exit_pair.tolist()) == [1, 3, 4]


def test_what_is_no_problem_for_blocks_is_refused():
    edges = [
        (0, 0, 1, 1.0),
        (0, 1, 3, 1.0),
        (1, 0, 0, 1.0),
        (1, 1, 3, 1.0),
        (1, 2, 1, 1.0),
        (2, 0, 3, 0.5),
        (2, 0, 1, 0.5),
    ]
    mdp = qp.FiniteMDP.from_edges(
        [(*edge, -1.0) for edge in edges],
        goal=[3],
        discount=0.9,
    )
    seen = qp.Experience.of_pairs(mdp, mdp.space.pairs())
    prior = qp.GaussianPrior().compiled(mdp.space.num_pairs)
    blocks = Blocks(mdp.space, prior, np.zeros((4, mdp.space.num_pairs)))
    assert blocks.takes(0, seen)
    blocks.add(0, seen, np.random.default_rng(0))
    blocks.add(1, seen, np.random.default_rng(0))
    assert not blocks.takes(2, seen)  # 0 → 1 → 0
    assert not blocks.takes(4, seen)  # 1 → 1
    assert not blocks.takes(5, seen)  # two successors
    assert blocks.takes(3, seen)
    assert Blocks.of(seen, prior, np.zeros((4, mdp.space.num_pairs))) is None
