"""Small problems and independent oracles that several tests share. Nothing here uses the package's own algorithms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import qposterior as qp

KNOWN = json.loads((Path(__file__).parent / "data" / "known_values.json").read_text())

SHAPES = {
    "acyclic": {"acyclic": True},
    "looping": {},
    "discounted": {"branching": 2, "discount": 0.9},
    "deterministic loops": {"deterministic": True, "discount": 0.9},
    "deterministic, discount 1": {"deterministic": True},
}


def looping_two_state():
    """The known looping example with its experience."""
    known = KNOWN["looping_two_state"]
    transitions = np.zeros((3, 2, 3))
    transitions[:2] = np.array(known["transitions_rows_for_pairs_00_01_10_11"]).reshape(2, 2, 3)
    rewards = np.zeros((3, 2))
    rewards[:2] = np.array(known["rewards"]).reshape(2, 2)
    mdp = qp.FiniteMDP.from_arrays(transitions, rewards, goal=[2])
    return mdp, qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])


def random_problem(shape, seed, *, num_states=5, share=0.6, **options):
    """A random MDP of a shape, and the experience of about `share` of its pairs."""
    options = SHAPES[shape] | options
    if options.pop("deterministic", False):
        mdp = deterministic_mdp(num_states, seed, **options)
    else:
        mdp = qp.make_environment("random-mdp", num_states=num_states, seed=seed, **options)
    rng = np.random.default_rng(seed)
    pairs = zip(mdp.space.pair_state.tolist(), mdp.space.pair_action.tolist(), strict=True)
    return mdp, qp.Experience.of_pairs(mdp, [pair for pair in pairs if rng.random() < share])


def deterministic_mdp(num_states, seed, discount=1.0):
    """Action 0 leads to any state, action 1 to the next one: loops everywhere, and always a way to the goal."""
    rng = np.random.default_rng(seed)
    edges = []
    for s in range(num_states - 1):
        edges.append((s, 0, int(rng.integers(num_states)), 1.0, -abs(rng.standard_normal()) - 0.1))
        edges.append((s, 1, s + 1, 1.0, -abs(rng.standard_normal()) - 0.1))
    return qp.FiniteMDP.from_edges(edges, goal=[num_states - 1], discount=discount)


def noisy_experience(mdp, pairs, *, sd=1.0, readings=4, seed=0):
    """Readings around the mean rewards of some pairs, rows revealed."""
    rng = np.random.default_rng(seed)
    seen = qp.Experience(mdp.space, rewards="noisy")
    for state, action in pairs:
        k = mdp.space.pair(state, action)
        row = mdp.transitions.row(k)
        for _ in range(readings):
            seen.record(state, action, mdp.rewards[k] + sd * rng.standard_normal(), int(row[0][0]), row=row)
    return seen


def dense_rows(seen):
    """(K, S) rows of the observed pairs, zero elsewhere."""
    rows = np.zeros((seen.space.num_pairs, seen.space.num_states))
    for k in seen.observed_pairs:
        successors, probabilities = seen.row(int(k))
        rows[k, successors] = probabilities
    return rows


def values_of(space, theta):
    """V(s) = max over the pairs of s, 0 at goals, by a plain loop."""
    value = np.zeros((*theta.shape[:-1], space.num_states))
    for s in range(space.num_states):
        if not space.is_goal[s]:
            value[..., s] = theta[..., space.first_pair[s] : space.first_pair[s + 1]].max(axis=-1)
    return value


def implied_rewards(seen, theta):
    """g_k(θ) of the observed pairs."""
    expected = values_of(seen.space, theta) @ dense_rows(seen).T
    return (theta - seen.space.discount * expected)[..., seen.observed_pairs]


def slow_solution(seen, psi, sweeps=50_000):
    """θ of ψ by value iteration from far below: the smallest solution."""
    space, rows = seen.space, dense_rows(seen)
    value = np.where(space.is_goal, 0.0, -1e4)
    for _ in range(sweeps):
        theta = psi + space.discount * rows @ value
        new = values_of(space, theta)
        if np.abs(new - value).max() < 1e-13:
            break
        value = new
    return theta


def log_determinant(seen, theta):
    """log det(I − γ P_π) over the states whose greedy pair is observed, densely."""
    space, rows = seen.space, dense_rows(seen)
    policy = np.zeros((space.num_states, space.num_states))
    for s in space.deciding_states:
        pairs = np.arange(space.first_pair[s], space.first_pair[s + 1])
        greedy = pairs[np.argmax(theta[pairs])]
        policy[s] = rows[greedy]
    policy[:, space.is_goal] = 0.0
    return np.linalg.slogdet(np.eye(space.num_states) - space.discount * policy)[1]


def weighted_optimality(space, theta, weights):
    """(K,) weighted frequency with which each pair is the best of its state."""
    best = values_of(space, theta)[:, space.pair_state]
    return weights @ (theta == best) / weights.sum()


def importance_sample(seen, scale, tolerance, num, seed):
    """Draws of θ and weights for the Gaussian prior N(0, scale²): brute force, no cells and no chains.

    Tolerance 0 draws φ from the prior, solves for θ_O and weighs by prior(θ_O) / det; a positive tolerance draws θ from
    the prior and weighs by the kernel.
    """
    rng = np.random.default_rng(seed)
    if tolerance > 0.0:
        theta = rng.normal(0.0, scale, (num, seen.space.num_pairs))
        gap = implied_rewards(seen, theta) - seen.reward_mean[seen.observed_pairs]
        return theta, np.exp(-0.5 * np.sum((gap / tolerance) ** 2, axis=1))
    psi = rng.normal(0.0, scale, (num, seen.space.num_pairs))
    psi[:, seen.observed_pairs] = seen.reward_mean[seen.observed_pairs]
    theta = np.array([slow_solution(seen, row) for row in psi])
    log_det = np.array([log_determinant(seen, row) for row in theta])
    log_weight = -0.5 * np.sum((theta[:, seen.observed_pairs] / scale) ** 2, axis=1) - log_det
    return theta, np.exp(log_weight - log_weight.max())


def competing_hub():
    """Ten states (−10 each) into a hub: an unseen action x against a seen one (+4) into a state with an unseen z.

    Two modes that no short trajectory crosses between; P(x is optimal) is known by quadrature (`many_modes`).
    """
    hub, room, goal = 10, 11, 12
    edges = [(s, 0, hub, 1.0, -10.0) for s in range(hub)]
    edges += [(hub, 0, goal, 1.0, 0.0), (hub, 1, room, 1.0, 4.0), (room, 0, goal, 1.0, 0.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[goal])
    return mdp, qp.Experience.of_pairs(mdp, [*((s, 0) for s in range(hub)), (hub, 1)])


def symmetric_hub():
    """Five states (−8 each) into a hub with two unseen actions: each is optimal with probability 1/2."""
    hub, goal = 5, 6
    edges = [(s, 0, hub, 1.0, -8.0) for s in range(hub)]
    edges += [(hub, a, goal, 1.0, 0.0) for a in (0, 1)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[goal])
    return mdp, qp.Experience.of_pairs(mdp, [(s, 0) for s in range(hub)])


def deep_hub(losing=4, paying=1, gain=7.0, loss=16.0, pay=20.0):
    """A hub whose two actions were both seen: which is best is decided by the untried actions of the rooms behind it.

    `losing` states (−loss) lead to the hub, `paying` ones (+pay) into the first room; the hub's actions pay ±gain.
    """
    hub = losing + paying
    first, second, goal = hub + 1, hub + 2, hub + 3
    edges = [(s, 0, hub, 1.0, -loss) for s in range(losing)] + [(losing + j, 0, first, 1.0, pay) for j in range(paying)]
    edges += [(hub, 0, first, 1.0, gain), (hub, 1, second, 1.0, -gain)]
    edges += [(first, 0, goal, 1.0, 0.0), (second, 0, goal, 1.0, 0.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[goal])
    return mdp, qp.Experience.of_pairs(mdp, [*((s, 0) for s in range(hub)), (hub, 0), (hub, 1)])


def diamonds(count=6):
    """A hub of an untried action and a way whose every step has a twin: the same two rewards in the other order.

    Values of twins are equal but for rounding, and which is larger changes with the last digit of what the way ends at.
    """
    goal, tried = 3 * count + 2, [(0, 1)]
    edges = [(goal - 1, 0, goal, 1.0, 0.0), (0, 0, goal, 1.0, 0.0), (0, 1, 1, 1.0, -4.0)]
    for hub in range(1, goal - 1, 3):
        one, other, following = hub + 1, hub + 2, hub + 3
        edges += [(hub, 0, one, 1.0, 0.1), (one, 0, following, 1.0, 0.7)]
        edges += [(hub, 1, other, 1.0, 0.7), (other, 0, following, 1.0, 0.1)]
        tried += [(hub, 0), (hub, 1), (one, 0), (other, 0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[goal])
    return mdp, qp.Experience.of_pairs(mdp, tried)


def rooms(options, *, losses, chain=()):
    """States that lead to a hub, each at a loss, and a chain of states into it: the MDP and what was seen of it.

    `options` are the hub's actions: None was never tried; (reward, n) was, and leads to a room of n untried actions.
    `chain` holds (reward, whether there is an untried action beside) of the states on a way to the hub, farthest first.
    """
    hub = len(losses) + len(chain)
    goal = hub + 1 + sum(option is not None for option in options)
    edges = [(s, 0, hub, 1.0, -loss) for s, loss in enumerate(losses)]
    for i, (reward, has_other) in enumerate(chain):
        s = len(losses) + i
        edges += [(s, 0, s + 1, 1.0, reward)] + [(s, 1, goal, 1.0, 0.0)] * has_other
    tried, room = [(s, 0) for s in range(hub)], hub
    for action, option in enumerate(options):
        if option is None:
            edges.append((hub, action, goal, 1.0, 0.0))
            continue
        reward, exits = option
        room += 1
        edges += [(hub, action, room, 1.0, reward)] + [(room, a, goal, 1.0, 0.0) for a in range(exits)]
        tried.append((hub, action))
    mdp = qp.FiniteMDP.from_edges(edges, goal=[goal])
    return mdp, qp.Experience.of_pairs(mdp, tried)


def balanced_reward(losses, offset):
    """The reward of a way into a room with one exit z that makes its mode as high as that of an untried action x.

    Up to `offset`. With θ of the ancestors V − loss and all priors N(0, 2²), the best x has −log p = min_x [x² +
    Σ (x − loss)²] / 8 plus what is best for z alone, c² / 16; the best z has min_z [z² + (c + z)² +
    Σ (c + z − loss)²] / 8.
    """
    n, total = losses.size, losses.sum()
    rewards = np.linspace(-12.0, 12.0, 4801)
    by_x = -(total**2) / (1.0 + n) + 0.5 * rewards**2
    # The second in V = c + z: (V − c)² + V² + Σ (V − loss)², least at V = (c + Σ loss) / (n + 2).
    by_z = rewards**2 - (rewards + total) ** 2 / (n + 2.0)
    return float(rewards[np.argmin(np.abs((by_x - by_z) / 8.0 - offset))])


def multimodal_problems():
    """Twenty problems of many modes under N(0, 2²), by name: hubs, long chains of ancestors, near-ties.

    Modes are of nearly equal height, so that chains that stay in one are wrong.
    """
    problems = {}
    for number in range(7):
        rng = np.random.default_rng(1000 + number)
        losses = rng.uniform(6.0, 12.0, int(rng.integers(4, 12)))
        options = [None, (balanced_reward(losses, rng.uniform(-1.0, 1.0)), 1 + number % 2)]
        options += [(options[1][0] + float(rng.normal(0.0, 0.3)), 1)] * (number // 2 % 2)
        problems[f"hub {number}"] = rooms(options, losses=losses)
    for number in range(7):
        rng = np.random.default_rng(2000 + number)
        chain = [(-float(rng.uniform(0.5, 2.0)), bool(rng.random() < 0.2)) for _ in range(int(rng.integers(6, 15)))]
        losses = rng.uniform(4.0, 8.0, int(rng.integers(2, 5)))
        ways = -np.cumsum([reward for reward, _ in chain[::-1]])
        reward = balanced_reward(np.concatenate([ways, losses + ways[-1]]), rng.uniform(-1.0, 1.0))
        problems[f"chain {number}"] = rooms([None, (reward, 1)], losses=losses, chain=chain)
    for number in range(6):
        rng = np.random.default_rng(3000 + number)
        losses = rng.uniform(6.0, 10.0, int(rng.integers(4, 9)))
        reward = balanced_reward(losses, rng.uniform(-0.5, 0.5))
        options = [None, None, (reward, 1)] + [None] * (number % 2) + [(reward, 2)] * (number // 2 % 2)
        problems[f"near-tie {number}"] = rooms(options, losses=losses)
    return problems
