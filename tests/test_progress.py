"""Progress: what a job reports, how the dashboard reads it, and the time that remains."""

import os
import subprocess
import sys

import pytest

from analysis import progress
from analysis.progress import Progress, read_progress, report, track


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The folder of the job that this process is."""
    monkeypatch.setenv("GAMELORA_JOB_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(progress, "_began", {})
    monkeypatch.setattr(progress, "_written", (None, 0.0))
    return tmp_path


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: `clock(5.0)`."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def test_what_is_reported_is_what_is_read(job):
    report("loading the model")
    first = read_progress(job)
    assert (first.stage, first.done, first.total, first.fraction, first.remaining()) == ("loading the model", 0, None, None, None)
    report("measuring", 3, 12, "batch")
    second = read_progress(job)
    assert (second.stage, second.done, second.total, second.unit, second.fraction) == ("measuring", 3, 12, "batch", 0.25)


def test_nothing_is_written_outside_a_job(tmp_path, monkeypatch):
    monkeypatch.delenv("GAMELORA_JOB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    report("measuring", 1, 2)
    assert list(tmp_path.iterdir()) == []


def test_of_several_processes_the_first_one_reports(job, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    report("measuring", 1, 2)
    assert read_progress(job) == Progress()
    monkeypatch.setenv("RANK", "0")
    report("measuring", 1, 2)
    assert read_progress(job).done == 1


def test_frequent_reports_are_written_four_times_a_second_and_the_last_one_always(job, clock):
    writes = []
    for step in range(1, 101):
        report("training", step, 100, "step")
        writes.append(read_progress(job).done)
        clock(0.01)
    assert len(set(writes)) == 5
    assert writes[-1] == 100
    report("saving")  # another stage is shown at once
    assert read_progress(job).stage == "saving"


def test_remaining_time_is_that_of_a_steady_run_and_counts_down_between_reports(job, clock):
    for step in range(5):
        report("training", step, 10, "step")
        clock(2.0)
    now = read_progress(job)
    assert now.remaining(now.time) == pytest.approx(12.0)  # 4 steps in 8 seconds, 6 to go
    assert now.remaining(now.time + 2.0) == pytest.approx(10.0)
    assert now.remaining(now.time + 100.0) == 0.0


def test_a_resumed_run_is_not_credited_with_the_steps_of_an_earlier_one(job, clock):
    report("training", 900, 1000, "step")
    clock(10.0)
    report("training", 910, 1000, "step")
    now = read_progress(job)
    assert now.remaining(now.time) == pytest.approx(90.0)


def test_a_stage_goes_on_after_an_interlude_and_begins_anew_when_its_count_falls(job, clock):
    report("training", 0, 10)
    clock(4.0)
    report("saving")
    clock(4.0)
    report("training", 2, 10)
    now = read_progress(job)
    assert now.remaining(now.time) == pytest.approx(32.0)  # saving is part of the pace
    clock(100.0)
    report("training", 0, 10)
    clock(1.0)
    report("training", 1, 10)
    now = read_progress(job)
    assert now.remaining(now.time) == pytest.approx(9.0)


@pytest.mark.parametrize("content", ["", '{"stage": "mea', "[]", '{"stage": "x"}', '{"stage": 1, "done": "many"}'])
def test_a_damaged_file_reads_as_nothing_reported(tmp_path, content):
    (tmp_path / "progress.json").write_text(content)
    assert read_progress(tmp_path) == Progress()
    assert read_progress(tmp_path / "missing") == Progress()


def test_track_yields_all_and_reports_the_end(job, capsys):
    assert list(track("abcd", "measuring", total=4, unit="batch")) == list("abcd")
    assert (read_progress(job).done, read_progress(job).fraction) == (4, 1.0)
    assert "measuring" in capsys.readouterr().err
    list(track("ab", "hidden", total=2, unit="batch", shown=False))
    assert capsys.readouterr().err == ""


def test_a_bar_in_a_log_file_is_a_few_lines(tmp_path):
    code = "import time; from analysis.progress import track\nfor _ in track(range(300), 'x', 300, 'batch'): time.sleep(0.002)"
    environment = {name: value for name, value in os.environ.items() if name != "GAMELORA_JOB_DIR"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "300/300" in done.stderr
    assert done.stderr.count("\r") <= 2
    assert done.stdout == ""
