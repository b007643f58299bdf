"""Posterior sampling: draw Q from its posterior, act greedily on it, learn, draw again (paper, sec. tspsrl)."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.protocol import Observation, check_transitions
from qposterior.answers import Posterior, make_rng
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.inference.smc.one_look import OneLookSampler, OneLookSettings, load_kernels
from qposterior.model.likelihood import Likelihood, Noise, Tolerance
from qposterior.model.prior import BoundedPrior, GaussianPrior
from qposterior.world.arrays import IntArray
from qposterior.world.experience import Experience
from qposterior.world.space import StateActionSpace

TIE = 1e-10


class PosteriorSamplingAgent:
    """Acts on a draw of the exact posterior (Bellman coordinates, tolerance 0), kept up to date by one-look updates.

    A policy is drawn at the start of an episode, and again every `redraw_every` steps where that is given, or when
    `redraw` is called: the paper's times T. In a problem with loops a held policy could circle for ever on a pair first
    seen in this episode, so there it is drawn again at the latest when a state is entered a second time whose greedy
    pair has become known since the episode began.
    """

    name = "abrl"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        prior: GaussianPrior | BoundedPrior | None = None,
        particles: int = 20,
        transitions: str = "revealed",
        rewards: str = "deterministic",
        noise: Noise | None = None,
        redraw_every: int | None = None,
        ties: str = "uniform",
        moves: int = 3,
        seed: Any = 0,
    ) -> None:
        if check_transitions(transitions) == "dirichlet":
            raise InvalidInputError(f"{self.name} needs the rows of the pairs it has seen: known or revealed")
        if particles < 2:
            raise InvalidInputError(f"particles must be at least 2, got {particles}")
        if redraw_every is not None and redraw_every < 1:
            raise InvalidInputError(f"redraw_every must be at least 1, got {redraw_every}")
        if ties not in ("uniform", "lowest"):
            raise unknown_name("tie rule", ties, ("uniform", "lowest"))
        self.space, self.transitions, self.ties, self.redraw_every = space, transitions, ties, redraw_every
        self.num_updates = 0
        self.experience = Experience(space, rewards=rewards)
        likelihood: Likelihood = (noise or Noise()) if rewards == "noisy" else Tolerance()
        load_kernels(rewards)
        self._rng = make_rng(seed)
        self.sampler = OneLookSampler.start(
            self.experience,
            prior=GaussianPrior() if prior is None else prior,
            likelihood=likelihood,
            particles=particles,
            rng=self._rng,
            settings=OneLookSettings(moves=moves),
        )
        self._policy: IntArray | None = None
        self._visited: set[int] = set()
        self._fresh: set[int] = set()  # pairs first seen in this episode
        self._steps = 0

    def begin_episode(self, state: int) -> None:
        """Take in what is new, or else move the particles on, and draw a policy."""
        self._visited.clear()
        self._fresh.clear()
        self._steps = 0
        self.redraw()

    def redraw(self) -> None:
        """Bring the particles up to date and draw another policy from them."""
        if self.sampler.update(self.experience):
            self.num_updates += 1
        elif self.experience.num_observed < self.space.num_pairs:
            self.sampler.move()
        self._policy = self._draw_policy()

    def act(self, state: int) -> int:
        """Return the held policy's action, drawing another policy first where one is due."""
        if self._policy is None:
            raise InvalidInputError("act was called before begin_episode")
        due = self.redraw_every is not None and self._steps > 0 and self._steps % self.redraw_every == 0
        pair = int(self.space.pair_index[state, self._policy[state]])
        if due or (state in self._visited and pair in self._fresh):
            self._visited.clear()
            self._fresh.clear()
            self.redraw()
        self._visited.add(state)
        self._steps += 1
        return int(self._policy[state])

    def observe(self, observation: Observation) -> None:
        """Add to the experience; the particles follow when a policy is next drawn."""
        is_new = self.experience.record(
            observation.state,
            observation.action,
            observation.reward,
            observation.next_state,
            row=observation.row,
            mean_reward=observation.mean_reward,
        )
        if is_new:
            self._fresh.add(self.space.pair(observation.state, observation.action))

    def end_episode(self) -> None:
        """Nothing to finish."""

    def held_plan(self) -> IntArray | None:
        """Return the policy of this episode as a plan of one row."""
        return None if self._policy is None else self._policy[None, :]

    def predict(self, state: int, deterministic: bool = True) -> int:
        """Return the action most probably optimal in a state, or one drawn by that probability."""
        share = self.posterior().prob_optimal(state)
        return int(np.argmax(share)) if deterministic else int(self._rng.choice(share.size, p=share))

    def posterior(self) -> Posterior:
        """Return the weighted particles as a `Posterior`."""
        sampler = self.sampler
        return Posterior(
            space=self.space,
            draws=sampler.cloud.theta.copy(),
            weights=sampler.cloud.weights,
            method="smc",
            log_evidence=sampler.cloud.log_evidence,
            noise_scale=None if sampler.cloud.log_scale is None else np.exp(sampler.cloud.log_scale),
        )

    def _draw_policy(self) -> IntArray:
        """Return the greedy policy of one particle, drawn by its weight; ties at random or to the lowest action."""
        theta = self.sampler.cloud.theta[
            self._rng.choice(self.sampler.cloud.theta.shape[0], p=self.sampler.cloud.weights)
        ]
        best = self.space.maximum(theta)[self.space.pair_state]
        tied = theta >= best - TIE * (1.0 + np.abs(best))
        noise = self._rng.random(theta.size) if self.ties == "uniform" else np.zeros(theta.size)
        return self.space.greedy(np.where(tied, 1.0 + noise, 0.0))
