"""The shape of the transition graph: layers, reachability, sets that a policy need never leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qposterior.world.arrays import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import scipy.sparse as sp

    from qposterior.world.space import StateActionSpace
    from qposterior.world.transitions import TransitionTable


def state_graph(space: StateActionSpace, table: TransitionTable, kept: BoolArray | None = None) -> sp.csr_array:
    """Return the ``(S, S)`` sparse graph with an edge s → s' where some kept pair of s may lead to s'."""
    import scipy.sparse as sp

    lengths = np.diff(table.row_start)
    source, target = np.repeat(space.pair_state, lengths), table.successor
    if kept is not None:
        entry = np.repeat(kept, lengths)
        source, target = source[entry], target[entry]
    graph = sp.coo_array((np.ones(source.size), (source, target)), shape=(space.num_states, space.num_states))
    return sp.csr_array(graph)


def steps_to(graph: sp.sparray, targets: IntArray) -> FloatArray:
    """Return ``(S,)`` the least number of edges from each state to the targets, inf where there is no way."""
    from scipy.sparse.csgraph import dijkstra

    if targets.size == 0:
        return np.full(graph.shape[0], np.inf)
    distance: FloatArray = dijkstra(graph.T, indices=targets, unweighted=True, min_only=True)
    return distance


def find_layers(space: StateActionSpace, table: TransitionTable, initial: FloatArray) -> IntArray | None:
    """Return ``(S,)`` the one step at which each state can be reached, or None where some state has none or several.

    In such a layered problem every transition leads from its layer to the next one.
    """
    step = steps_to(state_graph(space, table).T, np.flatnonzero(initial > 0.0))
    if not np.isfinite(step).all():
        return None
    layer = step.astype(np.int64)
    source = np.repeat(layer[space.pair_state], np.diff(table.row_start))
    return layer if np.array_equal(layer[table.successor], source + 1) else None


def is_acyclic(space: StateActionSpace, table: TransitionTable) -> bool:
    """Return whether no state can ever be visited twice."""
    from scipy.sparse.csgraph import connected_components

    graph = state_graph(space, table)
    num_components, _ = connected_components(graph, connection="strong")
    return bool(num_components == space.num_states and not graph.diagonal().any())


def inescapable_set(space: StateActionSpace, table: TransitionTable, kept: BoolArray) -> BoolArray:
    """Return the ``(S,)`` mask of the largest set of non-goal states that some choice of kept pairs never leaves.

    The greatest fixed point X = {s : some kept pair of s has all its successors in X}, by elimination.
    """
    inside = ~space.is_goal
    alive = kept.copy()
    while True:
        alive &= table.expect((~inside).astype(float)) == 0.0
        remaining = inside & (np.bincount(space.pair_state[alive], minlength=space.num_states) > 0)
        if np.array_equal(remaining, inside):
            return inside
        inside = remaining


def recurrent_class(space: StateActionSpace, table: TransitionTable, kept: BoolArray) -> IntArray:
    """Return the states of one closed class of the graph of kept pairs that contains no goal (there must be one)."""
    from scipy.sparse.csgraph import connected_components

    graph = state_graph(space, table, kept)
    _, label = connected_components(graph, connection="strong")
    source, target = graph.nonzero()
    leaves = np.zeros(label.max() + 1, dtype=bool)
    leaves[label[source[label[source] != label[target]]]] = True
    acts = np.zeros(space.num_states, dtype=bool)
    acts[source] = True
    closed = np.flatnonzero(acts & ~leaves[label])
    return np.flatnonzero(label == label[closed[0]])
