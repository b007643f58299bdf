"""The page of a fit: what policies are worth, what to do where, how sure that is, in words that need no statistics."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.errors import MissingExtraError
from qposterior.logs.files import PAGE_FILE
from qposterior.logs.fit import Fit
from qposterior.logs.words import (
    UPPER_BOUND,
    how_recommended,
    interval_words,
    is_logged,
    policy_lines,
    prob_best_words,
    rounded,
    sensitivity_lines,
    share_words,
    verdict,
    widths,
)
from qposterior.report.figures import ACTION_COLOURS, import_pyplot, tidy, to_png
from qposterior.report.page import HEAD, SORT_SCRIPT
from qposterior.storage import write_atomically
from qposterior.world.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 80
"""Intervals that are drawn, those of the first states; the table has all of them."""

MOST_ROWS = 2000
"""Rows of the table on the page; rows.csv has all of them."""

MOST_NODES = 60
MOST_NAMED = 20
LONGEST_IN_TEXT = 60
"""Characters of a label in a sentence; the table has all of them."""

GRID = re.compile(r"^\D*(\d{1,3})\D+(\d{1,3})\D*$")
CLEAR = 0.9
"""P(best) from which on the best action of a state is clear."""

WORTH_NAMING = 0.01
"""Share of the largest expected gain from which on a trial is named."""

UNTRIED = "never tried here: predicted"
RECOMMENDED_COLOUR, LOGGED_COLOUR, GAIN_COLOUR = "#0072B2", "#999999", "#009E73"

PAGE = (
    HEAD
    + """<style>
