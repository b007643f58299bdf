"""What is taken for granted of the noise of rewards before the sampler runs: its unit, its shape, which pairs lack it.

docs/explanation/model-prior.md, "What is approximate".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.model.successor_rewards import SuccessorRewards
from qposterior.world.arrays import BoolArray, FloatArray, sum_by, weighted_means
from qposterior.world.sums import PairSums

SKEWED = 0.5
"""Skewness of the noise from which variances are pooled within states, and states are left apart: a sample mean and a
sample variance of skewed readings go together, so that weights by variance would bias the means."""

FIRMNESS = 5.0
"""Standard errors by which the skewness must differ from 0."""

TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNoise:
    """What is taken for granted of the noise of rewards."""

    unit: FloatArray  # (S,)  standard deviation within the pairs of a state
    offset: FloatArray  # (S,)  mean reward
    is_constant: BoolArray  # (K,)
    deviation: FloatArray  # (K,)  Σ (r − mean)², and a reading more where rewards are lumpy
    pooled_variance: float
    centre_spread: float
    is_pooled: bool
    tempering: float


def reward_noise(sums: PairSums, rewards: SuccessorRewards) -> RewardNoise:
    """Return units of the rewards, which pairs have no noise, and how normal it is elsewhere.

    Rewards are lumpy where a pair that is not constant paid the same each time it was tried: they are wins and losses,
    say, of which a few trials are often alike. That says nothing of its noise. Mean and variance go together then, as
    they do where rewards are skewed, and each pair is given one more reading of its state's variance.
    """
    space, count, mean, deviation = sums.space, sums.count, rewards.mean, rewards.deviation
    number = space.num_states
    total = sum_by(space.pair_state, count, number)
    overall = float(np.average(mean, weights=count))
    offset = np.where(total > 0.0, weighted_means(space.pair_state, count, mean, number), overall)
    is_constant = constant_pairs(sums, rewards)
    noisy = np.where(is_constant, 0.0, deviation)
    freedom = np.where(is_constant, 0.0, np.maximum(count - 1.0, 0.0))
    everything = float((count * (mean - overall) ** 2).sum() + deviation.sum()) / max(float(count.sum()), 1.0)
    pooled = float(noisy.sum()) / max(float(freedom.sum()), 1.0) or everything or 1.0
    level = (sum_by(space.pair_state, noisy, number) + 2.0 * pooled) / (sum_by(space.pair_state, freedom, number) + 2.0)
    skewness, kurtosis = (0.0, 3.0) if rewards.is_used else shape_of_noise(sums, offset)
    is_skewed = abs(skewness) > max(SKEWED, FIRMNESS * np.sqrt(6.0 / max(float(count.sum()), 1.0)))
    is_alike = ~is_constant & (count >= 2.0) & (noisy <= 1e-18 * everything * count)
    is_lumpy = bool(is_alike.any()) and not rewards.is_used
    if is_lumpy:
        noisy = np.where(is_constant, 0.0, noisy + level[space.pair_state])
    spread = float(np.std(offset[total > 0.0])) or np.sqrt(everything or 1.0)
    return RewardNoise(
        unit=np.sqrt(level),
        offset=offset,
        is_constant=is_constant,
        deviation=noisy,
        pooled_variance=pooled,
        centre_spread=max(spread, 1e-6 * np.sqrt(everything)),
        is_pooled=bool(is_skewed) or is_lumpy,
        tempering=min(1.0, 2.0 / max(kurtosis - 1.0, TINY)),
    )


def constant_pairs(sums: PairSums, rewards: SuccessorRewards) -> BoolArray:
    """Return which pairs pay the same every time: a class of their own, without noise.

    A pair that paid the same each time it was tried, unless noisy pairs have that very value for their smallest or
    largest reading: rewards that are mostly 0 look constant in a short log. Where nearly all pairs that were tried
    again are constant, so are those that were tried once.
    """
    mean, deviation = rewards.mean, rewards.deviation
    if sums.rewards_known:
        return np.asarray(sums.count > 0.0)
    again = sums.count >= 2.0
    size = np.abs(mean[sums.count > 0.0]).max(initial=0.0) + np.sqrt(deviation.max(initial=0.0)) or 1.0
    constant = again & (deviation <= (1e-9 * size) ** 2 * sums.count)
    noisy = again & ~constant
    if rewards.is_used:
        # Effects that were fitted leave nothing over where no successor was met twice: only all pairs or none.
        return np.asarray((sums.count > 0.0) & (bool(again.any()) and constant[again].mean() > 0.9))
    if noisy.any():
        ends = np.concatenate([sums.reward_low[noisy], sums.reward_high[noisy]])
        constant &= ~np.isin(np.round(mean / size, 8), np.round(ends / size, 8))
    if again.any() and constant[again].mean() > 0.9:
        constant |= (sums.count > 0.0) & ~again
    return np.asarray(constant)


def shape_of_noise(sums: PairSums, offset: FloatArray) -> tuple[float, float]:
    """Return the skewness of readings within pairs, and their kurtosis about the mean of their state.

    About the state's mean because a sample's kurtosis is at most its size: pairs of few readings would hide it.
    """
    if not np.isfinite(sums.reward_fourth).all():
        return 0.0, 3.0
    space, count = sums.space, sums.count
    second, third, fourth = sums.reward_deviation, sums.reward_third, sums.reward_fourth
    total = max(float(count.sum()), 1.0)
    if second.sum() <= 0.0:
        return 0.0, 3.0
    skewness = float(third.sum() / total / (second.sum() / total) ** 1.5)
    gap = np.where(count > 0.0, sums.reward_mean - offset[space.pair_state], 0.0)
    about = fourth + 4.0 * gap * third + 6.0 * gap**2 * second + count * gap**4
    variance = sum_by(space.pair_state, second + count * gap**2, space.num_states)
    readings = np.maximum(sum_by(space.pair_state, count, space.num_states), 1.0)
    return skewness, float(about.sum() / np.sum(variance**2 / readings))
