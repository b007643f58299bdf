"""Whether draws can be trusted: rank-normalised R-hat, bulk and tail effective sample sizes (Vehtari et al. 2021).

Every function takes ``(C, M, D)`` draws: chains, iterations, quantities.
"""

from __future__ import annotations

import numpy as np

from qposterior.world.arrays import FloatArray


def split_chains(draws: FloatArray) -> FloatArray:
    """Return ``(2C, M // 2, D)``: each chain cut in two, so that a drift shows up between halves."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]], axis=0)


def rank_normalise(draws: FloatArray) -> FloatArray:
    """Return the normal scores of the ranks over all chains, ties at their mean rank."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    chains, length, size = draws.shape
    rank = rankdata(draws.reshape(chains * length, size), axis=0)
    return np.asarray(ndtri((rank - 0.375) / (chains * length + 0.25))).reshape(draws.shape)


def potential_scale_reduction(draws: FloatArray) -> FloatArray:
    """Return ``(D,)`` the plain R-hat: √((M−1)/M + B/W), nan where the draws do not vary."""
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt((length - 1) / length + between / within))


def rank_r_hat(draws: FloatArray) -> FloatArray:
    """Return ``(D,)`` the larger of the rank-normalised and the folded split R-hat; nan for constants."""
    split = split_chains(draws)
    folded = np.abs(split - np.median(split, axis=(0, 1)))
    worst = np.fmax(potential_scale_reduction(rank_normalise(split)), potential_scale_reduction(rank_normalise(folded)))
    return np.where(split.max(axis=(0, 1)) > split.min(axis=(0, 1)), worst, np.nan)


def effective_sample_size(draws: FloatArray) -> FloatArray:
    """Return ``(D,)`` Geyer's estimate over all chains, autocovariances by FFT; nan for constants.

    τ = −1 + 2 Σ P_t, P_t = ρ_2t + ρ_2t+1 cut at the first negative one and made non-increasing.
    """
    chains, length, size = draws.shape
    centred = draws - draws.mean(axis=1, keepdims=True)
    padded = np.fft.rfft(centred, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(padded) ** 2, n=2 * length, axis=1)[:, :length] / length
    within = covariance[:, 0].mean(axis=0) * length / (length - 1)
    total = within * (length - 1) / length
    if chains > 1:
        total = total + draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariance.mean(axis=0)) / total  # (M, D)
    rho[0] = 1.0
    pairs = rho[: 2 * (length // 2)].reshape(-1, 2, size).sum(axis=1)
    pairs = np.where(np.logical_and.accumulate(pairs > 0.0, axis=0), pairs, 0.0)
    pairs = np.minimum.accumulate(pairs, axis=0)
    tau = np.maximum(2.0 * pairs.sum(axis=0) - 1.0, 1.0 / np.log10(max(chains * length, 10)))
    return np.where(total > 0.0, chains * length / tau, np.nan)


def bulk_ess(draws: FloatArray) -> FloatArray:
    """Return ``(D,)`` the effective sample size of the rank-normalised split chains."""
    return effective_sample_size(rank_normalise(split_chains(draws)))


def tail_ess(draws: FloatArray) -> FloatArray:
    """Return ``(D,)`` the smaller effective sample size of the indicators of the 5 % and 95 % quantiles."""
    split = split_chains(draws)
    parts = [
        effective_sample_size((split <= np.quantile(split, level, axis=(0, 1))).astype(float)) for level in (0.05, 0.95)
    ]
    return np.fmin(*parts)


def weighted_ess(log_weights: FloatArray) -> float:
    """Return (Σ w)² / Σ w² of unnormalised log-weights."""
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / np.sum(weights**2))
