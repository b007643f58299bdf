"""Dithering finds the treasure after a number of episodes that is exponential in the depth."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.statistics import kaplan_meier_median
from qposterior.report.figures import AGENT_COLOURS
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels, sweep

AGENTS: dict[str, dict[str, float]] = {"random": {}, "q-learning": {"epsilon": 0.1}, "abrl-iid": {}}
LIMIT = 20_000


def make(size: Size) -> Made:
    """Draw the episode in which the treasure was first found over the depth, beside 2^(depth − 1)."""
    depths = size.choose(range(3, 12), range(3, 7))
    specs = [
        RunSpec(
            agent=agent,
            environment="deep-sea",
            depth=depth,
            seed=size.seed + seed,
            episodes=min(size.choose(LIMIT, 500), 32 * 2**depth),  # 64 times what chance takes on average
            full=agent == "random",  # it never learns, but it finds
            agent_options=options,
        )
        for depth in depths
        for seed in range(size.choose(20, 4))
        for agent, options in AGENTS.items()
    ]
    runs = sweep(size, "dithering", specs).runs
    found = runs["found_episode"].notna()
    runs = runs.assign(time=runs["found_episode"].fillna(runs["episodes"]).astype(float), is_found=found)
    rows = [
        (
            g["agent"].iloc[0],
            int(g["depth"].iloc[0]),
            kaplan_meier_median(g["time"].to_numpy(), g["is_found"].to_numpy()),
            int(g["is_found"].sum()),
            len(g),
            int(g["episodes"].max()),
        )
        for _, g in runs.groupby(["agent", "depth"])
    ]
    table = pd.DataFrame(rows, columns=["agent", "depth", "median_found_episode", "found", "runs", "limit"])
    figure, axes = draw_panels(figsize=(6.5, 4.2))
    slopes = {}
    for agent in AGENTS:
        own = table[table["agent"] == agent]
        seen = np.isfinite(own["median_found_episode"])
        part, missed = own[seen], own[~seen]
        colour = AGENT_COLOURS[agent]
        axes.plot(part["depth"], part["median_found_episode"], "o-", color=colour, label=agent)
        axes.plot(missed["depth"], missed["limit"], "^", color=colour, fillstyle="none")
        late = part[part["depth"] >= 4]
        if len(late) > 1:
            slopes[agent] = float(np.polyfit(late["depth"], np.log2(late["median_found_episode"]), 1)[0])
    grid = np.array(list(depths), dtype=float)
    axes.plot(grid, np.log(2.0) * 2.0 ** (grid - 1.0), "k:", label="ln 2 · 2^(depth − 1), the random agent's median")
    axes.set(yscale="log", xlabel="depth", ylabel="first episode with the treasure (median)")
    axes.set_title("triangles: fewer than half of the runs had found it at their limit", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    words = "; ".join(f"{agent} 2^({slope:.2f}·depth)" for agent, slope in slopes.items())
    greedy = table[table["agent"] == "q-learning"]
    lost = greedy[2 * greedy["found"] < greedy["runs"]]
    ends = (
        "" if lost.empty else f"; q-learning: found in fewer than half of the runs from depth {lost['depth'].min()} on"
    )
    # Once it has learned to avoid the cost, ε-greedy finds the treasure in (2/ε)^(depth − 1) episodes, which no limit
    # here waits for: there are then no medians to fit a line to.
    is_exponential = slopes.get("q-learning", 0.0) > 0.7 or set(greedy["depth"][greedy["depth"] > 4]) <= set(
        lost["depth"]
    )
    return Made(
        figure=figure,
        rows=table,
        found=f"growth of the first episode with the treasure: {words}{ends}",
        holds=None if size.quick else bool(is_exponential and 0.8 < slopes["random"] < 1.2),
    )


FIGURE = PaperFigure(
    name="dithering",
    label="sec. experiment",
    claim="Dithering strategies such as ε-greedy take a number of episodes that is exponential in the depth.",
    make_fn=make,
)
