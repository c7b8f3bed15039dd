"""Long work as jobs: each a process of its own with its state on disk, so that no page, tab or server is needed to keep it.

A job is the folder `workspace/jobs/<id>/`:

    job.json       what runs; written once, before the folder appears under its name
    status.json    queued, running, done, failed or stopped; replaced whole, never edited
    stop.json      appears when someone asked for the job's end
    progress.json  how far it is (analysis/progress.py, written by the worker)
    log.txt        all that it prints
    reserve        some room on the disk for the last status.json, should the disk be full by then
    alive          a file that the job's own processes hold locked

Three processes take part. Whoever calls `start` makes the folder and spawns a supervisor (gamelora/supervisor.py), which waits
for its turn, runs the worker as its child and writes how it ended. Supervisor and worker share the lock on `alive`; the kernel
drops it with the last of them, at any kind of death. A job is therefore alive exactly as long as that lock is held: no process
id is trusted, which may be dead, a zombie or someone else's by now.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from analysis.progress import JOB_DIR_VARIABLE, Progress, read_progress
from analysis.workspace import atomic_write, safe_name, workspace_root
from gamelora.job_log import tail, why_failed
from gamelora.job_processes import find_processes, is_alive, locked, signal_all, spawn_supervisor, until, writing

AT_ONCE_VARIABLE = "GAMELORA_JOBS_AT_ONCE"
KILL_SECONDS = 5.0  # that the system is given to end a process after SIGKILL
_RESERVE_BYTES = 16 * 1024
_FORMAT = 1  # of job.json and status.json
_ENDED = ("done", "failed", "stopped")
_STATES = ("queued", "running", *_ENDED)
_ended: dict[Path, tuple[list[int], Job]] = {}  # jobs that will not change any more, with the times of the files they stand in


@dataclass(frozen=True)
class Job:
    """One job as it stands on disk. Times are Unix seconds."""

    id: str  # also the folder's name; sorts by creation
    target: str  # what it makes, "interaction:<result name>"; at most one live job a target
    title: str
    argv: list[str]  # the exact command
    folder: Path
    state: str  # one of _STATES
    error: str | None = None  # one sentence, when failed or when its status is damaged
    device: str = ""  # as given to `start`
    created: float | None = None
    started: float | None = None  # None while it waits for its turn
    finished: float | None = None
    stopping: bool = False  # live, but its end was asked for
    pid: int | None = None  # of the worker, for people: it is only sure while the job runs
    exit_code: int | None = None  # negative: that signal; None: not ended, or nobody saw it
    rank: float = 0.0  # the queue goes by it
    progress: Progress = field(default_factory=Progress)

    @property
    def live(self) -> bool:
        """Whether it is queued or running."""
        return self.state not in _ENDED

    @property
    def elapsed(self) -> float:
        """Seconds since its worker began, until its end; 0 before."""
        return 0.0 if self.started is None else max(0.0, (self.finished or time.time()) - self.started)

    @property
    def remaining(self) -> float | None:
        """Seconds until the present stage ends; None when that cannot be said."""
        return self.progress.remaining() if self.state == "running" else None


def jobs() -> list[Job]:
    """All jobs of the workspace, newest first. A damaged one is there as failed and says why."""
    root = workspace_root() / "jobs"
    if not root.exists():
        return []
    folders = sorted((path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir()), reverse=True)
    return [job for job in map(_read, folders) if job.target or job.folder.exists()]  # not one removed while we read it


def get(job_id: str) -> Job:
    """The job of that id. Raises ValueError when there is none."""
    folder = workspace_root() / "jobs" / safe_name(job_id, "job id")
    if not folder.is_dir():
        raise ValueError(f"there is no job {job_id!r} in {folder.parent}: it may have been removed; choose one from the list.")
    return _read(folder)


def latest(target: str) -> Job | None:
    """The newest job of that target, whatever its state."""
    return next((job for job in jobs() if job.target == target), None)


def live_job(target: str) -> Job | None:
    """The job of that target that is queued or running."""
    return next((job for job in jobs() if job.target == target and job.live), None)


def queue() -> list[Job]:
    """The jobs that wait for their turn, next one first."""
    return sorted((job for job in jobs() if job.state == "queued"), key=lambda job: (job.rank, job.id))


def log_tail(job_id: str, lines: int = 30) -> str:
    """The last lines of the job's log; "" when there is none. Reads only the file's end."""
    return "\n".join(tail(get(job_id).folder / "log.txt", lines))


def lane(device: str) -> tuple[str, int]:
    """Which jobs a job of that device waits for (a name that they share), and how many of them run at once.

    `GAMELORA_JOBS_AT_ONCE` is a number (default 1) for all jobs together; a device named in it has a lane of its own:
    "1,cuda:1=1,cpu=2". Raises ValueError when it reads otherwise.
    """
    text = os.environ.get(AT_ONCE_VARIABLE) or "1"
    limits = {"": 1}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(?:(\S+?)\s*=\s*)?([1-9][0-9]{0,3})\s*", part)
        if not found:
            raise ValueError(
                f"{AT_ONCE_VARIABLE}={text!r} cannot be read: expected how many jobs run at once, such as 1, "
                "and for devices with a lane of their own also device=number, such as 1,cuda:1=1."
            )
        limits[found[1] or ""] = int(found[2])
    name = device if device in limits else ""
    return name, limits[name]


def start(target: str, title: str, module_args: list[str], env: dict[str, str] | None = None, device: str = "") -> Job:
    """Run `python -m <module_args...>` as a job, or return the live job of that target when there is one.

    The worker starts in the present directory, with this environment plus `env` (which is not kept on disk) and this
    program's modules importable, when its turn has come (see `lane`). A worker must not wait for a job that it starts.

    Raises
    ------
    ValueError
        When `target` or `module_args` is empty, or GAMELORA_JOBS_AT_ONCE cannot be read.
    OSError
        When the workspace cannot be written.
    """
    if not target or not module_args:
        raise ValueError(f"a job needs a target and the arguments of python -m; given were {target!r} and {module_args!r}.")
    lane(device)
    with locked() as root:
        live = live_job(target)
        if live:
            return live
        created = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created)) + f"-{int(created % 1 * 1e6):06d}"
        folder = root / f"{stamp}-{re.sub('[^A-Za-z0-9._-]+', '-', target)[:70]}"
        hidden = root / f".new-{folder.name}"
        argv = [sys.executable, "-m", *module_args]
        spec = {"target": target, "title": title, "argv": argv, "device": device, "created": created}
        with writing():
            for leftover in root.glob(".*-*"):  # of a start or a removal that was killed half-way; nobody else is at work now
                shutil.rmtree(leftover)
            hidden.mkdir()
            atomic_write(hidden / "job.json", json.dumps({"format": _FORMAT} | spec, indent=1))
            atomic_write(hidden / "reserve", os.urandom(_RESERVE_BYTES))
            write_status(hidden, "queued", rank=created)
        spawn_supervisor(hidden, folder, env or {})
        hidden.rename(folder)
    return _read(folder)


def stop(job_id: str, grace: float = 5.0, wait: bool = True, patience: float = 0.0) -> Job:
    """End a job with all its processes: SIGTERM, `grace` seconds, SIGKILL. A job that is not live is returned as it is.

    For `patience` seconds before that the worker may end by itself, when it looks at `stop_asked`. With `wait=False` it
    only asks: the supervisor does the rest, and the job reads as `stopping` until it is "stopped". A second call changes
    both times; the grace counts from SIGTERM.

    Raises
    ------
    TimeoutError
        When the system does not end the processes, `patience` plus `grace` plus about ten seconds after the call.
    """
    with locked():  # no queued job begins meanwhile
        job = get(job_id)
        if not job.live:
            return job
        atomic_write(job.folder / "stop.json", json.dumps({"grace": grace, "until": time.time() + patience}))
        supervisors, workers = find_processes(job.folder)
        if job.state == "queued":
            signal_all(supervisors, signal.SIGKILL)
    if job.state == "running" and supervisors:
        if not wait or until(lambda: not get(job_id).live, patience + grace + KILL_SECONDS):
            return get(job_id)
    elif job.state == "running":
        signal_all(workers, signal.SIGTERM)
        until(lambda: not is_alive(job.folder), grace)
    signal_all([process for kind in find_processes(job.folder) for process in kind], signal.SIGKILL)
    if not until(lambda: not is_alive(job.folder), KILL_SECONDS):
        raise TimeoutError(f"job {job_id} did not end: a process of it (worker {job.pid}) does not react even to kill -9.")
    if _status(job.folder)[0].get("state") not in _ENDED:
        write_status(job.folder, "stopped", rank=job.rank, started=job.started, finished=time.time(), pid=job.pid)
    return get(job_id)


def move(job_id: str, position: int) -> list[Job]:
    """Put a queued job at `position` (0: next) of the queue, and return the queue. ValueError when it is not queued."""
    with locked():
        waiting = queue()
        moved = next((job for job in waiting if job.id == job_id), None)
        if moved is None:
            raise ValueError(f"job {job_id!r} cannot be moved: it is {get(job_id).state} and no more in the queue.")
        waiting.remove(moved)
        waiting.insert(max(0, position), moved)
        for rank, job in enumerate(waiting):
            write_status(job.folder, "queued", rank=float(rank))
    return queue()


def remove(job_id: str) -> None:
    """Delete a job's folder. ValueError when the job is queued or running, or there is none."""
    with locked() as root:
        job = get(job_id)
        if job.live:
            raise ValueError(f"job {job_id!r} is {job.state}: stop it before removing it.")
        gone = job.folder.rename(root / f".gone-{job_id}")  # nobody sees half of it
        shutil.rmtree(gone)


