"""What an answer says about policies, in words and rounded numbers: the terminal and the page say the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.inference.policies import Policies, central_interval
from qposterior.inference.policy_search import Risk
from qposterior.logs.fit import Fit
from qposterior.world.arrays import FloatArray

if TYPE_CHECKING:
    import pandas as pd

SURE, UNSURE = 0.95, 0.5
"""P(better) from which on a gain is clear, and below which there rather is none."""

FEW_DIGITS = 0.01
"""Share of a value that counts as uncertain at least: five digits will do where hardly anything is."""

UPPER_BOUND = "upper bound"
ALIKE = ("much more similar places", "places as similar as in the answer above", "much more different places")
"""The priors of `Fit.sensitivity`, in their order."""

ORIGINS = {
    "greedy": "the action of largest mean value in each state",
    "mean model": "the best policy of the mean model",
    "logged": "the logged policy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLine:
    """A policy, or a difference of two, as it is printed."""

    name: str
    value: str
    interval: str
    prob_better: str = ""  # than the logged policy


def rounded(width: float, *values: float) -> list[str]:
    """Return numbers with as many decimals as three digits of `width` have: what is uncertain by 290 has none."""
    largest = max(map(abs, values))
    if not math.isfinite(width + largest):
        return [f"{value:.4g}" for value in values]
    decimals = 2 - math.floor(math.log10(max(width, FEW_DIGITS * largest) or 1.0))
    if not -6 <= decimals <= 8:
        return [f"{value:.4g}" for value in values]
    # Adding 0 turns a rounded -0.0 into 0.0.
    return [f"{round(value, max(decimals, 0)) + 0.0:,.{max(decimals, 0)}f}" for value in values]


def policy_lines(policies: Policies) -> list[PolicyLine]:
    """Return the recommended policy, the logged one, the gain, those given, and the upper bound, in this order."""
    width = _width(policies)
    own = [_line(one.name, one.values, width) for one in (policies.recommended, policies.logged)]
    gain = _line("gain over logged", policies.gain, width, prob_better=policies.prob_better)
    given = [
        _line(one.name, one.values, width, prob_better=float(np.mean(policies.gain_of(one) > 0.0)))
        for one in policies.given
    ]
    return [*own, gain, *given, _line(UPPER_BOUND, policies.optimum, width)]


def widths(table: pd.DataFrame) -> FloatArray:
    """Return for every row of the table the length of the widest interval of its state, or what stands for it."""
    spread, least = table["upper"] - table["lower"], FEW_DIGITS * table["mean"].abs()
    length = spread.where(spread > least, least)
    return np.asarray(length.groupby(table["state"]).transform("max"), dtype=np.float64)


def interval_words(row: Mapping[Any, Any], width: float) -> tuple[str, str]:
    """Return the value and the interval of a row of the table, rounded alike."""
    return with_interval((row["mean"], row["lower"], row["upper"]), width)


def with_interval(numbers: tuple[float, float, float], width: float) -> tuple[str, str]:
    """Return a value and its interval, rounded alike."""
    value, low, high = rounded(width, *numbers)
    return value, f"{low} to {high}"


def verdict(fit: Fit) -> str:
    """Return in a sentence or two whether it pays to leave the logged policy."""
    policies = fit.policies
    assert policies is not None
    if is_logged(policies):
        why = "no other has a larger value"
        if fit.chosen.cautious is not None:
            why = f"no other action is better with a probability of {fit.chosen.cautious:g}"
        return f"The recommended policy is the logged one: {why}. There is nothing to change."
    if not policies.gain.any():
        return "The recommended policy is worth exactly as much as the logged one: there is nothing to gain."
    gain, sure = _line("gain", policies.gain, _width(policies)), share_words(policies.prob_better)
    words = f"The recommended policy gains {gain.value} over the logged one (90 % interval {gain.interval})"
    if policies.prob_better >= SURE:
        return f"{words}; it is better with probability {sure}."
    if policies.prob_better >= UNSURE:
        return f"{words}, but this is uncertain: it is better with probability {sure}."
    return f"{words}: there is probably nothing to gain. It is better with probability only {sure}."


def how_recommended(fit: Fit) -> Iterator[str]:
    """Yield what the recommended policy was chosen for, and on what it rests."""
    policies, chosen = fit.policies, fit.chosen
    if policies is None:
        yield "no models were drawn, so policies have no values; in each state the action of largest mean Q is taken"
        return
    share = Risk.parse(chosen.risk).share
    worst = "" if share == 1.0 else f"the worst {share:.0%} of "
    start = ORIGINS.get(policies.origin, f"the policy {policies.origin!r} that was given")
    yield (
        f"the recommended policy was chosen by its mean value over {worst}{policies.num_choosing:,} draws, in a search "
        f"that started from {start}; all policies are valued on {policies.optimum.size:,} other draws; an action is "
        "recommended only in a state where it was tried"
    )
    if chosen.cautious is not None:
        yield (
            "it departs from the most frequent logged action of a state only where another is better with a "
            f"probability of at least {chosen.cautious:g}"
        )
    yield (
        "values are for episodes that start where those of the log start; the logged policy takes each action as "
        "often as the log does in that state"
    )
    yield (
        "the upper bound is the mean over draws of the optimal value of each, as if the truth were known: no policy "
        "reaches it, and it is too large on average"
    )


def sensitivity_lines(fit: Fit) -> list[PolicyLine]:
    """Return the gain under priors by which actions lead to places more alike, as reported, and less alike."""
    gains = fit.sensitivity
    if len(gains) != len(ALIKE) or fit.policies is None or is_logged(fit.policies):
        return []
    width = max(high - low for _, low, high in gains.values())
    lines = []
    for name, numbers in zip(ALIKE, gains.values(), strict=True):
        value, interval = with_interval(numbers, width)
        lines.append(PolicyLine(name=name, value=value, interval=interval))
    return lines


def is_logged(policies: Policies) -> bool:
    """Return whether the recommended policy is the logged one."""
    return bool(np.array_equal(policies.recommended.probabilities, policies.logged.probabilities))


def tried_words(row: Mapping[Any, Any]) -> str:
    """Return how often a row of the table was tried."""
    return f"{row['count']:,}" if row["count"] else "never: predicted"


def prob_best_words(row: Mapping[Any, Any]) -> str:
    """Return P(best) of a row of the table; it compares nothing where the state has no other action."""
    return "only action" if math.isnan(row["prob_optimal"]) else f"{row['prob_optimal']:.2f}"


def _width(policies: Policies) -> float:
    """Return the length of the widest interval of ours: all numbers beside each other have the same decimals."""
    ends = [central_interval(values) for values in (policies.recommended.values, policies.logged.values, policies.gain)]
    return max((high - low for low, high in ends if math.isfinite(high - low)), default=0.0)


def _line(name: str, values: FloatArray, width: float, *, prob_better: float | None = None) -> PolicyLine:
    mean, ends = float(values.mean()), central_interval(values)
    shown = "" if prob_better is None else share_words(prob_better)
    if not math.isfinite(mean):
        return PolicyLine(name=name, value="none", interval="it may never end", prob_better=shown)
    value, interval = with_interval((mean, *ends), width)
    return PolicyLine(name=name, value=value, interval=interval, prob_better=shown)


def share_words(probability: float) -> str:
    """Return a probability that draws stand for: 0.996 of them is no certainty."""
    if 0.0 < probability < 0.005:
        return "< 0.01"
    return "> 0.99" if 0.995 <= probability < 1.0 else f"{probability:.2f}"
