"""Posterior sampling of models (Strens 2000), told that one look settles the reward of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.model_agent import ModelAgent
from qposterior.agents.planning import plan
from qposterior.checks import check_choice, check_number
from qposterior.world.arrays import FloatArray, IntArray, segment_starts
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable

SUCCESSOR_RULES = ("uniform", "unmet")


class DeterministicPSRLAgent(ModelAgent):
    """Draws a model at the start of each episode and follows its optimal plan.

    The rewards of unseen pairs are drawn from N(reward_mean, reward_scale²); those of seen pairs are what was seen
    (their mean, where the reward is noisy). Rows: ``"known"``, the table; ``"revealed"``, the row seen, and for an
    unseen pair one successor drawn uniformly from the next layer of a layered problem, else from all states;
    ``"dirichlet"``, a draw from Dirichlet(concentration + counts) over those same candidates. With
    ``successors="unmet"`` an unseen pair leads to a candidate that nothing seen leads to, while there is one. With
    ``layered=False`` the agent does not know of layers: every state is a candidate.
    """

    name = "psrl-deterministic"
    repeats = 1  # how often each observation of a successor counts

    def __init__(
        self,
        space: StateActionSpace,
        *,
        reward_mean: float = 0.0,
        reward_scale: float = 4.0,
        concentration: float = 1.0,
        transitions: str = "revealed",
        successors: str = "uniform",
        layered: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(space, transitions=transitions, **settings)
        check_choice("rule for the successors of unseen pairs", successors, SUCCESSOR_RULES)
        check_number("reward_mean", reward_mean)
        check_number("reward_scale", reward_scale, "[0, inf)")
        check_number("concentration", concentration, "(0, inf)")
        self.reward_mean, self.reward_scale, self.concentration = reward_mean, reward_scale, concentration
        self.successors = successors
        self._nothing_left_to_draw = False
        self._layer = space.layer if layered else None
        self._candidate_start, self._candidates = candidate_successors(space.num_states, self._layer)

    def make_plan(self) -> IntArray:
        """Draw rewards and rows, and plan."""
        self._nothing_left_to_draw = (
            self.transitions != "dirichlet"
            and self.experience.rewards == "deterministic"
            and self.experience.num_observed == self.space.num_pairs
        )
        return plan(self.space, self.draw_rows(), self.draw_rewards(), horizon=self.horizon, rng=self._rng)

    def is_settled(self) -> bool:
        """Return whether the plan in hand was made when nothing random was left to draw."""
        return self._nothing_left_to_draw

    def draw_rewards(self) -> FloatArray:
        """Return ``(K,)`` mean rewards: what was seen, and draws where nothing was."""
        drawn = self._rng.normal(self.reward_mean, self.reward_scale, self.space.num_pairs)
        return np.where(self.experience.observed, self.experience.reward_mean, drawn)

    def draw_rows(self) -> TransitionTable:
        """Return a table of all rows, drawn from what is believed of them."""
        if self.table is not None:
            return self.table
        if self.transitions == "dirichlet":
            return self._dirichlet_rows()
        return self._revealed_rows()

    def _revealed_rows(self) -> TransitionTable:
        seen, table = self.experience.observed_pairs, self.experience.table()
        guess = self._guess_successors(table)
        if table.is_deterministic:
            guess[seen] = table.successor
            return _single_rows(self.space, guess)
        unseen = np.flatnonzero(~self.experience.observed)
        pair = np.concatenate([np.repeat(seen, np.diff(table.row_start)), unseen])
        return _rows_from_entries(
            self.space,
            pair,
            np.concatenate([table.successor, guess[unseen]]),
            np.concatenate([table.probability, np.ones(unseen.size)]),
        )

    def _guess_successors(self, table: TransitionTable) -> IntArray:
        """Return ``(K,)`` states, one drawn for every pair from its candidates."""
        layer = self._successor_layer()
        sizes = np.diff(self._candidate_start)
        if self.successors == "uniform":
            candidates = self._candidates
        else:  # the unmet candidates of each layer come first, and where there are any the others are out
            of_layer = np.repeat(np.arange(sizes.size), sizes)
            is_met = np.isin(self._candidates, table.successor)
            candidates = self._candidates[np.lexsort((is_met, of_layer))]
            num_unmet = np.bincount(of_layer[~is_met], minlength=sizes.size)
            sizes = np.where(num_unmet > 0, num_unmet, sizes)
        offset = (self._rng.random(self.space.num_pairs) * sizes[layer]).astype(np.int64)
        return np.asarray(candidates[self._candidate_start[layer] + offset])

    def _successor_layer(self) -> IntArray:
        """Return ``(K,)`` the layer that a pair leads to; 0 for all where there are no layers."""
        if self._layer is None:
            return np.zeros(self.space.num_pairs, dtype=np.int64)
        return np.asarray(self._layer[self.space.pair_state] + 1)

    def _dirichlet_rows(self) -> TransitionTable:
        """Draw every row from its Dirichlet posterior, as normalised gammas over its candidates."""
        space, layer = self.space, self._successor_layer()
        sizes = (self._candidate_start[1:] - self._candidate_start[:-1])[layer]
        pair = np.repeat(np.arange(space.num_pairs), sizes)
        offset = np.arange(pair.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        successor = self._candidates[self._candidate_start[layer][pair] + offset]
        shape = np.full(pair.size, self.concentration)
        key = pair * space.num_states + successor
        for k in self.experience.observed_pairs:
            seen, counts = self.experience.row(int(k))
            shape[np.searchsorted(key, k * space.num_states + seen)] += self.repeats * counts
        gammas = self._rng.standard_gamma(shape) + np.finfo(float).tiny
        return _rows_from_entries(space, pair, successor, gammas / np.bincount(pair, gammas)[pair])


def candidate_successors(num_states: int, layer: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return offsets and states: the successors a pair of each layer may have; one layer of all states if unlayered."""
    if layer is None:
        return np.array([0, num_states]), np.arange(num_states)
    order = np.argsort(layer, kind="stable")
    return segment_starts(layer[order], int(layer.max()) + 1), order


def _single_rows(space: StateActionSpace, successor: IntArray) -> TransitionTable:
    return TransitionTable(
        num_states=space.num_states,
        row_start=np.arange(space.num_pairs + 1),
        successor=successor,
        probability=np.ones(space.num_pairs),
    )


def _rows_from_entries(
    space: StateActionSpace, pair: IntArray, successor: IntArray, probability: np.ndarray
) -> TransitionTable:
    order = np.argsort(pair, kind="stable")
    return TransitionTable(
        num_states=space.num_states,
        row_start=segment_starts(pair[order], space.num_pairs),
        successor=successor[order],
        probability=probability[order],
    )
