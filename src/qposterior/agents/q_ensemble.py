r"""An ensemble of small Q-networks, each with a fixed random prior function, trained together (JAX and optax).

Head h is :math:`Q_h(s, a) = f(s, a; \theta_h) + \beta\, f(s, a; \theta^0_h)`, f an MLP on the one-hot state, β the
prior scale and θ⁰ never trained (Osband, Aslanides, Cassirer 2018). A product with a one-hot vector is a row of the
matrix, so the first layer is a lookup: nothing grows with the number of states but the table of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from qposterior.errors import MissingExtraError

Weights = list[tuple[Any, Any]]
"""Of each layer the matrices ``(heads, inputs, outputs)`` and the biases ``(heads, outputs)``."""


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """What the loss depends on."""

    discount: float
    prior_scale: float
    noise_scale: float
    learning_rate: float


def draw_weights(rng: np.random.Generator, heads: int, sizes: tuple[int, ...]) -> Weights:
    """Return first weights: normal with sd 1/√inputs, cut off at two sd, biases 0 (as bsuite's networks start)."""
    weights = []
    for inputs, outputs in pairwise(sizes):
        z = rng.standard_normal((heads, inputs, outputs))
        while (outside := np.abs(z) > 2.0).any():
            z[outside] = rng.standard_normal(int(outside.sum()))
        weights.append(((z / np.sqrt(inputs)).astype(np.float32), np.zeros((heads, outputs), dtype=np.float32)))
    return weights


@dataclass(frozen=True, slots=True)
class EnsembleFunctions:
    """The compiled functions of an ensemble."""

    values: Callable[..., Any]  # (weights, prior, admissible, head, state) → (A,)
    start: Callable[..., Any]  # weights → state of the optimiser
    train: Callable[..., Any]  # (weights, target, prior, admissible, state of the optimiser, batch) → weights, state


@cache
def ensemble_functions(settings: EnsembleSettings) -> EnsembleFunctions:
    """Return the functions for these settings; they compile once for every shape."""
    try:
        jax, optax = import_module("jax"), import_module("optax")
    except ImportError as error:
        raise MissingExtraError("agent bootstrapped-dqn", "deep") from error
    jnp = jax.numpy
    optimiser = optax.adam(settings.learning_rate)

    def network(weights: Weights, state: Any) -> Any:
        """One head: ``(B,)`` states to ``(B, A)`` values."""
        (table, bias), *rest = weights
        x = table[state] + bias
        for matrix, shift in rest:
            x = jax.nn.relu(x) @ matrix + shift
        return x

    def head_values(weights: Weights, prior: Weights, admissible: Any, state: Any) -> Any:
        value = network(weights, state) + settings.prior_scale * network(prior, state)
        return jnp.where(admissible[state], value, -jnp.inf)

    def head_loss(weights: Weights, target: Weights, prior: Weights, admissible: Any, batch: Any) -> Any:
        """Mean over the batch of the squared temporal-difference errors of one head, where its mask lets it learn.

        The batch holds ``(B,)`` state, action, reward, next_state, is_going_on (0 where the episode terminated), and of
        this head its mask and its reward noise.
        """
        following = jnp.max(head_values(target, prior, admissible, batch["next_state"]), axis=-1)
        following = jnp.where(batch["is_going_on"] > 0, following, 0.0)
        wanted = batch["reward"] + settings.noise_scale * batch["noise"] + settings.discount * following
        value = network(weights, batch["state"]) + settings.prior_scale * network(prior, batch["state"])
        chosen = jnp.take_along_axis(value, batch["action"][:, None], axis=-1)[:, 0]
        return jnp.mean(batch["mask"] * (jax.lax.stop_gradient(wanted) - chosen) ** 2)

    one_batch = {"state": None, "action": None, "reward": None, "next_state": None, "is_going_on": None}
    losses = jax.vmap(head_loss, in_axes=(0, 0, 0, None, one_batch | {"mask": 1, "noise": 1}))

    def train(weights: Any, target: Any, prior: Any, admissible: Any, optimiser_state: Any, batch: Any) -> Any:
        # Heads share no weights, so the gradient of the sum is the gradient of each.
        gradient = jax.grad(lambda w: losses(w, target, prior, admissible, batch).sum())(weights)
        step, optimiser_state = optimiser.update(gradient, optimiser_state)
        return optax.apply_updates(weights, step), optimiser_state

    def values(weights: Weights, prior: Weights, admissible: Any, head: Any, state: Any) -> Any:
        own, own_prior = jax.tree.map(lambda one: one[head], (weights, prior))
        return head_values(own, own_prior, admissible, state[None])[0]

    return EnsembleFunctions(jax.jit(values), jax.jit(optimiser.init), jax.jit(train))
