"""Training runs as jobs: one job a name, stop and keep, stop now, resume, kill -9, delete, several processes."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from gamelora import jobs, training_jobs
from gamelora.config import GameLoraConfig
from gamelora.job_processes import find_processes, signal_all, until
from gamelora.memory import less_memory
from gamelora.runs import Run
from tests.job_helpers import ROOT, made_up_job, starter
from tests.made_up_runs import made_up_run
from tests.test_runs import command, settings, write_config
from tests.tiny_files import save_folder, text_model

PATIENCE = 240  # seconds that a tiny run may need on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_folder(text_model(num_hidden_layers=2), tmp_path_factory.mktemp("model"))


@pytest.fixture
def tidy(workspace, monkeypatch):
    """A workspace whose jobs are ended afterwards."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    yield workspace
    for job in jobs.jobs():
        supervisors, workers = find_processes(job.folder)
        signal_all([*supervisors, *workers], signal.SIGKILL)


def long_run(model) -> GameLoraConfig:
    """Enough steps to be caught in the middle."""
    return settings(model, steps=400, save_every=5, eval_every=400, keep_checkpoints=2, lora_dropout=0.0)


def until_checkpoint(name: str) -> Run:
    """The run when it has written a checkpoint."""
    assert until(lambda: (now := training_jobs.look(name)).run is not None and now.resumes_from > 0, PATIENCE), told(name)
    return Run.open(name)


def told(name: str) -> str:
    job = training_jobs.look(name).job
    return f"{job}\n{jobs.log_tail(job.id)}"


def ended(name: str, *states: str) -> training_jobs.Training:
    assert until(lambda: not training_jobs.look(name).live, PATIENCE), told(name)
    now = training_jobs.look(name)
    assert now.state in states, told(name)
    return now


# --- one job a name -------------------------------------------------------------------------------------------------------


def test_two_sessions_that_press_start_together_get_one_job(model, workspace, tmp_path):
    config = json.dumps(settings(model).to_dict())
    code = (
        "import json, sys; from gamelora import training_jobs; from gamelora.config import GameLoraConfig\n"
        f"config = GameLoraConfig.from_dict(json.loads({config!r})); print('ready', flush=True)\n"
        "for line in sys.stdin: print(training_jobs.start(line.strip(), config).id, flush=True)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with starter(tmp_path) as start:
        start("import time; time.sleep(600)", target="first in the queue")  # so that none of the others begins
        sessions = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) for _ in range(2)]
        for session in sessions:
            assert session.stdout.readline() == "ready\n"
        for number in range(20):
            asked = time.monotonic()
            for session in sessions:
                session.stdin.write(f"run-{number}\n")
            assert time.monotonic() - asked < 0.05
            one, two = (session.stdout.readline().strip() for session in sessions)
            assert one == two != ""
        for session in sessions:
            session.communicate()
        assert sorted(job.target for job in jobs.queue()) == sorted(f"run:run-{number}" for number in range(20))
        assert training_jobs.start("run-3", settings(model)).state == "queued", "and a later one gets it too"


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "x" * 300])
def test_a_name_that_leaves_the_folder_starts_nothing(name, model, workspace):
    with pytest.raises(ValueError, match="run name"):
        training_jobs.start(name, settings(model))
    assert not jobs.jobs()


def test_a_taken_name_is_refused_and_an_unused_one_found(model, workspace):
    Run.create("mine", settings(model))
    with pytest.raises(ValueError, match="choose another name"):
        training_jobs.start("mine", settings(model))
    assert training_jobs.unused_name("mine") == "mine-2" and training_jobs.unused_name("other") == "other"
    Run.create("mine-2", settings(model))
    assert training_jobs.unused_name("mine-2") == "mine-3" == training_jobs.unused_name("mine")


# --- what a run is --------------------------------------------------------------------------------------------------------


