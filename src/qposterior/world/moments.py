"""What is kept of weighted readings: their moments, and the readings themselves up to a limit.

Moments are taken of a batch, and added up batch by batch in any order. Sums are kept about the mean, never about 0:
readings of 1e8 ± 1 would lose their spread in sums of squares. Single readings are there for Student-t and Laplace
noise, which have no sufficient statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from qposterior.world.arrays import FloatArray, IntArray, sum_by

MOST_POINTS = 256

Readings = tuple[FloatArray, FloatArray]
"""Sorted values and their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What the readings of each of n groups sum up to; nan where a sum is not known or too large for a number."""

    count: FloatArray  # (n,)  Σ w
    mean: FloatArray  # (n,)  0 where nothing was counted
    second: FloatArray  # (n,)  Σ w (r − mean)²
    third: FloatArray  # (n,)  Σ w (r − mean)³
    fourth: FloatArray  # (n,)  Σ w (r − mean)⁴
    low: FloatArray  # (n,)  smallest and largest reading, whatever its weight; inf and −inf where there is none
    high: FloatArray  # (n,)

    def at(self, groups: Any) -> Moments:
        """Return the moments of some groups, given by their indices or a mask."""
        return Moments(**{item.name: getattr(self, item.name)[groups] for item in fields(self)})

    def put(self, groups: Any, new: Moments) -> None:
        """Write the moments of some groups in place."""
        for item in fields(self):
            getattr(self, item.name)[groups] = getattr(new, item.name)

    def copy(self) -> Moments:
        """Return an independent copy."""
        return Moments(**{item.name: getattr(self, item.name).copy() for item in fields(self)})


def no_moments(size: int) -> Moments:
    """Return the moments of groups without readings."""
    nothing = {item.name: np.zeros(size) for item in fields(Moments)}
    return Moments(**nothing | {"low": np.full(size, np.inf), "high": np.full(size, -np.inf)})


def moments_of_one(value: float) -> Moments:
    """Return the moments of a single reading."""
    return moments_by(np.zeros(1, dtype=np.int64), np.array([value]), np.ones(1), 1)


def moments_by(keys: IntArray, values: FloatArray, weights: FloatArray, size: int) -> Moments:
    r"""Return the moments of the ``(N,)`` values that share a key from 0 to below `size`.

    The mean m of a group is off by rounding, by :math:`c = \sum w (r - m) / \sum w`. With the sums
    :math:`s_j = \sum w (r - m)^j` those about :math:`m + c` are :math:`s_2 - n c^2`,
    :math:`s_3 - 3 c s_2 + 2 n c^3` and :math:`s_4 - 4 c s_3 + 6 c^2 s_2 - 3 n c^4`.
    """
    count = sum_by(keys, weights, size)
    divisor = np.where(count > 0.0, count, 1.0)
    mean = sum_by(keys, weights * values, size) / divisor
    gap = values - mean[keys]
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, keys, values)
    np.maximum.at(high, keys, values)
    with np.errstate(over="ignore", invalid="ignore"):
        power = weights * gap
        c = sum_by(keys, power, size) / divisor
        power *= gap
        second = sum_by(keys, power, size)
        power *= gap
        third = sum_by(keys, power, size)
        power *= gap
        fourth = sum_by(keys, power, size)
        return Moments(
            count=count,
            mean=mean + c,
            second=np.maximum(second - count * c**2, 0.0),
            third=_or_unknown(third - 3.0 * c * second + 2.0 * count * c**3),
            fourth=_or_unknown(np.maximum(fourth - 4.0 * c * third + 6.0 * c**2 * second - 3.0 * count * c**4, 0.0)),
            low=low,
            high=high,
        )


def merge_moments(one: Moments, two: Moments) -> Moments:
    r"""Return the moments of both (Chan, Golub and LeVeque 1979; Pébay 2008, eqs. 2.1 to 2.3, with weights).

    With :math:`n = n_1 + n_2`, shares :math:`p = n_1 / n`, :math:`q = n_2 / n` and the gap
    :math:`\delta = m_2 - m_1`: :math:`M_2 = M_{2,1} + M_{2,2} + \delta^2 n p q`,
    :math:`M_3 = M_{3,1} + M_{3,2} + \delta^3 n p q (p - q) + 3 \delta (p M_{2,2} - q M_{2,1})` and
    :math:`M_4 = M_{4,1} + M_{4,2} + \delta^4 n p q (p^2 - p q + q^2) + 6 \delta^2 (p^2 M_{2,2} + q^2 M_{2,1})
    + 4 \delta (p M_{3,2} - q M_{3,1})`. A group that is empty on one side is taken from the other as it is; a sum that
    is not known on one side is not known of both.
    """
    total = one.count + two.count
    divisor = np.where(total > 0.0, total, 1.0)
    p, q = one.count / divisor, two.count / divisor
    gap = np.where((one.count > 0.0) & (two.count > 0.0), two.mean - one.mean, 0.0)
    third = [np.where(part.count > 0.0, part.third, 0.0) for part in (one, two)]
    fourth = [np.where(part.count > 0.0, part.fourth, 0.0) for part in (one, two)]
    with np.errstate(over="ignore", invalid="ignore"):
        between = deviation_between(one.count, one.mean, two.count, two.mean)
        asymmetry = between * gap * (p - q) + 3.0 * gap * (p * two.second - q * one.second)
        tails = (
            between * gap**2 * (p**2 - p * q + q**2)
            + 6.0 * gap**2 * (p**2 * two.second + q**2 * one.second)
            + 4.0 * gap * (p * third[1] - q * third[0])
        )
        return Moments(
            count=total,
            mean=merge_means(one.count, one.mean, two.count, two.mean),
            second=one.second + two.second + between,
            third=_or_unknown(third[0] + third[1] + asymmetry),
            fourth=_or_unknown(np.maximum(fourth[0] + fourth[1] + tails, 0.0)),
            low=np.minimum(one.low, two.low),
            high=np.maximum(one.high, two.high),
        )


def merge_means(n: FloatArray, mean: FloatArray, m: FloatArray, other: FloatArray) -> FloatArray:
    """Return the means of n readings of one mean and m of the other; where a count is 0, the other side's as it is."""
    total = n + m
    both = mean + (other - mean) * (m / np.where(total > 0.0, total, 1.0))
    return np.where(n == 0.0, other, np.where(m == 0.0, mean, both))


