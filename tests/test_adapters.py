"""Adapters: each kind loads as it was saved, switches off to the plain base, and what does not fit is refused by name."""

import copy
import json
import shutil
import socket

import pytest
import torch
from peft import IA3Config, PeftModel, get_peft_model
from safetensors.torch import load_file

from analysis.adapters import read_adapter_config
from analysis.corpus import TokenRows
from analysis.heads import attention_layers
from analysis.measurement import measure_interaction
from analysis.models import load_model
from tests.tiny import with_adapter
from tests.tiny_files import (
    TEXT_VOCAB,
    edit_json,
    edit_tensors,
    loopback_only,
    save_adapter,
    save_folder,
    text_model,
    write_bomb,
)

ROWS = TokenRows(torch.randint(3, TEXT_VOCAB, (3, 12), generator=torch.Generator().manual_seed(0)), {})
BASES = {
    "llama": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biased": ("llama", {"attention_bias": True}),
    "gpt2": ("gpt2", {}),
}
KINDS = {
    "lora": ("llama", {"target_modules": ["q_proj", "o_proj"]}),
    "dora": ("llama", {"use_dora": True}),
    "rslora": ("llama", {"use_rslora": True}),
    "rank_pattern": ("llama", {"rank_pattern": {r".*\.0\..*": 2}, "alpha_pattern": {r".*\.1\..*": 5}}),
    "one_layer": ("llama", {"layers_to_transform": [1]}),
    "regex": ("llama", {"target_modules": r".*self_attn\.(q|o)_proj"}),
    "all_linear": ("llama", {"target_modules": "all-linear"}),
    "gpt2": ("gpt2", {"target_modules": ["c_proj"], "fan_in_fan_out": True}),
    "gpt2_dora": ("gpt2", {"target_modules": ["c_proj"], "fan_in_fan_out": True, "use_dora": True}),
    "lm_head": ("llama", {"modules_to_save": ["lm_head"]}),
    "both_embeddings": ("llama", {"modules_to_save": ["lm_head", "embed_tokens"]}),
    "tied_both": ("tied", {"modules_to_save": ["lm_head", "embed_tokens"]}),
    "tied_input": ("tied", {"modules_to_save": ["embed_tokens"]}),
    "lora_on_embeddings": ("tied", {"target_modules": ["o_proj", "embed_tokens"]}),
    "some_tokens": ("llama", {"trainable_token_indices": [5, 6]}),
    "whole_projection": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["o_proj"]}),
}


@pytest.fixture(autouse=True)
def offline():
    with loopback_only():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each base, saved once."""
    root = tmp_path_factory.mktemp("bases")
    return {name: save_folder(text_model(kind, **settings), root / name) for name, (kind, settings) in BASES.items()}


@pytest.fixture(scope="module")
def plain(folders):
    """Each base by itself."""
    return {name: load_model(str(folder)) for name, folder in folders.items()}


@pytest.fixture
def saved(folders, tmp_path, monkeypatch):
    """A LoRA adapter of the llama base in a folder of the test's own, to be broken."""
    return save_adapter(load_model(str(folders["llama"])).model, tmp_path / "adapter")


def trained(base, extra_rows=0, **settings):
    """The base under an adapter of which every part was trained: LoRA, copies of modules, and added vocabulary rows."""
    model = copy.deepcopy(base)
    if extra_rows:
        model.resize_token_embeddings(TEXT_VOCAB + extra_rows, mean_resizing=False)
    model = with_adapter(model, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name or "trainable_tokens" in name or "lora_embedding" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def logits(model):
    with torch.no_grad():
        return model(ROWS.rows).logits


def G(loaded):
    return torch.from_numpy(measure_interaction(loaded, ROWS, coupling="invariant").G)


# --- what loads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_loads_as_it_was_saved_and_switches_off_to_the_plain_base(kind, folders, plain, tmp_path):
    base, settings = KINDS[kind]
    model = trained(plain[base].model, **settings)
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_model(str(folders[base]), adapter=str(tmp_path / "adapter"))
    flags = {name: parameter.requires_grad for name, parameter in loaded.model.named_parameters()}

    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=0)
    assert (logits(loaded.model) - logits(plain[base].model)).abs().max() > 0.01
    on = G(loaded)
    with loaded.base() as bare:
        assert torch.equal(logits(bare.model), logits(plain[base].model))
        torch.testing.assert_close(G(bare), G(plain[base]), atol=1e-9, rtol=0)
        assert bare.provenance["adapter"] is None and bare.provenance["model"] == loaded.provenance["model"]
    assert torch.equal(G(loaded), on)
    assert {name: parameter.requires_grad for name, parameter in loaded.model.named_parameters()} == flags
    assert loaded.provenance["adapter"]["peft_type"] == "LORA"


