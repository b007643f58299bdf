"""What a source is: a frame, one file, those of a folder, or those of a pattern, or a Minari dataset."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qposterior.extra import import_extra
from qposterior.logs.columns import LogError, quoted

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")

MINARI = "minari:"
"""What the name of a Minari dataset follows."""


def files_of(source: Path) -> list[Path]:
    """Return the files that a source names: itself, the logs in a folder (not below it), or what a pattern matches.

    In the order of their names. A file whose name is a pattern stands for itself.
    """
    if source.is_dir():
        files = [path for path in source.iterdir() if path.is_file() and path.name.lower().endswith(ENDINGS)]
        if not files:
            raise LogError(source, f"is a folder without logs (files that end in {', '.join(ENDINGS)})")
        return sorted(files)
    if source.exists() or not glob.has_magic(str(source)):
        return [source]
    files = [path for path in map(Path, glob.glob(str(source))) if path.is_file()]
    if not files:
        raise LogError(source, "no file has a name like that")
    return sorted(files)


def opened(source: Any) -> Any:
    """Return the rows of ``minari:NAME`` as a frame, and any other source as it is."""
    return minari_frame(str(source).removeprefix(MINARI)) if is_minari(source) else source


def is_minari(source: Any) -> bool:
    """Return whether a source is a Minari dataset."""
    return isinstance(source, str | Path) and str(source).startswith(MINARI)


def minari_frame(name: str) -> pd.DataFrame:
    """Return the rows of a local Minari dataset whose observations and actions are discrete.

    An episode that was cut off goes on from nowhere: its last row has a successor and does not end it.
    """
    import pandas as pd

    minari = import_extra("minari", f"reading {MINARI}NAME", extra="minari")
    import_extra("h5py", f"reading {MINARI}NAME", extra="minari")
    try:
        data = minari.load_dataset(name)
    except (OSError, ValueError) as error:  # not there, or not a name
        raise LogError(
            MINARI + name, f"is no dataset on this machine; fetch it with: minari download {quoted(name)}"
        ) from error
    for what, space in (("observations", data.observation_space), ("actions", data.action_space)):
        if not _is_discrete(space):
            raise LogError(MINARI + name, f"{what} must be discrete, got {space}; a row needs labels")
    parts = list[pd.DataFrame]()
    for episode in data.iterate_episodes():
        states = _labels(episode.observations)
        parts.append(
            pd.DataFrame(
                {
                    "state": states[:-1],
                    "action": _labels(episode.actions),
                    "reward": np.asarray(episode.rewards, dtype=np.float64),
                    "next_state": states[1:],
                    "terminated": np.asarray(episode.terminations).astype(int),
                    "episode": int(episode.id),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _is_discrete(space: Any) -> bool:
    """Return whether the points of a space can be told apart by labels."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return all(map(_is_discrete, parts.values() if hasattr(parts, "values") else parts))
    return type(space).__name__ in ("Discrete", "MultiDiscrete", "MultiBinary", "Text")


def _labels(values: Any) -> Any:
    """Return the labels of points of a space: single numbers as they are, several joined by blanks."""
    columns = list(_columns(values))
    return columns[0] if len(columns) == 1 else [" ".join(map(str, cells)) for cells in zip(*columns, strict=True)]


def _columns(values: Any) -> Iterator[Any]:
    """Yield the ``(N,)`` parts that N points of a space have."""
    parts = values.values() if hasattr(values, "values") else values if isinstance(values, tuple) else None
    if parts is not None:
        for part in parts:
            yield from _columns(part)
    else:
        numbers = np.asarray(values)
        yield from numbers.reshape(len(numbers), -1).T
