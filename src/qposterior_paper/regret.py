"""Cumulative regret on Deep Sea: against the baselines, and against the number of particles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from qposterior.agents.registry import find_agent
from qposterior.errors import MissingExtraError
from qposterior.experiments.run_spec import RunSpec
from qposterior.report.figures import AGENT_COLOURS
from qposterior.world.arrays import FloatArray
from qposterior_paper.figure import Made, PaperFigure, Size, cumulative, describe_ends, draw_curves, draw_panels, sweep

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "psrl": ("psrl", {}),
    "psrl, flat rows": ("psrl", {"layered": False, "concentration": 1.0}),  # Dirichlet(1) on all states
    "bootstrapped-dqn": ("bootstrapped-dqn", {}),
    "bootstrapped-dqn-no-prior": ("bootstrapped-dqn-no-prior", {}),
    "bootstrapped-dqn, drawn actions": ("bootstrapped-dqn", {}),
    "abrl-paper": ("abrl-paper", {}),
    "abrl-iid": ("abrl-iid", {}),
    "psrl-deterministic": ("psrl-deterministic", {}),
}
BASELINES = [name for name in AGENTS if name.startswith(("psrl", "boot")) and name != "psrl-deterministic"]
DRAWN = "drawn actions"
"""What stands in the label of an agent for which each cell draws which action is right, as bsuite does it."""
COLOURS = AGENT_COLOURS | {"psrl, flat rows": "#88CCEE", "bootstrapped-dqn, drawn actions": "#000000"}
PARTICLES = {5: "#56B4E9", 10: "#0072B2", 20: "#CC79A7"}


def installed() -> list[str]:
    """Return the labels of the agents whose dependencies are there."""
    kept = []
    for label, (name, _) in AGENTS.items():
        try:
            find_agent(name)
        except MissingExtraError:
            continue
        kept.append(label)
    return kept


def draw(curves: dict[str, FloatArray], colours: dict[str, str], title: str) -> tuple[Any, pd.DataFrame]:
    """Return a figure of the curves, which a legend beside it names, and its rows."""
    figure, axes = draw_panels(figsize=(8.0, 4.4))
    table = draw_curves(axes, curves, colours)
    axes.set(xlabel="episode", ylabel="cumulative regret (reward)")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_title(title, fontsize=9)
    return figure, table


def make_regret(size: Size) -> Made:
    """Draw the regret of the paper's three agents and of ours."""
    agents, depth, seeds = installed(), size.choose(10, 4), size.choose(20, 3)
    specs = [
        RunSpec(
            agent=AGENTS[label][0],
            agent_options=AGENTS[label][1],
            label=label if label not in AGENT_COLOURS else None,
            environment="deep-sea",
            env_options={"mapping_seed": size.seed + seed} if label.endswith(DRAWN) else {},
            depth=depth,
            seed=size.seed + seed,
            episodes=size.choose(500, 40),
            full=True,
        )
        for seed in range(seeds)
        for label in agents
    ]
    curves = cumulative(sweep(size, "regret", specs).episodes, "regret", agents)
    figure, table = draw(curves, COLOURS, f"Deep Sea of depth {depth}, {seeds} runs, 95 % bands")
    paper = curves["abrl-paper"]
    flat = np.diff(paper[:, -max(paper.shape[1] // 10, 2) :], axis=1).mean(axis=1)
    settled = float(np.mean(flat < 0.1))
    above = [a for a in BASELINES if a in curves and curves[a][:, -1].mean() > paper[:, -1].mean()]
    found = (
        f"regret after {paper.shape[1]} episodes: {describe_ends(table, '.0f')}; abrl-paper has levelled off in "
        f"{settled:.0%} of the runs and is below {' and '.join(above) or 'none of the baselines'}"
        + ("" if "bootstrapped-dqn" in agents else " (bootstrapped DQN left out: extra [deep] not installed)")
    )
    return Made(
        figure=figure,
        rows=table,
        found=found,
        holds=None if size.quick else bool(settled > 0.9 and {"psrl", "bootstrapped-dqn"} <= set(above)),
    )


def make_particles(size: Size) -> Made:
    """Draw the regret of the paper's agent for several numbers of particles."""
    depth, seeds, numbers = size.choose(10, 4), size.choose(50, 3), list(PARTICLES)[: size.choose(3, 2)]
    specs = [
        RunSpec(
            agent="abrl-paper",
            environment="deep-sea",
            depth=depth,
            seed=size.seed + seed,
            episodes=size.choose(200, 25),
            full=True,
            agent_options={"particles": number},
            label=f"{number} particles",
        )
        for seed in range(seeds)
        for number in numbers
    ]
    colours = {f"{number} particles": PARTICLES[number] for number in numbers}
    curves = cumulative(sweep(size, "particles", specs).episodes, "regret", colours)
    figure, table = draw(curves, colours, f"abrl-paper, Deep Sea of depth {depth}, {seeds} runs, 95 % bands")
    ends = [float(total[:, -1].mean()) for total in curves.values()]
    spreads = [float(total[:, -1].std(ddof=1)) for total in curves.values()]
    words = ", ".join(f"{label} {e:.0f} (sd {s:.0f})" for label, e, s in zip(curves, ends, spreads, strict=True))
    found = f"regret after {size.choose(200, 25)} episodes: {words}"
    holds = None if size.quick else bool(ends[-1] < ends[0] and spreads[-1] < spreads[0])
    return Made(figure=figure, rows=table, found=found, holds=holds)


REGRET = PaperFigure(
    name="regret",
    label="fig. regret_compare",
    claim="ABRL has a much lower cumulative regret than PSRL and bootstrapped DQN and converges after about 200 "
    "episodes; the regret of bootstrapped DQN shoots off.",
    make_fn=make_regret,
)
PARTICLE_NUMBERS = PaperFigure(
    name="particles",
    label="fig. compare_n",
    claim="With more particles the regret levels off earlier and varies less from run to run.",
    make_fn=make_particles,
)
