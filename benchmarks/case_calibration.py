"""The three worked cases, fitted as a user would: coverage of the intervals of `fit` and reliability of P(optimal)."""

from __future__ import annotations

from typing import Any

import numpy as np

import qposterior as qp
from cases import CASES, Case, Policy
from result_page import table

BINS = ((0.0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 0.95), (0.95, 1.0 + 1e-9))


def judge_case(name: str, seed: int) -> list[list[float]]:
    """Return per pair of a log that was fitted with its discount alone: P(optimal), whether the pair is optimal,
    whether its interval of Q holds that of the recommended policy, whether that of the advantage Q* − V* holds the
    truth, and whether that of the gain does.
    """
    case = CASES[name]
    fitted = qp.fit(case.simulate(seed), seed=seed, discount=case.discount)
    policy, gain_holds = recommended(fitted), float(holds_gain(case, fitted))
    followed = case.q_of(policy)
    best: dict[str, float] = {}
    for (state, _), value in case.truth.items():
        best[state] = max(best.get(state, -np.inf), value)
    draws, space = fitted.posterior.draws, fitted.posterior.space
    advantage = np.quantile(draws - space.maximum(draws)[:, space.pair_state], [0.05, 0.95], axis=0)
    states, actions = fitted.chosen.states, fitted.chosen.actions
    pair = {
        (states[s], actions[a]): k for k, (s, a) in enumerate(zip(space.pair_state, space.pair_action, strict=True))
    }
    rows = []
    for row in fitted.table.to_dict(orient="records"):
        place = row["state"], row["action"]
        if place not in case.truth:  # an action that exists elsewhere, but not in this state
            continue
        q, k = case.truth[place], pair[place]
        gap = q - best[row["state"]]
        holds = advantage[0, k] - 1e-9 <= gap <= advantage[1, k] + 1e-9
        is_inside = row["lower"] - 1e-9 <= followed[place] <= row["upper"] + 1e-9
        rows.append([row["prob_optimal"], float(gap >= -1e-9), float(is_inside), float(holds), gain_holds])
    return rows


def recommended(fitted: qp.Fit) -> Policy:
    """Return the recommended policy by labels."""
    space, chosen = fitted.posterior.space, fitted.chosen
    assert fitted.policies is not None
    shares: Policy = {}
    for s, a, p in zip(
        space.pair_state, space.pair_action, fitted.policies.recommended.probabilities.tolist(), strict=True
    ):
        if p > 0.0:
            shares.setdefault(chosen.states[s], {})[chosen.actions[a]] = p
    return shares


def holds_gain(case: Case, fitted: qp.Fit) -> bool:
    """Return whether the interval of the gain holds what the recommended policy truly has over the logged one.

    The logged policy is that of the log: its frequencies, not what they were drawn from.
    """
    assert fitted.policies is not None
    table = fitted.table
    counts = table[table["count"] > 0].groupby("state")["count"].transform("sum")
    logged: Policy = {}
    for row, total in zip(table[table["count"] > 0].to_dict(orient="records"), counts, strict=True):
        logged.setdefault(row["state"], {})[row["action"]] = row["count"] / total
    truth = case.values_of(recommended(fitted))[case.start] - case.values_of(logged)[case.start]
    low, high = np.quantile(fitted.policies.gain, [0.05, 0.95])
    return bool(low - 1e-9 <= truth <= high + 1e-9)


def case_section(name: str, found: list[list[list[float]]]) -> tuple[str, str]:
    """Return heading and text of a worked case from the pairs of its logs."""
    words = []
    for place, what in ((2, "of Q^π"), (3, "of Q*(s, a) − V*(s)"), (4, "of the gain")):
        covered = np.array([np.mean([pair[place] for pair in one]) for one in found])
        # Pairs of one log hang together: the error is that of the logs' shares.
        error = covered.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
        words.append(f"the 90 % intervals {what} hold the truth in {covered.mean():.1%} ± {1.96 * error:.1%}")
    pairs = np.array([pair[:2] for one in found for pair in one])
    rows = []
    for low, high in BINS:
        part = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high)]
        if len(part):
            rows.append((f"{low:g} to {min(high, 1.0):g}", len(part), *(f"{mean:.3f}" for mean in part.mean(axis=0))))
    text = f"{len(found)} simulated logs, fitted with the default settings: " + "; ".join(words) + " of the cases.\n\n"
    header = ("P(optimal) said", "pairs", "mean", "share that is optimal")
    return f"Worked case: {name}", text + table(header, rows)


def case_sections(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the sections of the cases that have results, in the order of `CASES`."""
    by_case = {name: [one["pairs"] for one in results if one["case"] == name] for name in CASES}
    return [case_section(name, found) for name, found in by_case.items() if found]
