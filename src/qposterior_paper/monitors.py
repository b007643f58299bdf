"""Ways to judge the moves inside a sequential sampler, side by side, as the tolerance falls."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from qposterior.environments.deep_sea import deep_sea
from qposterior.inference.hmc import Tuning, hmc_move
from qposterior.inference.smc.adaptation import MixingMonitor
from qposterior.model.charts import CHARTS
from qposterior.model.noise import Tolerance
from qposterior.model.prior import GaussianPrior
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_panels

MONITORS = {
    "mixing_ratio": "Gelman–Rubin ratio (median)",
    "lag_correlation": "correlation with the start (median)",
    "jump": "squared jump a move, in variances",
    "acceptance": "acceptance",
}


def run_monitors(target: Target, start: FloatArray, moves: int, rng: np.random.Generator) -> dict[str, float]:
    """Move particles from their own posterior and return what each monitor says of the moves."""
    x = target.from_parameters(start)
    variance = x.var(axis=0) + 1e-12
    density = target.log_density(x)
    tuning = Tuning(step=0.3, trajectory=np.pi / 2, inverse_mass=variance)
    for _ in range(20):  # settle the step size
        move = hmc_move(target, x, density, tuning, tuning.num_steps(rng.random(), 20), rng)
        tuning = tuning.scaled(float(np.exp(0.5 * (move.smooth_acceptance.mean() - 0.8))))
    first, path, accepted = x.copy(), [x], []
    for _ in range(moves):
        move = hmc_move(target, x, density, tuning, tuning.num_steps(rng.random(), 20), rng)
        x, density = move.x, move.density
        path.append(x)
        accepted.append(float(move.smooth_acceptance.mean()))
    chains = np.array(path[1:])  # (M, N, D)
    weights = np.full(x.shape[0], 1.0 / x.shape[0])
    monitor = MixingMonitor(weights)
    for one in chains:
        monitor.add(one)
    jumps = np.mean([np.mean((b - a) ** 2 / variance) for a, b in pairwise(path)])
    centred, ended = first - first.mean(axis=0), x - x.mean(axis=0)
    correlation = np.sum(centred * ended, axis=0) / np.sqrt(np.sum(centred**2, axis=0) * np.sum(ended**2, axis=0))
    return {
        "mixing_ratio": float(np.median(monitor.ratios())),
        "lag_correlation": float(np.median(correlation)),
        "jump": float(jumps),
        "acceptance": float(np.mean(accepted)),
    }


def make(size: Size) -> Made:
    """Draw each monitor over the tolerance, in both coordinate systems."""
    rng = np.random.default_rng(size.seed)
    sea = deep_sea(depth=5)
    seen = Experience.of_pairs(sea, [pair for pair in sea.space.pairs() if rng.random() < 0.6])
    rows = []
    for tolerance in np.geomspace(1.0, 1e-3, size.choose(10, 4)).tolist():
        likelihood = Tolerance(tolerance=tolerance)
        targets = {name: Target(seen, GaussianPrior(), likelihood, chart=CHARTS[name]) for name in ("q", "bellman")}
        for coordinates, target in targets.items():
            # Start at the posterior itself, known in Bellman coordinates: a monitor should then only see the moves.
            start = _posterior_draws(targets["bellman"], size.choose(100, 40), rng)
            rows.append((coordinates, tolerance, *run_monitors(target, start, size.choose(20, 10), rng).values()))
    table = pd.DataFrame(rows, columns=["coordinates", "tolerance", *MONITORS])
    figure, panels = draw_panels(2, 2, figsize=(9.0, 6.0), sharex=True)
    for axes, (name, label) in zip(panels.flat, MONITORS.items(), strict=True):
        for coordinates, colour in (("q", "#0072B2"), ("bellman", "#D55E00")):
            part = table[table["coordinates"] == coordinates]
            axes.plot(
                part["tolerance"], part[name], "o-", markersize=4, color=colour, label=f"{coordinates} coordinates"
            )
        axes.set(xscale="log", ylabel=label, yscale="log" if name in ("mixing_ratio", "jump") else "linear")
    panels[0, 0].axhline(1.5, color="black", linewidth=0.6, linestyle="--")
    panels[0, 0].legend(frameon=False)
    for axes in panels[1]:
        axes.set_xlabel("tolerance ε")
    sharp = table[(table["tolerance"] == table["tolerance"].min()) & (table["coordinates"] == "q")].iloc[0]
    wide = table[(table["tolerance"] == table["tolerance"].max()) & (table["coordinates"] == "q")].iloc[0]
    found = (
        f"in Q coordinates from ε = 1 to 0.001: acceptance {wide['acceptance']:.2f} → {sharp['acceptance']:.2f} while "
        f"the mixing ratio rises {wide['mixing_ratio']:.2f} → {sharp['mixing_ratio']:.1f}, the correlation with the "
        f"start {wide['lag_correlation']:.2f} → {sharp['lag_correlation']:.2f}, the jump falls {wide['jump']:.2f} → "
        f"{sharp['jump']:.4f}"
    )
    holds = bool(sharp["acceptance"] > 0.5 and sharp["mixing_ratio"] > 2.0 * wide["mixing_ratio"])
    return Made(figure=figure, rows=table, found=found, holds=holds)


def _posterior_draws(target: Target, number: int, rng: np.random.Generator) -> FloatArray:
    x = target.initial(number, rng)
    density = target.log_density(x)
    tuning = Tuning(step=0.5, trajectory=np.pi / 2, inverse_mass=np.ones(x.shape[1]))
    for round_number in range(60):
        if round_number in (5, 15, 30):
            tuning = replace(tuning, inverse_mass=x.var(axis=0) + 1e-12)
        move = hmc_move(target, x, density, tuning, tuning.num_steps(rng.random(), 30), rng)
        tuning = tuning.scaled(float(np.exp(0.3 * (move.smooth_acceptance.mean() - 0.8))))
        x, density = move.x, move.density
    return target.to_q(x)


FIGURE = PaperFigure(
    name="monitors",
    label="app. mcmceffectiveness",
    claim="The acceptance rate does not tell whether the moves suffice, since the step size can always be made "
    "smaller; a Gelman–Rubin ratio does.",
    make_fn=make,
)
