"""The process beside each job's worker: waits for its turn, runs it, sees to its end and writes how that was.

    python -m gamelora.supervisor FOLDER LOCK

is spawned by `gamelora.jobs.start` with the locked file descriptor LOCK of FOLDER/alive, and needs no other process after that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from analysis.progress import JOB_DIR_VARIABLE
from gamelora import jobs
from gamelora.job_log import tail, why_failed
from gamelora.job_processes import find_processes, locked, signal_all

_POLL_SECONDS = 0.1
_QUEUE_SECONDS = 0.25
_LEFT_SECONDS = 5.0  # that the processes which a worker leaves behind are given to end
_LINES_JUDGED = 200
_FULL_BYTES = 64 * 1024


def supervise(folder: Path, lock: int) -> None:
    """Run the job of `folder` to its end. `lock` is shared with the worker, so that the job lives while either does."""
    with locked():
        if not folder.is_dir():
            return  # whoever started this died before the job was there
    worker, started = _take_turn(folder, lock)
    # Not SIG_IGN, which a worker would inherit. A machine that shuts down ends the worker itself; this stays to note it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    code = _see_to_end(worker, folder)
    known = {"started": started, "finished": time.time(), "pid": worker.pid, "exit_code": code}
    if jobs.stop_request(folder) is not None:
        jobs.write_status(folder, "stopped", **known)
    elif code == 0:
        jobs.write_status(folder, "done", **known)
    else:
        free = shutil.disk_usage(folder).free
        error = why_failed(code, tail(folder / "log.txt", _LINES_JUDGED))
        if free < _FULL_BYTES and not error.startswith("disk full"):  # then the worker could not even say it in its log
            error = f"disk full: {free // 1024} KiB are left for {folder}; {error}"
        jobs.write_status(folder, "failed", error=error, **known)


def _take_turn(folder: Path, lock: int) -> tuple[subprocess.Popen, float]:
    """Wait until it is the job's turn, then start its worker. Returns it, and when that was."""
    while True:
        if place := _place(folder):
            time.sleep(_QUEUE_SECONDS * min(place, 8))  # the further back, the rarer it looks
            continue
        with locked():
            if _place(folder) == 0:
                return _start_worker(folder, lock)


def _place(folder: Path) -> int:
    """0 when it is the job's turn, otherwise its place in the queue, from 1. Ends this process when the job is in no queue."""
    live = [job for job in jobs.jobs() if job.live]
    own = next((job for job in live if job.id == folder.name and job.state == "queued"), None)
    if own is None:
        sys.exit("error: the files of this job were changed while it waited for its turn; start it again.")
    name, limit = jobs.lane(own.device)
    live = [job for job in live if jobs.lane(job.device)[0] == name]
    waiting = [job for job in live if job.state == "queued"]
    ahead = sum((job.rank, job.id) < (own.rank, own.id) for job in waiting)
    return 0 if ahead == 0 and len(live) - len(waiting) < limit else ahead + 1


def _start_worker(folder: Path, lock: int) -> tuple[subprocess.Popen, float]:
    started = time.time()
    # Written before and after: killed between the two, the job reads as failed and not as waiting for ever.
    jobs.write_status(folder, "running", started=started)
    env = os.environ | {JOB_DIR_VARIABLE: str(folder)}
    worker = subprocess.Popen(jobs.get(folder.name).argv, env=env, stdin=subprocess.DEVNULL, pass_fds=[lock])
    jobs.write_status(folder, "running", started=started, pid=worker.pid)
    return worker, started


def _see_to_end(worker: subprocess.Popen, folder: Path) -> int:
    """The worker's exit code, when it and all that it started are gone: by themselves, or because a stop was asked for."""
    told = None  # when they were sent SIGTERM
    while True:
        time.sleep(_POLL_SECONDS)
        code, asked = worker.poll(), jobs.stop_request(folder)
        overdue = 0.0 if told is None else time.monotonic() - told - (_LEFT_SECONDS if asked is None else asked[1])
        waits = asked is None or asked[0] > 0 or (told is not None and overdue < 0)
        if code is None and waits:
            continue  # it works, or still has time to end
        left = find_processes(folder)[1]
        if code is not None and (not left or overdue > jobs.KILL_SECONDS):
            return code
        if told is None:
            told = time.monotonic()
            signal_all(left, signal.SIGTERM)
        elif overdue >= 0:
            signal_all(left, signal.SIGKILL)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))
