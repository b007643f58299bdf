"""One contract for every method and prior; the Posterior's own arithmetic; what it refuses."""

from __future__ import annotations

from functools import partial
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

import qposterior as qp
from problems import looping_two_state, noisy_experience, random_problem
from qposterior.inference.hmc import HMCSettings
from qposterior.methods import METHODS, Method

QUICK = HMCSettings(chains=4, warm_up=160, max_iterations=250, block=250, min_ess=0.0)
CASES = {
    "exact": {"method": "exact"},
    "exact, ε": {"method": "exact", "tolerance": 0.5},
    "exact, q": {"method": "exact", "tolerance": 0.5, "coordinates": "q"},
    "hmc": {"method": "hmc", "settings": QUICK},
    "hmc, ε": {"method": "hmc", "tolerance": 0.5, "settings": QUICK},
    "hmc, q": {"method": "hmc", "tolerance": 0.5, "coordinates": "q", "settings": QUICK},
    "tempering": {"method": "tempering", "tolerance": 0.5, "coordinates": "q", "settings": QUICK},
    "tempering, bellman": {"method": "tempering", "tolerance": 0.5, "settings": QUICK},
    "tempering, feedback": {"method": "tempering", "settings": QUICK},
    "tempering, bounded": {"method": "tempering", "prior": qp.BoundedPrior(upper=3.0), "settings": QUICK},
    "tempering, soft": {"method": "tempering", "prior": qp.BoundedPrior(upper=0.0, softness=1.0), "settings": QUICK},
    "bounded": {"prior": qp.BoundedPrior(upper=3.0), "settings": QUICK},
    "bounded, rewards": {"prior": qp.BoundedPrior(upper=0.0, on="reward"), "settings": QUICK},
    "soft": {"prior": qp.BoundedPrior(upper=0.0, softness=1.0), "settings": QUICK},
    "reward prior": {"prior": qp.RewardPrior(upper=-0.01), "transitions": True},
    "uniform": {"tolerance": 0.8, "kernel": "uniform", "settings": QUICK},
    "smc": {"method": "smc"},
    "smc, ε": {"method": "smc", "tolerance": 0.8},
    "smc, q": {"method": "smc", "tolerance": 0.8, "coordinates": "q"},
    "smc, bounded": {"method": "smc", "prior": qp.BoundedPrior(upper=3.0)},
    "noise, hmc": {"noise": qp.Noise(scale=1.0), "settings": QUICK, "seen": "noisy"},
    "noise, learned": {"noise": qp.Noise(), "settings": QUICK, "seen": "noisy"},
    "noise, exact": {"noise": qp.Noise(scale=1.0), "method": "exact", "seen": "noisy"},
    "noise, smc": {"noise": qp.Noise(), "method": "smc", "seen": "noisy"},
    "noise, smc, q": {"noise": qp.Noise(scale=2.0), "method": "smc", "coordinates": "q", "seen": "noisy"},
    "dirichlet": {"settings": QUICK, "seen": "counted"},
    "dirichlet, all successors": {
        "transitions": qp.DirichletRows(successors="all"),
        "settings": QUICK,
        "seen": "counted",
    },
    "empirical, exact": {"transitions": "empirical", "method": "exact", "seen": "counted"},
    "empirical, smc": {"transitions": "empirical", "method": "smc", "seen": "counted"},
    "table, hmc": {"transitions": True, "settings": QUICK, "seen": "counted"},
    "table, smc": {"transitions": True, "method": "smc", "seen": "counted"},
    "simulated": {"transitions": "simulated", "settings": QUICK, "seen": "counted"},
    "pool": {"transitions": "pool", "method": "exact", "seen": "counted"},
}


def experience(mdp, seen, kind):
    """The same pairs, with readings around their rewards, or with successors counted from the rows."""
    pairs = [(int(mdp.space.pair_state[k]), int(mdp.space.pair_action[k])) for k in seen.observed_pairs]
    if kind == "noisy":
        return noisy_experience(mdp, pairs, sd=1.0, readings=2, seed=1)
    counted = qp.Experience(mdp.space, transitions="counted")
    for (state, action), k in zip(pairs, seen.observed_pairs, strict=True):
        for successor in mdp.transitions.row(int(k))[0]:
            counted.record(state, action, float(mdp.rewards[k]), int(successor))
    return counted


def simulator(mdp):
    """Successors by the true rows."""

    def simulate(state, action, number, rng):
        successors, probabilities = mdp.transitions.row(mdp.space.pair(state, action))
        return rng.choice(successors, size=number, p=probabilities)

    return simulate


