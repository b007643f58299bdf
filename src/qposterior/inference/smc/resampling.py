"""Resampling: from weighted particles to equally weighted ones, each kept in proportion to its weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qposterior.checks import check_choice
from qposterior.world.arrays import FloatArray, IntArray


def systematic(weights: FloatArray, rng: np.random.Generator, num: int) -> IntArray:
    """Return `num` indices: one uniform, evenly spaced points on the cumulative weights."""
    return _invert(weights, (np.arange(num) + rng.random()) / num)


def stratified(weights: FloatArray, rng: np.random.Generator, num: int) -> IntArray:
    """Return `num` indices: a uniform in each of as many equal strata."""
    return _invert(weights, (np.arange(num) + rng.random(num)) / num)


def multinomial(weights: FloatArray, rng: np.random.Generator, num: int) -> IntArray:
    """Return `num` independent indices."""
    return _invert(weights, np.sort(rng.random(num)))


def residual(weights: FloatArray, rng: np.random.Generator, num: int) -> IntArray:
    """Return ⌊num · w⌋ copies of each index, the rest drawn independently from what is left of the weights."""
    expected = num * weights
    copies = np.floor(expected + 1e-12).astype(np.int64)
    kept = np.repeat(np.arange(weights.size), copies)
    missing = num - kept.size
    if missing == 0:
        return kept
    rest = np.maximum(expected - copies, 0.0)
    return np.concatenate([kept, rng.choice(weights.size, size=missing, p=rest / rest.sum())])


RESAMPLING: dict[str, Callable[[FloatArray, np.random.Generator, int], IntArray]] = {
    "systematic": systematic,
    "stratified": stratified,
    "multinomial": multinomial,
    "residual": residual,
}


def find_resampling(name: str) -> Callable[[FloatArray, np.random.Generator, int], IntArray]:
    """Return the scheme of a name."""
    return RESAMPLING[check_choice("resampling", name, RESAMPLING)]


def _invert(weights: FloatArray, points: FloatArray) -> IntArray:
    cumulative = np.cumsum(weights)
    return np.minimum(np.searchsorted(cumulative / cumulative[-1], points, side="right"), weights.size - 1)
