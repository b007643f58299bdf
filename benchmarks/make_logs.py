"""The decision log of the examples: a machine that wears, to be run or repaired. `python benchmarks/make_logs.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

STATES = ("new", "good", "worn", "bad")
PROFIT, FAILURE = (10.0, 9.0, 6.0, -2.0), (0.02, 0.05, 0.15, 0.40)
REPAIR, SCRAPPED, SPREAD, STEPS = -8.0, -30.0, 2.0, 12


def maintenance_log(episodes: int, seed: int) -> pd.DataFrame:
    """Return decisions made at random: profit of a run, wear, and now and then a machine that has to be scrapped."""
    rng, rows = np.random.default_rng(seed), []
    for episode in range(episodes):
        state = 0
        for _ in range(STEPS):
            action = str(rng.choice(["run", "repair"]))
            reward, following = REPAIR + rng.normal(0.0, SPREAD), STATES[0]
            if action == "run":
                reward, failed = PROFIT[state] + rng.normal(0.0, SPREAD), rng.random() < FAILURE[state]
                following = "scrap" if failed else STATES[min(3, state + int(rng.random() < 0.5))]
                reward += SCRAPPED if failed else 0.0
            rows.append((STATES[state], action, round(float(reward), 2), following, int(following == "scrap"), episode))
            if following == "scrap":
                break
            state = STATES.index(following)
    return pd.DataFrame(rows, columns=["state", "action", "reward", "next_state", "terminated", "episode"])


if __name__ == "__main__":
    folder = Path(__file__).parent.parent / "examples"
    maintenance_log(60, seed=0).to_csv(folder / "decisions.csv", index=False)
