"""What samplers hand from one step to the next: weighted particles, and chains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.inference.diagnostics import weighted_ess
from qposterior.model.noise import Likelihood
from qposterior.model.prior import Prior
from qposterior.world.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Particles:
    """Weighted draws of a posterior: parameters of Q, whatever chart they are moved in, and what goes with them.

    A step makes other particles of them; these stay as they are.
    """

    parameters: FloatArray  # (N, P)  θ itself for a table
    log_weights: FloatArray  # (N,)  normalised: logsumexp == 0
    log_scale: FloatArray | None = None  # (N,)  of the noise, where it is learned
    rows: FloatArray | None = None  # (N, nnz)  transition rows of each particle, where they are not known
    ancestors: IntArray | None = None  # (N,)  the draw of the prior that each stems from; None: each its own
    log_evidence: float = 0.0

    @classmethod
    def from_prior(
        cls, prior: Prior, noise: Likelihood, *, space: Any, num: int, rng: np.random.Generator
    ) -> Particles:
        """Return independent draws of the prior, and of the noise scale where it is learned."""
        parameters = np.ascontiguousarray(prior.draw(num, space, rng), dtype=float)
        log_weights = np.full(num, -np.log(num))
        log_scale = noise.draw_log_scale(num, rng)
        return cls(parameters=parameters, log_weights=log_weights, log_scale=log_scale, ancestors=np.arange(num))

    @property
    def num(self) -> int:
        """N."""
        return int(self.log_weights.size)

    @property
    def weights(self) -> FloatArray:
        """``(N,)`` normalised weights."""
        return np.exp(self.log_weights)

    @property
    def num_ancestors(self) -> int:
        """From how many draws of the prior the particles stem."""
        return self.num if self.ancestors is None else int(np.unique(self.ancestors).size)

    @property
    def ess(self) -> float:
        """1 / Σ w²."""
        return weighted_ess(self.log_weights)

    def reweighted(self, log_gain: FloatArray) -> tuple[Particles, float]:
        """Return the particles with weights times exp(log_gain), normalised, and log Σ W w, what the evidence gains."""
        alive = np.isfinite(self.log_weights)
        gain = np.where(np.isnan(log_gain) | ~alive, -np.inf, log_gain)
        top = gain.max()
        if not np.isfinite(top):
            raise QPosteriorError(
                "every particle has weight 0: the prior assigns almost no mass to what was seen; use more particles"
            )
        # Relative to the largest gain first: beside a number of 1e16 weights and the log of their sum would be lost.
        total = self.log_weights + (gain - top)
        shift = total.max()
        log_sum = float(shift + np.log(np.sum(np.exp(total - shift))))
        increment = float(top) + log_sum
        log_evidence = self.log_evidence + increment
        return replace(self, log_weights=total - log_sum, log_evidence=log_evidence), increment

    def select(self, index: IntArray) -> Particles:
        """Return the chosen particles, equally weighted."""
        return replace(
            self.descended(index),
            parameters=self.parameters[index],
            log_scale=None if self.log_scale is None else self.log_scale[index],
            rows=None if self.rows is None else self.rows[index],
        )

    def descended(self, index: IntArray) -> Particles:
        """Return equal weights, and the ancestors of the chosen particles, whose values stand elsewhere."""
        ancestors = None if self.ancestors is None else self.ancestors[index]
        return replace(self, log_weights=np.full(index.size, -np.log(index.size)), ancestors=ancestors)

    def at(self, parameters: FloatArray, log_scale: FloatArray | None) -> Particles:
        """Return the particles elsewhere, with the weights they have."""
        return replace(self, parameters=parameters, log_scale=log_scale)
