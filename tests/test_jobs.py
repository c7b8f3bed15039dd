"""Jobs with real processes: started once, found again by anyone, killed in every way, queued, damaged on disk."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from gamelora import job_processes, jobs
from gamelora.job_processes import find_processes, is_alive, until

ROOT = Path(__file__).resolve().parents[1]
SLEEP = "import time; print('at work'); time.sleep(60)"


@pytest.fixture
def start(workspace, tmp_path, monkeypatch):
    """Start `python -m run_code CODE` as a job; whatever still lives at the end of the test is ended."""
    monkeypatch.delenv(jobs.AT_ONCE_VARIABLE, raising=False)
    (tmp_path / "run_code.py").write_text("import sys; exec(sys.argv[1])")

    def start(code, target="test", **options):
        return jobs.start(target, f"title of {target}", ["run_code", code], {"PYTHONPATH": str(tmp_path)}, **options)

    yield start
    for job in jobs.jobs():
        supervisors, workers = find_processes(job.folder)
        job_processes.signal_all([*supervisors, *workers], signal.SIGKILL)


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


def made_up_job(name, **status) -> Path:
    """A job's folder as an earlier process may have left it."""
    folder = jobs.workspace_root() / "jobs" / name
    folder.mkdir(parents=True)
    spec = {"format": 1, "target": name, "title": name, "argv": ["x"], "device": "", "created": 5.0}
    (folder / "job.json").write_text(json.dumps(spec))
    jobs.write_status(folder, **({"state": "running", "rank": 0.0} | status))
    (folder / "log.txt").write_text("first\nlast words\n")
    return folder


# ---- from start to end ---------------------------------------------------------------------------------------------------


def test_a_job_runs_to_its_end_and_says_so(start):
    code = "from analysis.progress import report; report('measuring', 3, 4, 'batch'); print('made it')"
    first = start(code, device="cpu")
    assert (first.state, first.live, first.target, first.title) == ("queued", True, "test", "title of test")
    assert first.argv == [sys.executable, "-m", "run_code", code]
    job = wait_for(first, "done", "failed")
    assert (job.state, job.error, job.exit_code, job.live, job.device) == ("done", None, 0, False, "cpu")
    assert job.created <= job.started <= job.finished <= time.time()
    assert job.elapsed == pytest.approx(job.finished - job.started)
    assert (job.progress.stage, job.progress.fraction, job.remaining) == ("measuring", 0.75, None)
    assert jobs.log_tail(job.id) == "made it"
    assert until(lambda: not is_alive(job.folder), 5)
    again = start("print(1)")  # a finished job does not stand in the way
    assert again.id > job.id
    assert [found.id for found in jobs.jobs()] == [again.id, job.id]
    assert jobs.latest("test").id == again.id


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import sys; sys.exit('error: tokens must be at least 256')", "tokens must be at least 256"),
        ("raise OSError(28, 'No space left on device')", "disk full: OSError: [Errno 28] No space left on device"),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30,) * 2); bytes(2**31)", "out of memory: MemoryError"),
        ("import os; os.abort()", "killed by signal 6"),
    ],
)
def test_a_failed_job_says_why_in_one_sentence(start, code, error):
    job = wait_for(start(code), "failed", "done")
    assert job.state == "failed"
    assert job.error.startswith(error)
    assert job.exit_code not in (0, None)


def test_the_environment_given_reaches_the_worker_and_not_the_disk(start, tmp_path, workspace):
    job = jobs.start(
        "test",
        "title",
        ["run_code", "import os; print(os.environ['SECRET'][::-1], os.environ['GAMELORA_JOB_DIR'])"],
        {"PYTHONPATH": str(tmp_path), "SECRET": "abcdef"},
    )
    wait_for(job, "done")
    assert jobs.log_tail(job.id) == f"fedcba {job.folder}"
    assert not [path for path in workspace.rglob("*") if path.is_file() and b"abcdef" in path.read_bytes()]


