"""Families of decision problems whose truth is known, and logs drawn from them.

Every problem is drawn anew from a seed: its size, its rows, its rewards and its noise. A family is a function
``(rng) -> Problem`` in `FAMILIES`, with one sentence about it in its docstring, which the page of results prints.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dense import Models, optimal_values, policy_values

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NoiseFn = Callable[[np.random.Generator, IntArray, IntArray, IntArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A finite decision problem and the way in which its log is drawn."""

    rows: FloatArray  # (S, A, S)  P(s' | s, a)
    reward: FloatArray  # (S, A, S)  mean reward given the successor
    noise: NoiseFn  # zero-mean noise of readings at (s, a, s'), all arrays of one length
    discount: float
    is_goal: NDArray[np.bool_]  # (S,)
    behaviour: FloatArray  # (S, A)  the policy that is logged; zero for pairs that are never tried
    is_balanced: bool = True  # equally many readings for each pair, instead of draws from `behaviour`

    @property
    def start(self) -> FloatArray:
        """The distribution of the states in which readings are taken: uniform over those that are no goals."""
        return ~self.is_goal / np.sum(~self.is_goal)

    @property
    def mean_reward(self) -> FloatArray:
        """R(s, a) = Σ P(s' | s, a) r(s, a, s')."""
        return np.einsum("sat,sat->sa", self.rows, self.reward)

    @property
    def models(self) -> Models:
        """The truth as a batch of one model, as the judge takes draws of models."""
        return Models.of(self.rows[None], self.mean_reward[None], discount=self.discount, is_goal=self.is_goal)


