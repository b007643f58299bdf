"""`make bench`: every benchmark, in one page."""

from __future__ import annotations

import argparse

import learning_times
import speed
from result_page import write_page

INTRODUCTION = (
    "Learning times in episodes; speeds as ratios measured side by side in one run. Rebuilt by `make bench`.\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/benchmarks.md")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    sections = [
        learning_times.section(options.seeds),
        speed.leapfrog_against_blackjax(),
        speed.coordinates_compared(),
        speed.gradient_scaling(),
    ]
    write_page(options.out, "Benchmarks", INTRODUCTION, sections)


if __name__ == "__main__":
    main()
