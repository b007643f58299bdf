"""How honest `fit` is on problems whose truth is known: coverage of intervals and reliability of P(optimal)."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import qposterior as qp
from cases import CASES
from result_page import table, write_page

BINS = ((0.0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0 + 1e-9))


def one_log(name: str, seed: int) -> list[tuple[float, bool, bool]]:
    """Return per pair of a fitted log: P(optimal), whether it is optimal, whether the interval holds the truth."""
    case = CASES[name]
    found = qp.fit(case.simulate(seed), discount=case.discount, seed=seed, particles=2000)
    best: dict[str, float] = {}
    for (state, _), value in case.truth.items():
        best[state] = max(best.get(state, -np.inf), value)
    return [
        (
            row["prob_optimal"],
            case.truth[row["state"], row["action"]] >= best[row["state"]] - 1e-9,
            row["lower"] <= case.truth[row["state"], row["action"]] <= row["upper"],
        )
        for row in found.table.to_dict(orient="records")
    ]


def section(name: str, logs: int) -> tuple[str, str]:
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(one_log, [name] * logs, range(1000, 1000 + logs)))
    covered = np.array([np.mean([inside for _, _, inside in one]) for one in found])
    # Pairs of one log hang together: the error is that of the logs' shares.
    error = covered.std(ddof=1) / np.sqrt(logs)
    pairs = np.array([(p, right) for one in found for p, right, _ in one], dtype=float)
    rows = []
    for low, high in BINS:
        part = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high)]
        if len(part):
            rows.append(
                (f"{low:g} to {min(high, 1.0):g}", len(part), f"{part[:, 0].mean():.3f}", f"{part[:, 1].mean():.3f}")
            )
    print(name, covered.mean(), error, flush=True)
    text = (
        f"{logs} simulated logs. The 90 % intervals hold the truth in {covered.mean():.1%} ± {1.96 * error:.1%} of "
        f"the cases "
        "(wanted: 87 to 93 %).\n\n"
    )
    return name, text + table(("P(optimal) said", "pairs", "mean", "share that is optimal"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--logs", type=int, default=200)
    options = parser.parse_args()
    introduction = "Logs of three problems whose truth is known, each fitted with what is chosen from the log.\n"
    write_page(options.out, "Calibration of `fit`", introduction, [section(name, options.logs) for name in CASES])


if __name__ == "__main__":
    main()
