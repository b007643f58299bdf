"""What agents with a model share: the experience they gather, and a plan that is held for an episode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from qposterior.agents.planning import act_on
from qposterior.agents.protocol import Observation, check_transitions
from qposterior.answers import make_rng
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable


class ModelAgent(ABC):
    """Gathers an `Experience`, and holds the plan that `make_plan` returns at the start of an episode.

    `horizon` is the number of steps planned for (the episode cap). `transitions="known"` needs the `table` of all rows.
    """

    name = "model"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        horizon: int,
        transitions: str,
        table: TransitionTable | None = None,
        rewards: str = "deterministic",
        seed: Any = 0,
    ) -> None:
        if horizon < 1:
            raise InvalidInputError(f"horizon must be at least 1, got {horizon}")
        self.transitions = check_transitions(transitions)
        if transitions == "known" and table is None:
            raise InvalidInputError(f'{self.name} with transitions="known" needs the table of all rows: table=')
        self.space = space
        self.horizon = horizon
        self.table = table if transitions == "known" else None
        counted = transitions == "dirichlet"
        self.experience = Experience(space, transitions="counted" if counted else "revealed", rewards=rewards)
        self.num_updates = 0
        self._rng = make_rng(seed)
        self._plan: IntArray | None = None
        self._step = 0

    @abstractmethod
    def make_plan(self) -> IntArray:
        """Return the plan for the next episode."""

    def is_settled(self) -> bool:
        """Return whether the plan in hand would come out the same again."""
        return False

    def begin_episode(self, state: int) -> None:
        """Plan, unless nothing has changed."""
        self._step = 0
        if self._plan is None or not self.is_settled():
            self._plan = self.make_plan()
            self.num_updates += 1

    def act(self, state: int) -> int:
        """Return the plan's action for this step."""
        if self._plan is None:
            raise InvalidInputError("act was called before begin_episode")
        action = act_on(self._plan, self._step, state)
        self._step += 1
        return action

    def observe(self, observation: Observation) -> None:
        """Add to the experience."""
        observation.record_in(self.experience)

    def end_episode(self) -> None:
        """The next plan waits for the next episode."""
        self._step = 0

    def held_plan(self) -> IntArray | None:
        """Return the plan of this episode."""
        return self._plan
