r"""Mean rewards, worths of rows and their centres, which are normal given all scales and variances.

With x = (mean reward, mean worth) of the readings of a pair, θ = (α, y) and the centres c = (β_s, ȳ_s) of its state,

.. math:: x \mid θ \sim N(θ, N), \quad θ \mid c \sim N(c, ω Σ), \quad c \sim N((μ, 0), \mathrm{diag}(b^2, (30 w_s)^2)),

.. math::
    N = \begin{pmatrix} v / n & 0 \\ 0 & f_s u \end{pmatrix}, \qquad
    Σ = \begin{pmatrix} τ^2 + λ^2 κ^2 & -λ κ^2 \\ -λ κ^2 & κ^2 \end{pmatrix},

u the estimated variance of the mean worth and f_s the factor by which the estimates of a state are wrong. Rewards are
less the `offset` of their state (docs/explanation/model-prior.md, "What is believed").
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.compile import inlined_kernel, inner_kernel, kernel
from qposterior.model.kernels.hierarchy import (
    B_GRID,
    KAPPA_GRID,
    LAMBDA,
    MU,
    OMEGA_GRID,
    TAU_GRID,
    B,
    Layout,
    State,
    Statistics,
    Units,
)
from qposterior.model.kernels.variates import draw_index
from qposterior.world.arrays import FloatArray

LEAST_STATES = 4
"""From which μ and b are learned; with fewer, β_s is free."""


class Covariance(NamedTuple):
    """Σ of the (α, y) of a state's pairs."""

    reward: float  # τ² + λ²κ²
    cross: float  # −λκ²
    worth: float  # κ²


class Canonical(NamedTuple):
    """A normal density of (a, y) by its precision and its precision times its mean, and log-densities beside it."""

    aa: float
    ay: float
    yy: float
    a: float
    y: float
    log_factor: float


@inlined_kernel
def covariance_of(s: int, tau: int, kappa: int, slope: float, units: Units) -> Covariance:
    """Return Σ of state s, τ and κ by their places in the grids; λ counts as 0 where successors are worth the same."""
    tau_s, kappa_s = TAU_GRID[tau] * units.reward_unit[s], KAPPA_GRID[kappa] * units.worth_unit[s]
    slope = slope if units.is_varied[s] else 0.0
    return Covariance(tau_s**2 + (slope * kappa_s) ** 2, -slope * kappa_s**2, kappa_s**2)


@inlined_kernel
def current_covariance(s: int, units: Units, state: State) -> Covariance:
    """Return Σ of state s as the chain has it."""
    return covariance_of(s, state.tau[s], state.kappa[s], state.hyper[LAMBDA], units)


@inlined_kernel
def centre_prior(s: int, units: Units, hyper: FloatArray) -> Canonical:
    """Return the prior of c: β_s ~ N(μ, b²), and ȳ_s thirty times as wide as W is."""
    broad = 1.0 / hyper[B] ** 2
    vague = 1.0 / (30.0 * units.worth_unit[s]) ** 2
    return Canonical(broad, 0.0, vague, broad * (hyper[MU] - units.offset[s]), 0.0, 0.0)


@inner_kernel
def centre_posterior(
    s: int, covariance: Covariance, prior: Canonical, layout: Layout, data: Statistics, state: State
) -> Canonical:
    r"""Return p(c | x, scales) of a state, its θ integrated out, and what that leaves of the likelihood.

    With M = ωΣ + N the prior's precision gains Σ M⁻¹ over the tried pairs, precision times mean Σ M⁻¹x, and the log
    factor −½ Σ (log |M| + x'M⁻¹x).
    """
    aa, ay, yy, ha, hy, score = prior
    for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
        if data.count[k] > 0.0:
            omega = OMEGA_GRID[state.omega[k]]
            a, b = omega * covariance.reward + state.variance[k] / data.count[k], omega * covariance.cross
            d = omega * covariance.worth + state.worth_factor[s] * data.worth_variance[k]
            det = a * d - b * b
            ia, ib, iy = d / det, -b / det, a / det
            aa += ia
            ay += ib
            yy += iy
            fa, fy = ia * data.mean[k] + ib * data.worth[k], ib * data.mean[k] + iy * data.worth[k]
            ha += fa
            hy += fy
            score -= 0.5 * (math.log(det) + data.mean[k] * fa + data.worth[k] * fy)
    return Canonical(aa, ay, yy, ha, hy, score)


