"""`posterior(...)`: from what was seen to what is known of Q*, by any method, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from qposterior.arguments import check_arguments, to_problem
from qposterior.checks import check_settings_kind, make_rng
from qposterior.errors import name_states
from qposterior.inference import conjugate, model_draws
from qposterior.inference.chains import HMCSettings
from qposterior.inference.exact import MOST_CELLS
from qposterior.inference.problem import Problem
from qposterior.inference.smc.annealed import AnnealedSettings
from qposterior.inference.smc.one_look import OneLookSettings
from qposterior.methods import METHODS
from qposterior.model.charts import Parts
from qposterior.model.free_loops import free_loop
from qposterior.model.model_prior import ModelPrior
from qposterior.model.noise import Noise, NoiseModel
from qposterior.model.prior import GaussianPrior, Prior, RewardPrior, variable_of
from qposterior.model.rows import Rows, SimulatorPool
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable


def posterior(
    seen: Experience,
    *,
    prior: Prior | RewardPrior | ModelPrior | None = None,
    tolerance: float | FloatArray = 0.0,
    method: str = "auto",
    coordinates: str | Callable[[Parts], Any] = "bellman",
    particles: int = 1000,
    seed: Any = 0,
    kernel: str = "gaussian",
    noise: Noise | NoiseModel | None = None,
    transitions: TransitionTable | Rows | SimulatorPool | str | None = None,
    features: FloatArray | None = None,
    settings: HMCSettings | AnnealedSettings | OneLookSettings | None = None,
    max_cells: int = MOST_CELLS,
    progress_fn: Callable[[int, int], None] | None = None,
) -> Posterior:
    """Return the posterior of Q* given an experience.

    - `prior`: `GaussianPrior` (default), `BoundedPrior`, or `RewardPrior` (needs `transitions`, the rows of all pairs).
      A prior of one's own is any object with the two methods of `qposterior.Prior`; hmc, tempering and smc take it.
      A `ModelPrior` draws models and solves each: it takes `particles`, `seed`, and "empirical" transitions.
    - `tolerance`: ε of deterministic rewards (0 = exact), with `kernel` "gaussian" or "uniform". `noise`: a `Noise` for
      rewards that are readings around a mean, or one's own (`qposterior.NoiseModel`); then there is no tolerance.
    - `method`: "exact" (enumeration of policy cells), "hmc", "tempering" (over tolerances; at tolerance 0 over the
      feedback of what was seen), "smc" (sequential: at tolerance 0 one pair after the other with exact weights; at a
      positive tolerance, or with noise, the paper's annealed sampler). "auto" is tempering where feedback can be
      tempered and there is more than one mode to fear (`inference.modes`), or where the chains of hmc turn out to
      disagree; else hmc. `Posterior.method` says which it was.
    - `coordinates`: "bellman" (support: proper policies) or "q" (the paper's, all of R^K; needs a positive tolerance
      unless exact), or a chart of one's own (`qposterior.model.charts`). `features` ``(K, F)`` asks for a Q that is
      linear in them, in Q coordinates.
    - `transitions`: of counted successors, how their unknown rows are treated: "dirichlet" (default; or a
      `DirichletRows`) draws them jointly with Q, a `SimulatedRows` takes fresh ones from a simulator, a
      `SimulatorPool` those of a pool that grows with the data, "empirical" takes the frequencies for the rows (biased:
      they are treated as known). A table, such as `mdp.transitions`: the rows of all pairs are known, whatever was
      counted (a `RewardPrior` needs it).
    - `particles`: how many draws are returned, whatever the method. `seed`: an int, a SeedSequence or a Generator.
    - `settings`: an `HMCSettings` for hmc and tempering; an `AnnealedSettings` or `OneLookSettings` for smc.
      `max_cells` is the limit of exact, `progress_fn` gets (iterations done, most) of the chains.

    An argument that the chosen way has no use for is an error.
    """
    prior = GaussianPrior() if prior is None else prior
    given = dict(locals())
    check_arguments(given)
    rng = make_rng(seed)
    if settings is not None and (kind := METHODS[method].settings_kind) is not None:
        check_settings_kind(settings, kind)
    variable = variable_of(prior)
    if variable == "model":
        seen = seen.with_frequencies() if transitions == "empirical" else seen
        return _announced(model_draws.run(seen, given["prior"], particles, rng))
    problem = to_problem(given)
    if variable == "reward":
        return _announced(conjugate.run(problem, rng, given["settings"]))
    _warn_of_free_loops(problem)
    return _announced(METHODS[method].run(problem, rng, given))


def _warn_of_free_loops(problem: Problem) -> None:
    loop = free_loop(problem.seen, problem.prior)
    if loop.size:
        warnings.warn(
            f"one can circle in {name_states(np.unique(problem.space.pair_state[loop]))} for ever at a reward of about "
            "0: with a Gaussian prior on Q and a discount below 1 such a loop is almost surely 'optimal'; use discount "
            "1, a step cost, or RewardPrior",
            RuntimeWarning,
            stacklevel=3,
        )


def _announced(post: Posterior) -> Posterior:
    """Return the posterior, with a warning where it is not to be trusted."""
    if not post.trusted:
        warnings.warn(f"do not trust these draws: {post.reliability_warning}", RuntimeWarning, stacklevel=3)
    return post
