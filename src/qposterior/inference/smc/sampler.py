"""What all sequential samplers share: a cloud that follows an experience, a trace, and a form that can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.inference.smc.cloud import Cloud, draw_prior_cloud
from qposterior.model.likelihood import Likelihood
from qposterior.model.prior import Prior
from qposterior.storage import Packed as Packed
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience


@dataclass(kw_only=True)
class SequentialSampler(ABC):
    """Weighted particles of the posterior given what was seen, brought up to date by `update`."""

    prior: Prior
    likelihood: Likelihood
    cloud: Cloud
    seen: Experience  # what the particles know
    rng: np.random.Generator
    trace: list[dict[str, Any]] = field(default_factory=list)  # a row per step of the sampler
    is_finished: bool = True  # False where a deadline has left something for the next call
    tolerance: float = 0.0  # of the sharpest data

    @abstractmethod
    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Bring the particles to `seen`, a later state of the same experience; return whether there was work to do.

        With a `deadline` in seconds the update stops in time with a valid weighted approximation of the posterior at
        what it has reached, and the next call goes on from there.
        """

    @abstractmethod
    def move(self, *, deadline: float | None = None) -> None:
        """Move the particles on where they stand, for nothing new was seen; at most for some seconds."""

    def pack(self) -> Packed:
        """Return everything that the continuation depends on, the random numbers apart."""
        arrays: dict[str, Any] = {"theta": self.cloud.theta, "log_weights": self.cloud.log_weights}
        if self.cloud.log_scale is not None:
            arrays["log_scale"] = self.cloud.log_scale
        facts = {
            "log_evidence": self.cloud.log_evidence,
            "seen": self.seen.to_text(),
            "trace": self.trace,
            "is_finished": self.is_finished,
            "tolerance": self.tolerance,
        }
        return arrays, facts

    def unpack(self, arrays: dict[str, FloatArray], facts: dict[str, Any]) -> None:
        """Take over what `pack` returned."""
        self.cloud = Cloud(
            theta=arrays["theta"],
            log_weights=arrays["log_weights"],
            log_scale=arrays.get("log_scale"),
            log_evidence=float(facts["log_evidence"]),
        )
        self.seen = Experience.from_text(facts["seen"], self.seen.space)
        self.trace = list(facts["trace"])
        self.is_finished, self.tolerance = bool(facts["is_finished"]), float(facts["tolerance"])


def nothing_seen(
    space_of: Experience,
    prior: Prior,
    likelihood: Likelihood,
    particles: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the state that every sampler starts from: draws of the prior, and an empty experience of the same kind."""
    return {
        "prior": prior,
        "likelihood": likelihood,
        "cloud": draw_prior_cloud(space_of.space, prior, likelihood, particles, rng),
        "seen": Experience(space_of.space, transitions=space_of.transitions, rewards=space_of.rewards),
        "rng": rng,
    }
