"""`posterior(...)`: from what was seen to what is known of Q*, by any method, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from qposterior.answers import Posterior, make_rng
from qposterior.checks import check_callable, check_choice, check_count, check_numbers, check_type, shown
from qposterior.errors import InvalidInputError, NoUniqueSolutionError, QPosteriorError, name_states, unknown_name
from qposterior.inference.exact import MOST_CELLS, Enumeration
from qposterior.inference.hmc import Chains, HMCSettings, run_hmc, scout
from qposterior.inference.joint import CHAINS, JointDraws, run_joint
from qposterior.inference.smc.annealed import AnnealedSampler, AnnealedSettings
from qposterior.inference.smc.one_look import OneLookSampler, OneLookSettings
from qposterior.inference.smc.resampling import systematic
from qposterior.inference.smc.sampler import SequentialSampler
from qposterior.inference.tempering import ladder, run_tempering
from qposterior.inference.trust import ISLANDS, compare_islands, contradiction, describe_draws, distrust, distrust_few
from qposterior.model.likelihood import Likelihood, Noise, NoiseModel, Tolerance, check_noise, noise_to_dict
from qposterior.model.linear import LinearQTarget
from qposterior.model.model_prior import CHAINS as CHAINS_OF_MODELS
from qposterior.model.model_prior import ModelPrior
from qposterior.model.prior import GaussianPrior, Prior, RewardPrior, check_prior, prior_to_dict, typical
from qposterior.model.reward import RewardTarget
from qposterior.model.solve_models import TOLERANCE, solve_ending
from qposterior.model.tabular import BellmanTarget, QTarget
from qposterior.model.target import Target
from qposterior.model.uncertain import DirichletRows, SimulatedRows, SimulatorPool, UncertainTarget
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience
from qposterior.world.models import ModelDraws
from qposterior.world.solve import check_uniqueness
from qposterior.world.space import StateActionSpace
from qposterior.world.structure import inescapable_set
from qposterior.world.transitions import TransitionTable, check_rows

METHODS = ("exact", "hmc", "tempering", "smc")
COORDINATES = ("bellman", "q")
USED_BY = {
    "settings": ("hmc", "tempering", "smc"),
    "features": ("hmc", "tempering"),
    "progress_fn": ("hmc", "tempering"),
    "max_cells": ("exact",),
}
"""Arguments that some methods have no use for: given to another one they are refused, not ignored."""

Settings = TypeVar("Settings", HMCSettings, AnnealedSettings, OneLookSettings)
CHECKED_CELLS, CHECKED_PAIRS = 64, 64
"""Up to this size what was sampled is checked against enumeration, which costs a fraction of the sampling there."""

CHECKED_MODEL_PAIRS = 400
"""Pairs on which the chains that draw models are compared, evenly spread where there are more."""

MOST_NAMED_STATES = 2000
"""States of a problem up to which it is found out where a model without a solution has none."""

FEWEST_MODELS = 50
ENOUGH_MODELS = 400
"""Models from which P(optimal) is known to 0.025 everywhere, as is asked of other methods."""

FEW_TOLERANCE = 1e-6
"""Of Q* in large problems, relative to its spread: few draws know it to a tenth of that at best."""

MOST_Q = 20_000_000
"""Values of Q* of models that are held in double precision, and looked at in one go."""

MOST_LEFT_OUT = 0.05
MANY_LEFT_OUT = (
    "{:.0%} of the models that were drawn have no finite solution at discount 1, or next to none, and were left out: "
    "in those a loop pays, or a state has no way out; use a discount below 1, or name more goals"
)

SMALLEST_ISLAND = 125
"""Particles of an island of the sequential sampler, at least: smaller ones lose modes."""

SCOUTING = HMCSettings(warm_up=300)
EXACT_ERROR = 5e-3
"""Standard error of P(optimal) beyond which the integration of the policy cells has not converged."""

FREE_LOOP = 3.0
"""A seen loop whose rewards are within this many (1 − γ)·scale of (1 − γ)·mean is one that a discount favours."""


def posterior(
    seen: Experience,
    *,
    prior: Prior | RewardPrior | ModelPrior | None = None,
    tolerance: float | FloatArray = 0.0,
    method: str = "hmc",
    coordinates: str = "bellman",
    particles: int = 1000,
    seed: Any = 0,
    kernel: str = "gaussian",
    noise: Noise | NoiseModel | None = None,
    transitions: TransitionTable | DirichletRows | SimulatedRows | SimulatorPool | str | None = None,
    features: FloatArray | None = None,
    settings: HMCSettings | AnnealedSettings | OneLookSettings | None = None,
    max_cells: int = MOST_CELLS,
    progress_fn: Callable[[int, int], None] | None = None,
) -> Posterior:
    """Return the posterior of Q* given an experience.

    - `prior`: `GaussianPrior` (default), `BoundedPrior`, or `RewardPrior` (needs `transitions`, the rows of all pairs).
      A prior of one's own is any object with the two methods of `qposterior.Prior`; hmc, tempering and smc take it.
      A `ModelPrior` draws models and solves each: it takes `particles`, `seed`, and "empirical" transitions.
    - `tolerance`: ε of deterministic rewards (0 = exact), with `kernel` "gaussian" or "uniform". `noise`: a `Noise` for
      rewards that are readings around a mean, or one's own (`qposterior.NoiseModel`); then there is no tolerance.
    - `method`: "exact" (enumeration of policy cells), "hmc", "tempering" (over tolerances), "smc" (sequential: at
      tolerance 0 one pair after the other with exact weights; at a positive tolerance, or with noise, the paper's
      annealed sampler).
    - `coordinates`: "bellman" (support: proper policies) or "q" (the paper's, all of R^K; needs a positive tolerance
      unless exact). `features` ``(K, F)`` asks for a Q that is linear in them, in Q coordinates.
    - `transitions`: of counted successors, how their unknown rows are treated: "dirichlet" (default; or a
      `DirichletRows`) draws them jointly with Q, a `SimulatedRows` takes fresh ones from a simulator, a
      `SimulatorPool` those of a pool that grows with the data, "empirical" takes the frequencies for the rows (biased:
      they are treated as known). A table, such as `mdp.transitions`: the rows of all pairs are known, whatever was
      counted (a `RewardPrior` needs it).
    - `particles`: how many draws are returned, whatever the method. `seed`: an int, a SeedSequence or a Generator.
    - `settings`: an `HMCSettings` for hmc and tempering; an `AnnealedSettings` or `OneLookSettings` for smc.
      `max_cells` is the limit of exact, `progress_fn` gets (iterations done, most) of the chains.

    An argument that the chosen way has no use for is an error.
    """
    prior = GaussianPrior() if prior is None else prior
    given = dict(locals())
    _check_each(given)
    _check_all_are_used(given)
    if isinstance(prior, ModelPrior):
        known = seen.with_frequencies() if transitions == "empirical" else seen
        return _announced(model_posterior(known, prior, particles, make_rng(seed)))
    chain_settings = _settings_of(HMCSettings, settings) if method in ("hmc", "tempering") else None
    likelihood: Likelihood = Tolerance(tolerance=tolerance, kernel=kernel) if noise is None else noise
    rows = _unknown_rows(seen, transitions, prior, method, coordinates)
    if rows is not None and features is not None:
        raise InvalidInputError('a linear Q (features=) takes rows that are known, such as transitions="empirical"')
    if transitions == "empirical":
        seen = seen.with_frequencies()
    elif isinstance(transitions, TransitionTable) and not isinstance(prior, RewardPrior):
        seen = _with_table(seen, transitions)
    elif isinstance(transitions, SimulatorPool):
        seen = transitions.grow(seen)
    rng = make_rng(seed)
    described = {
        "prior": prior_to_dict(prior),
        "tolerance": np.asarray(tolerance).tolist() if noise is None else None,
        "kernel": kernel if noise is None else None,
        "noise": None if noise is None else noise_to_dict(noise),
        "coordinates": coordinates,
        "observed": seen.num_observed,
    }
    if isinstance(prior, RewardPrior):
        if not isinstance(transitions, TransitionTable):
            raise InvalidInputError("RewardPrior needs the rows of all pairs: pass transitions=mdp.transitions")
        return _reward_posterior(seen, transitions, prior, likelihood, particles, rng, chain_settings, described)
    loop = free_loop(seen, prior)
    if loop.size:
        warnings.warn(
            f"one can circle in {name_states(np.unique(seen.space.pair_state[loop]))} for ever at a reward of about 0: "
            "with a Gaussian prior on Q and a discount below 1 such a loop is almost surely 'optimal'; use discount 1, "
            "a step cost, or RewardPrior",
            RuntimeWarning,
            stacklevel=2,
        )
    if rows is not None:
        chain_settings = chain_settings or HMCSettings(chains=CHAINS)
        uncertain = UncertainTarget(seen, prior, likelihood, rows, chains=chain_settings.chains, rng=rng)
        joint = run_joint(uncertain, rng, chain_settings, progress_fn=progress_fn, min_draws=particles)
        return _announced(_joint_posterior(joint, particles, seen, described | {"transitions": type(rows).__name__}))
    if method == "exact":
        found = Enumeration(seen, prior, likelihood, coordinates=coordinates, max_cells=max_cells, rng=rng)
        return _announced(_exact_posterior(found, particles, described))
    if method == "smc":
        sampled = _sequential_posterior(seen, prior, likelihood, particles, rng, described, coordinates, settings)
        sampled = _scouted(sampled, seen, prior, likelihood, rng)
        return _announced(_cross_checked(sampled, seen, prior, likelihood, coordinates))
    make_target = _target_maker(seen, prior, likelihood, coordinates, features)
    if method == "hmc":
        target = make_target(None)
        chains = run_hmc(target, rng, chain_settings, progress_fn=progress_fn, min_draws=particles)
    else:
        coldest = float(np.max(tolerance)) if noise is None else 0.0
        if coldest <= 0.0:
            raise InvalidInputError(
                'method="tempering" needs a positive tolerance to start from; at tolerance 0, or with noise, use '
                'method="hmc" in Bellman coordinates'
            )
        rungs = ladder(coldest, typical(prior, seen.space)[1], seen.num_observed)
        target = make_target(coldest)
        chains = run_tempering(make_target, rungs, rng, chain_settings, progress_fn=progress_fn, min_draws=particles)
    sampled = _chain_posterior(target, chains, method, particles, seen, described)
    if features is None and method == "tempering":
        sampled = _scouted(sampled, seen, prior, likelihood, rng)
    if features is None:
        sampled = _cross_checked(sampled, seen, prior, likelihood, coordinates)
    return _announced(sampled)


def model_posterior(seen: Experience, prior: ModelPrior, particles: int, rng: np.random.Generator) -> Posterior:
    """Return the posterior of Q* under a prior on the model: models are drawn, and each is solved.

    Models without a finite solution (at discount 1: a loop pays, or a state has no way out) are left out, which
    conditions the posterior on there being one: `diagnostics["left_out"]` is their share.
    """
    return solved_posterior(prior.draw(seen, particles, rng), CHAINS_OF_MODELS, method="model", prior=prior)


def solved_posterior(
    models: ModelDraws,
    chains: int,
    *,
    method: str,
    prior: ModelPrior | None = None,
    are_few: bool = False,
    progress_fn: Callable[[float], None] = lambda share: None,
) -> Posterior:
    """Return the posterior of Q* that draws of models, chain after chain, stand for.

    `are_few` says that there are no more of them because the problem is large (`distrust_few`). `progress_fn` gets the
    share of them that is solved.
    """
    size = models.num_draws, models.space.num_pairs
    out = np.empty(size, dtype=np.float32 if size[0] * size[1] > MOST_Q else np.float64)
    tolerance = FEW_TOLERANCE if are_few else TOLERANCE
    solutions = solve_ending(models, tolerance=tolerance, out=out, progress_fn=progress_fn)
    left_out = solutions.num_unsolved / models.num_draws
    chain = np.arange(models.num_draws) * chains // models.num_draws
    choosing = np.zeros(models.num_draws, dtype=bool)
    for number in range(chains):
        solved = np.flatnonzero((chain == number) & solutions.solved)
        choosing[solved[: (solved.size + 1) // 2]] = True
    kept = np.flatnonzero(solutions.solved)
    if kept.size < FEWEST_MODELS:
        states = _unsolvable_states(models)
        raise NoUniqueSolutionError(
            f"only {kept.size} of {models.num_draws} models that were drawn have a finite solution: with discount 1 a "
            "loop pays in the others, or some state has no way to a goal; use a discount below 1, or name more goals",
            states=states,
        )
    q = solutions.q if kept.size == models.num_draws else solutions.q[kept]
    facts = {"left_out": left_out, "total_draws": models.num_draws} | _agreement(models.space, q, chain[kept], chains)
    reason = distrust_few(facts, CHECKED_MODEL_PAIRS, models.space) if are_few else distrust(facts, models.space)
    if reason is None and left_out > MOST_LEFT_OUT:
        reason = MANY_LEFT_OUT.format(left_out)
    return Posterior(
        space=models.space,
        draws=q,
        weights=np.full(kept.size, 1.0 / kept.size),
        method=method,
        diagnostics=facts | _judged(reason),
        settings={} if prior is None else {"prior": prior.describe()},
        models=models if kept.size == models.num_draws else models.part(kept),
        choosing=choosing[kept],
    )


def _unsolvable_states(models: ModelDraws) -> IntArray:
    """Return states of the mean model that lead to no goal or that one can circle in; none in large problems."""
    if models.space.num_states > MOST_NAMED_STATES:
        return np.empty(0, dtype=np.int64)
    report = check_uniqueness(models.mean().mdp(0))
    return report.trapped_states if report.trapped_states.size else report.surviving_loop


def _agreement(space: StateActionSpace, q: FloatArray, chain: IntArray, chains: int) -> dict[str, Any]:
    """Return how well the chains agree: on Q* and on which pairs are greedy, of at most `CHECKED_MODEL_PAIRS` pairs."""
    length = int(np.bincount(chain, minlength=chains).min())
    rows = np.stack([np.flatnonzero(chain == number)[:length] for number in range(chains)])
    some = np.unique(np.linspace(0, space.num_pairs - 1, CHECKED_MODEL_PAIRS).round().astype(np.int64))
    shares = np.concatenate([space.optimal_share(part)[:, some] for part in np.array_split(q, -(-q.size // MOST_Q))])
    return describe_draws(q[:, some][rows].astype(np.float64), shares[rows])


def _with_table(seen: Experience, table: TransitionTable) -> Experience:
    """Return the experience with the rows of a table that has one for each pair."""
    return seen.with_rows({int(k): table.row(int(k)) for k in seen.observed_pairs})


def _judged(reason: str | None) -> dict[str, Any]:
    """Return the part of the diagnostics that says whether to trust the rest."""
    return {"trusted": True} if reason is None else {"trusted": False, "distrust": reason}


def _announced(post: Posterior) -> Posterior:
    """Return the posterior, with a warning where it is not to be trusted."""
    if not post.trusted:
        warnings.warn(f"do not trust these draws: {post.diagnostics['distrust']}", RuntimeWarning, stacklevel=3)
    return post


def _scouted(
    post: Posterior,
    seen: Experience,
    prior: Prior,
    likelihood: Likelihood,
    rng: np.random.Generator,
) -> Posterior:
    """Return the posterior, distrusted where short chains from other policy cells stay where it has no weight.

    They run in Bellman coordinates, in which a chain that stays is held by a mode and not by a narrow tolerance.
    """
    target = BellmanTarget(seen, prior, likelihood)
    if not post.trusted or target.num_coordinates == 0:
        return post
    visited = post.expectation(post.space.optimal_share(post.draws)) > 1.0 / post.weights.size
    stray = scout(target, visited, rng, SCOUTING)
    return replace(post, diagnostics=post.diagnostics | _judged(distrust({"unvisited_modes": stray})))


def _cross_checked(
    post: Posterior, seen: Experience, prior: Prior, likelihood: Likelihood, coordinates: str
) -> Posterior:
    """Return the posterior, distrusted where enumeration is in reach and says something else."""
    space = post.space
    if space.num_pairs > CHECKED_PAIRS or not post.trusted:
        return post
    rng = np.random.default_rng(0)  # a stream of its own: the draws do not depend on whether they are checked
    try:
        exact = Enumeration(seen, prior, likelihood, coordinates=coordinates, max_cells=CHECKED_CELLS, rng=rng)
    except QPosteriorError:  # too many cells, or a prior or noise that enumeration does not cover
        return post
    share = post.prob_optimal_table()[space.pair_state, space.pair_action]
    if exact.prob_error > EXACT_ERROR:
        return post
    reason = contradiction(share, exact.prob_optimal(), space, num=post.weights.size)
    checked = _judged(reason) | {"checked_by_enumeration": True}
    return replace(post, diagnostics=post.diagnostics | checked)


def _check_each(given: dict[str, Any]) -> None:
    """Raise where an argument of `posterior` is not what it must be, whatever the others are."""
    check_type("seen", given["seen"], Experience)
    if not isinstance(given["prior"], ModelPrior):
        check_prior(given["prior"])
    check_choice("method", given["method"], METHODS)
    check_choice("coordinate system", given["coordinates"], COORDINATES)
    for name in ("particles", "max_cells"):
        check_count(name, given[name])
    if given["noise"] is not None:
        check_noise(given["noise"])
    if given["transitions"] is not None:
        kinds = (TransitionTable, DirichletRows, SimulatedRows, SimulatorPool, str)
        check_type("transitions", given["transitions"], kinds)
    if isinstance(given["transitions"], TransitionTable):
        check_rows(given["transitions"], given["seen"].space.num_pairs, given["seen"].space.num_states)
    if given["progress_fn"] is not None:
        check_callable("progress_fn", given["progress_fn"])
    observed = given["seen"].num_observed
    if np.shape(check_numbers("tolerance", given["tolerance"])) not in ((), (observed,)):
        raise InvalidInputError(
            f"tolerance must be one number, or one for each of the {observed} pairs seen, got "
            f"{shown(given['tolerance'])}"
        )
    if given["features"] is not None:
        check_numbers("features", given["features"])


def _check_all_are_used(given: dict[str, Any]) -> None:
    """Raise for an argument that was given and that nothing on the way to this posterior would look at."""
    method, coordinates, kernel = given["method"], given["coordinates"], given["kernel"]
    is_given = {name: given[name] is not None for name in USED_BY} | {"max_cells": given["max_cells"] != MOST_CELLS}
    for name, methods in USED_BY.items():
        if is_given[name] and method not in methods:
            raise InvalidInputError(f"{name} is for method {' and '.join(methods)}, not for {method!r}; leave it out")
    is_tolerant = bool(np.any(given["tolerance"]))
    if given["noise"] is not None and is_tolerant:
        raise InvalidInputError("noise and a tolerance exclude each other; leave one out")
    if given["noise"] is not None and kernel != "gaussian":
        raise InvalidInputError(f"a kernel belongs to a tolerance, not to noise; leave kernel={shown(kernel)} out")
    if kernel == "uniform" and not is_tolerant:
        raise InvalidInputError('kernel="uniform" needs a positive tolerance: tolerance 0 has no kernel')
    if isinstance(given["prior"], ModelPrior):
        defaults = {"tolerance": 0.0, "method": "hmc", "coordinates": "bellman", "kernel": "gaussian"}
        others = {name: given[name] for name in ("noise", "features", "settings", "progress_fn")}
        for name, value in (defaults | dict.fromkeys(others)).items():
            if np.ndim(given[name]) or given[name] != value:
                raise InvalidInputError(f"{name} is for a prior on Q, not for a ModelPrior; leave it out")
        if given["transitions"] not in (None, "dirichlet", "empirical"):
            raise InvalidInputError('with a ModelPrior transitions are "dirichlet" (drawn) or "empirical"')
        return
    if isinstance(given["prior"], RewardPrior):
        if method != "hmc" or coordinates != "bellman":
            raise InvalidInputError(
                f"a RewardPrior has its own way and coordinates; leave out method={method!r}, {coordinates=}"
            )
        for name in ("features", "progress_fn"):
            if is_given[name]:
                raise InvalidInputError(f"{name} is for a prior on Q, not for a RewardPrior; leave it out")


def _unknown_rows(
    seen: Experience, transitions: Any, prior: Any, method: str, coordinates: str
) -> DirichletRows | SimulatedRows | None:
    """Return what is believed of rows that are not known, None where they are."""
    if isinstance(transitions, str):
        if transitions not in ("dirichlet", "empirical"):
            raise unknown_name("treatment of transitions", transitions, ("dirichlet", "empirical"))
        if seen.transitions != "counted":
            raise InvalidInputError(f'transitions="{transitions}" needs an Experience(..., transitions="counted")')
    if transitions == "empirical" or isinstance(transitions, TransitionTable | SimulatorPool):
        return None
    if seen.transitions != "counted" and not isinstance(transitions, SimulatedRows):
        if isinstance(transitions, DirichletRows):
            raise InvalidInputError('DirichletRows needs an Experience(..., transitions="counted")')
        return None
    if isinstance(prior, RewardPrior):
        raise InvalidInputError("a RewardPrior needs rows that are known: pass transitions=mdp.transitions")
    if method != "hmc" or coordinates != "bellman":
        raise InvalidInputError('unknown transitions are drawn with Q by method="hmc" in Bellman coordinates')
    return transitions if isinstance(transitions, DirichletRows | SimulatedRows) else DirichletRows()


def _joint_posterior(joint: JointDraws, particles: int, seen: Experience, described: dict[str, Any]) -> Posterior:
    """Return the posterior of joint draws, thinned evenly."""
    chains, length, size = joint.theta.shape
    row = np.linspace(0, chains * length - 1, particles).round().astype(int)
    scale = None if joint.log_scale is None else np.exp(joint.log_scale.reshape(-1)[row])
    return Posterior(
        space=seen.space,
        draws=joint.theta.reshape(chains * length, size)[row],
        weights=np.full(particles, 1.0 / particles),
        method="hmc",
        diagnostics=joint.diagnostics
        | _judged(distrust(joint.diagnostics, seen.space))
        | {"total_draws": chains * length},
        settings=described,
        noise_scale=scale,
    )


def _settings_of(kind: type[Settings], settings: Any) -> Settings | None:
    if settings is not None and not isinstance(settings, kind):
        raise InvalidInputError(f"settings must be {kind.__name__} here, got {type(settings).__name__}")
    return settings


def _target_maker(
    seen: Experience, prior: Any, likelihood: Likelihood, coordinates: str, features: FloatArray | None
) -> Callable[[float | None], Target]:
    """Return the function that makes the target at a tolerance (None: as asked for)."""

    def make(tolerance: float | None) -> Target:
        chosen = likelihood
        if tolerance is not None and isinstance(likelihood, Tolerance):
            # Tolerances that differ by pair keep their ratios on the way up the ladder.
            shape = np.asarray(likelihood.tolerance) / np.max(likelihood.tolerance)
            chosen = Tolerance(tolerance=tolerance * shape, kernel=likelihood.kernel)
        if features is not None:
            if not isinstance(prior, GaussianPrior):
                raise InvalidInputError("a linear Q takes a GaussianPrior on its weights")
            return LinearQTarget(seen, features, prior, chosen)
        kind = BellmanTarget if coordinates == "bellman" else QTarget
        return kind(seen, prior, chosen)

    return make


def _exact_posterior(found: Enumeration, particles: int, described: dict[str, Any]) -> Posterior:
    reason = None
    if not max(found.prob_error, found.mean_error) <= EXACT_ERROR:
        reason = (
            f"the integration over policy cells has not converged (standard errors {found.prob_error:.3g} of "
            f'P(optimal) and {found.mean_error:.3g} prior scales of the means); compare with method="hmc"'
        )
    return Posterior(
        space=found.space,
        draws=found.draw(particles),
        weights=np.full(particles, 1.0 / particles),
        method="exact",
        log_evidence=found.log_evidence,
        diagnostics=found.diagnostics() | _judged(reason),
        settings=described,
        exact_tables=np.stack([found.prob_optimal(), found.mean(), found.sd()]),
        enumeration=found,
    )


def _chain_posterior(
    target: Target, chains: Chains, method: str, particles: int, seen: Experience, described: dict[str, Any]
) -> Posterior:
    """Return the posterior of chains, thinned evenly to the number of draws asked for."""
    per_chain = -(-particles // chains.draws.shape[0])
    row = np.linspace(0, chains.draws.shape[1] - 1, per_chain).round().astype(int)
    x = chains.draws[:, row].reshape(chains.draws.shape[0] * per_chain, target.num_coordinates)
    even = x.shape[0] == particles
    x = x if even else x[np.linspace(0, x.shape[0] - 1, particles).round().astype(int)]
    learned = getattr(getattr(target, "data", None), "learned", False)
    return Posterior(
        space=seen.space,
        draws=target.to_q(x),
        weights=np.full(particles, 1.0 / particles),
        method=method,
        diagnostics=chains.diagnostics
        | _judged(distrust(chains.diagnostics, seen.space))
        | {"total_draws": chains.draws.shape[0] * chains.draws.shape[1]},
        settings=described,
        chains=chains.draws.shape[0] if even else 1,
        noise_scale=np.exp(x[:, -1]) if learned else None,
    )


def _sequential_posterior(
    seen: Experience,
    prior: Prior,
    likelihood: Likelihood,
    particles: int,
    rng: np.random.Generator,
    described: dict[str, Any],
    coordinates: str,
    settings: Any,
) -> Posterior:
    """Return the posterior of independent islands of a sequential sampler, averaged by their evidence.

    Each island is what an agent would have made of the same data. `particles` equally weighted draws are kept where the
    islands together have more.
    """
    kind = BellmanTarget if coordinates == "bellman" else QTarget
    kind(seen, prior, likelihood)  # traps, loops that pay and the like are named before anything is sampled
    # With noise the readings are annealed too: from the prior to all of them at once the weights would collapse.
    is_annealed = not (isinstance(likelihood, Tolerance) and likelihood.is_exact)
    checked: AnnealedSettings | OneLookSettings | None
    if is_annealed:
        checked = annealed = _settings_of(AnnealedSettings, settings)
        chain = 1 if annealed is None else annealed.moves.waste_free or 1
    else:
        checked, chain = _settings_of(OneLookSettings, settings), 1
    size = -(-max(SMALLEST_ISLAND, -(-particles // ISLANDS)) // chain) * chain
    common: dict[str, Any] = {"prior": prior, "likelihood": likelihood, "particles": size, "rng": rng}
    common["settings"] = checked
    if not is_annealed:
        make_fn: Callable[..., SequentialSampler] = OneLookSampler.start
    else:
        make_fn = AnnealedSampler.start
        common["coordinates"] = coordinates
        if isinstance(likelihood, Tolerance):
            if np.ndim(likelihood.tolerance):
                raise InvalidInputError('method="smc" takes one tolerance for all pairs; use hmc, tempering or exact')
            common["final_tolerance"] = float(likelihood.tolerance)
    islands = []
    lost: QPosteriorError | None = None
    for _ in range(ISLANDS):
        sampler = make_fn(seen, **common)
        try:
            sampler.update(seen)
        except InvalidInputError:
            raise
        except QPosteriorError as error:  # no particle of this island is left
            lost = error
            continue
        islands.append(sampler)
    if len(islands) < 2 and lost is not None:
        raise lost
    clouds = [island.cloud for island in islands]
    log_evidence = np.array([cloud.log_evidence for cloud in clouds])
    shares = np.array([cloud.weights @ seen.space.optimal_share(cloud.theta) for cloud in clouds])
    reason, facts = compare_islands(log_evidence, shares, seen.space)
    last_moves = [[row for row in island.trace if row.get("is_effective") is not None][-1:] for island in islands]
    ineffective = [row[0] for row in last_moves if row and not row[0]["is_effective"]]
    if len(islands) < ISLANDS:
        reason = f"{ISLANDS - len(islands)} of {ISLANDS} independent runs lost all their particles; use more of them"
    elif 2 * len(ineffective) >= ISLANDS:
        ratio = float(np.median([row["mixing_ratio"] for row in ineffective]))
        reason = (
            f"the last moves did not mix (ratio {ratio:.1f}); use Bellman coordinates, a larger tolerance, or more "
            "moves"
        )
    island_weight = np.exp(log_evidence - log_evidence.max())
    weights = np.concatenate([w * cloud.weights for w, cloud in zip(island_weight, clouds, strict=True)])
    weights /= weights.sum()
    theta = np.concatenate([cloud.theta for cloud in clouds])
    scale = None if clouds[0].log_scale is None else np.exp(np.concatenate([cloud.log_scale for cloud in clouds]))
    facts["effective_draws"] = float(1.0 / np.sum(weights**2))
    if weights.size > particles:
        kept = systematic(weights, rng, particles)
        theta, scale, weights = theta[kept], None if scale is None else scale[kept], np.full(particles, 1.0 / particles)
    return Posterior(
        space=seen.space,
        draws=theta,
        weights=weights,
        method="smc",
        log_evidence=float(log_evidence.max() + np.log(island_weight.mean())),
        diagnostics=facts | _judged(reason) | {"trace": islands[0].trace},
        settings=described,
        noise_scale=scale,
    )


def _reward_posterior(
    seen: Experience,
    table: TransitionTable,
    prior: RewardPrior,
    likelihood: Likelihood,
    particles: int,
    rng: np.random.Generator,
    settings: HMCSettings | None,
    described: dict[str, Any],
) -> Posterior:
    """Return the posterior under a prior on rewards: independent draws where they are conjugate, else chains."""
    target = RewardTarget(seen, table, prior, likelihood)
    if not target.is_conjugate:
        return _announced(
            _chain_posterior(
                target, run_hmc(target, rng, settings, min_draws=particles), "hmc", particles, seen, described
            )
        )
    if settings is not None:
        raise InvalidInputError("under this RewardPrior draws are independent, without a chain: leave `settings` out")
    return Posterior(
        space=seen.space,
        draws=target.to_q(target.draw(particles, rng)),
        weights=np.full(particles, 1.0 / particles),
        method="conjugate",
        diagnostics={"effective_draws": float(particles)} | _judged(None),
        settings=described,
    )


def free_loop(seen: Experience, prior: Prior, *, at_most: float = np.inf) -> IntArray:
    """Return the pairs of seen loops of reward about 0 that a discount below 1 makes look optimal, if any.

    On a closed loop of n steps the density gains 1/(1 − γⁿ) over what leaves it; the rewards that this favours are
    those within a few (1 − γ) · scale of (1 − γ) · mean, here also of size `at_most`: each of a loop, not their mean.
    Where nothing leads out, all policies gain alike.
    """
    space = seen.space
    if space.discount == 1.0 or seen.num_observed == 0:
        return np.empty(0, dtype=np.int64)
    mean, scale = typical(prior, space)
    limit = FREE_LOOP * (1.0 - space.discount) * scale
    is_near = np.abs(seen.reward_mean - (1.0 - space.discount) * mean) <= limit
    full = seen.table().spread(seen.observed_pairs, space.num_pairs)
    small = seen.observed & is_near & (np.abs(seen.reward_mean) <= at_most)
    inside = inescapable_set(space, full, small)
    leads_out = ~seen.observed | (full.expect((~inside).astype(float)) > 0.0)
    has_choice = bool(np.any(leads_out & inside[space.pair_state]))
    return np.flatnonzero(small & ~leads_out & inside[space.pair_state] & has_choice)
