"""Posteriors of many modes by the default method, against enumeration: right, flagged, or a silent miss."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

import qposterior as qp
from problems import multimodal_problems
from qposterior.inference import cross_check
from qposterior.inference.diagnostics import effective_sample_size
from qposterior.world.arrays import FloatArray

PRIOR = qp.GaussianPrior(scale=2.0)
SEEDS = 20
LIMIT = 4.5
"""Standard errors that a P(optimal) may be off: 7e-6 for a normal number."""

FALSE_ALARM = 1e-4
"""Probability that the mean over the seeds of a problem is blamed although it is right."""

FEWEST_RIGHT = 0.9
"""Share of all answers that must be right: one that flags everything is silent about nothing, and of no use."""

OUTCOMES = ("right", "flagged", "silent miss")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of one problem."""

    outcome: str
    method: str
    share: FloatArray  # (K,)  P(optimal) of the pairs
    z: FloatArray  # (K,)  what they are off by, in standard errors of the draws
    log_evidence: float


def unchecked_posterior(seen: qp.Experience, **options) -> qp.Posterior:
    """Return what a sampler says by itself, without help by enumeration."""
    reach, cross_check.CHECKED_PAIRS = cross_check.CHECKED_PAIRS, 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return qp.posterior(seen, **options)
    finally:
        cross_check.CHECKED_PAIRS = reach


def judge(post: qp.Posterior, exact: FloatArray) -> Cell:
    """Return the outcome of a run, given the ``(K,)`` exact P(optimal).

    The standard error of a pair is √(p (1 − p) / n), n the effective number of its indicator among the draws returned.
    """
    indicator = post.space.optimal_share(post.draws).reshape(post.chains, -1, post.space.num_pairs)
    share, n = indicator.mean(axis=(0, 1)), effective_sample_size(indicator)
    n = np.where(np.isnan(n), float(post.weights.size), np.minimum(n, post.weights.size))
    gap, variance = share - exact, exact * (1.0 - exact) / n
    # Counts of what is rare are not normal: Bernstein's inequality bounds their tails.
    is_right = np.abs(gap) <= LIMIT * np.sqrt(variance) + LIMIT**2 / (3.0 * n)
    outcome = "flagged" if not post.trusted else "right" if is_right.all() else "silent miss"
    z = gap / np.sqrt(np.maximum(variance, 1e-12))
    return Cell(outcome=outcome, method=post.method, share=share, z=z, log_evidence=post.log_evidence)


def bias(values: FloatArray, exact: FloatArray) -> float:
    """Return the largest |t| of the mean of ``(R, K)`` numbers against ``(K,)`` exact ones, by their own spread."""
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return float(np.max(np.abs(values.mean(axis=0) - exact) / error, initial=0.0))


def rows_of(name: str, cells: list[Cell], exact: qp.Posterior) -> tuple[tuple[str, str, str, bool], FloatArray]:
    """Return the line of a problem, and the z of pairs that the draws may speak of."""
    space = exact.space
    table = exact.prob_optimal_table()[space.pair_state, space.pair_action]
    open_pairs = np.flatnonzero((table > 0.02) & (table < 0.98))
    shares = np.array([cell.share for cell in cells])
    counts, methods = Counter(cell.outcome for cell in cells), Counter(cell.method for cell in cells)
    limit = float(stats.t.isf(0.5 * FALSE_ALARM / (open_pairs.size + 1), len(cells) - 1))
    t = bias(shares[:, open_pairs], table[open_pairs])
    evidence = np.array([cell.log_evidence for cell in cells])
    if np.isfinite(evidence).all():  # the chains of hmc give none
        t = max(t, bias(evidence[:, None], np.array([exact.log_evidence])))
    found = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    found += f"; |t| = {t:.1f}; by " + ", ".join(f"{method} {count}" for method, count in sorted(methods.items()))
    fine = counts["silent miss"] == 0 and t <= limit
    return (name, found, f"no silent miss, |t| ≤ {limit:.1f}", fine), np.concatenate(
        [cell.z[open_pairs] for cell in cells]
    )


def run(
    seeds: int = SEEDS, progress_fn: Callable[[tuple[str, str, str, bool]], None] | None = None
) -> list[tuple[str, str, str, bool]]:
    """Return a line for each problem, and lines for all together."""
    lines, total, z = [], Counter[str](), list[FloatArray]()
    for name, (_, seen) in multimodal_problems().items():
        exact = qp.posterior(seen, prior=PRIOR, method="exact", particles=10)
        table = exact.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
        cells = [judge(unchecked_posterior(seen, prior=PRIOR, seed=seed), table) for seed in range(seeds)]
        line, of_problem = rows_of(name, cells, exact)
        total.update(cell.outcome for cell in cells)
        z.append(of_problem)
        lines.append(line)
        if progress_fn is not None:
            progress_fn(line)
    size = sum(total.values())
    found = ", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES)
    fine = total["silent miss"] == 0 and total["right"] >= FEWEST_RIGHT * size
    lines.append((f"all {size}", found, f"no silent miss, {FEWEST_RIGHT:.0%} right", fine))
    spread = float(np.sqrt(np.mean(np.concatenate(z) ** 2)))
    lines.append(("errors in units of those stated", f"{spread:.2f}", "≤ 1.25", spread <= 1.25))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()

    def tell(line: tuple[str, str, str, bool]) -> None:
        print("ok  " if line[3] else "FAIL", *line[:3], sep="  ", flush=True)

    lines = run(options.seeds, tell)
    for line in lines[-2:]:
        tell(line)
    sys.exit(0 if all(line[3] for line in lines) else 1)


if __name__ == "__main__":
    main()
