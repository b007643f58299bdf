"""Dask clusters: one that runs already, or one on the cores of this machine that is closed afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from typing import Any

from qposterior.errors import InvalidInputError, QPosteriorError
from qposterior.extra import import_extra

ONE_THREAD = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

ENGINES = ("local", "dask")

NO_WORKERS_AFTER = 60
"""Seconds within which a Dask scheduler must have a worker."""


def check_engine(engine: str, scheduler: str | None) -> None:
    """Raise for an engine that does not exist, and for a scheduler that nothing would ask."""
    from qposterior.checks import check_choice  # with NumPy, which the command line does without until it has to

    check_choice("engine", engine, ENGINES)
    if scheduler is not None and engine != "dask":
        raise InvalidInputError(f'a scheduler needs engine="dask" (--engine dask), got {engine!r}')


def cluster_results(
    work_fn: Callable[..., Any],
    tasks: Sequence[Any],
    *,
    scheduler: str | None,
    workers: int | None = None,
    in_order: bool = False,
    kept: str = "",
) -> Iterator[Any]:
    """Yield what `work_fn` returns for each task, as they finish or in the order of the tasks.

    `kept` ends the message where the cluster is lost: what has not been lost with it.
    """
    distributed = import_extra("distributed", 'engine="dask"', extra="dask")
    with ExitStack() as stack:
        address: Any = scheduler
        if scheduler is None:
            stack.enter_context(environment(ONE_THREAD))
            address = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers or os.cpu_count(),
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # an error of a task comes back, and is said once
                )
            )
        try:
            client = stack.enter_context(distributed.Client(address))
            client.wait_for_workers(1, timeout=NO_WORKERS_AFTER)
        except (OSError, ValueError) as error:  # a timeout is an OSError
            raise QPosteriorError(f"cannot use the Dask scheduler {address}: {error}") from error
        futures = client.map(work_fn, list(tasks), pure=False, retries=2)
        try:
            for future in futures if in_order else distributed.as_completed(futures):
                yield future.result()
                future.release()
        except (distributed.KilledWorker, CancelledError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise QPosteriorError("; ".join(filter(None, (f"the Dask cluster was lost: {reason}", kept)))) from error


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
