"""How honest posteriors of a log are on problems whose truth is known: coverage, false gains, scores, regret, cost.

Seeds 0 to 99 are for choosing settings, 1000 and above for claims. The store has one JSON line per log and method; a
sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import calibration_summary
from case_calibration import judge_case
from cases import CASES
from families import FAMILIES, draw_problem, simulate
from log_methods import METHODS, Log, Method, read_log
from log_page import CLAIMS, DEFAULT, write_calibration_page
from log_scores import score_draws, score_q_draws
from log_summary import summary_text

JUDGE = 6  # to be raised with every change of the families or the scores: what is stored counts no more
WARM: set[str] = set()  # the methods that this process has called before


@dataclass(frozen=True)
class Task:
    """One log and the methods that have not been tried on it."""

    family: str
    readings: int
    seed: int
    methods: tuple[str, ...]
    draws: int
    modules: tuple[str, ...] = ()
    is_case: bool = False  # the family is the name of a worked case, to be fitted by `fit`


def key_of(family: str, readings: int, seed: int, method: str, draws: int) -> str:
    """Return what a result of the store is found by."""
    return f"{JUDGE}/{family}/{readings}/{seed}/{method}/{METHODS[method].digest}/{draws}"


def case_key(name: str, seed: int) -> str:
    """Return what a result of a worked case is found by."""
    engine = METHODS[DEFAULT].digest if DEFAULT in METHODS else ""
    return f"{JUDGE}/case {name}/{seed}/{engine}"


def judge_log(task: Task) -> list[dict[str, Any]]:
    """Draw the problem and its log, and return a result per method."""
    for module in task.modules:
        import_module(module)
    if task.is_case:
        result = {"key": case_key(task.family, task.seed), "case": task.family, "seed": task.seed}
        return [result | {"pairs": judge_case(task.family, task.seed)}]
    problem = draw_problem(task.family, task.seed)
    frame = simulate(problem, task.readings, _rng(task, "log"))
    log = read_log(frame, discount=problem.discount, is_goal=problem.is_goal, num_actions=problem.behaviour.shape[1])
    results = []
    for name in task.methods:
        key = key_of(task.family, task.readings, task.seed, name, task.draws)
        place = {"key": key, "family": task.family, "readings": task.readings, "seed": task.seed, "method": name}
        results.append(place | _judge_method(task, METHODS[name], log, name))
    return results


def _judge_method(task: Task, method: Method, log: Log, name: str) -> dict[str, Any]:
    problem = draw_problem(task.family, task.seed)
    draw_fn: Callable[..., Any] | None = method.draw_fn or method.draw_q_fn
    score_fn: Callable[..., dict[str, float]] = score_draws if method.draw_fn else score_q_draws
    assert draw_fn is not None
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name not in WARM and method.draw_fn:
                draw_fn(log, 10, _rng(task, name))  # compiles what is compiled at the first call
                WARM.add(name)
            begin = time.process_time()
            draws = draw_fn(log, task.draws, _rng(task, name))
    except Exception as error:  # a method that fails on a log is a result of the sweep
        return {"failed": f"{type(error).__name__}: {error}", "cpu": time.process_time() - begin}
    cpu = time.process_time() - begin
    scores = score_fn(problem, log, draws, task.draws)
    return scores | {"cpu": cpu, "cpu_all": time.process_time() - begin}


def _rng(task: Task, purpose: str) -> np.random.Generator:
    return np.random.default_rng([task.seed, task.readings, zlib.crc32(f"{task.family}/{purpose}".encode())])


def read_store(path: Path) -> list[dict[str, Any]]:
    """Return the results of a store; a line that was cut off while it was written is left out."""
    results = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            results.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return results


def open_tasks(options: argparse.Namespace, done: set[str]) -> Iterator[Task]:
    """Yield the logs that lack a result, seed by seed, so that all cells grow together."""
    for number in range(options.logs):
        for family in options.families:
            for readings in options.readings:
                seed = options.first_seed + number
                missing = tuple(
                    name
                    for name in options.methods
                    if number < (METHODS[name].most_logs or options.logs)
                    and key_of(family, readings, seed, name, options.draws) not in done
                )
                if missing:
                    yield Task(family, readings, seed, missing, options.draws, tuple(options.modules))
    for seed in range(options.first_seed, options.first_seed + options.case_logs):
        yield from (Task(name, 0, seed, (), 0, is_case=True) for name in CASES if case_key(name, seed) not in done)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started meanwhile use one thread each; this one keeps its own number."""
    before = dict(os.environ)
    os.environ.update(
        dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(tasks: Sequence[Task], store: Path, workers: int) -> None:
    """Judge the logs in `workers` processes of one thread each and append every result to the store."""
    context, begin, shown = multiprocessing.get_context("spawn"), time.monotonic(), 0.0
    is_cut = store.exists() and not store.read_bytes().endswith(b"\n")
    with (
        one_thread_each(),
        store.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        file.write("\n" if is_cut else "")
        futures = [pool.submit(judge_log, task) for task in tasks]
        for number, future in enumerate(as_completed(futures), start=1):
            for result in future.result():
                file.write(json.dumps(result) + "\n")
            file.flush()
            passed = time.monotonic() - begin
            if passed - shown > 20.0 or number == len(tasks):
                shown = passed
                left = passed / number * (len(tasks) - number)
                print(f"{number} of {len(tasks)} logs, {passed:.0f} s, about {left:.0f} s to go", flush=True)


def chosen_results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of the store that belong to what was asked for."""
    seeds = range(options.first_seed, options.first_seed + options.logs)
    wanted = {
        key_of(family, readings, seed, method, options.draws)
        for family in options.families
        for readings in options.readings
        for seed in seeds
        for method in options.methods
    }
    case_seeds = range(options.first_seed, options.first_seed + options.case_logs)
    wanted |= {case_key(name, seed) for name in CASES for seed in case_seeds}
    return [result for result in read_store(options.store) if result["key"] in wanted]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the page to write, if any")
    parser.add_argument("--store", type=Path, default=Path("runs/calibration.jsonl"))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--readings", default="5,30,200")
    parser.add_argument("--logs", type=int, default=100)
    parser.add_argument("--case-logs", type=int, default=0, help="logs of each worked case, fitted by `fit`")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument(
        "--methods", default="", help="those of log_methods.METHODS, without the prior on Q if left out"
    )
    parser.add_argument("--draws", type=int, default=2000, help="as `fit` does: half choose the policy, half report it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--modules", default="", help="modules to import first, which may add to METHODS")
    parser.add_argument("--summary", action="store_true", help="print what the store has, without judging more logs")
    options = parser.parse_args(arguments)
    options.modules = [name for name in options.modules.split(",") if name]
    for module in options.modules:
        import_module(module)
    fast = [name for name, method in METHODS.items() if method.most_logs is None]
    options.methods = [name for name in options.methods.split(",") if name] or fast
    options.families = options.families.split(",")
    options.readings = [int(number) for number in options.readings.split(",")]
    for kind, names, known in (("family", options.families, FAMILIES), ("method", options.methods, METHODS)):
        for name in names:
            if name not in known:
                parser.error(f"no {kind} {name!r}; there are {', '.join(known)}")
    return options


def main() -> None:
    options = read_options()
    last = options.first_seed + options.logs - 1
    purpose = "for claims" if options.first_seed >= CLAIMS else "for choosing settings: no claims from these"
    print(f"seeds {options.first_seed} to {last}, {purpose}", flush=True)
    if not options.summary:
        options.store.parent.mkdir(parents=True, exist_ok=True)
        tasks = list(open_tasks(options, {result["key"] for result in read_store(options.store)}))
        run(tasks, options.store, options.workers)
    results = chosen_results(options)
    if options.out:
        write_calibration_page(options.out, results, first_seed=options.first_seed, draws=options.draws)
        if options.out.resolve() == calibration_summary.PAGE:
            calibration_summary.main()
    print(summary_text(results))


if __name__ == "__main__":
    main()
