"""The discount of a log that names none: 1 where every episode must end, else 0.99."""

from __future__ import annotations

import numpy as np

from qposterior.logs.read import Log
from qposterior.world.arrays import BoolArray
from qposterior.world.mdp import FiniteMDP
from qposterior.world.solve import check_uniqueness, solve

DISCOUNT = 0.99
MOST_CHECKED_STATES = 3000
"""States up to which it is found out whether an undiscounted answer exists: with random rows that takes seconds."""

LONG, MOST_STEPS = 10.0, 10_000
"""Episodes that last so many times as long as those of the log are not what the log is about."""


def discount_of(log: Log, is_goal: BoolArray) -> tuple[float, str]:
    """Return the discount and why: 1 where the log has goals and no loop that survives."""
    discounted = f"the future is discounted by {DISCOUNT}"
    if not is_goal.any():
        return DISCOUNT, f"there are no goals, so {discounted}"
    if len(log.states) > MOST_CHECKED_STATES:
        return DISCOUNT, (
            f"there are many states, so {discounted} without a look at whether every episode must end; "
            "use --discount 1 if it must"
        )
    problem = mean_problem(log, is_goal)
    holds = check_uniqueness(problem)
    if not holds.proper_policy_exists:
        return DISCOUNT, f"{discounted}: some states lead to no goal"
    if not holds.improper_policies_lose:
        return DISCOUNT, f"{discounted}: one could circle for ever without losing"
    if _would_go_on(log, problem):
        return DISCOUNT, (
            f"{discounted}: the best decisions put the end off, to far beyond the length of the episodes of the log"
        )
    return 1.0, "every state leads on to a goal and no loop pays, so there is no discount"


def mean_problem(log: Log, is_goal: BoolArray) -> FiniteMDP:
    """Return the problem in which frequencies are rows and means are rewards; dead ends get a free way out."""
    total = np.bincount(log.moves[:, 0], log.move_count, minlength=log.pairs.shape[0])
    edges = [
        (int(log.pairs[p, 0]), int(log.pairs[p, 1]), int(s), float(c / total[p]), float(log.reward_mean[p]))
        for (p, s), c in zip(log.moves.tolist(), log.move_count.tolist(), strict=True)
        if c > 0.0
    ]
    goal = int(np.flatnonzero(is_goal)[0])
    edges += [(int(s), 0, goal, 1.0, 0.0) for s in np.flatnonzero(~is_goal & ~log.acting)]
    return FiniteMDP.from_edges(edges, goal=np.flatnonzero(is_goal).tolist())


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
