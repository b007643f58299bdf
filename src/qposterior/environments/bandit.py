"""Multi-armed bandits: MDPs with one state, on which posterior sampling is Thompson sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qposterior.checks import check_number, check_numbers
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.world.mdp import FiniteMDP


def bandit(means: Sequence[float] = (0.0, 0.5, 1.0), noise: str = "gaussian", reward_sd: float = 1.0) -> FiniteMDP:
    """Return a bandit: state 0, one action per arm, each leading to the goal, state 1.

    ``noise="gaussian"`` adds N(0, reward_sd²) to the mean of the arm; ``"bernoulli"`` pays 1 with that probability.
    """
    arms = check_numbers("means", means)
    if arms.ndim != 1 or arms.size == 0:
        raise InvalidInputError(f"means must list at least one arm, got {means!r}")
    if noise == "bernoulli":
        if not np.all((arms >= 0.0) & (arms <= 1.0)):
            raise InvalidInputError(f"means of Bernoulli arms must lie in [0, 1], got {arms.tolist()}")
        sd = np.sqrt(arms * (1.0 - arms))
    elif noise == "gaussian":
        sd = np.full(arms.size, check_number("reward_sd", reward_sd, "[0, inf)"))
    else:
        raise unknown_name("noise", noise, ("gaussian", "bernoulli"))
    edges = [(0, arm, 1, 1.0, float(mean)) for arm, mean in enumerate(arms)]
    mdp = FiniteMDP.from_edges(edges, goal=[1], reward_sd=np.vstack([sd, sd]), name="bandit")
    return replace(mdp, reward_noise=noise)
