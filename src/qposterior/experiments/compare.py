"""A grid of independent runs, on the cores of this machine or on a Dask cluster, into one store."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qposterior.agents.registry import find_agent, make_agent
from qposterior.environments.registry import ENVIRONMENTS, make_environment
from qposterior.errors import InvalidInputError, MissingExtraError, unknown_name
from qposterior.experiments.explore import Run, World, explore, make_world, spawn_seeds
from qposterior.experiments.run_directory import SETTINGS_FILE, versions
from qposterior.experiments.store import LOCK_FILE, Store, locked, run_key
from qposterior.model.prior import prior_from_dict
from qposterior.world.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

ENGINES = ("local", "dask")
ONE_THREAD = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ONE_THREAD["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run, as plain data that any worker can be sent."""

    agent: str
    environment: str
    depth: int | None
    seed: int
    episodes: int = 1000
    full: bool = False  # go on after the learning time
    timeout: float | None = None  # seconds
    transitions: str | None = None
    prior: dict[str, Any] | None = None
    env_options: dict[str, Any] = field(default_factory=dict)
    agent_options: dict[str, Any] = field(default_factory=dict)
    label: str | None = None  # what the agent is called in the tables, where one agent runs with several settings

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this run from all others in a store."""
        return run_key(asdict(self) | {"agent": self.label or self.agent})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison left in its folder."""

    folder: Path
    runs: pd.DataFrame  # a row per run, with status and error
    episodes: pd.DataFrame  # a row per episode


class _TimeUpError(Exception):
    """A run has passed its time."""


def build_world(spec: RunSpec) -> World:
    """Return the world of a run."""
    if spec.environment in ENVIRONMENTS:
        size = {} if spec.depth is None else {"depth": spec.depth}
        return make_world(make_environment(spec.environment, **size, **spec.env_options))
    return make_world(spec.environment, **spec.env_options)


