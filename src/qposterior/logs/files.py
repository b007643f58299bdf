"""A fit on disk: what was answered, the draws behind it, and the sums of the log, to which another log can be added.

All files of an answer stand in one folder, `generations/N`, and `current` is a link to it. A new answer is written
whole beside the old one; then a single rename turns `current` to it. The names at the top (`index.html`, `rows.csv`, …)
are links through `current` and never change. So a kill at any moment leaves the old answer or the new one, every reader
sees files of one generation, and a copy of the folder works wherever it stands.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.answers import Posterior, make_rng
from qposterior.checks import check_path
from qposterior.errors import InvalidInputError, unknown_name
from qposterior.experiments.run_directory import versions
from qposterior.logs.checks import check_fit
from qposterior.logs.choices import choose
from qposterior.logs.columns import canonical_label
from qposterior.logs.fit import Fit, draw_posterior
from qposterior.logs.read import Log
from qposterior.logs.settings import FitSettings
from qposterior.model.likelihood import Noise
from qposterior.model.model_prior import ModelPrior
from qposterior.model.prior import BoundedPrior, GaussianPrior, prior_from_dict, prior_to_dict
from qposterior.world.arrays import FloatArray
from qposterior.world.files import (
    CHANGED,
    check_is_file,
    entries,
    file_digest,
    foreign_entries,
    read_record,
    reading,
    remove_leftovers,
    write_atomically,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

ANSWER_FILE, ROWS_FILE, DRAWS_FILE, SUMS_FILE, PAGE_FILE = (
    "fit.json",
    "rows.csv",
    "draws.npz",
    "sums.json",
    "index.html",
)
CURRENT, GENERATIONS = "current", "generations"
OUR_FILES = (ANSWER_FILE, ROWS_FILE, DRAWS_FILE, SUMS_FILE, PAGE_FILE, CURRENT, GENERATIONS)
FORMAT = "qposterior-fit 1"
MOST_ANSWER = 2**27
"""Bytes of an answer that are read: the 400,000 pairs for which draws can be kept take about 100 MB."""

MAY_BE_UNKNOWN = {"reward_third": "count", "reward_fourth": "count", "move_reward": "move_count"}
"""Sums that may be nan: of a log whose first sums an earlier version made. Beside each, one that is as long."""

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
    foreign = foreign_entries(folder, OUR_FILES)
    if foreign:
        raise InvalidInputError(f"{folder} holds files that no fit wrote ({foreign[0]}, …); choose another directory")
    if holds_fit(folder) and not force:
        raise InvalidInputError(f"{folder} holds a fit; choose another directory, or pass --force or --update")
    current = folder / CURRENT
    if os.path.lexists(current) and _number(current) is None:
        raise InvalidInputError(f"{folder} is a copy whose links have become folders; it can be read, not written to")


def save_fit(
    found: Fit,
    folder: str | Path,
    settings: FitSettings,
    *,
    sources: Sequence[dict[str, str]] = (),
    page_fn: Callable[[Path], Any] | None = None,
) -> Path:
    """Write a fit as the next generation of its folder and make it the current one; the caller holds the lock.

    `page_fn` writes the page into the folder that it is given.
    """
    folder = Path(folder)
    _prune(folder)
    new = folder / GENERATIONS / str(1 + max(_generations(folder), default=0))
    new.mkdir(parents=True)
    found.posterior.save(new / DRAWS_FILE)
    write_atomically(new / ROWS_FILE, spreadsheet(found.table))
    sums = {"log": log_to_dict(found.log), "settings": _plain(settings), "sources": list(sources)}
    write_record(new / SUMS_FILE, sums, indent=None)
    if page_fn is not None:
        page_fn(new)
    answer = found.to_dict() | {"format": FORMAT, "versions": versions(), "labels": _labels(found)}
    answer["given"] = {name: values.tolist() for name, values in found.given.items()}
    answer["files"] = {name: file_digest(new / name) for name in (DRAWS_FILE, ROWS_FILE, SUMS_FILE)}
    write_record(new / ANSWER_FILE, answer)
    _switch(folder, new)
    _prune(folder)
    return folder


def replace_page(folder: Path, page_fn: Callable[[Path], Any]) -> Path:
    """Write the page of the current answer again and return where it is found; the caller holds the lock."""
    page_fn(_generation(folder))
    if (folder / CURRENT).is_symlink():
        _link(folder / PAGE_FILE, f"{CURRENT}/{PAGE_FILE}")
    return folder / PAGE_FILE


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
    """Return the logs that have gone in with this one; one that is among them already is refused, unless again."""
    if not path.is_file():  # reading it says what is wrong with it
        return list(sources)
    digest = file_digest(path)
    earlier = [source["name"] for source in sources if source["sha256"] == digest]
    if earlier and not again:
        raise InvalidInputError(f"{path} has gone in already (as {earlier[0]}); pass --again to count it once more")
    return [*sources, {"name": path.name, "sha256": digest}]


def _switch(folder: Path, new: Path) -> None:
    """Make a generation the current one."""
    names = entries(new)
    if not (folder / CURRENT).is_symlink():
        if not _has_links(folder):
            # One after the other; the answer comes last and names the digests of the others, so no mixture is read.
            for name in sorted(names, key=ANSWER_FILE.__eq__):
                os.replace(new / name, folder / name)
            return
        if (folder / ANSWER_FILE).is_file():  # all files at the top, as earlier versions wrote them
            _keep_flat_files(folder)
    for name in names:
        _link(folder / name, f"{CURRENT}/{name}")
    _link(folder / CURRENT, f"{GENERATIONS}/{new.name}")
    for name in OUR_FILES:  # a page that could not be written this time
        if (folder / name).is_symlink() and not (folder / name).exists():
            (folder / name).unlink()


def _keep_flat_files(folder: Path) -> None:
    old = folder / GENERATIONS / "0"
    old.mkdir(parents=True, exist_ok=True)
    for name in OUR_FILES:
        if (folder / name).is_file():
            shutil.copy2(folder / name, old / name)
    _link(folder / CURRENT, f"{GENERATIONS}/{old.name}")


def _link(path: Path, target: str) -> None:
    """Let a path be a link to the target, by one rename whatever it was before."""
    if path.is_symlink() and os.readlink(path) == target:
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.symlink(target, temporary)
    os.replace(temporary, path)


def _has_links(folder: Path) -> bool:
    probe = folder / f".{CURRENT}.{secrets.token_hex(4)}"
    try:
        os.symlink(CURRENT, probe)
    except OSError:
        return False
    probe.unlink()
    return True


def _number(current: Path) -> int | None:
    """Return the number of the current generation; None where the link is not one that a fit made."""
    parts = Path(os.readlink(current)).parts if current.is_symlink() else ()
    return int(parts[1]) if len(parts) == 2 and parts[0] == GENERATIONS and parts[1].isdigit() else None


def _generations(folder: Path) -> list[int]:
    return sorted(int(name) for name in entries(folder / GENERATIONS) if name.isdigit())


def _prune(folder: Path) -> None:
    """Remove what killed processes left, and all generations but the current one and that before, still being read."""
    remove_leftovers(folder, OUR_FILES)
    now = _number(folder / CURRENT)
    before = [number for number in _generations(folder) if now is not None and number < now]
    for number in _generations(folder):
        if number not in (now, *before[-1:]):
            shutil.rmtree(folder / GENERATIONS / str(number))
    if now is None and (folder / GENERATIONS).is_dir() and not any((folder / GENERATIONS).iterdir()):
        (folder / GENERATIONS).rmdir()


# -- reading -----------------------------------------------------------------------------------------------------------


def holds_fit(folder: Path) -> bool:
    """Return whether there is an answer in a folder."""
    return (_generation(folder) / ANSWER_FILE).exists()


def load_sums(folder: str | Path) -> Sums:
    """Return what an update of a fit goes on from."""
    path, answer = _stored(Path(folder), SUMS_FILE)
    most = float("inf") if "files" in answer else MOST_ANSWER  # known to be what was written, or not
    record = read_record(path, "the sums of a fit", most=most)
    with reading(path, "the sums of a fit"):
        sources = [{"name": str(one["name"]), "sha256": str(one["sha256"])} for one in record.get("sources", [])]
        return Sums(log=log_from_dict(record["log"]), settings=_settings(record["settings"]), sources=sources)


def load_fit(folder: str | Path) -> Fit:
    """Return the fit in a folder: its draws are read, all else is made again from the sums."""
    path, answer = _stored(Path(folder), DRAWS_FILE)
    sums = load_sums(folder)
    with reading(path.parent, "a fit"):
        source = str(answer["settings"]["source"])
        draws = Posterior.load(path)
        chosen = choose(sums.log, sums.settings, path=source)
        if draws.space != chosen.seen.space:
            raise InvalidInputError("its draws are those of another problem")
        if chosen.method != "q":  # models are not kept: the same seed draws them again
            draws = draw_posterior(chosen, sums.settings, path=source)
        return Fit(
            chosen=chosen,
            posterior=draws,
            checks=check_fit(sums.log, chosen, draws),
            log=sums.log,
            source=source,
            given=_given(answer),
        )


def _given(answer: dict[str, Any]) -> dict[str, FloatArray]:
    """Return the policies of the user's own that an answer was given for."""
    return {name: np.asarray(values, dtype=float) for name, values in answer.get("given", {}).items()}


