"""The tabular theorem (paper, thm. psrl): the posterior as a sum of Gaussians over policy cells, tolerance 0 included.

Inside the cell of a policy ℓ (which fixes the greedy action of every state that follows an observed pair) the rewards
are linear in θ: g_O(θ) = B^ℓ θ. So the posterior restricted to the cell is a Gaussian restricted to a polytope, also at
tolerance 0, where N(r; B m, σ² B Bᵀ) already holds the determinant of Bellman coordinates.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from qposterior.errors import InvalidInputError, NoUniqueSolutionError, name_states
from qposterior.inference.polytope_gaussian import REPLICATES, Moments, PolytopeGaussian, is_feasible
from qposterior.inference.problem import Problem
from qposterior.model.charts import CHARTS
from qposterior.model.kernels.density import GAUSSIAN, UNIFORM, LikelihoodData
from qposterior.model.noise import Likelihood, Readings, as_likelihood
from qposterior.model.prior import GaussianPrior, compiled_form, over_pairs
from qposterior.weighted_draws import Posterior, judged
from qposterior.world.arrays import FloatArray, IntArray
from qposterior.world.experience import Experience

EXACT_ERROR = 5e-3
"""Standard error of P(optimal) beyond which the integration of the policy cells has not converged."""

MOST_CELLS = 4096
TARGET_ERROR = 3e-4
"""Standard error at which the integration stops; the worst error of a probability is then below 1e-3."""

FIRST_LOG_POINTS, LAST_LOG_POINTS = 7, 13
NEGLIGIBLE = 1e-9


@dataclass(kw_only=True)
class Cell:
    """One policy cell: its Gaussian, its polytope and what the integration found."""

    choice: IntArray  # (S',)  chosen pair of each reached state
    log_weight: float  # log N(r; B m, σ² B Bᵀ + τ²)
    gaussian: PolytopeGaussian
    partners: dict[int, list[int]]  # chosen pair → pairs that tie with it all over the cell
    moments: Moments  # of the latest round of integration


class Enumeration:
    """Every policy cell of an experience with its probability; the answers are sums over cells."""

    def __init__(
        self,
        seen: Experience,
        prior: Any,
        noise: Any,
        *,
        coordinates: str = "bellman",
        max_cells: int = MOST_CELLS,
        rng: np.random.Generator,
    ) -> None:
        if (
            not isinstance(prior, GaussianPrior) or compiled_form(prior, seen.space.num_pairs) is None
        ):  # None: of another density
            raise InvalidInputError(f'method="exact" needs a GaussianPrior, got {prior}; use method="hmc"')
        likelihood = as_likelihood(noise)
        readings = likelihood.bind(seen)
        _check_covered(likelihood, readings)
        self.seen, self.prior, self.coordinates = seen, prior, coordinates
        self.space = seen.space
        self.pairs = seen.observed_pairs
        self.table = seen.table()
        self.rewards = seen.reward_mean[self.pairs]
        self.reading_sd = readings.data.scale / np.sqrt(readings.data.num_readings)
        self.log_constant = _reading_constant(readings.data)
        self.reached = np.unique(self.table.successor)
        self.reached = self.reached[~self.space.is_goal[self.reached]]
        self._rng = rng
        # States with two actions whose value nothing seen depends on: one further half-space each.
        unreached = np.setdiff1d(self.space.deciding_states, self.reached)
        two = np.diff(self.space.first_pair)[unreached] == 2
        self.aside = np.array([s for s in unreached[two] if self._touched(s)], dtype=np.int64)
        first = self.space.first_pair[self.aside]
        self.aside_rows = _differences(self.space.num_pairs, first.tolist(), (first + 1).tolist())
        self.cells = self._cells(max_cells)
        self._integrate()

    def _touched(self, state: int) -> bool:
        return bool(self.seen.observed[self.space.first_pair[state] : self.space.first_pair[state + 1]].any())

    # -- cells ---------------------------------------------------------------------------------------------------------

    def _cells(self, max_cells: int) -> list[Cell]:
        candidates = [np.arange(self.space.first_pair[s], self.space.first_pair[s + 1]) for s in self.reached]
        number = 1
        for options in candidates:
            number *= options.size
        if number > max_cells:
            raise InvalidInputError(
                f"exact enumeration needs {number:.3g} policy cells, more than the limit of {max_cells}; "
                'use method="hmc" or method="smc", or raise max_cells'
            )
        cells = []
        for choice in itertools.product(*candidates):
            cell = self._make_cell(np.array(choice, dtype=np.int64))
            if cell is not None:
                cells.append(cell)
        if not cells:
            raise NoUniqueSolutionError("no policy is consistent with what was seen; is there a loop that pays?")
        return cells

    def _make_cell(self, choice: IntArray) -> Cell | None:
        if self.space.discount == 1.0 and not self._is_proper(choice):
            if not self.reading_sd.any():
                self._refuse_free_loop(choice)
                return None  # density 0: a loop cannot pay what was seen of it and be optimal
            if self.coordinates == "bellman":
                return None
        matrix = self._reward_matrix(choice)
        mean, factor, log_weight = condition(matrix, self.rewards, self.reading_sd, self.prior)
        if not np.isfinite(log_weight):
            return None
        constraints, chosen, other = self._inequalities(choice)
        gaussian = PolytopeGaussian(mean, factor, constraints, np.zeros(constraints.shape[0]))
        tied = np.flatnonzero(gaussian.is_tied)
        if gaussian.is_empty or any(other[i] < chosen[i] and self._has_cell(choice, other[i]) for i in tied):
            return None  # a tie belongs to the cell of the lowest action that has one
        partners: dict[int, list[int]] = {}
        for i in tied:
            partners.setdefault(int(chosen[i]), []).append(int(other[i]))
        first_look = self._measure(gaussian, FIRST_LOG_POINTS)
        return Cell(choice=choice, log_weight=log_weight, gaussian=gaussian, partners=partners, moments=first_look)

    def _has_cell(self, choice: IntArray, instead: int) -> bool:
        """Return whether the policy with this pair in place of its state's choice has a cell of its own."""
        if self.space.discount < 1.0 or (self.coordinates == "q" and self.reading_sd.any()):
            return True
        same_state = self.space.pair_state[choice] == self.space.pair_state[instead]
        return self._is_proper(np.where(same_state, instead, choice))

    def _reward_matrix(self, choice: IntArray) -> FloatArray:
        """Return ``(n, K)`` B^ℓ with g_O(θ) = B^ℓ θ in the cell (thm. psrl)."""
        matrix = np.zeros((self.pairs.size, self.space.num_pairs))
        matrix[np.arange(self.pairs.size), self.pairs] = 1.0
        chosen = np.full(self.space.num_states, -1, dtype=np.int64)
        chosen[self.reached] = choice
        row = np.repeat(np.arange(self.pairs.size), np.diff(self.table.row_start))
        inside = ~self.space.is_goal[self.table.successor]
        step = -self.space.discount * self.table.probability[inside]
        np.add.at(matrix, (row[inside], chosen[self.table.successor[inside]]), step)
        return matrix

    def _inequalities(self, choice: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
        """Return rows θ_other − θ_chosen ≤ 0 of the cell, with both pairs of each row."""
        chosen, other = [], []
        for k in choice:
            s = self.space.pair_state[k]
            rivals = [j for j in range(self.space.first_pair[s], self.space.first_pair[s + 1]) if j != k]
            chosen += [int(k)] * len(rivals)
            other += rivals
        return _differences(self.space.num_pairs, chosen, other), np.array(chosen, int), np.array(other, int)

    def _is_proper(self, choice: IntArray) -> bool:
        return self._loop(choice).size == 0

    def _loop(self, choice: IntArray) -> IntArray:
        """Return the reached states from which the cell's policy, where observed, never leaves what is observed."""
        row_of = {int(k): i for i, k in enumerate(self.pairs)}
        inside = {int(s): row_of.get(int(k)) for s, k in zip(self.reached, choice, strict=True)}
        leaves = {s for s, row in inside.items() if row is None}
        changed = True
        while changed:
            changed = False
            for s, row in inside.items():
                if s not in leaves and row is not None:
                    following = self.table.row(row)[0]
                    if any(self.space.is_goal[t] or int(t) in leaves for t in following):
                        leaves.add(s)
                        changed = True
        return np.array(sorted(set(inside) - leaves), dtype=np.int64)

    def _refuse_free_loop(self, choice: IntArray) -> None:
        """Raise in Q coordinates where an improper cell has a loop of mean reward 0: infinite density."""
        if self.coordinates != "q":
            return
        matrix = self._reward_matrix(choice)
        best = np.linalg.lstsq(matrix, self.rewards, rcond=None)[0]
        if np.abs(matrix @ best - self.rewards).max() <= 1e-9 * np.abs(self.rewards).max():
            loop = self._loop(choice)
            raise NoUniqueSolutionError(
                f"the loop through {name_states(loop)} has mean reward 0: in Q coordinates tolerance 0 has no "
                'posterior (use coordinates="bellman", or a positive tolerance)',
                loop,
            )

    # -- integration ---------------------------------------------------------------------------------------------------

    def _integrate(self) -> None:
        """Integrate every cell with more and more points until the answers are known well enough."""
        active = list(range(len(self.cells)))
        self._unreached_masses: dict[int, FloatArray] = {}
        self.num_points = REPLICATES * 2**FIRST_LOG_POINTS * len(active)
        for log_points in range(FIRST_LOG_POINTS, LAST_LOG_POINTS + 1, 2):
            if log_points > FIRST_LOG_POINTS:  # the first round was made with the cells
                for i in active:
                    self.cells[i].moments = self._measure(self.cells[i].gaussian, log_points)
                self.num_points += REPLICATES * 2**log_points * len(active)
            if not self.masses().any():
                continue
            self.prob_error, self.mean_error = self._errors()
            if max(self.prob_error, self.mean_error) <= TARGET_ERROR:
                break
            share = self.masses().mean(axis=0)
            share = share / share.sum()
            active = [i for i in active if share[i] > NEGLIGIBLE and self.cells[i].gaussian.rank > 0]
        if not self.masses().any():
            raise NoUniqueSolutionError("no policy cell has a probability that can be measured; are the data possible?")

    def _measure(self, gaussian: PolytopeGaussian, log_points: int) -> Moments:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Sobol points beyond their recommended dimension are still valid
            # Tilting pays where plain points leave too much variance; the first round finds out where.
            tilted = log_points > FIRST_LOG_POINTS
            moments = gaussian.moments(log_points, self._rng, self.aside_rows, tilted=tilted)
        if not moments.mass.any() and not gaussian.is_empty and not is_feasible(gaussian.lower, gaussian.slack):
            gaussian.is_empty = True
        return moments

    def _weights(self) -> FloatArray:
        log_weights = np.array([cell.log_weight for cell in self.cells])
        self._shift = float(log_weights.max())
        return np.exp(log_weights - self._shift)

    def masses(self) -> FloatArray:
        """Return ``(R, cells)`` unnormalised posterior masses."""
        return np.asarray(np.array([cell.moments.mass for cell in self.cells]).T * self._weights())

    def _errors(self) -> tuple[float, float]:
        probability = self._prob_optimal_replicates()
        mean = self._mean_replicates()[0]
        shrink = np.sqrt(REPLICATES)
        return (
            float(probability.std(axis=0).max(initial=0.0) / shrink),
            float((mean.std(axis=0) / self.prior.scale).max(initial=0.0) / shrink),
        )

    # -- answers -------------------------------------------------------------------------------------------------------

    @property
    def log_evidence(self) -> float:
        """Log density of the readings: the marginal likelihood of thm. psrl, at tolerance 0 the density of g_O at r."""
        total = self.masses().sum(axis=1).mean()
        return float(np.log(total)) + self._shift + self.log_constant

    def prob_optimal(self) -> FloatArray:
        """Return ``(K,)`` P(pair is optimal); pairs that tie share evenly."""
        return np.asarray(self._prob_optimal_replicates().mean(axis=0))

    def _prob_optimal_replicates(self) -> FloatArray:
        masses = self.masses()
        total = np.zeros((REPLICATES, self.space.num_pairs))
        for cell, mass in zip(self.cells, masses.T, strict=True):
            for k in cell.choice:
                sharing = [int(k), *cell.partners.get(int(k), [])]
                total[:, sharing] += mass[:, None] / len(sharing)
        aside = self._aside_masses()
        for i, s in enumerate(self.aside):
            k = self.space.first_pair[s]
            total[:, k], total[:, k + 1] = aside[:, i], masses.sum(axis=1) - aside[:, i]
        for s in np.setdiff1d(self.space.deciding_states, [*self.reached, *self.aside]):
            pairs = np.arange(self.space.first_pair[s], self.space.first_pair[s + 1])
            if int(s) not in self._unreached_masses:
                self._unreached_masses[int(s)] = self._unreached(pairs, masses)
            total[:, pairs] = self._unreached_masses[int(s)]
        first = self.space.first_pair[self.space.deciding_states]
        sums = np.add.reduceat(total, first, axis=1)
        return np.asarray(total / np.repeat(sums, np.diff(np.append(first, self.space.num_pairs)), axis=1))

    def _aside_masses(self) -> FloatArray:
        """Return ``(R, E)`` masses in which the first action of each state in `aside` is optimal."""
        each = np.array([cell.moments.also for cell in self.cells])
        return np.asarray(np.einsum("cre,c->re", each, self._weights()))

    def _unreached(self, pairs: IntArray, masses: FloatArray) -> FloatArray:
        """Return ``(R, A)`` masses of the actions of a state whose value no observed pair depends on."""
        if pairs.size == 1 or not self.seen.observed[pairs].any():
            return np.ones((REPLICATES, pairs.size))  # independent of everything seen, and alike
        share = masses.mean(axis=0) / masses.mean(axis=0).sum()
        total = np.zeros((REPLICATES, pairs.size))
        weights = self._weights()
        for i, cell in enumerate(self.cells):
            if share[i] <= NEGLIGIBLE:
                continue
            for j, k in enumerate(pairs):
                mass, sharing = self._joint_mass(cell, [int(k)])
                total[:, j] += mass * weights[i] / sharing
        return total

    def _joint_mass(self, cell: Cell, also: list[int], log_points: int | None = None) -> tuple[FloatArray, int]:
        """Return ``(R,)`` the mass of the cell in which these pairs are optimal too, and how many share a tie."""
        constraints, _, _ = self._inequalities(cell.choice)
        rows = [constraints, *(self._inequalities(np.array([k]))[0] for k in also)]
        stacked = np.vstack(rows)
        inner = cell.gaussian
        gaussian = PolytopeGaussian(inner.mean, inner.factor, stacked, np.zeros(stacked.shape[0]))
        # Each state breaks its ties on its own: the number of ways is a product over states.
        ends = np.cumsum([part.shape[0] for part in rows])
        tied = [1 + np.count_nonzero(gaussian.is_tied[a:b]) for a, b in itertools.pairwise(ends)]
        return self._measure(gaussian, log_points or FIRST_LOG_POINTS + 2).mass, int(np.prod(tied))

    def _mean_replicates(self) -> tuple[FloatArray, FloatArray]:
        """Return ``(R, K)`` first and second moments of θ."""
        masses = self.masses()
        weights = self._weights()
        first = np.zeros((REPLICATES, self.space.num_pairs))
        second = np.zeros_like(first)
        for cell, weight in zip(self.cells, weights, strict=True):
            moments, inner = cell.moments, cell.gaussian
            if not moments.mass.any():
                continue
            along = inner.factor @ inner.basis  # (K, r)
            outside = np.sum(inner.factor**2, axis=1) - np.sum(along**2, axis=1)
            step = moments.first @ along.T
            spread = np.einsum("kr,qrs,ks->qk", along, moments.second, along)
            mass = moments.mass[:, None]
            first += weight * (mass * inner.mean + step)
            second += weight * (mass * (inner.mean**2 + outside) + 2.0 * inner.mean * step + spread)
        total = masses.sum(axis=1)[:, None]
        return first / total, second / total

    def mean(self) -> FloatArray:
        """Return ``(K,)`` posterior means."""
        return np.asarray(self._mean_replicates()[0].mean(axis=0))

    def sd(self) -> FloatArray:
        """Return ``(K,)`` posterior standard deviations."""
        first, second = (part.mean(axis=0) for part in self._mean_replicates())
        return np.asarray(np.sqrt(np.maximum(second - first**2, 0.0)))

    def prob_policy(self, policy: dict[int, int]) -> float:
        """Return the joint probability that these actions are optimal; ties share evenly."""
        pairs = [self.space.pair(s, a) for s, a in policy.items()]
        place = {int(s): i for i, s in enumerate(self.reached)}
        total = 0.0
        weights, masses = self._weights(), self.masses()
        for i, cell in enumerate(self.cells):
            share, also = 1.0, []
            for k in pairs:
                s = int(self.space.pair_state[k])
                if s not in place:
                    also.append(k)
                    continue
                chosen = int(cell.choice[place[s]])
                sharing = [chosen, *cell.partners.get(chosen, [])]
                share *= (k in sharing) / len(sharing)
            if share and also:
                mass, ties = self._joint_mass(cell, also)
                total += share * float(mass.mean()) * weights[i] / ties
            elif share:
                total += share * float(masses[:, i].mean())
        return float(total / masses.sum(axis=1).mean())

    def draw(self, num: int) -> FloatArray:
        """Return ``(num, K)`` independent draws of θ: a cell by its probability, then its Gaussian in its polytope."""
        share = self.masses().mean(axis=0)
        counts = self._rng.multinomial(num, share / share.sum())
        parts = [cell.gaussian.draw(int(n), self._rng) for cell, n in zip(self.cells, counts, strict=True) if n]
        return self._rng.permutation(np.concatenate(parts))

    def diagnostics(self) -> dict[str, Any]:
        """Return what the integration achieved."""
        return {
            "cells": len(self.cells),
            "points": self.num_points,
            "prob_error": self.prob_error,
            "mean_error_in_prior_scales": self.mean_error,
        }


def condition(
    matrix: FloatArray, rewards: FloatArray, sd: FloatArray, prior: GaussianPrior
) -> tuple[FloatArray, FloatArray, float]:
    """Return mean μ, factor F (Σ = F Fᵀ) and log-evidence of θ ~ N(m, diag σ²) given B θ + N(0, sd²) = rewards.

    In units of the prior, θ = m + σ z, and in whitened coordinates by the singular values of B σ, so that a small or
    zero sd loses nothing.
    """
    num, size = matrix.shape
    prior_mean, scale = (over_pairs(name, getattr(prior, name), size) for name in ("mean", "scale"))
    if num == 0:
        return np.array(prior_mean), np.diag(scale), 0.0
    in_units = matrix * scale
    gap = rewards - matrix @ prior_mean
    cover = in_units @ in_units.T + np.diag(sd**2)
    sign, log_det = np.linalg.slogdet(cover)
    size_of = np.sqrt(np.diag(cover))  # scales of pairs may differ by many powers of ten
    if sign <= 0.0 or np.linalg.cond(cover / np.outer(size_of, size_of)) > 1e14:
        return np.zeros(size), np.zeros((size, 0)), -np.inf
    solved = np.linalg.solve(cover, gap)
    log_evidence = -0.5 * (gap @ solved + log_det + num * np.log(2.0 * np.pi))
    mean = prior_mean + scale * (in_units.T @ solved)
    if not sd.any():
        _, _, right = np.linalg.svd(in_units, full_matrices=True)
        return mean, scale[:, None] * right[num:].T, float(log_evidence)
    _, singular, right = np.linalg.svd(in_units / sd[:, None], full_matrices=True)
    shrink = np.ones(size)
    shrink[: singular.size] = 1.0 / np.sqrt(1.0 + singular**2)
    return mean, scale[:, None] * right.T * shrink, float(log_evidence)


def _differences(num_pairs: int, chosen: list[int], other: list[int]) -> FloatArray:
    rows = np.zeros((len(chosen), num_pairs))
    rows[np.arange(len(chosen)), other] = 1.0
    rows[np.arange(len(chosen)), chosen] -= 1.0
    return rows


def _check_covered(noise: Likelihood, readings: Readings) -> None:
    """Raise for a noise that thm. psrl does not cover."""
    data = readings.data
    if data.kind == UNIFORM and not noise.is_exact:
        raise InvalidInputError('method="exact" needs the Gaussian kernel, got \'uniform\'; use method="hmc"')
    if not readings.is_compiled or data.kind not in (GAUSSIAN, UNIFORM) or data.learned:
        raise InvalidInputError(f'method="exact" needs Gaussian noise of known scale, got {noise}; use method="hmc"')


def _reading_constant(data: LikelihoodData) -> float:
    """Return log p(readings | g) − log N(r̄; g, s²/n), the part of the evidence that does not depend on g.

    0 where each pair counts as one reading, as with a tolerance.
    """
    n, variance = data.num_readings, np.where(data.num_readings > 1.0, data.scale, 1.0) ** 2
    spread = -0.5 * (n - 1) * np.log(2 * np.pi * variance) - 0.5 * np.log(n) - 0.5 * data.deviation / variance
    return float(np.sum(spread))


def run(problem: Problem, rng: np.random.Generator, *, max_cells: int = MOST_CELLS) -> Posterior:
    """Return the posterior by enumeration: exact P(optimal), means and sds, and independent draws."""
    if problem.chart not in CHARTS.values():
        raise InvalidInputError(
            'method="exact" takes coordinates "bellman" or "q"; for a chart of one\'s own use "hmc"'
        )
    coordinates = "bellman" if problem.is_bellman else "q"
    cells = Enumeration(
        problem.seen, problem.prior, problem.noise, coordinates=coordinates, max_cells=max_cells, rng=rng
    )
    reason = None
    if not max(cells.prob_error, cells.mean_error) <= EXACT_ERROR:
        reason = (
            f"the integration over policy cells has not converged (standard errors {cells.prob_error:.3g} of "
            f'P(optimal) and {cells.mean_error:.3g} prior scales of the means); compare with method="hmc"'
        )
    return problem.posterior(
        draws=cells.draw(problem.num_draws),
        method="exact",
        log_evidence=cells.log_evidence,
        diagnostics=cells.diagnostics() | judged(reason),
        exact_tables=np.stack([cells.prob_optimal(), cells.mean(), cells.sd()]),
        enumeration=cells,
    )
