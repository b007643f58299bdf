r"""What the Gibbs sampler of the model works on: the model, its grids, and the arrays that all of its steps share.

For each pair α is its mean reward and y = P·W the worth of its row, W a fixed guess of what successors are worth. The
actions of a state are exchangeable (docs/explanation/model-prior.md, "What is believed"),

.. math:: y_{sa} \sim N(ȳ_s, κ_s^2), \quad α_{sa} \sim N(β_s - λ (y_{sa} - ȳ_s), τ_s^2), \quad β_s \sim N(μ, b^2),

τ_s and κ_s in the state's own units (the noise of its rewards, the spread of W over its successors) on grids. Both
variances of an action are multiplied by ω_sa. A reading has the variance v_sa ~ ν v_s / χ²_ν, v_s ~ Gamma(η, η / v₀).
Rows are P_sa ~ Dir(c_s p̄_s), c_s = 1 / κ_s² − 1 for κ_s in its unit, p̄_s ~ Dir(c₀ m_s).

Given all scales, mean rewards and worths are normal (`effects`), and are integrated out where a scale is drawn
(`scales`). The noise stands in `noise`, rows and p̄ in `rows`, a sweep and a chain in `gibbs`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qposterior.world.arrays import FloatArray

TAU_GRID = np.exp(np.linspace(math.log(3e-3), math.log(1e3), 28))
"""τ: the spread of mean rewards over the actions of a state, in units of the noise."""

CONCENTRATION_GRID = np.exp(np.linspace(math.log(6e4), math.log(0.5), 22))
KAPPA_GRID = 1.0 / np.sqrt(1.0 + CONCENTRATION_GRID)
"""c, and κ: the spread of worth over the actions of a state, as a share of the spread over successors."""

NU_GRID = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0])
"""ν: how alike the noise of a state's actions is."""

ETA_GRID = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0])
"""η: how alike the noise of states is."""

B_GRID = np.exp(np.linspace(math.log(0.03), math.log(30.0), 24))
"""b, in units of the spread of the states' mean rewards."""

C0_GRID = np.exp(np.linspace(math.log(0.3), math.log(300.0), 13))
"""c₀: how alike p̄_s and m_s are."""

OMEGA_GRID = 4.0 ** np.arange(-1, 5)
"""ω: by how much the variance of one action differs from that of its state's actions."""

NU, ETA, V0, MU, B, LAMBDA, TAU_LAW, KAPPA_LAW, C0, OMEGA_LAW = range(10)
NUM_HYPER = 10
"""Places in the vector of hyper-parameters; of the laws of τ, κ and ω it holds the numbers."""


class Law(NamedTuple):
    """The laws that scales may have, one of which is drawn."""

    log_prior: FloatArray  # (H,)
    table: FloatArray  # (H, G)  probabilities of the points of the grid


class Laws(NamedTuple):
    """The priors of the scales and of λ."""

    tau: Law
    kappa: Law
    omega: Law
    slope_log_prior: FloatArray  # (L,)
    slope_grid: FloatArray  # (L,)  λ


class Layout(NamedTuple):
    """Pairs of states, candidates for successors of states, and edges: edge first_edge[k] + j leads to candidate j."""

    first_pair: Any  # (S + 1,)
    first_candidate: Any  # (S + 1,)
    first_edge: Any  # (K + 1,)
    first_seen: Any  # (K + 1,)  the edges of pair k that were seen are seen_edge[first_seen[k] : first_seen[k + 1]]
    seen_edge: Any


class Statistics(NamedTuple):
    """Sufficient statistics; rewards are centred on `offset` of their state, worth on the state's mean worth."""

    count: Any  # (K,)
    mean: Any  # (K,)
    deviation: Any  # (K,)  Σ (r − mean)²
    is_constant: Any  # (K,)  pays the same every time
    worth: Any  # (K,)  mean W of the successors seen
    worth_variance: Any  # (K,)  variance of that mean, as the readings estimate it
    edge_count: Any  # (E,)
    value: Any  # (C,)  W of the candidates
    base: Any  # (C,)  m_s; 0 for candidates that were never seen from the state
    unseen_odds: Any  # (C,)  odds of such a candidate against all that were seen


class Units(NamedTuple):
    """Units of the scales, and which parts of the hierarchy are learned."""

    reward_unit: Any  # (S,)  of τ_s
    worth_unit: Any  # (S,)  of κ_s
    worth_freedom: Any  # (S,)  degrees of freedom of the estimated variance of worth; inf: it is known
    offset: Any  # (S,)
    is_read: Any  # (S,)  states with a reading
    is_compared: Any  # (S,)  states with two tried actions or more, which τ, κ and λ are learned from
    is_varied: Any  # (S,)  states whose successors differ in worth; the others tell nothing of κ and λ
    pooled_variance: float  # of rewards within pairs
    centre_spread: float  # of the states' means
    is_pooled: bool  # the noise is skewed: ν stays where it is, and states are not shrunk to each other
    tempering: float  # weight of the evidence on variances, for kurtosis
    rows_known: bool
    hyper_given: bool  # the hyper-parameters were learned elsewhere: they are left as they are


class State(NamedTuple):
    """What the next sweep needs."""

    variance: Any  # (K,)  v_sa
    state_variance: Any  # (S,)  v_s
    worth_factor: Any  # (S,)  true over estimated variance of worth
    tau: Any  # (S,)  place of τ_s in its grid
    kappa: Any  # (S,)  place of κ_s
    omega: Any  # (K,)  place of ω_sa
    centre: Any  # (S, 2)  β_s less offset, ȳ_s
    alpha: Any  # (K,)
    mean_row: Any  # (C,)  p̄_s
    hyper: Any  # (NUM_HYPER,)
