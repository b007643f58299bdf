r"""Models that are drawn to explore by: what was not seen pays well, and a row that is counted has few successors.

A pair whose row is counted has K successors, K ~ w, and its row is Dirichlet(1, …, 1) over K states of which any may be
one. Of n looks that showed k of them, c₁, …, c_k times,

.. math:: p(c \mid K) \propto \frac{K!}{(K - k)!} \frac{\Gamma(K)}{\Gamma(K + n)},

the rest being the same for all K. So n looks at one successor are 2/(n + 1) times as probable with two successors as
with one. The weights w of an action are fitted to all of its pairs, shrunk to those of all actions: where pairs that
were tried again led to the same state each time they are taken to be deterministic after a few of them, and one look
then settles a pair; where they led elsewhere, a pair seen once is open still. What a pair may lead to besides what it
has led to vanishes like 1/n². Under a Dirichlet over all states it would vanish like 1/n, and optimism about states
never met would go on for as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from qposterior.agents.psrl_deterministic import DeterministicPSRLAgent, rows_from_entries
from qposterior.world.arrays import FloatArray, IntArray, sum_by
from qposterior.world.transitions import TransitionTable

LEAST_SIZES = 4
"""The number of successors of a pair is looked for up to twice the largest seen, and up to this at least."""

PRIOR_PAIRS = 1.0
"""What the prior of weights counts for, in pairs: 2^−K for those of all pairs, and these for those of one action."""

FITS = 20
"""Steps of expectation and maximisation by which the weights are fitted."""


class OptimisticModels(DeterministicPSRLAgent):
    """Draws models in which unseen pairs pay N(1, 1) in the unit of rewards, and plans in them.

    Rows that are revealed are as they were seen, and so are rewards; rows that are counted are drawn as above. A step
    of theirs pays what steps to that successor have paid on average; to a state that the pair has not led to, what the
    pair has. Where readings of a step differ, the mean of the pair is drawn from N(mean, s²/n).
    """

    patience = 1.0 - 1e-6  # of two ways that are worth the same, the shorter

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, reward_mean=1.0, reward_scale=1.0, layered=False, **settings)
        self.unit = 1.0

    def draw_model(self) -> tuple[TransitionTable, FloatArray]:
        """Return all rows and ``(K,)`` mean rewards."""
        if self.transitions != "dirichlet":
            return super().draw_model()
        seen, rng, num_states = self.experience, self._rng, self.space.num_states
        pairs, unseen = seen.observed_pairs, np.flatnonzero(~seen.observed)
        first, successor, count, paid = seen.edges()
        kinds = np.diff(first)
        owner = np.repeat(pairs, kinds)
        more = draw_sizes(seen.count[pairs], kinds, self.space.pair_action[pairs], most=num_states, rng=rng) - kinds
        others = self._draw_others(np.repeat(pairs, more), owner * num_states + successor, successor)
        pair = np.concatenate([owner, np.repeat(pairs, more), unseen])
        end = np.concatenate([successor, others, rng.integers(num_states, size=unseen.size)])
        weight = rng.standard_gamma(np.concatenate([1.0 + count, np.ones(others.size + unseen.size)]))
        share = weight / sum_by(pair, weight, self.space.num_pairs)[pair]
        paid = np.where(np.isnan(paid), seen.reward_mean[owner], paid)
        pays = np.concatenate([paid, seen.reward_mean[np.repeat(pairs, more)]])
        rewards = sum_by(pair[: pays.size], share[: pays.size] * pays, self.space.num_pairs)
        within = seen.reward_deviation - sum_by(owner, count * (paid - seen.reward_mean[owner]) ** 2, seen.count.size)
        rewards[pairs] += self._draw_errors(within[pairs], pairs)
        return rows_from_entries(self.space, pair, end, share), np.where(seen.observed, rewards, self._draw_unseen())

    def _draw_others(self, pair: IntArray, shown: IntArray, successor: IntArray) -> IntArray:
        """Return successors of pairs besides those `shown`: the more pairs lead to a state, the likelier it is one."""
        followed = 1.0 + np.bincount(successor, minlength=self.space.num_states)
        share = followed / followed.sum()
        state = self._rng.choice(self.space.num_states, pair.size, p=share)
        while (again := np.isin(pair * self.space.num_states + state, shown)).any():
            state[again] = self._rng.choice(self.space.num_states, int(again.sum()), p=share)
        return state

    def draw_rewards(self) -> FloatArray:
        """Return ``(K,)`` mean rewards: what was seen, and draws where nothing was."""
        return np.where(self.experience.observed, self.experience.reward_mean, self._draw_unseen())

    def _draw_unseen(self) -> FloatArray:
        return self.unit * self._rng.normal(self.reward_mean, self.reward_scale, self.space.num_pairs)

    def _draw_errors(self, deviation: FloatArray, pairs: IntArray) -> FloatArray:
        """Return by how much mean rewards of seen pairs are off: 0 for one that is drawn to pay the same always."""
        count, largest = self.experience.count[pairs], np.abs(self.experience.reward_mean).max(initial=0.0)
        differs = deviation > 1e-9 * count * largest**2
        if not differs.any():
            return np.zeros(pairs.size)
        is_noisy = draw_sizes(count, 1 + differs, self.space.pair_action[pairs], most=2, rng=self._rng) == 2
        common = deviation[differs].sum() / (count[differs] - 1).sum()
        error = np.sqrt(np.maximum(deviation, 0.0) + common) / count
        return np.where(is_noisy, error * self._rng.standard_normal(pairs.size), 0.0)


def draw_sizes(visits: IntArray, kinds: IntArray, action: IntArray, *, most: int, rng: np.random.Generator) -> IntArray:
    """Return how many successors each pair has, at most so many, drawn given its visits and how many it has shown."""
    if visits.size == 0:
        return kinds
    sizes = min(max(LEAST_SIZES, 2 * int(kinds.max())), max(most, int(kinds.max())))
    alike, place, number = np.unique(np.stack([action, visits, kinds]), axis=1, return_inverse=True, return_counts=True)
    likelihood = size_likelihood(alike[1], alike[2], sizes)
    of_all = fit_weights(likelihood, number, 0.5 ** np.arange(1.0, sizes + 1))
    share = np.empty_like(likelihood)
    for one in np.unique(alike[0]):
        own = alike[0] == one
        share[own] = likelihood[own] * fit_weights(likelihood[own], number[own], of_all)
    cumulative = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)[place.ravel()]
    return np.asarray(1 + np.sum(rng.random(visits.size)[:, None] > cumulative[:, :-1], axis=1))


def size_likelihood(visits: IntArray, kinds: IntArray, sizes: int) -> FloatArray:
    """Return ``(pairs, sizes)`` p(c | K) for K = 1, …, `sizes`, relative to the largest of the pair."""
    size, n, k = np.arange(1.0, sizes + 1), visits[:, None].astype(float), kinds[:, None].astype(float)
    fits = size >= k
    log = gammaln(size + 1) - gammaln(np.where(fits, size - k, 0.0) + 1) + gammaln(size) - gammaln(size + n)
    log = np.where(fits, log, -np.inf)
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def fit_weights(likelihood: FloatArray, number: IntArray, prior: FloatArray) -> FloatArray:
    """Return the weights of the numbers of successors, as many as there are columns, that fit all these pairs."""
    prior = PRIOR_PAIRS * prior / prior.sum()
    weight = prior / PRIOR_PAIRS
    for _ in range(FITS):
        share = likelihood * weight
        weight = prior + (number / share.sum(axis=1)) @ share
        weight /= weight.sum()
    return np.asarray(weight)