def write_status(folder: Path, state: str, rank: float = 0.0, **known: object) -> None:
    """Replace the job's status; what is not named in `known` (fields of `Job`) is not known."""
    if state in _ENDED:
        (folder / "reserve").unlink(missing_ok=True)
    empty = dict.fromkeys(("started", "finished", "pid", "exit_code", "error"))
    atomic_write(folder / "status.json", json.dumps({"format": _FORMAT, "state": state, "rank": rank} | empty | known))


def stop_request(folder: Path) -> tuple[float, float] | None:
    """Seconds from now that the worker may go on until SIGTERM, and the grace from then to SIGKILL; None when nobody asked."""
    try:
        asked = json.loads((folder / "stop.json").read_bytes())
        return max(0.0, float(asked["until"]) - time.time()), float(asked["grace"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):  # damaged, yet someone wants the job to end
        return 0.0, 0.0


def stop_asked() -> bool:
    """Whether this process is the worker of a job whose end was asked for."""
    folder = os.environ.get(JOB_DIR_VARIABLE)
    return folder is not None and (Path(folder) / "stop.json").exists()


def _read(folder: Path) -> Job:
    times = _times(folder, "job.json", "status.json")
    if folder in _ended and _ended[folder][0] == times:
        return _ended[folder][1]
    try:
        spec = _load(folder / "job.json", {"target": str, "title": str, "argv": list, "device": str, "created": float})
    except ValueError as error:
        return Job(folder.name, "", folder.name, [], folder, "failed", str(error))
    status, damage = _status(folder)
    written = status.get("state") in _ENDED
    if not written and is_alive(folder):
        status = status or {"state": "running", "error": damage}
    elif not written:
        status, damage = _status(folder)  # it may have ended well between the two looks
        if status.get("state") not in _ENDED:
            status |= _lost(folder, damage)
    stopping = status["state"] not in _ENDED and stop_request(folder) is not None
    job = Job(id=folder.name, folder=folder, progress=read_progress(folder), stopping=stopping, **spec, **status)
    if written:
        _ended[folder] = times, job
    return job


def _status(folder: Path) -> tuple[dict, str | None]:
    """What status.json holds, or nothing and why."""
    number = float | int | None
    types = {"state": str, "rank": float, "started": number, "finished": number}
    types |= {"pid": int | None, "exit_code": int | None, "error": str | None}
    try:
        status = _load(folder / "status.json", types)
    except ValueError as error:
        return {}, str(error)
    if status["state"] not in _STATES:
        return {}, f"status.json of this job is damaged (unknown state {status['state']!r}); remove the job and start it again."
    return status, None


def _load(path: Path, types: dict) -> dict:
    """The named fields of a JSON file. Raises ValueError with a sentence when it does not hold them."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"{path.name} of this job cannot be read ({error.strerror}); remove the job and start it again."
        ) from error
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path.name} of this job is damaged ({error}); remove the job and start it again.") from error
    version = data.get("format") if isinstance(data, dict) else None
    if isinstance(version, int) and version > _FORMAT:
        newer = f"format {version}, this one reads {_FORMAT}"
        raise ValueError(f"{path.name} of this job was written by a newer version ({newer}); update the program to read it.")
    if version != _FORMAT or not all(name in data and isinstance(data[name], kind) for name, kind in types.items()):
        raise ValueError(f"{path.name} of this job is damaged (fields are missing); remove the job and start it again.")
    return {name: data[name] for name in types}


def _lost(folder: Path, damage: str | None) -> dict:
    """The end of a job that has no process left and no outcome on disk."""
    finished = max(_times(folder, "log.txt", "status.json", "progress.json"), default=0) / 1e9
    if stop_request(folder) is not None:
        return {"state": "stopped", "finished": finished}
    return {"state": "failed", "error": damage or why_failed(None, tail(folder / "log.txt")), "finished": finished}


def _times(folder: Path, *names: str) -> list[int]:
    """When those files of the folder that exist were last written, in nanoseconds."""
    found = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found.append((folder / name).stat().st_mtime_ns)
    return found
