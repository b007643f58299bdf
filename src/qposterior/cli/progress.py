"""What commands share: where JSON goes, and a sign of life where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = 30.0
"""Seconds between two plain lines."""


@contextmanager
def plain_lines(words_fn: Callable[[], str]) -> Iterator[None]:
    """Where stderr is no terminal, say every 30 s how far the work is; on a terminal a command shows it itself."""
    if sys.stderr.isatty():
        yield
        return
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(EVERY):
            click.echo(f"qposterior: {words_fn()}", err=True)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


def json_path(target: str | None, *, force: bool) -> str | None:
    """Return where JSON goes (`-` is stdout), or refuse before the work what could not be written after it."""
    if target is None or target == "-":
        return target
    path = Path(target)
    if path.is_dir():
        raise click.UsageError(f"--json {path} is a directory; give a file, or - for stdout")
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists; choose another --json file or pass --force")
    if not path.parent.is_dir():
        raise click.UsageError(f"--json {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise click.UsageError(f"--json {path}: cannot write to {path.parent}")
    return target
