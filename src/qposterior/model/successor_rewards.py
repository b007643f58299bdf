"""Rewards that depend on where an action leads: whether they do, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc, ndtri

from qposterior.world.arrays import FloatArray, IntArray, sum_by, weighted_means
from qposterior.world.sums import PairSums

LEVEL = 0.01
"""Level of each test by which successors explain rewards."""

LEAST_FREEDOM = 0.25
"""Share of a state's degrees of freedom that fitted effects leave at least."""

TINY = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorRewards:
    """Rewards r(s, a, s') = α_sa + e_ss' where the successor explains them; e is 0 where it does not."""

    effect: FloatArray  # (C,)  e of the candidates
    mean: FloatArray  # (K,)  of the rewards that are left without e
    deviation: FloatArray  # (K,)  squares about that mean
    is_used: bool


def successor_rewards(sums: PairSums, cell: IntArray, size: int) -> SuccessorRewards:
    r"""Return successor effects, and the means and deviations of rewards that are left without them.

    r(s, a, s') = α_sa + e_ss' by least squares, where the successor explains rewards (`successors_explain`). Where
    nothing is known of rewards by successor, or nothing explained, e = 0. `cell` is the candidate, of `size` in all,
    that each edge of the sums leads to. Effects are fitted to the same readings, so that the squares that are left are
    multiplied by the degrees of freedom Σ (n − 1) that their state had over those it has left, one less for each
    candidate but the first, and `LEAST_FREEDOM` of them at least.
    """
    known = (sums.edge_count > 0.0) & np.isfinite(sums.edge_reward)
    if sums.rows_known or not known.all() or not successors_explain(sums):
        nothing = np.zeros(size)
        return SuccessorRewards(effect=nothing, mean=sums.reward_mean, deviation=sums.reward_deviation, is_used=False)
    pair, state, num_states = sums.edge_pair, sums.space.pair_state, sums.space.num_states
    effect, mean = _least_squares(sums, cell, size)
    residual = sums.edge_reward - effect[cell] - mean[pair]
    squares = np.maximum(sums.reward_deviation - _between(sums), 0.0)
    squares += sum_by(pair, sums.edge_count * residual**2, mean.size)
    owner = state[pair][np.unique(cell, return_index=True)[1]]
    used = np.maximum(np.bincount(owner, minlength=num_states) - 1.0, 0.0)
    freedom = sum_by(state, np.maximum(sums.count - 1.0, 0.0), num_states)
    remaining = np.maximum(freedom - used, LEAST_FREEDOM * freedom)
    factor = np.divide(freedom, remaining, out=np.ones(num_states), where=remaining > 0.0)
    return SuccessorRewards(effect=effect, mean=mean, deviation=squares * factor[state], is_used=True)


def successors_explain(sums: PairSums) -> bool:
    r"""Return whether rewards depend on the successor, by a test that holds for noise of any law.

    Let B be the sum of squares of a pair's rewards between its successors. Where these say nothing, each permutation of
    the pair's readings is as likely as any other, which gives mean and variance of B (`permutation_moments`); over all
    pairs Σ w (B − E B) / √(Σ w² var B) is about standard normal. It is tried with w = 1, to which large rewards count
    most, and with w = 1/sd B, to which all pairs count alike. An F test, which needs normal noise and finds effects in
    rare, large rewards where there are none, serves only where no fourth moments are known.
    """
    between = _between(sums)
    if between.sum() <= TINY * sums.reward_deviation.sum():
        return False
    if not np.isfinite(sums.reward_fourth).all():
        return _f_test(sums, between)
    mean, variance = permutation_moments(sums)
    told = variance > TINY * sums.reward_deviation**2
    if not told.any():
        return False
    gap, sd = (between - mean)[told], np.sqrt(variance[told])
    weighted = float(gap.sum() / np.sqrt(np.sum(sd**2)))
    alike = float(np.sum(gap / sd) / np.sqrt(gap.size))
    return max(weighted, alike) > float(ndtri(1.0 - LEVEL))


