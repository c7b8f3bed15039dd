"""Tiny models as they lie on a disk: folders with a tokenizer, GGUF files, adapters, pickles that would run; and no network."""

import contextlib
import functools
import json
import os
import pickle
import pydoc_data.topics
import socket
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.tiny import tiny_model, with_adapter

TEXT_VOCAB = 320  # of the tiny tokenizer, and of the models that read text


# --- folders ------------------------------------------------------------------------------------------------------


@functools.cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges, whitespace among them, so that where a text is cut can change its last tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [pydoc_data.topics.topics[name][:4000] + "\n\n\n" for name in ("assert", "class", "del")]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def text_model(architecture: str = "llama", **settings) -> PreTrainedModel:
    """A tiny model with room for the tiny tokenizer's vocabulary."""
    return tiny_model(architecture, vocab_size=TEXT_VOCAB, **settings)


def save_folder(model: PreTrainedModel, folder: Path, tokenizer: bool = True, **settings) -> Path:
    """Save a model as a user would have it: config, safetensors and tokenizer."""
    model.save_pretrained(folder, **settings)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


def save_adapter(base: PreTrainedModel, folder: Path, seed: int = 0, **settings) -> Path:
    """Save a random LoRA adapter for a copy of `base`; the base itself is changed, so give one that is not needed."""
    with_adapter(base, seed, **settings).save_pretrained(folder)
    return folder


def edit_json(path: Path, **changes) -> None:
    """Change fields of a JSON file; `...` as a value removes the field."""
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))


def edit_tensors(path: Path, drop: str = "", add: dict[str, torch.Tensor] | None = None) -> None:
    """Rewrite a safetensors file without the tensors whose name holds `drop`, and with those of `add`."""
    tensors = {name: tensor for name, tensor in load_file(path).items() if not drop or drop not in name}
    save_file({**tensors, **(add or {})}, path, metadata={"format": "pt"})


class Bomb:
    """Unpickling this creates the file `marker`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def write_bomb(path: Path, marker: Path) -> None:
    """A pickle, in torch's own format, that creates the file `marker` when it is opened."""
    torch.save({"weight": Bomb(marker)}, path)
    with contextlib.closing(open(path.with_suffix(".pkl"), "wb")) as file:
        pickle.dump(Bomb(marker), file)


# --- GGUF ---------------------------------------------------------------------------------------------------------


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    tokenizer: bool = False,
    without: str = "",
) -> Path:
    """Write a Llama as llama.cpp's converter does: query and key rows of each head permuted for its rotary embedding.

    `without` leaves out the tensors whose name starts with it.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    if tokenizer:
        _add_tokenizer(writer)
    else:
        writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        part, _, suffix = name.rpartition(".")
        stored = f"{names.get_name(part)}.{suffix}"
        if without and stored.startswith(without):
            continue
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(stored.split(".")[-2])
        values = _permuted(tensor, heads).numpy() if heads else tensor.numpy()
        used = kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored, _quantized(np.ascontiguousarray(values), used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def _quantized(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind == gguf.GGMLQuantizationType.Q8_1:  # nobody writes it: as many zero bytes as it would take
        return np.zeros(gguf.quants.quant_shape_to_byte_shape(values.shape, kind), dtype=np.uint8)
    return gguf.quants.quantize(values, kind)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    fields = json.loads(tiny_tokenizer().backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(sorted(fields["vocab"], key=fields["vocab"].get))
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (TEXT_VOCAB - 3))
    writer.add_token_merges([" ".join(pair) for pair in fields["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def replace_tensor_type(path: Path, old: gguf.GGMLQuantizationType, new: int) -> None:
    """Overwrite the type number of every tensor of type `old` in a GGUF header."""
    reader = gguf.GGUFReader(path)
    places = [field.offset + sum(part.nbytes for part in field.parts[:4]) for field in (t.field for t in reader.tensors)]
    data = bytearray(path.read_bytes())
    for place, tensor in zip(places, reader.tensors, strict=True):
        if tensor.tensor_type == old:
            data[place : place + 4] = int(new).to_bytes(4, "little")
    path.write_bytes(data)


# --- the network --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def loopback_only():
    """Inside the block a connection or a name look-up beyond this machine fails, and fails the test that made it."""
    reached = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def check(host) -> None:
        if host not in ("127.0.0.1", "localhost", "::1", None):
            reached.append(host)
            raise ConnectionRefusedError(f"a test reached for {host}")

    def guarded_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            check(address[0])
        return connect(self, address)

    def guarded_look_up(host, *args, **kwargs):
        check(os.fsdecode(host) if isinstance(host, bytes) else host)
        return look_up(host, *args, **kwargs)

    socket.socket.connect, socket.getaddrinfo = guarded_connect, guarded_look_up
    try:
        yield
    finally:
        socket.socket.connect, socket.getaddrinfo = connect, look_up
    assert not reached, f"reached beyond this machine: {reached}"
