"""What a log is taken to mean: goals, rewards, transitions, discount, prior. Inferred where not given, and reported."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.logs.columns import LogError, canonical_label, folded, quoted
from qposterior.logs.discount import discount_of
from qposterior.logs.read import Log
from qposterior.logs.settings import FitSettings
from qposterior.model.model_prior import ModelPrior
from qposterior.model.noise import Noise
from qposterior.model.prior import GaussianPrior, prior_to_dict
from qposterior.renamed import renamed
from qposterior.world.arrays import BoolArray, FloatArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import steps_to

UNKNOWN_ACTION = "(nothing tried)"
MOST_NAMED = 8
"""Columns that were not read, by name in a sentence."""

STAND_INS = ("-", "--", "?", ".", "unknown", "missing", "undefined", "notavailable", "k.a.", "tbd")
"""What may stand for a cell that says nothing, folded; a label like any other unless one says so."""

METHOD_WORDS = {
    "model": "rewards and transitions are learned, the actions of a state by comparison with each other, and each draw "
    "of them is solved",
    "q": "Q is drawn under a prior on Q itself",
    "bootstrap": "the log is drawn anew many times and each is solved: a bootstrap, for comparison, which finds gains "
    "that do not exist",
}
PRIOR_WIDTH = 2.0


@dataclass(kw_only=True)
class LogProblem:
    """A log as a problem: the experience, how to treat it, and the sentences that say what was chosen and why."""

    seen: Experience
    states: list[str]
    actions: list[str]
    rewards: str
    transitions: str
    discount: float
    method: str
    prior: Any  # on Q or on the model, as `method` says; None for a bootstrap
    noise: Noise | None
    start: FloatArray  # (S,)  where episodes begin
    risk: str = "mean"
    cautious: float | None = None
    notes: list[str] = field(default_factory=list)
    untried: list[tuple[str, str]] = field(default_factory=list)  # (state, action) that were never tried
    words = renamed("words", "notes")

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return {
            "rewards": self.rewards,
            "transitions": self.transitions,
            "discount": self.discount,
            "method": self.method,
            "prior": None if self.prior is None else prior_to_dict(self.prior),
            "risk": self.risk,
            "cautious": self.cautious,
            "noise": None if self.noise is None else {"kind": self.noise.kind, "scale": self.noise.scale},
            "states": len(self.states),
            "actions": len(self.actions),
            "goals": [self.states[s] for s in self.seen.space.goals],
        }


def choose(log: Log, settings: FitSettings, *, path: object = "log") -> LogProblem:
    """Return the problem that a log stands for: what the settings leave out is inferred, each by a rule below."""
    method = settings.chosen_method
    notes = [
        *log.notes,
        *_slips("states", log.states),
        *_slips("actions", log.actions),
        *_stand_ins("states", log.states),
        *_stand_ins("actions", log.actions),
        *_gaps(log),
        *_unread_columns(log),
    ]
    is_goal, why = _goals(log, settings, path)
    notes += [*why, METHOD_WORDS[method]]
    rewards, why = _rewards(log, settings, path)
    notes += why
    transitions, why = _transitions(log, settings, path)
    notes += why
    discount = settings.discount
    if discount is None:
        discount, reason = discount_of(log, is_goal)
        notes.append(reason)
    elif discount < 1.0:
        notes.append(f"what comes a step later counts {discount:g} times as much, as was told (--discount)")
    noise, prior = settings.noise, settings.prior
    if method == "q":
        noise = noise or (_noise_prior(log) if rewards == "noisy" else None)
        if prior is None:
            prior, reason = _prior_on_q(log, is_goal, discount)
            notes.append(reason)
    elif method == "model":
        prior = prior or ModelPrior()
    which = settings.actions or ("all" if method == "model" else "seen")
    tried, actions = _tried(log, is_goal, which)
    space = StateActionSpace.from_mask(
        tried if which == "seen" else np.repeat(~is_goal[:, None], len(actions), axis=1), is_goal, discount=discount
    )
    untried = _untried(log, tried, is_goal)
    if untried and which == "all" and settings.actions is None:
        notes.append(
            f"{_pairs(len(untried))} never tried, although the action was elsewhere: what it does is predicted from "
            "the other actions of the state, and it is never recommended (--actions seen leaves it out)"
        )
    return LogProblem(
        seen=_experience(log, space, rewards=rewards, transitions=transitions),
        states=log.states,
        actions=actions,
        rewards=rewards,
        transitions=transitions,
        discount=discount,
        method=method,
        prior=prior,
        noise=noise,
        start=_start(log, is_goal),
        risk=settings.risk,
        cautious=settings.cautious,
        notes=notes,
        untried=untried,
    )


def _slips(kind: str, labels: list[str]) -> Iterator[str]:
    """Yield a warning for each group of labels that differ only in case or blanks."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(folded(label), []).append(label)
    for group in groups.values():
        if len(group) > 1:
            names = " and ".join(quoted(label) for label in group[:3])
            yield (
                f"the {kind} {names} differ only in case or blanks: they are kept apart; if one of them is a slip, "
                "--normalise takes them for one"
            )


