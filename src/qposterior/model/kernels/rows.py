r"""Rows: the mean row p̄ of a state, and P_sa around it, tilted to the worth that was drawn for it.

.. math:: P_{sa} \sim \mathrm{Dir}(c \, p̄_s), \qquad p̄_s \sim \mathrm{Dir}(c_0 m_s), \qquad
    n_{sa} \mid P_{sa} \sim \mathrm{Multinomial}.

Candidates that were never seen from a state are no part of m_s: they have their odds against all that were seen
(docs/explanation/model-prior.md, "What is approximate").
"""

from __future__ import annotations

import math

import numpy as np

from qposterior.model.kernels.compile import inlined_kernel, kernel
from qposterior.model.kernels.hierarchy import (
    C0,
    C0_GRID,
    CONCENTRATION_GRID,
    OMEGA_GRID,
    Layout,
    State,
    Statistics,
    Units,
)
from qposterior.model.kernels.variates import draw_gamma, draw_index, draw_place, draw_tables
from qposterior.world.arrays import FloatArray

MOST_TILT = 4.0
"""Exponent by which the shares of two successors in a row that was drawn may be changed."""


@inlined_kernel
def concentration_of(k: int, s: int, state: State) -> float:
    """Return c of a pair, 1/(ω κ²) − 1: that at which a Dirichlet law has ω times the variance, or nearly none."""
    c = CONCENTRATION_GRID[state.kappa[s]]
    return max((1.0 + c) / OMEGA_GRID[state.omega[k]] - 1.0, min(c, CONCENTRATION_GRID[-1]))


@kernel
def add_mean_row_scores(base: FloatArray, mean_row: FloatArray, scores: FloatArray) -> None:
    r"""Add log Dir(p̄; c₀ m) to the scores of every c₀ of the grid,

    .. math:: \log Γ(c_0) + \sum_j \big( c_0 m_j \log p̄_j - \log Γ(c_0 m_j) \big),

    up to a constant. p̄ is taken among the candidates that were seen, for m is a law of these; a state without any
    tells nothing of c₀.
    """
    total = 0.0
    for j in range(base.size):
        if base[j] > 0.0:
            total += mean_row[j]
    if total == 0.0:
        return
    for i in range(C0_GRID.size):
        scores[i] += math.lgamma(C0_GRID[i])
    for j in range(base.size):
        if base[j] > 0.0:
            log_share = math.log(mean_row[j] / total)
            for i in range(C0_GRID.size):
                a = C0_GRID[i] * base[j]
                scores[i] += a * log_share - math.lgamma(a)


@kernel
def draw_mean_rows(layout: Layout, data: Statistics, units: Units, state: State, rng: np.random.Generator) -> None:
    r"""Draw table counts T given p̄, then p̄_s of all states given these, then c₀; rows are integrated out.

    .. math:: T_{kj} \sim \mathrm{Tables}(c_k p̄_j, n_{kj}), \qquad
        p̄_s \mid T \sim \mathrm{Dir}\Big(c_0 m_j + \sum_k T_{kj} + \mathrm{odds}_j \sum_{k, i} T_{ki}\Big).

    The auxiliary variables of a hierarchical Dirichlet process (Teh, Jordan, Beal and Blei 2006).
    """
    scores, c0 = np.zeros(C0_GRID.size), state.hyper[C0]
    for s in range(layout.first_pair.size - 1):
        start, stop = layout.first_candidate[s], layout.first_candidate[s + 1]
        if stop - start <= 1:
            state.mean_row[start:stop] = 1.0
            continue
        tables = np.zeros(stop - start)
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            c = concentration_of(k, s, state)
            for i in range(layout.first_seen[k], layout.first_seen[k + 1]):
                edge = layout.seen_edge[i]
                j = edge - layout.first_edge[k]
                tables[j] += draw_tables(max(c * state.mean_row[start + j], 1e-12), data.edge_count[edge], rng)
        occupied = np.sum(tables)
        total = 0.0
        for j in range(stop - start):
            shape = tables[j] + c0 * data.base[start + j] + occupied * data.unseen_odds[start + j]
            state.mean_row[start + j] = draw_gamma(shape, rng) + 1e-30
            total += state.mean_row[start + j]
        state.mean_row[start:stop] /= total
        if not units.hyper_given:
            add_mean_row_scores(data.base[start:stop], state.mean_row[start:stop], scores)
    if not units.hyper_given:
        state.hyper[C0] = C0_GRID[draw_index(scores, rng)]