def permutation_moments(sums: PairSums) -> tuple[FloatArray, FloatArray]:
    r"""Return ``(K,)`` mean and variance of B over all permutations of a pair's rewards among its readings.

    With n readings, n_j of them leading to successor j, and y the rewards less their mean, B = Σ_j S_j² / n_j, S_j the
    sum of y over j. Its moments follow from those of samples without replacement, which are made of D = Σ y² and
    F = Σ y⁴:

    .. math::
        E y_1^4 = F/n, \quad E y_1^3 y_2 = -F/n_{(2)}, \quad E y_1^2 y_2^2 = (D^2 - F)/n_{(2)},

        E y_1^2 y_2 y_3 = (2F - D^2)/n_{(3)}, \quad E y_1 y_2 y_3 y_4 = (3D^2 - 6F)/n_{(4)},

    :math:`n_{(k)} = n (n-1) \cdots (n-k+1)`.
    """
    pair, size, n, total = sums.edge_pair, sums.count.size, sums.edge_count, sums.count
    square, fourth = sums.reward_deviation, sums.reward_fourth
    cells = np.diff(sums.first_edge).astype(np.float64)

    def falling(order: int) -> FloatArray:
        product = np.prod([total - i for i in range(order)], axis=0)
        return np.where(total > order - 0.5, product, np.inf)  # no such readings: their moment is multiplied by 0

    m4, m31, m22 = fourth / falling(1), -fourth / falling(2), (square**2 - fourth) / falling(2)
    m211, m1111 = (2.0 * fourth - square**2) / falling(3), (3.0 * square**2 - 6.0 * fourth) / falling(4)
    # Σ_j E S_j⁴ / n_j², then Σ_{j ≠ k} E S_j² S_k² / (n_j n_k).
    own = m4[pair] + (n - 1.0) * (4.0 * m31 + 3.0 * m22)[pair]
    own = (own + (n - 1.0) * (n - 2.0) * (6.0 * m211[pair] + (n - 3.0) * m1111[pair])) / n
    rest = total - cells
    others = cells * (cells - 1.0) * m22 + 2.0 * (cells - 1.0) * rest * m211
    others += (rest**2 - sum_by(pair, (n - 1.0) ** 2, size)) * m1111
    mean = (cells - 1.0) * square / np.maximum(total - 1.0, 1.0)
    return mean, np.maximum(sum_by(pair, own, size) + others - mean**2, 0.0)


def _f_test(sums: PairSums, between: FloatArray) -> bool:
    """Return whether the mean square between successors is larger than that within them."""
    cells = np.diff(sums.first_edge)
    freedom, rest = np.maximum(cells - 1.0, 0.0).sum(), np.maximum(sums.count - cells, 0.0).sum()
    if freedom == 0.0 or rest <= 0.0:
        return False
    within = max(float(np.maximum(sums.reward_deviation - between, 0.0).sum()), TINY * float(between.sum()))
    return bool(fdtrc(freedom, rest, (between.sum() / freedom) / (within / rest)) <= LEVEL)


def _between(sums: PairSums) -> FloatArray:
    """Return ``(K,)`` B: the squares of the rewards of a pair between its successors."""
    pair = sums.edge_pair
    return sum_by(pair, sums.edge_count * (sums.edge_reward - sums.reward_mean[pair]) ** 2, sums.count.size)


def _least_squares(sums: PairSums, cell: IntArray, size: int) -> tuple[FloatArray, FloatArray]:
    r"""Return e of the cells and α of the pairs that minimise Σ n (r − α_sa − e_ss')² over edges, by backfitting."""
    pair, count, reward = sums.edge_pair, sums.edge_count, sums.edge_reward
    alpha, effect = sums.reward_mean.copy(), np.zeros(size)
    scale = float(np.ptp(reward))
    for _ in range(200):
        effect = weighted_means(cell, count, reward - alpha[pair], size)
        better = weighted_means(pair, count, reward - effect[cell], alpha.size)
        change = float(np.abs(better - alpha).max())
        alpha = better
        if change <= 1e-9 * scale:
            break
    return effect, alpha
