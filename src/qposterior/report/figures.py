"""Figures of runs, in colours that colour-blind readers can tell apart; an agent keeps its colour everywhere."""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.experiments.statistics import measured_column
from qposterior.extra import import_extra
from qposterior.storage import write_atomically
from qposterior.world.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

# Okabe and Ito's palette.
AGENT_COLOURS = {
    "abrl": "#D55E00",
    "abrl-iid": "#F0A070",
    "abrl-paper": "#CC79A7",
    "abrl-fixed": "#661100",
    "abrl-exact": "#56B4E9",
    "random": "#999999",
    "q-learning": "#E69F00",
    "r-max": "#009E73",
    "psrl-deterministic": "#0072B2",
    "psrl": "#332288",
    "rlsvi": "#882255",
    "ucbvi": "#44AA99",
    "bayesian-q-learning": "#AA4499",
    "bootstrapped-dqn": "#117733",
    "bootstrapped-dqn-no-prior": "#999933",
}
OTHER_COLOUR = "#000000"
OTHER_COLOURS = (OTHER_COLOUR, "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#661100", "#999933")
ACTION_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def agent_colours(agents: Iterable[str]) -> dict[str, str]:
    """Return a colour for every agent: its own, or for a label one that is not taken yet, while there are some."""
    known = {agent: AGENT_COLOURS[agent] for agent in agents if agent in AGENT_COLOURS}
    others = [agent for agent in agents if agent not in AGENT_COLOURS]
    free = [colour for colour in OTHER_COLOURS if colour not in known.values()] or list(OTHER_COLOURS)
    return known | dict(zip(others, cycle(free), strict=False))


def import_pyplot() -> Any:
    """Return matplotlib's pyplot on a backend without a screen, or raise with the `pip install` to run."""
    import_extra("matplotlib", "drawing figures").use("Agg", force=False)
    return import_extra("matplotlib.pyplot", "drawing figures")


def regret_figure(episodes: pd.DataFrame, *, title: str = "") -> Any:
    """Return a figure of cumulative regret (or return) over episodes: a thin line per seed, the mean bold."""
    plt, column = import_pyplot(), measured_column(episodes)
    agent = str(episodes["agent"].iloc[0])
    colour = AGENT_COLOURS.get(agent, OTHER_COLOUR)
    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    curves = [group[column].cumsum().to_numpy() for _, group in episodes.groupby("seed", sort=True)]
    faint = {"alpha": 0.35, "linewidth": 1.0} if len(curves) > 1 else {"linewidth": 2.0}
    for curve in curves:
        axes.plot(np.arange(1, curve.size + 1), curve, color=colour, **faint)
    if len(curves) > 1:
        shared = min(curve.size for curve in curves)
        mean = np.mean([curve[:shared] for curve in curves], axis=0)
        label = f"mean of {len(curves)} seeds"
        axes.plot(np.arange(1, shared + 1), mean, color=colour, linewidth=2.5, label=label)
        axes.legend(frameon=False, loc="lower right" if column == "regret" else "best")
    axes.set_xlabel("episode")
    axes.set_ylabel(f"cumulative {column} (reward)")
    axes.set_title(title or agent)
    tidy(axes)
    axes.set_xlim(left=1)
    axes.set_ylim(bottom=min(0.0, float(axes.get_ylim()[0])) if min(c.min() for c in curves) < 0 else 0.0)
    return figure


