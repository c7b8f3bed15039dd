"""Model folders: what loads is what was saved, and what cannot be loaded says so in one sentence before anything is made up."""

import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from analysis import devices, sources
from analysis.corpus import TokenRows
from analysis.devices import check_memory, pick_device, place
from analysis.measurement import measure_interaction
from analysis.models import adapter_name, load_model, model_name
from tests.tiny import ARCHITECTURES, tiny_model
from tests.tiny_files import (
    TEXT_VOCAB,
    edit_json,
    edit_tensors,
    loopback_only,
    save_folder,
    text_model,
    tiny_tokenizer,
    write_bomb,
)

ROWS = TokenRows(torch.randint(3, TEXT_VOCAB, (3, 12), generator=torch.Generator().manual_seed(0)), {})
GIB = 2**30


@pytest.fixture(autouse=True)
def offline(workspace):
    with loopback_only():
        yield


@pytest.fixture(scope="module")
def model():
    return text_model()


@pytest.fixture
def folder(model, tmp_path):
    """A good model folder of the test's own, to be broken."""
    return save_folder(model, tmp_path / "model")


def logits(model):
    with torch.no_grad():
        return model(ROWS.rows).logits


def refusal(source, **options):
    """The one sentence or two with which a model is refused."""
    with pytest.raises(ValueError) as refused:
        load_model(str(source), **options)
    message = str(refused.value)
    assert "\n" not in message and len(message) < 700 and message.endswith("."), message
    return message


# --- what loads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_loads_as_it_was_saved(architecture, tmp_path):
    """No tensor is missed, renamed or made up on the way through a folder."""
    source = tiny_model(architecture)
    loaded = load_model(str(save_folder(source, tmp_path / architecture, tokenizer=False)))
    torch.testing.assert_close(loaded.model(ROWS.rows % 64).logits, source(ROWS.rows % 64).logits, atol=1e-4, rtol=0)
    assert not loaded.model.training and loaded.tokenizer is None


def test_the_provenance_says_what_was_loaded(folder):
    loaded = load_model(str(folder))
    assert loaded.provenance["adapter"] is None
    assert loaded.provenance["model"] == {
        "source": str(folder),
        "kind": "folder",
        "name": "model",
        "revision": None,
        "sha256": sources.resolve(str(folder)).sha256,
        "architecture": "LlamaForCausalLM",
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "d_head": 8,
        "d_model": 32,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "dtype": "float32",
        "device": str(pick_device("auto")),
    }
    json.dumps(loaded.provenance)


def test_the_hash_is_of_the_content(model, folder, tmp_path):
    first = sources.resolve(str(folder)).sha256
    assert sources.resolve(str(save_folder(model, tmp_path / "elsewhere"))).sha256 == first
    (folder / "README.md").write_text("says nothing about the weights")
    assert sources.resolve(str(folder)).sha256 == first
    edit_json(folder / "config.json", rms_norm_eps=1e-3)
    changed = sources.resolve(str(folder)).sha256
    assert changed != first
    edit_tensors(folder / "model.safetensors", add={"model.norm.weight": torch.zeros(32)})
    assert sources.resolve(str(folder)).sha256 not in (first, changed)


def test_shards_load_and_count_as_one_file_does(model, folder, tmp_path):
    sharded = save_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(load_model(str(sharded)).model), logits(load_model(str(folder)).model))
    assert sources.resolve(str(sharded)).parameters == sources.resolve(str(folder)).parameters


