"""`make bench`: measured ratios, one line each: name, ratio, target, number of alternated runs.

Each ratio compares two things in one run, alternated, and takes the median of the pairs, because a shared machine is noisy.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable

MODULES = ("bench_interaction", "bench_coalitions", "bench_hallucination", "bench_training", "bench_runs")


def ratio(measured: Callable[[], object], reference: Callable[[], object], runs: int) -> float:
    """Median over `runs` of the time of `measured` over the time of `reference`, alternated, after one warm-up of each."""
    reference()
    measured()
    ratios = []
    for run in range(runs):
        pair = [(reference, "reference"), (measured, "measured")]
        seconds = {}
        for function, name in pair if run % 2 == 0 else reversed(pair):
            start = time.perf_counter()
            function()
            seconds[name] = time.perf_counter() - start
        ratios.append(seconds["measured"] / seconds["reference"])
    return statistics.median(ratios)


def main(names: list[str]) -> int:
    """Run the named bench modules, or all; 1 when a target is missed."""
    missed = 0
    for name in names or MODULES:
        for line, value, target, runs in importlib.import_module(f"tests.{name}").run():
            missed += value > target
            print(f"{line:<78} {value:8.3g}  target {target:g}  n={runs}{'' if value <= target else '  MISSED'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
