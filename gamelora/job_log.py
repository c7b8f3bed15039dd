"""What a job's log says: its last lines, and why the job failed, in one sentence."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")  # terminal colours, and what no page can show

# A line that a program ends with: `error: ...` of our command lines, the last line of a Python traceback, or C++'s word.
_SAID = re.compile(r"(?:\[rank\d+\]:\s*)?(?P<said>error: .+|(?:\w+\.)*\w*(?:Error|Exception)\b.*|terminate called.+)")
_LAUNCHER = re.compile(r"CalledProcessError|ChildFailedError")  # says only that a process below it failed
_KILLED_BELOW = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)")  # Accelerate's report on one of several processes
_CAUSES = {
    "out of memory": re.compile(
        r"MemoryError|OutOfMemory|out of memory|can(?:'|no)t allocate memory|not enough memory|ALLOC_FAILED|bad_alloc",
        re.IGNORECASE,
    ),
    "disk full": re.compile(r"No space left on device|Errno 28\b|os error 28\b|Disk quota exceeded"),
}
KILLED_BY_SIGNAL = "killed by signal 9 (often the system running out of memory)"
_LOST = "it was ended from outside before its outcome was written (kill -9, a restart of the machine)"


def tail(path: str | os.PathLike, lines: int = 30) -> list[str]:
    """The last lines of a log as a terminal would show them, at most `lines`; [] when there is no log.

    Reads at most the last 64 KiB. A line that was overwritten (progress bars) shows its last state; colours and control
    characters are left out; bytes that are not UTF-8 become U+FFFD.
    """
    if not Path(path).is_file():
        return []
    with open(path, "rb") as log:
        start = max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES)
        log.seek(start)
        rows = log.read(_TAIL_BYTES).decode("utf-8", errors="replace").split("\n")
    if start and len(rows) > 1:
        rows = rows[1:]  # the first one lost its beginning
    rows = [_CONTROL.sub("", row.rstrip("\r").rsplit("\r", 1)[-1]).rstrip() for row in rows]
    while rows and not rows[-1]:
        rows.pop()
    return rows[max(0, len(rows) - lines) :]


def why_failed(exit_code: int | None, rows: list[str]) -> str:
    """Why a program failed, in one sentence, from its exit code and the last lines of its log.

    `exit_code` is negative for a signal, as `subprocess` gives it, and None when nobody was left to see the end.
    """
    last = next((row for row in reversed(rows) if row), "")
    if exit_code is None:
        rows = [last]  # what stands further up may have been overcome
    elif exit_code == -signal.SIGKILL or any(_KILLED_BELOW.search(row) for row in rows):
        return KILLED_BY_SIGNAL
    said = [found["said"] for row in rows if (found := _SAID.match(row)) and not _LAUNCHER.search(row)]
    for cause, pattern in _CAUSES.items():
        for row in reversed(said):
            if pattern.search(row):
                return _short(f"{cause}: {row.removeprefix('error: ')}")
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code} ({signal.strsignal(-exit_code) or 'unknown'})"
    for row in reversed(said):
        if row.startswith("error: "):
            return _short(row.removeprefix("error: "))
    if exit_code is None:
        return _short(f"{_LOST}; the last line of its log: {last}" if last else _LOST)
    line = said[-1] if said else last
    return _short(f"exit code {exit_code}: {line}" if line else f"exit code {exit_code}, and its log is empty")


def _short(sentence: str, length: int = 500) -> str:
    return sentence if len(sentence) <= length else sentence[: length - 1] + "…"
