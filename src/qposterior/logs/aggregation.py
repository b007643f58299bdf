r"""What it costs that all numbers within a bin count as one state: the error of aggregation, as a band.

What is reported of the shown bins is compared with three others: coarser bins, finer ones, and none at all, which is
fitted Q evaluation of the same policy on the numbers themselves (Le, Voloshin and Yue 2019). The largest difference is
the band b: of a value, of the advantage of an action over the one to take, and of the gain. Each draw of a posterior is
moved by the whole band, up or down with equal chances: an interval becomes longer by about b on either side, and
P(best) is no surer than the band allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.inference.policies import Policies, PolicyValue
from qposterior.logs.binning import FittedValues
from qposterior.logs.bins import Bins
from qposterior.logs.checks import Check
from qposterior.logs.choices import LogProblem
from qposterior.logs.columns import numbered
from qposterior.logs.read import Log
from qposterior.model.solve_models import ModelSolver, logged_policy
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import FloatArray, sum_by

if TYPE_CHECKING:
    from qposterior.world.space import StateActionSpace

MORE_LIKELY = 0.5
"""P(best) of another action, in coarser or finer bins, from which on these advise otherwise."""

LEFT_OPEN = 2.0
"""By which the difference to finer bins, or to none, of the values of policies is multiplied. An error that falls by
half where bins are twice as many is twice the difference to the finer ones, and as large as that to the coarser ones.
Fitted values are learned from the same rows and smooth as well: in simulations they closed about half of the gap.
Advantages needed no factor."""

LEAF = 3
"""Rows of the leaves of fitted values: what varies between them averages out over a bin."""

MOST_NAMED = 3
FEW, NOTHING = 1e-9, 1e-300
"""Rows that a bin counts as in which nothing was decided, and what is divided by where there is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """A fit of the same log with coarser or finer bins."""

    num_bins: int
    chosen: LogProblem
    posterior: Posterior


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """What a comparison says of the pairs and policies that are shown."""

    left_open: float  # by which what values of policies differ by is less than the error
    q: FloatArray  # (K,)  of taking an action and going on with the recommended policy
    recommended: float  # values of the start
    logged: float
    prob_best: FloatArray  # (K,)  0 where nothing is drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Aggregation:
    """The band of each number, and where other bins advise otherwise."""

    value: FloatArray  # (K,)
    advantage: FloatArray  # (K,)  over the action to take
    logged: float
    gain: float
    compared: list[str]  # with how many bins
    otherwise: list[str]  # states in which coarser or finer bins advise another action
    bins: Bins

    def moved(self, policies: Policies) -> Policies:
        """Return the values of policies with the bands of the logged one and of the gain."""
        signs = _signs((policies.optimum.size, 2), seed=1)
        of_all = self.logged * signs[:, 0]
        of_gain = of_all + self.gain * signs[:, 1]

        def moved(one: PolicyValue, error: FloatArray) -> PolicyValue:
            return replace(one, values=one.values + error)

        return replace(
            policies,
            recommended=moved(policies.recommended, of_gain),
            logged=moved(policies.logged, of_all),
            given=tuple(moved(one, of_gain) for one in policies.given),
            optimum=policies.optimum + of_gain,
        )

    def believed(self, posterior: Posterior) -> Posterior:
        """Return the posterior whose draws have the bands of advantages."""
        return replace(posterior, draws=posterior.draws + self.advantage * _signs(posterior.draws.shape, seed=2))

    def values(self, q: FloatArray) -> FloatArray:
        """Return ``(R, K)`` values with their bands: an error that draws have in common moves all actions alike."""
        return q + self.value * _signs((len(q), 1), seed=3)

    def check(self) -> Check:
        """Return what was compared, and where the advice depends on the bins."""
        bins = self.bins
        note = (
            f"states are {bins.shown} bins of {', '.join(bins.names)}: by comparison with "
            f"{' and with '.join(self.compared)}, that brings an error of up to {self.gain:.3g} into the gain and of "
            f"up to {self.logged:.3g} into the value of the logged policy; intervals are longer by the error on either "
            "side, and P(best) is less sure"
        )
        if self.otherwise:
            named = "; ".join(f"“{label}”" for label in self.otherwise[:MOST_NAMED])
            more = f", … ({len(self.otherwise)} in all)" if len(self.otherwise) > MOST_NAMED else ""
            note += f"; coarser or finer bins advise another action in {named}{more}: rely on the advice there less"
        return Check(name="bins", fits=not self.otherwise, note=note)

    def to_dict(self, chosen: LogProblem) -> dict[str, Any]:
        """Return plain data."""
        space = chosen.seen.space
        pairs = zip(space.pair_state.tolist(), space.pair_action.tolist(), strict=True)
        return {
            "gain_band": self.gain,
            "logged_band": self.logged,
            "bands": [
                {
                    "state": chosen.states[s],
                    "action": chosen.actions[a],
                    "value": float(self.value[k]),
                    "advantage": float(self.advantage[k]),
                }
                for k, (s, a) in enumerate(pairs)
            ],
            "otherwise": self.otherwise,
        }


