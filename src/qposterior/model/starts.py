"""Where chains start: spread over policy cells, so that what all of them agree on has been left by those elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qposterior.model.kernels.density import PriorData
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace

STRETCH = 3.0
"""How much further from the prior mean half of the points lie."""

ROUNDS = 4
MOST_STEERED = 64
"""States whose actions were all seen and that are steered from further on, at most."""

LONGEST_WAY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Points x whose coordinate `column[k]` is the value θ_k itself, −1 where a pair has none."""

    space: StateActionSpace
    layout: Layout
    prior: PriorData
    column: IntArray  # (K,)
    to_q_fn: Callable[[FloatArray], FloatArray]

    def over_cells(self, x: FloatArray, rng: np.random.Generator, *, turn: int = 0) -> FloatArray:
        """Return points in which action (s + i + turn · N) mod A is greedy in state s, as far as a free value decides.

        The action's own value is raised above the others; where it was seen, and so has no value of its own, the free
        ones above it are lowered, and then the value at the end of the way that it leads to is raised. Two of four
        points lie `STRETCH` times as far from the prior mean to begin with.
        """
        movable = np.flatnonzero(self.column >= 0)
        if movable.size == 0:
            return x
        place, states = self.column[movable], self.space.deciding_states
        start = self.space.first_pair[states]
        size = np.diff(np.append(start, self.space.num_pairs))
        wanted = start + (states + np.arange(turn * x.shape[0], (turn + 1) * x.shape[0])[:, None]) % size
        own = np.zeros((x.shape[0], self.space.num_pairs), dtype=bool)
        np.put_along_axis(own, wanted, True, axis=1)
        own = own[:, movable]
        is_fixed = np.repeat(self.column[wanted] < 0, size, axis=1)[:, movable]
        moved = x.copy()
        far = np.ix_(np.arange(x.shape[0]) // 2 % 2 == 1, place)
        moved[far] += (STRETCH - 1.0) * (moved[far] - self.prior.mean[movable])
        margin = 0.5 * self.prior.scale[movable] * rng.random((x.shape[0], movable.size))
        for _ in range(ROUNDS):  # what is raised in one state changes the states before it
            theta = self.to_q_fn(moved)
            best = np.repeat(np.maximum.reduceat(theta, start, axis=1), size, axis=1)[:, movable]
            goal = np.repeat(np.take_along_axis(theta, wanted, axis=1), size, axis=1)[:, movable]
            value = moved[:, place]
            raised = np.where(own & (value < best), best + margin, value)
            moved[:, place] = np.where(~own & is_fixed & (value > goal), goal - margin, raised)
        return self._steer(moved, wanted, rng)

    def _steer(self, x: FloatArray, wanted: IntArray, rng: np.random.Generator) -> FloatArray:
        """Raise what a wanted pair that was seen leads to, along the wanted policy and the most probable successors."""
        states, layout = self.space.deciding_states, self.layout
        open_states = np.flatnonzero(
            np.any((self.column[wanted] < 0) & (np.diff(self.space.first_pair)[states] > 1), 0)
        )
        index = np.full(self.space.num_states, -1, dtype=np.int64)
        index[states] = np.arange(states.size)
        likely = _most_probable(layout)
        chains = np.arange(x.shape[0])
        for i in rng.permutation(open_states)[:MOST_STEERED]:
            theta = self.to_q_fn(x)
            value = self.space.maximum(theta)
            pair = wanted[:, i]
            need = value[:, states[i]] - theta[chains, pair]
            active = (self.column[pair] < 0) & (need > 0.0) & np.isfinite(need)
            need = need + 0.5 * self.prior.scale[pair] * rng.random(x.shape[0])
            for _ in range(LONGEST_WAY):
                on_way = active & (self.column[pair] < 0)
                if not on_way.any():
                    break
                entry = likely[layout.row_of[np.where(on_way, pair, layout.observed[0])]]
                following = layout.successor[entry]
                active &= ~(on_way & self.space.is_goal[following])
                on_way &= active
                next_pair = wanted[chains, index[np.where(on_way, following, states[0])]]
                gap = value[chains, following] - theta[chains, next_pair]
                need = np.where(on_way, need / (layout.discount * layout.probability[entry]) + gap, need)
                pair = np.where(on_way, next_pair, pair)
            reached = np.flatnonzero(active & (self.column[pair] >= 0))
            x[reached, self.column[pair[reached]]] = theta[reached, pair[reached]] + need[reached]
        return x


def _most_probable(layout: Layout) -> IntArray:
    """Return ``(n,)`` where the most probable successor of each observed row stands."""
    row = np.repeat(np.arange(layout.observed.size), np.diff(layout.row_start))
    order = np.lexsort((layout.probability, row))
    return np.asarray(order[np.append(np.flatnonzero(np.diff(row[order])), order.size - 1)] if order.size else order)
