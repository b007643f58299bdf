"""The truth: the optimal action-value function of a known MDP, and whether it is well defined."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qposterior.checks import check_type
from qposterior.errors import NoUniqueSolutionError, name_states
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.mdp import FiniteMDP
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import inescapable_set, recurrent_class, state_graph, steps_to

TIE = 1e-10
"""Values closer than this, relative to the largest one, count as equal."""

WARM_START_SWEEPS = 200

LONGEST = 1e12
"""Expected steps of a policy beyond which its values are lost to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Q*, V* and a greedy policy of an MDP."""

    q: FloatArray  # (S, A)  nan where inadmissible, 0 at goals
    value: FloatArray  # (S,)
    policy: IntArray  # (S,)  lowest optimal action, −1 at goals
    pair_q: FloatArray  # (K,)  the same Q* in the flat layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniqueness:
    """What is true of the two halves of the paper's assumption boeunique (discount 1)."""

    trapped_states: IntArray  # states from which no goal can be reached: empty = a proper policy exists
    surviving_loop: IntArray  # states of a loop whose mean reward is not negative: empty = improper policies lose all
    loop_mean_reward: float  # of that loop, nan where there is none

    @property
    def proper_policy_exists(self) -> bool:
        """Whether a goal can be reached from every state."""
        return self.trapped_states.size == 0

    @property
    def improper_policies_lose(self) -> bool:
        """Whether every policy that fails to reach a goal loses infinitely somewhere."""
        return self.surviving_loop.size == 0

    @property
    def holds(self) -> bool:
        """Whether the Bellman optimality equations have Q* as their only solution."""
        return self.proper_policy_exists and self.improper_policies_lose


def solve(mdp: FiniteMDP) -> Solution:
    """Return Q*, V* and a greedy policy by policy iteration on sparse rows.

    Discount 1 is the stochastic shortest path case: the iteration starts from a proper policy, and an MDP that breaks
    the paper's assumption boeunique raises `NoUniqueSolutionError` with the states of the trap or loop.
    """
    check_type("mdp", mdp, FiniteMDP)
    if mdp.space.discount == 1.0:
        report, q = _solve_undiscounted(mdp)
        _raise_unless_unique(report, mdp.space.num_states)
    else:
        q = _policy_iteration(mdp, _warm_start(mdp))[0]
    value = mdp.space.maximum(q)
    tolerance = TIE * _scale(q)
    return Solution(q=mdp.space.to_table(q), value=value, policy=mdp.space.greedy(q, tolerance), pair_q=q)


def check_uniqueness(mdp: FiniteMDP) -> Uniqueness:
    """Return whether a proper policy exists from every state and whether improper policies all lose infinitely."""
    check_type("mdp", mdp, FiniteMDP)
    return _solve_undiscounted(mdp)[0]


def evaluate_policy(mdp: FiniteMDP, policy_pairs: IntArray, *, exits: FloatArray | None = None) -> FloatArray:
    r"""Return ``(S,)`` V^π: the solution of (I − γ P_π) V = r_π over the non-goal states.

    `policy_pairs` holds one pair per non-goal state. `exits`, where finite, is a payoff for leaving a state at once.
    """
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components
    from scipy.sparse.linalg import splu

    states = mdp.space.deciding_states
    step = sp.csr_array(mdp.transitions.matrix[policy_pairs][:, states])
    payoff = mdp.rewards[policy_pairs].copy()
    if exits is not None:
        leaving = np.isfinite(exits[states])
        payoff[leaving] = exits[states][leaving]
        step = sp.diags_array((~leaving).astype(float)) @ step
    system = sp.csc_array(sp.eye_array(states.size) - mdp.space.discount * step)
    value = np.zeros(mdp.space.num_states)
    count, component = connected_components(step, directed=True, connection="strong")
    if count == states.size:
        # No state returns to itself by way of another: in the order of the components the system is triangular, and its
        # factors are as sparse as it is. (An order by columns, as below, would fill them.)
        order = np.argsort(component)
        factors = splu(system[order][:, order], permc_spec="NATURAL", diag_pivot_thresh=0.0)
        value[states[order]] = factors.solve(payoff[order])
    else:
        value[states] = splu(system).solve(payoff)
    return value


