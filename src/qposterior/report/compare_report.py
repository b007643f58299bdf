"""The report of a comparison: one page that opens from disk without a network, and figures for a paper."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.experiments.compare import Comparison, read_settings
from qposterior.experiments.statistics import (
    Estimate,
    beats_table,
    bounded_mean,
    censored_times,
    interval,
    measured_column,
    scaling_law,
    summarise_returns,
    summarise_runs,
)
from qposterior.extra import import_extra
from qposterior.report.figures import save_figure
from qposterior.report.page import dashed, write_page
from qposterior.report.plots import Curve, Plot, Times

if TYPE_CHECKING:
    import pandas as pd

PAGE_FILE = "report.html"
MOST_EPISODES = 400_000
"""Rows of episodes beyond this are left in the store instead of being put into the page."""

Laws = dict[str, tuple[float, Estimate]]
"""Per agent a and b of T ≈ exp(a) · depth^b."""

Cell = tuple[str, Any]
"""What a cell shows, and what it is sorted by."""


def write_compare_report(comparison: Comparison) -> Path:
    """Write `report.html` and the figures into the folder of a comparison, and return the page's path."""
    finished = comparison.without_failures
    runs, episodes = finished.runs, finished.episodes
    if runs.empty:
        raise InvalidInputError(f"{comparison.folder} has no finished run to report on")
    table, measured = summarise_runs(comparison.runs), measured_column(episodes)
    is_known = measured == "regret"
    laws = scaling_laws(runs) if is_known else {}
    plots = {measured: regret_plot(episodes)}
    if is_known and table["depth"].nunique() > 1:
        plots["learning_time"] = learning_time_plot(table, laws)
    page = write_page(
        comparison.folder / PAGE_FILE,
        "compare.html",
        title=f"Agents on {runs['environment'].iloc[0]}",
        runs=len(runs),
        failed=len(comparison.runs) - len(runs),
        agents=table["agent"].nunique(),
        library=import_extra("plotly.offline").get_plotlyjs(),
        is_known=is_known,
        rows=learning_rows(table) if is_known else return_rows(summarise_returns(episodes)),
        plots=plots,
        exponents=exponent_lines(laws),
        beats=beats_rows(runs) if is_known else [],
        downloads=_downloads(comparison),
        settings=json.dumps(_settings(comparison.folder), indent=2),
    )
    for name, plot in plots.items():
        save_figure(plot.figure(), comparison.folder / name)
    return page


def _settings(folder: Path) -> dict[str, Any]:
    """Return the versions, and of the runs the first and how many there are."""
    settings = read_settings(folder)
    shown = {name: settings[name] for name in ("versions", "earlier_versions") if settings[name]}
    return shown | {"first run": asdict(settings["runs"][0]), "runs": len(settings["runs"])}


def _downloads(comparison: Comparison) -> list[tuple[str, bytes]]:
    tables = {"runs.csv": comparison.runs}
    if len(comparison.episodes) <= MOST_EPISODES:
        tables["episodes.csv"] = comparison.episodes
    return [(name, table.to_csv(index=False).encode()) for name, table in tables.items()]


# -- plots -------------------------------------------------------------------------------------------------------------


def regret_plot(episodes: pd.DataFrame) -> Plot:
    """Return the plot of cumulative regret, or return, over the episodes."""
    curves, depth = regret_curves(episodes)
    title = f"cumulative {measured_column(episodes)}" + ("" if depth is None else f" at depth {depth}")
    return Plot(
        marks=curves,
        heading=title.capitalize(),
        x_label="episode",
        y_label=f"cumulative {measured_column(episodes)} (reward)",
        title=title,
    )


def regret_curves(episodes: pd.DataFrame) -> tuple[dict[str, Curve], int | None]:
    """Return per agent the mean cumulative regret (or return) at the largest depth that all have, with 95 % bands.

    Agents that share no depth have none. Curves go as far as the shortest run: a run ends at its learning time unless
    all episodes were asked for.
    """
    sizes = episodes["depth"].astype(float).fillna(-1.0).astype(int)
    tried = [set(group) for _, group in sizes.groupby(episodes["agent"])]
    common = set.intersection(*tried) if tried else set()
    depth = max(common) if common else -1
    chosen = episodes[sizes == depth]
    column, curves = measured_column(episodes), {}
    for agent, group in chosen.groupby("agent", sort=True):
        parts = [one.sort_values("episode")[column].cumsum().to_numpy() for _, one in group.groupby("seed")]
        shared = min(part.size for part in parts)
        curves[str(agent)] = Curve.mean_of(np.array([part[:shared] for part in parts]))
    return curves, None if depth == -1 else depth


