"""Many small decision problems of one shape at once: optimal values, values of policies, improvement of a policy.

A batch of models is dense over its states that are no goals: rows (D, N, A, N) whose missing mass goes to a goal,
mean rewards (D, N, A). With discount 1 the batch is solved a little below it; an answer that needs more than
`LONGEST` steps to a goal then shows that there is no finite one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
BELOW_ONE, LONGEST = 1.0 - 1e-9, 1e6


@dataclass(frozen=True, kw_only=True)
class Models:
    """A batch of models over the states that are no goals."""

    rows: FloatArray  # (D, N, A, N)
    rewards: FloatArray  # (D, N, A)
    discount: float

    @classmethod
    def of(cls, rows: FloatArray, rewards: FloatArray, *, discount: float, is_goal: BoolArray) -> Models:
        """Return the batch of full rows (D, S, A, S) and rewards (D, S, A) without their goals."""
        if is_goal.any():
            live = np.flatnonzero(~is_goal)
            rows, rewards = rows[:, live][:, :, :, live], rewards[:, live]
        return cls(rows=rows, rewards=rewards, discount=discount)

    def part(self, chosen: slice | BoolArray | NDArray[np.int64]) -> Models:
        """Return some of the models."""
        return Models(rows=self.rows[chosen], rewards=self.rewards[chosen], discount=self.discount)

    def mean(self) -> Models:
        """Return the mean model, as a batch of one."""
        rows, rewards = self.rows.mean(axis=0, keepdims=True), self.rewards.mean(axis=0, keepdims=True)
        return Models(rows=rows, rewards=rewards, discount=self.discount)

    @property
    def effective_discount(self) -> float:
        """The discount, kept below 1 so that every linear system has a solution."""
        return min(self.discount, BELOW_ONE)

    @property
    def num(self) -> int:
        """How many models there are."""
        return self.rows.shape[0]


def look_ahead(models: Models, value: FloatArray) -> FloatArray:
    """Return R + γ P V for every pair, (D, N, A)."""
    num, states, actions, _ = models.rows.shape
    flat = models.rows.reshape(num, states * actions, states)
    expected = (flat @ value[:, :, None]).reshape(num, states, actions)
    return models.rewards + models.effective_discount * expected


def follow(models: Models, policy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return I − γ P_π (D, N, N) and R_π (D, N) of a policy (N, A) that all models share."""
    states, chosen = len(policy), policy.argmax(axis=1)
    if (policy.max(axis=1) == 1.0).all():
        rows, rewards = models.rows[:, np.arange(states), chosen], models.rewards[:, np.arange(states), chosen]
    else:
        rows = (policy[:, None, :] @ models.rows)[:, :, 0]
        rewards = np.einsum("sa,dsa->ds", policy, models.rewards)
    return np.eye(states) - models.effective_discount * rows, rewards


def policy_values(models: Models, policy: FloatArray) -> FloatArray:
    """Return V^π (D, N) of a policy (N, A), nan in models in which it never reaches a goal though discount is 1."""
    system, rewards = follow(models, policy)
    return _solve(system, rewards, models.discount)[0]


def _solve(system: FloatArray, rewards: FloatArray, discount: float) -> tuple[FloatArray, BoolArray]:
    if discount < 1.0:
        return np.linalg.solve(system, rewards[:, :, None])[:, :, 0], np.ones(len(system), dtype=bool)
    both = np.linalg.solve(system, np.stack([rewards, np.ones_like(rewards)], axis=2))
    is_finite = both[:, :, 1].max(axis=1) < LONGEST
    return np.where(is_finite[:, None], both[:, :, 0], np.nan), is_finite


