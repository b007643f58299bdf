"""Readings of a noisy reward, one by one up to a limit: Student-t and Laplace noise have no sufficient statistics."""

from __future__ import annotations

import numpy as np

from qposterior.world.arrays import FloatArray

MOST_POINTS = 256

Readings = tuple[FloatArray, FloatArray]
"""Sorted values and their weights."""


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
