"""Resampling: from weighted particles to equally weighted ones, each kept about N times its weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qposterior.errors import unknown_name
from qposterior.world.arrays import FloatArray, IntArray


def systematic(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return N indices: one uniform, N evenly spaced points on the cumulative weights."""
    points = (np.arange(weights.size) + rng.random()) / weights.size
    return _invert(weights, points)


def stratified(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return N indices: a uniform in each of N equal strata."""
    points = (np.arange(weights.size) + rng.random(weights.size)) / weights.size
    return _invert(weights, points)


def multinomial(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return N independent indices."""
    return _invert(weights, np.sort(rng.random(weights.size)))


def residual(weights: FloatArray, rng: np.random.Generator) -> IntArray:
    """Return ⌊N w⌋ copies of each index, the rest drawn independently from what is left of the weights."""
    expected = weights.size * weights
    copies = np.floor(expected + 1e-12).astype(np.int64)
    kept = np.repeat(np.arange(weights.size), copies)
    missing = weights.size - kept.size
    if missing == 0:
        return kept
    rest = np.maximum(expected - copies, 0.0)
    return np.concatenate([kept, rng.choice(weights.size, size=missing, p=rest / rest.sum())])


RESAMPLING: dict[str, Callable[[FloatArray, np.random.Generator], IntArray]] = {
    "systematic": systematic,
    "stratified": stratified,
    "multinomial": multinomial,
    "residual": residual,
}


def find_resampling(name: str) -> Callable[[FloatArray, np.random.Generator], IntArray]:
    """Return the scheme of a name."""
    if name not in RESAMPLING:
        raise unknown_name("resampling", name, RESAMPLING)
    return RESAMPLING[name]


def _invert(weights: FloatArray, points: FloatArray) -> IntArray:
    cumulative = np.cumsum(weights)
    return np.minimum(np.searchsorted(cumulative / cumulative[-1], points, side="right"), weights.size - 1)
