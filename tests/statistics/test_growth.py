"""A prior that grows with the steps left: its units against the density itself, its draws against enumeration."""

from __future__ import annotations

import numpy as np
import pytest

import qposterior as qp
from problems import importance_sample, random_problem, weighted_optimality
from qposterior.agents.layers import Layers, Stakes, reward_unit
from qposterior.agents.optimistic_models import OptimisticModels
from qposterior.agents.posterior_sampling import BELIEF_MOVES
from qposterior.experiments.beliefs import Beliefs
from qposterior.experiments.explore import make_world, spawn_seeds
from qposterior.inference.smc.joint_moves import JointSampler
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.model.noise import Noise, Tolerance
from qposterior.model.target import Target

LIMIT = 4.5
"""|z| beyond this happens to a right sampler in 7 of a million tests; seeds are fixed."""

PRIOR = qp.GaussianPrior(mean=0.8, scale=1.3, growth=1.7)
HORIZON = 4


def layered_problem(seed, *, scale=1.0, share=0.5):
    """Three layers of three states and a goal, random rows over the next layer, a part of the pairs seen."""
    rng = np.random.default_rng(seed)
    edges = []
    for layer in range(3):
        for state in range(3 * layer, 3 * layer + 3):
            for action in range(2):
                reward = scale * rng.normal(0.3, 0.7)
                ends = [9] if layer == 2 else list(range(3 * layer + 3, 3 * layer + 6))
                weights = rng.dirichlet(np.ones(len(ends)))
                edges += [(state, action, end, weight, reward) for end, weight in zip(ends, weights, strict=True)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[9], initial=[1 / 3] * 3 + 7 * [0.0], discount=0.9)
    chosen = [pair for pair in mdp.space.pairs() if rng.random() < share]
    return mdp, qp.Experience.of_pairs(mdp, chosen)


def layers_of(mdp, seen, prior=PRIOR):
    """What was seen in units of the layer, its states met at the steps of their layers."""
    layers = Layers(mdp.space, prior, HORIZON)
    layers.steps.first[:] = mdp.space.layer
    return layers, layers.tell(seen)


def steps_left(mdp):
    return HORIZON - mdp.space.layer[mdp.space.pair_state]


def test_units_of_the_layer_change_the_density_by_a_constant():
    mdp, seen = layered_problem(0, scale=5.0)
    layers, told = layers_of(mdp, seen)
    assert layers.reward_unit == 8.0
    unit = layers.reward_unit * PRIOR.growth ** steps_left(mdp)
    plain = qp.GaussianPrior(mean=PRIOR.mean * layers.reward_unit, scale=PRIOR.scale * layers.reward_unit, growth=1.7)
    outside = Target(seen, plain.given_steps_left(steps_left(mdp)), Tolerance())
    inside = Target(told, layers.prior, Tolerance())
    x = np.random.default_rng(1).normal(1.0, 1.5, (40, inside.num_coordinates))
    gap = outside.log_density(x * unit[inside.chart.free]).total - inside.log_density(x).total
    assert np.ptp(inside.log_density(x).total) > 5.0
    np.testing.assert_allclose(gap, -np.log(unit).sum(), rtol=1e-10)
    np.testing.assert_allclose(outside.to_q(x * unit[inside.chart.free]), inside.to_q(x) * unit, rtol=1e-10)


