"""The page of a fit: what to do where, how sure that is, what to try next, in words that need no statistics."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np

from qposterior.errors import MissingExtraError
from qposterior.logs.files import PAGE_FILE
from qposterior.logs.fit import Fit
from qposterior.report.figures import ACTION_COLOURS, import_pyplot, tidy, to_png
from qposterior.report.page import HEAD, SORT_SCRIPT
from qposterior.world.files import write_atomically

MOST_STATES = 24
"""States of which intervals are drawn; the table has all of them."""

MOST_NODES = 60
GRID = re.compile(r"^\D*(\d{1,3})\D+(\d{1,3})\D*$")

PAGE = (
    HEAD
    + """</head>
<body>
<h1>{{ title }}</h1>
{% for line in summary %}<p>{{ line }}</p>
{% endfor %}
{% for check in misfits %}<p class="misfit">{{ check }}</p>
{% endfor %}
{% if settled %}<h2>What to do where</h2>
<table id="rows" class="sorts">
<thead><tr>{% for name in columns %}<th{% if loop.index < 3 %} class="name"{% endif %}>{{ name }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for row in rows %}<tr{% if row.best %} class="best"{% endif %}>
{% for shown, key in row.cells %}<td{% if loop.index < 3 %} class="name"{% endif %}
data-key="{{ key }}">{{ shown }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
<p class="note">Click on a column to sort. Bold: the action to take. “Value”: what the decision is worth from there on,
with an interval that holds the truth nine times in ten. “Loss”: what one expects to give up by taking it now.</p>
{% for caption, picture in pictures %}<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ picture }}">
<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
<h2>What to try next</h2>
{% if trials %}<table><thead><tr><th>state</th><th>action</th><th>tried so far</th><th>expected gain</th></tr></thead>
<tbody>{% for t in trials %}<tr><td>{{ t[0] }}</td><td>{{ t[1] }}</td><td>{{ t[2] }}</td><td>{{ t[3] }}</td></tr>
{% endfor %}</tbody></table>
<p class="note">Expected gain in the value of an episode from one more trial.</p>
{% else %}<p>More trials of what was tried would hardly change a decision.</p>{% endif %}
{% endif %}{% if untried %}<p>Never tried, so nothing is said of it: {{ untried }}.</p>{% endif %}
<h2>What was taken for granted, and whether it fits</h2>
<ul>{% for line in chosen %}<li>{{ line }}</li>{% endfor %}{% for line in fits %}<li>{{ line }}</li>{% endfor %}</ul>
"""
    + SORT_SCRIPT
    + """</body>