def deviation_between(n: FloatArray, mean: FloatArray, m: FloatArray, other: FloatArray) -> FloatArray:
    """Return n m / (n + m) times the squared gap of two means: what it adds to the squared deviations of both sides."""
    total = n + m
    return n * (m / np.where(total > 0.0, total, 1.0)) * (other - mean) ** 2


def mean_by(keys: IntArray, values: FloatArray, weights: FloatArray, size: int) -> FloatArray:
    """Return ``(size,)`` weighted means of the values that share a key; nan where their weights sum to 0."""
    total = sum_by(keys, weights, size)
    parts = np.where(weights > 0.0, weights * values, 0.0)
    return np.where(total > 0.0, sum_by(keys, parts, size) / np.where(total > 0.0, total, 1.0), np.nan)


def _or_unknown(sums: FloatArray) -> FloatArray:
    return np.where(np.isfinite(sums), sums, np.nan)


def no_readings() -> Readings:
    """Return an empty set of readings."""
    return np.empty(0), np.empty(0)


def add_readings(known: Readings, new: Readings) -> Readings:
    """Return both together: exact up to 256 distinct values, then the closest neighbours are joined at their mean.

    Joining keeps the total weight and the mean. It costs least where the product of weights and the squared gap is
    smallest (Ward's rule), so a log-likelihood that is smooth on the scale of the gaps hardly changes.
    """
    values, where = np.unique(np.concatenate([known[0], new[0]]), return_inverse=True)
    weights = np.bincount(where, np.concatenate([known[1], new[1]])).astype(np.float64)
    while values.size > MOST_POINTS:
        together = weights[:-1] + weights[1:]
        i = int(np.argmin(weights[:-1] * weights[1:] / together * np.diff(values) ** 2))
        values[i] = (weights[i] * values[i] + weights[i + 1] * values[i + 1]) / together[i]
        weights[i] = together[i]
        values, weights = np.delete(values, i + 1), np.delete(weights, i + 1)
    return values, weights
