"""Deep exploration: the agent `abrl` on Deep Sea beside Q-learning.

The treasure of a Deep Sea lies at the end of one path, and every step along that path costs a little. `abrl` draws a
Q from its posterior before each episode and follows it to the end, so it explores on purpose. Q-learning tries
something else only by chance, now and then; started from values that are too high it explores by disappointment,
which works here, but more slowly. The learning time is the paper's: the first episode at which the mean regret so far
is 0.5 or less.
"""

import numpy as np

import qposterior as qp

DEPTHS = (3, 4, 6, 8)
SEEDS = range(5)
EPISODES = 1000
AGENTS = {
    "abrl": ("abrl", {}),
    "q-learning": ("q-learning", {}),
    "q-learning, high start": ("q-learning", {"initial_value": 1.0}),
}


def learning_times(name: str, depth: int, options: dict[str, float]) -> list[int | None]:
    """Return the learning time of each seed, None for a run that has not learned."""
    sea = qp.make_environment("deep-sea", depth=depth)
    times = []
    for seed in SEEDS:
        agent = qp.make_agent(name, sea, horizon=depth - 1, seed=100 + seed, **options)
        run = qp.explore(agent, sea, episodes=EPISODES, seed=seed, until_learned=True)
        times.append(run.learning_time)
    return times


def describe(times: list[int | None]) -> str:
    """Return the mean; runs that never learned count with all their episodes, so the mean is then a lower bound."""
    unsolved = times.count(None)
    mean = np.mean([EPISODES if time is None else time for time in times])
    return f">= {mean:.0f} ({unsolved} of {len(times)} never)" if unsolved else f"{mean:.0f}"


def main() -> None:
    """Print the mean learning time of each agent at each depth."""
    print(f"Mean learning time in episodes, {len(SEEDS)} seeds, at most {EPISODES} episodes each\n")
    print("depth" + "".join(f"{label:>25s}" for label in AGENTS))
    for depth in DEPTHS:
        cells = [describe(learning_times(name, depth, options)) for name, options in AGENTS.values()]
        print(f"{depth:5d}" + "".join(f"{cell:>25s}" for cell in cells))


if __name__ == "__main__":
    main()
