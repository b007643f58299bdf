"""Means and errors of the results of `log_calibration`, the bars that are not met, and a table for the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from families import FAMILIES, NULL_FAMILIES

BARS = {"advantage": 0.87, "policy_q": 0.85, "policy_v": 0.85, "start_v": 0.85, "gain": 0.85}
FALSE_GAINS = 0.10
BASELINE = "plain"
PLAIN_MEANS = (
    "cpu",
    "cpu_all",
    "left_out",
    "claims_gain",
    "false_gain",
    "bias_optimum",
    "bias_policy",
    "regret",
    "log_score",
)


def summarise(results: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row per family, readings and method: means over logs, their errors and what is below its bar."""
    frame = pd.DataFrame(results)
    if "failed" not in frame:
        frame["failed"] = None
    order = {name: place for place, name in enumerate(FAMILIES)}
    groups = frame.groupby(["family", "readings", "method"], sort=False)
    rows = [_summary_of(frame, place, group) for place, group in groups]
    return pd.DataFrame(sorted(rows, key=lambda row: (order[row["family"]], row["readings"])))


def _summary_of(frame: pd.DataFrame, place: Any, group: pd.DataFrame) -> dict[str, Any]:
    family, readings, method = place
    row: dict[str, Any] = {"family": family, "readings": readings, "method": method, "logs": len(group)}
    row["failed"] = int(group["failed"].notna().sum())
    for name in (
        "cpu",
        "cpu_all",
        "left_out",
        "claims_gain",
        "false_gain",
        "bias_optimum",
        "bias_policy",
        "regret",
        "log_score",
    ):
        row[name] = _mean(group, name)
    fails = []
    for name in (*BARS, "untried_advantage", "logged_v"):
        share, error = _mean(group, f"{name}_covered"), _error(group, f"{name}_covered")
        row[f"{name}_covered"], row[f"{name}_width"] = share, _mean(group, f"{name}_width")
        if share + 2.0 * error < BARS.get(name, 0.0):
            fails.append(f"{name} covered")
    if family in NULL_FAMILIES and row["claims_gain"] > FALSE_GAINS:
        fails.append("false gains")
    here = (frame["family"] == family) & (frame["readings"] == readings)
    base = frame[here & (frame["method"] == BASELINE)].set_index("seed")
    for name in [f"{part}_score" for part in BARS] + ["log_score", "regret"]:
        difference, error, ratio = _against(group, base, name)
        row[f"{name}_difference"], row[f"{name}_error"], row[f"{name}_ratio"] = difference, error, ratio
        if difference > 2.0 * error + 1e-9:
            fails.append(f"{name} worse")
    row["fails"] = fails
    return row


def _mean(group: pd.DataFrame, name: str) -> float:
    return float(group[name].mean()) if name in group and group[name].notna().any() else float("nan")


def _error(group: pd.DataFrame, name: str) -> float:
    """Return the standard error of a mean over logs: what is measured within a log hangs together."""
    if name not in group or group[name].notna().sum() < 2:
        return 0.0
    return float(group[name].std(ddof=1) / np.sqrt(group[name].notna().sum()))


def _against(group: pd.DataFrame, base: pd.DataFrame, name: str) -> tuple[float, float, float]:
    """Return the mean difference to the plain posterior on the same logs, its error, and the ratio of the means."""
    if name not in group or name not in base:
        return float("nan"), float("nan"), float("nan")
    own = group.set_index("seed")[name]
    pair = pd.DataFrame({"own": own, "base": base[name].reindex(own.index)}).dropna()
    if len(pair) < 2:
        return float("nan"), float("nan"), float("nan")
    difference = pair["own"] - pair["base"]
    ratio = pair["own"].mean() / pair["base"].mean() if pair["base"].mean() else float("nan")
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(pair))), float(ratio)


HEADER = (
    "logs",
    "adv",
    "Qπ",
    "Vπ",
    "start",
    "gain",
    "untried",
    "claims",
    "false",
    "IS adv",
    "IS Qπ",
    "IS Vπ",
    "IS start",
    "IS gain",
    "log score − plain",
    "regret − plain",
    "bias V*",
    "bias Vπ",
    "left",
    "CPU s",
    "all",
)


def cells(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row of the summary; an exclamation mark is a bar that is not met."""
    fails = set(row["fails"])

    def shown(name: str, form: str = "{:.2f}", mark: str = "") -> str:
        value = row[name]
        return "–" if pd.isna(value) else form.format(value) + ("!" if mark in fails else "")

    def paired(name: str) -> str:
        value, error = row[f"{name}_difference"], row[f"{name}_error"]
        return "–" if pd.isna(value) else f"{value:+.3f}±{error:.3f}" + ("!" if f"{name} worse" in fails else "")

    return [
        str(row["logs"]) + (f" ({row['failed']} failed)" if row["failed"] else ""),
        *(shown(f"{name}_covered", mark=f"{name} covered") for name in BARS),
        shown("untried_advantage_covered"),
        shown("claims_gain", mark="false gains"),
        shown("false_gain"),
        *(shown(f"{name}_score_ratio", mark=f"{name}_score worse") for name in BARS),
        paired("log_score"),
        paired("regret"),
        shown("bias_optimum", "{:+.2f}"),
        shown("bias_policy", "{:+.2f}"),
        shown("left_out", "{:.3f}"),
        shown("cpu"),
        shown("cpu_all"),
    ]


def summary_text(results: list[dict[str, Any]]) -> str:
    """Return a table for the terminal, and which bars are not met by which method."""
    judged = [one for one in results if "method" in one]
    if not judged:
        return "no results yet"
    summary = summarise(judged)
    lines = [["family", "n", "method", *HEADER]]
    for row in summary.to_dict(orient="records"):
        lines.append([row["family"], str(row["readings"]), row["method"], *cells(row)])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    text = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return text + "\n\n" + "\n".join(_verdicts(summary))


def _verdicts(summary: pd.DataFrame) -> list[str]:
    """Return per method how many cells meet every bar, and where each bar is not met."""
    lines = []
    for method, part in summary.groupby("method", sort=False):
        whole = sum(not fails for fails in part["fails"])
        lines.append(
            f"{method}: {whole} of {len(part)} cells meet every bar; on average log score − plain "
            f"{part['log_score_difference'].mean():+.3f}, regret − plain {part['regret_difference'].mean():+.3f}"
        )
        if method != "point":  # which misses nearly all of them
            lines += [f"  {kind}: {', '.join(places)}" for kind, places in failures(part).items()]
    return lines


def failures(part: pd.DataFrame) -> dict[str, list[str]]:
    """Return for each bar the families in which it is not met, with the numbers of readings."""
    places: dict[str, dict[str, list[str]]] = {}
    for row in part.to_dict(orient="records"):
        for kind in row["fails"]:
            places.setdefault(kind, {}).setdefault(row["family"], []).append(str(row["readings"]))
    return {kind: [f"{family} {'/'.join(n)}" for family, n in cells.items()] for kind, cells in sorted(places.items())}
