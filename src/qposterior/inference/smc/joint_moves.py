"""Particles of Q and of unknown transition rows that follow the data by moves alone.

After every update the rows of each particle are drawn afresh from their Dirichlet and Q moves on with them. No weights:
the particles are chains of the joint posterior (`model.rows`), started where the last update left them: they lag
behind by what a few moves cannot mix. Good enough to explore by; `posterior(...)` runs chains until they agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qposterior.inference.hmc import ChainState, RowState, Tuning, hmc_move, redraw
from qposterior.inference.smc.sampler import Packed, SequentialSampler, initial_state
from qposterior.model.noise import Tolerance
from qposterior.model.prior import Prior
from qposterior.model.rows import DirichletRows
from qposterior.model.target import Target
from qposterior.world.arrays import FloatArray
from qposterior.world.experience import Experience

FIRST_STEP = 0.3
MOST_LEAPFROG = 32
TARGET_ACCEPTANCE = 0.8
MOST_STATES = 64
"""Up to this many states any of them may follow; beyond, rows over all states would cost S² a particle."""


@dataclass(kw_only=True)
class JointSampler(SequentialSampler):
    """Equally weighted particles of Q, each with transition rows of its own.

    While every pair has paid the same whenever it was tried, rewards count as exact: a scale of noise that is learned
    from readings without any spread has nothing to settle at. From the first difference on they are noisy.
    """

    rows: DirichletRows = field(default_factory=DirichletRows)
    moves: int = 3
    step: float = FIRST_STEP
    is_noisy: bool = False

    @classmethod
    def start(
        cls,
        template: Experience,
        *,
        prior: Prior,
        noise: Any,
        particles: int,
        rng: np.random.Generator,
        moves: int = 3,
    ) -> JointSampler:
        """Return particles drawn from the prior, nothing seen."""
        # After one look a row over the successors seen would be certain, and an agent would never look again.
        rule = "all" if template.space.num_states <= MOST_STATES else "state"
        rows = DirichletRows(successors=rule)
        return cls(**initial_state(template, prior, noise, particles=particles, rng=rng), moves=moves, rows=rows)

    def update(self, seen: Experience, *, deadline: float | None = None) -> bool:
        """Take in all that is new and move; return whether anything was."""
        if not np.any(seen.count != self.seen.count):
            return False
        self.seen = seen.copy()
        self._notice_noise()
        self.move(self.moves, deadline=deadline)
        return True

    def move(self, times: int = 1, *, deadline: float | None = None) -> None:
        """Draw rows afresh and move every particle, at least once; a deadline in seconds ends it after a move."""
        started = time.perf_counter()
        if self.seen.num_observed == 0:
            return
        target = Target(self.seen, self.prior, self.noise if self.is_noisy else Tolerance(), rows=self.rows)
        state = self._place(target)
        accepted = [1.0]
        for _ in range(times):
            if target.num_coordinates:
                tuning = state.tuning
                steps = tuning.num_steps(self.rng.random(), MOST_LEAPFROG)
                move = hmc_move(state.of(target), state.x, state.density, tuning, steps, self.rng)
                accepted.append(float(np.nan_to_num(move.smooth_acceptance).mean()))
                size = tuning.step * float(np.exp(0.3 * (accepted[-1] - TARGET_ACCEPTANCE)))
                tuning = replace(tuning, step=float(np.clip(size, 1e-3, 2.0)))
                state = replace(state, x=move.x, density=move.density, tuning=tuning)
            state = redraw(target, state, self.rng)
            if deadline is not None and time.perf_counter() - started > deadline:
                break
        self.step = state.tuning.step
        self.particles = replace(
            self.particles,
            parameters=state.of(target).to_parameters(state.x),
            log_scale=state.x[:, -1].copy() if target.learns_scale else self.particles.log_scale,
            rows=state.rows.rows if state.rows is not None else None,
        )
        num = float(self.particles.num)
        row = {"stage": "move", "observed": self.seen.num_observed, "tolerance": 0.0, "new_tolerance": 0.0}
        row |= {"ess_before": num, "ess_after": num, "moves": times, "step_size": self.step}
        row |= {"acceptance": float(np.mean(accepted[1:] or accepted)), "bellman_error": 0.0}
        self.trace.append(row | {"seconds": time.perf_counter() - started})

    def pack(self) -> Packed:
        """Return everything that the continuation depends on."""
        arrays, facts = super().pack()
        return arrays, facts | {"step": self.step, "is_noisy": self.is_noisy}

    def unpack(self, arrays: dict[str, FloatArray], facts: dict[str, Any]) -> None:
        """Take over what `pack` returned."""
        super().unpack(arrays, facts)
        self.step, self.is_noisy = float(facts["step"]), bool(facts["is_noisy"])

    def _notice_noise(self) -> None:
        """Change to noisy rewards at the first pair that has paid differently, the scale near what was seen."""
        if self.is_noisy or not self.noise.is_noisy or not np.any(self.seen.reward_deviation > 0.0):
            return
        self.is_noisy = True
        if self.particles.log_scale is not None:
            free = np.maximum(self.seen.count - 1, 0).sum()
            spread = 0.5 * np.log(self.seen.reward_deviation.sum() / max(int(free), 1))
            log_scale = spread + 0.2 * self.rng.standard_normal(self.particles.num)
            self.particles = replace(self.particles, log_scale=log_scale)

    def _place(self, target: Target) -> ChainState:
        """Return the particles under rows drawn afresh; those that have no place there take another's, and its rows."""
        rows = target.rows.propose(self.particles.num, self.rng)
        assert rows is not None
        conditional = target.given(rows)
        x = conditional.from_parameters(self.particles.parameters, self.particles.log_scale)
        lost = ~np.isfinite(conditional.log_density(x).total)
        if lost.all():
            x = conditional.initial(x.shape[0], self.rng)
        elif lost.any():
            donors = self.rng.choice(np.flatnonzero(~lost), int(lost.sum()))
            x[lost], rows[lost] = x[donors], rows[donors]
        x = np.ascontiguousarray(x)
        tuning = Tuning(step=self.step, trajectory=np.pi / 2, inverse_mass=_scales(x))
        return ChainState(x=x, density=target.log_density(x, rows), tuning=tuning, rows=RowState(rows=rows))


def _scales(x: FloatArray) -> FloatArray:
    """Return the variances of the coordinates, shrunk towards their median: the particles are few."""
    if x.shape[1] == 0:
        return np.ones(0)
    variance = x.var(axis=0)
    return np.asarray(0.8 * variance + 0.2 * np.median(variance) + np.finfo(float).tiny)
