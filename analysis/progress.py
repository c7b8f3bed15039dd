"""Progress of long work: counted once, shown in the terminal and written where a dashboard can read it.

A program that runs as a job of the dashboard finds the job's folder in `GAMELORA_JOB_DIR` and keeps `progress.json` there;
started by hand it only draws the bar. The file is replaced whole, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from analysis.workspace import atomic_write

T = TypeVar("T")

JOB_DIR_VARIABLE = "GAMELORA_JOB_DIR"
_SECONDS_BETWEEN_WRITES = 0.25


def report(stage: str, done: float = 0, total: float | None = None, unit: str = "") -> None:
    """Tell the dashboard, when this process is one of its jobs, what is being done and how far it is.

    `stage` is a short phrase for people ("loading the model"); `done` of `total` counts `unit`s, `total=None` says that
    the length is not known.
    """
    folder = os.environ.get(JOB_DIR_VARIABLE)
    if folder:
        state = {"stage": stage, "done": done, "total": total, "unit": unit, "time": time.time()}
        atomic_write(Path(folder) / "progress.json", json.dumps(state))


def track(items: Iterable[T], stage: str, total: int, unit: str, shown: bool = True) -> Iterator[T]:
    """Iterate with a progress bar on stderr and, inside a job, progress.json at most four times a second."""
    last = 0.0
    report(stage, 0, total, unit)
    for done, item in enumerate(tqdm(items, desc=stage, total=total, unit=unit, disable=not shown), start=1):
        yield item
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_WRITES or done == total:
            report(stage, done, total, unit)
            last = now


