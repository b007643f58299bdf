"""The linear system of a policy in one component of the graph, (I − M) x = b or its transpose, M = γ P_π.

Few states are solved by elimination, many by sweeps x ← M x + b, or, where those converge slowly, by stabilised
biconjugate gradients (BiCGSTAB, van der Vorst 1992), whose result is checked by its residual ρ = b − (I − M) x:

    x* − x lies between H min ρ and H max ρ      for x = V^π in a component that is never left, H = 1/(1 − γ),
    |x* − x|_∞ ≤ H |ρ|_∞                         elsewhere, and the same in the 1-norm for the transpose,

H the largest expected number of (discounted) steps. In a component that is never left the midpoint of the bounds is
added at each sweep (MacQueen 1966, Porteus 1971): what is left converges at the speed at which the policy mixes.
Gradients and, in a component that is left, sweeps are preconditioned by symmetric Gauss–Seidel,

    I − M = D − L − U  ≈  (D − L) D⁻¹ (D − U),

which carries values from the exits to all states in few steps where states are ordered by their distance from them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qposterior.model.kernels.bellman import eliminate, lu_solve, lu_solve_transposed
from qposterior.model.kernels.compile import inlined_kernel, inner_kernel
from qposterior.world.arrays import FloatArray, IntArray

PLAIN_SWEEPS, TRIAL_SWEEPS, PATIENT_SWEEPS = 40, 8, 400
"""Sweeps before conjugate gradients are tried, those after which that is decided, and those between two attempts."""

MOST_ATTEMPTS, FEW_ATTEMPTS, MOST_STEPS = 60.0, 4.0, 300
"""Attempts at conjugate gradients, those after which a component counts as never left, and steps of each.