def learning_time_plot(table: pd.DataFrame, laws: Laws) -> Plot:
    """Return the plot of learning time over depth on log axes; the laws know that unsolved runs are censored.

    In print agents stand a little beside one another, so that equal times can be told apart.
    """
    groups = {str(agent): rows for agent, rows in table.groupby("agent", sort=True)}
    beside = 1.0 + 0.06 * ((np.arange(len(groups)) + 0.5) / len(groups) - 0.5)
    marks = {
        agent: Times(rows=rows, law=laws.get(agent), shift=float(shift))
        for (agent, rows), shift in zip(groups.items(), beside, strict=True)
    }
    return Plot(
        marks=marks,
        heading="Learning time over depth",
        x_label="depth",
        y_label="learning time (episodes)",
        depths=sorted(table["depth"].unique()),
    )


def scaling_laws(runs: pd.DataFrame) -> Laws:
    """Return the scaling law of every agent that has one: two depths or more with solved runs."""
    laws = {}
    for agent, group in runs.dropna(subset=["depth"]).groupby("agent", sort=True):
        times, solved = censored_times(group)
        try:
            laws[str(agent)] = scaling_law(group["depth"].to_numpy(float), times, solved)
        except InvalidInputError:
            continue
    return laws


def exponent_lines(laws: Laws) -> list[str]:
    """Return a line per agent with its scaling exponent."""
    return [
        f"{agent}: depth^{with_interval((slope.value, slope.low, slope.high), '.2f')}"
        for agent, (_, slope) in laws.items()
    ]


# -- tables ------------------------------------------------------------------------------------------------------------


def learning_rows(table: pd.DataFrame) -> list[dict[str, Cell]]:
    """Return for every agent and depth the cells of the table of learning times, by column."""
    return [
        _name_cells(row)
        | {
            "solved": (f"{row['solved']}/{row['runs']}", row["solved"] / max(row["runs"], 1)),
            "failed": _number(row["failed"]),
            "mean learning time": (bounded_mean(row), _sortable(row["mean"])),
            "IQM": (bounded_mean(row, "iqm", low="iqm_low", high="iqm_high"), _sortable(row["iqm"])),
            "median": _number(row["median"], ".0f"),
            "seconds a run": _number(row["seconds"], ".2f"),
        }
        for row in table.to_dict(orient="records")
    ]


def return_rows(table: pd.DataFrame) -> list[dict[str, Cell]]:
    """Return for every agent and depth the cells of the table of returns, by column."""
    columns = {"mean return": "mean_return", "mean return, last quarter": "late_return"}
    return [
        _name_cells(row)
        | {"runs": _number(row["runs"])}
        | {
            column: (with_interval((row[name], row[f"{name}_low"], row[f"{name}_high"]), ".3g"), row[name])
            for column, name in columns.items()
        }
        | {"seconds a run": _number(row["seconds"], ".2f")}
        for row in table.to_dict(orient="records")
    ]


def _name_cells(row: dict[Any, Any]) -> dict[str, Cell]:
    return {"agent": (row["agent"], row["agent"]), "depth": _number(row["depth"], ".0f")}


def _number(value: float | None, form: str = "") -> Cell:
    return dashed(value, form), _sortable(value)


def _sortable(value: float | None) -> float:
    return 1e99 if value is None or not np.isfinite(value) else value


def with_interval(numbers: tuple[float, float, float], form: str) -> str:
    """Return a value and the ends of its interval in this format."""
    value, low, high = numbers
    return f"{value:{form}}{interval(low, high, form)}"


def beats_rows(runs: pd.DataFrame) -> list[list[str]]:
    """Return the table that says who learns before whom, its columns first; empty where nobody can be compared."""
    table = beats_table(runs)
    if table.empty:
        return []
    agents = sorted(set(table["agent"]))
    shown = {
        (row["agent"], row["other"]): with_interval((row["prob_beats"], row["low"], row["high"]), ".2f")
        for row in table.to_dict(orient="records")
    }
    return [["agent", *agents], *([agent, *(shown.get((agent, other), "–") for other in agents)] for agent in agents)]