def test_the_worker_runs_where_it_was_started_and_finds_this_program(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = wait_for(start("import os, gamelora; print(os.getcwd())"), "done", "failed")
    assert jobs.log_tail(job.id) == str(tmp_path)


# ---- survival ------------------------------------------------------------------------------------------------------------


def test_the_job_outlives_the_process_that_started_it(workspace):
    arguments = ["timeit", "-n1", "-r1", "import time; time.sleep(1)"]
    code = f"from gamelora import jobs; print(jobs.start('test', 'a title', {arguments}).id)"
    job = jobs.get(fresh_interpreter(code))  # that interpreter is gone
    assert job.live
    assert jobs.live_job("test").id == job.id
    assert fresh_interpreter("from gamelora import jobs; print(jobs.live_job('test').title)") == "a title"
    assert wait_for(job, "done", "failed").state == "done"


def test_a_killed_worker_reads_as_failed_with_its_last_lines(start):
    job = at_work(start(SLEEP))
    os.kill(job.pid, signal.SIGKILL)
    job = wait_for(job, "failed", seconds=2)
    assert job.error == "killed by signal 9 (often the system running out of memory)"
    assert (job.exit_code, jobs.log_tail(job.id)) == (-9, "at work")


def test_supervisor_and_worker_killed_together_read_as_failed(start):
    job = at_work(start(SLEEP))
    supervisor = find_processes(job.folder)[0][0]
    os.killpg(supervisor.pid, signal.SIGKILL)
    assert until(lambda: gone(job.pid), 5)
    assert supervisor.status() == psutil.STATUS_ZOMBIE  # we are its parent and have not collected it
    job = jobs.get(job.id)
    assert (job.state, job.live, jobs.live_job("test")) == ("failed", False, None)
    assert job.error.endswith("the last line of its log: at work")
    assert job.elapsed < 20
    seen = fresh_interpreter(f"from gamelora import jobs; job = jobs.get('{job.id}'); print(job.state, jobs.log_tail(job.id))")
    assert seen == "failed at work"


def test_a_worker_without_its_supervisor_stays_visible_and_can_be_stopped(start):
    job = at_work(start(SLEEP))
    waiting = start("print('my turn')", target="next")
    find_processes(job.folder)[0][0].kill()
    assert until(lambda: not find_processes(job.folder)[0], 5)
    assert (state_of(job), gone(job.pid)) == ("running", False)
    assert start(SLEEP).id == job.id  # it still holds its target, and its place
    assert state_of(waiting) == "queued"
    assert jobs.stop(job.id).state == "stopped"
    assert gone(job.pid)
    wait_for(waiting, "done")


def test_a_worker_that_ends_without_its_supervisor_reads_as_failed(start):
    job = at_work(start("print('at work', flush=True); import time; time.sleep(1.5)"))
    find_processes(job.folder)[0][0].kill()
    assert wait_for(job, "failed").error.endswith("the last line of its log: at work")


@pytest.mark.parametrize("pid", [1, os.getpid()])
def test_a_pid_that_belongs_to_someone_else_reads_as_failed(workspace, pid):
    folder = made_up_job("20200101-a", pid=pid, started=10.0)
    job = jobs.get(folder.name)
    assert (job.state, job.finished) == ("failed", pytest.approx(time.time(), abs=20))
    assert job.error.endswith("last words")
    assert jobs.live_job(job.target) is None
    assert jobs.stop(folder.name).state == "failed"  # and nobody was signalled


def test_processes_that_the_worker_left_behind_are_ended(start):
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    job = wait_for(start(code), "done", "failed")
    assert job.state == "done"
    assert gone(int(jobs.log_tail(job.id)))


# ---- one job a target ----------------------------------------------------------------------------------------------------


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


# ---- stop ----------------------------------------------------------------------------------------------------------------

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


# ---- queue ---------------------------------------------------------------------------------------------------------------


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


# ---- damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["job.json", "status.json"])
@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "is damaged"),
        ('{"format": 1, "state": "do', "is damaged"),
        ("[1, 2]", "is damaged"),
        ('{"format": 1}', "fields are missing"),
        (b"\xff\x00\xfe", "is damaged"),
        ('{"format": 2, "more": []}', "written by a newer version"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_job_reads_as_failed_and_the_others_are_there(workspace, file, content, error):
    damaged, sound = made_up_job("20200101-a"), made_up_job("20200102-b", state="done")
    (damaged / file).unlink()
    if content is not None:
        (damaged / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert [(job.id, job.state) for job in jobs.jobs()] == [(sound.name, "done"), (damaged.name, "failed")]
    job = jobs.get(damaged.name)
    assert error in job.error
    assert file in job.error
    assert jobs.log_tail(job.id) == "first\nlast words"
    jobs.remove(job.id)
    assert [job.id for job in jobs.jobs()] == [sound.name]


def test_a_damaged_status_of_a_live_job_does_not_hide_it(start):
    job = at_work(start(SLEEP))
    (job.folder / "status.json").write_text('{"form')
    now = jobs.get(job.id)
    assert (now.state, now.target) == ("running", "test")
    assert "status.json of this job is damaged" in now.error
    assert jobs.stop(job.id).state == "stopped"
    assert jobs.get(job.id).error is None


def test_strange_files_and_states(workspace):
    folder = made_up_job("20200101-a", state="paused")
    (folder.parent / "notes.txt").write_text("no job")
    (folder.parent / ".hidden").mkdir()
    (job,) = jobs.jobs()
    assert (job.state, "unknown state 'paused'" in job.error) == ("failed", True)


def test_a_stop_that_the_machine_did_not_survive_reads_as_stopped(workspace):
    folder = made_up_job("20200101-a")
    (folder / "stop.json").write_text("{half")
    assert jobs.get(folder.name).state == "stopped"


def test_a_change_on_disk_is_seen_though_ended_jobs_are_remembered(workspace):
    folder = made_up_job("20200101-a", state="done")
    assert jobs.get(folder.name).state == "done"
    jobs.write_status(folder, "failed", error="so it was")
    assert jobs.get(folder.name).error == "so it was"


# ---- refusals ------------------------------------------------------------------------------------------------------------


def test_only_an_ended_job_is_removed(start, workspace):
    job = at_work(start(SLEEP))
    with pytest.raises(ValueError, match="is running: stop it before removing it"):
        jobs.remove(job.id)
    jobs.stop(job.id)
    jobs.remove(job.id)
    assert jobs.jobs() == []
    with pytest.raises(ValueError, match="there is no job"):
        jobs.get(job.id)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "x" * 300, "a\0b"])
