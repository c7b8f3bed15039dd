"""`game`, `ablate` and `gauge` on a tiny model in a folder, and what they say to bad input."""

import argparse
import json

import numpy as np
import pytest
import torch

from analysis import cli_game
from analysis.ablation import AblationResult
from analysis.corpus import token_rows
from analysis.gauge import GaugeResult
from analysis.head_values import HeadValues
from analysis.heads import attention_layers
from analysis.measurement import measure_interaction
from analysis.models import load_model
from tests.tiny import tiny_model, tiny_rows
from tests.tiny_text import tiny_loaded


def run(command):
    parser = argparse.ArgumentParser()
    cli_game.add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args(list(map(str, command)))
    options.func(options)


@pytest.fixture
def measured(tmp_path, workspace):
    """A saved tiny model whose layer 0 holds a duplicate (heads 0 and 1) that hardly matters, a text, and its result."""
    model = tiny_model("llama", num_key_value_heads=4)
    layer = attention_layers(model)[0]
    with torch.no_grad():
        attention = model.get_submodule(layer.name)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight[layer.d_head : 2 * layer.d_head] = projection.weight[: layer.d_head]
        first, second = layer.projection.weight[:, : layer.d_head], layer.projection.weight[:, layer.d_head : 2 * layer.d_head]
        second.copy_(first)
        layer.projection.weight[:, : 2 * layer.d_head] *= 1e-4
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "text.npy", tiny_rows(6, 16).numpy())
    loaded = load_model(str(tmp_path / "model"))
    text = token_rows(str(tmp_path / "text.npy"), None, 96, 16)
    measure_interaction(loaded, text, coupling="invariant").view("paper").save(tmp_path / "result.npz")
    return tmp_path


def model_and_text(folder):
    return ["--model", folder / "model", "--text", folder / "text.npy", "--tokens", 96, "--seq-len", 16]


def test_game_with_equal_benefits_needs_no_model(measured, capsys):
    (measured / "model" / "model.safetensors").unlink()
    out = measured / "game.json"
    run(["game", "--result", measured / "result.npz", "--out", out])
    record = json.loads(out.read_text())
    assert [layer["layer"] for layer in record["layers"]] == [0, 1] and record["free_riders"] is None
    assert record["redundant"][:2] == ["L0H0", "L0H1"] and record["layers"][0]["vif"][:2] == ["unbounded"] * 2
    assert record["layers"][0]["worst_case"]["value"] == "unbounded"
    assert "2 layers, equal benefits" in capsys.readouterr().out
    run(["game", "--result", measured / "result.npz", "--layer", 1, "--coupling", "invariant", "--out", out])
    record = json.loads(out.read_text())
    assert [layer["layer"] for layer in record["layers"]] == [1] and record["provenance"]["coupling"] == "invariant"


def test_game_with_measured_benefits_finds_the_free_riders_and_keeps_the_values(measured, capsys):
    out, values = measured / "game.json", measured / "values.json"
    command = ["game", "--result", measured / "result.npz", "--benefits", "measured", "--values", values, "--out", out]
    run(command)
    record = json.loads(out.read_text())
    assert {"L0H0", "L0H1"} <= set(record["free_riders"]) <= set(record["redundant"])
    kept = HeadValues.load(values)
    assert record["layers"][1]["nash"] == kept.first_order[1].tolist()
    assert abs(kept.effect[0, :2]).max() < 1e-3
    first = out.read_bytes()
    (measured / "model" / "model.safetensors").unlink()  # the values are read, not measured again
    run(command)
    assert out.read_bytes() == first


