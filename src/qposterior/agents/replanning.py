"""When a plan that is held through an episode is made anew: one rule for all agents that hold one."""

from __future__ import annotations

from dataclasses import dataclass, field

from qposterior.errors import unknown_name
from qposterior.world.experience import Experience

REPLAN_RULES = ("loops", "episode")


def is_known_anew(experience: Experience, pair: int, known_after: int = 1) -> bool:
    """Return whether the last look at a pair has made it known: the first, or where rows are counted any that doubles.

    A plan may rest on what a counted row was drawn to be, and a look that shows it to be otherwise is no first look.
    """
    count = int(experience.count[pair])
    if experience.transitions == "counted" and known_after == 1:
        return count & (count - 1) == 0
    return count == known_after


@dataclass(kw_only=True)
class Replanning:
    """Says when a held plan is due to be made anew within an episode.

    Where states can be entered twice, a held plan could circle until the episode is cut off on pairs that it knew
    nothing of when it was made. By the rule ``"loops"`` a new one is due when a state is entered a second time whose
    planned pair has become known since the plan was made (a pair becomes known where one stands, so that the state has
    then been entered before). By ``"episode"`` a plan is held to the end.
    """

    rule: str = "loops"
    num_replans: int = 0  # within episodes, in all
    fresh: set[int] = field(default_factory=set)  # pairs that have become known since the plan was made

    def __post_init__(self) -> None:
        if self.rule not in REPLAN_RULES:
            raise unknown_name("rule for planning anew", self.rule, REPLAN_RULES)

    def begin(self) -> None:
        """A plan has just been made."""
        self.fresh.clear()

    def learn(self, pair: int) -> None:
        """A pair has become known."""
        self.fresh.add(int(pair))

    def is_due(self, pair: int) -> bool:
        """Return whether `pair`, planned for the state just entered, must wait for a new plan; count it if so."""
        if self.rule != "loops" or pair not in self.fresh:
            return False
        self.num_replans += 1
        self.begin()
        return True
