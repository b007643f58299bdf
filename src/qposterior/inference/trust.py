"""Whether an answer can be trusted: not only the values of Q must have been drawn well, but which action is best.

A chain may explore one mode of Q thoroughly and never see another. So the indicators "this pair is greedy in its state"
are judged beside the coordinates; chains start in different policy cells (`Target.disperse`), so that an indicator on
which all of them agree has been left by those that started elsewhere; sequential samplers run on independent islands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.errors import name_states
from qposterior.inference.diagnostics import (
    bulk_ess,
    effective_sample_size,
    potential_scale_reduction,
    rank_r_hat,
    split_chains,
    tail_ess,
)
from qposterior.weighted_draws import FEWEST_DRAWS
from qposterior.world.arrays import FloatArray
from qposterior.world.space import StateActionSpace

MAX_R_HAT = 1.05
MAX_PROBABILITY_ERROR = 0.025
"""Largest standard error of P(optimal) that is trusted: two of them are a twentieth."""

FEWEST_TRIPS = 100
"""Fresh draws that must have come to the coldest rung: a mode of a twentieth is then missed once in 170 times."""

ISLANDS = 8
MAX_EVIDENCE_SPREAD = 0.5
"""Largest standard deviation of the islands' log-evidence: weights that vary more have not been averaged out."""

MAX_ISLAND_ERROR = 0.03
"""The same between islands, a little more: it is estimated from eight numbers, and the worst of all pairs is taken."""

MAX_DISAGREEMENT = 0.05
"""Largest difference of P(optimal) from the exact answer, where that is in reach."""


def describe_draws(theta: FloatArray, shares: FloatArray) -> dict[str, Any]:
    """Return the worst R-hat and effective sizes of ``(C, M, K)`` draws of Q and of their ``(C, M, K')`` indicators.

    Perfect where nothing varies. `worst_pair` is the pair whose P(optimal) is known worst. Rank-normalising an
    indicator is an affine map, so its R-hat and effective size are the plain ones of the split chains.
    """
    chains, length, _ = theta.shape
    summary: dict[str, Any] = {"chains": chains, "draws": chains * length}
    if length < 8:  # too few to say anything
        unknown = {"max_r_hat": np.inf, "min_bulk_ess": 0.0, "min_tail_ess": 0.0}
        return summary | unknown | {"max_indicator_r_hat": np.inf, "max_probability_error": np.inf}
    q = theta[:, :, np.ptp(theta, axis=(0, 1)) > 1e-12 * np.abs(theta).max(axis=(0, 1))]
    everything = float(chains * length)
    summary |= {"max_r_hat": 1.0, "min_bulk_ess": everything, "min_tail_ess": everything}
    if q.shape[2]:
        summary |= {
            "max_r_hat": float(np.nanmax(rank_r_hat(q))),
            "min_bulk_ess": float(np.nanmin(ess := bulk_ess(q))),
            "median_bulk_ess": float(np.nanmedian(ess)),
            "min_tail_ess": float(np.nanmin(tail_ess(q))),
        }
    return summary | describe_indicators(shares)


def describe_indicators(shares: FloatArray) -> dict[str, Any]:
    """Return the worst R-hat and standard error over the pairs of ``(C, M, K')`` shares in being optimal."""
    split = split_chains(shares)
    moving = np.flatnonzero(np.ptp(split, axis=(0, 1)) > 0.0)
    if moving.size == 0:
        return {"max_indicator_r_hat": 1.0, "max_probability_error": 0.0}
    split = split[:, :, moving]
    r_hat = potential_scale_reduction(split)
    error = np.sqrt(split.var(axis=(0, 1)) / effective_sample_size(split))
    return {
        "max_indicator_r_hat": float(r_hat.max()),
        "max_probability_error": float(error.max()),
        "worst_pair": int(moving[np.argmax(r_hat) if r_hat.max() > MAX_R_HAT else np.argmax(error)]),
    }


def is_enough(summary: dict[str, Any], *, min_ess: float, max_r_hat: float) -> bool:
    """Return whether chains may stop: as many effective draws as asked for, of Q and of what is optimal."""
    smallest = min(summary.get("min_bulk_ess", 0.0), summary.get("min_tail_ess", 0.0))
    return bool(
        summary.get("max_r_hat", np.inf) <= max_r_hat
        and smallest >= min_ess
        and summary["max_indicator_r_hat"] <= MAX_R_HAT
        and summary["max_probability_error"] <= 0.5 / np.sqrt(max(min_ess, 1.0))
    )


