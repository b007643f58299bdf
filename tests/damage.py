"""Files damaged on purpose, and what a loader says of them."""

from __future__ import annotations

import numpy as np

import qposterior as qp


def damaged(data, number, seed=0):
    """Yield copies of some bytes with a flipped, lost or foreign part, spread over the whole."""
    rng = np.random.default_rng(seed)
    for i in range(number):
        copy, at = bytearray(data), int((i + rng.random()) / number * len(data))
        if i % 4 == 3:
            copy = copy[:at]
        elif i % 4 == 2:
            copy[at : at + 16] = rng.bytes(16)
        else:
            copy[at] ^= 1 << int(rng.integers(8))
        yield bytes(copy)


def line_of(load_fn, path):
    """Return what a loader says of a file that it refuses, or None if it takes it."""
    words = None
    try:
        load_fn(path)
    except qp.QPosteriorError as error:
        words = str(error)
    assert words is None or len(words.splitlines()) == 1
    return words
