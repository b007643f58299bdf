"""What a log is taken to mean: goals, rewards, transitions, discount, prior. Chosen from the data, said aloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.logs.columns import LogError, canonical_label, quoted
from qposterior.logs.read import Log
from qposterior.logs.settings import FitSettings
from qposterior.model.model_prior import ModelPrior
from qposterior.model.noise import Noise
from qposterior.model.prior import BoundedPrior, GaussianPrior, prior_to_dict
from qposterior.world.arrays import BoolArray, FloatArray
from qposterior.world.experience import Experience
from qposterior.world.mdp import FiniteMDP
from qposterior.world.solve import check_uniqueness, solve
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import steps_to

DISCOUNT = 0.99
MOST_CHECKED_STATES = 3000
"""States up to which it is found out whether an undiscounted answer exists: with random rows that takes seconds."""

LONG, MOST_STEPS = 10.0, 10_000
"""Episodes that last so many times as long as those of the log are not what the log is about."""

UNKNOWN_ACTION = "(nothing tried)"
WORDS = {
    "model": "rewards and transitions are learned, the actions of a state by comparison with each other, and each draw "
    "of them is solved",
    "q": "Q is drawn under a prior on Q itself",
    "bootstrap": "the log is drawn anew many times and each is solved: a bootstrap, for comparison, which finds gains "
    "that do not exist",
}
PRIOR_WIDTH = 2.0


@dataclass(kw_only=True)
class Chosen:
    """A log as a problem: the experience, how to treat it, and the sentences that say what was chosen and why."""

    seen: Experience
    states: list[str]
    actions: list[str]
    rewards: str
    transitions: str
    discount: float
    method: str
    prior: GaussianPrior | BoundedPrior | ModelPrior | None
    noise: Noise | None
    start: FloatArray  # (S,)  where episodes begin
    risk: str = "mean"
    cautious: float | None = None
    words: list[str] = field(default_factory=list)
    untried: list[tuple[str, str]] = field(default_factory=list)  # (state, action) that were never tried

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


def choose(log: Log, settings: FitSettings, *, path: object = "log") -> Chosen:
    """Return the problem that a log stands for."""
    words = [*_alike("states", log.states), *_alike("actions", log.actions)]
    if log.unread:
        names = ", ".join(map(quoted, log.unread[:8])) + (", …" if len(log.unread) > 8 else "")
        words.append(
            f"columns that were not read: {names}; where one says that an episode has ended, which episode it was or "
            "how much a row counts, name it with --column terminated=, episode= or weight="
        )
    is_goal = _goals(log, settings, path, words)
    method = settings.chosen_method
    words.append(WORDS[method])
    rewards = settings.rewards or ("deterministic" if log.has_constant_rewards else "noisy")
    if settings.rewards is None:
        again = int(np.sum(log.count > 1))
        why = "some pairs paid differently from time to time"
        if rewards == "deterministic":
            why = f"all {again} pairs that were tried more than once paid the same each time"
            why = why if again else "no pair was tried more than once, so that nothing speaks against it (or for it)"
        words.append(f"rewards are taken as {rewards}: {why}")
    if rewards == "deterministic" and not log.has_constant_rewards:
        k = int(np.argmax(log.reward_high - log.reward_low))
        state, action = log.pairs[k]
        raise LogError(
            path,
            f"state {log.states[state]!r}, action {log.actions[action]!r} has paid both {log.reward_low[k]:g} and "
            f"{log.reward_high[k]:g}; a deterministic reward has one value (use --rewards noisy)",
        )
    transitions = settings.transitions or ("deterministic" if log.is_deterministic else "dirichlet")
    if settings.transitions is None:
        words.append(
            "every action led to one place only, so transitions are taken as deterministic"
            if transitions == "deterministic"
            else "some actions led to several places, so transitions are unknown and drawn (dirichlet)"
        )
    if transitions == "deterministic" and not log.is_deterministic:
        pair, times = np.unique(log.moves[:, 0], return_counts=True)
        state, action = log.pairs[pair[np.argmax(times > 1)]]
        raise LogError(
            path,
            f"state {log.states[state]!r}, action {log.actions[action]!r} has led to several states; transitions are "
            f"not "
            "deterministic (use --transitions dirichlet)",
        )
    discount = settings.discount if settings.discount is not None else _discount(log, is_goal, words)
    noise, prior = settings.noise, settings.prior
    if method == "q":
        noise = noise or (_noise_prior(log) if rewards == "noisy" else None)
        prior = prior or GaussianPrior(scale=_prior_scale(log, is_goal, discount, words))
    elif method == "model":
        prior = prior or ModelPrior()
    which = settings.actions or ("all" if method == "model" else "seen")
    seen, untried, actions = _experience(log, is_goal, rewards, transitions, discount, which)
    if untried and which == "all" and settings.actions is None:
        words.append(
            f"{_pairs(len(untried))} never tried, although the action was elsewhere: what it does is predicted from "
            "the other actions of the state, and it is never recommended (--actions seen leaves it out)"
        )
    start = np.zeros(len(log.states))
    for state, number in log.starts.items():
        start[state] += number
    start[is_goal] = 0.0
    start = start / start.sum() if start.sum() > 0.0 else np.where(is_goal, 0.0, 1.0) / max(int((~is_goal).sum()), 1)
    return Chosen(
        seen=seen,
        states=log.states,
        actions=actions,
        rewards=rewards,
        transitions=transitions,
        discount=discount,
        method=method,
        prior=prior,
        noise=noise,
        start=start,
        risk=settings.risk,
        cautious=settings.cautious,
        words=words,
        untried=untried,
    )


def _alike(kind: str, labels: list[str]) -> Iterator[str]:
    """Yield a warning for each group of labels that differ only in case or blanks."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault("".join(label.split()).casefold(), []).append(label)
    for group in groups.values():
        if len(group) > 1:
            names = " and ".join(quoted(label) for label in group[:3])
            yield f"the {kind} {names} differ only in case or blanks: they are kept apart; is one of them a slip?"


