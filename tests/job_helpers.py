"""Real jobs for tests: a starter of workers that run a piece of code, and waiting for what becomes of them."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from gamelora import jobs
from gamelora.job_processes import find_processes, signal_all, until

ROOT = Path(__file__).resolve().parents[1]
SLEEP = "import time; print('at work'); time.sleep(60)"


@contextlib.contextmanager
def starter(folder: Path):
    """`start(code, target)` runs `python -m run_code CODE` as a job; whatever still lives at the end is ended."""
    (folder / "run_code.py").write_text("import sys; exec(sys.argv[1])")

    def start(code, target="test", **options):
        return jobs.start(target, f"title of {target}", ["run_code", code], {"PYTHONPATH": str(folder)}, **options)

    try:
        yield start
    finally:
        for job in jobs.jobs():
            supervisors, workers = find_processes(job.folder)
            signal_all([*supervisors, *workers], signal.SIGKILL)


def until_told(folder: Path) -> str:
    """Code of a worker that ends well as soon as the folder holds a file `go`."""
    return f"import os, time; print('at work')\nwhile not os.path.exists({str(folder / 'go')!r}): time.sleep(0.02)"


def state_of(job) -> str:
    return jobs.get(job.id).state


def wait_for(job, *states, seconds=20) -> jobs.Job:
    """The job when it has one of the states."""
    assert until(lambda: state_of(job) in states, seconds), f"{jobs.get(job.id)}\n{jobs.log_tail(job.id)}"
    return jobs.get(job.id)


def at_work(job) -> jobs.Job:
    """The job when its worker runs and has printed something."""
    assert until(lambda: state_of(job) == "running" and jobs.get(job.id).pid and jobs.log_tail(job.id) != "", 20)
    return jobs.get(job.id)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def fresh_interpreter(code: str) -> str:
    """What the code prints in another process, which knows the workspace and nothing else."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def made_up_job(name, target=None, argv=("x",), **status) -> Path:
    """A job's folder as an earlier process may have left it; names sort by age."""
    folder = jobs.workspace_root() / "jobs" / name
    folder.mkdir(parents=True)
    spec = {"format": 1, "target": target or name, "title": name, "argv": list(argv), "device": "", "created": 5.0}
    (folder / "job.json").write_text(json.dumps(spec))
    jobs.write_status(folder, **({"state": "running", "rank": 0.0} | status))
    (folder / "log.txt").write_text("first\nlast words\n")
    return folder
