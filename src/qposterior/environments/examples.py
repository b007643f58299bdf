"""The two worked examples of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from qposterior.checks import check_numbers, shown
from qposterior.errors import InvalidInputError
from qposterior.world.mdp import FiniteMDP


def two_state(rewards: Sequence[float] = (-1.0, -1.0), discount: float = 1.0) -> FiniteMDP:
    """Return the paper's example 2dmdp: action 0 of state 0 stays there, action 1 leads to the goal, state 1."""
    stay, leave = _unpack(rewards, 2)
    edges = [(0, 0, 0, 1.0, stay), (0, 1, 1, 1.0, leave)]
    return FiniteMDP.from_edges(edges, goal=[1], discount=discount, name="two-state")


def five_state(rewards: Sequence[float] = (1.0, 0.0, 0.0, 2.0)) -> FiniteMDP:
    """Return the paper's example of lemma 5dmdp: a choice in state 0, then one forced step to goal 3 or 4.

    `rewards` are the paper's r¹ … r⁴: of (0, action 0), (0, action 1), (1, action 0), (2, action 1).
    """
    r1, r2, r3, r4 = _unpack(rewards, 4)
    edges = [(0, 0, 1, 1.0, r1), (0, 1, 2, 1.0, r2), (1, 0, 3, 1.0, r3), (2, 1, 4, 1.0, r4)]
    return FiniteMDP.from_edges(edges, goal=[3, 4], initial=[1, 0, 0, 0, 0], name="five-state")


def _unpack(rewards: Sequence[float], number: int) -> tuple[float, ...]:
    values = check_numbers("rewards", rewards)
    if values.shape != (number,):
        raise InvalidInputError(f"rewards must have {number} entries, got {shown(rewards)}")
    return tuple(values.tolist())
