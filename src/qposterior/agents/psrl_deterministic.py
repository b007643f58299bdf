"""Posterior sampling of models (Strens 2000), told that one look settles the reward of a pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.layers import StepsMet
from qposterior.agents.model_agent import ModelAgent
from qposterior.agents.planning import plan
from qposterior.agents.protocol import Observation
from qposterior.checks import check_choice, check_number
from qposterior.world.arrays import FloatArray, IntArray, segment_starts
from qposterior.world.space import StateActionSpace
from qposterior.world.transitions import TransitionTable

SUCCESSOR_RULES = ("uniform", "unmet")


class DeterministicPSRLAgent(ModelAgent):
    """Draws a model at the start of each episode and follows its optimal plan.

    The rewards of unseen pairs are drawn from N(reward_mean, reward_scale²); those of seen pairs are what was seen
    (their mean, where the reward is noisy). Rows: ``"known"``, the table; ``"revealed"``, the row seen, and for an
    unseen pair one successor drawn uniformly from its candidates; ``"dirichlet"``, a draw from
    Dirichlet(concentration + counts) over those same candidates. While each state has been met at one step of the
    episodes only, the candidates of a pair are those of `StepsMet.may_follow`; else, and with ``layered=False``, all
    states. With ``successors="unmet"`` an unseen pair leads to a state that was never met, while there is one.
    """

    name = "psrl-deterministic"
    repeats = 1  # how often each observation of a successor counts
    patience = 1.0  # what a step is discounted by in its plans, besides the discount of the space

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
        self.steps = StepsMet(space)
        self.steps.are_layers = layered

    def begin_episode(self, state: int) -> None:
        """Plan, unless nothing has changed."""
        self.steps.begin(state)
        super().begin_episode(state)

    def observe(self, observation: Observation) -> None:
        """Add to the experience, and to what is known of layers."""
        self.steps.move(observation.state, observation.next_state)
        super().observe(observation)

    def make_plan(self) -> IntArray:
        """Draw rewards and rows, and plan."""
        self._nothing_left_to_draw = (
            self.transitions != "dirichlet"
            and self.experience.rewards == "deterministic"
            and self.experience.num_observed == self.space.num_pairs
        )
        discount = self.space.discount * self.patience
        rows, rewards = self.draw_model()
        return plan(self.space, rows, rewards, horizon=self.horizon, rng=self._rng, discount=discount)

    def is_settled(self) -> bool:
        """Return whether the plan in hand was made when nothing random was left to draw."""
        return self._nothing_left_to_draw

    def draw_model(self) -> tuple[TransitionTable, FloatArray]:
        """Return all rows and ``(K,)`` mean rewards."""
        return self.draw_rows(), self.draw_rewards()

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
        guess = self._guess_successors()
        if table.is_deterministic:
            guess[seen] = table.successor
            return _single_rows(self.space, guess)
        unseen = np.flatnonzero(~self.experience.observed)
        pair = np.concatenate([np.repeat(seen, np.diff(table.row_start)), unseen])
        return rows_from_entries(
            self.space,
            pair,
            np.concatenate([table.successor, guess[unseen]]),
            np.concatenate([table.probability, np.ones(unseen.size)]),
        )

    def _guess_successors(self) -> IntArray:
        """Return ``(K,)`` states, one drawn for every pair from its candidates."""
        unit, unmet = self._rng.random(self.space.num_pairs), self.steps.never_met
        if self.successors == "unmet" and unmet.size:
            return np.asarray(unmet[(unit * unmet.size).astype(np.int64)])
        group, start, candidates = self._candidates()
        return np.asarray(candidates[start[group] + (unit * np.diff(start)[group]).astype(np.int64)])

    def _candidates(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return ``(K,)`` the group of each pair, and offsets and states: the candidates of each group, ascending."""
        group, start, candidates = self.steps.may_follow()
        return group[self.space.pair_state], start, candidates

    def _dirichlet_rows(self) -> TransitionTable:
        """Draw every row from its Dirichlet posterior, as normalised gammas over its candidates."""
        space, (group, start, candidates) = self.space, self._candidates()
        sizes = np.diff(start)[group]
        pair = np.repeat(np.arange(space.num_pairs), sizes)
        offset = np.arange(pair.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        successor = candidates[start[group][pair] + offset]
        shape = np.full(pair.size, self.concentration)
        key = pair * space.num_states + successor
        for k in self.experience.observed_pairs:
            seen, counts = self.experience.row(int(k))
            shape[np.searchsorted(key, k * space.num_states + seen)] += self.repeats * counts
        gammas = self._rng.standard_gamma(shape) + np.finfo(float).tiny
        return rows_from_entries(space, pair, successor, gammas / np.bincount(pair, gammas)[pair])


def _single_rows(space: StateActionSpace, successor: IntArray) -> TransitionTable:
    return TransitionTable(
        num_states=space.num_states,
        row_start=np.arange(space.num_pairs + 1),
        successor=successor,
        probability=np.ones(space.num_pairs),
    )


def rows_from_entries(
    space: StateActionSpace, pair: IntArray, successor: IntArray, probability: np.ndarray
) -> TransitionTable:
    """Return the table of entries in any order, each of a pair."""
    order = np.argsort(pair, kind="stable")
    return TransitionTable(
        num_states=space.num_states,
        row_start=segment_starts(pair[order], space.num_pairs),
        successor=successor[order],
        probability=probability[order],
    )
