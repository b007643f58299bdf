"""What is believed of Q* before anything is seen. The prior decides how fast one explores: a first-class choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError, unknown_name
from qposterior.model.kernels.density import HARD_Q, HARD_REWARD, NO_WALL, SOFT_Q, SOFT_REWARD, PriorData


def _check_scale(scale: float, name: str = "prior scale") -> None:
    if not (np.isfinite(scale) and scale > 0.0):
        raise InvalidInputError(f"{name} must be positive and finite, got {scale}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianPrior:
    """θ_k ~ N(mean, scale²), independent: the paper's prior (section experiment: mean 0, scale 4)."""

    mean: float = 0.0
    scale: float = 4.0

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def to_data(self) -> PriorData:
        """Return the numbers that the kernels need."""
        return PriorData(float(self.mean), float(self.scale), NO_WALL, np.inf, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedPrior:
    """A Gaussian prior with a wall at `upper` (paper, app. prior).

    ``on="q"``: the paper's Q′, θ < upper. ``on="reward"``: the stricter Q^M, g_k(θ) < upper, on the observed pairs.
    `softness` None is a hard wall; a number is the sd of a Gaussian penalty beyond it.
    """

    upper: float = 0.0
    on: str = "q"
    softness: float | None = None
    mean: float = 0.0
    scale: float = 4.0

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        if self.on not in ("q", "reward"):
            raise unknown_name("wall", self.on, ("q", "reward"))
        if self.softness is not None:
            _check_scale(self.softness, "softness")
        if not np.isfinite(self.upper):
            raise InvalidInputError(f"upper must be finite, got {self.upper}; use GaussianPrior for no wall")

    def to_data(self) -> PriorData:
        """Return the numbers that the kernels need."""
        hard = self.softness is None
        wall = (HARD_Q if hard else SOFT_Q) if self.on == "q" else (HARD_REWARD if hard else SOFT_REWARD)
        soft = 1.0 if self.softness is None else float(self.softness)
        return PriorData(float(self.mean), float(self.scale), wall, float(self.upper), soft)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPrior:
    """Rewards of all non-goal pairs ~ N(mean, scale²), cut off above `upper`: posterior sampling is then PSRL.

    Needs the transition rows of all pairs. With discount 1 and possible loops `upper` must be negative, or almost every
    draw has a loop that pays.
    """

    mean: float = 0.0
    scale: float = 4.0
    upper: float | None = None

    def __post_init__(self) -> None:
        _check_scale(self.scale)


Prior = GaussianPrior | BoundedPrior | RewardPrior

PRIORS: dict[str, type[Prior]] = {"gaussian": GaussianPrior, "bounded": BoundedPrior, "reward": RewardPrior}


def prior_from_dict(described: dict[str, Any]) -> Prior:
    """Return the prior of a plain description."""
    settings = dict(described)
    return PRIORS[settings.pop("name")](**settings)


def prior_to_dict(prior: Prior) -> dict[str, Any]:
    """Return a plain description of a prior."""
    name = next(name for name, kind in PRIORS.items() if isinstance(prior, kind))
    return {"name": name} | asdict(prior)
