"""A fit on disk: what was answered, the draws behind it, and the sums of the log, to which another log can be added."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.checks import check_count, check_floats, check_indices, check_path, make_rng
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.logs.bins import Bins, parse_state
from qposterior.logs.checks import check_fit
from qposterior.logs.choices import choose
from qposterior.logs.columns import canonical_label, numbered
from qposterior.logs.fit import Fit, draw_posterior, with_bands
from qposterior.logs.join import as_shown
from qposterior.logs.read import Log
from qposterior.logs.sample import Sample
from qposterior.logs.settings import FitSettings
from qposterior.logs.sources import files_of, is_minari
from qposterior.model.model_prior import ModelPrior
from qposterior.model.noise import Noise
from qposterior.model.prior import prior_from_dict, prior_to_dict
from qposterior.storage import (
    AnswerFolder,
    file_digest,
    read_record,
    reading,
    write_atomically,
    write_record,
)
from qposterior.versions import versions
from qposterior.weighted_draws import Posterior
from qposterior.world.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

ANSWER_FILE, PAGE_FILE = "fit.json", "index.html"
SEALED = DRAWS_FILE, ROWS_FILE, SUMS_FILE = "draws.npz", "rows.csv", "sums.json"
FORMAT = "qposterior-fit 1"
MOST_ANSWER = 2**27
"""Bytes of an answer that are read: the 400,000 pairs for which draws can be kept take about 100 MB."""

SUMS = {
    "count": ("pairs", "[0, inf)"),
    "reward_mean": ("pairs", "(-inf, inf)"),
    "reward_deviation": ("pairs", "[0, inf)"),
    "reward_third": ("pairs", "(-inf, inf)"),
    "reward_fourth": ("pairs", "[0, inf)"),
    "reward_low": ("pairs", "(-inf, inf)"),
    "reward_high": ("pairs", "(-inf, inf)"),
    "move_count": ("moves", "[0, inf)"),
    "move_reward": ("moves", "(-inf, inf)"),
}
"""The sums of a log: what there is one for each of, and the interval in which it lies."""

MAY_BE_UNKNOWN = ("reward_third", "reward_fourth", "move_reward")
"""Sums that may be nan, null in the file: of a log whose first sums an earlier version made."""

MOST_ROWS = 2**62
A_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What an update goes on from."""

    log: Log
    settings: FitSettings
    sources: list[dict[str, str]]  # name and SHA-256 of every log that went in


# -- writing -----------------------------------------------------------------------------------------------------------


def check_folder(folder: Path, *, force: bool) -> None:
    """Say why a folder cannot be used, before anything is computed."""
    _answers(folder).check(force=force)


def save_fit(
    fit: Fit,
    folder: str | Path,
    settings: FitSettings,
    *,
    sources: Sequence[dict[str, str]] = (),
    page_fn: Callable[[Path], Any] | None = None,
) -> Path:
    """Write a fit as the next answer of its folder and make it the current one; the caller holds the lock.

    `page_fn` writes the page into the folder that it is given.
    """
    answers = _answers(folder)
    with answers.new_answer() as new:
        fit.believed.save(new / DRAWS_FILE)
        write_atomically(new / ROWS_FILE, spreadsheet(fit.table))
        sums = {"log": log_to_dict(fit.finest or fit.log), "settings": _plain(settings), "sources": list(sources)}
        write_record(new / SUMS_FILE, sums, indent=None)
        if page_fn is not None:
            page_fn(new)
        labels = {"states": fit.chosen.states, "actions": fit.chosen.actions}
        answer = fit.to_dict() | {"format": FORMAT, "versions": versions(), "labels": labels}
        answer["given"] = {name: values.tolist() for name, values in fit.given.items()}
        answers.seal(new, answer, SEALED)
    return answers.path


def replace_page(folder: Path, page_fn: Callable[[Path], Any]) -> Path:
    """Write the page of the current answer again and return where it is found; the caller holds the lock."""
    return _answers(folder).rewrite(PAGE_FILE, page_fn)


def spreadsheet(table: pd.DataFrame) -> str:
    """Return a table as CSV in which no label is a formula: an apostrophe stands before `=`, `+`, `-`, `@`, tab or CR.

    Labels that are numbers, such as -1, stay as they are, and so do the columns of numbers.
    """
    safe = table.copy()
    for column in ("state", "action"):
        safe[column] = [
            f"'{label}" if label.startswith(tuple("=+-@\t\r")) and not A_NUMBER.fullmatch(label) else label
            for label in safe[column]
        ]
    return str(safe.to_csv(index=False))


def add_source(sources: Sequence[dict[str, str]], path: Path, *, again: bool) -> list[dict[str, str]]:
    """Return the files that have gone in with those of this log; one that had already is refused, unless again."""
    with_this = list(sources)
    for file in files_of(path):
        if not file.is_file() and not is_minari(file):  # reading it says what is wrong with it
            continue
        digest = _digest(file)
        earlier = [source["name"] for source in with_this if source["sha256"] == digest]
        if earlier and not again:
            raise InvalidInputError(f"{file} has gone in already (as {earlier[0]}); pass --again to count it once more")
        with_this.append({"name": file.name, "sha256": digest})
    return with_this


