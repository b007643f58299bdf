"""The page of calibration: what was measured, what fails, a table per family, and the worked cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from case_calibration import case_sections
from families import FAMILIES, NULL_FAMILIES
from log_summary import BARS, HEADER, cells, failures, summarise
from result_page import table, write_page

DEFAULT = "model"
CLAIMS = 1000  # the first seed on which nothing is chosen
COVERAGE_NAMES = ("advantages", "Q^π", "V^π", "V^π at start", "gain")
PHRASES = {
    **{
        f"{name} covered": f"the intervals of {words} hold the truth too seldom"
        for name, words in zip(
            BARS,
            (
                "Q(s, a) − V(s)",
                "Q of the recommended policy",
                "V of the recommended policy",
                "the value of starting with the recommended policy",
                "the gain over the logged policy",
            ),
            strict=True,
        )
    },
    **{
        f"{name}_score worse": f"the intervals of {words} are worse than the plain posterior's"
        for name, words in zip(BARS, ("advantages", "Q^π", "V^π", "V^π at the start", "the gain"), strict=True)
    },
    "false gains": "gains are found where there are none",
    "log_score worse": "P(optimal) is worse than the plain posterior's",
    "regret worse": "the recommended policy is worse than the plain posterior's",
}
INTRODUCTION = """\
Logs of problems whose truth is known, {families} families of them. Every problem is drawn anew: its size, its rows, its
rewards and its noise; so is its log, with 5, 30 or 200 readings a pair on average. A method turns a log into {draws}
models. On the first {half} a policy is chosen: the best by mean value of the logged one, the greedy one of the mean of
Q* and the optimum of the mean model, then changed in single states as long as that raises it. On the others it is
valued. Methods: *point*, the frequencies taken for the truth; *bootstrap*, readings drawn anew; *plain*, independent
Dirichlet rows and normal rewards; *model*, what `fit` does; where it was run, *q prior*, the paper's posterior with a
prior on Q (5 logs a cell, for it costs a minute a log).

- `adv`, `Qπ`, `Vπ`, `start`, `gain`: share of 90 % intervals that hold the truth, of Q*(s, a) − V*(s) of tried pairs
  (`untried`: of the others), of the recommended policy's Q and V, of its value where episodes start, and of what it has
  over the logged policy. An exclamation mark: below 0.87 for advantages, 0.85 for the rest, by more than two standard
  errors.
- `claims`: share of logs in which the interval of the gain lies wholly above 0; `false`: and there is no gain. In the
  null families, where there is none to be had, more than 0.10 is marked.
- `IS`: Winkler's interval score, the width plus 20 times what the truth is missed by, relative to the plain posterior;
  marked where it is larger by more than two paired standard errors.
- `log score`: mean over states of −log P(the greedy action is a best one); `regret`: value lost by following the
  recommended policy; both as the difference to the plain posterior with its paired standard error.
- `bias V*`, `bias Vπ`: what is said too much of the optimum and of the recommended policy. The first has no bar: the
  maximum over uncertain values is too large for every method. Regret and bias are in units of the problem: the spread
  of Q* and what the optimum has over random actions.
- `left`: share of draws without a finite solution (discount 1). `CPU s`: of drawing the models; `all`: and of solving
  them and choosing the policy.

"""


def write_calibration_page(path: Path, results: list[dict[str, Any]], *, first_seed: int, draws: int) -> None:
    """Write the page: what was measured, what fails, a table per family, and the worked cases."""
    judged = [one for one in results if "method" in one]
    summary = summarise(judged)
    sections = [("In short", _in_short(summary)), ("What fails", _what_fails(summary))]
    for family, part in summary.groupby("family", sort=False):
        rows = [(row["readings"], row["method"], *cells(row)) for row in part.to_dict(orient="records")]
        words = (FAMILIES[str(family)].__doc__ or "").strip() + "\n\n" + _warning(part)
        sections.append((str(family).replace("_", " "), words + table(("readings", "method", *HEADER), rows)))
    sections += case_sections([one for one in results if "pairs" in one])
    introduction = INTRODUCTION.format(families=summary["family"].nunique(), draws=draws, half=draws // 2)
    last = max(one["seed"] for one in judged)
    introduction += f"Seeds {first_seed} to {last}" + (
        ", none of which was used to choose a setting.\n"
        if first_seed >= 1000
        else ": **settings were chosen on these.**\n"
    )
    write_page(path, "Calibration of `fit`", introduction, sections)


def _in_short(summary: pd.DataFrame) -> str:
    """Return the table of means over families, by readings and method."""
    header = ("readings", "method", *COVERAGE_NAMES, "false gains", "log score − plain", "regret − plain", "CPU s")
    rows = []
    for (readings, method), part in summary.groupby(["readings", "method"], sort=True):
        null = part[part["family"].isin(NULL_FAMILIES)]
        means = [part[f"{name}_covered"].mean() for name in BARS]
        means += [null["claims_gain"].mean(), part["log_score_difference"].mean(), part["regret_difference"].mean()]
        rows.append((readings, method, *(_shown(mean) for mean in means), f"{part['cpu'].mean():.2f}"))
    return "Means over the families; false gains over the two null families alone.\n\n" + table(header, rows)


def _shown(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.2f}"


def _what_fails(summary: pd.DataFrame) -> str:
    """Return in how many cells each method misses each bar, and where the default one does."""
    parts = {str(method): part for method, part in summary.groupby("method", sort=False)}
    header = ("cells in which", *(f"{method} (of {len(part)})" for method, part in parts.items()))
    rows = [("every bar is met", *(sum(not fails for fails in part["fails"]) for part in parts.values()))]
    for kind, phrase in PHRASES.items():
        rows.append((phrase, *(sum(kind in fails for fails in part["fails"]) for part in parts.values())))
    text = table(header, rows)
    if DEFAULT in parts:
        text += f"\nWhere *{DEFAULT}* misses a bar, by family and readings:\n\n"
        missed = failures(parts[DEFAULT]).items()
        text += "\n".join(f"- {PHRASES[kind]}: {', '.join(places).replace('_', ' ')}" for kind, places in missed)
    return text + "\n"


def _warning(part: pd.DataFrame) -> str:
    """Return the sentence for the user whose log is of this kind, where the default method misses a bar."""
    missed = failures(part[part["method"] == DEFAULT])
    if not missed:
        return ""
    words = [f"{PHRASES[kind]} ({place.split()[1]} readings)" for kind, (place,) in missed.items()]
    return f"**What `fit` says of such a log is to be taken with care:** {'; '.join(words)}.\n\n"
