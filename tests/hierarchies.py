"""Hand-made input for the compiled sampler of the model, where every number is known; and logs for the whole of it."""

from __future__ import annotations

import numpy as np

import qposterior as qp
from qposterior.model.kernels import hierarchy as kernels
from qposterior.model.kernels import noise
from qposterior.world.space import StateActionSpace


def plain_space(num_states, num_actions, *, discount=0.9, goals=()):
    """Every action in every state."""
    is_goal = np.isin(np.arange(num_states), goals)
    return StateActionSpace.from_mask(np.ones((num_states, num_actions), bool), is_goal, discount=discount)


def record_all(space, steps, **kinds):
    """The experience of (state, action, reward, successor)."""
    seen = qp.Experience(space, **({"transitions": "counted", "rewards": "noisy"} | kinds))
    for state, action, reward, successor in steps:
        seen.record(int(state), int(action), float(reward), int(successor))
    return seen


def random_log(rng, *, num_states=5, num_actions=3, readings=300, sd=0.5, effect=0.0, skip=()):
    """Space and steps of a log: Dirichlet rows, normal rewards, successor effects; pairs of `skip` are never tried."""
    rows = rng.dirichlet(np.full(num_states, 0.7), (num_states, num_actions))
    mean = rng.normal(size=(num_states, num_actions))
    extra = effect * rng.normal(size=(num_states, num_states))
    steps = []
    while len(steps) < readings:
        s, a = int(rng.integers(num_states)), int(rng.integers(num_actions))
        t = int(rng.choice(num_states, p=rows[s, a]))
        if (s, a) not in skip:
            steps.append((s, a, mean[s, a] + extra[s, t] + sd * rng.standard_normal(), t))
    return plain_space(num_states, num_actions), steps


def make_layout(num_states, num_actions, width, edge_count):
    """Every state with as many actions and candidates."""
    first_edge = np.arange(num_states * num_actions + 1) * width
    seen = np.flatnonzero(edge_count > 0.0)
    return kernels.Layout(
        first_pair=plain_space(num_states, num_actions).first_pair,  # as it comes: not to be written to
        first_candidate=np.arange(num_states + 1) * width,
        first_edge=first_edge,
        first_seen=np.searchsorted(seen, first_edge),
        seen_edge=seen,
    )


def make_facts(layout, **given):
    """Nothing seen, unless it is given."""
    pairs, edges, candidates = (int(x[-1]) for x in (layout.first_pair, layout.first_edge, layout.first_candidate))
    width = int(layout.first_candidate[1])
    return kernels.Statistics(
        **{
            "count": np.zeros(pairs),
            "mean": np.zeros(pairs),
            "deviation": np.zeros(pairs),
            "is_constant": np.zeros(pairs, bool),
            "worth": np.zeros(pairs),
            "worth_variance": np.ones(pairs),
            "edge_count": np.zeros(edges),
            "value": np.zeros(candidates),
            "base": np.full(candidates, 1.0 / width),
            "unseen_odds": np.zeros(candidates),
        }
        | given
    )


def make_units(num_states, **given):
    """All scales 1, everything learned from all states, unless it is given."""
    return kernels.Units(
        **{
            "reward_unit": np.ones(num_states),
            "worth_unit": np.ones(num_states),
            "worth_freedom": np.full(num_states, np.inf),
            "offset": np.zeros(num_states),
            "is_read": np.ones(num_states, bool),
            "is_compared": np.ones(num_states, bool),
            "is_varied": np.ones(num_states, bool),
            "pooled_variance": 1.0,
            "centre_spread": 1.0,
            "is_pooled": False,
            "tempering": 1.0,
            "rows_known": False,
            "hyper_given": False,
        }
        | given
    )


def make_state(layout, **given):
    """Some state of a chain."""
    states, pairs, candidates = layout.first_pair.size - 1, int(layout.first_pair[-1]), int(layout.first_candidate[-1])
    hyper = np.zeros(kernels.NUM_HYPER)
    hyper[: kernels.LAMBDA] = 8.0, 1.0, 1.0, 0.0, 3.0
    hyper[kernels.C0] = 3.0
    return kernels.State(
        **{
            "variance": np.ones(pairs),
            "state_variance": np.ones(states),
            "worth_factor": np.ones(states),
            "tau": np.full(states, 14),
            "kappa": np.full(states, 10),
            "omega": np.ones(pairs, dtype=np.int64),  # of factor 1
            "centre": np.zeros((states, 2)),
            "alpha": np.zeros(pairs),
            "mean_row": np.full(candidates, 1.0 / int(layout.first_candidate[1])),
            "hyper": hyper,
        }
        | given
    )


def scores_of(facts, units):
    """What the step of the noise takes beside the data."""
    return noise.log_gamma_ratios(units.tempering * facts.count)
