"""What a part of one's own says, checked before it is believed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray

ABSURD = 1e12
"""Values beyond this, which a trajectory that diverges may reach, have density 0 by themselves."""


def checked_density(
    name: str, values: FloatArray, density_fn: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
) -> tuple[FloatArray, FloatArray]:
    """Return what a part says of ``(N, M)`` values: ``(N,)`` log-densities and ``(N, M)`` gradients, checked.

    A wrong shape would be broadcast over the particles, and a nan would be refused as a move without a word. A
    trajectory that diverges asks for the density at absurd values; where these overflow the density is 0.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        total, slope = density_fn(values)
    total, slope = np.array(total, dtype=float), np.array(slope, dtype=float)
    if total.shape != values.shape[:1] or slope.shape != values.shape:
        raise InvalidInputError(
            f"{name}.log_density_and_grad must return {values.shape[:1]} log-densities and {values.shape} gradients "
            f"for {values.shape} values, got {total.shape} and {slope.shape}"
        )
    total[~(np.abs(values).max(axis=1, initial=0.0) <= ABSURD)] = -np.inf
    if np.isnan(total).any() or np.any(total == np.inf):
        raise InvalidInputError(f"a log-density of the {name} is nan or inf; return -inf where the density is 0")
    return total, np.where(np.isfinite(total)[:, None], slope, 0.0)
