"""A measured model comes back as it was, and its state does not change what is measured."""

import itertools

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from peft import PeftModel
from torch import nn

from analysis import interaction
from analysis.heads import attention_layers
from analysis.interaction import Meter
from tests.tiny import VOCAB, measured, tiny_model, tiny_rows, with_adapter

COUPLING_AND_GRADIENT = list(itertools.product(interaction.COUPLINGS, interaction.GRADIENTS))


def state(model):
    """All that a measurement could leave behind, by name."""
    kinds = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
    return {
        "flags": [(name, p.requires_grad, p.is_meta) for name, p in model.named_parameters()],
        "gradients": [(name, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()],
        "values": [(name, value.clone()) for name, value in model.state_dict().items()],
        "modes": [(name, m.training) for name, m in model.named_modules()],
        "hooks": [(name, kind, list(getattr(m, kind).values())) for name, m in model.named_modules() for kind in kinds],
    }


def assert_same_state(before, after):
    for kind, entries in before.items():
        assert len(entries) == len(after[kind])
        for left, right in zip(entries, after[kind], strict=True):
            for a, b in zip(left, right, strict=True):
                same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
                assert same, (kind, left[0])


def prepared():
    """A model in the middle of a training: mixed flags, train mode, gradients there, checkpointing on, a hook of its own."""
    model = with_adapter(tiny_model("llama"), modules_to_save=["lm_head"], lora_dropout=0.2)
    model.train()
    model.base_model.model.model.layers[1].mlp.eval()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tiny_rows(), use_cache=False).logits.square().mean().backward()
    model.get_submodule(attention_layers(model)[0].name).register_forward_hook(lambda *_: None)
    assert sum(p.grad is not None for p in model.parameters()) > 4
    return model


def test_a_measurement_leaves_no_trace():
    model = prepared()
    before = state(model)
    for coupling, gradient in COUPLING_AND_GRADIENT:
        Meter(model, (coupling,), gradient).measure({"input_ids": tiny_rows()})
    assert_same_state(before, state(model))


@pytest.mark.parametrize("place", ["forward", "loss", "backward", "second batch"])
def test_an_exception_leaves_no_trace(place, monkeypatch):
    model = prepared()
    meter = Meter(model)

    def fail(*_, **__):
        raise RuntimeError("on purpose")

    batches = [{"input_ids": tiny_rows()}]
    if place == "forward":
        model.base_model.model.model.layers[1].mlp.forward = fail
    elif place == "loss":
        monkeypatch.setattr(interaction.F, "cross_entropy", fail)
    elif place == "backward":
        monkeypatch.setattr(interaction, "gradient_gram", fail)
    else:
        batches.append({"input_ids": torch.full((1, 4), VOCAB + 5)})
    before = state(model)
    with pytest.raises((RuntimeError, IndexError)):
        for batch in batches:
            meter.measure(batch)
    assert_same_state(before, state(model))


@pytest.mark.parametrize("adapter", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_frozen_trainable_loaded_and_merged_models_agree(adapter, tmp_path):
    """A freshly loaded adapter takes no gradient anywhere; G is the same all the same (C02)."""
    rows = tiny_rows()
    trained = with_adapter(tiny_model("llama"), target_modules=["q_proj", "v_proj", "o_proj"], **adapter)
    trained.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny_model("llama"), tmp_path)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    results = [measured(trained, [rows]), measured(loaded, [rows])]
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert any(parameter.requires_grad for parameter in trained.parameters())
    trained.requires_grad_(True)
    results.append(measured(trained.train(), [rows]))
    with loaded.disable_adapter():
        base = measured(loaded, [rows])
    results.append(measured(loaded.merge_and_unload(), [rows]))
    for coupling in interaction.COUPLINGS:
        for result in results[1:]:
            np.testing.assert_allclose(result.view(coupling).G, results[0].view(coupling).G, atol=2e-5)
        np.testing.assert_allclose(base.view(coupling).G, measured(tiny_model("llama"), [rows]).view(coupling).G, atol=1e-6)
        assert np.abs(base.view(coupling).G - results[0].view(coupling).G).max() > 0.01


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_gradient_checkpointing_changes_nothing(architecture, reentrant):
    model = tiny_model(architecture)
    plain = measured(model, [tiny_rows()])
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    result = measured(model, [tiny_rows()])
    assert model.is_gradient_checkpointing and model.training
    for coupling in interaction.COUPLINGS:
        assert np.array_equal(result.view(coupling).G, plain.view(coupling).G)


def test_inside_no_grad_and_inference_settings():
    model, rows = tiny_model("llama"), tiny_rows()
    plain = measured(model, [rows])
    with torch.no_grad():
        assert np.array_equal(measured(model, [rows]).G, plain.G)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_offloaded_model(where, tmp_path):
    """Accelerate replaces parameters at each forward pass; the result and every flag are as without it."""
    model, rows = tiny_model("llama"), tiny_rows()
    plain = measured(model, [rows])
    if where == "cpu":
        cpu_offload(model, execution_device="cpu")
    else:
        disk_offload(model, str(tmp_path), execution_device="cpu")
    assert next(model.parameters()).is_meta
    model.lm_head.weight.requires_grad_(False)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    result = measured(model, [rows])
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert next(model.parameters()).is_meta
    for coupling in interaction.COUPLINGS:
        np.testing.assert_allclose(result.view(coupling).G, plain.view(coupling).G, atol=1e-6)
