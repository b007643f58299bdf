"""Bad calls of everything public: each is refused by an error of this package that names what was wrong.

A row of the table is a call that works, with one argument replaced by something it cannot be.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import qposterior as qp
from own_parts import RelatedActions
from qposterior.model.rows import DirichletRows
from qposterior.world.transitions import TransitionTable

NAN, INF = float("nan"), float("inf")
SINGLE_NOT_NUMBERS = (NAN, INF, "4", None)
NOT_NUMBERS = (*SINGLE_NOT_NUMBERS, [1.0, 2.0])
NOT_POSITIVE = (*NOT_NUMBERS, 0.0, -1.0)
NOT_COUNTS = (0, -1, 2.5, NAN, "3", None, True, [3])
NOT_NAMES = ("no-such", "", 3, None, ["hmc"])
NOT_SEEDS = (-1, 1.5, "one", True, {})
NOT_STATES = (-1, 99, 0.5, "0", None, True, NAN)
UNREADABLE = (None, 3, "no/such/file.npz")

MDP = qp.make_environment("two-state")
ROWS = MDP.transitions.row(0)
SPACE = MDP.space
SEEN = qp.Experience.of_pairs(MDP, [(0, 0)])
COUNTED = qp.Experience(SPACE, transitions="counted")
COUNTED.record(0, 0, -1.0, 0)
TRANSITIONS = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
REWARDS = np.array([[-1.0, -1.0], [0.0, 0.0]])
EDGES = [(0, 0, 0, 1.0, -1.0), (0, 1, 1, 1.0, -1.0)]
LOG = pd.DataFrame({"state": ["a", "b"], "action": ["x", "y"], "reward": [1.0, 2.0], "next_state": ["b", "c"]})


COLUMNS = {
    "state": [0, 0],
    "action": [0, 1],
    "successor": [0, 1],
    "probability": [1.0, 1.0],
    "reward": [-1.0, -1.0],
    "is_goal": [False, True],
}

# Three states: 0 with two actions, 1 with one, 2 the goal. Then what two of the pairs have paid and where they led.
SPACE_PARTS = {
    "num_states": 3,
    "num_actions": 2,
    "pair_state": [0, 0, 1],
    "pair_action": [0, 1, 0],
    "first_pair": [0, 2, 3, 3],
    "is_goal": [False, False, True],
    "discount": 0.9,
    "layer": [0, 1, 2],
}
ROW_PARTS = {
    "num_states": 3,
    "row_start": np.array([0, 2, 3, 4]),
    "successor": np.array([0, 1, 2, 2]),
    "probability": np.array([0.5, 0.5, 1.0, 1.0]),
}
MDP_PARTS = {
    "space": qp.StateActionSpace(**SPACE_PARTS),
    "transitions": TransitionTable(**ROW_PARTS),
    "rewards": [0.5, 0.25, 1.0],
    "reward_sd": [0.0, 0.5, 0.0],
    "initial": [0.5, 0.5, 0.0],
    "layout": [[0, 0], [1, 0], [1, 1]],
}
SUMS = {
    "space": MDP_PARTS["space"],
    "pair": [2, 0],
    "count": [3.0, 2.4],
    "reward_mean": [1.0, 2.0],
    "reward_deviation": [0.0, 0.5],
    "move_pair": [2, 0, 0],
    "move_state": [2, 0, 1],
    "move_count": [3.0, 1.0, 1.4],
    "transitions": "counted",
    "rewards": "noisy",
    "readings": {2: ([1.0], [3.0]), 0: ([1.5, 2.5], [1.0, 1.4])},
}
OUTCOMES = {
    0: {0: [(0.5, 0, 0.0, False), (0.5, 1, 0.0, False)], 1: [(1.0, 2, 1.0, True)]},
    1: {0: [(1.0, 2, 1.0, True)]},
    2: {},
}


def rows_with(**changed):
    return TransitionTable(**(ROW_PARTS | changed))


def outcomes_with(*outcomes):
    """The table of an environment with these outcomes of state 0, action 0."""
    return OUTCOMES | {0: {0: list(outcomes), 1: OUTCOMES[0][1]}}


def gymnasium_mdp(P=OUTCOMES, initial_state_distrib=(1.0, 0.0, 0.0)):
    import gymnasium

    env = gymnasium.Env()
    env.observation_space, env.action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)
    env.P, env.initial_state_distrib = P, initial_state_distrib
    return qp.FiniteMDP.from_gymnasium(env)


def reveal_to_new(pair=0, other=SEEN):
    qp.Experience(SPACE).reveal(pair, other)


def reveal_again(pair):
    SEEN.copy().reveal(pair, SEEN)


def posterior_of_hand():
    return qp.Posterior(
        space=SPACE, draws=np.array([[0.0, -1.0], [1.0, 2.0]]), weights=np.array([0.5, 0.5]), method="hand"
    )


def fresh_agent():
    return qp.make_agent("random", MDP, horizon=3)


def sampling_agent(**options):
    return qp.PosteriorSamplingAgent(SPACE, inference="exact", **options)


def simulate(state, action, number, rng):
    return np.zeros(number, dtype=int)


class LacksDraw:
    def log_density_and_grad(self, theta, space):
        return qp.GaussianPrior().log_density_and_grad(theta, space)


class LacksVerbs:
    name, transitions, num_updates = "mine", "revealed", 0

    def act(self, state):
        return 0


def edges_with(place, value):
    first = list(EDGES[0])
    first[place] = value
    return [tuple(first), EDGES[1]]


def array_with(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


def without(column):
    return LOG.drop(columns=column)


NOT_LISTS = (None, 3, "ab", ["a", "b", "c"], {}, [[1], [2, 3]])
NOT_TABLES = ("table", None, [[1, 2], [3]], np.array([["a", "b"], ["c", "d"]]))

TABLE = {
    qp.GaussianPrior: (
        {},
        {
            "mean": (*SINGLE_NOT_NUMBERS, [1.0, NAN], [[1.0]], ["a"]),  # one number, or one for each pair
            "scale": (*SINGLE_NOT_NUMBERS, 0.0, -1.0, [1.0, 0.0], [[1.0]], [INF]),
            "growth": (*NOT_NUMBERS, 0.5),
        },
    ),
    qp.BoundedPrior: (
        {},
        {
            "upper": NOT_NUMBERS,
            "on": NOT_NAMES,
            "softness": (NAN, INF, "4", 0.0, -1.0),
            "mean": NOT_NUMBERS,
            "scale": NOT_POSITIVE,
        },
    ),
    qp.RewardPrior: ({}, {"mean": NOT_NUMBERS, "scale": NOT_POSITIVE, "upper": (NAN, INF, "0", [0.0])}),
    qp.Noise: (
        {},
        {
            "kind": NOT_NAMES,
            "scale": (NAN, INF, "1", 0.0, -1.0, [1.0, 2.0]),
            "degrees": NOT_POSITIVE,
            "log_scale_mean": NOT_NUMBERS,
            "log_scale_sd": NOT_POSITIVE,
        },
    ),
    qp.DirichletRows: ({}, {"concentration": NOT_POSITIVE, "successors": NOT_NAMES}),
    qp.SimulatedRows: ({"simulate_fn": simulate}, {"simulate_fn": (None, 3, "f"), "draws": NOT_COUNTS}),
    qp.SimulatorPool: (
        {"simulate_fn": simulate},
        {"simulate_fn": (None, 3, "f"), "draws": NOT_COUNTS, "seed": NOT_SEEDS},
    ),
    qp.HMCSettings: (
        {},
        {
            "chains": NOT_COUNTS,
            "warm_up": (-1, 2.5, "3", None, True),
            "max_iterations": NOT_COUNTS,
            "block": NOT_COUNTS,
            "target_acceptance": (*NOT_POSITIVE, 1.0, 2.0),
            "max_leapfrog": NOT_COUNTS,
            "min_ess": (NAN, -1.0, "4", None),
            "max_r_hat": (NAN, 0.5, "4", None),
        },
    ),
    qp.MoveSettings: (
        {},
        {
            "resampling": NOT_NAMES,
            "resample_below": (NAN, -0.1, 1.5, "half", None),
            "max_moves": (-1, 2.5, "3", None, True),
            "check_every": NOT_COUNTS,
            "mixing_threshold": (NAN, -1.0, "4", None),
            "waste_free": (1, 0, 2.5, "3", True),
        },
    ),
    qp.AnnealedSettings: (
        {},
        {
            "ess_factor": (*NOT_POSITIVE, 1.0, 2.0),
            "ineffective_limit": NOT_COUNTS,
            "stale_limit": NOT_COUNTS,
            "least_tolerance": NOT_POSITIVE,
            "max_steps": NOT_COUNTS,
            "moves": (None, 3, "many"),
        },
    ),
    qp.OneLookSettings: (
        {},
        {
            "moves": (-1, 2.5, "3", None, True),
            "moves_between": (-1, 2.5, "3", None, True),
            "resampling": NOT_NAMES,
            "resample_below": (NAN, -0.1, 1.5, "half", None),
        },
    ),
    qp.FitSettings: (
        {},
        {
            "goals": ("home", 3, (1, 2), None),
            "rewards": ("no-such", 3),
            "transitions": ("no-such", 3),
            "discount": (0.0, 1.5, -1.0, NAN, "0.9", [0.9]),
            "prior": ("gaussian", 3, qp.RewardPrior()),
            "noise": ("gaussian", 3),
            "method": ("hmc", 3),
            "actions": ("no-such", 3),
            "particles": (*(bad for bad in NOT_COUNTS if bad is not None), 99),
            "risk": ("cvar", "cvar:2", 3, None),
            "cautious": (0.0, 1.0, NAN, "sure"),
            "seed": (-1, 1.5, "one", None),
        },
    ),
    qp.ModelPrior: (
        {},
        {"reward_scale": (0.0, NAN, "one"), "row_scale": (-1.0, NAN), "alike": (0.0, 1.0, NAN, "half")},
    ),
    qp.Columns: ({}, {"state": (None, 3, ""), "reward": (None, 3)}),
    qp.StateActionSpace.from_mask: (
        {"admissible": [[1, 1], [1, 1]], "is_goal": [False, True]},
        {
            "admissible": (*NOT_TABLES, [1, 1], [[1, 1]], [[0, 0], [1, 1]], [[NAN, 1], [1, 1]]),
            "is_goal": ([True, True], [False], "goal", None, [[False, True]]),
            "discount": (0.0, 1.5, -1.0, NAN, "0.9", None, [0.9]),
            "layer": ([0], "top", [0.5, 1.0]),
        },
    ),
    qp.StateActionSpace: (
        SPACE_PARTS,
        {
            "num_states": NOT_COUNTS,
            "num_actions": NOT_COUNTS,
            "pair_state": (*NOT_LISTS, [0, 0], [0, 0, 3], [0, -1, 1], [0, 0, 0.5], [0, 1, 0], [0, 0, 2], [[0, 0, 1]]),
            "pair_action": (*NOT_LISTS, [0, 1], [0, 2, 0], [0, -1, 0], [0, NAN, 0], [1, 0, 0], [0, 0, 0], [[0, 1, 0]]),
            "first_pair": (*NOT_LISTS, [0, 2, 3], [0, 1, 3, 3], [0, 2, 2, 3], [0, 2, 3, 4], [0, -2, 3, 3]),
            "is_goal": (
                *NOT_LISTS,
                [False, True],
                [False, True, True],
                [False, False, False],
                [True, True, True],
                [0, 0, 2],
                [[0, 0, 1]],
            ),
            "discount": (0.0, 1.5, -1.0, NAN, "0.9", None, [0.9]),
            "layer": ("top", [0, 1], [0, 1, -1], [0, 0.5, 1], [NAN, 1, 2], [[0, 1, 2]]),
        },
    ),
    qp.FiniteMDP: (
        MDP_PARTS,
        {
            "space": (None, MDP, "two-state", SPACE_PARTS),
            "transitions": (
                *NOT_LISTS,
                MDP.transitions,
                rows_with(num_states=4),
                rows_with(num_states="3"),
                rows_with(row_start=[0, 2, 3, 4]),
                rows_with(row_start=np.array([0.0, 2.0, 3.0, 4.0])),
                rows_with(row_start=np.array([[0, 2, 3, 4]])),
                rows_with(row_start=np.array([0, 2, 4])),
                rows_with(row_start=np.array([1, 2, 3, 4])),
                rows_with(row_start=np.array([0, 3, 2, 4])),
                rows_with(row_start=np.array([0, 2, 3, 5])),
                rows_with(row_start=np.array([0, 0, 3, 4])),
                rows_with(row_start=np.empty(0, dtype=int)),
                rows_with(successor=np.array([1, 0, 2, 2])),
                rows_with(successor=np.array([0, 0, 2, 2])),
                rows_with(successor=np.array([0, 3, 2, 2])),
                rows_with(successor=np.array([0, -1, 2, 2])),
                rows_with(successor=np.array([0, 1, 2])),
                rows_with(successor=None),
                rows_with(probability=np.array([0.5, 0.4, 1.0, 1.0])),
                rows_with(probability=np.array([1.5, -0.5, 1.0, 1.0])),
                rows_with(probability=np.array([1.0, 0.0, 1.0, 1.0])),
                rows_with(probability=np.array([0.5, NAN, 1.0, 1.0])),
                rows_with(probability=np.array([0.5, INF, 1.0, 1.0])),
                rows_with(probability=np.array([0.5, 0.5, 1.0])),
                rows_with(probability=np.array(["a", "b", "c", "d"])),
            ),
            "rewards": (*NOT_LISTS, [0.5, 0.25], [0.5, NAN, 1.0], [0.5, INF, 1.0], [[0.5, 0.25, 1.0]]),
            "reward_sd": (*NOT_LISTS, [0.0, 0.5], [0.0, -0.5, 0.0], [0.0, NAN, 0.0], [0.0, INF, 0.0]),
            "initial": (
                *NOT_LISTS[1:],
                [0.5, 0.5],
                [0.5, 0.4, 0.0],
                [0.5, 0.0, 0.5],
                [1.5, -0.5, 0.0],
                [NAN, 1.0, 0.0],
                [INF, 0.0, 0.0],
            ),
            "reward_noise": NOT_NAMES,
            "name": (None, 3, ["mdp"]),
            "layout": ("grid", 3, [[0, 0], [1, 0]], [[0], [1], [1]], [[0, 0], [1, -1], [1, 1]], [[0, 0.5]] * 3),
        },
    ),
    qp.FiniteMDP.from_arrays: (
        {"transitions": TRANSITIONS, "rewards": REWARDS, "goal": [1]},
        {
            "transitions": (
                *NOT_TABLES,
                TRANSITIONS[0],
                TRANSITIONS[:1],
                array_with(TRANSITIONS, (0, 0, 0), NAN),
                array_with(TRANSITIONS, (0, 0, 0), -1.0),
                array_with(TRANSITIONS, (0, 0, 0), 0.5),
                TRANSITIONS.astype(complex),
            ),
            "rewards": (
                *NOT_TABLES,
                REWARDS[0],
                REWARDS.T[:1],
                array_with(REWARDS, (0, 0), NAN),
                array_with(REWARDS, (0, 1), INF),
                array_with(REWARDS, (1, 0), 1.0),
            ),
            "goal": ([2], [-1], ["1"], [0.5], 1, [0, 1], [True], [0], None),
            "actions": ([[1, 1]], "all", [[0, 0], [1, 1]], [[NAN, 1], [1, 1]]),
            "discount": (0.0, 1.5, -1.0, NAN, "0.9", None),
            "reward_sd": (-1.0, NAN, INF, "1", [1.0, 2.0, 3.0], None),
            "initial": ([1.0], [0.5, 0.5], [NAN, 0.0], [-1.0, 2.0], [0.3, 0.0], "start"),
        },
    ),
    qp.FiniteMDP.from_edges: (
        {"edges": EDGES, "goal": [1]},
        {
            "edges": (
                [],
                None,
                3,
                "edges",
                [(0, 0, 1)],
                [(0, 0, 1, 1.0, 0.0), (0, 1)],
                [3],
                edges_with(0, -1),
                edges_with(0, 0.5),
                edges_with(0, "0"),
                edges_with(1, -1),
                edges_with(1, 0.5),
                edges_with(2, 99.5),
                edges_with(2, None),
                edges_with(3, NAN),
                edges_with(3, 0.5),
                edges_with(3, -1.0),
                edges_with(3, "1"),
                edges_with(4, NAN),
                edges_with(4, INF),
                edges_with(4, "much"),
                edges_with(4, None),
            ),
            "goal": ([-1], ["1"], [0.5], 1, None, [True]),
            "num_states": (1, 0, -1, 2.5, "2", True),
            "discount": (0.0, 1.5, NAN, "0.9", None),
            "reward_sd": (-1.0, NAN, "1", [1.0, 2.0, 3.0]),
            "initial": ([1.0], [0.5, 0.5], "start"),
        },
    ),
    qp.FiniteMDP.from_gymnasium: (
        {"environment": "FrozenLake-v1", "step_cost": 0.1},
        {
            "environment": ("FrozenLak-v1", "CartPole-v1", None, 3, object()),
            "discount": (0.0, 1.5, NAN, "0.9", None),
            "step_cost": NOT_NUMBERS,
            "no_such_option": (1,),
        },
    ),
    qp.solve: ({"mdp": MDP}, {"mdp": (None, "two-state", SPACE, TRANSITIONS)}),
    qp.check_uniqueness: ({"mdp": MDP}, {"mdp": (None, "two-state", SPACE)}),
    qp.Experience: (
        {"space": SPACE},
        {"space": (None, MDP, "two-state"), "transitions": NOT_NAMES, "rewards": NOT_NAMES},
    ),
    qp.Experience.of_pairs: (
        {"mdp": MDP, "pairs": [(0, 0)]},
        {
            "mdp": (None, SPACE, "two-state"),
            "pairs": ([(0, 2)], [(9, 0)], [(1, 0)], [0], [(0,)], [(0, 0, 0)], None, 3, [("0", 0)], [(0.5, 0)], "ab"),
        },
    ),
    qp.Experience.from_text: (
        {"text": SEEN.to_text(), "space": SPACE},
        {
            "text": (
                "",
                "hello",
                None,
                3,
                SEEN.to_text().replace("revealed", "known"),
                SEEN.to_text().replace("-1.0", "nan"),
                SEEN.to_text() + "0 1\n",
                SEEN.to_text() + "0 x 1 0 0 1:1\n",
                SEEN.to_text() + "0 1 -1 0.0 0.0 1:1\n",
                SEEN.to_text() + "0 1 1 0.0 0.0 7:1\n",
                SEEN.to_text() + "0 1 1 0.0 0.0 1:nan\n",
                SEEN.to_text() + "0 1 1 0.0 0.0\n",
                SEEN.to_text() + "0 0 1 -1.0 0.0 0:1.0\n",
                COUNTED.to_text() + "0 1 1 0.0 0.0\n",
            ),
            "space": (None, MDP, qp.make_environment("five-state").space),
        },
    ),
    qp.Experience.from_sums: (
        SUMS,
        {
            "space": (None, MDP, "two-state"),
            "pair": (*NOT_LISTS, [2], [2, 3], [2, -1], [2, 0.5], [2, 2], [2, 1], [[2, 0]]),
            "count": (*NOT_LISTS, [3.0], [3.0, -1.0], [3.0, NAN], [3.0, INF], [3.0, 1e300], [[3.0, 2.0]]),
            "reward_mean": (*NOT_LISTS, [1.0], [1.0, NAN], [1.0, INF], [[1.0, 2.0]]),
            "reward_deviation": (*NOT_LISTS, [0.0], [0.0, -0.5], [0.0, NAN], [0.0, INF]),
            "move_pair": (*NOT_LISTS, [2, 0], [2, 0, 3], [2, 0, -1], [2, 0, 0.5], [2, 0, 1], [2, 2, 2], [[2, 0, 0]]),
            "move_state": (*NOT_LISTS, [2, 0], [2, 0, 3], [2, 0, -1], [2, 0, 0.5], [2, 0, 0]),
            "move_count": (*NOT_LISTS, [3.0, 1.0], [3.0, 1.0, -1.0], [3.0, 1.0, NAN], [0.0, 1.0, 1.0], [3.0, 1.0, INF]),
            "readings": (
                "ab",
                3,
                [1.0],
                {1: ([1.0], [1.0])},
                {"2": ([1.0], [1.0])},
                {2: 3},
                {2: ([1.0],)},
                {2: ([1.0, 2.0], [1.0])},
                {2: ([NAN], [1.0])},
                {2: ([1.0], [-1.0])},
                {2: (["a"], [1.0])},
            ),
            "transitions": NOT_NAMES,
            "rewards": NOT_NAMES,
        },
    ),
    qp.make_environment: (
        {"name": "deep-sea", "depth": 4},
        {
            "name": ("deep-see", "", None, 3, ["deep-sea"]),
            "depth": (1, 0, -1, 2.5, "4", NAN, True, [4]),
            "variant": NOT_NAMES,
            "mapping_seed": (-1, 1.5, "one"),
            "no_such_option": (1,),
        },
    ),
    qp.make_agent: (
        {"name": "q-learning", "problem": MDP, "horizon": 3},
        {
            "name": ("abrll", "", None, 3, ["abrl"]),
            "problem": (None, "two-state", 3),
            "horizon": (0, -1, 2.5, NAN, "3", True, [3]),
            "transitions": ("no-such", 3, ["known"]),
            "seed": NOT_SEEDS,
            "no_such_option": (1,),
        },
    ),
    qp.PosteriorSamplingAgent: (
        {"space": SPACE, "inference": "exact"},
        {
            "space": (None, MDP, "two-state"),
            "prior": ("gaussian", 3, LacksDraw(), qp.RewardPrior()),
            "particles": (*NOT_COUNTS, 1),
            "transitions": (*NOT_NAMES, "dirichlet"),
            "rewards": NOT_NAMES,
            "noise": ("gaussian", 3),
            "inference": NOT_NAMES,
            "coordinates": NOT_NAMES,
            "tolerance": (-1.0, NAN, "0.1"),
            "pilot_updates": (-1, 2.5, "3", None),
            "redraw_every": (0, -1, 2.5, "3", True),
            "ties": NOT_NAMES,
            "moves": (-1, 2.5, "3", None),
            "deadline": (0.0, -1.0, NAN, "3"),
            "seed": NOT_SEEDS,
        },
    ),
    qp.PosteriorSamplingAgent.load: ({"path": "x"}, {"path": UNREADABLE}),
    qp.Posterior.load: ({"path": "x"}, {"path": UNREADABLE}),
    qp.Policy.load: ({"folder": "x"}, {"folder": UNREADABLE}),
    qp.Posterior: (
        {"space": SPACE, "draws": np.zeros((2, 2)), "weights": np.array([0.5, 0.5]), "method": "hand"},
        {
            "space": (None, MDP),
            "draws": (3.0, np.zeros(2), np.zeros((2, 3)), np.zeros((0, 2)), np.full((2, 2), NAN), "draws", None),
            "weights": (
                np.ones(2),
                np.array([1.5, -0.5]),
                np.array([NAN, 1.0]),
                np.array([1.0]),
                "weights",
                None,
            ),
            "chains": (0, 3, 1.5, "1", None),
        },
    ),
    qp.posterior: (
        {"seen": SEEN, "method": "exact", "particles": 5},
        {
            "seen": (None, MDP, SPACE, "seen", LOG),
            "prior": ("gaussian", 3, qp.GaussianPrior, LacksDraw(), {"scale": 4.0}, qp.RewardPrior()),
            "tolerance": (-1.0, NAN, INF, "0.1", None, [0.1, 0.2, 0.3], [[0.1]]),
            "method": NOT_NAMES,
            "coordinates": NOT_NAMES,
            "particles": NOT_COUNTS,
            "seed": NOT_SEEDS,
            "kernel": (*NOT_NAMES, max),
            "noise": ("gaussian", 3, qp.Noise, {"scale": 1.0}),
            "transitions": ("no-such", 3, NAN, TRANSITIONS, DirichletRows(), DirichletRows, "dirichlet", True),
            "features": ("all", 3, [[1.0]], np.full((2, 1), NAN), [["a"], ["b"]]),
            "settings": ("nonsense", 3, {}, qp.HMCSettings),
            "max_cells": NOT_COUNTS,
            "progress_fn": ("print", 3),
        },
    ),
    qp.explore: (
        {"agent": fresh_agent(), "env": MDP, "episodes": 2},
        {
            "agent": (None, "random", LacksVerbs(), qp.PosteriorSamplingAgent),
            "env": (None, 3, "no-such", "CartPole-v1", SPACE, qp.make_environment),
            "episodes": NOT_COUNTS,
            "seed": NOT_SEEDS,
            "cap": (0, -1, 2.5, "3", True),
            "timeout": (-1.0, NAN, "3", [3.0]),
            "depth": (2.5, "3"),
            "callback": ("print", 3),
            "after": ("run", 3),
        },
    ),
    qp.compare: (
        {"environment": "two-state", "agents": ["random"], "out": "never-made", "seeds": 1, "episodes": 2},
        {
            "environment": ("two-sate", None, 3, MDP),
            "agents": ("random", [], ["randm"], None, 3, [None]),
            "out": (None, 3),
            "depths": ([4], 4, "4", ["x"], [2.5]),
            "seeds": (0, -1, [], [-1], ["x"], "1", 1.5, None, True),
            "episodes": NOT_COUNTS,
            "timeout": (0.0, -1.0, NAN, "3"),
            "engine": NOT_NAMES,
            "scheduler": ("tcp://localhost:1", 3),
            "workers": (0, -3, 2.5, "2", True),
            "progress_fn": ("print", 3),
            "transitions": ("no-such", 3),
            "prior": ("gaussian", 3),
            "agent_options": ("fast", 3),
            "env_options": ("fast", 3),
            "no_such_option": (1,),
        },
    ),
    qp.fit: (
        {"source": LOG, "particles": 100},
        {
            "source": (
                None,
                3,
                "no/such/file.csv",
                {"state": [1]},
                [1, 2],
                LOG[:0],
                without("state"),
                without("reward"),
                LOG.assign(reward=["one", "two"]),
                LOG.assign(reward=[NAN, 1.0]),
                LOG.assign(reward=[INF, 1.0]),
                LOG.assign(state=["", "b"]),
                LOG.assign(terminated=["maybe", "no"]),
                LOG.assign(weight=[-1.0, 1.0]),
                LOG.assign(weight=[NAN, 1.0]),
            ),
            "columns": ("state", {"state": "s"}, qp.Columns(state="no-such"), qp.Columns(state="action")),
            "settings": ("fast", {}),
            "before": ("log", 3),
            "goals": (("no-such",),),
            "progress_fn": ("print", 3),
            "no_such_option": (1,),
        },
    ),
}

FILES = (qp.PosteriorSamplingAgent.load, qp.Posterior.load, qp.Policy.load)

METHODS = {
    "FiniteMDP with Bernoulli rewards": (
        lambda rewards: qp.FiniteMDP(**(MDP_PARTS | {"rewards": rewards, "reward_noise": "bernoulli"})),
        {"rewards": ([0.5, 0.25, 1.5], [0.5, -0.25, 1.0])},
    ),
    "a table of Gymnasium": (
        gymnasium_mdp,
        {
            "P": (
                3,
                "ab",
                {},
                {0: None},
                {0: {0: None}},
                np.full((3, 2, 3), 1 / 3),
                [[[(1.0, 2, 0.0, True)]]],
                OUTCOMES | {3: {0: [(1.0, 2, 0.0, True)]}},
                OUTCOMES | {-1: {0: [(1.0, 2, 0.0, True)]}},
                OUTCOMES | {"1": {0: [(1.0, 2, 0.0, True)]}},
                OUTCOMES | {1: {2: [(1.0, 2, 0.0, True)]}},
                OUTCOMES | {1: {None: [(1.0, 2, 0.0, True)]}},
                OUTCOMES | {1: {}},
                OUTCOMES | {1: {0: []}},
                outcomes_with((1.0, 2, 0.0)),
                outcomes_with((1.0, 2, 0.0, True, {})),
                outcomes_with(1.0),
                outcomes_with("1200"),
                outcomes_with((0.5, 1, 0.0, False)),
                outcomes_with((1.5, 1, 0.0, False), (-0.5, 0, 0.0, False)),
                outcomes_with((NAN, 1, 0.0, False)),
                outcomes_with(("1", 1, 0.0, False)),
                outcomes_with((1.0, 3, 0.0, False)),
                outcomes_with((1.0, -1, 0.0, False)),
                outcomes_with((1.0, 0.5, 0.0, False)),
                outcomes_with((1.0, None, 0.0, False)),
                outcomes_with((1.0, 1, NAN, False)),
                outcomes_with((1.0, 1, INF, False)),
                outcomes_with((1.0, 1, "much", False)),
                outcomes_with((1.0, 1, 0.0, "no")),
                outcomes_with((1.0, 1, 0.0, None)),
            ),
            "initial_state_distrib": (
                *NOT_LISTS[1:],
                [1.0, 0.0],
                [0.0, 0.0, 0.0],
                [2.0, -1.0, 0.0],
                [NAN, 1.0, 0.0],
                [INF, 0.0, 0.0],
            ),
        },
    ),
    "Experience.from_sums of one pair": (
        lambda pair: qp.Experience.from_sums(**(SUMS | {"pair": pair, "move_pair": [2, 2, 2], "readings": None})),
        {"pair": ([2, 2],)},
    ),
    "Experience.reveal": (
        reveal_to_new,
        {
            "pair": (1, 99, -1, 0.5, "0", None, True, NAN, [0]),
            "other": (None, 3, MDP, COUNTED, qp.Experience(SPACE, rewards="noisy"), qp.Experience(MDP_PARTS["space"])),
        },
    ),
    "Experience.reveal, of a pair that is known": (reveal_again, {"pair": (0,)}),
    "posterior with a table": (
        lambda transitions: qp.posterior(SEEN, method="exact", particles=5, transitions=transitions),
        {
            "transitions": (
                rows_with(),
                TransitionTable(num_states=2, row_start=[0, 1, 2], successor=[0, 1], probability=[1.0, 1.0]),
                TransitionTable(
                    num_states=2,
                    row_start=np.array([0, 1, 2]),
                    successor=np.array([0, 1]),
                    probability=np.array([1.0, 0.5]),
                ),
            )
        },
    ),
    "FiniteMDP.from_columns": (
        lambda **changed: qp.FiniteMDP.from_columns(**(COLUMNS | changed)),
        {
            "state": ([0], [0, -1], [0, 9], "ab", None, [0.5, 0]),
            "action": ([0], [0, -1], [0.5, 0], None),
            "successor": ([0], [0, 9], [0.5, 0], None),
            "probability": ([1.0], [1.0, NAN], [1.0, "x"], None),
            "reward": ([1.0], [1.0, NAN], "ab", None),
            "is_goal": ([True, True], [0, 2], None, [[0, 1]]),
        },
    ),
    "compare with a prior": (
        lambda prior: qp.compare("two-state", agents=["abrl"], out="never-made", prior=prior),
        {
            "prior": (
                "gaussian",
                3,
                LacksDraw(),
                RelatedActions(),
                qp.GaussianPrior,
                {},
                {"name": "no-such"},
                {"name": "gaussian", "scale": -1.0},
                {"name": "gaussian", "width": 1.0},
            )
        },
    ),
    "Posterior.quantile": (
        lambda level: posterior_of_hand().quantile(level),
        {"level": (-0.1, 1.1, NAN, "0.5", None, [0.5])},
    ),
    "Posterior.prob_optimal": (
        lambda state=0, ties="uniform": posterior_of_hand().prob_optimal(state, ties=ties),
        {"state": (*NOT_STATES, 1), "ties": NOT_NAMES},
    ),
    "Posterior.prob_optimal_table": (
        lambda ties: posterior_of_hand().prob_optimal_table(ties=ties),
        {"ties": NOT_NAMES},
    ),
    "Posterior.prob_policy": (
        lambda policy, ties="uniform": posterior_of_hand().prob_policy(policy, ties=ties),
        {"policy": ([0], "ab", {0: 5}, {9: 0}, {"0": 0}, {0: "1"}, {0: None}, {1: 0}, None, 3)},
    ),
    "exact.prob_policy": (
        lambda policy: qp.posterior(SEEN, method="exact", particles=2).prob_policy(policy),
        {"policy": ([0], {0: 5}, {9: 0}, {"0": 0}, {0: 0.5}, None)},
    ),
    "Posterior.reweight": (
        lambda log_ratio: posterior_of_hand().reweight(log_ratio),
        {"log_ratio": ([0.0], [NAN, 0.0], [-INF, -INF], [INF, 0.0], "a", None, [[0.0, 0.0]], ["0", "1"])},
    ),
    "Posterior.sample": (
        lambda num=2, seed=0: posterior_of_hand().sample(num, seed),
        {"num": (-1, 2.5, "3", None, True), "seed": NOT_SEEDS},
    ),
    "Posterior.sample_policy": (
        lambda num=2, seed=0, ties="uniform": posterior_of_hand().sample_policy(num, seed, ties=ties),
        {"num": (-1, 2.5, "3", None, True), "seed": NOT_SEEDS, "ties": NOT_NAMES},
    ),
    "Posterior.save": (lambda path: posterior_of_hand().save(path), {"path": (None, 3, "no/such/folder/x.npz")}),
    "Posterior.to_arviz": (lambda seed: posterior_of_hand().to_arviz(seed=seed), {"seed": NOT_SEEDS}),
    "Space.pair": (lambda state=0, action=0: SPACE.pair(state, action), {"state": NOT_STATES, "action": NOT_STATES}),
    "Space.actions": (lambda state: SPACE.actions(state), {"state": NOT_STATES}),
    "Space.to_table": (lambda values: SPACE.to_table(values), {"values": ([1.0], "ab", None, [1.0, 2.0, 3.0], 3.0)}),
    "Experience.record": (
        lambda state=0, action=0, reward=-1.0, next_state=0, terminated=None, row=None, mean_reward=None: qp.Experience(
            SPACE
        ).record(state, action, reward, next_state, terminated=terminated, row=row, mean_reward=mean_reward),
        {
            "state": NOT_STATES,
            "action": NOT_STATES,
            "reward": NOT_NUMBERS,
            "next_state": NOT_STATES,
            "terminated": (True,),
            "row": (
                3,
                "ab",
                ([0], [0.5]),
                ([0, 1], [1.0]),
                ([9], [1.0]),
                ([0.5], [1.0]),
                ([0], [NAN]),
                ([], []),
                ([0, 0], [0.5, 0.5]),
            ),
            "mean_reward": (NAN, INF, "4", [1.0]),
        },
    ),
    "Experience.merge": (lambda other: SEEN.merge(other), {"other": (None, 3, COUNTED, MDP)}),
    "Experience.row": (lambda pair: SEEN.row(pair), {"pair": (1, 99, -1, "0", None)}),
    "Experience.first_seen": (lambda pair: SEEN.first_seen(pair), {"pair": (1, 99, -1, "0", None)}),
    "Experience.with_rows": (lambda rows: SEEN.with_rows(rows), {"rows": ({}, None, 3)}),
    "SimulatorPool.grow": (
        lambda seen=SEEN, simulate_fn=simulate: qp.SimulatorPool(simulate_fn, draws=2).grow(seen),
        {
            "seen": (None, MDP),
            "simulate_fn": (lambda *_: None, lambda *_: [0.5, 0.5], lambda *_: [9, 9], lambda *_: "ab"),
        },
    ),
    "Policy.act": (
        lambda state="a": qp.Policy({"policy": {"a": "x"}, "labels": {"states": ["a"], "actions": ["x"]}}, None).act(
            state
        ),
        {"state": ("z", "", None, 3)},
    ),
    "Agent.act": (lambda state: begun(sampling_agent()).act(state), {"state": NOT_STATES}),
    "Agent.begin_episode": (lambda state: sampling_agent().begin_episode(state), {"state": NOT_STATES}),
    "Agent.predict": (lambda state: sampling_agent().predict(state), {"state": NOT_STATES}),
    "Agent.observe": (
        lambda observation: begun(sampling_agent()).observe(observation),
        {"observation": (None, (0, 0, 1.0, 0))},
    ),
    "Agent.save": (lambda path: sampling_agent().save(path), {"path": (None, 3, "no/such/folder/x.npz")}),
    "Fit.next_trials": (lambda number: fitted().next_trials(number), {"number": (-1, 2.5, "3", None, True)}),
}


AGENT_OPTIONS = {
    "q-learning": {"epsilon": (-0.1, 1.1, NAN, "x"), "learning_rate": (0.0, 2.0, NAN), "initial_value": NOT_NUMBERS},
    "psrl": {"repeats": NOT_POSITIVE, "mean_count": NOT_POSITIVE, "shape": NOT_POSITIVE, "rate": NOT_POSITIVE},
    "psrl-deterministic": {
        "reward_mean": NOT_NUMBERS,
        "reward_scale": (NAN, INF, "4", None, -1.0),
        "concentration": NOT_POSITIVE,
        "successors": NOT_NAMES,
    },
    "r-max": {"known_after": (0, 2.5, "3", True), "max_reward": NOT_NUMBERS},
    "rlsvi": {"noise_sd": NOT_POSITIVE, "prior_sd": NOT_POSITIVE},
    "ucbvi": {"bonus_scale": (NAN, INF, "4", None, -1.0), "failure": (0.0, 1.0, NAN, "x"), "min_reward": (NAN, "x")},
    "bayesian-q-learning": {"mean": NOT_NUMBERS, "mean_count": NOT_POSITIVE, "shape": (1.0, NAN), "rate": NOT_POSITIVE},
    "bootstrapped-dqn": {
        "heads": NOT_COUNTS,
        "epsilon": (-0.1, 1.1, NAN, "x"),
        "prior_scale": (NAN, -1.0, "x"),
        "noise_scale": (NAN, -1.0, "x"),
        "learning_rate": NOT_POSITIVE,
    },
    "abrl": {"particles": (1, 2.5, "x"), "prior": ("gaussian", 3, LacksDraw()), "rewards": NOT_NAMES},
}
ENVIRONMENT_OPTIONS = {
    "two-state": {"rewards": ([1.0], "ab", None, [NAN, 1.0], 3), "discount": (0.0, NAN, "x"), "depth": (3,)},
    "five-state": {"rewards": ([1.0], "abcd", [NAN, 1.0, 1.0, 1.0])},
    "bandit": {"means": ([], "ab", [[1.0]], [NAN], None), "noise": NOT_NAMES, "reward_sd": (-1.0, NAN, "x")},
    "river-swim": {"length": (1, 2.5, "x"), "discount": (0.0, 1.0, NAN, "x")},
    "random-mdp": {
        "num_states": (1, 2.5, "x"),
        "num_actions": NOT_COUNTS,
        "branching": NOT_COUNTS,
        "seed": NOT_SEEDS,
        "discount": (0.0, 1.5, NAN, "x"),
    },
    "deep-sea-loops": {"depth": (1, 2.5, "x", True)},
}
for name, options in AGENT_OPTIONS.items():
    METHODS[f"agent {name}"] = (lambda name=name, **given: qp.make_agent(name, MDP, horizon=3, **given)), options
for name, options in ENVIRONMENT_OPTIONS.items():
    METHODS[f"environment {name}"] = (lambda name=name, **given: qp.make_environment(name, **given)), options


def begun(agent):
    agent.begin_episode(0)
    return agent


def fitted():
    """A fit whose draws nothing here looks at."""
    return qp.Fit(chosen=None, posterior=posterior_of_hand(), checks=[], log=None)


NAMED = {
    qp.StateActionSpace,
    qp.FiniteMDP,
    qp.Experience.from_sums,
    METHODS["FiniteMDP with Bernoulli rewards"][0],
    METHODS["Experience.from_sums of one pair"][0],
    METHODS["posterior with a table"][0],
    gymnasium_mdp,
    reveal_to_new,
    reveal_again,
}
"""Those whose messages name the argument as well, by its own name."""


def name_of(function):
    return getattr(function, "__qualname__", str(function))


def bad_calls():
    for function, (good, arguments) in TABLE.items():
        for argument, values in arguments.items():
            for place, value in enumerate(values):
                yield pytest.param(function, good, argument, value, id=f"{name_of(function)}-{argument}-{place}")
    for name, (function, arguments) in METHODS.items():
        for argument, values in arguments.items():
            for place, value in enumerate(values):
                yield pytest.param(function, {}, argument, value, id=f"{name}-{argument}-{place}")


@pytest.mark.parametrize(("function", "good", "argument", "value"), list(bad_calls()))
def test_a_bad_call_is_refused_in_one_line(function, good, argument, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(qp.QPosteriorError) as caught:
        function(**(good | {argument: value}))
    message = str(caught.value)
    assert "\n" not in message
    assert 20 <= len(message) <= 400, message
    assert function not in NAMED or re.search(rf"\b{argument}\b", message), message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "good"), [pytest.param(f, good, id=name_of(f)) for f, (good, _) in TABLE.items() if f not in FILES]
)
def test_the_calls_that_the_table_spoils_work_as_they_are(function, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function(**good)


ON_REWARDS = {"prior": qp.RewardPrior(upper=-0.1), "transitions": MDP.transitions}
FEATURES = np.eye(2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "exact", "settings": qp.HMCSettings()}, "settings is for method hmc and tempering and smc"),
        ({"method": "exact", "settings": "nonsense"}, "not for 'exact'; leave it out"),
        ({"method": "exact", "progress_fn": print}, "progress_fn is for method hmc and tempering"),
        ({"method": "exact", "features": FEATURES, "tolerance": 0.1}, "features is for method hmc and tempering"),
        ({"method": "smc", "progress_fn": print}, "progress_fn is for"),
        ({"method": "smc", "features": FEATURES, "tolerance": 0.1}, "features is for"),
        ({"method": "smc", "max_cells": 10}, "max_cells is for method exact"),
        ({"method": "smc", "settings": qp.HMCSettings()}, "settings must be OneLookSettings here"),
        ({"method": "smc", "settings": qp.AnnealedSettings()}, "settings must be OneLookSettings here"),
        ({"method": "smc", "settings": qp.OneLookSettings(), "tolerance": 0.5}, "settings must be AnnealedSettings"),
        ({"method": "hmc", "max_cells": 10}, "max_cells is for method exact, not for 'hmc'"),
        ({"method": "tempering", "max_cells": 10, "tolerance": 0.1}, "max_cells is for"),
        ({"method": "hmc", "settings": qp.OneLookSettings()}, "settings must be HMCSettings here"),
        ({"noise": qp.Noise(), "kernel": "no-such"}, "a kernel belongs to a tolerance, not to noise"),
        ({"noise": qp.Noise(), "kernel": "uniform"}, "a kernel belongs to a tolerance, not to noise"),
        ({"noise": qp.Noise(), "tolerance": 0.1}, "exclude each other"),
        ({"noise": qp.Noise(), "tolerance": NAN}, "exclude each other"),
        ({"kernel": "uniform"}, "needs a positive tolerance"),
        (ON_REWARDS | {"method": "exact", "coordinates": "q"}, "a RewardPrior has its own way and coordinates"),
        (ON_REWARDS | {"method": "exact"}, "a RewardPrior has its own way"),
        (ON_REWARDS | {"method": "smc"}, "a RewardPrior has its own way"),
        (ON_REWARDS | {"coordinates": "q"}, "a RewardPrior has its own way"),
        (ON_REWARDS | {"settings": qp.HMCSettings()}, "leave `settings` out"),
        (ON_REWARDS | {"progress_fn": print}, "progress_fn is for a prior on Q"),
        (ON_REWARDS | {"features": FEATURES}, "features is for a prior on Q"),
        (ON_REWARDS | {"max_cells": 10}, "max_cells is for"),
        ({"transitions": NAN}, "transitions must be of type"),
        ({"seen": COUNTED, "features": FEATURES, "tolerance": 0.1}, "takes rows that are known"),
        ({"seen": COUNTED, "method": "exact"}, "unknown transitions are drawn with Q"),
        ({"seen": COUNTED, "coordinates": "q", "tolerance": 0.1}, "unknown transitions are drawn with Q"),
        (
            {"prior": "gaussian"},
            "a prior must have log_density_and_grad and draw, and 'gaussian' lacks log_density_and_grad, draw",
        ),
        ({"prior": LacksDraw()}, "lacks draw; give one"),
        ({"kernel": max}, "unknown kernel"),
    ],
)
def test_an_argument_that_would_be_ignored_is_refused(options, words):
    with pytest.raises(qp.InvalidInputError, match=words):
        qp.posterior(**({"seen": SEEN, "particles": 5} | options))


@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_a_prior_of_ones_own_that_has_everything_is_taken():
    class Mine(LacksDraw):
        def draw(self, num, space, rng):
            return qp.GaussianPrior().draw(num, space, rng)

    quick = qp.HMCSettings(chains=4, warm_up=40, max_iterations=40, block=40, min_ess=0.0)
    mine = qp.posterior(SEEN, prior=Mine(), settings=quick, particles=5)
    ours = qp.posterior(SEEN, prior=qp.GaussianPrior(), settings=quick, particles=5)
    np.testing.assert_allclose(mine.prob_optimal_table(), ours.prob_optimal_table(), atol=0.5)
    assert mine.settings["prior"] == {"name": "Mine"}