def trace_figure(trace: pd.DataFrame, *, title: str = "") -> Any:
    """Return a figure of the steps of one sampler: Bellman error, tolerances and effective sample size.

    The tolerance of old data is solid, that of new data dotted, a star ends each update (the paper's fig. epsilon). At
    tolerance 0 there is neither an error nor a tolerance: the acceptance of the moves takes their place.
    """
    plt = import_pyplot()
    annealed = bool((trace["tolerance"] > 0.0).any())
    figure, panels = plt.subplots(
        3 if annealed else 2, 1, sharex=True, figsize=(7.0, 6.0 if annealed else 4.2), layout="constrained"
    )
    step = np.arange(1, len(trace) + 1)
    if annealed:
        panels[0].plot(step, trace["bellman_error"], color="#0072B2", linewidth=1.0)
        panels[0].set(ylabel="Bellman error", yscale="log")
        panels[1].plot(step, trace["tolerance"], color="#D55E00", linewidth=1.2, label="old data")
        panels[1].plot(step, trace["new_tolerance"], color="#D55E00", linewidth=1.0, linestyle=":", label="new data")
        episode = trace["episode"].to_numpy()
        last = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
        panels[1].plot(step[last], trace["tolerance"].to_numpy()[last], "*", color="#000000", markersize=5)
        panels[1].set(ylabel="tolerance", yscale="log")
        panels[1].legend(frameon=False, loc="upper right", fontsize=8)
    else:
        panels[0].plot(step, trace["acceptance"], ".", color="#0072B2", markersize=2)
        panels[0].set(ylabel="acceptance", ylim=(0.0, 1.05))
    ess = trace["ess_after"].fillna(trace["ess_before"])
    panels[-1].plot(step, ess, color="#009E73", linewidth=0.8)
    panels[-1].set(ylabel="effective particles", xlabel="step of the sampler")
    panels[-1].set_ylim(bottom=0.0)
    panels[0].set_title(title)
    for axes in panels:
        tidy(axes)
    return figure


def cells_figure(
    beliefs: pd.DataFrame, places: dict[int, tuple[int, int]], truth: FloatArray, *, title: str = ""
) -> Any:
    """Return a figure with a panel per state: mean ± sd of Q of each action over the episodes, dashed the truth."""
    plt = import_pyplot()
    rows, columns = (1 + max(place[i] for place in places.values()) for i in (0, 1))
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(1.9 * columns + 0.8, 1.5 * rows + 0.7),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes in grid.flat:
        axes.set_visible(False)
    for key, group in beliefs.groupby(["state", "action"], sort=True):
        state, action = np.asarray(key, dtype=int).tolist()
        axes = grid[places[state]]
        axes.set_visible(True)
        colour = ACTION_COLOURS[action % len(ACTION_COLOURS)]
        episode, mean, sd = (group[name].to_numpy() for name in ("episode", "mean", "sd"))
        axes.plot(episode, mean, color=colour, linewidth=1.2, label=f"action {action}")
        axes.fill_between(episode, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0.0)
        axes.axhline(truth[state, action], color=colour, linewidth=0.8, linestyle="--")
        axes.tick_params(labelsize=7, labelbottom=True, labelleft=places[state][1] == 0)
        axes.set_title(f"state {state}", fontsize=8)
    handles, labels = grid[next(iter(places.values()))].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="upper right", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel("episode", fontsize=9)
    figure.supylabel("Q", fontsize=9)
    return figure


def map_figure(places: dict[int, tuple[int, int]], share: dict[int, float], *, title: str = "") -> Any:
    """Return a figure of P(the action that is right is optimal) of each state, where it lies."""
    plt = import_pyplot()
    rows, columns = (1 + max(place[i] for place in places.values()) for i in (0, 1))
    values = np.full((rows, columns), np.nan)
    for state, place in places.items():
        values[place] = share[state]
    size = max(0.45, min(0.9, 9.0 / max(rows, columns)))
    figure, axes = plt.subplots(figsize=(size * columns + 2.0, size * rows + 1.0), layout="constrained")
    image = axes.imshow(values, vmin=0.0, vmax=1.0, cmap="cividis")
    if max(rows, columns) <= 16:
        for place in places.values():
            shade = "white" if values[place] < 0.6 else "black"
            axes.text(place[1], place[0], f"{values[place]:.2f}", ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label="P(right action is optimal)", shrink=0.8)
    return figure


def to_png(figure: Any) -> bytes:
    """Return a figure as PNG and close it; without a software version, so that the same rows give the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    import_pyplot().close(figure)
    return buffer.getvalue()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG and PDF beside each other and close it; the same rows give the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf", metadata={"Creator": None, "Producer": None, "CreationDate": None})
    write_atomically(path.with_suffix(".pdf"), buffer.getvalue())
    write_atomically(path.with_suffix(".png"), to_png(figure))


def tidy(axes: Any) -> None:
    """Give axes the look of the house: a faint grid, no frame above and to the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
