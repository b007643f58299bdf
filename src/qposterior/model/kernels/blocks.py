r"""Acyclic deterministic problems under a plain Gaussian prior at tolerance 0, eight particles at a time.

The density of the free values φ is that of `bellman_density`: the prior at φ and at the θ_k(φ) of the pairs seen. Here
every row has one successor and no state can be visited twice, so that

.. math:: \theta_k = r_k + \gamma V(s'_k), \qquad V(s) = \max(\theta(s, \cdot)), \qquad V(\text{goal}) = 0,

and each θ_k is constant or γᵐ times one free value plus a constant. Three things follow (docs/explanation/blocks.md).
A state below which nothing is unseen any more is *settled*: its V is a number, the same for all particles, and so is a
pair that leads there. The loops visit the *open* states alone: their *exits*, which are the free values, their *edges*,
which lead to open states, and a *sure value*, the best of their settled pairs. And nothing has to be kept between the
solve and its adjoint but V: who made the maximum is who is equal to it.

Arrays of particles have a row per exit, edge or state and a column per particle, a multiple of `LANES` of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.compile import chain_kernel, inner_kernel, kernel
from qposterior.model.kernels.lanes import (
    LANES,
    add,
    load,
    multiply,
    splat,
    store,
    subtract,
    where_equal,
    where_less,
)
from qposterior.model.kernels.normal import log_mass, log_tail
from qposterior.world.arrays import FloatArray, IntArray

NEVER, OPEN, SETTLED = 0, 1, 2
"""A state that was never met; one from which an unseen pair can be reached; one from which none can, or a goal."""

NEGLIGIBLE = 40.0
"""A piece this many nats below the sum of those before it adds nothing to it."""


class Graph(NamedTuple):
    """What was seen, as it grows pair by pair: each new pair costs what hangs on it, not what there is."""

    first_pair: IntArray  # (S + 1,)
    pair_state: IntArray  # (K,)
    mean: FloatArray  # (K,)  of the prior
    scale: FloatArray  # (K,)
    reward: FloatArray  # (K,)
    next_state: IntArray  # (K,)  −1 for pairs that were not seen
    into: IntArray  # (S,)  the last seen pair that leads to a state, −1 where none does …
    into_next: IntArray  # (K,)  … and the one seen before it that leads to the same
    status: IntArray  # (S,)  NEVER, OPEN or SETTLED
    num_open: IntArray  # (S,)  exits and edges
    sure: FloatArray  # (S,)  the best settled pair of an open state, −inf where there is none; V of a settled one
    mark: IntArray  # (S,)  scratch: place among those last listed, −1 elsewhere
    discount: float


class OpenPart(NamedTuple):
    """The open states, successors first, with their exits and edges: what trajectories run over."""

    state: IntArray  # (n,)
    sure: FloatArray  # (n,)
    exit_start: IntArray  # (n + 1,)
    exit_pair: IntArray  # (U,)
    exit_mean: FloatArray  # (U,)
    exit_precision: FloatArray  # (U,)
    edge_start: IntArray  # (n + 1,)
    edge_next: IntArray  # (E,)  place of the successor in `state`
    edge_reward: FloatArray  # (E,)
    edge_mean: FloatArray  # (E,)
    edge_precision: FloatArray  # (E,)
    discount: float


# -- the graph of what was seen ----------------------------------------------------------------------------------------


@kernel
def list_open(graph: Graph, open_states: IntArray) -> OpenPart:
    """Return the open part; the open states are given, in any order that depends on the graph alone.

    A depth-first search along edges: a state is listed when all its successors are. O(their pairs).
    """
    size = open_states.size
    first_pair, next_state, status, place = graph.first_pair, graph.next_state, graph.status, graph.mark
    num_exits, num_edges, deepest = 0, 0, 0
    for s in open_states:
        for k in range(first_pair[s], first_pair[s + 1]):
            num_exits += next_state[k] < 0
            num_edges += next_state[k] >= 0
    state, call, pair_at = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    exit_start, edge_start = np.zeros(size + 1, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    exit_pair, edge_pair = np.empty(num_exits, dtype=np.int64), np.empty(num_edges, dtype=np.int64)
    edge_next = np.empty(num_edges, dtype=np.int64)
    listed, num_exits, num_edges = 0, 0, 0
    for root in open_states:
        if place[root] >= 0:
            continue
        call[0], pair_at[0], deepest = root, first_pair[root], 0
        while deepest >= 0:
            s, descends = call[deepest], False
            for k in range(pair_at[deepest], first_pair[s + 1]):
                t = next_state[k]
                if t >= 0 and status[t] == OPEN and place[t] < 0:
                    pair_at[deepest] = k
                    deepest += 1
                    call[deepest], pair_at[deepest] = t, first_pair[t]
                    descends = True
                    break
            if descends:
                continue
            for k in range(first_pair[s], first_pair[s + 1]):
                t = next_state[k]
                if t < 0:
                    exit_pair[num_exits] = k
                    num_exits += 1
                elif status[t] == OPEN:
                    edge_pair[num_edges], edge_next[num_edges] = k, place[t]
                    num_edges += 1
            state[listed], place[s] = s, listed
            listed += 1
            exit_start[listed], edge_start[listed] = num_exits, num_edges
            deepest -= 1
    place[state] = -1
    edge_pair, edge_next = edge_pair[:num_edges].copy(), edge_next[:num_edges].copy()
    return OpenPart(
        state,
        graph.sure[state],
        exit_start,
        exit_pair,
        graph.mean[exit_pair],
        graph.scale[exit_pair] ** -2.0,
        edge_start,
        edge_next,
        graph.reward[edge_pair],
        graph.mean[edge_pair],
        graph.scale[edge_pair] ** -2.0,
        graph.discount,
    )


@kernel
def ancestors(graph: Graph, s: int) -> IntArray:
    """Return the states from which an open state s can be reached, s first, successors before predecessors."""
    place = graph.mark
    found, call, pair_at = np.empty(16, dtype=np.int64), np.empty(16, dtype=np.int64), np.empty(16, dtype=np.int64)
    call[0], pair_at[0], deepest, listed = s, graph.into[s], 0, 0
    while deepest >= 0:
        k = pair_at[deepest]
        if k >= 0:
            pair_at[deepest] = graph.into_next[k]
            p = graph.pair_state[k]
            if place[p] < 0:
                deepest += 1
                if deepest == call.size:
                    call, pair_at = np.append(call, np.empty_like(call)), np.append(pair_at, np.empty_like(call))
                call[deepest], pair_at[deepest] = p, graph.into[p]
        else:  # all that leads here is listed
            if listed == found.size:
                found = np.append(found, np.empty_like(found))
            found[listed], place[call[deepest]] = call[deepest], 0
            listed += 1
            deepest -= 1
    found = found[:listed][::-1].copy()
    place[found] = -1
    return found


@kernel
def join(graph: Graph, k: int, t: int, reward: float) -> None:
    """Take in that pair k, whose state is open, leads to a state t that was met, for `reward`.

    Where t is settled, so is k, and then perhaps the state of k and states before it: those that have nothing else.
    """
    graph.next_state[k], graph.reward[k] = t, reward
    graph.into_next[k], graph.into[t] = graph.into[t], k
    if graph.status[t] != SETTLED:
        return
    waiting = [k]
    while len(waiting) > 0:
        k = waiting.pop()
        s, t = graph.pair_state[k], graph.next_state[k]
        graph.sure[s] = max(graph.sure[s], graph.reward[k] + graph.discount * graph.sure[t])
        graph.num_open[s] -= 1
        if graph.num_open[s] == 0:
            graph.status[s] = SETTLED
            j = graph.into[s]
            while j >= 0:
                waiting.append(j)
                j = graph.into_next[j]


# -- density, gradient, trajectories -----------------------------------------------------------------------------------


@inner_kernel
def solve_block(opened: OpenPart, x: FloatArray, value: FloatArray, column: int) -> None:
    """Fill ``(n, LANES)`` V of the block of particles whose exits are the columns from `column` on of x ``(U, ·)``."""
    exit_start, edge_start, edge_next, reward = (
        opened.exit_start,
        opened.edge_start,
        opened.edge_next,
        opened.edge_reward,
    )
    discount = splat(opened.discount)
    for s in range(opened.state.size):
        best = splat(opened.sure[s])
        for u in range(exit_start[s], exit_start[s + 1]):
            place = load(x, u, column)
            best = where_less(best, place, place, best)
        for e in range(edge_start[s], edge_start[s + 1]):
            theta = add(splat(reward[e]), multiply(discount, load(value, edge_next[e], 0)))
            best = where_less(best, theta, theta, best)
        store(value, s, 0, best)


@inner_kernel
def block_density(
    opened: OpenPart,
    x: FloatArray,
    value: FloatArray,
    adjoint: FloatArray,
    grad: FloatArray,
    smooth: FloatArray,
) -> None:
    r"""Write ``(1, LANES)`` log-densities and ``(U, LANES)`` gradients of one block of exits x ``(U, LANES)``.

    The log-density is :math:`-\tfrac12 \sum (\theta_k - m_k)^2 / \sigma_k^2` over exits and edges, without the settled
    pairs and constants, which are the same for all particles. The adjoint of a state goes to the exit or edge that is
    equal to its V, once: where two are, to the first. `value` and `adjoint` ``(n, LANES)`` are scratch.
    """
    exit_start, edge_start, edge_next, reward = (
        opened.exit_start,
        opened.edge_start,
        opened.edge_next,
        opened.edge_reward,
    )
    solve_block(opened, x, value, 0)
    adjoint[:] = 0.0
    discount, zero, total = splat(opened.discount), splat(0.0), splat(0.0)
    for s in range(opened.state.size - 1, -1, -1):
        best, pull = load(value, s, 0), load(adjoint, s, 0)
        for u in range(exit_start[s], exit_start[s + 1]):
            place = load(x, u, 0)
            gap = subtract(splat(opened.exit_mean[u]), place)
            slope = multiply(gap, splat(opened.exit_precision[u]))
            total = add(total, multiply(gap, slope))
            store(grad, u, 0, add(slope, where_equal(place, best, pull, zero)))
            pull = where_equal(place, best, zero, pull)
        for e in range(edge_start[s], edge_start[s + 1]):
            t = edge_next[e]
            theta = add(splat(reward[e]), multiply(discount, load(value, t, 0)))
            gap = subtract(splat(opened.edge_mean[e]), theta)
            slope = multiply(gap, splat(opened.edge_precision[e]))
            total = add(total, multiply(gap, slope))
            slope = add(slope, where_equal(theta, best, pull, zero))
            pull = where_equal(theta, best, zero, pull)
            store(adjoint, t, 0, add(load(adjoint, t, 0), multiply(discount, slope)))
    store(smooth, 0, 0, multiply(splat(-0.5), total))


@chain_kernel
def block_densities(
    first: int, stop: int, opened: OpenPart, x: FloatArray, grad: FloatArray, smooth: FloatArray
) -> None:
    """Write ``(1, W)`` log-densities and ``(U, W)`` gradients of the blocks from `first` to before `stop`."""
    n, size = opened.state.size, x.shape[0]
    value, adjoint, total = np.empty((n, LANES)), np.empty((n, LANES)), np.empty((1, LANES))
    part = np.empty((size, LANES))
    for block in range(first, stop):
        where = slice(block * LANES, (block + 1) * LANES)
        block_density(opened, x[:, where].copy(), value, adjoint, part, total)
        grad[:, where] = part
        smooth[:, where] = total


@inner_kernel
def block_kinetic(p: FloatArray, inverse_mass: FloatArray, kinetic: FloatArray) -> None:
    """Write ``(1, LANES)`` ½ Σ p² / m of momenta ``(U, LANES)``."""
    total = splat(0.0)
    for u in range(p.shape[0]):
        momentum = load(p, u, 0)
        total = add(total, multiply(multiply(momentum, momentum), splat(inverse_mass[u])))
    store(kinetic, 0, 0, multiply(splat(0.5), total))


@chain_kernel
def block_trajectories(
    first: int,
    stop: int,
    opened: OpenPart,
    x: FloatArray,
    p: FloatArray,
    log_uniform: FloatArray,
    step: float,
    num_steps: int,
    inverse_mass: FloatArray,
    gain: FloatArray,
) -> None:
    """Run one trajectory of every particle of some blocks in place, each taken or refused (paper, alg. hmc).

    `x` and the momenta `p` are ``(U, W)``, `log_uniform` and the energy gains ``(1, W)``, `inverse_mass` ``(U,)``. A
    trajectory that has left the numbers has a gain that is no number, and is refused.
    """
    n, size = opened.state.size, x.shape[0]
    value, adjoint, grad = np.empty((n, LANES)), np.empty((n, LANES)), np.empty((size, LANES))
    before, after = np.empty((1, LANES)), np.empty((1, LANES))
    smooth, ended = np.empty((1, LANES)), np.empty((1, LANES))
    for block in range(first, stop):
        column = block * LANES
        place = x[:, column : column + LANES].copy()
        momenta = p[:, column : column + LANES].copy()
        block_kinetic(momenta, inverse_mass, before)
        block_density(opened, place, value, adjoint, grad, smooth)
        kick = splat(0.5 * step)
        for _ in range(num_steps):
            for u in range(size):
                momentum = add(load(momenta, u, 0), multiply(kick, load(grad, u, 0)))
                store(momenta, u, 0, momentum)
                store(place, u, 0, add(load(place, u, 0), multiply(splat(step * inverse_mass[u]), momentum)))
            block_density(opened, place, value, adjoint, grad, ended)
            kick = splat(step)
        kick = splat(0.5 * step)
        for u in range(size):
            store(momenta, u, 0, add(load(momenta, u, 0), multiply(kick, load(grad, u, 0))))
        block_kinetic(momenta, inverse_mass, after)
        risen = subtract(load(ended, 0, 0), load(smooth, 0, 0))
        gained = add(risen, subtract(load(before, 0, 0), load(after, 0, 0)))
        store(gain, 0, column, gained)
        threshold = load(log_uniform, 0, column)
        for u in range(size):
            store(x, u, column, where_less(threshold, gained, load(place, u, 0), load(x, u, column)))


@chain_kernel
def block_curvatures(first: int, stop: int, opened: OpenPart, x: FloatArray, curvature: FloatArray) -> None:
    r"""Write ``(U, W)`` the curvature of −log density along each exit.

    :math:`1/\sigma_u^2 + \sum_k (\partial\theta_k / \partial\phi_u)^2 / \sigma_k^2` over the edges k that hang on exit
    u: with equal scales and discount 1, 1 plus their number, over σ². Each θ_k hangs on one exit, so that there are no
    mixed terms: it is the whole Hessian where the greedy ways do not change.
    """
    exit_start, edge_start, edge_next = opened.exit_start, opened.edge_start, opened.edge_next
    n = opened.state.size
    value, weight = np.empty((n, LANES)), np.empty((n, LANES))
    discount, zero = splat(opened.discount), splat(0.0)
    square = splat(opened.discount * opened.discount)
    for block in range(first, stop):
        column = block * LANES
        solve_block(opened, x, value, column)
        weight[:] = 0.0
        for s in range(n - 1, -1, -1):
            best, load_here = load(value, s, 0), load(weight, s, 0)
            for u in range(exit_start[s], exit_start[s + 1]):
                place = load(x, u, column)
                own = splat(opened.exit_precision[u])
                store(curvature, u, column, add(own, where_equal(place, best, load_here, zero)))
                load_here = where_equal(place, best, zero, load_here)
            for e in range(edge_start[s], edge_start[s + 1]):
                t = edge_next[e]
                theta = add(splat(opened.edge_reward[e]), multiply(discount, load(value, t, 0)))
                hanging = add(splat(opened.edge_precision[e]), where_equal(theta, best, load_here, zero))
                load_here = where_equal(theta, best, zero, load_here)
                store(weight, t, 0, add(load(weight, t, 0), multiply(square, hanging)))


@chain_kernel
def block_refresh(
    first: int, stop: int, opened: OpenPart, x: FloatArray, draws: FloatArray, out_value: FloatArray
) -> None:
    """Replace each exit that lies below V of its state by its draw of the prior, where that does too; write V.

    Given all other values, an exit below V has the prior cut off at V: a draw that is kept if it lies below leaves that
    unchanged, and V with it. `x` and `draws` are ``(U, W)``, `out_value` ``(n, W)``.
    """
    value = np.empty((opened.state.size, LANES))
    for block in range(first, stop):
        column = block * LANES
        solve_block(opened, x, value, column)
        for s in range(opened.state.size):
            best = load(value, s, 0)
            store(out_value, s, column, best)
            for u in range(opened.exit_start[s], opened.exit_start[s + 1]):
                here, drawn = load(x, u, column), load(draws, u, column)
                changed = where_less(drawn, best, drawn, here)
                store(x, u, column, where_less(here, best, changed, here))


# -- weights of a first look -------------------------------------------------------------------------------------------


@inner_kernel
def sort_by(keys: FloatArray, order: IntArray, size: int) -> None:
    """Sort the first `size` entries of `order`, indices into `keys`, by their keys (heapsort)."""
    for bottom in range(size // 2 - 1, -size, -1):
        root, end = bottom, size
        if bottom < 0:
            end = size + bottom
            order[0], order[end] = order[end], order[0]
            root = 0
        while 2 * root + 1 < end:
            child = 2 * root + 1
            if child + 1 < end and keys[order[child + 1]] > keys[order[child]]:
                child += 1
            if not keys[order[child]] > keys[order[root]]:
                break
            order[root], order[child] = order[child], order[root]
            root = child


@inner_kernel
def piece_mass(a: float, b: float, c: float, low: float, high: float, best: float) -> float:
    """Return log ∫ exp(a x² + b x + c) dx from low to high, a < 0; −inf where that is negligible beside exp(best)."""
    centre, sd = -0.5 * b / a, 1.0 / np.sqrt(-2.0 * a)
    near = min(max(centre, low), high)
    width = min(high - low, 2.6 * sd)
    if (a * near + b) * near + c + np.log(width) < best - NEGLIGIBLE:
        return -np.inf
    peak = c - 0.25 * b * b / a
    return peak + np.log(sd * np.sqrt(2.0 * np.pi)) + log_mass((low - centre) / sd, (high - centre) / sd)


@inner_kernel
def log_sum(one: float, two: float) -> float:
    """Return log(exp(one) + exp(two))."""
    high, low = max(one, two), min(one, two)
    return high if low == -np.inf else high + np.log1p(np.exp(low - high))


@inner_kernel
def with_room(array: FloatArray, size: int) -> FloatArray:
    """Return the array, or a copy of twice the length and more where it is shorter than `size`."""
    if size <= array.size:
        return array
    larger = np.empty(2 * size)
    larger[: array.size] = array
    return larger


@inner_kernel
def put_line(slopes: FloatArray, intercepts: FloatArray, size: int, slope: float, intercept: float) -> int:
    """Insert a line into the first `size`, which are sorted by slope, or raise the one of the same slope."""
    i = size
    while i > 0 and slopes[i - 1] > slope:
        i -= 1
    if i > 0 and slopes[i - 1] == slope:
        intercepts[i - 1] = max(intercepts[i - 1], intercept)
        return size
    for j in range(size, i, -1):
        slopes[j], intercepts[j] = slopes[j - 1], intercepts[j - 1]
    slopes[i], intercepts[i] = slope, intercept
    return size + 1


@inner_kernel
def upper_envelope(slopes: FloatArray, intercepts: FloatArray, breaks: FloatArray, size: int) -> int:
    """Keep of lines sorted by slope those that are the highest somewhere; write where each begins to be."""
    kept = 0
    for i in range(size):
        begin = -np.inf
        while kept > 0:
            begin = (intercepts[kept - 1] - intercepts[i]) / (slopes[i] - slopes[kept - 1])
            if begin > breaks[kept - 1]:
                break
            kept -= 1
            begin = -np.inf
        slopes[kept], intercepts[kept], breaks[kept] = slopes[i], intercepts[i], begin
        kept += 1
    return kept


@inner_kernel
def square_of(graph: Graph, j: int, slope: float, intercept: float) -> tuple[float, float, float]:
    """Return the coefficients of −½ (θ_j − m)² / σ² where θ_j = r_j + γ (slope · x + intercept)."""
    slope, gap = graph.discount * slope, graph.reward[j] + graph.discount * intercept - graph.mean[j]
    precision = 1.0 / (graph.scale[j] * graph.scale[j])
    return -0.5 * precision * slope * slope, -precision * slope * gap, -0.5 * precision * gap * gap


@inner_kernel
def forget_pair(
    graph: Graph, states: IntArray, k: int, x: FloatArray, value: FloatArray, slack: FloatArray, column: int
) -> None:
    r"""Write what V of a block would be without pair k, unseen, and the room that is above the edges to these states.

    `value` changes in the rows of `states`, those of the state of k and of its ancestors. `slack` ``(1, LANES)`` is
    :math:`\tfrac12 \sum (m_j - \theta_j)^2 / \sigma_j^2` over the edges j to them that lie below their mean: what log f
    gains at most when V of the state of k rises.
    """
    discount, zero, room = splat(graph.discount), splat(0.0), splat(0.0)
    for s in states:
        best = splat(-np.inf)
        for j in range(graph.first_pair[s], graph.first_pair[s + 1]):
            t = graph.next_state[j]
            if j != k:
                if t < 0:
                    theta = load(x, j, column)
                else:
                    theta = add(splat(graph.reward[j]), multiply(discount, load(value, t, column)))
                best = where_less(best, theta, theta, best)
        store(value, s, column, best)
        j = graph.into[s]
        while j >= 0:
            theta = add(splat(graph.reward[j]), multiply(discount, best))
            gap = subtract(splat(graph.mean[j]), theta)
            square = multiply(multiply(gap, gap), splat(0.5 / (graph.scale[j] * graph.scale[j])))
            room = add(room, where_less(zero, gap, square, zero))
            j = graph.into_next[j]
    store(slack, 0, 0, room)


@chain_kernel
def look_weights(
    first: int,
    stop: int,
    graph: Graph,
    states: IntArray,
    k: int,
    seen_value: FloatArray,
    x: FloatArray,
    value: FloatArray,
    log_weight: FloatArray,
) -> None:
    r"""Write the log-weights of a first look at pair k, and V of its state and its ancestors from then on.

    With f the density given what was seen before and φ' the other free values, the weight of a particle is
    :math:`f(\phi', c) / \int f(\phi', x)\, dx`, where x stands for θ_k and c for the value that it has now. V of an
    ancestor is the upper envelope of lines in x: a constant, and γᵐ x plus a constant for each length m of a way to the
    state of k. So log f is a sum of parabolas that changes at the breaks of the envelopes, each piece a Gaussian.

    An ancestor that x lifts only beyond a limit is left as it is, with all that comes before it. With z the limit in
    standard deviations from the mean of k, log f beyond is at most that below V of the state of k, plus the `slack` of
    `forget_pair`, less z²/2: the limit is where that is `NEGLIGIBLE`, or c where that is larger.

    `states` are those `ancestors` lists, `graph.mark` holds their places; `seen_value` ``(W,)`` is c; `x` ``(K, W)``
    and `value` ``(S, W)`` are those of all pairs and states, of which V of `states` changes; `log_weight` is ``(N,)``.
    The blocks from `first` to before `stop` are done. O(pairs of the ancestors) for a block, O(a log a) for a particle
    with a breaks below its limit.
    """
    n, place, discount = states.size, graph.mark, graph.discount
    slack, start, is_lifted = np.empty((1, LANES)), np.zeros(n + 1, dtype=np.int64), np.empty(n, dtype=np.bool_)
    slopes, intercepts, breaks = np.empty(64), np.empty(64), np.empty(64)
    event_at, event_a, event_b, event_c = np.empty(64), np.empty(64), np.empty(64), np.empty(64)
    order = np.empty(64, dtype=np.int64)
    mean, scale = graph.mean[k], graph.scale[k]
    precision = 1.0 / (scale * scale)
    for block in range(first, stop):
        forget_pair(graph, states, k, x, value, slack, block * LANES)
        for column in range(block * LANES, min((block + 1) * LANES, log_weight.size)):
            c, without = seen_value[column], value[states[0], column]
            value[states[0], column] = max(without, c)
            limit = np.inf
            if without > -np.inf:
                room = NEGLIGIBLE + slack[0, column - block * LANES] - log_tail((without - mean) / scale)
                limit = max(c, mean + scale * np.sqrt(2.0 * room))
            a, b, rest = -0.5 * precision, precision * mean, -0.5 * precision * mean * mean
            num_events = 0
            is_lifted[:] = False
            is_lifted[0] = True
            for i in range(n):
                begin = start[i]
                start[i + 1] = begin
                if not is_lifted[i]:
                    continue
                s, size, constant, highest = states[i], 0, -np.inf, -np.inf
                if i == 0:
                    slopes[0], intercepts[0], size, constant, highest = 1.0, 0.0, 1, without, c
                else:
                    for j in range(graph.first_pair[s], graph.first_pair[s + 1]):
                        t = graph.next_state[j]
                        if t < 0:
                            constant = max(constant, x[j, column])
                            continue
                        theta = graph.reward[j] + discount * value[t, column]
                        low, high = 0, 0
                        if place[t] >= 0:
                            low, high = start[place[t]], start[place[t] + 1]
                        if low == high:
                            constant = max(constant, theta)
                            continue
                        highest = max(highest, theta)
                        needed = begin + size + high - low + 1
                        slopes, intercepts = with_room(slopes, needed), with_room(intercepts, needed)
                        for line in range(low, high):
                            lifted = graph.reward[j] + discount * intercepts[line]
                            size = put_line(slopes[begin:], intercepts[begin:], size, discount * slopes[line], lifted)
                    value[s, column] = max(constant, highest)
                slopes, intercepts = with_room(slopes, begin + size + 1), with_room(intercepts, begin + size + 1)
                breaks = with_room(breaks, begin + size + 1)
                if constant > -np.inf:
                    size = put_line(slopes[begin:], intercepts[begin:], size, 0.0, constant)
                size = upper_envelope(slopes[begin:], intercepts[begin:], breaks[begin:], size)
                while size > 1 and breaks[begin + size - 1] > limit:
                    size -= 1
                if slopes[begin + size - 1] == 0.0:  # no more than a number
                    continue
                start[i + 1] = begin + size
                j = graph.into[s]
                while j >= 0:
                    is_lifted[place[graph.pair_state[j]]] = True
                    j = graph.into_next[j]
                if graph.into[s] < 0:
                    continue
                event_at, event_a = with_room(event_at, num_events + size), with_room(event_a, num_events + size)
                event_b, event_c = with_room(event_b, num_events + size), with_room(event_c, num_events + size)
                for line in range(begin, begin + size):
                    da, db, dc = 0.0, 0.0, 0.0
                    j = graph.into[s]
                    while j >= 0:
                        one, two, three = square_of(graph, j, slopes[line], intercepts[line])
                        da, db, dc = da + one, db + two, dc + three
                        if line > begin:
                            one, two, three = square_of(graph, j, slopes[line - 1], intercepts[line - 1])
                            da, db, dc = da - one, db - two, dc - three
                        j = graph.into_next[j]
                    if line == begin:
                        a, b, rest = a + da, b + db, rest + dc
                    else:
                        event_at[num_events], event_a[num_events] = breaks[line], da
                        event_b[num_events], event_c[num_events] = db, dc
                        num_events += 1
            if order.size < num_events:
                order = np.empty(2 * num_events, dtype=np.int64)
            for i in range(num_events):
                order[i] = i
            sort_by(event_at, order, num_events)
            low_end, log_total, at_c = -np.inf, -np.inf, -np.inf
            for i in range(num_events + 1):
                high_end = np.inf if i == num_events else event_at[order[i]]
                if low_end <= c <= high_end:
                    at_c = (a * c + b) * c + rest
                if high_end > low_end:
                    log_total = log_sum(log_total, piece_mass(a, b, rest, low_end, high_end, log_total))
                if i < num_events:
                    a, b, rest = a + event_a[order[i]], b + event_b[order[i]], rest + event_c[order[i]]
                    low_end = high_end
            log_weight[column] = at_c - log_total


@kernel
def select_columns(graph: Graph, open_states: IntArray, chosen: IntArray, x: FloatArray, value: FloatArray) -> None:
    """Take the `chosen` ``(W,)`` columns in V of the open states and in their exits, in place."""
    row = np.empty(chosen.size)
    for s in open_states:
        row[:] = value[s]
        for column in range(chosen.size):
            value[s, column] = row[chosen[column]]
        for k in range(graph.first_pair[s], graph.first_pair[s + 1]):
            if graph.next_state[k] < 0:
                row[:] = x[k]
                for column in range(chosen.size):
                    x[k, column] = row[chosen[column]]
