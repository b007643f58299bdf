r"""What is believed of transitions. Unknown rows are drawn with Q, jointly (paper, app. tabmodelbased).

In Bellman coordinates ψ the readings do not depend on the rows, so the joint posterior is

    p(ψ, P | D) ∝ Dir(P; α + counts) · prior(θ(ψ, P)) · |det(I − γ P_π)|⁻¹ · Π_k p(readings of k | ρ_k).

Given P it is the posterior of known rows. Given ψ, rows drawn from their Dirichlet are a proposal that is accepted with
the ratio of prior(θ)/det alone: with a wide prior on Q nearly always. Drawing P from its Dirichlet and then θ given P,
without that step, is another and wrong posterior: it forgets the evidence Z(P).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from qposterior.checks import check_callable, check_choice, check_count, check_number, check_type, make_rng, shown
from qposterior.errors import InvalidInputError
from qposterior.world.arrays import FloatArray, IntArray, offsets, segment_starts, segments, sum_by
from qposterior.world.experience import Experience
from qposterior.world.transitions import TransitionTable, check_rows

SUCCESSOR_RULES = ("state", "all")
FIRST_LOOK = 20
"""Times the draws of a row that show which successors there are."""


class Rows(Protocol):
    """What is believed of the transition rows of the pairs that were seen."""

    def bind(self, seen: Experience, rng: np.random.Generator | None) -> BoundRows:
        """Return the rows of what was seen; `rng` is for beliefs that draw when they are bound."""
        ...


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
            first = segment_starts(met // space.num_states, space.num_states)
            row_start, entry = segments(first, space.pair_state[pairs])
            candidate_row = np.repeat(np.arange(pairs.size), np.diff(row_start))
            candidate = met[entry] % space.num_states
        size = np.bincount(candidate_row, minlength=pairs.size)
        shape = self.concentration / size[candidate_row].astype(float)
        key = candidate_row * space.num_states + candidate
        shape[np.searchsorted(key, row * space.num_states + counts.successor)] += weight
        table = TransitionTable(
            num_states=space.num_states,
            row_start=offsets(size),
            successor=candidate.astype(np.int64),
            probability=shape / sum_by(candidate_row, shape, pairs.size)[candidate_row],
        )
        return table, shape

    def bind(self, seen: Experience, rng: np.random.Generator | None) -> BoundRows:
        """Return the mean rows; proposals are drawn from the Dirichlet of each."""
        check_counted("DirichletRows", seen)
        table, shape = self.shapes(seen)

        def draw(num: int, rng: np.random.Generator) -> FloatArray:
            # A gamma of small shape may come out as 0, and a row of zeros has no direction.
            return rng.standard_gamma(shape, (num, shape.size)) + np.finfo(float).tiny

        return BoundRows(pairs=seen.observed_pairs, table=table, draw_fn=draw)


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

    def bind(self, seen: Experience, rng: np.random.Generator | None) -> BoundRows:
        """Return the successors that a first look at the simulator shows; proposals are frequencies of fresh draws."""
        if rng is None:
            raise InvalidInputError("SimulatedRows draws successors, and needs rng, a NumPy Generator")
        table = _candidates_of_simulator(seen, self, rng)
        return BoundRows(
            pairs=seen.observed_pairs, table=table, draw_fn=lambda num, rng: _simulate(seen, self, table, num, rng)
        )


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

    known_in = grow


@dataclass(frozen=True, kw_only=True)
class FrequencyRows:
    """The frequencies of counted successors, taken for the rows: biased, for they are treated as known."""

    def known_in(self, seen: Experience) -> Experience:
        """Return the experience with these rows."""
        return seen.with_frequencies()


@dataclass(frozen=True, kw_only=True)
class KnownRows:
    """The rows of the experience, which are known."""

    def known_in(self, seen: Experience) -> Experience:
        """Return the experience as it is."""
        return seen

    def bind(self, seen: Experience, rng: np.random.Generator | None) -> BoundRows:
        """Return the rows of the pairs that were seen."""
        return BoundRows(pairs=seen.observed_pairs, table=seen.table())


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of all pairs, known from the start."""

    table: TransitionTable

    def known_in(self, seen: Experience) -> Experience:
        """Return the experience with the rows of the pairs that were seen, whatever was counted."""
        return seen.with_rows({int(k): self.table.row(int(k)) for k in seen.observed_pairs})

    def bind(self, seen: Experience, rng: np.random.Generator | None) -> BoundRows:
        """Return the rows of all pairs."""
        space, table = seen.space, self.table
        if table.num_rows != space.num_pairs or table.num_states != space.num_states:
            raise InvalidInputError(
                f"the table must have a row for each of the {space.num_pairs} pairs over {space.num_states} states, "
                f"got {table.num_rows} rows over {table.num_states}"
            )
        return BoundRows(pairs=np.arange(space.num_pairs), table=table)


