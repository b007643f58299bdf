"""qposterior: how sure can you be about the best action?

The way of the data, and where each part lives:

    world          FiniteMDP, StateActionSpace, solve, Experience: what is and what was seen
    environments   Deep Sea and others, each a function that returns a FiniteMDP
    model          priors, likelihoods, targets in Q and in Bellman coordinates; the compiled loops
    inference      exact enumeration, HMC, tempering, diagnostics; smc: the samplers that follow the data
    answers        Posterior: the only thing that hands out numbers
    front_door     posterior(...): from an Experience to a Posterior
    agents         one file each, one protocol
    experiments    explore: an agent in a world; compare: a grid of them; metrics, statistics, folders
    report         figures and pages
    cli            the command line

Names are loaded when first used, so that `import qposterior` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qposterior.environments.registration import register_when_gymnasium_is_loaded

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qposterior.agents.posterior_sampling import PosteriorSamplingAgent
    from qposterior.agents.registry import make_agent
    from qposterior.answers import Posterior
    from qposterior.environments.registry import make_environment
    from qposterior.errors import (
        ContradictionError,
        InvalidInputError,
        MissingExtraError,
        NoUniqueSolutionError,
        QPosteriorError,
    )
    from qposterior.experiments.compare import compare
    from qposterior.experiments.explore import Run, explore
    from qposterior.front_door import posterior
    from qposterior.inference.hmc import HMCSettings
    from qposterior.inference.smc.annealed import AnnealedSettings
    from qposterior.inference.smc.one_look import OneLookSettings
    from qposterior.inference.smc.one_step import MoveSettings
    from qposterior.logs.columns import Columns
    from qposterior.logs.files import Policy
    from qposterior.logs.fit import Fit, fit
    from qposterior.logs.settings import FitSettings
    from qposterior.model.likelihood import Noise, NoiseModel
    from qposterior.model.model_prior import ModelPrior
    from qposterior.model.prior import BoundedPrior, GaussianPrior, Prior, RewardPrior
    from qposterior.model.uncertain import DirichletRows, SimulatedRows, SimulatorPool
    from qposterior.world.experience import Experience
    from qposterior.world.mdp import FiniteMDP
    from qposterior.world.solve import Solution, check_uniqueness, solve
    from qposterior.world.space import StateActionSpace

_HOME = {
    "BoundedPrior": "model.prior",
    "GaussianPrior": "model.prior",
    "ModelPrior": "model.model_prior",
    "AnnealedSettings": "inference.smc.annealed",
    "HMCSettings": "inference.hmc",
    "MoveSettings": "inference.smc.one_step",
    "OneLookSettings": "inference.smc.one_look",
    "Noise": "model.likelihood",
    "NoiseModel": "model.likelihood",
    "Posterior": "answers",
    "PosteriorSamplingAgent": "agents.posterior_sampling",
    "Prior": "model.prior",
    "RewardPrior": "model.prior",
    "DirichletRows": "model.uncertain",
    "SimulatedRows": "model.uncertain",
    "SimulatorPool": "model.uncertain",
    "posterior": "front_door",
    "Columns": "logs.columns",
    "Fit": "logs.fit",
    "FitSettings": "logs.settings",
    "Policy": "logs.files",
    "fit": "logs.fit",
    "ContradictionError": "errors",
    "Experience": "world.experience",
    "FiniteMDP": "world.mdp",
    "InvalidInputError": "errors",
    "MissingExtraError": "errors",
    "NoUniqueSolutionError": "errors",
    "QPosteriorError": "errors",
    "Run": "experiments.explore",
    "Solution": "world.solve",
    "StateActionSpace": "world.space",
    "check_uniqueness": "world.solve",
    "compare": "experiments.compare",
    "explore": "experiments.explore",
    "make_agent": "agents.registry",
    "make_environment": "environments.registry",
    "solve": "world.solve",
}

__all__ = [
    "AnnealedSettings",
    "BoundedPrior",
    "Columns",
    "ContradictionError",
    "DirichletRows",
    "Experience",
    "FiniteMDP",
    "Fit",
    "FitSettings",
    "GaussianPrior",
    "HMCSettings",
    "InvalidInputError",
    "MissingExtraError",
    "ModelPrior",
    "MoveSettings",
    "NoUniqueSolutionError",
    "Noise",
    "NoiseModel",
    "OneLookSettings",
    "Policy",
    "Posterior",
    "PosteriorSamplingAgent",
    "Prior",
    "QPosteriorError",
    "RewardPrior",
    "Run",
    "SimulatedRows",
    "SimulatorPool",
    "Solution",
    "StateActionSpace",
    "check_uniqueness",
    "compare",
    "explore",
    "fit",
    "make_agent",
    "make_environment",
    "posterior",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'qposterior' has no attribute {name!r}")
    value = getattr(import_module(f"qposterior.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_when_gymnasium_is_loaded()
