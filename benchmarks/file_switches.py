"""How many files of the library a piece of work passes, and how often it goes from one to another.

    python benchmarks/file_switches.py

Counted with `sys.setprofile`, which sees every call of a Python function (compiled kernels call each other unseen): a
switch is a pair of files of which the first calls the second. Two ways through the library: a log on its way to the
page (`qposterior fit`), and an episode of the agent `abrl` on Deep Sea.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import qposterior as qp
from qposterior.experiments.explore import make_world

HOME = Path(qp.__file__).parent


def count(work_fn: Callable[[], Any]) -> tuple[int, int, list[str]]:
    """Return the files, the distinct pairs of files that call each other, and the files in the order met."""
    path: list[str] = []
    switches: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        here = frame.f_code.co_filename
        if not here.startswith(str(HOME)):
            return
        if here not in path:
            path.append(here)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(HOME)):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != here:
            switches.add((caller.f_code.co_filename, here))

    sys.setprofile(profile)
    try:
        work_fn()
    finally:
        sys.setprofile(None)
    return len(path), len(switches), [str(Path(name).relative_to(HOME)) for name in path]


def fit_and_write() -> None:
    """Fit the log of maintenance decisions on the command line, page and all."""
    from qposterior.cli.fit import fit_command

    log = Path(__file__).parent.parent / "examples" / "logs" / "maintenance.csv"
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(log), "--discount", "0.9", "--out", f"{folder}/answer"]
        with contextlib.redirect_stdout(io.StringIO()):
            fit_command.main(arguments, standalone_mode=False)


def play_an_episode() -> None:
    """Let an agent that has played before play an episode of Deep Sea."""
    qp.explore(AGENT, WORLD, episodes=1, seed=0)


def main() -> None:
    for name, work_fn in (("a log on its way to the page", fit_and_write), ("an episode of abrl", play_an_episode)):
        for _ in range(2):  # what is loaded or compiled only then
            work_fn()
        files, switches, order = count(work_fn)
        print(f"{name}: {files} files, {switches} switches between two of them")
        print("  " + ", ".join(order))


WORLD = make_world(qp.make_environment("deep-sea", depth=5))
AGENT = qp.make_agent("abrl", WORLD.problem, horizon=WORLD.cap, seed=0)

if __name__ == "__main__":
    main()
