"""The conditional density of one free coordinate given all others: Gaussian between a few breakpoints.

As x = θ_u of an unobserved pair u moves, every θ_k is linear in x until the greedy policy changes. On each such piece
prior(θ(x)) / det is an unnormalised Gaussian in x; its mass is a difference of normal cdfs. The pieces are found by
walking up and down from the current x, one change of policy at a time. Only states from which the state of u can be
reached depend on x: all loops go over those.
"""

from __future__ import annotations

from math import inf, log, pi, sqrt
from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.bellman import (
    Work,
    backup,
    factor_policy,
    lu_solve,
    new_work,
    next_inside,
    outside_part,
    solve,
)
from qposterior.model.kernels.compile import chain_kernel, inner_kernel, kernel
from qposterior.model.kernels.density import HARD_Q, LikelihoodData, PriorData, to_psi
from qposterior.model.kernels.layout import Layout
from qposterior.model.kernels.normal import log_mass, log_tail, truncated_quantile
from qposterior.world.arrays import FloatArray, IntArray

MOST_PIECES = 256
NEGLIGIBLE = 40.0
"""The walk upwards ends where all that can follow is this many nats below what was found."""

TIE = 1e-12
LOW, HIGH, CENTRE, SPREAD, LOG_MASS = 0, 1, 2, 3, 4


class Reach(NamedTuple):
    """What depends on one coordinate: the components and states that lead to its state, successors first."""

    components: IntArray
    states: IntArray
    misfit: float  # Σ ((θ_k − mean_k) / scale_k)² over the observed pairs of all other states
    excess: float  # the same over those above the mean
    is_outside: bool  # one of them lies beyond a hard wall


@inner_kernel
def find_reach(layout: Layout, prior: PriorData, s: int, theta: FloatArray) -> Reach:
    """Return what depends on the coordinates of state s, and what the rest contributes; nothing, if s was never met."""
    num_components = layout.has_loop.size
    first_pair, row_of, row_start = layout.first_pair, layout.row_of, layout.row_start
    component_start, component_state, component_of = layout.component_start, layout.component_state, layout.component_of
    marked = np.zeros(num_components + 1, dtype=np.bool_)  # the last stands for goals
    components = np.empty(num_components, dtype=np.int64)
    states = np.empty(component_state.size, dtype=np.int64)
    num_marked, num_states = 0, 0
    misfit, excess, is_outside = 0.0, 0.0, False
    start = component_of[s]
    for c in range(num_components):
        leads = c == start
        if start >= 0 and c > start:
            for i in range(component_start[c], component_start[c + 1]):
                for k in range(first_pair[component_state[i]], first_pair[component_state[i] + 1]):
                    row = row_of[k]
                    if row >= 0:
                        for e in range(row_start[row], row_start[row + 1]):
                            leads = leads or marked[component_of[layout.successor[e]]]
        if leads:
            marked[c] = True
            components[num_marked] = c
            num_marked += 1
        for i in range(component_start[c], component_start[c + 1]):
            t = component_state[i]
            if leads:
                states[num_states] = t
                num_states += 1
                continue
            for k in range(first_pair[t], first_pair[t + 1]):
                if row_of[k] >= 0:
                    gap = (theta[k] - prior.mean[k]) / prior.scale[k]
                    misfit += gap * gap
                    excess += max(gap, 0.0) ** 2
                    is_outside = is_outside or (prior.wall == HARD_Q and theta[k] > prior.upper)
    return Reach(components[:num_marked], states[:num_states], misfit, excess, is_outside)


@inner_kernel
def log_determinant_elsewhere(layout: Layout, reach: Reach, work: Work) -> float:
    """Return log det(I − γ P_π) of the looping components outside `reach`, from the factors of the last solve."""
    total, number = 0.0, 0
    for c in range(layout.has_loop.size):
        if number < reach.components.size and reach.components[number] == c:
            number += 1
        elif layout.has_loop[c] and work.used_lu[c] == 1:
            size = layout.component_start[c + 1] - layout.component_start[c]
            for i in range(size):
                total += log(work.lu[layout.lu_start[c] + i * (size + 1)])
    return total


