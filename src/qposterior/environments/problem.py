"""What can be known of a Gymnasium environment before acting in it: its problem, and how long an episode may last."""

from __future__ import annotations

from typing import Any

from qposterior.environments.simulator import space_of_gymnasium
from qposterior.world.gymnasium_table import read_gymnasium_table
from qposterior.world.mdp import FiniteMDP
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import is_acyclic

DEFAULT_CAP = 100


def gymnasium_problem(
    environment: Any, *, discount: float = 1.0, step_cost: float = 0.0
) -> tuple[StateActionSpace, FiniteMDP | None]:
    """Return the space of an environment, and its table where it has one."""
    inside = environment.unwrapped
    if getattr(inside, "P", None) is None:
        return space_of_gymnasium(environment, discount), None
    own: FiniteMDP | None = getattr(inside, "mdp", None)  # one of ours
    mdp = own or read_gymnasium_table(environment, discount=discount, step_cost=step_cost)
    return mdp.space, mdp


def time_limit(environment: Any) -> int | None:
    """Return the most steps that an environment lets an episode take: by its specification, else its `max_steps`."""
    limit = getattr(environment.spec, "max_episode_steps", None) or getattr(environment.unwrapped, "max_steps", None)
    return None if limit is None else int(limit)


def default_cap(mdp: FiniteMDP | None) -> int:
    """Return the longest path of a table without loops, else the larger of 100 and 4 steps per state; else 100."""
    if mdp is None:
        return DEFAULT_CAP
    if mdp.space.layer is not None:
        return int(mdp.space.layer.max())
    if is_acyclic(mdp.space, mdp.transitions):
        return mdp.space.num_states
    return max(DEFAULT_CAP, 4 * mdp.space.num_states)