ROWS: dict[str, Callable[[], Any]] = {"dirichlet": DirichletRows, "empirical": FrequencyRows}
"""What may be made of counted successors, by name."""


def as_rows(transitions: Any, seen: Experience) -> Any:
    """Return what is said of transitions as an object: a belief (`Rows`), or rows that are `known_in` an experience."""
    if transitions is None:
        return DirichletRows() if seen.transitions == "counted" else KnownRows()
    if isinstance(transitions, TransitionTable):
        check_rows(transitions, seen.space.num_pairs, seen.space.num_states)
        return TableRows(transitions)
    if not isinstance(transitions, str):
        return transitions
    check_choice("treatment of transitions", transitions, ROWS)
    check_counted(f'transitions="{transitions}"', seen)
    return ROWS[transitions]()


def check_counted(name: str, seen: Experience) -> None:
    """Raise unless the successors of an experience were counted."""
    if seen.transitions != "counted":
        raise InvalidInputError(f'{name} needs an Experience(..., transitions="counted")')


@dataclass(frozen=True, kw_only=True)
class BoundRows:
    """The rows of some pairs, bound to what was seen, and how others are proposed where they are uncertain."""

    pairs: IntArray  # the pairs that have a row, in the order of the table
    table: TransitionTable
    draw_fn: Callable[[int, np.random.Generator], FloatArray] | None = None  # (num, rng) → (num, nnz) masses

    @cached_property
    def row_of_entry(self) -> IntArray:
        """``(nnz,)`` the row of each entry."""
        return np.repeat(np.arange(self.table.num_rows), np.diff(self.table.row_start))

    @cached_property
    def uncertain(self) -> IntArray:
        """The rows with more than one candidate, where rows are uncertain at all."""
        several = np.flatnonzero(np.diff(self.table.row_start) > 1)
        return several if self.draw_fn is not None else several[:0]

    @property
    def shared(self) -> FloatArray:
        """``(1, nnz)`` the rows as all particles share them: known, or the mean of what is believed."""
        return np.ascontiguousarray(self.table.probability[None])

    def propose(self, num: int, rng: np.random.Generator) -> FloatArray | None:
        """Return ``(num, nnz)`` rows drawn from what is believed of them, None where they are known."""
        if self.draw_fn is None:
            return None
        drawn = np.asarray(self.draw_fn(num, rng), dtype=float)
        shape = (num, self.table.successor.size)
        if drawn.shape != shape or not np.all((drawn >= 0.0) & np.isfinite(drawn)):
            raise InvalidInputError(
                f"draw_fn(num, rng) must return {shape} masses of the entries of the rows, finite and 0 or more; got "
                f"{shown(drawn)}"
            )
        if not drawn.shape[1]:
            return np.ascontiguousarray(drawn)
        sums = np.add.reduceat(drawn, self.table.row_start[:-1], axis=1)
        return np.ascontiguousarray(drawn / sums[:, self.row_of_entry])


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
        row_start=offsets(np.array([s.size for s, _ in first], dtype=np.int64)),
        successor=np.concatenate([s for s, _ in first]).astype(np.int64),
        probability=np.concatenate([c / c.sum() for _, c in first]),
    )


def _simulate(
    seen: Experience, rows: SimulatedRows, table: TransitionTable, chains: int, rng: np.random.Generator
) -> FloatArray:
    """Return ``(chains, nnz)`` counts of fresh draws.

    A successor that the first look has not met is left out; a row of nothing else is that of the first look.
    """
    counts = np.empty((chains, table.successor.size))
    for i, k in enumerate(seen.observed_pairs):
        start, stop = table.row_start[i], table.row_start[i + 1]
        window = table.successor[start:stop]
        drawn = _draw(rows.simulate_fn, seen, int(k), rows.draws * chains, rng)
        place = np.minimum(np.searchsorted(window, drawn), window.size - 1)
        is_met = window[place] == drawn
        cell = np.repeat(np.arange(chains), rows.draws) * window.size + place
        met = np.bincount(cell[is_met], minlength=chains * window.size).reshape(chains, window.size)
        counts[:, start:stop] = np.where(met.any(axis=1, keepdims=True), met, table.probability[start:stop])
    return counts
