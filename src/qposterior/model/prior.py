"""What is believed of Q* before anything is seen. The prior decides how fast one explores: a first-class choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qposterior.checks import check_choice, check_number, shown
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.density import HARD_Q, HARD_REWARD, NO_WALL, SOFT_Q, SOFT_REWARD, PriorData


def _check_gaussian(mean: float, scale: float) -> None:
    check_number("prior mean", mean)
    check_number("prior scale", scale, "(0, inf)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianPrior:
    """θ_k ~ N(mean, scale²), independent: the paper's prior (section experiment: mean 0, scale 4)."""

    mean: float = 0.0
    scale: float = 4.0

    def __post_init__(self) -> None:
        _check_gaussian(self.mean, self.scale)

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
        _check_gaussian(self.mean, self.scale)
        check_choice("wall", self.on, ("q", "reward"))
        if self.softness is not None:
            check_number("softness", self.softness, "(0, inf)")
        check_number("upper (GaussianPrior has no wall)", self.upper)

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
        _check_gaussian(self.mean, self.scale)
        if self.upper is not None:
            check_number("upper (None for no wall)", self.upper)


Prior = GaussianPrior | BoundedPrior | RewardPrior

PRIORS: dict[str, type[Prior]] = {"gaussian": GaussianPrior, "bounded": BoundedPrior, "reward": RewardPrior}


NEEDED = ("mean", "scale", "to_data")
"""What a prior of one's own must have: mean and scale of its values, and what the kernels need."""


def check_prior(prior: Any) -> None:
    """Raise unless this is one of our priors, or has what one of one's own needs."""
    lacks = [name for name in NEEDED if not hasattr(prior, name)]
    if (lacks and not isinstance(prior, RewardPrior)) or isinstance(prior, type):
        raise InvalidInputError(
            f"a prior must have {', '.join(NEEDED)}, and {shown(prior)} lacks {', '.join(lacks) or 'its values'}; "
            "give one, for example GaussianPrior(scale=4.0)"
        )


def prior_from_dict(described: dict[str, Any]) -> Prior:
    """Return the prior of a plain description."""
    settings = dict(described)
    kind = PRIORS[check_choice("prior", settings.pop("name", None), PRIORS)]
    for name in settings:
        check_choice(f"setting of {kind.__name__}", name, kind.__dataclass_fields__)
    return kind(**settings)


def prior_to_dict(prior: Any) -> dict[str, Any]:
    """Return a plain description of a prior; of one's own: its class, mean and scale."""
    for name, kind in PRIORS.items():
        if isinstance(prior, kind):
            return {"name": name} | asdict(prior)
    if hasattr(prior, "describe"):  # a prior that says of itself what it is
        return dict(prior.describe())
    check_prior(prior)
    return {"name": type(prior).__name__, "mean": float(prior.mean), "scale": float(prior.scale)}