@pytest.mark.parametrize("kind", ["lora", "dora", "rslora", "rank_pattern", "gpt2", "gpt2_dora", "whole_projection"])
def test_a_freshly_loaded_adapter_gives_the_merged_models_G(kind, folders, plain, tmp_path):
    """C02: everything is frozen after loading, and the effective weight is the merged one."""
    base, settings = KINDS[kind]
    trained(plain[base].model, **settings).save_pretrained(tmp_path / "adapter")
    loaded = load_model(str(folders[base]), adapter=str(tmp_path / "adapter"))
    assert not any(parameter.requires_grad for name, parameter in loaded.model.named_parameters() if "lora" in name)
    on = G(loaded)
    merged = PeftModel.from_pretrained(copy.deepcopy(plain[base].model), tmp_path / "adapter").merge_and_unload()
    save_folder(merged, tmp_path / "merged")
    torch.testing.assert_close(G(load_model(str(tmp_path / "merged"))), on, atol=1e-5, rtol=0)
    assert (on - G(plain[base])).abs().max() > 0.01


def test_base_inside_base_and_after_an_exception(folders, plain, saved):
    loaded = load_model(str(folders["llama"]), adapter=str(saved))
    adapted, bare = logits(loaded.model), logits(plain["llama"].model)
    with loaded.base() as outer:
        with outer.base() as inner:
            assert torch.equal(logits(inner.model), bare)
        assert torch.equal(logits(outer.model), bare)
    with pytest.raises(RuntimeError, match="in the middle"), loaded.base():
        raise RuntimeError("in the middle")
    assert torch.equal(logits(loaded.model), adapted)


def test_base_of_a_model_without_an_adapter_is_itself(plain):
    with plain["llama"].base() as bare:
        assert bare is plain["llama"]


@pytest.mark.parametrize("base", [None, "/nope", "no-such-owner/no-such-model", "../elsewhere"])
def test_the_given_base_wins_over_the_path_in_the_config(base, folders, plain, tmp_path):
    """C21: whatever the adapter says, no other base is looked for, on the disk or on the network."""
    model = trained(plain["llama"].model, modules_to_save=["lm_head"])
    model.save_pretrained(tmp_path / "adapter")
    edit_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path=base, revision="gone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", None)  # nothing at all is reached
        loaded = load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))
    assert torch.equal(logits(loaded.model), logits(model))


@pytest.mark.parametrize("extra_rows", [2, -3])
@pytest.mark.parametrize(
    ("base", "settings"),
    [
        ("llama", {"modules_to_save": ["lm_head", "embed_tokens"]}),
        ("llama", {"modules_to_save": ["embed_tokens"]}),
        ("tied", {"modules_to_save": ["lm_head", "embed_tokens"]}),
        ("tied", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
        ("llama", {}),
        ("tied", {}),
        ("gpt2", {}),
    ],
    ids=str,
)
def test_a_vocabulary_of_another_size(base, settings, extra_rows, folders, plain, tmp_path):
    """C21: the adapter has its own rows (PEFT saves them even when untrained), and the base keeps its own."""
    model = trained(plain[base].model, extra_rows, **settings)
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_model(str(folders[base]), adapter=str(tmp_path / "adapter"))
    assert logits(loaded.model).shape[-1] == TEXT_VOCAB + extra_rows
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=0)
    with loaded.base() as bare:
        assert torch.equal(logits(bare.model), logits(plain[base].model))
        torch.testing.assert_close(G(bare), G(plain[base]), atol=1e-9, rtol=0)
    assert loaded.provenance["model"] == plain[base].provenance["model"]


