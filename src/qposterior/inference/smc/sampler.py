"""What all sequential samplers share: particles that follow an experience, a trace, and a form that can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.inference.records import Particles
from qposterior.model.noise import Likelihood, as_likelihood
from qposterior.model.prior import Prior
from qposterior.storage import Packed as Packed
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience


@dataclass(kw_only=True)
class SequentialSampler(ABC):
    """Weighted particles of the posterior given what was seen, brought up to date by `update`."""

    prior: Prior
    noise: Likelihood
    particles: Particles
    seen: Experience  # what the particles know
    rng: np.random.Generator
    trace: list[dict[str, Any]] = field(default_factory=list)  # a row per step of the sampler
    is_finished: bool = True  # False where a deadline has left something for the next call
    tolerance: float = 0.0  # of the sharpest data
    last_mixing: float | None = None  # the ratio of the last moves, where they have not mixed

    @abstractmethod
    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Bring the particles to `seen`, a later state of the same experience; return whether there was work to do.

        With a `deadline` in seconds the update stops in time with a valid weighted approximation of the posterior at
        what it has reached, and the next call goes on from there.
        """

    @abstractmethod
    def move(self, *, deadline: float | None = None) -> None:
        """Move the particles on where they stand, for nothing new was seen; at most for some seconds."""

    @property
    def ess(self) -> float:
        """The effective number of particles."""
        return self.particles.ess

    def draw_q(self) -> FloatArray:
        """Return ``(K,)`` the values of Q of one particle, drawn by its weight."""
        chosen = self.rng.choice(self.particles.num, p=self.particles.weights)
        return np.asarray(self.q_of_particles()[chosen])

    def q_of_particles(self) -> FloatArray:
        """Return ``(N, K)`` the values of Q of the particles."""
        return self.particles.parameters

    def pack(self) -> Packed:
        """Return everything that the continuation depends on, the random numbers apart."""
        arrays: dict[str, Any] = {"theta": self.particles.parameters, "log_weights": self.particles.log_weights}
        if self.particles.log_scale is not None:
            arrays["log_scale"] = self.particles.log_scale
        if self.particles.ancestors is not None:
            arrays["ancestors"] = self.particles.ancestors
        facts = {
            "log_evidence": self.particles.log_evidence,
            "seen": self.seen.to_text(),
            "trace": self.trace,
            "is_finished": self.is_finished,
            "tolerance": self.tolerance,
        }
        return arrays, facts

    def unpack(self, arrays: dict[str, FloatArray], facts: dict[str, Any]) -> None:
        """Take over what `pack` returned."""
        self.particles = Particles(
            parameters=arrays["theta"],
            log_weights=arrays["log_weights"],
            log_scale=arrays.get("log_scale"),
            ancestors=None if (ancestors := arrays.get("ancestors")) is None else ancestors.astype(np.int64),
            log_evidence=float(facts["log_evidence"]),
        )
        self.seen = Experience.from_text(facts["seen"], self.seen.space)
        self.trace = list(facts["trace"])
        self.is_finished, self.tolerance = bool(facts["is_finished"]), float(facts["tolerance"])


def initial_state(
    template: Experience, prior: Prior, noise: Any, *, particles: int, rng: np.random.Generator, space: Any = None
) -> dict[str, Any]:
    """Return what every sampler starts from: draws of the prior, and an empty experience of the kind of `template`.

    `space` is that of the parameters, where they are not the values of the pairs.
    """
    likelihood = as_likelihood(noise)
    asked = template.space if space is None else space
    return {
        "prior": prior,
        "noise": likelihood,
        "particles": Particles.from_prior(prior, likelihood, space=asked, num=particles, rng=rng),
        "seen": Experience(template.space, transitions=template.transitions, rewards=template.rewards),
        "rng": rng,
    }
