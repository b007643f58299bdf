"""What the compiled loops know of the data: arrays only, and the order in which states are solved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.compile import kernel
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable


class Layout(NamedTuple):
    """Observed rows in the flat layout, and the strongly connected components of their graph, successors first.

    Components hold the states that an observed row starts from or leads to; elsewhere θ = ψ, nothing is to be solved.
    """

    first_pair: IntArray  # (S + 1,)
    pair_state: IntArray  # (K,)
    is_goal: BoolArray  # (S,)
    observed: IntArray  # (n,)  pairs with a row
    row_of: IntArray  # (K,)  index into `observed`, or −1
    row_start: IntArray  # (n + 1,)
    successor: IntArray  # (nnz,)
    probability: FloatArray  # (nnz,)
    discount: float
    component_start: IntArray  # (C + 1,)
    component_state: IntArray  # the non-goal states that were met, component by component, successors first
    component_of: IntArray  # (S,)  −1 at goals and at states not met
    place: IntArray  # (S,)  position of a state within its component
    has_loop: BoolArray  # (C,)  more than one state, or a self-loop
    lu_start: IntArray  # (C + 1,)  where the factors of a looping component are kept
    exit_pair: IntArray  # (S,)  a pair that leads closer to an exit, −1 = any unobserved pair, −2 = there is none
    is_deterministic: bool  # every row has one successor
    is_simple: bool  # and no state can be visited twice: the quick sweeps will do
    next_state: IntArray  # (K,)  the one successor where simple; S, whose value is 0, for unobserved pairs


def build_layout(space: StateActionSpace, observed: IntArray, table: TransitionTable) -> Layout:
    """Return the layout of the rows `table` of the `observed` pairs."""
    row_of = np.full(space.num_pairs, -1, dtype=np.int64)
    row_of[observed] = np.arange(observed.size)
    graph = (space.first_pair, space.is_goal, row_of, table.row_start, table.successor)
    was_met = np.zeros(space.num_states, dtype=np.bool_)
    was_met[space.pair_state[observed]] = True
    was_met[table.successor] = True
    component_start, component_state = strong_components(*graph, was_met)
    sizes = np.diff(component_start)
    if component_state.size == sizes.size:
        # Neighbours in this order do not wait for each other's values, which a chain of successors would.
        level = levels(*graph, component_state)
        component_state = component_state[np.argsort(level[component_state], kind="stable")]
    component_of = np.full(space.num_states, -1, dtype=np.int64)
    component_of[component_state] = np.repeat(np.arange(sizes.size), sizes)
    place = np.zeros(space.num_states, dtype=np.int64)
    place[component_state] = np.arange(component_state.size) - np.repeat(component_start[:-1], sizes)
    source = np.repeat(space.pair_state[observed], np.diff(table.row_start))
    has_loop = sizes > 1
    has_loop[component_of[source[source == table.successor]]] = True
    lu_sizes = np.where(has_loop, sizes**2, 0)
    is_simple = table.is_deterministic and not has_loop.any()
    next_state = np.full(space.num_pairs, space.num_states, dtype=np.int64)
    if is_simple:
        next_state[observed] = table.successor
    return Layout(
        first_pair=space.first_pair,
        pair_state=space.pair_state,
        is_goal=space.is_goal,
        observed=observed,
        row_of=row_of,
        row_start=table.row_start,
        successor=table.successor,
        probability=table.probability,
        discount=space.discount,
        component_start=component_start,
        component_state=component_state,
        component_of=component_of,
        place=place,
        has_loop=has_loop,
        lu_start=np.concatenate([[0], np.cumsum(lu_sizes)]).astype(np.int64),
        exit_pair=exit_pairs(*graph, component_of),
        is_deterministic=table.is_deterministic,
        is_simple=bool(is_simple),
        next_state=next_state,
    )


@kernel
def strong_components(
    first_pair: IntArray,
    is_goal: BoolArray,
    row_of: IntArray,
    row_start: IntArray,
    successor: IntArray,
    was_met: BoolArray,
) -> tuple[IntArray, IntArray]:
    """Return offsets and states of the strongly connected components of the observed graph, successors first.

    Tarjan's algorithm without recursion. Goals and states that were not met are left out.
    """
    num_states = is_goal.size
    index = np.full(num_states, -1, dtype=np.int64)
    low = np.zeros(num_states, dtype=np.int64)
    on_stack = np.zeros(num_states, dtype=np.bool_)
    stack = np.empty(num_states, dtype=np.int64)
    call = np.empty(num_states, dtype=np.int64)
    pair_at = np.zeros(num_states, dtype=np.int64)  # where the search of a state's edges stands: pair …
    entry_at = np.zeros(num_states, dtype=np.int64)  # … and entry of its row
    starts = np.zeros(num_states + 1, dtype=np.int64)
    states = np.empty(num_states, dtype=np.int64)
    counter, stack_size, found, filled = 0, 0, 0, 0
    for root in range(num_states):
        if is_goal[root] or not was_met[root] or index[root] >= 0:
            continue
        depth = 0
        call[0] = root
        while depth >= 0:
            s = call[depth]
            if index[s] < 0:
                index[s] = low[s] = counter
                counter += 1
                stack[stack_size] = s
                stack_size += 1
                on_stack[s] = True
                pair_at[s] = first_pair[s]
                entry_at[s] = 0
            descended = False
            while pair_at[s] < first_pair[s + 1] and not descended:
                row = row_of[pair_at[s]]
                if row < 0 or row_start[row] + entry_at[s] >= row_start[row + 1]:
                    pair_at[s] += 1
                    entry_at[s] = 0
                    continue
                t = successor[row_start[row] + entry_at[s]]
                entry_at[s] += 1
                if is_goal[t]:
                    continue
                if index[t] < 0:
                    depth += 1
                    call[depth] = t
                    descended = True
                elif on_stack[t]:
                    low[s] = min(low[s], index[t])
            if descended:
                continue
            if low[s] == index[s]:
                while True:
                    stack_size -= 1
                    t = stack[stack_size]
                    on_stack[t] = False
                    states[filled] = t
                    filled += 1
                    if t == s:
                        break
                found += 1
                starts[found] = filled
            depth -= 1
            if depth >= 0:
                low[call[depth]] = min(low[call[depth]], low[s])
    return starts[: found + 1].copy(), states[:filled].copy()


@kernel
def levels(
    first_pair: IntArray,
    is_goal: BoolArray,
    row_of: IntArray,
    row_start: IntArray,
    successor: IntArray,
    states: IntArray,
) -> IntArray:
    """Return ``(S,)`` the length of the longest observed path from each state, self-loops apart; `states` in order."""
    level = np.zeros(is_goal.size, dtype=np.int64)
    for s in states:
        for k in range(first_pair[s], first_pair[s + 1]):
            row = row_of[k]
            if row >= 0:
                for e in range(row_start[row], row_start[row + 1]):
                    if successor[e] != s:
                        level[s] = max(level[s], level[successor[e]] + 1)
    return level


@kernel
def exit_pairs(
    first_pair: IntArray,
    is_goal: BoolArray,
    row_of: IntArray,
    row_start: IntArray,
    successor: IntArray,
    component_of: IntArray,
) -> IntArray:
    """Return per state a pair of a proper policy: −1 where an unobserved pair exits, −2 where there is no way out.

    Within a component a pair leads out if some successor lies outside or is already known to lead out.
    """
    num_states = is_goal.size
    choice = np.full(num_states, -2, dtype=np.int64)
    for s in range(num_states):
        for k in range(first_pair[s], first_pair[s + 1]):
            if row_of[k] < 0:
                choice[s] = -1
    changed = True
    while changed:
        changed = False
        for s in range(num_states):
            if is_goal[s] or choice[s] != -2:
                continue
            for k in range(first_pair[s], first_pair[s + 1]):
                row = row_of[k]
                for e in range(row_start[row], row_start[row + 1]):
                    t = successor[e]
                    # A successor in another component is an exit only if that component has one itself.
                    if is_goal[t] or (choice[t] != -2 and t != s):
                        choice[s] = k
                        changed = True
                        break
                if choice[s] != -2:
                    break
    return choice
