"""The lemma of the five-state example: an insufficient tolerance prefers the wrong action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from qposterior.api import posterior
from qposterior.environments.examples import five_state
from qposterior.inference.diagnostics import bulk_ess
from qposterior.model.prior import GaussianPrior
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

SCALE = 1.0
REWARDS = (1.0, 0.0, 0.0, 1.5)


def lemma(k: FloatArray) -> FloatArray:
    r"""Return :math:`\Phi((kd - c) / (\sigma \sqrt{2k(k+2)(k^2+3k+1)}))`, k = ε²/σ² (paper, lem. 5dmdp)."""
    from scipy.special import ndtr

    r1, r2, r3, r4 = REWARDS
    d, c = r1 - r2, r2 + r4 - r1 - r3
    return np.asarray(ndtr((k * d - c) / (SCALE * np.sqrt(2.0 * k * (k + 2.0) * (k**2 + 3.0 * k + 1.0)))))


def make(size: Size) -> Made:
    """Draw the lemma's curve with exact enumeration and draws on it."""
    seen = Experience.of_pairs(five_state(REWARDS), [(0, 0), (0, 1), (1, 0), (2, 1)])
    crossing = (REWARDS[1] + REWARDS[3] - REWARDS[0] - REWARDS[2]) / (REWARDS[0] - REWARDS[1])
    points = np.geomspace(0.02, 20.0, size.choose(13, 5))
    number = size.choose(4000, 2000)
    rows = []
    for k in points:
        common: dict[str, Any] = {
            "prior": GaussianPrior(scale=SCALE),
            "tolerance": float(np.sqrt(k)) * SCALE,
            "seed": size.seed,
        }
        exact = float(posterior(seen, method="exact", coordinates="q", particles=2, **common).prob_optimal(0)[0])
        drawn = posterior(seen, method="hmc", coordinates="bellman", particles=number, **common)
        draws = float(drawn.prob_optimal(0)[0])
        # A rare event mixes more slowly than the coordinates do: its own effective sample size counts.
        wrong = (drawn.draws[:, 0] > drawn.draws[:, 1]).reshape(drawn.diagnostics["chains"], -1, 1)
        se = float(np.sqrt(exact * (1.0 - exact) / bulk_ess(wrong.astype(float))[0]))
        rows.append((k, float(lemma(np.array(k))), exact, draws, se))
    table = pd.DataFrame(rows, columns=["k", "lemma", "exact", "draws", "standard_error"])
    figure, axes = draw_panels(figsize=(6.0, 4.0))
    fine = np.geomspace(0.01, 30.0, 400)
    axes.plot(fine, lemma(fine), color="#0072B2", label="the lemma")
    axes.plot(table["k"], table["exact"], "o", color="#D55E00", markersize=7, fillstyle="none", label="enumeration")
    axes.errorbar(
        table["k"], table["draws"], yerr=2.0 * table["standard_error"], fmt=".", color="#009E73", label="draws ± 2 se"
    )
    axes.axhline(0.5, color="black", linewidth=0.6)
    axes.axvline(crossing, color="black", linewidth=0.6, linestyle="--", label="c / d")
    axes.set(xscale="log", xlabel="k = ε² / σ²", ylabel="P(the wrong action a¹ is chosen)", ylim=(0.0, 1.0))
    axes.legend(frameon=False)
    error = float(np.abs(table["exact"] - table["lemma"]).max())
    z = float((np.abs(table["draws"] - table["lemma"]) / table["standard_error"]).max())
    at_crossing = float(lemma(np.array(crossing)))
    found = (
        f"enumeration agrees with the lemma to {error:.1e}, draws to {z:.1f} standard errors at most; the wrong "
        f"action is preferred from k = c/d = {crossing:g} on (P = {at_crossing:.3f} there)"
    )
    return Made(figure=figure, rows=table, found=found, holds=error < 1e-5 and z < 4.0)


FIGURE = PaperFigure(
    name="five-state",
    label="lem. 5dmdp",
    claim="P(a¹ is chosen) is Φ((kd − c)/(σ√(2k(k+2)(k²+3k+1)))), k = ε²/σ²: above k = c/d the wrong action is "
    "preferred.",
    make_fn=make,
)
