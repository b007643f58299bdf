"""Log-densities and gradients of one particle, in Q coordinates and in Bellman coordinates."""

from __future__ import annotations

from math import lgamma
from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.bellman import Work, pull_back, solve
from qposterior.model.kernels.compile import inlined_kernel, inner_kernel, kernel
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray

GAUSSIAN, UNIFORM, STUDENT, LAPLACE = 0, 1, 2, 3
NO_WALL, HARD_Q, SOFT_Q, HARD_REWARD, SOFT_REWARD = 0, 1, 2, 3, 4
LOG_TWO_PI = float(np.log(2.0 * np.pi))


class PriorData(NamedTuple):
    """θ_k ~ N(mean_k, scale_k²), with a wall at `upper` on θ or on the rewards that θ implies."""

    mean: FloatArray  # (K,)
    scale: FloatArray  # (K,)
    precision: FloatArray  # (K,)  1 / scale²
    log_norm: float  # −Σ log(scale_k √(2π))
    wall: int  # one of NO_WALL … SOFT_REWARD
    upper: float
    softness: float  # sd of the Gaussian penalty beyond a soft wall


def gaussian_data(
    mean: FloatArray, scale: FloatArray, *, wall: int = NO_WALL, upper: float = np.inf, softness: float = 1.0
) -> PriorData:
    """Return the compiled form of a Gaussian prior with ``(K,)`` means and scales."""
    log_norm = -float(np.sum(np.log(scale)) + 0.5 * scale.size * LOG_TWO_PI)
    return PriorData(mean, scale, scale**-2.0, log_norm, wall, upper, softness)


def with_feedback(prior: PriorData, observed: IntArray, feedback: float) -> PriorData:
    """Return N(φ_U) · [prior(θ_O) · penalty]^β, β the `feedback`: that of the observed pairs alone is raised to β.

    A power of a normal density is one of precision β / scale²; a soft wall becomes softer by 1/√β. A hard wall stays.
    """
    if feedback == 1.0:
        return prior
    power = np.ones(prior.scale.size)
    power[observed] = feedback
    log_norm = -float(np.sum(power * (np.log(prior.scale) + 0.5 * LOG_TWO_PI)))
    with np.errstate(divide="ignore"):
        scale, softness = prior.scale / np.sqrt(power), float(np.divide(prior.softness, np.sqrt(feedback)))
    precision = prior.precision * power
    return prior._replace(scale=scale, precision=precision, log_norm=log_norm, softness=softness)


class LikelihoodData(NamedTuple):
    """What was read of each observed pair, and how readings scatter around g_k(θ)."""

    kind: int  # GAUSSIAN … LAPLACE
    scale: FloatArray  # (n,)  tolerance or noise scale of each pair; 1 where the scale is learned
    num_readings: FloatArray  # (n,)
    num_spread: FloatArray  # (n,)  readings that tell of a learned scale: 1 where all readings of the pair are equal
    mean: FloatArray  # (n,)  their mean
    deviation: FloatArray  # (n,)  their squared deviation
    precision: FloatArray  # (n,)  readings / scale²
    log_norm: FloatArray  # (n,)  log-likelihood of Gaussian readings at g = mean, scale not learned
    log_norm_sum: float
    point_start: IntArray  # (n + 1,)  readings one by one, for Student-t and Laplace noise
    point_value: FloatArray
    point_weight: FloatArray
    degrees: float  # of Student-t noise
    learned: bool  # the last coordinate is the log of a scale common to all pairs
    log_scale_mean: float  # its normal prior
    log_scale_sd: float