@kernel
def draw_row(
    k: int, s: int, layout: Layout, data: Statistics, state: State, row: FloatArray, rng: np.random.Generator
) -> tuple[float, float]:
    r"""Draw P_k ~ Dir(c p̄ + n_k); return the worth of its part on candidates that were seen, and standardised.

    That part, normalised, is Dirichlet of the shapes a_j too, and its worth has

    .. math:: E = \sum_j a_j W_j / A, \qquad \mathrm{var} = \Big(\sum_j a_j W_j^2 / A - E^2\Big) \Big/ (A + 1),

    A = Σ a_j. Where all its successors are worth the same, the standardised variate is a normal one.
    """
    start, first = layout.first_candidate[s], layout.first_edge[k]
    c, width = concentration_of(k, s, state), layout.first_candidate[s + 1] - layout.first_candidate[s]
    total, weight, mean, square = 0.0, 0.0, 0.0, 0.0
    for j in range(width):
        shape = c * state.mean_row[start + j] + data.edge_count[first + j]
        row[j] = draw_gamma(shape, rng)
        total += row[j]
        if data.unseen_odds[start + j] == 0.0:
            weight += shape
            mean += shape * data.value[start + j]
            square += shape * data.value[start + j] ** 2
    if total == 0.0:  # all shapes are tiny: the row is a corner
        shapes = c * state.mean_row[start : start + width] + data.edge_count[first : first + width]
        row[draw_place(shapes, rng)] = 1.0
        total = 1.0
    worth, mass = 0.0, 0.0
    for j in range(width):
        row[j] /= total
        if data.unseen_odds[start + j] == 0.0:
            mass += row[j]
            worth += row[j] * data.value[start + j]
    if weight == 0.0 or mass == 0.0:  # nothing was seen, or nothing of it was drawn
        return 0.0, rng.standard_normal()
    worth /= mass
    mean /= weight
    square /= weight
    variance = square - mean * mean
    if variance <= 1e-13 * square:  # rounding
        return worth, rng.standard_normal()
    return worth, (worth - mean) / math.sqrt(variance / (weight + 1.0))


@kernel
def draw_corner(
    s: int, layout: Layout, data: Statistics, state: State, row: FloatArray, rng: np.random.Generator
) -> float:
    """Draw the one successor of a pair never tried, from p̄, where rows are known; return its standardised worth."""
    mean_row = state.mean_row[layout.first_candidate[s] : layout.first_candidate[s + 1]]
    value = data.value[layout.first_candidate[s] : layout.first_candidate[s + 1]]
    successor = draw_place(mean_row, rng)
    row[successor] = 1.0
    mean = np.sum(mean_row * value)
    spread = math.sqrt(np.sum(mean_row * (value - mean) ** 2))
    if spread <= 1e-7 * np.max(np.abs(value)):
        return rng.standard_normal()
    return (value[successor] - mean) / spread


@kernel
def tilt(row: FloatArray, value: FloatArray, unseen_odds: FloatArray, worth: float, target: float) -> None:
    r"""Tilt the seen part of a row exponentially to a worth of `target`, or as near to that as it gets:

    .. math:: P_j ∝ P_j e^{t W_j}, \quad |t| \, \max_j |W_j - \mathrm{worth}| ≤ \mathrm{MOST\_TILT},

    by Newton's method. Its mass stays: what is held possible beyond what was seen is not to be reasoned away. `worth`
    is its own before.
    """
    top, mass = 0.0, 0.0
    for j in range(row.size):
        if row[j] > 0.0 and unseen_odds[j] == 0.0:
            top = max(top, abs(value[j] - worth))
            mass += row[j]
    if top == 0.0:
        return
    t = 0.0
    for _ in range(12):
        total, first, second = 0.0, 0.0, 0.0
        for j in range(row.size):
            if row[j] == 0.0 or unseen_odds[j] > 0.0:
                continue
            gap = value[j] - worth
            w = row[j] * (math.exp(t * gap) if t != 0.0 else 1.0)
            total += w
            first += w * gap
            second += w * gap * gap
        first /= total
        second = second / total - first * first
        miss = target - worth - first
        if abs(miss) < 1e-7 * top or second < 1e-12 * top * top:
            break
        # Newton's step, at most two units of the exponent; beyond `MOST_TILT` a row would be torn apart.
        t += min(max(miss / second, -2.0 / top), 2.0 / top)
        t = min(max(t, -MOST_TILT / top), MOST_TILT / top)
    total = 0.0
    for j in range(row.size):
        if row[j] > 0.0 and unseen_odds[j] == 0.0:
            row[j] *= math.exp(t * (value[j] - worth))
            total += row[j]
    for j in range(row.size):
        if unseen_odds[j] == 0.0:
            row[j] *= mass / total
