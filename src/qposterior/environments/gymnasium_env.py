"""A `FiniteMDP` behind the Gymnasium interface; importing this module registers every environment with Gymnasium.

`import qposterior` imports it where Gymnasium is loaded already. Where Gymnasium comes later, import it yourself, or
let Gymnasium do so: ``gymnasium.make("qposterior.environments.gymnasium_env:qposterior/DeepSea-v0")``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import gymnasium
import numpy as np

from qposterior.environments.registry import ENVIRONMENTS, make_environment
from qposterior.environments.simulator import TableSimulator
from qposterior.world.mdp import FiniteMDP


class FiniteMDPEnv(gymnasium.Env[Any, Any]):
    """Steps through a `FiniteMDP`; `info["action_mask"]` marks the admissible actions.

    Gymnasium lets every action of the space be tried in every state. One that is not admissible stands for the lowest
    admissible one, and `info["replaced_action"]` says so.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(self, mdp: FiniteMDP, render_mode: str | None = None) -> None:
        self.mdp = mdp
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Discrete(mdp.space.num_states)
        self.action_space = gymnasium.spaces.Discrete(mdp.space.num_actions)
        self.initial_state_distrib = mdp.initial
        self._simulator = TableSimulator(mdp)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        state = self._simulator.reset(self.np_random)
        return state, self._info(state)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take an action; reaching a goal terminates the episode."""
        admissible = self.mdp.space.actions(self._simulator.state)
        taken = int(action) if action in admissible else int(admissible[0])
        state, reward, terminated = self._simulator.step(taken)
        info = self._info(state)
        if taken != action:
            info["replaced_action"] = int(action)
        return state, reward, terminated, False, info

    @cached_property
    def P(self) -> dict[int, dict[int, list[tuple[float, int, float, bool]]]]:  # noqa: N802  (Gymnasium's name)
        """The table in Gymnasium's form, mean rewards in place of noisy ones."""
        space = self.mdp.space
        table: dict[int, dict[int, list[tuple[float, int, float, bool]]]] = {s: {} for s in range(space.num_states)}
        for k, (state, action) in enumerate(space.pairs()):
            successors, probabilities = self.mdp.transitions.row(k)
            reward = float(self.mdp.rewards[k])
            table[state][action] = [
                (float(p), int(s), reward, bool(space.is_goal[s]))
                for s, p in zip(successors, probabilities, strict=True)
            ]
        return table

    def _info(self, state: int) -> dict[str, Any]:
        return {"action_mask": (self.mdp.space.pair_index[state] >= 0).astype(np.int8)}


def make_gymnasium_env(name: str, render_mode: str | None = None, **options: Any) -> FiniteMDPEnv:
    """Return the registered environment `name` behind the Gymnasium interface."""
    return FiniteMDPEnv(make_environment(name, **options), render_mode=render_mode)


for _name, _entry in ENVIRONMENTS.items():
    gymnasium.register(
        id=_entry.gymnasium_id,
        entry_point="qposterior.environments.gymnasium_env:make_gymnasium_env",
        kwargs={"name": _name},
    )
