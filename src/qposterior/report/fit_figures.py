"""Figures of a fit: what policies and actions are worth, and where actions led."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.logs.fit import Fit
from qposterior.logs.words import is_logged, share_words
from qposterior.report.figures import ACTION_COLOURS, import_pyplot, tidy
from qposterior.report.page import shortened
from qposterior.world.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 80
"""Intervals that are drawn, those of the first states; the table has all of them."""

MOST_NODES = 12
"""States up to which the decision process is drawn as a graph; with more the arrows cannot be told apart."""

GRID = re.compile(r"^\D*(\d{1,3})\D+(\d{1,3})\D*$")
RECOMMENDED_COLOUR, LOGGED_COLOUR, GAIN_COLOUR = "#0072B2", "#999999", "#009E73"


def value_figures(fit: Fit) -> Iterator[tuple[str, Any]]:
    """Yield captions and pictures of the posteriors of the values of the two policies, and of the gain."""
    policies = fit.policies
    if policies is None:
        return
    shown = {"logged": (policies.logged.values, LOGGED_COLOUR)}
    if not is_logged(policies):
        shown["recommended"] = (policies.recommended.values, RECOMMENDED_COLOUR)
    bins = (
        ""
        if fit.aggregation is None
        else " What bins may cost is added in half of the draws and taken off in the others."
    )
    if all(np.isfinite(values).any() for values, _ in shown.values()):
        yield f"How much an episode may be worth.{bins}", distribution_figure(shown, "value of an episode")
    gain = policies.gain
    if gain.any() and np.isfinite(gain).any():
        label = "recommended less logged"
        figure = distribution_figure({"gain": (gain, GAIN_COLOUR)}, label, mark=0.0)
        yield f"How large the gain may be: above 0 with probability {share_words(policies.prob_better)}.{bins}", figure


def state_figures(fit: Fit) -> Iterator[tuple[str, Any]]:
    """Yield captions and pictures of what actions are worth and where they led, of a fit that is settled."""
    dotted = "; dotted: predicted" if (fit.table["count"] == 0).any() else ""
    drawn, num_states = len(_states_drawn(fit.table)), fit.table["state"].nunique()
    rest = "" if drawn == num_states else f" The first {drawn:,} of {num_states:,} states; the table has all."
    caption = f"What each action is worth (90 % intervals; filled: the action to take{dotted}).{rest}"
    yield caption, intervals_figure(fit)
    if len(fit.chosen.states) <= MOST_NODES:
        yield "Where actions led; thick arrows: the action to take.", graph_figure(fit)


def distribution_figure(shown: dict[str, tuple[FloatArray, str]], label: str, *, mark: float | None = None) -> Any:
    """Return histograms of draws on one axis, with a line at `mark`; a thousandth at each end is not shown."""
    plt = import_pyplot()
    figure, axes = plt.subplots(figsize=(4.2, 2.4), layout="constrained")
    finite = np.concatenate([values[np.isfinite(values)] for values, _ in shown.values()])
    low, high = np.quantile(finite, [0.001, 0.999])
    bins = np.linspace(low, high, 41) if high - low > 1e-9 * max(abs(low), abs(high)) else 1
    for name, (values, colour) in shown.items():
        kept = values[np.isfinite(values) & (values >= low) & (values <= high)]
        axes.hist(kept, bins=bins, color=colour, alpha=0.6, label=name)
        axes.axvline(float(np.median(values)), color=colour, linewidth=1.5)
    if mark is not None:
        axes.axvline(mark, color="black", linewidth=1.0, linestyle="--")
    if len(shown) > 1:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_yticks([])
    tidy(axes)
    axes.spines["left"].set_visible(False)
    return figure


def _states_drawn(table: pd.DataFrame) -> list[str]:
    """Return the states for which there is room in a picture of intervals, the first ones of the table."""
    number = table.groupby("state", sort=False).size().cumsum()
    return list(number.index[(number <= MOST_LINES) | (number == number.iloc[0])])


def intervals_figure(fit: Fit) -> Any:
    """Return a figure of the intervals of every action, state by state, of as many states as there is room for."""
    table, taken = fit.table, fit.policy
    states = _states_drawn(table)
    table = table[table["state"].isin(states)]
    plt = import_pyplot()
    height = 1.2 + 0.3 * (min(len(table), 2 * MOST_LINES) + len(states))
    figure, axes = plt.subplots(figsize=(8.5, height))
    # Labels come from the log and may be of any length: they are cut, and have room for a letter's usual width.
    names = [f"{row.state}: {row.action}" for row in table.itertuples()]
    room = 0.04 + min(0.29, 0.0085 * max(map(len, names)))
    figure.subplots_adjust(left=room, right=0.98, top=1.0 - 0.2 / height, bottom=0.55 / height)
    y, ticks = 0.0, []
    for state, part in table.groupby("state", sort=False):
        for row in part.to_dict(orient="records"):
            colour = ACTION_COLOURS[fit.chosen.actions.index(row["action"]) % len(ACTION_COLOURS)]
            fill = colour if taken.get(str(state)) == row["action"] else "white"
            line = "-" if row["count"] else ":"
            axes.plot([row["lower"], row["upper"]], [y, y], color=colour, linewidth=1.5, linestyle=line)
            axes.plot(row["mean"], y, "o", color=colour, markersize=6, markerfacecolor=fill)
            ticks.append((y, f"{state}: {row['action']}"))
            y -= 1.0
        y -= 0.6
    axes.set_yticks([t for t, _ in ticks])
    axes.set_yticklabels([shortened(name, 40) for _, name in ticks], parse_math=False, fontsize=8)
    axes.set_xlabel("value")
    tidy(axes)
    return figure


def node_places(states: list[str]) -> dict[int, tuple[float, float]]:
    """Return where states are drawn: as a grid where every label has a row and a column in it, else on a circle."""
    matches = [GRID.match(label) for label in states]
    inside = [match for match in matches if match]
    if len(inside) >= 4 and len(inside) >= 0.8 * len(states):
        places = {i: (float(m.group(2)), -float(m.group(1))) for i, m in enumerate(matches) if m}
        bottom = min(y for _, y in places.values()) - 1.5
        for number, i in enumerate(i for i, match in enumerate(matches) if not match):
            places[i] = (float(number), bottom)
        return places
    angle = 2.0 * np.pi * np.arange(len(states)) / max(len(states), 1)
    return {i: (float(np.sin(a)) * 3.0, float(np.cos(a)) * 3.0) for i, a in enumerate(angle)}


def graph_figure(fit: Fit) -> Any:
    """Return the decision process as a graph: arrows where actions led, by frequency."""
    plt = import_pyplot()
    space, seen, states = fit.posterior.space, fit.chosen.seen, fit.chosen.states
    places = node_places(states)
    taken = fit.policy
    figure, axes = plt.subplots(figsize=(7.5, 6.0))
    figure.subplots_adjust(left=0.02, right=0.98, top=0.98, bottom=0.02)
    for k in seen.observed_pairs:
        state, action = int(space.pair_state[k]), int(space.pair_action[k])
        successors, counts = seen.row(int(k))
        colour = ACTION_COLOURS[action % len(ACTION_COLOURS)]
        for successor, share in zip(successors, counts / counts.sum(), strict=True):
            if int(successor) == state or share < 0.05:
                continue
            style = {
                "arrowstyle": "-|>",
                "color": colour,
                "alpha": 0.25 + 0.65 * float(share),
                "linewidth": 2.6 if taken.get(states[state]) == fit.chosen.actions[action] else 0.9,
                "shrinkA": 9,
                "shrinkB": 9,
                "connectionstyle": f"arc3,rad={0.1 + 0.06 * action:.2f}",
            }
            axes.annotate("", xy=places[int(successor)], xytext=places[state], arrowprops=style)
    for i, place in places.items():
        fill = "#DDDDDD" if space.is_goal[i] else "white"
        axes.plot(*place, "o", markersize=15, markerfacecolor=fill, markeredgecolor="black")
        axes.text(place[0], place[1] + 0.28, states[i][:24], ha="center", fontsize=8, parse_math=False)
    for action, name in enumerate(fit.chosen.actions[: len(ACTION_COLOURS)]):
        axes.plot([], [], color=ACTION_COLOURS[action], label=name[:24].replace("$", r"\$"))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_axis_off()
    axes.margins(0.12)
    return figure
