"""The page of a fit: what policies are worth, what to do where, how sure that is, in words that need no statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.logs.files import PAGE_FILE
from qposterior.logs.fit import Fit
from qposterior.logs.words import (
    how_recommended,
    interval_words,
    policy_lines,
    prob_best_words,
    sensitivity_lines,
    verdict,
    widths,
    with_interval,
)
from qposterior.report.figures import to_png
from qposterior.report.fit_figures import state_figures, value_figures
from qposterior.report.fit_map import action_map
from qposterior.report.page import shortened, write_page
from qposterior.world.arrays import sum_by

if TYPE_CHECKING:
    import pandas as pd

CALIBRATION = Path(__file__).parent / "calibration.json"
COUNTED = ("advantages", "value", "gain", "false_gains")

MOST_STATES = 1000
"""States of the table on the page; rows.csv has all of them."""

MOST_SUCCESSORS = 5
"""Places an action led to that are named, the most frequent first."""

MOST_NAMED = 20
LONGEST_IN_TEXT = 60
"""Characters of a label in a sentence; the table has all of them."""

CLEAR = 0.9
"""P(best) from which on the best action of a state is clear."""

WORTH_NAMING = 0.01
"""Share of the largest expected gain from which on a trial is named."""


def write_fit_report(fit: Fit, folder: str | Path) -> Path:
    """Write the page into the folder of a fit and return its path; labels of the log are data, never markup."""
    return write_page(
        Path(folder) / PAGE_FILE,
        "fit.html",
        title=f"What to do: {Path(fit.source).name}",
        summary=summary(fit),
        checks=fit.checks,
        policies=[] if fit.policies is None else policy_lines(fit.policies),
        values=_as_pictures(value_figures(fit)),
        answer=_answer(fit) if fit.is_settled else None,
        unknown=_unknown(fit),
        chosen=[*fit.chosen.notes, *(how_recommended(fit) if fit.is_settled else ())],
        calibration=_calibration(fit) if _is_like_simulated(fit) else None,
        sensitivity=[(line.name, line.value, line.interval) for line in sensitivity_lines(fit)],
    )


def _is_like_simulated(fit: Fit) -> bool:
    """Return whether the logs that were simulated had the states and the method of this one: labels, not bins."""
    return fit.policies is not None and fit.chosen.method == "model" and fit.log.bins is None


def _calibration(fit: Fit) -> dict[str, Any]:
    """Return how often intervals held the truth in simulated logs, by readings of a pair, and the row like this log."""
    counted: dict[str, Any] = json.loads(CALIBRATION.read_text())
    of_this = fit.log.num_rows / len(fit.log.pairs)
    nearest = min(counted["readings"], key=lambda row: abs(np.log(row["readings"] / of_this)))
    rows = [
        ("→ " * (row is nearest) + f"{row['readings']}", *(f"{row[name]:.0%}" for name in COUNTED))
        for row in counted["readings"]
    ]
    return counted | {"rows": rows, "of_this": f"{of_this:,.0f}" if of_this >= 10 else f"{of_this:.1f}"}


def _as_pictures(figures: Iterator[tuple[str, Any]]) -> list[tuple[str, bytes]]:
    return [(caption, to_png(figure)) for caption, figure in figures]


def _answer(fit: Fit) -> dict[str, Any]:
    """Return what the page says of states and actions, where there is an answer."""
    return {
        "summary": state_summary(fit),
        "states": _states(fit),
        "more": fit.table["state"].nunique() - MOST_STATES,
        "has_untried": bool((fit.table["count"] == 0).any()),
        "map": action_map(fit),
        "pictures": _as_pictures(state_figures(fit)),
        "trials": _trials(fit),
    }


def summary(fit: Fit) -> list[str]:
    """Return what a manager should know, in three sentences: the verdict first."""
    read = f"{fit.log.num_rows:,} decisions in {fit.table['state'].nunique():,} states were read."
    if not fit.is_settled:
        return [f"{read} There is no answer, because the computation cannot be trusted."]
    if fit.policies is None:
        _, low, high = fit.start_value
        value, interval = with_interval(fit.start_value, high - low)
        return [f"With optimal decisions an episode is worth {value} (90 % interval {interval}).", read]
    recommended, logged = policy_lines(fit.policies)[:2]
    worth = (
        f"An episode is worth {recommended.value} ({recommended.interval}) under the recommended policy, and "
        f"{logged.value} ({logged.interval}) if decisions are made as in the log."
    )
    return [verdict(fit), f"{worth} {read}"]


def state_summary(fit: Fit) -> list[str]:
    """Return how sure the best action of each state is."""
    table = fit.table
    taken = table[table["action"] == table["state"].map(fit.policy)]
    compared = taken[~taken["only_action"]]
    sure = compared[compared["prob_optimal"] >= CLEAR]
    lines = [
        f"In {len(sure):,} of the {len(compared):,} states where several actions were tried, the best one is clear "
        "(probability at least 90 %)."
    ]
    if alone := len(taken) - len(compared):
        others = "the others are predicted" if (table["count"] == 0).any() else "there is nothing to compare it with"
        lines.append(f"{_in_states(alone)} only one action was ever tried: {others}.")
    open_states = compared[compared["prob_optimal"] < CLEAR].sort_values("prob_optimal", kind="stable")
    if len(open_states):
        row = open_states.iloc[0]
        lines.append(
            f"The least certain state is “{_short(row['state'])}”: “{_short(row['action'])}” is the best action with "
            f"probability {row['prob_optimal']:.2f}; taking it gives up {row['expected_loss']:.3g} on average."
        )
    if rivals := _num_rivals(table, taken):
        where = _in_states(rivals)
        lines.append(f"{where} an action never tried there is more likely to be the best than the bold one: try it.")
    lines.append(f"The probability that every bold action is the best is {fit.prob_policy:.2f}.")
    return lines


def _in_states(number: int) -> str:
    return "In one state" if number == 1 else f"In {number:,} states"


def _short(label: str) -> str:
    return shortened(label, LONGEST_IN_TEXT)


def _num_rivals(table: pd.DataFrame, taken: pd.DataFrame) -> int:
    """Return in how many states an untried action is more likely to be best than the one to take."""
    own = table["state"].map(dict(zip(taken["state"], taken["prob_optimal"], strict=True)))
    is_rival = (table["count"] == 0) & (table["prob_optimal"] > own)
    return int(table.loc[is_rival, "state"].nunique())


def _states(fit: Fit) -> list[dict[str, Any]]:
    """Return a row for each state of the table: the action to take, the next best one, and all actions of the state."""
    policy, table, shown = fit.policy, fit.table, list[dict[str, Any]]()
    table = table.assign(width=widths(table))
    led_to = _led_to(fit)
    for state, part in list(table.groupby("state", sort=False))[:MOST_STATES]:
        rows = [_action_row(row, policy, led_to) for row in part.to_dict(orient="records")]
        taken = next((row for row in rows if row["kind"] == "best"), rows[0])
        rivals = sorted((row for row in rows if row is not taken), key=_rank)
        rival = rivals[0] if rivals else None
        shown.append(
            taken
            | {
                "state": state,
                "rows": rows,
                "is_clear": taken["only_action"] or taken["prob_optimal"] >= CLEAR,
                "rival": None if rival is None else rival["action"],
                "rival_words": "" if rival is None else rival["prob_best"],
                "rival_prob": "" if rival is None else rival["prob_optimal"],
            }
        )
    return shown


def _rank(row: dict[str, Any]) -> tuple[float, float]:
    """Return what actions are ordered by: P(best) as it is shown, then the value."""
    return -round(float(np.nan_to_num(row["prob_optimal"])), 2), -float(np.nan_to_num(row["mean"]))


def _action_row(row: dict[Any, Any], policy: dict[str, str], led_to: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Return a row of the table of actions, with what is shown of its numbers."""
    value, interval = interval_words(row, row["width"])
    kind = "best" if policy.get(row["state"]) == row["action"] else "" if row["count"] else "untried"
    return row | {
        "kind": kind,
        "percent": 0 if np.isnan(row["prob_optimal"]) else round(100.0 * row["prob_optimal"]),
        "prob_best": prob_best_words(row),
        "value": value,
        "interval": interval,
        "led_to": led_to.get((row["state"], row["action"]), ""),
    }


