"""`python -m gamelora`: train, resume, merge, show-config, and one `error:` line for whatever is wrong."""

import subprocess
import sys

import pytest
import torch

from analysis.models import load_model
from gamelora import training
from gamelora.__main__ import main
from gamelora.config import GameLoraConfig
from gamelora.presets import preset
from gamelora.runs import Run
from tests.conftest import ROOT
from tests.tiny_files import save_folder, text_model

FAST = ("seq_len=16", "eval_tokens=32", "batch_size=2", "steps=2", "r=4", "report_to=[]", "learning_rate=0.01")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_folder(text_model(), tmp_path_factory.mktemp("model"))


def arguments(model, *more: str) -> list[str]:
    return [part for setting in (f"model={model}", *FAST, *more) for part in ("--set", setting)]


def error(capsys, *given: str) -> str:
    assert main(list(given)) == 2
    output = capsys.readouterr()
    lines = [line for line in output.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in output.err
    return lines[0]


def test_train_merge_and_reload(model, workspace, tmp_path, capsys):
    assert main(["train", *arguments(model), "--run", "mine"]) == 0
    assert "mine: finished after step 2 of 2; adapter in" in capsys.readouterr().out
    assert main(["merge", "mine", "--out", str(tmp_path / "merged")]) == 0
    ids = torch.arange(12)[None]
    adapted = load_model(str(model), adapter=str(Run.open("mine").adapter))
    torch.testing.assert_close(
        load_model(str(tmp_path / "merged")).model(ids).logits, adapted.model(ids).logits, atol=1e-5, rtol=0
    )
    assert "exists already" in error(capsys, "merge", "mine", "--out", str(tmp_path / "merged"))
    assert "is finished" in error(capsys, "resume", "mine")


@pytest.mark.parametrize("saved", ["[embed_tokens, lm_head]", "[lm_head]", "[embed_tokens]"])
def test_a_tied_model_whose_embeddings_were_trained_merges_to_the_same_logits(saved, workspace, tmp_path):
    base = save_folder(text_model(tie_word_embeddings=True), tmp_path / "tied")
    assert main(["train", *arguments(base, f"modules_to_save={saved}"), "--run", "tied"]) == 0
    assert main(["merge", "tied", "--out", str(tmp_path / "merged")]) == 0
    ids = torch.arange(12)[None]
    adapted = load_model(str(base), adapter=str(Run.open("tied").adapter))
    merged = load_model(str(tmp_path / "merged"))
    torch.testing.assert_close(merged.model(ids).logits, adapted.model(ids).logits, atol=1e-5, rtol=0)
    assert not torch.equal(merged.model(ids).logits, load_model(str(base)).model(ids).logits)


def test_resume_goes_on_and_takes_what_may_change(model, workspace, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "stop_requested", lambda self: True)
        assert main(["train", *arguments(model), "--run", "mine"]) == 0
    assert "mine: stopped after step 1 of 2; resume with `python -m gamelora resume mine`" in capsys.readouterr().out
    assert "cannot change r" in error(capsys, "resume", "mine", "--set", "r=8")
    assert main(["resume", "mine", "--set", "micro_batch_size=1"]) == 0
    assert "finished after step 2" in capsys.readouterr().out


def test_a_run_without_a_name_takes_the_next_free_one(model, workspace, monkeypatch):
    monkeypatch.setattr(training, "_train", lambda *_: None)
    for _ in range(2):
        assert main(["train", "--preset", "smoke"]) == 0
    assert sorted(path.name for path in (workspace / "runs").iterdir()) == ["smoke", "smoke-2"]


def test_show_config_prints_what_train_reads(capsys, tmp_path):
    assert main(["show-config", "--preset", "laptop", "--set", "seed=7"]) == 0
    printed = capsys.readouterr().out
    assert GameLoraConfig.from_yaml(printed) == GameLoraConfig.from_dict({**preset("laptop").to_dict(), "seed": 7})
    assert main(["show-config"]) == 0 and GameLoraConfig.from_yaml(capsys.readouterr().out) == GameLoraConfig()


def test_errors_are_one_line(workspace, tmp_path, capsys):
    assert "did you mean 'learning_rate'" in error(capsys, "train", "--set", "learningrate=1", "--run", "x")
    assert "nothing says what to train" in error(capsys, "train")
    assert "there is no config file" in error(capsys, "train", "--config", str(tmp_path / "none.yaml"))
    assert "run name '../x'" in error(capsys, "train", "--preset", "smoke", "--run", "../x")
    assert "there is no run" in error(capsys, "resume", "none")
    assert "there is no run" in error(capsys, "merge", "none", "--out", str(tmp_path / "out"))
    assert "/nowhere does not exist" in error(capsys, "train", "--set", "model=/nowhere", "--run", "x")
    assert Run.open("x").status()["state"] == "failed"
    assert "neither an adapter nor a complete checkpoint" in error(capsys, "merge", "x", "--out", str(tmp_path / "out"))


def test_the_module_runs_in_a_fresh_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "gamelora", "show-config", "--preset", "smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert GameLoraConfig.from_yaml(done.stdout) == preset("smoke")
