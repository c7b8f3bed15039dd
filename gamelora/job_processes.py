"""Locks and processes of the jobs: who may change them now, whether one is alive, what belongs to it, and how to end that.

POSIX only (Linux, macOS). Locks are `flock`: the kernel frees those of a process that dies, and a child may share its parent's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from analysis.progress import JOB_DIR_VARIABLE
from analysis.workspace import workspace_dir, workspace_root

SUPERVISOR = "gamelora.supervisor"
_LOCK_SECONDS = 10.0  # every use of the workspace's lock takes milliseconds
_spawned: list[subprocess.Popen] = []  # supervisors of this process, kept to collect them when they end


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """The jobs folder of the workspace while no other thread or process starts, stops, moves or begins a job.

    Raises OSError when the folder cannot be written, TimeoutError when someone holds the lock for ten seconds.
    """
    with writing():
        root = workspace_dir("jobs")
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not until(lambda: _try_lock(lock, fcntl.LOCK_EX), _LOCK_SECONDS):
            raise TimeoutError(f"another process keeps the jobs locked: end it (fuser {root}/.lock names it) and try again.")
        yield root
    finally:
        os.close(lock)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Say of an OSError inside that it is the workspace which cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"the workspace {workspace_root()} cannot be written ({error.strerror}): free space or allow writing there, "
            "or set GAMELORA_WORKSPACE to another folder."
        ) from error


def is_alive(folder: Path) -> bool:
    """Whether any process of the job exists. Only looks: takes a shared lock and gives it back at once."""
    try:
        lock = os.open(folder / "alive", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def spawn_supervisor(hidden: Path, folder: Path, env: dict[str, str]) -> None:
    """Start the supervisor of `folder`, which is still called `hidden`, as a session of its own.

    It inherits the lock on `alive`, so that there is no moment at which the job looks dead. It first takes the workspace's
    lock, which the caller holds until the folder has its name.
    """
    env = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"} | env
    env.pop(JOB_DIR_VARIABLE, None)
    env["GAMELORA_WORKSPACE"] = str(workspace_root())
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), env.get("PYTHONPATH")]))
    _spawned[:] = [process for process in _spawned if process.poll() is None]
    lock = os.open(hidden / "alive", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(hidden / "log.txt", "ab") as log:
            command = [sys.executable, "-m", SUPERVISOR, str(folder), str(lock)]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            _spawned.append(subprocess.Popen(command, env=env, pass_fds=[lock], start_new_session=True, **streams))
    finally:
        os.close(lock)


def find_processes(folder: Path) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The job's supervisor (none or one), and its worker with everything that the worker started.

    The latter by the environment that they inherit: that also finds what left the process group (the processes of
    `accelerate launch`) or lost its parent, and never a stranger. Zombies are not among them.
    """
    supervisors, workers = [], []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or belongs to another user
            if process.environ().get(JOB_DIR_VARIABLE) == str(folder):
                workers.append(process)
            elif process.cmdline()[1:4] == ["-m", SUPERVISOR, str(folder)]:
                supervisors.append(process)
    return supervisors, [process for process in workers if process.pid != os.getpid()]


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those processes that still are what they were when they were found."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def until(condition: Callable[[], bool], seconds: float, pause: float = 0.02) -> bool:
    """Wait until the condition holds, at most so long; whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
