"""Jobs with real processes: run, found again by anyone, killed in every way, damaged on disk."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from gamelora import jobs
from gamelora.job_processes import find_processes, is_alive, until
from tests.job_helpers import SLEEP, at_work, fresh_interpreter, gone, made_up_job, starter, state_of, until_told, wait_for


@pytest.fixture
def start(workspace, tmp_path, monkeypatch):
    monkeypatch.delenv(jobs.AT_ONCE_VARIABLE, raising=False)
    with starter(tmp_path) as start:
        yield start


# ---- from start to end --------------------------------------------------------------------------------------------------


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


# ---- survival -----------------------------------------------------------------------------------------------------------


def test_the_job_outlives_the_process_that_started_it(start, tmp_path):
    arguments = ["run_code", until_told(tmp_path)]
    options = {"PYTHONPATH": str(tmp_path)}
    code = f"from gamelora import jobs; print(jobs.start('test', 'a title', {arguments}, {options}).id)"
    job = jobs.get(fresh_interpreter(code))  # that interpreter is gone
    assert job.live
    assert jobs.live_job("test").id == job.id
    assert fresh_interpreter("from gamelora import jobs; print(jobs.live_job('test').title)") == "a title"
    (tmp_path / "go").touch()
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
    assert until(lambda: gone(job.pid) and gone(supervisor.pid), 5)
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


def test_a_worker_that_ends_without_its_supervisor_reads_as_failed(start, tmp_path):
    job = at_work(start(until_told(tmp_path)))
    find_processes(job.folder)[0][0].kill()
    (tmp_path / "go").touch()
    assert wait_for(job, "failed").error.endswith("the last line of its log: at work")


def test_a_machine_that_shuts_down_leaves_the_supervisor_to_note_it(start):
    job = at_work(start(SLEEP))
    supervisor = find_processes(job.folder)[0][0]
    os.killpg(supervisor.pid, signal.SIGTERM)
    assert wait_for(job, "failed").error == "killed by signal 15 (Terminated)"


@pytest.mark.parametrize("pid", [1, os.getpid()], ids=["init", "this process"])
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


# ---- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to mount a small disk")
def test_a_full_disk_is_said_and_a_start_on_it_refused(start, workspace):
    workspace.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", workspace], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        fill = f"file = open({str(workspace / 'large')!r}, 'wb', buffering=0)\nwhile file.write(bytes(4096)): pass"
        job = wait_for(start(fill), "failed")
        assert job.error.startswith("disk full")
        with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): free space"):
            start("pass", target="another")
        assert [found.id for found in jobs.jobs()] == [job.id]
        (workspace / "large").unlink()
        wait_for(start("pass"), "done")
    finally:
        subprocess.run(["umount", "--lazy", workspace], check=True)


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


# ---- refusals -----------------------------------------------------------------------------------------------------------


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