def compute(name, seed=0, particles=200):
    mdp, seen = random_problem("looping", 3, num_states=4)
    options = dict(CASES[name])
    if (kind := options.pop("seen", None)) is not None:
        seen = experience(mdp, seen, kind)
    makers = {
        True: lambda: mdp.transitions,
        "simulated": lambda: qp.SimulatedRows(simulate_fn=simulator(mdp), draws=20),
        "pool": lambda: qp.SimulatorPool(simulator(mdp), draws=20),
    }
    rows = options.get("transitions")
    if isinstance(rows, bool | str) and rows in makers:
        options["transitions"] = makers[rows]()
    return mdp, qp.posterior(seen, particles=particles, seed=seed, **options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_every_posterior_keeps_the_contract(name, tmp_path):
    mdp, post = compute(name)
    space = mdp.space
    assert post.draws.shape == (200, space.num_pairs)
    assert np.isfinite(post.draws).all()
    np.testing.assert_allclose(post.weights.sum(), 1.0)
    assert isinstance(post.trusted, bool)
    assert post.trusted or post.reliability_warning
    for state in space.deciding_states:
        shares = post.prob_optimal(state)
        assert shares.shape == (space.num_actions,)
        np.testing.assert_allclose(shares.sum(), 1.0)
        assert np.all(shares >= 0.0)
    for table in (post.mean(), post.sd(), post.quantile(0.05), post.quantile(0.95)):
        assert table.shape == (space.num_states, space.num_actions)
        assert np.all(table[space.is_goal] == 0.0)
    assert np.nanmax(post.quantile(0.05) - post.quantile(0.95)) <= 0.0
    assert 0.0 <= post.prob_policy({0: 0, 1: 1}) <= 1.0
    assert post.sample(3, seed=1).shape == (3, space.num_states, space.num_actions)
    policies = post.sample_policy(50, seed=1)
    assert policies.shape == (50, space.num_states)
    assert set(policies[:, space.is_goal].ravel()) == {-1}
    assert "P(optimal)" in repr(post)
    path = tmp_path / "post.npz"
    post.save(path)
    again = qp.Posterior.load(path)
    np.testing.assert_array_equal(again.draws, post.draws)
    np.testing.assert_array_equal(again.prob_optimal_table(), post.prob_optimal_table())
    np.testing.assert_array_equal(again.mean(), post.mean())
    assert again.method == post.method
    assert again.settings == post.settings
    with pytest.raises(qp.InvalidInputError, match="exists"):
        post.save(path)
    post.save(path, overwrite=True)


@pytest.mark.parametrize(
    "name",
    ["exact", "hmc", "tempering", "tempering, feedback", "reward prior", "smc", "noise, smc", "dirichlet", "pool"],
)
@pytest.mark.filterwarnings("ignore:do not trust:RuntimeWarning")
def test_the_same_seed_gives_the_same_posterior(name):
    draws = [compute(name, seed=seed)[1].draws for seed in (1, 1, 2)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    rng = np.random.default_rng(1)
    np.testing.assert_array_equal(compute(name, seed=rng)[1].draws, draws[0])


def handmade():
    """Two actions in one state, three unequally weighted draws, one of them a tie."""
    mdp = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.0), (0, 1, 1, 1.0, 0.0)], goal=[1])
    draws = np.array([[1.0, 0.0], [2.0, 5.0], [3.0, 3.0]])
    return qp.Posterior(space=mdp.space, draws=draws, weights=np.array([0.2, 0.5, 0.3]), method="hand")


