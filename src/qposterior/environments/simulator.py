"""Acting in a world: one small interface over tables and Gymnasium environments."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.world.gymnasium_table import discrete_sizes
from qposterior.world.mdp import FiniteMDP
from qposterior.world.space import StateActionSpace


class Simulator(Protocol):
    """A world that can be acted in, one step at a time."""

    def reset(self, rng: np.random.Generator) -> int:
        """Start an episode, drawing from `rng` from now on; return its first state."""
        ...

    def step(self, action: int) -> tuple[int, float, bool]:
        """Act; return the next state, the reward and whether a goal was reached."""
        ...

    def close(self) -> None:
        """Release whatever the world holds."""
        ...


class TableSimulator:
    """Draws successors and rewards from a `FiniteMDP`."""

    def __init__(self, mdp: FiniteMDP) -> None:
        self.mdp = mdp
        self.state = 0
        self._index = mdp.space.pair_index.tolist()
        self._rows = [mdp.transitions.row(k) for k in range(mdp.space.num_pairs)]
        self._single = [int(s[0]) if s.size == 1 else -1 for s, _ in self._rows]
        self._cumulative = [np.cumsum(p) for _, p in self._rows]
        self._reward, self._sd = mdp.rewards.tolist(), mdp.reward_sd.tolist()
        self._is_goal = mdp.space.is_goal.tolist()
        self._starts = np.flatnonzero(mdp.initial)
        self._start_cumulative = np.cumsum(mdp.initial[self._starts])
        self._rng = np.random.default_rng(0)

    def reset(self, rng: np.random.Generator) -> int:
        """Draw the first state."""
        self._rng = rng
        self.state = (
            int(self._starts[self._draw(self._start_cumulative)]) if self._starts.size > 1 else int(self._starts[0])
        )
        return self.state

    def step(self, action: int) -> tuple[int, float, bool]:
        """Draw the reward and the successor of (state, action); an inadmissible action raises."""
        row = self._index[self.state]
        pair = row[action] if 0 <= action < len(row) else -1
        if pair < 0:
            pair = self.mdp.space.pair(self.state, action)  # raises with the reason
        reward = self._draw_reward(pair)
        successor = self._single[pair]
        if successor < 0:
            successor = int(self._rows[pair][0][self._draw(self._cumulative[pair])])
        self.state = successor
        return successor, reward, self._is_goal[successor]

    def close(self) -> None:
        """Nothing to release."""

    def _draw_reward(self, pair: int) -> float:
        mean, sd = self._reward[pair], self._sd[pair]
        if sd == 0.0:
            return float(mean)
        if self.mdp.reward_noise == "bernoulli":
            return float(self._rng.random() < mean)
        return float(mean + sd * self._rng.standard_normal())

    def _draw(self, cumulative: Any) -> int:
        drawn = int(np.searchsorted(cumulative, self._rng.random() * cumulative[-1], side="right"))
        return min(drawn, len(cumulative) - 1)


class GymnasiumSimulator:
    """Steps through a Gymnasium environment; an ending in a state that is no goal of the space leads to its last goal.

    A truncation by the environment's own time limit is not a goal: the episode cap of `explore` decides instead.
    """

    def __init__(self, environment: Any, space: StateActionSpace, step_cost: float = 0.0) -> None:
        self.environment = environment
        self.space = space
        self.step_cost = step_cost

    def reset(self, rng: np.random.Generator) -> int:
        """Reset the environment with a seed drawn from `rng`."""
        state, _ = self.environment.reset(seed=int(rng.integers(2**31)))
        return int(state)

    def step(self, action: int) -> tuple[int, float, bool]:
        """Step the environment; what it raises is reported as its failure."""
        try:
            state, reward, terminated, _, _ = self.environment.step(action)
        except Exception as error:
            raise QPosteriorError(f"the environment failed at action {action}: {error}") from error
        state = int(state)
        if terminated and not self.space.is_goal[state]:
            state = int(self.space.goals[-1])
        return state, float(reward) - self.step_cost, bool(terminated)

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()


def space_of_gymnasium(environment: Any, discount: float = 1.0) -> StateActionSpace:
    """Return what is known of an environment without a table: its sizes, and one extra state that is the end."""
    num_states, num_actions = discrete_sizes(environment)
    is_goal = np.append(np.zeros(num_states, dtype=bool), True)
    return StateActionSpace.from_mask(np.ones((num_states + 1, num_actions)), is_goal, discount=discount)
