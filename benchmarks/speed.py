"""Speed of the samplers: ratios measured side by side in one run, gradients beside seconds."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

import qposterior as qp
from families import draw_problem, simulate
from qposterior.inference.chains import HMCSettings
from qposterior.inference.diagnostics import bulk_ess
from qposterior.inference.hmc import ChainState, step, warm_up
from qposterior.inference.smc.blocks import Blocks, over_blocks
from qposterior.model.kernels.blocks import block_densities
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
from qposterior.model.solve_models import ModelSolver, solve_models
from qposterior.world.models import ModelDraws
from result_page import table
from targets import BellmanTarget, QTarget


def half_explored(depth: int, seed: int = 0) -> qp.Experience:
    """Return the experience of every second pair of a Deep Sea, drawn at random."""
    return explored(depth, 0.5, seed)


def explored(depth: int, share: float, seed: int = 0) -> qp.Experience:
    """Return the experience of a random share of the pairs of a Deep Sea."""
    sea = qp.make_environment("deep-sea", depth=depth)
    rng = np.random.default_rng(seed)
    pairs = zip(sea.space.pair_state.tolist(), sea.space.pair_action.tolist(), strict=True)
    return qp.Experience.of_pairs(sea, [pair for pair in pairs if rng.random() < share])


def best_time(function: Callable[[], object], repeats: int = 20) -> float:
    """Return the shortest of several timings, after one call that compiles."""
    function()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def leapfrog_against_blackjax(depth: int = 40, particles: int = 100, steps: int = 50) -> tuple[str, str]:
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    seen = half_explored(depth)
    target = QTarget(seen, GaussianPrior(), Tolerance(tolerance=0.1))
    layout = target.layout
    observed, successor = jnp.asarray(layout.observed), jnp.asarray(layout.successor)
    rewards = jnp.asarray(target.data.mean)
    deciding = int((~seen.space.is_goal).sum())

    def log_density(theta):  # every state has two actions and every row one successor: the best case for JAX
        value = jnp.concatenate([theta.reshape(deciding, 2).max(axis=1), jnp.zeros(seen.space.num_states - deciding)])
        gap = theta[observed] - value[successor] - rewards
        return -0.5 * jnp.sum(gap**2) / 0.01 - 0.5 * jnp.sum(theta**2) / 16.0

    size, step = target.num_coordinates, 0.01
    x = np.random.default_rng(0).normal(0.0, 1.0, (particles, size))
    kernel = blackjax.hmc(log_density, step, jnp.ones(size), num_integration_steps=steps)
    state = jax.vmap(kernel.init)(jnp.asarray(x))
    keys = jax.random.split(jax.random.key(0), particles)
    move = jax.jit(jax.vmap(kernel.step))
    theirs = best_time(lambda: jax.block_until_ready(move(keys, state)))

    ours_density = target.log_density(x).smooth
    shift = np.asarray(jax.vmap(log_density)(jnp.asarray(x))) - ours_density
    assert np.ptp(shift) < 1e-6 * np.abs(ours_density).max(), "the two densities must agree up to a constant"
    p = np.random.default_rng(1).standard_normal((particles, size))
    lengths, sizes = np.full(particles, steps), np.full(particles, step)
    ours = best_time(lambda: target.leapfrog(x, p, step=sizes, num_steps=lengths, inverse_mass=np.ones(size)))
    per = 1e9 / (particles * steps * size)
    rows = [
        ("qposterior", f"{ours:.4f}", f"{ours * per:.2f}", particles * steps),
        ("BlackJAX", f"{theirs:.4f}", f"{theirs * per:.2f}", particles * steps),
        ("ratio", f"{theirs / ours:.1f}", "", ""),
    ]
    text = (
        f"Deep Sea of depth {depth} ({size} coordinates), {particles} particles, {steps} leapfrog steps, float64, "
        "compiled, the best of 20 calls after the first. Wanted: at least 5 times faster.\n\n"
    )
    header = ("sampler", "seconds", "ns per coordinate and step", "gradients")
    return "Leapfrog throughput in Q coordinates", text + table(header, rows)


def effective_draws(target, seconds: float, seed: int = 0, chains: int = 8) -> tuple[float, int, float]:
    """Return min-ESS per second after a tuned warm-up, gradients and acceptance, sampling for about `seconds`."""
    settings = HMCSettings(max_leapfrog=2048, chains=chains)
    rng = np.random.default_rng(seed)
    state, _ = warm_up(target, ChainState.untuned(target, target.initial(settings.chains, rng)), rng, settings)
    paths, gradients, acceptance = [], 0, []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(paths) < 2:
        state, move = step(target, state, rng, settings, times=settings.block)
        paths.append(move.path)
        gradients += move.gradients
        acceptance.append(move.acceptance.mean())
    elapsed = time.perf_counter() - started
    draws = np.concatenate(paths, axis=1)
    q = target.to_q(draws.reshape(-1, draws.shape[2])).reshape(*draws.shape[:2], -1)
    return float(np.nanmin(bulk_ess(q))) / elapsed, gradients, float(np.mean(acceptance))


def coordinates_compared(seconds: float = 8.0, seeds: int = 3) -> tuple[str, str]:
    rows, words = [], []
    for chains in (8, 64):
        rates: dict[str, list[float]] = {}
        for seed in range(seeds):
            for name, found in effective_draws_of_half(seed, seconds, chains).items():
                rate = float(np.median([one[0] for one in found]))
                gradients, acceptance = sum(one[1] for one in found), float(np.mean([one[2] for one in found]))
                rates.setdefault(name, []).append(rate)
                rows.append((chains, seed, name, f"{rate:.1f}", gradients, f"{acceptance:.2f}"))
                print(*rows[-1], flush=True)
        q, near, exact = (np.array(rates[name]) for name in rates)
        gain = ", ".join(f"{r:.0f}" for r in near / q)
        limit = ", ".join(f"{r:.2f}" for r in exact / near)
        words.append(
            f"{chains} chains: Bellman over Q at ε = 0.01 {gain} times (wanted: at least 50), Bellman at ε = 0 over "
            f"Bellman at 0.01 {limit} (wanted: not below 1, up to noise)."
        )
    text = (
        "Half-explored Deep Sea of depth 6, three random halves; the smallest bulk effective sample size over the "
        "pairs per second of sampling, the median of several tuned runs.\n\n" + "\n\n".join(words) + "\n\n"
    )
    header = ("chains", "half", "coordinates", "effective draws a second", "gradients", "acceptance")
    return "Effective draws per second in two coordinate systems", text + table(header, rows)


def effective_draws_of_half(seed: int, seconds: float, chains: int) -> dict[str, list[tuple[float, int, float]]]:
    """Return the tries of each sampler on one random half; the tuning of a warm-up is itself random."""
    seen = half_explored(6, seed)
    targets = {
        "Q, ε = 0.01": QTarget(seen, GaussianPrior(), Tolerance(tolerance=0.01)),
        "Bellman, ε = 0.01": BellmanTarget(seen, GaussianPrior(), Tolerance(tolerance=0.01)),
        "Bellman, ε = 0": BellmanTarget(seen, GaussianPrior(), Tolerance()),
    }
    tries: dict[str, list[tuple[float, int, float]]] = {name: [] for name in targets}
    for again in range(5):
        for name, target in targets.items():
            slow = name.startswith("Q")
            if not slow or again < 2:
                tries[name].append(effective_draws(target, seconds if slow else 1.5, 10 * seed + again, chains))
    return tries


def gradient_scaling(particles: int = 20) -> tuple[str, str]:
    rows = []
    base = {}
    for depth in (10, 20, 40, 100):
        seen = half_explored(depth)
        for name, target in {
            "Q, ε = 0.1": QTarget(seen, GaussianPrior(), Tolerance(tolerance=0.1)),
            "Bellman, ε = 0": BellmanTarget(seen, GaussianPrior(), Tolerance()),
        }.items():
            x = target.initial(particles, np.random.default_rng(0))
            p = np.random.default_rng(1).standard_normal(x.shape)
            steps = max(5, 200_000 // seen.space.num_pairs)
            arguments = {
                "step": np.full(particles, 1e-3),
                "num_steps": np.full(particles, steps),
                "inverse_mass": np.ones(x.shape[1]),
            }
            seconds = best_time(lambda t=target, x=x, p=p, a=arguments: t.leapfrog(x, p, **a))
            per = 1e9 * seconds / (particles * (steps + 1) * seen.space.num_pairs)
            base.setdefault(name, per)
            rows.append((depth, seen.space.num_pairs, name, f"{per:.2f}", f"{per / base[name]:.2f}"))
            print(*rows[-1], flush=True)
    text = "Time per gradient and pair; wanted: no growth beyond 20 % from depth 10 to 100.\n\n"
    header = ("depth", "pairs", "coordinates", "ns per gradient and pair", "relative to depth 10")
    return "Cost of a gradient", text + table(header, rows)


def gradients_in_blocks(particles: int = 24, steps: int = 50) -> tuple[str, str]:
    """Leapfrog steps of the same particles at the same density, by the general loops and in blocks."""
    rows = []
    for depth in (20, 40, 100):
        for share in (0.5, 0.9):
            seen, rng = explored(depth, share), np.random.default_rng(0)
            target = BellmanTarget(seen, GaussianPrior(), Tolerance())
            x = rng.normal(0.0, 4.0, (particles, seen.space.num_pairs))
            blocks = Blocks.of(seen, target.parts.prior_data, x)
            assert blocks is not None
            moves = blocks.begin_moves()
            opened = moves.opened
            grad, smooth = np.empty_like(moves.x), np.empty((1, particles))
            over_blocks(block_densities, opened, moves.x, grad, smooth)
            free = target.chart.free
            _, general = target.log_density_and_grad(x[:, free])
            columns = np.searchsorted(free, opened.exit_pair)
            np.testing.assert_allclose(grad.T, general[:, columns], rtol=1e-9, atol=1e-9)
            sizes, lengths = np.full(particles, 1e-3), np.full(particles, steps)
            p = rng.standard_normal((particles, free.size))
            ones = np.ones(free.size)
            theirs = best_cpu_time(
                lambda t=target, x=x[:, free], p=p, sizes=sizes, lengths=lengths, ones=ones: t.leapfrog(
                    x, p, step=sizes, num_steps=lengths, inverse_mass=ones
                ),
                5,
            )
            ours = best_cpu_time(lambda m=moves: m.run(step=1e-3, num_steps=steps, rng=np.random.default_rng(1)), 5)
            visited, num = opened.exit_pair.size + opened.edge_reward.size, seen.space.num_pairs
            gradients = particles * (steps + 1)
            per = f"{1e9 * ours / gradients / max(visited, 1):.2f}", f"{1e9 * theirs / gradients / num:.2f}"
            rows.append((depth, f"{100 * share:.0f} %", num, visited, *per, f"{theirs / ours:.1f}"))
            print(*rows[-1], flush=True)
    text = (
        f"Deep Sea with a random share of its pairs seen, {particles} particles, trajectories of {steps} leapfrog "
        "steps with momenta and accept step, CPU time, the best of five; gradients agree to rounding. In blocks "
        "only the exits and edges of open states are visited (docs/explanation/blocks.md). Wanted: 1.0 to 1.9 ns.\n\n"
    )
    header = (
        "depth",
        "seen",
        "pairs",
        "exits and edges",
        "blocks, ns per exit or edge and gradient",
        "general, ns per pair and gradient",
        "whole trajectories: general over blocks",
    )
    return "Trajectories in blocks", text + table(header, rows)


def first_use() -> tuple[str, str]:
    """CPU seconds of two commands with an empty cache of compiled loops, and again with a full one."""
    explored = "explore deep-sea --depth 4 --episodes 20 --seeds 1"
    commands = {
        explored: ["-m", "qposterior", *explored.split(), "--out"],
        "posterior(…) of three pairs of Deep Sea": ["-c", SMALL_POSTERIOR],
    }
    rows = []
    for name, command in commands.items():
        with tempfile.TemporaryDirectory() as cache:
            spent = []
            for again in range(2):
                out = [f"{cache}/run{again}"] if command[-1] == "--out" else []
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, *command, *out],
                    check=True,
                    capture_output=True,
                    env=os.environ | {"NUMBA_CACHE_DIR": cache},
                )
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows.append((name, f"{spent[0]:.1f}", "15", f"{spent[1]:.1f}", "2"))
        print(*rows[-1], flush=True)
    header = ("command", "first use, CPU s", "wanted, at most", "then, CPU s", "wanted, at most ")
    return "First use", "Compiled loops are cached on disk at their first use.\n\n" + table(header, rows)


SMALL_POSTERIOR = """
import qposterior as qp
mdp = qp.make_environment("deep-sea", depth=4)
qp.posterior(qp.Experience.of_pairs(mdp, [(0, 0), (0, 1), (1, 0)]), seed=0)
"""


def workers_stay_busy(runs: int = 40, workers: int = 2) -> tuple[str, str]:
    rows = []
    for agent, depth in (("abrl", 20), ("psrl-deterministic", 30)):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            found = qp.compare(
                "deep-sea", agents=[agent], depths=[depth], seeds=runs, workers=workers, out=Path(folder) / "sweep"
            )
            wall = time.perf_counter() - started
        own = float(found.runs["seconds"].sum()) / workers
        rows.append((agent, depth, f"{wall:.1f}", f"{own:.1f}", f"{wall / own:.2f}", "1.25"))
        print(*rows[-1], flush=True)
    text = (
        f"Wall-clock of {runs} runs on {workers} workers, started and loaded on the way, over the sum of the runs' own "
        "seconds shared among the workers.\n\n"
    )
    header = ("agent", "depth", "wall-clock (s)", "own seconds / workers", "ratio", "wanted, at most")
    return "Comparisons keep their workers busy", text + table(header, rows)


READ_BY = {
    "read_log": "from qposterior.logs.read import read_log; read_log({path!r})",
    "DuckDB, every cell scanned": (
        'import duckdb; duckdb.sql("SELECT max(state), max(action), sum(reward), max(next_state) '
        "FROM read_csv('{path}')\").fetchall()"
    ),
    "DuckDB, grouped sums": (
        'import duckdb; duckdb.sql("SELECT state, action, next_state, count(*), avg(reward), var_pop(reward) '
        "FROM read_csv('{path}') GROUP BY ALL\").fetchall()"
    ),
    "pandas.read_csv": "import pandas; pandas.read_csv({path!r})",
}
"""What reads the same file, each in a process of its own."""


def reading_logs(rows: int = 10_000_000) -> tuple[str, str]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        for start in range(0, rows, 1_000_000):
            num = min(1_000_000, rows - start)
            state, action = rng.integers(0, 500, num), rng.integers(0, 4, num)
            part = {
                "state": np.char.add("s", state.astype(str)),
                "action": np.array(["up", "down", "left", "right"])[action],
                "reward": rng.normal(size=num).round(3),
                "next_state": np.char.add("s", ((state + action) % 500).astype(str)),
            }
            pd.DataFrame(part).to_csv(path, index=False, header=start == 0, mode="a")
        measured = {name: in_a_process(code.format(path=str(path))) for name, code in READ_BY.items()}
    ours = measured["read_log"]
    found = [
        (name, f"{cpu:.1f}", f"{wall:.1f}", f"{megabytes:.0f}", f"{ours[0] / cpu:.2f}")
        for name, (cpu, wall, megabytes) in measured.items()
    ]
    print(*found, sep="\n", flush=True)
    header = ("read by", "CPU s", "wall-clock s", "MB at most, imports included", "CPU of read_log is times")
    words = f"{rows:,} rows of a CSV file, 500 states, 4 actions, text labels; each by a process of its own.\n\n"
    return "Reading a decision log", words + table(header, found)


def in_a_process(code: str) -> tuple[float, float, float]:
    """Return the CPU and wall-clock seconds of some code, without its start, and the most memory of its process."""
    lines = (
        "import re, time, numpy, pandas, duckdb, qposterior.logs.read",
        "cpu, wall = time.process_time(), time.perf_counter()",
        code,
        "most = int(re.findall(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[0]) / 1024",
        "print(time.process_time() - cpu, time.perf_counter() - wall, most)",
    )
    answer = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    cpu, wall, most = map(float, answer.stdout.split()[-3:])
    return cpu, wall, most


def best_cpu_time(function: Callable[[], object], repeats: int = 2) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times)


def solving_models(large_draws: int = 200) -> tuple[str, str]:
    """Optima of many models against a plain loop over draws: dense policy iteration, sparse value iteration."""
    rows = []
    small = random_models(24, 8, 10, draws=2000, discount=0.99)
    theirs = best_cpu_time(lambda: [dense_optimum(small, d) for d in range(0, 2000, 10)]) * 10
    rows.append(solving_row("24 × 8 × 10", small, theirs, "0.5"))
    for discount in (0.95, 0.99):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.dat"
            large = random_models(100_000, 4, 5, draws=large_draws, discount=discount, path=path)
            theirs = best_cpu_time(lambda m=large: sparse_optimum(m, 0), 1) * large_draws
            rows.append(solving_row("100,000 × 4 × 5", large, theirs, "120"))
    text = (
        "States × actions × successors with random rows; CPU seconds and wall-clock of Q* in all draws, rows of the "
        "large problem in a memory-mapped file of single precision, Q* block by block. The plain loop is dense policy "
        "iteration from the first actions (small), SciPy's sparse value iteration until changes are below 1e-9 of the "
        "spread (large), timed on some draws. The bound is that on the error of V*, relative to the spread of Q*.\n\n"
    )
    header = (
        "problem",
        "discount",
        "draws",
        "CPU s",
        "wall-clock s",
        "wanted CPU s",
        "plain loop, CPU s",
        "ratio",
        "bound",
    )
    return "Solving many models", text + table(header, rows)


def solving_row(name: str, models: ModelDraws, theirs: float, wanted: str) -> tuple[object, ...]:
    worst = 0.0

    def solve_all() -> None:
        nonlocal worst
        for block in ModelSolver(models).solve_blocks():
            worst = max(worst, float(np.max(block.bounds / np.ptp(block.q, axis=1))))

    solve_models(models, draws=[0])  # compiles
    wall, ours = time.perf_counter(), best_cpu_time(solve_all, 1)
    wall = time.perf_counter() - wall
    found = (f"{ours:.2f}", f"{wall:.2f}", wanted, f"{theirs:.1f}", f"{theirs / ours:.0f}", f"{worst:.0e}")
    row = (name, models.space.discount, models.num_draws, *found)
    print(*row, flush=True)
    return row


def random_models(
    states: int, actions: int, successors: int, *, draws: int, discount: float, path: Path | None = None, seed: int = 0
) -> ModelDraws:
    """Return models that scatter around one with random rows, as those of a posterior do."""
    rng = np.random.default_rng(seed)
    space = qp.StateActionSpace.from_mask(np.ones((states, actions), bool), np.zeros(states, bool), discount=discount)
    size = (space.num_pairs, successors)
    following = np.sort(rng.integers(0, states - successors + 1, size), axis=1) + np.arange(successors)
    centre = rng.dirichlet(np.full(successors, 0.7), space.num_pairs)
    shape = (draws, space.num_pairs * successors)
    rows = np.empty(shape) if path is None else np.memmap(path, np.float32, "w+", shape=shape)
    for d in range(draws):
        drawn = rng.standard_gamma(20.0 * centre + 0.05)
        rows[d] = (drawn / drawn.sum(axis=1, keepdims=True)).ravel()
    return ModelDraws(
        space=space,
        first_edge=np.arange(space.num_pairs + 1) * successors,
        successor=following.ravel(),
        rows=rows,
        rewards=rng.normal(size=space.num_pairs) + 0.3 * rng.standard_normal((draws, space.num_pairs)),
    )


def dense_optimum(models: ModelDraws, draw: int) -> np.ndarray:
    """Policy iteration as one would write it: V from numpy.linalg.solve, until the policy stays."""
    space = models.space
    rows = np.zeros((space.num_pairs, space.num_states))
    rows[np.repeat(np.arange(space.num_pairs), np.diff(models.first_edge)), models.successor] = models.rows[draw]
    table, rewards = (
        rows.reshape(space.num_states, -1, space.num_states),
        models.rewards[draw].reshape(space.num_states, -1),
    )
    policy, every = np.zeros(space.num_states, dtype=int), np.arange(space.num_states)
    while True:
        value = np.linalg.solve(
            np.eye(space.num_states) - space.discount * table[every, policy], rewards[every, policy]
        )
        q = rewards + space.discount * table @ value
        if np.array_equal(following := q.argmax(axis=1), policy):
            return q.ravel()
        policy = following


def sparse_optimum(models: ModelDraws, draw: int) -> np.ndarray:
    """Value iteration with SciPy's sparse rows."""
    model = models.mdp(draw)
    value = np.zeros(models.space.num_states)
    while True:
        q = model.rewards + model.space.discount * model.transitions.expect(value)
        following = model.space.maximum(q)
        change, value = np.abs(following - value).max(), following
        if change * model.space.discount / (1.0 - model.space.discount) < 1e-9 * np.ptp(q):
            return q


