"""Optimal values, values of a policy and visits of a policy in many models, a draw at a time, draws in parallel.

Components of the graph are solved successors first (visits: predecessors first). A draw starts from what it is given,
never from the draw before, so that a result does not depend on how draws are shared among threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qposterior.model.kernels.compile import kernel, particle_kernel, prange
from qposterior.model.kernels.systems import (
    MOST_ATTEMPTS,
    ROUNDING,
    System,
    is_left,
    most_steps,
    new_system,
    solve_densely,
    solve_sparsely,
)
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

IMPROVEMENT = 1e-13
"""A pair is preferred when it is better by this share of |V|: ties stay with the pair they have."""

PATIENCE = 100
"""Rounds of policy iteration after which a component counts as unsolved (with elimination: one a state beside)."""

UNSOLVED = -1.0
"""In place of the bound on a draw's error: it has no finite solution."""

ROW_SUM_TOLERANCE = 1e-4


class Shape(NamedTuple):
    """What all models share: pairs and edges, and the components of the graph, successors first."""

    first_pair: IntArray  # (S + 1,)
    first_edge: IntArray  # (K + 1,)
    successor: npt.NDArray[np.int32]  # (E,)
    is_goal: BoolArray  # (S,)
    discount: float
    component_start: IntArray  # (C + 1,)
    component_state: IntArray  # all states but the goals, component by component
    component_of: IntArray  # (S,)  −1 at goals
    place: IntArray  # (S,)  position of a state within its component
    has_loop: BoolArray  # (C,)  more than one state, or a self-loop
    is_closed: BoolArray  # (C,)  no edge leads out
    is_dense: BoolArray  # (C,)  to be solved by elimination
    most_states: int  # of a component
    most_dense: int  # of one that is solved by elimination
    most_entries: int  # edges of the states of a component
    num_sparse: int  # components that are not solved by elimination


class Model(NamedTuple):
    """One draw."""

    probability: FloatArray  # (E,)  γ P
    reward: FloatArray  # (K,)


class Work(NamedTuple):
    """Scratch arrays of one thread."""

    policy: FloatArray  # (K,)
    value: FloatArray  # (S,)
    flow: FloatArray  # (S,)
    best: FloatArray  # (S,)  the largest backup of a state …
    choice: IntArray  # (S,)  … and its pair
    system: System


@kernel
def new_work(shape: Shape) -> Work:
    """Return fresh scratch arrays."""
    num_states = shape.is_goal.size
    return Work(
        np.zeros(shape.first_edge.size - 1),
        np.zeros(num_states),
        np.zeros(num_states),
        np.zeros(num_states),
        np.zeros(num_states, dtype=np.int64),
        new_system(shape.most_states, shape.most_entries, shape.most_dense),
    )


@kernel
def backup(shape: Shape, work: Work, model: Model, k: int) -> float:
    """Return r_k + γ Σ P(s'|k) V(s')."""
    total = model.reward[k]
    for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
        total += model.probability[e] * work.value[shape.successor[e]]
    return total


@kernel
def fill_system(shape: Shape, work: Work, model: Model, c: int) -> int:
    """Fill the system of V^π in component c; return its number of states. What lies outside is part of b."""
    first, last = shape.component_start[c], shape.component_start[c + 1]
    system, filled = work.system, 0
    for i in range(last - first):
        s = shape.component_state[first + i]
        system.start[i] = filled
        leaving, payoff = 0.0, 0.0
        for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
            weight = work.policy[k]
            if weight == 0.0:
                continue
            payoff += weight * model.reward[k]
            leaving += weight * (1.0 - shape.discount)
            for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
                share, t = weight * model.probability[e], shape.successor[e]
                if share == 0.0:
                    continue
                if shape.component_of[t] == c:
                    system.column[filled], system.entry[filled] = shape.place[t], share
                    filled += 1
                else:
                    leaving += share
                    payoff += share * work.value[t]
        system.leaving[i], system.right[i], system.solution[i] = leaving, payoff, work.value[s]
    system.start[last - first] = filled
    return last - first