def run_one(spec: RunSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run one run and return its row and its episodes; an error or a timeout is a result too."""
    started, latest = time.perf_counter(), list[Run]()

    def after_episode(run: Run) -> None:
        latest[:] = [run]
        if spec.timeout is not None and time.perf_counter() - started > spec.timeout:
            raise _TimeUpError

    status, error = "done", None
    try:
        world = build_world(spec)
        prior = {} if spec.prior is None else {"prior": prior_from_dict(spec.prior)}
        agent = make_agent(
            spec.agent,
            world.problem,
            horizon=world.cap,
            transitions=spec.transitions,
            seed=spawn_seeds(spec.seed)[1],
            **prior,
            **spec.agent_options,
        )
        explore(
            agent,
            world,
            episodes=spec.episodes,
            seed=spec.seed,
            depth=spec.depth,
            until_learned=not spec.full,
            keep_transitions=False,
            callback=after_episode,
        )
    except _TimeUpError:
        status = "timeout"
    except Exception as problem:
        status, error = "failed", "".join(traceback.format_exception_only(problem)).strip()
    summary = latest[0].summary() if latest else {"episodes": 0, "seconds": time.perf_counter() - started}
    key = {"agent": spec.label or spec.agent, "environment": spec.environment, "depth": spec.depth, "seed": spec.seed}
    return summary | key | {"status": status, "error": error}, latest[0].rows if latest else []


def make_grid(
    environment: str, *, agents: Sequence[str], depths: Sequence[int | None], seeds: Sequence[int], **common: Any
) -> list[RunSpec]:
    """Return the runs of a grid, shallow seas first; a bad name is found before anything runs."""
    for agent in agents:
        find_agent(agent)
    if not (agents and depths and seeds):
        raise InvalidInputError("a comparison needs at least one agent, one depth (or none at all) and one seed")
    grid = [
        RunSpec(agent=agent, environment=environment, depth=depth, seed=seed, **common)
        for depth in depths
        for seed in seeds
        for agent in agents
    ]
    build_world(grid[0])
    return grid


def compare(
    environment: str,
    *,
    agents: Sequence[str],
    out: str | Path,
    depths: Sequence[int] | None = None,
    seeds: int | Sequence[int] = 20,
    engine: str = "local",
    scheduler: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    progress_fn: Callable[[int, int, dict[str, Any]], None] | None = None,
    **common: Any,
) -> Comparison:
    """Run every agent at every depth with every seed, and keep the rows in a SQLite store in `out`.

    `engine="local"` uses the cores of this machine, one thread a worker; `"dask"` a running cluster at `scheduler`, or
    one that is started here and closed. The results are the same, apart from seconds. `resume` does what an earlier,
    interrupted comparison in `out` has left. `common` are the other fields of `RunSpec`. `progress_fn` gets (runs done,
    all runs, the row of the last one).
    """
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    sizes: list[int | None] = [None] if depths is None else [int(depth) for depth in depths]
    grid = make_grid(environment, agents=agents, depths=sizes, seeds=[int(seed) for seed in numbers], **common)
    return run_grid(
        grid, out=out, engine=engine, scheduler=scheduler, workers=workers, resume=resume, progress_fn=progress_fn
    )


def run_grid(
    grid: Sequence[RunSpec],
    *,
    out: str | Path,
    engine: str = "local",
    scheduler: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    progress_fn: Callable[[int, int, dict[str, Any]], None] | None = None,
) -> Comparison:
    """Run any list of runs into the store in `out`, as `compare` does; the last are started first."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    folder = Path(out)
    _make_folder(folder, resume=resume)
    with locked(folder):
        _write_settings(folder, grid)
        store = Store(folder)
        try:
            finished = store.finished()
            left = [spec for spec in grid if spec.key not in finished]
            for done, (row, episodes) in enumerate(_results(left, engine, scheduler, workers), start=1):
                store.add(row, episodes)
                if progress_fn is not None:
                    progress_fn(len(grid) - len(left) + done, len(grid), row)
            return Comparison(folder=folder, runs=store.runs(), episodes=store.episodes())
        finally:
            store.close()


def read_comparison(folder: str | Path) -> Comparison:
    """Return what a comparison, finished or not, has left in a folder."""
    folder = Path(folder)
    if not (folder / "runs.sqlite").exists():
        raise InvalidInputError(f"{folder} holds no comparison (no runs.sqlite); run `qposterior compare` first")
    store = Store(folder)
    try:
        return Comparison(folder=folder, runs=store.runs(), episodes=store.episodes())
    finally:
        store.close()


def _make_folder(folder: Path, *, resume: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / SETTINGS_FILE).exists() and not resume:
            raise InvalidInputError(f"{folder} holds a comparison; pass --resume to go on with it, or choose another")
        foreign = [entry.name for entry in folder.iterdir() if entry.name != LOCK_FILE]
        if foreign and not (folder / SETTINGS_FILE).exists():
            raise InvalidInputError(f"{folder} is not empty and holds no comparison; choose another directory")
    except OSError as error:
        raise InvalidInputError(f"cannot write to {folder}: {error.strerror}") from error


def _write_settings(folder: Path, grid: Sequence[RunSpec]) -> None:
    """Add the grid to the record of the folder; the same run with other settings is refused, not mixed in."""
    path = folder / SETTINGS_FILE
    earlier = json.loads(path.read_text())["runs"] if path.exists() else []
    known = {spec.key: _as_json(spec) for spec in (RunSpec(**fields) for fields in earlier)}
    for spec in grid:
        wanted = _as_json(spec)
        before = known.setdefault(spec.key, wanted)
        if before != wanted:
            changed = next(name for name in wanted if before.get(name) != wanted[name])
            raise InvalidInputError(
                f"{folder} has runs with {changed}={before.get(changed)!r}, not {wanted[changed]!r}; give the same "
                "settings to go on with it, or choose another directory"
            )
    record = {"runs": list(known.values()), "versions": versions()}
    write_atomically(path, json.dumps(record, indent=1) + "\n")


def _as_json(spec: RunSpec) -> dict[str, Any]:
    return dict(json.loads(json.dumps(asdict(spec), default=str)))


def _results(
    specs: list[RunSpec], engine: str, scheduler: str | None, workers: int | None
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield the results of the runs as they finish."""
    if not specs:
        return
    if engine == "dask":
        yield from _dask_results(specs, scheduler, workers)
        return
    joblib = import_module("joblib")
    if workers == 1 or os.cpu_count() == 1:
        # In this very process, whose number of threads is settled: the variables would come too late.
        yield from map(run_one, reversed(specs))
        return
    with _environment(ONE_THREAD):
        # The longest runs come last in the grid; started first, they do not keep a single worker busy at the end.
        pool = joblib.Parallel(n_jobs=workers or -1, return_as="generator_unordered", batch_size=1)
        yield from pool(joblib.delayed(_run_in_worker)(spec, os.getpid()) for spec in reversed(specs))


def _run_in_worker(spec: RunSpec, parent: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    _end_with(parent)
    return run_one(spec)


@cache
def _end_with(parent: int) -> None:
    """Let this process end soon after its parent: nobody else stops the workers of a comparison that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _dask_results(
    specs: list[RunSpec], scheduler: str | None, workers: int | None
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise MissingExtraError('engine="dask"', "dask") from error
    with ExitStack() as stack:
        address: Any = scheduler
        if scheduler is None:
            stack.enter_context(_environment(ONE_THREAD))
            address = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers or os.cpu_count(), threads_per_worker=1, dashboard_address=None
                )
            )
        client = stack.enter_context(distributed.Client(address))
        futures = client.map(run_one, list(reversed(specs)), pure=False, retries=2)
        for future in distributed.as_completed(futures):
            yield future.result()
            future.release()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
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
