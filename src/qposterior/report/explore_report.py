"""The report of an `explore` run: a page with its pictures inside, which opens from disk without a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError, MissingExtraError
from qposterior.experiments.beliefs import MOST_PAIRS
from qposterior.experiments.explore import Run, World
from qposterior.experiments.run_directory import BELIEFS_FILE, EPISODES_FILE, REPORT_FILE, TRACE_FILE
from qposterior.experiments.statistics import measured_column
from qposterior.report.figures import cells_figure, map_figure, regret_figure, to_png, trace_figure
from qposterior.storage import write_atomically

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } th, td { padding: 0.25rem 0.8rem; text-align: right; }
th { border-bottom: 2px solid #444; } tr + tr td { border-top: 1px solid #ddd; }
img { max-width: 100%; height: auto; } figure { margin: 2rem 0; } figcaption { color: #555; }
</style>
<h1>{{ title }}</h1>
<p>{{ words }}</p>
<table>
<tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</table>
{% for caption, picture in pictures %}<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ picture }}">
<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
</html>
"""
COLUMNS = ("seed", "episodes", "found_episode", "learning_time", "cumulative_regret", "posterior_updates", "seconds")


def write_explore_report(folder: Path, runs: Sequence[Run], world: World) -> Path:
    """Draw what the rows in `folder` have to show, write the page around the pictures and return its path."""
    import pandas as pd

    if not runs:
        raise InvalidInputError(f"{folder} has no finished episode to report on")

    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("writing the report", "report") from error

    depth = f", depth {runs[0].depth}" if runs[0].depth is not None else ""
    name = f"{runs[0].agent} on {world.name}{depth}"
    episodes = pd.read_csv(folder / EPISODES_FILE)
    measured = f"{measured_column(episodes)}.png"
    pictures = {measured: to_png(regret_figure(episodes, title=name))}
    captions = {measured: f"Cumulative {measured_column(episodes)} over the episodes, a line per seed."}
    if (folder / TRACE_FILE).exists():
        trace, beliefs = pd.read_csv(folder / TRACE_FILE), pd.read_csv(folder / BELIEFS_FILE)
        seed = int(beliefs["seed"].iloc[0])
        pictures["trace.png"] = to_png(trace_figure(trace[trace["seed"] == seed], title=f"{name}, seed {seed}"))
        captions["trace.png"] = f"Every step of the sampler, seed {seed}."
        places, truth = state_places(world), world.truth
        if truth is not None and places is not None:
            if world.space.num_pairs <= MOST_PAIRS:
                first = beliefs[beliefs["seed"] == seed]
                pictures["cells.png"] = to_png(cells_figure(first, places, truth.q, f"{name}, seed {seed}"))
                captions["cells.png"] = (
                    "The posterior of every state over the episodes: mean and standard deviation of Q; dashed: truth."
                )
            share = right_share(beliefs, world)
            pictures["map.png"] = to_png(map_figure(places, share, title=f"{name}, at the end, mean over seeds"))
            captions["map.png"] = "How probable it is at the end that the action which is right is optimal."
    for file, picture in pictures.items():
        write_atomically(folder / file, picture)
    summaries = [run.summary() for run in runs]
    learned = [s["learning_time"] for s in summaries if s["learning_time"] is not None]
    page = Environment(autoescape=True).from_string(PAGE)
    text = page.render(
        title=name,
        words=_words(learned, len(runs), is_known=world.truth is not None),
        columns=[column.replace("_", " ") for column in COLUMNS],
        rows=[[_shown(summary[column]) for column in COLUMNS] for summary in summaries],
        pictures=[(captions[file], base64.b64encode(picture).decode()) for file, picture in pictures.items()],
    )
    write_atomically(folder / REPORT_FILE, text)
    return folder / REPORT_FILE


def _words(learned: list[int], runs: int, *, is_known: bool) -> str:
    if not is_known:
        return "The environment has no table with a unique solution: there is no truth, no regret and no learning time."
    when = f", after {np.mean(learned):.1f} episodes on average" if learned else ""
    return f"{len(learned)} of {runs} seeds learned{when}."


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


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
