"""Two commits side by side: the inner loops of both, run in turns, and the median of the ratios of their times.

    python benchmarks/compare_commits.py BEFORE AFTER [--pairs 20]

Each commit is checked out into a folder of its own and keeps one process with compiled kernels; a pair of runs is one
measurement of each, in an order that alternates. Needs nothing but the environment of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent

WORKER = """
import json, sys, time
from functools import partial
import numpy as np
import qposterior as qp
from qposterior.inference.hmc import Tuning, hmc_move, run_hmc
from qposterior.inference.smc.one_look import OneLookSampler
try:
    from qposterior.model.charts import QChart
    from qposterior.model.noise import Noise, Tolerance
    from qposterior.model.target import Target as BellmanTarget
    QTarget, noise_name = partial(BellmanTarget, chart=QChart), "noise"
except ImportError:  # before the parts of a target could be put together
    from qposterior.model.likelihood import Noise, Tolerance
    from qposterior.model.tabular import BellmanTarget, QTarget
    noise_name = "likelihood"

def half_seen(depth):
    mdp = qp.make_environment("deep-sea", depth=depth)
    rng = np.random.default_rng(0)
    pairs = zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist())
    return qp.Experience.of_pairs(mdp, [pair for pair in pairs if rng.random() < 0.5])

def looping():
    mdp = qp.make_environment("random-mdp", num_states=30, seed=1)
    pairs = list(zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist()))
    return qp.Experience.of_pairs(mdp, pairs[::2])

prior, sea, loops = qp.GaussianPrior(), half_seen(20), looping()
targets = {
    "q": QTarget(sea, prior, Tolerance(tolerance=0.5)),
    "bellman": BellmanTarget(sea, prior, Tolerance()),
    "bellman, loops": BellmanTarget(loops, prior, Tolerance()),
    "bellman, noise": BellmanTarget(sea, prior, Noise(scale=0.5)),
}
tasks = {}
for name, target in targets.items():
    x = target.initial(64, np.random.default_rng(0))
    p = np.random.default_rng(2).standard_normal((64, 20, target.num_coordinates))
    log_uniform = np.log(np.random.default_rng(3).random((64, 20)))
    tuning = Tuning(step=0.05, trajectory=1.0, inverse_mass=np.ones(target.num_coordinates))
    tasks["gradient, " + name] = lambda t=target, x=x: [t.log_density_and_grad(x) for _ in range(40)]
    def leapfrog(t=target, x=x, m=tuning):
        hmc_move(t, x, t.log_density(x), m, 40, np.random.default_rng(1))
    tasks["leapfrog, " + name] = leapfrog
    def moves(t=target, x=x, p=p, u=log_uniform):
        given = {"step": np.full(64, 0.05), "num_steps": np.full((64, 20), 20), "inverse_mass": np.ones(p.shape[2])}
        t.run_chains(x, t.log_density(x), p.copy(), u, **given)
    tasks["trajectories, " + name] = moves

def one_look():
    given = {"prior": prior, noise_name: Tolerance(), "particles": 20, "rng": np.random.default_rng(0)}
    sampler = OneLookSampler.start(sea, **given)
    sampler.update(sea)

settings = qp.HMCSettings(chains=8, warm_up=80, max_iterations=100, block=100, min_ess=0.0, max_r_hat=np.inf)
tasks["one-look updates"] = one_look
tasks["chains, q"] = lambda: run_hmc(targets["q"], np.random.default_rng(0), settings)
tasks["chains, bellman"] = lambda: run_hmc(targets["bellman"], np.random.default_rng(0), settings)
for task in tasks.values():
    task()
print(json.dumps(list(tasks)), flush=True)
for line in sys.stdin:
    start = time.process_time()
    tasks[line.strip()]()
    print(time.process_time() - start, flush=True)
"""


def start_worker(commit: str, folder: Path) -> subprocess.Popen[str]:
    """Check a commit out and start its worker."""
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(folder), commit], cwd=ROOT, check=True)
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def measure(worker: subprocess.Popen[str], task: str) -> float:
    """Return the CPU seconds of one run of a task."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(task + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def compare(commits: tuple[str, str], pairs: int) -> dict[str, np.ndarray]:
    """Return the ratios after / before of every task."""
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("before", "after")]
        try:
            workers = [start_worker(commit, place) for commit, place in zip(commits, places, strict=True)]
            first, tasks = (json.loads(worker.stdout.readline()) for worker in workers if worker.stdout is not None)
            assert first == tasks
            ratios: dict[str, list[float]] = {task: [] for task in tasks}
            for number in range(pairs):
                for task in tasks:
                    order = (0, 1) if number % 2 == 0 else (1, 0)
                    seconds = {which: measure(workers[which], task) for which in order}
                    ratios[task].append(seconds[1] / seconds[0])
            for worker in workers:
                worker.kill()
        finally:
            for place in places:
                subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=False)
    return {task: np.array(values) for task, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    print(f"CPU time of {options.after} over that of {options.before}, {options.pairs} pairs of runs")
    for task, ratio in compare((options.before, options.after), options.pairs).items():
        low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
        print(f"  {task:26s} {middle:6.3f}   half of the pairs from {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