@inner_kernel
def log_likelihood(data: LikelihoodData, i: int, g: float, log_scale: float) -> tuple[float, float, float]:
    r"""Return log p(readings of row i | g), its derivative in g, and its derivative in the log-scale.

    With n readings of mean :math:`\bar r` and squared deviation S, and σ the scale of the row times exp(log_scale):

    - Gaussian: :math:`-n \log(\sigma\sqrt{2\pi}) - (n (\bar r - g)^2 + S) / 2\sigma^2`, so that the sums are all
      that is needed, however many readings there are; the kernel of a tolerance is the case n = 1, S = 0 (eq. abcpos);
    - uniform kernel: :math:`-\log 2\sigma` where :math:`|\bar r - g| < \sigma`, else −∞, with slope 0;
    - Student-t and Laplace (eq. llhpstarnoisy): reading by reading, each with its weight, which data annealing makes
      smaller than 1.

    Where the scale is learned, a pair that has paid the same each time is a class of its own: its repeats say how well
    its mean is known, not how noisy the other pairs are. It contributes :math:`N(\bar r; g, \sigma^2/n)` without the
    :math:`\sigma^{-(n-1)}` of its spread, which would drive the common scale to 0.
    """
    gap = data.mean[i] - g
    if data.kind == GAUSSIAN and not data.learned:  # the common case, without a logarithm
        return data.log_norm[i] - 0.5 * data.precision[i] * gap * gap, data.precision[i] * gap, 0.0
    scale = data.scale[i] * np.exp(log_scale)
    n, m = data.num_readings[i], data.num_spread[i]
    if data.kind == GAUSSIAN:
        squares = (n * gap * gap + data.deviation[i]) / (scale * scale)
        return -m * np.log(scale) - 0.5 * (n * LOG_TWO_PI + squares), n * gap / (scale * scale), squares - m
    if data.kind == UNIFORM:
        inside = abs(data.mean[i] - g) < scale
        return (-np.log(2.0 * scale) if inside else -np.inf), 0.0, 0.0
    total, slope, pull = 0.0, 0.0, 0.0
    nu = data.degrees
    for j in range(data.point_start[i], data.point_start[i + 1]):
        z = (data.point_value[j] - g) / scale
        w = data.point_weight[j]
        if data.kind == STUDENT:
            total -= w * 0.5 * (nu + 1.0) * np.log1p(z * z / nu)
            bend = (nu + 1.0) * z / (nu + z * z)
            slope += w * bend / scale
            pull += w * (bend * z - 1.0)
        else:
            total -= w * abs(z)
            slope += w * np.sign(z) / scale
            pull += w * (abs(z) - 1.0)
    if data.kind == STUDENT:
        total += n * (lgamma(0.5 * (nu + 1.0)) - lgamma(0.5 * nu) - 0.5 * np.log(nu * np.pi))
    else:
        total -= n * np.log(2.0)
    return total - m * np.log(scale), slope, pull + n - m


@inner_kernel
def log_scale_prior(data: LikelihoodData, log_scale: float) -> tuple[float, float]:
    """Return the log prior density of the log-scale and its derivative."""
    z = (log_scale - data.log_scale_mean) / data.log_scale_sd
    return -0.5 * z * z - np.log(data.log_scale_sd) - 0.5 * LOG_TWO_PI, -z / data.log_scale_sd


@inner_kernel
def wall_penalty(prior: PriorData, x: float) -> tuple[float, float]:
    """Return the log penalty of a soft wall and its derivative."""
    beyond = max(x - prior.upper, 0.0) / prior.softness
    return -0.5 * beyond * beyond, -beyond / prior.softness


@inlined_kernel
def gaussian_slopes(prior: PriorData, theta: FloatArray, slope: FloatArray) -> float:
    """Write (mean_k − θ_k) / scale_k²; return Σ ((θ_k − mean_k) / scale_k)².

    In four partial sums: additions need not wait for one another, and their order is fixed.
    """
    mean, precision = prior.mean, prior.precision
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = theta.size - theta.size % 4
    for k in range(0, whole, 4):
        gap_a, gap_b = mean[k] - theta[k], mean[k + 1] - theta[k + 1]
        gap_c, gap_d = mean[k + 2] - theta[k + 2], mean[k + 3] - theta[k + 3]
        slope_a, slope_b = gap_a * precision[k], gap_b * precision[k + 1]
        slope_c, slope_d = gap_c * precision[k + 2], gap_d * precision[k + 3]
        slope[k], slope[k + 1], slope[k + 2], slope[k + 3] = slope_a, slope_b, slope_c, slope_d
        a += gap_a * slope_a
        b += gap_b * slope_b
        c += gap_c * slope_c
        d += gap_d * slope_d
    for k in range(whole, theta.size):
        slope[k] = (mean[k] - theta[k]) * precision[k]
        a += (mean[k] - theta[k]) * slope[k]
    return (a + b) + (c + d)


