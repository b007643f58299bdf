"""Q-learning (Watkins 1989) with ε-greedy dithering."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.protocol import Observation, check_transitions
from qposterior.checks import check_number, make_rng
from qposterior.world.arrays import IntArray
from qposterior.world.space import StateActionSpace


class QLearningAgent:
    r"""Tabular Q-learning: :math:`Q(s,a) \mathrel{+}= \alpha (r + \gamma \max_b Q(s',b) - Q(s,a))`.

    Acts at random with probability `epsilon`, else greedily, ties at random. Model-free: `transitions` is not used.
    """

    name = "q-learning"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        epsilon: float = 0.1,
        learning_rate: float = 0.5,
        initial_value: float = 0.0,
        transitions: str = "revealed",
        seed: Any = 0,
    ) -> None:
        check_number("epsilon", epsilon, "[0, 1]")
        check_number("learning_rate", learning_rate, "(0, 1]")
        check_number("initial_value", initial_value)
        self.space = space
        self.transitions = check_transitions(transitions)
        self.epsilon = epsilon
        self.learning_rate = learning_rate
        self.num_updates = 0
        self.values = np.full(space.num_pairs, float(initial_value))
        self._rng = make_rng(seed)

    def begin_episode(self, state: int) -> None:
        """Nothing to prepare."""

    def act(self, state: int) -> int:
        """Return an ε-greedy action."""
        first, last = self.space.first_pair[state], self.space.first_pair[state + 1]
        values = self.values[first:last]
        explores = self._rng.random() < self.epsilon
        candidates = np.arange(values.size) if explores else np.flatnonzero(values == values.max())
        return int(self.space.pair_action[first + candidates[self._rng.integers(candidates.size)]])

    def observe(self, observation: Observation) -> None:
        """Move the value of the pair towards what was seen."""
        first, last = self.space.first_pair[observation.next_state], self.space.first_pair[observation.next_state + 1]
        following = 0.0 if observation.terminated else float(self.values[first:last].max())
        k = self.space.pair(observation.state, observation.action)
        target = observation.reward + self.space.discount * following
        self.values[k] += self.learning_rate * (target - self.values[k])
        self.num_updates += 1

    def end_episode(self) -> None:
        """Nothing to finish."""

    def held_plan(self) -> IntArray | None:
        """No plan is held: the values change at every step."""
        return None
