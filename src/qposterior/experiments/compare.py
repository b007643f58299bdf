"""A grid of independent runs, on the cores of this machine or on a Dask cluster, into one store."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qposterior.agents.registry import AGENTS, find_agent
from qposterior.checks import (
    check_callable,
    check_count,
    check_list,
    check_path,
    check_type,
    shown,
    whole,
)
from qposterior.cluster import ONE_THREAD, check_engine, cluster_results, environment
from qposterior.errors import InvalidInputError, QPosteriorError, unknown_name
from qposterior.experiments.explore import Run, explore, named_world
from qposterior.experiments.run_directory import SETTINGS_FILE, check_same_settings
from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.store import STORE_FILE, Store, name_run, run_key, with_keys
from qposterior.model.prior import prior_from_dict, prior_to_dict
from qposterior.progress import show_progress
from qposterior.storage import foreign_entries, locked, read_record, reading, remove_leftovers, write_record
from qposterior.versions import versions

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)
Result = tuple[dict[str, Any], list[dict[str, Any]]]
"""The row of a run and the rows of its episodes."""

OUR_FILES = (SETTINGS_FILE, STORE_FILE, f"{STORE_FILE}-wal", f"{STORE_FILE}-shm", "lock")
"""What may stand in a folder before its record does, the last where an earlier version has locked it."""

KEPT = "finished runs are kept, --resume goes on"
"""What ends the message of an error in the middle of a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison left in its folder."""

    folder: Path
    runs: pd.DataFrame  # a row per run, with status and error
    episodes: pd.DataFrame  # a row per episode

    @property
    def without_failures(self) -> Comparison:
        """The runs that did not fail, and their episodes."""
        runs = self.runs[self.runs["status"] != "failed"]
        kept = with_keys(self.episodes, map(run_key, runs.to_dict(orient="records")))
        return Comparison(folder=self.folder, runs=runs, episodes=self.episodes[kept])


def run_one(spec: RunSpec) -> Result:
    """Run one run and return its row and its episodes; an error or a timeout is a result too."""
    started, latest = time.perf_counter(), list[Run]()

    def after_episode(run: Run) -> None:
        latest[:] = [run]

    status, error = "done", None
    try:
        world = named_world(spec.environment, spec.env_options, depth=spec.depth)
        world.is_quiet = True  # `make_grid` has said it
        prior = {} if spec.prior is None else {"prior": prior_from_dict(spec.prior)}
        told: dict[str, Any] = {"seed": spec.seed, "transitions": spec.transitions}
        agent = world.make_agent(spec.agent, **told, **prior, **spec.agent_options)
        run = explore(
            agent,
            world,
            episodes=spec.episodes,
            seed=spec.seed,
            depth=spec.depth,
            until_learned=not spec.full,
            keep_transitions=False,
            callback=after_episode,
            timeout=None if spec.timeout is None else max(spec.timeout - (time.perf_counter() - started), 0.0),
        )
        status = "timeout" if run.is_timed_out else "done"
    except (Exception, SystemExit) as problem:  # whatever an environment of one's own may do
        status, error = "failed", "".join(traceback.format_exception_only(problem)).strip()
    summary = latest[0].summary() if latest else {"episodes": 0, "seconds": time.perf_counter() - started}
    key = {"agent": spec.label or spec.agent, "environment": spec.environment, "depth": spec.depth, "seed": spec.seed}
    return summary | key | {"status": status, "error": error}, latest[0].rows if latest else []


def make_grid(
    environment: str, *, agents: Iterable[str], depths: Iterable[int | None], seeds: Iterable[int], **common: Any
) -> list[RunSpec]:
    """Return the runs of a grid, shallow seas first; a bad name or depth is found before anything runs.

    The options of `agent_options` that are named like an agent are dictionaries for that agent alone, the others are
    for all. A prior goes to the agents that take one.
    """
    unknown = sorted(set(common) - {item.name for item in fields(RunSpec)})
    if unknown:
        raise unknown_name("option of a comparison", unknown[0], (item.name for item in fields(RunSpec)))
    agents = check_list("agents", agents, "names")
    for name in ("agent_options", "env_options"):
        check_type(name, common.get(name, {}), dict)
    depths, seeds = _whole_numbers("depths", depths), _whole_numbers("seeds", seeds)
    entries = {agent: find_agent(agent) for agent in agents}
    if not (entries and depths and seeds):
        raise InvalidInputError("a comparison needs at least one agent, one depth (or none at all) and one seed")
    options, prior = dict(common.pop("agent_options", {})), common.pop("prior", None)
    for name, value in options.items():
        if isinstance(value, dict) and name not in entries:
            raise InvalidInputError(f"there are options for agent {name!r}, which is not among those compared")
    if prior is not None and not any(entry.takes_prior for entry in entries.values()):
        raise InvalidInputError(f"none of {', '.join(entries)} takes a prior; leave it out")
    shared = {name: value for name, value in options.items() if name not in AGENTS}
    for depth in depths:
        _ = named_world(environment, common.get("env_options"), depth=depth).truth  # says so if there is none
    if prior is not None:  # made anew in every run, so it must be one of ours
        prior = prior_to_dict(prior_from_dict(prior if isinstance(prior, dict) else prior_to_dict(prior)))
    return [
        RunSpec(
            agent=agent,
            environment=environment,
            depth=depth,
            seed=seed,
            prior=prior if entries[agent].takes_prior else None,
            agent_options=shared | options.get(agent, {}),
            **common,
        )
        for depth in depths
        for seed in seeds
        for agent in entries
    ]


def _whole_numbers(name: str, values: Iterable[Any]) -> list[Any]:
    """Return the numbers without repetitions; None stands for no number."""
    given = check_list(name, values, "whole numbers")
    if any(value is not None and whole(value) is None for value in given):
        raise InvalidInputError(f"{name} must be a list of whole numbers, got {shown(given)}")
    return list(dict.fromkeys(map(whole, given)))


def compare(
    environment: str,
    *,
    agents: Iterable[str],
    out: str | Path,
    depths: Iterable[int] | None = None,
    seeds: int | Iterable[int] = 20,
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
    interrupted comparison in `out` has left. `common` are the other fields of `RunSpec`; `agent_options={"psrl":
    {"repeats": 1}}` is for one agent alone. `progress_fn` gets (runs done, all runs, the row of the last one).
    """
    numbers = range(check_count("seeds", seeds)) if not isinstance(seeds, Iterable) else seeds
    sizes: Iterable[int | None] = [None] if depths is None else depths
    grid = make_grid(environment, agents=agents, depths=sizes, seeds=numbers, **common)
    if (check_path("out", out) / SETTINGS_FILE).exists():
        others = {run.environment for run in read_settings(Path(out))["runs"]} - {environment}
        if others:
            raise InvalidInputError(f"{out} holds a comparison on {others.pop()!r}; give {environment!r} a directory")
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
    check_engine(engine, scheduler)
    if workers is not None:
        check_count("workers", workers)
    if progress_fn is not None:
        check_callable("progress_fn", progress_fn)
    folder = check_path("out", out)
    _check_folder(folder, resume=resume)
    with locked(folder, "comparison"):
        remove_leftovers(folder, OUR_FILES)
        _write_settings(folder, grid)  # refuses one run with two settings
        grid = list({spec.key: spec for spec in grid}.values())
        with closing(Store(folder)) as store:
            damaged = store.damaged()
            if damaged:
                logger.warning("%s; run again where asked for", _damage(folder, damaged))
                store.drop(damaged)
            finished = store.finished()
            left = [spec for spec in grid if spec.key not in finished]
            results = ENGINES[engine](left, scheduler, workers) if left else ()
            for done, (row, episodes) in enumerate(results, start=1):
                store.add(row, episodes)
                if progress_fn is not None:
                    progress_fn(len(grid) - len(left) + done, len(grid), row)
            return _read(folder, store)