@inlined_kernel
def log_prior(prior: PriorData, theta: FloatArray, slope: FloatArray) -> float:
    """Return log prior(θ), −inf beyond a hard wall on θ, and write its gradient to `slope`."""
    total = prior.log_norm - 0.5 * gaussian_slopes(prior, theta, slope)
    if prior.wall == HARD_Q:
        for k in range(theta.size):
            if theta[k] > prior.upper:
                return -np.inf
    elif prior.wall == SOFT_Q:
        for k in range(theta.size):
            part, bend = wall_penalty(prior, theta[k])
            total += part
            slope[k] += bend
    return total


@inlined_kernel
def one_step_likelihood(
    layout: Layout,
    data: LikelihoodData,
    theta: FloatArray,
    grad: FloatArray,
    value: FloatArray,
    greedy: IntArray,
) -> float:
    """The likelihood of Gaussian readings where every row has one successor: the loop that most time is spent in."""
    observed, successor, is_goal, discount = layout.observed, layout.successor, layout.is_goal, layout.discount
    mean, precision = data.mean, data.precision
    total = 0.0
    for i in range(observed.size):
        k, t = observed[i], successor[i]
        gap = mean[i] - theta[k] + discount * value[t]
        bend = precision[i] * gap
        total -= 0.5 * gap * bend
        grad[k] += bend
        if not is_goal[t]:
            grad[greedy[t]] -= discount * bend
    return total + data.log_norm_sum


@inlined_kernel
def q_log_likelihood(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    theta: FloatArray,
    log_scale: float,
    grad: FloatArray,
    value: FloatArray,
    greedy: IntArray,
) -> tuple[float, float]:
    r"""Return Σ_k log p(readings_k | g_k(θ)) with any wall on rewards, and its slope in the log-scale; add to `grad`.

    g_k(θ) = θ_k − γ Σ P(s'|k) max θ(s', ·) (eq. abcpos). With bend_k the slope of a term in g_k the gradient is
    :math:`\partial/\partial\theta_j = \text{bend}_j 1[j \text{ seen}] - \gamma \sum_k \text{bend}_k P(s_j|k)
    1[j \text{ greedy in } s_j]`: where actions tie the lowest counts as greedy, a set of measure 0. `theta` and `grad`
    are ``(K,)``; `value` ``(S,)`` and `greedy` ``(S,)`` are scratch, in which goals must have value 0.
    """
    discount = layout.discount
    first_pair = layout.first_pair
    for s in range(value.size):
        first, last = first_pair[s], first_pair[s + 1]
        if last > first:
            arg, best = first, theta[first]
            for k in range(first + 1, last):
                if theta[k] > best:
                    arg, best = k, theta[k]
            value[s], greedy[s] = best, arg
    if data.kind == GAUSSIAN and not data.learned and layout.is_deterministic and prior.wall < HARD_REWARD:
        return one_step_likelihood(layout, data, theta, grad, value, greedy), 0.0
    total, scale_slope = 0.0, 0.0
    for i in range(layout.observed.size):
        k = layout.observed[i]
        g = theta[k]
        for e in range(layout.row_start[i], layout.row_start[i + 1]):
            g -= discount * layout.probability[e] * value[layout.successor[e]]
        part, bend, pull = log_likelihood(data, i, g, log_scale)
        if prior.wall == HARD_REWARD and g > prior.upper:
            part = -np.inf
        elif prior.wall == SOFT_REWARD:
            penalty, push = wall_penalty(prior, g)
            part += penalty
            bend += push
        total += part
        scale_slope += pull
        grad[k] += bend
        for e in range(layout.row_start[i], layout.row_start[i + 1]):
            t = layout.successor[e]
            if not layout.is_goal[t]:
                grad[greedy[t]] -= discount * layout.probability[e] * bend
    return total, scale_slope


