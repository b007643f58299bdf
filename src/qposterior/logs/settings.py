"""`FitSettings`: what may be set of a fit. What is left out is chosen from the log (`choices`)."""

from __future__ import annotations

from dataclasses import dataclass

from qposterior.checks import check_choice, check_count, check_list, check_number, check_type, shown
from qposterior.errors import InvalidInputError
from qposterior.inference.policy_search import Risk
from qposterior.model.likelihood import Noise
from qposterior.model.model_prior import ModelPrior
from qposterior.model.prior import BoundedPrior, GaussianPrior

METHODS = ("model", "q", "bootstrap")
NAMES = {
    "method": ("method", METHODS),
    "rewards": ("kind of rewards", ("deterministic", "noisy")),
    "transitions": ("kind of transitions", ("deterministic", "dirichlet", "empirical")),
    "actions": ("choice of actions", ("seen", "all")),
}
"""Settings that are one of some names: what they are called in an error, and the names."""

DRAWS = {"model": 2000, "q": 4000, "bootstrap": 2000}
"""Draws that are returned unless told: of models one half chooses a policy and the other values it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """What may be set; None is chosen from the data."""

    goals: tuple[str, ...] = ()
    method: str | None = None
    rewards: str | None = None
    transitions: str | None = None
    discount: float | None = None
    prior: GaussianPrior | BoundedPrior | ModelPrior | None = None
    noise: Noise | None = None
    actions: str | None = None
    particles: int | None = None
    risk: str = "mean"
    cautious: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if any(not isinstance(label, str) for label in check_list("goals", self.goals, "labels")):
            raise InvalidInputError(f"goals must be labels of states, as text, got {shown(self.goals)}")
        for name, (kind, allowed) in NAMES.items():
            if getattr(self, name) is not None:
                check_choice(kind, getattr(self, name), allowed)
        if self.discount is not None:
            check_number("discount", self.discount, "(0, 1]")
        if self.prior is not None:
            check_type("prior", self.prior, (GaussianPrior, BoundedPrior, ModelPrior))
        if self.noise is not None:
            check_type("noise", self.noise, Noise)
        if self.particles is not None:
            check_count("particles", self.particles, 100)
        Risk.parse(self.risk)
        if self.cautious is not None:
            check_number("cautious", self.cautious, "(0, 1)")
        check_count("seed", self.seed, 0)
        self._check_together()

    def _check_together(self) -> None:
        """Raise for settings that nothing would look at."""
        method, is_on_model = self.chosen_method, isinstance(self.prior, ModelPrior)
        on_q = {"prior": self.prior is not None and not is_on_model, "noise": self.noise is not None}
        for name, is_given in on_q.items():
            if is_given and method != "q":
                raise InvalidInputError(f'this {name} is for method "q", not for {method!r}; leave one of them out')
        if is_on_model and method != "model":
            raise InvalidInputError(f'a ModelPrior is for method "model", not for {method!r}; leave one of them out')
        if method == "q" and (self.risk != "mean" or self.cautious is not None):
            raise InvalidInputError('risk and cautious need draws of the model; leave method="q" out')

    @property
    def chosen_method(self) -> str:
        """The method, told or chosen: a prior or noise of Q asks for the posterior under a prior on Q."""
        if self.method is not None:
            return self.method
        is_on_q = self.prior is not None and not isinstance(self.prior, ModelPrior)
        return "q" if is_on_q or self.noise is not None else "model"

    @property
    def num_draws(self) -> int:
        """How many draws are asked for."""
        return self.particles or DRAWS[self.chosen_method]
