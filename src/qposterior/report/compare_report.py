"""The report of a comparison: one page that opens from disk without a network, and figures for a paper."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import InvalidInputError, MissingExtraError
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
from qposterior.report.figures import agent_colours, import_pyplot, save_figure, tidy
from qposterior.report.page import HEAD, SORT_SCRIPT
from qposterior.storage import write_atomically

if TYPE_CHECKING:
    import pandas as pd

PAGE_FILE = "report.html"
MOST_EPISODES = 400_000
"""Rows of episodes beyond this are left in the store instead of being put into the page."""

LEARNING_COLUMNS = ("agent", "depth", "solved", "failed", "mean learning time", "IQM", "median", "seconds a run")
LEARNING_NOTE = (
    "Mean learning time with a 95 % bootstrap interval over seeds (from a few seeds it is too narrow); “≥” and "
    "triangles: some runs did not learn and count at the last episode at which they could have shown it. IQM: the mean "
    "of the middle half. Median by Kaplan–Meier. Curves end with the shortest run: compare with --full for longer ones."
)
RETURN_COLUMNS = ("agent", "depth", "runs", "mean return", "mean return, last quarter", "seconds a run")
RETURN_NOTE = (
    "The environment has no table of its transitions, so there is no truth: neither regret nor learning time. Shown is "
    "the return of an episode, over all and over the last quarter of them, with 95 % bootstrap intervals over seeds."
)

PAGE = (
    HEAD
    + """<script>{{ library }}</script>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ words }}</p>
