"""Loops over draws of models, in parallel.

A draw starts from what it is given, never from the draw before: a result does not depend on how draws are shared among
threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.model.kernels.compile import kernel, particle_kernel, prange
from qposterior.model.kernels.components import Model, Shape, Work, backup, evaluate_draw, new_work, visit_draw
from qposterior.model.kernels.optima import optimise_draw
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

ROW_SUM_TOLERANCE = 1e-4
"""By which a row may miss a sum of 1: it may be held in single precision."""


@kernel
def normalise(shape: Shape, row: Any, first_edge: IntArray, pairs: IntArray, probability: FloatArray) -> bool:
    """Write γ P in the order of `pairs`, rows that sum to 1 in double precision; False where one is no distribution."""
    for k in range(pairs.size):
        first, begin = first_edge[pairs[k]], shape.first_edge[k]
        size = shape.first_edge[k + 1] - begin
        total, lowest = 0.0, 0.0
        for e in range(first, first + size):
            total += row[e]
            lowest = min(lowest, float(row[e]))
        if lowest < 0.0 or not abs(total - 1.0) <= ROW_SUM_TOLERANCE:
            return False
        for e in range(size):
            probability[begin + e] = shape.discount * (row[first + e] / total)
    return True


@particle_kernel
def normalise_draws(
    shape: Shape, rows: Any, first_edge: IntArray, pairs: IntArray, probability: FloatArray, is_fine: BoolArray
) -> None:
    """Write ``(D, E)`` γ P in the order of `pairs` and whether all rows of a draw are distributions."""
    for d in prange(rows.shape[0]):
        is_fine[d] = normalise(shape, rows[d], first_edge, pairs, probability[d])


@kernel
def write_q(shape: Shape, work: Work, model: Model, bound: float, q: FloatArray) -> None:
    """Write Q = r + γ P V, or nan where there is no solution."""
    for k in range(q.size):
        q[k] = backup(shape, work.value, model, k) if bound >= 0.0 else np.nan


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


@kernel
def backup_one(shape: Shape, model: Model, value: FloatArray, q: FloatArray) -> None:
    """Write r + γ P V of one draw."""
    for k in range(q.size):
        q[k] = backup(shape, value, model, k)


@particle_kernel
def backup_draws(shape: Shape, probability: FloatArray, reward: FloatArray, values: FloatArray, q: FloatArray) -> None:
    """Write ``(D, K)`` r + γ P V of ``(D, S)`` values."""
    for d in prange(values.shape[0]):
        backup_one(shape, Model(probability[d], reward[d]), values[d], q[d])
