"""Bootstrapped DQN (Osband et al. 2016) with randomised prior functions (2018), as bsuite sets it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qposterior.agents.protocol import Observation, check_transitions
from qposterior.agents.q_ensemble import EnsembleSettings, draw_weights, ensemble_functions
from qposterior.agents.replanning import Replanning
from qposterior.checks import check_count, check_number, make_rng
from qposterior.world.arrays import IntArray
from qposterior.world.space import StateActionSpace


class BootstrappedDQNAgent:
    """Follows one head of an ensemble of Q-networks through an episode; all heads learn from a replay memory.

    The state is seen as a one-hot vector. `prior_scale` 0 is the agent without prior functions. A transition is shown
    to each head with `mask_probability`, its reward with normal noise of `noise_scale` that is drawn once. Model-free:
    `transitions` is not used. `discount` is that of the targets, 0.99 as bsuite has it, whatever the problem says.
    Within an episode another head is drawn by the rule `replan` of `Replanning`; the published agent has ``"episode"``.
    """

    name = "bootstrapped-dqn"

    def __init__(
        self,
        space: StateActionSpace,
        *,
        heads: int = 20,
        hidden: int = 50,
        prior_scale: float = 5.0,
        batch_size: int = 128,
        discount: float = 0.99,
        replay_capacity: int = 10_000,
        min_replay: int = 128,
        train_every: int = 1,
        target_every: int = 4,
        learning_rate: float = 1e-3,
        mask_probability: float = 1.0,
        noise_scale: float = 0.0,
        epsilon: float = 0.0,
        replan: str = "loops",
        transitions: str = "revealed",
        seed: Any = 0,
    ) -> None:
        counts = {"heads": heads, "hidden": hidden, "batch_size": batch_size, "replay_capacity": replay_capacity}
        counts |= {"min_replay": min_replay, "train_every": train_every, "target_every": target_every}
        for what, value in counts.items():
            check_count(what, value)
        for what, share in (("mask_probability", mask_probability), ("epsilon", epsilon), ("discount", discount)):
            check_number(what, share, "[0, 1]")
        for what, size in (("prior_scale", prior_scale), ("noise_scale", noise_scale)):
            check_number(what, size, "[0, inf)")
        check_number("learning_rate", learning_rate, "(0, inf)")
        self.space, self.transitions = space, check_transitions(transitions)
        self.heads, self.batch_size, self.epsilon = heads, batch_size, epsilon
        self.min_replay, self.train_every, self.target_every = min_replay, train_every, target_every
        self.mask_probability = mask_probability
        self.replanning = Replanning(rule=replan)
        self.num_updates = 0
        self._rng = make_rng(seed)
        self._functions = ensemble_functions(EnsembleSettings(discount, prior_scale, noise_scale, learning_rate))
        self._admissible = space.pair_index >= 0
        sizes = (space.num_states, hidden, hidden, self._admissible.shape[1])
        self.weights: Any = draw_weights(self._rng, heads, sizes)
        self.prior = draw_weights(self._rng, heads, sizes)
        self._target, self._optimiser = self.weights, self._functions.start(self.weights)
        self._memory = _empty_memory(replay_capacity, heads)
        self._num_seen = self._head = 0
        self._is_known = np.zeros(space.num_pairs, dtype=bool)
        self._compile()

    def begin_episode(self, state: int) -> None:
        """Choose the head to follow."""
        self.replanning.begin()
        self._head = int(self._rng.integers(self.heads))

    def act(self, state: int) -> int:
        """Return the best action of the head that is followed, or at random with probability epsilon."""
        best = int(np.argmax(self.head_values(self._head, state)))
        if self.replanning.is_due(int(self.space.pair_index[state, best])):
            self._head = int(self._rng.integers(self.heads))
            best = int(np.argmax(self.head_values(self._head, state)))
        if self.epsilon > 0.0 and self._rng.random() < self.epsilon:
            return int(self._rng.choice(self.space.actions(state)))
        return best

    def head_values(self, head: int, state: int) -> np.ndarray:
        """Return ``(A,)`` values of a head, −inf where an action is not admissible."""
        return np.asarray(self._functions.values(self.weights, self.prior, self._admissible, head, np.int32(state)))

    def observe(self, observation: Observation) -> None:
        """Remember the transition, and take a step on a batch of remembered ones when it is due."""
        pair = self.space.pair(observation.state, observation.action)
        if not self._is_known[pair]:
            self._is_known[pair] = True
            self.replanning.learn(pair)
        memory, capacity = self._memory, self._memory["state"].size
        place = self._num_seen % capacity
        memory["state"][place], memory["action"][place] = observation.state, observation.action
        memory["reward"][place], memory["next_state"][place] = observation.reward, observation.next_state
        memory["is_going_on"][place] = not observation.terminated
        memory["mask"][place] = self._rng.random(self.heads) < self.mask_probability
        memory["noise"][place] = self._rng.standard_normal(self.heads)
        self._num_seen += 1
        if self._num_seen >= self.min_replay and self._num_seen % self.train_every == 0:
            rows = self._rng.integers(min(self._num_seen, capacity), size=self.batch_size)
            self._train({name: column[rows] for name, column in memory.items()})

    def end_episode(self) -> None:
        """Nothing to finish."""

    def held_plan(self) -> IntArray | None:
        """No plan is held: the values change at every step."""
        return None

    def _train(self, batch: dict[str, Any]) -> None:
        self.weights, self._optimiser = self._functions.train(
            self.weights, self._target, self.prior, self._admissible, self._optimiser, batch
        )
        self.num_updates += 1
        if self.num_updates % self.target_every == 0:
            self._target = self.weights

    def _compile(self) -> None:
        """Run the compiled functions once, so that no episode pays for compiling them."""
        self.head_values(0, 0)
        batch = {name: column[np.zeros(self.batch_size, dtype=np.int64)] for name, column in self._memory.items()}
        self._functions.train(self.weights, self._target, self.prior, self._admissible, self._optimiser, batch)


def _empty_memory(capacity: int, heads: int) -> dict[str, np.ndarray]:
    kinds = {"state": np.int32, "action": np.int32, "reward": np.float32, "next_state": np.int32}
    memory = {name: np.zeros(capacity, dtype=kind) for name, kind in kinds.items()}
    memory["is_going_on"] = np.zeros(capacity, dtype=np.float32)
    return memory | {name: np.zeros((capacity, heads), dtype=np.float32) for name in ("mask", "noise")}