def _solve_undiscounted(mdp: FiniteMDP) -> tuple[Uniqueness, FloatArray]:
    """Return the report on assumption boeunique and Q* (meaningful where it holds).

    Policy iteration from a proper policy: an improved policy that is improper has a recurrent class of positive mean
    reward. At the end V ≥ r + P V for every pair, with equality all along a class of mean 0, so the pairs that hold
    with equality contain every loop of mean 0. Trapped states get an artificial exit, so that loops are found anyway.
    """
    space = mdp.space
    distance = steps_to(state_graph(space, mdp.transitions), space.goals)
    trapped = np.isinf(distance)
    exits = np.where(trapped, -1.0 - np.abs(mdp.rewards).max(), np.nan)
    warm = _warm_start(mdp)
    start = warm if _is_proper(mdp, warm, exits) else _approaching_policy(mdp, np.where(trapped, 0.0, distance))
    q, loop = _policy_iteration(mdp, start, exits=exits)
    if loop.size == 0:
        value = np.where(trapped, np.fmax(space.maximum(q), exits), space.maximum(q))
        tight = q >= value[space.pair_state] - TIE * _scale(q)
        staying = inescapable_set(space, mdp.transitions, tight)
        if staying.any():
            inside = tight & staying[space.pair_state] & (mdp.transitions.expect((~staying).astype(float)) == 0.0)
            loop = recurrent_class(space, mdp.transitions, inside)
    report = Uniqueness(
        trapped_states=np.flatnonzero(trapped),
        surviving_loop=loop,
        loop_mean_reward=float("nan") if loop.size == 0 else _mean_reward(mdp, loop, q),
    )
    return report, q