@contextmanager
def show_runs() -> Iterator[Callable[[int, int, dict[str, Any]], None]]:
    """Yield a `progress_fn` that shows on stderr how far a comparison is, and how long it will still take."""
    with show_progress("no run is finished yet") as progress:

        def after_run(done: int, total: int, row: dict[str, Any]) -> None:
            learned = row["status"] if row["status"] != "done" else f"learned {row.get('learning_time') or '–'}"
            progress.show(f"{done}/{total}  {name_run(run_key(row))}: {learned}", done, total, with_time=True)

        yield after_run


def read_comparison(folder: str | Path) -> Comparison:
    """Return what a comparison, finished or not, has left in a folder; one that is damaged is refused."""
    folder = Path(folder)
    if not (folder / STORE_FILE).exists():
        raise InvalidInputError(f"{folder} holds no comparison (no {STORE_FILE}); run `qposterior compare` first")
    with closing(Store(folder)) as store:
        return _read(folder, store)


def _read(folder: Path, store: Store) -> Comparison:
    damaged = store.damaged()
    if damaged:
        raise InvalidInputError(f"{_damage(folder, damaged)}; compare with --resume runs again what is damaged")
    return Comparison(folder=folder, runs=store.runs(), episodes=store.episodes())


def _damage(folder: Path, damaged: Sequence[tuple[Any, ...]]) -> str:
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return f"{folder / STORE_FILE} is damaged: the run {name_run(damaged[0])}{more} is not as it was written"