def _led_to(fit: Fit) -> dict[tuple[str, str], str]:
    """Return where each pair of state and action led, with the shares of the most frequent places."""
    log, words = fit.log, {}
    total = sum_by(log.moves[:, 0], log.move_count, log.pairs.shape[0])
    order = np.lexsort((-log.move_count, log.moves[:, 0]))
    ends = np.searchsorted(log.moves[order, 0], np.arange(log.pairs.shape[0] + 1))
    for k, (state, action) in enumerate(log.pairs.tolist()):
        moves = order[ends[k] : ends[k + 1]]
        shares = [
            f"{_short(log.states[log.moves[m, 1]])} {log.move_count[m] / total[k]:.0%}"
            for m in moves[:MOST_SUCCESSORS].tolist()
            if total[k] > 0.0
        ]
        more = f", … {moves.size - MOST_SUCCESSORS} more" if moves.size > MOST_SUCCESSORS else ""
        words[log.states[state], log.actions[action]] = ", ".join(shares) + more
    return words


def _trials(fit: Fit) -> list[tuple[str, str, int, str]]:
    """Return what to try next, without what is worth next to nothing beside the first of it."""
    trials = fit.next_trials(8)
    return [
        (row["state"], row["action"], row["count"], f"{row['expected_gain']:.3g}")
        for row in trials.to_dict(orient="records")
        if row["expected_gain"] >= WORTH_NAMING * trials["expected_gain"].iloc[0]
    ]


def _unknown(fit: Fit) -> str:
    """Return the actions of states of which nothing is said."""
    said = set(zip(fit.table["state"], fit.table["action"], strict=True))
    pairs = [pair for pair in fit.chosen.untried if pair not in said]
    more = f", … ({len(pairs):,} in all)" if len(pairs) > MOST_NAMED else ""
    return ", ".join(f"{_short(action)} in {_short(state)}" for state, action in pairs[:MOST_NAMED]) + more
