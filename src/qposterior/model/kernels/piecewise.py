"""The conditional density of one free coordinate given all others: Gaussian between a few breakpoints.

As x = θ_u of an unobserved pair u moves, every θ_k is linear in x until the greedy policy changes. On each such piece
prior(θ(x)) / det is an unnormalised Gaussian in x; its mass is a difference of normal cdfs. The pieces are found by
walking up and down from the current x, one change of policy at a time.
"""

from __future__ import annotations

from math import inf, log, pi, sqrt

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
from qposterior.model.kernels.compile import kernel, particle_kernel, prange
from qposterior.model.kernels.density import HARD_Q, LikelihoodData, PriorData, to_psi
from qposterior.model.kernels.layout import Layout
from qposterior.model.kernels.normal import log_mass, truncated_quantile
from qposterior.world.arrays import FloatArray, IntArray

MOST_PIECES = 64
LOW, HIGH, CENTRE, SPREAD, LOG_MASS = 0, 1, 2, 3, 4


@kernel
def linear_response(
    layout: Layout, psi: FloatArray, u: int, work: Work, start: FloatArray, rate: FloatArray, base: FloatArray
) -> float:
    """Fill θ_k = start_k + rate_k · x for the policy `work.greedy`, x = ψ_u; return log det(I − γ P_π).

    `base` is ψ with ψ_u = 0, filled here. `work.value`, `work.adjoint` and `work.theta` are used as scratch.
    """
    base[:] = psi
    base[u] = 0.0
    unit = work.theta  # scratch: 1 at u, 0 elsewhere
    unit[:] = 0.0
    unit[u] = 1.0
    log_det = 0.0
    for part in range(2):
        source = base if part == 0 else unit
        out = start if part == 0 else rate
        value = work.value if part == 0 else work.adjoint
        for s in range(value.size):
            if layout.is_goal[s]:
                value[s] = 0.0
        for c in range(layout.has_loop.size):
            first, last = layout.component_start[c], layout.component_start[c + 1]
            if layout.has_loop[c]:
                log_det += policy_values(layout, source, work, value, c, part == 0)
            else:
                s = layout.component_state[first]
                value[s] = outside_part(layout, source, value, work.greedy[s], c)
            for i in range(first, last):
                s = layout.component_state[i]
                for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
                    out[k] = backup(layout, source, value, k)
    return log_det


@kernel
def policy_values(layout: Layout, source: FloatArray, work: Work, value: FloatArray, c: int, is_first: bool) -> float:
    """Fill V of the policy in a looping component for the payoffs `source`; return log det.

    The first call for a policy finds the order of its forest, or the factors of I − γ P_π; the second reuses them.
    """
    first, last = layout.component_start[c], layout.component_start[c + 1]
    size = last - first
    if is_first:
        work.used_lu[c] = 0 if layout.is_deterministic and find_forest(layout, work, c) else 1
    if work.used_lu[c] == 0:
        for i in range(first, last):
            s = work.order[i]
            value[s] = backup(layout, source, value, work.greedy[s])
        return 0.0
    lu = work.lu[layout.lu_start[c] : layout.lu_start[c + 1]].reshape(size, size)
    log_det = factor_policy(layout, work.greedy, lu, c) if is_first else 0.0
    right = work.small[first:last]
    for i in range(size):
        right[i] = outside_part(layout, source, value, work.greedy[layout.component_state[first + i]], c)
    lu_solve(lu, right)
    for i in range(size):
        value[layout.component_state[first + i]] = right[i]
    return log_det


@kernel
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


