"""`fit(...)`: from a log of decisions to which action is best where, how sure that is, and what to try next."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.api import posterior
from qposterior.checks import check_callable, check_choice, check_count, check_type, shown
from qposterior.cluster import check_engine
from qposterior.errors import InvalidInputError, NoUniqueSolutionError
from qposterior.inference.chains import HMCSettings
from qposterior.inference.hmc import CHAINS_OF_ROWS
from qposterior.inference.model_draws import ENOUGH_MODELS, solved_posterior
from qposterior.inference.policies import LEVEL, Policies, central_interval, recommend
from qposterior.logs.aggregation import Aggregation, Level, aggregation_of
from qposterior.logs.checks import Check, check_fit
from qposterior.logs.choices import UNKNOWN_ACTION, LogProblem, choose
from qposterior.logs.columns import Columns, LogError, numbered
from qposterior.logs.join import as_shown, joined
from qposterior.logs.parts import read_parts
from qposterior.logs.policy_file import read_policy
from qposterior.logs.read import Log, read_log
from qposterior.logs.settings import FitSettings
from qposterior.logs.value import visits, worth_of_readings
from qposterior.model.bootstrap import bootstrap_models
from qposterior.model.candidates import num_edges
from qposterior.model.model_prior import CHAINS as CHAINS_OF_MODELS
from qposterior.model.noise import Noise
from qposterior.model.solve_models import ModelSolver, logged_policy, policy_values
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

LEVELS = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
"""The ends of a 90 % interval."""

MOST_ESS = 2000
"""Effective draws at which the chains stop: the ends of a 90 % interval are then known to a twentieth of its length."""

MOST_NUMBERS, MOST_KEPT, FEWEST = 150_000_000, 40_000_000, 100
"""Numbers held by the chains (1.2 GB) and by the draws that are kept, and the least of either that says anything."""

USUAL_ROWS, MANY_ROWS, MOST_ROWS, FEWEST_MODELS = 100_000_000, 240_000_000, 400_000_000, 56
"""Probabilities of rows over all models that are drawn: 0.4 GB; 1 GB, in a temporary file, where fewer than
`ENOUGH_MODELS` models would be left; up to 1.6 GB where fewer than `FEWEST_MODELS` would be left, the fewest that say
anything: P(best) is then known to 0.07."""

DRAWING = 0.6
"""Share of the work that it is to draw models; the rest is to solve them."""

SENSITIVITY, SENSITIVITY_DRAWS, MOST_SENSITIVITY = 4.0, 400, 5_000_000
"""Factor by which the prior on how alike the rows of a state's actions are is changed, models that are drawn under each
change, and the most probabilities of rows in all of them."""

COMPARED_DRAWS = 400
"""Models that are drawn of coarser and of finer bins: their means are compared."""

FEW_CHAINS = 8
"""Chains where the rows are known: they share them, so more would bring nothing."""

NEGLIGIBLE = 1e-9
"""Gains below this share of the range of values are rounding."""

MOST_SHOWN = 50
"""States in the table that a notebook shows."""

ROW_COLUMNS = ("state", "action", "count", "mean", "lower", "upper", "prob_optimal", "expected_loss", "only_action")
NUMBERS = ("mean", "lower", "upper", "prob_optimal", "expected_loss")


@dataclass(kw_only=True)
class Fit:
    """The answer to a log: a table of actions, a policy, what to try next, and whether the model fits."""

    chosen: LogProblem
    posterior: Posterior
    checks: list[Check]
    log: Log = field(repr=False)
    source: str = "table"
    given: dict[str, FloatArray] = field(default_factory=dict, repr=False)  # policies of the user's own, (K,) each
    finest: Log | None = field(default=None, repr=False)  # sums as they were read: of finer bins
    aggregation: Aggregation | None = field(default=None, repr=False)  # what bins cost

    @cached_property
    def policies(self) -> Policies | None:
        """Values of the recommended policy, of the logged one and of those given; None where no models were drawn.

        The recommended policy takes only actions that were tried in their state.
        """
        found = self.as_if_bins_were_states
        return found if found is None or self.aggregation is None else self.aggregation.moved(found)

    @cached_property
    def believed(self) -> Posterior:
        """The posterior of Q*, with the error that bins bring: what P(best) and expected losses are taken from."""
        return self.posterior if self.aggregation is None else self.aggregation.believed(self.posterior)

    @cached_property
    def as_if_bins_were_states(self) -> Policies | None:
        """The same as `policies`, without the error that bins bring."""
        post = self.posterior
        if post.models is None or not self.is_settled:
            return None
        return recommend(
            post.models,
            start=self.chosen.start,
            logged=logged_policy(post.space, self.chosen.seen.count.astype(float)),
            q=post.draws,
            half=post.choosing,
            given=self.given,
            risk=self.chosen.risk,
            cautious=self.chosen.cautious,
            allowed=self.chosen.seen.observed,
        )

    def value_of(self, policy: Mapping[str, str]) -> tuple[float, float, float]:
        """Return mean and 90 % interval of the value of starting an episode and following {state: action}.

        A state that is left out goes on as logged.
        """
        post = self.posterior
        if post.models is None:
            raise InvalidInputError(f'values of policies need draws of the model, which method "{post.method}" has not')
        check_type("policy", policy, Mapping)
        probabilities = logged_policy(post.space, self.chosen.seen.count.astype(float))
        states, actions = numbered(self.chosen.states), numbered(self.chosen.actions)
        for state, action in policy.items():
            index = states[check_choice("state", state, states)]
            pair = post.space.pair(index, actions[check_choice("action", action, actions)])
            probabilities[post.space.first_pair[index] : post.space.first_pair[index + 1]] = 0.0
            probabilities[pair] = 1.0
        values = policy_values(post.models, probabilities) @ self.chosen.start
        return float(values.mean()), *central_interval(values)

    @cached_property
    def sensitivity(self) -> dict[float, tuple[float, float, float]]:
        """Mean and 90 % interval of the gain of the recommended policy where actions may differ less, or more.

        By the `row_scale` of the prior, the median of c^(−1/2): a quarter, as it is, and four times as much. Empty
        without draws of the model under a `ModelPrior`, and in large problems.
        """
        policies, prior, chosen = self.policies, self.chosen.prior, self.chosen
        is_small = self.aggregation is None  # beside what bins cost
        if policies is None or not is_small or chosen.method != "model" or chosen.transitions == "deterministic":
            return {}
        sums = chosen.seen.sums()
        if SENSITIVITY_DRAWS * num_edges(sums) > MOST_SENSITIVITY:
            return {}
        gains = {prior.row_scale: policies.gain}
        for scale in (prior.row_scale / SENSITIVITY, prior.row_scale * SENSITIVITY):
            changed = replace(prior, row_scale=scale)
            models = changed.draw_from(sums, SENSITIVITY_DRAWS, np.random.default_rng(0))
            of_policies = (
                policy_values(models, policy.probabilities) @ chosen.start
                for policy in (policies.recommended, policies.logged)
            )
            gain = np.subtract(*of_policies)
            gains[scale] = gain[np.isfinite(gain)]
        return {
            scale: (float(gain.mean()), *central_interval(gain)) for scale, gain in sorted(gains.items()) if gain.size
        }

    @property
    def table(self) -> pd.DataFrame:
        """A row per state and action: ROW_COLUMNS, under the labels of the log and in their order.

        `mean`, `lower` and `upper` are those of the value of taking the action once and the recommended policy from
        there on; without draws of the model, those of Q*, which is too large where actions are nearly equal.
        `prob_optimal` is nan where no other action of the state was tried (`only_action`): nothing was compared. All
        `NUMBERS` are nan where the computation has not settled.
        """
        return self._table.copy()

    @cached_property
    def _table(self) -> pd.DataFrame:
        import pandas as pd

        space, states, actions = self.posterior.space, self.chosen.states, self.chosen.actions
        pairs = space.pair_state, space.pair_action
        loss = self.believed.expectation_of(lambda draws: space.maximum(draws)[:, space.pair_state] - draws)
        mean, lower, upper = self._values()
        num_tried = np.bincount(space.pair_state[self.chosen.seen.observed_pairs], minlength=space.num_states)
        rows = pd.DataFrame(
            {
                "state": [states[s] for s in space.pair_state],
                "action": [actions[a] for a in space.pair_action],
                "count": self.chosen.seen.count,
                "mean": mean,
                "lower": lower,
                "upper": upper,
                "prob_optimal": self.believed.prob_optimal_table()[pairs],
                "expected_loss": loss,
                "only_action": num_tried[space.pair_state] <= 1,
            },
            columns=list(ROW_COLUMNS),
        )
        rows.loc[np.diff(space.first_pair)[space.pair_state] == 1, "prob_optimal"] = np.nan
        if not self.is_settled:
            rows[list(NUMBERS)] = np.nan
        return rows[rows["action"] != UNKNOWN_ACTION].reset_index(drop=True)

    def _values(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ``(K,)`` means and ends of 90 % intervals of what the pairs are worth."""
        post = self.posterior
        if self.policies is None or post.models is None or post.choosing is None:
            low, high = (post.quantile_of(post.draws, level) for level in LEVELS)
            return post.pair_mean, low, high
        solver, others = ModelSolver(post.models), np.flatnonzero(~post.choosing)
        q = np.concatenate(list(solver.action_value_blocks(self.policies.recommended.probabilities, others)))
        moved = q if self.aggregation is None else self.aggregation.values(q)
        low, high = np.quantile(moved, LEVELS, axis=0)
        return q.mean(axis=0), low, high

    @property
    def is_settled(self) -> bool:
        """Whether the computation can be trusted; where it cannot there are no values, no P(best) and no policy."""
        return self.posterior.trusted

    @property
    def policy(self) -> dict[str, str]:
        """The action to take in every state: that of the recommended policy. Empty where not settled.

        Where that policy mixes actions, as the logged one may, the most frequent. Without draws of the model: the
        action of least expected loss.
        """
        if not self.is_settled:
            return {}
        space = self.posterior.space
        best = space.greedy(self._policy_weights())
        return {
            self.chosen.states[s]: self.chosen.actions[best[s]]
            for s in space.deciding_states
            if self.chosen.actions[best[s]] != UNKNOWN_ACTION
        }

    def _policy_weights(self) -> FloatArray:
        """Return ``(K,)`` numbers that are largest at the actions to take."""
        return self.posterior.pair_mean if self.policies is None else self.policies.recommended.probabilities

    @property
    def prob_policy(self) -> float:
        """P(the whole policy is optimal), among the actions that were tried; nan where not settled."""
        if not self.is_settled:
            return float("nan")
        states, actions = numbered(self.chosen.states), numbered(self.chosen.actions)
        return self.believed.prob_policy({states[s]: actions[a] for s, a in self.policy.items()})

    def next_trials(self, number: int = 10) -> pd.DataFrame:
        """Return where one more reading would pay most, by the expected gain in the value of the start."""
        import pandas as pd

        check_count("number", number, 0)
        columns = ["state", "action", "count", "expected_gain"]
        if not self.is_settled:
            return pd.DataFrame(columns=columns)
        space = self.posterior.space
        worth = worth_of_readings(self.posterior, self.chosen, self._policy_weights())
        least = NEGLIGIBLE * float(np.ptp(self.posterior.pair_mean))
        best = [k for k in np.argsort(-worth)[:number].tolist() if worth[k] > least]
        states, actions, count = self.chosen.states, self.chosen.actions, self.chosen.seen.count.tolist()
        rows = [(states[space.pair_state[k]], actions[space.pair_action[k]], count[k], float(worth[k])) for k in best]
        return pd.DataFrame(rows, columns=columns)

    @property
    def start_value(self) -> tuple[float, float, float]:
        """Mean and 90 % interval of the value of starting an episode and deciding best; nan where not settled."""
        if not self.is_settled:
            return float("nan"), float("nan"), float("nan")
        value = self.posterior.space.maximum(self.posterior.draws) @ self.chosen.start
        low, high = (float(self.posterior.quantile_of(value, level)) for level in LEVELS)
        return float(self.posterior.expectation(value)), low, high

    def visits(self) -> dict[str, float]:
        """How often an episode that follows the policy comes to each state, on average."""
        reached = visits(self.posterior, self.chosen, self._policy_weights())
        return dict(zip(self.chosen.states, reached.tolist(), strict=True))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, what to do where, and what is wrong with the answer."""
        from html import escape

        from qposterior.logs.words import verdict  # which knows of fits

        lines = [check.note for check in self.checks if not check.fits]
        if not self.is_settled:
            lines = ["There is no answer, because the computation cannot be trusted.", *lines]
        elif self.policies is not None:
            lines = [verdict(self), *lines]
        table = self.table
        taken = table[table["action"] == table["state"].map(self.policy)]
        shown = taken[["state", "action", "prob_optimal", "mean", "lower", "upper", "count"]].head(MOST_SHOWN)
        more = f"<p>… and {len(taken) - MOST_SHOWN:,} states more.</p>" if len(taken) > MOST_SHOWN else ""
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return paragraphs + str(shown.to_html(index=False, escape=True, float_format="{:.4g}".format)) + more

    def to_dict(self) -> dict[str, Any]:
        """Return `{settings, policies, rows, policy, diagnostics}` as plain data."""
        table = self._table
        columns = [[_or_none(value) for value in table[name].tolist()] for name in table]
        diagnostics = {
            k: _or_none(v) for k, v in self.posterior.diagnostics.items() if isinstance(v, int | float | bool | str)
        }
        return {
            "settings": self.chosen.describe() | {"source": self.source, "rows_read": self.log.num_rows},
            "policies": None if self.policies is None else self.policies.to_dict(),
            "rows": [dict(zip(ROW_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)],
            "policy": self.policy,
            "diagnostics": diagnostics
            | {
                "chosen": self.chosen.notes,
                "prob_policy": _or_none(self.prob_policy),
                "untried": [list(pair) for pair in self.chosen.untried],
                "checks": [check.to_dict() for check in self.checks],
                "start_value": [_or_none(value) for value in self.start_value],
                "next_trials": self.next_trials().to_dict(orient="records"),
            },
        } | self._bins_dict()

    def _bins_dict(self) -> dict[str, Any]:
        """Return the bins of numbers that are states, and what they cost; nothing where states have labels."""
        if self.log.bins is None:
            return {}
        costs = {} if self.aggregation is None else self.aggregation.to_dict(self.chosen)
        return {"bins": self.log.bins.to_dict() | costs}


def _or_none(value: Any) -> Any:
    """Return None for a number that is not one: JSON has no nan."""
    return None if value != value else value


def fit(
    source: Any,
    *,
    columns: Columns | None = None,
    settings: FitSettings | None = None,
    before: Log | None = None,
    policies: Mapping[str, str | Path] | None = None,
    progress_fn: Any = None,
    engine: str = "local",
    scheduler: str | None = None,
    **options: Any,
) -> Fit:
    """Return what a log of decisions says, a row per decision: a file (CSV, gzip, Parquet), a folder or a pattern of
    such files, or a pandas or Polars frame.

    Columns `state, action, reward, next_state`, and where there are `terminated, episode, weight`; other names by
    `columns`. `before` are the sums of an earlier log, to which this one is added. `policies` are files of policies to
    value, by name: columns `state, action` and, where actions are mixed, `probability`. `engine="dask"` sums the files
    where they lie, on the cluster at `scheduler` or on the cores of this machine, and joins the sums. `options` are the
    fields of `FitSettings`: what is not given is chosen from the data and said in `Fit.chosen.notes`.
    """
    settings = _settings_of(settings, options)
    check_type("columns", columns or Columns(), Columns)
    check_type("before", before or Log(), Log)
    if progress_fn is not None:
        check_callable("progress_fn", progress_fn)
    is_table = hasattr(source, "columns")
    if not is_table and not isinstance(source, str | Path):
        raise InvalidInputError(f"source must be a path, or a pandas or Polars frame, got {shown(source)}")
    check_engine(engine, scheduler)
    noise = "gaussian" if settings.noise is None else settings.noise.kind
    if engine == "dask":
        if noise != "gaussian":
            raise InvalidInputError(f'engine="dask" joins sums, {noise} noise needs single readings; leave one out')
        log = read_parts(source, columns=columns, before=before, raw=settings.raw, scheduler=scheduler)
    else:
        log = read_log(source, columns=columns, keep_readings=noise != "gaussian", before=before, raw=settings.raw)
    name = "table" if is_table else str(source)
    states = as_shown(log)
    chosen = choose(states, settings, path=name)
    given = _read_policies(policies or {}, chosen)
    post = draw_posterior(chosen, settings, path=name, progress_fn=progress_fn)
    checks = check_fit(states, chosen, post)
    return with_bands(
        Fit(chosen=chosen, posterior=post, checks=checks, log=states, source=name, given=given, finest=log), settings
    )


def with_bands(fit: Fit, settings: FitSettings) -> Fit:
    """Return a fit that knows what its bins cost, by fits of coarser and finer ones; as it is where there are none."""
    log, policies = fit.finest, None if fit.log.bins is None else fit.as_if_bins_were_states
    if policies is None or log is None or log.bins is None:
        return fit
    settings = replace(settings, discount=fit.chosen.discount, particles=COMPARED_DRAWS, rewards=None, transitions=None)
    levels = [Level(num_bins=log.bins.shown, chosen=fit.chosen, posterior=fit.posterior)]
    for number in sorted({log.bins.coarser, log.bins.finer} - {log.bins.shown}):
        try:
            chosen = choose(joined(log, number), settings, path=fit.source)
            post = draw_posterior(chosen, settings, path=fit.source)
        except LogError:  # bins of this size have no answer; what was compared is said
            continue
        levels.append(Level(num_bins=number, chosen=chosen, posterior=post))
    fit.aggregation = aggregation_of(levels[0], levels[1:], policies, log)
    fit.checks.append(fit.aggregation.check())
    return fit


def _read_policies(files: Mapping[str, str | Path], chosen: LogProblem) -> dict[str, FloatArray]:
    """Return the policies of the user's own as probabilities on the pairs."""
    check_type("policies", files, Mapping)
    if files and chosen.method == "q":
        raise InvalidInputError('policies are valued under draws of the model; leave method="q" out')
    space = chosen.seen.space
    return {name: read_policy(path, chosen.states, chosen.actions, space) for name, path in files.items()}