@inner_kernel
def fill_rates(layout: Layout, reach: Reach, work: Work, unit: FloatArray, rate: FloatArray) -> float:
    """Fill rate_k = dθ_k/dψ_u for the policy `work.greedy`; return log det(I − γ P_π) of what depends on u.

    `unit` is 1 at u and 0 elsewhere; `work.adjoint` collects the rates of the values, and is 0 outside `reach`.
    """
    values, greedy = work.adjoint, work.greedy
    first_pair, row_of, row_start = layout.first_pair, layout.row_of, layout.row_start
    successor, probability, discount = layout.successor, layout.probability, layout.discount
    has_loop, component_start, component_state = layout.has_loop, layout.component_start, layout.component_state
    log_det = 0.0
    for number in range(reach.components.size):
        c = reach.components[number]
        first, last = component_start[c], component_start[c + 1]
        if has_loop[c]:
            for i in range(first, last):
                values[component_state[i]] = 0.0
            log_det += policy_values(layout, unit, work, values, c)
        for i in range(first, last):
            s = component_state[i]
            for k in range(first_pair[s], first_pair[s + 1]):
                total, row = unit[k], row_of[k]
                if row >= 0:
                    for e in range(row_start[row], row_start[row + 1]):
                        total += discount * probability[e] * values[successor[e]]
                rate[k] = total
            if not has_loop[c]:
                values[s] = rate[greedy[s]]
    return log_det


@inner_kernel
def policy_values(layout: Layout, source: FloatArray, work: Work, value: FloatArray, c: int) -> float:
    """Fill V of the policy in a looping component for the payoffs `source`; return log det(I − γ P_π)."""
    first, last = layout.component_start[c], layout.component_start[c + 1]
    if layout.is_deterministic and find_forest(layout, work, c):
        for i in range(first, last):
            s = work.order[i]
            value[s] = backup(layout, source, value, work.greedy[s])
        return 0.0
    size = last - first
    lu = work.lu[layout.lu_start[c] : layout.lu_start[c + 1]].reshape(size, size)
    right = work.small[first:last]
    log_det = factor_policy(layout, work.greedy, lu, right, c)
    for i in range(size):
        right[i] = outside_part(layout, source, value, work.greedy[layout.component_state[first + i]], c)
    lu_solve(lu, right, right.size)
    for i in range(size):
        value[layout.component_state[first + i]] = right[i]
    return log_det


@inner_kernel
def find_forest(layout: Layout, work: Work, c: int) -> bool:
    """Fill `order` with the states of a component so that each follows its next state; return False at a cycle."""
    first, last = layout.component_start[c], layout.component_start[c + 1]
    for i in range(first, last):
        work.mark[layout.component_state[i]] = 0
    filled, changed = first, True
    while changed:
        changed = False
        for i in range(first, last):
            s = layout.component_state[i]
            if work.mark[s] == 0:
                t = next_inside(layout, work.greedy[s], c)
                if t < 0 or work.mark[t] == 1:
                    work.mark[s] = 1
                    work.order[filled] = s
                    filled += 1
                    changed = True
    return filled == last


@inner_kernel
def next_edge(
    layout: Layout, reach: Reach, greedy: IntArray, theta: FloatArray, rate: FloatArray, edge: float, up: bool
) -> tuple[float, int]:
    """Return the next x, upwards or downwards of `edge`, where a pair overtakes a greedy one, and that pair.

    θ is given at the edge. The pair is −1 where nothing overtakes any more.
    """
    first_pair = layout.first_pair
    nearest, arg = inf, -1
    for i in range(reach.states.size):
        s = reach.states[i]
        first, last = first_pair[s], first_pair[s + 1]
        if last - first < 2:
            continue
        g = greedy[s]
        for k in range(first, last):
            gain = rate[k] - rate[g] if up else rate[g] - rate[k]
            if gain > 1e-12:
                # Rounding may put the crossing a hair on the wrong side of where the walk stands.
                distance = max((theta[g] - theta[k]) / gain, 0.0)
                if distance < nearest:
                    nearest, arg = distance, k
    return (edge + nearest if up else edge - nearest), arg


