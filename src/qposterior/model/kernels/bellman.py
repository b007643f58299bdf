"""The Bellman solve and its adjoint: θ from ψ, and gradients back.

Given ψ (θ on unobserved pairs, ρ on observed ones), θ_O = ρ + γ P_O V_θ. Components are solved successors first: one
backup where there is no loop, policy iteration from a proper policy where there is one. A particle's scratch arrays
are allocated once by `new_work` and passed on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qposterior.model.kernels.compile import inner_kernel, kernel
from qposterior.model.kernels.layout import Layout
from qposterior.world.arrays import FloatArray, IntArray

IMPROVEMENT = 1e-11
"""A pair is preferred when it is better by this share of |V|: ties stay with the exit they have."""

PATIENCE = 100
"""Rounds of policy iteration, beyond one a state, after which a component counts as unsolved."""


class Work(NamedTuple):
    """Scratch arrays of one particle."""

    theta: FloatArray  # (K,)
    value: FloatArray  # (S + 1,)  the last is 0
    greedy: IntArray  # (S,)  greedy pair, −1 before the first solve
    order: IntArray  # (S,)  states of each component in the order in which a forest policy was evaluated
    lu: FloatArray  # factors of I − γ P_π of the looping components
    used_lu: IntArray  # (C,)  1 where the factors were needed
    adjoint: FloatArray  # (S + 1,)
    small: FloatArray  # (S,)
    mark: IntArray  # (S,)


@kernel
def new_work(layout: Layout) -> Work:
    """Return fresh scratch arrays."""
    num_states = layout.is_goal.size
    return Work(
        np.zeros(layout.pair_state.size),
        np.zeros(num_states + 1),
        np.full(num_states, -1, dtype=np.int64),
        np.zeros(num_states, dtype=np.int64),
        np.zeros(layout.lu_start[-1]),
        np.zeros(layout.has_loop.size, dtype=np.int64),
        np.zeros(num_states + 1),
        np.zeros(num_states),
        np.zeros(num_states, dtype=np.int64),
    )


@inner_kernel
def backup(layout: Layout, psi: FloatArray, value: FloatArray, k: int) -> float:
    """Return θ_k = ψ_k, plus γ Σ P(s'|k) V(s') if k is observed."""
    row = layout.row_of[k]
    total = psi[k]
    if row >= 0:
        for e in range(layout.row_start[row], layout.row_start[row + 1]):
            total += layout.discount * layout.probability[e] * value[layout.successor[e]]
    return total


@kernel
def solve(layout: Layout, psi: FloatArray, work: Work) -> tuple[bool, float]:
    """Fill θ, V and the greedy pairs from ψ; return (whether there is a solution, log |det(I − γ P_π)|).

    θ_k = ψ_k on unobserved pairs and ψ_k + γ Σ P(s'|k) V(s') on observed ones, V(s) = max θ(s, ·) and 0 at goals: the
    inverse of θ ↦ ψ (docs/explanation/bellman-coordinates.md). Components of the graph of what was seen are solved
    successors first: a state without a loop by one backup, a looping component by policy iteration from a proper
    policy, or from that of the last solve, which `work.greedy` holds. Ties stay with the first, or the exit they have.
    Only observed pairs inside looping components enter the determinant. O(entries of the rows) without loops, and
    O(size³) a round in a component with stochastic rows.
    """
    theta, value, greedy = work.theta, work.value, work.greedy
    first_pair, row_of, row_start = layout.first_pair, layout.row_of, layout.row_start
    successor, probability, discount = layout.successor, layout.probability, layout.discount
    has_loop, component_start, component_state = layout.has_loop, layout.component_start, layout.component_state
    log_det = 0.0
    theta[:] = psi  # which is all there is to do for states that were not met
    if layout.is_simple:
        solve_simple(layout, psi, work)
        return True, 0.0
    for c in range(has_loop.size):
        if has_loop[c]:
            fine, part = solve_component(layout, psi, work, c)
            if not fine:
                return False, 0.0
            log_det += part
            continue
        s = component_state[component_start[c]]
        best, arg = -np.inf, -1
        for k in range(first_pair[s], first_pair[s + 1]):
            total, row = psi[k], row_of[k]
            if row >= 0:
                for e in range(row_start[row], row_start[row + 1]):
                    total += discount * probability[e] * value[successor[e]]
            theta[k] = total
            if total > best:
                best, arg = total, k
        value[s], greedy[s] = best, arg
    return True, log_det


@inner_kernel
def solve_simple(layout: Layout, psi: FloatArray, work: Work) -> None:
    """The same where every row has one successor and no state is visited twice: one sweep without a branch on rows."""
    theta, value, greedy = work.theta, work.value, work.greedy
    first_pair, next_state, states = layout.first_pair, layout.next_state, layout.component_state
    discount = layout.discount
    for i in range(states.size):
        s = states[i]
        arg = first_pair[s]
        best = psi[arg] + discount * value[next_state[arg]]
        theta[arg] = best
        for k in range(arg + 1, first_pair[s + 1]):
            total = psi[k] + discount * value[next_state[k]]
            theta[k] = total
            arg = k if total > best else arg
            best = max(total, best)
        value[s], greedy[s] = best, arg


@inner_kernel
def pull_back_simple(layout: Layout, slope: FloatArray, work: Work) -> None:
    """`pull_back` where every row has one successor and no state is visited twice."""
    adjoint, greedy = work.adjoint, work.greedy
    first_pair, next_state, states = layout.first_pair, layout.next_state, layout.component_state
    discount = layout.discount
    for i in range(states.size - 1, -1, -1):
        s = states[i]
        slope[greedy[s]] += adjoint[s]
        for k in range(first_pair[s], first_pair[s + 1]):
            adjoint[next_state[k]] += discount * slope[k]


@kernel
def solve_component(layout: Layout, psi: FloatArray, work: Work, c: int) -> tuple[bool, float]:
    """Policy iteration in one looping component; return (whether it has a solution, its log determinant).

    With discount 1 an improved policy that cannot leave has found a loop that pays: no solution. Without rounding the
    values of the component grow from round to round, and no policy returns. With it, policies that differ by less than
    their values are known could take turns for ever: the first round in which the sum of the values has not grown is
    the last, its policy as good as any that can be told from it. A run that is right takes a handful of rounds;
    one that has not settled after `PATIENCE` rounds more than the component has states is given up as unsolved.
    """
    first, last = layout.component_start[c], layout.component_start[c + 1]
    if work.greedy[layout.component_state[first]] < 0:
        for i in range(first, last):
            if not start_policy(layout, psi, work, layout.component_state[i]):
                return False, 0.0
    else:
        # A policy of an earlier solve is still proper: that depends on the rows alone. Its exits may have changed.
        for i in range(first, last):
            s = layout.component_state[i]
            if layout.row_of[work.greedy[s]] < 0:
                work.greedy[s] = best_exit(layout, psi, s)
    before = -np.inf
    for _ in range(PATIENCE + last - first):
        fine, log_det = evaluate_component(layout, psi, work, c)
        total = 0.0
        for i in range(first, last):
            total += work.value[layout.component_state[i]]
        if not (fine and np.isfinite(log_det) and np.isfinite(total)):
            break
        has_grown, improved = total > before, False
        for i in range(first, last):
            s = layout.component_state[i]
            margin = IMPROVEMENT * abs(work.value[s])
            best, arg = work.value[s] + margin, -1
            for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
                work.theta[k] = backup(layout, psi, work.value, k)
                if work.theta[k] > best:
                    best, arg = work.theta[k], k
            if arg >= 0 and has_grown:
                work.greedy[s] = arg
                improved = True
        if not improved:
            return True, log_det
        before = total
    for i in range(first, last):
        work.greedy[layout.component_state[i]] = -1
    return False, 0.0


@inner_kernel
def start_policy(layout: Layout, psi: FloatArray, work: Work, s: int) -> bool:
    """Set the greedy pair of a state to the start of a proper policy; return False in a trap at discount 1."""
    choice = layout.exit_pair[s]
    if choice == -1:
        work.greedy[s] = best_exit(layout, psi, s)
    elif choice >= 0:
        work.greedy[s] = choice
    else:
        if layout.discount == 1.0:
            work.greedy[s] = -1
            return False
        work.greedy[s] = layout.first_pair[s]
    return True


@inner_kernel
def best_exit(layout: Layout, psi: FloatArray, s: int) -> int:
    """Return the unobserved pair of largest ψ in a state that has one."""
    best, arg = -np.inf, -1
    for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
        if layout.row_of[k] < 0 and (arg < 0 or psi[k] > best):
            best, arg = psi[k], k
    return arg


@inner_kernel
def evaluate_component(layout: Layout, psi: FloatArray, work: Work, c: int) -> tuple[bool, float]:
    """Fill V of the policy `greedy` in one component; return (whether it is proper, log det(I − γ P_π))."""
    if layout.is_deterministic and evaluate_forest(layout, psi, work, c):
        work.used_lu[c] = 0
        return True, 0.0
    if layout.discount == 1.0 and (layout.is_deterministic or not is_proper(layout, work, c)):
        return False, 0.0
    first, last = layout.component_start[c], layout.component_start[c + 1]
    size = last - first
    lu = work.lu[layout.lu_start[c] : layout.lu_start[c + 1]].reshape(size, size)
    right = work.small[first:last]
    log_det = factor_policy(layout, work.greedy, lu, right, c)
    work.used_lu[c] = 1
    for i in range(size):
        right[i] = outside_part(layout, psi, work.value, work.greedy[layout.component_state[first + i]], c)
    lu_solve(lu, right, size)
    for i in range(size):
        work.value[layout.component_state[first + i]] = right[i]
    return True, log_det


@inner_kernel
def outside_part(layout: Layout, psi: FloatArray, value: FloatArray, k: int, c: int) -> float:
    """Return ψ_k plus what pair k expects from states outside component c."""
    row = layout.row_of[k]
    total = psi[k]
    if row >= 0:
        for e in range(layout.row_start[row], layout.row_start[row + 1]):
            t = layout.successor[e]
            if layout.component_of[t] != c:
                total += layout.discount * layout.probability[e] * value[t]
    return total


@inner_kernel
def evaluate_forest(layout: Layout, psi: FloatArray, work: Work, c: int) -> bool:
    """Fill V where the policy's deterministic steps form a forest, and the order of evaluation; False at a cycle."""
    first, last = layout.component_start[c], layout.component_start[c + 1]
    for i in range(first, last):
        work.mark[layout.component_state[i]] = 0
    filled = first
    for i in range(first, last):
        # Walk to an exit or to a state with a value, then fill the values on the way back.
        s = layout.component_state[i]
        length = 0
        path = work.adjoint  # scratch: free during a solve
        while work.mark[s] == 0:
            work.mark[s] = 1
            path[length] = s
            length += 1
            t = next_inside(layout, work.greedy[s], c)
            if t < 0:
                break
            s = t
        else:
            if work.mark[s] == 1:
                return False
        for j in range(length - 1, -1, -1):
            s = int(path[j])
            work.value[s] = backup(layout, psi, work.value, work.greedy[s])
            work.mark[s] = 2
            work.order[filled] = s
            filled += 1
    return True


