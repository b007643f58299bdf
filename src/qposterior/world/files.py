"""Files that are whole or not there at all, folders that one process at a time writes to, and reading what was stored.

A record (JSON) and an archive of arrays (`.npz`) carry the SHA-256 of their contents, so that a damaged one is refused
and never read as other numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from qposterior.checks import check_path
from qposterior.errors import InvalidInputError

LOCK_FILE = ".lock"
IGNORED = (".DS_Store", "Thumbs.db", "desktop.ini", "._", ".~lock.", "~$", ".nfs", ".fuse_hidden")
"""How the names of files begin that file browsers, spreadsheets and file systems leave behind."""

MOST_RECORD, MOST_ARRAYS, MOST_RATIO = 2**28, 2**30, 64
"""Bytes of a record and of the arrays of an archive that are read; arrays may also be so many times the file's size."""

MOST_COMPRESSED = 2**25
"""Bytes of arrays up to which they are compressed: draws hardly shrink, and gigabytes of them take minutes."""

CHANGED = "it was changed or damaged after it was written"


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], Any]) -> None:
    """Write text, bytes or whatever a function writes to a stream: to a temporary file, which then takes the place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            if callable(content):
                content(stream)
            else:
                stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# -- folders -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for this process, making it where there is none; the lock dies with the process.

    A second `what` is refused. A folder that was made here and in which nothing was written is removed again.
    """
    path, is_new = folder / LOCK_FILE, not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = path.open("a")
    except OSError as error:
        raise InvalidInputError(f"cannot write to {folder}: {error.strerror}") from error
    with stream:
        try:
            _hold(stream)
            # Whoever made the folder may just have removed it, with the lock file that was opened here.
            is_ours = os.path.samestat(os.fstat(stream.fileno()), path.stat())
        except (BlockingIOError, PermissionError, FileNotFoundError):
            is_ours = False
        except OSError as error:
            raise InvalidInputError(f"cannot lock {folder}: {error.strerror}; choose another file system") from error
        if not is_ours:
            raise InvalidInputError(f"another {what} is writing to {folder}; wait for it or choose another")
        try:
            yield
        finally:
            if is_new and os.listdir(folder) == [LOCK_FILE]:
                path.unlink()
                folder.rmdir()


def _hold(stream: IO[Any]) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def entries(folder: Path, ours: Collection[str] = ()) -> list[str]:
    """Return the names in a folder that mean something.

    Left out are the lock, what other programs leave behind, and what a killed process left of a file of `ours`.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidInputError(f"{folder} is a file; give a directory")
        names = os.listdir(folder) if folder.exists() else []
    except OSError as error:
        raise InvalidInputError(f"cannot write to {folder}: {error.strerror}") from error
    left_out = IGNORED + tuple(f".{one}." for one in ours)
    return sorted(name for name in names if name != LOCK_FILE and not name.startswith(left_out))


def foreign_entries(folder: Path, ours: Collection[str]) -> list[str]:
    """Return the names in a folder that mean something and are not ours."""
    return [name for name in entries(folder, ours) if name not in ours]


def remove_leftovers(folder: Path, ours: Collection[str]) -> None:
    """Remove the temporary files of processes that were killed; the caller holds the lock."""
    for name in {*entries(folder)} - {*entries(folder, ours)}:
        (folder / name).unlink(missing_ok=True)


# -- what was stored ---------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Name the file in whatever goes wrong while it is read: a damaged one can end in any error."""
    try:
        yield
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        missing = " is missing" if isinstance(error, KeyError) else ""
        raise InvalidInputError(f"cannot read {what} from {path}: {' '.join(reason.split())[:300]}{missing}") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_record(path: Path, record: dict[str, Any], *, indent: int | None = 1) -> None:
    """Write plain data as JSON, with its digest under the name `sha256`."""
    plain = json.loads(json.dumps(record, default=str))
    sealed = plain | {"sha256": _record_digest(plain)}
    write_atomically(path, json.dumps(sealed, indent=indent, ensure_ascii=False) + "\n")


def read_record(path: Path, what: str, *, most: float = MOST_RECORD) -> dict[str, Any]:
    """Return a record that `write_record` wrote; one of an earlier version has no digest and is taken as it is."""
    with reading(path, what):
        check_is_file(path)
        if path.stat().st_size > most:
            raise InvalidInputError(f"it has {path.stat().st_size:,} bytes, and {what} has no more than {most:,}")
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise InvalidInputError(f"it holds a {type(record).__name__}, not a record")
        if record.get("sha256") != _record_digest(record) and "sha256" in record:
            raise InvalidInputError(CHANGED)
        record.pop("sha256", None)
        return record


def check_is_file(path: Path) -> None:
    """Raise unless the path is a plain file: a pipe or a device could go on for ever."""
    path.stat()
    if not path.is_file():
        raise InvalidInputError("it is not a file")


def _record_digest(record: dict[str, Any]) -> str:
    kept = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def save_arrays(
    path: str | Path, facts: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]], *, overwrite: bool
) -> None:
    """Write arrays and plain facts about them to one `.npz` file; an existing file is kept unless told."""
    path = check_path("path", path)
    if path.exists() and not overwrite:
        raise InvalidInputError(f"{path} exists; choose another name or pass overwrite=True")
    if not path.parent.is_dir():
        raise InvalidInputError(f"cannot write {path}: there is no directory {path.parent}")
    facts = json.loads(json.dumps(facts))
    facts["sha256"] = _arrays_digest(facts, arrays)
    stored = arrays | {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}
    is_large = sum(array.nbytes for array in stored.values()) > MOST_COMPRESSED
    save_fn = np.savez if is_large else np.savez_compressed
    write_atomically(path, lambda stream: save_fn(stream, allow_pickle=False, **stored))


def load_arrays(path: str | Path, what: str, file_format: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return facts and arrays of a file of `save_arrays`; nothing in it is executed, and its size is checked first."""
    path = check_path("path", path)
    with reading(path, what):
        check_is_file(path)
        with zipfile.ZipFile(path) as archive:
            size = sum(item.file_size for item in archive.infolist())
        most = max(MOST_ARRAYS, MOST_RATIO * path.stat().st_size)
        if size > most:
            raise InvalidInputError(f"its arrays would take {size:,} bytes, and at most {most:,} are read")
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        facts = json.loads(arrays.pop("facts").tobytes().decode())
        if facts.get("format") != file_format:
            raise InvalidInputError(f"it is not {what} of this version ({facts.get('format')!r})")
        if "sha256" in facts and facts["sha256"] != _arrays_digest(facts, arrays):
            raise InvalidInputError(CHANGED)
        return facts, arrays


def _arrays_digest(facts: dict[str, Any], arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256(_record_digest(facts).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()
