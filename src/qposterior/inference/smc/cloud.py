"""Weighted particles: what every sequential sampler carries from one posterior to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.inference.diagnostics import weighted_ess
from qposterior.model.likelihood import Likelihood, Noise
from qposterior.model.prior import Prior
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.space import StateActionSpace


@dataclass(slots=True, kw_only=True)
class Cloud:
    """Particles in θ, whatever the coordinates they are moved in, with cumulative normalised log-weights."""

    theta: FloatArray  # (N, K)
    log_weights: FloatArray  # (N,)  normalised: logsumexp == 0
    log_scale: FloatArray | None = None  # (N,)  where the noise scale is learned
    log_evidence: float = 0.0

    @property
    def weights(self) -> FloatArray:
        """``(N,)`` normalised weights."""
        return np.exp(self.log_weights)

    @property
    def ess(self) -> float:
        """1 / Σ w²."""
        return weighted_ess(self.log_weights)

    def reweight(self, log_gain: FloatArray) -> float:
        """Multiply the weights by exp(log_gain), normalise, add log Σ W w to the evidence, and return it."""
        alive = np.isfinite(self.log_weights)
        gain = np.where(np.isnan(log_gain) | ~alive, -np.inf, log_gain)
        top = gain.max()
        if not np.isfinite(top):
            raise QPosteriorError("every particle has weight 0: prior and data hardly agree; use more particles")
        # Relative to the largest gain first: beside a number of 1e16 weights and the log of their sum would be lost.
        total = self.log_weights + (gain - top)
        shift = total.max()
        log_sum = float(shift + np.log(np.sum(np.exp(total - shift))))
        self.log_weights = total - log_sum
        self.log_evidence += float(top) + log_sum
        return float(top) + log_sum

    def select(self, index: IntArray) -> None:
        """Keep the chosen particles, equally weighted."""
        self.theta = self.theta[index]
        self.log_scale = None if self.log_scale is None else self.log_scale[index]
        self.log_weights = np.full(index.size, -np.log(index.size))


def draw_prior_cloud(
    space: StateActionSpace, prior: Prior, likelihood: Likelihood, particles: int, rng: np.random.Generator
) -> Cloud:
    """Return independent draws of the prior, and of the noise scale where it is learned."""
    theta = np.ascontiguousarray(prior.draw(particles, space, rng), dtype=float)
    log_scale = None
    if isinstance(likelihood, Noise) and likelihood.is_learned:
        log_scale = rng.normal(likelihood.log_scale_mean, likelihood.log_scale_sd, particles)
    return Cloud(theta=theta, log_weights=np.full(particles, -np.log(particles)), log_scale=log_scale)
