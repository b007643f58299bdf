"""What an agent believed of Q* after each episode, and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.world.arrays import FloatArray
from qposterior.world.space import StateActionSpace

if TYPE_CHECKING:
    from qposterior.weighted_draws import Posterior

MOST_PAIRS = 60
"""Beliefs are kept episode by episode up to this size; a larger problem has its last ones only."""

BELIEF_COLUMNS = ("seed", "episode", "state", "action", "mean", "sd", "prob_optimal")
TRACE_COLUMNS = (
    "seed",
    "episode",
    "stage",
    "observed",
    "tolerance",
    "new_tolerance",
    "ess_before",
    "ess_after",
    "resampled",
    "moves",
    "acceptance",
    "step_size",
    "trajectory",
    "mixing_ratio",
    "bellman_error",
    "log_increment",
    "seconds",
)


@dataclass(kw_only=True)
class Beliefs:
    """A recorder: call `record` after each episode. Agents without a posterior leave it empty."""

    space: StateActionSpace
    seed: int
    episode: int = 0
    tables: list[tuple[int, FloatArray]] = field(default_factory=list)  # episode, (3, K) mean, sd, P(optimal)
    trace: list[dict[str, Any]] = field(default_factory=list)
    _steps: int = 0

    def record(self, agent: Any) -> None:
        """Take in the steps of the sampler, and its posterior where the problem is small."""
        self.episode += 1
        sampler = getattr(agent, "sampler", None)
        if sampler is None:
            return
        self.trace += [{"seed": self.seed, "episode": self.episode} | row for row in sampler.trace[self._steps :]]
        self._steps = len(sampler.trace)
        if self.space.num_pairs <= MOST_PAIRS and _keeps_posterior(agent):
            self.tables.append((self.episode, belief_table(agent.posterior())))

    def finish(self, agent: Any) -> None:
        """Take in the posterior that the agent ends with, unless it would have to be made for a large problem."""
        is_at_hand = _keeps_posterior(agent) or self.space.num_pairs <= MOST_PAIRS
        if hasattr(agent, "posterior") and is_at_hand and (not self.tables or self.tables[-1][0] != self.episode):
            self.tables.append((self.episode, belief_table(agent.posterior())))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of BELIEF_COLUMNS."""
        pairs = self.space.pairs()
        return [
            (self.seed, episode, *pair, *values)
            for episode, table in self.tables
            for pair, values in zip(pairs, table.T.tolist(), strict=True)
        ]


def _keeps_posterior(agent: Any) -> bool:
    """Return whether an agent's posterior follows what it sees; one that plans in models makes it when it is asked."""
    return getattr(agent, "keeps_posterior", True)


def belief_table(posterior: Posterior) -> FloatArray:
    """Return ``(3, K)`` mean, standard deviation and P(optimal) of each pair."""
    pairs = posterior.space.pair_state, posterior.space.pair_action
    return np.stack([posterior.mean()[pairs], posterior.sd()[pairs], posterior.prob_optimal_table()[pairs]])
