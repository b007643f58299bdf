"""The posterior under a prior on rewards, all rows known: independent draws where they are conjugate, else chains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.inference import hmc
from qposterior.inference.chains import HMCSettings
from qposterior.inference.problem import Problem
from qposterior.model.charts import RewardChart
from qposterior.weighted_draws import Posterior, judged


def run(problem: Problem, rng: np.random.Generator, settings: HMCSettings | None = None) -> Posterior:
    """Return the posterior of Q* that posterior draws of the rewards solve to (PSRL, the rows being known)."""
    problem = replace(problem, chart=RewardChart)
    target = problem.target()
    drawn = RewardChart(target.parts).draw(problem.num_draws, rng)
    if drawn is None:
        return hmc.run(problem, rng, settings)
    if settings is not None:
        raise InvalidInputError("under this RewardPrior draws are independent, without a chain: leave `settings` out")
    facts = {"effective_draws": float(problem.num_draws)} | judged(None)
    return problem.posterior(draws=target.to_q(drawn), method="conjugate", diagnostics=facts)
