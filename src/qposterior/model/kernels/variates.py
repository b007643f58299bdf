"""Random variates that NumPy does not have: of unnormalised weights, of tiny gamma shapes, of table counts."""

from __future__ import annotations

import math

import numpy as np

from qposterior.model.kernels.compile import kernel
from qposterior.world.arrays import FloatArray

ONE_BY_ONE = 16
"""Readings up to which table counts are drawn one by one; the rest from their first two moments."""


@kernel
def draw_index(log_weights: FloatArray, rng: np.random.Generator) -> int:
    """Draw an index with probability ∝ exp(log_weights)."""
    return draw_place(np.exp(log_weights - np.max(log_weights)), rng)


@kernel
def draw_place(weights: FloatArray, rng: np.random.Generator) -> int:
    """Draw an index with probability ∝ weights."""
    point = rng.random() * np.sum(weights)
    for i in range(weights.size - 1):
        point -= weights[i]
        if point < 0.0:
            return i
    return weights.size - 1


@kernel
def draw_gamma(shape: float, rng: np.random.Generator) -> float:
    """Draw from Gamma(shape, 1); 0 where it would be below e^−60, as nearly all are where shape is tiny.

    G u^(1/shape), G ~ Gamma(shape + 1, 1) and u uniform, where shape is below 1.
    """
    if shape >= 1.0:
        return rng.standard_gamma(shape)
    power = math.log(1.0 - rng.random()) / shape if shape > 0.0 else -np.inf
    if power < -60.0:
        return 0.0
    return rng.standard_gamma(shape + 1.0) * math.exp(power)


@kernel
def draw_tables(concentration: float, number: float, rng: np.random.Generator) -> float:
    r"""Draw how many tables are occupied by `number` guests of a Chinese restaurant.

    .. math:: T = \sum_{i=0}^{n-1} \mathrm{Bernoulli}\!\left(\frac{c}{c + i}\right),

    independent. Beyond `ONE_BY_ONE` guests the rest of the sum is drawn as a normal variate of its mean and variance
    or, where that is small, as a binomial number of the same mean ("What is approximate"). So the cost does not grow
    with the log. A number that is not whole is rounded, and is 1 at least.
    """
    guests = max(round(number), 1)
    first = min(guests, ONE_BY_ONE)
    tables = 1
    for i in range(1, first):
        tables += rng.random() * (concentration + i) < concentration
    if guests == first:
        return float(tables)
    low, high, rest = concentration + first, concentration + guests, guests - first
    # Differences of digamma and trigamma by their expansions: their arguments are above `ONE_BY_ONE`.
    mean = concentration * (math.log(high / low) - 0.5 / high + 0.5 / low)
    mean = min(max(mean, 0.0), float(rest))
    variance = mean - concentration**2 * (1.0 / low - 1.0 / high + 0.5 / low**2 - 0.5 / high**2)
    if variance > 12.0:
        tail = float(round(mean + math.sqrt(variance) * rng.standard_normal()))
    else:
        tail = float(rng.binomial(rest, mean / rest))
    return float(tables) + min(max(tail, 0.0), float(rest))