@pytest.mark.parametrize("scale", [0.3, 300.0])
def test_particles_in_units_of_the_layer_agree_with_enumeration(scale):
    mdp, seen = layered_problem(2, scale=scale)
    layers = Layers(mdp.space, PRIOR, HORIZON)
    layers.steps.first[:] = mdp.space.layer
    # The largest reward comes last, so that what is known by then is told again in another unit.
    order = sorted(seen.observed_pairs.tolist(), key=lambda k: abs(seen.reward_mean[k]))
    pairs = [mdp.space.pairs()[k] for k in order]
    first, shares = qp.Experience.of_pairs(mdp, pairs[:-3]), []
    for seed in range(30):
        layers = Layers(mdp.space, PRIOR, HORIZON)
        layers.steps.first[:] = mdp.space.layer
        told = layers.tell(first)
        sampler = OneLookSampler.start(
            told, prior=layers.prior, noise=Tolerance(), particles=300, rng=np.random.default_rng(seed)
        )
        sampler.update(told)
        unit = layers.reward_unit
        sampler.update(layers.tell(seen))
        assert (layers.reward_unit > unit) == (scale > 1.0)
        assert sampler.seen.num_observed == len(pairs)
        shares.append(weighted_optimality(mdp.space, sampler.particles.parameters, sampler.particles.weights))
    unit = layers.reward_unit
    prior = qp.GaussianPrior(mean=PRIOR.mean * unit, scale=PRIOR.scale * unit, growth=PRIOR.growth)
    exact = qp.posterior(seen, prior=prior.given_steps_left(steps_left(mdp)), method="exact", particles=1)
    truth = exact.prob_optimal_table()[mdp.space.pair_state, mdp.space.pair_action]
    gap = np.mean(shares, axis=0) - truth
    error = np.std(shares, axis=0, ddof=1) / np.sqrt(30)
    assert np.abs(np.where(np.abs(gap) < 1e-9, 0.0, gap / np.maximum(error, 1e-9))).max() < LIMIT
    assert np.ptp(truth) > 0.4
    assert np.any((truth > 0.1) & (truth < 0.9))


@pytest.mark.parametrize("tolerance", [0.0, 1.0])
def test_means_and_scales_of_each_pair_are_taken_by_enumeration(tolerance):
    _, seen = random_problem("acyclic", 4, num_states=4)
    num = seen.space.num_pairs
    unequal = qp.GaussianPrior(mean=np.linspace(-1.0, 2.0, num), scale=np.geomspace(0.8, 3.0, num))
    exact = qp.posterior(seen, prior=unequal, tolerance=tolerance, method="exact", particles=1)
    theta, weights = importance_sample(seen, 3.0, tolerance, 400_000 if tolerance else 40_000, 0)
    gauss = qp.GaussianPrior(scale=3.0)
    asked, used = (prior.log_density_and_grad(theta, seen.space)[0] for prior in (unequal, gauss))
    weights = weights * np.exp(asked - used - (asked - used).max())
    brute = weighted_optimality(seen.space, theta, weights)
    table = exact.prob_optimal_table()[seen.space.pair_state, seen.space.pair_action]
    worth = weights.sum() ** 2 / np.sum(weights**2)
    assert worth > 300
    assert np.abs(brute - table).max() < 5.0 * 0.5 / np.sqrt(worth)


def test_chains_take_a_prior_of_each_pair():
    _, seen = random_problem("looping", 1, share=0.5)
    num = seen.space.num_pairs
    prior = qp.GaussianPrior(mean=np.linspace(-1.0, 1.0, num), scale=np.geomspace(0.7, 2.5, num))
    exact, chains = (qp.posterior(seen, prior=prior, method=method) for method in ("exact", "hmc"))
    place = seen.space.pair_state, seen.space.pair_action
    assert chains.trusted
    assert np.abs((exact.prob_optimal_table() - chains.prob_optimal_table())[place]).max() < 0.08
    assert np.abs(((exact.mean() - chains.mean()) / exact.sd().clip(1e-9))[place]).max() < 0.2


def test_a_prior_of_each_pair_says_what_it_must_be():
    _, seen = random_problem("acyclic", 1)
    for prior, words in (
        (qp.GaussianPrior(mean=[0.0, 1.0]), "one for each of the"),
        (qp.GaussianPrior(growth=2.0), "for agents"),
    ):
        for method in ("exact", "hmc", "smc"):
            with pytest.raises(qp.InvalidInputError, match=words):
                qp.posterior(seen, prior=prior, method=method)
    for options in ({"mean": [[1.0]]}, {"scale": [1.0, 0.0]}, {"growth": 0.9}, {"mean": [np.nan]}):
        with pytest.raises(qp.InvalidInputError):
            qp.GaussianPrior(**options)
    pairs = qp.GaussianPrior(mean=[1.0, 2.0], scale=3.0, growth=2.0).given_steps_left([3, 0])
    assert (pairs.mean, pairs.scale) == ((8.0, 2.0), (24.0, 3.0))
    assert qp.GaussianPrior(mean=np.ones(2)) == qp.GaussianPrior(mean=[1.0, 1.0])


