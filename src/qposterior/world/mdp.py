"""The finite Markov decision process: what is true, whether or not anybody has seen it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from qposterior.checks import (
    check_choice,
    check_count,
    check_floats,
    check_indices,
    check_list,
    check_mask,
    check_numbers,
    check_type,
    shown,
)
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, segment_starts, sum_by
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import find_layers
from qposterior.world.transitions import ROW_SUM_TOLERANCE, TransitionTable, check_rows

if TYPE_CHECKING:
    import numpy.typing as npt

Edge = tuple[int, int, int, float, float]
"""(state, action, next state, probability, reward)."""

REWARD_NOISE = ("gaussian", "bernoulli")


@dataclass(frozen=True, kw_only=True, eq=False)
class FiniteMDP:
    """A finite MDP in the flat layout: K admissible non-goal pairs, sparse rows, mean rewards, reward noise.

    Build one with `from_arrays`, `from_edges` or `from_gymnasium`; each checks what it is given, and so does the
    constructor itself.
    """

    space: StateActionSpace
    transitions: TransitionTable  # K rows
    rewards: FloatArray  # (K,)  mean rewards
    reward_sd: FloatArray  # (K,)  0 = deterministic
    initial: FloatArray  # (S,)  distribution of the first state
    reward_noise: str = "gaussian"  # or "bernoulli": 1 with probability `rewards`, else 0
    name: str = "mdp"
    layout: IntArray | None = None  # (S, 2)  row and column of each state, where the problem is a grid

    def __post_init__(self) -> None:
        check_type("space", self.space, StateActionSpace)
        check_type("name", self.name, str)
        check_choice("reward_noise", self.reward_noise, REWARD_NOISE)
        pairs = (self.space.num_pairs,)
        check_rows(self.transitions, *pairs, self.space.num_states)
        checked: dict[str, Any] = {
            "rewards": check_floats("rewards", self.rewards, pairs, self._reward_interval),
            "reward_sd": check_floats("reward_sd", self.reward_sd, pairs, "[0, inf)"),
            "initial": initial_distribution(self.initial, self.space.is_goal),
        }
        if self.layout is not None:
            checked["layout"] = check_indices("layout", self.layout, shape=(self.space.num_states, 2))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def _reward_interval(self) -> str:
        return "[0, 1]" if self.reward_noise == "bernoulli" else "(-inf, inf)"

    @classmethod
    def from_arrays(
        cls,
        transitions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        goal: Iterable[int] = (),
        *,
        actions: npt.ArrayLike | None = None,
        discount: float = 1.0,
        reward_sd: npt.ArrayLike = 0.0,
        initial: npt.ArrayLike | None = None,
        name: str = "mdp",
    ) -> Self:
        """Build from ``(S, A, S)`` transitions and ``(S, A)`` rewards.

        `goal` lists the goal states, `actions` is an ``(S, A)`` mask of admissible actions (default: all), `reward_sd`
        a number or ``(S, A)``, `initial` an ``(S,)`` distribution (default: uniform over non-goal states). Entries of
        inadmissible pairs are ignored. A goal's rows must lead to itself and pay 0, or be left at zero.
        """
        transitions = check_numbers("transitions", transitions)
        rewards = check_numbers("rewards", rewards)
        if transitions.ndim != 3 or transitions.shape[0] != transitions.shape[2]:
            raise InvalidInputError(f"transitions must have shape (S, A, S), got {transitions.shape}")
        shape = transitions.shape[:2]
        if rewards.shape != shape:
            raise InvalidInputError(f"rewards must have shape {shape} like the transitions, got {rewards.shape}")
        admissible = np.ones(shape, dtype=bool) if actions is None else check_mask("actions", actions, shape)
        is_goal = goal_mask(goal, shape[0])
        _check_goal_rows(transitions, rewards, admissible, is_goal=is_goal)
        # `!= 0` keeps nan and negative entries, so that the validation sees them.
        state, action, successor = np.nonzero((transitions != 0.0) & (admissible & ~is_goal[:, None])[:, :, None])
        return cls.from_columns(
            state,
            action,
            successor,
            transitions[state, action, successor],
            rewards[state, action],
            is_goal=is_goal,
            admissible=admissible,
            discount=discount,
            reward_sd=reward_sd,
            initial=initial,
            name=name,
        )

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[Edge],
        goal: Iterable[int] = (),
        *,
        num_states: int | None = None,
        discount: float = 1.0,
        reward_sd: npt.ArrayLike = 0.0,
        initial: npt.ArrayLike | None = None,
        name: str = "mdp",
    ) -> Self:
        """Build from edges (state, action, next state, probability, reward).

        Edges with the same ends are merged; rewards that depend on the successor are averaged with the row.
        """
        columns = _edge_columns(check_list("edges", edges, "(state, action, next state, probability, reward)"))
        state, action, successor = (
            check_indices(f"edges: {name}", column)
            for name, column in zip(("states", "actions", "next states"), columns, strict=False)
        )
        probability, reward = (
            check_numbers("edges: probabilities", columns[3]),
            check_numbers("edges: rewards", columns[4]),
        )
        goal = [_goal_number(item) for item in check_list("goal", goal, "states")]
        highest = max(int(state.max()), int(successor.max()), *goal, 0)
        num_states = highest + 1 if num_states is None else check_count("num_states", num_states, highest + 1)
        is_goal = goal_mask(goal, num_states)
        acts_at_goal = np.flatnonzero(is_goal[state] & ((successor != state) | (reward != 0)))
        if acts_at_goal.size:
            raise InvalidInputError(_goal_rule(int(state[acts_at_goal[0]])))
        keep = ~is_goal[state]
        state, action, successor = state[keep], action[keep], successor[keep]
        return cls.from_columns(
            state,
            action,
            successor,
            probability[keep],
            reward[keep],
            is_goal=is_goal,
            discount=discount,
            reward_sd=reward_sd,
            initial=initial,
            name=name,
        )

    @classmethod
    def from_gymnasium(
        cls, environment: Any, *, discount: float = 1.0, step_cost: float = 0.0, **options: Any
    ) -> FiniteMDP:
        """Read the table `unwrapped.P` of a Gymnasium environment, given as an id (with its options) or an object.

        Successors that end the episode become goals; duplicate successors are merged; rewards that depend on the
        successor are averaged with the row; `step_cost` is subtracted from every reward.
        """
        from qposterior.world.gymnasium_table import read_gymnasium_table

        return read_gymnasium_table(environment, discount=discount, step_cost=step_cost, **options)

    @classmethod
    def from_columns(
        cls,
        state: IntArray,
        action: IntArray,
        successor: IntArray,
        probability: FloatArray,
        reward: FloatArray,
        *,
        is_goal: BoolArray,
        admissible: BoolArray | None = None,
        discount: float = 1.0,
        reward_sd: npt.ArrayLike = 0.0,
        initial: npt.ArrayLike | None = None,
        **details: Any,
    ) -> Self:
        """Build from edges given as columns, none of them from a goal: the one place where rows are made and checked.

        `admissible` (default: the pairs that have an edge) also tells of pairs without any entry, which is an error.
        """
        is_goal = check_mask("is_goal", is_goal, (-1,))
        num_states = is_goal.size
        state, action = check_indices("states", state), check_indices("actions", action)
        successor = check_indices("successors", successor)
        probability, reward = check_numbers("probabilities", probability), check_numbers("rewards", reward)
        shapes = {column.shape for column in (state, action, successor, probability, reward)}
        if len(shapes) > 1 or state.ndim != 1:
            raise InvalidInputError(f"the columns of edges must be of one length, got {sorted(shapes)}")
        _check_entries(state, action, successor, probability=probability, num_states=num_states)
        if admissible is None:
            admissible = np.zeros((num_states, 1 + int(action.max(initial=0))), dtype=bool)
            admissible[state, action] = True
        space = StateActionSpace.from_mask(admissible, is_goal, discount=discount)
        pair = space.pair_index[state, action]
        rewards = sum_by(pair, probability * reward, space.num_pairs)
        table = _merge_rows(pair, successor, probability, space=space)
        _check_rewards(space, rewards)
        start = initial_distribution(initial, is_goal)
        space = replace(space, layer=find_layers(space, table, start))
        sd = _reward_sd(reward_sd, admissible.shape)[space.pair_state, space.pair_action]
        if not np.all((sd >= 0.0) & np.isfinite(sd)):
            raise InvalidInputError(f"reward_sd must be finite and 0 or more, got {sd[~(sd >= 0.0)][:1]}")
        return cls(space=space, transitions=table, rewards=rewards, reward_sd=sd.copy(), initial=start, **details)

    @property
    def is_deterministic(self) -> bool:
        """Whether neither transitions nor rewards are random."""
        return self.transitions.is_deterministic and not self.reward_sd.any()

    def __repr__(self) -> str:
        return f"FiniteMDP({self.name!r}, {self.space!r})"


def goal_mask(goal: Iterable[int], num_states: int) -> BoolArray:
    """Return the ``(S,)`` mask of the listed goal states."""
    mask = np.zeros(num_states, dtype=bool)
    for state in map(_goal_number, check_list("goal", goal, "states")):
        if not 0 <= state < num_states:
            raise InvalidInputError(f"goal states must lie in 0 … {num_states - 1}, got {state}")
        mask[state] = True
    return mask


def _goal_number(state: Any) -> int:
    return check_count("a goal state", state, 0)


def _edge_columns(edges: list[Any]) -> list[tuple[Any, ...]]:
    """Return the five columns of a list of edges."""
    try:
        columns = list(zip(*edges, strict=True))
    except (TypeError, ValueError):  # not tuples, or not all of one length
        columns = []
    if len(columns) != 5:
        raise InvalidInputError(
            f"edges must list tuples (state, action, next state, probability, reward), at least one, got {shown(edges)}"
        )
    return columns


def _reward_sd(reward_sd: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    sd = check_numbers("reward_sd", reward_sd)
    try:
        return np.broadcast_to(sd, shape)
    except ValueError:
        raise InvalidInputError(f"reward_sd must be a number or of shape {shape}, got {shown(reward_sd)}") from None


def initial_distribution(initial: npt.ArrayLike | None, is_goal: BoolArray) -> FloatArray:
    """Return the validated first-state distribution, by default uniform over the non-goal states."""
    if initial is None:
        return np.where(is_goal, 0.0, 1.0 / max(1, int((~is_goal).sum())))
    start = check_numbers("initial", initial).copy()
    if start.shape != is_goal.shape:
        raise InvalidInputError(f"initial must have shape {is_goal.shape}, got {start.shape}")
    bad = np.flatnonzero(~(start >= 0.0))
    if bad.size:
        raise InvalidInputError(f"initial probability of state {bad[0]} must be 0 or more, got {start[bad[0]]}")
    if abs(start.sum() - 1.0) > ROW_SUM_TOLERANCE:
        raise InvalidInputError(f"initial must sum to 1, got {start.sum():.10g}")
    on_goal = np.flatnonzero(is_goal & (start > 0.0))
    if on_goal.size:
        raise InvalidInputError(f"initial puts {start[on_goal[0]]:g} on state {on_goal[0]}, a goal; start elsewhere")
    return start


def _check_entries(
    state: IntArray, action: IntArray, successor: IntArray, *, probability: FloatArray, num_states: int
) -> None:
    """Raise for a successor that does not exist and for a probability that is negative or not finite."""
    outside = np.flatnonzero((successor < 0) | (successor >= num_states) | (state < 0) | (state >= num_states))
    if outside.size:
        i = outside[0]
        raise InvalidInputError(
            f"edge {state[i]} → {successor[i]} names a state outside 0 … {num_states - 1}; raise `num_states`"
        )
    bad = np.flatnonzero(~((probability >= 0.0) & np.isfinite(probability)))
    if bad.size:
        i = bad[0]
        raise InvalidInputError(
            f"transition probabilities must be finite and 0 or more: state {state[i]}, action {action[i]} "
            f"goes to {successor[i]} with {probability[i]}"
        )


def _merge_rows(
    pair: IntArray, successor: IntArray, probability: FloatArray, *, space: StateActionSpace
) -> TransitionTable:
    """Return the rows with duplicate successors merged and zero entries dropped; raise unless each sums to 1."""
    total = sum_by(pair, probability, space.num_pairs)
    off = np.flatnonzero(~(np.abs(total - 1.0) <= ROW_SUM_TOLERANCE))
    if off.size:
        k = off[0]
        raise InvalidInputError(
            f"the transition row of state {space.pair_state[k]}, action {space.pair_action[k]} sums to "
            f"{total[k]:.10g}; rows must sum to 1 (normalise it, or mark the action inadmissible in `actions`)"
        )
    kept = probability > 0.0
    key, inverse = np.unique(pair[kept] * space.num_states + successor[kept], return_inverse=True)
    return TransitionTable(
        num_states=space.num_states,
        row_start=segment_starts(key // space.num_states, space.num_pairs),
        successor=key % space.num_states,
        probability=sum_by(inverse, probability[kept], key.size),
    )


def _check_rewards(space: StateActionSpace, rewards: FloatArray) -> None:
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        k = bad[0]
        raise InvalidInputError(
            f"the reward of state {space.pair_state[k]}, action {space.pair_action[k]} must be finite, got {rewards[k]}"
        )


def _check_goal_rows(
    transitions: FloatArray, rewards: FloatArray, admissible: BoolArray, *, is_goal: BoolArray
) -> None:
    """Raise for a goal that can be left or that pays; rows left at zero count as not given."""
    for state in np.flatnonzero(is_goal):
        rows = transitions[state, admissible[state]]
        absorbing = (rows[:, state] == 1.0) & (np.delete(rows, state, axis=1) == 0.0).all(axis=1)
        left_out = (rows == 0.0).all(axis=1)
        if not np.all((absorbing | left_out) & (rewards[state, admissible[state]] == 0.0)):
            raise InvalidInputError(_goal_rule(int(state)))


def _goal_rule(state: int) -> str:
    return (
        f"goal state {state} must be absorbing and pay 0; its rows lead elsewhere or its rewards are not 0 "
        "(remove it from `goal`, or move the reward to the actions that reach it)"
    )
