"""Draws of Q and of unknown transition rows, jointly: trajectories in ψ and proposals of rows, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qposterior.inference.diagnostics import bulk_ess, rank_r_hat, tail_ess
from qposterior.inference.hmc import HMCSettings, hmc_move, warm_up
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
) -> JointDraws:
    """Run the chains until R-hat and the effective sample sizes of Q will do, or the iterations are used."""
    chains = target.tables.shape[0]
    settings = settings or HMCSettings(chains=chains)
    moves = target.num_coordinates > 0
    x = target.initial(chains, rng)
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
        found = q_diagnostics(theta[:, :done])
        if found["max_r_hat"] <= settings.max_r_hat and found["min_bulk_ess"] >= settings.min_ess:
            break
    return JointDraws(
        theta=theta[:, :done].copy(),
        log_scale=None if log_scale is None else log_scale[:, :done].copy(),
        diagnostics=q_diagnostics(theta[:, :done])
        | {"acceptance": accepted / done if moves else 1.0, "row_acceptance": taken / done}
        | {"divergences": divergences, "row_blocks": target.num_blocks},
    )


def q_diagnostics(theta: FloatArray) -> dict[str, Any]:
    """Return the worst R-hat and effective sample sizes over the pairs of Q that vary; perfect where none does."""
    chains, length, _ = theta.shape
    varies = np.ptp(theta, axis=(0, 1)) > 1e-12
    summary: dict[str, Any] = {"chains": chains, "draws": chains * length}
    if not varies.any():
        return summary | {
            "max_r_hat": 1.0,
            "min_bulk_ess": float(chains * length),
            "min_tail_ess": float(chains * length),
        }
    q = theta[:, :, varies]
    return summary | {
        "max_r_hat": float(np.nanmax(rank_r_hat(q))),
        "min_bulk_ess": float(np.nanmin(bulk_ess(q))),
        "min_tail_ess": float(np.nanmin(tail_ess(q))),
    }
