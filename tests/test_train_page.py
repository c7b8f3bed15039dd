"""The train page without a browser: the form and its checks, every state that a run can be in, and what its buttons do."""

import errno
import json
import os
import shutil
import sys

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.progress import Progress
from analysis.workspace import atomic_write
from gamelora import dry_step, jobs, training_jobs
from gamelora.config import GameLoraConfig, fields_by_name
from gamelora.presets import PRESETS, preset
from gamelora.run_metrics import RunMetrics
from gamelora.runs import Run
from gamelora.training_figures import POINTS
from tests.conftest import ROOT
from tests.job_helpers import made_up_job
from tests.made_up_runs import made_up_run
from tests.synthetic import synthetic_result
from tests.test_pages import DEFAULT, job, known_jobs, started, words  # noqa: F401
from tests.tiny_files import save_folder, text_model


@pytest.fixture
def small(workspace, tmp_path):
    """A workspace with a result and a tiny model; the model's folder."""
    synthetic_result(n_layers=4).save(workspace / "results" / f"{DEFAULT}.npz")
    return str(save_folder(text_model(num_hidden_layers=2), tmp_path / "model"))


def made_run(name="mine", state="stopped", **values):
    """A run on disk."""
    return made_up_run(name, state, **{"steps": 20, "report_to": []} | values)


def made_job(state, **status):
    """The job that worked on it."""
    argv = [sys.executable, "-m", "gamelora", "train", "--run", "mine"]
    return made_up_job("20260101-x", "run:mine", argv, state=state, **status)


def train(**link):
    """The app on the train page, opened by a link."""
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=180)
    test.run()
    test.switch_page("pages/train.py")
    for key, value in link.items():
        test.query_params[key] = value
    return test.run()


def given(test, **values):
    """Put values into the form."""
    for name, value in values.items():
        test.session_state[f"train_{name}"] = value
    return test.run()


def form_for(model, **values):
    """The form, filled for a tiny model by pasting a config, then changed."""
    config = GameLoraConfig.from_dict(PRESETS["laptop"] | {"model": model, "seq_len": 16, "eval_tokens": 32})
    test = train()
    test.text_area(key="train_paste").set_value(config.to_yaml()).run()
    return given(pressed(test, "train_use"), **values)


def pressed(test, key):
    return test.button(key=key).click().run()


def well(test):
    assert not test.exception and not test.error, [one.value for one in [*test.exception, *test.error]]
    return test


# --- the form -------------------------------------------------------------------------------------------------------------


def test_every_field_of_the_config_has_a_widget_with_its_help(small):
    test = well(train())
    kinds = ("text_input", "selectbox", "multiselect", "checkbox")
    widgets = {widget.key: widget for kind in kinds for widget in getattr(test, kind)}
    for name, field in fields_by_name().items():
        assert field.metadata["help"] in widgets[f"train_{name}"].help, name
    assert test.session_state["train_name"] == "laptop"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_the_form_and_the_form_gives_it_back(small, name):
    test = train()
    test.button_group(key="train_preset").set_value(name).run()
    shown = next(code.value for code in test.code if "seq_len" in code.value)
    assert GameLoraConfig.from_yaml(shown) == preset(name)
    assert any(f"--preset {name}" in code.value for code in test.code)
    assert not test.exception


def test_all_problems_stand_at_their_fields_at_once_and_nothing_can_start(small):
    test = form_for(small, steps="0", learning_rate="fast", micro_batch_size="3", design_layers="1, x", name="../x")
    said = words(test)
    for part in (
        "steps is 0: give at least 1",
        "learning_rate is 'fast'",
        "design_layers is 'x'",
        "run name '../x' cannot be used",
    ):
        assert said.count(part) >= 2, part  # at the field, and beside Start
    assert test.button(key="train_start").disabled and "5 settings need a change" in said
    later = given(test, steps="4", learning_rate="1e-3", design_layers="", name="x")
    assert "batch_size 4 cannot be cut into rows of micro_batch_size 3" in words(later)
    assert well(given(later, micro_batch_size="2")).button(key="train_start").disabled is False


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"design_layers": "7"}, "design_layers [7] are no attention layers"),
        ({"target_modules": "nothing"}, "name no module of"),
        ({"seq_len": "128", "eval_tokens": "128"}, "does not fit the model's window of 64"),
        ({"model": "/no/such/model"}, "/no/such/model does not exist"),
        ({"processes": 3}, "cannot be shared by 3 processes"),
        ({"report_to": ["wandb"]}, "wandb, which is not installed"),
    ],
    ids=str,
)
def test_what_the_model_and_the_machine_cannot_do_is_said_before_the_start(small, values, part):
    test = form_for(**{"model": small} | values)
    assert part in words(test) and test.button(key="train_start").disabled and not test.exception


