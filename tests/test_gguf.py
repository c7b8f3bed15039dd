"""GGUF files: the same model as its source, converted once, and a message of its own for each thing that can be wrong."""

import multiprocessing
import os
import re
import shutil
import signal
import time
from types import SimpleNamespace

import gguf
import pytest
import torch

from analysis import devices, gguf_files
from analysis.corpus import TokenRows, token_rows
from analysis.gguf_files import inspect_gguf
from analysis.measurement import measure_interaction
from analysis.models import load_model
from tests.tiny_files import (
    TEXT_VOCAB,
    loopback_only,
    replace_tensor_type,
    save_adapter,
    save_folder,
    text_model,
    tiny_tokenizer,
    write_gguf,
)

Kind = gguf.GGMLQuantizationType
ROWS = TokenRows(torch.randint(3, TEXT_VOCAB, (3, 12), generator=torch.Generator().manual_seed(0)), {})
MESSAGES = {
    "truncated": "is truncated or corrupt",
    "architecture": "holds the architecture",
    "quantization": "uses (the|a) quantization",
    "tokenizer": "carries no tokenizer",
}


@pytest.fixture(autouse=True)
def offline(workspace):
    with loopback_only():
        yield


@pytest.fixture(scope="module")
def model():
    """A llama with 2 kv heads for 4 heads; every row length is a whole number of quantization blocks."""
    return text_model(intermediate_size=64)