def test_the_bases_embeddings_are_not_taken_from_the_adapters_file(folders, plain, tmp_path):
    """PEFT stores the embeddings that the adapter was trained over; another base keeps its own."""
    other = copy.deepcopy(plain["llama"].model)
    with torch.no_grad():
        other.model.embed_tokens.weight += 1
    trained(other, 2, modules_to_save=["lm_head"]).save_pretrained(tmp_path / "adapter")
    assert any("embed_tokens" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    loaded = load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))
    with loaded.base() as bare:
        assert torch.equal(logits(bare.model), logits(plain["llama"].model))


@pytest.mark.parametrize(
    "settings", [{"trainable_token_indices": [5]}, {"target_modules": ["o_proj", "embed_tokens"]}], ids=["tokens", "lora"]
)
def test_an_extended_vocabulary_adapted_in_place_is_refused_with_both_sizes(settings, folders, plain, tmp_path):
    trained(plain["llama"].model, 2, **settings).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=rf"\[{TEXT_VOCAB + 2}\].* {TEXT_VOCAB}\b"):
        load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))


def test_loading_draws_no_random_numbers_into_the_model(folders, plain, tmp_path):
    trained(plain["llama"].model, 2).save_pretrained(tmp_path / "adapter")
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        results.append(G(load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))))
    assert torch.equal(*results)


def test_settings_of_a_newer_peft_are_no_obstacle(folders, plain, saved):
    edit_json(saved / "adapter_config.json", invented_in_2031=True)
    assert load_model(str(folders["llama"]), adapter=str(saved)).provenance["adapter"]["r"] == 4


def test_half_precision_measures_the_same(folders, plain, saved):
    precise = G(load_model(str(folders["llama"]), adapter=str(saved)))
    coarse = load_model(str(folders["llama"]), adapter=str(saved), dtype="bfloat16")
    assert coarse.layers[0].projection.get_base_layer().weight.dtype == torch.bfloat16
    torch.testing.assert_close(G(coarse), precise, atol=0.03, rtol=0)


def test_the_hash_names_config_and_weights(folders, saved, tmp_path):
    def sha256(folder):
        return load_model(str(folders["llama"]), adapter=str(folder)).provenance["adapter"]["sha256"]

    shutil.copytree(saved, tmp_path / "copy")
    first = sha256(saved)
    assert sha256(tmp_path / "copy") == first
    edit_json(saved / "adapter_config.json", lora_alpha=9)
    assert sha256(saved) != first


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "settings"),
    [
        ("llama", {"hidden_size": 64}),
        ("llama", {"num_hidden_layers": 3}),
        ("llama", {"num_hidden_layers": 1}),
        ("gpt2", {}),
        ("phi", {}),
    ],
    ids=str,
)
def test_an_adapter_of_another_base_is_refused(other, settings, folders, tmp_path):
    save_adapter(text_model(other, **settings), tmp_path / "adapter")
    edit_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="the/other")
    with pytest.raises(ValueError, match="base") as refusal:
        load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))
    assert "adapter" in str(refusal.value) and len(str(refusal.value)) < 800 and "\n" not in str(refusal.value)


