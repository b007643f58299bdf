"""Reading the transition table of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.checks import check_number, shown
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.arrays import BoolArray, IntArray
from qposterior.world.mdp import FiniteMDP
from qposterior.world.structure import steps_to


def make_gymnasium(environment: Any, **options: Any) -> Any:
    """Return the Gymnasium environment of an id, or the given object itself; a bad id or option is an input error."""
    import gymnasium

    if not isinstance(environment, str):
        if not hasattr(environment, "unwrapped"):
            raise InvalidInputError(
                f"need a FiniteMDP, a Gymnasium environment or the id of one, got {shown(environment)}"
            )
        if options:
            raise InvalidInputError(f"options such as {next(iter(options))} go with an id; this environment is made")
        return environment
    try:
        return gymnasium.make(environment, **options)
    except gymnasium.error.NameNotFound:
        raise unknown_name("environment", environment, gymnasium.registry) from None
    except (gymnasium.error.Error, TypeError, ImportError, ValueError) as error:
        raise InvalidInputError(f"cannot make environment {environment!r}: {error}") from error


def discrete_sizes(environment: Any) -> tuple[int, int]:
    """Return the numbers of states and actions; raise for spaces that are not discrete."""
    from gymnasium.spaces import Discrete

    for kind in ("observation", "action"):
        space = getattr(environment, f"{kind}_space")
        if not isinstance(space, Discrete) or space.start != 0:
            raise InvalidInputError(
                f"the {kind} space must be Discrete(n) counted from 0, got {space}; "
                "wrap the environment in one that numbers its states and actions"
            )
    return int(environment.observation_space.n), int(environment.action_space.n)


def read_gymnasium_table(
    environment: Any, *, discount: float = 1.0, step_cost: float = 0.0, **options: Any
) -> FiniteMDP:
    """Return the `FiniteMDP` of an environment with `unwrapped.P` (see `FiniteMDP.from_gymnasium`)."""
    check_number("step_cost", step_cost)
    environment = make_gymnasium(environment, **options)
    num_states, _ = discrete_sizes(environment)
    table = getattr(environment.unwrapped, "P", None)
    name = environment.spec.id if environment.spec is not None else type(environment.unwrapped).__name__
    if table is None:
        raise InvalidInputError(
            f"environment {name!r} has no transition table `unwrapped.P`; give it one, or learn it from data"
        )
    rows = [
        (state, action, int(successor), float(probability), float(reward), bool(ended))
        for state, by_action in (table.items() if hasattr(table, "items") else enumerate(table))
        for action, outcomes in (by_action.items() if hasattr(by_action, "items") else enumerate(by_action))
        for probability, successor, reward, ended in outcomes
    ]
    state, action, successor = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    probability, reward = (np.array([row[i] for row in rows], dtype=float) for i in (3, 4))
    ended = np.array([row[5] for row in rows], dtype=bool)
    is_goal = np.zeros(num_states, dtype=bool)
    is_goal[successor[ended]] = True
    start = getattr(environment.unwrapped, "initial_state_distrib", None)
    alive = ~ended & (probability > 0.0)
    if start is not None:
        # Rows that no episode can reach do not count: Taxi's table has many.
        alive &= _reachable(np.asarray(start) > 0.0, state[alive], successor[alive])[state]
    if is_goal[successor[alive & ~is_goal[state]]].any():
        # A state that sometimes ends an episode and sometimes does not: endings go to a goal of their own.
        is_goal = np.append(np.zeros(num_states, dtype=bool), True)
        successor = np.where(ended, num_states, successor)
    if start is not None:
        start = np.append(start, np.zeros(is_goal.size - num_states)) / np.sum(start)
    kept = ~is_goal[state]
    return FiniteMDP.from_columns(
        state[kept],
        action[kept],
        successor[kept],
        probability[kept],
        reward[kept] - step_cost,
        is_goal=is_goal,
        discount=discount,
        initial=start,
        name=name,
    )


def _reachable(start: BoolArray, source: IntArray, target: IntArray) -> BoolArray:
    """Return the mask of states that can be reached from the `start` mask along the edges."""
    import scipy.sparse as sp

    size = start.size
    graph = sp.csr_array(sp.coo_array((np.ones(source.size), (target, source)), shape=(size, size)))
    return np.isfinite(steps_to(graph, np.flatnonzero(start)))