def aggregation_of(shown: Level, others: Sequence[Level], policies: Policies, log: Log) -> Aggregation:
    """Return the bands of what is shown, by coarser and finer bins and by the sample of the finest log."""
    recommended, bins = policies.recommended.probabilities, log.bins
    assert bins is not None
    space, chosen = shown.posterior.space, shown.chosen
    own, *levels = (_of_level(shown, level, recommended, log) for level in (shown, *others))
    best = space.greedy(recommended)
    taken = np.where(space.is_goal[space.pair_state], 0, space.pair_index[space.pair_state, best[space.pair_state]])
    compared = [own, *levels, *_without_bins(own, shown, recommended, log)]

    def band(number_fn: Callable[[Compared], Any], *, left_open: bool = False) -> Any:
        gaps = [np.abs(number_fn(one) - number_fn(own)) * (one.left_open if left_open else 1.0) for one in compared]
        return np.max(gaps, axis=0)

    of_logged = float(band(lambda one: one.logged, left_open=True))
    of_gain = float(band(lambda one: one.recommended - one.logged, left_open=True))
    likely = np.max([np.zeros(space.num_pairs), *(one.prob_best for one in levels)], axis=0)
    rivals = (likely > MORE_LIKELY) & (taken != np.arange(space.num_pairs)) & chosen.seen.observed
    return Aggregation(
        # After the action the recommended policy is followed: no less is left open than of its value.
        value=np.maximum(band(lambda one: one.q, left_open=True), of_logged + of_gain),
        advantage=band(lambda one: one.q - one.q[taken]),
        logged=of_logged,
        gain=of_gain,
        compared=[*(f"{level.num_bins} bins" for level in others), "none"],
        otherwise=[chosen.states[s] for s in dict.fromkeys(space.pair_state[rivals].tolist())],
        bins=bins,
    )


def _of_level(shown: Level, level: Level, recommended: FloatArray, log: Log) -> Compared:
    """Return what other bins say of the recommended policy, which is carried over to them."""
    weights = _overlap(shown, level, log)
    ours, space, models = shown.posterior.space, level.posterior.space, level.posterior.models
    assert models is not None
    columns = _same_actions(level.chosen, shown.chosen)
    carried = (weights.T @ _table(ours, recommended))[:, columns]
    policy = _normalised(space, carried[space.pair_state, space.pair_action])
    logged = logged_policy(space, level.chosen.seen.count.astype(float))
    solver, start = ModelSolver(models), level.chosen.start
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), NOTHING)

    def brought(table: FloatArray) -> FloatArray:
        """Return numbers of the pairs of the level as those of the pairs that are shown."""
        full = np.zeros((space.num_states, len(shown.chosen.actions)))
        full[:, columns] = table
        return np.asarray((share @ full)[ours.pair_state, ours.pair_action])

    q = np.concatenate(list(solver.action_value_blocks(policy))).mean(axis=0)
    return Compared(
        left_open=1.0 if level.num_bins < shown.num_bins else LEFT_OPEN,
        q=brought(_table(space, q)),
        recommended=float((solver.values(policy) @ start).mean()),
        logged=float((solver.values(logged) @ start).mean()),
        prob_best=brought(level.posterior.prob_optimal_table()),
    )