def test_weights_are_never_forgotten():
    post = handmade()
    np.testing.assert_allclose(post.mean()[0], [0.2 + 1.0 + 0.9, 2.5 + 0.9])
    np.testing.assert_allclose(post.sd()[0, 0], np.sqrt(0.2 * 1.1**2 + 0.5 * 0.1**2 + 0.3 * 0.9**2))
    np.testing.assert_allclose(post.prob_optimal(0), [0.2 + 0.15, 0.5 + 0.15])
    np.testing.assert_allclose(post.prob_optimal(0, ties="lowest"), [0.5, 0.5])
    np.testing.assert_allclose(post.prob_policy({0: 1}), 0.65)
    assert post.quantile(0.2)[0, 0] == 1.0
    assert post.quantile(0.21)[0, 0] == 2.0
    assert post.quantile(0.7)[0, 0] == 2.0
    assert post.quantile(1.0)[0, 0] == 3.0
    even = qp.Posterior(space=post.space, draws=post.draws, weights=np.full(3, 1.0 / 3.0), method="hand")
    assert [even.quantile(level)[0, 1] for level in (0.0, 1 / 3, 0.34, 2 / 3, 0.7, 1.0)] == [
        0.0,
        0.0,
        3.0,
        3.0,
        5.0,
        5.0,
    ]
    np.testing.assert_allclose(post.effective_draws, 1 / (0.04 + 0.25 + 0.09))
    share = np.mean(post.sample(8000, seed=1)[:, 0, 1] == 5.0)
    assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(8000)
    ties = post.sample_policy(8000, seed=2)[:, 0].mean()
    assert abs(ties - 0.65) < 4.5 * 0.5 / np.sqrt(8000)
    assert abs(post.sample_policy(8000, seed=2, ties="lowest")[:, 0].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(8000)


def test_arviz_form_has_weights_and_an_equally_weighted_view():
    tree = handmade().to_arviz()
    np.testing.assert_allclose(tree["sample_stats"]["weight"].values, [[0.2, 0.5, 0.3]])
    assert tree["posterior"]["q"].dims == ("chain", "draw", "pair")
    assert tree["posterior"]["action"].values.tolist() == [0, 1]
    rows = set(map(tuple, tree["posterior_resampled"]["q"].values[0].tolist()))
    assert rows <= {(1.0, 0.0), (2.0, 5.0), (3.0, 3.0)}


def test_the_arviz_that_is_installed_summarises_a_posterior():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ArviZ warns of when it is imported or summarises is its own affair
        import arviz

        draws = np.random.default_rng(0).normal([1.0, -2.0], 0.5, (200, 2))
        post = qp.Posterior(space=handmade().space, draws=draws, weights=np.full(200, 0.005), method="hand", chains=4)
        summary = arviz.summary(post.to_arviz())
    np.testing.assert_allclose(summary["mean"].astype(float), draws.mean(axis=0), atol=0.06)


def test_without_arviz_its_form_is_a_data_tree(monkeypatch):
    import xarray as xr

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("qposterior.weighted_draws.version", missing)
    assert isinstance(handmade().to_arviz(), xr.DataTree)
    monkeypatch.setattr("qposterior.weighted_draws.version", lambda name: "1.3.0")
    assert isinstance(handmade().to_arviz(), xr.DataTree)


def test_arviz_form_goes_to_a_netcdf_file_and_back(tmp_path):
    import xarray as xr

    path = tmp_path / "post.nc"
    handmade().to_arviz().to_netcdf(path)
    with xr.open_datatree(path) as tree:
        np.testing.assert_allclose(tree["posterior"]["q"].values[0], handmade().draws)


def test_a_learned_scale_comes_with_its_draws():
    bandit = qp.make_environment("bandit")
    seen = noisy_experience(bandit, [(0, 0), (0, 1)], sd=0.5, readings=30)
    post = qp.posterior(seen, noise=qp.Noise(), particles=100)
    assert post.noise_scale.shape == (100,)
    assert 0.3 < np.median(post.noise_scale) < 0.8
    assert "noise_scale" in post.to_arviz()["posterior"]


def test_files_of_others_are_refused_and_never_run(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, facts=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(qp.InvalidInputError, match="cannot read"):
        qp.Posterior.load(path)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(qp.InvalidInputError, match="cannot read"):
        qp.Posterior.load(tmp_path / "text.npz")
    with pytest.raises(qp.InvalidInputError, match="cannot read"):
        qp.Posterior.load(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tolerance": -0.1}, "0 or more, got -0.1"),
        ({"method": "hcm"}, "did you mean 'hmc'"),
        ({"coordinates": "belman"}, "did you mean 'bellman'"),
        ({"kernel": "unifrom"}, "did you mean 'uniform'"),
        ({"particles": 0}, "at least 1"),
        ({"noise": qp.Noise(), "tolerance": 0.5}, "exclude each other"),
        ({"coordinates": "q"}, "tolerance 0 has no density in Q coordinates"),
        ({"method": "tempering", "noise": qp.Noise()}, "takes a tolerance, not noise"),
        ({"prior": qp.RewardPrior()}, "transitions=mdp.transitions"),
        ({"prior": qp.BoundedPrior(upper=-1.0, on="reward")}, "rewards lie below -1, but -0.7 was seen"),
        ({"features": np.ones((3, 2)), "tolerance": 0.1}, r"\(4, F\)"),
    ],
)
def test_bad_questions_are_refused_with_the_reason(options, words):
    _, seen = looping_two_state()
    with pytest.raises(qp.InvalidInputError, match=words):
        qp.posterior(seen, **options)


@pytest.mark.parametrize("make", [qp.GaussianPrior, qp.BoundedPrior, qp.RewardPrior])
@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_prior_scales_must_be_positive(make, scale):
    with pytest.raises(qp.InvalidInputError, match="prior scale must be positive"):
        make(scale=scale)


def test_paying_loops_and_traps_are_named_with_the_remedy():
    mdp = qp.make_environment("two-state", rewards=[0.5, -1.0])
    for method in ("hmc", "exact"):
        with pytest.raises(qp.NoUniqueSolutionError):
            qp.posterior(qp.Experience.of_pairs(mdp, [(0, 0)]), method=method)
    with pytest.raises(qp.NoUniqueSolutionError, match=r"loop through state 0 pays.*step cost"):
        qp.posterior(qp.Experience.of_pairs(mdp, [(0, 0)]))
    trap = qp.FiniteMDP.from_edges([(0, 0, 0, 1.0, -1.0), (1, 0, 2, 1.0, 0.0), (1, 1, 0, 1.0, 0.0)], goal=[2])
    with pytest.raises(qp.NoUniqueSolutionError, match="state 0 are known and none leads on"):
        qp.posterior(qp.Experience.of_pairs(trap, [(0, 0)]))


@pytest.mark.parametrize("method", ["hmc", "exact"])
def test_a_loop_of_mean_zero_is_finite(method):
    mdp = qp.make_environment("two-state", rewards=[0.0, -1.0])
    settings = QUICK if method == "hmc" else None
    post = qp.posterior(qp.Experience.of_pairs(mdp, [(0, 0)]), method=method, settings=settings)
    assert np.isfinite(post.mean()[0]).all()
    np.testing.assert_allclose(post.prob_optimal(0), [0.5, 0.5])  # the two tie: waiting costs nothing


@pytest.mark.parametrize("method", ["hmc", "exact"])
def test_no_data_is_the_prior(method):
    mdp = qp.make_environment("random-mdp", num_states=3, seed=1)
    post = qp.posterior(qp.Experience(mdp.space), method=method, particles=2000, prior=qp.GaussianPrior(scale=2.0))
    np.testing.assert_allclose(post.prob_optimal(0), [0.5, 0.5], atol=0.07)
    np.testing.assert_allclose(post.sd()[0], 2.0, rtol=0.1)


def test_a_free_loop_under_a_discount_is_announced():
    mdp = qp.make_environment("two-state", rewards=[0.0, -1.0], discount=0.99)
    seen = qp.Experience.of_pairs(mdp, [(0, 0)])
    with pytest.warns(RuntimeWarning, match="circle in state 0 for ever"):
        post = qp.posterior(seen, method="exact")
    assert post.prob_optimal(0)[0] > 0.95  # the trap itself: 1/(1 − γ) more density
    costly = qp.make_environment("two-state", rewards=[-5.0, -1.0], discount=0.99)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qp.posterior(qp.Experience.of_pairs(costly, [(0, 0)]), method="exact")
        # A prior that expects 20 everywhere does not favour a loop that is worth 0.
        qp.posterior(seen, method="exact", prior=qp.GaussianPrior(mean=20.0, scale=1.0))
        # Where every way goes round for ever, no policy gains over another.
        around = qp.FiniteMDP.from_edges([(0, 0, 1, 1.0, 0.1), (0, 1, 0, 1.0, 0.0), (1, 0, 0, 1.0, 0.0)], discount=0.9)
        qp.posterior(qp.Experience.of_pairs(around, [(0, 0), (0, 1), (1, 0)]), method="exact")


def test_counted_transitions_and_noisy_readings_need_their_own_model():
    bandit = qp.make_environment("bandit")
    counted = qp.Experience(bandit.space, transitions="counted")
    with pytest.raises(qp.InvalidInputError, match='method="hmc"'):
        qp.posterior(counted, method="exact")
    seen = noisy_experience(bandit, [(0, 0)])
    with pytest.raises(qp.InvalidInputError, match="noise=Noise"):
        qp.posterior(seen)


def test_as_many_draws_as_are_asked_for_are_made():
    """Chains that agree early go on until there are that many: none is handed out twice."""
    _, seen = random_problem("acyclic", 3, num_states=4)
    post = qp.posterior(seen, particles=6000, seed=0)
    assert len(np.unique(post.draws[:, ~seen.observed], axis=0)) > 4500  # a refused trajectory repeats its draw
    assert post.diagnostics["total_draws"] >= 6000


@pytest.mark.parametrize("method", ["exact", "hmc", "smc"])
def test_a_table_of_transitions_is_used_whatever_was_counted(method):
    """A row of one half each, of which one successor was seen once: Q is the mean of both, not that of the one seen."""
    edges = [(0, 0, 1, 0.5, 0.0), (0, 0, 2, 0.5, 0.0), (1, 0, 3, 1.0, 5.0), (2, 0, 3, 1.0, -5.0)]
    mdp = qp.FiniteMDP.from_edges(edges, goal=[3])
    seen = qp.Experience(mdp.space, transitions="counted")
    for state, reward, following in ((0, 0.0, 1), (1, 5.0, 3), (2, -5.0, 3)):
        seen.record(state, 0, reward, following)
    post = qp.posterior(seen, transitions=mdp.transitions, method=method, particles=50)
    assert post.mean()[0, 0] == pytest.approx(0.0, abs=1e-12)
    other = qp.make_environment("two-state")
    with pytest.raises(qp.InvalidInputError, match="row for each of the 3 pairs"):
        qp.posterior(seen, transitions=other.transitions)


def test_reward_priors_need_losing_loops_and_a_table_of_the_right_size():
    mdp, seen = random_problem("looping", 1)
    with pytest.raises(qp.InvalidInputError, match="upper < 0"):
        qp.posterior(seen, prior=qp.RewardPrior(), transitions=mdp.transitions)
    other = qp.make_environment("two-state")
    with pytest.raises(qp.InvalidInputError, match="row for each of the 8 pairs"):
        qp.posterior(seen, prior=qp.RewardPrior(upper=-0.1), transitions=other.transitions)


def test_goals_decide_nothing():
    post = handmade()
    with pytest.raises(qp.InvalidInputError, match="goal"):
        post.prob_optimal(1)
    with pytest.raises(qp.InvalidInputError, match="level"):
        post.quantile(1.5)
    with pytest.raises(qp.InvalidInputError, match="tie rule"):
        post.prob_optimal(0, ties="highest")


def test_reweighting_gives_the_posterior_of_another_prior():
    """Draws under N(0, 4²) reweighted to N(1, 2²) against the exact answer under that prior; five standard errors."""
    mdp = qp.make_environment("five-state")
    seen = qp.Experience.of_pairs(mdp, [(0, 0), (1, 0)])
    wide = qp.posterior(seen, method="exact", particles=40_000, seed=0)
    wanted = qp.posterior(seen, prior=qp.GaussianPrior(mean=1.0, scale=2.0), method="exact", particles=10)
    log_ratio = np.sum(-0.5 * (wide.draws - 1.0) ** 2 / 4.0 + 0.5 * wide.draws**2 / 16.0, axis=1)
    found = wide.reweight(log_ratio)
    error = 5.0 * 0.5 / np.sqrt(found.effective_draws)
    assert np.abs(found.prob_optimal_table() - wanted.prob_optimal_table()).max() < error
    assert np.abs(wide.prob_optimal_table() - wanted.prob_optimal_table()).max() > error
    # In two steps: the second must not forget the weights of the first.
    twice = wide.reweight(0.3 * log_ratio).reweight(0.7 * log_ratio)
    np.testing.assert_allclose(twice.weights, found.weights, rtol=1e-9)
    with pytest.raises(qp.InvalidInputError, match="log_ratio"):
        wide.reweight(np.full(40_000, np.nan))


def test_a_method_of_ones_own_is_a_line_in_the_table_and_is_held_against_enumeration(monkeypatch):
    def draw(problem, rng, given, shift=0.0):
        """Importance sampling: draws of the prior on the free values, weighted by the target over it."""
        target = problem.target(rng)
        x = rng.normal(0.0, 4.0, (problem.num_draws, target.num_coordinates))
        log_weight = target.log_density(x).total + 0.5 * np.sum((x / 4.0) ** 2, axis=1)
        weights = np.exp(log_weight - log_weight.max())
        draws = target.to_q(x) + shift * np.arange(problem.space.num_pairs)
        return problem.posterior(
            draws=draws, weights=weights / weights.sum(), method="mine", diagnostics={"trusted": True}
        )

    _, seen = random_problem("acyclic", 3)
    monkeypatch.setitem(METHODS, "mine", Method(run_fn=draw, uses=()))
    post = qp.posterior(seen, method="mine", particles=40_000)
    assert post.trusted, post.reliability_warning
    exact = qp.posterior(seen, method="exact")
    np.testing.assert_allclose(post.prob_optimal_table(), exact.prob_optimal_table(), atol=0.05)
    with pytest.raises(qp.InvalidInputError, match="max_cells is for method exact, not for 'mine'"):
        qp.posterior(seen, method="mine", max_cells=7)
    monkeypatch.setitem(METHODS, "mine", Method(run_fn=partial(draw, shift=3.0), uses=()))
    with pytest.warns(RuntimeWarning, match="enumeration"):
        assert not qp.posterior(seen, method="mine", particles=4000).trusted
