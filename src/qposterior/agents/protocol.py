"""What an agent is: four verbs, and the record of one observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qposterior.agents.knowledge import TRANSITION_KNOWLEDGE
from qposterior.checks import check_choice
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.sums import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One step of the world, as the agent is told of it."""

    state: int
    action: int
    reward: float
    next_state: int
    terminated: bool  # a goal was reached; an episode that was cut off has not terminated
    row: Row | None = None  # the whole transition row, where transitions are known or revealed
    mean_reward: float | None = None  # the mean reward, where it is revealed with the row

    def record_in(self, experience: Experience) -> bool:
        """Add this step to an experience; return whether its pair was new."""
        return experience.record(
            self.state,
            self.action,
            self.reward,
            self.next_state,
            row=self.row,
            mean_reward=self.mean_reward,
        )


class Agent(Protocol):
    """Acts, observes, and learns between episodes.

    An agent whose updates may take long can have an attribute `stop_at` too: `explore` sets it to the time, by
    `time.perf_counter`, after which the run is over.
    """

    name: str
    transitions: str  # one of TRANSITION_KNOWLEDGE
    num_updates: int  # how often its beliefs were brought up to date

    def begin_episode(self, state: int) -> None:
        """Prepare for an episode that starts in `state`."""
        ...

    def act(self, state: int) -> int:
        """Return an admissible action."""
        ...

    def observe(self, observation: Observation) -> None:
        """Take in what the last action led to."""
        ...

    def end_episode(self) -> None:
        """The episode is over, at a goal or cut off."""
        ...

    def held_plan(self) -> IntArray | None:
        """Return the deterministic plan held in this episode, ``(H, S)`` actions by step and state, or None.

        Steps after the last row use the last row.
        """
        ...


def check_transitions(transitions: str) -> str:
    """Return the given kind of knowledge, or raise with the nearest name."""
    return check_choice("kind of transitions", transitions, TRANSITION_KNOWLEDGE)
