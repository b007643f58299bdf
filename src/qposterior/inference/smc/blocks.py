"""Particles of an acyclic deterministic problem at tolerance 0 under a plain Gaussian prior: `model/kernels/blocks.py`.

What they keep is V of the states that were met and the free values of their pairs, nothing of pairs seen: those follow.
The values of states that were never met are draws of the prior that nothing depends on. They stand in the table for
whoever asks, and are drawn anew when the state is met: an action that was chosen because its draw was the highest
would else say something about the draws of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qposterior.model.kernels.blocks import (
    NEVER,
    OPEN,
    SETTLED,
    Graph,
    OpenPart,
    ancestors,
    block_curvatures,
    block_refresh,
    block_trajectories,
    join,
    list_open,
    look_weights,
    select_columns,
)
from qposterior.model.kernels.compile import over_particles
from qposterior.model.kernels.density import PriorData
from qposterior.model.kernels.lanes import LANES
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

MEMORY = 0.9
"""Share of a mass above the prior's that is left an update later, where nothing renews it."""


def only_successor(seen: Experience, k: int) -> int:
    """Return the state that an observed pair leads to, −1 where there are several."""
    successors = seen.row(k)[0]
    return int(successors[0]) if successors.size == 1 else -1


class Blocks:
    """N particles in blocks of `LANES` columns; the last block is filled up with particles that count for nothing."""

    def __init__(self, space: StateActionSpace, prior: PriorData, parameters: FloatArray) -> None:
        self.space, self.prior, self.num = space, prior, int(parameters.shape[0])
        width = -(-self.num // LANES) * LANES
        self.x = np.empty((space.num_pairs, width))  # of pairs not seen
        self.x[:, : self.num] = parameters.T
        self.x[:, self.num :] = self.x[:, :1]
        self.value = np.zeros((space.num_states, width))  # of states met, and 0 of goals
        self.curvature = prior.precision.copy()  # (K,)  largest of late along each free value
        self.graph = Graph(
            first_pair=np.asarray(space.first_pair),
            pair_state=np.asarray(space.pair_state),
            mean=prior.mean,
            scale=prior.scale,
            reward=np.zeros(space.num_pairs),
            next_state=np.full(space.num_pairs, -1, dtype=np.int64),
            into=np.full(space.num_states, -1, dtype=np.int64),
            into_next=np.full(space.num_pairs, -1, dtype=np.int64),
            status=np.where(space.is_goal, SETTLED, NEVER),
            num_open=np.diff(space.first_pair),
            sure=np.where(space.is_goal, 0.0, -np.inf),
            mark=np.full(space.num_states, -1, dtype=np.int64),
            discount=float(space.discount),
        )
        self._open: list[int] = []
        self._opened: OpenPart | None = None

    @classmethod
    def of(
        cls, seen: Experience, prior: PriorData, parameters: FloatArray, curvature: FloatArray | None = None
    ) -> Blocks | None:
        """Return particles with these ``(N, K)`` free values given what was seen, None where it is not for blocks."""
        blocks = cls(seen.space, prior, parameters)
        for k in sorted(seen.observed_pairs.tolist(), key=seen.first_seen):
            if not blocks.takes(k, seen):
                return None
            blocks._meet(k, seen, None)
            blocks._join(k, seen)
        if curvature is not None:
            blocks.curvature[:] = curvature
        blocks.value[blocks.graph.status == SETTLED] = blocks.graph.sure[blocks.graph.status == SETTLED, None]
        x = blocks.x[blocks.opened().exit_pair]
        Moves(blocks, blocks.opened(), x, np.ones(x.shape[0])).write(np.full_like(x, np.inf))  # draws that none keeps
        return blocks

    # -- what was seen -------------------------------------------------------------------------------------------------

    def takes(self, k: int, seen: Experience) -> bool:
        """Return whether the problem stays one for blocks with this pair: one successor, from which none leads back."""
        t = only_successor(seen, k)
        if t < 0 or t == self.space.pair_state[k]:
            return False
        s = int(self.space.pair_state[k])
        is_known = self.graph.status[s] == OPEN and self.graph.status[t] == OPEN and self.graph.into[s] >= 0
        return not (is_known and bool(np.any(ancestors(self.graph, s) == t)))

    def add(self, k: int, seen: Experience, rng: np.random.Generator) -> FloatArray:
        """Take in a pair that `takes` allows; return the ``(N,)`` log-weights of its first look."""
        self._meet(k, seen, rng)
        t, s = only_successor(seen, k), int(self.space.pair_state[k])
        now = seen.reward_mean[k] + self.graph.discount * self.value[t]
        states = ancestors(self.graph, s)
        log_weight = np.empty(self.num)
        self.graph.mark[states] = np.arange(states.size)
        given = self.graph, states, k, now, self.x, self.value, log_weight
        over_particles(look_weights, now.size // LANES, *given, work=20 * now.size * states.size)
        self.graph.mark[states] = -1
        self._join(k, seen)
        return log_weight

    def _meet(self, k: int, seen: Experience, rng: np.random.Generator | None) -> None:
        """Open the states of a new pair that were not met before; with `rng` their values are drawn."""
        for state in (only_successor(seen, k), int(self.space.pair_state[k])):
            if self.graph.status[state] != NEVER:
                continue
            self.graph.status[state] = OPEN
            self._open.append(state)
            pairs = slice(self.space.first_pair[state], self.space.first_pair[state + 1])
            if rng is not None:
                z = rng.standard_normal(self.x[pairs].shape)
                self.x[pairs] = self.prior.mean[pairs, None] + self.prior.scale[pairs, None] * z
                self.value[state] = self.x[pairs].max(axis=0)

    def _join(self, k: int, seen: Experience) -> None:
        join(self.graph, k, only_successor(seen, k), float(seen.reward_mean[k]))
        self._opened = None

    def opened(self) -> OpenPart:
        """Return the open states with their exits and edges."""
        if self._opened is None:
            met = np.array(self._open, dtype=np.int64)
            still = np.sort(met[self.graph.status[met] == OPEN])
            self._open, self._opened = still.tolist(), list_open(self.graph, still)
        return self._opened

    # -- particles -----------------------------------------------------------------------------------------------------

    def select(self, chosen: IntArray) -> None:
        """Take the chosen particles in place of those that there are."""
        chosen = np.concatenate([chosen, np.full(self.x.shape[1] - self.num, chosen[0])])
        select_columns(self.graph, np.array(self._open, dtype=np.int64), chosen, self.x, self.value)

    def parameters(self) -> FloatArray:
        """Return ``(N, K)`` θ, those of pairs seen from V of their successors."""
        return np.array([self.parameters_of(n) for n in range(self.num)])

    def parameters_of(self, n: int) -> FloatArray:
        """Return ``(K,)`` θ of one particle."""
        graph = self.graph
        implied = graph.reward + graph.discount * self.value[graph.next_state, n]
        return np.where(graph.next_state < 0, self.x[:, n], implied)

    def begin_moves(self) -> Moves:
        """Return what trajectories need; `Moves.end` brings them back."""
        opened = self.opened()
        x = self.x[opened.exit_pair]
        curvature = np.empty_like(x)
        over_blocks(block_curvatures, opened, x, curvature)
        own = opened.exit_precision
        faded = own + MEMORY * (self.curvature[opened.exit_pair] - own)
        mass = np.maximum(curvature[:, : self.num].max(axis=1, initial=0.0), faded)
        self.curvature[opened.exit_pair] = mass
        return Moves(self, opened, x, mass)


class Moves:
    """Trajectories of all particles: the free values of open states side by side, and a mass for each.

    The mass of a free value is the largest curvature of −log density along it over the particles, or what is left of an
    earlier one: with equal scales and discount 1, in units of the prior's precision, 1 plus the largest number of pairs
    seen that hang on it. So a step of a given size is stable for all particles, whatever hangs on what.
    """

    def __init__(self, blocks: Blocks, opened: OpenPart, x: FloatArray, mass: FloatArray) -> None:
        self.blocks, self.opened, self.x, self.mass = blocks, opened, x, mass

    def run(self, *, step: float, num_steps: int, rng: np.random.Generator) -> float:
        """Run one trajectory of every particle (paper, alg. hmc); return the mean acceptance probability."""
        p = rng.standard_normal(self.x.shape) * np.sqrt(self.mass)[:, None]
        log_uniform, gain = np.log(rng.random((1, self.x.shape[1]))), np.empty((1, self.x.shape[1]))
        given = self.x, p, log_uniform, step, num_steps, 1.0 / self.mass, gain
        over_blocks(block_trajectories, self.opened, *given, times=num_steps)
        share = np.exp(np.minimum(gain[0, : self.blocks.num], 0.0))
        return float(np.nan_to_num(share).mean())

    def end(self, rng: np.random.Generator) -> None:
        """Draw the free values that are not the best of their state anew, and write V."""
        mean, scale = (
            array[self.opened.exit_pair, None] for array in (self.blocks.prior.mean, self.blocks.prior.scale)
        )
        self.write(mean + scale * rng.standard_normal(self.x.shape))

    def write(self, draws: FloatArray) -> None:
        """Write back the free values, the losing ones replaced by those of `draws` ``(U, W)`` that lose too, and V."""
        value = np.empty((self.opened.state.size, self.x.shape[1]))
        over_blocks(block_refresh, self.opened, self.x, draws, value)
        self.blocks.x[self.opened.exit_pair], self.blocks.value[self.opened.state] = self.x, value


def over_blocks(run_fn: Callable[..., None], opened: OpenPart, x: FloatArray, *given: Any, times: int = 1) -> None:
    """Run a kernel over all blocks of particles, in threads where that is worth it."""
    pairs = opened.exit_pair.size + opened.edge_reward.size
    over_particles(run_fn, x.shape[1] // LANES, opened, x, *given, work=times * pairs * x.shape[1] // 4)
