"""What one more reading is worth: the expected gain in the value of the start, from the draws of the posterior."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qposterior.logs.choices import LogProblem
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, sum_by
from qposterior.world.space import StateActionSpace

MOST_STEPS = 1000
BLOCK = 2_000_000
"""Numbers that are held for some of the states."""

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


def visits(post: Posterior, chosen: LogProblem, weights: FloatArray) -> FloatArray:
    """Return ``(S,)`` the (discounted) expected visits of an episode that takes the actions of largest weight."""
    space, seen = post.space, chosen.seen
    best = space.greedy(weights)
    states = space.deciding_states
    pairs = space.pair_index[states, best[states]]
    table = seen.table().spread(seen.observed_pairs, space.num_pairs).select(pairs)
    reached, total = chosen.start.copy(), np.zeros(space.num_states)
    for _ in range(MOST_STEPS):
        total += reached
        flow = np.asarray(table.matrix.T @ reached[states]) * space.discount
        flow[space.is_goal] = 0.0
        if flow.sum() < 1e-9:
            break
        reached = flow
    return total


def worth_of_readings(post: Posterior, chosen: LogProblem, weights: FloatArray) -> FloatArray:
    r"""Return ``(K,)`` the expected gain in V(start) from one more reading of each pair.

    One more reading of a pair moves what is believed of its value θ_k by a normal amount of variance
    :math:`s_k^4 / (s_k^2 + \sigma^2)`, s_k² its posterior variance and σ² that of a reading, and with it, by
    regression on the draws, the other actions of its state. The gain is E max_a E[Q(a) | reading] − max_a E[Q(a)],
    times the visits to the state under the policy that takes the actions of largest weight.
    """
    space = post.space
    centre, noise = post.pair_mean, _noise_variance(post, chosen)
    visited = visits(post, chosen, weights)
    gain = np.zeros(space.num_pairs)
    for pairs in _by_number_of_actions(space, visited >= 1e-12, post.weights.size):
        deviation = post.draws[:, pairs] - centre[pairs]  # (N, states, actions)
        if post.models is not None:
            deviation = deviation - deviation.mean(axis=2, keepdims=True)
        covariance = np.einsum("n,nsi,nsj->sij", post.weights, deviation, deviation)
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        told = variance > 1e-18
        spread = np.where(told, variance, 1.0)
        moved = np.where(told, spread / np.sqrt(spread + noise[pairs]), 0.0)  # sd of the change of E θ_k
        slopes = moved[..., None] * covariance / spread[..., None]
        after = centre[pairs][:, None, None, :] + NODES[:, None] * slopes[:, :, None, :]
        expected = after.max(axis=3) @ (WEIGHTS / WEIGHTS.sum())
        better = expected - centre[pairs].max(axis=1, keepdims=True)
        gain[pairs] = np.maximum(better, 0.0) * visited[space.pair_state[pairs]]
    return gain


def _by_number_of_actions(space: StateActionSpace, wanted: BoolArray, num_draws: int) -> Iterator[IntArray]:
    """Yield ``(n, A)`` the pairs of some states that have A actions each, two or more, for every such A."""
    number = np.diff(space.first_pair)
    for actions in np.unique(number[number >= 2]).tolist():
        states = np.flatnonzero((number == actions) & wanted)
        pairs = space.first_pair[states][:, None] + np.arange(actions)
        size = max(1, BLOCK // (actions * max(actions * NODES.size, num_draws)))
        yield from (pairs[first : first + size] for first in range(0, len(pairs), size))


def _noise_variance(post: Posterior, chosen: LogProblem) -> FloatArray:
    """Return ``(K,)`` the variance of one reading of a pair's value: reward noise, and the chance of the next state."""
    space, seen = post.space, chosen.seen
    scale: float | FloatArray = 0.0
    if post.models is not None:
        scale = _pooled_variance(chosen)
    elif post.noise_scale is not None:
        scale = float(post.expectation(post.noise_scale**2))
    elif chosen.noise is not None and chosen.noise.scale is not None:
        scale = chosen.noise.scale**2
    value = post.expectation(space.maximum(post.draws))
    value = np.where(space.is_goal, 0.0, value)
    table = seen.table()
    spread = table.expect(value**2) - table.expect(value) ** 2
    noise = np.full(space.num_pairs, scale) if np.ndim(scale) == 0 else np.array(scale)
    observed: IntArray = seen.observed_pairs
    noise[observed] += space.discount**2 * np.maximum(spread, 0.0)
    return noise


def _pooled_variance(chosen: LogProblem) -> FloatArray:
    """Return ``(K,)`` the variance of rewards within the pairs of the same state."""
    seen = chosen.seen
    space = seen.space
    total = sum_by(space.pair_state, seen.reward_deviation, space.num_states)
    freedom = sum_by(space.pair_state, np.maximum(seen.count - 1.0, 0.0), space.num_states)
    overall = float(total.sum()) / max(float(freedom.sum()), 1.0)
    return np.asarray(((total + overall) / (freedom + 1.0))[space.pair_state])