def test_the_files_that_are_hashed_are_those_that_are_read(model, folder):
    """transformers prefers model.safetensors to an index beside it."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": "gone.safetensors"}}))
    assert sources.weight_files(folder) == [folder / "model.safetensors"]
    torch.testing.assert_close(logits(load_model(str(folder)).model), logits(model), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype, folder, model):
    loaded = load_model(str(folder), dtype=dtype)
    assert next(loaded.model.parameters()).dtype == getattr(torch, dtype) and loaded.provenance["model"]["dtype"] == dtype
    torch.testing.assert_close(logits(loaded.model).float(), logits(model), atol=0.3, rtol=0)


def test_paths_as_people_write_them(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    expected = sources.resolve(str(folder)).folder
    for source in ("model", "./model", "model/", "~/model", f" {folder} ", "../" + folder.parent.name + "/model"):
        assert sources.resolve(source).folder == expected
        assert sources.resolve(source).source == str(folder)  # leads there from any folder


def test_model_name():
    assert model_name("default") == "SmolLM2-135M-Instruct"
    assert model_name("owner/name") == "name"
    assert model_name("/models/mine/") == "mine"
    assert model_name("/models/mine.gguf") == "mine"


@pytest.mark.parametrize(
    "device_map",
    [
        {"": "disk"},
        {"": "cpu"},
        {"model.embed_tokens": "cpu", "model.layers": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"},
        {
            "model.embed_tokens": "cpu",
            "model.layers.0": "cpu",
            "model.layers.1": "disk",
            "model.norm": "cpu",
            "model.rotary_emb": "cpu",
            "lm_head": "disk",
        },
        "auto",
    ],
    ids=["disk", "cpu", "parts", "parts_on_disk", "auto"],
)
def test_a_model_spread_by_accelerate_gives_the_same_result(device_map, folder):
    whole = measure_interaction(load_model(str(folder)), ROWS, coupling="invariant")
    spread = load_model(str(folder), device_map=device_map)
    result = measure_interaction(spread, ROWS, batch_size=2, coupling="invariant")
    for name in ("omega", "rho", "G", "gamma"):
        np.testing.assert_allclose(getattr(result, name), getattr(whole, name), atol=1e-6)
    assert result.cross_entropy == pytest.approx(whole.cross_entropy, abs=1e-6)
    assert "meta" not in spread.provenance["model"]["device"]


# --- folders that are no model, or a damaged one ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", "no model was given"),
        ("   ", "no model was given"),
        ("/no/such/folder", "/no/such/folder does not exist"),
        ("./nothing-here", "nothing-here does not exist"),
        ("~no-such-user/model", "does not exist"),
        ("two words", "two words does not exist"),
        ("a/b/c", "a/b/c does not exist"),
        ("/no/such/file.gguf", "there is no file /no/such/file.gguf"),
        ("a--b", "no hub model 'a--b'"),
        ("x" * 300, "no hub model"),
        ("no-such-owner/no-such-model", "not in the local hub cache"),
    ],
    ids=str,
)
def test_a_source_that_names_nothing(source, expected):
    assert re.search(expected, message := refusal(source))
    assert "folder" in message and ".gguf file" in message


def test_names_that_the_file_system_refuses():
    for source in ("/" + "x" * 300, "a\0b"):
        with pytest.raises((ValueError, OSError)):
            load_model(source)


def test_a_file_that_is_no_gguf(folder):
    assert "is a file, not a model folder" in refusal(folder / "config.json")


def test_a_folder_without_a_config(folder):
    (folder / "config.json").unlink()
    assert "it has no config.json" in refusal(folder)


def test_an_empty_folder(tmp_path):
    assert "is no model folder" in refusal(tmp_path)


def test_a_revision_of_something_that_is_not_on_the_hub(folder):
    assert "belongs to a hub id" in refusal(folder, revision="main")
    assert "belongs to a hub id" in refusal("default", revision="main")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\xff"], ids=repr)
def test_a_config_that_is_none(text, folder):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "could not be loaded" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "perceptron"}, "perceptron"),
        ({"hidden_size": "wide"}, "expected int, got str"),
        ({"hidden_size": 64}, r"holds .* as \[.*32\] and its config asks for \[.*64\]"),
        ({"num_attention_heads": 8}, r"o_proj.weight as \[32, 32\] and its config asks for \[32, 64\]"),
        ({"num_attention_heads": 0}, "could not be loaded: ZeroDivisionError"),
        ({"num_hidden_layers": 3}, "lacks 9 of the tensors"),
        ({"vocab_size": 3}, "its config asks for"),
        ({"hidden_act": "shrug"}, "shrug"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "optimum|gptqmodel"),
    ],
    ids=str,
)
def test_a_config_that_makes_no_sense(changes, expected, folder):
    edit_json(folder / "config.json", **changes)
    assert re.search(expected, refusal(folder))


def test_an_attention_that_is_not_known_is_refused_by_name(folder):
    edit_json(folder / "config.json", model_type="bert")
    assert "lacks" in refusal(folder)  # the weights are found wanting first


@pytest.mark.parametrize("size", [0, 5, 100, 0.5, -1])
def test_truncated_weights(size, folder):
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: int(size * len(data)) if 0 < size < 1 else size])
    assert "model.safetensors is truncated or no safetensors file" in refusal(folder)


def test_a_missing_tensor_is_not_replaced_by_random_numbers(folder):
    edit_tensors(folder / "model.safetensors", drop="layers.1.self_attn.o_proj")
    assert "lacks 1 of the tensors" in (message := refusal(folder)) and "layers.1.self_attn.o_proj" in message


def test_a_tensor_of_another_shape(folder):
    edit_tensors(folder / "model.safetensors", add={"model.layers.0.self_attn.o_proj.weight": torch.zeros(32, 16)})
    assert "layers.0.self_attn.o_proj.weight as [32, 16] and its config asks for [32, 32]" in refusal(folder)


def test_a_missing_shard_is_named(model, tmp_path):
    folder = save_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    second = sorted(folder.glob("model-*.safetensors"))[1]
    second.unlink()
    assert f"lacks {second.name}, which its index names" in refusal(folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": null}'])
def test_a_damaged_index(index, model, tmp_path):
    folder = save_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    (folder / "model.safetensors.index.json").write_text(index)
    assert "is no index of safetensors files" in refusal(folder)


def test_an_index_that_leads_out_of_its_folder(model, folder, tmp_path):
    sharded = save_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    outside = "../model/model.safetensors"
    assert (sharded / outside).is_file()
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": outside}}))
    assert "not a file of its folder" in refusal(sharded)


def test_shards_without_their_index(model, tmp_path):
    folder = save_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    (folder / "model.safetensors.index.json").unlink()
    assert "no model.safetensors nor its index" in refusal(folder)


# --- nothing is executed (C24) ------------------------------------------------------------------------------------


def test_pickled_weights_are_refused_and_never_opened(folder, tmp_path):
    marker = tmp_path / "it-ran"
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth"):
        write_bomb(folder / name, marker)
    load_model(str(folder))
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert "only pickled weights" in message and "can run code" in message and "save_pretrained" in message
    assert not marker.exists()
    torch.load(folder / "optimizer.pt", weights_only=False)
    assert marker.exists()  # it would have


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_that_a_model_brings_is_never_run(where, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    marker = tmp_path / "it-ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Tokens: pass\n")
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.Tokens", "evil.Tokens"]}
    own_type = {"model_type": "evil"} if where == "config.json" else {"tokenizer_class": "EvilTokens"}
    edit_json(folder / where, auto_map=classes, trust_remote_code=True, **own_type)
    assert "brings its own Python code, which is never run here" in refusal(folder)
    assert not marker.exists()


def test_a_known_architecture_with_code_beside_it_loads_without_the_code(folder, model, tmp_path):
    marker = tmp_path / "it-ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    torch.testing.assert_close(logits(load_model(str(folder)).model), logits(model), atol=1e-5, rtol=0)
    assert not marker.exists()


# --- tokenizers ---------------------------------------------------------------------------------------------------


def test_a_tokenizer_from_elsewhere(model, tmp_path):
    bare = save_folder(model, tmp_path / "bare", tokenizer=False)
    tiny_tokenizer().save_pretrained(tmp_path / "tokens")
    assert load_model(str(bare)).tokenizer is None
    for source in (tmp_path / "tokens", save_folder(model, tmp_path / "whole")):
        tokenizer = load_model(str(bare), tokenizer=str(source)).tokenizer
        assert tokenizer("class C:\n")["input_ids"] == tiny_tokenizer()("class C:\n")["input_ids"]


@pytest.mark.parametrize("source", ["/no/such/folder", "nowhere/near/here", "~no-such-user/tokens"])
def test_a_tokenizer_that_is_not_there(source, folder):
    assert "there is no tokenizer in" in refusal(folder, tokenizer=source)


def test_a_tokenizer_on_a_hub_that_is_not_reached(folder):
    assert "not in the local hub cache" in refusal(folder, tokenizer="no-such-owner/no-such-model")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer(name, folder):
    (folder / name).write_text("{")
    assert f"the tokenizer of {folder} could not be loaded" in refusal(folder)


# --- devices and memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99", "", "-1", "disk"])
def test_a_device_that_is_not_here(device, folder):
    assert "cannot be used on this machine" in (message := refusal(folder, device=device)) and "`auto` or `cpu`" in message


def test_an_unknown_dtype(folder):
    assert "float64" in (message := refusal(folder, dtype="float64")) and "float32, bfloat16, float16" in message


def test_an_attention_implementation_that_is_not_installed(folder):
    assert "could not be loaded" in refusal(folder, attn_implementation="wishful")


@pytest.mark.parametrize(("dtype", "needed"), [("float32", 4), ("bfloat16", 2)])
def test_a_model_too_large_for_memory_says_needed_and_available_before_loading(dtype, needed, folder, monkeypatch):
    parameters = sources.resolve(str(folder)).parameters
    free = needed * parameters - 1
    monkeypatch.setattr(devices, "GIB", 2**10)  # a tiny model is counted in KiB
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr("analysis.models.load_weights", None)
    message = refusal(folder, device="cpu", dtype=dtype)
    assert f"needs about {needed * parameters / 2**10:.1f} GiB" in message and f"{free / 2**10:.1f} GiB are free" in message
    assert ("bfloat16, a smaller" in message) == (dtype == "float32")


def test_a_model_that_just_fits_is_loaded(folder, monkeypatch):
    free = 4 * sources.resolve(str(folder)).parameters
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert load_model(str(folder), device="cpu").provenance["model"]["device"] == "cpu"


def test_where_a_model_goes(monkeypatch):
    """One GPU when it fits there, all of them and the CPU when it does not; counted over all of these."""
    cuda = SimpleNamespace(type="cuda", index=0)
    free = {0: 8 * GIB, 1: 4 * GIB}
    monkeypatch.setattr(devices, "pick_device", lambda device="auto": cuda)
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * GIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[getattr(device, "index", device) or 0], 80 * GIB))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert place("auto", 8 * GIB) == {"": cuda}
    assert place("auto", 8 * GIB + 1) == "auto"
    assert place("cuda:0", 9 * GIB) == {"": cuda}  # named by the user: refused rather than spread
    check_memory("fits", 15 * GIB, "auto", "float32")
    with pytest.raises(ValueError, match=r"needs about 16.0 GiB .* 15.0 GiB are free"):
        check_memory("too large", 16 * GIB, "auto", "float32")
    with pytest.raises(ValueError, match=r"9.0 GiB .* 8.0 GiB are free"):
        check_memory("too large", 9 * GIB, {"": "cuda:0"}, "float32")
    check_memory("on the disk", 99 * GIB, {"a": "cpu", "b": "disk"}, "float32")


# --- the default model --------------------------------------------------------------------------------------------


def test_the_default_model_is_in_its_package():
    path = sources.default_gguf()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and os.path.getsize(path) > 90_000_000


def test_the_default_model_is_not_installed(monkeypatch):
    monkeypatch.setattr(sources, "DEFAULT_PACKAGE", "no_such_package")
    assert "make setup" in refusal("default")


def test_an_adapter_is_called_by_its_run():
    assert adapter_name("/w/runs/first/adapter") == "first adapter"
    assert adapter_name("/w/runs/first/checkpoints/checkpoint-25") == "first step 25"
    for folder, name in {"/elsewhere/mine": "mine", "adapter": "adapter", "/adapter": "adapter", "..": "..", ".": "."}.items():
        assert adapter_name(folder) == name
