"""What all models of one problem share, and the values and visits of a policy in one of them.

States are numbered anew: by components of the graph, successors first, goals last; within a component by the number of
steps to an exit. So a component is a range of states, and all loops run through memory in order. Components are solved
successors first, for visits predecessors first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qposterior.model.kernels.compile import inlined_kernel, inner_kernel
from qposterior.model.kernels.systems import (
    MOST_ATTEMPTS,
    Sweeps,
    System,
    is_left,
    most_steps,
    new_system,
    solve_densely,
    solve_sparsely,
)
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

UNSOLVED = -1.0
"""In place of the bound on an error: there is no finite solution."""


class Shape(NamedTuple):
    """Pairs and edges in the new numbers of the states, and the components, successors first."""

    first_pair: IntArray  # (S + 1,)
    first_edge: IntArray  # (K + 1,)
    successor: npt.NDArray[np.int32]  # (E,)
    discount: float
    start: IntArray  # (C + 1,)  the states of component c are start[c]:start[c + 1]; goals stand beyond
    has_loop: BoolArray  # (C,)  more than one state, or a self-loop
    is_closed: BoolArray  # (C,)  no edge leads out
    is_dense: BoolArray  # (C,)  to be solved by elimination
    width: IntArray  # (C,)  largest distance in number of two neighbours within a component
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


def new_work(shape: Shape) -> Work:
    """Return fresh scratch arrays."""
    num_states = shape.first_pair.size - 1
    return Work(
        policy=np.zeros(shape.first_edge.size - 1),
        value=np.zeros(num_states),
        flow=np.zeros(num_states),
        best=np.zeros(num_states),
        choice=np.zeros(num_states, dtype=np.int64),
        system=new_system(shape.most_states, shape.most_entries, shape.most_dense),
    )


def new_sweeps(shape: Shape) -> Sweeps | None:
    """Return fresh scratch arrays for sweeps, None where all components are solved by elimination."""
    if shape.num_sparse == 0:
        return None
    return Sweeps(diagonal=np.zeros(shape.most_states), scratch=np.zeros((8, shape.most_states)))


@inner_kernel
def backup(shape: Shape, value: FloatArray, model: Model, k: int) -> float:
    """Return r_k + γ Σ P(s'|k) V(s')."""
    total = model.reward[k]
    for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
        total += model.probability[e] * value[shape.successor[e]]
    return total


@inner_kernel
def fill_system(shape: Shape, work: Work, model: Model, c: int) -> int:
    """Fill the system of V^π in component c; return its number of states. What lies outside is part of b."""
    first, last = shape.start[c], shape.start[c + 1]
    system, filled = work.system, 0
    for s in range(first, last):
        system.start[s - first] = filled
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
                if first <= t < last:
                    system.column[filled], system.entry[filled] = t - first, share
                    filled += 1
                else:
                    leaving += share
                    payoff += share * work.value[t]
        system.leaving[s - first], system.right[s - first], system.solution[s - first] = leaving, payoff, work.value[s]
    system.start[last - first] = filled
    return last - first


@inner_kernel
def horizon_of(shape: Shape, work: Work, sweeps: Sweeps, model: Model, c: int) -> float:
    """Return the bound H of `systems` for the policy in component c; inf where it does not leave it (discount 1)."""
    if shape.discount < 1.0:
        return 1.0 / (1.0 - shape.discount)
    size = fill_system(shape, work, model, c)
    return most_steps(work.system, sweeps, size) if is_left(work.system, size) else np.inf


@inner_kernel
def evaluate_densely(shape: Shape, work: Work, model: Model, c: int) -> float:
    """Fill V^π in component c by elimination; return 0, `UNSOLVED` where the policy does not leave it."""
    size, first = fill_system(shape, work, model, c), shape.start[c]
    if not shape.has_loop[c]:
        work.system.solution[0] = work.system.right[0]
    elif not solve_densely(work.system, size, shape.width[c], size < 0):
        return UNSOLVED
    for i in range(size):
        work.value[first + i] = work.system.solution[i]
    return 0.0


@inner_kernel
def evaluate_sparsely(
    shape: Shape,
    work: Work,
    sweeps: Sweeps,
    model: Model,
    c: int,
    horizon: float,
    tolerance: float,
    enough: float,
) -> float:
    """Fill V^π in component c up to an error that is allowed; return the bound that was reached."""
    size, first = fill_system(shape, work, model, c), shape.start[c]
    bound = solve_sparsely(
        work.system, sweeps, size, size < 0, shape.is_closed[c], horizon, tolerance, enough, MOST_ATTEMPTS
    )
    for i in range(size):
        work.value[first + i] = work.system.solution[i]
    return bound


@inner_kernel
def begin(work: Work, policy: FloatArray, scratch: FloatArray, start: FloatArray) -> None:
    """Fill the policy and the values or the flow that a draw starts from.

    By loops: an assignment to a slice brings along the error message for lengths that differ, two seconds to compile.
    """
    for k in range(policy.size):
        work.policy[k] = policy[k]
    for s in range(start.size):
        scratch[s] = start[s]


@inlined_kernel
def evaluate_component(
    shape: Shape, work: Work, sweeps: Sweeps | None, model: Model, c: int, tolerance: float
) -> float:
    """Fill V^π in component c; return the bound on its error, `UNSOLVED` where the policy does not leave it."""
    bound = UNSOLVED
    if shape.is_dense[c] or not shape.has_loop[c]:
        bound = evaluate_densely(shape, work, model, c)
    elif sweeps is not None:
        horizon = horizon_of(shape, work, sweeps, model, c)
        if np.isfinite(horizon):
            bound = evaluate_sparsely(shape, work, sweeps, model, c, horizon, tolerance, 0.0)
    return bound if bound <= np.inf else UNSOLVED


@inlined_kernel
def evaluate_draw(
    shape: Shape,
    work: Work,
    sweeps: Sweeps | None,
    model: Model,
    policy: FloatArray,
    start_value: FloatArray,
    tolerance: float,
) -> float:
    """Fill V^π of one model in `work.value`, nan where it is not finite; return the bound on its error."""
    begin(work, policy, work.value, start_value)
    total, unsolved = 0.0, False
    for c in range(shape.has_loop.size):
        bound = evaluate_component(shape, work, sweeps, model, c, tolerance / max(shape.num_sparse, 1))
        if bound == UNSOLVED:
            unsolved = True
            for s in range(shape.start[c], shape.start[c + 1]):
                work.value[s] = np.nan
        else:
            total += bound
    return UNSOLVED if unsolved else total


@inlined_kernel
def visit_draw(
    shape: Shape,
    work: Work,
    sweeps: Sweeps | None,
    model: Model,
    policy: FloatArray,
    start: FloatArray,
    tolerance: float,
) -> float:
    """Fill `work.flow` with the discounted visits of one model; return the bound on the sum of their errors.

    x = start + γ P_πᵀ x over the states that are no goals, component by component, predecessors first.
    """
    begin(work, policy, work.flow, start)
    for s in range(work.value.size):
        work.value[s] = 0.0
    total = 0.0
    for c in range(shape.has_loop.size - 1, -1, -1):
        first = shape.start[c]
        inflow = 0.0
        for i in range(first, shape.start[c + 1]):
            inflow += work.flow[i]
        if inflow == 0.0:
            continue
        if shape.has_loop[c]:
            bound = visit_component(shape, work, sweeps, model, c, tolerance / max(shape.num_sparse, 1))
            if bound == UNSOLVED:
                return UNSOLVED
            total += bound
        push_out(shape, work, model, c)
    for s in range(shape.start[-1], work.flow.size):
        work.flow[s] = 0.0
    return total


@inlined_kernel
def visit_component(shape: Shape, work: Work, sweeps: Sweeps | None, model: Model, c: int, tolerance: float) -> float:
    """Turn the inflow of component c into visits; return the bound on the sum of their errors, or `UNSOLVED`."""
    system, first = work.system, shape.start[c]
    horizon = 0.0
    if sweeps is not None:
        horizon = 0.0 if shape.is_dense[c] else horizon_of(shape, work, sweeps, model, c)
    size, bound = fill_system(shape, work, model, c), UNSOLVED
    for i in range(size):
        system.right[i] = work.flow[first + i]
        system.solution[i] = system.right[i]
    if shape.is_dense[c]:
        bound = 0.0 if solve_densely(system, size, shape.width[c], size >= 0) else UNSOLVED
    elif sweeps is not None and np.isfinite(horizon):
        bound = solve_sparsely(
            system, sweeps, size, size >= 0, shape.is_closed[c], horizon, tolerance, 0.0, MOST_ATTEMPTS
        )
    if bound == UNSOLVED:
        return UNSOLVED
    for i in range(size):
        work.flow[first + i] = system.solution[i]
    return bound


@inlined_kernel
def push_out(shape: Shape, work: Work, model: Model, c: int) -> None:
    """Add what leaves component c to the flow into other states."""
    first, last = shape.start[c], shape.start[c + 1]
    for s in range(first, last):
        for k in range(shape.first_pair[s], shape.first_pair[s + 1]):
            share = work.policy[k] * work.flow[s]
            if share == 0.0:
                continue
            for e in range(shape.first_edge[k], shape.first_edge[k + 1]):
                t = shape.successor[e]
                if not first <= t < last:
                    work.flow[t] += share * model.probability[e]
