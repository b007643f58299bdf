"""Loops over particles, in parallel: densities, gradients and leapfrog trajectories, the same in both coordinates.

A particle's arithmetic does not depend on the number of threads, so neither does a result.
"""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.bellman import new_work, solve
from qposterior.model.kernels.compile import kernel, particle_kernel, prange
from qposterior.model.kernels.density import LikelihoodData, PriorData, bellman_density, q_density, to_psi
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray


@particle_kernel
def q_densities(layout: Layout, data: LikelihoodData, prior: PriorData, x: FloatArray, grad: FloatArray) -> FloatArray:
    """Return ``(N,)`` log-densities of ``(N, D)`` particles in Q coordinates and write their gradients."""
    out = np.empty(x.shape[0])
    for n in prange(x.shape[0]):
        value = np.zeros(layout.is_goal.size)
        greedy = np.zeros(layout.is_goal.size, dtype=np.int64)
        out[n] = q_density(layout, data, prior, x[n], grad[n], value, greedy)
    return out


@particle_kernel
def bellman_densities(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    grad: FloatArray,
) -> FloatArray:
    """Return ``(N, 2)`` log-densities without and of the determinant, in Bellman coordinates; write the gradients."""
    out = np.empty((x.shape[0], 2))
    for n in prange(x.shape[0]):
        work = new_work(layout)
        psi, slope = np.empty(fixed.size), np.empty(fixed.size)
        smooth, rest = bellman_density(layout, data, prior, free, fixed, x[n], grad[n], psi, slope, work)
        out[n, 0], out[n, 1] = smooth, rest
    return out


@particle_kernel
def bellman_to_q(layout: Layout, data: LikelihoodData, free: IntArray, fixed: FloatArray, x: FloatArray) -> FloatArray:
    """Return ``(N, K)`` θ of ``(N, D)`` Bellman coordinates, nan where there is no solution."""
    out = np.empty((x.shape[0], fixed.size))
    for n in prange(x.shape[0]):
        work = new_work(layout)
        psi = np.empty(fixed.size)
        to_psi(layout, data, free, fixed, x[n], psi)
        fine, _ = solve(layout, psi, work)
        out[n] = work.theta
        if not fine:
            out[n] = np.nan
    return out


@kernel
def drift(x: FloatArray, p: FloatArray, step: float, inverse_mass: FloatArray, upper: FloatArray) -> None:
    """Move the position a step; a coordinate that passes its wall is reflected with its momentum."""
    for j in range(x.size):
        x[j] += step * inverse_mass[j] * p[j]
        if x[j] > upper[j]:
            x[j] = 2.0 * upper[j] - x[j]
            p[j] = -p[j]


@kernel
def kick(p: FloatArray, grad: FloatArray, step: float) -> None:
    """Change the momentum by step · gradient."""
    for j in range(p.size):
        p[j] += step * grad[j]


@particle_kernel
def q_leapfrog(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    p: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Run the leapfrog steps of alg. hmc for each particle in place; return ``(N, 2)`` log-densities at the end."""
    out = np.empty((x.shape[0], 2))
    for n in prange(x.shape[0]):
        value = np.zeros(layout.is_goal.size)
        greedy = np.zeros(layout.is_goal.size, dtype=np.int64)
        grad = np.zeros(x.shape[1])
        total = q_density(layout, data, prior, x[n], grad, value, greedy)
        for _ in range(num_steps[n]):
            kick(p[n], grad, 0.5 * step[n])
            drift(x[n], p[n], step[n], inverse_mass, upper)
            total = q_density(layout, data, prior, x[n], grad, value, greedy)
            if not np.isfinite(total):
                break
            kick(p[n], grad, 0.5 * step[n])
        out[n, 0], out[n, 1] = total, 0.0
    return out


@particle_kernel
def bellman_leapfrog(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    p: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
) -> FloatArray:
    """Run the leapfrog steps for each particle in place, in Bellman coordinates; the determinant does not push."""
    out = np.empty((x.shape[0], 2))
    for n in prange(x.shape[0]):
        work = new_work(layout)
        psi, slope, grad = np.empty(fixed.size), np.empty(fixed.size), np.zeros(x.shape[1])
        total, rest = bellman_density(layout, data, prior, free, fixed, x[n], grad, psi, slope, work)
        for _ in range(num_steps[n]):
            kick(p[n], grad, 0.5 * step[n])
            drift(x[n], p[n], step[n], inverse_mass, upper)
            total, rest = bellman_density(layout, data, prior, free, fixed, x[n], grad, psi, slope, work)
            if not np.isfinite(total):
                break
            kick(p[n], grad, 0.5 * step[n])
        out[n, 0], out[n, 1] = total, rest
    return out
