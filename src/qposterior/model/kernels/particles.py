"""Loops over particles: densities, gradients and leapfrog trajectories, the same in every chart.

Each runs over the particles from `first` to before `stop`; `over_particles` of `compile` runs it over all, in threads.
`rows` are ``(1, nnz)`` transition rows that all particles share, or ``(N, nnz)`` rows of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.model.kernels.bellman import Work, new_work, pull_back, solve
from qposterior.model.kernels.charts import Coordinates, density, forget, layout_with_rows, new_scratch
from qposterior.model.kernels.compile import chain_kernel, inner_kernel
from qposterior.model.kernels.density import LikelihoodData, PriorData, log_likelihood
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray

# -- trajectories ------------------------------------------------------------------------------------------------------


@inner_kernel
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


@inner_kernel
def last_kick(p: FloatArray, grad: FloatArray, kick: float) -> None:
    """Change the momentum by kick · gradient."""
    for j in range(p.size):
        p[j] += kick * grad[j]


@inner_kernel
def kinetic_energy(p: FloatArray, inverse_mass: FloatArray) -> float:
    """Return ½ Σ p² / m."""
    total = 0.0
    for j in range(p.size):
        total += p[j] * p[j] * inverse_mass[j]
    return 0.5 * total


@inner_kernel
def accept_or_refuse(
    smooth: float,
    jump: float,
    kinetic: float,
    log_uniform: float,
    here: FloatArray,
    start: FloatArray,
    start_grad: FloatArray,
    end: FloatArray,
    grad: FloatArray,
    gain: FloatArray,
) -> None:
    r"""The accept step of alg. hmc: write the energy gains of a trajectory, take its end or go back to its start.

    With H = −log p + kinetic energy the end is taken with probability min(1, exp(H_start − H_end)), that is, if
    ``log_uniform``, the log of a uniform variable, lies below the gain. `gain` ``(2,)`` is that of the smooth part
    alone, by which a step size is judged, and that of the whole density with its jumps, by which the end is. `here`
    ``(2,)`` holds the log-densities at the start, `start` and `start_grad` the point and the gradient there; all three
    follow where the end is taken. An end that is not finite is refused with a gain of −inf.
    """
    gain[0] = smooth - here[0] + kinetic
    gain[1] = gain[0] + jump - here[1]
    if not np.isfinite(gain[1]):
        gain[:] = -np.inf
    if log_uniform < gain[1]:
        here[0], here[1] = smooth, jump
        start[:] = end
        start_grad[:] = grad
    else:
        end[:] = start


@inner_kernel
def first_density(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    grad: FloatArray,
    scratch: Any,
) -> tuple[float, float]:
    """`density` where it is called once: in a loop it is compiled into the loop, which may hold it only once."""
    return density(layout, data, prior, chart, x, grad, scratch)


@inner_kernel
def leapfrog_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    p: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    upper: FloatArray,
    out: FloatArray,
) -> None:
    """Run the leapfrog steps of one particle in place and write its log-densities at the end.

    The jump does not push. Half a kick at either end; in between two halves make a whole one.
    """
    scratch, grad = new_scratch(layout, chart), np.zeros(x.size)
    smooth, jump = first_density(layout, data, prior, chart, x, grad, scratch)
    kick = 0.5 * step
    for _ in range(num_steps):
        kick_and_drift(x, p, grad, kick, step, inverse_mass, upper)
        smooth, jump = density(layout, data, prior, chart, x, grad, scratch)
        kick = step
        if not np.isfinite(smooth):
            break
    if num_steps > 0 and np.isfinite(smooth):
        last_kick(p, grad, 0.5 * step)
    out[0], out[1] = smooth, jump


@chain_kernel
def leapfrog(
    first: int,
    stop: int,
    rows: FloatArray,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    p: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    out: FloatArray,
) -> None:
    """Run the leapfrog steps of alg. hmc for each particle in place; write ``(N, 2)`` log-densities at the end."""
    for n in range(first, stop):
        leapfrog_one(
            layout_with_rows(layout, rows, n),
            data,
            prior,
            chart,
            x[n],
            p[n],
            step[n],
            num_steps[n],
            inverse_mass,
            upper,
            out[n],
        )


@inner_kernel
def chain(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    here: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: float,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run M trajectories of one particle, each accepted or refused; write its path, log-densities and energy gains.

    `x` ``(D,)`` is where it starts and `here` ``(2,)`` its log-densities there; `p` ``(M, D)`` are the momenta, which
    are used up, `log_uniform` ``(M,)`` what the gains are held against; `path` ``(M, D)``, `gain` ``(M, 2)``.
    """
    scratch = new_scratch(layout, chart)
    start, start_grad, grad = x.copy(), np.zeros(x.size), np.empty(x.size)
    first_density(layout, data, prior, chart, start, start_grad, scratch)
    for m in range(num_steps.size):
        path[m] = start
        grad[:] = start_grad
        place, momentum = path[m], p[m]
        before = kinetic_energy(momentum, inverse_mass)
        smooth, jump, kick = here[0], here[1], 0.5 * step
        for _ in range(num_steps[m]):
            kick_and_drift(place, momentum, grad, kick, step, inverse_mass, upper)
            smooth, jump = density(layout, data, prior, chart, place, grad, scratch)
            kick = step
            if not np.isfinite(smooth):
                break
        if num_steps[m] > 0 and np.isfinite(smooth):
            last_kick(momentum, grad, 0.5 * step)
        kinetic = before - kinetic_energy(momentum, inverse_mass)
        accept_or_refuse(smooth, jump, kinetic, log_uniform[m], here, start, start_grad, place, grad, gain[m])
        if gain[m, 1] == -np.inf:
            forget(scratch)


