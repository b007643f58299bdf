"""`make verify`: the statistical checks that take too long for `make test`, in one page; exit code 1 if one fails."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import many_modes
import qposterior as qp
from calibration import as_deterministic, halves, hmc_draws, rank_statistic, sequential_draws, simulate
from learning_times import EXPECTED, learning_times
from many_modes import unchecked_posterior
from mutations import MUTATIONS, is_killed
from problems import (
    SHAPES,
    competing_hub,
    importance_sample,
    random_problem,
    symmetric_hub,
    weighted_optimality,
)
from qposterior.experiments.metrics import random_policy_regret
from qposterior.inference.hmc import HMCSettings
from qposterior.inference.smc.annealed import AnnealedSampler
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.model.charts import CHARTS
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.prior import GaussianPrior
from result_page import table, write_page
from targets import BellmanTarget, QTarget

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


def hmc_is_calibrated() -> list[Check]:
    """Ranks of 400 true parameters among posterior draws, chi-square over 5 bins; false-alarm rate 1e-4 a line."""
    prior = GaussianPrior(mean=0.5, scale=1.5)
    checks = []
    for shape, acyclic in (("acyclic", True), ("looping", False)):
        mdp = qp.make_environment("random-mdp", num_states=3, acyclic=acyclic, seed=5)
        for coordinates, make in (("q", QTarget), ("bellman", BellmanTarget)):
            for learned in (False, True):
                noise = Noise(log_scale_mean=-0.5, log_scale_sd=0.5) if learned else Noise(scale=0.6)

                def simulate_fn(rng, mdp=mdp, learned=learned):
                    log_scale = rng.normal(-0.5, 0.5) if learned else np.log(0.6)
                    theta, seen = simulate(mdp, prior, np.exp(log_scale), 3, rng)
                    return (np.append(theta, log_scale) if learned else theta), seen

                draw_fn = hmc_draws(lambda seen, make=make, noise=noise: make(seen, prior, noise), scale_too=learned)
                statistic, bound = rank_statistic(draw_fn, simulate_fn, 400, 0)
                name = f"hmc, {shape}, {coordinates} coordinates, scale {'learned' if learned else 'known'}"
                worst = statistic.max()
                checks.append((name, f"χ² = {worst:.1f}", f"≤ {bound:.1f}", bool(worst <= bound)))
    return checks


def sequential_samplers_are_calibrated() -> list[Check]:
    """The same for the sequential samplers, which see half of the pairs, then all: 400 ranks; 1e-4 a line."""
    prior = GaussianPrior(mean=0.5, scale=1.5)
    mdp = qp.make_environment("random-mdp", num_states=3, acyclic=True, seed=5)
    common = {"prior": prior, "particles": 100}

    def annealed(coordinates):
        def start(seen, rng):
            likelihood = Noise(scale=0.6) if seen.rewards == "noisy" else Tolerance()
            return AnnealedSampler.start(
                seen, noise=likelihood, rng=rng, chart=CHARTS[coordinates], final_tolerance=0.6, **common
            )

        return start

    def one_look(seen, rng):
        likelihood = Noise(scale=0.6) if seen.rewards == "noisy" else Tolerance()
        return OneLookSampler.start(seen, noise=likelihood, rng=rng, **common)

    def with_kernel(rng):
        theta, seen = simulate(mdp, prior, 0.6, 1, rng)
        return theta, as_deterministic(seen)

    def without_noise(rng):
        theta, seen = simulate(mdp, prior, 0.0, 1, rng)
        return theta, as_deterministic(seen)

    def with_noise(rng):
        return simulate(mdp, prior, 0.6, 3, rng)

    checks = []
    for name, start_fn, simulate_fn in (
        ("one-look, tolerance 0", one_look, without_noise),
        ("one-look, noise", one_look, with_noise),
        ("annealed, Q coordinates, tolerance 0.6", annealed("q"), with_kernel),
        ("annealed, Bellman coordinates, tolerance 0.6", annealed("bellman"), with_kernel),
        ("annealed, Q coordinates, noise", annealed("q"), with_noise),
    ):
        statistic, bound = rank_statistic(sequential_draws(start_fn, halves), simulate_fn, 400, 0)
        worst = statistic.max()
        checks.append((name, f"χ² = {worst:.1f}", f"≤ {bound:.1f}", bool(worst <= bound)))
    return checks


def hmc_agrees_with_exact_over_repeats() -> list[Check]:
    """Mean of 30 independent runs against exact P(optimal), z by their own spread; |z| ≤ 4.5 over all pairs."""
    checks = []
    for shape in SHAPES:
        _, seen = random_problem(shape, 1, share=0.5)
        prior = GaussianPrior(mean=0.3, scale=1.6)
        settings = HMCSettings(chains=4, warm_up=300, max_iterations=500, block=500, min_ess=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exact = qp.posterior(seen, prior=prior, method="exact", particles=1).prob_optimal_table()
            runs = np.array(
                [
                    qp.posterior(seen, prior=prior, seed=seed, settings=settings, particles=2000).prob_optimal_table()
                    for seed in range(30)
                ]
            )
        gap, error = runs.mean(axis=0) - exact, runs.std(axis=0, ddof=1) / np.sqrt(30)
        z = np.abs(np.where(np.abs(gap) < 1e-9, 0.0, gap / np.maximum(error, 1e-9))).max()
        checks.append((f"hmc at tolerance 0, {shape}", f"|z| = {z:.2f}", "≤ 4.5", bool(z <= 4.5)))
    return checks


def exact_agrees_with_brute_force() -> list[Check]:
    """Exact P(optimal) against importance sampling that knows neither cells nor kernels; |z| ≤ 4.5 a problem."""
    checks = []
    for shape in ("acyclic", "looping", "discounted"):
        for seed in range(4):
            _, seen = random_problem(shape, seed, num_states=4)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                post = qp.posterior(seen, prior=GaussianPrior(scale=1.5), method="exact", particles=1)
            theta, weights = importance_sample(seen, 1.5, 0.0, 20_000, seed=seed)
            share = weighted_optimality(seen.space, theta, weights)
            size = weights.sum() ** 2 / np.sum(weights**2)
            table = post.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
            z = np.abs((share - table) / np.sqrt(np.maximum(table * (1 - table), 1e-4) / size)).max()
            checks.append((f"exact, {shape}, problem {seed}", f"|z| = {z:.2f}", "≤ 4.5", bool(z <= 4.5)))
    return checks


def a_thousand_cells_are_exact_in_time() -> list[Check]:
    """1,024 policy cells: standard errors of P(optimal) and of means (prior scales) below 1e-3 / 3, in 3 minutes."""
    sea = qp.make_environment("deep-sea", depth=7)
    chosen, reached = [], set()
    # Right moves only: every reached state keeps an action that is free, so that hardly a cell is empty.
    for k in np.flatnonzero(sea.space.pair_action == 0):
        following = {int(s) for s in sea.transitions.row(int(k))[0] if not sea.space.is_goal[s]}
        if len(reached | following) <= 10:
            reached |= following
            chosen.append((int(sea.space.pair_state[k]), int(sea.space.pair_action[k])))
    started = time.perf_counter()
    post = qp.posterior(qp.Experience.of_pairs(sea, chosen), method="exact", particles=1000)
    seconds = time.perf_counter() - started
    found = post.diagnostics
    error = max(found["prob_error"], found["mean_error_in_prior_scales"])
    text = f"{2 ** len(reached)} cells ({found['cells']} not empty), error {error:.1e}, {seconds:.0f} s"
    fine = len(reached) == 10 and error <= 1e-3 / 3 and seconds <= 180
    return [("exact enumeration", text, "error ≤ 3.3e-4, 180 s", bool(fine))]


def several_modes_are_right_or_distrusted() -> list[Check]:
    """P(optimal) within 0.05 of quadrature, or not trusted, for 20 seeds of each method; no help by enumeration."""
    checks = []
    for name, make, hub, truth in (("competing", competing_hub, 10, 0.84113), ("symmetric", symmetric_hub, 5, 0.5)):
        for method in ("exact", "hmc", "smc"):
            wrong = trusted = 0
            for seed in range(20):
                post = unchecked_posterior(make()[1], prior=GaussianPrior(scale=2.0), method=method, seed=seed)
                trusted += post.trusted
                wrong += post.trusted and abs(post.prob_optimal(hub)[0] - truth) > 0.05
            found = f"{wrong} wrong and trusted, {trusted} of 20 trusted"
            checks.append((f"{name} hub, {method}", found, "0 wrong and trusted", wrong == 0))
    return checks


def easy_posteriors_are_trusted() -> list[Check]:
    """Twenty problems under a wide prior, three seeds each: at least 95 % trusted, without help by enumeration."""
    checks = []
    for method in ("hmc", "smc"):
        problems = [random_problem(shape, 100 + number)[1] for shape in SHAPES for number in range(4)]
        trusted = [
            unchecked_posterior(seen, method=method, seed=seed).trusted for seen in problems for seed in range(3)
        ]
        share = float(np.mean(trusted))
        checks.append((f"easy posteriors, {method}", f"{share:.1%} of {len(trusted)} trusted", "≥ 95 %", share >= 0.95))
    return checks


def multimodal_problems_are_right_or_flagged() -> list[Check]:
    """Competing hubs, long chains of ancestors, near-ties of exits: 20 problems by the default method, 20 seeds each.

    No help by enumeration, against which the answers are held. An answer is *flagged* where it is not trusted, else
    *right* where every P(optimal) p is within 4.5 √(p (1 − p) / n) + 6.75 / n of the exact one, with n the effective
    number of its indicator among the 1,000 draws returned, else a *silent miss*. A right answer is missed with
    probability 7e-6 for a normal number (less than 1 % for all 400 answers; Bernstein's inequality is why rare actions
    have the second term). |t| is the worst of the mean P(optimal) of the seeds and, where the method gives it, of
    the mean log-evidence, by their own spread; false-alarm rate 1e-4 a problem.
    """
    return many_modes.run()


def mutations_are_noticed() -> list[Check]:
    """Errors put into the code on purpose; the named test must fail."""
    checks = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(is_killed, MUTATIONS))
    for mutation, killed in zip(MUTATIONS, answers, strict=True):
        name = f"`{mutation.file}`: `{' '.join(mutation.new.split())}`"
        checks.append((name, "noticed" if killed else "missed", f"`{mutation.test.rpartition('::')[2]}`", killed))
    return checks


SECTIONS: dict[str, Callable[[], list[Check]]] = {
    "Learning times": learning_times_near_the_known_numbers,
    "Random episodes": random_regret_is_exact,
    "Exact enumeration in time": a_thousand_cells_are_exact_in_time,
    "Exact enumeration against brute force": exact_agrees_with_brute_force,
    "HMC against exact enumeration": hmc_agrees_with_exact_over_repeats,
    "Simulation-based calibration": hmc_is_calibrated,
    "Calibration of the sequential samplers": sequential_samplers_are_calibrated,
    "Posteriors of several modes": several_modes_are_right_or_distrusted,
    "Problems of many modes": multimodal_problems_are_right_or_flagged,
    "Easy posteriors": easy_posteriors_are_trusted,
    "Mutations": mutations_are_noticed,
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
        text = f"{inspect.getdoc(run_fn)}\n\n" + table(("check", "found", "allowed", "holds"), rows)
        sections.append((heading, text))
    write_page(options.out, "Verification", INTRODUCTION, sections)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
