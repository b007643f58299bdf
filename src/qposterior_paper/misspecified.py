"""When Q* lies outside the class: as the tolerance falls the posterior concentrates on the best fit."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.environments.deep_sea import deep_sea
from qposterior.model.charts import LinearQ, QChart
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior.world.mdp import FiniteMDP
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

PRIOR = GaussianPrior(scale=2.0)


def features(sea: FiniteMDP) -> FloatArray:
    """Return ``(K, 3)`` a constant, the row and whether the action is 'right': no such Q has the treasure."""
    layer = sea.space.layer
    assert layer is not None
    row = layer[sea.space.pair_state]
    return np.column_stack([np.ones(row.size), row / row.max(), (sea.space.pair_action == 0).astype(float)])


def best_fit(target: Target, rng: np.random.Generator) -> tuple[FloatArray, float]:
    """Return the weights of least squared Bellman error, the best of many starts, and that error."""
    from scipy.optimize import least_squares

    starts = rng.normal(0.0, 2.0, (30, 3))
    fits = [least_squares(lambda w: target.residuals(w[None])[0], x, xtol=1e-14, ftol=1e-14) for x in starts]
    found = min(fits, key=lambda fit: fit.cost)
    return np.asarray(found.x), 2.0 * float(found.cost)


def make(size: Size) -> Made:
    """Draw the distance of the draws from the best fit over the tolerance."""
    sea = deep_sea(depth=4)
    seen, matrix = Experience.of_pairs(sea, sea.space.pairs()), features(sea)
    fit, error = best_fit(
        Target(seen, PRIOR, Tolerance(tolerance=1.0), chart=QChart, q_function=LinearQ(matrix)),
        np.random.default_rng(size.seed),
    )
    rows = []
    for tolerance in (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02)[:: size.choose(1, 3)]:
        drawn = posterior(
            seen,
            prior=PRIOR,
            tolerance=tolerance,
            method="hmc",
            coordinates="q",
            features=matrix,
            particles=size.choose(2000, 300),
            seed=size.seed,
        )
        weights = np.linalg.lstsq(matrix, drawn.draws.T, rcond=None)[0].T
        distance = np.linalg.norm(weights - fit, axis=1)
        rows.append(
            (tolerance, *np.quantile(distance, [0.05, 0.5, 0.95]), float(np.linalg.norm(weights.mean(0) - fit)))
        )
    table = pd.DataFrame(rows, columns=["tolerance", "low", "median", "high", "distance_of_mean"])
    figure, axes = draw_panels(figsize=(6.0, 4.0))
    axes.fill_between(
        table["tolerance"], table["low"], table["high"], color="#0072B2", alpha=0.2, label="90 % of draws"
    )
    axes.plot(table["tolerance"], table["median"], "o-", color="#0072B2", label="median")
    axes.plot(table["tolerance"], table["distance_of_mean"], "s:", color="#D55E00", label="posterior mean")
    axes.set(xscale="log", yscale="log", xlabel="tolerance ε", ylabel="distance from the best fit (weights)")
    axes.legend(frameon=False)
    slope = float(np.polyfit(np.log(table["tolerance"]), np.log(table["median"]), 1)[0])
    found = (
        f"least squared Bellman error {error:.3f} > 0: no Q of the class solves the equations; the median distance "
        f"from the best fit falls from {table['median'].iloc[0]:.2f} to {table['median'].iloc[-1]:.3f}, as "
        f"ε^{slope:.2f}"
    )
    return Made(figure=figure, rows=table, found=found, holds=bool(error > 1e-3 and 0.7 < slope < 1.3))


FIGURE = PaperFigure(
    name="misspecified",
    label="app. abcemptyset",
    claim="Where no θ solves the equations, the posterior collapses to the maximiser of the kernel product as ε → 0.",
    make_fn=make,
)
