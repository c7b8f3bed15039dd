"""Rotating value bases: the function stays, the invariant coupling stays, the paper's moves, the weights come back."""

import copy

import numpy as np
import pytest
import torch

from analysis.corpus import TokenRows, token_rows
from analysis.gauge import VALUE_PROJECTION, GaugeResult, gauge_check, rotated
from analysis.heads import OUTPUT_PROJECTION, attention_layers, head_outputs, kv_groups
from analysis.interaction import Meter, causal_loss
from analysis.models import LoadedModel, load_model
from tests.tiny import ARCHITECTURES, measured, tiny_model, tiny_rows, with_adapter


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def logits(model):
    with torch.no_grad():
        return model(tiny_rows()).logits


def loaded(model):
    return LoadedModel(model, None, attention_layers(model), {"model": {"source": "tiny"}, "adapter": None})


def text(rows=4):
    return TokenRows(tiny_rows(rows, 12), {"source": "tiny"})


def test_every_architecture_with_heads_has_values():
    assert set(VALUE_PROJECTION) == set(OUTPUT_PROJECTION)


VARIANTS = [(architecture, {}) for architecture in ARCHITECTURES] + [
    ("falcon", {"multi_query": False}),
    ("llama", {"num_key_value_heads": 1}),
    ("llama", {"num_key_value_heads": 4}),
]


@pytest.mark.parametrize(("architecture", "settings"), VARIANTS)
def test_rotation_keeps_the_function_and_comes_back_bit_for_bit(architecture, settings):
    model = tiny_model(architecture, **settings)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    whole = logits(model)
    with rotated(model, attention_layers(model), generator()):
        turned = logits(model)
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert (turned - whole).abs().max() < 1e-4 * max(1, whole.abs().max())
    assert len(changed) >= 2 * len(attention_layers(model))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gpt_neox", "falcon_new"])
def test_invariant_coupling_stays_and_the_paper_one_moves_between_groups_only(architecture):
    model = tiny_model(architecture)
    result = gauge_check(loaded(model), text(), batch_size=2, rotations=4)
    paper, invariant = result.couplings["paper"], result.couplings["invariant"]
    assert result.logits < 1e-3
    assert invariant.G.max() < 1e-4 and invariant.omega.max() < 1e-4 and invariant.rho.max() < 1e-4
    assert paper.G.max() > 0.01 and paper.omega.max() > 0.01 and paper.rho.max() > 0.01
    layer = attention_layers(model)[0]
    groups = np.array(kv_groups(layer.n_heads, layer.n_kv_heads))
    together = groups[:, None] == groups
    assert paper.noise[:, together].max() < 1e-5 < paper.noise[:, ~together].min()
    low, high = paper.band
    assert (low <= paper.gamma).all() and (paper.gamma <= high).all() and (high > low).any()
    assert np.ptp(np.array(invariant.band), axis=0).max() < 1e-4


def test_noise_floor_holds_nineteen_of_twenty_new_bases():
    model, seeded = tiny_model("llama", num_key_value_heads=4), generator(3)
    result = gauge_check(loaded(model), text(2), rotations=4, seed=3).couplings["paper"]
    draws = []
    for _ in range(84):
        with rotated(model, attention_layers(model), seeded):
            draws.append(measured(model, [text(2).rows]).G)
    first = np.array(draws[:4])  # the same four bases
    np.testing.assert_allclose(result.noise, first.std(axis=0, ddof=1), atol=1e-5)
    inside = abs(np.array(draws[4:]) - first.mean(axis=0)) <= result.noise_floor
    upper = np.triu_indices(4, 1)
    strength = abs(np.array(draws[4:]))[..., *upper].mean()
    assert result.level[..., *upper].mean() == pytest.approx(strength, rel=0.3), "heads of no common basis scatter around 0"
    assert 0.88 < inside[..., *upper].mean() < 0.99


def test_a_rotation_moves_the_couplings_as_the_moments_say():
    """g_i' = R_i^T g_i, so the turned Gram sums follow from gradients taken before."""
    model, batch = tiny_model("llama"), {"input_ids": tiny_rows()}
    layer = attention_layers(model)[0]
    seen = []

    def watch(_, z):
        z.register_hook(lambda gradient: seen.append(layer.split_heads(gradient).flatten(0, 1)))

    with head_outputs([layer], watch):
        causal_loss(model, batch)[0].sum().backward()
    weights = layer.head_weights().detach().clone()
    with rotated(model, [layer], generator(3)):
        turned = layer.head_weights().detach().clone()
        gram = Meter(model, layers=[layer]).measure(batch).gradient["paper"].sum(0)[0]
    rotations = torch.linalg.pinv(weights) @ turned  # W_i R, so R = W_i^+ W_i'
    torch.testing.assert_close(rotations @ rotations.mT, torch.eye(layer.d_head).expand(4, -1, -1), atol=1e-4, rtol=0)
    gradient = torch.einsum("thk,hkl->htl", seen[0], rotations).flatten(1)
    torch.testing.assert_close(gram, gradient @ gradient.T, atol=1e-4, rtol=1e-3)


