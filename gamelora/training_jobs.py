"""Training runs as jobs: start, resume, stop, delete, and what a run is at this moment.

A run (gamelora/runs.py) is what stays on disk; a job (gamelora/jobs.py) is the process that works on it now, target `run:<name>`.
A run may be resumed by several jobs one after another, or be trained from the command line by none.
"""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass
from typing import Any

from analysis.workspace import safe_name, workspace_root
from gamelora import jobs
from gamelora.checkpoints import step_of
from gamelora.command_line import processes_of, resume_arguments, train_arguments
from gamelora.config import GameLoraConfig
from gamelora.job_log import KILLED_BY_SIGNAL
from gamelora.jobs import Job
from gamelora.runs import KILLED, Run, free_name, run_names

TARGET = "run:"
KEEP_SECONDS = 1800.0  # that a run is given to reach the end of its step and write a checkpoint
NOW_SECONDS = 2.0


@dataclass(frozen=True)
class Training:
    """A run at one moment, from its folder and its newest job; either may be missing.

    Attributes
    ----------
    state : queued, running, stopping, finished, stopped, failed, or unreadable.
    reason : why it failed, stopped or cannot be read, in a sentence.
    status : the run's own status, {} when it has none.
    """

    name: str
    run: Run | None
    job: Job | None
    state: str
    reason: str | None
    status: dict[str, Any]

    @property
    def live(self) -> bool:
        """Whether it waits for its turn or works."""
        return self.state in ("queued", "running", "stopping")

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.status.get("step") or 0)

    @property
    def processes(self) -> int:
        """How many processes it was started with."""
        return processes_of(self.job.argv) if self.job else 1

    @functools.cached_property
    def resumes_from(self) -> int:
        """The step that a resume goes on from: that of the newest complete checkpoint, or 0."""
        checkpoint = self.run.newest_checkpoint()[0] if self.run else None
        return step_of(checkpoint) if checkpoint else 0

    @property
    def killed(self) -> bool:
        """Whether a kill -9 ended it: by a person, or by the system that ran out of memory."""
        return self.state == "failed" and KILLED_BY_SIGNAL in (self.reason or "")

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended for want of memory, as far as can be told; a guess where it was `killed`."""
        return self.state == "failed" and "out of memory" in (self.reason or "").lower()


def names() -> list[str]:
    """Every run and every job of one, newest job first, then by name."""
    ordered = [job.target.removeprefix(TARGET) for job in jobs.jobs() if job.target.startswith(TARGET)]
    known = set(run_names())
    begun = {job.target.removeprefix(TARGET) for job in jobs.jobs() if job.target.startswith(TARGET) and job.state != "done"}
    return list(dict.fromkeys([name for name in ordered if name in known | begun] + sorted(known)))


def unused_name(wanted: str) -> str:
    """`wanted`, or the next name of its kind that no run and no waiting job has."""
    return free_name(wanted, names())


def look(name: str) -> Training:
    """The run of that name as it stands now. ValueError when there is neither a run nor a job."""
    job = jobs.latest(TARGET + safe_name(name, "run name"))
    run = Run.open(name) if name in run_names() else None
    if run is None and job is None:
        raise ValueError(f"there is no run {name!r} in {workspace_root() / 'runs'}: it may have been deleted.")
    return _training(name, run, job)


def look_all() -> list[Training]:
    """Every run and every job of one as they stand now, by name: also folders that hold no readable run or have an odd name."""
    root, newest = workspace_root() / "runs", {}
    for job in jobs.jobs():
        newest.setdefault(job.target, job)
    shown = root.iterdir() if root.is_dir() else ()
    runs = {folder.name: Run(folder.name, folder) for folder in shown if folder.is_dir() and not folder.name.startswith(".")}
    begun = {target for target, job in newest.items() if target.startswith(TARGET) and job.state != "done"}
    every = sorted(runs.keys() | {target.removeprefix(TARGET) for target in begun})
    return [_training(name, runs.get(name), newest.get(TARGET + name)) for name in every]


def _training(name: str, run: Run | None, job: Job | None) -> Training:
    status, damage = {}, None
    try:
        status = run.status() if run else {}
    except ValueError as error:
        damage = str(error)
    return Training(name, run, job, *_state(job, status, damage), status)


def _state(job: Job | None, status: dict[str, Any], damage: str | None) -> tuple[str, str | None]:
    """What the run is, and why: a live job says it, then the run's own status, then how the job ended."""
    if job and job.live:
        return "stopping" if job.stopping else job.state, None
    if damage:
        return "unreadable", damage
    if not status:
        state = "stopped" if job.state in ("stopped", "done") else "failed"
        return state, job.error or "It was stopped before it began."
    state, reason = status["state"], status.get("reason")
    if reason == KILLED and job and job.state in ("failed", "stopped"):  # the job saw how
        return job.state, job.error or "It was stopped at once."
    return state, reason