@kernel
def reach(layout: Layout, work: Work, start: FloatArray, rate: FloatArray, x: float, up: bool) -> tuple[float, int]:
    """Return the next x, upwards or downwards, at which another pair overtakes a greedy one, and that pair (or −1)."""
    best, arg = (inf, -1) if up else (-inf, -1)
    for k in range(layout.pair_state.size):
        g = work.greedy[layout.pair_state[k]]
        if k == g:
            continue
        gain = rate[k] - rate[g] if up else rate[g] - rate[k]
        if gain > 1e-12:
            at = (start[g] - start[k]) / (rate[k] - rate[g])
            # Rounding may put the crossing a hair on the wrong side of where the walk stands.
            at = max(at, x) if up else min(at, x)
            if (up and at < best) or (not up and at > best):
                best, arg = at, k
    return best, arg


@kernel
def add_piece(
    layout: Layout,
    prior: PriorData,
    u: int,
    start: FloatArray,
    rate: FloatArray,
    low: float,
    high: float,
    log_det: float,
    piece: FloatArray,
) -> None:
    """Write one piece: its ends, the Gaussian in x of the priors of u and of the observed pairs, and its log mass."""
    bend, push, rest = 1.0, prior.mean, prior.mean * prior.mean
    for i in range(layout.observed.size):
        k = layout.observed[i]
        gap = prior.mean - start[k]
        bend += rate[k] * rate[k]
        push += rate[k] * gap
        rest += gap * gap
        if prior.wall == HARD_Q and rate[k] > 0.0:
            high = min(high, (prior.upper - start[k]) / rate[k])
        elif prior.wall == HARD_Q and start[k] > prior.upper:
            high = -inf
    if prior.wall == HARD_Q:
        high = min(high, prior.upper)
    centre, spread = push / bend, prior.scale / sqrt(bend)
    piece[LOW], piece[HIGH], piece[CENTRE], piece[SPREAD] = low, high, centre, spread
    exponent = -0.5 * (rest - push * push / bend) / (prior.scale * prior.scale)
    mass = log_mass((low - centre) / spread, (high - centre) / spread)
    piece[LOG_MASS] = exponent - log_det + log(spread) + 0.5 * log(2.0 * pi) + mass


@kernel
def conditional_pieces(
    layout: Layout, prior: PriorData, psi: FloatArray, u: int, work: Work, pieces: FloatArray, policies: IntArray
) -> int:
    """Fill the pieces of the conditional of ψ_u and the greedy policy of each; return how many there are.

    `work.greedy` must be the policy at ψ, and is left as it was. Up to the factor of the priors of the other unobserved
    pairs, the sum of exp(LOG_MASS) is the integral of the tolerance-0 density over x.
    """
    num_pairs = layout.pair_state.size
    start, rate, base = np.empty(num_pairs), np.empty(num_pairs), np.empty(num_pairs)
    here = work.greedy.copy()
    number = 0
    for direction in range(2):
        up = direction == 0
        work.greedy[:] = here
        x = psi[u]
        edge = x
        while number < MOST_PIECES:
            log_det = linear_response(layout, psi, u, work, start, rate, base)
            at, k = reach(layout, work, start, rate, edge, up)
            low, high = (edge, at) if up else (at, edge)
            if high > low:
                add_piece(layout, prior, u, start, rate, low, high, log_det, pieces[number])
                policies[number] = work.greedy
                number += 1
            if k < 0:
                break
            work.greedy[layout.pair_state[k]] = k
            edge = at
    work.greedy[:] = here
    return number


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


@kernel
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
        number = conditional_pieces(layout, prior, psi, u, work, pieces, policies)
        drawn, i = draw_piecewise(pieces, number, uniforms[j, 0], uniforms[j, 1])
        if i >= 0:
            psi[u] = drawn
            x[j] = drawn
            work.greedy[:] = policies[i]


@particle_kernel
def gibbs_sweep(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    uniforms: FloatArray,
) -> None:
    """Sweep each particle, in place; `uniforms` is ``(N, D, 2)``. Observed coordinates (ρ) stay where they are."""
    for n in prange(x.shape[0]):
        sweep_particle(layout, data, prior, free, fixed, x[n], uniforms[n])
