r"""What was seen, in units of the layer: for a prior on Q that grows with the steps left.

A state that was met at step t of episodes of at most H steps has h = H − t steps left. With a prior
N(m · aʰ, (σ · aʰ)²) on its pairs, θ̃ = θ / aʰ has the prior N(m, σ²), whatever the state, and

.. math:: \theta(s, \cdot) = r + \gamma \sum P(s') V(s') \iff
          \tilde\theta(s, \cdot) = r a^{-h} + (\gamma / a) \sum P(s') \tilde V(s'),

because all successors have h − 1 steps left. So a sampler that is told rewards r · a⁻ʰ and a discount γ / a draws from
the posterior under the growing prior, and no number in it grows. Nothing but the horizon and the steps at which states
were met goes in: a state that was never met has draws of N(m, σ²), in a unit that it gets when it is met.

It holds where each state is met at one step only. Where one is met at another step too (a loop, ways of different
length), `StepsMet.are_layers` turns false, and the agent draws models in place of Q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qposterior.checks import check_count
from qposterior.model.prior import GaussianPrior
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

MOST_GROWTH = 600.0
"""log aᴴ at most: aᴴ and a⁻ᴴ must be numbers."""

NEVER = -1


class StepsMet:
    """The step of the episodes at which each state was first met, and whether one was met at another step too.

    What an agent can know of layers without being told a row. Goals do not count: nothing is decided there.
    """

    def __init__(self, space: StateActionSpace) -> None:
        self.space = space
        self.first: IntArray = np.full(space.num_states, NEVER, dtype=np.int64)
        self.are_layers = True
        self.step = 0

    def begin(self, state: int) -> None:
        """An episode has begun in this state."""
        self.step = 0
        self._meet(state)

    def move(self, state: int, next_state: int) -> None:
        """A step has led from one state to the next."""
        self._meet(state)
        self.step += 1
        self._meet(next_state)

    @property
    def never_met(self) -> IntArray:
        """The states that no episode has met."""
        return np.flatnonzero(self.first == NEVER)

    def may_follow(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return ``(S,)`` the group of each state, and offsets and states: those that may follow the states of a group.

        While there are layers, after a state that was met at step t come those met at step t + 1 and those never met,
        which alone come after a state never met. Else, and where that leaves none, any state.
        """
        size = self.space.num_states
        met = np.unique(self.first) if self.are_layers else self.first[:0]
        never, everywhere = self.never_met, np.arange(size)
        groups = [np.union1d(np.flatnonzero(self.first == step + 1), never) for step in met[met != NEVER]]
        groups = [group if group.size else everywhere for group in (*groups, never if self.are_layers else everywhere)]
        group = np.searchsorted(met[met != NEVER], self.first)
        group[self.first == NEVER] = len(groups) - 1
        start = np.cumsum([0] + [each.size for each in groups])
        return group if self.are_layers else np.zeros(size, dtype=np.int64), start, np.concatenate(groups)

    def _meet(self, state: int) -> None:
        if self.first[state] == NEVER:
            self.first[state] = self.step
        elif self.first[state] != self.step and not self.space.is_goal[state]:
            self.are_layers = False


@dataclass(kw_only=True)
class Stakes:
    """What the episode has won and lost so far, each a sum, and the most that one has won or lost."""

    most: float = 0.0
    won: float = 0.0
    lost: float = 0.0

    def begin(self) -> None:
        """An episode has begun."""
        self.won = self.lost = 0.0

    def add(self, reward: float) -> None:
        """A step has paid this."""
        self.won += max(reward, 0.0)
        self.lost += max(-reward, 0.0)
        self.most = max(self.most, self.won, self.lost)


def reward_unit(rewards: FloatArray, stake: float = 0.0) -> float:
    """Return the least power of two that is at least as large as every |reward| and a stake, and 1 at least.

    The stake is the most that an episode has won or lost: next to a little that is lost or won at each step of a long
    way, optimism of the size of one reward would be none.
    """
    largest = float(np.abs(rewards).max(initial=stake))
    return float(2.0 ** np.ceil(np.log2(largest))) if largest > 1.0 else 1.0


class Layers:
    """What was seen in units of the layer, for a prior that grows.

    Rewards are also divided by `reward_unit`: the prior is optimism in units of rewards, and next to rewards far above
    its scale it would be none. What counts is what an episode adds up to: at the
    last step aʰ is no more than a, and what was paid on the way is at stake too.
    """

    def __init__(self, space: StateActionSpace, prior: GaussianPrior, horizon: int) -> None:
        self.space, self.horizon = space, check_count("horizon", horizon)
        self.growth = float(min(prior.growth, np.exp(MOST_GROWTH / horizon)))
        self.prior = replace(prior, growth=1.0)  # of θ̃
        self.steps = StepsMet(space)
        self.reward_unit = 1.0
        self.told = self._untold()

    def tell(self, seen: Experience, stake: float = 0.0) -> Experience:
        """Return what was seen in these units: all of it told again where the unit of rewards has grown."""
        unit = reward_unit(seen.reward_mean, stake)
        if unit > self.reward_unit:
            self.reward_unit = unit
            self.told = self._untold()
        for k in sorted(np.flatnonzero(seen.observed & ~self.told.observed).tolist(), key=seen.first_seen):
            state, action = int(self.space.pair_state[k]), int(self.space.pair_action[k])
            steps_left = float(self.horizon - self.steps.first[state])
            reward = seen.reward_mean[k] / self.reward_unit * self.growth**-steps_left
            row = seen.row(k)
            self.told.record(state, action, float(reward), int(row[0][0]), row=row)
        return self.told

    def pack(self) -> dict[str, Any]:
        """Return everything that the continuation depends on, the steps met and what was seen apart."""
        return {"step": self.steps.step, "are_layers": self.steps.are_layers, "growth": self.growth}

    def unpack(self, facts: dict[str, Any], step_met: IntArray, seen: Experience, stake: float = 0.0) -> None:
        """Take over what `pack` returned, and tell again what was seen."""
        self.growth, self.told = float(facts["growth"]), self._untold()
        self.steps.first, self.steps.step, self.steps.are_layers = step_met, facts["step"], facts["are_layers"]
        self.tell(seen, stake)

    def _untold(self) -> Experience:
        admissible, discount = self.space.pair_index >= 0, self.space.discount / self.growth
        return Experience(StateActionSpace.from_mask(admissible, self.space.is_goal, discount=discount))
