"""How kernels are compiled: cached on disk, run in threads over particles, x / 0 = inf as in NumPy.

A trajectory that runs off to infinity must end as a rejected move, not as an exception in a thread. Sums are taken in
the order in which they are written (no fast mathematics): a kernel that was just compiled and one that was loaded from
the cache give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Part = TypeVar("Part")
Result = TypeVar("Result")


def _drop_stale_cache() -> None:
    """Remove compiled kernels made from other sources.

    Numba notices a change of the file that a kernel stands in, not of the files whose kernels it has inlined.
    """
    folder = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()
    stamp = folder / "__pycache__" / "kernels.sha256"
    with contextlib.suppress(OSError):  # a read-only installation keeps what it was installed with
        if stamp.exists() and stamp.read_text() == digest:
            return
        for stale in [*stamp.parent.glob("*.nbi"), *stamp.parent.glob("*.nbc")]:
            stale.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest)


_drop_stale_cache()


class Announcement(event.Listener):
    """Log, once a process, that a kernel is compiled instead of loaded: the first use takes longer."""

    said = False

    def on_start(self, started: event.Event) -> None:
        """Say it, if the kernel is one of ours."""
        # A function that was built by `exec` has no module.
        ours = str(started.data["dispatcher"].py_func.__module__).startswith(__package__)
        if ours and not self.said:
            self.said = True
            logger.info("compiling, half a minute or more; from the next start on it is loaded")

    def on_end(self, ended: event.Event) -> None:
        """Nothing to say."""


event.register("numba:compile", Announcement())


def kernel(function: Function) -> Function:
    """Compile one loop nest."""
    return cast("Function", numba.njit(cache=True, error_model="numpy")(function))


def inner_kernel(function: Function) -> Function:
    """Compile one loop nest for other kernels only: a call from Python ends the process.

    The code that unpacks arguments from Python is left out. Where they are tuples of many arrays it takes as long to
    compile as the loops.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("Function", numba.njit(cache=True, error_model="numpy", **options)(function))


def inlined_kernel(function: Function) -> Function:
    """Compile a loop nest into each kernel that calls it: handing the data over would cost more than the work.

    Or because just one kernel calls it: a kernel is optimised with all that it calls, level by level, so that fewer
    levels are compiled faster.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy", inline="always")(function))


def chain_kernel(function: Function) -> Function:
    """Compile a loop over some particles, chains or draws that holds no lock, so that others can run in threads."""
    return cast("Function", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def map_in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Return what the function makes of each part, on all threads: for functions that are mostly a `chain_kernel`."""
    if min(len(parts), ALL_THREADS) <= 1:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(min(len(parts), ALL_THREADS)) as pool:
        return list(pool.map(function, parts))


ALL_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set as it is imported
"""As many as were allowed when the kernels were loaded."""

SMALL_WORK = 200_000
"""Elementary steps (a few nanoseconds each) below which a second thread costs more than it brings."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(ALL_THREADS)


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not outlive a fork


def over_particles(run_fn: Callable[..., None], num: int, *given: Any, work: int) -> None:
    """Run a `chain_kernel` over `num` particles: `run_fn(first, stop, *given)` on ranges of them.

    In threads where the `work`, in elementary steps, is worth it. What a particle does depends on itself alone, so that
    results do not depend on the ranges.
    """
    parts = min(num, ALL_THREADS if work >= SMALL_WORK else 1)
    if parts <= 1:
        run_fn(0, num, *given)
        return
    ends = [part * num // parts for part in range(parts + 1)]
    for done in [_pool().submit(run_fn, *ends[part : part + 2], *given) for part in range(parts)]:
        done.result()
