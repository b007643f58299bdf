"""Integrals over one coordinate of many points at once, of densities that have kinks and jumps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray

PANELS, NODES, DEEPEST = 16, 8, 14
"""Quadrature over the real line: panels to begin with, Gauss–Lobatto nodes in each, and how often one is cut."""

FARTHEST = 1.0 - 1e-6
"""Where the mapped line ends: half a million spreads away."""

QUADRATURE_ERROR = 1e-6
"""Of one panel, as a share of the integral, up to which it is not cut."""

MOST_NUMBERS = 1 << 21
"""Numbers of the points at which one call evaluates the integrand."""


def log_integrals(
    log_density_fn: Callable[[FloatArray], FloatArray], x: FloatArray, column: int, *, centre: float, spread: float
) -> FloatArray:
    r"""Return ``(N,)`` log ∫ f(x_1, …, t, …, x_D) dt over one column of ``(N, D)`` points, by adaptive quadrature.

    `log_density_fn` gives the ``(M,)`` log f of ``(M, D)`` points. The line is mapped to t ∈ (−1, 1) by
    x = m + s t / (1 − t²), m and s the `centre` and the `spread`. Gauss–Lobatto on panels, each cut in two until its
    halves, and half of its nodes, agree with it: the integrand has a kink or a jump wherever the greedy policy changes,
    and a jump is closed in on to 2^-`DEEPEST` of a panel. The ends of a panel are nodes, so a jump always lies between
    two of them. A peak narrower than a hundredth of s may be missed.
    """
    node, weight = _lobatto_rule(NODES)
    coarse = _coarse_weights(node) / weight
    edge = np.linspace(-1.0, 1.0, PANELS + 1) * FARTHEST
    owner = np.repeat(np.arange(x.shape[0]), PANELS)
    low, high = np.tile(edge[:-1], x.shape[0]), np.tile(edge[1:], x.shape[0])

    def log_values(owner: IntArray, low: FloatArray, high: FloatArray) -> FloatArray:
        """Return ``(P, NODES)`` log integrand, with the Jacobian and the weight of each node."""
        t = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * node
        points = np.repeat(x[owner], NODES, axis=0)
        points[:, column] = (centre + spread * t / (1.0 - t**2)).ravel()
        size = max(1, MOST_NUMBERS // max(x.shape[1], 1))
        parts = [log_density_fn(points[n : n + size]) for n in range(0, points.shape[0], size)]
        jacobian = spread * (1.0 + t**2) / (1.0 - t**2) ** 2
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
