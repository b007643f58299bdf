"""One run of a comparison, as plain data. Nothing heavy is imported here: the command line makes options of it."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass
from typing import Any

from qposterior.agents.knowledge import TRANSITION_KNOWLEDGE
from qposterior.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run, as plain data that any worker can be sent."""

    agent: str
    environment: str
    depth: int | None
    seed: int = setting(MISSING, called="a seed", least=0)
    episodes: int = setting(1000, "Most episodes a run.", least=1)
    full: bool = setting(False, "Go on after the learning time.")
    timeout: float | None = setting(
        None, "Most seconds a run; its finished episodes are kept.", called="timeout in seconds", interval="(0, inf]"
    )
    transitions: str | None = setting(
        None, "What agents are told.", called="kind of transitions", choices=TRANSITION_KNOWLEDGE
    )
    prior: dict[str, Any] | None = setting(None, "NAME or NAME:KEY=VALUE,… for the agents that take one.")
    env_options: dict[str, Any] = setting(dict, "KEY=VALUE, repeatable.", flag="--env-option")
    agent_options: dict[str, Any] = setting(
        dict, "KEY=VALUE for all agents, AGENT:KEY=VALUE for one; repeatable.", flag="--agent-option"
    )
    label: str | None = None  # what the agent is called in the tables, where one agent runs with several settings

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this run from all others in a store."""
        from qposterior.experiments.store import run_key

        return run_key(asdict(self) | {"agent": self.label or self.agent})
