"""Problems that agents know by their space alone: no table, no rows, successors are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete


class Chain(gymnasium.Env):
    """Ten states in a row: left or right from the first, and 1 for the last."""

    observation_space, action_space = Discrete(10), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action):
        self.place = min(self.place + 1, 9) if action == 1 else max(self.place - 1, 0)
        won = self.place == 9
        return self.place, float(won), won, False, {}


class EmptyRoom(gymnasium.Env):
    """MiniGrid-Empty: turn left or right, go forward, four actions that do nothing; 1 − 0.9 t/T at the far corner."""

    def __init__(self, size: int):
        self.size, self.max_steps = size - 2, 4 * size**2  # of MiniGrid's name, walls included
        self.observation_space, self.action_space = Discrete(4 * self.size**2), Discrete(7)

    def _observe(self):
        return (self.row * self.size + self.column) * 4 + self.heading

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row = self.column = self.heading = self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        if action < 2:
            self.heading = (self.heading + (-1, 1)[action]) % 4
        elif action == 2:
            across, down = ((1, 0), (0, 1), (-1, 0), (0, -1))[self.heading]
            self.column = min(max(self.column + across, 0), self.size - 1)
            self.row = min(max(self.row + down, 0), self.size - 1)
        won = self.row == self.column == self.size - 1
        reward = 1.0 - 0.9 * self.steps / self.max_steps if won else 0.0
        return self._observe(), reward, won, self.steps >= self.max_steps, {}


class WithoutTable(gymnasium.Wrapper):
    """Hides the table of an environment."""

    spec = None

    @property
    def unwrapped(self) -> Any:
        return self


class Numbered(gymnasium.ObservationWrapper):
    """Numbers the observations of a tuple of discrete spaces."""

    def __init__(self, environment: gymnasium.Env):
        super().__init__(environment)
        self.sizes = [part.n for part in environment.observation_space.spaces]
        self.observation_space = Discrete(int(np.prod(self.sizes)))

    def observation(self, observation):
        return int(np.ravel_multi_index([int(part) for part in observation], self.sizes))


@dataclass(frozen=True)
class Untabled:
    """A problem, the most steps and episodes, and the mean return of 25 episodes that counts as learned."""

    name: str
    make_fn: Callable[[], gymnasium.Env]
    cap: int
    episodes: int
    wanted: float


def _hidden(name: str, **options: Any) -> Callable[[], gymnasium.Env]:
    return lambda: WithoutTable(gymnasium.make(name, **options).unwrapped)


UNTABLED = (
    Untabled("chain of 10", Chain, 100, 200, 0.95),
    Untabled("MiniGrid-Empty-5x5", lambda: EmptyRoom(5), 100, 150, 0.85),
    Untabled("MiniGrid-Empty-8x8", lambda: EmptyRoom(8), 256, 150, 0.85),
    Untabled("FrozenLake-v1, slippery", _hidden("FrozenLake-v1"), 100, 1000, 0.6),
    Untabled("FrozenLake8x8-v1, slippery", _hidden("FrozenLake8x8-v1"), 200, 1000, 0.5),
    Untabled("FrozenLake8x8-v1, not slippery", _hidden("FrozenLake8x8-v1", is_slippery=False), 200, 150, 0.95),
    Untabled("CliffWalking-v1", _hidden("CliffWalking-v1"), 200, 150, -20.0),
    Untabled("Taxi-v4", _hidden("Taxi-v4"), 200, 150, 5.0),
    Untabled("Blackjack-v1", lambda: Numbered(gymnasium.make("Blackjack-v1")), 100, 1000, -0.2),
)
