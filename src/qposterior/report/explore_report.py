"""The report of an `explore` run: a page with its pictures inside, which opens from disk without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.experiments.beliefs import MOST_PAIRS
from qposterior.experiments.explore import Run, World
from qposterior.experiments.run_directory import BELIEFS_FILE, EPISODES_FILE, REPORT_FILE, TRACE_FILE
from qposterior.experiments.statistics import measured_column
from qposterior.report.figures import cells_figure, map_figure, regret_figure, to_png, trace_figure
from qposterior.report.page import dashed, write_page
from qposterior.storage import write_atomically

COLUMNS = {
    "seed": "",
    "episodes": "",
    "found_episode": "",
    "learning_time": "",
    "cumulative_regret": ".2f",
    "posterior_updates": "",
    "seconds": ".2f",
}
"""What the table has of a run's summary, and in which format."""


def write_explore_report(folder: Path, runs: Sequence[Run], world: World) -> Path:
    """Draw what the rows in `folder` have to show, write the page around the pictures and return its path."""
    if not runs:
        raise InvalidInputError(f"{folder} has no finished episode to report on")
    depth = f", depth {runs[0].depth}" if runs[0].depth is not None else ""
    name = f"{runs[0].agent} on {world.name}{depth}"
    pictures = [(file, caption, to_png(figure)) for file, caption, figure in _figures(folder, name, world)]
    for file, _, picture in pictures:
        write_atomically(folder / file, picture)
    summaries = [run.summary() for run in runs]
    return write_page(
        folder / REPORT_FILE,
        "explore.html",
        title=name,
        is_known=world.truth is not None,
        learned=[row["learning_time"] for row in summaries if row["learning_time"] is not None],
        columns=[column.replace("_", " ") for column in COLUMNS],
        rows=[[dashed(row[column], form) for column, form in COLUMNS.items()] for row in summaries],
        pictures=[(caption, picture) for _, caption, picture in pictures],
    )


def _figures(folder: Path, name: str, world: World) -> Iterator[tuple[str, str, Any]]:
    """Yield the file, the caption and the figure of each picture that the rows of a run allow."""
    import pandas as pd

    episodes = pd.read_csv(folder / EPISODES_FILE)
    measured = measured_column(episodes)
    caption = f"Cumulative {measured} over the episodes, one line per seed."
    yield f"{measured}.png", caption, regret_figure(episodes, title=name)
    if not (folder / TRACE_FILE).exists():
        return
    trace, beliefs = pd.read_csv(folder / TRACE_FILE), pd.read_csv(folder / BELIEFS_FILE)
    seed = int(beliefs["seed"].iloc[0])
    of_seed = f"{name}, seed {seed}"
    caption = f"Every step of the sampler, seed {seed}."
    yield "trace.png", caption, trace_figure(trace[trace["seed"] == seed], title=of_seed)
    places, truth = state_places(world), world.truth
    if truth is None or places is None:
        return
    if world.space.num_pairs <= MOST_PAIRS:
        caption = "The posterior of Q in every state over the episodes: mean and standard deviation; dashed: the truth."
        yield "cells.png", caption, cells_figure(beliefs[beliefs["seed"] == seed], places, truth.q, title=of_seed)
    caption = "What probability the agent gives, at the end, to the right action being optimal."
    title = f"{name}, at the end, mean over seeds"
    yield "map.png", caption, map_figure(places, right_share(beliefs, world), title=title)


def state_places(world: World) -> dict[int, tuple[int, int]] | None:
    """Return row and column of each deciding state: the cells of a layered problem, else lines of equal length."""
    states = world.space.deciding_states
    if world.space.layer is not None:
        places, filled = {}, dict[int, int]()
        for state in states.tolist():
            row = int(world.space.layer[state])
            places[state] = (row, filled.get(row, 0))
            filled[row] = filled.get(row, 0) + 1
        return places
    width = int(np.ceil(np.sqrt(world.space.num_states)))
    return {state: (state // width, state % width) for state in states.tolist()} if states.size else None


def right_share(beliefs: Any, world: World) -> dict[int, float]:
    """Return per state the mean over seeds of P(the optimal action is optimal) after the last episode."""
    assert world.truth is not None
    last = beliefs[beliefs["episode"] == beliefs.groupby("seed")["episode"].transform("max")]
    mean = last.groupby(["state", "action"])["prob_optimal"].mean()
    best = world.truth.q >= world.truth.value[:, None] - 1e-9
    return {
        int(s): float(sum(mean[(s, a)] for a in world.space.actions(s) if best[s, a]))
        for s in world.space.deciding_states
    }