def test_the_estimate_is_shown_and_follows_the_rank(small):
    def trainable(test):
        return int(next(iter(test.table)).value.to_dict()[""]["Trainable"].split()[0].replace(",", ""))

    test = form_for(small, r="2")
    two = trainable(test)
    assert trainable(given(test, r="6")) == 3 * two
    assert "not known before a step is measured" in str(test.table[0].value)


def test_a_model_that_is_not_here_can_be_started_and_says_that_its_size_is_not_known(small):
    test = form_for("nobody/nothing-of-that-name")
    assert "is not on this machine yet" in words(test) and not test.button(key="train_start").disabled


def test_start_makes_one_job_of_exactly_the_command_shown_and_shows_the_run(small, started):  # noqa: F811
    test = form_for(small, name="first", steps="7")
    shown = next(code.value for code in test.code if code.value.startswith("python -m"))
    pressed(test, "train_start")
    (target, arguments), *others = started
    assert target == "run:first" and not others
    assert " ".join(arguments) == " ".join(shown.replace("\\\n", " ").split()[2:])
    assert test.query_params["run"] in ("first", ["first"]) and "Waiting for its turn" in words_and_bars(test)


def test_the_next_form_has_the_next_name(small, started):  # noqa: F811
    test = pressed(form_for(small, name="first"), "train_start")
    next(button for button in test.button if button.label == "New run").click().run()
    assert test.session_state["train_name"] == "first-2" and not test.button(key="train_start").disabled


def words_and_bars(test):
    return words(test) + "\n".join(str(bar.proto.text) for bar in test.get("progress"))


def test_a_pasted_config_fills_the_form_and_a_wrong_one_says_everything(small):
    test = form_for(small)
    test.text_area(key="train_paste").set_value("stepz: 3\nseq_len: -1").run()
    pressed(test, "train_use")
    said = "\n".join(error.value for error in test.error).replace("\\", "")
    assert "did you mean 'steps'" in said and "seq_len is -1" in said
    assert test.session_state["train_seq_len"] == "16", "the form stays"
    config = GameLoraConfig.from_dict({"steps": 33, "design_layers": [1, 2], "use_dora": True, "learning_rate": 1e-5})
    test.text_area(key="train_paste").set_value(config.to_yaml()).run()
    pressed(test, "train_use")
    assert GameLoraConfig.from_yaml(next(code.value for code in test.code if "seq_len" in code.value)) == config


def test_a_step_is_measured_on_demand_and_its_numbers_shown(small, started):  # noqa: F811
    test = form_for(small, steps="100", update_weights_every="10", eval_every="100")
    pressed(test, "train_measure")
    assert started[0][0].startswith("dry-step:") and started[0][1][:2] == ["gamelora", "measure-step"]
    config = GameLoraConfig.from_yaml(next(code.value for code in test.code if "seq_len" in code.value))
    measured = dry_step.DryStep(1.0, 3.0, 0.5, 2**30, 2**33, "cpu")
    stored = json.dumps({"format": 1, "measured": measured.__dict__})
    atomic_write(dry_step.path_of(dry_step.share_of(config, 1)), stored)
    table = str(test.run().table[0].value.to_dict())
    assert "about 2 min 2 s on this machine" in table and "1.00 GiB" in table  # 90 + 10 * 3 + 2 evaluations of 2 rows


# --- a run on screen ------------------------------------------------------------------------------------------------------


def curves(test):
    """The values of the chart's curves by name, the first of each name."""
    (chart,) = test.get("echarts_chart")
    found = {}
    for series in json.loads(chart.proto.spec)["series"]:
        found.setdefault(series["name"], np.array([value for _, value in series["data"]], dtype=float))
    return found


def test_a_finished_run_shows_its_curves_and_its_end(small):
    made_run(steps=40, state="finished")
    test = well(train(run="mine"))
    drawn = curves(test)
    np.testing.assert_allclose(drawn["training"], RunMetrics().read_on(Run.open("mine")).series("loss/ce"))
    assert len(drawn["held-out"]) == 2
    assert "finished" in words(test) and "Finished at step 40 of 40" in words_and_bars(test)


def test_20_000_steps_are_drawn_with_few_points_and_downloaded_whole(small):
    run = made_run(steps=20_000)
    drawn = curves(well(train(run="mine")))
    assert max(map(len, drawn.values())) <= POINTS
    assert drawn["training"].max() == RunMetrics().read_on(run).series("loss/ce").max(), "no spike is lost"
    assert RunMetrics().read_on(run).to_csv().count(b"\n") == 20_000 + 2 + 1


