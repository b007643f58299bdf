"""`make tables`: every agent on Deep Sea, with limits, into stores that resume; a page from whatever is finished."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qposterior.experiments.compare import Comparison, read_comparison, run_grid
from qposterior.experiments.metrics import bsuite_learning_time
from qposterior.experiments.run_spec import RunSpec
from qposterior.experiments.statistics import summarise_runs
from qposterior.report.compare_report import learning_time_plot, scaling_laws
from qposterior.report.figures import to_png
from result_page import table, write_page

PLANNERS = ("psrl", "rlsvi", "ucbvi")
MODEL_FREE = ("q-learning", "bayesian-q-learning")
FAST = ("abrl", "abrl-iid", "psrl-deterministic", "r-max")
DEEP = ("bootstrapped-dqn", "bootstrapped-dqn-no-prior")
ANNEALED = ("abrl-paper", "abrl-fixed")
TEN_MINUTES = 600.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Runs that go into one store; stages are run in the order of their cost."""

    store: str
    agents: tuple[str, ...]
    depths: tuple[int, ...]
    seeds: int
    episodes: int = 1000
    timeout: float | None = TEN_MINUTES
    variant: str = "paper"

    def specs(self) -> list[RunSpec]:
        return [
            self.spec(agent, depth, seed)
            for depth in self.depths
            for seed in range(self.seeds)
            for agent in self.agents
        ]

    def spec(self, agent: str, depth: int, seed: int, **more: Any) -> RunSpec:
        return RunSpec(
            agent=agent,
            environment="deep-sea",
            depth=depth,
            seed=seed,
            episodes=self.episodes,
            timeout=self.timeout,
            env_options={"variant": self.variant},
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class UBEStage(Stage):
    """PSRL as the study of uncertainty Bellman equations sets it: N(0, 1) rewards, unit noise, counted depth times."""

    def spec(self, agent: str, depth: int, seed: int, **more: Any) -> RunSpec:
        # A Normal-Gamma whose precision is 1 to six digits.
        options = {"repeats": depth, "shape": 1e12, "rate": 1e12, "reward_mean": 0.0, "mean_count": 1.0}
        return super().spec(agent, depth, seed, agent_options=options, label="psrl, UBE settings", **more)


SIZES = tuple(range(10, 51, 2))  # bsuite's sweep
STAGES = (
    Stage(store="paper", agents=FAST, depths=(5, 10, 20, 30, 40), seeds=20, episodes=3000),
    Stage(store="paper", agents=MODEL_FREE, depths=(5, 10, 20, 30, 40), seeds=20),
    Stage(store="paper", agents=PLANNERS, depths=(5, 10, 20, 30, 40), seeds=20),
    Stage(store="paper", agents=ANNEALED, depths=(5, 10), seeds=20),
    Stage(store="paper", agents=DEEP, depths=(5, 10, 20), seeds=5),
    UBEStage(store="ube", agents=("psrl",), depths=(10, 15, 20, 25, 30), seeds=10, episodes=3000),
    Stage(store="score", agents=FAST, depths=SIZES, seeds=1, episodes=10_000, variant="bsuite"),
    Stage(store="bsuite", agents=FAST, depths=(10, 20, 30, 40), seeds=20, episodes=3000, variant="bsuite"),
    Stage(store="bsuite", agents=DEEP, depths=(10, 20), seeds=5, variant="bsuite"),
    Stage(store="bsuite", agents=MODEL_FREE, depths=(10, 20, 30, 40), seeds=20, variant="bsuite"),
    Stage(store="bsuite", agents=PLANNERS, depths=(10, 20, 30, 40), seeds=20, variant="bsuite"),
    Stage(
        store="score",
        agents=("q-learning", "psrl"),
        depths=SIZES,
        seeds=1,
        episodes=10_000,
        timeout=300.0,
        variant="bsuite",
    ),
    Stage(store="bsuite", agents=ANNEALED, depths=(10,), seeds=5, variant="bsuite"),
    # Beyond depth 15 ten minutes are not enough for the annealed samplers: one run each, to show it.
    Stage(store="paper", agents=ANNEALED, depths=(15,), seeds=2),
    Stage(store="paper", agents=ANNEALED, depths=(20, 30, 40), seeds=1),
    Stage(store="bsuite", agents=ANNEALED, depths=(20, 30, 40), seeds=1, variant="bsuite"),
)
PRINTED = {"abrl-paper": "d^3.4", "abrl-fixed": "d^3.6", "psrl": "d^6.8", "psrl, UBE settings": "d^2.1 (UBE study)"}
"""What the paper (or the study named) has for the exponent."""
READING = (
    "Mean learning time in episodes [95 % bootstrap interval] (solved runs / runs). “≥” and hollow triangles: runs "
    "that did not learn within their limit count at the episodes they had, so the mean is a lower bound; exponents "
    "(dotted lines) take them as censored. Limits: 10 minutes a run and 1,000 episodes (3,000 for abrl, "
    "psrl-deterministic, r-max and PSRL with the UBE settings). r-max knows the transitions, psrl, rlsvi and ucbvi "
    "count successors, q-learning, bayesian-q-learning and the networks are model-free, the rest is shown the row of "
    "a pair on its first visit. abrl-fixed settles its tolerance in the first 40 updates, which at depth 10 is the "
    "whole run: there it is abrl-paper. In the paper variant action 0 is right in every cell, which helps the "
    "networks (an untrained one tends to prefer one action everywhere); in the bsuite variant the right action is "
    "drawn per cell. Seconds are wall-clock, beside other runs.\n"
)


def cell(row: Any) -> str:
    bound = "" if row["solved"] == row["runs"] else "≥ "
    interval = f" [{row['low']:.0f}, {row['high']:.0f}]" if row["runs"] > 1 else ""
    return f"{bound}{row['mean']:.0f}{interval} ({row['solved']}/{row['runs']})"


def learning_times(heading: str, found: Comparison, image: Path) -> tuple[str, str]:
    """Return a section: the figure, which is written to `image`, and the table."""
    laws = scaling_laws(found.runs[found.runs["status"] != "failed"])
    summary = summarise_runs(found.runs)
    depths = sorted(summary["depth"].unique())
    rows = []
    for name, group in summary.groupby("agent"):
        agent = str(name)
        cells = {row["depth"]: cell(row) for _, row in group.iterrows()}
        seconds = " / ".join(f"{s:.0f}" if s >= 10 else f"{s:.2g}" for s in group.sort_values("depth")["seconds"])
        slope = laws[agent][1] if agent in laws else None
        exponent = "–" if slope is None else f"{slope.value:.2f} [{slope.low:.2f}, {slope.high:.2f}]"
        rows.append((agent, *(cells.get(d, "–") for d in depths), exponent, PRINTED.get(agent, "–"), seconds))
    header = ("agent", *(f"depth {d}" for d in depths), "exponent [95 %]", "printed", "seconds a run, by depth")
    image.parent.mkdir(exist_ok=True)
    image.write_bytes(to_png(learning_time_plot(summary, laws).figure()))
    shown = f"![Learning time over depth]({image.parent.name}/{image.name})\n\n"
    return heading, shown + table(header, rows)


def score(found: Comparison) -> tuple[str, str]:
    runs = found.runs.set_index(["agent", "depth"])
    solved: dict[str, dict[int, int | None]] = {}
    for (agent, depth), group in found.episodes.groupby(["agent", "depth"]):
        bad = group.sort_values("episode")["bad"].to_numpy(bool)
        solved.setdefault(str(agent), {})[int(depth)] = bsuite_learning_time(bad)
    rows = []
    for agent, times in solved.items():
        missing = [depth for depth in SIZES if depth not in times]
        share = sum(time is not None for time in times.values()) / len(SIZES)
        stopped = [str(d) for d, t in times.items() if t is None]
        names = "all" if len(stopped) == len(times) else ", ".join(stopped) or "none"
        limits = sum(runs.loc[(agent, d), "status"] == "timeout" for d in times)
        largest = max((d for d, t in times.items() if t is not None), default="–")
        rows.append((agent, f"{share:.2f}", largest, names, limits, len(missing)))
    header = ("agent", "score", "largest size solved", "sizes not solved", "stopped by the clock", "sizes not run")
    text = (
        "Share of the sizes 10, 12, …, 50 solved by bsuite's rule (fewer than 90 % bad episodes so far) within 10,000 "
        "episodes, one seed a size, 10 minutes a run (5 for q-learning and psrl).\n\n"
    )
    return "The bsuite score of Deep Sea", text + table(header, rows)


def sections(folder: Path, images: Path) -> Iterator[tuple[str, str]]:
    headings = {
        "paper": "Deep Sea, paper variant",
        "bsuite": "Deep Sea, bsuite variant",
        "ube": "PSRL with the settings of the UBE study",
    }
    for name, heading in headings.items():
        if (folder / name / "runs.sqlite").exists():
            yield learning_times(heading, read_comparison(folder / name), images / f"{name}.png")
    if (folder / "score" / "runs.sqlite").exists():
        yield score(read_comparison(folder / "score"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=Path, default=Path("runs/tables"), help="where the stores are")
    parser.add_argument("--out", required=True, help="the page")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is finished")
    parser.add_argument("--stages", type=int, nargs="*", help="numbers of the stages to run, from 0; all unless given")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    chosen = range(len(STAGES)) if options.stages is None else options.stages
    for stage in () if options.page_only else [STAGES[number] for number in chosen]:
        run_grid(
            stage.specs(),
            out=options.stores / stage.store,
            workers=options.workers,
            resume=True,
            progress_fn=lambda done, all_runs, row: print(
                done,
                all_runs,
                row["agent"],
                row["depth"],
                row["seed"],
                row["status"],
                row.get("learning_time"),
                flush=True,
            ),
        )
    wanted = sum(len(stage.specs()) for stage in STAGES)
    stores = [options.stores / name for name in {stage.store for stage in STAGES}]
    done = sum(len(read_comparison(store).runs) for store in stores if (store / "runs.sqlite").exists())
    left = f" So far {done:,} of {wanted:,} runs have been made." if done < wanted else ""
    introduction = (
        "What each agent needs to learn Deep Sea. Rebuilt by `make tables`, which takes about four hours on two cores, "
        f"can be stopped at any moment and goes on where it was.{left}\n\n{READING}"
    )
    images = Path(options.out).with_suffix("")
    write_page(options.out, "Results on Deep Sea", introduction, list(sections(options.stores, images)))


if __name__ == "__main__":
    main()
