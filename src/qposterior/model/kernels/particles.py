"""Loops over particles, in parallel: densities, gradients and leapfrog trajectories, the same in both coordinates.

A parallel loop only hands each particle to a plain kernel, whose arithmetic knows nothing of threads: a result does not
depend on their number. (Array statements in the body of a parallel loop are rewritten by the compiler; keep them out.)
"""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.bellman import Work, new_work, pull_back, solve
from qposterior.model.kernels.compile import inlined_kernel, kernel, particle_kernel, prange
from qposterior.model.kernels.density import (
    LikelihoodData,
    PriorData,
    bellman_density,
    log_likelihood,
    q_density,
    q_log_likelihood,
    reward_density,
    to_psi,
)
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray


@kernel
def kick_and_drift(
    x: FloatArray,
    p: FloatArray,
    grad: FloatArray,
    kick: float,
    step: float,
    inverse_mass: FloatArray,
    upper: FloatArray,
) -> None:
    """Change the momentum by kick · gradient, then move a step; walls reflect a coordinate and its momentum."""
    for j in range(x.size):
        momentum = p[j] + kick * grad[j]
        place = x[j] + step * inverse_mass[j] * momentum
        beyond = place > upper[j]
        x[j] = 2.0 * upper[j] - place if beyond else place
        p[j] = -momentum if beyond else momentum


@kernel
def last_kick(p: FloatArray, grad: FloatArray, kick: float) -> None:
    """Change the momentum by kick · gradient."""
    for j in range(p.size):
        p[j] += kick * grad[j]


@kernel
def q_one(layout: Layout, data: LikelihoodData, prior: PriorData, x: FloatArray, grad: FloatArray) -> float:
    """Return the log-density of one particle in Q coordinates and write its gradient."""
    value, greedy = np.zeros(layout.is_goal.size), np.zeros(layout.is_goal.size, dtype=np.int64)
    return q_density(layout, data, prior, x, grad, value, greedy)


@particle_kernel
def q_densities(layout: Layout, data: LikelihoodData, prior: PriorData, x: FloatArray, grad: FloatArray) -> FloatArray:
    """Return ``(N,)`` log-densities of ``(N, D)`` particles in Q coordinates and write their gradients."""
    out = np.empty(x.shape[0])
    for n in prange(x.shape[0]):
        out[n] = q_one(layout, data, prior, x[n], grad[n])
    return out


@kernel
def q_likelihood_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    theta: FloatArray,
    log_scale: float,
    grad: FloatArray,
    out: FloatArray,
) -> None:
    """Write the log-likelihood of one θ, its slope in the log-scale, and its gradient."""
    value, greedy = np.zeros(layout.is_goal.size), np.zeros(layout.is_goal.size, dtype=np.int64)
    grad[:] = 0.0
    out[0], out[1] = q_log_likelihood(layout, data, prior, theta, log_scale, grad, value, greedy)


@particle_kernel
def q_likelihoods(
    layout: Layout, data: LikelihoodData, prior: PriorData, theta: FloatArray, log_scale: FloatArray, grad: FloatArray
) -> FloatArray:
    """Return ``(N, 2)`` log-likelihoods of ``(N, K)`` θ and their slopes in the log-scale; write the gradients in θ."""
    out = np.empty((theta.shape[0], 2))
    for n in prange(theta.shape[0]):
        q_likelihood_one(layout, data, prior, theta[n], log_scale[n], grad[n], out[n])
    return out


@particle_kernel
def reward_densities(
    layout: Layout, data: LikelihoodData, prior: PriorData, x: FloatArray, grad: FloatArray
) -> FloatArray:
    """Return ``(N,)`` log-densities of the rewards of all pairs and write their gradients."""
    out = np.empty(x.shape[0])
    for n in prange(x.shape[0]):
        out[n] = reward_density(layout, data, prior, x[n], grad[n])
    return out