def reliability_warning(
    summary: dict[str, Any], space: StateActionSpace | None = None, *, max_r_hat: float = MAX_R_HAT
) -> str | None:
    """Return why the draws cannot be trusted, in one sentence, or None."""
    r_hat = summary.get("max_r_hat")
    if r_hat is not None and not r_hat <= max_r_hat:
        return (
            f"the chains disagree (R-hat {r_hat:.3f}, should be below {max_r_hat:.3g}); run longer or use another "
            "method"
        )
    where = _where(summary.get("worst_pair"), space)
    if not summary.get("max_indicator_r_hat", 1.0) <= max_r_hat:
        return (
            f"the chains disagree about which action is optimal{where}: there are several modes and the chains do not "
            'pass between them; use method="exact" where it is in reach'
        )
    ess = min(summary.get("min_bulk_ess", np.inf), summary.get("min_tail_ess", np.inf))
    if not ess >= FEWEST_DRAWS:
        return f"the draws are worth only {ess:.0f} independent ones (should be {FEWEST_DRAWS:.0f} or more); run longer"
    error = summary.get("max_probability_error", 0.0)
    if not error <= MAX_PROBABILITY_ERROR:
        limit = f"should be below {MAX_PROBABILITY_ERROR}"
        return f"P(optimal){where} has a standard error of {error:.3f} ({limit}); run longer"
    trips = summary.get("round_trips", FEWEST_TRIPS)
    if trips < FEWEST_TRIPS:
        return (
            f"only {trips} draws without feedback came to the posterior (should be {FEWEST_TRIPS} or more): a mode may "
            "have been missed; run longer"
        )
    stuck = summary.get("unvisited_modes", 0)
    if stuck:
        return (
            f"chains that started in other policy cells stayed there ({stuck} actions are optimal there and nowhere "
            'else): there are several modes; use method="exact" where it is in reach'
        )
    share = summary.get("divergences", 0) / max(summary.get("draws", 1), 1)
    if share > 0.02:
        return f"{share:.0%} of the trajectories diverged; raise target_acceptance or use Bellman coordinates"
    return None


def chance_r_hat(chains: int, length: int, quantities: int) -> float:
    r"""Return the R-hat that the worst of some quantities exceeds by chance with probability 0.01, at least 1.05.

    The split halves of chains of independent draws have B/W ~ F(2C − 1, 2C (M/2 − 1)) M/2, so that chains of 25 draws
    often have an R-hat of 1.15 somewhere among hundreds of quantities.
    """
    from scipy.special import fdtri

    halves, draws = 2 * chains, length // 2
    ratio = float(fdtri(halves - 1.0, halves * (draws - 1.0), 1.0 - 0.01 / max(quantities, 1)))
    return max(MAX_R_HAT, float(np.sqrt((draws - 1.0 + ratio) / draws)))


def reliability_warning_of_few(summary: dict[str, Any], quantities: int, space: StateActionSpace) -> str | None:
    """Return the same for draws that are few by intention, because the problem is large, and nearly independent.

    The worst of hundreds of estimates from a few draws each is bad by chance: R-hat is held against what chance makes
    of it, and the effective draws are those of the median quantity.
    """
    chains, draws = int(summary["chains"]), int(summary["draws"])
    limit = chance_r_hat(chains, draws // chains, 2 * quantities)
    usual = summary.get("median_bulk_ess", draws)
    kept: dict[str, Any] = {
        name: summary[name] for name in ("max_r_hat", "max_indicator_r_hat", "worst_pair") if name in summary
    }
    reason = reliability_warning(kept, space, max_r_hat=limit)
    if reason is None and usual < 0.5 * draws:
        reason = f"{draws} draws are worth only {usual:.0f} independent ones; group states, so that more can be drawn"
    return reason


def compare_islands(
    log_evidence: FloatArray, prob_optimal: FloatArray, space: StateActionSpace
) -> tuple[str | None, dict[str, Any]]:
    """Return why islands of ``(I,)`` log-evidences and ``(I, K)`` P(optimal) cannot be trusted, or None, and the facts.

    The islands are averaged with weights v ∝ evidence, so that the standard error of P(optimal) is
    √(I/(I − 1) Σ v² (p − p̄)²).
    """
    count = log_evidence.size
    v = np.exp(log_evidence - log_evidence.max())
    v = v / v.sum()
    centre = v @ prob_optimal
    error = np.sqrt(count / (count - 1.0) * (v**2 @ (prob_optimal - centre) ** 2))
    spread, worst = float(log_evidence.std(ddof=1)), int(np.argmax(error))
    facts = {"islands": count, "log_evidence_sd": spread, "max_probability_error": float(error[worst])}
    if not spread <= MAX_EVIDENCE_SPREAD:
        return (
            f"{count} independent runs disagree about the evidence (standard deviation of its log {spread:.2f}, should "
            f'be below {MAX_EVIDENCE_SPREAD}); use more particles, or method="exact" where it is in reach'
        ), facts
    if not error[worst] <= MAX_ISLAND_ERROR:
        return (
            f"{count} independent runs disagree about P(optimal){_where(worst, space)} (standard error "
            f"{error[worst]:.3f}, should be below {MAX_ISLAND_ERROR}); use more particles"
        ), facts
    return None, facts


def contradiction(prob_optimal: FloatArray, exact: FloatArray, space: StateActionSpace, *, num: int) -> str | None:
    """Return the sentence that ``(K,)`` P(optimal) of `num` draws is not what enumeration says, or None."""
    gap = np.abs(prob_optimal - exact) - 3.0 * np.sqrt(np.clip(exact * (1.0 - exact), 0.0, 0.25) / num)
    worst = int(np.argmax(gap))
    if gap[worst] <= MAX_DISAGREEMENT:
        return None
    return (
        f"P(optimal){_where(worst, space)} is {prob_optimal[worst]:.3f} by these draws and {exact[worst]:.3f} by "
        'enumeration; use method="exact"'
    )


def _where(pair: int | None, space: StateActionSpace | None) -> str:
    return "" if pair is None or space is None else f" in {name_states([int(space.pair_state[pair])])}"
