"""One run of the paper's agent on a 5 × 5 sea: what it believed of every cell, and how its sampler adapted."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.agents.registry import make_agent
from qposterior.environments.deep_sea import deep_sea
from qposterior.experiments.beliefs import BELIEF_COLUMNS, TRACE_COLUMNS, Beliefs
from qposterior.experiments.explore import Run, World, explore, make_world
from qposterior.report.explore_report import state_places
from qposterior.report.figures import cells_figure, trace_figure
from qposterior_paper.figure import Made, PaperFigure, Size

PARTICLES = 10


def run_agent(size: Size) -> tuple[World, Run, Beliefs]:
    """Return the world, the run, and what the agent believed after each episode."""
    sea = deep_sea(depth=5)
    world = make_world(sea)
    agent = make_agent("abrl-paper", sea, horizon=world.cap, particles=PARTICLES, seed=size.seed)
    beliefs = Beliefs(space=world.space, seed=size.seed)
    run = explore(
        agent,
        world,
        episodes=size.choose(60, 25),
        seed=size.seed,
        callback=lambda _: beliefs.record(agent),
    )
    return world, run, beliefs


def make_sample_distribution(size: Size) -> Made:
    """Draw mean and spread of Q in every cell over the episodes."""
    world, run, beliefs = run_agent(size)
    table = pd.DataFrame(beliefs.rows(), columns=list(BELIEF_COLUMNS))
    places, truth = state_places(world), world.truth
    assert places is not None
    assert truth is not None
    figure = cells_figure(table, places, truth.q, title=f"abrl-paper, {PARTICLES} particles, 5 × 5 Deep Sea")
    layer = world.space.layer
    assert layer is not None
    # How many episodes after its first trial the spread of a pair stays below a tenth of the prior's.
    first_seen = {(row[3], row[4]): row[1] for row in reversed(run.transitions)}
    settled = {}
    for _, group in table.groupby(["state", "action"]):
        wide = group.loc[group["sd"] > 0.4, "episode"]
        pair = int(group["state"].iloc[0]), int(group["action"].iloc[0])
        if pair in first_seen:
            settled[pair] = max(0 if wide.empty else int(wide.max()) + 1 - first_seen[pair], 0)
    by_layer = [
        float(np.mean([episode for (state, _), episode in settled.items() if layer[state] == depth]))
        for depth in range(4)
    ]
    last = table[table["episode"] == table["episode"].max()]
    errors = np.abs(last["mean"].to_numpy() - truth.q[last["state"], last["action"]])
    seen = int(run.seen.sum()) if run.seen is not None else 0
    found = (
        f"from its first trial until its spread stays below a tenth of the prior's a pair takes "
        f"{', '.join(f'{e:.1f}' for e in by_layer)} episodes in rows 1 to 4 (means); {seen} of "
        f"{world.space.num_pairs} pairs were seen in the end, median error of Q "
        f"{np.median(errors):.3f}"
    )
    return Made(figure=figure, rows=table, found=found, holds=by_layer[-1] <= by_layer[0])


def make_adaptation(size: Size) -> Made:
    """Draw Bellman error, tolerances and effective sample size over the sampler's steps."""
    _, _, beliefs = run_agent(size)
    table = pd.DataFrame(
        [[row.get(name) for name in TRACE_COLUMNS] for row in beliefs.trace], columns=list(TRACE_COLUMNS)
    )
    figure = trace_figure(table, title="abrl-paper, 5 × 5 Deep Sea")
    stages = table["stage"].value_counts()
    entering = table[table["stage"] == "I"]
    raised = int(stages.get("IVa", 0) + stages.get("IVb", 0))
    found = (
        f"{len(table)} steps for {len(entering)} updates; new data enter at a tolerance {_ratio(entering):.1f} times "
        f"that of the old (median); the tolerance was raised in {raised} steps and ends at "
        f"{table['tolerance'].iloc[-1]:.3f}; "
        f"{int(table['resampled'].fillna(value=False).sum())} steps resampled"
    )
    resampled = table["resampled"].fillna(value=False).astype(bool)
    falls = (table["ess_after"] <= table["ess_before"] + 1e-9)[table["stage"].isin(["I", "II", "III"]) & ~resampled]
    holds = bool(falls.mean() > 0.9 and _ratio(entering) > 1.0)
    return Made(figure=figure, rows=table.drop(columns="seconds"), found=found, holds=holds)


def _ratio(entering: pd.DataFrame) -> float:
    return float((entering["new_tolerance"] / entering["tolerance"]).median()) if len(entering) else float("nan")


SAMPLE_DISTRIBUTION = PaperFigure(
    name="sample-distribution",
    label="fig. sample_distribution",
    claim="The posterior changes in steps, as new pairs are seen; it is learned sooner in the states nearer to the "
    "goals.",
    make_fn=make_sample_distribution,
)
ADAPTATION = PaperFigure(
    name="adaptation",
    label="fig. epsilon",
    claim="New data enter at their own, larger tolerance, which falls to that of the old data; the common tolerance is "
    "raised where the moves fail and lowered while the Bellman error falls; the effective sample size falls with every "
    "tolerance and recovers by resampling.",
    make_fn=make_adaptation,
)