</html>
"""
)


def write_fit_report(found: Fit, folder: str | Path) -> Path:
    """Write the page into the folder of a fit and return its path; labels of the log are data, never markup."""
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError("writing the report", "report") from error
    pictures = []
    if found.is_settled:
        caption = "How much each action is worth; the thick line holds half of what is believed."
        pictures.append((caption, intervals_figure(found)))
        if len(found.chosen.states) <= MOST_NODES:
            pictures.append(("Where actions led; the arrow of the action to take is thick.", graph_figure(found)))
    text = (
        Environment(autoescape=True)
        .from_string(PAGE)
        .render(
            title=f"What to do: {Path(found.source).name}",
            settled=found.is_settled,
            summary=summary(found),
            misfits=[check.words for check in found.checks if not check.fits],
            fits=[check.words for check in found.checks if check.fits],
            columns=["state", "action", "tried", "value", "90 % interval", "P(best)", "loss"],
            rows=_rows(found),
            trials=[
                (row["state"], row["action"], row["count"], f"{row['expected_gain']:.3g}")
                for row in found.next_trials(8).to_dict(orient="records")
                if row["expected_gain"] > 1e-9
            ],
            untried=", ".join(f"{a} in {s}" for s, a in found.chosen.untried[:20]),
            chosen=found.chosen.words,
            pictures=[(caption, base64.b64encode(to_png(figure)).decode()) for caption, figure in pictures],
        )
    )
    path = Path(folder) / PAGE_FILE
    write_atomically(path, text)
    return path


def summary(found: Fit) -> list[str]:
    """Return what a manager should know, in three sentences."""
    table = found.table
    read = f"{found.log.num_rows:,} decisions in {table['state'].nunique()} states were read."
    if not found.is_settled:
        return [f"{read} There is no answer yet: the computation has not settled."]
    best = table.loc[table.groupby("state")["mean"].idxmax()]
    compared = best[~best["only_action"]]
    sure = compared[compared["prob_optimal"] >= 0.9]
    open_states = compared[compared["prob_optimal"] < 0.9].sort_values("prob_optimal")
    mean, low, high = found.start_value
    lines = [
        f"{read} In {len(sure)} of the {len(compared)} states where several actions were tried the best one is clear "
        f"(at least 90 % sure); an episode is then worth {mean:.4g} (90 % interval {low:.4g} to {high:.4g}).",
    ]
    if alone := len(best) - len(compared):
        where = "one state" if alone == 1 else f"{alone} states"
        lines.append(f"In {where} only one action was ever tried: nothing was compared there.")
    if len(open_states):
        row = open_states.iloc[0]
        lines.append(
            f"Least sure is the state {row['state']}: {row['action']} is the best action with probability "
            f"{row['prob_optimal']:.2f}; taking it now gives up {row['expected_loss']:.3g} on average."
        )
    lines.append(f"That the whole list of bold actions is right has probability {found.prob_policy:.2f}.")
    return lines


def _rows(found: Fit) -> list[dict[str, Any]]:
    policy, rows = found.policy, []
    for row in found.table.to_dict(orient="records"):
        cells = [
            (row["state"], row["state"]),
            (row["action"], row["action"]),
            (str(row["count"]), row["count"]),
            (f"{row['mean']:.4g}", row["mean"]),
            (f"{row['lower']:.4g} to {row['upper']:.4g}", row["lower"]),
            ("only action tried" if row["only_action"] else f"{row['prob_optimal']:.2f}", row["prob_optimal"]),
            (f"{row['expected_loss']:.3g}", row["expected_loss"]),
        ]
        rows.append({"best": policy.get(str(row["state"])) == row["action"], "cells": cells})
    return rows


def intervals_figure(found: Fit) -> Any:
    """Return a figure of the intervals of every action, state by state."""
    table = found.table
    states = list(dict.fromkeys(table["state"]))[:MOST_STATES]
    table = table[table["state"].isin(states)]
    names = list(dict.fromkeys(table["action"]))
    place = found.posterior.space.pair_state, found.posterior.space.pair_action
    quarter = {level: found.posterior.quantile(level)[place] for level in (0.25, 0.75)}
    plt = import_pyplot()
    height = 1.2 + 0.3 * (len(table) + len(states))
    figure, axes = plt.subplots(figsize=(8.5, height))
    # Room for the labels is fixed: they come from the log and may be of any length.
    figure.subplots_adjust(left=0.33, right=0.98, top=1.0 - 0.2 / height, bottom=0.55 / height)
    y, ticks = 0.0, []
    for state in states:
        part = table[table["state"] == state]
        for index, row in part.iterrows():
            colour = ACTION_COLOURS[names.index(row["action"]) % len(ACTION_COLOURS)]
            k = int(index)
            axes.plot([row["lower"], row["upper"]], [y, y], color=colour, linewidth=1.2)
            axes.plot([quarter[0.25][k], quarter[0.75][k]], [y, y], color=colour, linewidth=4.0)
            axes.plot(row["mean"], y, "o", color=colour, markersize=4)
            ticks.append((y, f"{state}: {row['action']}"))
            y -= 1.0
        y -= 0.6
    axes.set_yticks([t for t, _ in ticks])
    axes.set_yticklabels(
        [name if len(name) <= 40 else name[:39] + "…" for _, name in ticks], parse_math=False, fontsize=8
    )
    axes.set_xlabel("value")
    tidy(axes)
    return figure


def node_places(states: list[str]) -> dict[int, tuple[float, float]]:
    """Return where states are drawn: as a grid where every label has a row and a column in it, else on a circle."""
    found = [GRID.match(label) for label in states]
    inside = [match for match in found if match]
    if len(inside) >= 4 and len(inside) >= 0.8 * len(states):
        places = {i: (float(m.group(2)), -float(m.group(1))) for i, m in enumerate(found) if m}
        bottom = min(y for _, y in places.values()) - 1.5
        for number, i in enumerate(i for i, match in enumerate(found) if not match):
            places[i] = (float(number), bottom)
        return places
    angle = 2.0 * np.pi * np.arange(len(states)) / max(len(states), 1)
    return {i: (float(np.sin(a)) * 3.0, float(np.cos(a)) * 3.0) for i, a in enumerate(angle)}


def graph_figure(found: Fit) -> Any:
    """Return the decision process as a graph: arrows where actions led, by frequency."""
    plt = import_pyplot()
    space, seen, states = found.posterior.space, found.chosen.seen, found.chosen.states
    places = node_places(states)
    best = space.greedy(found.posterior.pair_mean)
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
                "linewidth": 2.6 if best[state] == action else 0.9,
                "shrinkA": 9,
                "shrinkB": 9,
                "connectionstyle": f"arc3,rad={0.1 + 0.06 * action:.2f}",
            }
            axes.annotate("", xy=places[int(successor)], xytext=places[state], arrowprops=style)
    for i, place in places.items():
        fill = "#DDDDDD" if space.is_goal[i] else "white"
        axes.plot(*place, "o", markersize=15, markerfacecolor=fill, markeredgecolor="black")
        axes.text(place[0], place[1] + 0.28, states[i][:24], ha="center", fontsize=8, parse_math=False)
    for action, name in enumerate(found.chosen.actions[: len(ACTION_COLOURS)]):
        axes.plot([], [], color=ACTION_COLOURS[action], label=name[:24].replace("$", r"\$"))
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_axis_off()
    axes.margins(0.12)
    return figure