@kernel
def bellman_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    grad: FloatArray,
    out: FloatArray,
) -> None:
    """Write the log-density of one particle without and of the determinant, and its gradient."""
    psi, slope = np.empty(fixed.size), np.empty(fixed.size)
    out[0], out[1] = bellman_density(layout, data, prior, free, fixed, x, grad, psi, slope, new_work(layout))


@kernel
def rows_of(layout: Layout, tables: FloatArray, n: int) -> Layout:
    """Return the layout with the transition rows of particle n: ``(1, nnz)`` tables are shared by all particles."""
    return Layout(
        layout.first_pair,
        layout.pair_state,
        layout.is_goal,
        layout.observed,
        layout.row_of,
        layout.row_start,
        layout.successor,
        tables[min(np.int64(n), tables.shape[0] - 1)],
        layout.discount,
        layout.component_start,
        layout.component_state,
        layout.component_of,
        layout.place,
        layout.has_loop,
        layout.lu_start,
        layout.exit_pair,
        layout.is_deterministic,
        layout.is_simple,
        layout.next_state,
    )


@particle_kernel
def bellman_densities(
    tables: FloatArray,
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
        bellman_one(rows_of(layout, tables, n), data, prior, free, fixed, x[n], grad[n], out[n])
    return out


@kernel
def to_q_one(
    layout: Layout, data: LikelihoodData, free: IntArray, fixed: FloatArray, x: FloatArray, out: FloatArray
) -> None:
    """Write θ of one particle in Bellman coordinates, nan where there is no solution."""
    work: Work = new_work(layout)
    psi = np.empty(fixed.size)
    to_psi(layout, data, free, fixed, x, psi)
    fine, _ = solve(layout, psi, work)
    out[:] = work.theta
    if not fine:
        out[:] = np.nan


@particle_kernel
def bellman_to_q(
    tables: FloatArray, layout: Layout, data: LikelihoodData, free: IntArray, fixed: FloatArray, x: FloatArray
) -> FloatArray:
    """Return ``(N, K)`` θ of ``(N, D)`` Bellman coordinates, nan where there is no solution."""
    out = np.empty((x.shape[0], fixed.size))
    for n in prange(x.shape[0]):
        to_q_one(rows_of(layout, tables, n), data, free, fixed, x[n], out[n])
    return out


@kernel
def solve_one(layout: Layout, psi: FloatArray, theta: FloatArray) -> float:
    """Write θ of one ψ, nan where it has no solution; return log det(I − γ P_π)."""
    work: Work = new_work(layout)
    fine, log_det = solve(layout, psi, work)
    theta[:] = work.theta
    if not fine:
        theta[:] = np.nan
    return log_det


@particle_kernel
def solutions(tables: FloatArray, layout: Layout, psi: FloatArray, theta: FloatArray) -> FloatArray:
    """Write ``(N, K)`` θ of as many ψ, nan where there is no solution; return ``(N,)`` log det(I − γ P_π)."""
    out = np.empty(psi.shape[0])
    for n in prange(psi.shape[0]):
        out[n] = solve_one(rows_of(layout, tables, n), psi[n], theta[n])
    return out


@kernel
def pull_back_one(layout: Layout, psi: FloatArray, slope: FloatArray) -> None:
    """Turn the slope in θ of one particle into that in ψ, in place; as it was where ψ has no solution."""
    work: Work = new_work(layout)
    fine, _ = solve(layout, psi, work)
    if fine:
        pull_back(layout, slope, work)


@particle_kernel
def pull_backs(tables: FloatArray, layout: Layout, psi: FloatArray, slope: FloatArray) -> None:
    """Turn ``(N, K)`` slopes in θ into slopes in ψ, in place."""
    for n in prange(psi.shape[0]):
        pull_back_one(rows_of(layout, tables, n), psi[n], slope[n])


@kernel
def readings_one(data: LikelihoodData, g: FloatArray, log_scale: float, bend: FloatArray, out: FloatArray) -> None:
    """Write the log-likelihood of the readings at the mean rewards g, its slopes in g and in the log-scale."""
    out[:] = 0.0
    for i in range(g.size):
        part, bend[i], pull = log_likelihood(data, i, g[i], log_scale)
        out[0] += part
        out[1] += pull


@particle_kernel
def reading_likelihoods(data: LikelihoodData, g: FloatArray, log_scale: FloatArray, bend: FloatArray) -> FloatArray:
    """Return ``(N, 2)`` log-likelihoods at ``(N, n)`` mean rewards and slopes in the log-scale; write those in g."""
    out = np.empty((g.shape[0], 2))
    for n in prange(g.shape[0]):
        readings_one(data, g[n], log_scale[n], bend[n], out[n])
    return out


@kernel
def kinetic_energy(p: FloatArray, inverse_mass: FloatArray) -> float:
    """Return ½ Σ p² / m."""
    total = 0.0
    for j in range(p.size):
        total += p[j] * p[j] * inverse_mass[j]
    return 0.5 * total


@kernel
def accept_or_refuse(
    total: float,
    rest: float,
    kinetic: float,
    log_uniform: float,
    density: FloatArray,
    start: FloatArray,
    here: FloatArray,
    end: FloatArray,
    grad: FloatArray,
    gain: FloatArray,
) -> None:
    """Write the energy gains of a trajectory; take over its end, densities and gradient, or go back to its start."""
    gain[0] = total - density[0] + kinetic
    gain[1] = gain[0] + rest - density[1]
    if not np.isfinite(gain[1]):
        gain[:] = -np.inf
    if log_uniform < gain[1]:
        density[0], density[1] = total, rest
        start[:] = end
        here[:] = grad
    else:
        end[:] = start


@inlined_kernel
def q_trajectory(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    p: FloatArray,
    total: float,
    grad: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    upper: FloatArray,
    value: FloatArray,
    greedy: IntArray,
) -> float:
    """Run the leapfrog steps of one particle in place, from its log-density and gradient; return the last density."""
    kick = 0.5 * step  # half a kick at either end; in between two halves make a whole one
    for _ in range(num_steps):
        kick_and_drift(x, p, grad, kick, step, inverse_mass, upper)
        total = q_density(layout, data, prior, x, grad, value, greedy)
        if not np.isfinite(total):
            return total
        kick = step
    if num_steps > 0:
        last_kick(p, grad, 0.5 * step)
    return total


@kernel
def q_leapfrog_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    p: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    upper: FloatArray,
) -> float:
    """Run the leapfrog steps of one particle in place; return the log-density at the end."""
    value, greedy = np.zeros(layout.is_goal.size), np.zeros(layout.is_goal.size, dtype=np.int64)
    grad = np.zeros(x.size)
    total = q_density(layout, data, prior, x, grad, value, greedy)
    return q_trajectory(layout, data, prior, x, p, total, grad, step, num_steps, inverse_mass, upper, value, greedy)


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
    out = np.zeros((x.shape[0], 2))
    for n in prange(x.shape[0]):
        out[n, 0] = q_leapfrog_one(layout, data, prior, x[n], p[n], step[n], num_steps[n], inverse_mass, upper)
    return out


