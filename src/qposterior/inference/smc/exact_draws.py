"""Independent draws of the enumerated posterior, as a sampler: for tiny problems, and to check the others against."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from qposterior.inference.exact import MOST_CELLS, Enumeration
from qposterior.inference.smc.sampler import SequentialSampler, nothing_seen
from qposterior.model.likelihood import Likelihood
from qposterior.model.prior import GaussianPrior
from qposterior.world.experience import Experience


@dataclass(kw_only=True)
class ExactSampler(SequentialSampler):
    """Draws all particles afresh from the enumeration, equally weighted; enumerating cannot be cut short."""

    max_cells: int = MOST_CELLS

    @classmethod
    def start(
        cls,
        space_of: Experience,
        *,
        prior: GaussianPrior,
        likelihood: Likelihood,
        particles: int,
        rng: np.random.Generator,
    ) -> ExactSampler:
        """Return particles drawn from the prior, nothing seen; `space_of` tells space and kinds of experience."""
        return cls(**nothing_seen(space_of, prior, likelihood, particles, rng))

    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Enumerate the posterior given `seen` and draw from it."""
        same = seen.count == self.seen.count if seen.rewards == "noisy" else seen.observed == self.seen.observed
        if np.all(same):
            return False
        self.seen = seen.copy()
        self.move()
        return True

    def move(self, *, deadline: float | None = None) -> None:
        """Draw all particles again."""
        started = time.perf_counter()
        found = Enumeration(self.seen, self.prior, self.likelihood, max_cells=self.max_cells, rng=self.rng)
        num = self.cloud.log_weights.size
        self.cloud.theta, self.cloud.log_evidence = found.draw(num), found.log_evidence
        self.cloud.log_weights = np.full(num, -np.log(num))
        row = {"stage": "exact", "observed": self.seen.num_observed, "tolerance": 0.0, "new_tolerance": 0.0}
        self.trace.append(
            row | {"ess_before": float(num), "bellman_error": 0.0, "seconds": time.perf_counter() - started}
        )