<table id="results" class="sorts">
<thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}<tr>{% for shown, key in row %}<td data-key="{{ key }}">{{ shown }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
<p class="note">Click on a column to sort. {{ note }}</p>
{% for heading, plot in plots %}<h2>{{ heading }}</h2>
{{ plot }}
{% endfor %}
{% if beats %}<h2>Who learns first</h2>
<table id="beats">
<thead><tr><th>agent</th>{% for name in beats[0][1] %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for name, cells in beats %}<tr><td>{{ name }}</td>
{% for cell in cells.values() %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
<p class="note">Probability that a run of the agent in the row learns in fewer episodes than one of the agent in the
column, over the depths that both have, with a 95 % bootstrap interval. Runs that have not learned lose.</p>
{% endif %}
{% if exponents %}<h2>Scaling exponents</h2>
<ul>{% for line in exponents %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
<h2>Rows</h2>
<p>{% for name, data in downloads %}<a download="{{ name }}" href="data:text/csv;base64,{{ data }}">{{ name }}</a>
{% endfor %}</p>
<details><summary>Settings and versions</summary><pre>{{ settings }}</pre></details>
"""
    + SORT_SCRIPT
    + """</body>
</html>
"""
)


def write_compare_report(found: Comparison) -> Path:
    """Write `report.html` and the figures into the folder of a comparison, and return the page's path."""
    try:
        jinja2, graphs, offline = (import_module(name) for name in ("jinja2", "plotly.graph_objects", "plotly.offline"))
        markup = import_module("markupsafe").Markup
    except ImportError as error:
        raise MissingExtraError("writing the report", "report") from error
    finished = found.without_failures
    runs, episodes = finished.runs, finished.episodes
    if runs.empty:
        raise InvalidInputError(f"{found.folder} has no finished run to report on")
    environment = str(runs["environment"].iloc[0])
    table = summarise_runs(found.runs)
    measured = measured_column(episodes)
    is_known = measured == "regret"
    curves, depth = regret_curves(episodes)
    figures = [(f"Cumulative {measured}{_at(depth)}", regret_plot(graphs, curves, measured))]
    laws = scaling_laws(runs) if table["depth"].nunique() > 1 and is_known else None
    if laws is not None:
        figures.append(("Learning time over depth", learning_time_plot(graphs, table, laws)))
    settings = read_settings(found.folder)
    shown = {name: settings[name] for name in ("versions", "earlier_versions") if settings[name]}
    shown |= {"first run": asdict(settings["runs"][0]), "runs": len(settings["runs"])}
    failed, agents = len(found.runs) - len(runs), table["agent"].nunique()
    page = jinja2.Environment(autoescape=True).from_string(PAGE)
    text = page.render(
        title=f"Agents on {environment}",
        words=f"{len(runs)} run{'s' * (len(runs) != 1)} of {agents} agent{'s' * (agents != 1)}"
        + (f"; {failed} more failed and are left out." if failed else "."),
        library=markup(offline.get_plotlyjs()),
        columns=LEARNING_COLUMNS if is_known else RETURN_COLUMNS,
        note=LEARNING_NOTE if is_known else RETURN_NOTE,
        rows=_learning_rows(table) if is_known else _return_rows(summarise_returns(episodes)),
        plots=[(heading, markup(plot.to_html(full_html=False, include_plotlyjs=False))) for heading, plot in figures],
        exponents=exponent_lines(laws or {}),
        beats=beats_cells(runs) if is_known else [],
        downloads=[(name, base64.b64encode(data.encode()).decode()) for name, data in _downloads(found)],
        settings=json.dumps(shown, indent=2),
    )
    write_atomically(found.folder / PAGE_FILE, text)
    _paper_figures(found.folder, curves, depth, measured, table, laws)
    return found.folder / PAGE_FILE


def regret_curves(episodes: pd.DataFrame) -> tuple[dict[str, tuple[Any, Any, Any]], int | None]:
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
        stack = np.array([part[:shared] for part in parts])
        error = 1.96 * stack.std(axis=0, ddof=1) / np.sqrt(len(stack)) if len(stack) > 1 else np.zeros(shared)
        curves[str(agent)] = (np.arange(1, shared + 1), stack.mean(axis=0), error)
    return curves, None if depth == -1 else depth


def regret_plot(graphs: Any, curves: dict[str, tuple[Any, Any, Any]], measured: str) -> Any:
    """Return the interactive curves of what is measured; band and line of an agent share a legend entry."""
    figure, colours = graphs.Figure(), agent_colours(curves)
    for agent, (episode, mean, error) in curves.items():
        colour = colours[agent]
        band = {
            "x": np.concatenate([episode, episode[::-1]]),
            "y": np.concatenate([mean + error, (mean - error)[::-1]]),
        }
        figure.add_scatter(
            **band, fill="toself", fillcolor=colour, opacity=0.15, line={"width": 0}, hoverinfo="skip",
            legendgroup=agent, showlegend=False, name=agent,
        )  # fmt: skip
        figure.add_scatter(
            x=episode, y=mean, name=agent, legendgroup=agent, mode="lines", line={"color": colour, "width": 2}
        )
    figure.update_layout(xaxis_title="episode", yaxis_title=f"cumulative {measured} (reward)", **LAYOUT)
    return figure


LAYOUT: dict[str, Any] = {"template": "plotly_white", "margin": {"t": 20}}
"""What the plots of the page share; their headings stand above them, outside."""

Laws = dict[str, tuple[float, Estimate]]
"""Per agent a and b of T ≈ exp(a) · depth^b."""


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


def learning_time_plot(graphs: Any, table: pd.DataFrame, laws: Laws) -> Any:
    """Return learning time over depth on log axes; the fitted lines know that unsolved runs are censored."""
    figure, colours = graphs.Figure(), agent_colours(table["agent"].unique())
    for name, group in table.groupby("agent", sort=True):
        agent = str(name)
        colour = colours[agent]
        depth, mean = group["depth"].to_numpy(dtype=float), group["mean"].to_numpy(dtype=float)
        bars = {"array": group["high"] - mean, "arrayminus": mean - group["low"], "type": "data", "symmetric": False}
        symbols = np.where(group["solved"] == group["runs"], "circle", "triangle-up")  # an arrow where it is a bound
        figure.add_scatter(
            x=depth, y=mean, error_y=bars, mode="markers", name=agent, legendgroup=agent,
            marker={"color": colour, "symbol": symbols, "size": 8},
        )  # fmt: skip
        if agent in laws:
            intercept, slope = laws[agent]
            fitted = depth[group["solved"] > 0]
            figure.add_scatter(
                x=fitted, y=np.exp(intercept) * fitted**slope.value, mode="lines", legendgroup=agent, showlegend=False,
                line={"color": colour, "dash": "dot"}, name=f"{agent}: depth^{slope.value:.2f}",
            )  # fmt: skip
    figure.update_traces(cliponaxis=False)  # bounds stand at the top
    figure.update_xaxes(type="log", title="depth", tickvals=sorted(table["depth"].unique()))
    figure.update_yaxes(type="log", title="learning time (episodes)")
    figure.update_layout(**LAYOUT)
    return figure


def exponent_lines(laws: Laws) -> list[str]:
    """Return a line per agent with its scaling exponent."""
    return [
        f"{agent}: depth^{slope.value:.2f}{interval(slope.low, slope.high, '.2f')}"
        for agent, (_, slope) in laws.items()
    ]


def beats_cells(runs: pd.DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Return a row per agent of the table that says who learns before whom."""
    table = beats_table(runs)
    if table.empty:
        return []
    agents = sorted(set(table["agent"]))
    shown = {
        (row["agent"], row["other"]): f"{row['prob_beats']:.2f}{interval(row['low'], row['high'], '.2f')}"
        for row in table.to_dict(orient="records")
    }
    return [(agent, {other: shown.get((agent, other), "–") for other in agents}) for agent in agents]


def _paper_figures(
    folder: Path, curves: dict[str, Any], depth: int | None, measured: str, table: pd.DataFrame, laws: Laws | None
) -> None:
    plt = import_pyplot()
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    colours = agent_colours(curves)
    for agent, (episode, mean, error) in curves.items():
        colour = colours[agent]
        axes.plot(episode, mean, color=colour, label=fill(agent, LEGEND_WIDTH))
        axes.fill_between(episode, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0.0)
    axes.set(xlabel="episode", ylabel=f"cumulative {measured} (reward)", title=f"cumulative {measured}{_at(depth)}")
    tidy(axes)
    if curves:
        figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, folder / measured)
    if laws is not None:
        save_figure(learning_time_figure(table, laws), folder / "learning_time")


def learning_time_figure(table: pd.DataFrame, laws: Laws) -> Any:
    """Return learning time over depth on log axes, with lines fitted to the depths of which some runs were solved.

    Hollow triangles are lower bounds. Agents stand a little beside one another, so that equal times can be told apart.
    """
    plt = import_pyplot()
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    number, colours = table["agent"].nunique(), agent_colours(table["agent"].unique())
    beside = 1.0 + 0.06 * ((np.arange(number) + 0.5) / number - 0.5)
    for (name, group), shift in zip(table.groupby("agent", sort=True), beside, strict=True):
        agent = str(name)
        colour = colours[agent]
        solved = (group["solved"] == group["runs"]).to_numpy()
        depth, mean = shift * group["depth"].to_numpy(float), group["mean"].to_numpy(float)
        bars = np.stack([mean - group["low"], group["high"] - mean])
        axes.errorbar(depth, mean, yerr=bars, fmt="none", ecolor=colour, elinewidth=1.0)
        axes.plot(depth[solved], mean[solved], "o", color=colour, markersize=5, label=fill(agent, LEGEND_WIDTH))
        axes.plot(depth[~solved], mean[~solved], "^", color=colour, markersize=6, markerfacecolor="none")
        if agent in laws:
            intercept, slope = laws[agent]
            fitted = group["depth"][group["solved"] > 0].to_numpy(float)
            axes.plot(shift * fitted, np.exp(intercept) * fitted**slope.value, ":", color=colour, linewidth=1.2)
    depths = sorted(table["depth"].unique())
    axes.set(xlabel="depth", ylabel="learning time (episodes)", xscale="log", yscale="log")
    axes.set_xticks(depths, [f"{depth:.0f}" for depth in depths])
    axes.set_xticks([], minor=True)
    tidy(axes)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _downloads(found: Comparison) -> list[tuple[str, str]]:
    files = [("runs.csv", found.runs.to_csv(index=False))]
    if len(found.episodes) <= MOST_EPISODES:
        files.append(("episodes.csv", found.episodes.to_csv(index=False)))
    return files


LEGEND_WIDTH = 28

Cell = tuple[str, Any]
"""What a cell shows, and what it is sorted by."""


def _learning_rows(table: pd.DataFrame) -> list[list[Cell]]:
    return [_learning_cells(row) for row in table.to_dict(orient="records")]


def _learning_cells(row: dict[Any, Any]) -> list[Cell]:
    return [
        *_name_cells(row),
        (f"{row['solved']}/{row['runs']}", row["solved"] / max(row["runs"], 1)),
        (str(row["failed"]), row["failed"]),
        (bounded_mean(row), _sortable(row["mean"])),
        (bounded_mean(row, "iqm", "iqm_low", "iqm_high"), _sortable(row["iqm"])),
        (f"{row['median']:.0f}" if np.isfinite(row["median"]) else "–", _sortable(row["median"])),
        ("–" if np.isnan(row["seconds"]) else f"{row['seconds']:.2f}", _sortable(row["seconds"])),
    ]


def _sortable(value: float) -> float:
    return value if np.isfinite(value) else 1e99


def _return_rows(table: pd.DataFrame) -> list[list[Cell]]:
    return [
        [
            *_name_cells(row),
            (str(row["runs"]), row["runs"]),
            *(
                (f"{row[name]:.3g}{interval(row[f'{name}_low'], row[f'{name}_high'], '.3g')}", row[name])
                for name in ("mean_return", "late_return")
            ),
            (f"{row['seconds']:.2f}", row["seconds"]),
        ]
        for row in table.to_dict(orient="records")
    ]


def _name_cells(row: dict[Any, Any]) -> list[Cell]:
    has_depth = row["depth"] is not None and row["depth"] == row["depth"]
    depth: Cell = (f"{row['depth']:.0f}", row["depth"]) if has_depth else ("–", -1)
    return [(str(row["agent"]), str(row["agent"])), depth]


def _at(depth: int | None) -> str:
    return "" if depth is None else f" at depth {depth}"