# -- the values of a policy --------------------------------------------------------------------------------------------


@kernel
def horizon_of(shape: Shape, work: Work, model: Model, c: int) -> float:
    """Return the bound H of `systems` for the policy in component c; inf where it does not leave it (discount 1)."""
    if shape.discount < 1.0:
        return 1.0 / (1.0 - shape.discount)
    size = fill_system(shape, work, model, c)
    return most_steps(work.system, size) if is_left(work.system, size) else np.inf


@kernel
def evaluate_component(shape: Shape, work: Work, model: Model, c: int, tolerance: float) -> float:
    """Fill V^π in component c; return the bound on its error, `UNSOLVED` where the policy does not leave it."""
    first = shape.component_start[c]
    if not shape.has_loop[c]:
        size, bound = fill_system(shape, work, model, c), 0.0
        work.system.solution[0] = work.system.right[0]
    elif shape.is_dense[c]:
        size, bound = fill_system(shape, work, model, c), 0.0
        if not solve_densely(work.system, size, False):
            return UNSOLVED
    else:
        horizon = horizon_of(shape, work, model, c)
        size = fill_system(shape, work, model, c)
        if not np.isfinite(horizon):
            return UNSOLVED
        bound = solve_sparsely(work.system, size, False, shape.is_closed[c], horizon, tolerance, 0.0, MOST_ATTEMPTS)
        if not bound <= np.inf:
            return UNSOLVED
    for i in range(size):
        work.value[shape.component_state[first + i]] = work.system.solution[i]
    return bound


@kernel
def evaluate_draw(
    shape: Shape,
    model: Model,
    policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    work: Work,
) -> float:
    """Fill V^π of one model in `work.value`, nan where it is not finite; return the bound on its error."""
    work.policy[:] = policy
    work.value[:] = start_value
    total, unsolved = 0.0, False
    for c in range(shape.has_loop.size):
        bound = evaluate_component(shape, work, model, c, tolerance / max(shape.num_sparse, 1))
        if bound == UNSOLVED:
            unsolved = True
            for i in range(shape.component_start[c], shape.component_start[c + 1]):
                work.value[shape.component_state[i]] = np.nan
        else:
            total += bound
    return UNSOLVED if unsolved else total


@kernel
def visit_draw(
    shape: Shape, model: Model, policy: FloatArray, start: FloatArray, tolerance: float, work: Work
) -> float:
    """Fill `work.flow` with the discounted visits of one model; return the bound on the sum of their errors.

    x = start + γ P_πᵀ x over the states that are no goals, component by component, predecessors first.
    """
    work.policy[:] = policy
    work.value[:] = 0.0
    work.flow[:] = start
    total = 0.0
    for c in range(shape.has_loop.size - 1, -1, -1):
        first = shape.component_start[c]
        inflow = 0.0
        for i in range(first, shape.component_start[c + 1]):
            inflow += work.flow[shape.component_state[i]]
        if inflow == 0.0:
            continue
        if shape.has_loop[c]:
            bound = visit_component(shape, work, model, c, tolerance / max(shape.num_sparse, 1))
            if bound == UNSOLVED:
                return UNSOLVED
            total += bound
        push_out(shape, work, model, c)
    for s in range(shape.is_goal.size):
        if shape.is_goal[s]:
            work.flow[s] = 0.0
    return total


@kernel
def visit_component(shape: Shape, work: Work, model: Model, c: int, tolerance: float) -> float:
    """Turn the inflow of component c into visits; return the bound on the sum of their errors, or `UNSOLVED`."""
    system, first = work.system, shape.component_start[c]
    is_dense = shape.is_dense[c]
    horizon = 0.0 if is_dense else horizon_of(shape, work, model, c)
    size = fill_system(shape, work, model, c)
    for i in range(size):
        system.right[i] = work.flow[shape.component_state[first + i]]
        system.solution[i] = system.right[i]
    bound = 0.0
    if is_dense:
        if not solve_densely(system, size, True):
            return UNSOLVED
    else:
        if not np.isfinite(horizon):
            return UNSOLVED
        bound = solve_sparsely(system, size, True, shape.is_closed[c], horizon, tolerance, 0.0, MOST_ATTEMPTS)
    for i in range(size):
        work.flow[shape.component_state[first + i]] = system.solution[i]
    return bound