def _goals(log: Log, settings: FitSettings, path: object, words: list[str]) -> BoolArray:
    """Return ``(S,)`` the goals: named, or where episodes terminated, or where nothing was ever decided."""
    is_goal = np.zeros(len(log.states), dtype=bool)
    if settings.goals:
        for label in settings.goals:
            if canonical_label(label) not in log.states:
                raise LogError(path, f"the goal {quoted(label)} does not occur in the log")
            is_goal[log.states.index(canonical_label(label))] = True
    elif log.has_terminated:
        is_goal[list(log.ended)] = True
        words.append(
            f"goals are {_states(int(is_goal.sum()))} in which episodes terminated"
            if is_goal.any()
            else "there are no goals: no episode terminated"
        )
    else:
        is_goal = ~log.acting
        names = ", ".join(log.states[s] for s in np.flatnonzero(is_goal)[:5])
        words.append(
            f"goals are {_states(int(is_goal.sum()))} in which nothing was decided ({names}); name them with --goal "
            f"if "
            "that is wrong"
            if is_goal.any()
            else "there are no goals: no state in which nothing was decided"
        )
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
    return is_goal


def _pairs(number: int) -> str:
    return "one pair of state and action was" if number == 1 else f"{number:,} pairs of state and action were"


def _states(number: int) -> str:
    return "the one state" if number == 1 else f"the {number} states"


def _discount(log: Log, is_goal: BoolArray, words: list[str]) -> float:
    """Return 1 where the log has goals and no loop that survives, else 0.99."""
    if not is_goal.any():
        words.append(f"there are no goals, so the future is discounted by {DISCOUNT}")
        return DISCOUNT
    if len(log.states) > MOST_CHECKED_STATES:
        words.append(
            f"there are many states, so the future is discounted by {DISCOUNT} without a look at whether every episode "
            "must end; use --discount 1 if it must"
        )
        return DISCOUNT
    problem = _mean_problem(log, is_goal)
    holds = check_uniqueness(problem)
    if holds.proper_policy_exists and holds.improper_policies_lose:
        if not _would_go_on(log, problem):
            words.append("every state leads on to a goal and no loop pays, so there is no discount")
            return 1.0
        words.append(
            f"the future is discounted by {DISCOUNT}: the best decisions put the end off, to far beyond the length of "
            "the episodes of the log"
        )
        return DISCOUNT
    words.append(
        f"the future is discounted by {DISCOUNT}: "
        + ("one could circle for ever without losing" if holds.proper_policy_exists else "some states lead to no goal")
    )
    return DISCOUNT


def _would_go_on(log: Log, problem: FiniteMDP) -> bool:
    """Return whether the optimum of the mean problem mostly lasts `LONG` times as long as the log's episodes."""
    space = problem.space
    policy = solve(problem).policy
    states = space.deciding_states
    rows = problem.transitions.select(space.pair_index[states, policy[states]]).matrix.T
    reached = np.zeros(space.num_states)
    for state, number in log.starts.items():
        reached[state] += number
    reached[space.is_goal] = 0.0
    begun = reached.sum()
    for _ in range(min(int(LONG * log.num_rows / max(log.num_episodes, 1)), MOST_STEPS)):
        reached = np.asarray(rows @ reached[states])
        reached[space.is_goal] = 0.0
    return bool(reached.sum() > 0.5 * begun)


