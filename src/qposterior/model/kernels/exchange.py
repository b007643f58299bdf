"""Exchange moves: two competing pairs of a state swap their values, so that V stays (docs/explanation/tempering.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.model.kernels.charts import BellmanCoordinates, density, layout_with_rows, new_scratch
from qposterior.model.kernels.compile import chain_kernel, inner_kernel
from qposterior.model.kernels.density import LikelihoodData, PriorData
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import TIE


@inner_kernel
def choose(layout: Layout, theta: FloatArray, policy: IntArray) -> None:
    """Write the best pair of each state, the lowest of those that tie with it up to rounding.

    A function of θ alone. Ways of the same rewards in another order are worth the same but for the last digit; which
    of them a solve calls greedy changes with every digit of x, and so would the way that a pair is followed along.
    """
    for s in range(layout.is_goal.size):
        first, last = layout.first_pair[s], layout.first_pair[s + 1]
        if first == last:
            continue
        best = theta[first]
        for k in range(first + 1, last):
            best = max(best, theta[k])
        k = first
        while best - theta[k] > TIE * max(abs(best), abs(theta[k])):
            k += 1
        policy[s] = k


@inner_kernel
def follow(layout: Layout, psi: FloatArray, policy: IntArray, k: int) -> tuple[int, float, float]:
    """Return the exit u that the way of a policy from pair k ends at, with R and γᵐ: θ_k = R + γᵐ φ_u.

    u is −1 where the way ends at a goal, circles for ever, or meets a pair with several successors.
    """
    paid, factor = 0.0, 1.0
    for _ in range(layout.is_goal.size + 1):
        row = layout.row_of[k]
        if row < 0:
            return k, paid, factor
        if layout.row_start[row + 1] - layout.row_start[row] != 1:
            break
        paid += factor * psi[k]
        factor *= layout.discount
        t = layout.successor[layout.row_start[row]]
        if layout.is_goal[t]:
            break
        k = policy[t]
    return -1, 0.0, 0.0


@inner_kernel
def exchange_one(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: BellmanCoordinates,
    x: FloatArray,
    here: FloatArray,
    states: IntArray,
    uniforms: FloatArray,
) -> int:
    r"""Propose exchanges to one particle, in place; return how many were taken. `here` ``(2,)``: its log-densities.

    In a state drawn from `states` the best pair a and another one b (`choose`), with θ_a = R_a + γ^m φ_u,
    θ_b = R_b + γ^n φ_v along the best ways, swap their values:

    .. math:: \varphi_u' = (\theta_b - R_a) / \gamma^m, \quad \varphi_v' = (\theta_a - R_b) / \gamma^n.

    The map has the determinant −γ^{n−m} γ^{m−n} = −1 and is its own inverse as long as the ways from a and b are the
    same after it and b is the best pair then; else, and where u = v or a way has no exit, it is refused. So it is taken
    with min(1, p(φ') / p(φ)). `uniforms` ``(T, 3)``: the state, the pair b, and the acceptance.
    """
    scratch, grad = new_scratch(layout, chart), np.zeros(x.size)
    greedy, theta = scratch.work.greedy, scratch.work.theta
    column = np.full(layout.pair_state.size, -1, dtype=np.int64)
    for j in range(chart.free.size):
        column[chart.free[j]] = j
    # A turn more than proposals: the first finds the policy at the start, so that the density stands here once.
    start, solved, policy, proposed, taken = x.copy(), greedy.copy(), greedy.copy(), greedy.copy(), 0
    a, b, u, v = -1, -1, -1, -1
    paid_a, paid_b, factor_a, factor_b = 0.0, 0.0, 0.0, 0.0
    for turn in range(uniforms.shape[0] + 1):
        is_start = turn == 0
        if not is_start:
            draw = uniforms[turn - 1]
            s = states[int(draw[0] * states.size)]
            others = layout.first_pair[s + 1] - layout.first_pair[s] - 1
            a, b = policy[s], layout.first_pair[s] + int(draw[1] * others)
            b += b >= a
            u, paid_a, factor_a = follow(layout, scratch.psi, policy, a)
            v, paid_b, factor_b = follow(layout, scratch.psi, policy, b)
            if u < 0 or v < 0 or u == v:
                continue
            theta_a, theta_b = paid_a + factor_a * x[column[u]], paid_b + factor_b * x[column[v]]
            x[column[u]], x[column[v]] = (theta_b - paid_a) / factor_a, (theta_a - paid_b) / factor_b
        smooth, jump = density(layout, data, prior, chart, x, grad, scratch)
        fine = is_start or np.log(uniforms[turn - 1, 2]) < smooth + jump - here[0] - here[1]
        if fine:
            choose(layout, theta, proposed)
        if fine and not is_start:
            fine = proposed[layout.pair_state[a]] == b
            fine = fine and follow(layout, scratch.psi, proposed, a) == (u, paid_a, factor_a)
            fine = fine and follow(layout, scratch.psi, proposed, b) == (v, paid_b, factor_b)
            taken += fine
        if fine:
            here[0], here[1] = smooth, jump
            start[:] = x
            policy[:] = proposed
            solved[:] = greedy
        else:
            x[:] = start
            greedy[:] = solved
    return taken


@chain_kernel
def exchange_sweep(
    first: int,
    stop: int,
    rows: FloatArray,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: Any,
    x: FloatArray,
    here: FloatArray,
    states: IntArray,
    uniforms: FloatArray,
    taken: FloatArray,
) -> None:
    """Propose exchanges to each particle, in place; `uniforms` is ``(N, T, 3)``, `taken` ``(N,)`` counts them."""
    for n in range(first, stop):
        given = layout_with_rows(layout, rows, n)
        taken[n] = exchange_one(given, data, prior, chart, x[n], here[n], states, uniforms[n])
