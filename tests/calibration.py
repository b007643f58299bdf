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


def hmc_draws(make_target_fn, scale_too=False):
    """Return the function that draws θ (and the log-scale) given readings, by HMC on a target."""

    def draw(seen, rng):
        target = make_target_fn(seen)
        flat = run_hmc(target, rng, SETTINGS).draws[:, ::2].reshape(-1, target.num_coordinates)
        q = target.to_q(flat)
        return np.concatenate([q, flat[:, -1:]], axis=1) if scale_too else q

    return draw


def sequential_draws(start_fn, parts_fn=lambda seen: [seen]):
    """Return the function that draws θ given readings by a sequential sampler, which is shown them in parts."""

    def draw(seen, rng):
        sampler = start_fn(seen, rng)
        for part in parts_fn(seen):
            sampler.update(part)
        cloud = sampler.particles
        return cloud.parameters[rng.choice(cloud.log_weights.size, size=cloud.log_weights.size, p=cloud.weights)]

    return draw


def as_deterministic(seen):
    """The same readings, one a pair, as rewards that a tolerance stands for."""
    plain = qp.Experience(seen.space)
    for k in seen.observed_pairs:
        row = seen.row(int(k))
        state, action = int(seen.space.pair_state[k]), int(seen.space.pair_action[k])
        plain.record(state, action, float(seen.reward_mean[k]), int(row[0][0]), row=row)
    return plain


def halves(seen):
    """The first half of the pairs, then all of them."""
    early = qp.Experience(seen.space, rewards=seen.rewards)
    for k in seen.observed_pairs[::2]:
        early.reveal(int(k), seen)
    return [early, seen]


def rank_statistic(draw_fn, simulate_fn, repeats, seed):
    """Return per parameter the chi-square statistic of its ranks in BINS equal bins, and its 1e-4 quantile bound.

    `simulate_fn(rng)` gives true parameters and readings, `draw_fn(seen, rng)` draws of them from the posterior.
    """
    rng = np.random.default_rng(seed)
    counts = None
    for _ in range(repeats):
        truth, seen = simulate_fn(rng)
        draws = draw_fn(seen, rng)
        tied = np.isclose(draws, truth, rtol=0.0, atol=1e-9)  # at tolerance 0 some values are known for certain
        rank = (~tied & (draws < truth)).sum(axis=0) + rng.uniform(0.0, 1.0 + tied.sum(axis=0))
        bins = np.minimum((rank / (draws.shape[0] + 1) * BINS).astype(int), BINS - 1)
        counts = np.zeros((truth.size, BINS)) if counts is None else counts
        counts[np.arange(truth.size), bins] += 1
    expected = repeats / BINS
    return ((counts - expected) ** 2 / expected).sum(axis=1), chi2.ppf(1 - 1e-4 / counts.shape[0], BINS - 1)