# -- agents ------------------------------------------------------------------------------------------------------------


def learning_times(depth, seeds, **options):
    sea = qp.make_environment("deep-sea", depth=depth, **options)
    world, times = make_world(sea), []
    for seed in seeds:
        agent = qp.make_agent("abrl", sea, horizon=world.cap, seed=spawn_seeds(seed)[1])
        run = qp.explore(agent, world, episodes=400, seed=seed, until_learned=True, keep_transitions=False)
        times.append(run.learning_time or np.inf)
    return np.array(times)


def test_deep_sea_is_learned_in_linear_time():
    # Twice as deep takes twice as long, each episode seeing one of about 2 · depth pairs of the last row.
    for depth, most in ((6, 24), (12, 50), (24, 103)):
        assert learning_times(depth, range(200, 204)).mean() <= most
    assert learning_times(12, range(200, 204), variant="bsuite").mean() <= 55


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_unit_of_rewards_does_not_matter(unit):
    sea = qp.make_environment("deep-sea", depth=16)
    scaled = qp.FiniteMDP.from_edges(
        [
            (s, a, int(sea.transitions.row(k)[0][0]), 1.0, unit * sea.rewards[k])
            for k, (s, a) in enumerate(sea.space.pairs())
        ],
        goal=sea.space.goals.tolist(),
        initial=sea.initial,
    )
    found = []
    for mdp in (sea, scaled):
        world = make_world(mdp, cap=15)
        agent = qp.make_agent("abrl", mdp, horizon=15, seed=3)
        run = qp.explore(agent, world, episodes=90, seed=3, keep_transitions=False)
        regret = np.array(run.regret) / (1.0 if mdp is sea else unit)
        found.append(np.cumsum(regret))
        assert regret[-5:].max() < 1e-9
    assert abs(found[0][-1] - found[1][-1]) <= 0.1 * found[0][-1]


def test_a_treasure_of_a_thousand_is_looked_for_at_the_end_of_a_costly_way():
    """Until it is found no reward is above 1, and what is at stake on the way is ten times that."""
    sea = qp.make_environment("deep-sea", depth=20)
    edges = [
        (s, a, int(sea.transitions.row(k)[0][0]), 1.0, 1e3 * float(sea.rewards[k]))
        for k, (s, a) in enumerate(sea.space.pairs())
    ]
    scaled = qp.FiniteMDP.from_edges(edges, goal=sea.space.goals.tolist(), initial=sea.initial)
    for seed in range(310, 314):
        agent = qp.make_agent("abrl", scaled, horizon=19, seed=seed)
        run = qp.explore(agent, make_world(scaled, cap=19), episodes=60, seed=seed, keep_transitions=False)
        assert max(run.regret[-5:]) < 1e-6


def test_small_rewards_decide_in_deep_problems():
    """120 layers of two states: what leads on is the same, and one action of each state pays 0.001 more."""
    depth = 120
    edges = []
    for step in range(depth):
        for state in (2 * step, 2 * step + 1):
            ends = (2 * depth, 2 * depth) if step == depth - 1 else (2 * step + 2, 2 * step + 3)
            edges += [(state, a, ends[a], 1.0, 0.001 * (a == (state + step) % 2)) for a in (0, 1)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[2 * depth], initial=[1.0] + 2 * depth * [0.0])
    agent = qp.make_agent("abrl", mdp, horizon=depth, seed=0)
    run = qp.explore(agent, make_world(mdp, cap=depth), episodes=12, seed=0, keep_transitions=False)
    assert np.abs(run.regret[-4:]).max() < 1e-9


