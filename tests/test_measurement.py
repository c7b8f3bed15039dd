"""One measurement, however it is cut: into batches, over processes, into groups; and what is not finite is named."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from analysis import measurement
from analysis.corpus import TokenRows
from analysis.heads import attention_layers
from analysis.measurement import MOST_GROUPS, measure_interaction
from analysis.models import LoadedModel, load_model
from analysis.results import InteractionResult
from tests.tiny import measured, tiny_model, tiny_rows
from tests.tiny_files import loopback_only, save_folder, text_model

SETTINGS = list(itertools.product(("paper", "invariant"), ("token", "mean")))


@pytest.fixture(autouse=True)
def offline(workspace):
    with loopback_only():
        yield


@pytest.fixture(scope="module")
def loaded():
    return as_loaded(tiny_model("llama"))


def as_loaded(model):
    layers = attention_layers(model)
    described = {"source": "tiny", "dtype": "float32", "d_model": layers[0].d_model, "d_head": layers[0].d_head}
    return LoadedModel(model, None, layers, {"model": described, "adapter": None})


def text(rows=8, seq_len=10):
    return TokenRows(tiny_rows(rows, seq_len), {"source": "random"})


def assert_same(one, other, atol=1e-6):
    for name in ("omega", "rho", "G", "gamma"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=atol, err_msg=name)
    np.testing.assert_array_equal(one.batch_tokens, other.batch_tokens)
    np.testing.assert_allclose(one.batch_loss, other.batch_loss, rtol=1e-5)
    for name in one.couplings:
        scale = abs(one.gradient_sums[name]).max()
        np.testing.assert_allclose(one.gradient_sums[name] / scale, other.gradient_sums[name] / scale, atol=1e-5)


# --- batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coupling", "gradient"), SETTINGS)
def test_the_batch_size_changes_nothing(coupling, gradient, loaded):
    results = [measure_interaction(loaded, text(), size, coupling, gradient) for size in (1, 3, 8, 100)]
    for other in results[1:]:
        assert_same(results[0], other)
    assert results[0].tokens == 8 * 9 and len(results[0].batch_tokens) == 8


@pytest.mark.parametrize(("coupling", "gradient"), SETTINGS)
def test_it_is_what_the_meter_measures(coupling, gradient, loaded):
    result = measure_interaction(loaded, text(), 3, coupling, gradient)
    expected = measured(loaded.model, [text().rows], gradient=gradient).view(coupling)
    np.testing.assert_allclose(result.G, expected.G, atol=1e-6)
    assert result.cross_entropy == pytest.approx(expected.cross_entropy, rel=1e-6)


def test_the_invariant_coupling_keeps_the_papers_too(loaded):
    both, paper = measure_interaction(loaded, text(), coupling="invariant"), measure_interaction(loaded, text())
    assert both.coupling == "invariant" and both.couplings == ("paper", "invariant") and paper.couplings == ("paper",)
    np.testing.assert_allclose(both.view("paper").G, paper.G, atol=1e-9)
    with pytest.raises(ValueError, match="--coupling invariant"):
        paper.view("invariant")


def test_settings_and_versions_are_kept(loaded):
    kept = measure_interaction(loaded, text(), 3, "invariant", "mean").provenance
    assert kept["settings"] == {"coupling": "invariant", "gradient": "mean", "batch_size": 3}
    assert kept["model"] == loaded.provenance["model"] and kept["text"] == {"source": "random"}
    assert {"python", "torch", "transformers", "peft", "numpy"} <= set(kept["versions"])


# --- groups of rows -----------------------------------------------------------------------------------------------


def test_more_rows_than_groups_are_folded_without_loss(loaded, monkeypatch):
    every_row = measure_interaction(loaded, text(24), 5, "invariant")
    monkeypatch.setattr(measurement, "MOST_GROUPS", 8)
    folded = measure_interaction(loaded, text(24), 5, "invariant")
    assert len(every_row.batch_tokens) == 24 and len(folded.batch_tokens) == 8
    np.testing.assert_allclose(folded.G, every_row.G, atol=1e-6)
    np.testing.assert_array_equal(folded.batch_tokens, every_row.batch_tokens.reshape(8, 3).sum(1))
    np.testing.assert_allclose(folded.batch_loss, every_row.batch_loss.reshape(8, 3).sum(1))
    for name in folded.couplings:
        summed = every_row.gradient_sums[name].reshape(8, 3, 2, 4, 4).sum(1)
        np.testing.assert_allclose(folded.gradient_sums[name], summed, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("rows", [MOST_GROUPS - 1, MOST_GROUPS, MOST_GROUPS + 1, 2 * MOST_GROUPS + 3])
def test_groups_are_consecutive_and_nearly_equal(rows, loaded):
    groups = measurement._Groups(rows)
    members = [row * groups.count // rows for row in range(rows)]
    sizes = np.bincount(members)
    assert members == sorted(members) and len(sizes) == min(rows, MOST_GROUPS) and sizes.max() - sizes.min() <= 1


def test_a_long_text_takes_no_more_room(loaded):
    long = measure_interaction(loaded, text(MOST_GROUPS + 10, 4), 16)
    assert len(long.batch_tokens) == MOST_GROUPS and long.tokens == (MOST_GROUPS + 10) * 3
    assert long.gradient_sums["paper"].shape == (MOST_GROUPS, 2, 4, 4) and long.gradient_sums["paper"].dtype == np.float32


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_that_is_not_positive(size, loaded):
    with pytest.raises(ValueError, match=f"the batch size is {size}"):
        measure_interaction(loaded, text(), size)


@pytest.mark.parametrize("settings", [{"coupling": "romantic"}, {"gradient": "steep"}], ids=str)
def test_unknown_settings(settings, loaded):
    with pytest.raises(ValueError, match="is not one of"):
        measure_interaction(loaded, text(), **settings)


def test_token_ids_of_another_model(loaded):
    with pytest.raises(ValueError, match="token id 64 and the model has ids below 64"):
        measure_interaction(loaded, TokenRows(torch.full((2, 10), 64), {}))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "opt"])
def test_rows_longer_than_the_models_window(architecture):
    loaded = as_loaded(tiny_model(architecture))
    assert measure_interaction(loaded, text(1, 64)).tokens == 63
    with pytest.raises(ValueError, match="rows of 65 tokens do not fit the model's window of 64"):
        measure_interaction(loaded, text(1, 65))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight"])
def test_a_damaged_weight_is_named_and_so_are_the_layers(name, value):
    model = tiny_model("llama")
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = value
    with pytest.raises(ValueError, match=rf"gradients of layers (0, )?1 are not finite: {name} holds NaN or infinity"):
        measure_interaction(as_loaded(model), text())


def test_a_model_that_overflows_in_half_precision_is_told_what_to_do():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight *= 5e4
    assert np.isfinite(measure_interaction(as_loaded(model), text()).G).all()
    half = as_loaded(model.half())
    half.provenance["model"]["dtype"] = "float16"
    with pytest.raises(ValueError, match=r"are not finite in float16: .*--dtype bfloat16 or float32"):
        measure_interaction(half, text())


def test_the_model_comes_back_as_it_was(loaded):
    model = tiny_model("llama").train()
    model.lm_head.weight.requires_grad_(False)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    measure_interaction(as_loaded(model), text(), 3, "invariant")
    assert model.training and {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


# --- several processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "batch_size"), [(7, 2), (1, 8)], ids=["shared", "more_processes_than_batches"])
def test_two_processes_give_the_result_of_one(rows, batch_size, tmp_path, workspace):
    folder = save_folder(text_model(), tmp_path / "model")
    np.save(tmp_path / "ids.npy", text(rows, 12).rows.numpy())
    options = ["--model", str(folder), "--text", str(tmp_path / "ids.npy"), "--tokens", str(rows * 12), "--seq-len", "12"]
    options += ["--batch-size", str(batch_size), "--coupling", "invariant", "--out", str(tmp_path / "two.npz")]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "analysis", "interaction"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, *launch, *options], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("two.npz:") == 1  # the first process alone speaks
    ids = TokenRows(text(rows, 12).rows, {})
    one = measure_interaction(load_model(str(folder)), ids, 3, "invariant")
    assert_same(InteractionResult.load(tmp_path / "two.npz"), one)
