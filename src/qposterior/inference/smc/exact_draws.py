"""Independent draws of the enumerated posterior, as a sampler: for tiny problems, and to check the others against."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qposterior.inference.exact import MOST_CELLS, Enumeration
from qposterior.inference.records import Particles
from qposterior.inference.smc.sampler import SequentialSampler, initial_state
from qposterior.model.prior import GaussianPrior
from qposterior.world.experience import Experience


@dataclass(kw_only=True)
class ExactSampler(SequentialSampler):
    """Draws all particles afresh from the enumeration, equally weighted; enumerating cannot be cut short."""

    max_cells: int = MOST_CELLS

    @classmethod
    def start(
        cls,
        template: Experience,
        *,
        prior: GaussianPrior,
        noise: Any,
        particles: int,
        rng: np.random.Generator,
    ) -> ExactSampler:
        """Return particles drawn from the prior, nothing seen; `template` tells space and kinds of experience."""
        return cls(**initial_state(template, prior, noise, particles=particles, rng=rng))

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
        enumeration = Enumeration(self.seen, self.prior, self.noise, max_cells=self.max_cells, rng=self.rng)
        num = self.particles.num
        self.particles = Particles(
            parameters=enumeration.draw(num),
            log_weights=np.full(num, -np.log(num)),
            log_evidence=enumeration.log_evidence,
        )
        row = {"stage": "exact", "observed": self.seen.num_observed, "tolerance": 0.0, "new_tolerance": 0.0}
        self.trace.append(
            row | {"ess_before": float(num), "bellman_error": 0.0, "seconds": time.perf_counter() - started}
        )