def test_without_layers_the_agent_plans_in_models_that_it_draws(tmp_path):
    sea = qp.make_environment("deep-sea-loops", depth=4)
    world = make_world(sea)
    agent = qp.make_agent("abrl", sea, horizon=world.cap, seed=5)
    before = qp.explore(agent, world, episodes=12, seed=5)
    assert not agent.layers.steps.are_layers
    updates = len(agent.sampler.trace)
    agent.save(tmp_path / "agent.npz")
    loaded = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    twin = OptimisticModels(sea.space, horizon=world.cap, transitions="revealed")
    twin.experience, twin._rng.bit_generator.state = agent.experience.copy(), agent._rng.bit_generator.state
    assert agent.progress() == {}
    agent.begin_episode(0)
    np.testing.assert_array_equal(agent.held_plan(), twin.make_plan())
    assert agent.held_plan().shape == (world.cap, sea.space.num_states)
    agent = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    one, two = (qp.explore(each, world, episodes=6, after=before) for each in (agent, loaded))
    assert one.transitions == two.transitions
    assert len(agent.sampler.trace) == updates  # its sampler rests


def test_plans_of_drawn_models_hold_for_the_step_at_hand():
    """Resting pays 0.1 a step and swimming on 1 at the end: with 3 steps left of 10 one rests."""
    edges = [(s, 0, s, 1.0, 0.1) for s in range(4)] + [(s, 1, s + 1, 1.0, float(s == 3)) for s in range(4)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[4], initial=[1.0] + 4 * [0.0])
    agent = qp.make_agent("abrl", mdp, horizon=10, seed=0)
    run = qp.explore(agent, make_world(mdp, cap=10), episodes=30, seed=0)
    assert [row["return"] for row in run.rows[-5:]] == pytest.approx(5 * [1.6])
    assert agent.held_plan()[-3, 0] == 0
    assert agent.held_plan()[-4, 0] == 1


def test_rewards_of_drawn_models_are_in_units_of_those_seen():
    edges = [(s, a, s + a, 1.0, 40.0 * s - 20.0) for s in range(3) for a in (0, 1)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[3])
    agent = qp.make_agent("abrl", mdp, horizon=5, seed=0)
    for pair in ((0, 0), (1, 1)):
        agent.experience.reveal(mdp.space.pair(*pair), qp.Experience.of_pairs(mdp, [pair]))
    agent.layers.steps.are_layers = False
    agent.begin_episode(0)  # takes over the unit
    drawn = np.array([agent.models.draw_rewards() for _ in range(4000)])
    assert set(drawn[:, 0]) == {-20.0}
    assert set(drawn[:, 3]) == {20.0}
    unseen = drawn[:, [1, 2, 4, 5]] / 32.0  # the least power of two above 20
    # N(1, 1) over 16,000 draws: 4.5 standard errors, false-alarm rate 7e-6 each, fixed seed.
    assert abs(unseen.mean() - 1.0) < 4.5 / np.sqrt(16_000)
    assert abs(unseen.std() - 1.0) < 4.5 / np.sqrt(32_000)


def test_the_unit_of_rewards_counts_what_an_episode_has_paid_and_cost():
    stakes = Stakes()
    for episode in ((-0.5, 2.0, -0.75), (-0.25,), (1.0, 1.0)):
        stakes.begin()
        for reward in episode:
            stakes.add(reward)
    assert stakes.most == 2.0
    assert reward_unit(np.array([0.1, -0.2])) == 1.0
    assert reward_unit(np.array([0.1, -0.2]), 3.25) == 4.0
    assert reward_unit(np.array([5.0]), 3.25) == 8.0


def corridor(unit, length=12):
    """A corridor in which each step costs one, with a way out at each place; the last one pays 60."""
    edges = [(s, 0, max(s - 1, 0), 1.0, -unit) for s in range(length)]
    edges += [(s, 1, min(s + 1, length - 1), 1.0, -unit) for s in range(length)]
    edges += [(s, 2, length, 1.0, unit * (60.0 if s == length - 1 else -1.0)) for s in range(length)]
    return qp.FiniteMDP.from_edges(edges, goal=[length], initial=[1.0] + length * [0.0])


