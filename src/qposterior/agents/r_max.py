"""R-MAX (Brafman and Tennenholtz 2002): what has not been seen pays the most there is."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.model_agent import ModelAgent
from qposterior.agents.planning import plan
from qposterior.checks import check_count, check_number
from qposterior.world.arrays import BoolArray, IntArray
from qposterior.world.space import StateActionSpace


class RMaxAgent(ModelAgent):
    """Plans in a model in which a pair seen fewer than `known_after` times pays `max_reward`.

    With transitions known such a pair keeps its true row; otherwise it pays `max_reward` at every step that is left,
    or nothing where all rewards are losses: an episode may end at once.
    """

    name = "r-max"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        max_reward: float,
        known_after: int | None = None,
        transitions: str = "known",
        **settings: Any,
    ) -> None:
        super().__init__(space, transitions=transitions, **settings)
        noisy = self.transitions == "dirichlet" or self.experience.rewards == "noisy"
        self.known_after = known_after if known_after is not None else 10 if noisy else 1
        check_count("known_after", self.known_after)
        self.max_reward = check_number("max_reward", max_reward)
        self._planned_for: BoolArray | None = None

    def make_plan(self) -> IntArray:
        """Plan with optimism about what is not known yet."""
        known = self.experience.count >= self.known_after
        self._planned_for = known
        rewards = np.where(known, self.experience.reward_mean, self.max_reward)
        if self.table is not None:
            return plan(self.space, self.table, rewards, horizon=self.horizon, rng=self._rng)
        bonus = np.where(known, np.nan, max(self.max_reward, 0.0))
        rows = self.experience.table().spread(self.experience.observed_pairs, self.space.num_pairs)
        return plan(self.space, rows, rewards, horizon=self.horizon, rng=self._rng, bonus=bonus)

    def is_settled(self) -> bool:
        """Return whether no pair has become known since."""
        known = self.experience.count >= self.known_after
        return self._planned_for is not None and np.array_equal(known, self._planned_for)