def _check_folder(folder: Path, *, resume: bool) -> None:
    foreign = foreign_entries(folder, OUR_FILES)
    has_record = (folder / SETTINGS_FILE).exists()
    if has_record and not resume:
        raise InvalidInputError(f"{folder} holds a comparison; pass --resume to go on with it, or choose another")
    if foreign and not has_record:
        raise InvalidInputError(f"{folder} is not empty and holds no comparison; choose another directory")


def _write_settings(folder: Path, grid: Sequence[RunSpec]) -> None:
    """Add the grid to the record of the folder; the same run with other settings is refused, not mixed in."""
    path = folder / SETTINGS_FILE
    before = read_settings(folder) if path.exists() else {"runs": [], "versions": None, "earlier_versions": []}
    known = {spec.key: _as_json(spec) for spec in before["runs"]}
    for spec in grid:
        wanted = _as_json(spec)
        check_same_settings(folder, "runs", had=known.setdefault(spec.key, wanted), wanted=wanted)
    now, then = versions(), before["versions"]
    earlier_versions = before["earlier_versions"] + ([] if then in (None, now) else [then])
    record = {"runs": list(known.values()), "versions": now, "earlier_versions": earlier_versions}
    write_record(path, record)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the record of a comparison: `runs`, `versions` and those of earlier parts of it."""
    path = folder / SETTINGS_FILE
    record = read_record(path, "the record of a comparison")
    with reading(path, "the record of a comparison"):
        earlier = [dict(each) for each in record.get("earlier_versions", [])]
        runs = [RunSpec(**fields) for fields in record["runs"]]
        return {"runs": runs, "versions": dict(record["versions"]), "earlier_versions": earlier}


def _as_json(spec: RunSpec) -> dict[str, Any]:
    return dict(json.loads(json.dumps(asdict(spec), default=str)))


def _local_results(specs: list[RunSpec], _scheduler: str | None, workers: int | None) -> Iterator[Result]:
    """Yield the results of the runs as they finish."""
    joblib = import_module("joblib")
    if workers == 1 or os.cpu_count() == 1:
        # In this very process, whose number of threads is settled: the variables would come too late.
        yield from map(run_one, reversed(specs))
        return
    with environment(ONE_THREAD), warnings.catch_warnings():
        # A worker that has compiled a lot is replaced by a new one, which is nothing to warn of.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
        # An interruption leaves tasks behind; they are run by --resume.
        warnings.filterwarnings("ignore", message=r"\d+ tasks (have been successfully executed|which were still)")
        # The longest runs come last in the grid; started first, they do not keep a single worker busy at the end.
        pool = joblib.Parallel(n_jobs=workers or -1, return_as="generator_unordered", batch_size=1)
        try:
            yield from pool(joblib.delayed(_run_in_worker)(spec, os.getpid()) for spec in reversed(specs))
        except joblib.externals.loky.process_executor.TerminatedWorkerError as error:
            raise QPosteriorError(f"a worker died (out of memory, or killed by its environment); {KEPT}") from error


def _run_in_worker(spec: RunSpec, parent: int) -> Result:
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


def _dask_results(specs: list[RunSpec], scheduler: str | None, workers: int | None) -> Iterator[Result]:
    return cluster_results(run_one, specs[::-1], scheduler=scheduler, workers=workers, kept=KEPT)


ENGINES: dict[str, Callable[..., Iterator[Result]]] = {"local": _local_results, "dask": _dask_results}
