"""The conditional of one coordinate: its pieces against a grid, its draws against the grid's moments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from problems import SHAPES, random_problem
from qposterior.model.kernels import bellman, piecewise
from qposterior.model.noise import Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior
from targets import BellmanTarget

GRID = np.linspace(-30.0, 30.0, 12_001)


def start(target, x):
    work = bellman.new_work(target.layout)
    psi = np.empty(target.num_pairs)
    piecewise.to_psi(target.layout, target.data, target.chart.free, target.chart.fixed, x, psi)
    bellman.solve(target.layout, psi, work)
    return psi, work


def pieces_of(target, x, j):
    psi, work = start(target, x)
    pieces = np.empty((piecewise.MOST_PIECES, 5))
    policies = np.empty((piecewise.MOST_PIECES, target.seen.space.num_states), dtype=np.int64)
    u = target.chart.free[j]
    number = piecewise.conditional_pieces(target.layout, target.parts.prior_data, psi, u, work, pieces, policies)
    return psi, pieces[:number], policies[:number]


@pytest.mark.parametrize("prior", [GaussianPrior(mean=0.3, scale=1.8), BoundedPrior(upper=1.0, mean=0.3, scale=1.8)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_the_pieces_integrate_to_the_density_and_carry_its_policies(shape, seed, prior):
    _, seen = random_problem(shape, seed, share=0.5)
    target = BellmanTarget(seen, prior, Tolerance())
    x = target.initial(1, np.random.default_rng(seed))
    for j in range(target.num_coordinates):
        psi, pieces, policies = pieces_of(target, x[0], j)
        along = np.repeat(x, GRID.size, axis=0)
        along[:, j] = GRID
        density = target.log_density(along).total
        other = np.delete(target.chart.free, j)
        constant = -0.5 * np.sum(((psi[other] - prior.mean) / prior.scale) ** 2)
        constant -= target.num_pairs * np.log(prior.scale * np.sqrt(2.0 * np.pi))
        top = density.max()
        grid_mass = np.log(np.exp(density - top).sum() * (GRID[1] - GRID[0])) + top - constant
        np.testing.assert_allclose(np.logaddexp.reduce(pieces[:, piecewise.LOG_MASS]), grid_mass, atol=6e-3)
        for piece, policy in zip(pieces, policies, strict=True):
            low, high = max(piece[piecewise.LOW], -25.0), min(piece[piecewise.HIGH], 25.0)
            if high > low + 1e-6:
                at = x[0].copy()
                at[j] = 0.5 * (low + high)
                _, work = start(target, at)
                deciding = seen.space.deciding_states
                assert np.array_equal(work.greedy[deciding], policy[deciding])


def test_draws_from_the_pieces_have_the_grid_s_moments():
    _, seen = random_problem("looping", 1, share=0.5)
    target = BellmanTarget(seen, GaussianPrior(scale=2.0), Tolerance())
    rng = np.random.default_rng(0)
    x = target.initial(1, rng)
    for j in range(target.num_coordinates):
        _, pieces, _ = pieces_of(target, x[0], j)
        along = np.repeat(x, GRID.size, axis=0)
        along[:, j] = GRID
        weight = np.exp(target.log_density(along).total)
        weight /= weight.sum()
        mean = weight @ GRID
        sd = np.sqrt(weight @ (GRID - mean) ** 2)
        drawn = [piecewise.draw_piecewise(pieces, len(pieces), *rng.random(2))[0] for _ in range(4000)]
        # 4.5 standard errors: false-alarm rate 7e-6 each, fixed seed.
        assert abs(np.mean(drawn) - mean) < 4.5 * sd / np.sqrt(4000)
        assert abs(np.std(drawn) / sd - 1) < 0.08


@pytest.mark.parametrize("shape", ["looping", "deterministic loops"])
def test_a_compiled_sweep_is_the_same_sweep_step_by_step(shape):
    # The parallel compiler has rewritten array statements wrongly here once: the whole must equal its parts.
    _, seen = random_problem(shape, 1, share=0.5)
    target = BellmanTarget(seen, GaussianPrior(scale=2.0), Tolerance())
    rng = np.random.default_rng(0)
    x = target.initial(3, rng)
    uniforms = rng.random((3, target.num_coordinates, 2))
    swept = x.copy()
    chart, prior = target.chart, target.parts.prior_data
    piecewise.gibbs_sweep(
        0, swept.shape[0], target.layout, target.data, prior, chart.free, chart.fixed, swept, uniforms
    )
    for n in range(3):
        point = x[n].copy()
        for j in range(target.num_coordinates):
            if target.layout.component_of[seen.space.pair_state[target.chart.free[j]]] < 0:
                point[j] = 2.0 * stats.norm.ppf(uniforms[n, j, 1])  # a state never met: its prior
                continue
            _, pieces, _ = pieces_of(target, point, j)
            point[j], _ = piecewise.draw_piecewise(pieces, len(pieces), *uniforms[n, j])
        np.testing.assert_allclose(swept[n], point, atol=1e-9)


def test_sweeps_leave_the_inputs_alone_and_soft_walls_unswept():
    _, seen = random_problem("looping", 1)
    rng = np.random.default_rng(0)
    target = BellmanTarget(seen, qp.GaussianPrior(), Tolerance())
    x = target.initial(2, rng)
    copy = x.copy()
    assert not np.array_equal(target.sweep(x, rng), x)
    np.testing.assert_array_equal(x, copy)
    soft = BellmanTarget(seen, BoundedPrior(upper=0.0, softness=1.0), Tolerance())
    np.testing.assert_array_equal(soft.sweep(x, rng), x)
