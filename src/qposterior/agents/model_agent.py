"""What agents with a model share: the experience they gather, and a plan that they hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from qposterior.agents.planning import act_on
from qposterior.agents.protocol import Observation, check_transitions
from qposterior.agents.replanning import Replanning, is_known_anew
from qposterior.checks import check_count, make_rng
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable


class ModelAgent(ABC):
    """Gathers an `Experience`, and holds the plan that `make_plan` returns at the start of an episode.

    `horizon` is the number of steps planned for (the episode cap). `transitions="known"` needs the `table` of all rows.
    Within an episode the plan is made anew by the rule `replan` of `Replanning`. A plan says what to do at each step of
    the episode, so that a new one goes on at the step at hand, with as many steps to go as are left.
    """

    name = "model"
    known_after = 1  # how often a pair must be seen to be known

    def __init__(
        self,
        space: StateActionSpace,
        *,
        horizon: int,
        transitions: str,
        table: TransitionTable | None = None,
        rewards: str = "deterministic",
        replan: str = "loops",
        seed: Any = 0,
    ) -> None:
        check_count("horizon", horizon)
        self.transitions = check_transitions(transitions)
        if transitions == "known" and table is None:
            raise InvalidInputError(f'{self.name} with transitions="known" needs the table of all rows: table=')
        self.space = space
        self.horizon = horizon
        self.table = table if transitions == "known" else None
        counted = transitions == "dirichlet"
        self.experience = Experience(space, transitions="counted" if counted else "revealed", rewards=rewards)
        self.replanning = Replanning(rule=replan)
        self.num_updates = 0
        self._rng = make_rng(seed)
        self._plan: IntArray | None = None
        self._step = 0

    @abstractmethod
    def make_plan(self) -> IntArray:
        """Return ``(H, S)`` actions by step of the episode and state."""

    def is_settled(self) -> bool:
        """Return whether the plan in hand would come out the same again."""
        return False

    def begin_episode(self, state: int) -> None:
        """Plan, unless nothing has changed."""
        self._step = 0
        self.replanning.begin()
        if self._plan is None or not self.is_settled():
            self._replace_plan()

    def _replace_plan(self) -> None:
        self._plan = self.make_plan()
        self.num_updates += 1

    def act(self, state: int) -> int:
        """Return the plan's action for this step, planning anew first where that is due."""
        if self._plan is None:
            raise InvalidInputError("act was called before begin_episode")
        pair = int(self.space.pair_index[state, act_on(self._plan, self._step, state)])
        if self.replanning.is_due(pair):
            self._replace_plan()
        action = act_on(self._plan, self._step, state)
        self._step += 1
        return action

    def observe(self, observation: Observation) -> None:
        """Add to the experience."""
        observation.record_in(self.experience)
        pair = self.space.pair(observation.state, observation.action)
        if is_known_anew(self.experience, pair, self.known_after):
            self.replanning.learn(pair)

    def end_episode(self) -> None:
        """The next plan waits for the next episode."""
        self._step = 0

    def held_plan(self) -> IntArray | None:
        """Return the plan of this episode."""
        return self._plan