@kernel
def push_out(shape: Shape, work: Work, model: Model, c: int) -> None:
    """Add what leaves component c to the flow into other states."""
    for i in range(shape.component_start[c], shape.component_start[c + 1]):
        s = shape.component_state[i]
        for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
            share = work.policy[k] * work.flow[s]
            if share == 0.0:
                continue
            for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
                t = shape.successor[e]
                if shape.component_of[t] != c:
                    work.flow[t] += share * model.probability[e]


# -- the optimum -------------------------------------------------------------------------------------------------------


@kernel
def improve(shape: Shape, work: Work, model: Model, c: int) -> tuple[float, float, float]:
    """Fill `best` and `choice` of component c; return the least and the largest of best − V and the spread of Q."""
    low, high, least, most = np.inf, -np.inf, np.inf, -np.inf
    for i in range(shape.component_start[c], shape.component_start[c + 1]):
        s = shape.component_state[i]
        best, choice = -np.inf, -1
        for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
            total = backup(shape, work, model, k)
            least, most = min(least, total), max(most, total)
            if total > best:
                best, choice = total, k
        work.best[s], work.choice[s] = best, choice
        low, high = min(low, best - work.value[s]), max(high, best - work.value[s])
    return low, high, most - least


@kernel
def change_policy(shape: Shape, work: Work, c: int, share: float, margin: float) -> bool:
    """Take the choice of every state of c that is better by `margin` and by a `share` of |V|; return whether any is."""
    changed = False
    for i in range(shape.component_start[c], shape.component_start[c + 1]):
        s = shape.component_state[i]
        if work.best[s] > work.value[s] + max(margin, share * abs(work.value[s])):
            changed = True
            choose(shape, work, s, work.choice[s])
    return changed


@kernel
def choose(shape: Shape, work: Work, s: int, choice: int) -> None:
    """Let the policy take pair `choice` in state s."""
    for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
        work.policy[k] = 0.0
    work.policy[choice] = 1.0


@kernel
def make_proper(shape: Shape, work: Work, model: Model, c: int) -> bool:
    """Leave a policy that leaves component c as it is, else replace it by one that does; False in a trap.

    A state is led out by a pair with a successor outside, all of which have a way on to a goal, or with one that is
    itself led out.
    """
    size = fill_system(shape, work, model, c)
    if is_left(work.system, size):
        return True
    first, last = shape.component_start[c], shape.component_start[c + 1]
    for i in range(first, last):
        work.choice[shape.component_state[i]] = -1
    remaining, forward, changed = last - first, True, True
    while changed and remaining > 0:
        changed = False
        for j in range(size):
            s = shape.component_state[first + j if forward else last - 1 - j]
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


@kernel
def way_out(shape: Shape, work: Work, model: Model, s: int, c: int) -> int:
    """Return a pair of s that may leave c or reach a state that is led out, or −1."""
    for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
        for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
            t = shape.successor[e]
            if model.probability[e] > 0.0 and (shape.component_of[t] != c or work.choice[t] >= 0):
                return k
    return -1


@kernel
def optimise_densely(shape: Shape, work: Work, model: Model, c: int) -> float:
    """Policy iteration by elimination in component c; return 0, or `UNSOLVED` where a loop pays.

    Without rounding the values grow from round to round; the first round in which their sum has not grown is the last.
    """
    first, last = shape.component_start[c], shape.component_start[c + 1]
    before = -np.inf
    for _ in range(PATIENCE + last - first):
        if evaluate_component(shape, work, model, c, 0.0) == UNSOLVED:
            return UNSOLVED
        total = 0.0
        for i in range(first, last):
            total += work.value[shape.component_state[i]]
        if not np.isfinite(total):
            return UNSOLVED
        improve(shape, work, model, c)
        if not (total > before and change_policy(shape, work, c, IMPROVEMENT, 0.0)):
            return 0.0
        before = total
    return UNSOLVED


