"""Learning times on Deep Sea, paper variant: the numbers to reproduce."""

from __future__ import annotations

import numpy as np

import qposterior as qp
from qposterior.experiments.explore import make_world, spawn_seeds
from result_page import table

EXPECTED = {
    ("r-max", "known"): (34, 74, 154),
    ("psrl-deterministic", "revealed"): (56, 137, 339),
    ("psrl-deterministic", "known"): (48, 112, 245),
}
DEPTHS = (10, 20, 40)


def learning_times(agent: str, transitions: str, depth: int, seeds: int) -> tuple[list[int | None], float]:
    """Return the learning time of each seed and the mean seconds of a run."""
    sea = qp.make_environment("deep-sea", depth=depth)
    world = make_world(sea)
    times, seconds = [], 0.0
    for seed in range(seeds):
        made = qp.make_agent(agent, sea, horizon=world.cap, transitions=transitions, seed=spawn_seeds(seed)[1])
        run = qp.explore(made, world, episodes=2000, seed=seed, until_learned=True, keep_transitions=False)
        times.append(run.learning_time)
        seconds += run.seconds / seeds
    return times, seconds


def interval(values: np.ndarray, rng: np.random.Generator, draws: int = 2000) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean."""
    means = rng.choice(values, size=(draws, values.size)).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def section(seeds: int = 20) -> tuple[str, str]:
    rng = np.random.default_rng(0)
    rows = []
    for (agent, transitions), expected in EXPECTED.items():
        for depth, number in zip(DEPTHS, expected, strict=True):
            times, seconds = learning_times(agent, transitions, depth, seeds)
            solved = np.array([t for t in times if t is not None], dtype=float)
            low, high = interval(solved, rng)
            row = (agent, transitions, depth, f"{solved.mean():.1f} [{low:.1f}, {high:.1f}]", number)
            rows.append((*row, f"{solved.size}/{seeds}", f"{seconds:.2f}"))
            print(*rows[-1], flush=True)
    header = ("agent", "transitions", "depth", "mean learning time [95 %]", "prototype", "solved", "seconds a run")
    return f"Learning time on Deep Sea (paper variant), {seeds} seeds", table(header, rows)