def _policy_iteration(
    mdp: FiniteMDP, policy: IntArray, *, exits: FloatArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Return ``(K,)`` Q* and no states, or, where an improved policy is improper, the states of its paying loop."""
    space = mdp.space
    leaving, before = exits, -np.inf
    while True:
        value = _checked_values(mdp, policy, leaving)
        q = mdp.rewards + space.discount * mdp.transitions.expect(value)
        best = space.maximum(q)
        better = best[space.deciding_states] > value[space.deciding_states] + TIE * _scale(q)
        # Without rounding every round raises some value and lowers none; with it, equal policies could take turns.
        if not better.any() or value.sum() <= before:
            return q, np.empty(0, dtype=np.int64)
        before = value.sum()
        policy = np.where(better, _best_pairs(space, q), policy)
        if leaving is not None:
            leaving = leaving.copy()
            leaving[space.deciding_states[better]] = np.nan
            if not _is_proper(mdp, policy, leaving):
                kept = np.zeros(space.num_pairs, dtype=bool)
                kept[policy[np.isnan(leaving[space.deciding_states])]] = True
                reach = steps_to(state_graph(space, mdp.transitions, kept), _ends(mdp, leaving))
                kept[policy] &= np.isinf(reach[space.deciding_states])
                return q, recurrent_class(space, mdp.transitions, kept)


def _checked_values(mdp: FiniteMDP, policy: IntArray, exits: FloatArray | None) -> FloatArray:
    """Return V of a policy, or raise where it leaves so rarely that I − γ P is singular up to rounding."""
    payoffs = mdp.rewards if exits is None else np.append(mdp.rewards, exits[np.isfinite(exits)])
    try:
        value = evaluate_policy(mdp, policy, exits=exits)
    except RuntimeError:  # "Factor is exactly singular"
        value = np.where(mdp.space.is_goal, 0.0, np.inf)
    lost = np.flatnonzero(~(np.abs(value) <= LONGEST * np.abs(payoffs).max()))
    if lost.size:
        raise NoUniqueSolutionError(
            f"from {name_states(lost)} a goal is reached so rarely (after more than {LONGEST:g} steps) that rounding "
            "decides the values; raise the probabilities that lead to a goal",
            lost,
        )
    return value


def _best_pairs(space: StateActionSpace, q: FloatArray) -> IntArray:
    """Return the first of the pairs of largest q of each non-goal state."""
    is_best = q == space.maximum(q)[space.pair_state]
    candidate = np.where(is_best, np.arange(q.size), q.size)
    return np.minimum.reduceat(candidate, space.first_pair[space.deciding_states])


def _warm_start(mdp: FiniteMDP) -> IntArray:
    """Return the greedy pairs after a few sweeps of value iteration: exact already where paths are short."""
    space = mdp.space
    value = np.zeros(space.num_states)
    q = mdp.rewards
    for _ in range(WARM_START_SWEEPS):
        q = mdp.rewards + space.discount * mdp.transitions.expect(value)
        following = space.maximum(q)
        if np.array_equal(following, value):
            break
        value = following
    return _best_pairs(space, q)


def _approaching_policy(mdp: FiniteMDP, distance: FloatArray) -> IntArray:
    """Return for each non-goal state a pair that may lead closer to a goal: a proper policy."""
    nearest = np.minimum.reduceat(distance[mdp.transitions.successor], mdp.transitions.row_start[:-1])
    return _best_pairs(mdp.space, -nearest)


def _is_proper(mdp: FiniteMDP, policy: IntArray, exits: FloatArray) -> bool:
    kept = np.zeros(mdp.space.num_pairs, dtype=bool)
    kept[policy] = True
    return bool(np.isfinite(steps_to(state_graph(mdp.space, mdp.transitions, kept), _ends(mdp, exits))).all())


def _ends(mdp: FiniteMDP, exits: FloatArray) -> IntArray:
    return np.flatnonzero(mdp.space.is_goal | np.isfinite(exits))


def _mean_reward(mdp: FiniteMDP, loop: IntArray, q: FloatArray) -> float:
    """Return the long-run mean reward of staying in the loop, its pairs chosen greedily among those that stay."""
    import scipy.sparse as sp
    from scipy.sparse.linalg import lsqr

    inside = np.zeros(mdp.space.num_states, dtype=bool)
    inside[loop] = True
    stays = inside[mdp.space.pair_state] & (mdp.transitions.expect((~inside).astype(float)) == 0.0)
    best = np.full(mdp.space.num_states, -1)
    best[mdp.space.deciding_states] = _best_pairs(mdp.space, np.where(stays, q, -np.inf))
    pairs = best[loop]
    step = mdp.transitions.matrix[pairs][:, loop]
    system = sp.vstack([step.T - sp.eye_array(loop.size), np.ones((1, loop.size))])
    stationary = lsqr(system, np.append(np.zeros(loop.size), 1.0), atol=1e-12, btol=1e-12)[0]
    return float(stationary @ mdp.rewards[pairs])


def _raise_unless_unique(report: Uniqueness, num_states: int) -> None:
    if not report.proper_policy_exists:
        remedy = "add a goal, or a transition that leads to one"
        if report.trapped_states.size == num_states:
            remedy = "there is no goal: add one, or give a problem that never ends a discount below 1"
        raise NoUniqueSolutionError(
            f"no goal can be reached from {name_states(report.trapped_states)}; with discount 1 every state needs a "
            f"way out ({remedy})",
            report.trapped_states,
        )
    if not report.improper_policies_lose:
        raise NoUniqueSolutionError(
            f"one can stay in {name_states(report.surviving_loop)} for ever at a mean reward of "
            f"{report.loop_mean_reward:.3g} a step; with discount 1 every loop must lose "
            "(add a step cost: step_cost=0.001 where the environment is Gymnasium's)",
            report.surviving_loop,
        )


def _scale(q: FloatArray) -> float:
    return max(1.0, float(np.abs(q).max()))