def test_weights_come_back_after_an_exception():
    model = tiny_model("qwen2")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="inside"), rotated(model, attention_layers(model), generator()):
        raise RuntimeError("inside")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_check_repeats_and_leaves_flags_alone():
    model = tiny_model("llama").train()
    first = gauge_check(loaded(model), text(), rotations=2, seed=5)
    second = gauge_check(loaded(model), text(), rotations=2, seed=5)
    other = gauge_check(loaded(model), text(), rotations=2, seed=6)
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    np.testing.assert_array_equal(first.couplings["paper"].gamma_rotated, second.couplings["paper"].gamma_rotated)
    assert (first.couplings["paper"].gamma_rotated != other.couplings["paper"].gamma_rotated).any()


def test_file_reads_back(tmp_path):
    result = gauge_check(loaded(tiny_model("llama")), text(), rotations=2)
    result.save(tmp_path / "gauge.json")
    read = GaugeResult.load(tmp_path / "gauge.json")
    np.testing.assert_array_equal(read.couplings["paper"].noise_floor, result.couplings["paper"].noise_floor)
    assert read.provenance == result.provenance and read.logits == result.logits
    (tmp_path / "other.json").write_text('{"kind": "game", "format": 1}')
    with pytest.raises(ValueError, match="is not a gauge file: it is a game file"):
        GaugeResult.load(tmp_path / "other.json")
    (tmp_path / "half.json").write_text((tmp_path / "gauge.json").read_text()[:100])
    with pytest.raises(ValueError, match="damaged"):
        GaugeResult.load(tmp_path / "half.json")


# --- adapters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "targets", "extra"),
    [
        ("llama", ["q_proj", "k_proj", "v_proj", "o_proj"], {}),
        ("llama", ["v_proj", "o_proj"], {"lora_bias": True}),
        ("llama", ["o_proj"], {"use_dora": True}),
        ("gpt2", ["c_attn", "attn.c_proj"], {"fan_in_fan_out": True}),
    ],
)
def test_an_adapter_turns_with_its_base(architecture, targets, extra):
    model = with_adapter(tiny_model(architecture), target_modules=targets, **extra)
    before = copy.deepcopy(model.state_dict())
    whole = logits(model)
    with rotated(model, attention_layers(model), generator()):
        turned = logits(model)
        with model.disable_adapter():
            base = logits(model)
    with model.disable_adapter():
        assert (base - logits(model)).abs().max() < 1e-3
    assert (turned - whole).abs().max() < 1e-3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_cannot_be_turned_is_refused_by_name_and_left_alone():
    dora = with_adapter(tiny_model("llama"), target_modules=["v_proj"], use_dora=True)
    before = copy.deepcopy(dora.state_dict())
    with pytest.raises(ValueError, match="carries a DoraLinearVariant"), rotated(dora, attention_layers(dora), generator()):
        pass
    assert all(torch.equal(tensor, before[name]) for name, tensor in dora.state_dict().items())

    integers = tiny_model("llama")
    layers = attention_layers(integers)
    weight = layers[1].projection.weight
    layers[1].projection.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"stored as torch\.int8"), rotated(integers, layers, generator()):
        pass

    strange = tiny_model("llama")
    layers = attention_layers(strange)
    for layer in layers:
        attention = strange.get_submodule(layer.name)
        attention.__class__ = type("GatedAttention", (type(attention),), {})
    with pytest.raises(ValueError, match="GatedAttention, and it is not known where"), rotated(strange, layers, generator()):
        pass


def test_one_rotation_gives_no_spread():
    with pytest.raises(ValueError, match="at least 2"):
        gauge_check(loaded(tiny_model("llama")), text(), rotations=1)


@pytest.mark.slow
def test_the_default_model_under_rotations():
    default = load_model("default")
    rows = token_rows("builtin", default.tokenizer, 512, 256)
    result = gauge_check(default, rows, rotations=2)
    paper, invariant = result.couplings["paper"], result.couplings["invariant"]
    assert result.logits < 1e-3
    assert invariant.G.max() < 1e-4
    assert paper.omega.max() > 0.01 and paper.G.max() > 10 * invariant.G.max()
