"""Simulation-based calibration: parameters from the prior, readings from the model, ranks among posterior draws."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

import qposterior as qp
from problems import implied_rewards
from qposterior.inference.hmc import HMCSettings, run_hmc

SETTINGS = HMCSettings(chains=4, warm_up=160, max_iterations=100, block=100, min_ess=0.0, max_r_hat=np.inf)
BINS = 5


def observed_pairs(mdp):
    """Every second pair."""
    pairs = list(zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist(), strict=True))
    return pairs[::2]


def simulate(mdp, prior, noise_scale, readings, rng, accept_fn=None):
    """Draw θ from the prior (again until accepted) and noisy readings of g(θ) of every second pair."""
    pairs = observed_pairs(mdp)
    template = qp.Experience.of_pairs(mdp, pairs)
    while True:
        theta = rng.normal(prior.mean, prior.scale, mdp.space.num_pairs)
        if accept_fn is None or accept_fn(template, theta):
            break
    g = implied_rewards(template, theta)
    seen = qp.Experience(mdp.space, rewards="noisy")
    for i, (state, action) in enumerate(pairs):
        row = mdp.transitions.row(mdp.space.pair(state, action))
        for _ in range(readings):
            seen.record(state, action, g[i] + noise_scale * rng.standard_normal(), int(row[0][0]), row=row)
    return theta, seen


def rank_statistic(make_target_fn, simulate_fn, repeats, seed, scale_too=False):
    """Return per parameter the chi-square statistic of its ranks in BINS equal bins, and its 1e-4 quantile bound."""
    rng = np.random.default_rng(seed)
    counts = None
    for _ in range(repeats):
        truth, seen = simulate_fn(rng)
        target = make_target_fn(seen)
        chains = run_hmc(target, rng, SETTINGS)
        flat = chains.draws[:, ::2].reshape(-1, target.num_coordinates)
        q = target.to_q(flat)
        if scale_too:
            q = np.concatenate([q, flat[:, -1:]], axis=1)
        rank = (q < truth).sum(axis=0) + 0.5
        bins = np.minimum((rank / (flat.shape[0] + 1) * BINS).astype(int), BINS - 1)
        counts = np.zeros((truth.size, BINS)) if counts is None else counts
        counts[np.arange(truth.size), bins] += 1
    expected = repeats / BINS
    return ((counts - expected) ** 2 / expected).sum(axis=1), chi2.ppf(1 - 1e-4 / counts.shape[0], BINS - 1)
