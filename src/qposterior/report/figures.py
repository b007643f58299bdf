"""Figures of runs, in colours that colour-blind readers can tell apart; an agent keeps its colour everywhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

# Okabe and Ito's palette.
AGENT_COLOURS = {
    "abrl": "#D55E00",
    "random": "#999999",
    "q-learning": "#E69F00",
    "r-max": "#009E73",
    "psrl-deterministic": "#0072B2",
}
OTHER_COLOUR = "#000000"


def import_pyplot() -> Any:
    """Return matplotlib's pyplot on a backend without a screen, or raise with the `pip install` to run."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("drawing figures", "report") from error
    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    return plt


def regret_figure(episodes: pd.DataFrame, *, title: str = "") -> bytes:
    """Return a PNG of cumulative regret over episodes: a thin line per seed, the mean bold."""
    plt = import_pyplot()
    agent = str(episodes["agent"].iloc[0])
    colour = AGENT_COLOURS.get(agent, OTHER_COLOUR)
    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    curves = [group["regret"].cumsum().to_numpy() for _, group in episodes.groupby("seed", sort=True)]
    for curve in curves:
        axes.plot(np.arange(1, curve.size + 1), curve, color=colour, alpha=0.35, linewidth=1.0)
    if len(curves) > 1:
        shared = min(curve.size for curve in curves)
        mean = np.mean([curve[:shared] for curve in curves], axis=0)
        label = f"mean of {len(curves)} seeds"
        axes.plot(np.arange(1, shared + 1), mean, color=colour, linewidth=2.5, label=label)
        axes.legend(frameon=False, loc="lower right")
    axes.set_xlabel("episode")
    axes.set_ylabel("cumulative regret (reward)")
    axes.set_title(title or agent)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=1)
    axes.set_ylim(bottom=min(0.0, float(axes.get_ylim()[0])) if min(c.min() for c in curves) < 0 else 0.0)
    buffer = io.BytesIO()
    # No software version in the file: the same rows give the same bytes.
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()
