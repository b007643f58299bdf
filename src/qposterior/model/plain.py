r"""The density of a target, part by part: the path of priors and noises that have no compiled form.

With ψ = (θ on unobserved pairs, ρ = g(θ) on observed ones) the posterior in Bellman coordinates is

.. math:: p(\psi \mid D) \propto \text{prior}(\theta(\psi)) \, |\det(I - \gamma P_\pi)|^{-1} \prod_k p(r_k \mid \rho_k)

and in Q coordinates prior(θ) Π_k p(r_k | g_k(θ)) (paper, eq. abcpos). Each factor is one call below. The compiled
kernels evaluate the same in one loop; where a target has both forms they agree to rounding, which the tests check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.model.kernels import particles
from qposterior.model.kernels.compile import use_threads_for
from qposterior.model.kernels.density import LikelihoodData
from qposterior.model.kernels.layout import Layout
from qposterior.model.likelihood import NoiseModel
from qposterior.model.prior import Prior
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace


class Parts(Protocol):
    """What the readings of a target are evaluated from."""

    seen: Experience
    layout: Layout
    data: LikelihoodData
    own_noise: NoiseModel | None


class TableParts(Parts, Protocol):
    """The same with a prior on the values of a table."""

    prior: Prior
    num_pairs: int


class BellmanParts(TableParts, Protocol):
    """The same in Bellman coordinates."""

    tables: FloatArray
    free: IntArray
    typical_value: float
    typical_spread: float

    def to_psi(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ψ and dψ/dx."""
        ...


PANELS, NODES, DEEPEST = 16, 8, 14
"""Quadrature over the real line: panels to begin with, Gauss–Lobatto nodes in each, and how often one is cut."""

FARTHEST = 1.0 - 1e-6
"""Where the mapped line ends: half a million spreads away."""

QUADRATURE_ERROR = 1e-6
"""Of one panel, as a share of the integral, up to which it is not cut."""

ABSURD = 1e12
"""Values beyond this, which a trajectory that diverges may reach, have density 0 by themselves."""

MOST_NUMBERS = 1 << 21
"""Numbers of the points at which one call evaluates the integrand."""