@kernel
def q_chain(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    density: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: float,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run the trajectories of one particle, each accepted or refused; write its path, density and energy gains."""
    value, greedy = np.zeros(layout.is_goal.size), np.zeros(layout.is_goal.size, dtype=np.int64)
    here, grad = np.zeros(x.size), np.empty(x.size)
    start = x.copy()
    q_density(layout, data, prior, start, here, value, greedy)
    for m in range(num_steps.size):
        path[m] = start
        grad[:] = here
        before = kinetic_energy(p[m], inverse_mass)
        place, momentum, steps = path[m], p[m], num_steps[m]
        total = q_trajectory(
            layout, data, prior, place, momentum, density[0], grad, step, steps, inverse_mass, upper, value, greedy
        )
        kinetic = before - kinetic_energy(p[m], inverse_mass)
        accept_or_refuse(total, 0.0, kinetic, log_uniform[m], density, start, here, path[m], grad, gain[m])


@particle_kernel
def q_chains(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    density: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run the trajectories of alg. hmc for each particle, one after the other; densities change in place."""
    for n in prange(x.shape[0]):
        given = (x[n], density[n], p[n], log_uniform[n], step[n], num_steps[n], inverse_mass, upper)
        q_chain(layout, data, prior, *given, path[n], gain[n])


@kernel
def bellman_trajectory(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    p: FloatArray,
    total: float,
    rest: float,
    grad: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    upper: FloatArray,
    psi: FloatArray,
    slope: FloatArray,
    work: Work,
) -> tuple[float, float]:
    """Run the leapfrog steps of one particle in place, from its log-densities and gradient; return the last densities.

    The determinant does not push. The policy of one step is where the next solve starts.
    """
    kick = 0.5 * step
    for _ in range(num_steps):
        kick_and_drift(x, p, grad, kick, step, inverse_mass, upper)
        total, rest = bellman_density(layout, data, prior, free, fixed, x, grad, psi, slope, work)
        if not np.isfinite(total):
            return total, rest
        kick = step
    if num_steps > 0:
        last_kick(p, grad, 0.5 * step)
    return total, rest


@kernel
def bellman_leapfrog_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    p: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    upper: FloatArray,
    out: FloatArray,
) -> None:
    """Run the leapfrog steps of one particle in place and write its log-densities."""
    work = new_work(layout)
    psi, slope, grad = np.empty(fixed.size), np.empty(fixed.size), np.zeros(x.size)
    total, rest = bellman_density(layout, data, prior, free, fixed, x, grad, psi, slope, work)
    moving = (x, p, total, rest, grad, step, num_steps)
    out[0], out[1] = bellman_trajectory(
        layout, data, prior, free, fixed, *moving, inverse_mass, upper, psi, slope, work
    )


