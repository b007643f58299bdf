"""`make bench`: the benchmarks, in two pages: speed of the samplers, and the exploring agents."""

from __future__ import annotations

import argparse

import agents
import bias
import learning_times
import speed
from result_page import replace_sections, write_page

PAGES = {
    "speed": (
        "Benchmarks",
        "Learning times of the baselines in episodes; speeds as ratios measured side by side in one run. Rebuilt by "
        "`make bench`.\n",
        (
            learning_times.section,
            speed.leapfrog_against_blackjax,
            speed.coordinates_compared,
            speed.gradient_scaling,
            speed.gradients_in_blocks,
            bias.section,
            speed.workers_stay_busy,
            speed.solving_models,
            speed.fitting_logs,
            speed.reading_logs,
            speed.start_up,
            speed.first_use,
        ),
    ),
    "agents": (
        "Exploring agents",
        "Learning times in episodes with 95 % bootstrap intervals over seeds. Rebuilt by `make bench`.\n",
        agents.SECTIONS,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--only", action="append", help="remake only this section of --out, as in --only other_problems"
    )
    options = parser.parse_args()
    title, introduction, section_fns = PAGES[options.page]
    by_name = {section_fn.__name__: section_fn for section_fn in section_fns}
    if options.only is None:
        write_page(options.out, title, introduction, [section_fn() for section_fn in section_fns])
    elif set(options.only) <= by_name.keys():
        replace_sections(options.out, [by_name[name]() for name in options.only])
    else:
        parser.error(f"--only: the sections of {options.page} are {', '.join(by_name)}")


if __name__ == "__main__":
    main()
