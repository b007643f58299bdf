"""Plots of a comparison, each described once: matplotlib draws it for a paper, plotly for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qposterior.experiments.statistics import Estimate
from qposterior.extra import import_extra
from qposterior.report.figures import agent_colours, import_pyplot, tidy
from qposterior.world.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

LEGEND_WIDTH = 28


class Curve(NamedTuple):
    """A mean over the episodes, and the half-width of its 95 % band."""

    episode: IntArray
    mean: FloatArray
    error: FloatArray

    @classmethod
    def mean_of(cls, runs: FloatArray) -> Curve:
        """Return the mean of ``(R, E)`` curves, a run each, with its band; that of a single run has no width."""
        spread = runs.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(runs.shape[1])
        return cls(np.arange(1, runs.shape[1] + 1), runs.mean(axis=0), 1.96 * spread / np.sqrt(len(runs)))

    def draw(self, axes: Any, *, colour: str, label: str) -> None:
        """Draw the line in its band."""
        low, high = self.mean - self.error, self.mean + self.error
        axes.plot(self.episode, self.mean, color=colour, label=label)
        axes.fill_between(self.episode, low, high, color=colour, alpha=0.15, linewidth=0.0)

    def traces(self, colour: str) -> Iterator[dict[str, Any]]:
        """Yield the band, then the line, which has the entry in the legend."""
        yield {
            "x": np.concatenate([self.episode, self.episode[::-1]]),
            "y": np.concatenate([self.mean + self.error, (self.mean - self.error)[::-1]]),
            **{"fill": "toself", "fillcolor": colour, "opacity": 0.15, "line": {"width": 0}},
            **{"hoverinfo": "skip", "showlegend": False},
        }
        yield {"x": self.episode, "y": self.mean, "mode": "lines", "line": {"color": colour, "width": 2}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Learning times over depth with their intervals, and the law that fits those of which some runs were solved."""

    rows: pd.DataFrame  # of `summarise_runs`, of one agent
    law: tuple[float, Estimate] | None = None  # a and b of T ≈ exp(a) · depth^b
    shift: float = 1.0  # factor by which the agent stands beside its depths in print

    def draw(self, axes: Any, *, colour: str, label: str) -> None:
        """Draw points with bars, hollow triangles for lower bounds, and the law dotted."""
        depth, mean, low, high = self._columns()
        x, solved = self.shift * depth, self._is_solved()
        axes.errorbar(x, mean, yerr=[mean - low, high - mean], fmt="none", ecolor=colour, elinewidth=1.0)
        axes.plot(x[solved], mean[solved], "o", color=colour, markersize=5, label=label)
        axes.plot(x[~solved], mean[~solved], "^", color=colour, markersize=6, markerfacecolor="none")
        for _, fitted, times in self._fitted():
            axes.plot(self.shift * fitted, times, ":", color=colour, linewidth=1.2)

    def traces(self, colour: str) -> Iterator[dict[str, Any]]:
        """Yield points with bars, then the law."""
        depth, mean, low, high = self._columns()
        symbols = np.where(self._is_solved(), "circle", "triangle-up")  # an arrow where it is a bound
        yield {
            "x": depth,
            "y": mean,
            "error_y": {"array": high - mean, "arrayminus": mean - low, "type": "data", "symmetric": False},
            "mode": "markers",
            "marker": {"color": colour, "symbol": symbols, "size": 8},
        }
        for exponent, fitted, times in self._fitted():
            line = {"color": colour, "dash": "dot"}
            name = f"{self.rows['agent'].iloc[0]}: {exponent}"
            yield {"x": fitted, "y": times, "mode": "lines", "line": line, "showlegend": False, "name": name}

    def _columns(self) -> Iterator[FloatArray]:
        return (self.rows[name].to_numpy(float) for name in ("depth", "mean", "low", "high"))

    def _is_solved(self) -> Any:
        return (self.rows["solved"] == self.rows["runs"]).to_numpy()

    def _fitted(self) -> Iterator[tuple[str, FloatArray, FloatArray]]:
        if self.law is not None:
            intercept, slope = self.law
            depth = self.rows["depth"][self.rows["solved"] > 0].to_numpy(float)
            yield f"depth^{slope.value:.2f}", depth, np.exp(intercept) * depth**slope.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What is shown of each agent, in its colour."""

    marks: Mapping[str, Curve | Times]
    heading: str  # on the page
    x_label: str
    y_label: str
    title: str = ""  # in print
    depths: Sequence[float] = ()  # ticks; where there are any, both axes are logarithmic

    def figure(self) -> Any:
        """Return the plot as a figure of matplotlib."""
        figure, axes = import_pyplot().subplots(figsize=(7.5, 4.2), layout="constrained")
        colours = agent_colours(self.marks)
        for agent, mark in self.marks.items():
            mark.draw(axes, colour=colours[agent], label=fill(agent, LEGEND_WIDTH))
        axes.set(xlabel=self.x_label, ylabel=self.y_label, title=self.title)
        if self.depths:
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(self.depths, [f"{depth:.0f}" for depth in self.depths])
            axes.set_xticks([], minor=True)
        tidy(axes)
        if self.marks:
            figure.legend(loc="outside right upper", frameon=False)
        return figure

    def to_html(self, name: str) -> str:
        """Return the plot as an element of this name for a page that has loaded plotly."""
        figure, colours = import_extra("plotly.graph_objects").Figure(), agent_colours(self.marks)
        for agent, mark in self.marks.items():
            for trace in mark.traces(colours[agent]):
                figure.add_scatter(**{"name": agent, "legendgroup": agent} | trace)
        if self.depths:
            figure.update_traces(cliponaxis=False)  # bounds stand at the top
            figure.update_xaxes(type="log", tickvals=self.depths)
            figure.update_yaxes(type="log")
        layout = {"template": "plotly_white", "margin": {"t": 20}}
        figure.update_layout(xaxis_title=self.x_label, yaxis_title=self.y_label, **layout)
        # Without a name plotly draws one at random, and no two pages have the same bytes.
        return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name))