def _digest(file: Path) -> str:
    """Return what tells a file from others; a Minari dataset never changes under its name, which has a version."""
    return hashlib.sha256(str(file).encode()).hexdigest() if is_minari(file) else file_digest(file)


# -- reading -----------------------------------------------------------------------------------------------------------


def _answers(folder: str | Path) -> AnswerFolder:
    return AnswerFolder(
        path=Path(folder),
        what="fit",
        file_format=FORMAT,
        record=ANSWER_FILE,
        others=(*SEALED, PAGE_FILE),
        most=MOST_ANSWER,
    )


def holds_fit(folder: Path) -> bool:
    """Return whether there is an answer in a folder."""
    return _answers(folder).has_answer


def load_sums(folder: str | Path) -> Sums:
    """Return what an update of a fit goes on from."""
    path, answer = _answers(folder).read(SUMS_FILE)
    most = float("inf") if "files" in answer else MOST_ANSWER  # known to be what was written, or not
    record = read_record(path, "the sums of a fit", most=most)
    with reading(path, "the sums of a fit"):
        sources = [{"name": str(one["name"]), "sha256": str(one["sha256"])} for one in record.get("sources", [])]
        return Sums(log=log_from_dict(record["log"]), settings=_settings(record["settings"]), sources=sources)


def load_fit(folder: str | Path) -> Fit:
    """Return the fit in a folder: its draws are read, all else is made again from the sums."""
    path, answer = _answers(folder).read(DRAWS_FILE)
    sums = load_sums(folder)
    with reading(path.parent, "a fit"):
        source = str(answer["settings"]["source"])
        draws = Posterior.load(path)
        shown = as_shown(sums.log)
        chosen = choose(shown, sums.settings, path=source)
        if draws.space != chosen.seen.space:
            raise InvalidInputError("its draws are those of another problem")
        if chosen.method != "q":  # models are not kept: the same seed draws them again
            draws = draw_posterior(chosen, sums.settings, path=source)
        found = Fit(
            chosen=chosen,
            posterior=draws,
            checks=check_fit(shown, chosen, draws),
            log=shown,
            source=source,
            given={name: np.asarray(values, dtype=float) for name, values in answer.get("given", {}).items()},
            finest=sums.log,
        )
        return with_bands(found, sums.settings)


# -- sums and settings as plain data -----------------------------------------------------------------------------------


def log_to_dict(log: Log) -> dict[str, Any]:
    """Return a log's sums as plain data."""
    plain = {item.name: getattr(log, item.name) for item in fields(Log)}
    plain |= {name: plain[name].tolist() for name in ("pairs", "first_row", "moves", *SUMS)}
    for name in MAY_BE_UNKNOWN:
        plain[name] = [None if number != number else number for number in plain[name]]  # JSON has no nan
    plain |= {name: list(map(list, plain[name].items())) for name in ("ended", "starts")}
    plain |= {name: plain[name] and plain[name].to_dict() for name in ("bins", "sample")}
    if log.contexts is not None:
        plain["contexts"] = [[*key, number] for key, number in log.contexts.items()]
    if log.readings is not None:
        plain["readings"] = [[k, values.tolist(), weights.tolist()] for k, (values, weights) in log.readings.items()]
    return plain


def log_from_dict(stored: dict[str, Any]) -> Log:
    """Return the log of plain data, its sums found to belong together and to be numbers that can be."""
    states, actions = list(stored["states"]), list(stored["actions"])
    pairs = _codes(stored["pairs"], len(states), len(actions))
    moves = _codes(stored["moves"], len(pairs), len(states))
    lengths = {"pairs": len(pairs), "moves": len(moves)}
    sums: dict[str, Any] = {name: _sums(name, stored, lengths) for name in SUMS}
    contexts, readings = stored["contexts"], stored["readings"]
    bins, sample = stored.get("bins"), stored.get("sample")
    bins = None if bins is None else Bins.from_dict(bins)
    log = Log(
        states=states,
        actions=actions,
        pairs=pairs,
        moves=moves,
        first_row=check_indices("first_row", stored["first_row"], MOST_ROWS, shape=(len(pairs),)),
        ended={int(k): int(v) for k, v in stored["ended"]},
        starts={int(k): float(v) for k, v in stored["starts"]},
        contexts=None if contexts is None else {(int(a), int(b), int(c)): float(n) for a, b, c, n in contexts},
        readings=None if readings is None else {int(k): _readings(values, weights) for k, values, weights in readings},
        has_terminated=bool(stored["has_terminated"]),
        num_rows=_number_of_rows(stored["num_rows"]),
        num_episodes=_number_of_rows(stored["num_episodes"]),
        num_gaps=_number_of_rows(stored.get("num_gaps", 0)),
        unread=list(map(str, stored.get("unread", []))),
        notes=list(map(str, stored.get("notes", []))),
        bins=bins,
        sample=None if bins is None or sample is None else Sample.from_dict(sample, len(bins.columns)),
        **sums,
    )
    _codes([*log.ended, *log.starts], len(states))
    _codes([*(log.contexts or ())], len(states), len(pairs), len(states))
    return log