@inner_kernel
def next_inside(layout: Layout, k: int, c: int) -> int:
    """Return the one successor of a deterministic pair if it lies in component c, else −1."""
    row = layout.row_of[k]
    if row < 0:
        return -1
    t = layout.successor[layout.row_start[row]]
    return t if layout.component_of[t] == c else -1


@inner_kernel
def is_proper(layout: Layout, work: Work, c: int) -> bool:
    """Return whether the policy leaves component c with probability 1 from each of its states."""
    first, last = layout.component_start[c], layout.component_start[c + 1]
    for i in range(first, last):
        work.mark[layout.component_state[i]] = 0
    remaining, changed = last - first, True
    while changed and remaining > 0:
        changed = False
        for i in range(first, last):
            s = layout.component_state[i]
            if work.mark[s] == 1:
                continue
            row = layout.row_of[work.greedy[s]]
            leaves = row < 0
            if not leaves:
                for e in range(layout.row_start[row], layout.row_start[row + 1]):
                    t = layout.successor[e]
                    if layout.component_of[t] != c or work.mark[t] == 1:
                        leaves = True
                        break
            if leaves:
                work.mark[s] = 1
                remaining -= 1
                changed = True
    return remaining == 0


@inner_kernel
def factor_policy(layout: Layout, greedy: IntArray, lu: FloatArray, leaving: FloatArray, c: int) -> float:
    """Fill `lu` with the factors of I − γ P_π of component c and return the log determinant; see `eliminate`."""
    first = layout.component_start[c]
    size = lu.shape[0]
    lu[:] = 0.0
    for i in range(size):
        leaving[i] = 1.0
        row = layout.row_of[greedy[layout.component_state[first + i]]]
        if row >= 0:
            leaving[i] = 1.0 - layout.discount
            for e in range(layout.row_start[row], layout.row_start[row + 1]):
                t = layout.successor[e]
                if layout.component_of[t] == c:
                    lu[i, layout.place[t]] -= layout.discount * layout.probability[e]
                else:
                    leaving[i] += layout.discount * layout.probability[e]
    return eliminate(lu, leaving, size)


