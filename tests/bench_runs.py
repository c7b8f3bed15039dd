"""What the pages of runs cost the server: a live tick at 20,000 steps, and reading 50 runs of 2,000 steps.

python -m tests.bench bench_runs
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from gamelora.run_figures import overlay_figure
from gamelora.run_metrics import RunMetrics
from gamelora.run_table import overlay, run_row
from gamelora.runs import Run
from gamelora.training_figures import option_of, panels_of
from gamelora.training_jobs import look_all
from tests.made_up_runs import made_up_run, step_line

STEPS, RUNS, POINTS = 20_000, 50, 2_000
TICKS = 15


def run() -> Iterator[tuple[str, float, float, int]]:
    """Lines of `make bench`; CPU seconds of this process, for other tests may run beside it."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"GAMELORA_WORKSPACE": folder}):
        tick, whole = _live_tick(made_up_run("long", steps=STEPS))
        yield f"CPU of a live tick at {STEPS:,} steps / reading the file whole", tick / whole, 0.1, TICKS
        yield f"CPU of a live tick at {STEPS:,} steps / 50 ms", tick / 0.05, 1.0, TICKS
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"GAMELORA_WORKSPACE": folder}):
        for number in range(RUNS):
            made_up_run(f"run{number}", steps=POINTS, seed=number)
        first, second, size = _draws()
        yield f"CPU of the second draw of {RUNS} runs x {POINTS:,} points / the first", second / first, 0.2, 5
        yield f"the overlay of {RUNS} runs x {POINTS:,} points / 2 MB", size / 2e6, 1.0, 1


def _cpu(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def _live_tick(run: Run) -> tuple[float, float]:
    """Median CPU of reading on by two steps and making the chart, and of reading everything; alternated."""
    metrics = RunMetrics().read_on(run)
    ticks, wholes = [], []

    def tick() -> None:
        nonlocal metrics
        metrics = metrics.read_on(run)
        json.dumps(option_of(panels_of(metrics), metrics))

    tick()
    for number in range(TICKS):
        _append(run.folder, STEPS + 2 * number)
        ticks.append(_cpu(tick))
        if number % 3 == 0:
            wholes.append(_cpu(lambda: RunMetrics().read_on(run)))
    assert len(metrics.steps) == STEPS + 2 * TICKS
    return statistics.median(ticks), statistics.median(wholes)


def _append(folder: Path, steps: int) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(step_line(number, STEPS)) + "\n" for number in (steps + 1, steps + 2))


def _draws() -> tuple[float, float, int]:
    """CPU of reading and drawing all runs for the first time and again, and the size of the chart."""
    kept: dict[str, RunMetrics] = {}
    size = 0

    def read_and_draw() -> None:
        nonlocal size
        runs = look_all()
        for now in runs:
            kept[now.name] = kept.get(now.name, RunMetrics()).read_on(now.run)
        rows = [run_row(now, kept[now.name], None) for now in runs]
        assert len(rows) == RUNS and all(row.final_ce for row in rows)
        size = len(overlay_figure(overlay(kept, "loss/ce", 0.9), "Cross-entropy").to_json())

    first = _cpu(read_and_draw)
    return first, statistics.median(_cpu(read_and_draw) for _ in range(5)), size