def test_a_run_reads_as_its_status_and_its_job_say(model, workspace):
    with pytest.raises(ValueError, match="there is no run 'mine'"):
        training_jobs.look("mine")
    made_up_job("1", "run:mine", state="failed", error="there is no model '/x'.")
    assert training_jobs.look("mine").state == "failed" and "no model" in training_jobs.look("mine").reason
    run = Run.create("mine", settings(model))
    now = training_jobs.look("mine")
    assert (now.state, now.reason) == ("failed", "there is no model '/x'."), "its process is gone, and the job saw why"
    made_up_job("2", "run:mine", state="stopped")
    assert training_jobs.look("mine").state == "stopped"
    run.write_status(state="finished", step=4)
    assert training_jobs.look("mine").state == "finished" and training_jobs.look("mine").step == 4
    (run.folder / "status.json").write_text("{half")
    now = training_jobs.look("mine")
    assert now.state == "unreadable" and "cannot be read" in now.reason and not now.live
    with run.training():
        (run.folder / "status.json").unlink()
        run.write_status(state="running", step=1)
        assert training_jobs.look("mine").state == "running", "trained from a command line"


def test_names_hold_runs_and_jobs_that_have_not_become_one(model, workspace):
    made_up_job("1", "run:early", state="stopped")
    made_up_job("2", "run:deleted", state="done")
    Run.create("mine", settings(model))
    assert training_jobs.names() == ["early", "mine"]


def test_out_of_memory_is_told_from_other_failures(model, workspace):
    run = Run.create("mine", settings(model))
    for reason, expected in [("out of memory with 4 rows of 16 tokens at once", True), ("disk full", False), (None, False)]:
        run.write_status(state="failed", reason=reason)
        assert training_jobs.look("mine").out_of_memory == expected
    made_up_job("1", "run:mine", state="failed", error="killed by signal 9 (often the system running out of memory)")
    run.write_status(state="running", reason=None)
    assert training_jobs.look("mine").out_of_memory, "the system ended it"


def test_the_next_smaller_cut_leaves_the_update_as_it_is(model):
    def smaller(n_processes=1, **values):
        return less_memory(settings(model, **values), n_processes)

    assert smaller(batch_size=12, micro_batch_size=None) == {"micro_batch_size": 6}
    assert smaller(batch_size=9, micro_batch_size=None) == {"micro_batch_size": 3}
    assert smaller(2, batch_size=12, micro_batch_size=None) == {"micro_batch_size": 3}
    assert smaller(batch_size=4, micro_batch_size=1) == {"gradient_checkpointing": True}
    assert smaller(batch_size=4, micro_batch_size=1, gradient_checkpointing=True) == {}


# --- real runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_stop_and_keep_then_resume_is_the_uninterrupted_run(model, tidy):
    config = settings(model, steps=60, save_every=60, eval_every=60, lora_dropout=0.0)
    training_jobs.start("half", config)
    assert until(lambda: (now := training_jobs.look("half")).step > 2 and now.job.state == "running", PATIENCE), told("half")
    training_jobs.stop_and_keep("half")
    assert training_jobs.look("half").state in ("stopping", "stopped")
    now = ended("half", "stopped")
    assert now.job.state == "stopped" and now.job.exit_code == 0
    assert 0 < now.step < 60 and now.resumes_from == now.step, "the checkpoint is of the step that it stopped after"
    assert training_jobs.resume("half").id == training_jobs.resume("half").id
    assert ended("half", "finished").step == 60
    training_jobs.start("straight", config)
    ended("straight", "finished")
    expected, resumed = (load_file(Run.open(name).adapter / "adapter_model.safetensors") for name in ("straight", "half"))
    assert all(torch.equal(part, expected[name]) for name, part in resumed.items())
    with pytest.raises(ValueError, match="is finished"):
        training_jobs.resume("half")