def _stand_ins(kind: str, labels: list[str]) -> Iterator[str]:
    """Yield a warning of labels that say that there is none."""
    found = [label for label in labels if folded(label) in STAND_INS]
    if found:
        names = ", ".join(map(quoted, found))
        yield (
            f"the {kind} {names} were read as labels like any other: if they stand for missing cells, leave such rows "
            f"out with --missing drop --na {shlex.quote(','.join(found))}"
        )


def _gaps(log: Log) -> Iterator[str]:
    """Yield a warning of rows that are not where the row before them led."""
    if log.num_gaps:
        yield (
            f"{log.num_gaps:,} rows begin elsewhere than the row before them ended, in the same episode: each counts "
            "as the start of another; are rows missing or out of order?"
        )
    if log.num_returns:
        yield (
            f"{log.num_returns:,} rows go on with an episode after rows of others: each counts as the start of another "
            "episode; order the rows by episode, or let --next-from ID,ORDER build their successors"
        )


def _unread_columns(log: Log) -> Iterator[str]:
    """Yield a warning of columns that were not read."""
    if log.unread:
        names = ", ".join(map(quoted, log.unread[:MOST_NAMED])) + (", …" if len(log.unread) > MOST_NAMED else "")
        yield (
            f"columns that were not read: {names}; where one says that an episode has ended, which episode it was or "
            "how much a row counts, name it with --column terminated=, episode= or weight="
        )


def _goals(log: Log, settings: FitSettings, path: object) -> tuple[BoolArray, list[str]]:
    """Return ``(S,)`` the goals: named, or where episodes terminated, or where nothing was ever decided."""
    is_goal, why = np.zeros(len(log.states), dtype=bool), []
    if settings.goals:
        for label in settings.goals:
            if canonical_label(label) not in log.states:
                raise LogError(path, f"the goal {quoted(label)} does not occur in the log")
            is_goal[log.states.index(canonical_label(label))] = True
    elif log.has_terminated:
        is_goal[list(log.ended)] = True
        why = ["there are no goals: no episode terminated"]
        if is_goal.any():
            why = [f"goals are {_states(int(is_goal.sum()))} in which episodes terminated"]
    else:
        is_goal = ~log.acting
        why = ["there are no goals: no state in which nothing was decided"]
        if is_goal.any():
            names = ", ".join(log.states[s] for s in np.flatnonzero(is_goal)[:5])
            why = [
                f"goals are {_states(int(is_goal.sum()))} in which nothing was decided ({names}); name them with "
                "--goal if that is wrong"
            ]
    acts = np.flatnonzero(is_goal & log.acting)
    if acts.size:
        k = int(np.flatnonzero(log.pairs[:, 0] == acts[0])[0])
        raise LogError(
            path,
            f"the goal {log.states[acts[0]]!r} acts; a goal ends an episode (where an episode has ended, write a next "
            "state of its own, such as end; or name goals with --goal)",
            int(log.first_row[k]),
        )
    if not log.acting.any():
        raise LogError(path, "nothing was decided in any state")
    return is_goal, why


def _rewards(log: Log, settings: FitSettings, path: object) -> tuple[str, list[str]]:
    """Return how rewards are taken: deterministic where every pair paid the same whenever it was tried."""
    if settings.rewards is None and not log.has_constant_rewards:
        return "noisy", ["rewards are taken as noisy: some pairs paid differently from time to time"]
    if settings.rewards is None:
        again = int(np.sum(log.count > 1))
        why = f"all {again} pairs that were tried more than once paid the same each time"
        why = why if again else "no pair was tried more than once, so that nothing speaks against it (or for it)"
        return "deterministic", [f"rewards are taken as deterministic: {why}"]
    if settings.rewards == "deterministic" and not log.has_constant_rewards:
        k = int(np.argmax(log.reward_high - log.reward_low))
        raise LogError(
            path,
            f"{_pair(log, k)} has paid both {log.reward_low[k]:g} and {log.reward_high[k]:g}; a deterministic reward "
            "has one value (use --rewards noisy)",
        )
    return settings.rewards, []


def _transitions(log: Log, settings: FitSettings, path: object) -> tuple[str, list[str]]:
    """Return how transitions are taken: deterministic where every pair led to one place only."""
    if settings.transitions is None and not log.is_deterministic:
        return "dirichlet", ["some actions led to several places, so transitions are unknown and drawn (dirichlet)"]
    if settings.transitions is None:
        return "deterministic", ["every action led to one place only, so transitions are taken as deterministic"]
    if settings.transitions == "deterministic" and not log.is_deterministic:
        pair, times = np.unique(log.moves[:, 0], return_counts=True)
        raise LogError(
            path,
            f"{_pair(log, pair[np.argmax(times > 1)])} has led to several states; transitions are not deterministic "
            "(use --transitions dirichlet)",
        )
    return settings.transitions, []


