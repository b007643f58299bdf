"""The methods of `posterior`: what each is run by, and for which arguments it has a use. A new one is a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.inference import exact, hmc, modes, tempering
from qposterior.inference.chains import HMCSettings
from qposterior.inference.cross_check import cross_checked, scouted
from qposterior.inference.problem import Problem
from qposterior.inference.smc import islands
from qposterior.weighted_draws import Posterior

Given = Mapping[str, Any]
"""The arguments of `posterior`, by name."""


def _exact(problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
    return exact.run(problem, rng, max_cells=given["max_cells"])


def _hmc(problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
    return hmc.run(problem, rng, given["settings"], progress_fn=given["progress_fn"])


def _tempering(problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
    sampled = tempering.run(problem, rng, given["settings"], progress_fn=given["progress_fn"])
    return sampled if problem.q_function else scouted(sampled, problem, rng, exchange=problem.noise.is_exact)


def _auto(problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
    """Temper where there is more than one mode to fear, or where the chains of hmc turn out to disagree."""
    method, facts = modes.choose_method(problem)
    if method == "hmc":
        sampled = _hmc(problem, rng, given)
        if sampled.trusted or not facts:
            return replace(sampled, diagnostics=sampled.diagnostics | facts)
        facts |= {"hmc_reliability_warning": sampled.reliability_warning}
    sampled = _tempering(problem, rng, given)
    return replace(sampled, diagnostics=sampled.diagnostics | facts)


def _smc(problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
    return scouted(islands.run(problem, rng, given["settings"]), problem, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way from a `Problem` to its posterior."""

    run_fn: Callable[[Problem, np.random.Generator, Given], Posterior]
    uses: tuple[str, ...]  # the arguments that not every method has a use for: given to another one they are refused
    settings_kind: type | None = None  # None: `run_fn` itself knows what its settings must be
    samples: bool = True  # an answer that was sampled is held against enumeration where that is in reach

    def run(self, problem: Problem, rng: np.random.Generator, given: Given) -> Posterior:
        """Return the posterior."""
        post = self.run_fn(problem, rng, given)
        # Enumeration knows tables whose rows are known.
        is_covered = self.samples and problem.q_function is None and problem.rows is None
        return cross_checked(post, problem) if is_covered else post


METHODS = {
    "auto": Method(run_fn=_auto, uses=("settings", "features", "progress_fn"), settings_kind=HMCSettings),
    "exact": Method(run_fn=_exact, uses=("max_cells",), samples=False),
    "hmc": Method(run_fn=_hmc, uses=("settings", "features", "progress_fn"), settings_kind=HMCSettings),
    "tempering": Method(run_fn=_tempering, uses=("settings", "features", "progress_fn"), settings_kind=HMCSettings),
    "smc": Method(run_fn=_smc, uses=("settings",)),
}