@kernel
def optimise_sparsely(shape: Shape, work: Work, model: Model, c: int, tolerance: float) -> float:
    """Modified policy iteration in component c; return the bound on the error of V, or `UNSOLVED`.

    With ρ = T V − V, T the optimal backup, V* − V lies between H min ρ and H max ρ where c is never left, and between
    H min(ρ, 0) and H max(ρ, 0) elsewhere. Discount 1: H are the steps of the policy that was found, so that the bound
    holds among policies that take no longer, and a policy is evaluated before it is improved, or it might circle.
    """
    is_closed, discounted = shape.is_closed[c], shape.discount < 1.0
    horizon = horizon_of(shape, work, model, c)
    first, last = shape.component_start[c], shape.component_start[c + 1]
    reached = 0.0 if discounted else evaluate_sparsely(shape, work, model, c, horizon, 0.1 * tolerance, 0.0)
    bound = np.inf
    for _ in range(PATIENCE):
        low, high, spread = improve(shape, work, model, c)
        shift = 0.5 * horizon * (low + high) if is_closed else 0.0
        bound = 0.5 * horizon * (high - low) if is_closed else horizon * max(high, -low, 0.0)
        largest = 0.0
        for i in range(first, last):
            s = shape.component_state[i]
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
            horizon = horizon_of(shape, work, model, c)
            if not np.isfinite(horizon):
                return UNSOLVED
        enough = 0.02 * bound if discounted else 0.0
        reached = evaluate_sparsely(shape, work, model, c, horizon, 0.1 * tolerance, enough)
    return bound if discounted else UNSOLVED


@kernel
def evaluate_sparsely(
    shape: Shape, work: Work, model: Model, c: int, horizon: float, tolerance: float, enough: float
) -> float:
    """Fill V of the policy in component c up to an error that is allowed; return the bound that was reached."""
    size, first = fill_system(shape, work, model, c), shape.component_start[c]
    bound = solve_sparsely(work.system, size, False, shape.is_closed[c], horizon, tolerance, enough, MOST_ATTEMPTS)
    for i in range(size):
        work.value[shape.component_state[first + i]] = work.system.solution[i]
    return bound


@kernel
def optimise_draw(
    shape: Shape,
    model: Model,
    start_policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    work: Work,
) -> float:
    """Fill V* of one model in `work.value`; return the bound on its error, `UNSOLVED` where it is not finite."""
    work.policy[:] = start_policy
    work.value[:] = start_value
    total = 0.0
    for c in range(shape.has_loop.size):
        if shape.discount == 1.0 and shape.has_loop[c] and not make_proper(shape, work, model, c):
            return UNSOLVED
        if not shape.has_loop[c]:
            improve(shape, work, model, c)
            s = shape.component_state[shape.component_start[c]]
            work.value[s] = work.best[s]
            choose(shape, work, s, work.choice[s])
            bound = 0.0
        elif shape.is_dense[c]:
            bound = optimise_densely(shape, work, model, c)
        else:
            bound = optimise_sparsely(shape, work, model, c, tolerance / shape.num_sparse)
        if bound == UNSOLVED:
            return UNSOLVED
        total += bound
    return total


# -- loops over draws --------------------------------------------------------------------------------------------------