@kernel
def draw_normal(law: Canonical, z: float, rng: np.random.Generator) -> tuple[float, float]:
    """Draw (a, y) from a normal law; `z` is the standardised variate of y."""
    det = law.aa * law.yy - law.ay * law.ay
    mean_a, mean_y = (law.yy * law.a - law.ay * law.y) / det, (law.aa * law.y - law.ay * law.a) / det
    y = mean_y + math.sqrt(law.aa / det) * z
    a = mean_a - law.ay / law.aa * (y - mean_y) + rng.standard_normal() / math.sqrt(law.aa)
    return a, y


@kernel
def draw_pair(
    k: int, s: int, covariance: Covariance, z: float, data: Statistics, state: State, rng: np.random.Generator
) -> tuple[float, float]:
    r"""Draw θ = (α, y) of a pair of state s given c and its readings; `z` is the standardised variate of y.

    .. math:: p(θ \mid c, x) ∝ N(θ; c, ωΣ) \, N(x; θ, N), \quad \text{the second factor only where the pair was tried.}
    """
    aa, ay, yy = covariance
    det = OMEGA_GRID[state.omega[k]] * (aa * yy - ay * ay)
    ia, ib, iy = yy / det, -ay / det, aa / det
    na, ny = 0.0, 0.0
    if data.count[k] > 0.0:
        na, ny = data.count[k] / state.variance[k], 1.0 / (state.worth_factor[s] * data.worth_variance[k])
    ca, cy = state.centre[s, 0], state.centre[s, 1]
    ha, hy = ia * ca + ib * cy + na * data.mean[k], ib * ca + iy * cy + ny * data.worth[k]
    return draw_normal(Canonical(ia + na, ib, iy + ny, ha, hy, 0.0), z, rng)


@inner_kernel
def draw_effects(layout: Layout, data: Statistics, units: Units, state: State, rng: np.random.Generator) -> None:
    r"""Draw c of all states without θ, then θ of tried pairs, then the factor f_s of the variances of worth.

    .. math::
        \tfrac{1}{2} \Big(ν_s + \sum_{\text{tried}} (x_y - y)^2 / u \Big) \Big/ f_s
        \sim \mathrm{Gamma}\big(\tfrac{1}{2} (ν_s + \#\text{tried})\big),

    ν_s the degrees of freedom of u (`worth_freedom`); f_s stays where these are infinite. Of θ only α is kept.
    """
    for s in range(layout.first_pair.size - 1):
        if layout.first_pair[s + 1] == layout.first_pair[s]:
            continue
        covariance = current_covariance(s, units, state)
        law = centre_posterior(s, covariance, centre_prior(s, units, state.hyper), layout, data, state)
        state.centre[s, 0], state.centre[s, 1] = draw_normal(law, rng.standard_normal(), rng)
        missed, tried = 0.0, 0
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if data.count[k] > 0.0:
                state.alpha[k], y = draw_pair(k, s, covariance, rng.standard_normal(), data, state, rng)
                missed += (data.worth[k] - y) ** 2 / data.worth_variance[k]
                tried += 1
        freedom = units.worth_freedom[s]
        if freedom < np.inf:
            state.worth_factor[s] = 0.5 * (freedom + missed) / rng.standard_gamma(0.5 * (freedom + tried))


@inner_kernel
def draw_centre_law(layout: Layout, units: Units, state: State, rng: np.random.Generator) -> None:
    r"""Draw μ given b, then b given μ, from the β of the states with a reading, n in all.

    .. math:: μ \sim N(\bar β, b^2 / n), \qquad p(b) ∝ \frac{b}{1 + b^2} \, b^{-n} e^{-Σ (β_s - μ)^2 / 2 b^2},

    b in units of `centre_spread` on its grid: half-Cauchy, μ flat. Nothing is learned from fewer than `LEAST_STATES`
    states.
    """
    deciding, number, total, square = 0, 0, 0.0, 0.0
    for s in range(layout.first_pair.size - 1):
        if layout.first_pair[s + 1] > layout.first_pair[s]:
            deciding += 1
            if units.is_read[s]:
                number += 1
                total += state.centre[s, 0] + units.offset[s]
    if deciding < LEAST_STATES:
        return
    state.hyper[MU] = total / number + state.hyper[B] / math.sqrt(number) * rng.standard_normal()
    for s in range(layout.first_pair.size - 1):
        if units.is_read[s]:
            square += (state.centre[s, 0] + units.offset[s] - state.hyper[MU]) ** 2
    grid = B_GRID * units.centre_spread
    scores = np.log(B_GRID / (1.0 + B_GRID**2)) - number * np.log(grid) - 0.5 * square / grid**2
    state.hyper[B] = grid[draw_index(scores, rng)]
