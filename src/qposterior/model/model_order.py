"""The order in which the states of many models are solved, found once from the edges that they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.model.kernels.components import Shape
from qposterior.model.kernels.layout import strong_components
from qposterior.world.arrays import BoolArray, IntArray, offsets, segments
from qposterior.world.models import ModelDraws
from qposterior.world.structure import steps_to

SURE_STATES = 500
"""States of a component up to which it is solved by elimination at discount 1, whatever that costs: it tells a policy
that hardly ever reaches a goal from one that never does."""

MOST_DENSE, WORK_AN_EDGE = 2000, 150
"""Elsewhere elimination, of up to so many states n, is used where its n·(band width)² operations are at most so many
per edge: as a rule what sweeps take (some 50 states with random rows, 600 in a plane, any number in a line)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """The states in the order in which they are solved, the pairs in that of their states."""

    states: IntArray  # (S,)  by component, successors first, then goals
    pairs: IntArray  # (K,)
    shape: Shape


def order_of(models: ModelDraws) -> Order:
    """Return components of the graph of all edges, in order, and what the compiled loops need to know of them.

    It is found once for all models that share a support and a discount (`ModelDraws.memo`).
    """
    parts = models.space, models.first_edge, models.successor
    known = models.memo.get((order_of, models.space.discount))
    if known is None or any(old is not new for old, new in zip(known[0][1:], parts[1:], strict=True)):
        known = parts, _new_order(models)
        models.memo[order_of, models.space.discount] = known
    return known[1]


def _new_order(models: ModelDraws) -> Order:
    space = models.space
    source = np.repeat(space.pair_state, np.diff(models.first_edge))
    start, component = _components(models)
    states = np.concatenate([_ordered(models, component, source), space.goals])
    place = np.empty(space.num_states, dtype=np.int64)
    place[states] = np.arange(space.num_states)
    pairs = np.argsort(place[space.pair_state], kind="stable")
    first_edge, edges = segments(models.first_edge, pairs)
    sizes, within = np.diff(start), component[source] == component[models.successor]
    has_loop, is_closed = sizes > 1, np.ones(sizes.size, dtype=np.bool_)
    has_loop[component[source[source == models.successor]]] = True
    is_closed[component[source[~within]]] = False
    width, entries = np.zeros(sizes.size, dtype=np.int64), np.bincount(component[source], minlength=sizes.size)
    np.maximum.at(width, component[source[within]], np.abs(place[source] - place[models.successor])[within])
    is_dense: BoolArray = (sizes <= MOST_DENSE) & (sizes * width**2 <= WORK_AN_EDGE * entries)
    if space.discount == 1.0:
        is_dense |= sizes <= SURE_STATES
    shape = Shape(
        first_pair=offsets(np.diff(space.first_pair)[states]),
        first_edge=first_edge,
        successor=place[models.successor[edges]].astype(np.int32),
        discount=space.discount,
        start=start,
        has_loop=has_loop,
        is_closed=is_closed,
        is_dense=is_dense,
        width=width,
        most_states=int(sizes.max()),
        most_dense=int(sizes[is_dense].max(initial=1)),
        most_entries=int(entries.max()),
        num_sparse=int(np.sum(~is_dense)),
    )
    return Order(states=states, pairs=pairs, shape=shape)


def _components(models: ModelDraws) -> tuple[IntArray, IntArray]:
    """Return the offsets of the strong components, successors first, and the component of each state, −1 at goals."""
    space = models.space
    start, states = strong_components(
        space.first_pair,
        space.is_goal,
        np.arange(space.num_pairs),
        np.ascontiguousarray(models.first_edge, dtype=np.int64),
        np.ascontiguousarray(models.successor, dtype=np.int64),
        np.ones(space.num_states, dtype=np.bool_),
    )
    component = np.full(space.num_states, -1, dtype=np.int64)
    component[states] = np.repeat(np.arange(start.size - 1), np.diff(start))
    return start, component


def _ordered(models: ModelDraws, component: IntArray, source: IntArray) -> IntArray:
    """Return all states but the goals, by component, then by steps to an exit of it, neighbours near each other.

    Sweeps then carry values from the exits to all states, and elimination stays within a band (Cuthill and McKee 1969).
    """
    import scipy.sparse as sp
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    space, states = models.space, models.space.deciding_states
    within = component[source] == component[models.successor]
    size = (space.num_states, space.num_states)
    graph = sp.csr_array((np.ones(int(within.sum())), (source[within], models.successor[within])), shape=size)
    distance = steps_to(graph, np.unique(source[~within]))
    near = np.empty(space.num_states, dtype=np.int64)
    near[reverse_cuthill_mckee(sp.csr_array(graph + graph.T), symmetric_mode=True)] = np.arange(space.num_states)
    return states[np.lexsort((near[states], distance[states], component[states]))]