@kernel
def normalise(shape: Shape, row: Any, probability: FloatArray) -> bool:
    """Write γ P with a row of each pair that sums to 1 in double precision; False where one is no distribution."""
    for k in range(shape.first_edge.size - 1):
        first, last = shape.first_edge[k], shape.first_edge[k + 1]
        total, lowest = 0.0, 0.0
        for e in range(first, last):
            total += row[e]
            lowest = min(lowest, float(row[e]))
        if lowest < 0.0 or not abs(total - 1.0) <= ROW_SUM_TOLERANCE:
            return False
        for e in range(first, last):
            probability[e] = shape.discount * (row[e] / total)
    return True


@particle_kernel
def normalise_draws(shape: Shape, rows: Any, probability: FloatArray, is_fine: BoolArray) -> None:
    """Write ``(D, E)`` γ P and whether all rows of a draw are distributions."""
    for d in prange(rows.shape[0]):
        is_fine[d] = normalise(shape, rows[d], probability[d])


@kernel
def write_q(shape: Shape, work: Work, model: Model, bound: float, q: FloatArray) -> None:
    """Write Q = r + γ P V, or nan where there is no solution."""
    for k in range(q.size):
        q[k] = backup(shape, work, model, k) if bound >= 0.0 else np.nan


@kernel
def optimise_some(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    start_policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    q: FloatArray,
    bounds: FloatArray,
) -> None:
    """Write Q* of a few draws."""
    work = new_work(shape)
    for d in range(reward.shape[0]):
        bounds[d] = optimise_draw(shape, Model(probability[d], reward[d]), start_policy, start_value, tolerance, work)
        write_q(shape, work, Model(probability[d], reward[d]), bounds[d], q[d])


@particle_kernel
def optimise_draws(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    start_policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    q: FloatArray,
    bounds: FloatArray,
    cuts: IntArray,
) -> None:
    """Write ``(D, K)`` Q* and ``(D,)`` bounds on the errors of V*; draws cuts[i]:cuts[i + 1] share scratch arrays."""
    for i in prange(cuts.size - 1):
        a, b = cuts[i], cuts[i + 1]
        optimise_some(shape, probability[a:b], reward[a:b], start_policy, start_value, tolerance, q[a:b], bounds[a:b])


@kernel
def evaluate_some(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    values: FloatArray,
    bounds: FloatArray,
) -> None:
    """Write V^π of a few draws."""
    work = new_work(shape)
    for d in range(reward.shape[0]):
        bounds[d] = evaluate_draw(shape, Model(probability[d], reward[d]), policy, start_value, tolerance, work)
        values[d] = work.value


@particle_kernel
def evaluate_draws(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
    values: FloatArray,
    bounds: FloatArray,
    cuts: IntArray,
) -> None:
    """Write ``(D, S)`` V^π and ``(D,)`` bounds on its errors; draws cuts[i]:cuts[i + 1] share scratch arrays."""
    for i in prange(cuts.size - 1):
        a, b = cuts[i], cuts[i + 1]
        evaluate_some(shape, probability[a:b], reward[a:b], policy, start_value, tolerance, values[a:b], bounds[a:b])


@kernel
def visit_some(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    policy: FloatArray,
    start: FloatArray,
    tolerance: float,
    visits: FloatArray,
    bounds: FloatArray,
) -> None:
    """Write the visits of a few draws."""
    work = new_work(shape)
    for d in range(reward.shape[0]):
        bounds[d] = visit_draw(shape, Model(probability[d], reward[d]), policy, start, tolerance, work)
        for s in range(visits.shape[1]):
            visits[d, s] = work.flow[s] if bounds[d] >= 0.0 else np.nan


@particle_kernel
def visit_draws(
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    policy: FloatArray,
    start: FloatArray,
    tolerance: float,
    visits: FloatArray,
    bounds: FloatArray,
    cuts: IntArray,
) -> None:
    """Write ``(D, S)`` visits and ``(D,)`` bounds on their errors; draws cuts[i]:cuts[i + 1] share scratch arrays."""
    for i in prange(cuts.size - 1):
        a, b = cuts[i], cuts[i + 1]
        visit_some(shape, probability[a:b], reward[a:b], policy, start, tolerance, visits[a:b], bounds[a:b])
