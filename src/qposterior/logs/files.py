"""A fit on disk: what was answered, the draws behind it, and the sums of the log, to which another log can be added."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from qposterior.answers import Posterior, make_rng
from qposterior.errors import InvalidInputError
from qposterior.experiments.run_directory import versions
from qposterior.logs.choices import FitSettings
from qposterior.logs.fit import Fit
from qposterior.logs.read import Log
from qposterior.model.likelihood import Noise
from qposterior.model.prior import BoundedPrior, GaussianPrior, prior_from_dict, prior_to_dict
from qposterior.world.files import write_atomically

ANSWER_FILE, ROWS_FILE, DRAWS_FILE, SUMS_FILE, PAGE_FILE = (
    "fit.json",
    "rows.csv",
    "draws.npz",
    "sums.json",
    "index.html",
)
OUR_FILES = (ANSWER_FILE, ROWS_FILE, DRAWS_FILE, SUMS_FILE, PAGE_FILE)
FORMAT = "qposterior-fit 1"


def save_fit(found: Fit, folder: str | Path, settings: FitSettings, *, force: bool = False) -> Path:
    """Write a fit into a folder of its own, each file whole or not at all; an earlier fit is kept unless forced."""
    folder = Path(folder)
    prepare_folder(folder, force=force)
    answer = found.to_dict() | {"format": FORMAT, "versions": versions(), "labels": _labels(found)}
    found.posterior.save(folder / DRAWS_FILE, overwrite=True)
    write_atomically(folder / ROWS_FILE, found.table.to_csv(index=False))
    write_atomically(folder / SUMS_FILE, json.dumps({"log": log_to_dict(found.log), "settings": _plain(settings)}))
    write_atomically(folder / ANSWER_FILE, json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
    return folder


def prepare_folder(folder: Path, *, force: bool) -> None:
    """Make the folder, or say why it cannot be used, before anything is computed."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError(f"{folder} is a file; give a directory")
        foreign = [p.name for p in folder.iterdir() if p.name not in OUR_FILES] if folder.exists() else []
        if foreign:
            raise InvalidInputError(
                f"{folder} holds files that no fit wrote ({foreign[0]}, …); choose another directory"
            )
        if folder.exists() and any(folder.iterdir()) and not force:
            raise InvalidInputError(f"{folder} holds a fit; choose another directory, or pass --force or --update")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInputError(f"cannot write to {folder}: {error.strerror}") from error


def load_sums(folder: str | Path) -> tuple[Log, FitSettings]:
    """Return the sums and the settings of an earlier fit."""
    path = Path(folder) / SUMS_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return log_from_dict(stored["log"]), _settings(stored["settings"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{folder} holds no fit that can be gone on with ({path.name}: {error})") from error


def log_to_dict(log: Log) -> dict[str, Any]:
    """Return a log's sums as plain data."""
    found: dict[str, Any] = {}
    for item in fields(Log):
        value = getattr(log, item.name)
        if isinstance(value, np.ndarray):
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
    log.ended = {int(k): int(v) for k, v in stored["ended"]}
    log.starts = {int(k): float(v) for k, v in stored["starts"]}
    contexts = stored["contexts"]
    log.contexts = None if contexts is None else {(int(a), int(b), int(c)): float(n) for a, b, c, n in contexts}
    if stored["readings"] is not None:
        log.readings = {int(k): (np.array(v), np.array(w)) for k, v, w in stored["readings"]}
    log.has_terminated = bool(stored["has_terminated"])
    log.num_rows, log.num_episodes = int(stored["num_rows"]), int(stored["num_episodes"])
    return log


def _plain(settings: FitSettings) -> dict[str, Any]:
    plain = {item.name: getattr(settings, item.name) for item in fields(FitSettings)}
    plain["goals"] = list(settings.goals)
    plain["prior"] = None if settings.prior is None else prior_to_dict(settings.prior)
    plain["noise"] = None if settings.noise is None else asdict(settings.noise)
    return plain


def _settings(stored: dict[str, Any]) -> FitSettings:
    prior = None if stored["prior"] is None else prior_from_dict(stored["prior"])
    assert prior is None or isinstance(prior, GaussianPrior | BoundedPrior)
    noise = None if stored["noise"] is None else Noise(**stored["noise"])
    return FitSettings(**(stored | {"goals": tuple(stored["goals"]), "prior": prior, "noise": noise}))


def _labels(found: Fit) -> dict[str, list[str]]:
    return {"states": found.chosen.states, "actions": found.chosen.actions}


class Policy:
    """A served policy: the action to commit to, or one drawn by the probability that it is optimal."""

    def __init__(self, answer: dict[str, Any], draws: Posterior) -> None:
        self._answer, self._draws = answer, draws
        self._state = {label: i for i, label in enumerate(answer["labels"]["states"])}

    @classmethod
    def load(cls, folder: str | Path) -> Policy:
        """Read the policy of a fit. Nothing in the files is executed."""
        path = Path(folder) / ANSWER_FILE
        try:
            answer = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"{folder} holds no fit ({path.name}: {error})") from error
        if answer.get("format") != FORMAT:
            raise InvalidInputError(f"{path} is not a fit of this version ({answer.get('format')!r})")
        return cls(answer, Posterior.load(Path(folder) / DRAWS_FILE))

    @property
    def states(self) -> list[str]:
        """The states in which there is something to decide."""
        return list(self._answer["policy"])

    def act(self, state: str, *, explore: bool = False, seed: Any = None) -> str:
        """Return the action of a state: of least expected loss, or, exploring, that of one posterior draw.

        Exploring without a seed draws afresh at every call.
        """
        label = str(state)
        if label not in self._answer["policy"]:
            known = ", ".join(list(self._answer["policy"])[:8])
            raise InvalidInputError(f"there is nothing to decide in state {label!r}; known states are {known}")
        if not explore:
            return str(self._answer["policy"][label])
        drawn = self._draws.sample_policy(1, seed=make_rng(seed))[0]
        return str(self._answer["labels"]["actions"][int(drawn[self._state[label]])])
