"""Does the model fit the log? Each check says in a sentence what was looked at and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qposterior.logs.choices import LogProblem
from qposterior.logs.read import Log
from qposterior.model.free_loops import free_loop
from qposterior.model.hierarchy import build_hierarchy
from qposterior.renamed import renamed
from qposterior.weighted_draws import Posterior

SUSPECT = 1e-3
"""A p-value below this is reported as a misfit."""

ABOUT_ZERO = 0.1
"""Rewards up to this share of the largest of a log are about 0."""

ENOUGH_READINGS = 100.0
"""Readings a pair from which on the values of a log with skewed rewards were covered."""

FEW_READINGS = 10.0
"""Readings a pair from which on all other values were covered, and were as narrow as those of independent pairs."""

NOT_EXCLUDED = 0.05
"""P(best) from which on the answer depends on a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question to the data."""

    name: str
    fits: bool
    note: str  # the answer, in a sentence
    p_value: float | None = None
    words = renamed("words", "note")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `words` is the former name of `note`, for one release."""
        return asdict(self) | {"words": self.note}


def check_fit(log: Log, chosen: LogProblem, post: Posterior) -> list[Check]:
    """Return the checks that apply to this log."""
    checks: list[Check | None] = [_sampler(post, chosen), guessed_ends(log)]
    if chosen.method == "q":
        checks.append(_free_loop(chosen, post))
    else:
        checks += [_left_out(post), _hard_to_judge(chosen)]
    if chosen.rewards == "noisy" and chosen.method == "q":
        checks.append(_equal_noise(log))
    elif chosen.rewards == "deterministic" and int(np.sum(log.count > 1)) == 0:
        note = (
            "every pair was tried only once, so the log cannot tell whether rewards are the same each time, and "
            "P(best) assumes that they are; if they vary, use --rewards noisy, and try the important actions again"
        )
        checks.append(Check(name="rewards", fits=False, note=note))
    checks.append(_markov(log))
    return [check for check in checks if check is not None]


def _sampler(post: Posterior, chosen: LogProblem) -> Check:
    facts = post.diagnostics
    worth = min(facts.get("min_bulk_ess", post.draws.shape[0]), facts.get("min_tail_ess", np.inf))
    note = f"the computation is sound: its draws are worth {worth:.0f} independent ones"
    if not post.trusted:
        pair = facts.get("worst_pair")
        where = "" if pair is None else f"; least certain: state {chosen.states[int(post.space.pair_state[pair])]}"
        if chosen.method != "q":
            note = f"there is no answer: {post.reliability_warning}{where}"
            return Check(name="computation", fits=False, note=note)
        advice = ["group states that were rarely visited", "set another width of the prior (--prior gaussian:scale=…)"]
        if chosen.transitions == "dirichlet":
            advice.append("take the observed frequencies as transitions (--transitions empirical)")
        note = (
            f"the computation has not settled, so there is no answer: its draws are worth {worth:.0f} independent ones "
            f"and its chains differ by {facts.get('max_r_hat', np.nan):.2f} (R-hat, should be below 1.05){where}; "
            f"what may help: {', or '.join(advice)}"
        )
    return Check(name="computation", fits=post.trusted, note=note)


def guessed_ends(log: Log) -> Check | None:
    """Was it told where episodes end?"""
    if not log.guessed_ends:
        return None
    note = (
        f"nothing says where episodes end, so the last row of each of {log.guessed_ends:,} records was taken for an "
        "end: if the records only stop, all values are wrong, often by far; say --ends last if they end there, --ends "
        "none if they stop, or name the column that tells (--outcome, --column terminated=)"
    )
    return Check(name="records", fits=False, note=note)


def _left_out(post: Posterior) -> Check | None:
    """Which share of the models that were drawn had no solution, which conditions the answer on there being one?"""
    share = float(post.diagnostics.get("left_out", 0.0))
    if share == 0.0:
        return None
    note = (
        f"{share:.1%} of the drawn models were left out: without a discount, a loop pays in them or a state has no way "
        "out; all numbers are conditional on every episode coming to an end"
    )
    return Check(name="ends", fits=post.trusted, note=note)


