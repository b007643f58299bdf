r"""The noise of rewards: variances of pairs and of states, and their laws.

A pair's readings have the variance v ~ ν v_s / χ²_ν, and v_s ~ Gamma(η, η / v₀). With n readings and S their squares
about α, both times the tempering (docs/explanation/model-prior.md, "What is approximate"),

.. math::
    p(\text{readings} \mid ν, v_s) ∝ \frac{Γ((ν + n)/2)}{Γ(ν/2)} \frac{(ν v_s)^{ν/2}}{(ν v_s + S)^{(ν + n)/2}}, \qquad
    v \mid \text{readings} \sim \frac{ν v_s + S}{χ^2_{ν + n}},

v integrated out on the left. Pairs that pay the same each time have no noise.
"""

from __future__ import annotations

import math

import numpy as np

from qposterior.model.kernels.compile import inlined_kernel, kernel
from qposterior.model.kernels.hierarchy import ETA, ETA_GRID, NU, NU_GRID, V0, Layout, State, Statistics, Units
from qposterior.model.kernels.variates import draw_index
from qposterior.world.arrays import FloatArray

PROPOSALS = 3
"""For the noise of a state, in each sweep."""


@inlined_kernel
def is_noisy(k: int, data: Statistics) -> bool:
    """Return whether a pair was tried and does not pay the same each time."""
    return not (data.is_constant[k] or data.count[k] <= 0.0)


@kernel
def log_gamma_ratios(count: FloatArray) -> FloatArray:
    """Return ``(K, 7)`` log Γ((ν + n)/2) − log Γ(ν/2) for every ν of `NU_GRID`: what `noise_score` leaves out."""
    ratios = np.empty((count.size, NU_GRID.size))
    for k in range(count.size):
        for i in range(NU_GRID.size):
            ratios[k, i] = math.lgamma(0.5 * (NU_GRID[i] + count[k])) - math.lgamma(0.5 * NU_GRID[i])
    return ratios


@kernel
def noise_score(nu: float, state_variance: float, readings: float, squares: float) -> float:
    r"""Return log p(readings of a pair | ν, v_s) up to what depends on neither v_s nor S (`log_gamma_ratios`).

    .. math:: \tfrac{ν}{2} \log ν v_s - \tfrac{ν + n}{2} \log(ν v_s + S).
    """
    scale = nu * state_variance
    return 0.5 * (nu * math.log(scale) - (nu + readings) * math.log(scale + squares))


@kernel
def draw_noise(
    layout: Layout, data: Statistics, units: Units, log_ratios: FloatArray, state: State, rng: np.random.Generator
) -> None:
    """Draw ν, then v_s and v of the pairs state by state, then η and v₀; α is given.

    ν and v_s are drawn without v: where ν is large, each would hold the other where it is for hundreds of sweeps.
    `log_ratios` are the `log_gamma_ratios` of tempered counts.
    """
    num_noisy, squares = 0, np.zeros(data.count.size)
    for k in range(squares.size):
        if is_noisy(k, data):
            n, gap = units.tempering * data.count[k], data.mean[k] - state.alpha[k]
            squares[k] = units.tempering * data.deviation[k] + n * gap**2
            num_noisy += 1
    if num_noisy == 0:
        return
    if not (units.is_pooled or units.hyper_given):
        state.hyper[NU] = draw_nu(layout, data, units, log_ratios, squares, state, rng)
    num_states, sum_of_logs, total = 0, 0.0, 0.0
    for s in range(layout.first_pair.size - 1):
        if draw_state_noise(s, layout, data, units, squares, state, rng):
            num_states += 1
            sum_of_logs += math.log(state.state_variance[s])
            total += state.state_variance[s]
    if not units.hyper_given:
        draw_noise_law(num_states, sum_of_logs, total, units.pooled_variance, state.hyper, rng)


