"""The tabular theorem: P(action is optimal) by enumeration, and by every sampler, as data arrive on a small sea."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from qposterior.agents.registry import make_agent
from qposterior.api import posterior
from qposterior.environments.deep_sea import deep_sea
from qposterior.experiments.explore import explore, explored_pairs
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

SAMPLERS: dict[str, tuple[dict[str, Any], str]] = {
    "hmc, ε = 0": ({"method": "hmc"}, "#0072B2"),
    "one-look smc, ε = 0": ({"method": "smc"}, "#D55E00"),
    "paper's smc, ε = 0.05": ({"method": "smc", "tolerance": 0.05, "coordinates": "q"}, "#CC79A7"),
}


def make(size: Size) -> Made:
    """Draw P(right is optimal) in the first state against the pairs seen; bars are two standard errors of repeats."""
    sea = deep_sea(depth=4)
    run = explore(make_agent("abrl-iid", sea, horizon=3, seed=size.seed), sea, episodes=40, seed=size.seed)
    order = list(explored_pairs(run))
    repeats, number = size.choose(8, 3), size.choose(500, 200)
    rows = []
    for seen_pairs in range(3, len(order) + 1, size.choose(3, 4)):
        seen = Experience.of_pairs(sea, order[:seen_pairs])
        truth = float(posterior(seen, method="exact", particles=2, seed=size.seed).prob_optimal(0)[0])
        loose = posterior(seen, method="exact", tolerance=0.05, coordinates="q", particles=2, seed=size.seed)
        rows.append((seen_pairs, "exact, ε = 0", truth, 0.0, np.nan))
        for name, (options, _) in SAMPLERS.items():
            found = [
                float(posterior(seen, particles=number, seed=[size.seed, r], **options).prob_optimal(0)[0])
                for r in range(repeats)
            ]
            wanted = float(loose.prob_optimal(0)[0]) if options.get("tolerance") else truth
            # Two of a few repeats may agree by chance: no error is taken to be below that of independent draws.
            floor = np.sqrt(max(wanted * (1.0 - wanted), 1e-6) / number)
            error = max(float(np.std(found, ddof=1)), float(floor)) / np.sqrt(repeats)
            rows.append((seen_pairs, name, float(np.mean(found)), error, (np.mean(found) - wanted) / error))
    table = pd.DataFrame(rows, columns=["pairs_seen", "method", "prob_right_is_optimal", "standard_error", "z"])
    figure, axes = draw_panels(figsize=(7.0, 4.2))
    exact = table[table["method"] == "exact, ε = 0"]
    axes.plot(exact["pairs_seen"], exact["prob_right_is_optimal"], "k-", linewidth=1.2, label="exact, ε = 0")
    for shift, (name, (_, colour)) in enumerate(SAMPLERS.items()):
        one = table[table["method"] == name]
        axes.errorbar(
            one["pairs_seen"] + 0.15 * (shift - 1),
            one["prob_right_is_optimal"],
            yerr=2.0 * one["standard_error"],
            fmt="o",
            markersize=4,
            color=colour,
            label=name,
        )
    axes.set(xlabel="pairs seen, of 12", ylabel="P(right is optimal in the first state)", ylim=(-0.05, 1.05))
    axes.legend(frameon=False, fontsize=8)
    z = float(table["z"].abs().max())
    found_words = (
        f"{len(exact)} data sets on a 4-deep sea, {len(SAMPLERS)} samplers against the enumeration: largest |z| "
        f"{z:.1f} (above 4 by chance in less than one run of {int(1.0 / (len(table) * 6e-3))})"
    )
    return Made(figure=figure, rows=table, found=found_words, holds=z < 6.0 if size.quick else z < 5.0)


FIGURE = PaperFigure(
    name="exact",
    label="thm. psrl",
    claim="For a tabular Q and a Gaussian kernel the posterior is a mixture of truncated Gaussians, one for each "
    "policy: P(action is optimal) is a sum of Gaussian integrals.",
    make_fn=make,
)