def start(name: str, config: GameLoraConfig, processes: int = 1) -> Job:
    """Train a new run as a job; the live job when one does just that already.

    Raises
    ------
    ValueError
        When the name cannot be used, is taken, or a job of other settings works on it.
    """
    target, arguments = TARGET + safe_name(name, "run name"), train_arguments(name, config, processes)
    live = jobs.live_job(target)
    if live is None and name in run_names():
        raise ValueError(f"there is a run {name!r} already: choose another name, or resume that one.")
    job = live or jobs.start(target, f"Train {name}", arguments)
    if job.argv[2:] != arguments:
        raise ValueError(f"run {name!r} has just been started with other settings: choose another name for these.")
    return job


def resume(name: str, changes: dict[str, Any] | None = None) -> Job:
    """Go on with a run from its newest checkpoint as a job; one that was stopped before it began starts.

    Raises
    ------
    ValueError
        When there is no such run, or it is finished.
    """
    now = look(name)
    if now.live:
        if now.job is None or not now.job.live:
            raise ValueError(f"run {name!r} is trained from a command line right now.")
        return now.job
    if now.state == "finished":
        raise ValueError(f"run {name!r} is finished: clone it into a new run instead.")
    arguments = resume_arguments(name, changes, now.processes) if now.run else now.job.argv[2:]
    return jobs.start(TARGET + name, f"Train {name}", arguments)


def stop_and_keep(name: str) -> None:
    """Ask a run to write a checkpoint after the step that it is in, and to end; one that waits for its turn leaves the queue."""
    now = look(name)
    if now.job and now.job.live:
        jobs.stop(now.job.id, wait=False, patience=KEEP_SECONDS)
    elif now.live:
        now.run.request_stop()


def stop_now(name: str) -> None:
    """End a run's processes at once, within a few seconds; what came after its newest checkpoint is lost.

    Raises
    ------
    ValueError
        When it is trained from the command line: only its own terminal can end that at once.
    """
    now = look(name)
    if now.job is None or not now.job.live:
        raise ValueError(f"run {name!r} is trained from a command line: end it there with Ctrl+C, or use stop and keep.")
    jobs.stop(now.job.id, grace=NOW_SECONDS)


def delete(name: str) -> None:
    """Remove a run with its checkpoints, adapter and jobs, also one that cannot be read. ValueError while it is live."""
    now = next((one for one in look_all() if one.name == name), None)
    if now is None:
        raise ValueError(f"there is no run {name!r} in {workspace_root() / 'runs'}: it may have been deleted.")
    if now.live:
        raise ValueError(f"run {name!r} is {now.state}: stop it before deleting it.")
    if now.run:
        with now.run.training():  # nobody resumes it meanwhile
            gone = now.run.folder.rename(workspace_root() / f".deleted-run-{name}")  # out of sight at once
        shutil.rmtree(gone)
    for job in jobs.jobs():
        if job.target == TARGET + name and not job.live:
            jobs.remove(job.id)
