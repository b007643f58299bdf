"""Every environment by its name, with the parameter that `depth` sets, and Gymnasium's by their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qposterior.checks import check_type
from qposterior.environments.bandit import bandit
from qposterior.environments.deep_sea import deep_sea, deep_sea_loops
from qposterior.environments.examples import five_state, two_state
from qposterior.environments.random_mdp import random_mdp
from qposterior.environments.river_swim import river_swim
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.gymnasium_table import make_gymnasium
from qposterior.world.mdp import FiniteMDP


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentEntry:
    """How an environment is made and called."""

    make_fn: Callable[..., FiniteMDP]
    gymnasium_id: str
    depth_option: str | None  # the option that `--depth` sets
    summary: str


ENVIRONMENTS: dict[str, EnvironmentEntry] = {
    "deep-sea": EnvironmentEntry(
        make_fn=deep_sea,
        gymnasium_id="qposterior/DeepSea-v0",
        depth_option="depth",
        summary="a treasure at the end of a diagonal; variant = paper, bsuite or bsuite-stochastic",
    ),
    "deep-sea-loops": EnvironmentEntry(
        make_fn=deep_sea_loops,
        gymnasium_id="qposterior/DeepSeaLoops-v0",
        depth_option="depth",
        summary="a Deep Sea in which one can also swim up: improper policies exist",
    ),
    "two-state": EnvironmentEntry(
        make_fn=two_state,
        gymnasium_id="qposterior/TwoState-v0",
        depth_option=None,
        summary="the paper's first example: a self-loop and an exit",
    ),
    "five-state": EnvironmentEntry(
        make_fn=five_state,
        gymnasium_id="qposterior/FiveState-v0",
        depth_option=None,
        summary="the paper's second example: one choice, then a forced step",
    ),
    "river-swim": EnvironmentEntry(
        make_fn=river_swim,
        gymnasium_id="qposterior/RiverSwim-v0",
        depth_option="length",
        summary="a swim against the current, no goal, discount 0.95",
    ),
    "bandit": EnvironmentEntry(
        make_fn=bandit,
        gymnasium_id="qposterior/Bandit-v0",
        depth_option=None,
        summary="one state, Gaussian or Bernoulli arms",
    ),
    "random-mdp": EnvironmentEntry(
        make_fn=random_mdp,
        gymnasium_id="qposterior/RandomMDP-v0",
        depth_option="num_states",
        summary="Dirichlet rows, seeded, acyclic or looping",
    ),
}


def make_environment(name: str, *, depth: int | None = None, **options: Any) -> FiniteMDP:
    """Return the `FiniteMDP` of a named environment; `depth` sets its size, `options` the rest.

    The id of any Gymnasium environment with a table will do too; `options` then go to `FiniteMDP.from_gymnasium`.
    """
    check_type("name", name, str)
    if name not in ENVIRONMENTS:
        return _gymnasium_table(name, options if depth is None else options | {"depth": depth})
    entry = ENVIRONMENTS[name]
    if depth is not None:
        if entry.depth_option is None:
            raise InvalidInputError(f"environment {name!r} has no depth; leave it out")
        options[entry.depth_option] = depth
    try:
        return entry.make_fn(**options)
    except (TypeError, OverflowError) as error:
        raise InvalidInputError(f"environment {name!r}: {error}") from error


def check_gymnasium_id(name: str) -> None:
    """Raise for an id that Gymnasium does not know, ours included; of MODULE:ID it learns when it imports MODULE."""
    import gymnasium

    from qposterior.environments import gymnasium_env

    gymnasium.register_envs(gymnasium_env)  # which its import has done
    if ":" not in name and name not in gymnasium.registry:
        raise unknown_name("environment", name, [*ENVIRONMENTS, *gymnasium.registry])


def _gymnasium_table(name: str, options: dict[str, Any]) -> FiniteMDP:
    """Return the table of a Gymnasium environment; raise for one that has none, or for a name that nobody knows."""
    from qposterior.environments.problem import gymnasium_problem

    check_gymnasium_id(name)
    of_table = {key: options.pop(key) for key in ("discount", "step_cost") if key in options}
    _, mdp = gymnasium_problem(make_gymnasium(name, **options), **of_table)
    if mdp is None:
        raise InvalidInputError(
            f"environment {name!r} has no transition table `unwrapped.P`; pass gymnasium.make({name!r}) itself to "
            "make_agent and explore, which count successors instead"
        )
    return mdp
