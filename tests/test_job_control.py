"""Jobs with real processes: started once however often one asks, stopped with all that belongs to them, queued."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from gamelora import job_processes, jobs
from gamelora.job_processes import find_processes, is_alive, until
from tests.job_helpers import ROOT, SLEEP, at_work, gone, made_up_job, starter, state_of, wait_for


@pytest.fixture
def start(workspace, tmp_path, monkeypatch):
    monkeypatch.delenv(jobs.AT_ONCE_VARIABLE, raising=False)
    with starter(tmp_path) as start:
        yield start


# ---- one job a target ---------------------------------------------------------------------------------------------------


def test_two_sessions_that_press_start_together_get_one_job(start, tmp_path):
    code = (
        "import sys; from gamelora import jobs\n"
        "for line in sys.stdin: print(jobs.start(line.strip(), 'title', ['run_code', 'pass']).id, flush=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    sessions = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, **pipes) for _ in range(2)]
    start(SLEEP, target="first in the queue")  # so that none of the others ends meanwhile
    for number in range(20):
        for session in sessions:
            session.stdin.write(f"target {number}\n")
        one, two = (session.stdout.readline().strip() for session in sessions)
        assert one == two != ""
    for session in sessions:
        session.communicate()
    assert len(jobs.jobs()) == 21
    assert [job.target for job in jobs.queue()] == [f"target {number}" for number in range(20)]


def test_threads_that_start_together_get_one_job(start):
    found = []
    threads = [threading.Thread(target=lambda: found.append(start(SLEEP).id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1 == len(jobs.jobs())


def test_a_lock_of_a_dead_process_does_not_block_and_one_of_a_live_process_is_named(start, monkeypatch):
    code = "from gamelora.job_processes import *\nwith locked(): print(1, flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    holder.stdout.readline()
    monkeypatch.setattr(job_processes, "_LOCK_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match="another process keeps the jobs locked"):
        start("pass")
    holder.kill()
    holder.communicate()
    wait_for(start("pass"), "done")


def test_a_start_that_was_killed_half_way_leaves_nothing(start, workspace):
    hidden, folder = workspace / "jobs" / ".new-20200101-a", workspace / "jobs" / "20200101-a"
    hidden.mkdir(parents=True)
    job_processes.spawn_supervisor(hidden, folder, {})
    assert jobs.jobs() == []
    assert until(lambda: not find_processes(folder)[0], 10)  # its supervisor found no job and left
    wait_for(start("pass"), "done")
    assert not hidden.exists()
    assert not folder.exists()


# ---- stop ---------------------------------------------------------------------------------------------------------------

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_stop_ends_all_processes_within_its_bound(start):
    job = at_work(start(STUBBORN))
    child = int(jobs.log_tail(job.id))
    began = time.monotonic()
    stopped = jobs.stop(job.id, grace=0.5)
    assert 0.5 <= time.monotonic() - began < 0.5 + jobs.KILL_SECONDS
    assert (stopped.state, stopped.error, stopped.exit_code) == ("stopped", None, -9)
    assert gone(job.pid)
    assert gone(child)  # though it had left the session
    assert until(lambda: not is_alive(job.folder), 5)
    assert json.loads((job.folder / "status.json").read_text())["state"] == "stopped"
    assert jobs.stop(job.id) == stopped


def test_a_worker_may_save_before_it_ends_and_nobody_has_to_wait(start, tmp_path):
    code = (
        "import signal, sys, time\n"
        f"def save(*_): time.sleep(0.3); open({str(tmp_path / 'saved')!r}, 'w'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('ready', flush=True); time.sleep(60)"
    )
    job = at_work(start(code))
    asked = jobs.stop(job.id, grace=30, wait=False)
    assert (asked.state, asked.stopping) == ("running", True)
    assert start(SLEEP).id == job.id  # it still is at work
    assert wait_for(job, "stopped", seconds=10).stopping is False
    assert (tmp_path / "saved").exists()


def test_a_second_stop_may_be_less_patient(start):
    job = at_work(start(STUBBORN))
    jobs.stop(job.id, grace=60, wait=False)
    began = time.monotonic()
    assert jobs.stop(job.id, grace=0).state == "stopped"
    assert time.monotonic() - began < jobs.KILL_SECONDS


def test_stop_does_not_depend_on_a_supervisor_that_hangs(start, monkeypatch):
    monkeypatch.setattr(jobs, "KILL_SECONDS", 1.0)
    job = at_work(start(SLEEP))
    find_processes(job.folder)[0][0].suspend()
    assert jobs.stop(job.id, grace=0.1).state == "stopped"
    assert gone(job.pid)


# ---- queue --------------------------------------------------------------------------------------------------------------


def test_jobs_run_one_at_a_time_in_the_order_of_the_queue(start, tmp_path):
    log = tmp_path / "order"
    code = f"f = open({str(log)!r}, 'a'); f.write('<%s'); f.flush(); import time; time.sleep(0.2); f.write('%s>'); f.close()"
    first = at_work(start(SLEEP, target="first"))
    started = [start(code % (name, name), target=name) for name in "abcd"]
    assert [job.target for job in jobs.queue()] == ["a", "b", "c", "d"]
    assert [job.target for job in jobs.move(started[3].id, 0)] == ["d", "a", "b", "c"]
    assert [job.target for job in jobs.move(started[0].id, 99)] == ["d", "b", "c", "a"]
    cancelled = jobs.stop(started[2].id)
    assert (cancelled.state, cancelled.started, cancelled.elapsed) == ("stopped", None, 0.0)
    assert [job.target for job in jobs.queue()] == ["d", "b", "a"]
    jobs.stop(first.id)
    for job in (started[0], started[1], started[3]):
        wait_for(job, "done")
    assert log.read_text() == "<dd><bb><aa>"
    with pytest.raises(ValueError, match="it is done and no more in the queue"):
        jobs.move(started[0].id, 0)


def test_the_queue_goes_on_after_a_kill_and_needs_no_server(start):
    first = at_work(start(SLEEP, target="first"))
    dead, last = start(SLEEP, target="dead"), start("print(2)", target="last")
    find_processes(dead.folder)[0][0].kill()
    os.killpg(psutil.Process(first.pid).ppid(), signal.SIGKILL)
    wait_for(last, "done")
    assert (state_of(first), state_of(dead)) == ("failed", "failed")


def test_a_turn_that_was_taken_meanwhile_is_waited_for_again(start):
    first = at_work(start(SLEEP, target="first"))
    second = start("pass", target="second")
    supervisor = find_processes(second.folder)[0][0]

    def at_the_door():
        return any(file.path.endswith("/.lock") for file in supervisor.open_files())

    with job_processes.locked():
        os.killpg(psutil.Process(first.pid).ppid(), signal.SIGKILL)
        assert until(at_the_door, 10)  # it saw its turn
        lock = os.open(made_up_job("20200101-a") / "alive", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)  # but now another job runs
    assert until(lambda: not at_the_door(), 10)
    assert state_of(second) == "queued"
    os.close(lock)
    wait_for(second, "done")


def test_more_jobs_at_once_and_devices_with_a_lane_of_their_own(start, monkeypatch):
    monkeypatch.setenv(jobs.AT_ONCE_VARIABLE, "2, cuda:1=1")
    running = [at_work(start(SLEEP, target=name)) for name in ("a", "b")]
    third = start(SLEEP, target="c", device="cuda:0")
    other = at_work(start(SLEEP, target="d", device="cuda:1"))
    assert state_of(third) == "queued"
    assert [state_of(job) for job in (*running, other)] == ["running"] * 3
    jobs.stop(running[0].id)
    wait_for(third, "running")


@pytest.mark.parametrize("value", ["0", "many", "-1", "1,", "cuda=", "1 2"])
def test_a_limit_that_cannot_be_read_is_refused_before_anything_starts(start, monkeypatch, value):
    monkeypatch.setenv(jobs.AT_ONCE_VARIABLE, value)
    with pytest.raises(ValueError, match=r"GAMELORA_JOBS_AT_ONCE=.* expected how many jobs run at once"):
        start("pass")
    assert jobs.jobs() == []


# ---- a stop that lets the worker end by itself -----------------------------------------------------------------------------


def test_a_worker_with_patience_ends_by_itself_and_the_job_is_stopped(start):
    code = "import time; from gamelora import jobs; print('at work')\nwhile not jobs.stop_asked(): time.sleep(0.02)"
    job = at_work(start(code))
    asked = jobs.stop(job.id, wait=False, patience=60)
    assert asked.live and asked.stopping
    ended = wait_for(job, "stopped")
    assert ended.exit_code == 0, "no signal was sent"


def test_patience_ends_and_a_second_call_ends_it_at_once(start):
    short = at_work(start(SLEEP))
    jobs.stop(short.id, wait=False, patience=0.2)
    assert wait_for(short, "stopped").exit_code == -signal.SIGTERM
    long = at_work(start(SLEEP))
    jobs.stop(long.id, wait=False, patience=600)
    assert jobs.get(long.id).live
    assert jobs.stop(long.id).exit_code == -signal.SIGTERM


def test_only_a_worker_whose_end_was_asked_for_is_told_so(monkeypatch, tmp_path):
    monkeypatch.delenv("GAMELORA_JOB_DIR", raising=False)
    assert not jobs.stop_asked()
    monkeypatch.setenv("GAMELORA_JOB_DIR", str(tmp_path))
    assert not jobs.stop_asked()
    (tmp_path / "stop.json").write_text("{}")
    assert jobs.stop_asked()
