"""How everything is stored: files, folders that one process at a time writes to, and answers of several files.

A file is whole or not there at all. A record (JSON) and an archive of arrays (`.npz`) carry the SHA-256 of their
contents, so that a damaged one is refused and never read as other numbers; nothing in a file is ever executed. What an
object is made of is said as `Packed`, arrays and plain facts, and it is made again from that.

All files of an answer stand in one folder, `generations/N`, and `current` is a link to it. A new answer is written
whole beside the old one; then a single rename turns `current` to it. The names at the top (`index.html`, `rows.csv`, …)
are links through `current` and never change. So a kill at any moment leaves the old answer or the new one, every reader
sees files of one generation, and a copy of the folder works wherever it stands.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from qposterior.checks import check_path
from qposterior.errors import InvalidInputError

Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
Packed: TypeAlias = tuple[Arrays, dict[str, Any]]
"""What an object is made of: arrays and plain facts."""

LOCK_FILE, CURRENT, GENERATIONS = ".lock", "current", "generations"
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


def check_format(facts: dict[str, Any], what: str, file_format: str) -> None:
    """Raise unless facts say that they are of this format."""
    if facts.get("format") != file_format:
        raise InvalidInputError(f"it is not {what} of this version ({facts.get('format')!r})")


def check_is_file(path: Path) -> None:
    """Raise unless the path is a plain file: a pipe or a device could go on for ever."""
    path.stat()
    if not path.is_file():
        raise InvalidInputError("it is not a file")


def _record_digest(record: dict[str, Any]) -> str:
    kept = {name: value for name, value in record.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def save_arrays(
    path: str | Path, facts: dict[str, Any], arrays: Mapping[str, np.ndarray[Any, Any] | None], *, overwrite: bool
) -> None:
    """Write plain facts and the arrays that are not None to one `.npz` file; an existing file is kept unless told."""
    path = check_path("path", path)
    if path.exists() and not overwrite:
        raise InvalidInputError(f"{path} exists; choose another name or pass overwrite=True")
    if not path.parent.is_dir():
        raise InvalidInputError(f"cannot write {path}: there is no directory {path.parent}")
    facts = json.loads(json.dumps(facts))
    stored: Arrays = {name: array for name, array in arrays.items() if array is not None}
    facts["sha256"] = _arrays_digest(facts, stored)
    stored["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    is_large = sum(array.nbytes for array in stored.values()) > MOST_COMPRESSED
    save_fn = np.savez if is_large else np.savez_compressed
    write_atomically(path, lambda stream: save_fn(stream, allow_pickle=False, **stored))


def load_arrays(path: str | Path, what: str, file_format: str) -> tuple[dict[str, Any], Arrays]:
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
        check_format(facts, what, file_format)
        if "sha256" in facts and facts["sha256"] != _arrays_digest(facts, arrays):
            raise InvalidInputError(CHANGED)
        return facts, arrays


def _arrays_digest(facts: dict[str, Any], arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256(_record_digest(facts).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


# -- answers of several files ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFolder:
    """A folder with the files of one answer, all of one generation, and a record among them that seals the others."""

    path: Path
    what: str  # such as "fit"
    file_format: str  # that the record names
    record: str  # the file that makes an answer, and says which digests the others have
    others: tuple[str, ...]
    most: float = MOST_RECORD  # bytes of the record that are read

    @property
    def files(self) -> tuple[str, ...]:
        """The names of ours."""
        return (self.record, *self.others, CURRENT, GENERATIONS)

    @property
    def now(self) -> Path:
        """The folder in which the files of the current answer stand."""
        current = self.path / CURRENT
        return current.resolve() if current.exists() else self.path

    @property
    def has_answer(self) -> bool:
        """Whether there is an answer."""
        return (self.now / self.record).exists()

    def check(self, *, force: bool) -> None:
        """Say why the folder cannot be used, before anything is computed."""
        folder, what = self.path, self.what
        if foreign := foreign_entries(folder, self.files):
            rule = f"holds files that no {what} wrote ({foreign[0]}, …); choose another directory"
        elif self.has_answer and not force:
            rule = f"holds a {what}; choose another directory, or pass --force or --update"
        elif os.path.lexists(folder / CURRENT) and self._number is None:
            rule = "is a copy whose links have become folders; it can be read, not written to"
        else:
            return
        raise InvalidInputError(f"{folder} {rule}")

    @contextmanager
    def new_answer(self) -> Iterator[Path]:
        """Yield a folder for the next answer, which becomes the current one at the end; the caller holds the lock."""
        self._prune()
        new = self.path / GENERATIONS / str(1 + max(self._generations, default=0))
        new.mkdir(parents=True)
        yield new
        self._switch(new)
        self._prune()

    def seal(self, new: Path, answer: dict[str, Any], sealed: Collection[str]) -> None:
        """Write the record of a new answer, the last of its files, with the digests of others."""
        digests = {name: file_digest(new / name) for name in sealed}
        write_record(new / self.record, answer | {"files": digests})

    def read(self, name: str) -> tuple[Path, dict[str, Any]]:
        """Return the path of a file of the current answer, found to be the one that was sealed, and the record."""
        now, what = self.now, f"a {self.what}"  # looked up once: all that is read is of one generation
        if not (now / self.record).exists():
            remedy = f"make one with `qposterior {self.what} --out`"
            raise InvalidInputError(f"{self.path} holds no {self.what} (no {self.record}); {remedy}")
        answer, path = read_record(now / self.record, what, most=self.most), now / name
        with reading(path, what):
            check_format(answer, what, self.file_format)
            check_is_file(path)
            if "files" in answer and file_digest(path) != answer["files"][name]:
                raise InvalidInputError(CHANGED)
        return path, answer

    def rewrite(self, name: str, write_fn: Callable[[Path], Any]) -> Path:
        """Let a function write a file of the current answer again, and return its path; the caller holds the lock."""
        write_fn(self.now)
        if (self.path / CURRENT).is_symlink():
            _link(self.path / name, f"{CURRENT}/{name}")
        return self.path / name

    @property
    def _number(self) -> int | None:
        """The number of the current generation; None where the link is not one that was made here."""
        current = self.path / CURRENT
        parts = Path(os.readlink(current)).parts if current.is_symlink() else ()
        return int(parts[1]) if len(parts) == 2 and parts[0] == GENERATIONS and parts[1].isdigit() else None

    @property
    def _generations(self) -> list[int]:
        return sorted(int(name) for name in entries(self.path / GENERATIONS) if name.isdigit())

    def _switch(self, new: Path) -> None:
        """Make a generation the current one."""
        names = entries(new)
        if not (self.path / CURRENT).is_symlink():
            if not _has_links(self.path):
                # One after the other; the record comes last and names the digests of the others: no mixture is read.
                for name in sorted(names, key=self.record.__eq__):
                    os.replace(new / name, self.path / name)
                return
            if (self.path / self.record).is_file():  # all files at the top, as earlier versions wrote them
                self._keep_flat_files()
        for name in names:
            _link(self.path / name, f"{CURRENT}/{name}")
        _link(self.path / CURRENT, f"{GENERATIONS}/{new.name}")
        for name in self.files:  # one that could not be written this time, such as a page
            if (self.path / name).is_symlink() and not (self.path / name).exists():
                (self.path / name).unlink()

    def _keep_flat_files(self) -> None:
        old = self.path / GENERATIONS / "0"
        old.mkdir(parents=True, exist_ok=True)
        for name in self.files:
            if (self.path / name).is_file():
                shutil.copy2(self.path / name, old / name)
        _link(self.path / CURRENT, f"{GENERATIONS}/{old.name}")

    def _prune(self) -> None:
        """Remove what killed processes left, and all generations but the current one and the one before it."""
        remove_leftovers(self.path, self.files)
        now, generations = self._number, self._generations
        before = [number for number in generations if now is not None and number < now]
        for number in generations:
            if number not in (now, *before[-1:]):  # the one before may still be being read
                shutil.rmtree(self.path / GENERATIONS / str(number))
        if now is None and (self.path / GENERATIONS).is_dir() and not any((self.path / GENERATIONS).iterdir()):
            (self.path / GENERATIONS).rmdir()


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