body { overflow-wrap: anywhere; } th, td { overflow-wrap: normal; white-space: nowrap; }
td.name, th.name { white-space: normal; overflow-wrap: anywhere; min-width: 5rem; max-width: 18rem; }
.verdict { font-size: 1.2rem; } tr.small td { font-size: 0.8rem; color: #555; }
tr.untried td { color: #666; } .tag { display: block; font: italic 0.8rem/1.2 system-ui, sans-serif; color: #A04000; }
td.bar { background: linear-gradient(to right, #cfe4f1 var(--share), transparent var(--share)); }
.pair { display: flex; flex-wrap: wrap; gap: 0 2rem; } .pair figure { margin: 1rem 0; flex: 0 1 26rem; }
.wide { overflow-x: auto; } .wide img { min-width: 36rem; }
@media (max-width: 40rem) { th, td { padding: 0.25rem 0.4rem; } td.name, th.name { max-width: 30vw; }
#policies td, #policies th, #sensitivity td, #sensitivity th { white-space: normal; font-size: 0.85rem;
padding: 0.25rem; }
#policies .name, #sensitivity .name { min-width: 6.2rem; max-width: 45vw; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for line in summary %}<p{% if loop.first and settled %} class="verdict"{% endif %}>{{ line }}</p>
{% endfor %}
{% for check in misfits %}<p class="misfit">{{ check }}</p>
{% endfor %}
{% if lines %}<table id="policies">
<thead><tr><th class="name">policy</th><th>value</th><th>90 % interval</th><th>P(better)</th></tr></thead>
<tbody>
{% for line in lines %}<tr{% if line.name == upper_bound %} class="small"{% endif %}>
<td class="name">{{ line.name }}</td><td>{{ line.value }}</td><td>{{ line.interval }}</td>
<td>{{ line.prob_better }}</td></tr>
{% endfor %}</tbody>
</table>
<p class="note">What an episode is worth that starts as those of the log do, with an interval that holds the truth nine
times in ten. “P(better)”: than the logged policy, that is to go on deciding as the log does. The upper bound is not to
be had: it takes the best decisions for known, and is too large on average.</p>
<div class="pair">{% for caption, picture in values %}<figure>
<img alt="{{ caption }}" src="data:image/png;base64,{{ picture }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}</div>
{% endif %}{% if settled %}<h2>What to do where</h2>
<p>{{ states | join(" ") }}</p>
<table id="rows" class="sorts">
<thead><tr>{% for name in columns %}<th{% if loop.index < 3 %} class="name"{% endif %}>{{ name }}</th>{% endfor %}</tr>
</thead>
<tbody>
{% for row in rows %}<tr class="{{ row.kind }}">
<td class="name" data-key="{{ row.state }}">{{ row.state }}</td>
<td class="name" data-key="{{ row.action }}">{{ row.action }}
{%- if row.kind == "untried" %}<span class="tag">{{ untried_tag }}</span>{% endif %}</td>
<td class="bar" style="--share: {{ row.percent }}%" data-key="{{ row.prob_best[1] }}">{{ row.prob_best[0] }}</td>
{% for shown, key in row.cells %}<td data-key="{{ key }}">{{ shown }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
{% if more %}<p>… and {{ more }} rows more: rows.csv has all of them.</p>
{% endif %}<p class="note">Click on a column to sort. Bold: the action to take. “P(best)”: the probability that no other
action of the state is better. “Value”: {{ value_note }}, with an interval that holds the truth nine times in ten.
“Loss”: what one expects to give up by taking it instead of the best. {% if has_untried %}An action marked “{{
untried_tag }}” was tried in other states only: its numbers come from what the other actions of the state do, and it is
never recommended.{% endif %}</p>
{% for caption, picture in pictures %}<figure class="wide"><img alt="{{ caption }}"
src="data:image/png;base64,{{ picture }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
<h2>What to try next</h2>
{% if trials %}<table><thead><tr><th class="name">state</th><th class="name">action</th><th>tried so far</th>
<th>expected gain</th></tr></thead>
<tbody>{% for t in trials %}<tr><td class="name">{{ t[0] }}</td><td class="name">{{ t[1] }}</td><td>{{ t[2] }}</td>
<td>{{ t[3] }}</td></tr>
{% endfor %}</tbody></table>
<p class="note">Expected gain in the value of an episode from one more trial.</p>
{% else %}<p>More trials of what was tried would hardly change a decision.</p>{% endif %}
{% endif %}{% if unknown %}<p>Never tried, so nothing is said of it: {{ unknown }}.</p>{% endif %}
<h2>What was taken for granted, and whether it fits</h2>
{% if sensitivity %}<table id="sensitivity">
<thead><tr><th class="name">if actions are believed, before the log, to lead to</th>
<th>gain</th><th>90 % interval</th></tr></thead>
<tbody>{% for line in sensitivity %}<tr><td class="name">{{ line.name }}</td><td>{{ line.value }}</td>
<td>{{ line.interval }}</td></tr>
{% endfor %}</tbody></table>
<p class="note">How alike these places are is learned from the log, beginning with a guess. If the gain hangs on the
guess, there is too little data: collect more, or try the recommended policy on a part of the decisions first.</p>
{% endif %}
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
    table = found.table
    text = (
        Environment(autoescape=True)
        .from_string(PAGE)
        .render(
            title=f"What to do: {Path(found.source).name}",
            settled=found.is_settled,
            summary=summary(found),
            misfits=[check.words for check in found.checks if not check.fits],
            fits=[check.words for check in found.checks if check.fits],
            lines=[] if found.policies is None else policy_lines(found.policies),
            upper_bound=UPPER_BOUND,
            values=_as_pictures(_value_figures(found)),
            states=state_summary(found) if found.is_settled else [],
            columns=["state", "action", "P(best)", "tried", "value", "90 % interval", "loss"],
            rows=_rows(found) if found.is_settled else [],
            more=f"{len(table) - MOST_ROWS:,}" if len(table) > MOST_ROWS else "",
            value_note=(
                "what it is worth to take the action now and to decide best from then on"
                if found.policies is None
                else "what it is worth to take the action now and to follow the recommended policy from then on"
            ),
            has_untried=bool((table["count"] == 0).any()),
            untried_tag=UNTRIED,
            trials=_trials(found),
            unknown=_unknown(found),
            chosen=[*found.chosen.words, *(how_recommended(found) if found.is_settled else ())],
            pictures=_as_pictures(_state_figures(found)),
            sensitivity=sensitivity_lines(found),
        )
    )
    path = Path(folder) / PAGE_FILE
    write_atomically(path, text)
    return path


def summary(found: Fit) -> list[str]:
    """Return what a manager should know, in three sentences: the verdict first."""
    read = f"{found.log.num_rows:,} decisions in {found.table['state'].nunique():,} states were read."
    if not found.is_settled:
        return [f"{read} There is no answer: the computation is not to be trusted."]
    if found.policies is None:
        mean, low, high = found.start_value
        value, *ends = rounded(high - low, mean, low, high)
        worth = f"An episode that is decided best is worth {value} (90 % interval {' to '.join(ends)})."
        return [worth, read]
    recommended, logged = policy_lines(found.policies)[:2]
    worth = (
        f"An episode is worth {recommended.value} ({recommended.interval}) under the recommended policy, and "
        f"{logged.value} ({logged.interval}) if it is decided as those of the log were."
    )
    return [verdict(found), f"{worth} {read}"]


def state_summary(found: Fit) -> list[str]:
    """Return how sure the best action of each state is."""
    table = found.table
    taken = table[table["action"] == table["state"].map(found.policy)]
    compared = taken[~taken["only_action"]]
    sure = compared[compared["prob_optimal"] >= CLEAR]
    lines = [
        f"In {len(sure):,} of the {len(compared):,} states where several actions were tried the best one is clear "
        "(at least 90 % sure)."
    ]
    if alone := len(taken) - len(compared):
        where = "one state" if alone == 1 else f"{alone:,} states"
        others = "the others are predicted" if (table["count"] == 0).any() else "nothing was compared there"
        lines.append(f"In {where} only one action was ever tried: {others}.")
    open_states = compared[compared["prob_optimal"] < CLEAR].sort_values("prob_optimal", kind="stable")
    if len(open_states):
        row = open_states.iloc[0]
        lines.append(
            f"Least sure is the state {_short(row['state'])}: {_short(row['action'])} is the best action with "
            f"probability {row['prob_optimal']:.2f}; taking it now gives up {row['expected_loss']:.3g} on average."
        )
    if rivals := _num_rivals(table, taken):
        where = "one state" if rivals == 1 else f"{rivals:,} states"
        lines.append(f"In {where} an action that was never tried there is more likely to be the best: try it.")
    lines.append(f"That the whole list of bold actions is right has probability {found.prob_policy:.2f}.")
    return lines


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_IN_TEXT else label[: LONGEST_IN_TEXT - 1] + "…"


def _num_rivals(table: pd.DataFrame, taken: pd.DataFrame) -> int:
    """Return in how many states an untried action is more likely to be best than the one to take."""
    own = table["state"].map(dict(zip(taken["state"], taken["prob_optimal"], strict=True)))
    is_rival = (table["count"] == 0) & (table["prob_optimal"] > own)
    return int(table.loc[is_rival, "state"].nunique())


def _rows(found: Fit) -> list[dict[str, Any]]:
    policy, table, rows = found.policy, found.table, []
    for row, width in zip(table.head(MOST_ROWS).to_dict(orient="records"), widths(table), strict=False):
        value, interval = interval_words(row, width)
        share = row["prob_optimal"]
        kind = "best" if policy.get(row["state"]) == row["action"] else "untried" if row["count"] == 0 else ""
        rows.append(
            {
                "state": row["state"],
                "action": row["action"],
                "kind": kind,
                "percent": 0 if np.isnan(share) else round(100.0 * share),
                "prob_best": (prob_best_words(row), share),
                "cells": [
                    (f"{row['count']:,}", row["count"]),
                    (value, row["mean"]),
                    (interval, row["lower"]),
                    (f"{row['expected_loss']:.3g}", row["expected_loss"]),
                ],
            }
        )
    return rows


def _trials(found: Fit) -> list[tuple[str, str, int, str]]:
    """Return what to try next, without what is worth next to nothing beside the first of it."""
    trials = found.next_trials(8)
    return [
        (row["state"], row["action"], row["count"], f"{row['expected_gain']:.3g}")
        for row in trials.to_dict(orient="records")
        if row["expected_gain"] >= WORTH_NAMING * trials["expected_gain"].iloc[0]
    ]


def _unknown(found: Fit) -> str:
    """Return the actions of states of which nothing is said."""
    said = set(zip(found.table["state"], found.table["action"], strict=True))
    pairs = [pair for pair in found.chosen.untried if pair not in said]
    more = f", … ({len(pairs):,} in all)" if len(pairs) > MOST_NAMED else ""
    return ", ".join(f"{_short(action)} in {_short(state)}" for state, action in pairs[:MOST_NAMED]) + more


def _as_pictures(figures: Iterator[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(caption, base64.b64encode(to_png(figure)).decode()) for caption, figure in figures]


def _value_figures(found: Fit) -> Iterator[tuple[str, Any]]:
    """Yield pictures of what is believed of the values of the two policies, and of the gain."""
    policies = found.policies
    if policies is None:
        return
    shown = {"logged": (policies.logged.values, LOGGED_COLOUR)}
    if not is_logged(policies):
        shown["recommended"] = (policies.recommended.values, RECOMMENDED_COLOUR)
    if all(np.isfinite(values).any() for values, _ in shown.values()):
        yield "What is believed of the value of an episode.", distribution_figure(shown, "value of an episode")
    gain = policies.gain
    if gain.any() and np.isfinite(gain).any():
        label = "recommended less logged"
        figure = distribution_figure({"gain": (gain, GAIN_COLOUR)}, label, mark=0.0)
        yield f"What is believed of the gain: above 0 with probability {share_words(policies.prob_better)}.", figure


def _state_figures(found: Fit) -> Iterator[tuple[str, Any]]:
    if not found.is_settled:
        return
    dotted = "; dotted: predicted" if (found.table["count"] == 0).any() else ""
    yield (
        f"How much each action is worth (90 % intervals; filled: the action to take{dotted}).",
        intervals_figure(found),
    )
    if len(found.chosen.states) <= MOST_NODES:
        yield "Where actions led; the arrow of the action to take is thick.", graph_figure(found)


def distribution_figure(shown: dict[str, tuple[FloatArray, str]], label: str, *, mark: float | None = None) -> Any:
    """Return histograms of draws on one axis, with a line at `mark`; a thousandth at each end is not shown."""
    plt = import_pyplot()
    figure, axes = plt.subplots(figsize=(4.2, 2.4), layout="constrained")
    finite = np.concatenate([values[np.isfinite(values)] for values, _ in shown.values()])
    low, high = np.quantile(finite, [0.001, 0.999])
    bins = np.linspace(low, high, 41) if high - low > 1e-9 * max(abs(low), abs(high)) else 1
    for name, (values, colour) in shown.items():
        kept = values[np.isfinite(values) & (values >= low) & (values <= high)]
        axes.hist(kept, bins=bins, color=colour, alpha=0.6, label=name)
        axes.axvline(float(np.median(values)), color=colour, linewidth=1.5)
    if mark is not None:
        axes.axvline(mark, color="black", linewidth=1.0, linestyle="--")
    if len(shown) > 1:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel(label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_yticks([])
    tidy(axes)
    axes.spines["left"].set_visible(False)
    return figure


def intervals_figure(found: Fit) -> Any:
    """Return a figure of the intervals of every action, state by state, of as many states as there is room for."""
    table = found.table
    number = table.groupby("state", sort=False).size().cumsum()
    states = list(number.index[(number <= MOST_LINES) | (number == number.iloc[0])])
    table = table[table["state"].isin(states)]
    names = list(dict.fromkeys(table["action"]))
    plt = import_pyplot()
    height = 1.2 + 0.3 * (min(len(table), 2 * MOST_LINES) + len(states))
    figure, axes = plt.subplots(figsize=(8.5, height))
    # Room for the labels is fixed: they come from the log and may be of any length.
    figure.subplots_adjust(left=0.33, right=0.98, top=1.0 - 0.2 / height, bottom=0.55 / height)
    y, ticks = 0.0, []
    for state, part in table.groupby("state", sort=False):
        for row in part.to_dict(orient="records"):
            colour = ACTION_COLOURS[names.index(row["action"]) % len(ACTION_COLOURS)]
            fill = colour if found.policy.get(str(state)) == row["action"] else "white"
            line = "-" if row["count"] else ":"
            axes.plot([row["lower"], row["upper"]], [y, y], color=colour, linewidth=1.5, linestyle=line)
            axes.plot(row["mean"], y, "o", color=colour, markersize=6, markerfacecolor=fill)
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
    taken = found.policy
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
                "linewidth": 2.6 if taken.get(states[state]) == found.chosen.actions[action] else 0.9,
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
