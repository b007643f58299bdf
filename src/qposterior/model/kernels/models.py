"""Loops over draws of models. Threads run them at the same time on other draws.

A draw starts from what it is given, never from the draw before: a result does not depend on how draws are shared among
threads.
"""

from __future__ import annotations

import numpy as np

from qposterior.model.kernels.compile import chain_kernel
from qposterior.model.kernels.components import Model, Shape, Work, backup, evaluate_draw, visit_draw
from qposterior.model.kernels.optima import optimise_draw
from qposterior.model.kernels.systems import Sweeps
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

ROW_SUM_TOLERANCE = 1e-4
"""By which a row may miss a sum of 1: it may be held in single precision."""

OPTIMA, VALUES, VISITS = 0, 1, 2
"""What `solve_draws` writes: Q*, V^π or visits."""


@chain_kernel
def normalise_draws(
    shape: Shape, rows: FloatArray, draws: IntArray, first: IntArray, needed: BoolArray, probability: FloatArray
) -> int:
    """Write ``(D, E)`` γ P of some draws in the order of `shape`; its pair k has its row at edge first[k] of `rows`.

    Rows sum to 1 in double precision. Those of pairs that are not `needed` are left as they are. Return in how many
    draws a row is no distribution.
    """
    wrong = 0
    for i in range(draws.size):
        d, lowest, is_fine = draws[i], 0.0, True
        for k in range(first.size):
            if not needed[k]:
                continue
            begin, size, total = shape.first_edge[k], shape.first_edge[k + 1] - shape.first_edge[k], 0.0
            for e in range(first[k], first[k] + size):
                total += rows[d, e]
                lowest = min(lowest, rows[d, e])
            is_fine = is_fine and abs(total - 1.0) <= ROW_SUM_TOLERANCE
            for e in range(size):
                probability[i, begin + e] = shape.discount * (rows[d, first[k] + e] / total)
        wrong += not (is_fine and lowest >= 0.0)
    return wrong


@chain_kernel
def solve_draws(
    task: int,
    shape: Shape,
    probability: FloatArray,
    reward: FloatArray,
    policy: FloatArray,
    start: FloatArray,
    tolerance: float,
    work: Work,
    sweeps: Sweeps | None,
    out: FloatArray,
    bounds: FloatArray,
) -> None:
    """Write ``(D, K)`` Q* = r + γ P V*, ``(D, S)`` V^π or ``(D, S)`` visits, and ``(D,)`` bounds on the errors.

    Optima start from `policy` and the values `start`, values of `policy` from `start`; its visits begin at `start`. Q*
    and visits are nan where there is no solution. One kernel for all three: most of what they are made of is the same,
    and would be compiled three times.
    """
    for d in range(reward.shape[0]):
        model = Model(probability[d], reward[d])
        if task == OPTIMA:
            bounds[d] = optimise_draw(shape, work, sweeps, model, policy, start, tolerance)
            for k in range(out.shape[1]):
                out[d, k] = backup(shape, work.value, model, k) if bounds[d] >= 0.0 else np.nan
        elif task == VALUES:
            bounds[d] = evaluate_draw(shape, work, sweeps, model, policy, start, tolerance)
            for s in range(out.shape[1]):
                out[d, s] = work.value[s]
        else:
            bounds[d] = visit_draw(shape, work, sweeps, model, policy, start, tolerance)
            for s in range(out.shape[1]):
                out[d, s] = work.flow[s] if bounds[d] >= 0.0 else np.nan


@chain_kernel
def backup_draws(shape: Shape, probability: FloatArray, reward: FloatArray, values: FloatArray, q: FloatArray) -> None:
    """Write ``(D, K)`` r + γ P V of ``(D, S)`` values."""
    for d in range(values.shape[0]):
        model = Model(probability[d], reward[d])
        for k in range(q.shape[1]):
            q[d, k] = backup(shape, values[d], model, k)