@inner_kernel
def eliminate(lu: FloatArray, leaving: FloatArray, width: int) -> float:
    """Turn I − M, given by its entries off the diagonal, into its factors L U; return the log determinant.

    M is not negative and has row sums of 1 − `leaving`, so I − M is a row diagonally dominant M-matrix: no pivoting is
    needed, and elimination needs no subtraction (Grassmann, Taksar and Heyman 1985). The diagonal of each row is the
    rest of it plus the probability of `leaving` the states that are left, which is carried along in that array. So
    states that are hardly ever left keep their relative precision, where 1 − P(stay) would be rounding error of either
    sign. States that are never left have a pivot of 0 and a determinant that is not finite. Entries more than `width`
    from the diagonal are 0 and are neither read nor written.
    """
    size = lu.shape[0]
    log_det = 0.0
    for i in range(size):
        end = min(size, i + width + 1)
        lu[i, i] = leaving[i]
        for m in range(i + 1, end):
            lu[i, i] -= lu[i, m]
        log_det += np.log(lu[i, i])
        for j in range(i + 1, end):
            if lu[j, i] != 0.0:
                ratio = lu[j, i] / lu[i, i]
                lu[j, i] = ratio
                leaving[j] -= ratio * leaving[i]
                for m in range(i + 1, end):
                    lu[j, m] -= ratio * lu[i, m]
    return log_det


