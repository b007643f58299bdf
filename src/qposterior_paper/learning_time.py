"""Learning time over depth: fitted exponents with intervals, beside the published ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.statistics import censored_times, scaling_law, summarise_runs
from qposterior.report.figures import AGENT_COLOURS, OTHER_COLOUR
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels, sweep

PUBLISHED = {"psrl": 6.8, "abrl-paper": 3.4, "abrl-fixed": 3.6}
KNOWN_NOISE = {"shape": 1e12, "rate": 1e12, "reward_mean": 0.0, "mean_count": 1.0}  # N(0, 1) rewards, unit noise


def specs(size: Size) -> list[RunSpec]:
    """Return the runs: fast agents deep, the annealed samplers as deep as ten minutes a run take them."""
    runs: list[RunSpec] = []

    def add(agent: str, depths: tuple[int, ...], seeds: int, episodes: int, **more: Any) -> None:
        runs.extend(
            RunSpec(
                agent=agent,
                environment="deep-sea",
                depth=depth,
                seed=size.seed + seed,
                episodes=episodes,
                timeout=600.0,
                env_options={"variant": "paper"},
                **more,
            )
            for depth in depths
            for seed in range(seeds)
        )

    few = size.quick
    for agent in ("abrl-iid", "psrl-deterministic", "r-max"):
        add(agent, (3, 5) if few else (5, 10, 20, 30, 40), 3 if few else 20, 3000)
    add("psrl", (3, 5) if few else (5, 10, 20, 30, 40), 3 if few else 20, 1000)
    for agent in ("abrl-paper", "abrl-fixed"):
        add(agent, (3, 5) if few else (5, 10), 2 if few else 20, 1000)
        if not few:
            add(agent, (15,), 2, 1000)
            add(agent, (20, 30, 40), 1, 1000)
    if not few:
        add("psrl-deterministic", (60, 100), 5, 3000)
        add("r-max", (60, 100), 5, 3000)
        add("abrl-iid", (60,), 2, 5000)
    for depth in (3, 5) if few else (10, 15, 20, 25, 30):
        options = KNOWN_NOISE | {"repeats": depth}
        add("psrl", (depth,), 3 if few else 10, 3000, agent_options=options, label="psrl, UBE settings")
    return runs


def make(size: Size) -> Made:
    """Draw learning times on log axes with fitted lines, and the published exponents as dotted ones."""
    runs = sweep(size, "learning-time", specs(size)).runs
    table = summarise_runs(runs)
    figure, axes = draw_panels(figsize=(7.5, 5.0))
    fits, published_inside = [], []
    for label, group in table.groupby("agent"):
        name = str(label)
        colour = AGENT_COLOURS.get(name, OTHER_COLOUR)
        bounds = group["solved"] < group["runs"]
        axes.errorbar(
            group["depth"],
            group["mean"],
            yerr=[group["mean"] - group["low"], group["high"] - group["mean"]],
            fmt="o",
            color=colour,
            markersize=4,
        )
        axes.plot(group["depth"][bounds], group["mean"][bounds], "^", color=colour, markersize=9, fillstyle="none")
        own = runs[(runs["agent"] == name) & (runs["status"] != "failed")]
        times, solved = censored_times(own)
        try:
            intercept, slope = scaling_law(own["depth"].to_numpy(float), times, solved)
        except InvalidInputError:
            continue
        x = np.array([group["depth"].min(), group["depth"].max()], dtype=float)
        printed = f" (printed: {PUBLISHED[name]})" if name in PUBLISHED else ""
        label_text = f"{name}: depth^{slope.value:.2f}{printed}"
        axes.plot(x, np.exp(intercept) * x**slope.value, color=colour, label=label_text)
        fits.append(f"{name} {slope.value:.2f} [{slope.low:.2f}, {slope.high:.2f}]")
        if name in PUBLISHED:
            start = np.exp(intercept) * x[0] ** slope.value
            dotted = start * (x / x[0]) ** PUBLISHED[name]
            axes.plot(x, dotted, ":", color=colour, linewidth=1.2)
            published_inside.append(slope.low <= PUBLISHED[name] <= slope.high)
    axes.set(xscale="log", yscale="log", xlabel="depth", ylabel="learning time (episodes)")
    axes.set_ylim(2.0, 3e4)
    axes.set_title("triangles: some runs had not learned at their limit; dotted: published exponents", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    solved_share = table.groupby("agent")[["solved", "runs"]].sum()
    open_runs = [
        f"{a} {r['runs'] - r['solved']} of {r['runs']}" for a, r in solved_share.iterrows() if r["solved"] < r["runs"]
    ]
    unsolved = "; not solved within the limits: " + ", ".join(open_runs) if open_runs else ""
    return Made(
        figure=figure,
        rows=table.drop(columns="seconds"),
        found=f"exponents {'; '.join(fits)}{unsolved}",
        holds=None if size.quick else all(published_inside),
    )


FIGURE = PaperFigure(
    name="learning-time",
    label="fig. LearningT",
    claim="Learning time grows as depth^6.8 for PSRL, depth^3.4 for adaptive and depth^3.6 for non-adaptive ABRL.",
    make_fn=make,
)
