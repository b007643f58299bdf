"""The pictures of the two examples and of the sea, drawn from the `FiniteMDP` itself."""

from __future__ import annotations

from typing import Any

import pandas as pd

from qposterior.environments.deep_sea import deep_sea
from qposterior.environments.examples import five_state, two_state
from qposterior.report.figures import ACTION_COLOURS, import_pyplot
from qposterior.world.mdp import FiniteMDP
from qposterior_paper.figure import Made, PaperFigure, Size

Places = dict[int, tuple[float, float]]
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}


def edges(mdp: FiniteMDP) -> list[tuple[int, int, int, float, float]]:
    """Return (state, action, successor, probability, reward) of every transition."""
    rows = []
    for k in range(mdp.space.num_pairs):
        successors, probabilities = mdp.transitions.row(k)
        state, action = int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])
        rows += [
            (state, action, int(s), float(p), float(mdp.rewards[k]))
            for s, p in zip(successors, probabilities, strict=True)
        ]
    return rows


def draw_mdp(axes: Any, mdp: FiniteMDP, places: Places, *, labels: bool = True) -> None:
    """Draw states as circles (goals filled), transitions as arrows in the colour of their action."""
    for state, action, successor, _, reward in edges(mdp):
        (x, y), (to_x, to_y) = places[state], places[successor]
        colour = ACTION_COLOURS[action % len(ACTION_COLOURS)]
        style = {"arrowstyle": "-|>", "color": colour, "shrinkA": 11, "shrinkB": 11, "linewidth": 1.2}
        if state == successor:
            style |= {"connectionstyle": "arc3,rad=2.2", "shrinkA": 2, "shrinkB": 2}
            axes.annotate("", xy=(x - 0.11, y - 0.14), xytext=(x - 0.11, y + 0.14), arrowprops=style)
            middle = (x - 0.75, y)
        else:
            style |= {"connectionstyle": "arc3,rad=0.06"}
            axes.annotate("", xy=(to_x, to_y), xytext=(x, y), arrowprops=style)
            middle = (0.5 * (x + to_x), 0.5 * (y + to_y))
        if labels:
            axes.text(*middle, f"a{action}, {reward:g}", fontsize=8, ha="center", va="center", color=colour, bbox=LABEL)
    for state, place in places.items():
        fill = "#DDDDDD" if mdp.space.is_goal[state] else "white"
        axes.plot(*place, "o", markersize=21 if labels else 13, markerfacecolor=fill, markeredgecolor="black")
        axes.text(*place, f"s{state}" if labels else str(state), ha="center", va="center", fontsize=8 if labels else 6)
    axes.set_axis_off()
    axes.margins(0.2)


def make(size: Size) -> Made:
    """Draw the three problems."""
    depth = size.choose(6, 4)
    sea = deep_sea(depth=depth)
    layer = sea.space.layer
    assert layer is not None
    filled: dict[int, int] = {}
    places: Places = {}
    for state in range(sea.space.num_states):
        row = int(layer[state])
        places[state] = (float(filled.get(row, 0)), -float(row))
        filled[row] = filled.get(row, 0) + 1
    problems = (
        ("two-state example", two_state(), {0: (0.0, 0.0), 1: (1.6, 0.0)}, True),
        (
            "five-state example",
            five_state(),
            {0: (0.0, 0.0), 1: (-1.0, -1.0), 2: (1.0, -1.0), 3: (-1.8, -2.0), 4: (1.8, -2.0)},
            True,
        ),
        (f"Deep Sea, depth {depth}: blue goes right", sea, places, False),
    )
    figure, panels = import_pyplot().subplots(1, 3, figsize=(12.0, 4.4), layout="constrained")
    rows = []
    for axes, (title, mdp, where, labels) in zip(panels, problems, strict=True):
        draw_mdp(axes, mdp, where, labels=labels)
        axes.set_title(title, fontsize=10)
        rows += [(mdp.name, *edge) for edge in edges(mdp)]
    panels[0].set(xlim=(-1.2, 2.2), ylim=(-1.2, 1.2))
    table = pd.DataFrame(rows, columns=["problem", "state", "action", "next_state", "probability", "reward"])
    treasure = float(table.loc[table["problem"] == sea.name, "reward"].max())
    found = (
        f"2, 5 and {sea.space.num_states} states; the sea has d(d + 1)/2 of them, rewards ∓1/(100 d) and one of "
        f"{treasure:.4f} for the step to the treasure"
    )
    return Made(figure=figure, rows=table, found=found, holds=sea.space.num_states == depth * (depth + 1) // 2)


FIGURE = PaperFigure(
    name="diagrams",
    label="figs. 2dmdp, 5dmdp, deep-sea",
    claim="Two examples with 2 and 5 states, and the Deep Sea with d(d + 1)/2 states.",
    make_fn=make,
)