@inner_kernel
def lu_solve(lu: FloatArray, right: FloatArray, width: int) -> None:
    """Solve L U x = right in place."""
    size = lu.shape[0]
    for i in range(size):
        for j in range(max(0, i - width), i):
            right[i] -= lu[i, j] * right[j]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, min(size, i + width + 1)):
            right[i] -= lu[i, j] * right[j]
        right[i] /= lu[i, i]


@inner_kernel
def lu_solve_transposed(lu: FloatArray, right: FloatArray, width: int) -> None:
    """Solve (L U)ᵀ x = right in place."""
    size = lu.shape[0]
    for i in range(size):
        for j in range(max(0, i - width), i):
            right[i] -= lu[j, i] * right[j]
        right[i] /= lu[i, i]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, min(size, i + width + 1)):
            right[i] -= lu[j, i] * right[j]


@kernel
def pull_back(layout: Layout, slope: FloatArray, work: Work) -> None:
    """Turn `slope` = ∂f/∂θ into ∂f/∂ψ in place, at the point of the last solve.

    λ_k = h_k + γ 1[k greedy] Σ_j P(s_k|j) λ_j over observed j: one pass, predecessors first. `adjoint` collects the
    sum for each state.
    """
    adjoint, greedy = work.adjoint, work.greedy
    first_pair, row_of, row_start = layout.first_pair, layout.row_of, layout.row_start
    successor, probability, discount = layout.successor, layout.probability, layout.discount
    component_start, component_state, component_of = layout.component_start, layout.component_state, layout.component_of
    adjoint[:] = 0.0
    if layout.is_simple:
        pull_back_simple(layout, slope, work)
        return
    for c in range(layout.has_loop.size - 1, -1, -1):
        if layout.has_loop[c]:
            adjoint_inside(layout, slope, work, c)
        for i in range(component_start[c], component_start[c + 1]):
            s = component_state[i]
            for k in range(first_pair[s], first_pair[s + 1]):
                if k == greedy[s]:
                    slope[k] += adjoint[s]
                row = row_of[k]
                if row >= 0:
                    for e in range(row_start[row], row_start[row + 1]):
                        t = successor[e]
                        if component_of[t] != c:
                            adjoint[t] += discount * probability[e] * slope[k]


@inner_kernel
def adjoint_inside(layout: Layout, slope: FloatArray, work: Work, c: int) -> None:
    """Complete the adjoint of the states of a looping component: a = b + γ P_πᵀ a, b from all its pairs' own slopes."""
    first, last = layout.component_start[c], layout.component_start[c + 1]
    for i in range(first, last):
        s = layout.component_state[i]
        for k in range(layout.first_pair[s], layout.first_pair[s + 1]):
            row = layout.row_of[k]
            if row >= 0:
                for e in range(layout.row_start[row], layout.row_start[row + 1]):
                    t = layout.successor[e]
                    if layout.component_of[t] == c:
                        work.adjoint[t] += layout.discount * layout.probability[e] * slope[k]
    if work.used_lu[c] == 1:
        size = last - first
        lu = work.lu[layout.lu_start[c] : layout.lu_start[c + 1]].reshape(size, size)
        right = work.small[first:last]
        for i in range(size):
            right[i] = work.adjoint[layout.component_state[first + i]]
        lu_solve_transposed(lu, right, size)
        for i in range(size):
            work.adjoint[layout.component_state[first + i]] = right[i]
    else:
        # A forest: from the leaves, which were evaluated last, towards the exits.
        for i in range(last - 1, first - 1, -1):
            s = work.order[i]
            t = next_inside(layout, work.greedy[s], c)
            if t >= 0:
                work.adjoint[t] += layout.discount * work.adjoint[s]