@inlined_kernel
def q_density(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    x: FloatArray,
    grad: FloatArray,
    value: FloatArray,
    greedy: IntArray,
) -> float:
    """Return log p(θ | D) = log prior(θ) + Σ_k log p(readings_k | g_k(θ)) in Q coordinates (paper, eq. abcpos).

    `x` is ``(K,)``, or ``(K + 1,)`` with the log-scale where that is learned, whose normal prior is then added; `grad`
    ``(D,)`` is written. Not normalised over the readings; the prior is, but for the mass that a wall cuts off. A θ
    beyond a hard wall has −∞.
    """
    num_pairs = layout.pair_state.size
    theta = x[:num_pairs]
    log_scale = x[num_pairs] if data.learned else 0.0
    total = log_prior(prior, theta, grad)
    part, scale_slope = q_log_likelihood(layout, data, prior, theta, log_scale, grad, value, greedy)
    total += part
    if data.learned:
        part, push = log_scale_prior(data, log_scale)
        total += part
        grad[num_pairs] = scale_slope + push
    return total


@kernel
def to_psi(
    layout: Layout, data: LikelihoodData, free: IntArray, fixed: FloatArray, x: FloatArray, psi: FloatArray
) -> float:
    """Write ψ from the coordinates x: free pairs from x, the others from `fixed`; return the log-scale.

    Where the scale is learned an observed coordinate is z with ρ = r̄ + scale · z / √n, so that its spread does not
    depend on the scale.
    """
    log_scale = x[free.size] if data.learned else 0.0
    psi[:] = fixed
    for j in range(free.size):
        k = free[j]
        i = layout.row_of[k]
        if data.learned and i >= 0:
            psi[k] = data.mean[i] + data.scale[i] * np.exp(log_scale) * x[j] / np.sqrt(data.num_readings[i])
        else:
            psi[k] = x[j]
    return log_scale


@inner_kernel
def bellman_density(
    layout: Layout,
    data: LikelihoodData,
    prior: PriorData,
    free: IntArray,
    fixed: FloatArray,
    x: FloatArray,
    grad: FloatArray,
    psi: FloatArray,
    slope: FloatArray,
    work: Work,
) -> tuple[float, float]:
    r"""Return log p(ψ | D) without its determinant, and −log det; write the gradient (of the first part) to `grad`.

    :math:`p(\psi \mid D) \propto \text{prior}(\theta(\psi)) |\det(I - \gamma P_\pi)|^{-1} \prod_k p(r_k \mid \rho_k)`,
    derived in docs/explanation/bellman-coordinates.md: θ solves θ_O = ρ + γ P_O V_θ, and π is its greedy policy. The
    determinant is constant while π is, so it has no gradient; it jumps where π changes. The slope of the prior in θ is
    pulled back to ψ by the adjoint of the solve (`pull_back`). `x` ``(D,)`` holds ψ on the `free` pairs, or z with
    ρ = r̄ + σ z / √n where the scale is learned, and then the log-scale; `psi`, `slope` ``(K,)`` and `work` are scratch.
    A ψ without solution (with discount 1: a loop that pays) has density 0.
    """
    log_scale = to_psi(layout, data, free, fixed, x, psi)
    fine, log_det = solve(layout, psi, work)
    if not fine:
        return -np.inf, 0.0
    total = log_prior(prior, work.theta, slope)
    if total == -np.inf:
        return -np.inf, 0.0
    pull_back(layout, slope, work)
    scale_slope = 0.0
    # At tolerance 0 no observed pair is free, and ρ = r is not a variable: its likelihood is a constant left out.
    if free.size + layout.observed.size > layout.pair_state.size:
        for i in range(layout.observed.size):
            k = layout.observed[i]
            part, bend, pull = log_likelihood(data, i, psi[k], log_scale)
            if prior.wall == HARD_REWARD and psi[k] > prior.upper:
                part = -np.inf
            elif prior.wall == SOFT_REWARD:
                penalty, push = wall_penalty(prior, psi[k])
                part += penalty
                bend += push
            total += part
            slope[k] += bend
            scale_slope += pull
    for j in range(free.size):
        k = free[j]
        i = layout.row_of[k]
        if data.learned and i >= 0:
            unit = data.scale[i] * np.exp(log_scale) / np.sqrt(data.num_readings[i])
            grad[j] = slope[k] * unit
            scale_slope += 1.0 + slope[k] * unit * x[j]  # the Jacobian of z → ρ, and ρ's own dependence on the scale
            total += np.log(unit)
        else:
            grad[j] = slope[k]
    if data.learned:
        part, push = log_scale_prior(data, log_scale)
        total += part
        grad[free.size] = scale_slope + push
    return total, -log_det
