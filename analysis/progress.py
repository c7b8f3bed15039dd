"""Progress of long work: counted once, shown in the terminal and written where a dashboard can read it.

A program that runs as a job of the dashboard finds the job's folder in `GAMELORA_JOB_DIR` and keeps `progress.json` there;
started by hand it only draws the bar. The file is replaced whole, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from analysis.workspace import atomic_write

T = TypeVar("T")

JOB_DIR_VARIABLE = "GAMELORA_JOB_DIR"
_FILE = "progress.json"
_SECONDS_BETWEEN_WRITES = 0.25
_SECONDS_BETWEEN_LOG_LINES = 10.0  # of the bar, when it goes into a file

_began: dict[str, tuple[float, float, float | None]] = {}  # stage -> time and count at its start, and its last count
_written: tuple[str | None, float] = (None, 0.0)  # the stage of the last write, and when that was


@dataclass(frozen=True)
class Progress:
    """How far a job is: `done` of `total` `unit`s of a `stage`.

    `total` is None when the length is not known; `time` is when this was written and `began`, `done_at_start` when the
    stage began and at which count (not 0 in a run that was resumed), in Unix seconds. `Progress()` says that nothing was
    reported yet.
    """

    stage: str = ""
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    time: float | None = None
    began: float | None = None
    done_at_start: float = 0.0

    @property
    def fraction(self) -> float | None:
        """Part of the stage that is done, 0 to 1; None when the length is not known."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None

    def remaining(self, now: float | None = None) -> float | None:
        """Seconds until the stage ends, at its mean speed so far; None before one unit is done or without a total.

        Counts down between two reports, so that slow steps do not make the time stand still.
        """
        counted = self.done - self.done_at_start
        if not self.total or counted <= 0 or self.time is None or self.began is None:
            return None
        seconds = (self.time - self.began) * (self.total - self.done) / counted
        return max(0.0, seconds - ((time.time() if now is None else now) - self.time))


def report(stage: str, done: float = 0, total: float | None = None, unit: str = "") -> None:
    """Tell the dashboard, when this process is one of its jobs, what is being done and how far it is.

    `stage` is a short phrase for people ("loading the model"); `done` of `total` counts `unit`s, `total=None` says that
    the length is not known. It may be called at every step: what comes within a quarter of a second of the last write is
    left out, unless the stage is new or complete. Of several processes that share the work only the first one reports.
    """
    global _written
    folder = os.environ.get(JOB_DIR_VARIABLE)
    if not folder or os.environ.get("RANK", "0") != "0":
        return
    now = time.time()
    began, done_at_start, last = _began.get(stage, (now, done, done))
    if done < last:  # the same stage anew, for the next checkpoint
        began, done_at_start = now, done
    _began[stage] = began, done_at_start, done
    if stage == _written[0] and done != total and 0 <= now - _written[1] < _SECONDS_BETWEEN_WRITES:
        return
    _written = stage, now
    state = {"stage": stage, "done": done, "total": total, "unit": unit, "time": now}
    atomic_write(Path(folder) / _FILE, json.dumps(state | {"began": began, "done_at_start": done_at_start}))


def track(items: Iterable[T], stage: str, total: int, unit: str, shown: bool = True) -> Iterator[T]:
    """Iterate with a progress bar on stderr (`shown`) and, inside a job, progress.json at most four times a second.

    When stderr is a file, the bar is written every ten seconds only.
    """
    from tqdm import tqdm  # here, because the pages import this file only to read

    pause = 0.1 if sys.stderr.isatty() else _SECONDS_BETWEEN_LOG_LINES
    report(stage, 0, total, unit)
    for done, item in enumerate(tqdm(items, desc=stage, total=total, unit=unit, disable=not shown, mininterval=pause), start=1):
        yield item
        report(stage, done, total, unit)


def read_progress(folder: str | os.PathLike) -> Progress:
    """What the job of that folder reported last; `Progress()` when it has not, or when the file is damaged."""
    try:
        state = json.loads((Path(folder) / _FILE).read_bytes())
        numbers = [state["done"], state["total"], state["time"], state["began"], state["done_at_start"]]
        done, total, written, began, done_at_start = (None if number is None else float(number) for number in numbers)
        return Progress(str(state["stage"]), done or 0.0, total, str(state["unit"]), written, began, done_at_start or 0.0)
    except (OSError, ValueError, KeyError, TypeError):  # progress is a comfort: without it the job still has its state
        return Progress()
