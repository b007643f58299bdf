"""Your own Gymnasium environment: write it once, let an agent explore it.

A robot crosses a kitchen of 3 by 4 tiles. A step costs 1, a step into the puddle 6, and one step in ten goes nowhere.
What `qposterior` reads of an environment: discrete spaces counted from 0; the table `P[state][action]`, a list of
(probability, next state, reward, terminated), on the unwrapped environment; and `initial_state_distrib`, if it is
there. An agent is told a row of the table when it first tries that pair; the table also gives Q*, and so the regret
(negative where an episode was lucky).
"""

import gymnasium
import numpy as np

import qposterior as qp

ROWS, COLUMNS = 3, 4
GOAL, PUDDLE = ROWS * COLUMNS - 1, (1, 5, 6)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))


class Kitchen(gymnasium.Env[int, int]):
    """From the top left tile to the bottom right one."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Discrete(ROWS * COLUMNS)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.initial_state_distrib = np.eye(ROWS * COLUMNS)[0]
        self.P = {s: {a: self.outcomes(s, a) for a in range(len(MOVES))} for s in range(ROWS * COLUMNS)}

    def outcomes(self, state: int, action: int) -> list[tuple[float, int, float, bool]]:
        """Return what a move can lead to; the goal keeps what it has."""
        if state == GOAL:
            return [(1.0, GOAL, 0.0, True)]
        row = min(max(state // COLUMNS + MOVES[action][0], 0), ROWS - 1)
        column = min(max(state % COLUMNS + MOVES[action][1], 0), COLUMNS - 1)
        there = row * COLUMNS + column
        return [(0.9, there, -6.0 if there in PUDDLE else -1.0, there == GOAL), (0.1, state, -1.0, False)]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        """Start top left."""
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        """Draw one of the outcomes."""
        outcomes = self.P[self.state][int(action)]
        chosen = self.np_random.choice(len(outcomes), p=[outcome[0] for outcome in outcomes])
        _, self.state, reward, terminated = outcomes[chosen]
        return self.state, reward, terminated, False, {}


if __name__ == "__main__":
    mdp, prior = qp.FiniteMDP.from_gymnasium(Kitchen()), qp.GaussianPrior(mean=-5.0, scale=4.0)
    agent = qp.PosteriorSamplingAgent(mdp.space, prior=prior, seed=1)
    regret = qp.explore(agent, Kitchen(), episodes=60, seed=0).episodes["regret"].to_numpy()
    print("Mean regret of episodes 1-20, 21-40, 41-60:", regret.reshape(3, 20).mean(axis=1).round(2))
    table = qp.posterior(agent.experience, prior=prior, particles=1000).prob_optimal_table()
    print(f"{agent.experience.num_observed} of 44 moves tried. The move most probably best, and its probability:")
    for row in table.reshape(ROWS, COLUMNS, -1):
        print("   ".join(f"{'^>v<'[np.argmax(p)]} {p.max():.2f}" if p.any() else "home" for p in row))
