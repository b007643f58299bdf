"""What policies are worth under draws of the model: the recommended one, the logged one, any other.

The largest of several uncertain values is too large on average, so a policy that was chosen because it looks best among
some draws must be valued on others. Draws come in two halves: on one the policy is chosen, on the other all are valued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from qposterior.checks import check_count, check_mask, check_number, check_type
from qposterior.errors import InvalidInputError
from qposterior.model.solve_models import ModelSolver, check_policy, solve_models
from qposterior.model.solve_models import logged_policy as logged_policy
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.mdp import initial_distribution
from qposterior.world.models import ModelDraws
from qposterior.world.space import TIE, StateActionSpace

LEVEL = 0.90
MOST_SINGLES = 8
"""States that a pass of improvement tries one by one after all prefixes of its list have failed."""

MOST_TRIALS, FEWEST_TRIALS, MOST_WORK, SLOPE_TRIALS = 300, 3, 2 * 10**8, 2
"""Changes that are tried in all, by the number of draws times edges: a few in the largest problems. To find which ones
are promising takes as long as so many of them."""

MOST_JUDGED, FEWEST_JUDGED = 30_000_000, 12
"""Draws times edges that policies are compared on, and the fewest draws: beyond 30,000 edges not all that choose."""

VALUE_TOLERANCE = 1e-7
"""Of values in large components, relative to their spread: far below what is uncertain about them."""

CAUTIOUS_ROUNDS = 10
"""Rounds in which a cautious policy may still leave the usual action of a state; afterwards it only returns to it."""

LAST = float(np.finfo(np.float64).min)
RECOMMENDED, LOGGED, GREEDY, MEAN_MODEL = "recommended", "logged", "greedy", "mean model"
OUR_NAMES = (RECOMMENDED, LOGGED, GREEDY, MEAN_MODEL)
"""Names that a policy of the user's own cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """What is to be large: the mean value over the draws, or the mean over the worst share of them (CVaR)."""

    share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the risk that "mean" or "cvar:0.1" stands for."""
        check_type("risk", text, str)
        kind, _, share = text.partition(":")
        try:
            number = 1.0 if text == "mean" else float(share)
        except ValueError:
            number = np.nan
        if (text != "mean" and kind != "cvar") or not 0.0 < number <= 1.0:
            raise InvalidInputError(
                f'risk must be "mean", or "cvar:" and a share of the draws in (0, 1] as in "cvar:0.1", got {text!r}'
            )
        return cls(share=number)

    def weights(self, values: FloatArray) -> FloatArray:
        """Return ``(D,)`` weights that sum to 1: equal ones for the worst share of the values, 0 for the others."""
        most = max(1.0, self.share * values.size)
        rank = np.empty(values.size)
        rank[np.argsort(values, kind="stable")] = np.arange(values.size)
        return np.asarray(np.clip(most - rank, 0.0, 1.0) / most)

    def score(self, values: FloatArray) -> float:
        """Return the weighted mean, −inf where a draw that counts has no value."""
        weights = self.weights(values)
        return float(np.sum(weights[weights > 0.0] * values[weights > 0.0]))


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
    usual = check_policy(space, logged)
    others = {check_name(name): check_policy(space, policy) for name, policy in (given or {}).items()}
    begin = initial_distribution(start, space.is_goal)
    solver = ModelSolver(models, VALUE_TOLERANCE)
    if q is None:
        q = solve_models(models).q
    optimum = _start_optimum(models, q, begin)
    chooses = _choosing(half, np.isfinite(optimum))
    judge = Judge(
        solver=solver,
        start=begin,
        draws=_evenly(np.flatnonzero(chooses & np.isfinite(optimum)), MOST_JUDGED // models.num_edges),
        risk=measure,
        allowed=_allowed(space, allowed),
    )
    candidates = {LOGGED: usual, **judge.candidates(q), **others}
    origin = max(candidates, key=lambda name: judge.score(candidates[name]))  # the first of equals: the logged one
    policy = judge.improved(candidates[origin])
    if cautious is not None:
        policy = judge.cautious(policy, usual, check_number("cautious", cautious, "(0, 1)"))
        if judge.score(policy) <= judge.score(usual):
            policy, origin = usual, LOGGED
    reporting = np.flatnonzero(~chooses & np.isfinite(optimum))

    def valued(name: str, probabilities: FloatArray) -> PolicyValue:
        return PolicyValue(
            name=name, probabilities=probabilities, values=start_values(solver, probabilities, begin, reporting)
        )

    changed = np.abs(policy - candidates[origin]) > 0.0
    return Policies(
        recommended=valued(RECOMMENDED, policy),
        logged=valued(LOGGED, usual),
        given=tuple(valued(name, one) for name, one in others.items()),
        optimum=optimum[reporting],
        origin=origin,
        num_changes=int(np.unique(space.pair_state[changed]).size),
        num_choosing=judge.draws.size,
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


def start_values(solver: ModelSolver, policy: FloatArray, start: FloatArray, draws: IntArray) -> FloatArray:
    """Return ``(D,)`` Σ_s start(s) V^π(s) in the models of these numbers; −inf where the policy never ends."""
    begins = np.flatnonzero(start)
    blocks = [(block[:, begins] * start[begins]).sum(axis=1) for block in solver.value_blocks(policy, draws)]
    values: FloatArray = np.concatenate(blocks)
    return np.where(np.isnan(values), -np.inf, values)


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Scores policies by a measure of risk over some draws, and searches for better ones."""

    solver: ModelSolver
    start: FloatArray  # (S,)
    draws: IntArray  # the numbers of the draws that choose
    risk: Risk
    allowed: BoolArray  # (K,)  pairs that may be taken

    @property
    def space(self) -> StateActionSpace:
        """The states and actions of the models."""
        return self.solver.models.space

    @cached_property
    def _known(self) -> dict[bytes, FloatArray]:
        return {}

    def values(self, policy: FloatArray) -> FloatArray:
        """Return ``(D,)`` values at the start; those of a policy that was just valued are kept."""
        key = policy.tobytes()
        if key not in self._known:
            while len(self._known) >= 8:
                self._known.pop(next(iter(self._known)))
            self._known[key] = start_values(self.solver, policy, self.start, self.draws)
        return self._known[key]

    def score(self, policy: FloatArray) -> float:
        """Return the mean, or the mean of the worst, of a policy's values."""
        return self.risk.score(self.values(policy))

    def candidates(self, q: FloatArray) -> dict[str, FloatArray]:
        """Return the greedy policy of E Q* and the optimum of the mean model."""
        total = np.zeros(self.space.num_pairs)
        for block in self.solver.models.blocks(self.draws):
            total += q[block].sum(axis=0, dtype=np.float64)
        found = {GREEDY: self._best(total / self.draws.size)}
        mean = solve_models(self.solver.models.mean(self.draws))
        if mean.num_unsolved == 0:
            found[MEAN_MODEL] = self._best(mean.q[0])
        return found

    def _best(self, values: FloatArray) -> FloatArray:
        """Return the policy that takes the best allowed pair of each state, the first of equals."""
        return self.space.optimal_share(self._lowered(values), "lowest")

    def _lowered(self, values: FloatArray) -> FloatArray:
        """Return the values with those of pairs that are not allowed below all others."""
        return np.where(self.allowed, values, values.min() - np.ptp(values) - 1.0)

    def improved(self, policy: FloatArray) -> FloatArray:
        """Return a policy that changes in single states improve no further, as far as `MOST_TRIALS` go.

        A pass ranks states by the slope of the score towards their best action (`ModelSolver.slopes`), then tries these
        changes, each time by valuing the changed policy in all draws: all of them at once, the better half, a quarter,
        … down to the best one, then a few others one by one. The first that raises the score is kept, and the next pass
        begins. So a pass costs a number of evaluations that grows only with the logarithm of the number of states.
        """
        score, work = self.score(policy), self.draws.size * self.solver.models.num_edges
        trials = int(np.clip(MOST_WORK / work, FEWEST_TRIALS, MOST_TRIALS))
        while (better := self._first_better(policy, score, trials)) is not None:
            policy, used = better
            score, trials = self.score(policy), max(trials - used - SLOPE_TRIALS, 0)
        return policy

    def _first_better(self, policy: FloatArray, score: float, trials: int) -> tuple[FloatArray, int] | None:
        """Return the first of so many changed policies that raises the score, and how many were tried."""
        for number, changed in enumerate(self._changes(policy) if trials else (), start=1):
            if self.score(changed) > score + TIE * abs(score):
                return changed, number
            if number == trials:
                break
        return None

    def _changes(self, policy: FloatArray) -> Iterator[FloatArray]:
        """Yield changed policies, the most promising ones first."""
        space = self.space
        values = self.values(policy)
        slope = self.solver.slopes(policy, self.start, self.risk.weights(values), self.draws)
        order = np.argsort(-slope, kind="stable")
        order = order[self.allowed[order] & (policy[order] < 1.0)]
        rising = order[slope[order] > TIE * np.abs(values[np.isfinite(values)]).max(initial=0.0)]
        _, first = np.unique(space.pair_state[rising], return_index=True)  # the best pair of each state
        best = rising[np.sort(first)]
        number = best.size
        while number >= 1:
            yield self._with(policy, best[:number])
            number //= 2
        # A slope is that of a small change: a whole one may raise the score where the slope is slightly negative.
        for pair in order[~np.isin(order, best[:1])][:MOST_SINGLES]:
            yield self._with(policy, pair[None])

    def _with(self, policy: FloatArray, pairs: IntArray) -> FloatArray:
        """Return the policy that takes these pairs in their states."""
        state = self.space.pair_state
        changed = np.where(np.isin(state, state[pairs]), 0.0, policy)
        changed[pairs] = 1.0
        return changed

    def cautious(self, policy: FloatArray, logged: FloatArray, level: float) -> FloatArray:
        """Return the policy with the usual, that is most frequent, action wherever no other is surely better.

        An action is surely better in a state where P(Q^π(s, a) > Q^π(s, usual)) ≥ `level`, π being the policy that is
        returned: it is found by repetition. The policy's own action is preferred, then that of largest mean. States in
        which the policy is the logged one stay as they are.
        """
        space = self.space
        differs = np.bincount(space.pair_state, policy != logged, minlength=space.num_states) > 0.0
        usual = space.optimal_share(logged, "lowest")
        for number in range(CAUTIOUS_ROUNDS + space.num_states):
            better, mean = self._compared_to(usual, policy)
            surely = self.allowed & (better >= level) & ((policy == 1.0) | (number < CAUTIOUS_ROUNDS))
            rank = np.select([surely & (policy == 1.0), surely, usual == 1.0], [np.inf, mean, LAST], -np.inf)
            following = np.where(differs[space.pair_state], _taking(space, space.greedy(rank)), policy)
            if np.array_equal(following, policy):
                break
            policy = following
        return policy

    def _compared_to(self, usual: FloatArray, policy: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ``(K,)`` P(Q^π(s, a) > Q^π(s, usual)) and the means of Q^π."""
        space = self.space
        reference = np.empty(space.num_states, dtype=np.int64)
        reference[space.pair_state[usual == 1.0]] = np.flatnonzero(usual == 1.0)
        better, total = np.zeros(space.num_pairs), np.zeros(space.num_pairs)
        for q in self.solver.action_value_blocks(policy, self.draws):
            better += np.sum(q > q[:, reference[space.pair_state]], axis=0)
            total += q.sum(axis=0)
        return better / self.draws.size, total / self.draws.size


def _allowed(space: StateActionSpace, allowed: BoolArray | None) -> BoolArray:
    """Return the mask of the pairs that may be recommended; in a state without one all may."""
    if allowed is None:
        return np.ones(space.num_pairs, dtype=np.bool_)
    mask = check_mask("allowed", allowed, (space.num_pairs,))
    none = np.bincount(space.pair_state, mask, minlength=space.num_states) == 0
    return np.asarray(mask | none[space.pair_state])


def _taking(space: StateActionSpace, actions: IntArray) -> FloatArray:
    """Return ``(K,)`` probabilities of the policy that takes an action in each state, −1 at goals."""
    policy = np.zeros(space.num_pairs)
    policy[space.pair_index[space.deciding_states, actions[space.deciding_states]]] = 1.0
    return policy


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
