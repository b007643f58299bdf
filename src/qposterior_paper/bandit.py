"""Thompson sampling as the one-state case."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qposterior.agents.posterior_sampling import PosteriorSamplingAgent
from qposterior.api import posterior
from qposterior.environments.bandit import bandit
from qposterior.experiments.explore import explore, make_world, spawn_seeds
from qposterior.model.noise import Noise
from qposterior.model.prior import GaussianPrior
from qposterior.report.figures import AGENT_COLOURS
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience
from qposterior_paper.figure import Made, PaperFigure, Size, draw_curves, draw_panels

MEANS = (0.0, 0.5, 1.0)
SCALE, SD = 4.0, 1.0


def conjugate(count: FloatArray, mean: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return posterior mean and sd of every arm: N(0, SCALE²) prior, readings with sd SD."""
    precision = SCALE**-2 + count / SD**2
    return count / SD**2 * mean / precision, precision**-0.5


def closed_form(count: FloatArray, mean: FloatArray) -> FloatArray:
    """Return P(arm is optimal) by one-dimensional quadrature: ∫ φ_k(x) Π_{j≠k} Φ_j(x) dx."""
    from scipy.special import ndtr

    centre, sd = conjugate(count, mean)
    x = np.linspace((centre - 9 * sd).min(), (centre + 9 * sd).max(), 20_001)
    z = (x[:, None] - centre) / sd
    density = np.exp(-0.5 * z**2) / (np.sqrt(2.0 * np.pi) * sd)
    below = ndtr(z)
    others = np.stack([np.prod(np.delete(below, k, axis=1), axis=1) for k in range(centre.size)], axis=1)
    return np.asarray(np.trapezoid(density * others, x, axis=0))


def thompson(rng: np.random.Generator, pulls: int) -> FloatArray:
    """Return ``(pulls,)`` regret of Thompson sampling by conjugate draws."""
    count, total = np.zeros(3), np.zeros(3)
    regret = np.empty(pulls)
    for t in range(pulls):
        centre, sd = conjugate(count, total / np.maximum(count, 1))
        arm = int(np.argmax(rng.normal(centre, sd)))
        count[arm] += 1
        total[arm] += rng.normal(MEANS[arm], SD)
        regret[t] = max(MEANS) - MEANS[arm]
    return regret


def make(size: Size) -> Made:
    """Draw P(arm is optimal) by three ways as readings come in, and the regret beside Thompson sampling's."""
    arms = bandit(MEANS, reward_sd=SD)
    rng = np.random.default_rng(size.seed)
    seen = Experience(arms.space, rewards="noisy")
    noise, prior = Noise(scale=SD), GaussianPrior(scale=SCALE)
    rows, errors = [], []
    for reading in range(1, size.choose(31, 10)):
        arm = (reading - 1) % 3
        seen.record(0, arm, float(rng.normal(MEANS[arm], SD)), 1)
        if reading % 3:
            continue
        truth = closed_form(seen.count.astype(float), seen.reward_mean)
        exact = posterior(seen, prior=prior, noise=noise, method="exact", particles=2, seed=size.seed).prob_optimal(0)
        number = size.choose(4000, 500)
        drawn = posterior(seen, prior=prior, noise=noise, method="hmc", particles=number, seed=size.seed).prob_optimal(
            0
        )
        errors.append(float(np.abs(exact - truth).max()))
        rows += [(reading, a, truth[a], exact[a], drawn[a]) for a in range(3)]
    table = pd.DataFrame(rows, columns=["readings", "arm", "closed_form", "exact", "draws"])
    seeds, pulls = size.choose(40, 3), size.choose(200, 20)
    ours, theirs = [], []
    for seed in range(seeds):
        world = make_world(arms)
        agent = PosteriorSamplingAgent(
            arms.space, prior=prior, rewards="noisy", noise=noise, particles=100, seed=spawn_seeds(size.seed + seed)[1]
        )
        run = explore(agent, world, episodes=pulls, seed=size.seed + seed)
        ours.append([max(MEANS) - MEANS[row[4]] for row in run.transitions])
        theirs.append(thompson(np.random.default_rng([size.seed, seed]), pulls))
    figure, panels = draw_panels(1, 2, figsize=(9.5, 3.8))
    for arm, colour in enumerate(("#999999", "#0072B2", "#D55E00")):
        part = table[table["arm"] == arm]
        panels[0].plot(part["readings"], part["closed_form"], color=colour, label=f"arm of mean {MEANS[arm]:g}")
        panels[0].plot(part["readings"], part["exact"], "o", color=colour, fillstyle="none")
        panels[0].plot(part["readings"], part["draws"], "+", color=colour)
    panels[0].set(xlabel="readings", ylabel="P(arm is optimal)", ylim=(0, 1))
    panels[0].set_title("line: closed form; circles: enumeration; crosses: draws", fontsize=8)
    panels[0].legend(frameon=False, fontsize=8)
    curves = {"abrl": np.cumsum(ours, axis=1), "Thompson sampling": np.cumsum(theirs, axis=1)}
    draw_curves(panels[1], curves, AGENT_COLOURS)
    panels[1].set(xlabel="pull", ylabel="cumulative expected regret (reward)", title=f"{seeds} runs, 95 % bands")
    panels[1].legend(frameon=False)
    end_ours, end_theirs = np.sum(ours, axis=1), np.sum(theirs, axis=1)
    gap = float(end_ours.mean() - end_theirs.mean())
    se = float(np.sqrt(end_ours.var(ddof=1) / seeds + end_theirs.var(ddof=1) / seeds))
    found = (
        f"enumeration agrees with the closed form to {max(errors):.1e}; regret after {pulls} pulls "
        f"{end_ours.mean():.1f} against Thompson sampling's {end_theirs.mean():.1f} (difference {gap:+.1f} ± {se:.1f})"
    )
    return Made(figure=figure, rows=table, found=found, holds=max(errors) < 1e-3 and abs(gap) < 4.0 * max(se, 0.1))


FIGURE = PaperFigure(
    name="bandit",
    label="sec. tspsrl",
    claim="With one state, acting on posterior draws is Thompson sampling.",
    make_fn=make,
)
