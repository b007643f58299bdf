"""Optimal values, values of a policy and its visits, in every one of many models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from qposterior.checks import check_number, check_numbers, check_type
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.compile import ALL_THREADS, SMALL_WORK, map_in_threads
from qposterior.model.kernels.components import new_sweeps, new_work
from qposterior.model.kernels.models import OPTIMA, VALUES, VISITS, backup_draws, normalise_draws, solve_draws
from qposterior.model.model_order import Order, order_of
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, sum_by
from qposterior.world.mdp import initial_distribution
from qposterior.world.models import ModelDraws
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import state_graph, steps_to

TOLERANCE = 1e-9
"""Of values, relative to their spread in the model (the largest less the smallest)."""

LONG, STEP_PRICE = 10.0, 1e-3
"""Episodes that last so many times as long as in other models; price of a step, as a share of the mean reward."""

Result = TypeVar("Result")
PIECES_A_THREAD = 8
QUICK_SWEEPS = 100

Data = tuple[FloatArray, FloatArray]
"""``(D, E)`` γ P and ``(D, K)`` rewards of some models, in the order in which states are solved."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """Q* of every model; nan in models without a finite solution."""

    q: FloatArray  # (D, K)
    bounds: FloatArray  # (D,)  no V* is off by more than this; nan where there is none

    @property
    def solved(self) -> BoolArray:
        """``(D,)`` which models have a finite solution."""
        return np.isfinite(self.bounds)

    @property
    def num_unsolved(self) -> int:
        """How many have none: at discount 1 a loop pays, or some state has no way to a goal."""
        return int(np.sum(~self.solved))


def solve_models(
    models: ModelDraws, *, draws: Any = None, tolerance: float = TOLERANCE, out: FloatArray | None = None
) -> Solutions:
    """Return Q* of every model (or of the `draws` with these numbers) by policy iteration.

    Each model starts from the optimum of the mean model. Small components of the graph are solved by elimination, up to
    rounding (`model_order`); others until the error of V*, bounded by MacQueen's and Porteus's inequalities, is at most
    `tolerance` times the spread of Q* within the component. At discount 1 that bound holds among policies that do not
    take more steps than the one found. Q* is r + γ P V*, so that actions which agree in r and P tie exactly. `out` is
    an array, possibly memory-mapped and of single precision, that Q* is written to.
    """
    return ModelSolver(models, tolerance).solve(draws, out)


def solve_ending(
    models: ModelDraws,
    *,
    tolerance: float = TOLERANCE,
    out: FloatArray | None = None,
    progress_fn: Callable[[float], None] = lambda share: None,
) -> Solutions:
    r"""Return Q* as `solve_models` does; at discount 1 also without those models in which hardly any episode ends.

    A loop that pays and is left with a probability of 10⁻⁶ has a finite value, which says nothing of the problem. The
    steps that the best decisions of a model take are (V*(r) − V*(r − ε)) / ε, up to those that a price of ε a step
    changes; a model in which they are `LONG` times as many as in the median model counts as one without a solution.
    """
    solutions = ModelSolver(models, tolerance).solve(out=out, progress_fn=progress_fn)
    if models.space.discount < 1.0 or not solutions.solved.any():
        return solutions
    price = STEP_PRICE * (float(np.abs(models.rewards).mean()) or 1.0)
    priced = ModelSolver(replace(models, rewards=models.rewards - price), tolerance).solve()
    value, lower = models.space.maximum(solutions.q), models.space.maximum(priced.q)
    steps = ((value - lower) / price).max(axis=1)
    with np.errstate(invalid="ignore"):  # no solution: nan
        lasting = steps > LONG * np.nanmedian(steps)
    return Solutions(
        q=np.where(lasting[:, None], np.nan, solutions.q), bounds=np.where(lasting, np.nan, solutions.bounds)
    )


def policy_values(
    models: ModelDraws, policy: FloatArray, *, draws: Any = None, tolerance: float = TOLERANCE
) -> FloatArray:
    r"""Return ``(D, S)`` V^π = (I − γ P_π)⁻¹ r_π of a policy, given as ``(K,)`` probabilities, in every model.

    Exact up to rounding in components that are solved by elimination; elsewhere off by at most `tolerance` times the
    spread of V^π. nan where the policy, at discount 1, does not reach a goal with probability 1.
    """
    return ModelSolver(models, tolerance).values(policy, draws)


class ModelSolver:
    """The functions of this module for many policies and the same models, whose states are put in order only once.

    `draws` are the numbers of some models, or a mask of all, and default to all.
    """

    def __init__(self, models: ModelDraws, tolerance: float = TOLERANCE) -> None:
        check_type("models", models, ModelDraws)
        self.models = models
        self.tolerance = check_number("tolerance", tolerance, "(0, 1)")

    @cached_property
    def order(self) -> Order:
        """The order in which states are solved."""
        return order_of(self.models)

    def solve(
        self,
        draws: Any = None,
        out: FloatArray | None = None,
        progress_fn: Callable[[float], None] = lambda share: None,
    ) -> Solutions:
        """Return Q* of the models; see `solve_models`. `progress_fn` gets the share of them that is solved."""
        chosen = self.numbers(draws)
        shape = (chosen.size, self.models.space.num_pairs)
        q = np.empty(shape) if out is None else out
        if q.shape != shape:
            raise InvalidInputError(f"out must have shape {shape}, got {q.shape}")
        bounds = np.empty(chosen.size)
        done = 0
        for block in self.solve_blocks(chosen):
            part = slice(done, done + block.bounds.size)
            q[part], bounds[part] = block.q, block.bounds
            done = part.stop
            progress_fn(done / chosen.size)
        return Solutions(q=q, bounds=bounds)

    def solve_blocks(self, draws: Any = None) -> Iterator[Solutions]:
        """Yield the same block by block, for summaries of more models than memory holds."""
        chosen = self.numbers(draws)
        policy, value = self._start(chosen)
        for block in self.models.blocks(chosen):
            yield self._optima(self.models, block, policy, value)

    def values(self, policy: FloatArray, draws: Any = None) -> FloatArray:
        """Return ``(D, S)`` V^π; see `policy_values`."""
        chosen = self.numbers(draws)
        values = np.empty((chosen.size, self.models.space.num_states))
        done = 0
        for block in self.value_blocks(policy, chosen):
            values[done : done + len(block)] = block
            done += len(block)
        return values

    def value_blocks(self, policy: FloatArray, draws: Any = None) -> Iterator[FloatArray]:
        """Yield the same block by block."""
        order, probabilities = self.order, check_policy(self.models.space, policy)[self.order.pairs]
        guess = np.zeros(order.states.size)
        for number, block in enumerate(self.models.blocks(self.numbers(draws))):
            found = self._run(VALUES, block, probabilities, guess)
            if number == 0:  # the mean of the first block is a good start for those that follow
                guess = np.nan_to_num(found.mean(axis=0))
            yield _put_back(found, order.states)

    def visits(self, policy: FloatArray, start: FloatArray, draws: Any = None) -> FloatArray:
        r"""Return ``(D, S)`` discounted visits x = (I − γ P_πᵀ)⁻¹ start of a policy in every model; 0 at goals.

        The errors of a model's visits add up to at most `tolerance` times their sum. nan where the policy, at discount
        1, does not leave a set of states that it reaches.
        """
        order, space = self.order, self.models.space
        probabilities = check_policy(space, policy)[order.pairs]
        begin = initial_distribution(start, space.is_goal)[order.states]
        blocks = self.models.blocks(self.numbers(draws))
        found = [self._run(VISITS, block, probabilities, begin) for block in blocks]
        return _put_back(np.concatenate(found), order.states)

    def action_value_blocks(self, policy: FloatArray, draws: Any = None) -> Iterator[FloatArray]:
        """Yield ``(D, K)`` Q^π = r + γ P V^π of the models, block by block."""
        order, chosen = self.order, self.numbers(draws)
        probabilities, guess = check_policy(self.models.space, policy)[order.pairs], np.zeros(order.states.size)

        def backups(draws: IntArray) -> FloatArray:
            data = self._data(self.models, draws)
            return self._backup(data, self._solve(VALUES, data, probabilities, guess)[0])

        for block in self.models.blocks(chosen):
            yield _put_back(np.concatenate(self._in_pieces(backups, block)), order.pairs)

    def slopes(self, policy: FloatArray, start: FloatArray, weights: FloatArray, draws: Any = None) -> FloatArray:
        r"""Return ``(K,)`` the slope of Σ_d w_d V_d^π(start) in the direction of each pair's action.

        .. math:: \sum_d w_d \, x_d(s) \, (Q_d^π(s, a) − V_d^π(s))

        with x_d the visits of draw d: what the sum of values gains, to first order, per probability that is moved from
        the policy to action a in state s (the policy gradient theorem). Models in which the policy has no value or
        whose weight is 0 are left out.
        """
        order, space = self.order, self.models.space
        probabilities = check_policy(space, policy)[order.pairs]
        begin = initial_distribution(start, space.is_goal)[order.states]
        state = np.repeat(np.arange(order.states.size), np.diff(order.shape.first_pair))
        total, chosen, guess = np.zeros(order.pairs.size), self.numbers(draws), np.zeros(order.states.size)
        weight = dict(zip(chosen.tolist(), weights.tolist(), strict=True))

        def slopes(draws: IntArray) -> FloatArray:
            data = self._data(self.models, draws)
            values = self._solve(VALUES, data, probabilities, guess)[0]
            visits = self._solve(VISITS, data, probabilities, begin)[0]
            return np.asarray(visits[:, state] * (self._backup(data, values) - values[:, state]))

        for block in self.models.blocks(chosen[weights != 0.0]):
            slope = np.concatenate(self._in_pieces(slopes, block))
            for d, number in enumerate(block.tolist()):
                total += weight[number] * np.nan_to_num(slope[d])
        found = np.empty_like(total)
        found[order.pairs] = total
        return found

    def numbers(self, draws: Any = None) -> IntArray:
        """Return the numbers of some draws, given by them or as a mask, or of all."""
        most = self.models.num_draws
        if draws is None:
            return np.arange(most)
        chosen = np.asarray(draws)
        if chosen.dtype == np.bool_ and chosen.shape == (most,):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not chosen.size:
            raise InvalidInputError(f"draws must be a list of numbers or a mask of {most} draws, at least one of them")
        if chosen.min() < 0 or chosen.max() >= most:
            raise InvalidInputError(f"draws must lie in 0 … {most - 1}, got {chosen.min()} to {chosen.max()}")
        return chosen.astype(np.int64)

    def _start(self, chosen: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the optimal policy and V* of the mean model, in the order in which states are solved.

        Where that model has no solution: a policy that leads to a goal, and 0.
        """
        space, order, mean = self.models.space, self.order, self.models.mean(chosen)
        policy, value = _quick_policy(mean), np.zeros(space.num_states)
        solution = self._optima(mean, np.zeros(1, dtype=np.int64), policy[order.pairs], value)
        if solution.num_unsolved == 0:
            policy, value = space.optimal_share(solution.q[0], "lowest"), space.maximum(solution.q[0])
        return policy[order.pairs], value[order.states]

    def _optima(self, models: ModelDraws, block: IntArray, policy: FloatArray, value: FloatArray) -> Solutions:
        pieces = self._in_pieces(lambda draws: self._solve(OPTIMA, self._data(models, draws), policy, value), block)
        bounds = np.concatenate([bounds for _, bounds in pieces])
        q = _put_back(np.concatenate([q for q, _ in pieces]), self.order.pairs)
        return Solutions(q=q, bounds=np.where(bounds >= 0.0, bounds, np.nan))

    def _run(self, task: int, block: IntArray, policy: FloatArray, start: FloatArray) -> FloatArray:
        """Return ``(D, S)`` values or visits of a block, in the order in which states are solved."""
        pieces = self._in_pieces(
            lambda draws: self._solve(task, self._data(self.models, draws, policy), policy, start), block
        )
        return np.concatenate([found for found, _ in pieces])

    def _in_pieces(self, function: Callable[[IntArray], Result], block: IntArray) -> list[Result]:
        """Return the results of a function of draws for pieces of a block, run by all threads where they are large."""
        worthwhile = 4 * block.size * self.models.num_edges // SMALL_WORK
        number = min(block.size, PIECES_A_THREAD * ALL_THREADS, max(worthwhile, 1))
        return map_in_threads(function, np.array_split(block, number))

    def _solve(self, task: int, data: Data, policy: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what `solve_draws` writes."""
        order, num_draws = self.order, len(data[0])
        out = np.empty((num_draws, order.pairs.size if task == OPTIMA else order.states.size))
        room, bounds = (new_work(order.shape), new_sweeps(order.shape)), np.empty(num_draws)
        solve_draws(task, order.shape, *data, policy, start, self.tolerance, *room, out, bounds)
        return out, bounds

    def _backup(self, data: Data, values: FloatArray) -> FloatArray:
        """Return ``(D, K)`` r + γ P V of ``(D, S)`` values, in the order in which states are solved."""
        q = np.empty((len(data[0]), self.order.pairs.size))
        backup_draws(self.order.shape, *data, values, q)
        return q

    def _data(self, models: ModelDraws, draws: IntArray, policy: FloatArray | None = None) -> Data:
        """Return γ P, normalised, and rewards of some draws, in double precision and in the order of `order.pairs`.

        Rows of pairs that a `policy` never takes are left empty: to value it they are not needed.
        """
        rows, pairs = np.asarray(models.rows), self.order.pairs  # not those of the draws: that would copy them all
        needed = np.ones(pairs.size, dtype=np.bool_) if policy is None else policy > 0.0
        probability = np.zeros((draws.size, rows.shape[1]))
        wrong = normalise_draws(self.order.shape, rows, draws, models.first_edge[pairs], needed, probability)
        if wrong:
            raise InvalidInputError(
                "each row of a model must have probabilities of 0 or more that sum to 1; "
                f"{wrong} of {draws.size} models have one that does not (normalise the rows)"
            )
        return probability, np.asarray(models.rewards[draws[:, None], pairs], dtype=np.float64)


def check_policy(space: StateActionSpace, policy: Any) -> FloatArray:
    """Return a stochastic policy as ``(K,)`` probabilities, or say what is wrong with it."""
    weights = check_numbers("policy", policy)
    if weights.shape != (space.num_pairs,):
        raise InvalidInputError(f"a policy has a probability for each of {space.num_pairs} pairs, got {weights.shape}")
    total = sum_by(space.pair_state, weights, space.num_states)[space.deciding_states]
    lowest = np.minimum.reduceat(weights, space.first_pair[space.deciding_states])
    wrong = ~((lowest >= 0.0) & (np.abs(total - 1.0) <= 1e-6))
    if wrong.any():
        state = space.deciding_states[np.argmax(wrong)]
        raise InvalidInputError(
            "the probabilities of a state's actions must be 0 or more and sum to 1, "
            f"got {weights[space.first_pair[state] : space.first_pair[state + 1]].tolist()} in state {state}"
        )
    return weights


def logged_policy(space: StateActionSpace, count: FloatArray) -> FloatArray:
    """Return ``(K,)`` frequencies of the actions of each state; where nothing was counted all are equally likely."""
    times = check_numbers("count", count)
    total = sum_by(space.pair_state, times, space.num_states)[space.pair_state]
    number = np.diff(space.first_pair)[space.pair_state]
    return np.where(total > 0.0, times / np.where(total > 0.0, total, 1.0), 1.0 / number)


def _put_back(values: FloatArray, order: IntArray) -> FloatArray:
    """Return ``(D, n)`` values that stand in some order at their own places."""
    found = np.empty_like(values)
    found[:, order] = values
    return found


def _quick_policy(model: ModelDraws) -> FloatArray:
    """Return, at discount 1, a policy of few steps to a goal, by `QUICK_SWEEPS` of value iteration; else first actions.

    Policy iteration from any proper policy is right in theory, but one that walks away from the goal may need more
    steps to reach it than a number can hold.
    """
    space = model.space
    gain = -np.arange(space.num_pairs, dtype=np.float64)
    if space.discount == 1.0:
        table = model.mdp(0).transitions
        steps = steps_to(state_graph(space, table), space.goals)
        steps = np.where(np.isfinite(steps), steps, space.num_states)
        for _ in range(QUICK_SWEEPS):
            gain = -1.0 - table.expect(steps)
            steps = np.maximum(steps, -space.maximum(gain))
    return space.optimal_share(gain, "lowest")