@inner_kernel
def add_piece(
    layout: Layout,
    prior: PriorData,
    reach: Reach,
    u: int,
    theta: FloatArray,
    rate: FloatArray,
    edge: float,
    low: float,
    high: float,
    log_det: float,
    piece: FloatArray,
) -> None:
    r"""Write one piece: its ends, the Gaussian in x of the priors of u and of the observed pairs, and its log mass.

    θ is given at x = edge, and is linear with slope `rate` on the piece, so that with precisions w_k = 1 / scale_k²

    .. math:: w_u (x - m_u)^2 + \sum_{k \text{ seen}} w_k (m_k - \theta_k(x))^2 = b x^2 - 2 p x + c,

    a Gaussian of centre p / b and variance 1 / b, cut off at `low`, `high` and where a θ_k meets a hard wall. Its log
    mass is −½ (c − p² / b) − log det + log √(2π / b) + log(Φ(high) − Φ(low)), without the norms of the priors.
    """
    # Σ precision_k (mean_k − θ_k(x))² = bend x² − 2 push x + rest, the prior of u itself first.
    bend, push = prior.precision[u], prior.precision[u] * prior.mean[u]
    rest = push * prior.mean[u] + reach.misfit
    if prior.wall == HARD_Q:
        high = -inf if reach.is_outside else min(high, prior.upper)
    for i in range(reach.states.size):
        s = reach.states[i]
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if layout.row_of[k] < 0:
                continue
            gap = prior.mean[k] - theta[k] + rate[k] * edge
            weight = prior.precision[k]
            bend += weight * rate[k] * rate[k]
            push += weight * rate[k] * gap
            rest += weight * gap * gap
            if prior.wall == HARD_Q:
                if rate[k] > 0.0:
                    high = min(high, edge + (prior.upper - theta[k]) / rate[k])
                elif theta[k] > prior.upper:
                    high = -inf
    centre, spread = push / bend, 1.0 / sqrt(bend)
    piece[LOW], piece[HIGH], piece[CENTRE], piece[SPREAD] = low, high, centre, spread
    exponent = -0.5 * (rest - push * push / bend)
    mass = log_mass((low - centre) / spread, (high - centre) / spread)
    piece[LOG_MASS] = exponent - log_det + log(spread) + 0.5 * log(2.0 * pi) + mass


@inner_kernel
def switch_ties(layout: Layout, reach: Reach, greedy: IntArray, theta: FloatArray, rate: FloatArray, up: bool) -> None:
    """Make every pair greedy that has caught up with its state's greedy one and moves on faster: all at one x at once.

    Rewards of a grid often tie, and one change at a time would be a pass for each. Not where policies can loop.
    """
    first_pair = layout.first_pair
    for i in range(reach.states.size):
        s = reach.states[i]
        first, last = first_pair[s], first_pair[s + 1]
        if last - first < 2:
            continue
        best = greedy[s]
        level = theta[best] - TIE * abs(theta[best])
        for k in range(first, last):
            gain = rate[k] - rate[best] if up else rate[best] - rate[k]
            if gain > 1e-12 and theta[k] >= level:
                best = k
        greedy[s] = best


@inner_kernel
def bound_above(layout: Layout, prior: PriorData, reach: Reach, u: int, theta: FloatArray, edge: float) -> float:
    """Return an upper bound of the log mass above x = edge where no policy loops: every θ_k only grows with x."""
    excess = reach.excess
    for i in range(reach.states.size):
        s = reach.states[i]
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if layout.row_of[k] >= 0:
                excess += (max(theta[k] - prior.mean[k], 0.0) / prior.scale[k]) ** 2
    tail = log_tail((prior.mean[u] - edge) / prior.scale[u])
    return -0.5 * excess + tail + log(prior.scale[u]) + 0.5 * log(2.0 * pi)


@kernel
def conditional_pieces(
    layout: Layout, prior: PriorData, psi: FloatArray, u: int, work: Work, pieces: FloatArray, policies: IntArray
) -> int:
    """Fill the pieces of the conditional of ψ_u and the greedy policy of each; return how many there are.

    `work` must hold the solution at ψ; its policy is left as it was. Up to the factor of the priors of the other
    unobserved pairs, the sum of exp(LOG_MASS) is the integral of the tolerance-0 density over x. `policies` may have
    no rows where they are not wanted.
    """
    num_pairs = layout.pair_state.size
    rate, unit = np.zeros(num_pairs), np.zeros(num_pairs)
    unit[u] = 1.0
    here = work.greedy.copy()
    number, largest = 0, -inf
    reach = find_reach(layout, prior, layout.pair_state[u], work.theta)
    acyclic = not layout.has_loop[reach.components].any()
    log_det_elsewhere = log_determinant_elsewhere(layout, reach, work)
    work.adjoint[:] = 0.0
    for direction in range(2):
        up = direction == 0
        work.greedy[:] = here
        theta = work.theta.copy()
        edge, changes_here = psi[u], 0
        # At one x each pair overtakes once; by rounding, pairs that tie could overtake each other for ever.
        while number < MOST_PIECES and changes_here <= num_pairs:
            log_det = fill_rates(layout, reach, work, unit, rate) + log_det_elsewhere
            if not np.isfinite(log_det):  # rounding has led to a policy that never leaves
                break
            at, k = next_edge(layout, reach, work.greedy, theta, rate, edge, up)
            low, high = (edge, at) if up else (at, edge)
            if high > low:
                add_piece(layout, prior, reach, u, theta, rate, edge, low, high, log_det, pieces[number])
                if policies.shape[0] > 0:
                    policies[number] = work.greedy
                number += 1
                changes_here = 0
            changes_here += 1
            if k < 0:
                break
            for i in range(reach.states.size):
                s = reach.states[i]
                for j in range(layout.first_pair[s], layout.first_pair[s + 1]):
                    theta[j] += rate[j] * (at - edge)
            edge = at
            if acyclic:
                switch_ties(layout, reach, work.greedy, theta, rate, up)
            else:
                work.greedy[layout.pair_state[k]] = k
            if up and acyclic and number > 0:
                largest = max(largest, pieces[number - 1, LOG_MASS])
                if bound_above(layout, prior, reach, u, theta, edge) - log_det_elsewhere < largest - NEGLIGIBLE:
                    break
    work.greedy[:] = here
    return number


