"""Loops that a Gaussian prior on Q takes for optimal: a trap of discounts below 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.model.prior import typical
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.structure import inescapable_set

FREE_LOOP = 3.0
"""A seen loop whose rewards are within this many (1 − γ)·scale of (1 − γ)·mean is one that a discount favours."""


def free_loop(seen: Experience, prior: Any, *, at_most: float = np.inf) -> IntArray:
    """Return the pairs of seen loops of reward about 0 that a discount below 1 makes look optimal, if any.

    On a closed loop of n steps the density gains 1/(1 − γⁿ) over what leaves it; the rewards that this favours are
    those within a few (1 − γ) · scale of (1 − γ) · mean, here also of size `at_most`: each of a loop, not their mean.
    Where nothing leads out, all policies gain alike.
    """
    space = seen.space
    if space.discount == 1.0 or seen.num_observed == 0:
        return np.empty(0, dtype=np.int64)
    mean, scale = typical(prior, space)
    limit = FREE_LOOP * (1.0 - space.discount) * scale
    is_near = np.abs(seen.reward_mean - (1.0 - space.discount) * mean) <= limit
    full = seen.table().spread(seen.observed_pairs, space.num_pairs)
    small = seen.observed & is_near & (np.abs(seen.reward_mean) <= at_most)
    inside = inescapable_set(space, full, small)
    leads_out = ~seen.observed | (full.expect((~inside).astype(float)) > 0.0)
    has_choice = bool(np.any(leads_out & inside[space.pair_state]))
    return np.flatnonzero(small & ~leads_out & inside[space.pair_state] & has_choice)