def test_ablate_by_name_coalition_and_as_free_riders(measured, capsys):
    out = measured / "ablation.json"
    run(["ablate", *model_and_text(measured), "--heads", "L1H2,L0H3", "--mode", "mean", "--out", out])
    named = AblationResult.load(out)
    assert named.heads == ["L0H3", "L1H2"] and named.mode == "mean" and len(named.random_heads) == 20
    assert "mean ablation of L0H3, L1H2 beside 20 random sets" in capsys.readouterr().out

    run(["ablate", *model_and_text(measured), "--heads", "coalition:1:0", "--k", 2, "--match", "layer", "--out", out])
    coalition = AblationResult.load(out)
    assert "L1H0" in coalition.heads and all(name.startswith("L1") for name in coalition.heads)

    command = ["ablate", *model_and_text(measured), "--heads", "free-riders", "--out", out]
    run([*command, "--result", measured / "result.npz"])
    found = AblationResult.load(out)
    run(command)  # measured anew: the same heads
    assert AblationResult.load(out).heads == found.heads and {"L0H0", "L0H1"} <= set(found.heads)
    assert abs(found.effects["cross-entropy"].effect) < found.effects["cross-entropy"].random_effects.max()


def test_ablate_scores_a_benchmark_too(measured, capsys):
    tiny = tiny_loaded()
    tiny.model.save_pretrained(measured / "reader")
    tiny.tokenizer.save_pretrained(measured / "reader")
    command = ["ablate", "--model", measured / "reader", "--tokens", 128, "--seq-len", 64, "--heads", "L0H0"]
    run([*command, "--benchmark", "builtin_traps", "--limit", 4, "--out", measured / "a.json"])
    result = AblationResult.load(measured / "a.json")
    assert set(result.effects) == {"cross-entropy", "builtin_traps"}
    assert result.effects["builtin_traps"].random.shape == (7, 4)
    assert result.provenance["benchmarks"]["builtin_traps"]["scored"] == 4


def test_gauge_writes_its_result(measured, capsys):
    out = measured / "gauge.json"
    run(["gauge", *model_and_text(measured), "--rotations", 2, "--out", out])
    result = GaugeResult.load(out)
    assert result.couplings["paper"].gamma_rotated.shape == (2, 2) and result.provenance["settings"]["rotations"] == 2
    assert "2 layers, 2 rotations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heads", "L9H0"], "no head L9H0"),
        (["--heads", "coalition:1:9"], "layer 1 has no coalition 9"),
        (["--heads", "coalition:x"], "names no coalition"),
        (["--heads", "coalition:7:0"], "layer 7 is not in this result"),
        (["--heads", "free-riders", "--vif-threshold", "inf"], "no free riders to ablate: no head has a VIF above inf"),
        (["--heads", "free-riders", "--low-effect", "-1"], "costs -1 nats per token or more"),
        (["--heads", "L0H0", "--random-sets", "3"], "3 random sets are too few"),
        (["--heads", "L0H0", "--out", "a.txt"], "must end in .json"),
        (["--heads", "L0H0", "--benchmark", "quiz"], "there is no benchmark 'quiz'"),
        (["--heads", "L0H0", "--benchmark", "memo_trap", "--data", "/nowhere"], "(?i)memotrap|memo_trap"),
    ],
)
def test_ablate_refuses_what_it_cannot_do(measured, options, message):
    with pytest.raises(ValueError, match=message):
        run(["ablate", *model_and_text(measured), "--out", measured / "a.json", *options])


def test_game_refuses_what_it_cannot_do(measured):
    command = ["game", "--result", measured / "result.npz", "--out", measured / "a.json"]
    with pytest.raises(ValueError, match="layer 5 is not in this result"):
        run([*command, "--layer", 5])
    with pytest.raises(ValueError, match="--layer last is neither"):
        run([*command, "--layer", "last"])
    with pytest.raises(FileNotFoundError, match=r"no result file"):
        run(["game", "--result", measured / "none.npz", "--out", measured / "a.json"])

    other = tiny_model("llama", seed=1)
    other.save_pretrained(measured / "model")
    with pytest.raises(ValueError, match="or its files have changed: measure it again"):
        run([*command, "--benefits", "measured"])
    with pytest.raises(ValueError, match="or its files have changed"):
        result = ["--result", measured / "result.npz"]
        run(["ablate", *model_and_text(measured), "--heads", "free-riders", "--out", measured / "a.json", *result])


def test_measured_benefits_refuse_a_changed_text(measured):
    np.save(measured / "text.npy", tiny_rows(6, 16, seed=1).numpy())
    with pytest.raises(ValueError, match=r"text .*text\.npy has changed"):
        run(["game", "--result", measured / "result.npz", "--benefits", "measured", "--out", measured / "a.json"])