@pytest.mark.parametrize("transitions", ["revealed", "dirichlet"])
def test_the_unit_of_rewards_does_not_matter_where_each_step_costs(transitions):
    """Optimism of one reward would not pay for the way to the end, and in small rewards it would."""
    found = []
    for unit in (1e-3, 1.0, 1e3):
        total = 0.0
        for seed in range(300, 308):
            mdp = corridor(unit)
            agent = qp.make_agent("abrl", mdp, horizon=50, transitions=transitions, seed=seed)
            run = qp.explore(agent, make_world(mdp, cap=50), episodes=40, seed=seed, keep_transitions=False)
            assert np.median(run.regret[-9:]) < 1e-9 * unit
            total += sum(run.regret) / unit
        found.append(total)
    assert max(found) <= 1.1 * min(found), found


def test_an_agent_of_counted_rows_plans_in_models_and_says_what_it_believes_when_asked(tmp_path, monkeypatch):
    river = qp.make_environment("river-swim", depth=4)
    world = make_world(river, cap=30)
    agent = qp.make_agent("abrl", river, horizon=30, transitions="dirichlet", seed=2)
    asked = []
    monkeypatch.setattr(JointSampler, "move", lambda self, times=1, **_: asked.append(times))
    before = qp.explore(agent, world, episodes=5, seed=2)
    assert agent.held_plan().shape == (30, 4)
    assert not agent.keeps_posterior
    beliefs = Beliefs(space=river.space, seed=2)
    beliefs.record(agent)
    assert asked == []
    beliefs.finish(agent)
    assert asked == [BELIEF_MOVES]
    monkeypatch.undo()
    agent.save(tmp_path / "agent.npz")
    loaded = qp.PosteriorSamplingAgent.load(tmp_path / "agent.npz")
    one, two = (qp.explore(each, world, episodes=4, after=before) for each in (agent, loaded))
    assert one.transitions == two.transitions


def test_what_is_believed_of_counted_rows_is_the_joint_posterior():
    mdp = qp.make_environment("river-swim", depth=3)
    agent = qp.make_agent("abrl", mdp, horizon=20, transitions="dirichlet", particles=200, seed=0)
    qp.explore(agent, make_world(mdp, cap=20), episodes=3, seed=0)
    said, again = agent.posterior(), agent.posterior()
    assert said.draws.tobytes() == again.draws.tobytes()
    rows = qp.DirichletRows(successors="all")
    chains = qp.posterior(agent.experience, transitions=rows, tolerance=0.0, seed=1)
    gap = (said.mean() - chains.mean())[mdp.space.pair_state, mdp.space.pair_action]
    assert np.abs(gap / chains.sd()[mdp.space.pair_state, mdp.space.pair_action]).max() < 0.5


def test_what_the_agent_says_it_believes_is_not_its_optimism():
    sea = qp.make_environment("deep-sea", depth=4)
    agent = qp.make_agent("abrl", sea, horizon=3, particles=400, seed=0)
    qp.explore(agent, sea, episodes=3, seed=0)
    said, again = agent.posterior(), agent.posterior()
    exact = qp.posterior(agent.experience, method="exact")
    assert np.nanmax(np.abs(said.prob_optimal_table() - exact.prob_optimal_table())) < 0.15
    assert said.draws.tobytes() == again.draws.tobytes()
    assert not said.trusted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "horizon"),
        ({"horizon": 3, "inference": "adaptive"}, "growth is for abrl"),
        ({"horizon": 3, "rewards": "noisy"}, "growth is for abrl"),
        ({"horizon": 3, "noise": Noise()}, "growth is for abrl"),
        ({"transitions": "dirichlet", "rewards": "noisy"}, "horizon"),
        ({"horizon": 0}, "horizon must be at least 1"),
    ],
)
def test_where_a_prior_cannot_grow_it_is_refused(options, words):
    sea = qp.make_environment("deep-sea", depth=4)
    with pytest.raises(qp.InvalidInputError, match=words):
        qp.PosteriorSamplingAgent(sea.space, prior=PRIOR, **options)
