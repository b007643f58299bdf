"""Randomised least-squares value iteration (Osband et al. 2019), tabular: every pair is a feature of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.model_agent import ModelAgent
from qposterior.checks import check_number
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace


class RLSVIAgent(ModelAgent):
    """Draws Q backwards in time from the posterior of a Bayesian regression on its own next values.

    With n readings of a pair, noise σ² and prior N(0, λ): Q_t ~ N(n/σ² · y_t / p, 1 / p), p = n/σ² + 1/λ, where
    y_t = r̄ + γ P̂ max Q_{t+1}. Every step of the horizon has its own draw.
    """

    name = "rlsvi"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        noise_sd: float = 0.1,
        prior_sd: float = 1.0,
        transitions: str = "dirichlet",
        **settings: Any,
    ) -> None:
        super().__init__(space, transitions=transitions, **settings)
        check_number("noise_sd", noise_sd, "(0, inf)")
        check_number("prior_sd", prior_sd, "(0, inf)")
        self.noise_sd, self.prior_sd = noise_sd, prior_sd

    def make_plan(self) -> IntArray:
        """Draw Q for every step of the horizon and return its greedy plan."""
        value = np.zeros(self.space.num_states)
        later: list[IntArray] = []
        for _ in range(self.horizon):
            mean, sd = self.regression(value)
            q = mean + sd * self._rng.standard_normal(mean.size)
            later.append(self.space.greedy(q))
            value = self.space.maximum(q)
        return np.array(later[::-1])

    def regression(self, value: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``(K,)`` means and standard deviations of Q given the next values."""
        seen = self.experience
        rows = self.table or seen.table().spread(seen.observed_pairs, self.space.num_pairs)
        precision = seen.count / self.noise_sd**2
        total = precision + self.prior_sd**-2.0
        target = np.where(seen.observed, seen.reward_mean + self.space.discount * rows.expect(value), 0.0)
        return precision * target / total, np.sqrt(1.0 / total)
