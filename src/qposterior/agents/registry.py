"""Every agent by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qposterior.agents.protocol import Agent, check_transitions
from qposterior.agents.psrl_deterministic import DeterministicPSRLAgent
from qposterior.agents.q_learning import QLearningAgent
from qposterior.agents.r_max import RMaxAgent
from qposterior.agents.random_agent import RandomAgent
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.mdp import FiniteMDP


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEntry:
    """How an agent is made."""

    make_fn: Callable[..., Agent]
    transitions: str  # what it is told of the transitions unless said otherwise
    needs: tuple[str, ...]  # what it must be given besides the space: horizon, table, max_reward, rewards
    summary: str


AGENTS: dict[str, AgentEntry] = {
    "random": AgentEntry(
        make_fn=RandomAgent, transitions="revealed", needs=(), summary="uniform over the admissible actions"
    ),
    "q-learning": AgentEntry(
        make_fn=QLearningAgent, transitions="revealed", needs=(), summary="tabular Q-learning, ε-greedy"
    ),
    "r-max": AgentEntry(
        make_fn=RMaxAgent,
        transitions="known",
        needs=("horizon", "table", "rewards", "max_reward"),
        summary="optimism: what has not been seen pays the most there is",
    ),
    "psrl-deterministic": AgentEntry(
        make_fn=DeterministicPSRLAgent,
        transitions="revealed",
        needs=("horizon", "table", "rewards"),
        summary="posterior sampling of models in which one look settles a pair",
    ),
}


def make_agent(
    name: str, mdp: FiniteMDP, *, horizon: int, transitions: str | None = None, seed: object = 0, **options: Any
) -> Agent:
    """Return a new agent for this problem, told no more of it than its `transitions` and its own needs say."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    entry = AGENTS[name]
    transitions = check_transitions(entry.transitions if transitions is None else transitions)
    given = {
        "horizon": horizon,
        "table": mdp.transitions if transitions == "known" else None,
        "max_reward": float(mdp.rewards.max()),
        "rewards": "noisy" if mdp.reward_sd.any() or transitions == "dirichlet" else "deterministic",
    }
    settings = {need: given[need] for need in entry.needs} | options
    try:
        return entry.make_fn(mdp.space, transitions=transitions, seed=seed, **settings)
    except TypeError as error:
        raise InvalidInputError(f"agent {name!r}: {error}") from error
