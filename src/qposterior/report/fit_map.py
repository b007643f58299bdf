"""The advised action over the plane of two numeric columns: what the page draws a rectangle of for each bin."""

from __future__ import annotations

import math
from typing import Any

from qposterior.logs.bins import number_text
from qposterior.logs.fit import Fit
from qposterior.logs.words import share_words
from qposterior.report.figures import ACTION_COLOURS

WIDTH, HEIGHT = 600.0, 400.0
ROOM = 26.0
"""What a rectangle needs on either side to have the number of its action in it."""


def action_map(fit: Fit) -> dict[str, Any] | None:
    """Return rectangles, axes and a legend; None unless states are bins of two columns.

    The plane ends where nearly all numbers do; bins that go on beyond are cut there.
    """
    bins = fit.log.bins
    if (
        bins is None
        or len(bins.columns) != 2
        or not all(low < high for low, high in zip(bins.low, bins.high, strict=True))
    ):
        return None
    table, policy = fit.table, fit.policy
    best = table[table["action"] == table["state"].map(policy)].set_index("state")["prob_optimal"].to_dict()
    actions = [action for action in fit.chosen.actions if action in policy.values()]
    rectangles = []
    for node in bins.nodes(bins.shown):
        label, ranges = bins.label(node), bins.ranges(node)
        if label not in policy:
            continue
        ends = [
            [(min(max(end, low), high) - low) / (high - low) for end in ranges.get(column, (-math.inf, math.inf))]
            for column, (low, high) in enumerate(zip(bins.low, bins.high, strict=True))
        ]
        width, height = WIDTH * (ends[0][1] - ends[0][0]), HEIGHT * (ends[1][1] - ends[1][0])
        action, prob = policy[label], best.get(label, math.nan)
        sure = "the only action tried" if math.isnan(prob) else f"P(best) {share_words(prob)}"
        rectangles.append(
            {
                "x": WIDTH * ends[0][0],
                "y": HEIGHT * (1.0 - ends[1][1]),
                "width": width,
                "height": height,
                "colour": _colour(fit, action),
                "number": actions.index(action) + 1 if min(width, height) >= ROOM else "",
                "words": f"{label}: {action}, {sure}",
            }
        )
    return {
        "names": bins.names,
        "low": [number_text(float(f"{end:.3g}")) for end in bins.low],
        "high": [number_text(float(f"{end:.3g}")) for end in bins.high],
        "rectangles": rectangles,
        "actions": [(action, _colour(fit, action)) for action in actions],
        "width": WIDTH,
        "height": HEIGHT,
    }


def _colour(fit: Fit, action: str) -> str:
    return ACTION_COLOURS[fit.chosen.actions.index(action) % len(ACTION_COLOURS)]