def test_only_new_lines_are_read_at_a_tick(small, monkeypatch):
    run = made_run(steps=40, done=20, state="stopped")
    test = train(run="mine")
    read = []
    after = Run.metrics_after
    monkeypatch.setattr(Run, "metrics_after", lambda self, before: read.append(after(self, before)) or read[-1])
    run.append_metrics({"step": 21, "loss/ce": 1.0})
    drawn = curves(test.run())
    assert [len(part.lines) for part in read] == [1] and drawn["training"][-1] == 1.0


def live(monkeypatch, state="running", **fields):
    now = job(state, target="run:mine", arguments=("gamelora", "train", "--run", "mine"), started=100.0, **fields)
    known_jobs(monkeypatch, now)
    monkeypatch.setattr(jobs, "log_tail", lambda job_id, lines=30: "the last line")
    return now


def test_a_running_run_says_step_elapsed_and_remaining_and_can_be_stopped(small, monkeypatch):
    made_run(state="running", done=5)
    monkeypatch.setattr("pages._train_live.seconds_left", lambda metrics, steps, now: 15.0)
    now = live(monkeypatch, progress=Progress("training", 5, 20, "step", time=100.0, began=70.0))
    stopped = []
    monkeypatch.setattr(jobs, "stop", lambda job_id, **options: stopped.append((job_id, options)))
    test = well(train())
    assert test.session_state["run"] == "mine", "a fresh session finds the run that is at work"
    said = words_and_bars(test)
    assert "Training, step 5 of 20" in said and "so far, about 15 s left" in said and "close the browser" in said
    pressed(test, "run_stop_and_keep")
    pressed(test, "run_stop_now")
    assert stopped == [
        (now.id, {"wait": False, "patience": training_jobs.KEEP_SECONDS}),
        (now.id, {"grace": training_jobs.NOW_SECONDS}),
    ]


def test_a_stopping_run_says_so(small, monkeypatch):
    made_run(state="running", done=5)
    live(monkeypatch, stopping=True)
    test = well(train(run="mine"))
    assert "Saving, then ending, step 5 of 20" in words_and_bars(test) and test.button(key="run_stop_and_keep").disabled


def test_a_killed_run_shows_its_last_lines_and_what_to_do_next(small, started):  # noqa: F811
    made_run(state="running", done=5)
    made_job("failed", error="killed by signal 9 (often the system running out of memory)")
    test = train(run="mine")
    said = words(test)
    assert "Failed at step 5 of 20" in said and "killed by signal 9" in said
    assert any("last words" in code.value for code in test.code)
    assert test.button(key="run_start_again").label == "Start again", "it has no checkpoint"
    pressed(test, next(button.key for button in test.button if button.label.endswith("rows at once")))
    assert started == [("run:mine", ["gamelora", "resume", "mine", "--set", "micro_batch_size=8"])]


def test_a_visit_finds_the_failed_run_and_resume_comes_before_a_guess(small, started):  # noqa: F811
    made_run(state="running", done=5)
    made_job("failed", error="killed by signal 9 (often the system running out of memory)")
    test = train()
    assert "Failed at step 5 of 20" in words(test)
    order = [button.label for button in test.button if button.label.startswith("Start again")]
    assert order == ["Start again", "Start again with 8 rows at once"]
    test.button(key="run_start_again").click().run()
    assert started == [("run:mine", ["gamelora", "resume", "mine"])]


def test_who_comes_back_finds_the_run_that_has_finished_and_its_pace(small):
    made_run(done=20, state="finished")
    assert train().session_state["run"] is None, "it was not started here: which run was last is not known"
    made_job("done")
    test = train()
    assert test.session_state["run"] == "mine"
    assert "s a step (median of 20)" in words(test)


def test_a_resume_names_the_step_of_the_newest_checkpoint(small, started, monkeypatch):  # noqa: F811
    run = made_run(state="stopped", done=15)
    monkeypatch.setattr(Run, "newest_checkpoint", lambda self: (run.checkpoints_folder / "checkpoint-12", {}))
    test = well(train(run="mine"))
    button = next(button for button in test.button if button.label == "Resume from step 12")
    button.click().run()
    assert started == [("run:mine", ["gamelora", "resume", "mine"])]


def test_a_run_that_was_stopped_before_it_began_starts_again(small, started):  # noqa: F811
    made_job("stopped")
    test = well(train(run="mine"))
    assert "stopped before it began" in words(test)
    pressed(test, "run_start_again")
    assert started == [("run:mine", ["gamelora", "train", "--run", "mine"])]


