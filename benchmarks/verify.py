"""`make verify`: the statistical checks that take too long for `make test`, in one page; exit code 1 if one fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

import qposterior as qp
from learning_times import EXPECTED, learning_times
from qposterior.experiments.metrics import random_policy_regret
from result_page import table, write_page

INTRODUCTION = "Each line is a check, what it found and what it allows. Rebuilt by `make verify`.\n"
Check = tuple[str, str, str, bool]


def learning_times_near_the_known_numbers() -> list[Check]:
    """R-MAX within 2 episodes; PSRL within 8 %, five times the standard error of 20 seeds."""
    checks = []
    for (agent, transitions), expected in EXPECTED.items():
        for depth, number in zip((10, 20), expected, strict=False):
            times, _ = learning_times(agent, transitions, depth, seeds=20)
            unsolved = times.count(None)
            mean = float(np.mean([t for t in times if t is not None]))
            allowed = 2.0 if agent == "r-max" else 0.08 * number
            name = f"learning time of {agent} ({transitions}) at depth {depth}"
            fine = unsolved == 0 and abs(mean - number) <= allowed
            checks.append((name, f"{mean:.1f}, {unsolved} unsolved", f"{number} ± {allowed:.1f}", fine))
    return checks


def random_regret_is_exact() -> list[Check]:
    """Mean regret of 20,000 random episodes against the exact number; |z| ≤ 4: false-alarm rate 6e-5 each."""
    checks = []
    for name in ("deep-sea", "deep-sea-loops", "river-swim", "random-mdp", "bandit"):
        mdp = qp.make_environment(name)
        agent = qp.make_agent("random", mdp, horizon=1, seed=1)
        run = qp.explore(agent, mdp, episodes=20_000, seed=0, keep_transitions=False)
        exact = random_policy_regret(mdp, qp.solve(mdp).value, run.world.cap)
        z = (np.mean(run.regret) - exact) / (np.std(run.regret) / np.sqrt(len(run.regret)))
        checks.append((f"regret of random episodes on {name}", f"z = {z:.2f}", "|z| ≤ 4", abs(z) <= 4))
    return checks


SECTIONS: dict[str, Callable[[], list[Check]]] = {
    "Learning times": learning_times_near_the_known_numbers,
    "Random episodes": random_regret_is_exact,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/verification.md")
    options = parser.parse_args()
    sections, failed = [], 0
    for heading, run_fn in SECTIONS.items():
        checks = run_fn()
        for check in checks:
            print("ok  " if check[3] else "FAIL", *check[:3], sep="  ", flush=True)
        failed += sum(not check[3] for check in checks)
        rows = [(*check[:3], "yes" if check[3] else "**no**") for check in checks]
        text = f"{run_fn.__doc__}\n\n" + table(("check", "found", "allowed", "holds"), rows)
        sections.append((heading, text))
    write_page(options.out, "Verification", INTRODUCTION, sections)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
