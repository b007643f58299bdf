"""Discounting as a cure for improper policies: near 1 it leaves loops attractive, below it changes the problem."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.model.prior import GaussianPrior
from qposterior.world.experience import Experience
from qposterior.world.mdp import FiniteMDP
from qposterior.world.solve import solve
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

ACTIONS = ("stay", "leave at once", "leave by the long way")
COLOURS = ("#999999", "#0072B2", "#D55E00")
TOLERANCE, SCALE = 0.2, 10.0


def problem(discount: float) -> FiniteMDP:
    """Return a loop that costs 0.5 a turn, an exit that costs 2, and a way of three steps that costs 3 at its end."""
    edges = [
        (0, 0, 0, 1.0, -0.5),
        (0, 1, 3, 1.0, -2.0),
        (0, 2, 1, 1.0, 0.0),
        (1, 0, 2, 1.0, 0.0),
        (2, 0, 3, 1.0, -3.0),
    ]
    return FiniteMDP.from_edges(edges, goal=[3], initial=[1, 0, 0, 0], discount=discount)


def make(size: Size) -> Made:
    """Draw P(optimal) of the three ways over the discount, beside what is optimal in the discounted problem."""
    discounts = np.concatenate(
        [np.linspace(0.5, 0.95, size.choose(19, 4)), size.choose([0.97, 0.98, 0.99, 0.999, 1.0], [1.0])]
    )
    pairs = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    rows = []
    for discount in discounts.tolist():
        mdp = problem(discount)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the loop that it warns of is what is shown here
            found = posterior(
                Experience.of_pairs(mdp, pairs),
                prior=GaussianPrior(scale=SCALE),
                tolerance=TOLERANCE,
                method="exact",
                coordinates="q",
                particles=2,
                seed=size.seed,
            )
        best = int(np.nanargmax(solve(mdp).q[0]))
        rows.append((discount, *found.prob_optimal(0).tolist(), best))
    names = ["prob_stay", "prob_at_once", "prob_long_way"]
    table = pd.DataFrame(rows, columns=["discount", *names, "optimal_when_discounted"])
    figure, axes = draw_panels(figsize=(7.0, 4.2))
    for name, label, colour in zip(names, ACTIONS, COLOURS, strict=True):
        axes.plot(table["discount"], table[name], "o-", markersize=3, color=colour, label=f"P({label} is optimal)")
    for i, action in enumerate(ACTIONS):
        part = table[table["optimal_when_discounted"] == i]
        if len(part):
            axes.plot(part["discount"], np.full(len(part), 1.04), "s", color=COLOURS[i], markersize=4)
            axes.text(float(part["discount"].mean()), 1.07, f"{action}", ha="center", fontsize=7, color=COLOURS[i])
    axes.set(xlabel="discount γ", ylabel="posterior probability", ylim=(0.0, 1.14))
    axes.set_title("squares: what is optimal in the discounted problem; undiscounted: leave at once", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="best")
    at_one = table.iloc[-1]
    wrong = table[table["optimal_when_discounted"] != 1]["discount"]
    best_row = table.iloc[int(np.argmax(table["prob_at_once"].to_numpy()))]
    found_words = (
        f"at γ = 1 the improper loop has {at_one['prob_stay']:.2f} of the mass (ε = {TOLERANCE}); the right action "
        f"has its largest probability, {best_row['prob_at_once']:.2f}, at γ = {best_row['discount']:.3g}; below γ = "
        f"{wrong.max():.2f} the discounted problem itself has another optimum"
    )
    holds = bool(at_one["prob_stay"] > 0.05 and len(wrong) > 0 and best_row["discount"] < 1.0)
    return Made(figure=figure, rows=table, found=found_words, holds=holds)


FIGURE = PaperFigure(
    name="discount",
    label="sec. example_loop",
    claim="A discount near 1 leaves improper policies attractive; a small one changes the optimal policy.",
    make_fn=make,
)