def test_health_is_said_in_words(small):
    run = made_run(state="stopped")
    run.append_metrics({"step": 21, "loss/ce": float("nan")})
    run.write_status(bargains={"solved": 1, "failed": 2, "opposed": 0}, notes=["A word of the trainer."])
    said = words(train(run="mine"))
    for part in ("cross-entropy was not finite", "2 of 3 bargains", "A word of the trainer"):
        assert part in said


def test_damaged_runs_say_what_is_wrong_and_the_rest_works(small):
    broken = made_run("broken")
    (broken.folder / "status.json").write_text('{"format": 1, "sta')
    newer = made_run("newer")
    newer.write_status(format=99)
    odd = made_run("odd")
    (odd.folder / "config.yaml").write_text("stepz: 3")
    (made_run("renamed").folder).rename(odd.folder.with_name("-dash"))
    half = made_run("half")
    with open(half.folder / "metrics.jsonl", "a") as file:
        file.write('nonsense\n{"step": 30, "lo')
    assert "cannot be read" in words(train(run="broken"))
    assert "is newer than this program" in words(train(run="newer"))
    assert "stepz" in words(train(run="odd"))
    assert "Skipped: 1 damaged line." in words(opened(well(train(run="half")), "Data"))
    for name in ("broken", "newer", "odd", "half"):
        assert not train(run=name).exception
    assert "-dash" not in well(train()).selectbox(key="run").options


def test_metrics_that_cannot_be_read_are_said_and_the_rest_works(small, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    made_run(state="stopped")
    monkeypatch.setattr(Run, "metrics_after", refuse)
    test = train(run="mine")
    assert "metrics of mine cannot be read (Permission denied)" in words(test) and not test.exception
    assert test.button(key="run_start_again").label == "Start again"


def opened(test, tab):
    test.session_state["run_tab"] = tab
    return test.run()


def test_a_clone_is_a_new_form_with_the_same_settings(small):
    made_run(steps=33, learning_rate=1e-5, model=small, seq_len=16, eval_tokens=32)
    test = pressed(train(run="mine"), "run_clone")
    assert test.session_state["train_name"] == "mine-2" and test.session_state["run"] is None
    shown = GameLoraConfig.from_yaml(next(code.value for code in test.code if "seq_len" in code.value))
    assert shown == Run.open("mine").config()


def test_delete_asks_once_and_removes_the_run_with_its_jobs(small):
    run = made_run()
    made_job("done")
    test = train(run="mine")
    assert "This cannot be undone" in words(test)
    pressed(test, "run_delete_it")
    assert not run.folder.exists() and not jobs.jobs() and not test.exception
    assert test.session_state["run"] is None and len(test.text_input(key="train_name").value) > 0


def test_a_link_to_a_run_that_is_gone_says_so_and_shows_the_form(small):
    made_run("other")
    test = train(run="gone")
    assert "gone" in words(test) and test.text_input(key="train_name").value == "laptop" and not test.exception


def test_a_deleted_adapter_is_said(small):
    shutil.rmtree(made_run(model=small, state="finished").adapter)
    assert "Its adapter was deleted" in words(train(run="mine"))


# --- the queue ------------------------------------------------------------------------------------------------------------


def test_the_queue_can_be_reordered_and_cancelled(small, monkeypatch):
    waiting = [
        jobs.Job(
            f"2026010{number}-x", f"run:r{number}", f"Train r{number}", ["python", "-m", "gamelora"], ROOT, "queued", rank=number
        )
        for number in range(3)
    ]
    known_jobs(monkeypatch, *waiting)
    done = []
    monkeypatch.setattr(jobs, "move", lambda *asked: done.append(asked))
    monkeypatch.setattr(jobs, "stop", lambda *asked: done.append(asked))
    test = well(train(run="r1"))
    assert "Waiting for its turn, place 2" in words_and_bars(test)
    assert test.button(key=f"up_{waiting[0].id}").disabled and test.button(key=f"down_{waiting[2].id}").disabled
    pressed(test, f"up_{waiting[2].id}")
    pressed(test, f"cancel_{waiting[1].id}")
    assert done == [(waiting[2].id, 1), (waiting[1].id,)]


def test_a_workspace_that_cannot_be_written_is_one_sentence(small, monkeypatch):
    def refuse(*_, **__):
        raise OSError("the workspace /w cannot be written (Read-only file system): free space or allow writing there.")

    monkeypatch.setattr(jobs, "start", refuse)
    test = pressed(form_for(small), "train_start")
    assert "cannot be written" in words(test) and not test.exception
