"""Gaussian integrals over a polytope: probability, moments and exact draws of x ~ N(μ, Σ) given A x ≤ b.

Separation of variables (Genz 1992) with minimax tilting (Botev 2017), extended to more constraints than dimensions: in
the basis of a pivoted Cholesky factor each constraint bounds the last coordinate it depends on, from above or below.
Tilting uses the pivot rows alone; the others only shrink the intervals, so the acceptance bound stays valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.errors import QPosteriorError
from qposterior.world.arrays import BoolArray, FloatArray, IntArray

DEGENERATE = 1e-10
"""A constraint that moves by less than this, relative to its size, is a constant: its sign decides."""

REPLICATES = 8
MOST_DRAW_ROUNDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Estimates over REPLICATES independent scramblings: y = A x given A x ≤ b, unnormalised."""

    mass: FloatArray  # (R,)  P(A x ≤ b)
    first: FloatArray  # (R, r)  E[z 1(A x ≤ b)] of the standard coordinates z
    second: FloatArray  # (R, r, r)
    also: FloatArray  # (R, E)  P(A x ≤ b and d_e x ≤ 0) for further half-spaces d_e, one at a time


class PolytopeGaussian:
    """x = μ + F z, z ~ N(0, I_n), restricted to A x ≤ b."""

    def __init__(self, mean: FloatArray, factor: FloatArray, constraints: FloatArray, bounds: FloatArray) -> None:
        self.mean, self.factor = mean, factor
        rows = constraints @ factor
        slack = bounds - constraints @ mean
        size = np.linalg.norm(constraints, axis=1) * max(float(np.abs(factor).max(initial=0.0)), 1e-300)
        constant = np.linalg.norm(rows, axis=1) <= DEGENERATE * np.maximum(size, 1e-300)
        # Rounding is relative to the largest value or standard deviation: a mean of 0 may be what a cancellation left.
        self._size = max(float(np.abs(mean).max(initial=0.0)), float(np.abs(factor).max(initial=0.0)))
        tolerance = DEGENERATE * np.linalg.norm(constraints, axis=1) * self._size
        self.is_empty = bool(np.any(slack[constant] < -tolerance[constant]))
        self.is_tied: BoolArray = constant & (np.abs(slack) <= tolerance)  # constraints that hold with equality
        self._triangulate(rows[~constant], slack[~constant])
        self._tilt: FloatArray | None = None
        self._peak = 0.0

    @property
    def rank(self) -> int:
        """Number of directions that the constraints depend on."""
        return int(self.basis.shape[1])

    def _triangulate(self, rows: FloatArray, slack: FloatArray) -> None:
        """Choose orthonormal directions so that the constraints are lower trapezoidal, tightest first."""
        scale = np.linalg.norm(rows, axis=1)
        rows, slack = rows / scale[:, None], slack / scale
        residual = rows.copy()
        basis: list[FloatArray] = []
        pivots: list[int] = []
        while len(basis) < rows.shape[1] and rows.shape[0]:
            length = np.linalg.norm(residual, axis=1)
            open_rows = length > 1e-8
            open_rows[pivots] = False
            if not open_rows.any():
                break
            # The constraint least likely to hold comes first: it bounds the others' variance most.
            score = np.where(open_rows, slack / np.maximum(length, 1e-12), np.inf)
            pivot = int(np.argmin(score))
            direction = residual[pivot] / length[pivot]
            basis.append(direction)
            pivots.append(pivot)
            residual = residual - np.outer(residual @ direction, direction)
        self.basis = np.array(basis).T.reshape(rows.shape[1], len(basis))  # (n, r)
        self.lower = rows @ self.basis  # (m, r)
        self.lower[np.abs(self.lower) < 1e-9] = 0.0
        self.slack = slack
        last = np.full(rows.shape[0], -1)
        for j in range(len(basis)):
            last[self.lower[:, j] != 0.0] = j
        self.pivots = np.array(pivots, dtype=np.int64)
        self.by_column: list[IntArray] = [np.flatnonzero(last == j) for j in range(len(basis))]

    def tilt(self) -> FloatArray:
        """Return the minimax tilt of the pivot constraints; 0 where the saddle point is not found."""
        if self._tilt is None:
            self._tilt, self._peak = _saddle_point(self.lower[self.pivots], self.slack[self.pivots])
        return self._tilt

    def propose(self, uniforms: FloatArray, *, tilted: bool) -> tuple[FloatArray, FloatArray]:
        """Return ``(M, r)`` points and their ``(M,)`` log importance weights from ``(M, r)`` uniforms."""
        from scipy.special import log_ndtr

        tilt = self.tilt() if tilted else np.zeros(self.rank)
        z = np.zeros((uniforms.shape[0], self.rank))
        log_weight = np.zeros(uniforms.shape[0])
        for j in range(self.rank):
            low, high = self._interval(z, j)
            low, high = low - tilt[j], high - tilt[j]
            mass = _log_mass(low, high, log_ndtr)
            z[:, j] = tilt[j] + _truncated(low, high, uniforms[:, j])
            log_weight += 0.5 * tilt[j] ** 2 - tilt[j] * z[:, j] + mass
        return z, log_weight

    def _interval(self, z: FloatArray, j: int) -> tuple[FloatArray, FloatArray]:
        rows = self.by_column[j]
        room = self.slack[rows] - z[:, :j] @ self.lower[rows, :j].T  # (M, rows)
        edge = room / self.lower[rows, j]
        above = self.lower[rows, j] > 0.0
        high = np.min(edge[:, above], axis=1, initial=np.inf)
        low = np.max(edge[:, ~above], axis=1, initial=-np.inf)
        return low, high

    def moments(
        self, log_points: int, rng: np.random.Generator, also: FloatArray | None = None, *, tilted: bool = True
    ) -> Moments:
        """Return mass and moments of z along the basis, by scrambled Sobol points, 2^log_points a replicate.

        `also` is ``(E, d)``: rows d of further half-spaces d x ≤ 0, each taken alone with the polytope.
        """
        rows = np.zeros((0, self.mean.size)) if also is None else also
        if self.is_empty or self.rank == 0:
            inside = 0.0 if self.is_empty else 1.0
            share = self._half_space_shares(rows, np.zeros((1, self.rank)))[0]
            return Moments(
                mass=np.full(REPLICATES, inside),
                first=np.zeros((REPLICATES, self.rank)),
                second=np.zeros((REPLICATES, self.rank, self.rank)),
                also=np.tile(inside * share, (REPLICATES, 1)),
            )
        parts = [self._replicate(log_points, rng, rows, tilted) for _ in range(REPLICATES)]
        mass, first, second, extra = (np.array([part[i] for part in parts]) for i in range(4))
        return Moments(mass=mass, first=first, second=second, also=extra)

    def _replicate(
        self, log_points: int, rng: np.random.Generator, rows: FloatArray, tilted: bool
    ) -> tuple[float, FloatArray, FloatArray, FloatArray]:
        from scipy.stats.qmc import Sobol

        points = Sobol(self.rank, scramble=True, rng=rng).random_base2(log_points)
        z, log_weight = self.propose(points, tilted=tilted)
        weight = np.exp(log_weight) / points.shape[0]
        weight[~np.isfinite(weight)] = 0.0
        z = np.where(weight[:, None] > 0.0, z, 0.0)
        share = self._half_space_shares(rows, z)
        return float(weight.sum()), weight @ z, (z * weight[:, None]).T @ z, weight @ share

    def _half_space_shares(self, rows: FloatArray, z: FloatArray) -> FloatArray:
        """Return ``(M, E)`` P(d x ≤ 0 | z along the basis): a constant tie counts half."""
        from scipy.special import ndtr

        step = rows @ self.factor
        along = step @ self.basis
        rest = np.sqrt(np.maximum(np.sum(step**2, axis=1) - np.sum(along**2, axis=1), 0.0))
        value = rows @ self.mean + z @ along.T
        size = np.linalg.norm(rows, axis=1) * max(float(np.abs(self.factor).max(initial=0.0)), 1e-300)
        fixed = rest <= 1e-7 * np.maximum(size, 1e-300)
        tie = DEGENERATE * np.linalg.norm(rows, axis=1) * self._size
        sign = np.where(np.abs(value) <= tie, 0.5, (value < 0.0).astype(float))
        return np.asarray(np.where(fixed, sign, ndtr(-value / np.where(fixed, 1.0, rest))))

    def draw(self, num: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(num, d)`` independent draws of x given the constraints, accepted from the tilted proposal."""
        self.tilt()
        kept: list[FloatArray] = []
        found = 0
        for _ in range(MOST_DRAW_ROUNDS):
            if found >= num:
                break
            batch = max(64, 2 * (num - found))
            z, log_weight = self.propose(rng.random((batch, self.rank)), tilted=True)
            accepted = np.log(rng.random(batch)) <= log_weight - self._peak
            kept.append(z[accepted])
            found += int(accepted.sum())
        if found < num:
            raise QPosteriorError(f'only {found} of {num} exact draws found; use method="hmc"')
        along = np.concatenate(kept)[:num]
        # Directions that no constraint depends on are plain standard normal.
        free = rng.standard_normal((num, self.factor.shape[1]))
        free -= (free @ self.basis) @ self.basis.T
        return self.mean + (free + along @ self.basis.T) @ self.factor.T


def _saddle_point(lower: FloatArray, slack: FloatArray) -> tuple[FloatArray, float]:
    """Return the tilt μ and ψ* of Botev's saddle point for L z ≤ slack with L square lower triangular.

    x = μ − Ψ, μ_j = −Σ_{k>j} L̃_kj Ψ_k with Ψ_k = φ/Φ(u_k − μ_k): ψ(x, μ) = Σ ½μ² − xμ + log Φ(u_k(x) − μ_k).
    """
    from scipy.optimize import root
    from scipy.special import log_ndtr

    size = lower.shape[0]
    if size <= 1:
        return np.zeros(size), 0.0 if size == 0 else float(log_ndtr(slack[0] / lower[0, 0]))
    diagonal = np.diag(lower)
    unit = lower / diagonal[:, None] - np.eye(size)
    bound = slack / diagonal

    def pieces(v: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        x, tilt = np.append(v[: size - 1], 0.0), np.append(v[size - 1 :], 0.0)
        return x, tilt, bound - unit @ x - tilt

    def equations(v: FloatArray) -> FloatArray:
        x, tilt, room = pieces(v)
        hazard = np.exp(-0.5 * room**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(room))
        return np.concatenate([(tilt - x - hazard)[:-1], (-tilt - hazard @ unit)[:-1]])

    answer = root(equations, np.zeros(2 * (size - 1)), method="hybr")
    x, tilt, room = pieces(answer.x)
    if not answer.success or not np.all(np.isfinite(answer.x)) or np.abs(equations(answer.x)).max() > 1e-6:
        return np.zeros(size), 0.0  # still valid: without a tilt every factor is a probability
    peak = float(np.sum(0.5 * tilt**2 - x * tilt + log_ndtr(room)))
    return tilt, peak + 1e-9


def _log_mass(low: FloatArray, high: FloatArray, log_ndtr: np.ufunc) -> FloatArray:
    """Return log(Φ(high) − Φ(low)) without loss in the tails; −inf where the interval is empty."""
    flip = low > 0.0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        upper, lower = log_ndtr(b), log_ndtr(a)
        gap = np.where(np.isneginf(lower), 0.0, np.exp(lower - upper))
        mass = upper + np.log1p(-np.minimum(gap, 1.0))
    return np.where(high > low, mass, -np.inf)


def _truncated(low: FloatArray, high: FloatArray, u: FloatArray) -> FloatArray:
    """Return the u-quantile of N(0, 1) given low < x < high."""
    from scipy.special import log_ndtr, ndtri_exp

    flip = low > 0.0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    share = np.where(flip, 1.0 - u, u)
    with np.errstate(divide="ignore", invalid="ignore"):
        lower, upper = log_ndtr(a), log_ndtr(b)
        log_p = np.logaddexp(np.log1p(-share) + lower, np.log(share) + upper)
        x = np.clip(ndtri_exp(np.minimum(log_p, 0.0)), a, b)
    x = np.where(np.isfinite(x), x, np.where(np.isfinite(b), b, 0.0))
    return np.where(flip, -x, x)


def is_feasible(constraints: FloatArray, bounds: FloatArray) -> bool:
    """Return whether some x has A x ≤ b, by a linear program that maximises the smallest slack."""
    from scipy.optimize import linprog

    n = constraints.shape[1]
    objective = np.append(np.zeros(n), -1.0)
    matrix = np.hstack([constraints, np.linalg.norm(constraints, axis=1)[:, None]])
    limits = [(None, None)] * n + [(None, 1.0)]
    answer = linprog(objective, A_ub=matrix, b_ub=bounds, bounds=limits, method="highs")
    return bool(answer.status == 3 or (answer.success and -answer.fun > 1e-12))