@pytest.fixture
def file(model, tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", model)


def logits(model):
    with torch.no_grad():
        return model(ROWS.rows).logits


def converted(workspace):
    return sorted(path.name for path in (workspace / "models").iterdir() if not path.name.endswith(".lock"))


def assert_refused(kind, act):
    """Refused in one line with the message of that kind, and of no other."""
    with pytest.raises(ValueError) as refused:
        act()
    message = str(refused.value)
    assert [name for name, pattern in MESSAGES.items() if re.search(pattern, message)] == [kind], message
    assert "\n" not in message and message.endswith(".")


# --- the same model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_float32_gives_the_source_models_logits_and_G(kv_heads, tied, tmp_path):
    """C20: query and key rows are permuted back by the right number of heads."""
    source = text_model(num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf", source, without="output.weight" if tied else "")))
    torch.testing.assert_close(logits(loaded.model), logits(source), atol=1e-3, rtol=0)
    assert loaded.layers[0].n_kv_heads == kv_heads and loaded.tokenizer is None
    expected = measure_interaction(load_model(str(save_folder(source, tmp_path / "folder"))), ROWS).G
    assert abs(measure_interaction(loaded, ROWS).G - expected).max() < 1e-4


def test_the_permutation_matters(model, tmp_path, monkeypatch):
    """The test above would see rows that were left permuted."""
    monkeypatch.setattr("tests.tiny_files._permuted", lambda weight, heads: weight)
    loaded = load_model(str(write_gguf(tmp_path / "wrong.gguf", model)))
    assert (logits(loaded.model) - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0], ids=lambda kind: kind.name)
def test_quantized_weights_are_dequantized_exactly(kind, model, tmp_path):
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf", model, kind)))
    weights = dict(loaded.model.named_parameters())
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and not name.endswith(("q_proj.weight", "k_proj.weight")):  # these are permuted in the file
            rounded = gguf.quants.dequantize(gguf.quants.quantize(weight.detach().numpy(), kind), kind)
            assert torch.equal(weights[name], torch.from_numpy(rounded))
            assert not torch.equal(weights[name], weight)
    if kind == Kind.Q8_0:
        torch.testing.assert_close(logits(loaded.model), logits(model), atol=0.3, rtol=0)


def test_the_tokenizer_comes_along(model, tmp_path):
    loaded = load_model(str(write_gguf(tmp_path / "tiny.gguf", model, tokenizer=True)))
    for text in ("class C:\n    pass\n\n\n", "assert 1 == 2  # é"):
        assert loaded.tokenizer(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"]
    assert token_rows("builtin", loaded.tokenizer, 64, 16).rows.shape == (4, 16)


def test_an_adapter_sits_on_a_gguf_too(model, file, tmp_path):
    base = load_model(str(file))
    save_adapter(load_model(str(file)).model, tmp_path / "adapter")
    loaded = load_model(str(file), adapter=str(tmp_path / "adapter"))
    assert (logits(loaded.model) - logits(base.model)).abs().max() > 0.01
    with loaded.base() as bare:
        assert torch.equal(logits(bare.model), logits(base.model))


def test_the_provenance_names_the_file_and_its_content(file, tmp_path):
    first = load_model(str(file)).provenance["model"]
    assert (first["kind"], first["name"], first["source"]) == ("gguf", "tiny", str(file))
    shutil.copy(file, tmp_path / "copy.GGUF")
    assert load_model(str(tmp_path / "copy.GGUF")).provenance["model"]["sha256"] == first["sha256"]


@pytest.mark.slow
def test_the_default_model(monkeypatch):
    monkeypatch.delenv("GAMELORA_WORKSPACE")  # where `make setup` has converted it already
    loaded = load_model("default")
    assert loaded.provenance["model"]["parameters"] == 134_515_008
    assert (loaded.layers[0].n_heads, loaded.layers[0].n_kv_heads, len(loaded.layers)) == (9, 3, 30)
    text = "Once upon a time there was a little girl who lived in a village near the forest."
    ids = loaded.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert loaded.tokenizer.decode(ids[0]) == text
    assert loaded.model(ids, labels=ids).loss < 6  # nats; a wrong permutation is far above


# --- converted once -----------------------------------------------------------------------------------------------


def test_the_second_load_does_not_convert(file, workspace, monkeypatch):
    first = logits(load_model(str(file)).model)
    assert len(converted(workspace)) == 1
    monkeypatch.setattr(gguf_files, "_convert", None)
    monkeypatch.setattr(gguf_files, "inspect_gguf", None)
    assert torch.equal(logits(load_model(str(file)).model), first)


def test_another_content_under_the_same_name_is_converted_anew(model, file, workspace):
    before = logits(load_model(str(file)).model)
    write_gguf(file, text_model(intermediate_size=64, seed=1))
    assert (logits(load_model(str(file)).model) - before).abs().max() > 0.1
    assert len(converted(workspace)) == 2


@pytest.mark.parametrize("step", ["weights", "tokenizer"])
def test_a_conversion_that_fails_leaves_nothing(step, model, workspace, tmp_path, monkeypatch):
    file = write_gguf(tmp_path / "tiny.gguf", model, tokenizer=True)
    with monkeypatch.context() as patch:

        def full_disk(*_args, **_kwargs):
            raise OSError(28, "No space left on device")

        target = type(model) if step == "weights" else type(tiny_tokenizer())
        patch.setattr(target, "save_pretrained", full_disk)
        with pytest.raises(OSError, match="No space left"):
            load_model(str(file))
    assert converted(workspace) == []
    assert load_model(str(file)).tokenizer is not None


def in_child(act):
    """Run a function in a forked process; returns the process."""
    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    return process


def test_a_killed_conversion_is_not_taken_for_a_model(model, file, workspace, tmp_path):
    def convert_and_hang():
        save = type(model).save_pretrained

        def save_and_hang(self, folder, **settings):
            save(self, folder, **settings)
            (tmp_path / "half-way").touch()
            signal.pause()

        type(model).save_pretrained = save_and_hang
        load_model(str(file))

    child = in_child(convert_and_hang)
    while not (tmp_path / "half-way").exists():
        assert child.is_alive()
        time.sleep(0.01)
    assert [name.startswith(".") for name in converted(workspace)] == [True]
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    torch.testing.assert_close(logits(load_model(str(file)).model), logits(model), atol=1e-3, rtol=0)
    assert [name.startswith("gguf-") for name in converted(workspace)] == [True]  # what was left over is gone too


def test_two_processes_at_once_convert_once(model, file, workspace, tmp_path):
    def convert():
        convert_really = gguf_files._convert

        def count(*args):
            (tmp_path / f"converted-{os.getpid()}").touch()
            convert_really(*args)

        gguf_files._convert = count
        assert torch.allclose(logits(load_model(str(file)).model), logits(model), atol=1e-3)

    children = [in_child(convert) for _ in range(2)]
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    assert len(list(tmp_path.glob("converted-*"))) == 1 and len(converted(workspace)) == 1


# --- refusals -----------------------------------------------------------------------------------------------------


def test_an_unknown_architecture(model, workspace, tmp_path):
    file = write_gguf(tmp_path / "strange.gguf", model, architecture="fictional")
    assert_refused("architecture", lambda: load_model(str(file)))
    with pytest.raises(ValueError, match=r"'fictional'.*Supported: .*llama.*safetensors folder"):
        inspect_gguf(file)
    for section in ("general", "tokenizer"):
        with pytest.raises(ValueError, match=f"holds the architecture '{section}'"):
            inspect_gguf(write_gguf(tmp_path / f"{section}.gguf", model, architecture=section))
    assert not (workspace / "models").exists() or converted(workspace) == []


@pytest.mark.parametrize("number", [4, 36, 999])
def test_a_quantization_that_nobody_knows(number, model, tmp_path):
    """A type number that was removed from the format, and one that is newer than this program."""
    file = write_gguf(tmp_path / "tiny.gguf", model, Kind.Q8_0)
    replace_tensor_type(file, Kind.Q8_0, number)
    assert_refused("quantization", lambda: load_model(str(file)))
    with pytest.raises(ValueError, match=rf"{number}.*Q4_0 to Q8_0"):
        inspect_gguf(file)


def test_a_quantization_that_cannot_be_read(model, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", model, Kind.Q8_1)
    assert_refused("quantization", lambda: load_model(str(file)))
    with pytest.raises(ValueError, match=r"uses the quantization Q8_1.*Q4_0 to Q8_0"):
        inspect_gguf(file)


def test_cut_at_any_length(file):
    data = file.read_bytes()
    lengths = [0, 1, 3, 4, 7, 8, 23, 24, 25, *range(100, 3000, 137), len(data) // 2, len(data) - 100, len(data) - 1]
    for length in lengths:
        file.write_bytes(data[:length])
        assert_refused("truncated", lambda: load_model(str(file)))


def test_what_is_no_gguf_at_all(file):
    for data in (b"PK\x03\x04 a zip", b"GGUF" + b"\xff" * 100, b"GGUF" + bytes(100), b"text\n" * 1000):
        file.write_bytes(data)
        assert_refused("truncated", lambda: load_model(str(file)))


def test_a_gguf_without_its_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "empty.gguf", "llama")
    writer.kv_data[0].clear()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_refused("truncated", lambda: load_model(str(tmp_path / "empty.gguf")))


def test_without_a_tokenizer_there_is_still_G_on_token_ids(file, tmp_path):
    loaded = load_model(str(file))
    assert_refused("tokenizer", lambda: token_rows("builtin", loaded.tokenizer, 64, 16))
    with pytest.raises(ValueError, match=r"give token ids \(a \.npy file\).*--tokenizer"):
        token_rows("builtin", loaded.tokenizer, 64, 16)
    assert measure_interaction(loaded, ROWS).G.shape == (2, 4, 4)
    tiny_tokenizer().save_pretrained(tmp_path / "tokens")
    assert load_model(str(file), tokenizer=str(tmp_path / "tokens")).tokenizer is not None


@pytest.mark.parametrize(("tensors", "count"), [("blk.1.attn_output", 1), ("output_norm", 1), ("token_embd", 1), ("blk.", 18)])
def test_a_missing_tensor_is_not_replaced_by_random_numbers(tensors, count, model, workspace, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", model, without=tensors)
    with pytest.raises(ValueError, match=rf"tiny.gguf lacks {count} of the tensors"):
        load_model(str(file))
    assert converted(workspace) == []


def test_a_tensor_that_would_be_left_out(workspace, tmp_path):
    """transformers has no place for a bias of the attention in a llama GGUF: the model would be another one."""
    file = write_gguf(tmp_path / "tiny.gguf", text_model(intermediate_size=64, attention_bias=True))
    with pytest.raises(ValueError, match=r"holds 39,264 weights .* has 39,072: it would not be the same model"):
        load_model(str(file))
    assert converted(workspace) == []


def test_too_large_for_memory_is_said_before_loading(file, monkeypatch):
    needed = 4 * inspect_gguf(file).parameters
    monkeypatch.setattr(devices, "GIB", 2**10)
    monkeypatch.setattr(devices.psutil, "virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    monkeypatch.setattr(gguf_files, "load_weights", None)
    with pytest.raises(ValueError, match=rf"needs about {needed / 2**10:.1f} GiB .*dequantized.* GiB are free"):
        load_model(str(file))


def test_the_header_says_what_is_inside(model, file, tmp_path):
    info = inspect_gguf(file)
    assert info.architecture == "llama" and not info.has_tokenizer
    assert info.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert inspect_gguf(write_gguf(tmp_path / "tokens.gguf", model, tokenizer=True)).has_tokenizer