Attempts are floats: kernels are compiled anew for each constant integer that they are called with."""

ROUNDING = 1e-15
"""Residuals below this share of the largest value are rounding errors."""


class System(NamedTuple):
    """M and b of one component with n states, in rows of entries, and room to solve it by elimination."""

    start: IntArray  # (n + 1,)
    column: npt.NDArray[np.int32]
    entry: FloatArray
    leaving: FloatArray  # (n,)  1 − the sum of a row of M, without cancellation
    right: FloatArray  # (n,)
    solution: FloatArray  # (n,)
    residual: FloatArray  # (n,)
    lu: FloatArray  # (m, m)  for the dense solve of up to m states


class Sweeps(NamedTuple):
    """Room to solve it by sweeps. Kernels that get None instead are compiled without them, in a third of the time."""

    diagonal: FloatArray  # (n,)  D, without cancellation
    scratch: FloatArray  # (8, n)


def new_system(num_states: int, num_entries: int, num_dense: int) -> System:
    """Return room for the systems of components of up to that many states and entries."""
    return System(
        start=np.zeros(num_states + 1, dtype=np.int64),
        column=np.zeros(num_entries, dtype=np.int32),
        entry=np.zeros(num_entries),
        leaving=np.zeros(num_states),
        right=np.zeros(num_states),
        solution=np.zeros(num_states),
        residual=np.zeros(num_states),
        lu=np.zeros((num_dense, num_dense)),
    )


@inner_kernel
def solve_densely(system: System, size: int, width: int, transposed: bool) -> bool:
    """Fill `solution` by elimination within a band; False where some states are never left (at discount 1)."""
    lu = system.lu[:size, :size]
    leaving, x = system.residual[:size], system.solution[:size]
    for i in range(size):
        leaving[i] = system.leaving[i]
        x[i] = system.right[i]
        for j in range(max(0, i - width), min(size, i + width + 1)):
            lu[i, j] = 0.0
        for e in range(system.start[i], system.start[i + 1]):
            lu[i, system.column[e]] -= system.entry[e]
    if not np.isfinite(eliminate(lu, leaving, width)):
        return False
    if transposed:
        lu_solve_transposed(lu, x, width)
    else:
        lu_solve(lu, x, width)
    return True


@inner_kernel
def is_left(system: System, size: int) -> bool:
    """Return whether the component is left with probability 1 from each of its states."""
    mark = system.residual
    remaining = size
    for i in range(size):
        mark[i] = 1.0 if system.leaving[i] > 0.0 else 0.0
        remaining -= int(mark[i])
    forward, changed = True, True
    while changed and remaining > 0:
        changed = False
        for j in range(size):
            i = j if forward else size - 1 - j
            if mark[i] == 1.0:
                continue
            for e in range(system.start[i], system.start[i + 1]):
                if mark[system.column[e]] == 1.0:
                    mark[i] = 1.0
                    remaining -= 1
                    changed = True
                    break
        forward = not forward
    return remaining == 0


@inner_kernel
def apply(system: System, size: int, transposed: bool, x: FloatArray, out: FloatArray) -> None:
    """Write (I − M) x, or (I − Mᵀ) x."""
    start, column, entry = system.start, system.column, system.entry
    if transposed:
        for i in range(size):
            out[i] = x[i]
        for i in range(size):
            for e in range(start[i], start[i + 1]):
                out[column[e]] -= entry[e] * x[i]
    else:
        for i in range(size):
            total = x[i]
            for e in range(start[i], start[i + 1]):
                total -= entry[e] * x[column[e]]
            out[i] = total


@inner_kernel
def find_diagonal(system: System, sweeps: Sweeps, size: int) -> None:
    """Fill D: what leaves the component or goes to its other states."""
    for i in range(size):
        total = system.leaving[i]
        for e in range(system.start[i], system.start[i + 1]):
            if system.column[e] != i:
                total += system.entry[e]
        sweeps.diagonal[i] = total


@inner_kernel
def precondition(system: System, sweeps: Sweeps, size: int, transposed: bool, x: FloatArray, out: FloatArray) -> None:
    """Write (D − U)⁻¹ D (D − L)⁻¹ x, or its transpose."""
    start, column, entry, diagonal = system.start, system.column, system.entry, sweeps.diagonal
    for i in range(size):
        out[i] = x[i]
    if transposed:
        for i in range(size):
            for e in range(start[i], start[i + 1]):
                if column[e] > i:
                    out[column[e]] += entry[e] * out[i] / diagonal[i]
        for i in range(size - 1, -1, -1):
            out[i] /= diagonal[i]
            for e in range(start[i], start[i + 1]):
                if column[e] < i:
                    out[column[e]] += entry[e] * out[i]
    else:
        for i in range(size):
            total = out[i]
            for e in range(start[i], start[i + 1]):
                if column[e] < i:
                    total += entry[e] * out[column[e]]
            out[i] = total / diagonal[i]
        for i in range(size - 1, -1, -1):
            total = 0.0
            for e in range(start[i], start[i + 1]):
                if column[e] > i:
                    total += entry[e] * out[column[e]]
            out[i] += total / diagonal[i]


@inner_kernel
def find_residual(system: System, size: int, transposed: bool) -> None:
    """Fill `residual` with right − (I − M) solution."""
    apply(system, size, transposed, system.solution, system.residual)
    for i in range(size):
        system.residual[i] = system.right[i] - system.residual[i]


@inner_kernel
def centre(system: System, size: int, horizon: float) -> None:
    """Move the solution of a component that is never left to the midpoint of its bounds.

    (I − M) 1 = 1/H there, so that the residual loses its midpoint.
    """
    low, high = np.inf, -np.inf
    for i in range(size):
        low, high = min(low, system.residual[i]), max(high, system.residual[i])
    middle = 0.5 * (low + high)
    for i in range(size):
        system.solution[i] += horizon * middle
        system.residual[i] -= middle


@inner_kernel
def size_of(residual: FloatArray, size: int, transposed: bool) -> float:
    """Return the 1-norm of the residual of a transposed system, else the largest entry."""
    total, largest = 0.0, 0.0
    for i in range(size):
        total += abs(residual[i])
        largest = max(largest, abs(residual[i]))
    return total if transposed else largest


@inner_kernel
def sweep(system: System, sweeps: Sweeps, size: int, transposed: bool, is_closed: bool, horizon: float) -> float:
    """Make one sweep, plain or of Gauss–Seidel, and return the bound on the error that is left."""
    step = system.residual
    if not is_closed:
        step = sweeps.scratch[0]
        precondition(system, sweeps, size, transposed, system.residual, step)
    for i in range(size):
        system.solution[i] += step[i]
    return bound_error(system, size, transposed, is_closed, horizon)


@inner_kernel
def bound_error(system: System, size: int, transposed: bool, is_closed: bool, horizon: float) -> float:
    """Fill `residual`, centre the solution where that can be done, and return the bound on its error."""
    find_residual(system, size, transposed)
    if is_closed and not transposed:
        centre(system, size, horizon)
    return horizon * size_of(system.residual, size, transposed)


@inner_kernel
def error_allowed(
    system: System, size: int, transposed: bool, horizon: float, tolerance: float, enough: float
) -> float:
    """Return the error at which to stop: `enough`, a share of the spread of V (of the sum of visits), or rounding."""
    largest = size_of(system.solution, size, transposed)
    scale = largest if transposed else spread_of(system.solution, size)
    return max(enough, tolerance * scale, horizon * ROUNDING * largest)


@inner_kernel
def spread_of(values: FloatArray, size: int) -> float:
    """Return the largest value less the smallest."""
    low, high = np.inf, -np.inf
    for i in range(size):
        low, high = min(low, values[i]), max(high, values[i])
    return high - low


@inner_kernel
def solve_sparsely(
    system: System,
    sweeps: Sweeps,
    size: int,
    transposed: bool,
    is_closed: bool,
    horizon: float,
    tolerance: float,
    enough: float,
    attempts: float,
) -> float:
    """Improve `solution` until its error is at most that of `error_allowed`; return the bound that was reached.

    Sweeps first; where their contraction, measured after `TRIAL_SWEEPS`, would need too many of them, conjugate
    gradients, and sweeps again where an attempt at those has gained less than a factor of ten. The bound is larger
    than what is allowed only where all attempts were used up.
    """
    find_diagonal(system, sweeps, size)
    bound = bound_error(system, size, transposed, is_closed, horizon)
    for number in range(PLAIN_SWEEPS):
        target = error_allowed(system, size, transposed, horizon, tolerance, enough)
        if not bound > target:
            return bound
        before, bound = bound, sweep(system, sweeps, size, transposed, is_closed, horizon)
        if number >= TRIAL_SWEEPS and bound > target and np.log(target / bound) < PLAIN_SWEEPS * np.log(bound / before):
            break
    for _ in range(int(attempts)):
        target = error_allowed(system, size, transposed, horizon, tolerance, enough)
        if not bound > target:
            return bound
        conjugate_gradients(system, sweeps, size, transposed, target / horizon)
        before, bound = bound, bound_error(system, size, transposed, is_closed, horizon)
        if bound > 0.1 * before:
            for _ in range(PATIENT_SWEEPS):
                if not bound > error_allowed(system, size, transposed, horizon, tolerance, enough):
                    return bound
                bound = sweep(system, sweeps, size, transposed, is_closed, horizon)
    return bound


@inner_kernel
def conjugate_gradients(system: System, sweeps: Sweeps, size: int, transposed: bool, target: float) -> None:
    """Improve `solution` by BiCGSTAB until the residual is below `target`; keep the old one where that diverged."""
    x, residual = system.solution, system.residual
    shadow, direction, image, half = sweeps.scratch[0], sweeps.scratch[1], sweeps.scratch[2], sweeps.scratch[3]
    change, trial, ready, ready_half = sweeps.scratch[4], sweeps.scratch[5], sweeps.scratch[6], sweeps.scratch[7]
    begun = size_of(residual, size, transposed)
    for i in range(size):
        shadow[i] = residual[i]
        trial[i] = x[i]
        direction[i] = image[i] = 0.0
    rho = alpha = omega = 1.0
    for _ in range(MOST_STEPS):
        before, rho = rho, dot(shadow, residual, size)
        beta = rho / before * alpha / omega
        for i in range(size):
            direction[i] = residual[i] + beta * (direction[i] - omega * image[i])
        precondition(system, sweeps, size, transposed, direction, ready)
        apply(system, size, transposed, ready, image)
        alpha = rho / dot(shadow, image, size)
        for i in range(size):
            half[i] = residual[i] - alpha * image[i]
        precondition(system, sweeps, size, transposed, half, ready_half)
        apply(system, size, transposed, ready_half, change)
        omega = dot(change, half, size) / dot(change, change, size)
        if not (np.isfinite(alpha) and np.isfinite(omega) and np.isfinite(beta)):
            break
        for i in range(size):
            trial[i] += alpha * ready[i] + omega * ready_half[i]
            residual[i] = half[i] - omega * change[i]
        reached = size_of(residual, size, transposed)
        if not reached > 0.5 * target:
            break
    if size_of(residual, size, transposed) < begun:
        for i in range(size):
            x[i] = trial[i]


@inner_kernel
def dot(x: FloatArray, y: FloatArray, size: int) -> float:
    """Return Σ x y; four sums at a time do not wait for each other."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(0, size - 3, 4):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        d += x[i + 3] * y[i + 3]
    for i in range(size - size % 4, size):
        a += x[i] * y[i]
    return (a + b) + (c + d)


@inlined_kernel
def most_steps(system: System, sweeps: Sweeps, size: int) -> float:
    """Return a bound on the expected steps until the component is left, from its worst state (discount 1).

    w ≥ 0 with (I − M) w ≥ 1/2 is at least half of (I − M)⁻¹ 1, because that inverse is not negative.
    """
    for i in range(size):
        system.right[i] = 1.0
        system.solution[i] = 1.0
    # Neither transposed nor closed; for the constant False all would be compiled once more.
    no = size < 0
    solve_sparsely(system, sweeps, size, no, no, 1.0, 0.0, 0.5, FEW_ATTEMPTS)
    find_residual(system, size, no)
    if not size_of(system.residual, size, no) <= 0.5:
        return np.inf
    return 2.0 * size_of(system.solution, size, no)
