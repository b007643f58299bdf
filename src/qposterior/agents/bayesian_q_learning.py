"""Bayesian Q-learning (Dearden, Friedman and Russell 1998): beliefs about the return of each pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.protocol import Observation, check_transitions
from qposterior.checks import check_number, make_rng
from qposterior.world.arrays import IntArray
from qposterior.world.space import StateActionSpace


class BayesianQLearningAgent:
    """The return of a pair is normal with unknown mean and precision under a Normal-Gamma(μ, λ, α, β) belief.

    Acts on a draw of the means (Q-value sampling). After a step the return r + γ R' enters by its first two moments,
    those of R' from the belief about the best next pair: moment updating.
    """

    name = "bayesian-q-learning"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        mean: float = 0.0,
        mean_count: float = 1.0,
        shape: float = 2.0,
        rate: float = 4.0,
        transitions: str = "revealed",
        seed: Any = 0,
    ) -> None:
        check_number("mean", mean)
        check_number("mean_count", mean_count, "(0, inf)")
        check_number("shape", shape, "(1, inf)")
        check_number("rate", rate, "(0, inf)")
        self.space = space
        self.transitions = check_transitions(transitions)
        self.num_updates = 0
        size = space.num_pairs
        self.mean, self.count = np.full(size, float(mean)), np.full(size, float(mean_count))
        self.shape, self.rate = np.full(size, float(shape)), np.full(size, float(rate))
        self._rng = make_rng(seed)

    def begin_episode(self, state: int) -> None:
        """Nothing to prepare."""

    def act(self, state: int) -> int:
        """Return the best action of a draw of the means: μ + t_{2α} √(β / (α λ))."""
        pairs = slice(self.space.first_pair[state], self.space.first_pair[state + 1])
        spread = np.sqrt(self.rate[pairs] / (self.shape[pairs] * self.count[pairs]))
        drawn = self.mean[pairs] + spread * self._rng.standard_t(2.0 * self.shape[pairs])
        return int(self.space.pair_action[pairs][np.argmax(drawn)])

    def observe(self, observation: Observation) -> None:
        """Update the belief about the pair by the moments of its return."""
        first, second = self.moments_after(observation.next_state, observation.terminated)
        reward, discount = observation.reward, self.space.discount
        m1 = reward + discount * first
        m2 = reward**2 + 2.0 * discount * reward * first + discount**2 * second
        k = self.space.pair(observation.state, observation.action)
        count = self.count[k]
        self.rate[k] += 0.5 * (m2 - m1**2) + count * (m1 - self.mean[k]) ** 2 / (2.0 * (count + 1.0))
        self.mean[k] = (count * self.mean[k] + m1) / (count + 1.0)
        self.count[k] += 1.0
        self.shape[k] += 0.5
        self.num_updates += 1

    def moments_after(self, state: int, terminated: bool) -> tuple[float, float]:
        """Return E R and E R² of the return from a state under the belief about its best pair; 0 at the end."""
        if terminated:
            return 0.0, 0.0
        first, last = self.space.first_pair[state], self.space.first_pair[state + 1]
        k = first + int(np.argmax(self.mean[first:last]))
        variance = (self.count[k] + 1.0) / self.count[k] * self.rate[k] / (self.shape[k] - 1.0)
        return float(self.mean[k]), float(variance + self.mean[k] ** 2)

    def end_episode(self) -> None:
        """Nothing to finish."""

    def held_plan(self) -> IntArray | None:
        """No plan is held: the beliefs change at every step."""
        return None
