"""The arguments of `posterior`: each is what it must be, all that are given are used, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qposterior.checks import check_callable, check_choice, check_count, check_numbers, check_type, lacking, shown
from qposterior.errors import InvalidInputError
from qposterior.inference.exact import MOST_CELLS
from qposterior.inference.problem import Problem
from qposterior.methods import METHODS
from qposterior.model.charts import CHARTS, LinearQ, Parts, QChart
from qposterior.model.noise import Likelihood, Tolerance, as_likelihood, check_noise
from qposterior.model.prior import check_prior, prior_to_dict, variable_of
from qposterior.model.rows import DirichletRows, Rows, SimulatedRows, SimulatorPool, TableRows, as_rows
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable

BY_HMC = ("auto", "hmc")
"""What may be hmc, and is where nothing else can be."""


def check_arguments(given: dict[str, Any]) -> None:
    """Raise for an argument of `posterior` that is not what it must be, or that nothing would look at."""
    _check_each(given)
    _check_all_are_used(given)


def to_problem(given: dict[str, Any]) -> Problem:
    """Return the problem that the checked arguments of `posterior` describe, under a prior on Q or on rewards."""
    prior, noise = given["prior"], given["noise"]
    likelihood: Likelihood = as_likelihood(
        Tolerance(tolerance=given["tolerance"], kernel=given["kernel"]) if noise is None else noise
    )
    seen, rows = _rows_of(given)
    described: dict[str, Any] = {"prior": prior_to_dict(prior), "tolerance": None, "kernel": None, "noise": None}
    described |= likelihood.describe() if noise is None else {"noise": likelihood.describe()}
    name = given["coordinates"]
    described |= {"coordinates": getattr(name, "__name__", str(name)), "observed": seen.num_observed}
    if rows is not None and variable_of(prior) == "q":
        described["transitions"] = type(rows).__name__
    return Problem(
        seen=seen,
        prior=prior,
        noise=likelihood,
        chart=_chart_of(given),
        rows=rows,
        q_function=None if given["features"] is None else _linear(given["features"], given),
        num_draws=given["particles"],
        described=described,
    )


def _chart_of(given: dict[str, Any]) -> Callable[[Parts], Any]:
    """Return the chart of the coordinates asked for; a linear Q has those of its weights."""
    if given["features"] is not None:
        return QChart
    asked = given["coordinates"]
    chart: Callable[[Parts], Any] = asked if callable(asked) else CHARTS[asked]
    return chart


def _linear(features: FloatArray, given: dict[str, Any]) -> LinearQ:
    """Return the linear Q of ``(K, F)`` features."""
    num_pairs = given["seen"].space.num_pairs
    features = np.asarray(features, dtype=float)
    if features.ndim != 2 or features.shape[0] != num_pairs or not np.isfinite(features).all():
        raise InvalidInputError(
            f"features must be finite, of shape ({num_pairs}, F): a row per pair; got {features.shape}"
        )
    return LinearQ(np.ascontiguousarray(features))


def _check_each(given: dict[str, Any]) -> None:
    """Raise where an argument of `posterior` is not what it must be, whatever the others are."""
    check_type("seen", given["seen"], Experience)
    check_prior(given["prior"])
    check_choice("method", given["method"], METHODS)
    if not callable(given["coordinates"]):
        check_choice("coordinate system", given["coordinates"], CHARTS)
    for name in ("particles", "max_cells"):
        check_count(name, given[name])
    if given["noise"] is not None:
        check_noise(given["noise"])
    transitions = given["transitions"]
    # A belief of one's own is bound to what was seen; so is a noise, which is none.
    if transitions is not None and (lacking(transitions, ["bind"]) or hasattr(transitions, "draw_log_scale")):
        check_type("transitions", transitions, TransitionTable, DirichletRows, SimulatedRows, SimulatorPool, str)
    if given["progress_fn"] is not None:
        check_callable("progress_fn", given["progress_fn"])
    observed = given["seen"].num_observed
    if np.shape(check_numbers("tolerance", given["tolerance"])) not in ((), (observed,)):
        raise InvalidInputError(
            f"tolerance must be one number, or one for each of the {observed} pairs seen, got "
            f"{shown(given['tolerance'])}"
        )
    if given["features"] is not None:
        check_numbers("features", given["features"])


def _check_all_are_used(given: dict[str, Any]) -> None:
    """Raise for an argument that was given and that nothing on the way to this posterior would look at."""
    method, coordinates, kernel = given["method"], given["coordinates"], given["kernel"]
    is_given = {name: given[name] is not None for name in ("settings", "features", "progress_fn")}
    is_given["max_cells"] = given["max_cells"] != MOST_CELLS
    for name in is_given:
        if is_given[name] and name not in METHODS[method].uses:
            users = " and ".join(each for each, other in METHODS.items() if name in other.uses and each != "auto")
            raise InvalidInputError(f"{name} is for method {users}, not for {method!r}; leave it out")
    if is_given["features"] and callable(coordinates):
        raise InvalidInputError("a linear Q (features=) has coordinates of its own, its weights; leave coordinates out")
    is_tolerant = bool(np.any(given["tolerance"]))
    if given["noise"] is not None and is_tolerant:
        raise InvalidInputError("noise and a tolerance exclude each other; leave one out")
    if given["noise"] is not None and kernel != "gaussian":
        raise InvalidInputError(f"a kernel belongs to a tolerance, not to noise; leave kernel={shown(kernel)} out")
    if kernel == "uniform" and not is_tolerant:
        raise InvalidInputError('kernel="uniform" needs a positive tolerance: tolerance 0 has no kernel')
    variable = variable_of(given["prior"])
    if variable == "model":
        defaults = {"tolerance": 0.0, "coordinates": "bellman", "kernel": "gaussian"}
        if method not in BY_HMC:
            raise InvalidInputError("method is for a prior on Q, not for a ModelPrior; leave it out")
        others = {name: given[name] for name in ("noise", "features", "settings", "progress_fn")}
        for name, value in (defaults | dict.fromkeys(others)).items():
            if np.ndim(given[name]) or given[name] != value:
                raise InvalidInputError(f"{name} is for a prior on Q, not for a ModelPrior; leave it out")
        if given["transitions"] not in (None, "dirichlet", "empirical"):
            raise InvalidInputError('with a ModelPrior transitions are "dirichlet" (drawn) or "empirical"')
        return
    if variable == "reward":
        if method not in BY_HMC or coordinates != "bellman":
            raise InvalidInputError(
                f"a RewardPrior has its own way and coordinates; leave out method={method!r}, {coordinates=}"
            )
        for name in ("features", "progress_fn"):
            if is_given[name]:
                raise InvalidInputError(f"{name} is for a prior on Q, not for a RewardPrior; leave it out")


def _rows_of(given: dict[str, Any]) -> tuple[Experience, Rows | None]:
    """Return the experience with the rows that are known, and what is believed of the rows if it does not have them."""
    seen, is_on_rewards = given["seen"], variable_of(given["prior"]) == "reward"
    rows = as_rows(given["transitions"], seen)
    known_fn = getattr(rows, "known_in", None)
    if known_fn is None:
        if is_on_rewards:
            raise InvalidInputError("a RewardPrior needs rows that are known: pass transitions=mdp.transitions")
        if given["method"] not in BY_HMC or given["coordinates"] != "bellman":
            raise InvalidInputError('unknown transitions are drawn with Q by method="hmc" in Bellman coordinates')
        if given["features"] is not None:
            raise InvalidInputError('a linear Q (features=) takes rows that are known, such as transitions="empirical"')
        return seen, rows
    if not is_on_rewards:
        return known_fn(seen), None
    if not isinstance(rows, TableRows):
        raise InvalidInputError("RewardPrior needs the rows of all pairs: pass transitions=mdp.transitions")
    return seen, rows
