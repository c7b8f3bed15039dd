"""Where the heads are: the blocks add up to the module, and the effective weight is the merged one."""

import pytest
import torch
from accelerate import disk_offload
from peft import IA3Config, LoHaConfig, LoraConfig, get_peft_model
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

from analysis.heads import OUTPUT_PROJECTION, attention_layers, effective_weight, head_name, head_outputs, kv_groups
from tests.tiny import (
    ARCHITECTURES,
    VOCAB,
    projection_name,
    randomize_adapter,
    tiny_model,
    tiny_rows,
    with_adapter,
)

ADAPTERS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "dora_rslora": {"use_dora": True, "use_rslora": True},
    "patterns": {"rank_pattern": {r".*\.0\..*": 2}, "alpha_pattern": {r".*\.0\..*": 5}},
}
KV_HEADS = {"gpt2": 4, "gpt_neox": 4, "opt": 4, "falcon": 1}  # 2 in every other tiny model


def attention_inputs_and_outputs(model, ids):
    """z [rows, seq_len, width] at the projection and what the attention module returned, by layer index."""
    layers = attention_layers(model)
    z, outputs, handles = {}, {}, []
    for layer in layers:
        attention = model.get_submodule(layer.name)

        def keep(_module, _inputs, output, index=layer.index):
            outputs[index] = output[0] if isinstance(output, tuple) else output

        handles.append(attention.register_forward_hook(keep))

    def visit(layer, value):
        z[layer.index] = value

    with head_outputs(layers, visit), torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return z, outputs


def assert_heads_add_up(model):
    """sum_h W_h z_h + bias == output of the attention module, and no head may be left out."""
    z, outputs = attention_inputs_and_outputs(model, tiny_rows())
    for layer in attention_layers(model):
        heads, weights = layer.split_heads(z[layer.index]), layer.head_weights()
        assert heads.shape[-2:] == (layer.n_heads, layer.d_head)
        assert weights.shape == (layer.n_heads, layer.d_model, layer.d_head) and weights.dtype == torch.float32
        total = sum(heads[:, :, head] @ weights[head].T for head in range(layer.n_heads))
        bias = getattr(layer.projection, "bias", None)
        total = total if bias is None else total + bias
        assert outputs[layer.index].abs().mean() > 0.05
        torch.testing.assert_close(total, outputs[layer.index], atol=1e-5, rtol=0)
        torch.testing.assert_close(effective_weight(layer.projection), torch.cat(list(weights), dim=1), atol=0, rtol=0)


# --- the table ----------------------------------------------------------------------------------------------------


