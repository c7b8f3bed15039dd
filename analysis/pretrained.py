"""The one door through which transformers reads weights and tokenizers: safetensors, no remote code, nothing left to chance."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

# what transformers raises over a config, a tokenizer file or a GGUF that makes no sense, or that asks for a missing package
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    StrictDataclassError,
    TypeError,
    ValueError,
    struct.error,
)


def load_weights(name: str, folder: Path, **options) -> PreTrainedModel:
    """Load a causal language model from a folder; `options` go to transformers, `name` into the messages.

    Raises
    ------
    ValueError
        When transformers cannot read it, or when a tensor is missing or of another shape: transformers would put random
        numbers in its place.
    """
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            output_loading_info=True,
            **options,
        )
    except _UNREADABLE as error:
        raise ValueError(f"{name} could not be loaded: {_reason(error)}") from error
    missing, mismatched = sorted(report["missing_keys"]), sorted(report["mismatched_keys"])
    if missing:
        raise ValueError(
            f"{name} lacks {len(missing)} of the tensors that its config asks for ({missing[0]}, ...): it is incomplete, or its "
            "config is another model's. Copy or download it again."
        )
    if mismatched:
        tensor, stored, expected = mismatched[0]
        raise ValueError(
            f"{name} holds {tensor} as {list(stored)} and its config asks for {list(expected)}: the config is another model's. "
            "Copy or download it again."
        )
    return model


def empty_model(name: str, file: Path) -> PreTrainedModel:
    """The model of a config.json or a GGUF's header without its numbers (torch's meta device): shapes and names, no memory.

    Raises
    ------
    ValueError
        When transformers cannot make it.
    """
    try:
        options = {"gguf_file": file.name} if file.suffix.lower() == ".gguf" else {}
        config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False, **options)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except _UNREADABLE as error:
        raise ValueError(f"{name} could not be read: {_reason(error)}") from error


def load_tokenizer(name: str, folder: Path, **options) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder.

    Raises
    ------
    ValueError
        When transformers cannot read it.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
    except _UNREADABLE as error:
        raise ValueError(f"the tokenizer of {name} could not be loaded: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    if "trust_remote_code" in str(error):
        return "it brings its own Python code, which is never run here. Use a model that transformers itself knows."
    words = " ".join(str(error).split())
    kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "  # a bare KeyError says too little
    shortened = words.rstrip(".") if len(words) <= 300 else f"{words[:300]}.."
    return f"{kind}{shortened}. Check its files, or copy or download it again."