def _mean_problem(log: Log, is_goal: BoolArray) -> FiniteMDP:
    """Return the problem in which frequencies are rows and means are rewards; dead ends get a free way out."""
    total = np.bincount(log.moves[:, 0], log.move_count, minlength=log.pairs.shape[0])
    edges = [
        (int(log.pairs[p, 0]), int(log.pairs[p, 1]), int(s), float(c / total[p]), float(log.reward_mean[p]))
        for (p, s), c in zip(log.moves.tolist(), log.move_count.tolist(), strict=True)
        if c > 0.0
    ]
    goal = int(np.flatnonzero(is_goal)[0])
    dead = np.flatnonzero(~is_goal & ~log.acting)
    edges += [(int(s), 0, goal, 1.0, 0.0) for s in dead]
    return FiniteMDP.from_edges(edges, goal=np.flatnonzero(is_goal).tolist())


def _noise_prior(log: Log) -> Noise:
    """Return Gaussian noise whose scale is learned: its prior is centred on the spread within pairs, and wide."""
    spread = np.sqrt(log.reward_deviation.sum() / max(float(np.maximum(log.count - 1.0, 0.0).sum()), 1.0))
    overall = float(np.ptp(np.concatenate([log.reward_low, log.reward_high])))
    return Noise(log_scale_mean=float(np.log(max(spread, 1e-3 * overall) or 1.0)), log_scale_sd=1.0)


def _prior_scale(log: Log, is_goal: BoolArray, discount: float, words: list[str]) -> float:
    """Return twice the largest reward times the steps that a decision can matter for.

    Without a discount: the rows of an episode, or the longest of the shortest ways to a goal, if that is more (a
    shuffled log has no episodes to speak of).
    """
    largest = float(np.max(np.abs(np.concatenate([log.reward_low, log.reward_high]))))
    steps = min(1.0 / (1.0 - discount), log.num_rows) if discount < 1.0 else log.num_rows / max(log.num_episodes, 1)
    if discount == 1.0 and is_goal.any():
        steps = max(steps, _longest_way(log, is_goal))
    scale = PRIOR_WIDTH * (largest or 1.0) * max(steps, 1.0)  # where nothing was ever paid any unit will do
    words.append(
        f"before any data Q is taken to be 0 ± {scale:.3g}: {PRIOR_WIDTH:g} times the largest reward ({largest:.3g}) "
        f"times {max(steps, 1.0):.3g} steps"
    )
    return scale


def _longest_way(log: Log, is_goal: BoolArray) -> float:
    """Return the most steps that any state is away from its nearest goal, over moves that were seen."""
    from scipy.sparse import coo_array

    source, target = log.pairs[log.moves[:, 0], 0], log.moves[:, 1]
    graph = coo_array((np.ones(source.size), (source, target)), shape=(is_goal.size, is_goal.size))
    away = steps_to(graph.tocsr(), np.flatnonzero(is_goal))
    return float(np.max(away[np.isfinite(away)]))


def _experience(
    log: Log, is_goal: BoolArray, rewards: str, transitions: str, discount: float, actions: str
) -> tuple[Experience, list[tuple[str, str]], list[str]]:
    """Return the log as an experience over its states and actions, with what was never tried."""
    size = (len(log.states), len(log.actions))
    tried = np.zeros(size, dtype=bool)
    tried[log.pairs[:, 0], log.pairs[:, 1]] = True
    dead = ~is_goal & ~log.acting
    labels = list(log.actions)
    if dead.any() and actions == "seen":
        labels.append(UNKNOWN_ACTION)
        tried = np.column_stack([tried, dead])
    mask = tried if actions == "seen" else np.broadcast_to(~is_goal[:, None], tried.shape)
    space = StateActionSpace.from_mask(np.ascontiguousarray(mask), is_goal, discount=discount)
    untried = [
        (log.states[s], log.actions[a])
        for s, a in np.argwhere(~tried[:, : len(log.actions)] & ~is_goal[:, None] & (log.acting | dead)[:, None])
    ]
    index = space.pair_index[log.pairs[:, 0], log.pairs[:, 1]]
    seen = Experience.from_sums(
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
    return seen, untried, labels