@particle_kernel
def bellman_leapfrog(
    tables: FloatArray,
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
    """Run the leapfrog steps for each particle in place, in Bellman coordinates; return ``(N, 2)`` log-densities."""
    out = np.empty((x.shape[0], 2))
    for n in prange(x.shape[0]):
        model = (rows_of(layout, tables, n), data, prior, free, fixed)
        bellman_leapfrog_one(*model, x[n], p[n], step[n], num_steps[n], inverse_mass, upper, out[n])
    return out


@kernel
def bellman_chain(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    density: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: float,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run the trajectories of one particle, each accepted or refused; write its path, densities and energy gains."""
    work = new_work(layout)
    psi, slope = np.empty(fixed.size), np.empty(fixed.size)
    here, grad = np.zeros(x.size), np.empty(x.size)
    start = x.copy()
    bellman_density(layout, data, prior, free, fixed, start, here, psi, slope, work)
    for m in range(num_steps.size):
        path[m] = start
        grad[:] = here
        before = kinetic_energy(p[m], inverse_mass)
        moving = (path[m], p[m], density[0], density[1], grad, step, num_steps[m])
        total, rest = bellman_trajectory(
            layout, data, prior, free, fixed, *moving, inverse_mass, upper, psi, slope, work
        )
        kinetic = before - kinetic_energy(p[m], inverse_mass)
        accept_or_refuse(total, rest, kinetic, log_uniform[m], density, start, here, path[m], grad, gain[m])
        if gain[m, 1] == -np.inf:
            work.greedy[:] = -1  # where it ran off to is no place to start the next solve from


@particle_kernel
def bellman_chains(
    tables: FloatArray,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    density: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run the trajectories of each particle, one after the other, in Bellman coordinates; densities change in place."""
    for n in prange(x.shape[0]):
        model = (rows_of(layout, tables, n), data, prior, free, fixed)
        given = (x[n], density[n], p[n], log_uniform[n], step[n], num_steps[n], inverse_mass, upper)
        bellman_chain(*model, *given, path[n], gain[n])