@pytest.mark.slow
def test_a_killed_worker_shows_as_failed_and_resumes_from_its_checkpoint(model, tidy):
    training_jobs.start("run", long_run(model))
    until_checkpoint("run")
    psutil.Process(jobs.live_job("run:run").pid).kill()
    assert until(lambda: training_jobs.look("run").state == "failed", 4), "within two ticks of two seconds"
    now = training_jobs.look("run")
    assert "killed by signal 9" in now.reason and now.resumes_from >= 5 and now.out_of_memory
    training_jobs.resume("run", {"micro_batch_size": 1})
    assert until(lambda: training_jobs.look("run").step > now.resumes_from, PATIENCE), told("run")
    training_jobs.stop_now("run")
    later = ended("run", "stopped")
    assert later.resumes_from >= now.resumes_from and later.run.config().micro_batch_size == 1
    training_jobs.delete("run")
    assert training_jobs.names() == [] and not jobs.jobs() and not list((tidy / "runs").iterdir())


@pytest.mark.slow
def test_two_processes_start_through_accelerate_and_stop_and_keep(model, tidy):
    config = settings(model, steps=400, save_every=400, eval_every=400, batch_size=4, micro_batch_size=None, lora_dropout=0.0)
    training_jobs.start("two", config, processes=2)
    assert until(lambda: (now := training_jobs.look("two")).step > 2 and now.job.state == "running", PATIENCE), told("two")
    workers = find_processes(training_jobs.look("two").job.folder)[1]
    assert len(workers) >= 3, "the launcher and two ranks"
    training_jobs.stop_and_keep("two")
    now = ended("two", "stopped")
    assert now.resumes_from == now.step > 0 and now.processes == 2
    assert training_jobs.resume("two").argv[2] == "accelerate.commands.launch"
    assert until(lambda: training_jobs.look("two").step > now.step, PATIENCE), told("two")
    training_jobs.stop_now("two")
    ended("two", "stopped")


@pytest.mark.slow
def test_a_queued_run_leaves_the_queue_and_starts_again(model, tidy, tmp_path):
    with starter(tmp_path) as start:
        first = start("import time; time.sleep(600)", target="first in the queue")
        training_jobs.start("waits", settings(model))
        with pytest.raises(ValueError, match="stop it before"):
            training_jobs.delete("waits")
        assert training_jobs.start("waits", settings(model)).id == training_jobs.look("waits").job.id
        with pytest.raises(ValueError, match="other settings"):
            training_jobs.start("waits", settings(model, seed=7))
        training_jobs.stop_and_keep("waits")
        assert training_jobs.look("waits").state == "stopped" and training_jobs.look("waits").run is None
        training_jobs.resume("waits")
        jobs.stop(first.id)
        assert ended("waits", "finished").step == 4


def test_sigterm_alone_saves_and_ends_well(model, workspace, tmp_path):
    process = command(workspace, "train", "--config", write_config(tmp_path, long_run(model)), "--run", "run")
    until_checkpoint_of_command(process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    now = training_jobs.look("run")
    assert process.returncode == 0 and now.state == "stopped", output
    assert now.resumes_from == now.step > 0


def until_checkpoint_of_command(process) -> None:
    def saved():
        assert process.poll() is None, process.communicate()[0]
        return "run" in training_jobs.names() and training_jobs.look("run").resumes_from > 0

    assert until(saved, PATIENCE)


def test_a_run_of_a_command_line_can_be_asked_to_stop_but_not_killed(model, workspace):
    run = Run.create("mine", settings(model))
    with run.training():
        training_jobs.stop_and_keep("mine")
        assert run.stop_requested()
        with pytest.raises(ValueError, match=r"Ctrl\+C"):
            training_jobs.stop_now("mine")


@pytest.mark.parametrize("name", ["lost", "-dash"])
def test_what_cannot_be_read_can_be_deleted(name, workspace):
    run = made_up_run("lost")
    run.folder.rename(run.folder.with_name(name))
    (workspace / "runs" / name / "config.yaml").unlink()
    training_jobs.delete(name)
    assert not (workspace / "runs" / name).exists() and not training_jobs.look_all()
    with pytest.raises(ValueError, match="there is no run"):
        training_jobs.delete(name)
