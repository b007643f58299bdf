"""The exploring agents: learning times with intervals, wall-clock side by side, the cost of an update."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np

import qposterior as qp
from learning_times import interval
from qposterior.agents.registry import AGENTS
from qposterior.environments.registry import ENVIRONMENTS
from qposterior.experiments.explore import make_world, spawn_seeds
from result_page import table
from untabled import UNTABLED, Untabled

MOST_EPISODES = 3000
FIRST_SEED = 20_000
"""Nothing was chosen on seeds from here on."""


KNOWLEDGE = {
    "known": "all rows, beforehand",
    "revealed": "the row of a pair at its first visit",
    "dirichlet": "nothing: it counts successors",
    "q-learning": "nothing",
}
"""What an agent is told of the transitions."""


@dataclass(frozen=True)
class Case:
    """One agent in one world."""

    agent: str
    environment: str
    depth: int | None = None
    transitions: str | None = None
    prior: tuple[float, float] | None = None  # of a RewardPrior
    options: dict[str, Any] = field(default_factory=dict)
    env_options: dict[str, Any] = field(default_factory=dict)
    episodes: int = MOST_EPISODES

    @property
    def told(self) -> str:
        """What the agent is told of the transitions."""
        return KNOWLEDGE[self.transitions or AGENTS[self.agent].transitions]

    @property
    def label(self) -> str:
        prior = "" if self.prior is None else f", RewardPrior({self.prior[0]:g}, {self.prior[1]:g})"
        extra = "".join(f", {name} {value}" for name, value in self.options.items())
        return self.agent + prior + extra


def build_world(case: Case):
    if case.environment not in ENVIRONMENTS:
        return make_world(case.environment, **case.env_options)
    size = {} if case.depth is None else {"depth": case.depth}
    return make_world(qp.make_environment(case.environment, **size, **case.env_options))


def run_case(case: Case, seed: int, clock=time.perf_counter) -> tuple[int | None, float, int]:
    """Return learning time, seconds of the episodes by a clock, and the episodes that were cut off."""
    world = build_world(case)
    prior = {} if case.prior is None else {"prior": qp.RewardPrior(mean=case.prior[0], scale=case.prior[1])}
    agent = qp.make_agent(
        case.agent,
        world.mdp,
        horizon=world.cap,
        transitions=case.transitions,
        seed=spawn_seeds(seed)[1],
        **prior,
        **case.options,
    )
    _ = world.truth, world.random_regret  # solved before the clock starts
    started = clock()
    run = qp.explore(agent, world, episodes=case.episodes, seed=seed, until_learned=True, keep_transitions=False)
    return run.learning_time, clock() - started, sum(not row["reached_goal"] for row in run.rows)


def run_all(cases: list[Case], seeds: int) -> dict[int, list[tuple[int | None, float, int]]]:
    """Run every case with every seed, one process per core and one thread each; results by the id of the case.

    Seconds are those of the processor: other work on the machine does not count.
    """
    os.environ["NUMBA_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        futures = {
            id(case): [
                pool.submit(run_case, case, seed, time.process_time) for seed in range(FIRST_SEED, FIRST_SEED + seeds)
            ]
            for case in cases
        }
        found = {}
        for case in cases:
            found[id(case)] = [future.result() for future in futures[id(case)]]
            times = [time for time, _, _ in found[id(case)]]
            print(case.environment, case.depth, case.label, times, flush=True)
    del os.environ["NUMBA_NUM_THREADS"]
    return found


def summary(rows: list[tuple[int | None, float, int]], most: int) -> tuple[str, str, str]:
    """Return mean learning time with its 95 % bootstrap interval (unsolved runs at the cap), solved, seconds."""
    solved = sum(time is not None for time, _, _ in rows)
    times = np.array([most if time is None else time for time, _, _ in rows], dtype=float)
    low, high = interval(times, np.random.default_rng(0))
    sign = "" if solved == len(rows) else "≥ "
    seconds = np.mean([seconds for _, seconds, _ in rows])
    return f"{sign}{times.mean():.1f} [{low:.1f}, {high:.1f}]", f"{solved}/{len(rows)}", f"{seconds:.2f}"


def exponent(found, cases: list[Case]) -> str:
    """Return the slope of log learning time over log depth with a 95 % bootstrap interval over seeds."""
    rng = np.random.default_rng(0)
    times = [np.array([time or MOST_EPISODES for time, _, _ in found[id(case)]], dtype=float) for case in cases]
    depths = np.log([case.depth for case in cases])
    slopes = [
        np.polyfit(depths, [np.log(rng.choice(one, one.size).mean()) for one in times], 1)[0] for _ in range(1000)
    ]
    centre = np.polyfit(depths, [np.log(one.mean()) for one in times], 1)[0]
    return f"{centre:.2f} [{np.quantile(slopes, 0.025):.2f}, {np.quantile(slopes, 0.975):.2f}]"


def deep_sea(seeds: int = 20) -> tuple[str, str]:
    depths = (10, 20, 30, 40)
    drawn = {"variant": "bsuite"}
    groups = [
        ([Case("abrl", "deep-sea", d) for d in depths], ("40", "85", "130", "175")),
        ([Case("abrl", "deep-sea", d, env_options=drawn) for d in depths], ("40", "85", "130", "175")),
        ([Case("abrl-iid", "deep-sea", d) for d in depths], ("80", "240", "450", "700")),
        ([Case("abrl", "deep-sea", d, "revealed", (0, 4)) for d in depths], ("60", "145", "240", "360")),
        ([Case("abrl", "deep-sea", d, "revealed", (1, 0.05)) for d in depths], ("42", "110", "–", "285")),
        ([Case("abrl", "deep-sea", d, "known", (1, 0.05)) for d in depths], ("35.0", "76.2", "117.4", "158.6")),
        ([Case("r-max", "deep-sea", d, "known") for d in depths], ("34 ± 2", "74 ± 2", "114 ± 2", "154 ± 2")),
        ([Case("r-max", "deep-sea", d, "known", env_options=drawn) for d in depths], ("–", "–", "–", "–")),
    ]
    found = run_all([case for cases, _ in groups for case in cases], seeds)
    rows = []
    for cases, wanted in groups:
        slope = exponent(found, cases)
        for case, most in zip(cases, wanted, strict=True):
            mean, solved, seconds = summary(found[id(case)], case.episodes)
            variant = case.env_options.get("variant", "paper")
            last = slope if case is cases[-1] else ""
            rows.append((case.label, variant, case.told, case.depth, mean, most, solved, seconds, last))
    text = (
        f"20 particles, {seeds} seeds from {FIRST_SEED}; two runs at a time, a core each. In the bsuite variant the "
        "meaning of the actions is drawn in each cell. `abrl` explores by a prior that grows with the steps left, "
        "N(4 · 2ʰ, 4ʰ); `abrl-iid` by N(0, 4²).\n\n"
    )
    header = (
        "agent",
        "variant",
        "told of the transitions",
        "depth",
        "mean learning time [95 %]",
        "wanted, at most",
        "solved",
        "seconds a run",
        "exponent [95 %]",
    )
    return "Exploring agents on Deep Sea", text + table(header, rows)


def depth_100() -> tuple[str, str]:
    rows = []
    for agent, wanted in (("abrl", ("450", "60")), ("abrl-iid", ("–", "90"))):
        case = Case(agent, "deep-sea", 100, episodes=5000)
        learned, seconds, _ = run_case(case, FIRST_SEED, time.process_time)
        print("depth 100", learned, seconds, flush=True)
        rows.append(
            (
                case.label,
                case.told,
                100,
                "not solved" if learned is None else learned,
                wanted[0],
                f"{seconds:.0f}",
                wanted[1],
            )
        )
    header = (
        "agent",
        "told of the transitions",
        "depth",
        "learning time",
        "wanted, at most",
        "CPU s",
        "wanted, at most ",
    )
    return "Deep Sea of depth 100, one seed", table(header, rows)


def beside_r_max(seeds: int = 10) -> tuple[str, str]:
    """CPU seconds of abrl and r-max, one run of each after the other."""
    rows = []
    for depth in (20, 40):
        cases = Case("abrl", "deep-sea", depth), Case("r-max", "deep-sea", depth, "known")
        for case in cases:
            run_case(case, FIRST_SEED - 1)  # loads the kernels
        spent = np.array(
            [
                [run_case(case, seed, time.process_time)[1] for case in cases]
                for seed in range(FIRST_SEED, FIRST_SEED + seeds)
            ]
        )
        ours, theirs = spent.mean(axis=0)
        rows.append((depth, f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.1f}", "3" if depth == 40 else "–"))
        print(*rows[-1], flush=True)
    text = (
        f"Deep Sea until learned, {seeds} seeds, runs of the two agents in turn. `abrl` is told the row of a pair at "
        "its first visit, `r-max` all rows beforehand.\n\n"
    )
    return "CPU beside R-MAX", text + table(("depth", "abrl, CPU s", "r-max, CPU s", "ratio", "wanted, at most"), rows)


UNITS = (1e-3, 1.0, 1e3)


def units_of_rewards(seeds: int = 10) -> tuple[str, str]:
    still = {"is_slippery": False, "step_cost": 0.001}
    problems = (
        ("deep-sea", {"depth": 20}, 250),
        ("deep-sea-loops", {"depth": 8}, 250),
        ("FrozenLake-v1", still, 250),
        ("CliffWalking-v1", {}, 150),
        ("river-swim", {}, 250),
    )
    rows = []
    for name, options, episodes in problems:
        for rows_are in ("revealed", "dirichlet"):
            if name == "deep-sea" and rows_are == "dirichlet":
                continue  # nobody learns it in so few episodes
            found = []
            for unit in UNITS:
                world = make_world(in_unit(qp.make_environment(name, **options), unit))
                lost = []
                for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                    agent = world.make_agent("abrl", seed=seed, transitions=rows_are)
                    run = qp.explore(agent, world, episodes=episodes, seed=seed, keep_transitions=False)
                    lost.append((run.learning_time or episodes, sum(run.regret) / unit))
                found.append(np.mean(lost, axis=0))
            times, regrets = np.array(found).T
            spread = f"{times.max() / times.min():.2f}", f"{regrets.max() / regrets.min():.2f}"
            cells = [" / ".join(f"{x:.4g}" for x in numbers) for numbers in (times, regrets)]
            rows.append((name, KNOWLEDGE[rows_are], cells[0], spread[0], cells[1], spread[1]))
            print(*rows[-1], flush=True)
    text = (
        f"`abrl`, rewards times 0.001, 1 and 1,000; {seeds} seeds from {FIRST_SEED}, regret over 150 to 250 episodes "
        "in the unit of rewards. Wanted: learning times within 10 %.\n\n"
    )
    header = (
        "problem",
        "told of the transitions",
        "learning time",
        "largest over least",
        "regret",
        "largest over least ",
    )
    return "The unit of rewards", text + table(header, rows)


def in_unit(mdp: qp.FiniteMDP, unit: float) -> qp.FiniteMDP:
    """Return the problem with its rewards times a number."""
    edges = [
        (state, action, int(end), float(share), unit * float(mdp.rewards[k]))
        for k, (state, action) in enumerate(mdp.space.pairs())
        for end, share in zip(*mdp.transitions.row(k), strict=True)
    ]
    goals = mdp.space.goals.tolist()
    return qp.FiniteMDP.from_edges(edges, goal=goals, initial=mdp.initial, discount=mdp.space.discount, name="scaled")


def distracting_rewards(seeds: int = 20) -> tuple[str, str]:
    rows = []
    for name, depth, pays in (("early", 12, 0.3), ("early", 20, 0.3), ("late", 12, 0.5), ("late", 20, 0.5)):
        lost = []
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            world = make_world(distracting_sea(depth, pays, early=name == "early"), cap=depth - 1)
            lost.append([])
            for agent, told in (("abrl", "revealed"), ("r-max", "known"), ("r-max", "revealed")):
                made = world.make_agent(agent, seed=seed, transitions=told)
                lost[-1].append(
                    sum(qp.explore(made, world, episodes=8 * depth, seed=seed, keep_transitions=False).regret)
                )
        ours, known, revealed = np.mean(lost, axis=0)
        ratios = f"{ours / known:.2f}", f"{ours / revealed:.2f}"
        rows.append((name, depth, f"{ours:.1f}", f"{known:.1f}", ratios[0], f"{revealed:.1f}", ratios[1], "1.2"))
        print(*rows[-1], flush=True)
    text = (
        "Deep Sea with a reward that leads away from the treasure: 0.3 for the first left (early), or 0.5 for the last "
        f"left in the first column (late). Regret in 8 · depth episodes, {seeds} seeds from {FIRST_SEED}; `abrl` is "
        "told the row of a pair at its first visit, `r-max` all rows beforehand, or as `abrl` is.\n\n"
    )
    header = (
        "distraction",
        "depth",
        "abrl",
        "r-max, all rows",
        "ratio",
        "r-max, rows at first visits",
        "ratio ",
        "wanted",
    )
    return "Distracting rewards in layers", text + table(header, rows)


def distracting_sea(depth: int, pays: float, *, early: bool) -> qp.FiniteMDP:
    """Return a Deep Sea in which a left pays, at the start or at the end of the first column."""
    sea = qp.make_environment("deep-sea", depth=depth)
    distracts = 0 if early else (depth - 1) * (depth - 2) // 2
    edges = [
        (s, a, int(sea.transitions.row(k)[0][0]), 1.0, float(sea.rewards[k]) + pays * (s == distracts and a == 1))
        for k, (s, a) in enumerate(sea.space.pairs())
    ]
    return qp.FiniteMDP.from_edges(edges, goal=sea.space.goals.tolist(), initial=sea.initial, name="distracting-sea")


def run_untabled(problem: Untabled, agent: str, seed: int) -> tuple[int | None, int, float, float]:
    """Return the episode at which the last 25 bring what is wanted, episodes cut off, mean return, CPU s."""
    world = make_world(problem.make_fn(), cap=problem.cap)
    made, started = world.make_agent(agent, seed=seed), time.process_time()
    run = qp.explore(made, world, episodes=problem.episodes, seed=seed, keep_transitions=False)
    seconds = time.process_time() - started
    returns = np.array([row["return"] for row in run.rows])
    trailing = np.convolve(returns, np.full(25, 1 / 25), "valid")
    learned = np.flatnonzero(trailing >= problem.wanted)[:1]
    cut = sum(not row["reached_goal"] for row in run.rows)
    return (int(learned[0]) + 25 if learned.size else None), cut, float(returns.mean()), seconds


def without_a_table(seeds: int = 10, slow_seeds: int = 3) -> tuple[str, str]:
    rows = []
    for problem in UNTABLED:
        for agent in ("abrl", "psrl", "q-learning"):
            is_slow = problem.name in ("Taxi-v4", "MiniGrid-Empty-8x8", "Blackjack-v1")
            if agent == "psrl" and problem.name in ("Taxi-v4", "Blackjack-v1"):
                continue  # rows over all states: minutes a run
            number = slow_seeds if is_slow else seeds
            found = [run_untabled(problem, agent, seed) for seed in range(FIRST_SEED, FIRST_SEED + number)]
            times = np.array([problem.episodes if time is None else time for time, *_ in found], dtype=float)
            solved = sum(time is not None for time, *_ in found)
            cut, returned, seconds = np.mean([rest for _, *rest in found], axis=0)
            sign = "" if solved == number else "≥ "
            numbers = (
                f"{sign}{times.mean():.0f}",
                f"{solved}/{number}",
                f"{cut:.1f}",
                f"{returned:.3g}",
                f"{seconds:.1f}",
            )
            rows.append(
                (
                    problem.name,
                    agent,
                    KNOWLEDGE["q-learning" if agent == "q-learning" else "dirichlet"],
                    problem.wanted,
                    problem.episodes,
                    *numbers,
                )
            )
            print(*rows[-1], flush=True)
    text = (
        f"Agents know the space alone, and count successors; seeds from {FIRST_SEED}. Learned: the first episode at "
        "which the mean return of the last 25 is what is wanted. `psrl` plans anew by the same rule; it is left "
        "out where a plan takes it seconds.\n\n"
    )
    header = (
        "problem",
        "agent",
        "told of the transitions",
        "wanted return",
        "episodes",
        "learned",
        "solved",
        "cut off",
        "mean return",
        "CPU s a run",
    )
    return "Without a table", text + table(header, rows)


def against_the_paper(seeds: int = 20) -> tuple[str, str]:
    rows, means = [], {}
    for case in (
        Case("abrl-iid", "deep-sea", 10, episodes=1000),
        Case("abrl-paper", "deep-sea", 10, episodes=1000),
        Case("abrl-fixed", "deep-sea", 10, options={"tolerance": 0.05}, episodes=1000),
        Case("abrl-fixed", "deep-sea", 10, episodes=1000),
    ):
        run_case(case, 1000)  # load the kernels
        found = [run_case(case, seed) for seed in range(seeds if case.agent != "abrl-fixed" else 5)]
        means[case.label] = np.mean([seconds for _, seconds, _ in found])
        rows.append((case.label, case.told, len(found), *summary(found, case.episodes)))
        print(*rows[-1], [time for time, _, _ in found], flush=True)
    ratio = means["abrl-paper"] / means["abrl-iid"]
    text = (
        "Deep Sea of depth 10, 20 particles, one run after the other with all cores, until learned (at most 1,000 "
        f"episodes, at which unsolved runs count). abrl-paper takes {ratio:.0f} times the seconds of abrl-iid, which "
        "draws from the same posterior (wanted: at least 50, at most 20 s a run, learning in at most 200 episodes).\n\n"
    )
    return "One-look updates against the paper's sampler", text + table(
        ("agent", "told of the transitions", "seeds", "mean learning time [95 %]", "solved", "seconds a run"), rows
    )


def cost_of_an_update() -> tuple[str, str]:
    rows = []
    for depth, particles in ((10, 20), (20, 20), (20, 80), (40, 20)):
        sea = qp.make_environment("deep-sea", depth=depth)
        world = make_world(sea)
        agent = qp.make_agent("abrl-iid", sea, horizon=world.cap, particles=particles, seed=1)
        run = qp.explore(agent, world, episodes=2000, seed=1, until_learned=True, keep_transitions=False)
        spent = [row["seconds"] for row in run.rows]
        quarters = [1e3 * float(np.median(part)) for part in np.array_split(spent, 4)]
        moves = [row for row in agent.sampler.trace if row["stage"] == "move"]
        steps = [float(np.mean([m["trajectory"] for m in part])) for part in np.array_split(np.array(moves), 4)]
        rows.append(
            (depth, particles, len(spent), *(f"{t:.2f}" for t in quarters), " / ".join(f"{n:.0f}" for n in steps))
        )
        print(*rows[-1], flush=True)
    text = (
        "Milliseconds an episode (median) in the quarters of a run until learned. Trajectories are capped at 64 "
        "leapfrog steps, so an update is O(particles × pairs), whatever the number of episodes. Later quarters are "
        "cheaper: most pairs are known by then, and where fewer are free the trajectories are shorter.\n\n"
    )
    header = ("depth", "particles", "episodes", *(f"quarter {i}" for i in (1, 2, 3, 4)), "leapfrog steps by quarter")
    return "Cost of an update of abrl-iid", text + table(header, rows)


def other_problems(seeds: int = 20, taxi_seeds: int = 3) -> tuple[str, str]:
    still = {"is_slippery": False, "step_cost": 0.001}
    problems = (
        ("deep-sea-loops", 8, {}),
        ("river-swim", 6, {}),
        ("FrozenLake-v1", None, {"is_slippery": True, "step_cost": 0.001}),
        ("FrozenLake-v1", None, still),
        ("FrozenLake8x8-v1", None, still),
        ("CliffWalking-v1", None, {}),
    )
    agents = (
        ("abrl", "revealed"),
        ("abrl-iid", "revealed"),
        ("psrl-deterministic", "revealed"),
        ("r-max", "revealed"),
        ("r-max", "known"),
        ("q-learning", None),
    )
    planning, taxi = agents[2:5], ("Taxi-v4", None, {})
    cases = [_other(*problem, *agent) for problem in problems for agent in agents]
    cases += [_other(*problem, *agent, replan="episode") for problem in problems for agent in planning]
    rides = [_other(*taxi, *agent, replan=rule) for agent in planning for rule in ("loops", "episode")]
    found = run_all(cases, seeds) | run_all(rides, taxi_seeds)
    rows = []
    order = [(problem, agent) for problem in (*problems, taxi) for agent in agents]
    for case in sorted([*cases, *rides], key=lambda case: order.index(_place(case))):
        mean, solved, seconds = summary(found[id(case)], case.episodes)
        cut = np.mean([cut for _, _, cut in found[id(case)]])
        slips = {None: "", True: ", slippery", False: ", not slippery"}[case.env_options.get("is_slippery")]
        plans = {"loops": "anew in loops", "episode": "one an episode", None: "none"}[case.options.get("replan")]
        told = KNOWLEDGE[case.transitions or case.agent]
        rows.append(
            (case.environment + slips, case.depth or "", case.agent, plans, told, mean, solved, f"{cut:.1f}", seconds)
        )
    text = (
        f"First episode from which the trailing-100 mean regret stays below 10 % of a random agent's, {seeds} seeds, "
        f"{taxi_seeds} on Taxi, at most 1,000 episodes (at which unsolved runs count). Plans: an agent plans or draws "
        "anew within an episode when a state is entered a second time whose planned pair has become known since "
        '(`replan="loops"`, the default of every agent that holds a plan), or only at the start of one '
        '(`replan="episode"`). r-max is told the largest reward. River swim has no goal: every episode is cut off. '
        "FrozenLake has a step cost of 0.001. Seconds are those of the processor.\n\n"
    )
    header = (
        "environment",
        "depth",
        "agent",
        "plans",
        "told of the transitions",
        "mean learning time [95 %]",
        "solved",
        "episodes cut off",
        "seconds a run",
    )
    return "Other problems", text + table(header, rows)


def _other(
    environment: str,
    depth: int | None,
    env_options: dict[str, Any],
    agent: str,
    told: str | None,
    replan: str = "loops",
) -> Case:
    """Return a case of at most 1,000 episodes; q-learning has no plan."""
    options = {} if agent == "q-learning" else {"replan": replan}
    return Case(agent, environment, depth, told, options=options, env_options=env_options, episodes=1000)


def _place(case: Case) -> tuple[tuple[str, int | None, dict[str, Any]], tuple[str, str | None]]:
    return (case.environment, case.depth, case.env_options), (case.agent, case.transitions)


SECTIONS = (
    against_the_paper,
    cost_of_an_update,
    deep_sea,
    beside_r_max,
    units_of_rewards,
    distracting_rewards,
    other_problems,
    without_a_table,
    depth_100,
)
