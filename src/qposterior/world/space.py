"""What an agent knows before it acts: states, admissible actions, goals, discount. Never transitions or rewards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.checks import (
    check_count,
    check_indices,
    check_mask,
    check_number,
    check_numbers,
    check_one_length,
    shown,
    whole,
)
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.arrays import BoolArray, FloatArray, IntArray, segment_starts

if TYPE_CHECKING:
    import numpy.typing as npt

TIE = 1e-10
"""Actions whose values differ by less than this share of the larger one tie (paper, app. psrl_mab)."""

TIE_RULES = ("uniform", "lowest")


@dataclass(frozen=True, kw_only=True, eq=False)
class StateActionSpace:
    """States, admissible actions, goals and the discount, with a flat index over the K admissible non-goal pairs.

    The flat index is the paper's ν (def. tabular): pairs are ordered by state, then by action, and every inner loop
    runs over it. Goal states have no pairs; their value is 0. Build one with `from_mask`; whatever it is built with is
    checked, copied, and cannot be changed afterwards.
    """

    num_states: int
    num_actions: int
    pair_state: IntArray  # (K,)
    pair_action: IntArray  # (K,)
    first_pair: IntArray  # (S + 1,)  the pairs of state s are first_pair[s]:first_pair[s + 1]
    is_goal: BoolArray  # (S,)
    discount: float
    layer: IntArray | None = None  # (S,)  step at which a state can be reached, where there is only one such step

    def __post_init__(self) -> None:
        num_states = check_count("num_states", self.num_states)
        num_actions = check_count("num_actions", self.num_actions)
        checked: dict[str, Any] = {
            "num_states": num_states,
            "num_actions": num_actions,
            "discount": check_number("discount", self.discount, "(0, 1]"),
            "is_goal": check_mask("is_goal", self.is_goal, (num_states,)),
            "pair_state": check_indices("pair_state", self.pair_state, num_states, shape=(-1,)),
            "pair_action": check_indices("pair_action", self.pair_action, num_actions, shape=(-1,)),
            "first_pair": check_indices("first_pair", self.first_pair, shape=(num_states + 1,)),
        }
        if self.layer is not None:
            checked["layer"] = check_indices("layer", self.layer, shape=(num_states,))
        for name, value in checked.items():
            np.asarray(value).flags.writeable = False
            object.__setattr__(self, name, value)
        check_one_length(pair_state=self.pair_state, pair_action=self.pair_action)
        self._check_index()

    def _check_index(self) -> None:
        """Raise unless the flat index orders the pairs by state, then by action, and the goals alone have none."""
        order = self.pair_state * self.num_actions + self.pair_action
        late = np.flatnonzero(np.diff(order) <= 0)
        if late.size:
            k = late[0] + 1
            raise InvalidInputError(
                f"pair_state and pair_action must list pairs by state, then by action, each once: state "
                f"{self.pair_state[k]}, action {self.pair_action[k]} stands at {k}; sort them, or use from_mask"
            )
        if not np.array_equal(self.first_pair, segment_starts(self.pair_state, self.num_states)):
            raise InvalidInputError(
                f"first_pair must be where the pairs of each state begin in pair_state, and their number at last, got "
                f"{shown(self.first_pair)}; from_mask works it out"
            )
        if self.is_goal.all():
            raise InvalidInputError("every state is a goal in is_goal; at least one must have something to decide")
        wrong = np.flatnonzero((np.diff(self.first_pair) > 0) == self.is_goal)
        if wrong.size:
            raise InvalidInputError(
                f"state {wrong[0]} is a goal by is_goal and has actions in pair_state; leave one of them out"
                if self.is_goal[wrong[0]]
                else f"state {wrong[0]} has no action in pair_state; give it one, or make it a goal in is_goal"
            )

    @classmethod
    def from_mask(
        cls,
        admissible: npt.ArrayLike,
        is_goal: npt.ArrayLike,
        *,
        discount: float = 1.0,
        layer: npt.ArrayLike | None = None,
    ) -> StateActionSpace:
        """Build the space from an ``(S, A)`` mask of admissible actions and an ``(S,)`` mask of goals."""
        goal_states: BoolArray = check_mask("is_goal", is_goal, (-1,))
        allowed: BoolArray = check_mask("admissible", admissible, (goal_states.size, -1)) & ~goal_states[:, None]
        stuck = np.flatnonzero(~allowed.any(axis=1) & ~goal_states)
        if stuck.size:
            raise InvalidInputError(
                f"state {stuck[0]} has no admissible action; allow one in `actions`, or list the state in `goal`"
            )
        pair_state, pair_action = np.nonzero(allowed)
        return cls(
            num_states=allowed.shape[0],
            num_actions=allowed.shape[1],
            pair_state=pair_state,
            pair_action=pair_action,
            first_pair=segment_starts(pair_state, allowed.shape[0]),
            is_goal=goal_states,
            discount=discount,
            layer=layer,  # type: ignore[arg-type]  # any array of whole numbers, as with the constructor
        )

    @property
    def num_pairs(self) -> int:
        """K, the number of admissible non-goal pairs."""
        return int(self.pair_state.size)

    @cached_property
    def pair_index(self) -> IntArray:
        """``(S, A)`` flat index of each pair, −1 where inadmissible or a goal."""
        index = np.full((self.num_states, self.num_actions), -1, dtype=np.int64)
        index[self.pair_state, self.pair_action] = np.arange(self.num_pairs)
        return index

    @property
    def goals(self) -> IntArray:
        """The goal states."""
        return np.flatnonzero(self.is_goal)

    @property
    def deciding_states(self) -> IntArray:
        """The states that have something to decide: all but the goals."""
        return np.flatnonzero(~self.is_goal)

    def check_state(self, state: int, role: str = "state") -> None:
        """Raise unless `state` is one of 0 … S−1."""
        number = whole(state)
        if number is None or not 0 <= number < self.num_states:
            raise InvalidInputError(f"{role} must lie in 0 … {self.num_states - 1}, got {shown(state)}")

    def pair(self, state: int, action: int) -> int:
        """Return the flat index of an admissible pair; raise for any other."""
        self.check_state(state)
        if self.is_goal[state]:
            raise InvalidInputError(f"state {state} is a goal; nothing is decided there")
        number = whole(action)
        known = number is not None and 0 <= number < self.num_actions
        index = int(self.pair_index[state, number]) if known else -1
        if index < 0:
            allowed = self.actions(state).tolist()
            raise InvalidInputError(
                f"action {shown(action)} is not admissible in state {state}; admissible are {allowed}"
            )
        return index

    def pairs(self) -> list[tuple[int, int]]:
        """Return (state, action) of every admissible pair, in the order of the flat index."""
        return list(zip(self.pair_state.tolist(), self.pair_action.tolist(), strict=True))

    def actions(self, state: int) -> IntArray:
        """Return the admissible actions of a state (none for a goal)."""
        self.check_state(state)
        return self.pair_action[self.first_pair[state] : self.first_pair[state + 1]]

    def to_table(self, values: npt.ArrayLike) -> FloatArray:
        """Spread ``(..., K)`` values over ``(..., S, A)``: nan where inadmissible, 0 at goals (Q(goal) = 0)."""
        values = check_numbers("values", values)
        if values.shape[-1:] != (self.num_pairs,):
            raise InvalidInputError(f"values must end in a dimension of {self.num_pairs} pairs, got {values.shape}")
        table = np.full((*values.shape[:-1], self.num_states, self.num_actions), np.nan)
        table[..., self.pair_state, self.pair_action] = values
        table[..., self.is_goal, :] = 0.0
        return table

    def maximum(self, values: FloatArray) -> FloatArray:
        """Return ``(..., S)`` max over the admissible actions of ``(..., K)`` values; goals get 0."""
        best = np.zeros((*values.shape[:-1], self.num_states))
        best[..., self.deciding_states] = np.maximum.reduceat(values, self.first_pair[self.deciding_states], axis=-1)
        return best

    def optimal_share(self, values: FloatArray, ties: str = "uniform") -> FloatArray:
        """Return ``(..., K)`` the share of each pair in being optimal under ``(..., K)`` values; a state's sum to 1.

        Actions tie with the best where they differ from it by less than `TIE` of the larger of the two, whatever the
        unit of rewards. ``"uniform"`` shares a tie evenly, ``"lowest"`` gives it to the lowest action.
        """
        if ties not in TIE_RULES:
            raise unknown_name("tie rule", ties, TIE_RULES)
        first = self.first_pair[self.deciding_states]
        repeat = np.diff(np.append(first, self.num_pairs))

        def of_state(reduced: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.repeat(reduced, repeat, axis=-1)

        best = of_state(np.maximum.reduceat(values, first, axis=-1))
        tied: BoolArray = best - values <= TIE * np.maximum(np.abs(best), np.abs(values))
        if ties == "lowest":
            before: IntArray = np.cumsum(tied, axis=-1) - tied
            return np.asarray(tied & (before == of_state(before[..., first])), dtype=np.float64)
        return np.asarray(tied / of_state(np.add.reduceat(tied.astype(float), first, axis=-1)))

    def greedy(self, values: FloatArray, tolerance: float = 0.0) -> IntArray:
        """Return ``(S,)`` best action of ``(K,)`` values: the lowest within `tolerance` of the best; −1 at goals."""
        best = self.maximum(values)
        tied = values >= best[self.pair_state] - tolerance
        policy = np.full(self.num_states, -1, dtype=np.int64)
        # Written backwards so that the lowest tied action is written last.
        policy[self.pair_state[tied][::-1]] = self.pair_action[tied][::-1]
        return policy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StateActionSpace):
            return NotImplemented
        return (
            self.num_states == other.num_states
            and self.num_actions == other.num_actions
            and self.discount == other.discount
            and np.array_equal(self.pair_state, other.pair_state)
            and np.array_equal(self.pair_action, other.pair_action)
            and np.array_equal(self.is_goal, other.is_goal)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"StateActionSpace({self.num_states} states, {self.num_pairs} pairs, "
            f"{int(self.is_goal.sum())} goals, discount {self.discount:g})"
        )
