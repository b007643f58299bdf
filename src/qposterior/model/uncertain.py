r"""Unknown transitions: the rows of what was seen are drawn with Q, jointly (paper, app. tabmodelbased).

In Bellman coordinates ψ the readings do not depend on the rows, so the joint posterior is

    p(ψ, P | D) ∝ Dir(P; α + counts) · prior(θ(ψ, P)) · |det(I − γ P_π)|⁻¹ · Π_k p(readings of k | ρ_k).

Given P it is the posterior of known rows. Given ψ, rows drawn from their Dirichlet are a proposal that is accepted with
the ratio of prior(θ)/det alone: with a wide prior on Q nearly always. Drawing P from its Dirichlet and then θ given P,
without that step, is another and wrong posterior: it forgets the evidence Z(P).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qposterior.checks import check_callable, check_choice, check_count, check_number, check_type, make_rng
from qposterior.errors import InvalidInputError
from qposterior.model.kernels.layout import Layout
from qposterior.model.likelihood import Likelihood
from qposterior.model.prior import Prior
from qposterior.model.tabular import BellmanTarget
from qposterior.world.arrays import FloatArray, IntArray, sum_by
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable

SUCCESSOR_RULES = ("state", "all")
MOST_BLOCKS = 64
FIRST_LOOK = 20
"""Times the draws of a row that show which successors there are."""

RowSimulator = Callable[[int, int, int, np.random.Generator], IntArray]
"""(state, action, m, rng) → m successors: a simulator of transitions that reveals no rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirichletRows:
    """Rows ~ Dirichlet: the `concentration` of a row is shared evenly by its candidates, to which counts are added.

    Candidates: with ``"state"`` the successors seen from the same state under any action, with ``"all"`` every state.
    """

    concentration: float = 1.0
    successors: str = "state"

    def __post_init__(self) -> None:
        check_number("concentration", self.concentration, "(0, inf)")
        check_choice("rule for successors", self.successors, SUCCESSOR_RULES)

    def shapes(self, seen: Experience) -> tuple[TransitionTable, FloatArray]:
        """Return the mean rows of the observed pairs and ``(nnz,)`` the Dirichlet parameters α + counts."""
        space, pairs = seen.space, seen.observed_pairs
        counts = seen.table()
        row = np.repeat(np.arange(pairs.size), np.diff(counts.row_start))
        weight = counts.probability * _total(seen)[row]
        if self.successors == "all":
            candidate_row = np.repeat(np.arange(pairs.size), space.num_states)
            candidate = np.tile(np.arange(space.num_states), pairs.size)
        else:
            # Every successor seen from a state is a candidate of each of its observed pairs.
            met = np.unique(space.pair_state[pairs[row]] * space.num_states + counts.successor)
            start = np.searchsorted(met // space.num_states, space.pair_state[pairs], side="left")
            stop = np.searchsorted(met // space.num_states, space.pair_state[pairs], side="right")
            candidate_row = np.repeat(np.arange(pairs.size), stop - start)
            offset = np.arange(candidate_row.size) - np.repeat(np.cumsum(stop - start) - (stop - start), stop - start)
            candidate = met[np.repeat(start, stop - start) + offset] % space.num_states
        size = np.bincount(candidate_row, minlength=pairs.size)
        shape = self.concentration / size[candidate_row].astype(float)
        key = candidate_row * space.num_states + candidate
        shape[np.searchsorted(key, row * space.num_states + counts.successor)] += weight
        table = TransitionTable(
            num_states=space.num_states,
            row_start=np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
            successor=candidate.astype(np.int64),
            probability=shape / sum_by(candidate_row, shape, pairs.size)[candidate_row],
        )
        return table, shape


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRows:
    """Rows are the frequencies of `draws` successors from a simulator, fresh ones at every proposal.

    The bias is that of a maximum over noisy rows, O(1/draws). `seen` counts are not used.
    """

    simulate_fn: RowSimulator
    draws: int = 100

    def __post_init__(self) -> None:
        check_callable("simulate_fn", self.simulate_fn)
        check_count("draws", self.draws)


class SimulatorPool:
    """Rows are the frequencies of a pool of successors from a simulator that grows as data arrive.

    A pair has `draws` successors in the pool for each of its readings. They stay from one posterior to the next, so
    every method takes the rows as known, and the bias of pair k falls as 1 / (draws · readings of k). The pool draws
    from its own stream of `seed`.
    """

    def __init__(self, simulate_fn: RowSimulator, *, draws: int = 100, seed: Any = 0) -> None:
        check_callable("simulate_fn", simulate_fn)
        check_count("draws", draws)
        self.simulate_fn, self.draws = simulate_fn, draws
        self._rng = make_rng(seed)
        self._counts: dict[int, tuple[IntArray, IntArray]] = {}  # pair → successors and how often each was drawn

    def size(self, pair: int) -> int:
        """Return how many successors of a pair have been drawn."""
        return int(self._counts[pair][1].sum()) if pair in self._counts else 0

    def grow(self, seen: Experience) -> Experience:
        """Draw what the readings since the last time ask for; return the experience with the pool's rows."""
        check_type("seen", seen, Experience)
        rows = {}
        for k in map(int, seen.observed_pairs):
            wanted = self.draws * int(seen.count[k]) - self.size(k)
            if wanted > 0:
                fresh = np.unique(_draw(self.simulate_fn, seen, k, wanted, self._rng), return_counts=True)
                both = [fresh, self._counts[k]] if k in self._counts else [fresh]
                state, place = np.unique(np.concatenate([s for s, _ in both]), return_inverse=True)
                count = sum_by(place, np.concatenate([c for _, c in both]).astype(float), state.size)
                self._counts[k] = state, count.astype(np.int64)
            state, number = self._counts[k]
            rows[k] = state, number / number.sum()
        return seen.with_rows(rows)


class UncertainTarget(BellmanTarget):
    """The joint posterior of ψ and the rows, for a fixed number of chains, each with rows of its own.

    `gibbs_sweep` proposes new rows for every chain, block by block of pairs; x stays. Draws of Q come from `to_q` with
    the rows of that moment: it takes as many particles as there are chains.
    """

    def __init__(
        self,
        seen: Experience,
        prior: Prior,
        likelihood: Likelihood,
        rows: DirichletRows | SimulatedRows,
        *,
        chains: int,
        rng: np.random.Generator,
    ) -> None:
        self._rows, self._shape = rows, np.empty(0)
        if isinstance(rows, DirichletRows):
            table, self._shape = rows.shapes(seen)
        else:
            table = _candidates_of_simulator(seen, rows, rng)
        super().__init__(seen, prior, likelihood, table=table)
        self.has_jumps = True  # the rows are what jumps
        self._row = np.repeat(np.arange(seen.num_observed), np.diff(table.row_start))
        self._uncertain = np.flatnonzero(np.diff(table.row_start) > 1)
        self.num_blocks = 1
        self.acceptance = 1.0  # of the last sweep
        self.tables = self._propose(chains, rng)

    @property
    def has_uncertain_rows(self) -> bool:
        """Whether any row has more than one candidate."""
        return self._uncertain.size > 0

    def gibbs_sweep(self, x: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Propose rows from their Dirichlet (or the simulator), a block of pairs at a time; return x as it came."""
        if not self.has_uncertain_rows:
            return x
        order = rng.permutation(self._uncertain)
        density = self.log_density(x).sum(axis=1)
        proposal, accepted = self._propose(x.shape[0], rng), []
        for block in np.array_split(order, min(self.num_blocks, order.size)):
            before = self.tables
            entries = np.isin(self._row, block)
            self.tables = np.where(entries, proposal, before)
            proposed = self.log_density(x).sum(axis=1)
            with np.errstate(invalid="ignore"):
                taken = np.log(rng.random(x.shape[0])) < proposed - density
            self.tables = np.where(taken[:, None], self.tables, before)
            density = np.where(taken, proposed, density)
            accepted.append(float(taken.mean()))
        self.acceptance = float(np.mean(accepted))
        return x

    def adapt_blocks(self) -> None:
        """Make blocks smaller where few proposals are taken, larger where most are (during the warm-up only)."""
        if self.acceptance < 0.25:
            self.num_blocks = min(2 * self.num_blocks, MOST_BLOCKS, max(self._uncertain.size, 1))
        elif self.acceptance > 0.7:
            self.num_blocks = max(self.num_blocks // 2, 1)

    def _propose(self, chains: int, rng: np.random.Generator) -> FloatArray:
        """Return ``(chains, nnz)`` rows drawn from what is known of them."""
        if isinstance(self._rows, DirichletRows):
            # A gamma of small shape may come out as 0, and a row of zeros has no direction.
            drawn = rng.standard_gamma(self._shape, (chains, self._shape.size)) + np.finfo(float).tiny
        else:
            drawn = _simulate(self.seen, self._rows, self.layout, chains, rng)
        sums = np.add.reduceat(drawn, self.layout.row_start[:-1], axis=1) if drawn.shape[1] else drawn
        return np.ascontiguousarray(drawn / sums[:, self._row] if drawn.shape[1] else drawn)


def _total(seen: Experience) -> FloatArray:
    """Return how many transitions of each observed pair were seen."""
    return np.array([float(seen.row(int(k))[1].sum()) for k in seen.observed_pairs])


def _draw(simulate_fn: RowSimulator, seen: Experience, pair: int, number: int, rng: np.random.Generator) -> IntArray:
    """Return the simulator's successors of a pair, checked."""
    space = seen.space
    state, action = int(space.pair_state[pair]), int(space.pair_action[pair])
    drawn = np.asarray(simulate_fn(state, action, number, rng))
    if drawn.shape != (number,) or drawn.dtype.kind not in "iu" or drawn.min() < 0 or drawn.max() >= space.num_states:
        raise InvalidInputError(
            f"the simulator must return {number} states from 0 to {space.num_states - 1} after state {state}, action "
            f"{action}; got {drawn.dtype} of shape {drawn.shape}"
        )
    return drawn.astype(np.int64)


def _candidates_of_simulator(seen: Experience, rows: SimulatedRows, rng: np.random.Generator) -> TransitionTable:
    """Return a table over all successors that a first look at the simulator shows, with their frequencies."""
    first = [
        np.unique(_draw(rows.simulate_fn, seen, int(k), FIRST_LOOK * rows.draws, rng), return_counts=True)
        for k in seen.observed_pairs
    ]
    return TransitionTable(
        num_states=seen.space.num_states,
        row_start=np.concatenate([[0], np.cumsum([s.size for s, _ in first], dtype=np.int64)]).astype(np.int64),
        successor=np.concatenate([s for s, _ in first]).astype(np.int64),
        probability=np.concatenate([c / c.sum() for _, c in first]),
    )


def _simulate(
    seen: Experience, rows: SimulatedRows, layout: Layout, chains: int, rng: np.random.Generator
) -> FloatArray:
    """Return ``(chains, nnz)`` counts of fresh draws.

    A successor that the first look has not met is left out; a row of nothing else is that of the first look.
    """
    counts = np.empty((chains, layout.successor.size))
    for i, k in enumerate(seen.observed_pairs):
        start, stop = layout.row_start[i], layout.row_start[i + 1]
        window = layout.successor[start:stop]
        drawn = _draw(rows.simulate_fn, seen, int(k), rows.draws * chains, rng)
        place = np.minimum(np.searchsorted(window, drawn), window.size - 1)
        is_met = window[place] == drawn
        cell = np.repeat(np.arange(chains), rows.draws) * window.size + place
        met = np.bincount(cell[is_met], minlength=chains * window.size).reshape(chains, window.size)
        counts[:, start:stop] = np.where(met.any(axis=1, keepdims=True), met, layout.probability[start:stop])
    return counts
