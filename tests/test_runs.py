"""The run directory: what a run leaves on disk, what survives a kill or a full disk, and a resume that changes nothing."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from analysis.models import load_model
from gamelora import checkpoints, data, training
from gamelora import trainer as trainer_module
from gamelora.config import GameLoraConfig
from gamelora.runs import Run, free_name, run_names
from gamelora.training import resume_run, start_run
from tests.conftest import ROOT
from tests.tiny_files import save_folder, text_model

SETTINGS = {
    "autocast": "float32",
    "seq_len": 16,
    "eval_tokens": 32,
    "batch_size": 4,
    "micro_batch_size": 2,
    "steps": 4,
    "r": 4,
    "learning_rate": 1e-2,
    "update_weights_every": 3,
    "eval_every": 4,
    "save_every": 1,
    "report_to": [],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_folder(text_model(num_hidden_layers=2), tmp_path_factory.mktemp("model"))


def settings(model, **values) -> GameLoraConfig:
    return GameLoraConfig.from_dict({**SETTINGS, "model": str(model), **values})


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def stop_after(monkeypatch, step: int) -> None:
    """Ask the run for its end during a step, as the dashboard does."""
    on_log = training.RunRecorder.on_log

    def asking(self, args, state, control, **given):
        on_log(self, args, state, control, **given)
        if state.global_step == step - 1:
            self.run.request_stop()

    monkeypatch.setattr(training.RunRecorder, "on_log", asking)


# --- a run from end to end ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A finished run; the workspace variable is set back afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(tmp_path_factory.mktemp("workspace")))
        yield start_run("whole", settings(model, report_to=["tensorboard"], keep_checkpoints=3))


def test_a_run_leaves_config_status_metrics_checkpoints_and_adapter(finished, model):
    assert finished.config() == settings(model, report_to=["tensorboard"], keep_checkpoints=3)
    status = finished.status()
    assert (status["state"], status["step"], status["steps"]) == ("finished", 4, 4)
    assert status["arbitration"] == "nash" and status["bargains"]["solved"] >= 1 and status["design_layers"] == [1]
    assert status["model"]["sha256"] and status["text"]["train"]["sha256"] and status["versions"]["torch"]
    assert [path.name for path in finished.checkpoints()] == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    assert list((finished.folder / "tensorboard").glob("events.*")) and not finished.is_alive()


def test_every_step_and_every_evaluation_is_a_line_of_metrics(finished):
    lines, end = finished.metrics()
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    evaluations = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [0, 4]
    assert {f"eval_gamma_{coupling}/L{layer}" for coupling in ("paper", "invariant") for layer in (0, 1)} <= evaluations[0].keys()
    assert finished.metrics(end) == ([], end)


def test_the_adapter_loads_by_peft_and_by_the_analysis_and_holds_no_pickle(finished, model):
    base = AutoModelForCausalLM.from_pretrained(model)
    adapted = PeftModel.from_pretrained(base, finished.adapter)
    ids = torch.arange(8)[None]
    loaded = load_model(str(model), adapter=str(finished.adapter))
    torch.testing.assert_close(loaded.model(ids).logits, adapted(ids).logits)
    assert load_model(str(model), adapter=str(finished.checkpoints()[0])).provenance["adapter"]
    suffixes = {path.suffix for path in finished.adapter.iterdir()}
    assert suffixes == {".json", ".md", ".safetensors"}


def test_the_model_card_says_what_it_is_and_what_came_out(finished, model):
    card = (finished.adapter / "README.md").read_text()
    for part in ("GAME-LoRA adapter", finished.status()["model"]["sha256"], "seed 42", "Nash bargaining", "| Gamma, layer 1 |"):
        assert part in card


@pytest.mark.parametrize("method", ["ce", "ldb", "bt", "naive"])
def test_every_method_runs_and_names_itself(method, model, workspace):
    run = start_run(method, settings(model, method=method, steps=2, save_every=5))
    assert run.status()["arbitration"] == ("none" if method == "ce" else "nash")
    assert [path.name for path in run.checkpoints()] == ["checkpoint-2"]  # the last step always has one


def test_the_same_config_gives_the_same_adapter_bit_for_bit(model, workspace):
    first, second = (start_run(name, settings(model)).adapter for name in ("first", "second"))
    assert (first / "adapter_model.safetensors").read_bytes() == (second / "adapter_model.safetensors").read_bytes()


# --- resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"modules_to_save": ["lm_head"], "lora_dropout": 0.0}])
def test_two_steps_and_two_more_are_four(extra, model, workspace, monkeypatch):
    straight = start_run("straight", settings(model, **extra))
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        half = start_run("half", settings(model, **extra))
    status = half.status()
    assert (status["state"], status["step"]) == ("stopped", 2) and not half.adapter.exists()
    resumed = resume_run("half")
    assert resumed.status()["state"] == "finished"
    expected = weights(straight.adapter)
    assert all(torch.equal(part, expected[name]) for name, part in weights(resumed.adapter).items())
    untimed = ("time", "tokens_per_second", "peak_memory")
    lines = [
        [{key: value for key, value in line.items() if key not in untimed} for line in run.metrics()[0]]
        for run in (straight, half)
    ]
    assert lines[0] == lines[1]
    assert straight.status()["bargains"] == half.status()["bargains"]


def test_a_stream_goes_on_where_it_stopped(model, workspace, monkeypatch):
    original = data.documents
    monkeypatch.setattr(data, "documents", lambda source: original("builtin"))
    straight = start_run("straight", settings(model, text="pile"))
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        start_run("half", settings(model, text="pile"))
    expected, resumed = weights(straight.adapter), weights(resume_run("half").adapter)
    assert all(torch.equal(part, expected[name]) for name, part in resumed.items())


def test_a_run_killed_between_its_last_checkpoint_and_its_adapter_needs_no_step_more(model, workspace, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(training, "model_card", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start_run("run", settings(model))
    run = Run.open("run")
    assert run.status()["state"] == "failed" and run.checkpoints()[-1].name == "checkpoint-4" and not run.adapter.exists()
    lines = run.metrics()
    assert resume_run("run").status()["state"] == "finished" and run.metrics() == lines
    straight = weights(start_run("straight", settings(model)).adapter)
    assert all(torch.equal(part, straight[name]) for name, part in weights(run.adapter).items())


def test_a_run_killed_before_its_first_checkpoint_starts_again(model, workspace, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "write_state", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start_run("run", settings(model))
    run = resume_run("run")
    assert run.status()["state"] == "finished"
    assert [line["step"] for line in run.metrics()[0]] == [0, 1, 2, 3, 4, 4]


def test_a_smaller_micro_batch_may_go_on_and_another_rank_may_not(model, workspace, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        run = start_run("run", settings(model, lora_dropout=0.0))
    for change in ({"r": 8}, {"seed": 1}, {"target_modules": ["o_proj"]}):
        with pytest.raises(ValueError, match="cannot change"):
            resume_run("run", change)
    path = run.folder / "config.yaml"
    before = path.read_text()
    path.write_text(before.replace("r: 4", "r: 8"))
    with pytest.raises(ValueError, match=r"another config: r \(was 4, is 8\)"):
        resume_run("run")
    path.write_text(before)
    straight = start_run("straight", settings(model, lora_dropout=0.0))
    resumed = resume_run("run", {"micro_batch_size": 1})
    assert run.config().micro_batch_size == 1
    for name, part in weights(straight.adapter).items():
        torch.testing.assert_close(weights(resumed.adapter)[name], part, atol=1e-4, rtol=1e-3)


def test_another_base_model_is_refused_on_resume(model, workspace, monkeypatch, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(model, base)
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        before = start_run("run", settings(base)).status()
    shutil.rmtree(base)
    save_folder(text_model(num_hidden_layers=2, seed=5), base)
    with pytest.raises(ValueError, match="another model"):
        resume_run("run")
    after = Run.open("run").status()
    assert after["state"] == "failed" and "another model" in after["reason"]
    kept = before.keys() - {"state", "reason", "updated"}
    assert before["step"] == 1 and {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_a_finished_run_an_unknown_one_and_a_taken_name(finished, model, monkeypatch):
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(finished.folder.parents[1]))
    with pytest.raises(ValueError, match="finished"):
        resume_run("whole")
    with pytest.raises(ValueError, match=r"there is no run 'none'.*there are: whole"):
        resume_run("none")
    with pytest.raises(ValueError, match="choose another --run"):
        start_run("whole", settings(model))
    assert free_name("whole") == "whole-2" and free_name("other") == "other" and run_names() == ["whole"]


@pytest.mark.parametrize("name", ["../x", "/abs", "a/b", "..", "", "a\0b", "x" * 300, ".hidden"])
def test_a_name_that_leaves_the_folder_creates_nothing(name, model, workspace):
    with pytest.raises(ValueError, match="run name"):
        start_run(name, settings(model))
    assert not list(workspace.rglob("config.yaml"))


# --- damage ---------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over_and_said(model, workspace, monkeypatch):
    straight = start_run("straight", settings(model))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        run = start_run("run", settings(model))
    newest = run.checkpoints_folder / "checkpoint-3"
    adapter = newest / "adapter_model.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:100])
    found, skipped = run.newest_checkpoint()
    assert found.name == "checkpoint-2" and "adapter_model.safetensors has 100 bytes" in skipped["checkpoint-3"]
    (newest / "trainer_state.json").unlink()
    resumed = resume_run("run")
    assert any("checkpoint-3 was passed over" in note for note in resumed.status()["notes"])
    expected = weights(straight.adapter)
    assert all(torch.equal(part, expected[name]) for name, part in weights(resumed.adapter).items())
    assert [path.name for path in run.checkpoints()] == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]


@pytest.mark.parametrize("damage", ["complete.json", "objectives.json", "optimizer.pt"])
def test_a_checkpoint_that_lacks_a_file_is_not_complete(damage, finished, tmp_path):
    copy = tmp_path / "checkpoint-9"
    shutil.copytree(finished.checkpoints()[-1], copy)
    assert checkpoints.complete_checkpoints(tmp_path) == [copy]
    (copy / damage).unlink()
    assert checkpoints.complete_checkpoints(tmp_path) == [] and damage in checkpoints.what_is_wrong(copy)


def test_a_full_disk_leaves_the_earlier_checkpoint_and_says_so(model, workspace, monkeypatch):
    write_state = trainer_module.write_state

    def full(checkpoint, state):
        if checkpoint.name == "checkpoint-3":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(checkpoint))
        write_state(checkpoint, state)

    monkeypatch.setattr(trainer_module, "write_state", full)
    with pytest.raises(OSError, match="No space left"):
        start_run("run", settings(model))
    run = Run.open("run")
    status = run.status()
    assert (status["state"], status["step"]) == ("failed", 3) and status["reason"].startswith("disk full")
    assert [path.name for path in run.checkpoints()] == ["checkpoint-1", "checkpoint-2"]
    assert not list(run.checkpoints_folder.glob(".*"))
    monkeypatch.undo()
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(workspace))
    assert resume_run("run").status()["state"] == "finished"


@pytest.mark.parametrize("words", ["Error while serializing: IoError(Os { code: 28, os error 28 })", "file write failed"])
def test_what_libraries_say_of_a_full_disk_becomes_one_error(words, tmp_path, monkeypatch):
    if "28" not in words:
        monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    with pytest.raises(OSError) as caught, checkpoints.saying_disk_full(tmp_path):
        raise RuntimeError(words)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "--set micro_batch_size=1"),
        ({"micro_batch_size": 1}, "--set gradient_checkpointing=true"),
        ({"micro_batch_size": 1, "gradient_checkpointing": True}, "smaller seq_len"),
    ],
)
def test_out_of_memory_says_what_to_try(changes, remedy, model, workspace, monkeypatch):
    def too_much(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer_module, "causal_loss", too_much)
    with pytest.raises(ValueError, match="out of memory"):
        start_run("run", settings(model, **changes))
    assert remedy in Run.open("run").status()["reason"]


def test_a_config_that_does_not_fit_leaves_a_failed_run_with_the_reason(model, workspace):
    cases = [
        ({"design_layers": [7]}, "it has 0, 1; the default is 1"),
        ({"target_modules": ["nothing"]}, "target_modules name no module of LlamaForCausalLM: 'nothing'"),
        ({"target_modules": ["q_proj", "o_porj"]}, "name no module of LlamaForCausalLM: 'o_porj' (nearest: o_proj"),
        ({"modules_to_save": ["nothing"]}, "modules_to_save name no module"),
        ({"target_modules": ["q_proj"]}, "leave it frozen"),
        ({"text": "/nowhere.txt"}, "there is no text"),
        ({"report_to": ["wandb"]}, "wandb, which is not installed"),
        ({"batch_size": 1_000_000, "micro_batch_size": 1}, "one step needs"),
        ({"seq_len": 128, "eval_tokens": 128}, "do not fit the model's window of 64"),
    ]
    for number, (changes, part) in enumerate(cases):
        with pytest.raises(ValueError, match=re.escape(part)):
            start_run(f"run{number}", settings(model, **changes))
        status = Run.open(f"run{number}").status()
        assert status["state"] == "failed" and part in status["reason"], changes


def test_a_status_from_a_newer_version_and_a_damaged_one_are_one_clear_error(model, workspace):
    run = Run.create("run", settings(model))
    for text in (
        json.dumps({"format": 99, "state": "running"}),
        '{"format": 1, "sta',
        "[]",
        json.dumps({"format": 1, "state": "odd"}),
    ):
        (run.folder / "status.json").write_text(text)
        with pytest.raises(ValueError, match="status of run 'run' cannot be read"):
            run.status()


def test_half_written_metrics_wait_for_their_rest_and_nonsense_is_skipped(model, workspace):
    run = Run.create("run", settings(model))
    run.append_metrics({"step": 0, "loss": float("nan")})
    assert run.metrics()[0] == [{"step": 0, "loss": None}]
    run.cut_metrics(-1)
    run.append_metrics({"step": 1, "loss": 2.0})
    with open(run.folder / "metrics.jsonl", "ab") as file:
        file.write(b'nonsense\n{"step": 2, "lo')
    lines, offset = run.metrics()
    assert lines == [{"step": 1, "loss": 2.0}]
    with open(run.folder / "metrics.jsonl", "ab") as file:
        file.write(b'ss": 1.5}\n')
    assert run.metrics(offset)[0] == [{"step": 2, "loss": 1.5}]
    run.cut_metrics(1)
    assert run.metrics()[0] == [{"step": 1, "loss": 2.0}]
    assert run.metrics(offset + 1000)[0] == [{"step": 1, "loss": 2.0}]  # the file is shorter now: from the start


# --- processes ------------------------------------------------------------------------------------------------------


def command(workspace, *arguments, launcher=("-m", "gamelora")) -> subprocess.Popen:
    env = {**os.environ, "GAMELORA_WORKSPACE": str(workspace), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    start = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.Popen(start, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def write_config(folder, config: GameLoraConfig):
    path = folder / "config.yaml"
    path.write_text(config.to_yaml())
    return path


def test_a_killed_run_reads_as_failed_and_resumes_to_the_same_adapter(model, workspace, tmp_path):
    config = settings(model, steps=40, save_every=4, keep_checkpoints=2, eval_every=40)
    process = command(workspace, "train", "--config", write_config(tmp_path, config), "--run", "run")
    run = Run("run", workspace / "runs" / "run")
    deadline = time.monotonic() + 240
    while not run.checkpoints() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert run.status()["state"] == "running" and run.is_alive()
    with pytest.raises(ValueError, match="another process trains run"), run.training():
        pass
    process.kill()
    process.communicate()
    status = run.status()
    assert status["state"] == "failed" and "killed" in status["reason"] and run.checkpoints()
    resumed = resume_run("run")
    straight = start_run("straight", config)
    assert resumed.status()["state"] == "finished"
    expected = weights(straight.adapter)
    assert all(torch.equal(part, expected[name]) for name, part in weights(resumed.adapter).items())
    assert [line["step"] for line in resumed.metrics()[0] if "loss" in line] == list(range(1, 41))


@pytest.mark.parametrize("method", ["game", "naive"])
def test_two_processes_give_the_update_of_one(method, model, workspace, tmp_path):
    config = settings(
        model, method=method, batch_size=8, micro_batch_size=None, lora_dropout=0.0, update_weights_every=2, save_every=4
    )
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "--", "gamelora")
    process = command(workspace, "train", "--config", write_config(tmp_path, config), "--run", "two", launcher=torchrun)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    one, two = start_run("one", config), Run.open("two")
    assert two.status()["state"] == "finished"
    lines = [[line for line in run.metrics()[0] if "loss" in line] for run in (one, two)]
    for alone, shared in zip(*lines, strict=True):
        for name in (
            "grad_norm",
            *(key for key in alone if key.startswith(("loss", "gamma", "gap", "weight", "gradient_norm", "cosine"))),
        ):
            assert shared[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-4), name
    evaluations = [next(line for line in reversed(run.metrics()[0]) if "eval_loss" in line) for run in (one, two)]
    assert evaluations[1]["eval_loss"] == pytest.approx(evaluations[0]["eval_loss"], rel=1e-4)
    for name, part in weights(one.adapter).items():
        torch.testing.assert_close(weights(two.adapter)[name], part, atol=2e-3, rtol=1e-2)