def test_every_row_of_the_table_has_a_tiny_model():
    seen = {type(m).__name__ for name in ARCHITECTURES for m in tiny_model(name).modules()} & set(OUTPUT_PROJECTION)
    assert seen == set(OUTPUT_PROJECTION)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_add_up_to_the_module(architecture):
    assert_heads_add_up(tiny_model(architecture))


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_add_up_with_an_adapter(architecture, adapter):
    model = with_adapter(tiny_model(architecture), **ADAPTERS[adapter])
    assert_heads_add_up(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_block_is_one_head_and_kv_groups_share_values(architecture):
    """The query, key and value channels behind block i belong to head i alone, or to its kv group (C06)."""
    model = tiny_model(architecture)
    layer = attention_layers(model)[0]
    inputs = [
        (name, parameter)
        for name, parameter in model.get_submodule(layer.name).named_parameters()
        if parameter.ndim == 2 and projection_name(model) not in name.split(".")
    ]
    z = {}
    with head_outputs([layer], lambda layer, value: z.update(value=layer.split_heads(value))):
        model(tiny_rows())
    probe = torch.randn(z["value"].shape, generator=torch.Generator().manual_seed(1))
    channels = []
    for head in range(layer.n_heads):
        gradients = torch.autograd.grad((z["value"] * probe)[:, :, head].sum(), [p for _, p in inputs], retain_graph=True)
        out_dim = 1 if architecture == "gpt2" else 0  # Conv1D keeps outputs in columns
        used = [(name, g.abs().sum(1 - out_dim) > 1e-9) for (name, _), g in zip(inputs, gradients, strict=True)]
        channels.append({(name, int(row)) for name, rows in used for row in rows.nonzero()})
    groups = kv_groups(layer.n_heads, layer.n_kv_heads)
    for i in range(layer.n_heads):
        assert len(channels[i]) == 3 * layer.d_head
        for j in range(i):
            assert len(channels[i] & channels[j]) == (2 * layer.d_head if groups[i] == groups[j] else 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layout(architecture):
    model = tiny_model(architecture)
    layers = attention_layers(model)
    assert [layer.index for layer in layers] == ([1, 3] if architecture == "lfm2" else [0, 1])
    for layer in layers:
        assert (layer.n_heads, layer.n_kv_heads) == (4, KV_HEADS.get(architecture, 2))
        assert type(model.get_submodule(layer.name)).__name__ in OUTPUT_PROJECTION


def test_head_width_is_not_the_quotient_of_the_model_width():
    layer = attention_layers(tiny_model("qwen3"))[0]
    assert (layer.d_model, layer.d_head) == (48, 24)
    layer = attention_layers(tiny_model("gemma"))[0]
    assert (layer.d_model, layer.d_head) == (32, 16)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_llama_kv_groups(n_kv_heads):
    layer = attention_layers(tiny_model("llama", num_key_value_heads=n_kv_heads))[0]
    assert (layer.n_heads, layer.n_kv_heads) == (4, n_kv_heads)
    assert kv_groups(4, n_kv_heads) == {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 4: [0, 1, 2, 3]}[n_kv_heads]


def test_falcon_without_multi_query_has_as_many_kv_heads_as_heads():
    layer = attention_layers(tiny_model("falcon", multi_query=False))[0]
    assert (layer.n_heads, layer.n_kv_heads) == (4, 4)


def test_more_than_ten_layers_stay_in_order():
    model = tiny_model("llama", num_hidden_layers=12)
    assert [layer.index for layer in attention_layers(model)] == list(range(12))
    assert [f".{layer.index}." in layer.name for layer in attention_layers(model)] == [True] * 12


def test_one_head():
    model = tiny_model("llama", num_attention_heads=1, num_key_value_heads=1)
    assert_heads_add_up(model)
    assert attention_layers(model)[0].d_head == 32


def test_head_name():
    assert head_name(3, 7) == "L3H7"


# --- refusals -----------------------------------------------------------------------------------------------------


def test_an_unknown_attention_is_refused_by_name_with_the_list():
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ValueError, match="BloomAttention") as refusal:
        attention_layers(model)
    assert all(name in str(refusal.value) for name in OUTPUT_PROJECTION)


def test_one_unknown_attention_among_known_ones_is_refused():
    class StrangeAttention(nn.Module):
        pass

    model = tiny_model("llama")
    model.model.layers[1].self_attn = StrangeAttention()
    with pytest.raises(ValueError, match="StrangeAttention"):
        attention_layers(model)


def test_a_model_without_attention_is_refused():
    model = MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(ValueError, match="MambaForCausalLM holds no attention module"):
        attention_layers(model)


def test_heads_that_cannot_share_the_width_are_refused():
    model = tiny_model("llama")
    model.config.num_attention_heads = 5
    with pytest.raises(ValueError, match="32 inputs, which 5 heads"):
        attention_layers(model)


# --- the effective weight -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "falcon_new"])
def test_effective_weight_is_the_merged_one(architecture, adapter):
    model = with_adapter(tiny_model(architecture), **ADAPTERS[adapter])
    before = [effective_weight(layer.projection).detach() for layer in attention_layers(model)]
    plain = [effective_weight(layer.projection) for layer in attention_layers(tiny_model(architecture))]
    merged = [effective_weight(layer.projection) for layer in attention_layers(model.merge_and_unload())]
    for ours, reference, base in zip(before, merged, plain, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-5, rtol=0)
        assert (ours - base).abs().max() > 0.05


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_effective_weight_has_the_gradient_of_the_module(architecture, adapter):
    """The module applied to the identity is its weight, by PEFT's own forward pass: same values, same gradients."""
    model = with_adapter(tiny_model(architecture), **ADAPTERS[adapter])
    for layer in attention_layers(model):
        parameters = [p for name, p in layer.projection.named_parameters() if "lora" in name]
        width = layer.n_heads * layer.d_head
        by_module = (layer.projection(torch.eye(width)) - layer.projection(torch.zeros(1, width))).T
        ours = effective_weight(layer.projection)
        torch.testing.assert_close(ours, by_module, atol=1e-5, rtol=0)
        probe = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
        got = torch.autograd.grad((ours * probe).sum(), parameters)
        expected = torch.autograd.grad((by_module * probe).sum(), parameters)
        assert len(parameters) == (3 if "dora" in adapter else 2)
        for mine, theirs in zip(got, expected, strict=True):
            assert theirs.abs().max() > 1e-3
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_head_weights_follow_the_adapter_state():
    """Disabled, merged, unmerged, two at once: the weight is always the one that the next forward pass uses."""
    base = [effective_weight(layer.projection).clone() for layer in attention_layers(tiny_model("llama"))]
    model = with_adapter(tiny_model("llama"))
    model.add_adapter("second", LoraConfig(r=2, lora_alpha=3, target_modules=["o_proj", "v_proj"]))
    randomize_adapter(model, seed=5)

    def weights():
        return [effective_weight(layer.projection).detach().clone() for layer in attention_layers(model)]

    def assert_close(left, right):
        for a, b in zip(left, right, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)

    first = weights()
    with model.disable_adapter():
        assert_close(weights(), base)
        assert_heads_add_up(model)
    model.set_adapter("second")
    second = weights()
    assert (second[0] - first[0]).abs().max() > 0.05
    model.base_model.set_adapter(["default", "second"])
    both = weights()
    assert_heads_add_up(model)
    assert_close(both, [f + s - b for f, s, b in zip(first, second, base, strict=True)])
    model.merge_adapter()
    assert_close(weights(), both)
    assert_heads_add_up(model)
    model.unmerge_adapter()
    assert_close(weights(), both)


def test_an_adapter_elsewhere_leaves_the_projection_alone():
    model = with_adapter(tiny_model("llama"), target_modules=["q_proj", "v_proj"])
    plain = attention_layers(tiny_model("llama"))
    for layer, reference in zip(attention_layers(model), plain, strict=True):
        torch.testing.assert_close(layer.head_weights(), reference.head_weights(), atol=0, rtol=0)
    assert_heads_add_up(model)


def test_gpt2_adapter_on_c_proj_also_meets_the_mlp_and_only_the_attention_is_read():
    model = with_adapter(tiny_model("gpt2"), target_modules=["c_proj"])
    names = [name for name, module in model.named_modules() if name.endswith("mlp.c_proj")]
    assert len(names) == 2 and all(hasattr(model.get_submodule(name), "lora_A") for name in names)
    assert [layer.projection.get_base_layer().nx for layer in attention_layers(model)] == [32, 32]  # mlp's takes 128
    assert_heads_add_up(model)


def test_a_lora_bias_belongs_to_no_head():
    model = with_adapter(tiny_model("llama"), lora_bias=True)
    z, outputs = attention_inputs_and_outputs(model, tiny_rows())
    for layer in attention_layers(model):
        constant = layer.projection(torch.zeros(1, layer.n_heads * layer.d_head))
        assert constant.abs().max() > 0.01
        total = torch.einsum("bthk,hdk->btd", layer.split_heads(z[layer.index]), layer.head_weights()) + constant
        torch.testing.assert_close(total, outputs[layer.index], atol=1e-5, rtol=0)


def test_a_projection_trained_in_full_is_read_where_it_is_used():
    """`modules_to_save` keeps a second copy of the module; the active one counts."""
    model = with_adapter(tiny_model("llama"), target_modules=["q_proj"], modules_to_save=["o_proj"])
    with torch.no_grad():
        for layer in attention_layers(model):
            layer.projection.modules_to_save["default"].weight.mul_(1.5)
    assert_heads_add_up(model)
    with model.disable_adapter():
        assert_heads_add_up(model)
    torch.testing.assert_close(
        attention_layers(model)[0].head_weights()[0] / 1.5, attention_layers(tiny_model())[0].head_weights()[0]
    )


@pytest.mark.parametrize("adapter", [None, "dora"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_head_weights_are_float32_whatever_the_model(architecture, dtype, adapter):
    half, exact = tiny_model(architecture).to(dtype), tiny_model(architecture)
    if adapter:
        half, exact = (with_adapter(model, **ADAPTERS[adapter]) for model in (half, exact))
    weights = attention_layers(half)[0].head_weights()
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, attention_layers(exact)[0].head_weights(), atol=0.02, rtol=0.02)
    assert next(half.parameters()).dtype == dtype


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (IA3Config(target_modules=["o_proj"], feedforward_modules=[]), "Linear"),
        (LoHaConfig(target_modules=["o_proj"], r=2), "LoHa|Linear"),
        (LoraConfig(target_modules=["o_proj"], alora_invocation_tokens=[5, 6], task_type="CAUSAL_LM"), "ALoraLinearVariant"),
    ],
    ids=["ia3", "loha", "alora"],
)
def test_an_adapter_that_is_not_one_matrix_is_refused_by_name(config, name):
    model = get_peft_model(tiny_model("llama"), config)
    with pytest.raises(ValueError, match=name) as refusal:
        attention_layers(model)[0].head_weights()
    assert "DoRA" in str(refusal.value)


@pytest.mark.parametrize("adapter", [None, "dora"])
def test_weights_kept_on_disk_are_read_and_sent_back(adapter, tmp_path):
    """A model larger than memory: Accelerate holds its weights elsewhere and brings them only for a forward pass."""
    model = tiny_model("llama") if adapter is None else with_adapter(tiny_model("llama"), **ADAPTERS[adapter])
    expected = [layer.head_weights().detach().clone() for layer in attention_layers(model)]
    disk_offload(model, str(tmp_path), execution_device="cpu")
    for layer, weights in zip(attention_layers(model), expected, strict=True):
        assert any(parameter.is_meta for parameter in layer.projection.parameters())
        torch.testing.assert_close(layer.head_weights(), weights, atol=0, rtol=0)
        assert any(parameter.is_meta for parameter in layer.projection.parameters())
