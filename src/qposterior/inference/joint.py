"""Draws of Q and of unknown transition rows, jointly: trajectories in ψ and proposals of rows, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.inference.hmc import HMCSettings, hmc_move, warm_up
from qposterior.inference.trust import describe_draws, is_enough
from qposterior.model.uncertain import UncertainTarget
from qposterior.world.arrays import FloatArray

CHAINS = 32
"""Chains run side by side: the rows of each are its own, and the compiled loops take them all at once."""


@dataclass(kw_only=True)
class JointDraws:
    """Draws after the warm-up, chain by chain."""

    theta: FloatArray  # (C, M, K)
    log_scale: FloatArray | None  # (C, M)
    diagnostics: dict[str, Any] = field(default_factory=dict)


def run_joint(
    target: UncertainTarget,
    rng: np.random.Generator,
    settings: HMCSettings | None = None,
    *,
    progress_fn: Callable[[int, int], None] | None = None,
    min_draws: int = 0,
) -> JointDraws:
    """Run the chains until R-hat and the effective sample sizes of Q will do, or the iterations are used.

    They do not stop before `min_draws` draws.
    """
    chains = target.tables.shape[0]
    settings = settings or HMCSettings(chains=chains)
    moves = target.num_coordinates > 0
    x = target.disperse(target.initial(chains, rng), rng)
    if moves:
        tuning, x, density, _ = warm_up(target, x, rng, settings)
    for _ in range(settings.warm_up // 4):
        x = target.gibbs_sweep(x, rng)
        target.adapt_blocks()
    density = target.log_density(x)
    theta = np.empty((chains, settings.max_iterations, target.num_pairs))
    log_scale = np.empty((chains, settings.max_iterations)) if target.data.learned else None
    done, accepted, taken, divergences = 0, 0.0, 0.0, 0
    while done < settings.max_iterations:
        for _ in range(min(settings.block, settings.max_iterations - done)):
            if moves:
                steps = tuning.num_steps(rng.random(), settings.max_leapfrog)
                move = hmc_move(target, x, density, tuning, steps, rng)
                x = move.x
                accepted += float(move.acceptance.mean())
                divergences += int(move.divergent.sum())
            x = target.gibbs_sweep(x, rng)
            density = target.log_density(x)
            taken += target.acceptance
            theta[:, done] = target.to_q(x)
            if log_scale is not None:
                log_scale[:, done] = x[:, -1]
            done += 1
        if progress_fn is not None:
            progress_fn(done, settings.max_iterations)
        summary = _describe(target, theta[:, :done])
        is_sound = is_enough(summary, min_ess=settings.min_ess, max_r_hat=settings.max_r_hat)
        if is_sound and chains * done >= min_draws:
            break
    return JointDraws(
        theta=theta[:, :done].copy(),
        log_scale=None if log_scale is None else log_scale[:, :done].copy(),
        diagnostics=summary
        | {"acceptance": accepted / done if moves else 1.0, "row_acceptance": taken / done}
        | {"divergences": divergences, "row_blocks": target.num_blocks},
    )


def _describe(target: UncertainTarget, theta: FloatArray) -> dict[str, Any]:
    shares = target.optimal_share(theta.reshape(-1, theta.shape[2]))
    return describe_draws(theta, shares.reshape(theta.shape))
