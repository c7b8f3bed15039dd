"""Training runs in processes that can be killed at a chosen moment, forked from one that has imported everything already.

A moment is either the n-th time that the process is about to change a file of the workspace, which says it exactly and again,
or the seconds of computing that it has had, which a busy machine does not change.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
from tqdm import tqdm

from gamelora.config import GameLoraConfig
from gamelora.runs import run_names
from gamelora.training import resume_run, start_run

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changes_file(event, arguments, folder) -> bool:
    """Whether that event of Python's audit is a change of something in the folder."""
    if event == "open":
        path, _, flags = arguments
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder) and bool(flags & _WRITING)
    if event in ("os.rename", "os.mkdir"):
        return str(arguments[0]).startswith(folder)
    # shutil.rmtree names what it removes relative to an open folder
    return event in ("os.remove", "os.rmdir") and (arguments[1] != -1 or str(arguments[0]).startswith(folder))


def _work(workspace: str, name: str, config: str, log: str, kill_at: int | None) -> None:
    """Train the run or go on with it; die before the change number `kill_at`, counted from 1."""
    os.environ["GAMELORA_WORKSPACE"] = workspace
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the process ends with it)
    tqdm.set_lock(threading.RLock())  # its own lock outlives a killed process
    seen, told = 0, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def watch(event, arguments):
        nonlocal seen
        if not event.startswith(("os.", "open")) or not changes_file(event, arguments, workspace):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        published = event == "os.rename" and re.fullmatch(r".*/checkpoints/checkpoint-(\d+)", str(arguments[1]))
        if published:
            os.write(told, f"checkpoint {published[1]}\n".encode())

    sys.addaudithook(watch)
    if name in run_names():
        resume_run(name)
    else:
        start_run(name, GameLoraConfig.from_yaml(config))
    os.write(told, f"changes {seen}\nseconds {time.process_time()}\n".encode())


class Killable:
    """Runs of one workspace.

    Attributes
    ----------
    published : steps of the checkpoints that the last process put in their place; the last of them may have been about to be.
    changes, seconds : how many changes the last process made and how long it computed, when it came to its end.
    """

    def __init__(self, workspace: Path, config: GameLoraConfig) -> None:
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload([__name__])
        self.workspace, self.config = workspace, config
        self.published: list[int] = []
        self.changes, self.seconds = 0, 0.0

    def train(self, name: str, kill_at: int | None = None, kill_after: float | None = None) -> int | None:
        """Train or resume; returns how the process ended: 0, or -9 when it was killed."""
        log = self.workspace.parent / f"{name}.log"
        log.unlink(missing_ok=True)
        arguments = (str(self.workspace), name, self.config.to_yaml(), str(log), kill_at)
        process = self._processes.Process(target=_work, args=arguments)
        process.start()
        while kill_after is not None and process.is_alive():
            if _computed(process.pid) >= kill_after:
                process.kill()
            process.join(0.005)
        process.join()
        words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        self.published = [int(number) for what, number in words if what == "checkpoint"]
        self.changes = next((int(number) for what, number in words if what == "changes"), 0)
        self.seconds = next((float(number) for what, number in words if what == "seconds"), 0.0)
        return process.exitcode


def _computed(pid: int) -> float:
    """CPU seconds of a process, 0 when it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0