@inner_kernel
def log_integral_one(layout: Layout, prior: PriorData, psi: FloatArray, u: int) -> float:
    """Return the log of the sum of the pieces of one particle, −inf where ψ has no solution."""
    work = new_work(layout)
    pieces = np.empty((MOST_PIECES, 5))
    policies = np.empty((0, layout.is_goal.size), dtype=np.int64)
    fine, _ = solve(layout, psi, work)
    if not fine:
        return -inf
    number = conditional_pieces(layout, prior, psi, u, work, pieces, policies)
    largest, total = -inf, 0.0
    for i in range(number):
        largest = max(largest, pieces[i, LOG_MASS])
    if largest == -inf:
        return -inf
    for i in range(number):
        total += np.exp(pieces[i, LOG_MASS] - largest)
    return largest + log(total)


@chain_kernel
def log_integrals(
    first: int, stop: int, layout: Layout, prior: PriorData, psi: FloatArray, u: int, out: FloatArray
) -> None:
    """Write ``(N,)`` log ∫ over ψ_u of the tolerance-0 density, without the priors of the other unobserved pairs."""
    for n in range(first, stop):
        out[n] = log_integral_one(layout, prior, psi[n], u)


@kernel
def draw_piecewise(pieces: FloatArray, number: int, u_piece: float, u_place: float) -> tuple[float, int]:
    """Return a draw from the piecewise density by two uniforms, and the piece it fell in; piece −1 if all are empty."""
    largest = -inf
    for i in range(number):
        largest = max(largest, pieces[i, LOG_MASS])
    if largest == -inf:
        return 0.0, -1
    total = 0.0
    for i in range(number):
        total += np.exp(pieces[i, LOG_MASS] - largest)
    left, i = u_piece * total, 0
    for i in range(number):
        left -= np.exp(pieces[i, LOG_MASS] - largest)
        if left <= 0.0:
            break
    centre, spread = pieces[i, CENTRE], pieces[i, SPREAD]
    low, high = (pieces[i, LOW] - centre) / spread, (pieces[i, HIGH] - centre) / spread
    return centre + spread * truncated_quantile(low, high, u_place), i


@inner_kernel
def sweep_particle(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    uniforms: FloatArray,
) -> None:
    """Redraw every unobserved coordinate of one particle in turn from its conditional, in place."""
    work = new_work(layout)
    psi = np.empty(fixed.size)
    pieces = np.empty((MOST_PIECES, 5))
    policies = np.empty((MOST_PIECES, layout.is_goal.size), dtype=np.int64)
    to_psi(layout, data, free, fixed, x, psi)
    fine, _ = solve(layout, psi, work)
    if not fine:
        return
    for j in range(free.size):
        u = free[j]
        if layout.row_of[u] >= 0:
            continue
        if layout.component_of[layout.pair_state[u]] < 0:  # nothing that was seen leads there: the prior itself
            top = (prior.upper - prior.mean[u]) / prior.scale[u] if prior.wall == HARD_Q else inf
            psi[u] = prior.mean[u] + prior.scale[u] * truncated_quantile(-inf, top, uniforms[j, 1])
            x[j] = psi[u]
            work.theta[u] = psi[u]
            continue
        number = conditional_pieces(layout, prior, psi, u, work, pieces, policies)
        drawn, i = draw_piecewise(pieces, number, uniforms[j, 0], uniforms[j, 1])
        if i >= 0:
            psi[u] = drawn
            x[j] = drawn
            work.greedy[:] = policies[i]
            solve(layout, psi, work)  # one evaluation: the policy is already the right one


@chain_kernel
def gibbs_sweep(
    first: int,
    stop: int,
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    uniforms: FloatArray,
) -> None:
    """Sweep each particle, in place; `uniforms` is ``(N, D, 2)``. Observed coordinates (ρ) stay where they are."""
    for n in range(first, stop):
        sweep_particle(layout, data, prior, free, fixed, x[n], uniforms[n])