def test_missing_and_surplus_tensors_are_named(folders, saved):
    weights = saved / "adapter_model.safetensors"
    original = weights.read_bytes()
    edit_tensors(weights, drop="layers.1.self_attn.o_proj.lora_B")
    with pytest.raises(ValueError, match=r"lacks 1 tensors \(.*layers.1.self_attn.o_proj.lora_B"):
        load_model(str(folders["llama"]), adapter=str(saved))
    for surplus in ("layers.7.self_attn.o_proj.lora_A.weight", "norm.weight", "layers.0.input_layernorm.weight"):
        weights.write_bytes(original)
        edit_tensors(weights, add={f"base_model.model.model.{surplus}": torch.zeros(32)})
        with pytest.raises(ValueError, match=f"has surplus 1 tensors.*{surplus}"):
            load_model(str(folders["llama"]), adapter=str(saved))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"r": 7}, "size mismatch"),
        ({"r": "many"}, "does not fit"),
        ({"r": 0}, "positive integer"),
        ({"lora_alpha": None}, "does not fit"),
        ({"target_modules": ["no_such_projection"]}, "not found in the base"),
        ({"target_modules": ["o_proj", "q_proj"]}, "lacks 4 tensors"),
        ({"use_dora": True}, "lacks 2 tensors"),
        ({"task_type": "DREAMING"}, "Invalid task type"),
        ({"peft_type": "LOHA"}, "LOHA; LoRA, rsLoRA and DoRA are supported"),
        ({"peft_type": ...}, "type None"),
        ({"bias": "all"}, "bias='all'.*merge it"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4.*merge it"),
        ({"init_lora_weights": "olora"}, "olora.*merge it"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication.*merge it"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(changes, expected, folders, saved):
    edit_json(saved / "adapter_config.json", **changes)
    with pytest.raises(ValueError, match=expected):
        load_model(str(folders["llama"]), adapter=str(saved))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff"])
def test_a_config_that_is_no_json_object_is_refused(text, folders, saved):
    (saved / "adapter_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"adapter_config.json is not the JSON that PEFT writes"):
        load_model(str(folders["llama"]), adapter=str(saved))


def test_half_of_the_weights_are_refused(folders, saved):
    weights = saved / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(ValueError, match="truncated"):
        load_model(str(folders["llama"]), adapter=str(saved))


def test_pickled_weights_are_refused_and_never_opened(folders, saved, tmp_path):
    """C24: neither an adapter's own weights nor what a training run left beside them."""
    marker = tmp_path / "it-ran"
    for name in ("training_args.bin", "optimizer.pt", "adapter_model.bin"):
        write_bomb(saved / name, marker)
    load_model(str(folders["llama"]), adapter=str(saved))
    (saved / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"pickle can run code.*save_pretrained"):
        load_model(str(folders["llama"]), adapter=str(saved))
    assert not marker.exists()
    torch.load(saved / "adapter_model.bin", weights_only=False)
    assert marker.exists()  # it would have


def test_folders_that_are_no_adapter(folders, saved, tmp_path):
    for folder in (tmp_path / "nothing", tmp_path, folders["llama"], "~no-such-user/adapter"):
        with pytest.raises(ValueError, match="no adapter folder"):
            read_adapter_config(folder)
    (saved / "adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"it has no adapter_model.safetensors"):
        read_adapter_config(saved)
    with pytest.raises(ValueError, match="is an adapter, not a model: give its base"):
        load_model(str(saved))


def test_another_method_than_lora_is_refused(folders, plain, tmp_path):
    config = IA3Config(target_modules=["o_proj"], feedforward_modules=[], task_type="CAUSAL_LM")
    get_peft_model(copy.deepcopy(plain["llama"].model), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="IA3; LoRA, rsLoRA and DoRA are supported"):
        load_model(str(folders["llama"]), adapter=str(tmp_path / "adapter"))


def test_a_wrong_adapter_is_found_before_the_model_is_loaded(tmp_path):
    with pytest.raises(ValueError, match="no adapter folder"):
        load_model("/no/such/model", adapter=str(tmp_path))


def test_biases_that_the_adapter_trained_would_stay_in_the_base(folders, plain, tmp_path):
    model = with_adapter(copy.deepcopy(plain["biased"].model), bias="lora_only")
    model.save_pretrained(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["bias"] == "lora_only"
    with pytest.raises(ValueError, match="cannot be switched off"):
        load_model(str(folders["biased"]), adapter=str(tmp_path / "adapter"))


def test_the_adapted_models_layers_are_those_of_the_base(folders, saved):
    loaded = load_model(str(folders["llama"]), adapter=str(saved))
    assert [layer.projection for layer in loaded.layers] == [layer.projection for layer in attention_layers(loaded.model)]