def draw_posterior(
    chosen: LogProblem, settings: FitSettings, *, path: object = "log", progress_fn: Any = None
) -> Posterior:
    """Return the posterior of Q* of a log, by the method that was chosen."""
    try:
        draw_fn = _posterior if chosen.method == "q" else _model_posterior
        return draw_fn(chosen, settings, path=path, progress_fn=progress_fn)
    except NoUniqueSolutionError as error:
        raise LogError(path, _in_labels(error, chosen)) from error


def _model_posterior(chosen: LogProblem, settings: FitSettings, *, path: object, progress_fn: Any) -> Posterior:
    """Return the posterior that draws of models stand for, or that of a bootstrap."""
    seen = chosen.seen.with_frequencies() if chosen.transitions == "empirical" else chosen.seen
    sums = seen.sums()
    edges = num_edges(sums)
    few = max(MANY_ROWS // edges, min(FEWEST_MODELS, MOST_ROWS // edges))
    num = min(settings.num_draws, max(USUAL_ROWS // edges, min(ENOUGH_MODELS, few)))
    num -= num % CHAINS_OF_MODELS
    if num < min(settings.num_draws, FEWEST_MODELS):
        raise LogError(
            path,
            f"{sums.space.num_pairs:,} pairs of state and action with {edges:,} possible transitions are too many to "
            f"draw {FEWEST_MODELS} models of them ({MOST_ROWS // FEWEST_MODELS:,} would do); group states, or leave "
            "out actions that were never tried (--actions seen)",
        )
    if num < settings.num_draws - settings.num_draws % CHAINS_OF_MODELS:
        chosen.notes.append(
            f"there are many transitions, so {num} models are drawn instead of {settings.num_draws}: P(best) is known "
            f"to ± {1.0 / np.sqrt(num):.2f} (two standard errors)"
        )
    rng = np.random.default_rng(settings.seed)

    def report(share: float) -> None:
        if progress_fn is not None:
            progress_fn(round(share * num), num)

    are_few = num < min(settings.num_draws, ENOUGH_MODELS)
    if chosen.method == "bootstrap":
        models = bootstrap_models(sums, num, rng)
        return solved_posterior(models, CHAINS_OF_MODELS, method="bootstrap", are_few=are_few, progress_fn=report)
    models = chosen.prior.draw_from(sums, num, rng, progress_fn=lambda share: report(DRAWING * share))
    return solved_posterior(
        models,
        CHAINS_OF_MODELS,
        method="model",
        prior=chosen.prior,
        are_few=are_few,
        progress_fn=lambda share: report(DRAWING + (1.0 - DRAWING) * share),
    )


def _in_labels(error: NoUniqueSolutionError, chosen: LogProblem) -> str:
    """Return why a log has no answer at its discount, with the labels of the states."""
    labels = ", ".join(chosen.states[s] for s in error.states[:8]) + (", …" if len(error.states) > 8 else "")
    return (
        f"with discount {chosen.discount:g} there is no answer: in {labels or 'some states'} one can go on for ever "
        "and be paid for it, or never come to an end; leave --discount out, or give one below 1"
    )


def _settings_of(settings: FitSettings | None, options: dict[str, Any]) -> FitSettings:
    """Return the settings, given as such or as options, but not both."""
    for name in options:
        check_choice("option of fit", name, (item.name for item in fields(FitSettings)))
    if settings is None:
        return FitSettings(**options)
    check_type("settings", settings, FitSettings)
    if options:
        raise InvalidInputError(f"settings and options such as {next(iter(options))} exclude each other; leave one out")
    return settings


def sampler_size(chosen: LogProblem, particles: int, *, path: object = "log") -> tuple[int, int]:
    """Return how many draws are kept and the most rounds of the chains, so that all of it fits into memory."""
    num_pairs = chosen.seen.space.num_pairs
    kept = min(particles, MOST_KEPT // num_pairs)
    moving = num_pairs - (chosen.seen.num_observed if chosen.rewards == "deterministic" else 0)
    held = CHAINS_OF_ROWS * num_pairs if chosen.transitions == "dirichlet" else FEW_CHAINS * moving
    rounds = min(HMCSettings().max_iterations, MOST_NUMBERS // max(held, 1))
    if kept < FEWEST or rounds < FEWEST:
        raise LogError(
            path,
            f"{num_pairs:,} pairs of state and action are too many to draw Q for all of them; group states"
            + (
                ", or take the frequencies for the rows (--transitions empirical)"
                if kept >= FEWEST and chosen.transitions == "dirichlet"
                else ""
            ),
        )
    return kept, rounds


def _posterior(chosen: LogProblem, settings: FitSettings, *, path: object, progress_fn: Any) -> Posterior:
    noise: Noise | None = chosen.noise if chosen.rewards == "noisy" else None
    particles, rounds = sampler_size(chosen, settings.num_draws, path=path)
    if particles < settings.num_draws:
        chosen.notes.append(f"there are many pairs, so {particles} draws are kept instead of {settings.num_draws}")
    with warnings.catch_warnings():
        # What these warn of is in the diagnostics and in the checks, in the reader's own words.
        warnings.simplefilter("ignore", RuntimeWarning)
        return posterior(
            chosen.seen,
            prior=chosen.prior,
            noise=noise,
            method="hmc",
            transitions=None if chosen.transitions == "deterministic" else chosen.transitions,
            particles=particles,
            seed=settings.seed,
            settings=HMCSettings(
                chains=CHAINS_OF_ROWS if chosen.transitions == "dirichlet" else FEW_CHAINS,
                min_ess=min(particles, MOST_ESS),
                max_iterations=rounds,
            ),
            progress_fn=progress_fn,
        )
