"""Marginals of the two-state example over the tolerance, in both coordinate systems."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.environments.examples import two_state
from qposterior.model.prior import GaussianPrior
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

SCALE = 10.0
TOLERANCES = (2.0, 1.0, 0.5, 0.1)
TRUTH = (-2.0, -1.0)


def joint(tolerance: float, *, proper: bool) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return grids of θ₁ and θ₂ and their marginal densities, by quadrature of the posterior given complete data.

    `proper` cuts off θ₁ ≥ θ₂, where the greedy policy stays for ever: the support of Bellman coordinates.
    """
    near = tolerance * np.linspace(-9.0, 9.0, 1201)
    first = np.unique(np.concatenate([-2.0 + 1.5 * near, np.linspace(-60.0, 60.0, 2401)]))
    second = -1.0 + near
    a, b = first[:, None], second[None, :]
    residual = (a - np.maximum(a, b) + 1.0) ** 2 + (b + 1.0) ** 2
    density = np.exp(-0.5 * residual / tolerance**2 - 0.5 * (a**2 + b**2) / SCALE**2)
    density = np.where(a >= b, 0.0, density) if proper else density
    one, two = np.trapezoid(density, second, axis=1), np.trapezoid(density, first, axis=0)
    return first, second, one / np.trapezoid(one, first), two / np.trapezoid(two, second)


def make(size: Size) -> Made:
    """Draw the exact curves and the histograms of draws."""
    seen = Experience.of_pairs(two_state(), [(0, 0), (0, 1)])
    figure, panels = draw_panels(2, 2, figsize=(9.0, 6.0), sharey="col")
    rows, means, errors = [], {}, []
    for row, coordinates in enumerate(("q", "bellman")):
        for tolerance, colour in zip(TOLERANCES, ("#56B4E9", "#0072B2", "#009E73", "#D55E00"), strict=True):
            curves = joint(tolerance, proper=coordinates == "bellman")
            drawn = posterior(
                seen,
                prior=GaussianPrior(scale=SCALE),
                tolerance=tolerance,
                # In Bellman coordinates the support ends at a wall: independent draws by enumeration.
                method="tempering" if coordinates == "q" else "exact",
                coordinates=coordinates,
                particles=size.choose(4000, 400),
                seed=size.seed,
            )
            for i in (0, 1):
                grid, density = curves[i], curves[2 + i]
                mean = float(np.trapezoid(grid * density, grid))
                sd = float(np.sqrt(np.trapezoid((grid - mean) ** 2 * density, grid)))
                means[coordinates, tolerance, i] = mean
                errors.append(abs(float(drawn.draws[:, i].mean()) - mean) / sd)
                axes = panels[row, i]
                axes.plot(grid, density, color=colour, linewidth=1.3, label=f"ε = {tolerance:g}")
                axes.hist(drawn.draws[:, i], bins=80, density=True, color=colour, alpha=0.25, range=(-8.0, 12.0))
                step = max(1, grid.size // 400)
                rows += [
                    (coordinates, tolerance, f"theta_{i + 1}", g, d)
                    for g, d in zip(grid[::step], density[::step], strict=True)
                ]
    for row, coordinates in enumerate(("Q", "Bellman")):
        for i in (0, 1):
            axes = panels[row, i]
            axes.axvline(TRUTH[i], color="black", linewidth=0.7, linestyle="--")
            axes.set(xlim=(-8.0, 12.0), ylim=(0.0, 1.2), xlabel=f"θ{'₁₂'[i]}", ylabel="density")
            axes.set_title(f"{coordinates} coordinates", fontsize=9)
    panels[0, 0].legend(frameon=False)
    table = pd.DataFrame(rows, columns=["coordinates", "tolerance", "coordinate", "value", "density"])
    off = {key: means[*key, 0] - TRUTH[0] for key in (("q", 2.0), ("q", 0.1), ("bellman", 2.0))}
    found = (
        f"the posterior mean of θ₁ is off its truth by {off['q', 2.0]:+.2f} at ε = 2 and {off['q', 0.1]:+.3f} at ε = "
        f"0.1; without the improper mass (Bellman coordinates) by {off['bellman', 2.0]:+.2f} at ε = 2; draws agree "
        f"with quadrature to {max(errors):.2f} sd"
    )
    return Made(
        figure=figure, rows=table, found=found, holds=bool(abs(off["q", 2.0]) > 1.0 and abs(off["q", 0.1]) < 0.1)
    )


FIGURE = PaperFigure(
    name="marginals",
    label="fig. illustrative_plot",
    claim="At a large tolerance the posterior mean is far from Q*; it comes near as the tolerance falls.",
    make_fn=make,
)
