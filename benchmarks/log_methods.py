"""Posteriors of a model from a log, each a function ``(log, num, rng) -> (rows (D, S, A, S), rewards (D, S, A))``.

`METHODS` names them. The point estimate returns a single draw. What is written here is for comparison: these are the
forty lines of pandas that a user would write, and the textbook's conjugate posterior.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Draws = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, kw_only=True)
class Log:
    """What the methods may know: the readings, their sums, the discount and which states are goals."""

    frame: pd.DataFrame  # columns state, action, reward, next_state, terminated, episode
    state: IntArray  # (N,)  the readings, ordered by pair
    action: IntArray  # (N,)
    following: IntArray  # (N,)
    reward: FloatArray  # (N,)
    counts: FloatArray  # (S, A, S)
    reward_sum: FloatArray  # (S, A)
    reward_square_sum: FloatArray  # (S, A)  of deviations from the mean of all rewards, as are the next two
    successor_reward_sum: FloatArray  # (S, A, S)
    successor_square_sum: FloatArray  # (S, A, S)
    policy: FloatArray  # (S, A)  the logged policy: frequencies of actions; uniform in states without readings
    start: FloatArray  # (S,)  how often readings begin in a state
    discount: float
    is_goal: NDArray[np.bool_]  # (S,)

    @property
    def tried(self) -> FloatArray:
        """Readings per pair (S, A)."""
        return self.counts.sum(axis=2)


def read_log(frame: pd.DataFrame, *, discount: float, is_goal: NDArray[np.bool_], num_actions: int) -> Log:
    """Return the sums of a log whose labels are s00, s01, … and a0, a1, …"""
    state = frame["state"].str[1:].astype(int).to_numpy()
    action = frame["action"].str[1:].astype(int).to_numpy()
    order = np.lexsort((action, state))
    state, action = state[order], action[order]
    following = frame["next_state"].str[1:].astype(int).to_numpy()[order]
    reward = frame["reward"].to_numpy(dtype=float)[order]
    shape = (is_goal.size, num_actions, is_goal.size)

    def total(weights: FloatArray) -> FloatArray:
        return _bincount((state, action, following), shape, weights)

    deviation = reward - reward.mean()
    counts, sums, squares = total(np.ones(state.size)), total(deviation), total(deviation**2)
    tried = counts.sum(axis=2)
    visits = tried.sum(axis=1, keepdims=True)
    policy = np.divide(tried, visits, out=np.full(tried.shape, 1.0 / num_actions), where=visits > 0)
    return Log(
        frame=frame,
        state=state,
        action=action,
        following=following,
        reward=reward,
        counts=counts,
        reward_sum=sums.sum(axis=2) + reward.mean() * tried,
        reward_square_sum=squares.sum(axis=2),
        successor_reward_sum=sums,
        successor_square_sum=squares,
        policy=policy,
        start=visits[:, 0] / visits.sum(),
        discount=discount,
        is_goal=is_goal,
    )


def _bincount(indices: tuple[IntArray, ...], shape: tuple[int, ...], weights: FloatArray | None = None) -> FloatArray:
    flat = np.ravel_multi_index(indices, shape)
    return np.bincount(flat, weights, minlength=int(np.prod(shape))).reshape(shape).astype(float)


def point_estimate(log: Log, num: int, rng: np.random.Generator) -> Draws:
    """Frequencies and means; a pair that was never tried is taken for the average of its state."""
    return _estimate(log.counts[None], log.reward_sum[None])


def _estimate(counts: FloatArray, reward_sum: FloatArray) -> Draws:
    """Return frequencies and means of (D, S, A, S) counts and (D, S, A) sums, filled from the state where untried."""
    tried = counts.sum(axis=3)
    pooled = np.maximum(tried.sum(axis=2, keepdims=True), 1.0)
    pooled_row, pooled_mean = counts.sum(axis=2, keepdims=True) / pooled[..., None], reward_sum.sum(2, keepdims=True)
    safe, is_tried = np.maximum(tried, 1.0), tried > 0
    rows = np.where(is_tried[..., None], counts / safe[..., None], pooled_row)
    return rows, np.where(is_tried, reward_sum / safe, pooled_mean / pooled)


def bootstrap(log: Log, num: int, rng: np.random.Generator) -> Draws:
    """The readings of every pair are drawn anew with replacement, and the frequencies and means taken of those."""
    num_states, num_actions, _ = log.counts.shape
    counts, sums = np.zeros((num, *log.counts.shape)), np.zeros((num, num_states, num_actions))
    pair = log.state * num_actions + log.action
    first = np.searchsorted(pair, np.arange(num_states * num_actions + 1))
    draw = np.arange(num)[:, None] * num_states
    for k in np.unique(pair):
        following, reward = log.following[first[k] : first[k + 1]], log.reward[first[k] : first[k + 1]]
        chosen = rng.integers(0, reward.size, (num, reward.size))
        place = np.bincount((draw + following[chosen]).ravel(), minlength=num * num_states)
        counts[:, k // num_actions, k % num_actions] = place.reshape(num, num_states)
        sums[:, k // num_actions, k % num_actions] = reward[chosen].sum(axis=1)
    return _estimate(counts, sums)


def plain_conjugate(log: Log, num: int, rng: np.random.Generator) -> Draws:
    r"""Independent pairs: Dirichlet rows and normal rewards with vague priors.

    P_sa ~ Dirichlet(1/K on each of the K successors seen from s). The noise variance of a pair has one prior degree of
    freedom at the pooled variance v within pairs, v_sa ~ (v + SS_sa) / χ²(n_sa), with one for n_sa = 0; its mean is
    N(m, w) a priori, m and w the mean and the variance of all rewards.
    """
    return dirichlet_rows(log, num, rng), _vague_rewards(log, num, rng)


def dirichlet_rows(log: Log, num: int, rng: np.random.Generator) -> FloatArray:
    """Draw P_sa ~ Dirichlet(n_sas' + 1/K) over the K successors seen from s, all states where none was."""
    seen = log.counts.sum(axis=1) > 0
    seen[~seen.any(axis=1)] = True
    shape = log.counts + (seen / seen.sum(axis=1, keepdims=True))[:, None, :]
    gamma = rng.standard_gamma(np.broadcast_to(shape, (num, *shape.shape)))
    return gamma / np.maximum(gamma.sum(axis=3, keepdims=True), 1e-300)


def _vague_rewards(log: Log, num: int, rng: np.random.Generator) -> FloatArray:
    tried, centre, spread = log.tried, log.reward.mean(), max(float(log.reward.var()), 1e-300)
    mean = np.divide(log.reward_sum, tried, out=np.full(tried.shape, centre), where=tried > 0)
    squares = np.maximum(log.reward_square_sum - tried * (mean - centre) ** 2, 0.0)
    within = squares.sum() / max(float(tried.sum() - (tried > 0).sum()), 1.0)
    chi = rng.chisquare(np.maximum(tried, 1.0), (num, *tried.shape))
    variance = np.maximum((within + squares) / chi, 1e-12 * spread)
    precision = tried / variance + 1.0 / spread
    location = (tried * mean / variance + centre / spread) / precision
    return location + rng.normal(0.0, 1.0, chi.shape) / np.sqrt(precision)


def prior_on_q(log: Log, num: int, rng: np.random.Generator) -> FloatArray:
    """Return draws of Q* (D, S, A) by `qposterior.fit` with a prior on Q; nan for pairs that were never tried."""
    import qposterior as qp  # here, because the other methods do without it

    seed = int(rng.integers(2**31))
    fitted = qp.fit(log.frame, discount=log.discount, method="q", particles=max(num, 100), seed=seed)
    space, labels = fitted.posterior.space, fitted.chosen
    state = np.array([int(label[1:]) for label in labels.states])[space.pair_state]
    action = np.array([int(label[1:]) for label in labels.actions])[space.pair_action]
    q = np.full((len(fitted.posterior.draws), *log.policy.shape), np.nan)
    q[:, state, action] = fitted.posterior.draws
    return q


@dataclass(frozen=True, kw_only=True)
class Method:
    """A posterior and the settings that decide its answer, as a text whose digest goes into the store.

    `draw_fn` returns draws of models; `draw_q_fn`, for a method that has no models, draws of Q* alone.
    """

    draw_fn: Callable[[Log, int, np.random.Generator], Draws] | None = None
    draw_q_fn: Callable[[Log, int, np.random.Generator], FloatArray] | None = None
    settings: str = ""
    most_logs: int | None = None  # of a cell; None: all that are asked for

    @property
    def digest(self) -> str:
        """Eight hex digits of the settings."""
        return hashlib.sha256(self.settings.encode()).hexdigest()[:8]


def model_posterior(log: Log, num: int, rng: np.random.Generator) -> Draws:
    """The hierarchical posterior of the model, the default of `fit`."""
    from qposterior.logs.choices import choose
    from qposterior.logs.read import read_log
    from qposterior.logs.settings import FitSettings
    from qposterior.model.model_prior import ModelPrior
    from qposterior.model.solve_models import solve_ending

    chosen = choose(read_log(log.frame), FitSettings(discount=log.discount))
    models = ModelPrior().draw_from(chosen.seen.sums(), num, rng)
    space = chosen.seen.space
    if space.discount == 1.0:  # what `fit` leaves out
        models = models.part(np.flatnonzero(solve_ending(models).solved))
    num = models.num_draws
    num_states, num_actions, _ = log.counts.shape
    state = np.array([int(label[1:]) for label in chosen.states])
    action = np.array([int(label[1:]) for label in chosen.actions])
    rows, rewards = np.zeros((num, num_states, num_actions, num_states)), np.zeros((num, num_states, num_actions))
    pair = np.repeat(np.arange(space.num_pairs), np.diff(models.first_edge))
    place = state[space.pair_state], action[space.pair_action]
    rows[:, place[0][pair], place[1][pair], state[models.successor]] = models.rows
    rewards[:, place[0], place[1]] = models.rewards
    rows /= np.maximum(rows.sum(axis=3, keepdims=True), 1e-300)  # they are of single precision
    return rows, rewards


METHODS: dict[str, Method] = {
    "point": Method(draw_fn=point_estimate),
    "bootstrap": Method(draw_fn=bootstrap),
    "plain": Method(draw_fn=plain_conjugate),
    "model": Method(draw_fn=model_posterior, settings="3"),
    "q prior": Method(draw_q_fn=prior_on_q, most_logs=5),
}
