"""Reading the transition table of a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from qposterior.checks import check_floats, check_indices, check_list, check_mask, check_number, check_numbers, shown
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.arrays import BoolArray, FloatArray, IntArray
from qposterior.world.mdp import FiniteMDP
from qposterior.world.structure import steps_to

OURS = "qposterior.environments.gymnasium_env"
"""The module that registers our environments. Gymnasium imports it, so that nothing here depends on them."""


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
    name = environment.removeprefix("qposterior:")
    try:
        return gymnasium.make(f"{OURS}:{name}" if name.startswith("qposterior/") else environment, **options)
    except gymnasium.error.NameNotFound:
        raise unknown_name("environment", environment, gymnasium.registry) from None
    except (gymnasium.error.Error, TypeError, ImportError, ValueError) as error:
        raise InvalidInputError(f"cannot make environment {environment!r}: {error}") from error


def discrete_sizes(environment: Any) -> tuple[int, int]:
    """Return the numbers of states and actions; raise for spaces that are not discrete."""
    from gymnasium.spaces import Discrete

    for kind in ("observation", "action"):
        space = getattr(environment, f"{kind}_space", None)
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
    check_number("discount", discount, "(0, 1]")
    environment = make_gymnasium(environment, **options)
    num_states, num_actions = discrete_sizes(environment)
    table = getattr(environment.unwrapped, "P", None)
    spec = getattr(environment, "spec", None)
    name = spec.id if spec is not None else type(environment.unwrapped).__name__
    if table is None:
        raise InvalidInputError(
            f"environment {name!r} has no transition table `unwrapped.P`; give it one, or learn it from data"
        )
    start = _start_of(environment.unwrapped, num_states)
    try:
        columns = _columns_of(table, num_states, num_actions)
        return _table_of(columns, start=start, num_states=num_states, step_cost=step_cost, discount=discount, name=name)
    except InvalidInputError as error:
        raise InvalidInputError(f"environment {name!r}, unwrapped.P: {error}") from error


Columns = tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, BoolArray]
"""State, action, successor, probability, reward and whether the episode has ended, by outcome."""


def _columns_of(table: Any, num_states: int, num_actions: int) -> Columns:
    """Return the outcomes of a table ``P[state][action] = [(probability, successor, reward, ended), …]``."""
    rows = [
        (state, action, *_outcome(f"P[{shown(state)}][{shown(action)}]", outcome))
        for state, by_action in _items("P", table, "states")
        for action, outcomes in _items(f"P[{shown(state)}]", by_action, "actions")
        for outcome in check_list(f"P[{shown(state)}][{shown(action)}]", outcomes, "outcomes")
    ]
    if not rows:
        raise InvalidInputError("P must have an outcome of at least one state and action, got none")
    state, action, probability, successor, reward, ended = zip(*rows, strict=True)
    return (
        check_indices("states of P", state, num_states),
        check_indices("actions of P", action, num_actions),
        check_indices("successors in P", successor, num_states),
        check_numbers("probabilities in P", probability),
        check_numbers("rewards in P", reward),
        check_mask("endings in P", ended, (-1,)),
    )


def _items(name: str, table: Any, items: str) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of a dict, or places and values of a list."""
    return table.items() if hasattr(table, "items") else enumerate(check_list(name, table, items))


def _outcome(name: str, outcome: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four parts of an outcome."""
    try:
        probability, successor, reward, ended = outcome
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name} must list (probability, next state, reward, terminated), got {shown(outcome)} in it"
        ) from None
    return probability, successor, reward, ended


def _start_of(environment: Any, num_states: int) -> FloatArray | None:
    """Return the distribution of the first state of an environment that has one in `initial_state_distrib`."""
    start = getattr(environment, "initial_state_distrib", None)
    if start is None:
        return None
    weights = check_floats("initial_state_distrib", start, (num_states,), "[0, inf)")
    if not weights.any():
        raise InvalidInputError("initial_state_distrib must be positive somewhere, got zeros")
    return np.asarray(weights / weights.sum())


def _table_of(
    columns: Columns, *, start: FloatArray | None, num_states: int, step_cost: float, discount: float, name: str
) -> FiniteMDP:
    """Return the table of outcomes; what ends an episode is a goal."""
    state, action, successor, probability, reward, ended = columns
    is_goal = np.zeros(num_states, dtype=bool)
    is_goal[successor[ended]] = True
    alive = ~ended & (probability > 0.0)
    if start is not None:
        # Rows that no episode can reach do not count: Taxi's table has many.
        alive &= _reachable(start > 0.0, state[alive], successor[alive])[state]
    if is_goal[successor[alive & ~is_goal[state]]].any():
        # A state that sometimes ends an episode and sometimes does not: endings go to a goal of their own.
        is_goal = np.append(np.zeros(num_states, dtype=bool), True)
        successor = np.where(ended, num_states, successor)
    if start is not None:
        start = np.append(start, np.zeros(is_goal.size - num_states))
    stuck = np.setdiff1d(np.flatnonzero(~is_goal), state)
    if stuck.size:
        raise InvalidInputError(
            f"state {stuck[0]} must have an outcome, or be one where an episode ends; it has none and none ends there"
        )
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