def _generation(folder: Path) -> Path:
    """Return the folder in which the files of the current answer stand, all of one generation."""
    current = folder / CURRENT
    return current.resolve() if current.exists() else folder


def _stored(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the path of a file of the current answer, found to be the one that was written with it, and the answer."""
    generation = _generation(folder)
    if not (generation / ANSWER_FILE).exists():
        raise InvalidInputError(f"{folder} holds no fit (no {ANSWER_FILE}); make one with `qposterior fit --out`")
    answer, path = read_record(generation / ANSWER_FILE, "a fit", most=MOST_ANSWER), generation / name
    with reading(path, "a fit"):
        if answer.get("format") != FORMAT:
            raise InvalidInputError(f"it is not a fit of this version ({answer.get('format')!r})")
        check_is_file(path)
        if "files" in answer and file_digest(path) != answer["files"][name]:
            raise InvalidInputError(CHANGED)
    return path, answer


def log_to_dict(log: Log) -> dict[str, Any]:
    """Return a log's sums as plain data."""
    found: dict[str, Any] = {}
    for item in fields(Log):
        value = getattr(log, item.name)
        if item.name in MAY_BE_UNKNOWN:
            value = [None if number != number else number for number in value.tolist()]  # JSON has no nan
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        elif item.name == "contexts" and value is not None:
            value = [[*key, number] for key, number in value.items()]
        elif item.name == "readings" and value is not None:
            value = [[k, v.tolist(), w.tolist()] for k, (v, w) in value.items()]
        elif isinstance(value, dict):
            value = [[k, v] for k, v in value.items()]
        found[item.name] = value
    return found


def log_from_dict(stored: dict[str, Any]) -> Log:
    """Return the log of plain data."""
    log = Log(states=list(stored["states"]), actions=list(stored["actions"]))
    for name in ("pairs", "moves"):
        setattr(log, name, np.array(stored[name], dtype=np.int64).reshape(-1, 2))
    log.first_row = np.array(stored["first_row"], dtype=np.int64)
    for name in ("count", "reward_mean", "reward_deviation", "reward_low", "reward_high", "move_count"):
        setattr(log, name, np.array(stored[name], dtype=float))
    for name, like in MAY_BE_UNKNOWN.items():  # earlier versions did not keep these
        setattr(log, name, np.array(stored.get(name, [None] * getattr(log, like).size), dtype=float))
    log.ended = {int(k): int(v) for k, v in stored["ended"]}
    log.starts = {int(k): float(v) for k, v in stored["starts"]}
    contexts = stored["contexts"]
    log.contexts = None if contexts is None else {(int(a), int(b), int(c)): float(n) for a, b, c, n in contexts}
    if stored["readings"] is not None:
        log.readings = {int(k): (np.array(v), np.array(w)) for k, v, w in stored["readings"]}
    log.has_terminated = bool(stored["has_terminated"])
    log.num_rows, log.num_episodes = int(stored["num_rows"]), int(stored["num_episodes"])
    _check_log(log)
    return log


def _check_log(log: Log) -> None:
    """Raise unless the sums belong together: arrays of one length, codes of known labels, numbers that can be."""
    num_states, num_pairs = len(log.states), len(log.pairs)
    if not (0 <= log.num_rows < 2**62 and 0 <= log.num_episodes < 2**62):
        raise InvalidInputError("the number of rows or episodes cannot be")
    codes = [
        (log.pairs, (num_states, len(log.actions))),
        (log.moves, (num_pairs, num_states)),
        (np.array([*log.ended, *log.starts], dtype=np.int64).reshape(-1, 1), (num_states,)),
        (np.array([*(log.contexts or ())], dtype=np.int64).reshape(-1, 3), (num_states, num_pairs, num_states)),
    ]
    if any(((array < 0) | (array >= sizes)).any() for array, sizes in codes):
        raise InvalidInputError("a code stands for no label")
    for name in ("count", "reward_mean", "reward_deviation", "reward_low", "reward_high", "first_row"):
        if getattr(log, name).shape != (num_pairs,) or not np.isfinite(getattr(log, name)).all():
            raise InvalidInputError(f"{name} must be {num_pairs} finite numbers")
    if log.move_count.shape != (len(log.moves),):
        raise InvalidInputError(f"move_count must be {len(log.moves)} numbers")
    for name, like in MAY_BE_UNKNOWN.items():
        if getattr(log, name).shape != getattr(log, like).shape or np.isinf(getattr(log, name)).any():
            raise InvalidInputError(f"{name} must be {getattr(log, like).size} finite numbers, or null where not known")
    for name in ("count", "reward_deviation", "move_count"):
        if not np.all(getattr(log, name) >= 0.0):
            raise InvalidInputError(f"{name} must be 0 or more")
    if np.any(log.reward_fourth < 0.0):
        raise InvalidInputError("reward_fourth must be 0 or more, or null where not known")
    for values, weights in (log.readings or {}).values():
        if values.shape != weights.shape or not (np.isfinite(values).all() and np.all(weights >= 0.0)):
            raise InvalidInputError("readings must be finite, with weights of 0 or more")


def _plain(settings: FitSettings) -> dict[str, Any]:
    plain = {item.name: getattr(settings, item.name) for item in fields(FitSettings)}
    plain["goals"] = list(settings.goals)
    plain["prior"] = None if settings.prior is None else prior_to_dict(settings.prior)
    plain["noise"] = None if settings.noise is None else asdict(settings.noise)
    return plain


def _settings(stored: dict[str, Any]) -> FitSettings:
    stored = {"method": "q"} | stored  # a fit of an earlier version, which knew no other
    prior = None if stored["prior"] is None else _prior(stored["prior"])
    noise = None if stored["noise"] is None else Noise(**stored["noise"])
    return FitSettings(**(stored | {"goals": tuple(stored["goals"]), "prior": prior, "noise": noise}))


def _prior(stored: dict[str, Any]) -> GaussianPrior | BoundedPrior | ModelPrior:
    """Return the prior of a plain description."""
    if stored.get("name") == "model":
        return ModelPrior(**{name: value for name, value in stored.items() if name != "name"})
    prior = prior_from_dict(stored)
    assert isinstance(prior, GaussianPrior | BoundedPrior)
    return prior


def _labels(found: Fit) -> dict[str, list[str]]:
    return {"states": found.chosen.states, "actions": found.chosen.actions}


class Policy:
    """A served policy: the action to commit to, or one drawn by the probability that it is optimal."""

    def __init__(self, answer: dict[str, Any], draws: Posterior) -> None:
        self._answer, self._draws = answer, draws
        self._state = {label: i for i, label in enumerate(answer["labels"]["states"])}

    @classmethod
    def load(cls, folder: str | Path) -> Policy:
        """Read the policy of a fit. Nothing in the files is executed, and damaged ones are refused."""
        path, answer = _stored(check_path("folder", folder), DRAWS_FILE)
        draws = Posterior.load(path)
        with reading(path.with_name(ANSWER_FILE), "a fit"):
            sizes = len(answer["labels"]["states"]), len(answer["labels"]["actions"])
            if sizes != draws.space.pair_index.shape or not set(answer["policy"]) <= set(answer["labels"]["states"]):
                raise InvalidInputError("its labels are not those of its draws")
            return cls(answer, draws)

    @property
    def states(self) -> list[str]:
        """The states in which there is something to decide."""
        return list(self._answer["policy"])

    def act(self, state: str, *, explore: bool = False, seed: Any = None) -> str:
        """Return the action of a state: of least expected loss, or, exploring, that of one posterior draw.

        Exploring without a seed draws afresh at every call.
        """
        label = canonical_label(str(state))
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
