"""The logs that were dropped on the local page, and the answers that are made of them, in a folder that is removed."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from qposterior.errors import QPosteriorError
from qposterior.logs.columns import Columns
from qposterior.logs.files import save_fit
from qposterior.logs.fit import fit
from qposterior.logs.settings import FitSettings
from qposterior.report.fit_report import write_fit_report
from qposterior.storage import locked

ANSWER = {
    "index.html": "text/html; charset=utf-8",
    "rows.csv": "text/csv; charset=utf-8",
    "fit.json": "application/json",
}
"""Files of an answer that are shown or downloaded, with what they are."""


@dataclass(kw_only=True)
class Job:
    """A log that was dropped, and how far its answer is."""

    number: int
    name: str  # of the file, as the browser said it: shown, never opened
    log: Path
    folder: Path
    state: str = "waiting"  # for the columns to be named; then running, and done or failed
    note: str = ""
    share: float = 0.0


@dataclass(kw_only=True)
class Jobs:
    """All of them, by number. One answer is computed at a time."""

    home: Path
    jobs: dict[int, Job] = field(default_factory=dict)
    _numbers: Any = field(default_factory=partial(itertools.count, 1))
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, ending: str) -> Job:
        """Return a new job, whose file is still to be written."""
        number = next(self._numbers)
        job = Job(
            number=number, name=name, log=self.home / f"log{number}{ending}", folder=self.home / f"answer{number}"
        )
        self.jobs[number] = job
        return job

    def start(self, job: Job, columns: Columns, settings: FitSettings) -> None:
        """Begin to answer a log; the thread does not keep the program alive."""
        job.state, job.note, job.share = "running", "waiting for the answer before", 0.0
        threading.Thread(target=self._answer, args=(job, columns, settings), daemon=True).start()

    def _answer(self, job: Job, columns: Columns, settings: FitSettings) -> None:
        def show(done: int, most: int) -> None:
            job.note, job.share = "drawing models and solving them", done / most

        with self._turn:
            job.note = "reading the log"
            try:
                fitted = fit(job.log, columns=columns, settings=settings, progress_fn=show)
                fitted.source = job.name
                with locked(job.folder, "fit"):
                    save_fit(fitted, job.folder, settings, page_fn=partial(write_fit_report, fitted))
                job.state, job.note = "done", ""
            except QPosteriorError as error:
                job.state, job.note = "failed", str(error).replace(str(job.log), job.name)
            except Exception as error:  # a bug: the page must not wait for ever
                job.state, job.note = "failed", f"{type(error).__name__}: {error}"
                raise