def _overlap(shown: Level, level: Level, log: Log) -> FloatArray:
    """Return ``(S, S')`` how many rows of each state that is shown lie in each state of a level."""
    assert log.bins is not None
    ours, theirs = numbered(shown.chosen.states), numbered(level.chosen.states)
    to_ours, to_theirs = (log.bins.joined(one.num_bins) for one in (shown, level))
    rows = sum_by(log.pairs[:, 0], log.count, len(log.states))
    overlap = np.zeros((len(ours), len(theirs)))
    for label, number in zip(log.states, rows.tolist(), strict=True):
        overlap[ours[to_ours.get(label, label)], theirs[to_theirs.get(label, label)]] += max(number, FEW)
    return overlap


def _same_actions(one: LogProblem, other: LogProblem) -> list[int]:
    """Return where the actions of one problem stand in another: at the end where there are none."""
    places = numbered(other.actions)
    return [places.get(action, len(other.actions) - 1) for action in one.actions]


def _table(space: StateActionSpace, values: FloatArray) -> FloatArray:
    """Return ``(S, A)`` numbers of pairs, 0 where there is none."""
    table = np.zeros((space.num_states, space.num_actions))
    table[space.pair_state, space.pair_action] = values
    return table


def _normalised(space: StateActionSpace, weights: FloatArray) -> FloatArray:
    """Return ``(K,)`` probabilities, all alike in a state where nothing is known of them."""
    total = sum_by(space.pair_state, weights, space.num_states)[space.pair_state]
    number = np.diff(space.first_pair)[space.pair_state]
    return np.asarray(np.where(total > 0.0, weights / np.where(total > 0.0, total, 1.0), 1.0 / number))


def _without_bins(own: Compared, shown: Level, recommended: FloatArray, log: Log) -> Iterator[Compared]:
    """Yield what fitted Q evaluation says of the policies, over the numbers of the rows of a sample."""
    sample, bins, chosen, space = log.sample, log.bins, shown.chosen, shown.posterior.space
    assert bins is not None
    assert sample is not None
    known = numbered(chosen.states)
    state_of = np.full(2 * bins.finer, -1)
    for node in bins.nodes(bins.shown):
        state_of[node] = known.get(bins.label(node), -1)
    here, there = (state_of[bins.find(x, bins.shown)] for x in (sample.x, sample.following))
    kept = np.flatnonzero((here >= 0) & ((there >= 0) | sample.ended))
    rows, here, there = sample.part(kept), here[kept], there[kept]
    if not here.size:
        return
    actions = [numbered(chosen.actions)[sample.labels[a]] for a in np.unique(rows.action)]
    number = np.bincount(here, minlength=space.num_states)
    means, values = list[FloatArray](), list[float]()
    for policy in (recommended, logged_policy(space, chosen.seen.count.astype(float))):
        table = _table(space, policy)[:, actions]
        fitted = FittedValues(rows, chosen.discount, np.random.default_rng(0), after=table[there], leaf=LEAF)
        mean = np.stack([sum_by(here, q, space.num_states) for q in fitted.of(rows.x).T], axis=1)
        mean /= np.maximum(number, 1)[:, None]
        means.append(mean)
        values.append(float(chosen.start @ (table * mean).sum(axis=1)))
    full = np.zeros((space.num_states, space.num_actions))
    full[:, actions] = means[0]
    is_known = (number > 0)[:, None] & np.isin(np.arange(space.num_actions), actions)
    at = space.pair_state, space.pair_action
    q = np.where(is_known[at], full[at], own.q)
    yield Compared(
        left_open=LEFT_OPEN, q=q, recommended=values[0], logged=values[1], prob_best=np.zeros(space.num_pairs)
    )


def _signs(shape: tuple[int, ...], seed: int) -> FloatArray:
    """Return −1 and 1, of each as many along the first axis (and 0 where one is left over), in an order of chance."""
    half = np.linspace(-1.0, 1.0, shape[0]) if shape[0] > 1 else np.zeros(shape[0])
    signs = np.broadcast_to(np.sign(half)[:, None], (shape[0], int(np.prod(shape[1:]))))
    return np.asarray(np.random.default_rng(seed).permuted(signs, axis=0).reshape(shape))
