"""Array types, and the helpers that every sparse layout needs."""

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


def offsets(lengths: IntArray) -> IntArray:
    """Return ``(n + 1,)`` where segments of these lengths begin, one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def segments(first: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray]:
    """Return offsets and numbers of the entries of some segments, which begin at `first`."""
    lengths = first[wanted + 1] - first[wanted]
    start = offsets(lengths)
    return start, np.arange(start[-1]) + np.repeat(first[wanted] - start[:-1], lengths)


def weighted_means(keys: IntArray, weights: FloatArray, values: FloatArray, size: int) -> FloatArray:
    """Return ``(size,)`` weighted means of the values that share a key; 0 where nothing has weight."""
    total = sum_by(keys, weights, size)
    return sum_by(keys, weights * values, size) / np.where(total > 0.0, total, 1.0)
