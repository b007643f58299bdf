r"""How much the actions of a state differ: τ_s, κ_s, ω_sa and λ, drawn with all that is normal integrated out.

A scale is on a grid. Its law is one of a table, with a prior on which: the law is drawn without the scales,

.. math:: p(h) ∝ p_h \prod_s \sum_g T_{hg} L_{sg}, \qquad p(g_s \mid h) ∝ T_{hg} L_{sg},

L_sg the likelihood of the readings of s where its scale is g (docs/explanation/model-prior.md, "How it is drawn").
"""

from __future__ import annotations

import math

import numpy as np

from qposterior.model.kernels.compile import inner_kernel, kernel
from qposterior.model.kernels.effects import (
    Canonical,
    Covariance,
    centre_posterior,
    centre_prior,
    covariance_of,
    current_covariance,
)
from qposterior.model.kernels.hierarchy import (
    KAPPA_GRID,
    KAPPA_LAW,
    LAMBDA,
    OMEGA_GRID,
    OMEGA_LAW,
    TAU_GRID,
    TAU_LAW,
    Law,
    Laws,
    Layout,
    State,
    Statistics,
    Units,
)
from qposterior.model.kernels.variates import draw_index, draw_place
from qposterior.world.arrays import BoolArray, FloatArray, IntArray


@kernel
def log_evidence(
    s: int, covariance: Covariance, prior: Canonical, layout: Layout, data: Statistics, state: State
) -> float:
    r"""Return the log-likelihood of a state's readings, up to a constant: θ and c are integrated out.

    .. math:: \log ∫ p(c) \prod_{\text{tried}} N(x; c, ωΣ + N) \, dc.
    """
    aa, ay, yy, ha, hy, score = centre_posterior(s, covariance, prior, layout, data, state)
    det = aa * yy - ay * ay
    return score + 0.5 * ((yy * ha * ha - 2.0 * ay * ha * hy + aa * hy * hy) / det - math.log(det))


@kernel
def grid_evidence(
    s: int,
    grid: FloatArray,
    other: float,
    is_worth: bool,
    layout: Layout,
    data: Statistics,
    units: Units,
    state: State,
    room: FloatArray,
    out: FloatArray,
) -> None:
    r"""Write `log_evidence`, up to a constant, for all variances τ² (or κ²) of a grid.

    In coordinates in which only one number of a pair's covariance depends on the grid: with α' = α + λ y, (α', y) has
    the variances ω τ² and ω κ² and no covariance, and the readings (mean + λ worth, worth) have the noise
    [n + λ²u, λu; λu, u]. Given its other reading z of variance d, a pair's reading x on the grid's axis has the
    precision q = 1 / (ω grid + noise − b²/d), b the covariance of their noise, and the residual x − (b/d) z: all that
    is needed is Σ q, Σ (b/d) q and so on, loops over the grid that run several entries at a time. `other` is the
    variance on the other axis, and `room` for ``(8, G)`` numbers.
    """
    size, slope = grid.size, state.hyper[LAMBDA] if units.is_varied[s] else 0.0
    q, product, sq, se, see, sr, srr, sre = room[0], room[1], room[2], room[3], room[4], room[5], room[6], room[7]
    broad, _, vague, pull, _, _ = centre_prior(s, units, state.hyper)
    # The prior of the centres in these coordinates: that of (β + λ ȳ, ȳ), its axes in the order (grid's, other's).
    own, cross, rest = broad, -slope * broad, slope**2 * broad + vague
    pull_own, pull_rest = pull, -slope * pull
    if is_worth:
        own, rest, pull_own, pull_rest = rest, own, pull_rest, pull_own
    square, number = 0.0, 0
    for i in range(size):
        out[i], product[i] = 0.0, 1.0
        sq[i], se[i], see[i], sr[i], srr[i], sre[i] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
        if data.count[k] <= 0.0:
            continue
        omega, unsure = OMEGA_GRID[state.omega[k]], state.worth_factor[s] * data.worth_variance[k]
        noise, covariance = state.variance[k] / data.count[k] + slope**2 * unsure, slope * unsure
        x, z = data.mean[k] + slope * data.worth[k], data.worth[k]
        if is_worth:
            x, z, noise, unsure = z, x, unsure, noise
        d = omega * other + unsure
        ratio = covariance / d
        noise -= ratio * covariance
        e = x - ratio * z
        rest += 1.0 / d
        pull_rest += z / d
        square += z * z / d
        for i in range(size):
            q[i] = 1.0 / (omega * grid[i] + noise)
        for i in range(size):
            product[i] *= q[i] * noise
        for i in range(size):
            sq[i] += q[i]
        for i in range(size):
            se[i] += q[i] * e
        for i in range(size):
            see[i] += q[i] * (e * e)
        if ratio != 0.0:
            for i in range(size):
                sr[i] += q[i] * ratio
            for i in range(size):
                srr[i] += q[i] * (ratio * ratio)
            for i in range(size):
                sre[i] += q[i] * (ratio * e)
        number += 1
        if number % 16 == 0:  # products of more would underflow
            for i in range(size):
                out[i] += 0.5 * math.log(product[i])
                product[i] = 1.0
    for i in range(size):
        a, b, d = own + sq[i], cross - sr[i], rest + srr[i]
        ha, hd = pull_own + se[i], pull_rest - sre[i]
        det = a * d - b * b
        fitted = (d * ha * ha - 2.0 * b * ha * hd + a * hd * hd) / det
        out[i] += 0.5 * (fitted - see[i] - square + math.log(product[i] / det))