def exact(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """Return Q* (S, A) and V* (S,), both 0 in goals."""
    q, value, is_finite = optimal_values(problem.models)
    if not is_finite[0]:
        raise ValueError("the problem has no finite optimum: with discount 1 a loop pays, or a state has no way out")
    return _with_goals(problem, q[0]), _with_goals(problem, value[0])


def value_of(problem: Problem, policy: FloatArray) -> FloatArray:
    """Return V of a policy with probabilities (S, A), as an array (S,) that is 0 in goals."""
    value = policy_values(problem.models, policy[~problem.is_goal])
    return _with_goals(problem, value[0])


def _with_goals(problem: Problem, live: FloatArray) -> FloatArray:
    full = np.zeros((problem.is_goal.size, *live.shape[1:]))
    full[~problem.is_goal] = live
    return full


def draw_problem(family: str, seed: int) -> Problem:
    """Return the problem of a family that belongs to a seed."""
    return FAMILIES[family](np.random.default_rng([seed, zlib.crc32(family.encode())]))


def simulate(problem: Problem, readings: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return a log of `readings` rows per pair that is ever tried, each row an episode of its own."""
    state, action = _draw_pairs(problem, readings, rng)
    cumulative = np.cumsum(problem.rows, axis=2)[state, action]
    level = rng.random(state.size)[:, None] * cumulative[:, -1:]
    following = np.minimum(np.sum(cumulative <= level, axis=1), problem.is_goal.size - 1)
    reward = problem.reward[state, action, following] + problem.noise(rng, state, action, following)
    num_states, num_actions = problem.behaviour.shape
    states = np.array([f"s{s:02d}" for s in range(num_states)], dtype=object)
    actions = np.array([f"a{a}" for a in range(num_actions)], dtype=object)
    return pd.DataFrame(
        {
            "episode": np.arange(state.size),
            "state": states[state],
            "action": actions[action],
            "reward": reward,
            "next_state": states[following],
            "terminated": problem.is_goal[following],
        }
    )


def _draw_pairs(problem: Problem, readings: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    state, action = np.nonzero((problem.behaviour > 0) & ~problem.is_goal[:, None])
    if problem.is_balanced:
        chosen = np.repeat(np.arange(state.size), readings)
    else:
        probability = problem.start[state] * problem.behaviour[state, action]
        chosen = np.sort(rng.choice(state.size, readings * state.size, p=probability / probability.sum()))
    return state[chosen], action[chosen]


# --- pieces that several families share


def normal_noise(scale: FloatArray) -> NoiseFn:
    """Gaussian noise with a standard deviation per pair (S, A)."""
    return lambda rng, state, action, following: rng.normal(0.0, 1.0, state.size) * scale[state, action]


def _no_goals(num_states: int) -> NDArray[np.bool_]:
    return np.zeros(num_states, dtype=bool)


def _uniform(num_states: int, num_actions: int) -> FloatArray:
    return np.full((num_states, num_actions), 1.0 / num_actions)


def _plain(
    rows: FloatArray, mean_reward: FloatArray, discount: float, noise: NoiseFn, *, behaviour: FloatArray | None = None
) -> Problem:
    """A problem without goals whose rewards do not depend on the successor."""
    num_states, num_actions = mean_reward.shape
    return Problem(
        rows=rows,
        reward=np.repeat(mean_reward[:, :, None], num_states, axis=2),
        noise=noise,
        discount=discount,
        is_goal=_no_goals(num_states),
        behaviour=_uniform(num_states, num_actions) if behaviour is None else behaviour,
        is_balanced=behaviour is None,
    )


def _noise_scale(rng: np.random.Generator, num_states: int, num_actions: int) -> FloatArray:
    """Standard deviations that differ between states by a factor of three and hardly between actions."""
    by_state = rng.uniform(0.5, 1.5, (num_states, 1))
    return by_state * rng.uniform(0.9, 1.1, (num_states, num_actions))


def _around(rng: np.random.Generator, concentration: float, centre: FloatArray) -> FloatArray:
    """A row drawn from Dirichlet(concentration · centre), safe for tiny parameters."""
    gamma = rng.standard_gamma(concentration * centre) + 1e-12 * centre
    return gamma / gamma.sum()


def _similar(
    rng: np.random.Generator, *, num_states: int, num_actions: int, successors: int, concentration: float, spread: float
) -> tuple[FloatArray, FloatArray]:
    """Rows and mean rewards of actions that resemble each other: Dir(c p̄_s) and N(β_s, spread²), β_s ~ N(0, 1)."""
    rows = np.zeros((num_states, num_actions, num_states))
    for state in range(num_states):
        centre = np.zeros(num_states)
        centre[rng.choice(num_states, successors, replace=False)] = rng.dirichlet(np.ones(successors))
        for action in range(num_actions):
            rows[state, action] = _around(rng, concentration, centre)
    reward = rng.normal(0.0, 1.0, (num_states, 1)) + spread * rng.normal(0.0, 1.0, (num_states, num_actions))
    return rows, reward


def _garnet_rows(rng: np.random.Generator, num_states: int, num_actions: int, successors: int) -> FloatArray:
    """Unrelated rows: for each pair its own successors and Dirichlet(1) probabilities."""
    rows = np.zeros((num_states, num_actions, num_states))
    for state in range(num_states):
        for action in range(num_actions):
            chosen = rng.choice(num_states, successors, replace=False)
            rows[state, action, chosen] = rng.dirichlet(np.ones(successors))
    return rows


# --- the families


def near_equal(rng: np.random.Generator) -> Problem:
    """The actions of a state differ by a few hundredths of the noise in reward and hardly in their rows."""
    num_states, num_actions = int(rng.integers(8, 16)), int(rng.integers(3, 6))
    rows, reward = _similar(
        rng, num_states=num_states, num_actions=num_actions, successors=4, concentration=200.0, spread=0.05
    )
    noise = normal_noise(_noise_scale(rng, num_states, num_actions))
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), noise)


def garnet(rng: np.random.Generator) -> Problem:
    """Unrelated actions: each pair has three successors of its own and an independent reward."""
    num_states, num_actions = int(rng.integers(8, 21)), int(rng.integers(2, 6))
    rows = _garnet_rows(rng, num_states, num_actions, 3)
    reward = rng.normal(0.0, 1.0, (num_states, num_actions))
    noise = normal_noise(_noise_scale(rng, num_states, num_actions))
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), noise)


def slippery_grid(rng: np.random.Generator) -> Problem:
    """A grid with four directions that slips sideways, costs per cell and a paying goal; discount 0.95, 0.99 or 1."""
    height, width, slip = 4, int(rng.integers(4, 6)), rng.uniform(0.1, 0.3)
    num_states, moves = height * width, ((-1, 0), (0, 1), (1, 0), (0, -1))
    rows = np.zeros((num_states, 4, num_states))
    for state in range(num_states):
        for action in range(4):
            for turn, share in ((0, 1.0 - slip), (1, slip / 2), (3, slip / 2)):
                down, right = moves[(action + turn) % 4]
                y = min(max(state // width + down, 0), height - 1)
                x = min(max(state % width + right, 0), width - 1)
                rows[state, action, y * width + x] += share
    rows[-1], rows[-1, :, -1] = 0.0, 1.0
    entering = -rng.uniform(0.5, 2.0, num_states)
    entering[-1] = rng.uniform(5.0, 15.0)
    reward = np.tile(entering, (num_states, 4, 1))
    reward[-1] = 0.0
    return Problem(
        rows=rows,
        reward=reward,
        noise=normal_noise(np.full((num_states, 4), rng.uniform(0.3, 1.0))),
        discount=float(rng.choice([0.95, 0.99, 1.0])),
        is_goal=np.arange(num_states) == num_states - 1,
        behaviour=_uniform(num_states, 4),
    )


def clinical(rng: np.random.Generator) -> Problem:
    """A pathway over grades of illness to recovery or death; treatments cost, help and harm; discount 0.99 or 1."""
    grades, num_actions = int(rng.integers(5, 10)), int(rng.integers(2, 5))
    recovered, died = grades, grades + 1
    rows = np.zeros((grades + 2, num_actions, grades + 2))
    efficacy, toxicity = rng.uniform(0.15, 0.5, num_actions), rng.uniform(0.002, 0.04, num_actions)
    for grade in range(grades):
        severity = (grade + 1) / grades
        for action in range(num_actions):
            death = toxicity[action] + 0.12 * severity**2 * rng.uniform(0.7, 1.3)
            better = efficacy[action] * rng.uniform(0.8, 1.2)
            worse = (0.1 + 0.2 * severity) * (1.0 - efficacy[action])
            row = rows[grade, action]
            row[died] += death
            row[grade - 1 if grade else recovered] += better
            row[grade + 1 if grade + 1 < grades else died] += worse
            row[grade] += 1.0 - row.sum()
    rows[grades:, :] = np.eye(grades + 2)[grades:, None, :]
    reward = np.zeros_like(rows)
    reward -= rng.uniform(0.2, 2.0, num_actions)[None, :, None] + 0.1 * np.arange(grades + 2)[:, None, None]
    reward[:, :, recovered] += rng.uniform(5.0, 15.0)
    reward[:, :, died] -= rng.uniform(20.0, 50.0)
    reward[grades:] = 0.0
    return Problem(
        rows=rows,
        reward=reward,
        noise=normal_noise(np.full((grades + 2, num_actions), rng.uniform(0.3, 1.0))),
        discount=float(rng.choice([0.99, 1.0])),
        is_goal=np.arange(grades + 2) >= grades,
        behaviour=_uniform(grades + 2, num_actions),
    )


def inventory(rng: np.random.Generator) -> Problem:
    """Stock and orders: the rows of all orders are shifted copies of one distribution of demand."""
    capacity, num_actions = int(rng.integers(7, 13)), int(rng.integers(4, 7))
    demand = stats.poisson.pmf(np.arange(4 * capacity), rng.uniform(1.5, 3.5))
    price, cost, holding = rng.uniform(4.0, 6.0), rng.uniform(1.5, 3.0), rng.uniform(0.1, 0.4)
    num_states = capacity + 1
    rows, reward = np.zeros((num_states, num_actions, num_states)), np.zeros((num_states, num_actions, num_states))
    for stock in range(num_states):
        for order in range(num_actions):
            available = min(stock + order, capacity)
            for left in range(available + 1):
                wanted = available - left
                rows[stock, order, left] = demand[wanted] if left else demand[wanted:].sum()
                reward[stock, order, left] = price * wanted - holding * left - cost * (available - stock)
    rows /= rows.sum(axis=2, keepdims=True)
    return Problem(
        rows=rows,
        reward=reward,
        noise=normal_noise(np.full((num_states, num_actions), rng.uniform(0.2, 1.0))),
        discount=float(rng.choice([0.9, 0.95])),
        is_goal=_no_goals(num_states),
        behaviour=_uniform(num_states, num_actions),
    )


def maintenance(rng: np.random.Generator) -> Problem:
    """A machine that wears out while it runs; it can be repaired, at a price, or replaced, at a larger one."""
    num_states, discount = int(rng.integers(6, 13)), float(rng.choice([0.9, 0.95]))
    broken = num_states - 1
    rows, reward = np.zeros((num_states, 3, num_states)), np.zeros((num_states, 3))
    for wear in range(num_states):
        if wear < broken:
            for step, share in enumerate(rng.dirichlet([3.0, 4.0, 2.0, 0.7])):
                rows[wear, 0, min(wear + step, broken)] += share
        else:
            rows[wear, 0, broken] = 1.0
        for step, share in enumerate(rng.dirichlet([1.0, 2.0, 3.0, 2.0])):
            rows[wear, 1, max(wear - step, 0)] += share
        rows[wear, 2, 0], rows[wear, 2, min(1, broken)] = 0.9, 0.1
    level = np.arange(num_states) / broken
    reward[:, 0] = rng.uniform(4.0, 6.0) - rng.uniform(3.0, 6.0) * level**2
    reward[broken, 0] = -rng.uniform(3.0, 8.0)
    reward[:, 1] = -rng.uniform(0.5, 1.5) - rng.uniform(0.5, 2.0) * level
    reward[:, 2] = -rng.uniform(3.0, 6.0)
    scale = np.tile(rng.uniform(0.2, 1.5, 3), (num_states, 1)) * (0.5 + level[:, None])
    return _plain(rows, reward, discount, normal_noise(scale))


def marketing(rng: np.random.Generator) -> Problem:
    """Campaigns for 24 classes of customers: purchases are rare and large, and the 8 campaigns are nearly alike."""
    num_states, num_actions = 24, 8
    rows, _ = _similar(
        rng, num_states=num_states, num_actions=num_actions, successors=6, concentration=150.0, spread=0.0
    )
    chance = rng.uniform(0.02, 0.2, (num_states, 1)) * rng.lognormal(0.0, 0.1, (num_states, num_actions))
    amount = np.repeat(rng.lognormal(np.log(40.0), 0.6, (num_states, 1)), num_actions, axis=1)
    cost = np.tile(rng.uniform(0.0, 0.5, num_actions), (num_states, 1))

    def noise(rng: np.random.Generator, state: IntArray, action: IntArray, following: IntArray) -> FloatArray:
        bought = rng.random(state.size) < chance[state, action]
        paid = amount[state, action] * rng.gamma(2.0, 0.5, state.size)
        return bought * paid - chance[state, action] * amount[state, action]

    return _plain(rows, chance * amount - cost, 0.99, noise)


def successor_good(rng: np.random.Generator) -> Problem:
    """A ladder whose rewards are decided by the rung that is reached: good rewards go with good successors."""
    num_states, num_actions = int(rng.integers(8, 16)), int(rng.integers(2, 5))
    rows = np.zeros((num_states, num_actions, num_states))
    for state in range(num_states):
        centre = rng.dirichlet([4.0, 4.0, 3.0, 1.5])
        for action in range(num_actions):
            for step, share in zip((-1, 0, 1, 2), _around(rng, 40.0, centre), strict=True):
                rows[state, action, min(max(state + step, 0), num_states - 1)] += share
    rung = np.arange(num_states) + rng.normal(0.0, 0.3, num_states)
    reward = rng.uniform(0.5, 2.0) * rung - 0.3 * rng.random((num_states, num_actions, 1))
    scale = np.full((num_states, num_actions), rng.uniform(0.1, 0.5))
    return Problem(
        rows=rows,
        reward=np.broadcast_to(reward, rows.shape),
        noise=normal_noise(scale),
        discount=float(rng.uniform(0.85, 0.95)),
        is_goal=_no_goals(num_states),
        behaviour=_uniform(num_states, num_actions),
    )


def successor_bad(rng: np.random.Generator) -> Problem:
    """A shop whose sales pay now and leave less stock: good rewards go with bad successors."""
    num_states, num_actions = int(rng.integers(7, 13)), int(rng.integers(2, 5))
    full, delivery = num_states - 1, rng.uniform(0.1, 0.25)
    prices = np.sort(rng.uniform(3.0, 6.0, num_actions))
    wanted = rng.uniform(1.2, 2.5) * (prices / prices.mean()) ** -rng.uniform(0.5, 1.5)
    rows, paid = np.zeros((num_states, num_actions, num_states)), np.zeros((num_states, num_actions, num_states))
    for stock in range(num_states):
        for action in range(num_actions):
            demand = stats.poisson.pmf(np.arange(stock), wanted[action] * rng.uniform(0.9, 1.1))
            for sold, share in enumerate([*demand, 1.0 - demand.sum()]):
                for following, probability in ((stock - sold, share * (1 - delivery)), (full, share * delivery)):
                    rows[stock, action, following] += probability
                    paid[stock, action, following] += probability * prices[action] * sold
    reward = np.divide(paid, rows, out=np.zeros_like(paid), where=rows > 0)
    return Problem(
        rows=rows,
        reward=reward,
        noise=normal_noise(np.full((num_states, num_actions), rng.uniform(0.2, 0.8))),
        discount=float(rng.choice([0.9, 0.95])),
        is_goal=_no_goals(num_states),
        behaviour=_uniform(num_states, num_actions),
    )


def null_identical(rng: np.random.Generator) -> Problem:
    """All actions of a state are identical: no policy is better than the logged one."""
    num_states, num_actions = int(rng.integers(6, 16)), int(rng.integers(2, 7))
    rows = np.repeat(_garnet_rows(rng, num_states, 1, int(rng.integers(3, 6))), num_actions, axis=1)
    reward = np.repeat(rng.normal(0.0, 1.0, (num_states, 1)), num_actions, axis=1)
    scale = np.repeat(rng.uniform(0.5, 1.5, (num_states, 1)), num_actions, axis=1)
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), normal_noise(scale))


def null_optimal(rng: np.random.Generator) -> Problem:
    """The logged policy is optimal: in each state only actions that tie for best were ever taken."""
    base = garnet(rng)
    num_states, num_actions = base.behaviour.shape
    value = exact(base)[1]
    is_best = rng.random((num_states, num_actions)) < 0.5
    # Every state has a best action, and every action is best somewhere, so that the log knows of it.
    is_best[np.arange(num_states), rng.permutation(num_states) % num_actions] = True
    gap = np.where(is_best, 0.0, rng.uniform(0.3, 2.0, is_best.shape))
    reward = value[:, None] - gap - base.discount * base.rows @ value
    weight = np.where(is_best, rng.standard_gamma(2.0, is_best.shape) + 0.1, 0.0)
    return _plain(base.rows, reward, base.discount, base.noise, behaviour=weight / weight.sum(axis=1, keepdims=True))


def unbalanced(rng: np.random.Generator) -> Problem:
    """Somewhat similar actions, logged by a policy that prefers some of them and never tries others."""
    num_states, num_actions = int(rng.integers(8, 16)), int(rng.integers(3, 6))
    rows, reward = _similar(
        rng, num_states=num_states, num_actions=num_actions, successors=4, concentration=10.0, spread=0.5
    )
    weight = rng.dirichlet(np.full(num_actions, 0.5), num_states)
    weight[weight < 0.03] = 0.0
    weight[np.arange(num_actions), np.arange(num_actions)] += 0.2  # every action is known of
    noise = normal_noise(_noise_scale(rng, num_states, num_actions))
    behaviour = weight / weight.sum(axis=1, keepdims=True)
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), noise, behaviour=behaviour)


def deterministic_rows(rng: np.random.Generator) -> Problem:
    """Each pair has one successor; rewards are noisy."""
    num_states, num_actions = int(rng.integers(8, 21)), int(rng.integers(2, 5))
    rows = np.eye(num_states)[rng.integers(0, num_states, (num_states, num_actions))]
    reward = rng.normal(0.0, 1.0, (num_states, num_actions))
    noise = normal_noise(_noise_scale(rng, num_states, num_actions))
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), noise)


def deterministic_rewards(rng: np.random.Generator) -> Problem:
    """Each pair pays the same reward every time; rows are random."""
    base = garnet(rng)
    return replace(base, noise=lambda rng, state, action, following: np.zeros(state.size))


def many_actions(rng: np.random.Generator) -> Problem:
    """Ten actions in few states, somewhat similar to each other."""
    num_states = int(rng.integers(5, 9))
    rows, reward = _similar(rng, num_states=num_states, num_actions=10, successors=4, concentration=10.0, spread=0.3)
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), normal_noise(_noise_scale(rng, num_states, 10)))


def wide_rows(rng: np.random.Generator) -> Problem:
    """Unrelated rows over ten to fifteen successors, many of which a short log has not seen."""
    num_states, num_actions = int(rng.integers(20, 31)), int(rng.integers(2, 4))
    rows = _garnet_rows(rng, num_states, num_actions, int(rng.integers(10, 16)))
    reward = rng.normal(0.0, 1.0, (num_states, num_actions))
    noise = normal_noise(_noise_scale(rng, num_states, num_actions))
    return _plain(rows, reward, float(rng.uniform(0.9, 0.95)), noise)


def wins_and_losses(rng: np.random.Generator) -> Problem:
    """Rewards of 0 or 1: a few trials of a pair are often all alike, which says nothing of its noise."""
    num_states, num_actions = int(rng.integers(8, 16)), int(rng.integers(3, 6))
    rows, _ = _similar(
        rng, num_states=num_states, num_actions=num_actions, successors=4, concentration=20.0, spread=0.0
    )
    chance = rng.beta(2.0, 5.0, (num_states, 1)) + rng.normal(0.0, 0.08, (num_states, num_actions))
    chance = np.clip(chance, 0.02, 0.98)

    def noise(rng: np.random.Generator, state: IntArray, action: IntArray, following: IntArray) -> FloatArray:
        return (rng.random(state.size) < chance[state, action]) - chance[state, action]

    return _plain(rows, chance, float(rng.uniform(0.9, 0.95)), noise)


def chain(rng: np.random.Generator) -> Problem:
    """A line whose far end pays most: one action goes back surely, the other goes on, stays or slips back."""
    num_states = int(rng.integers(10, 19))
    rows, reward = np.zeros((num_states, 2, num_states)), np.zeros((num_states, 2))
    for state in range(num_states):
        on = rng.uniform(0.5, 0.8)
        rows[state, 0, max(state - 1, 0)] = 1.0
        for following, share in ((state + 1, on), (state, 0.3 * (1.0 - on)), (state - 1, 0.7 * (1.0 - on))):
            rows[state, 1, min(max(following, 0), num_states - 1)] += share
    reward[0, 0], reward[-1, 1] = 0.2, 1.0
    return _plain(rows, reward, float(rng.uniform(0.95, 0.98)), normal_noise(np.full((num_states, 2), 0.3)))


FAMILIES: dict[str, Callable[[np.random.Generator], Problem]] = {
    family.__name__: family
    for family in (
        near_equal,
        garnet,
        slippery_grid,
        clinical,
        inventory,
        maintenance,
        marketing,
        successor_good,
        successor_bad,
        null_identical,
        null_optimal,
        unbalanced,
        deterministic_rows,
        deterministic_rewards,
        many_actions,
        wide_rows,
        wins_and_losses,
        chain,
    )
}
NULL_FAMILIES = ("null_identical", "null_optimal")
