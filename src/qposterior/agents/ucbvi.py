"""UCBVI (Azar, Osband and Munos 2017): value iteration in the estimated model, with a bonus for what is uncertain."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.model_agent import ModelAgent
from qposterior.checks import check_number
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace


class UCBVIAgent(ModelAgent):
    """Plans with Q_t = min(most_t, r̄ + γ P̂ V_{t+1} + c · size_t · √(log(S A H / δ) / n)).

    With h steps left, most_t = max(max_reward, 0) · h is what could still be paid (an episode may end at once), and
    size_t = max(|max_reward|, |min_reward|) · h bounds a return. A pair that was never seen has the whole of most_t.

    A Hoeffding bonus in the manner of UCBVI-CH, smaller than the theorem's 7 H ln(5 S A T / δ) / √n: the logarithm is
    under the root and without the number of episodes, H is the steps left, and Q is not also cut at its last value.
    """

    name = "ucbvi"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        max_reward: float,
        min_reward: float | None = None,
        bonus_scale: float = 0.05,
        failure: float = 0.05,
        transitions: str = "dirichlet",
        **settings: Any,
    ) -> None:
        super().__init__(space, transitions=transitions, **settings)
        check_number("bonus_scale", bonus_scale, "[0, inf)")
        check_number("failure", failure, "(0, 1)")
        if min_reward is not None:
            check_number("min_reward", min_reward)
        self.max_reward, self.bonus_scale, self.failure = check_number("max_reward", max_reward), bonus_scale, failure
        self.size = max(abs(max_reward), 0.0 if min_reward is None else abs(min_reward))

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
        most, size = max(self.max_reward, 0.0) * steps_left, self.size * steps_left
        log_term = np.log(self.space.num_pairs * self.horizon / self.failure)
        bonus = self.bonus_scale * size * np.sqrt(log_term / np.maximum(seen.count, 1))
        q = seen.reward_mean + self.space.discount * rows.expect(value) + bonus
        return np.where(seen.observed, np.minimum(q, most), most)
