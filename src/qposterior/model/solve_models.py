"""Optimal values, values of a policy and its visits, in every one of many models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qposterior.checks import check_number, check_numbers, check_type
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.compile import ALL_THREADS, use_threads_for
from qposterior.model.kernels.layout import strong_components
from qposterior.model.kernels.models import Shape, evaluate_draws, normalise_draws, optimise_draws, visit_draws
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, sum_by
from qposterior.world.mdp import initial_distribution
from qposterior.world.models import ModelDraws
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import state_graph, steps_to

TOLERANCE = 1e-9
"""Of values, relative to their spread in the model (the largest less the smallest)."""

SURE_STATES = 500
"""States of a component up to which it is solved by elimination at discount 1, whatever that costs: it tells a policy
that hardly ever reaches a goal from one that never does."""

MOST_DENSE, WORK_AN_EDGE = 2000, 300
"""Elsewhere elimination, of up to so many states n, is used where its n·(band width)² operations are at most so many
per edge: what sweeps take as a rule (24 to 64 states with random rows, 1,000 states in a plane, 2,000 in a line)."""

PIECES_A_THREAD = 8
QUICK_SWEEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """Q* of every model; nan in models without a finite solution."""

    q: FloatArray  # (D, K)
    bounds: FloatArray  # (D,)  no V* is off by more than this; nan where there is none

    @property
    def solved(self) -> BoolArray:
        """``(D,)`` which models have a finite solution."""
        return np.isfinite(self.bounds)

    @property
    def num_unsolved(self) -> int:
        """How many have none: at discount 1 a loop pays, or some state has no way to a goal."""
        return int(np.sum(~self.solved))


def solve_models(
    models: ModelDraws, *, draws: IntArray | None = None, tolerance: float = TOLERANCE, out: FloatArray | None = None
) -> Solutions:
    """Return Q* of every model (or of the `draws` with these numbers) by policy iteration.

    Each model starts from the optimum of the mean model. Small components of the graph are solved by elimination, up to
    rounding (`SURE_STATES`, `MOST_DENSE`); others until the error of V*, bounded by MacQueen's and Porteus's
    inequalities, is at most `tolerance` times the spread of Q* within the component. At discount 1 that bound holds
    among policies that do not take more steps than the one found. Q* is r + γ P V*, so that actions which agree in r
    and P tie exactly. `out` is an array, possibly memory-mapped and of single precision, that Q* is written to.
    """
    chosen = _numbers(models, draws)
    q = np.empty((chosen.size, models.space.num_pairs)) if out is None else out
    if q.shape != (chosen.size, models.space.num_pairs):
        raise InvalidInputError(f"out must have shape {(chosen.size, models.space.num_pairs)}, got {q.shape}")
    bounds = np.empty(chosen.size)
    done = 0
    for block in solve_blocks(models, draws=chosen, tolerance=tolerance):
        part = slice(done, done + block.bounds.size)
        q[part], bounds[part] = block.q, block.bounds
        done = part.stop
    return Solutions(q=q, bounds=bounds)


def solve_blocks(
    models: ModelDraws, *, draws: IntArray | None = None, tolerance: float = TOLERANCE
) -> Iterator[Solutions]:
    """Yield the same block by block, for summaries of more models than memory holds."""
    check_type("models", models, ModelDraws)
    check_number("tolerance", tolerance, "(0, 1)")
    chosen, shape = _numbers(models, draws), shape_of(models)
    policy, value = _start(models, chosen, shape, tolerance)
    for block in models.blocks(chosen):
        q, bounds = _optima(shape, models, block, policy, value, tolerance)
        yield Solutions(q=q, bounds=np.where(bounds >= 0.0, bounds, np.nan))


def policy_values(
    models: ModelDraws,
    policy: FloatArray,
    *,
    draws: IntArray | None = None,
    tolerance: float = TOLERANCE,
) -> FloatArray:
    r"""Return ``(D, S)`` V^π = (I − γ P_π)⁻¹ r_π of a policy, given as ``(K,)`` probabilities, in every model.

    Exact up to rounding in components that are solved by elimination; elsewhere off by at most `tolerance` times the
    spread of V^π. nan where the policy, at discount 1, does not reach a goal with probability 1.
    """
    probabilities = check_policy(models.space, policy)
    check_number("tolerance", tolerance, "(0, 1)")
    chosen, shape = _numbers(models, draws), shape_of(models)
    values, start = np.empty((chosen.size, models.space.num_states)), np.zeros(models.space.num_states)
    done = 0
    for block in models.blocks(chosen):
        part = values[done : done + block.size]
        bounds, cuts = _room(models, block)
        evaluate_draws(shape, *_data(shape, models, block), probabilities, start, tolerance, part, bounds, cuts)
        if done == 0:  # the first block's mean is a good start for those that follow
            start = np.nan_to_num(part.mean(axis=0))
        done += block.size
    return values


def policy_visits(
    models: ModelDraws,
    policy: FloatArray,
    start: FloatArray,
    *,
    draws: IntArray | None = None,
    tolerance: float = TOLERANCE,
) -> FloatArray:
    r"""Return ``(D, S)`` discounted visits x = (I − γ P_πᵀ)⁻¹ start of a stochastic policy in every model; 0 at goals.

    The errors of a model's visits add up to at most `tolerance` times their sum. nan where the policy, at discount 1,
    does not leave a set of states that it reaches.
    """
    probabilities = check_policy(models.space, policy)
    begin = check_start(models.space, start)
    check_number("tolerance", tolerance, "(0, 1)")
    chosen, shape = _numbers(models, draws), shape_of(models)
    visits = np.empty((chosen.size, models.space.num_states))
    done = 0
    for block in models.blocks(chosen):
        part = visits[done : done + block.size]
        bounds, cuts = _room(models, block)
        visit_draws(shape, *_data(shape, models, block), probabilities, begin, tolerance, part, bounds, cuts)
        done += block.size
    return visits


def check_policy(space: StateActionSpace, policy: Any) -> FloatArray:
    """Return a stochastic policy as ``(K,)`` probabilities, or say what is wrong with it."""
    weights = check_numbers("policy", policy)
    if weights.shape != (space.num_pairs,):
        raise InvalidInputError(f"a policy has a probability for each of {space.num_pairs} pairs, got {weights.shape}")
    total = sum_by(space.pair_state, weights, space.num_states)[space.deciding_states]
    if not np.all(weights >= 0.0) or not np.all(np.abs(total - 1.0) <= 1e-6):
        state = space.deciding_states[np.argmax(np.abs(total - 1.0))]
        raise InvalidInputError(
            "the probabilities of a state's actions must be 0 or more and sum to 1, "
            f"got {weights[space.first_pair[state] : space.first_pair[state + 1]].tolist()} in state {state}"
        )
    return np.ascontiguousarray(weights)


def check_start(space: StateActionSpace, start: Any) -> FloatArray:
    """Return a distribution of the first state, or say what is wrong with it."""
    return initial_distribution(start, space.is_goal)


def shape_of(models: ModelDraws) -> Shape:
    """Return what all models share, for the compiled loops."""
    space = models.space
    graph = (
        space.first_pair,
        space.is_goal,
        np.arange(space.num_pairs),
        np.ascontiguousarray(models.first_edge, dtype=np.int64),
        np.ascontiguousarray(models.successor, dtype=np.int64),
    )
    component_start, component_state = strong_components(*graph, np.ones(space.num_states, dtype=np.bool_))
    sizes = np.diff(component_start)
    component = np.full(space.num_states, -1, dtype=np.int64)
    component[component_state] = np.repeat(np.arange(sizes.size), sizes)
    source = np.repeat(space.pair_state, np.diff(models.first_edge))
    within = component[source] == component[models.successor]
    component_state = _ordered(space, component, source, models.successor, within)
    place = np.zeros(space.num_states, dtype=np.int64)
    place[component_state] = np.arange(component_state.size) - np.repeat(component_start[:-1], sizes)
    has_loop, is_closed = sizes > 1, np.ones(sizes.size, dtype=np.bool_)
    has_loop[component[source[source == models.successor]]] = True
    is_closed[component[source[~within]]] = False
    width, entries = np.zeros(sizes.size, dtype=np.int64), np.bincount(component[source], minlength=sizes.size)
    np.maximum.at(width, component[source[within]], np.abs(place[source] - place[models.successor])[within])
    is_dense = (sizes <= MOST_DENSE) & (sizes * width**2 <= WORK_AN_EDGE * entries)
    if space.discount == 1.0:
        is_dense |= sizes <= SURE_STATES
    return Shape(
        first_pair=graph[0],
        first_edge=graph[3],
        successor=graph[4].astype(np.int32),
        is_goal=space.is_goal,
        discount=space.discount,
        component_start=component_start,
        component_state=component_state,
        component_of=component,
        place=place,
        has_loop=has_loop,
        is_closed=is_closed,
        is_dense=is_dense,
        most_states=int(sizes.max()),
        most_dense=int(sizes[is_dense].max(initial=1)),
        most_entries=int(entries.max()),
        num_sparse=int(np.sum(~is_dense)),
    )


def _ordered(
    space: StateActionSpace, component: IntArray, source: IntArray, successor: IntArray, within: BoolArray
) -> IntArray:
    """Return all states but the goals, by component, then by steps to an exit of it, neighbours near each other.

    Sweeps then carry values from the exits to all states, and elimination stays within a band (Cuthill–McKee).
    """
    import scipy.sparse as sp
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    states, size = space.deciding_states, (space.num_states, space.num_states)
    graph = sp.csr_array((np.ones(int(within.sum())), (source[within], successor[within])), shape=size)
    distance = steps_to(graph, np.unique(source[~within]))
    neighbours = np.empty(space.num_states, dtype=np.int64)
    neighbours[reverse_cuthill_mckee(sp.csr_array(graph + graph.T), symmetric_mode=True)] = np.arange(space.num_states)
    return states[np.lexsort((neighbours[states], distance[states], component[states]))]


def _start(models: ModelDraws, chosen: IntArray, shape: Shape, tolerance: float) -> tuple[FloatArray, FloatArray]:
    """Return the optimal policy and V* of the mean model; where that has none, a policy that leads to a goal, and 0."""
    space, mean = models.space, models.mean(chosen)
    first, nothing = _quick_policy(mean), np.zeros(space.num_states)
    q, bounds = _optima(shape, mean, np.zeros(1, dtype=np.int64), first, nothing, tolerance)
    if bounds[0] < 0.0:
        return first, nothing
    return space.optimal_share(q[0], "lowest"), space.maximum(q[0])


def _quick_policy(model: ModelDraws) -> FloatArray:
    """Return, at discount 1, a policy of few steps to a goal, by `QUICK_SWEEPS` of value iteration; else first actions.

    Policy iteration from any proper policy is right in theory, but one that walks away from the goal may need more
    steps to reach it than a number can hold.
    """
    space = model.space
    gain = -np.arange(space.num_pairs, dtype=np.float64)
    if space.discount == 1.0:
        table = model.mdp(0).transitions
        steps = steps_to(state_graph(space, table), space.goals)
        steps = np.where(np.isfinite(steps), steps, space.num_states)
        for _ in range(QUICK_SWEEPS):
            gain = -1.0 - table.expect(steps)
            steps = np.maximum(steps, -space.maximum(gain))
    return space.optimal_share(gain, "lowest")


def _optima(
    shape: Shape, models: ModelDraws, block: IntArray, policy: FloatArray, value: FloatArray, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    q = np.empty((block.size, models.space.num_pairs))
    bounds, cuts = _room(models, block)
    optimise_draws(shape, *_data(shape, models, block), policy, value, tolerance, q, bounds, cuts)
    return q, bounds


def _room(models: ModelDraws, block: IntArray) -> tuple[FloatArray, IntArray]:
    """Return room for the bounds of a block, and where it is cut into pieces for the threads."""
    use_threads_for(4 * block.size * models.num_edges)
    pieces = min(block.size, PIECES_A_THREAD * ALL_THREADS)
    return np.empty(block.size), np.linspace(0, block.size, pieces + 1).astype(np.int64)


def _data(shape: Shape, models: ModelDraws, block: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return γ P, normalised, and rewards of a block of draws, in double precision."""
    rows, rewards = models.rows[block], models.rewards[block].astype(np.float64)
    probability, is_fine = np.empty(rows.shape), np.empty(block.size, dtype=np.bool_)
    normalise_draws(shape, np.asarray(rows), probability, is_fine)
    if not is_fine.all():
        raise InvalidInputError(
            "each row of a model must have probabilities of 0 or more that sum to 1; "
            f"{int(np.sum(~is_fine))} of {block.size} models have one that does not (normalise the rows)"
        )
    return probability, rewards


def _numbers(models: ModelDraws, draws: IntArray | None) -> IntArray:
    check_type("models", models, ModelDraws)
    if draws is None:
        return np.arange(models.num_draws)
    numbers = np.asarray(draws)
    if numbers.dtype == np.bool_:
        numbers = np.flatnonzero(numbers)
    if numbers.size == 0 or numbers.min() < 0 or numbers.max() >= models.num_draws:
        raise InvalidInputError(f"draws must be numbers from 0 to {models.num_draws - 1}, at least one, got {draws}")
    return numbers.astype(np.int64)
