"""A model in memory with its provenance: `load_model(source, adapter=...)` -> LoadedModel.

Base and adapter are one model in memory, the adapter switched off by `LoadedModel.base()`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from analysis import sources
from analysis.adapters import attach, read_adapter_config
from analysis.devices import check_memory, place
from analysis.heads import AttentionLayer, attention_layers
from analysis.pretrained import load_tokenizer, load_weights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model ready to be measured.

    Attributes
    ----------
    model : in eval mode; a PeftModel when an adapter sits on it.
    tokenizer : None when the source carries none (some GGUF files).
    layers : its attention layers.
    provenance : {"model": ..., "adapter": ... or None}, JSON-ready.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase | None
    layers: list[AttentionLayer]
    provenance: dict[str, Any]

    @contextlib.contextmanager
    def base(self) -> Iterator[LoadedModel]:
        """The model without its adapter, while the block lasts; the same weights in memory."""
        if not isinstance(self.model, PeftModel):
            yield self
            return
        flags = {name: parameter.requires_grad for name, parameter in self.model.named_parameters()}
        try:
            with self.model.disable_adapter():
                yield replace(self, provenance={**self.provenance, "adapter": None})
        finally:  # PEFT makes an adapter that it switches on trainable
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(flags[name])


def load_model(
    source: str,
    revision: str | None = None,
    adapter: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    device_map: str | dict | None = None,
    tokenizer: str | None = None,
    attn_implementation: str | None = None,
) -> LoadedModel:
    """Load a model, and an adapter on it.

    Parameters
    ----------
    source : `default`, hub id, model folder or GGUF file.
    revision : branch, tag or commit of a hub id.
    adapter : PEFT folder.
    dtype : "float32", "bfloat16" or "float16".
    device : "auto" (cuda, then mps, then cpu) or a torch device; a model larger than one GPU is spread over all of them.
    device_map : placement for Accelerate, overrides `device`.
    tokenizer : folder or hub id to take the tokenizer from instead.
    attn_implementation : "sdpa", "eager", ...; the model's default otherwise. G does not depend on it.

    Raises
    ------
    ValueError
        When the source, adapter or device cannot be used, or the model does not fit into memory (needed and available
        are said before anything is loaded).
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
    if adapter:
        read_adapter_config(adapter)  # a wrong adapter is found before the model takes its time
    found = sources.resolve(source, revision)
    needed = found.parameters * DTYPES[dtype].itemsize
    placement = device_map or place(device, needed)
    check_memory(source, needed, placement, dtype)
    base = load_weights(source, found.folder, dtype=DTYPES[dtype], device_map=placement, attn_implementation=attn_implementation)
    model, provenance_of_adapter = attach(base, adapter) if adapter else (base, None)
    model.eval()
    layers = attention_layers(model)
    provenance = {"model": _provenance(found, base, layers, dtype), "adapter": provenance_of_adapter}
    return LoadedModel(model, _tokenizer(found, tokenizer), layers, provenance)


def _tokenizer(found: sources.ModelFolder, other: str | None) -> PreTrainedTokenizerBase | None:
    folder = sources.resolve_tokenizer(other) if other else found.folder
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        return load_tokenizer(other or found.source, folder)
    if other:
        raise ValueError(f"there is no tokenizer in {folder}: give a folder with tokenizer.json, or a hub id.")
    return None


def _provenance(found: sources.ModelFolder, base: PreTrainedModel, layers: list[AttentionLayer], dtype: str) -> dict[str, Any]:
    first = layers[0]
    places = getattr(base, "hf_device_map", None) or {"": base.device}
    return {
        "source": found.source,
        "kind": found.kind,
        "name": model_name(found.source),
        "revision": found.revision,
        "sha256": found.sha256,
        "architecture": type(base).__name__,
        "n_layers": base.config.get_text_config().num_hidden_layers,
        "n_heads": first.n_heads,
        "n_kv_heads": first.n_kv_heads,
        "d_head": first.d_head,
        "d_model": first.d_model,
        "parameters": found.parameters,
        "dtype": dtype,
        "device": ", ".join(sorted(set(map(str, places.values())))),
    }


def model_name(source: str) -> str:
    """A short name for people: the default model's own, or the last part of a path or hub id."""
    if source == "default":
        return "SmolLM2-135M-Instruct"
    return source.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")


def adapter_name(folder: str) -> str:
    """A short name for people: the last part of a path, led by the run's where that alone says nothing.

    `runs/first/adapter` is "first adapter", `runs/first/checkpoints/checkpoint-25` is "first step 25".
    """
    *above, last = Path(folder).parts or (folder,)
    above = [part for part in above if part not in ("checkpoints", "/")]
    step = re.fullmatch(r"checkpoint-(\d+)", last)
    if not above or not (step or last == "adapter"):
        return last
    return f"{above[-1]} step {step[1]}" if step else f"{above[-1]} adapter"


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    packages = ("torch", "transformers", "peft", "numpy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
