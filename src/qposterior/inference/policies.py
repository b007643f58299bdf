"""What policies are worth under draws of the model: the recommended one, the logged one, any other.

The largest of several uncertain values is too large on average, so a policy that was chosen because it looks best among
some draws must be valued on others. Draws come in two halves: on one the policy is chosen, on the other all are valued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from qposterior.checks import check_count, check_mask, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.inference.policy_search import GREEDY, MEAN_MODEL, PolicySearch, Risk, start_values
from qposterior.model.solve_models import ModelSolver, check_policy, solve_models
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.mdp import initial_distribution
from qposterior.world.models import ModelDraws
from qposterior.world.space import TIE, StateActionSpace

LEVEL = 0.90
MOST_JUDGED, FEWEST_JUDGED = 30_000_000, 12
"""Draws times edges that policies are compared on, and the fewest draws: beyond 30,000 edges not all that choose."""

VALUE_TOLERANCE = 1e-7
"""Of values in large components, relative to their spread: far below what is uncertain about them."""

RECOMMENDED, LOGGED = "recommended", "logged"
OUR_NAMES = (RECOMMENDED, LOGGED, GREEDY, MEAN_MODEL)
"""Names that a policy of the user's own cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyValue:
    """A policy and its value at the start, over the draws that had no part in choosing it."""

    name: str
    probabilities: FloatArray  # (K,)
    values: FloatArray  # (R,)  −inf in models in which the policy never ends (discount 1)

    @property
    def mean(self) -> float:
        """The posterior mean of its value."""
        return float(self.values.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The central 90 % interval of its value."""
        return central_interval(self.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policies:
    """The recommended policy, the logged one and those given, valued under the same draws of the model."""

    recommended: PolicyValue
    logged: PolicyValue
    given: tuple[PolicyValue, ...]
    optimum: FloatArray  # (R,)  V* at the start: an upper bound, biased upwards by the maximum over uncertain values
    origin: str  # the candidate that the recommended policy was improved from
    num_changes: int  # states in which it differs from that candidate
    num_choosing: int  # draws on which it was chosen

    @property
    def gain(self) -> FloatArray:
        """``(R,)`` value of the recommended policy less that of the logged one."""
        return self.gain_of(self.recommended)

    @property
    def prob_better(self) -> float:
        """P(the recommended policy is better than the logged one)."""
        return float(np.mean(self.gain > 0.0))

    def gain_of(self, policy: PolicyValue) -> FloatArray:
        """Return ``(R,)`` the value of a policy less that of the logged one; differences of rounding are 0."""
        a, b = policy.values, self.logged.values
        with np.errstate(invalid="ignore"):  # −inf less −inf
            return np.where((a == b) | (np.abs(a - b) <= TIE * np.fmin(np.abs(a), np.abs(b))), 0.0, a - b)

    def to_dict(self) -> dict[str, Any]:
        """Return means and 90 % intervals as plain data; None stands for a value that is not finite."""
        return {
            RECOMMENDED: {"value": _summary(self.recommended.values)},
            LOGGED: {"value": _summary(self.logged.values)},
            "gain": self._gain_dict(self.recommended),
            "optimum": {"value": _summary(self.optimum)},
            "given": {one.name: {"value": _summary(one.values), "gain": self._gain_dict(one)} for one in self.given},
            "origin": self.origin,
            "num_changes": self.num_changes,
            "num_draws": {"choosing": self.num_choosing, "reporting": int(self.optimum.size)},
        }

    def _gain_dict(self, policy: PolicyValue) -> dict[str, Any]:
        gain = self.gain_of(policy)
        return {"value": _summary(gain), "prob_better": float(np.mean(gain > 0.0))}


def recommend(
    models: ModelDraws,
    *,
    start: FloatArray,
    logged: FloatArray,
    q: FloatArray | None = None,
    half: BoolArray | None = None,
    given: Mapping[str, FloatArray] | None = None,
    risk: str = "mean",
    cautious: float | None = None,
    allowed: BoolArray | None = None,
) -> Policies:
    """Return the recommended policy and the values of it, of the logged policy and of those given.

    Candidates are the greedy policy of E Q*, the optimum of the mean model, the ``(K,)`` `logged` policy and the
    `given` ones. The best of them by `risk` over the draws of the `half` that chooses is improved by changes in single
    states (`Judge.improved`): the exact optimum over many models is NP-hard. `cautious`, a probability, leaves the most
    frequent logged action of a state only where another one is better with that probability. All are valued on the
    other half. `half` is True for draws that choose; those of Markov chains must be split within each chain
    (`first_halves`), by default the draws count as independent and the first half chooses. `q` is ``(D, K)`` Q* of the
    draws as `solve_models` returns it, where it is at hand: models without a solution, nan there, are left out.
    `allowed` is a ``(K,)`` mask of the pairs that may be recommended, by default all.
    """
    check_type("models", models, ModelDraws)
    space, measure = models.space, Risk.parse(risk)
    logged = check_policy(space, logged)
    others = {check_name(name): check_policy(space, policy) for name, policy in (given or {}).items()}
    start = initial_distribution(start, space.is_goal)
    solver = ModelSolver(models, VALUE_TOLERANCE)
    if q is None:
        q = solve_models(models).q
    optimum = _start_optimum(models, q, start)
    chooses = _choosing(half, np.isfinite(optimum))
    search = PolicySearch(
        solver=solver,
        start=start,
        draws=_evenly(np.flatnonzero(chooses & np.isfinite(optimum)), MOST_JUDGED // models.num_edges),
        risk=measure,
        allowed=_allowed(space, allowed),
    )
    candidates = {LOGGED: logged, **search.candidates(q), **others}
    origin = max(candidates, key=lambda name: search.score(candidates[name]))  # the first of equals: the logged one
    policy = search.improved(candidates[origin])
    if cautious is not None:
        policy = search.cautious(policy, logged, check_number("cautious", cautious, "(0, 1)"))
        if search.score(policy) <= search.score(logged):
            policy, origin = logged, LOGGED
    reporting = np.flatnonzero(~chooses & np.isfinite(optimum))
    reported = {RECOMMENDED: policy, LOGGED: logged, **others}
    recommended, as_logged, *rest = (
        PolicyValue(name=name, probabilities=one, values=start_values(solver, one, start, draws=reporting))
        for name, one in reported.items()
    )
    changed = np.abs(policy - candidates[origin]) > 0.0
    return Policies(
        recommended=recommended,
        logged=as_logged,
        given=tuple(rest),
        optimum=optimum[reporting],
        origin=origin,
        num_changes=int(np.unique(space.pair_state[changed]).size),
        num_choosing=search.draws.size,
    )


def _evenly(draws: IntArray, most: int) -> IntArray:
    """Return at most so many of the draws, evenly spread, but `FEWEST_JUDGED` where there are as many."""
    number = min(draws.size, max(most, FEWEST_JUDGED))
    return draws[np.linspace(0, draws.size - 1, number).round().astype(np.int64)]


def check_name(name: str) -> str:
    """Return the name of a policy of the user's own, or say why it cannot be called that."""
    check_type("name of a policy", name, str)
    if not name.strip() or not name.isprintable() or name in OUR_NAMES:
        taken = ", ".join(map(repr, OUR_NAMES))
        raise InvalidInputError(f"a policy needs a printable name other than {taken}, got {name!r}; rename it")
    return name


def first_halves(num_draws: int, num_chains: int) -> BoolArray:
    """Return the ``(D,)`` mask of the first half of each of some chains of equal length, whose draws follow each other.

    Alternate draws of a chain resemble each other: a policy chosen on one of them would look as good on the next.
    """
    check_count("num_chains", num_chains)
    if check_count("num_draws", num_draws) % num_chains:
        raise InvalidInputError(f"{num_draws} draws cannot come from {num_chains} chains of equal length")
    length = num_draws // num_chains
    return np.tile(np.arange(length) < (length + 1) // 2, num_chains)


def _allowed(space: StateActionSpace, allowed: BoolArray | None) -> BoolArray:
    """Return the mask of the pairs that may be recommended; in a state without one all may."""
    if allowed is None:
        return np.ones(space.num_pairs, dtype=np.bool_)
    mask = check_mask("allowed", allowed, (space.num_pairs,))
    none = np.bincount(space.pair_state, mask, minlength=space.num_states) == 0
    return np.asarray(mask | none[space.pair_state])


def _choosing(half: BoolArray | None, solved: BoolArray) -> BoolArray:
    """Return the mask of the draws that choose; both halves must have models with a solution."""
    chooses = first_halves(solved.size, 1) if half is None else check_mask("half", half, solved.shape)
    if not np.any(chooses & solved) or not np.any(~chooses & solved):
        raise InvalidInputError(
            f"each half needs a model that has a solution; {int(np.sum(chooses & solved))} of {int(np.sum(chooses))} "
            f"draws that choose and {int(np.sum(~chooses & solved))} of {int(np.sum(~chooses))} others have one "
            "(take more draws, or a discount below 1)"
        )
    return chooses


def _start_optimum(models: ModelDraws, q: FloatArray, start: FloatArray) -> FloatArray:
    """Return ``(D,)`` V* at the start, nan in models without a solution."""
    begins = np.flatnonzero(start)
    if q.shape != (models.num_draws, models.space.num_pairs):
        raise InvalidInputError(
            f"q must have shape {(models.num_draws, models.space.num_pairs)}, a row for each model, got {q.shape}"
        )
    blocks = [models.space.maximum(np.asarray(q[block], dtype=np.float64))[:, begins] for block in models.blocks()]
    return np.asarray((np.concatenate(blocks) * start[begins]).sum(axis=1))


def central_interval(values: FloatArray) -> tuple[float, float]:
    """Return the 5 % and the 95 % quantile; values may be −inf."""
    # Between two values of −inf nothing can be interpolated.
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    low, high = np.quantile(values, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], method=method)
    return float(low), float(high)


def _summary(values: FloatArray) -> list[float | None]:
    """Return mean, 5 % and 95 % quantile."""
    return [number if np.isfinite(number) else None for number in (float(values.mean()), *central_interval(values))]
