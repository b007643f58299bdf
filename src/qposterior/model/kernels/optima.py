"""The optimum of one model by policy iteration, component by component, successors first."""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.compile import inlined_kernel, inner_kernel
from qposterior.model.kernels.components import (
    UNSOLVED,
    Model,
    Shape,
    Work,
    backup,
    begin,
    evaluate_densely,
    evaluate_sparsely,
    fill_system,
    horizon_of,
)
from qposterior.model.kernels.systems import ROUNDING, Sweeps, is_left
from qposterior.world.arrays import FloatArray

IMPROVEMENT = 1e-13
"""A pair is preferred when it is better by this share of |V|: ties stay with the pair they have."""

PATIENCE = 100
"""Rounds of policy iteration after which a component counts as unsolved (with elimination: one a state beside)."""


@inner_kernel
def improve(shape: Shape, work: Work, model: Model, c: int) -> tuple[float, float, float]:
    """Fill `best` and `choice` of component c; return the least and the largest of best − V and the spread of Q."""
    low, high, least, most = np.inf, -np.inf, np.inf, -np.inf
    for s in range(shape.start[c], shape.start[c + 1]):
        best, choice = -np.inf, -1
        for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
            total = backup(shape, work.value, model, k)
            least, most = min(least, total), max(most, total)
            if total > best:
                best, choice = total, k
        work.best[s], work.choice[s] = best, choice
        low, high = min(low, best - work.value[s]), max(high, best - work.value[s])
    return low, high, most - least


@inner_kernel
def change_policy(shape: Shape, work: Work, c: int, share: float, margin: float) -> bool:
    """Take the choice of every state of c that is better by `margin` and by a `share` of |V|; return whether any is."""
    changed = False
    for s in range(shape.start[c], shape.start[c + 1]):
        if work.best[s] > work.value[s] + max(margin, share * abs(work.value[s])):
            changed = True
            choose(shape, work, s, work.choice[s])
    return changed


@inner_kernel
def choose(shape: Shape, work: Work, s: int, choice: int) -> None:
    """Let the policy take pair `choice` in state s."""
    for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
        work.policy[k] = 0.0
    work.policy[choice] = 1.0


@inlined_kernel
def make_proper(shape: Shape, work: Work, model: Model, c: int) -> bool:
    """Leave a policy that leaves component c as it is, else replace it by one that does; False in a trap.

    A state is led out by a pair with a successor outside, all of which have a way on to a goal, or with one that is
    itself led out.
    """
    size = fill_system(shape, work, model, c)
    if is_left(work.system, size):
        return True
    first, last = shape.start[c], shape.start[c + 1]
    for s in range(first, last):
        work.choice[s] = -1
    remaining, forward, changed = last - first, True, True
    while changed and remaining > 0:
        changed = False
        for j in range(size):
            s = first + j if forward else last - 1 - j
            if work.choice[s] >= 0:
                continue
            k = way_out(shape, work, model, s, c)
            if k >= 0:
                work.choice[s] = k
                choose(shape, work, s, k)
                remaining -= 1
                changed = True
        forward = not forward
    return remaining == 0


@inlined_kernel
def way_out(shape: Shape, work: Work, model: Model, s: int, c: int) -> int:
    """Return a pair of s that may leave c or reach a state that is led out, or −1."""
    for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
        for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
            t = shape.successor[e]
            is_outside = not shape.start[c] <= t < shape.start[c + 1]
            if model.probability[e] > 0.0 and (is_outside or work.choice[t] >= 0):
                return k
    return -1


@inlined_kernel
def optimise_densely(shape: Shape, work: Work, model: Model, c: int) -> float:
    """Policy iteration by elimination in component c; return 0, or `UNSOLVED` where a loop pays.

    Without rounding the values grow from round to round; the first round in which their sum has not grown is the last.
    """
    first, last = shape.start[c], shape.start[c + 1]
    before = -np.inf
    for _ in range(PATIENCE + last - first):
        if evaluate_densely(shape, work, model, c) == UNSOLVED:
            return UNSOLVED
        total = 0.0
        for i in range(first, last):
            total += work.value[i]
        if not np.isfinite(total):
            return UNSOLVED
        improve(shape, work, model, c)
        if not (total > before and change_policy(shape, work, c, IMPROVEMENT, 0.0)):
            return 0.0
        before = total
    return UNSOLVED


@inlined_kernel
def optimise_sparsely(shape: Shape, work: Work, sweeps: Sweeps, model: Model, c: int, tolerance: float) -> float:
    """Modified policy iteration in component c; return the bound on the error of V, or `UNSOLVED`.

    With ρ = T V − V, T the optimal backup, V* − V lies between H min ρ and H max ρ where c is never left, and between
    H min(ρ, 0) and H max(ρ, 0) elsewhere. Discount 1: H are the steps of the policy that was found, so that the bound
    holds among policies that take no longer, and a policy is evaluated before it is improved, or it might circle.
    """
    is_closed, discounted = shape.is_closed[c], shape.discount < 1.0
    horizon = horizon_of(shape, work, sweeps, model, c)
    first, last = shape.start[c], shape.start[c + 1]
    reached = 0.0 if discounted else evaluate_sparsely(shape, work, sweeps, model, c, horizon, 0.1 * tolerance, 0.0)
    bound = np.inf
    for _ in range(PATIENCE):
        low, high, spread = improve(shape, work, model, c)
        shift = 0.5 * horizon * (low + high) if is_closed else 0.0
        bound = 0.5 * horizon * (high - low) if is_closed else horizon * max(high, -low, 0.0)
        largest = 0.0
        for s in range(first, last):
            work.value[s] += shift
            work.best[s] += shift
            largest = max(largest, abs(work.value[s]))
        if not np.isfinite(bound):
            return UNSOLVED
        if bound <= max(tolerance * spread, 4.0 * horizon * ROUNDING * largest):
            return bound
        if discounted:
            change_policy(shape, work, c, 0.0, 0.0)
        elif not change_policy(shape, work, c, IMPROVEMENT, 2.0 * reached / horizon):
            return bound
        if not discounted:
            horizon = horizon_of(shape, work, sweeps, model, c)
            if not np.isfinite(horizon):
                return UNSOLVED
        enough = 0.02 * bound if discounted else 0.0
        reached = evaluate_sparsely(shape, work, sweeps, model, c, horizon, 0.1 * tolerance, enough)
    return bound if discounted else UNSOLVED


@inlined_kernel
def optimise_draw(
    shape: Shape,
    work: Work,
    sweeps: Sweeps | None,
    model: Model,
    start_policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
) -> float:
    """Fill V* of one model in `work.value`; return the bound on its error, `UNSOLVED` where it is not finite."""
    begin(work, start_policy, work.value, start_value)
    total = 0.0
    for c in range(shape.has_loop.size):
        if shape.discount == 1.0 and shape.has_loop[c] and not make_proper(shape, work, model, c):
            return UNSOLVED
        bound = UNSOLVED
        if not shape.has_loop[c]:
            improve(shape, work, model, c)
            s = shape.start[c]
            work.value[s] = work.best[s]
            choose(shape, work, s, work.choice[s])
            bound = 0.0
        elif shape.is_dense[c]:
            bound = optimise_densely(shape, work, model, c)
        elif sweeps is not None:
            bound = optimise_sparsely(shape, work, sweeps, model, c, tolerance / shape.num_sparse)
        if bound == UNSOLVED:
            return UNSOLVED
        total += bound
    return total
