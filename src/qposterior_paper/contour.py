"""The posterior of the two-state example: fused ellipses with complete data, a line with partial data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.environments.examples import two_state
from qposterior.model.charts import QChart
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
from qposterior.model.target import Target
from qposterior.report.figures import import_pyplot
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size

PRIOR = GaussianPrior(scale=10.0)


def make(size: Size) -> Made:
    """Draw both panels: contours by the density, dots by samplers in both coordinate systems."""
    example = two_state()
    partial, complete = Experience.of_pairs(example, [(0, 0)]), Experience.of_pairs(example, [(0, 0), (0, 1)])
    number = size.choose(1500, 300)
    common: dict[str, Any] = {"prior": PRIOR, "particles": number, "seed": size.seed}
    draws = {
        ("complete", "q"): posterior(complete, tolerance=2.0, method="tempering", coordinates="q", **common),
        ("complete", "bellman"): posterior(complete, tolerance=2.0, method="exact", **common),
        ("partial", "bellman"): posterior(partial, tolerance=0.01, method="hmc", **common),
        ("partial", "limit"): posterior(partial, tolerance=0.0, method="exact", **common),
    }
    exact = posterior(complete, tolerance=2.0, method="exact", coordinates="q", **common)
    stays = float(exact.prob_optimal(0)[0])
    gap = draws["partial", "bellman"].draws @ [-1.0, 1.0] - 1.0

    figure, panels = import_pyplot().subplots(1, 2, figsize=(9.0, 4.2), layout="constrained")
    axis = np.linspace(-25.0, 25.0, 301)
    _contours(panels[0], complete, 2.0, axis, axis)
    for coordinates, colour in (("q", "#0072B2"), ("bellman", "#D55E00")):
        x = draws["complete", coordinates].draws[: size.choose(400, 100)]
        panels[0].plot(*x.T, ".", color=colour, markersize=2, label=f"draws, {coordinates} coordinates")
    panels[0].plot(-2.0, -1.0, "k*", label="Q*")
    panels[0].set(title="complete data, ε = 2", xlim=(-12, 25), ylim=(-12, 12))
    x = draws["partial", "limit"].draws[: size.choose(400, 100)]
    panels[1].plot(*x.T, ".", color="#009E73", markersize=3, label="draws, ε = 0")
    x = draws["partial", "bellman"].draws[: size.choose(400, 100)]
    panels[1].plot(*x.T, ".", color="#D55E00", markersize=2, label="draws, ε = 0.01")
    panels[1].axline((0.0, 1.0), slope=1.0, color="black", linewidth=0.6, label="θ₂ = θ₁ + 1")
    panels[1].plot(-2.0, -1.0, "k*")
    panels[1].set(title="partial data, ε = 0.01", xlim=(-25, 25), ylim=(-25, 25))
    zoom = panels[1].inset_axes((0.58, 0.08, 0.4, 0.4))
    near = np.linspace(-0.05, 0.05, 101)
    _contours(zoom, partial, 0.01, -2.0 + near, -1.0 + near)
    zoom.plot(-2.0, -1.0, "k*")
    zoom.set(xticks=[], yticks=[])
    zoom.set_title("0.1 wide, at Q*", fontsize=7)
    for axes in panels:
        axes.set(xlabel="θ₁ = Q(stay)", ylabel="θ₂ = Q(leave)")
        axes.legend(frameon=False, fontsize=7, loc="upper left")
    rows = pd.concat(
        pd.DataFrame({"data": data, "draws": kind, "theta_1": found.draws[:, 0], "theta_2": found.draws[:, 1]})
        for (data, kind), found in draws.items()
    )
    found = (
        f"complete data, ε = 2: {stays:.1%} of the mass has 'stay' as the best action, the ellipse that the loop adds "
        f"(none in Bellman coordinates); partial data, ε = 0.01: θ₂ − θ₁ − 1 has sd {gap.std():.4f}"
    )
    holds = bool(0.01 < stays < 0.99 and 0.007 < gap.std() < 0.013)
    return Made(figure=figure, rows=rows, found=found, holds=holds)


def _contours(axes: Any, seen: Experience, tolerance: float, first: FloatArray, second: FloatArray) -> None:
    target = Target(seen, PRIOR, Tolerance(tolerance=tolerance), chart=QChart)
    grid = np.stack(np.meshgrid(first, second), axis=-1)
    density = target.log_density(grid.reshape(-1, 2)).total.reshape(grid.shape[:2])
    levels = density.max() - np.array([8.0, 6.0, 4.5, 3.0, 2.0, 1.0, 0.3])
    axes.contour(first, second, density, levels=levels, colors="#555555", linewidths=0.7, linestyles="solid")


FIGURE = PaperFigure(
    name="contour",
    label="fig. 2dcontour",
    claim="With complete data the contours are two ellipses fused along θ₁ = θ₂, stretched towards large θ₁; with "
    "partial data the posterior contracts to the line θ₂ = θ₁ + 1.",
    make_fn=make,
)