def q_density_and_grad(target: TableParts, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ``(N, 2)`` log-densities in Q coordinates, the second column 0, and ``(N, D)`` gradients."""
    theta, log_scale = x[:, : target.num_pairs], log_scale_of(target, x)
    log_prior, grad = prior_and_grad(target, theta)
    log_likelihood, slope, pull = q_likelihood_and_grad(target, theta, log_scale)
    total, grad = log_prior + log_likelihood, grad + slope
    if target.data.learned:
        part, push = log_scale_prior(target, log_scale)
        total, grad = total + part, np.column_stack([grad, pull + push])
    return np.stack([total, np.zeros_like(total)], axis=1), grad


def q_likelihood_and_grad(
    target: Parts, theta: FloatArray, log_scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(N,)`` Σ_k log p(readings | g_k(θ)), ``(N, K)`` slopes in θ, and ``(N,)`` slopes in the log-scale.

    With bend_k the slope in g_k = θ_k − γ Σ P(s'|k) max θ(s', ·): θ_k gets bend_k if it was observed, and less
    γ Σ_j P(s_k|j) bend_j if it is the greedy pair of its state.
    """
    value = target.seen.space.maximum(theta)
    rows = target.seen.table().matrix
    rewards = theta[:, target.layout.observed] - target.layout.discount * (rows @ value.T).T
    total, bend, pull = readings_and_grad(target, rewards, log_scale)
    slope = np.zeros_like(theta)
    slope[:, target.layout.observed] = bend
    flow = target.layout.discount * (rows.T @ bend.T).T
    chosen = greedy_pairs(target.seen.space, theta)
    slope[np.arange(theta.shape[0])[:, None], chosen] -= flow[:, target.seen.space.deciding_states]
    return total, slope, pull


def bellman_density_and_grad(target: BellmanParts, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ``(N, 2)`` the smooth log-density and −log det in Bellman coordinates, and ``(N, D)`` gradients.

    The slope of the prior in θ is pulled back to ψ by the adjoint of the Bellman solve. Where a scale is learned an
    observed coordinate is z with ρ = r̄ + unit · z, unit = scale/√n: its Jacobian and ρ's dependence on the scale count.
    A ψ without solution has density 0.
    """
    log_scale, free = log_scale_of(target, x), target.free
    psi, unit = target.to_psi(x)
    theta = np.empty_like(psi)
    use_threads_for(2 * psi.size)
    log_det = particles.solutions(target.tables, target.layout, psi, theta)
    solved = np.isfinite(theta).all(axis=1)
    theta[~solved] = target.typical_value
    total, slope = prior_and_grad(target, theta)
    solved &= np.isfinite(total)
    particles.pull_backs(target.tables, target.layout, psi, slope)
    is_observed = target.layout.row_of[free] >= 0
    pull = np.zeros(x.shape[0])
    # At tolerance 0 no observed pair is free, and ρ = r is not a variable: its likelihood is a constant left out.
    if is_observed.any():
        part, bend, pull = readings_and_grad(target, psi[:, target.layout.observed], log_scale)
        total = total + part
        slope[:, target.layout.observed] += bend
    grad = slope[:, free]
    if target.data.learned:
        grad = grad * unit
        pull = pull + np.sum(1.0 + grad[:, is_observed] * x[:, : free.size][:, is_observed], axis=1)
        part, push = log_scale_prior(target, log_scale)
        total = total + np.log(unit).sum(axis=1) + part
        grad = np.column_stack([grad, pull + push])
    density = np.stack([total, -log_det], axis=1)
    return np.where(solved[:, None], density, [-np.inf, 0.0]), np.where(solved[:, None], grad, 0.0)


def exact_log_density(target: BellmanParts, x: FloatArray) -> FloatArray:
    """Return ``(N,)`` log prior(θ(ψ)) − log det at tolerance 0, without a gradient; −inf where ψ has no solution."""
    psi, _ = target.to_psi(x)
    theta = np.empty_like(psi)
    use_threads_for(psi.size)
    log_det = particles.solutions(target.tables, target.layout, psi, theta)
    solved = np.isfinite(theta).all(axis=1)
    theta[~solved] = target.typical_value
    return np.where(solved, prior_and_grad(target, theta)[0] - log_det, -np.inf)


def prior_and_grad(target: TableParts, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what the prior says of ``(N, K)`` θ, checked: a wrong shape would be spread over the particles."""
    return _checked("prior", theta, lambda values: target.prior.log_density_and_grad(values, target.seen.space))


def readings_and_grad(
    target: Parts, rewards: FloatArray, log_scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(N,)`` log p(readings | mean rewards), ``(N, n)`` slopes in these, ``(N,)`` slopes in the log-scale."""
    if target.own_noise is not None:
        density_fn = target.own_noise.log_density_and_grad
        total, bend = _checked("noise", rewards, lambda values: density_fn(values, target.seen))
        return total, bend, np.zeros_like(total)
    bend = np.empty_like(rewards)
    use_threads_for(rewards.size)
    both = particles.reading_likelihoods(target.data, np.ascontiguousarray(rewards), log_scale, bend)
    return both[:, 0], bend, both[:, 1]


def log_scale_of(target: Parts, x: FloatArray) -> FloatArray:
    """Return ``(N,)`` log-scales of the noise: the last coordinate where learned, else 0."""
    return np.ascontiguousarray(x[:, -1]) if target.data.learned else np.zeros(x.shape[0])


def log_scale_prior(target: Parts, log_scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the log prior density of a learned log-scale and its slope."""
    sd = target.data.log_scale_sd
    z = (log_scale - target.data.log_scale_mean) / sd
    return -0.5 * z**2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi), -z / sd


def greedy_pairs(space: StateActionSpace, theta: FloatArray) -> IntArray:
    """Return ``(N, states)`` the greedy pair of each deciding state, the lowest where some tie."""
    start = space.first_pair[space.deciding_states]
    size = np.diff(np.append(start, space.num_pairs))
    is_best = theta >= np.repeat(np.maximum.reduceat(theta, start, axis=1), size, axis=1)
    candidate = np.where(is_best, np.arange(space.num_pairs), space.num_pairs)
    return np.asarray(np.minimum.reduceat(candidate, start, axis=1))


def log_integral(target: BellmanParts, theta: FloatArray, k: int) -> FloatArray:
    r"""Return ``(N,)`` log ∫ f_O(φ', x) dx over x = θ_k of an unobserved pair, by adaptive quadrature.

    f_O is the tolerance-0 density given what was seen, φ' the other free values of each particle. The line is mapped to
    t ∈ (−1, 1) by x = m + s t / (1 − t²), m and s a typical value of the prior and its spread. Gauss–Lobatto on
    panels, each cut in two until its halves, and half of its nodes, agree with it: the integrand has a kink or a jump
    wherever the greedy policy changes, and a jump is closed in on to 2^-`DEEPEST` of a panel. The ends of a panel are
    nodes, so a jump always lies between two of them. A peak narrower than a hundredth of s may be missed.
    """
    x = np.ascontiguousarray(theta[:, target.free])
    column = int(np.searchsorted(target.free, k))
    node, weight = _lobatto_rule(NODES)
    coarse = _coarse_weights(node) / weight
    edge = np.linspace(-1.0, 1.0, PANELS + 1) * FARTHEST
    owner = np.repeat(np.arange(x.shape[0]), PANELS)
    low, high = np.tile(edge[:-1], x.shape[0]), np.tile(edge[1:], x.shape[0])

    def log_values(owner: IntArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return ``(P, NODES)`` log integrand, with the Jacobian and the weight of each node."""
        t = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * node
        points = np.repeat(x[owner], NODES, axis=0)
        points[:, column] = (target.typical_value + target.typical_spread * t / (1.0 - t**2)).ravel()
        size = max(1, MOST_NUMBERS // max(x.shape[1], 1))
        parts = [exact_log_density(target, points[n : n + size]) for n in range(0, points.shape[0], size)]
        jacobian = target.typical_spread * (1.0 + t**2) / (1.0 - t**2) ** 2
        return np.concatenate(parts).reshape(t.shape) + np.log(0.5 * (high - low)[:, None] * weight * jacobian)

    first = log_values(owner, low, high)
    top = np.full(x.shape[0], -np.inf)
    np.maximum.at(top, owner, first.max(axis=1))
    top = np.where(np.isfinite(top), top, 0.0)
    whole = np.exp(first - top[owner, None]).sum(axis=1)
    least = np.bincount(owner, whole, x.shape[0])  # about the integral: what an error is compared with
    total = np.zeros(x.shape[0])
    for depth in range(DEEPEST + 1):
        middle = 0.5 * (low + high)
        owner, low, high = np.tile(owner, 2), np.concatenate([low, middle]), np.concatenate([middle, high])
        values = np.exp(log_values(owner, low, high) - top[owner, None])
        half = values.sum(axis=1)
        both = half.reshape(2, -1).sum(axis=0)
        doubt = np.abs(values @ coarse - half).reshape(2, -1).sum(axis=0)
        is_fine = np.maximum(np.abs(both - whole), doubt) <= QUADRATURE_ERROR * least[owner[: both.size]]
        if depth == DEEPEST:
            is_fine[:] = True
        total += np.bincount(owner[: both.size], np.where(is_fine, both, 0.0), x.shape[0])
        again = np.flatnonzero(np.tile(~is_fine, 2))
        owner, low, high, whole = owner[again], low[again], high[again], half[again]
        if again.size == 0:
            break
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(total))


def _lobatto_rule(num: int) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights on [−1, 1], both ends among them, exact for polynomials of degree 2 num − 3."""
    top = np.polynomial.Legendre.basis(num - 1)
    node = np.concatenate([[-1.0], np.sort(top.deriv().roots().real), [1.0]])
    return node, 2.0 / (num * (num - 1) * top(node) ** 2)


def _coarse_weights(node: FloatArray) -> FloatArray:
    """Return weights of a rule on every second node from both ends, exact up to its degree; 0 at the others."""
    some = np.concatenate([np.arange(0, node.size // 2, 2), np.arange(node.size - 1, node.size // 2 - 1, -2)])
    power = np.arange(some.size)
    weights = np.zeros(node.size)
    weights[some] = np.linalg.solve(node[some] ** power[:, None], np.where(power % 2, 0.0, 2.0 / (power + 1.0)))
    return weights


def _checked(
    name: str, values: FloatArray, density_fn: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
) -> tuple[FloatArray, FloatArray]:
    """Return what a part of the user's says of ``(N, M)`` values: of the right shape, and no nan.

    A trajectory that diverges asks for it at absurd values; where these overflow the density is 0.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        total, slope = density_fn(values)
    total, slope = np.array(total, dtype=float), np.array(slope, dtype=float)
    if total.shape != values.shape[:1] or slope.shape != values.shape:
        raise InvalidInputError(
            f"{name}.log_density_and_grad must return {values.shape[:1]} log-densities and {values.shape} gradients "
            f"for {values.shape} values, got {total.shape} and {slope.shape}"
        )
    total[np.abs(values).max(axis=1, initial=0.0) > ABSURD] = -np.inf
    if np.isnan(total).any() or np.any(total == np.inf):
        raise InvalidInputError(f"a log-density of the {name} is nan or inf; return -inf where the density is 0")
    return total, np.where(np.isfinite(total)[:, None], slope, 0.0)