@chain_kernel
def chains(
    first: int,
    stop: int,
    rows: FloatArray,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    here: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: FloatArray,
    num_steps: IntArray,
    inverse_mass: FloatArray,
    upper: FloatArray,
    path: FloatArray,
    gain: FloatArray,
) -> None:
    """Run the trajectories of alg. hmc for each particle, one after the other; log-densities change in place."""
    for n in range(first, stop):
        given = (x[n], here[n], p[n], log_uniform[n], step[n], num_steps[n], inverse_mass, upper)
        chain(layout_with_rows(layout, rows, n), data, prior, chart, *given, path[n], gain[n])


# -- densities and maps ------------------------------------------------------------------------------------------------


@inner_kernel
def density_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    grad: FloatArray,
    out: FloatArray,
) -> None:
    """Write the log-densities of one particle and their gradient."""
    out[0], out[1] = density(layout, data, prior, chart, x, grad, new_scratch(layout, chart))


@chain_kernel
def densities(
    first: int,
    stop: int,
    rows: FloatArray,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Coordinates,
    x: FloatArray,
    grad: FloatArray,
    out: FloatArray,
) -> None:
    """Write ``(N, 2)`` smooth log-densities and jumps of ``(N, D)`` particles, and the gradients of the first."""
    for n in range(first, stop):
        density_one(layout_with_rows(layout, rows, n), data, prior, chart, x[n], grad[n], out[n])


@inner_kernel
def solve_one(layout: Layout, psi: FloatArray, theta: FloatArray) -> float:
    """Write θ of one ψ, nan where it has no solution; return log det(I − γ P_π)."""
    work: Work = new_work(layout)
    fine, log_det = solve(layout, psi, work)
    theta[:] = work.theta
    if not fine:
        theta[:] = np.nan
    return log_det


@chain_kernel
def solutions(
    first: int, stop: int, rows: FloatArray, layout: Layout, psi: FloatArray, theta: FloatArray, out: FloatArray
) -> None:
    """Write ``(N, K)`` θ of as many ψ, nan where there is no solution, and ``(N,)`` log det(I − γ P_π)."""
    for n in range(first, stop):
        out[n] = solve_one(layout_with_rows(layout, rows, n), psi[n], theta[n])


@inner_kernel
def pull_back_one(layout: Layout, psi: FloatArray, slope: FloatArray) -> None:
    """Turn the slope in θ of one particle into that in ψ, in place; as it was where ψ has no solution."""
    work: Work = new_work(layout)
    fine, _ = solve(layout, psi, work)
    if fine:
        pull_back(layout, slope, work)


@chain_kernel
def pull_backs(first: int, stop: int, rows: FloatArray, layout: Layout, psi: FloatArray, slope: FloatArray) -> None:
    """Turn ``(N, K)`` slopes in θ into slopes in ψ, in place."""
    for n in range(first, stop):
        pull_back_one(layout_with_rows(layout, rows, n), psi[n], slope[n])


@inner_kernel
def readings_one(data: LikelihoodData, g: FloatArray, log_scale: float, bend: FloatArray, out: FloatArray) -> None:
    """Write the log-likelihood of the readings at the mean rewards g, its slopes in g and in the log-scale."""
    out[:] = 0.0
    for i in range(g.size):
        part, bend[i], pull = log_likelihood(data, i, g[i], log_scale)
        out[0] += part
        out[1] += pull


@chain_kernel
def reading_likelihoods(
    first: int,
    stop: int,
    data: LikelihoodData,
    g: FloatArray,
    log_scale: FloatArray,
    bend: FloatArray,
    out: FloatArray,
) -> None:
    """Write ``(N, 2)`` log-likelihoods at ``(N, n)`` mean rewards with slopes in the log-scale, and those in g."""
    for n in range(first, stop):
        readings_one(data, g[n], log_scale[n], bend[n], out[n])