@inlined_kernel
def draw_nu(
    layout: Layout,
    data: Statistics,
    units: Units,
    log_ratios: FloatArray,
    squares: FloatArray,
    state: State,
    rng: np.random.Generator,
) -> float:
    """Draw ν given v_s of all states, ν uniform on its grid; v is integrated out."""
    scores = np.zeros(NU_GRID.size)
    for s in range(layout.first_pair.size - 1):
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if is_noisy(k, data):
                n = units.tempering * data.count[k]
                for i in range(NU_GRID.size):
                    scores[i] += log_ratios[k, i] + noise_score(NU_GRID[i], state.state_variance[s], n, squares[k])
    return NU_GRID[draw_index(scores, rng)]


@inlined_kernel
def draw_state_noise(
    s: int,
    layout: Layout,
    data: Statistics,
    units: Units,
    squares: FloatArray,
    state: State,
    rng: np.random.Generator,
) -> bool:
    """Draw v_s by random walks of log v_s, v integrated out, then v of its pairs; return whether any is noisy.

    A step has twice the standard deviation that the information Σ ν n / (ν + n) / 2 + η on log v_s would give.
    """
    nu, eta = state.hyper[NU], state.hyper[ETA]
    first, last = layout.first_pair[s], layout.first_pair[s + 1]
    information = eta
    for k in range(first, last):
        if is_noisy(k, data):
            n = units.tempering * data.count[k]
            information += 0.5 * nu * n / (nu + n)
    if information == eta:
        return False
    variance = state.state_variance[s]
    density = state_noise_density(first, last, variance, data, units, squares, state)
    for _ in range(PROPOSALS):
        proposal = variance * math.exp(2.0 / math.sqrt(information) * rng.standard_normal())
        proposed = state_noise_density(first, last, proposal, data, units, squares, state)
        if math.log(1.0 - rng.random()) < proposed - density:
            variance, density = proposal, proposed
    state.state_variance[s] = variance
    for k in range(first, last):
        if is_noisy(k, data):
            scale = nu * variance + squares[k]
            state.variance[k] = 0.5 * scale / rng.standard_gamma(0.5 * (nu + units.tempering * data.count[k]))
    return True


@inlined_kernel
def state_noise_density(
    first: int, last: int, variance: float, data: Statistics, units: Units, squares: FloatArray, state: State
) -> float:
    """Return the log-density of log v_s given the readings of pairs `first` to `last`, their v integrated out."""
    nu, eta, v0 = state.hyper[NU], state.hyper[ETA], state.hyper[V0]
    total = eta * (math.log(variance) - variance / v0)
    for k in range(first, last):
        if is_noisy(k, data):
            total += noise_score(nu, variance, units.tempering * data.count[k], squares[k])
    return total


@inlined_kernel
def draw_noise_law(
    num_states: int, sum_of_logs: float, total: float, pooled: float, hyper: FloatArray, rng: np.random.Generator
) -> None:
    r"""Draw η on its grid given v₀, then v₀ by random walks of log v₀, from n variances v_s.

    .. math:: p(η, v_0 \mid v) ∝ N(\log v_0; \log \mathrm{pooled}, 2^2)
        \prod_s \frac{(η / v_0)^η}{Γ(η)} v_s^η e^{-η v_s / v_0}.
    """
    v0, scores = hyper[V0], np.zeros(ETA_GRID.size)
    for i in range(ETA_GRID.size):
        b = ETA_GRID[i]
        scores[i] = num_states * (b * math.log(b / v0) - math.lgamma(b)) + b * (sum_of_logs - total / v0)
    eta = ETA_GRID[draw_index(scores, rng)]
    hyper[ETA] = eta
    for _ in range(2):
        proposal = v0 * math.exp((0.2 + 1.0 / math.sqrt(eta * num_states)) * rng.standard_normal())
        ratio = -num_states * eta * math.log(proposal / v0)
        ratio -= eta * total * (1.0 / proposal - 1.0 / v0)
        ratio += 0.125 * (math.log(v0 / pooled) ** 2 - math.log(proposal / pooled) ** 2)
        if math.log(1.0 - rng.random()) < ratio:
            v0 = proposal
    hyper[V0] = v0
