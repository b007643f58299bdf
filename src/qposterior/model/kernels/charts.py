"""The compiled form of a target: the numbers of its parts and of its chart, and its log-density there.

`density`, `new_scratch` and `forget` do what the type of the chart's numbers asks for. It is resolved when a kernel is
compiled, so that the loops of `particles` are written once and cost what a loop written for one chart would.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from qposterior.model.kernels.bellman import Work, new_work
from qposterior.model.kernels.compile import inlined_kernel, kernel
from qposterior.model.kernels.density import LikelihoodData, PriorData, bellman_density, q_density
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray


class QCoordinates(NamedTuple):
    """x = θ."""

    num_pairs: int


class BellmanCoordinates(NamedTuple):
    """x = ψ on some pairs."""

    free: IntArray  # (F,)  pairs whose ψ is a coordinate
    fixed: FloatArray  # (K,)  ψ of the others
    feedback: float  # β, the power that the determinant is raised to


Coordinates = QCoordinates | BellmanCoordinates


class Model(NamedTuple):
    """The numbers of all parts. Loops over particles take them one by one: they cannot be nested there."""

    layout: Layout
    data: LikelihoodData
    prior: PriorData
    chart: Coordinates


class QScratch(NamedTuple):
    """Scratch arrays of one particle in Q coordinates."""

    value: FloatArray  # (S,)
    greedy: IntArray  # (S,)


class BellmanScratch(NamedTuple):
    """Scratch arrays of one particle in Bellman coordinates. The policy of one solve is where the next starts."""

    psi: FloatArray  # (K,)
    slope: FloatArray  # (K,)
    work: Work


@inlined_kernel
def _q_density(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: QCoordinates,
    x: FloatArray,
    grad: FloatArray,
    scratch: QScratch,
) -> tuple[float, float]:
    return q_density(layout, data, prior, x, grad, scratch.value, scratch.greedy), 0.0


@inlined_kernel
def _bellman_density(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    chart: BellmanCoordinates,
    x: FloatArray,
    grad: FloatArray,
    scratch: BellmanScratch,
) -> tuple[float, float]:
    smooth, jump = bellman_density(
        layout, data, prior, chart.free, chart.fixed, x, grad, scratch.psi, scratch.slope, scratch.work
    )
    return smooth, chart.feedback * jump


@kernel
def _q_scratch(layout: Layout, chart: QCoordinates) -> QScratch:
    num_states = layout.is_goal.size
    return QScratch(np.zeros(num_states), np.zeros(num_states, dtype=np.int64))


@kernel
def _bellman_scratch(layout: Layout, chart: BellmanCoordinates) -> BellmanScratch:
    return BellmanScratch(np.empty(chart.fixed.size), np.empty(chart.fixed.size), new_work(layout))


@kernel
def _q_forget(scratch: QScratch) -> None:
    pass


@kernel
def _bellman_forget(scratch: BellmanScratch) -> None:
    scratch.work.greedy[:] = -1


_DENSITY: dict[Any, Any] = {QCoordinates: _q_density, BellmanCoordinates: _bellman_density}
_SCRATCH: dict[Any, Any] = {QCoordinates: _q_scratch, BellmanCoordinates: _bellman_scratch}
_FORGET: dict[Any, Any] = {QScratch: _q_forget, BellmanScratch: _bellman_forget}


def density(
    layout: Layout, data: LikelihoodData, prior: PriorData, chart: Any, x: FloatArray, grad: FloatArray, scratch: Any
) -> tuple[float, float]:
    """Return the smooth log-density of one particle and its jump (−log det, or 0); write the gradient of the first."""
    found: tuple[float, float] = _DENSITY[type(chart)](layout, data, prior, chart, x, grad, scratch)
    return found


def new_scratch(layout: Layout, chart: Any) -> Any:
    """Return fresh scratch arrays for one particle."""
    return _SCRATCH[type(chart)](layout, chart)


def forget(scratch: Any) -> None:
    """Let the next density start from nothing: where a trajectory diverged is no place to start a solve from."""
    _FORGET[type(scratch)](scratch)


def _class_of(argument: types.Type) -> type | None:
    """Return the class of a named tuple, given its type while compiling."""
    return getattr(argument, "instance_class", None)


@overload(density, inline="always")
def _resolve_density(layout: Any, data: Any, prior: Any, chart: Any, x: Any, grad: Any, scratch: Any) -> Any:
    chosen = _DENSITY[_class_of(chart)]

    def compiled(layout: Any, data: Any, prior: Any, chart: Any, x: Any, grad: Any, scratch: Any) -> Any:
        return chosen(layout, data, prior, chart, x, grad, scratch)

    return compiled


@overload(new_scratch, jit_options={"error_model": "numpy"})
def _resolve_scratch(layout: Any, chart: Any) -> Any:
    chosen = _SCRATCH[_class_of(chart)]

    def compiled(layout: Any, chart: Any) -> Any:
        return chosen(layout, chart)

    return compiled


@overload(forget, jit_options={"error_model": "numpy"})
def _resolve_forget(scratch: Any) -> Any:
    chosen = _FORGET[_class_of(scratch)]

    def compiled(scratch: Any) -> Any:
        return chosen(scratch)

    return compiled


@kernel
def layout_with_rows(layout: Layout, rows: FloatArray, n: int) -> Layout:
    """Return the layout with the transition rows of particle n: ``(1, nnz)`` rows are shared by all particles."""
    return Layout(
        layout.first_pair,
        layout.pair_state,
        layout.is_goal,
        layout.observed,
        layout.row_of,
        layout.row_start,
        layout.successor,
        rows[min(np.int64(n), rows.shape[0] - 1)],
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
