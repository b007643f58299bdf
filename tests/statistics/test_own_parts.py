"""Priors and noises of one's own, by every method that takes them, against weighted exact draws and quadrature.

The reference weighs independent draws of the exact posterior under a wide Gaussian prior by the ratio of the two
priors: no chain, no gradient, no plain path. z-scores beyond 4.5 happen to a right sampler in 7 of a million tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

import qposterior as qp
from own_parts import GaussianReadings, GumbelReadings, Plain, RelatedActions, SixtyForty, TwoWorlds, stretched
from problems import noisy_experience, random_problem, weighted_optimality
from qposterior.inference.smc.annealed import AnnealedSampler
from qposterior.inference.smc.one_look import OneLookSampler
from qposterior.model.charts import CHARTS, BoundChart, LinearQ, Location, QChart
from qposterior.model.noise import Tolerance
from qposterior.model.prior import prior_to_dict
from qposterior.model.rows import BoundRows
from qposterior.model.target import Target

LIMIT = 4.5
BASE = qp.GaussianPrior(mean=-0.5, scale=4.0)
PRIORS = {"related": RelatedActions(), "two worlds": TwoWorlds()}


def reference(seen, prior, *, draws=400_000, **options):
    """Return P(optimal), its standard errors, and the log evidence, by weights on exact draws under `BASE`."""
    base = qp.posterior(seen, prior=BASE, method="exact", particles=draws, **options)
    gap = prior.log_density_and_grad(base.draws, seen.space)[0] - BASE.log_density_and_grad(base.draws, seen.space)[0]
    ratio = np.exp(gap)
    weights = ratio / ratio.sum()
    share = seen.space.optimal_share(base.draws)
    mean = weights @ share
    error = np.sqrt((weights**2) @ (share - mean) ** 2)
    assert 1.0 / np.sum(weights**2) > 2000.0
    return mean, error, float(base.log_evidence + np.log(ratio.mean()))


def shares_of(post):
    return post.prob_optimal_table()[post.space.pair_state, post.space.pair_action]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("shape", ["acyclic", "looping"])
def test_one_look_updates_have_the_right_probabilities_and_evidence(shape, prior):
    _, seen = random_problem(shape, 1, num_states=4, share=0.5)
    chosen = PRIORS[prior]
    expected, error, log_evidence = reference(seen, chosen)
    shares, evidence = [], []
    for seed in range(20):
        sampler = OneLookSampler.start(
            seen, prior=chosen, noise=Tolerance(), particles=200, rng=np.random.default_rng(seed)
        )
        sampler.update(seen)
        shares.append(weighted_optimality(seen.space, sampler.particles.parameters, sampler.particles.weights))
        evidence.append(np.exp(sampler.particles.log_evidence - log_evidence))
    spread = np.std(shares, axis=0, ddof=1) / np.sqrt(len(shares))
    z = (np.mean(shares, axis=0) - expected) / np.sqrt(spread**2 + error**2 + 1e-12)
    assert np.abs(z).max() < LIMIT
    assert abs(np.mean(evidence) - 1.0) < LIMIT * np.std(evidence, ddof=1) / np.sqrt(len(evidence)) + 0.02


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("coordinates", ["q", "bellman"])
def test_the_annealed_sampler_has_the_right_probabilities_and_evidence(coordinates, prior):
    _, seen = random_problem("acyclic", 1, num_states=4, share=0.5)
    chosen = PRIORS[prior]
    expected, error, log_evidence = reference(seen, chosen, tolerance=0.5, coordinates=coordinates)
    shares, evidence = [], []
    for seed in range(12):
        sampler = AnnealedSampler.start(
            seen,
            prior=chosen,
            noise=Tolerance(tolerance=0.5),
            particles=150,
            rng=np.random.default_rng(seed),
            chart=CHARTS[coordinates],
            final_tolerance=0.5,
        )
        sampler.update(seen)
        shares.append(weighted_optimality(seen.space, sampler.particles.parameters, sampler.particles.weights))
        evidence.append(np.exp(sampler.particles.log_evidence - log_evidence))
    spread = np.std(shares, axis=0, ddof=1) / np.sqrt(len(shares))
    z = (np.mean(shares, axis=0) - expected) / np.sqrt(spread**2 + error**2 + 1e-12)
    assert np.abs(z).max() < LIMIT
    assert abs(np.mean(evidence) - 1.0) < LIMIT * np.std(evidence, ddof=1) / np.sqrt(len(evidence)) + 0.02


@pytest.mark.parametrize(
    "options",
    [
        {"method": "hmc", "tolerance": 0.4, "coordinates": "q"},
        {"method": "hmc", "tolerance": 0.4},
        {"method": "hmc"},
        {"method": "tempering", "tolerance": 0.4},
        {"method": "tempering"},
        {"method": "smc"},
        {"method": "smc", "tolerance": 0.4},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_every_method_takes_a_prior_of_ones_own(options):
    _, seen = random_problem("acyclic", 1, num_states=4, share=0.5)
    chosen = RelatedActions()
    exact = {name: value for name, value in options.items() if name != "method"}
    expected, _, _ = reference(seen, chosen, draws=100_000, **exact)
    post = qp.posterior(seen, prior=chosen, particles=1500, seed=3, **options)
    assert post.trusted
    assert np.abs(shares_of(post) - expected).max() < 0.07  # 1,500 draws worth 400: 4.5 standard errors are 0.11
    assert post.settings["prior"] == {"name": "RelatedActions", "mean": -0.5, "scale": 1.8}


def test_a_prior_without_its_compiled_form_gives_the_same_posterior_with_unknown_rows():
    mdp, _ = random_problem("looping", 3, num_states=4)
    seen = qp.Experience(mdp.space, transitions="counted")
    for k in range(0, mdp.space.num_pairs, 2):
        for successor in mdp.transitions.row(k)[0]:
            state, action = int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])
            seen.record(state, action, float(mdp.rewards[k]), int(successor))
    prior = qp.GaussianPrior(mean=-0.3, scale=1.5)
    one, other = (qp.posterior(seen, prior=part, particles=2000, seed=1) for part in (prior, Plain(prior)))
    assert np.abs(shares_of(one) - shares_of(other)).max() < 0.08


def bandit(readings):
    """Two arms that lead to the goal: Q of each is its mean reward, and the arms are independent."""
    mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
    seen = qp.Experience(mdp.space, rewards="noisy")
    for arm, values in enumerate(readings):
        for value in values:
            seen.record(0, arm, value, 1, row=mdp.transitions.row(arm))
    return seen


@pytest.mark.parametrize("options", [{"method": "hmc"}, {"method": "hmc", "coordinates": "q"}, {"method": "smc"}])
def test_skewed_noise_of_ones_own_agrees_with_quadrature(options):
    seen = bandit([[0.3, 1.9, 0.8], [0.9, 0.2, 2.2, 1.1]])
    noise, prior = GumbelReadings(scale=0.6), qp.GaussianPrior(mean=0.2, scale=1.5)
    grid = np.linspace(-8.0, 8.0, 4001)
    marginal = []
    for arm in range(2):
        rewards = np.full((grid.size, 2), 0.5)
        rewards[:, arm] = grid
        log_density = noise.log_density_and_grad(rewards, seen)[0] - 0.5 * ((grid - 0.2) / 1.5) ** 2
        density = np.exp(log_density - log_density.max())
        marginal.append(density / density.sum())
    mean = np.array([grid @ part for part in marginal])
    prob = float(marginal[0] @ (np.cumsum(marginal[1]) - 0.5 * marginal[1]))
    post = qp.posterior(seen, prior=prior, noise=noise, particles=4000, seed=2, **options)
    assert post.trusted
    assert np.abs(post.pair_mean - mean).max() < 0.08
    assert abs(post.prob_optimal(0)[0] - prob) < 0.06
    # The mirror image of this noise would put both means more than half a scale higher.
    assert np.all(mean + 0.3 < [np.mean([0.3, 1.9, 0.8]), np.mean([0.9, 0.2, 2.2, 1.1])])
    assert post.settings["noise"] == {"kind": "GumbelReadings"}


def test_noise_of_ones_own_has_the_evidence_of_the_exact_one():
    mdp, first = random_problem("acyclic", 1, num_states=4, share=0.5)
    pairs = [(int(first.space.pair_state[k]), int(first.space.pair_action[k])) for k in first.observed_pairs]
    seen = noisy_experience(mdp, pairs, readings=3, seed=1)
    prior = qp.GaussianPrior(mean=-0.5, scale=1.8)
    exact = qp.posterior(seen, prior=prior, noise=qp.Noise(scale=0.8), method="exact", particles=1)
    evidence = []
    for seed in range(12):
        sampler = AnnealedSampler.start(
            seen,
            prior=prior,
            noise=GaussianReadings(scale=0.8),
            particles=300,
            rng=np.random.default_rng(seed),
            chart=CHARTS["bellman"],
        )
        sampler.update(seen)
        evidence.append(np.exp(sampler.particles.log_evidence - exact.log_evidence))
    assert abs(np.mean(evidence) - 1.0) < LIMIT * np.std(evidence, ddof=1) / np.sqrt(len(evidence)) + 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": RelatedActions(), "method": "exact"}, "needs a GaussianPrior"),
        ({"noise": GaussianReadings(), "method": "exact"}, "needs Gaussian noise of known scale"),
        ({"noise": object()}, "log_density_and_grad"),
        ({"noise": GaussianReadings}, "log_density_and_grad"),
        ({"noise": GaussianReadings(), "prior": qp.RewardPrior()}, "needs a prior on Q"),
    ],
)
def test_what_does_not_take_a_part_of_ones_own_says_so(options, message):
    seen = bandit([[0.3, 1.9], [0.9, 0.2]])
    if isinstance(options.get("prior"), qp.RewardPrior):
        mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
        options = options | {"transitions": mdp.transitions}
    with pytest.raises(qp.InvalidInputError, match=message):
        qp.posterior(seen, particles=50, **options)


def test_features_take_a_noise_of_ones_own():
    seen = bandit([[0.3, 1.9, 0.8], [0.9, 0.2, 2.2, 1.1]])
    options = {"prior": qp.GaussianPrior(mean=0.2, scale=1.5), "particles": 4000, "seed": 1, "coordinates": "q"}
    mine = qp.posterior(seen, noise=GumbelReadings(scale=0.6), features=np.eye(2), **options)
    table = qp.posterior(seen, noise=GumbelReadings(scale=0.6), **options)
    assert np.abs(mine.pair_mean - table.pair_mean).max() < 0.08


@pytest.mark.parametrize("prior", [qp.GaussianPrior(mean=-0.4, scale=1.8), TwoWorlds()])
def test_gradients_in_a_chart_of_ones_own_are_finite_differences(prior):
    _, seen = random_problem("looping", 3, num_states=4, share=0.5)
    target = Target(seen, prior, Tolerance(tolerance=0.6), chart=stretched)
    x = target.initial(3, np.random.default_rng(1))
    np.testing.assert_allclose(target.from_parameters(target.to_parameters(x)), x, atol=1e-9)
    _, grad = target.log_density_and_grad(x)
    for j in range(target.num_coordinates):
        ends = np.repeat(x[None], 2, axis=0)
        ends[:, :, j] += np.array([[1e-6], [-1e-6]])
        slope = (target.log_density(ends[0]).smooth - target.log_density(ends[1]).smooth) / 2e-6
        np.testing.assert_allclose(grad[:, j], slope, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("method", ["hmc", "tempering", "smc"])
def test_a_chart_of_ones_own_gives_the_posterior_of_the_others(method):
    """Without the volume of the chart P(optimal) would be that of another prior."""
    _, seen = random_problem("acyclic", 1, num_states=4, share=0.5)
    prior = qp.GaussianPrior(mean=-0.5, scale=1.8)
    exact = qp.posterior(seen, prior=prior, method="exact", tolerance=0.5, coordinates="q")
    post = qp.posterior(seen, prior=prior, method=method, tolerance=0.5, coordinates=stretched, particles=3000, seed=2)
    assert post.trusted
    assert np.abs(shares_of(post) - shares_of(exact)).max() < 0.06
    assert np.nanmax(np.abs(post.mean() - exact.mean())) < 0.25
    assert post.settings["coordinates"] == "stretched"


@pytest.mark.parametrize("options", [{"method": "exact", "tolerance": 0.5}, {"method": "smc"}])
def test_where_a_chart_of_ones_own_is_not_taken_that_is_said(options):
    _, seen = random_problem("acyclic", 1, num_states=4, share=0.5)
    with pytest.raises(qp.InvalidInputError, match='"hmc"'):
        qp.posterior(seen, coordinates=stretched, particles=50, **options)


@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_rows_of_ones_own_are_drawn_with_q():
    """A loop that is left with probability 1 − p, p ~ Beta(6, 4): as with Dirichlet rows of these shapes."""
    seen = qp.Experience(
        qp.FiniteMDP.from_edges([(0, 0, 0, 0.5, -1.0), (0, 0, 1, 0.5, -1.0)], goal=[1]).space, transitions="counted"
    )
    for following in (0, 1):
        seen.record(0, 0, -1.0, following)
    post = qp.posterior(seen, prior=qp.GaussianPrior(scale=50.0), transitions=SixtyForty(), particles=4000, seed=1)
    # Q = −1 / (1 − p); under so wide a prior the rows keep their Beta, but for the determinant (1 − p)⁻¹.
    grid = (np.arange(20_000) + 0.5) / 20_000
    q = -1.0 / (1.0 - grid)
    weight = grid**5 * (1.0 - grid) ** 3 * np.exp(-0.5 * (q / 50.0) ** 2) / (1.0 - grid)
    expected = (weight @ q) / weight.sum()
    assert post.mean()[0, 0] == pytest.approx(expected, rel=0.08)
    assert post.settings["transitions"] == "SixtyForty"


@pytest.mark.parametrize("particles", [300])
def test_the_annealed_sampler_runs_on_a_linear_q_and_agrees_with_a_grid(particles):
    """Two features, so that P(optimal), the means and the evidence are sums over a grid of weights."""
    _, seen = random_problem("looping", 2, num_states=4, share=0.6)
    features = np.random.default_rng(3).standard_normal((seen.space.num_pairs, 2))
    prior, noise = qp.GaussianPrior(mean=0.3, scale=1.6), Tolerance(tolerance=0.8)
    axis = np.linspace(-9.0, 9.0, 601)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = grid @ features.T
    table = seen.table().matrix
    rewards = theta[:, seen.observed_pairs] - seen.space.discount * (table @ seen.space.maximum(theta).T).T
    z = (rewards - seen.reward_mean[seen.observed_pairs]) / 0.8
    log_density = -0.5 * np.sum(z**2, axis=1) - seen.num_observed * np.log(0.8 * np.sqrt(2.0 * np.pi))
    log_density += -0.5 * np.sum(((grid - 0.3) / 1.6) ** 2, axis=1) - 2.0 * np.log(1.6 * np.sqrt(2.0 * np.pi))
    mass = np.exp(log_density) * (axis[1] - axis[0]) ** 2
    expected = np.concatenate([mass @ seen.space.optimal_share(theta), mass @ grid]) / mass.sum()
    found, evidence = [], []
    for seed in range(20):
        sampler = AnnealedSampler.start(
            seen,
            prior=prior,
            noise=noise,
            particles=particles,
            rng=np.random.default_rng(seed),
            chart=QChart,
            q_function=LinearQ(features),
            final_tolerance=0.8,
        )
        sampler.update(seen)
        weights, w = sampler.particles.weights, sampler.particles.parameters
        found.append(np.concatenate([weights @ seen.space.optimal_share(sampler.q_of_particles()), weights @ w]))
        evidence.append(np.exp(sampler.particles.log_evidence) / mass.sum())
    spread = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert np.abs((np.mean(found, axis=0) - expected) / np.sqrt(spread**2 + 1e-6)).max() < LIMIT
    assert abs(np.mean(evidence) - 1.0) < LIMIT * np.std(evidence, ddof=1) / np.sqrt(len(evidence))


def seen_with_two_rewards():
    mdp = qp.FiniteMDP.from_edges(
        [(0, 0, 1, 0.5, -1.0), (0, 0, 2, 0.5, -1.0), (0, 1, 2, 1.0, 0.0), (1, 0, 2, 1.0, -0.5), (1, 1, 2, 1.0, -0.5)],
        goal=[2],
    )
    return mdp, qp.Experience.of_pairs(mdp, [(0, 0), (1, 1)])


@dataclass
class Reordered:
    """Rows as they are, of other pairs than those seen."""

    order: tuple[int, ...]

    def bind(self, seen, rng):
        order = list(self.order)
        return BoundRows(pairs=seen.observed_pairs[order], table=seen.table().select(np.array(order)))


@pytest.mark.parametrize("order", [(1, 0), (0,), (1,)])
def test_rows_of_other_pairs_than_those_seen_are_refused(order):
    _, seen = seen_with_two_rewards()
    for options in ({}, {"tolerance": 0.1}):
        with pytest.raises(qp.InvalidInputError, match="rows must be those of the pairs seen"):
            qp.posterior(seen, transitions=Reordered(order), particles=50, **options)


@pytest.mark.parametrize(
    "answer", [lambda num, size: np.ones((1, size)), lambda num, size: np.full((num, size), np.nan)]
)
def test_rows_that_are_proposed_wrongly_are_refused(answer):
    _, seen = seen_with_two_rewards()

    class Wrong:
        def bind(self, seen, rng):
            table = seen.table()
            return BoundRows(
                pairs=seen.observed_pairs, table=table, draw_fn=lambda num, rng: answer(num, table.successor.size)
            )

    with pytest.raises(qp.InvalidInputError, match="draw_fn"):
        qp.posterior(seen, transitions=Wrong(), particles=50)


@dataclass
class Edged:
    """Readings lie within 1.5 of the mean reward, evenly."""

    has_edge: bool = True

    def log_density_and_grad(self, rewards, seen):
        starts, values, weights = seen.readings()
        gap = np.abs(values - np.repeat(rewards, np.diff(starts), axis=1))
        return np.where(np.all(gap < 1.5, axis=1), -weights.sum() * np.log(3.0), -np.inf), np.zeros_like(rewards)


@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_a_noise_of_ones_own_with_an_edge_is_annealed_without_end_no_more():
    """One state, so that the mean reward is Q: a truncated normal, and the evidence is its mass."""
    seen = bandit([[0.3, 1.9], [0.9, 0.2]])
    prior = qp.GaussianPrior(scale=1.0)
    evidence = []
    for seed in range(12):
        sampler = AnnealedSampler.start(
            seen, prior=prior, noise=Edged(), particles=400, rng=np.random.default_rng(seed), chart=CHARTS["q"]
        )
        sampler.update(seen)
        assert np.all(np.abs(sampler.particles.parameters[:, 0] - 1.1) < 0.7 + 1e-9)
        evidence.append(np.exp(sampler.particles.log_evidence))
    mass = np.diff(stats.norm.cdf([0.4, 1.8]))[0] * np.diff(stats.norm.cdf([-0.6, 1.7]))[0] / 3.0**4
    assert abs(np.mean(evidence) / mass - 1.0) < LIMIT * np.std(evidence, ddof=1) / mass / np.sqrt(12) + 1e-9


def test_a_subclass_with_another_density_is_sampled_by_it():
    @dataclass(frozen=True)
    class Elsewhere(qp.GaussianPrior):
        def log_density_and_grad(self, theta, space):
            return super().log_density_and_grad(theta - 7.0, space)

        def draw(self, num, space, rng):
            return super().draw(num, space, rng) + 7.0

    mdp = qp.make_environment("two-state")
    post = qp.posterior(qp.Experience(mdp.space), prior=Elsewhere(scale=1.0), particles=2000)
    assert np.abs(post.mean()[0] - 7.0).max() < 0.2
    with pytest.raises(qp.InvalidInputError, match="GaussianPrior"):
        qp.posterior(qp.Experience(mdp.space), prior=Elsewhere(scale=1.0), method="exact", particles=50)


def test_a_prior_on_rewards_of_ones_own_is_sampled_by_its_own_density():
    class Higher(qp.RewardPrior):
        def log_density_and_grad(self, theta, space):
            return super().log_density_and_grad(theta - 3.0, space)

        def draw(self, num, space, rng):
            return super().draw(num, space, rng) + 3.0

    class Mine(Plain):
        variable = "reward"

    mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
    seen = qp.Experience.of_pairs(mdp, [(0, 0)])
    higher = qp.RewardPrior(mean=3.0, scale=0.7)
    options = {"transitions": mdp.transitions, "particles": 2000, "seed": 1, "tolerance": 2.0}
    expected = qp.posterior(seen, prior=higher, **options)
    for prior in (Higher(scale=0.7), Mine(higher)):
        post = qp.posterior(seen, prior=prior, **options)
        assert post.method == "hmc"
        assert np.abs(post.pair_mean - expected.pair_mean).max() < 0.1
        with pytest.raises(qp.InvalidInputError, match="RewardPrior"):
            qp.make_agent("abrl", mdp, prior=prior)
        with pytest.raises(qp.InvalidInputError, match="takes a prior on Q"):
            qp.PosteriorSamplingAgent(mdp.space, prior=prior)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (qp.GaussianPrior, "gaussian"),
        (qp.BoundedPrior, "bounded"),
        (qp.RewardPrior, "reward"),
        (qp.ModelPrior, "model"),
    ],
)
def test_only_the_librarys_own_priors_are_stored_under_their_short_names(kind, name):
    assert prior_to_dict(kind())["name"] == name
    assert prior_to_dict(type("Mine", (kind,), {})())["name"] == "Mine"
    with pytest.raises(qp.InvalidInputError, match="lacks its values"):
        prior_to_dict(kind)
    with pytest.raises(qp.InvalidInputError, match="lacks its values"):
        qp.make_agent("abrl", qp.make_environment("two-state"), prior=kind)


def test_what_a_prior_speaks_of_is_q_rewards_or_the_model():
    class OfAnything(Plain):
        variable = "anything"

    class OfModels:
        variable = "model"

    _, seen = seen_with_two_rewards()
    with pytest.raises(qp.InvalidInputError, match="unknown variable of a prior 'anything'"):
        qp.posterior(seen, prior=OfAnything(qp.GaussianPrior()))
    with pytest.raises(qp.InvalidInputError, match="must have draw and describe"):
        qp.posterior(seen, prior=OfModels())


def test_a_noise_with_a_method_called_bind_and_a_prior_with_arrays_are_taken():
    @dataclass
    class Bound(GaussianReadings):
        def bind(self):
            return "something else"

    @dataclass
    class PerPair(Plain):
        mean: np.ndarray = None
        scale: np.ndarray = None

    seen = bandit([[0.3, 1.9], [0.9, 0.2]])
    post = qp.posterior(seen, noise=Bound(), particles=200, prior=PerPair(qp.GaussianPrior(), np.zeros(2), np.ones(2)))
    assert post.settings["prior"] == {"name": "PerPair"}
    with pytest.raises(qp.InvalidInputError, match="transitions must be"):
        qp.posterior(seen, noise=Bound(), transitions=qp.Noise(), particles=50)


def test_a_linear_q_has_coordinates_of_its_own():
    _, seen = seen_with_two_rewards()
    with pytest.raises(qp.InvalidInputError, match="leave coordinates out"):
        qp.posterior(seen, features=np.eye(4), tolerance=0.5, coordinates=stretched, particles=50)


def test_rewards_beyond_the_wall_of_a_prior_on_rewards_are_refused():
    mdp, seen = seen_with_two_rewards()
    for options in ({}, {"tolerance": 0.1, "kernel": "uniform"}):
        with pytest.raises(qp.InvalidInputError, match=r"rewards lie below -0\.7"):
            qp.posterior(
                seen, prior=qp.RewardPrior(mean=-1.0, upper=-0.7), transitions=mdp.transitions, particles=50, **options
            )


def test_conditionals_are_those_given_the_rows_that_were_put_in():
    mdp, _ = seen_with_two_rewards()
    target = Target(qp.Experience.of_pairs(mdp, [(0, 0)]), qp.GaussianPrior(mean=-1.0, scale=0.7), Tolerance())
    rows = np.array([[0.9, 0.1]])
    plain = Target(target.seen, Plain(target.prior), Tolerance())
    theta = target.given(rows).to_q(target.initial(5, np.random.default_rng(0)))
    k = int(mdp.space.pair(1, 0))
    given = target.given(rows).chart.log_integral(theta, k)
    np.testing.assert_allclose(given, plain.given(rows).chart.log_integral(theta, k), atol=1e-4)
    assert np.abs(given - target.chart.log_integral(theta, k)).min() > 1e-3


def test_tolerance_zero_is_refused_in_coordinates_in_which_rewards_are_free():
    class Shifted(BoundChart):
        """x = θ − 1."""

        def __init__(self, parts):
            self.parts, self.num_coordinates = parts, parts.seen.space.num_pairs
            self.upper_walls = np.full(self.num_coordinates, np.inf)

        def locate(self, x, log_scale):
            nothing = np.zeros(x.shape[0])
            rewards = self.rewards_of(x + 1.0)
            return Location(
                parameters=x + 1.0, rewards=rewards, log_volume=nothing, jump=nothing, inside=nothing == 0.0, x=x
            )

        def start(self, num, rng):
            return self.parts.prior.draw(num, self.parts.seen.space, rng) - 1.0

    _, seen = seen_with_two_rewards()
    with pytest.raises(qp.InvalidInputError, match="tolerance 0 has no density"):
        qp.posterior(seen, coordinates=Shifted, particles=50)
