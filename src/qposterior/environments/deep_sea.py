"""Deep Sea (Osband et al. 2019), in the variants that the literature mixes up, and a sea in which one can swim up."""

from __future__ import annotations

import numpy as np

from qposterior.checks import check_choice, check_count
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.mdp import FiniteMDP

VARIANTS = ("paper", "bsuite", "bsuite-stochastic")
MOVE_COST = 0.01
MOST_DEPTH = 1000
"""A sea of this depth takes a gigabyte to explore; the next power of ten would take a hundred."""
BSUITE_MAPPING_SEED = 42
"""The action mapping of the published bsuite sweep."""


def deep_sea(depth: int = 10, variant: str = "paper", mapping_seed: int | None = None) -> FiniteMDP:
    """Return a Deep Sea whose diver starts top left, sinks a row a step, and finds the treasure at the bottom right.

    - ``"paper"``: depth − 1 steps. Action 0 = right, costs 1/(100 depth); action 1 = left, pays as much; the last right
      on the diagonal pays 1 more. The bottom row are the goals. `mapping_seed` draws the meaning of the actions per
      cell; None keeps it fixed.
    - ``"bsuite"``: depth steps, left pays 0, right costs 0.01/depth, the meaning of the actions is drawn per cell
      (`mapping_seed`, default 42). One goal below the last row.
    - ``"bsuite-stochastic"``: the same, but right stays in its column with probability 1/depth, and the rewards of the
      last row's two end columns carry N(0, 1) noise.
    """
    _check_depth(depth)
    check_choice("Deep Sea variant", variant, VARIANTS)
    if mapping_seed is not None:
        check_count("mapping_seed", mapping_seed, 0)
    if variant == "paper":
        return _sea_of_goals(depth, mapping_seed)
    seed = BSUITE_MAPPING_SEED if mapping_seed is None else mapping_seed
    return _bsuite_sea(depth, seed, stochastic=variant == "bsuite-stochastic")


def deep_sea_loops(depth: int = 10) -> FiniteMDP:
    """Return the paper's Deep Sea with a third action: 2 = up, back to the row above, at a cost of 2/(100 depth).

    Improper policies exist (up and down for ever), and every loop loses: a way down pays at most 1/(100 depth).
    In the top row, up stays where it is; on the diagonal it leads to the end of the shorter row above.
    """
    _check_depth(depth)
    return _sea_of_goals(depth, None, has_way_up=True)


def _sea_of_goals(depth: int, mapping_seed: int | None, *, has_way_up: bool = False) -> FiniteMDP:
    """Return a sea whose bottom row are the goals: right, left and perhaps up from every other cell."""
    layout, index = _triangle(depth)
    row, column = layout[: index[depth - 1, 0]].T
    cost = MOVE_COST / depth
    right = np.zeros(row.size, dtype=np.int64)  # which action is right; the other is left
    if mapping_seed is not None:
        right += np.random.default_rng(mapping_seed).random((depth, depth))[row, column] >= 0.5
    above, treasure = np.maximum(row - 1, 0), (row == depth - 2) & (column == depth - 2)
    moves = [  # action, successor and reward in every cell
        (right, index[row + 1, column + 1], treasure - cost),
        (1 - right, index[row + 1, np.maximum(column - 1, 0)], np.full(row.size, cost)),
        (np.full(row.size, 2), index[above, np.minimum(column, above)], np.full(row.size, -2 * cost)),
    ][: 3 if has_way_up else 2]
    action, successor, reward = (np.concatenate(columns) for columns in zip(*moves, strict=True))
    return FiniteMDP.from_columns(
        np.tile(np.arange(row.size), len(moves)),
        action,
        successor,
        np.ones(action.size),
        reward,
        is_goal=layout[:, 0] == depth - 1,
        initial=_top_left(layout.shape[0]),
        name="deep-sea-loops" if has_way_up else "deep-sea",
        layout=layout,
    )


def _bsuite_sea(depth: int, mapping_seed: int, *, stochastic: bool) -> FiniteMDP:
    layout, index = _triangle(depth)
    row, column = layout.T
    num_cells = row.size
    goal = num_cells
    # bsuite draws its mapping from the legacy generator; the same seed must give the same sea.
    mapping = np.random.RandomState(mapping_seed).binomial(1, 0.5, [depth, depth])[row, column]
    state, last = np.arange(num_cells), row == depth - 1
    below = np.where(last, 0, row + 1)
    slip = 1.0 / depth if stochastic else 0.0
    right = np.where(last, goal, index[below, np.minimum(column + 1, below)])
    slipped = np.where(last, goal, index[below, np.minimum(column, below)])
    left = np.where(last, goal, index[below, np.maximum(np.minimum(column, below) - 1, 0)])
    pays = np.where(column == depth - 1, 1.0, 0.0) - MOVE_COST / depth
    noisy = last & ((column == 0) | (column == depth - 1)) & stochastic
    return FiniteMDP.from_columns(
        np.tile(state, 3),
        np.concatenate([mapping, mapping, 1 - mapping]),
        np.concatenate([right, slipped, left]),
        np.concatenate([np.full(num_cells, 1.0 - slip), np.full(num_cells, slip), np.ones(num_cells)]),
        np.concatenate([pays, pays, np.zeros(num_cells)]),
        is_goal=np.arange(num_cells + 1) == goal,
        reward_sd=np.append(noisy, False)[:, None].astype(float),
        initial=_top_left(num_cells + 1),
        name="deep-sea",
        layout=np.vstack([layout, [depth, 0]]),
    )


def _triangle(depth: int) -> tuple[IntArray, IntArray]:
    """Return ``(S, 2)`` row and column of the cells that can be reached, row by row, and their index by row, column."""
    row, column = np.tril_indices(depth)
    index = np.full((depth, depth), -1, dtype=np.int64)
    index[row, column] = np.arange(row.size)
    return np.stack([row, column], axis=1).astype(np.int64), index


def _top_left(num_states: int) -> FloatArray:
    start = np.zeros(num_states)
    start[0] = 1.0
    return start


def _check_depth(depth: int) -> None:
    check_count("depth", depth, 2)
    if depth > MOST_DEPTH:
        raise InvalidInputError(f"depth must be at most {MOST_DEPTH} (a sea has depth²/2 states), got {depth}")
