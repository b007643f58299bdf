"""How far a long piece of work is, on stderr: words and a bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = 30.0
"""Seconds between two plain lines."""


@dataclass(kw_only=True)
class Progress:
    """What is shown at the moment: say more of it with `show`."""

    words: str
    update_fn: Callable[..., Any] = lambda **_: None
    _started: float = field(default_factory=time.perf_counter)
    _before: float | None = None  # what was done when this began, in the count of `done`

    def show(self, words: str, done: float, total: float, *, with_time: bool = False) -> None:
        """Show these words and what share is done; `with_time` adds how long the rest will take at the pace so far."""
        if with_time:
            self._before = done - 1 if self._before is None else self._before
            pace = (time.perf_counter() - self._started) / max(done - self._before, 1)
            words += f"  about {pace * (total - done):.0f} s left"
        self.words = words
        self.update_fn(description=words, completed=done, total=total)


@contextmanager
def show_progress(words: str) -> Iterator[Progress]:
    """Yield what shows how far the work is until it ends, beginning with these words."""
    show_fn = _bar if sys.stderr.isatty() else _lines
    with show_fn(Progress(words=words)) as progress:
        yield progress


@contextmanager
def _bar(progress: Progress) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}", markup=False), BarColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(progress.words, total=None)
        progress.update_fn = lambda **changes: bar.update(task, **changes)
        yield progress


@contextmanager
def _lines(progress: Progress) -> Iterator[Progress]:
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(EVERY):
            print(f"qposterior: {progress.words}", file=sys.stderr, flush=True)

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield progress
    finally:
        ended.set()
        speaker.join()
