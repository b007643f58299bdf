"""Array types, and the two helpers that every sparse layout needs."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


def sum_by(keys: IntArray, weights: FloatArray, size: int) -> FloatArray:
    """Return ``(size,)`` sums of the weights that share a key."""
    return np.bincount(keys, weights, minlength=size).astype(np.float64, copy=False)


def segment_starts(keys: IntArray, num_segments: int) -> IntArray:
    """Return ``(num_segments + 1,)`` offsets of the runs of equal values in the sorted `keys`."""
    return np.searchsorted(keys, np.arange(num_segments + 1)).astype(np.int64)


def weighted_means(keys: IntArray, weights: FloatArray, values: FloatArray, size: int) -> FloatArray:
    """Return ``(size,)`` weighted means of the values that share a key; 0 where nothing has weight."""
    total = sum_by(keys, weights, size)
    return sum_by(keys, weights * values, size) / np.where(total > 0.0, total, 1.0)
