"""An environment of your own without a table of its transitions, named `corridors:Corridor-v0` on the command line.

PYTHONPATH=examples/environments qposterior explore corridors:Corridor-v0 --agent abrl --episodes 100
"""

import gymnasium

LENGTH = 6


class Corridor(gymnasium.Env[int, int]):
    """Walk to the end; a step costs 1, and one step in ten goes the other way."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Discrete(LENGTH)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        """Start at the door."""
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        """Walk a step ahead (1) or back (0)."""
        ahead = (action == 1) == (self.np_random.random() < 0.9)
        self.place = max(self.place + (1 if ahead else -1), 0)
        return min(self.place, LENGTH - 1), -1.0, self.place == LENGTH, False, {}


gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=60)
