"""Hooks that see or replace the heads' outputs, and the switch that freezes a model: both leave nothing behind."""

import copy

import pytest
import torch

from analysis.heads import attention_layers, frozen, head_outputs
from tests.tiny import padded_batch, tiny_model, tiny_rows, with_adapter


def hook_counts(model):
    """How many hooks of each kind sit on each module."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [(name, *(len(getattr(module, kind)) for kind in kinds)) for name, module in model.named_modules()]


def test_a_returned_tensor_takes_the_place_of_z():
    model, ids = tiny_model("llama"), tiny_rows()
    silent = copy.deepcopy(model)
    with torch.no_grad():
        silent.model.layers[1].self_attn.o_proj.weight[:, 8:16] = 0  # head 1 of layer 1 writes nothing

    def without_head_1(layer, z):
        heads = layer.split_heads(z).clone()
        heads[..., 1, :] = 0
        return heads.flatten(-2)

    with torch.no_grad(), head_outputs(attention_layers(model)[1:], without_head_1):
        ablated = model(ids).logits
    torch.testing.assert_close(ablated, silent(ids).logits)
    assert (ablated - model(ids).logits).abs().max() > 1e-2


def test_hooks_are_gone_after_an_exception():
    model = tiny_model("llama")
    before = hook_counts(model)
    layers = attention_layers(model)

    def fail(layer, z):
        raise RuntimeError(f"at layer {layer.index}")

    with pytest.raises(RuntimeError, match="at layer 0"), head_outputs(layers, fail):
        assert hook_counts(model) != before
        model(tiny_rows())
    assert hook_counts(model) == before


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_is_visited_once_a_forward_pass(reentrant):
    """Also under gradient checkpointing with `frozen`, which would visit again during the backward pass (C03)."""
    model = tiny_model("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    visits = []
    embeddings = model.get_input_embeddings()(tiny_rows()).detach().requires_grad_()
    with frozen(model), head_outputs(attention_layers(model), lambda layer, z: visits.append(layer.index)):
        model(inputs_embeds=embeddings, use_cache=False).logits.sum().backward()
    assert visits == [0, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_frozen_gives_back_every_flag_and_mode(fails):
    model = with_adapter(tiny_model("llama"), modules_to_save=["lm_head"])
    model.train()
    model.base_model.model.model.layers[1].eval()  # a mixed mode comes back mixed
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    assert len(set(flags.values())) == len(set(modes.values())) == 2

    def inside():
        with frozen(model):
            assert not any(parameter.requires_grad for parameter in model.parameters())
            assert not any(module.training for module in model.modules())
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            inside()
    else:
        inside()
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_padded_batch_helper_masks_what_it_adds():
    batch = padded_batch([tiny_rows(1, 5)[0], tiny_rows(1, 3, seed=1)[0]], "left")
    assert batch["attention_mask"].tolist() == [[1] * 5, [0, 0, 1, 1, 1]]
    assert batch["input_ids"][1, :2].tolist() == [0, 0]
