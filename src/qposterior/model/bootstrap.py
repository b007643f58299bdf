"""The bootstrap: what forty lines of data-frame code would do, for comparison. Each draw is a log drawn anew."""

from __future__ import annotations

import numpy as np

from qposterior.model.hierarchy import build_hierarchy
from qposterior.world.arrays import FloatArray, sum_by
from qposterior.world.models import ModelDraws
from qposterior.world.sums import PairSums


def bootstrap_models(sums: PairSums, num: int, rng: np.random.Generator) -> ModelDraws:
    """Return the models of `num` logs whose readings are drawn with replacement from those of each pair.

    Successors are drawn from their frequencies. Of rewards only sums are kept: the mean of a resampled pair is that of
    its successors' mean rewards, plus a normal variate for what they leave unexplained. A pair that was never tried is
    taken for the average of its state, which no resampling changes.
    """
    space = sums.space
    hierarchy = build_hierarchy(sums, np.zeros(space.num_states))
    plain = hierarchy.estimate()
    rows: FloatArray = np.repeat(plain.rows.astype(np.float32), num, axis=0)
    rewards = np.repeat(plain.rewards, num, axis=0)
    pair = sums.edge_pair
    known = np.isfinite(sums.edge_reward)
    reward = np.where(known, sums.edge_reward, sums.reward_mean[pair])
    between = sum_by(pair, sums.edge_count * (reward - sums.reward_mean[pair]) ** 2, space.num_pairs)
    unexplained = np.sqrt(np.maximum(sums.reward_deviation - between, 0.0) / np.maximum(sums.count, 1.0))
    place = hierarchy.candidates.places(sums)
    for k in np.flatnonzero(sums.count > 0.0):
        edges = slice(sums.first_edge[k], sums.first_edge[k + 1])
        share = _resampled(sums.edge_count[edges], num, rng) if not sums.rows_known else None
        if share is None:
            share = np.repeat((sums.edge_count[edges] / sums.count[k])[None], num, axis=0)
        rows[:, place[edges]] = share
        noise = unexplained[k] * rng.standard_normal(num) / np.sqrt(max(sums.count[k], 1.0))
        rewards[:, k] = share @ reward[edges] + noise
    return ModelDraws(
        space=space,
        first_edge=plain.first_edge,
        successor=plain.successor,
        rows=rows,
        rewards=rewards,
    )


def _resampled(count: FloatArray, num: int, rng: np.random.Generator) -> FloatArray:
    """Return ``(num, E)`` frequencies of as many successors as were seen, drawn from those that were seen."""
    total = max(round(float(count.sum())), 1)
    return rng.multinomial(total, count / count.sum(), size=num) / total
