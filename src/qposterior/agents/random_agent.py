"""The agent that learns nothing: the yardstick of every other."""

from __future__ import annotations

from typing import Any

from qposterior.agents.protocol import Observation, check_transitions
from qposterior.checks import make_rng
from qposterior.world.arrays import IntArray
from qposterior.world.space import StateActionSpace


class RandomAgent:
    """Draws every admissible action with the same probability."""

    name = "random"

    def __init__(self, space: StateActionSpace, *, transitions: str = "revealed", seed: Any = 0) -> None:
        self.space = space
        self.transitions = check_transitions(transitions)
        self.num_updates = 0
        self._rng = make_rng(seed)

    def begin_episode(self, state: int) -> None:
        """Nothing to prepare."""

    def act(self, state: int) -> int:
        """Return a random admissible action."""
        actions = self.space.actions(state)
        return int(actions[self._rng.integers(actions.size)])

    def observe(self, observation: Observation) -> None:
        """Learn nothing."""

    def end_episode(self) -> None:
        """Nothing to finish."""

    def held_plan(self) -> IntArray | None:
        """No plan is held."""
        return None
