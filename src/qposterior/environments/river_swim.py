"""River swim (Strehl and Littman 2008): a long swim against the current for the larger reward."""

from __future__ import annotations

from qposterior.checks import check_count, check_number
from qposterior.world.mdp import Edge, FiniteMDP

SMALL_REWARD = 0.005
"""Pay for resting at the left bank; the right bank pays 1."""


def river_swim(length: int = 6, discount: float = 0.95) -> FiniteMDP:
    """Return a chain of `length` states without a goal: action 0 = drift left (certain), action 1 = swim right.

    Swimming advances with probability 0.35, stays with 0.6 and falls back with 0.05 (at the left bank: 0.4 to stay,
    0.6 to advance; at the right bank: 0.6 to stay, 0.4 to fall back). The swimmer starts at the left bank.
    """
    check_count("length", length, 2)
    check_number("discount (the river has no goal)", discount, "(0, 1)")
    last = length - 1
    edges: list[Edge] = [(0, 0, 0, 1.0, SMALL_REWARD), (0, 1, 0, 0.4, 0.0), (0, 1, 1, 0.6, 0.0)]
    for state in range(1, length):
        edges.append((state, 0, state - 1, 1.0, 0.0))
    for state in range(1, last):
        edges += [(state, 1, state - 1, 0.05, 0.0), (state, 1, state, 0.6, 0.0), (state, 1, state + 1, 0.35, 0.0)]
    edges += [(last, 1, last - 1, 0.4, 1.0), (last, 1, last, 0.6, 1.0)]
    initial = [1.0] + [0.0] * last
    return FiniteMDP.from_edges(edges, discount=discount, initial=initial, name="river-swim")
