"""Posterior sampling of models (Strens 2000; Osband et al. 2013) with conjugate priors: the paper's baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.psrl_deterministic import DeterministicPSRLAgent
from qposterior.checks import check_number
from qposterior.world.arrays import FloatArray
from qposterior.world.space import StateActionSpace


class PSRLAgent(DeterministicPSRLAgent):
    """Draws rows from Dirichlet(concentration + counts) and mean rewards from their Normal-Gamma posterior.

    Mean and precision of a reward: μ | τ ~ N(reward_mean, 1 / (mean_count · τ)), τ ~ Gamma(shape, rate). Every
    observation counts `repeats` times, the paper's acceleration for deterministic problems. `concentration` is 1/√S
    unless given, as in the study of uncertainty Bellman equations (O'Donoghue et al. 2018).
    """

    name = "psrl"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        concentration: float | None = None,
        repeats: int = 10,
        reward_mean: float = 0.0,
        mean_count: float = 1.0,
        shape: float = 1.0,
        rate: float = 1.0,
        transitions: str = "dirichlet",
        **settings: Any,
    ) -> None:
        alpha = space.num_states**-0.5 if concentration is None else concentration
        super().__init__(space, reward_mean=reward_mean, concentration=alpha, transitions=transitions, **settings)
        for name, value in (("repeats", repeats), ("mean_count", mean_count), ("shape", shape), ("rate", rate)):
            check_number(name, value, "(0, inf)")
        self.repeats, self.mean_count, self.shape, self.rate = repeats, mean_count, shape, rate

    def draw_rewards(self) -> FloatArray:
        """Return ``(K,)`` mean rewards drawn from their Normal-Gamma posteriors."""
        mean, count, shape, rate = self.reward_posterior()
        precision = self._rng.standard_gamma(shape) / rate
        return mean + self._rng.standard_normal(mean.size) / np.sqrt(count * precision)

    def reward_posterior(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return ``(K,)`` mean, mean count, shape and rate of the Normal-Gamma posteriors."""
        seen = self.experience
        n = self.repeats * seen.count.astype(float)
        count = self.mean_count + n
        gap = seen.reward_mean - self.reward_mean
        mean = self.reward_mean + n * gap / count
        rate = self.rate + 0.5 * (self.repeats * seen.reward_deviation + self.mean_count * n * gap**2 / count)
        return mean, count, self.shape + 0.5 * n, rate

    def is_settled(self) -> bool:
        """Return False: a Normal-Gamma posterior always leaves something to draw."""
        return False
