"""Posterior sampling under `ModelPrior` as an exploring agent, beside conjugate PSRL: does a prior for logs explore?

``python benchmarks/model_prior_agent.py --seeds 5 --episodes 400`` prints a table: learning time (trailing-100 rule),
total regret and processor seconds. Rows are counted, nothing is told beforehand.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import qposterior as qp
from qposterior.agents.model_agent import ModelAgent
from qposterior.agents.planning import plan
from qposterior.experiments.explore import explore, make_world, spawn_seeds
from qposterior.model.model_prior import CHAINS, ModelPrior
from qposterior.world.arrays import IntArray
from qposterior.world.space import StateActionSpace
from result_page import table

PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "river-swim": ("river-swim", {}),
    "FrozenLake-v1, slippery": ("FrozenLake-v1", {"is_slippery": True, "step_cost": 0.001}),
    "Taxi-v4": ("Taxi-v4", {}),
}


class ModelPriorAgent(ModelAgent):
    """Plans in one model that is drawn from the hierarchical posterior; at random until there is a reading."""

    name = "model-prior"

    def __init__(self, space: StateActionSpace, *, prior: ModelPrior | None = None, **settings: Any) -> None:
        super().__init__(space, transitions="dirichlet", **settings)
        self.prior = prior or ModelPrior()

    def make_plan(self) -> IntArray:
        if self.experience.num_observed == 0:
            first = np.where(self.space.is_goal, -1, 0)
            return np.tile(first, (self.horizon, 1))
        drawn = self.prior.draw(self.experience, CHAINS, self._rng)
        model = drawn.mdp(int(self._rng.integers(CHAINS)))
        return plan(self.space, model.transitions, model.rewards, horizon=self.horizon, rng=self._rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--problem", choices=PROBLEMS, action="append", help="only this one; repeatable")
    options = parser.parse_args()
    rows = []
    for label in options.problem or PROBLEMS:
        name, settings = PROBLEMS[label]
        is_ours = name == "river-swim"
        world = make_world(qp.make_environment(name)) if is_ours else make_world(name, **settings)
        for agent_name in ("psrl", "psrl-deterministic", "model-prior"):
            times, regrets, begin = [], [], time.process_time()
            for seed in range(options.seeds):
                stream = spawn_seeds(seed)[1]
                if agent_name == "model-prior":
                    agent = ModelPriorAgent(world.mdp.space, horizon=world.cap, rewards="noisy", seed=stream)
                else:
                    agent = qp.make_agent(
                        agent_name, world.mdp, horizon=world.cap, transitions="dirichlet", seed=stream
                    )
                run = explore(agent, world, episodes=options.episodes, seed=seed, keep_transitions=False)
                times.append(run.learning_time or options.episodes)
                regrets.append(float(np.sum(run.regret)))
            cpu = (time.process_time() - begin) / options.seeds
            rows.append((label, agent_name, f"{np.mean(times):.0f}", f"{np.mean(regrets):.1f}", f"{cpu:.1f}"))
            print(rows[-1], flush=True)
    print(table(("problem", "agent", "learning time", "total regret", "CPU s"), rows))


if __name__ == "__main__":
    main()