def optimal_values(models: Models, *, patience: int = 100) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return Q* (D, N, A), V* (D, N) and which models have a finite solution, by policy iteration over all at once.

    It starts from the uniform policy, which reaches a goal wherever one can be reached; a policy that improves on a
    proper one is proper too, unless a loop pays, which `_solve` sees.
    """
    num, states, actions, _ = models.rows.shape
    value, is_finite = _solve(*follow(models, np.full((states, actions), 1.0 / actions)), models.discount)
    policy = np.full((num, states), -1)
    open_models, place = np.flatnonzero(is_finite), np.arange(states)
    for _ in range(patience):
        part = models if open_models.size == num else models.part(open_models)
        q = look_ahead(part, value[open_models])
        best, old = q.argmax(axis=2), policy[open_models]
        # A change must raise the value by more than rounding, or ties would take turns for ever.
        kept = np.take_along_axis(q, np.maximum(old, 0)[:, :, None], axis=2)[:, :, 0]
        stays = (old >= 0) & (q.max(axis=2) <= kept + 1e-10 * (1.0 + np.abs(kept)))
        best = np.where(stays, old, best)
        moved = (best != old).any(axis=1)
        if not moved.any():
            break
        part, open_models, best = part.part(moved), open_models[moved], best[moved]
        policy[open_models] = best
        each = np.arange(open_models.size)[:, None]
        system = np.eye(states) - models.effective_discount * part.rows[each, place, best]
        value[open_models], fine = _solve(system, part.rewards[each, place, best], models.discount)
        is_finite[open_models] = fine
        open_models = open_models[fine]
    q = look_ahead(models, value)
    return q, q.max(axis=2), is_finite


def improve(
    models: Models, policy: FloatArray, start: FloatArray, *, rounds: int = 200, barred: FloatArray | float = 0.0
) -> FloatArray:
    r"""Change a policy (N, A) in single states as long as that raises its mean value at `start` over the models.

    With M = (I − γP_π)⁻¹ the change to action a in state s alone raises the value at the start, exactly, by

    .. math:: (\mu M)_s \, \frac{Q^\pi(s,a) - V^\pi(s)}{M_{ss} - \gamma P_{sa} M_{\cdot s}}.

    Each round tries the best change of every state together; if the best single change is worth more, that is made.
    `barred` is −inf for actions that may not be taken, 0 for others.
    """
    tolerance = 1e-9 * (1.0 + np.abs(models.rewards).max())
    value, gains = single_changes(models, policy, start)
    for _ in range(rounds):
        gains = gains + barred
        best = gains.max(axis=1)
        if best.max() <= tolerance:
            break
        pending = policy.copy()
        rising = best > tolerance
        pending[rising] = np.eye(policy.shape[1])[gains.argmax(axis=1)[rising]]
        single = int(best.argmax())
        new_value, new_gains = single_changes(models, pending, start)
        if new_value < value + best[single]:
            pending = policy.copy()
            pending[single] = np.eye(policy.shape[1])[gains[single].argmax()]
            new_value, new_gains = single_changes(models, pending, start)
        policy, value, gains = pending, new_value, new_gains
    return policy


def single_changes(models: Models, policy: FloatArray, start: FloatArray) -> tuple[float, FloatArray]:
    """Return the mean value of a policy at the start and what each single-state change (N, A) adds to it."""
    system, rewards = follow(models, policy)
    inverse = np.linalg.inv(system)
    value = (inverse @ rewards[:, :, None])[:, :, 0]
    columns = np.stack([np.broadcast_to(value[:, None], inverse.shape), inverse.transpose(0, 2, 1)], axis=3)
    ahead = models.effective_discount * (models.rows @ columns)
    advantage = models.rewards + ahead[..., 0] - value[:, :, None]
    own = np.einsum("dss->ds", inverse)
    visits = np.einsum("s,dst->dt", start, inverse)
    # At discount 1 a change that never leaves its state has no value: its share of leaving is 0, or rounding.
    leaving = own[:, :, None] - ahead[..., 1]
    ends = leaving > 1e-9 * own[:, :, None]
    gains = np.where(ends, visits[:, :, None] * advantage / np.where(ends, leaving, 1.0), -np.inf)
    return float(np.mean(value @ start)), gains.mean(axis=0)
