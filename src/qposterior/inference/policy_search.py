"""The search for a policy that is best over draws of the model, by its mean value or that of the worst draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from qposterior.checks import check_type
from qposterior.errors import InvalidInputError
from qposterior.model.solve_models import ModelSolver, solve_models
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.space import TIE, StateActionSpace

MOST_SINGLES = 8
"""States that a pass of improvement tries one by one after all prefixes of its list have failed."""

MOST_TRIALS, FEWEST_TRIALS, MOST_WORK, SLOPE_TRIALS = 300, 3, 2 * 10**8, 2
"""Changes that are tried in all, by the number of draws times edges: a few in the largest problems. To find which ones
are promising takes as long as so many of them."""

CAUTIOUS_ROUNDS = 10
"""Rounds in which a cautious policy may still leave the usual action of a state; afterwards it only returns to it."""

GREEDY, MEAN_MODEL = "greedy", "mean model"
LAST = float(np.finfo(np.float64).min)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicySearch:
    """Scores policies by a measure of risk over some draws, and looks for better ones."""

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
            self._known[key] = start_values(self.solver, policy, self.start, draws=self.draws)
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


def start_values(solver: ModelSolver, policy: FloatArray, start: FloatArray, *, draws: IntArray) -> FloatArray:
    """Return ``(D,)`` Σ_s start(s) V^π(s) in the models of these numbers; −inf where the policy never ends."""
    begins = np.flatnonzero(start)
    blocks = [(block[:, begins] * start[begins]).sum(axis=1) for block in solver.value_blocks(policy, draws)]
    values: FloatArray = np.concatenate(blocks)
    return np.where(np.isnan(values), -np.inf, values)


def _taking(space: StateActionSpace, actions: IntArray) -> FloatArray:
    """Return ``(K,)`` probabilities of the policy that takes an action in each state, −1 at goals."""
    policy = np.zeros(space.num_pairs)
    policy[space.pair_index[space.deciding_states, actions[space.deciding_states]]] = 1.0
    return policy
