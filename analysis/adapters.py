"""PEFT adapters on a base model: checked before they are opened, attached so that they can be switched off.

The base that the user gives always wins; the path inside adapter_config.json is never followed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from torch import nn

from analysis.sources import folder_sha256, tensor_shapes

WEIGHTS = "adapter_model.safetensors"


def read_adapter_config(folder: str | Path) -> dict[str, Any]:
    """The checked adapter_config.json of an adapter folder.

    Raises
    ------
    ValueError
        When the folder is no adapter, holds pickled weights only, or an adapter that is not LoRA.
    """
    folder = Path(folder).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder} is no adapter folder: it has no adapter_config.json (and {WEIGHTS}), as PEFT saves them.")
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        reason = "its weights are pickled (adapter_model.bin), and a pickle can run code" if pickled else f"it has no {WEIGHTS}"
        raise ValueError(f"the adapter {folder} is refused: {reason}. Save it with peft's save_pretrained (safetensors).")
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'adapter_config.json'} is not readable JSON ({error}).") from error
    if config.get("peft_type") != "LORA":
        raise ValueError(f"the adapter {folder} is of type {config.get('peft_type')}; LoRA, rsLoRA and DoRA are supported.")
    return config


def attach(model: nn.Module, folder: str | Path) -> tuple[PeftModel, dict[str, Any]]:
    """Put an adapter on a base model; returns the PeftModel and the adapter's provenance.

    When the adapter was trained with more vocabulary rows than the base has, the base gets as many.

    Raises
    ------
    ValueError
        When the adapter belongs to another base, or lacks or has surplus tensors.
    """
    folder = Path(folder).expanduser().resolve()
    config = read_adapter_config(folder)
    shapes = tensor_shapes(folder / WEIGHTS)
    _fit_vocabulary(model, shapes)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"the adapter {folder} does not fit the base model {type(model).__name__} (config says it was made for "
            f"{config.get('base_model_name_or_path')!r}): {_first_lines(error)}. Give the base that it was trained on."
        ) from error
    _check_tensors(adapted, folder, set(shapes))
    names = ("peft_type", "r", "lora_alpha", "use_dora", "use_rslora", "target_modules")
    described = {name: sorted(value) if isinstance(value := config.get(name), list) else value for name in names}
    return adapted, {"source": str(folder), "sha256": folder_sha256(folder, ("adapter_config.json",)), **described}


def _fit_vocabulary(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    have = model.get_input_embeddings().weight.shape[0]
    rows = {shape[0] for name, shape in shapes.items() if name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight"))}
    if len(rows) > 1:
        raise ValueError(f"the adapter's embeddings have different numbers of rows ({sorted(rows)}); its base has {have}.")
    if rows and (need := rows.pop()) != have:
        if need < have:
            raise ValueError(f"the adapter has {need} vocabulary rows and the base {have}: it was trained on another base.")
        model.resize_token_embeddings(need, mean_resizing=False)


def _check_tensors(adapted: PeftModel, folder: Path, stored: set[str]) -> None:
    expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    missing = sorted(expected - stored)
    surplus = sorted(stored - expected - set(adapted.state_dict()))
    for word, names in (("lacks", missing), ("has surplus", surplus)):
        if names:
            raise ValueError(
                f"the adapter {folder} {word} {len(names)} tensors ({names[0]}, ...): its weights and its adapter_config.json do "
                "not belong together, or it was trained on another base. Save it again, or give its own base."
            )


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".")
