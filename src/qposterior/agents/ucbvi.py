"""UCBVI (Azar, Osband and Munos 2017): value iteration in the estimated model, with a bonus for what is uncertain."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.model_agent import ModelAgent
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace


class UCBVIAgent(ModelAgent):
    """Plans with Q_t = min(most_t, r̄ + γ P̂ V_{t+1} + c · range_t · √(log(S A H / δ) / n)).

    With h steps left, most_t = max(max_reward, 0) · h is what could still be paid (an episode may end at once), and
    range_t = |max_reward| · h. The Hoeffding bonus; c = `bonus_scale` is 7 in the theorem and smaller wherever it is
    run. A pair that was never seen has the whole of most_t.
    """

    name = "ucbvi"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        max_reward: float,
        bonus_scale: float = 0.05,
        failure: float = 0.05,
        transitions: str = "dirichlet",
        **settings: Any,
    ) -> None:
        super().__init__(space, transitions=transitions, **settings)
        if bonus_scale < 0.0 or not 0.0 < failure < 1.0:
            raise InvalidInputError(
                f"bonus_scale must be 0 or more and failure in (0, 1), got {bonus_scale} and {failure}"
            )
        self.max_reward, self.bonus_scale, self.failure = float(max_reward), bonus_scale, failure

    def make_plan(self) -> IntArray:
        """Plan backwards with the bonus; ties at random."""
        value = np.zeros(self.space.num_states)
        later: list[IntArray] = []
        preference = self._rng.random(self.space.num_pairs) * 1e-9
        for steps_left in range(1, self.horizon + 1):
            q = self.optimistic_q(value, steps_left)
            later.append(self.space.greedy(q + preference))
            value = self.space.maximum(q)
        return np.array(later[::-1])

    def optimistic_q(self, value: FloatArray, steps_left: int) -> FloatArray:
        """Return ``(K,)`` upper bounds of Q with some steps left, given those of the values after the next."""
        seen = self.experience
        rows = self.table or seen.table().spread(seen.observed_pairs, self.space.num_pairs)
        most, scale = max(self.max_reward, 0.0) * steps_left, abs(self.max_reward) * steps_left
        log_term = np.log(self.space.num_pairs * self.horizon / self.failure)
        bonus = self.bonus_scale * scale * np.sqrt(log_term / np.maximum(seen.count, 1))
        q = seen.reward_mean + self.space.discount * rows.expect(value) + bonus
        return np.where(seen.observed, np.minimum(q, most), most)