def fitting_logs(repeats: int = 5, large_states: int = 100_000) -> tuple[str, str]:
    """CPU of a whole `fit` by models and by a bootstrap, beside each other; and the largest problem."""
    rows = []
    for name, frame, discount in [*shipped_logs(), *family_logs()]:
        spent: dict[str, list[float]] = {"model": [], "bootstrap": []}
        for number in range(repeats + 1):
            for method, seconds in spent.items():
                begin = time.process_time()
                found = qp.fit(frame, discount=discount, method=method, seed=number)
                assert found.policies is not None
                seconds.append(time.process_time() - begin)
        ours, theirs = (float(np.median(seconds[1:])) for seconds in spent.values())  # the first call compiles
        rows.append((name, found.posterior.space.num_pairs, f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.1f}"))
        print(*rows[-1], flush=True)
    text = (
        "From a table in memory to the values of policies, 2,000 draws by either method, CPU seconds, median of "
        f"{repeats} interleaved calls. Wanted: at most 5 times the bootstrap, whose intervals hold the truth far less "
        "often ([calibration](calibration.md)).\n\n"
    )
    text += table(("log", "pairs", "model, CPU s", "bootstrap, CPU s", "ratio"), rows)
    return "Fitting logs", text + "\n" + large_fit(large_states)


def shipped_logs() -> list[tuple[str, pd.DataFrame, float | None]]:
    folder = Path(__file__).parent.parent / "examples" / "logs"
    return [(path.stem, pd.read_csv(path), None) for path in sorted(folder.glob("*.csv"))]


def family_logs(seed: int = 2000, readings: int = 30) -> list[tuple[str, pd.DataFrame, float | None]]:
    logs: list[tuple[str, pd.DataFrame, float | None]] = []
    for family in ("near_equal", "garnet", "wide_rows", "marketing"):
        problem = draw_problem(family, seed)
        frame = simulate(problem, readings, np.random.default_rng(seed))
        logs.append((f"{family}, {readings} readings a pair", frame, problem.discount))
    return logs


def large_fit(num_states: int, actions: int = 4, readings: int = 6, successors: int = 3) -> str:
    """Fit a log of random rows in a process of its own, by the command line, and return what that took."""
    rng = np.random.default_rng(0)
    following = rng.integers(0, num_states, (num_states, actions, successors))
    share = np.cumsum(rng.dirichlet(np.ones(successors), (num_states, actions)), axis=2)
    mean = rng.normal(size=(num_states, actions))
    state, action = (np.repeat(x.ravel(), readings) for x in np.indices((num_states, actions)))
    place = np.sum(rng.random(state.size)[:, None] > share[state, action][:, :-1], axis=1)
    frame = pd.DataFrame(
        {
            "state": state,
            "action": action,
            "reward": (mean[state, action] + rng.normal(size=state.size)).round(3),
            "next_state": following[state, action, place],
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.csv"
        frame.to_csv(path, index=False)
        command = [sys.executable, "-m", "qposterior", "fit", str(path), "--json", str(Path(folder) / "answer.json")]
        before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        wall = time.perf_counter() - wall
        answer = json.loads((Path(folder) / "answer.json").read_text(encoding="utf-8"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    draws = answer["policies"]["num_draws"]["reporting"]
    return (
        f"{num_states:,} states with {actions} actions, {successors} random successors a pair and {readings} readings "
        f"of each ({len(frame):,} rows), `fit log.csv --json answer.json`, compiled before: {wall:.0f} s, {cpu:.0f} "
        f"CPU s, {after.ru_maxrss / 1e6:.1f} GB at most (wanted: a minute or two, below 4 GB); policies are valued on "
        f"{draws} draws.\n"
    )


def start_up(repeats: int = 7) -> tuple[str, str]:
    rows = []
    for label, arguments, most in (
        ("import qposterior", ["-c", "import qposterior"], "0.5"),
        ("qposterior --help", ["-m", "qposterior", "--help"], "0.2"),
        ("python alone", ["-c", "pass"], "–"),
    ):
        spent = []
        for _ in range(repeats):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        rows.append((label, f"{np.median(spent):.2f}", most))
        print(*rows[-1], flush=True)
    text = f"Seconds of CPU, median of {repeats} starts.\n\n"
    return "Start-up", text + table(("what", "CPU seconds", "wanted, at most"), rows)
