"""`evaluate` and `predict` on the command line, with the network off."""

import argparse
import json
import math
import socket

import pytest
import torch

from analysis import cli_evaluate
from analysis.hallucination.benchmarks import BENCHMARKS
from tests.tiny_text import tiny_loaded


def run(*arguments):
    parser = argparse.ArgumentParser()
    cli_evaluate.add_commands(parser.add_subparsers())
    options = parser.parse_args([str(argument) for argument in arguments])
    options.func(options)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, workspace):
    def refuse(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def model(monkeypatch):
    """The model that the command loads; set its seed for another checkpoint."""
    wanted = {"seed": 0}

    def load(source, *, revision, adapter, dtype, device, tokenizer):
        assert (source, revision, adapter, dtype, device, tokenizer) == ("tiny", None, None, "float32", "auto", None)
        return tiny_loaded(seed=wanted["seed"])

    monkeypatch.setattr(cli_evaluate, "load_model", load)
    return wanted


def test_without_data_it_is_refused_before_the_model_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_evaluate, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    for arguments, said in [
        (("--tasks", "memo_trap", "--data", tmp_path), "MemoTrap"),
        (("--tasks", "builtin,truthfulqa_mc"), "truthfulqa_mc.jsonl"),
        (("--tasks", "nothing"), "no benchmark 'nothing'"),
        (("--tasks", "builtin", "--limit", 0), "give 1 or more"),
        (("--tasks", "builtin", "--batch-size", 0), "at least 1"),
    ]:
        with pytest.raises(ValueError, match=said):
            run("evaluate", "--model", "default", *arguments, "--out", tmp_path / "out")


def test_local_rows_of_every_hallucination_benchmark_run_offline(tmp_path, model, capsys):
    samples = {
        "halueval_qa": {"knowledge": "k", "question": "q", "answer": "a", "hallucination": "no"},
        "truthfulqa_mc": {
            "question": "q",
            "mc1_targets": {"choices": ["a", "b"], "labels": [1, 0]},
            "mc2_targets": {"choices": ["a", "b"], "labels": [1, 0]},
        },
        "memo_trap": {"prompt": "Say", "classes": [" no.", " yes."], "answer_index": 1},
    }
    for name, row in samples.items():
        path = tmp_path / BENCHMARKS[name].file
        path.parent.mkdir(exist_ok=True)
        path.write_text((json.dumps(row) + "\n") * 3)
    run("evaluate", "--model", "tiny", "--tasks", ",".join(samples), "--data", tmp_path, "--out", tmp_path / "out")
    said = capsys.readouterr().out
    assert said.count("n = 3") == 4 and "without a verdict, length alone scores 1.000" in said
    assert {path.name for path in (tmp_path / "out").glob("*.json")} == {f"{name}.json" for name in samples}


def test_a_model_that_is_not_finite_gets_no_score_in_words(tmp_path, monkeypatch, capsys):
    broken = tiny_loaded()
    with torch.no_grad():
        broken.model.lm_head.weight[5] = math.nan
    monkeypatch.setattr(cli_evaluate, "load_model", lambda *_, **__: broken)
    run("evaluate", "--model", "tiny", "--limit", 4, "--per-item-gamma", "--out", tmp_path / "out")
    said = capsys.readouterr().out
    assert said.count("no score, none of 4 items could be scored") == 4 and "nan" not in said
    run("predict", "--results", tmp_path / "out", "--out", tmp_path / "answer.json")
    assert "no item has both a score and a finite Gamma" in capsys.readouterr().out


def test_evaluate_then_predict(tmp_path, model, capsys):
    folders = [tmp_path / f"step-{seed}" for seed in range(4)]
    for seed, folder in enumerate(folders):
        model["seed"] = seed
        run(
            *("evaluate", "--model", "tiny", "--tasks", "builtin_mc,builtin_traps", "--limit", 16),
            *("--per-item-gamma", "--out", folder),
        )
        assert (folder / "builtin_mc.gamma-paper.npz").is_file()
    capsys.readouterr()
    run("predict", "--results", *folders, "--out", tmp_path / "answer.json")
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("step-")]) == 4 * 4
    assert "across 4 checkpoints" in said
    record = json.loads((tmp_path / "answer.json").read_text())
    assert record["kind"] == "prediction" and list(record["checkpoints"]) == [folder.name for folder in folders]
    assert record["across_checkpoints"]["benchmarks"] == ["builtin_mc1", "builtin_mc2", "builtin_traps"]
    assert set(record["relative_change"]) == {"step-1", "step-2", "step-3"}
    for name in ("one.json", "two.json"):
        run("predict", "--results", folders[0], "--out", tmp_path / name)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