def _codes(rows: Any, *sizes: int) -> IntArray:
    """Return an array with a column of codes for each of the sizes below which they lie."""
    codes = np.array(rows, dtype=np.int64).reshape(-1, len(sizes))
    if ((codes < 0) | (codes >= sizes)).any():
        raise InvalidInputError("a code stands for no label")
    return codes


def _sums(name: str, stored: dict[str, Any], lengths: dict[str, int]) -> FloatArray:
    of, interval = SUMS[name]
    if name not in MAY_BE_UNKNOWN:
        return check_floats(name, stored[name], (lengths[of],), interval)
    values = np.array(stored.get(name, [None] * lengths[of]), dtype=float)  # earlier versions did not keep these
    check_floats(name, np.where(np.isnan(values), 0.0, values), (lengths[of],), interval)
    return values


def _readings(values: Any, weights: Any) -> tuple[FloatArray, FloatArray]:
    values = check_floats("readings", values, (-1,))
    return values, check_floats("weights of readings", weights, values.shape, "[0, inf)")


def _number_of_rows(value: Any) -> int:
    number = check_count("the number of rows or episodes", int(value), 0)
    if number >= MOST_ROWS:
        raise InvalidInputError(f"the number of rows or episodes must be below {MOST_ROWS}")
    return number


def _plain(settings: FitSettings) -> dict[str, Any]:
    return asdict(settings) | {"prior": None if settings.prior is None else prior_to_dict(settings.prior)}


def _settings(stored: dict[str, Any]) -> FitSettings:
    stored = {"method": "q"} | stored  # a fit of an earlier version, which knew no other
    prior, noise = stored["prior"], stored["noise"]
    if prior is not None:
        numbers = {name: value for name, value in prior.items() if name != "name"}
        prior = ModelPrior(**numbers) if prior.get("name") == "model" else prior_from_dict(prior)
    noise = None if noise is None else Noise(**noise)
    return FitSettings(**(stored | {"goals": tuple(stored["goals"]), "prior": prior, "noise": noise}))


class Policy:
    """A served policy: the action to commit to, or one drawn by the probability that it is optimal."""

    def __init__(self, answer: dict[str, Any], draws: Posterior) -> None:
        self._answer, self._draws = answer, draws
        self._state = numbered(answer["labels"]["states"])
        self._bins = Bins.from_dict(answer["bins"]) if "bins" in answer else None

    @classmethod
    def load(cls, folder: str | Path) -> Policy:
        """Read the policy of a fit. Nothing in the files is executed, and damaged ones are refused."""
        path, answer = _answers(check_path("folder", folder)).read(DRAWS_FILE)
        draws = Posterior.load(path)
        with reading(path.with_name(ANSWER_FILE), "a fit"):
            sizes = len(answer["labels"]["states"]), len(answer["labels"]["actions"])
            if sizes != draws.space.pair_index.shape or not set(answer["policy"]) <= set(answer["labels"]["states"]):
                raise InvalidInputError("its labels are not those of its draws")
            return cls(answer, draws)

    def _label(self, state: str | Mapping[str, Any]) -> str:
        """Return the label of a state: as it is, or that of the bin in which its numbers lie."""
        label = canonical_label(str(state))
        if self._bins is None or label in self._state:
            return label
        return self._bins.label_of(state if isinstance(state, Mapping) else parse_state(label))

    @property
    def states(self) -> list[str]:
        """The states in which there is something to decide."""
        return list(self._answer["policy"])

    def act(self, state: str | Mapping[str, Any], *, explore: bool = False, seed: Any = None) -> str:
        """Return the action of a state: of least expected loss, or, exploring, that of one posterior draw.

        Where states are bins a state is ``{column: number}``, or text such as ``temperature=80,load=0.4``. Exploring
        without a seed draws afresh at every call.
        """
        label = self._label(state)
        if not self._answer["policy"]:
            raise InvalidInputError(
                "this fit has no policy: its computation has not settled (its page says what helps)"
            )
        if label not in self._state:
            raise unknown_name("state", label, self._state)
        if label not in self._answer["policy"]:
            raise InvalidInputError(f"there is nothing to decide in state {label!r}: no decision was logged there")
        if not explore:
            return str(self._answer["policy"][label])
        drawn = self._draws.sample_policy(1, seed=make_rng(seed))[0]
        return str(self._answer["labels"]["actions"][int(drawn[self._state[label]])])