def test_no_id_leaves_the_folder(workspace, name):
    for use in (jobs.get, jobs.stop, jobs.remove, jobs.log_tail):
        with pytest.raises(ValueError, match="job id"):
            use(name)


def test_a_target_may_hold_any_character(start):
    job = wait_for(start("pass", target="run:../größe /#" + "x" * 300), "done")
    assert job.folder.parent == jobs.workspace_root() / "jobs"


def test_bad_starts_are_refused(workspace, monkeypatch, tmp_path):
    for target, arguments in (("", ["x"]), ("x", [])):
        with pytest.raises(ValueError, match="a job needs a target and the arguments"):
            jobs.start(target, "title", arguments)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="cannot be written"):
        jobs.start("x", "title", ["x"])


def test_reading_creates_nothing_and_needs_no_write_permission(workspace):
    assert jobs.jobs() == []
    assert jobs.latest("x") is None
    assert not workspace.exists()
    folder = made_up_job("20200101-a")
    lock = os.open(folder / "alive", os.O_CREAT | os.O_RDWR, 0o444)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert jobs.get(folder.name).state == "running"
    os.close(lock)
    assert jobs.get(folder.name).state == "failed"


def test_the_page_process_loads_nothing_heavy_for_its_jobs():
    heavy = fresh_interpreter(
        "import sys, gamelora.jobs, gamelora.supervisor\n"
        "print({'torch', 'numpy', 'transformers', 'streamlit', 'pandas', 'tqdm'} & set(sys.modules))"
    )
    assert heavy == "set()"
