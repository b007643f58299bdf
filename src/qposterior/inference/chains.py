"""Chains: one loop for all methods that run them, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from qposterior.checks import check_count, check_number
from qposterior.inference.problem import Problem
from qposterior.inference.trust import describe_draws, is_enough, reliability_warning
from qposterior.model.target import Target
from qposterior.weighted_draws import Posterior, judged
from qposterior.world.arrays import FloatArray

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class HMCSettings:
    """How to run the chains. `min_ess` and `max_r_hat` are the default early-stopping criterion of alg. hmc."""

    chains: int = 8
    warm_up: int = 600
    max_iterations: int = 3000
    block: int = 250
    target_acceptance: float = 0.8
    max_leapfrog: int = 512
    min_ess: float = 400.0
    max_r_hat: float = 1.01
    gibbs: bool = True  # sweep after each trajectory where the target has jumps
    exchange: bool = False  # exchange the values of competing pairs after each trajectory; tempering always does

    def __post_init__(self) -> None:
        for name in ("chains", "max_iterations", "block", "max_leapfrog"):
            check_count(name, getattr(self, name))
        check_count("warm_up", self.warm_up, 0)
        check_number("target_acceptance", self.target_acceptance, "(0, 1)")
        check_number("min_ess", self.min_ess, "[0, inf]")
        check_number("max_r_hat", self.max_r_hat, "[1, inf]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over the iterations of a run."""

    iterations: int = 0
    acceptance: float = 0.0
    divergences: int = 0
    gradients: int = 0
    row_acceptance: float = 0.0
    swaps: FloatArray | float = 0.0  # of neighbouring rungs

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            iterations=self.iterations + other.iterations,
            acceptance=self.acceptance + other.acceptance,
            divergences=self.divergences + other.divergences,
            gradients=self.gradients + other.gradients,
            row_acceptance=self.row_acceptance + other.row_acceptance,
            swaps=self.swaps + other.swaps,
        )


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Draws of all chains after the warm-up."""

    draws: FloatArray  # (C, M, D)
    parameters: FloatArray | None = None  # (C, M, P)  where they depend on rows that were drawn along
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def still(cls, x: FloatArray) -> Chains:
        """Return the chains of a target without coordinates: nothing moves."""
        return cls(draws=x[:, None], diagnostics={"chains": x.shape[0], "draws": x.shape[0]})

    def told(self, facts: dict[str, Any]) -> Chains:
        """Return the chains with more said of them."""
        return replace(self, diagnostics=self.diagnostics | facts)

    def q(self, target: Target, rows: slice | np.ndarray = slice(None)) -> FloatArray:
        """Return ``(C · M, K)`` values of Q, or those of some iterations."""
        if self.parameters is not None:
            return target.chart.q_function.to_q(_flat(self.parameters[:, rows]))
        return target.to_q(_flat(self.draws[:, rows]))

    def describe(self, target: Target) -> dict[str, Any]:
        """Return the worst R-hat and effective sizes, of Q and of which pairs are greedy."""
        size = self.draws.shape[:2]
        theta = self.q(target)
        shares = target.optimal_share(theta)
        return describe_draws(theta.reshape(*size, -1), shares.reshape(*size, -1))


def _flat(draws: FloatArray) -> FloatArray:
    """Return ``(C · M, D)``; D may be 0."""
    return draws.reshape(draws.shape[0] * draws.shape[1], draws.shape[2])


def thinned(chains: Chains, target: Target, problem: Problem, *, method: str) -> Posterior:
    """Return the posterior of chains: as many draws as were asked for, evenly spaced, chain after chain."""
    num_chains, length = chains.draws.shape[:2]
    num, per_chain = problem.num_draws, -(-problem.num_draws // num_chains)
    row = np.linspace(0, length - 1, per_chain).round().astype(int)
    q, x = chains.q(target, row), _flat(chains.draws[:, row])
    is_even = q.shape[0] == num
    kept = np.arange(num) if is_even else np.linspace(0, q.shape[0] - 1, num).round().astype(int)
    log_scale = target.log_scale_of(x)
    return problem.posterior(
        draws=q[kept],
        method=method,
        diagnostics=chains.diagnostics
        | judged(reliability_warning(chains.diagnostics, problem.space))
        | {"total_draws": num_chains * length},
        chains=num_chains if is_even else 1,
        noise_scale=None if log_scale is None else np.exp(log_scale[kept]),
    )


Advance = Callable[[State, int], tuple[State, FloatArray, FloatArray | None, Counts]]
"""(state, times) → (state, ``(C, times, D)`` path, ``(C, times, P)`` parameters or None, counts)."""


def sample(
    advance_fn: Advance[State],
    state: State,
    *,
    target: Target,
    settings: HMCSettings,
    stopping_fn: Callable[[FloatArray], bool] | None = None,
    progress_fn: Callable[[int, int], None] | None = None,
    ready_fn: Callable[[], bool] = lambda: True,
    min_draws: int = 0,
) -> tuple[State, Chains, Counts]:
    """Advance chains block by block until they will do, or the iterations are used (the loop of alg. hmc).

    They will do if `stopping_fn` says so of the ``(C, M, D)`` draws, by default if R-hat and the effective sample sizes
    of Q and of what is optimal are those of `settings`; never before there are `min_draws`, nor before `ready_fn` says
    so. `progress_fn` gets (iterations, most).
    """
    most, counts, done = settings.max_iterations, Counts(), 0
    draws = np.empty((settings.chains, most, target.num_coordinates))
    parameters: FloatArray | None = None
    while True:
        times = min(settings.block, most - done)
        state, path, drawn, added = advance_fn(state, times)
        draws[:, done : done + times] = path
        if drawn is not None:
            parameters = np.empty((settings.chains, most, drawn.shape[2])) if parameters is None else parameters
            parameters[:, done : done + times] = drawn
        counts, done = counts + added, done + times
        if progress_fn is not None:
            progress_fn(done, most)
        so_far = Chains(draws=draws[:, :done], parameters=None if parameters is None else parameters[:, :done])
        has_enough, summary = settings.chains * done >= min_draws and ready_fn(), None
        if stopping_fn is None and (has_enough or done >= most):
            summary = so_far.describe(target)
            is_sound = is_enough(summary, min_ess=settings.min_ess, max_r_hat=settings.max_r_hat)
        else:
            is_sound = stopping_fn is not None and stopping_fn(so_far.draws)
        if done >= most or (has_enough and is_sound):
            break
    kept = Chains(draws=so_far.draws.copy(), parameters=None if parameters is None else parameters[:, :done].copy())
    return state, kept.told(summary or kept.describe(target)), counts
