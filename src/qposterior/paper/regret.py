"""Cumulative regret on Deep Sea: against the baselines, and against the number of particles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from qposterior.agents.registry import find_agent
from qposterior.errors import MissingExtraError
from qposterior.experiments.run_spec import RunSpec
from qposterior.paper.figure import Made, PaperFigure, Size, sweep
from qposterior.report.figures import AGENT_COLOURS, OTHER_COLOUR, import_pyplot, tidy

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "psrl": ("psrl", {}),
    "psrl, flat rows": ("psrl", {"layered": False, "concentration": 1.0}),  # Dirichlet(1) on all states
    "bootstrapped-dqn": ("bootstrapped-dqn", {}),
    "bootstrapped-dqn-no-prior": ("bootstrapped-dqn-no-prior", {}),
    "bootstrapped-dqn, drawn actions": ("bootstrapped-dqn", {}),
    "abrl-paper": ("abrl-paper", {}),
    "abrl": ("abrl", {}),
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


def regret_curves(episodes: pd.DataFrame) -> dict[str, tuple[Any, Any, Any]]:
    """Return per label the seeds' cumulative regret ``(R, E)``, their mean and the 95 % half-width."""
    curves = {}
    for label, part in episodes.groupby("agent", sort=False):
        total = np.array([g.sort_values("episode")["regret"].cumsum() for _, g in part.groupby("seed")])
        spread = total.std(axis=0, ddof=1) if len(total) > 1 else np.zeros(total.shape[1])
        curves[str(label)] = (total, total.mean(axis=0), 1.96 * spread / np.sqrt(len(total)))
    return curves


def draw(axes: Any, curves: dict[str, tuple[Any, Any, Any]], colours: dict[str, str]) -> pd.DataFrame:
    """Draw curves with bands and return their rows."""
    rows = []
    for label, (_, mean, band) in curves.items():
        x = np.arange(1, mean.size + 1)
        colour = colours.get(label, OTHER_COLOUR)
        axes.plot(x, mean, color=colour, label=label)
        axes.fill_between(x, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)
        rows += [(label, int(e), m, b) for e, m, b in zip(x, mean, band, strict=True)]
    axes.set(xlabel="episode", ylabel="cumulative regret (reward)")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(axes)
    return pd.DataFrame(rows, columns=["label", "episode", "cumulative_regret", "half_width"])


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
    curves = regret_curves(sweep(size, "regret", specs).episodes)
    figure, axes = import_pyplot().subplots(figsize=(8.0, 4.4), layout="constrained")
    table = draw(axes, {agent: curves[agent] for agent in agents}, COLOURS)
    axes.set_title(f"Deep Sea of depth {depth}, {seeds} runs, 95 % bands", fontsize=9)
    ends = ", ".join(f"{agent} {curves[agent][1][-1]:.0f} ± {curves[agent][2][-1]:.0f}" for agent in agents)
    paper = curves["abrl-paper"][0]
    flat = np.diff(paper[:, -max(paper.shape[1] // 10, 2) :], axis=1).mean(axis=1)
    settled = float(np.mean(flat < 0.1))
    above = [a for a in BASELINES if a in curves and curves[a][1][-1] > curves["abrl-paper"][1][-1]]
    found = (
        f"regret after {paper.shape[1]} episodes: {ends}; abrl-paper has levelled off in {settled:.0%} of the runs "
        f"and is below {' and '.join(above) or 'none of the baselines'}"
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
    curves = regret_curves(sweep(size, "particles", specs).episodes)
    chosen = {f"{number} particles": curves[f"{number} particles"] for number in numbers}
    figure, axes = import_pyplot().subplots(figsize=(8.0, 4.4), layout="constrained")
    table = draw(axes, chosen, {f"{number} particles": colour for number, colour in PARTICLES.items()})
    axes.set_title(f"abrl-paper, Deep Sea of depth {depth}, {seeds} runs, 95 % bands", fontsize=9)
    ends = [float(total[:, -1].mean()) for total, _, _ in chosen.values()]
    spreads = [float(total[:, -1].std(ddof=1)) for total, _, _ in chosen.values()]
    words = ", ".join(f"{label} {e:.0f} (sd {s:.0f})" for label, e, s in zip(chosen, ends, spreads, strict=True))
    found = f"regret after {size.choose(200, 25)} episodes: {words}"
    holds = None if size.quick else bool(ends[-1] < ends[0] and spreads[-1] < spreads[0])
    return Made(figure=figure, rows=table, found=found, holds=holds)


REGRET = PaperFigure(
    name="regret",
    label="fig. regret_compare",
    claim="ABRL has a much lower cumulative regret than PSRL and bootstrapped DQN and converges after about 200 "
    "episodes; "
    "the regret of bootstrapped DQN shoots off.",
    make_fn=make_regret,
)
PARTICLE_NUMBERS = PaperFigure(
    name="particles",
    label="fig. compare_n",
    claim="With more particles the regret levels off earlier and varies less from run to run.",
    make_fn=make_particles,
)
