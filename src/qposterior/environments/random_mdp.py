"""Random MDPs for tests and studies."""

from __future__ import annotations

import numpy as np

from qposterior.checks import check_count, make_rng
from qposterior.world.mdp import Edge, FiniteMDP


def random_mdp(
    num_states: int = 5,
    num_actions: int = 2,
    *,
    acyclic: bool = False,
    branching: int = 3,
    discount: float = 1.0,
    seed: int = 0,
) -> FiniteMDP:
    """Return a random MDP with Dirichlet(1) rows over `branching` successors and one goal, the last state.

    Rewards are −|N(0, 1)| − 0.1, so that every loop loses. ``acyclic=True``: a state leads only to later states.
    Otherwise every row gives the goal a share, so that every policy is proper.
    """
    check_count("num_states", num_states, 2)
    check_count("num_actions", num_actions)
    check_count("branching", branching)
    rng = make_rng(seed)
    goal = num_states - 1
    edges: list[Edge] = []
    for state in range(goal):
        for action in range(num_actions):
            candidates = np.arange(state + 1 if acyclic else 0, num_states)
            number = min(branching, candidates.size)
            successors = np.sort(rng.choice(candidates, size=number, replace=False))
            if not acyclic and goal not in successors:
                successors[-1] = goal
            reward = -abs(rng.standard_normal()) - 0.1
            row = rng.dirichlet(np.ones(number))
            edges += [(state, action, int(s), float(p), reward) for s, p in zip(successors, row, strict=True)]
    return FiniteMDP.from_edges(edges, goal=[goal], discount=discount, name="random-mdp")