def _noise_prior(log: Log) -> Noise:
    """Return Gaussian noise whose scale is learned: its prior is centred on the spread within pairs, and wide."""
    spread = np.sqrt(log.reward_deviation.sum() / max(float(np.maximum(log.count - 1.0, 0.0).sum()), 1.0))
    overall = float(np.ptp(np.concatenate([log.reward_low, log.reward_high])))
    return Noise(log_scale_mean=float(np.log(max(spread, 1e-3 * overall) or 1.0)), log_scale_sd=1.0)


def _prior_on_q(log: Log, is_goal: BoolArray, discount: float) -> tuple[GaussianPrior, str]:
    """Return a prior as wide as twice the largest reward times the steps that a decision can matter for, and why.

    Without a discount: the rows of an episode, or the longest of the shortest ways to a goal, if that is more (a
    shuffled log has no episodes to speak of).
    """
    largest = float(np.max(np.abs(np.concatenate([log.reward_low, log.reward_high]))))
    steps = min(1.0 / (1.0 - discount), log.num_rows) if discount < 1.0 else log.num_rows / max(log.num_episodes, 1)
    if discount == 1.0 and is_goal.any():
        steps = max(steps, _longest_way(log, is_goal))
    scale = PRIOR_WIDTH * (largest or 1.0) * max(steps, 1.0)  # where nothing was ever paid any unit will do
    why = (
        f"before any data Q is taken to be 0 ± {scale:.3g}: {PRIOR_WIDTH:g} times the largest reward ({largest:.3g}) "
        f"times {max(steps, 1.0):.3g} steps"
    )
    return GaussianPrior(scale=scale), why


def _longest_way(log: Log, is_goal: BoolArray) -> float:
    """Return the most steps that any state is away from its nearest goal, over moves that were seen."""
    from scipy.sparse import coo_array

    source, target = log.pairs[log.moves[:, 0], 0], log.moves[:, 1]
    graph = coo_array((np.ones(source.size), (source, target)), shape=(is_goal.size, is_goal.size))
    away = steps_to(graph.tocsr(), np.flatnonzero(is_goal))
    return float(np.max(away[np.isfinite(away)]))


def _tried(log: Log, is_goal: BoolArray, which: str) -> tuple[BoolArray, list[str]]:
    """Return ``(S, A)`` what was tried, and the labels of the actions.

    Where only actions that were `seen` are open, a state in which nothing was gets one that stands for all.
    """
    tried, labels = np.zeros((len(log.states), len(log.actions)), dtype=bool), list(log.actions)
    tried[log.pairs[:, 0], log.pairs[:, 1]] = True
    dead = ~is_goal & ~log.acting
    if dead.any() and which == "seen":
        return np.column_stack([tried, dead]), [*labels, UNKNOWN_ACTION]
    return tried, labels


def _untried(log: Log, tried: BoolArray, is_goal: BoolArray) -> list[tuple[str, str]]:
    """Return the labels of all pairs of a state that is no goal and an action of the log that were never tried."""
    never = np.argwhere(~tried[:, : len(log.actions)] & ~is_goal[:, None])
    return [(log.states[s], log.actions[a]) for s, a in never]


def _experience(log: Log, space: StateActionSpace, *, rewards: str, transitions: str) -> Experience:
    """Return the sums of a log as an experience."""
    index = space.pair_index[log.pairs[:, 0], log.pairs[:, 1]]
    return Experience.from_sums(
        space,
        pair=index,
        count=log.count,
        reward_mean=log.reward_mean,
        reward_deviation=log.reward_deviation,
        move_pair=index[log.moves[:, 0]],
        move_state=log.moves[:, 1],
        move_count=log.move_count,
        transitions="revealed" if transitions == "deterministic" else "counted",
        rewards=rewards,
        reward_third=log.reward_third,
        reward_fourth=log.reward_fourth,
        reward_low=log.reward_low,
        reward_high=log.reward_high,
        move_reward=log.move_reward,
        readings=None if log.readings is None else {int(index[k]): kept for k, kept in log.readings.items()},
    )


def _start(log: Log, is_goal: BoolArray) -> FloatArray:
    """Return ``(S,)`` where the episodes of the log begin; all states alike where that is not known."""
    start = np.zeros(len(log.states))
    start[list(log.starts)] = list(log.starts.values())
    start[is_goal] = 0.0
    if start.sum() > 0.0:
        return np.asarray(start / start.sum())
    return np.where(is_goal, 0.0, 1.0) / max(int((~is_goal).sum()), 1)


def _pair(log: Log, k: int) -> str:
    """Return the labels of a pair."""
    state, action = log.pairs[k]
    return f"state {log.states[state]!r}, action {log.actions[action]!r}"


def _pairs(number: int) -> str:
    return "one pair of state and action was" if number == 1 else f"{number:,} pairs of state and action were"


def _states(number: int) -> str:
    return "the one state" if number == 1 else f"the {number} states"