def _hard_to_judge(chosen: LogProblem) -> Check | None:
    """Is this a log of a kind whose intervals of values were too narrow in simulations?"""
    sums = chosen.seen.sums()
    readings = float(np.median(sums.count[sums.count > 0.0]))
    hierarchy = build_hierarchy(sums, np.zeros(sums.space.num_states))
    reasons = []
    if hierarchy.whole.units.is_pooled and readings < ENOUGH_READINGS:
        reasons.append(
            f"rewards are skewed, as where large ones are rare, and half of the pairs have {readings:.0f} readings or "
            "fewer"
        )
    elif readings < FEW_READINGS:
        reasons.append(f"half of the pairs have {readings:.0f} readings or fewer")
    if hierarchy.rewards.is_used:
        reasons.append("rewards depend on where an action leads, as in inventory control")
    if not reasons:
        return None
    note = (
        " and ".join(reasons) + ": in some simulated logs of this kind the intervals of values were too narrow, those "
        "of differences between actions less so; rely on the order of the actions rather than the size of the gain, "
        "and try the recommended policy on part of the decisions first"
    )
    return Check(name="values", fits=False, note=note)


def _free_loop(chosen: LogProblem, post: Posterior) -> Check | None:
    """Does the answer circle for ever at a reward of about 0, as a prior on Q and a discount below 1 make it?"""
    # The prior is as wide as returns are here, so that its scale alone would call every reward small.
    at_most = ABOUT_ZERO * float(np.abs(chosen.seen.reward_mean).max(initial=0.0))
    loop = free_loop(chosen.seen, chosen.prior, at_most=at_most)
    space = post.space
    share = post.prob_optimal_table()[space.pair_state[loop], space.pair_action[loop]]
    states = np.unique(space.pair_state[loop[share >= NOT_EXCLUDED]])
    if not states.size:
        return None
    shown = ", ".join(chosen.states[s] for s in states[:5]) + (", …" if states.size > 5 else "")
    note = (
        "one can circle for ever at a reward of about 0, and the answer takes that to be the best thing to do in "
        f"{shown}: under this prior such a loop looks best whether it is or not, so do not rely on the answer in "
        "these states; charge a cost for each step, or name goals (--goal) and use --discount 1"
    )
    return Check(name="loops", fits=False, note=note)


def _equal_noise(log: Log) -> Check:
    """Bartlett's test: one noise for all pairs?"""
    from scipy.stats import chi2

    many = log.count >= 3.0
    if many.sum() < 2:
        return Check(name="noise", fits=True, note="too few repeated trials to tell whether noise is the same for all")
    free = log.count[many] - 1.0
    variance = log.reward_deviation[many] / free
    if np.any(variance <= 0.0):
        note = "some actions pay exactly the same each time, others vary: one noise scale is too large for the former"
        return Check(name="noise", fits=False, note=note)
    pooled = float(free @ variance / free.sum())
    statistic = free.sum() * np.log(pooled) - float(free @ np.log(variance))
    correction = 1.0 + (np.sum(1.0 / free) - 1.0 / free.sum()) / (3.0 * (many.sum() - 1))
    p = float(chi2.sf(statistic / correction, many.sum() - 1))
    note = (
        "rewards are about equally noisy everywhere, as the model assumes"
        if p > SUSPECT
        else "some actions have much noisier rewards than others (or rare large ones); one noise scale is assumed"
    )
    return Check(name="noise", fits=p > SUSPECT, note=note, p_value=p)


def _markov(log: Log) -> Check | None:
    """A likelihood-ratio test: given state and action, does the next state depend on the state before?"""
    from scipy.stats import chi2

    if log.contexts is None or not log.contexts:
        return None
    keys = np.array(list(log.contexts), dtype=np.int64)
    count = np.array(list(log.contexts.values()))
    statistic, free = 0.0, 0
    order = np.lexsort((keys[:, 2], keys[:, 0], keys[:, 1]))
    keys, count = keys[order], count[order]
    starts = np.flatnonzero(np.diff(keys[:, 1], prepend=-1))
    for begin, end in zip(starts, np.append(starts[1:], len(keys)), strict=True):
        before, row = np.unique(keys[begin:end, 0], return_inverse=True)
        after, column = np.unique(keys[begin:end, 2], return_inverse=True)
        if before.size < 2 or after.size < 2:
            continue
        table = np.zeros((before.size, after.size))
        table[row, column] = count[begin:end]
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        if expected.min() < 3.0:  # the limit law needs counts
            continue
        positive = table > 0.0
        statistic += float(2.0 * np.sum(table[positive] * np.log(table[positive] / expected[positive])))
        free += (before.size - 1) * (after.size - 1)
    if free == 0:
        return Check(name="memory", fits=True, note="too few repeated trials to tell whether the past matters")
    p = float(chi2.sf(statistic, free))
    note = (
        "where an action leads depends on the state it is taken in, not on what came before, as the model assumes"
        if p > SUSPECT
        else "where an action leads also depends on what came before: the states leave something out"
    )
    return Check(name="memory", fits=p > SUSPECT, note=note, p_value=p)