@kernel
def draw_scale(
    likelihood: FloatArray, law: Law, place: IntArray, informed: BoolArray, given: int, rng: np.random.Generator
) -> int:
    """Draw the law of a scale and then ``(S,)`` the place of each scale in the grid; return the number of the law.

    `likelihood`, ``(S, G)`` log L, is overwritten. States that are not `informed` have scales from the law alone, at
    most the next larger one to the most probable: with heavy tails an action that was never tried might be worth
    anything ("What is recommended, and what is not"). A law whose number is `given` is not drawn; −1: it is.
    """
    num_states, size = likelihood.shape
    num_laws, table = law.log_prior.size, law.table
    scores, total, product, weights = law.log_prior.copy(), np.empty(num_laws), np.ones(num_laws), np.empty(size)
    by_grid = table.T.copy()
    number = 0
    for s in range(num_states):
        if informed[s]:
            highest = np.max(likelihood[s])
            for g in range(size):  # an assignment to the row would bring along its error message, a second to compile
                likelihood[s, g] = math.exp(likelihood[s, g] - highest)
        if informed[s] and given < 0:
            total[:] = 0.0
            for g in range(size):
                for h in range(num_laws):
                    total[h] += by_grid[g, h] * likelihood[s, g]
            for h in range(num_laws):
                product[h] *= total[h]
            number += 1
            if number % 8 == 0:  # entries of a table are 1e-30 at least: products of more would underflow
                for h in range(num_laws):
                    scores[h] += math.log(product[h])
                    product[h] = 1.0
    for h in range(num_laws):
        scores[h] += math.log(product[h])
    drawn = given if given >= 0 else draw_index(scores, rng)
    for s in range(num_states):
        for g in range(size):
            weights[g] = table[drawn, g] * (likelihood[s, g] if informed[s] else 1.0)
        place[s] = draw_place(weights, rng)
        if not informed[s]:
            place[s] = min(place[s], np.argmax(weights) + 1)
    return drawn


@inner_kernel
def draw_axis(
    is_worth: bool, law: Law, layout: Layout, data: Statistics, units: Units, state: State, rng: np.random.Generator
) -> None:
    """Draw τ_s of all states and its law given κ_s, or, if it `is_worth`, κ_s and its law given τ_s."""
    if is_worth:
        grid, unit, place, name = KAPPA_GRID, units.worth_unit, state.kappa, KAPPA_LAW
        other_grid, other_unit, other = TAU_GRID, units.reward_unit, state.tau
        informed = units.is_compared & units.is_varied
    else:
        grid, unit, place, name = TAU_GRID, units.reward_unit, state.tau, TAU_LAW
        other_grid, other_unit, other = KAPPA_GRID, units.worth_unit, state.kappa
        informed = units.is_compared
    likelihood, squares, room = np.zeros((unit.size, grid.size)), np.empty(grid.size), np.empty((8, grid.size))
    for s in range(unit.size):
        if informed[s]:
            for i in range(grid.size):
                squares[i] = (grid[i] * unit[s]) ** 2
            variance = (other_grid[other[s]] * other_unit[s]) ** 2
            grid_evidence(s, squares, variance, is_worth, layout, data, units, state, room, likelihood[s])
    given = int(state.hyper[name]) if units.hyper_given else -1
    state.hyper[name] = draw_scale(likelihood, law, place, informed, given, rng)


@inner_kernel
def draw_slope(
    laws: Laws, layout: Layout, data: Statistics, units: Units, state: State, rng: np.random.Generator
) -> None:
    """Draw λ with probability ∝ its prior times the evidence of all states that are informed about κ."""
    scores, slopes = laws.slope_log_prior.copy(), laws.slope_grid
    for s in range(layout.first_pair.size - 1):
        if units.is_compared[s] and units.is_varied[s]:
            prior = centre_prior(s, units, state.hyper)
            for i in range(slopes.size):
                covariance = covariance_of(s, state.tau[s], state.kappa[s], slopes[i], units)
                scores[i] += log_evidence(s, covariance, prior, layout, data, state)
    state.hyper[LAMBDA] = slopes[draw_index(scores, rng)]


@inner_kernel
def draw_omega(
    law: Law, layout: Layout, data: Statistics, units: Units, state: State, rng: np.random.Generator
) -> None:
    r"""Draw ω of all pairs, and its law, given the centres c; θ is integrated out: L = N(x; c, ωΣ + N)."""
    num_pairs = data.count.size
    likelihood = np.zeros((num_pairs, OMEGA_GRID.size))
    informed = np.zeros(num_pairs, dtype=np.bool_)
    for s in range(layout.first_pair.size - 1):
        aa, ay, yy = current_covariance(s, units, state)
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            if data.count[k] <= 0.0 or not units.is_compared[s]:
                continue
            informed[k] = True
            x, y = data.mean[k] - state.centre[s, 0], data.worth[k] - state.centre[s, 1]
            noise, unsure = state.variance[k] / data.count[k], state.worth_factor[s] * data.worth_variance[k]
            for i in range(OMEGA_GRID.size):
                a, b, d = OMEGA_GRID[i] * aa + noise, OMEGA_GRID[i] * ay, OMEGA_GRID[i] * yy + unsure
                det = a * d - b * b
                likelihood[k, i] = -0.5 * (math.log(det) + (d * x * x - 2.0 * b * x * y + a * y * y) / det)
    given = int(state.hyper[OMEGA_LAW]) if units.hyper_given else -1
    state.hyper[OMEGA_LAW] = draw_scale(likelihood, law, state.omega, informed, given, rng)
