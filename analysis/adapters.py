"""PEFT adapters on a base model: checked before they are opened, attached so that they can be switched off.

The base that the user gives always wins: the path inside adapter_config.json is never followed, and no weight of the base
takes a value that the adapter's file brings. Switched off, an adapter leaves the base exactly as it is without it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel
from peft.utils import ModulesToSaveWrapper, get_peft_model_state_dict
from torch import nn
from transformers import PreTrainedModel

from analysis.sources import content_sha256, tensor_shapes

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."  # of every tensor name in an adapter
_COPIES = tuple(  # what a whole embedding is called in an adapter's file, by how it was adapted
    f"{part}.weight" for part in ("", ".modules_to_save", ".original_module", ".base_layer", ".token_adapter.base_layer")
)
_INITIALIZATIONS_THAT_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")


def read_adapter_config(folder: str | Path) -> dict[str, Any]:
    """The checked adapter_config.json of an adapter folder.

    Raises
    ------
    ValueError
        When the folder is no adapter, holds pickled weights only, an adapter that is not LoRA, or one that changes weights of
        its base, so that switching it off would not give the base back.
    """
    folder = Path(os.path.expanduser(folder))
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} is no adapter folder: it has no {CONFIG} (and {WEIGHTS}), as PEFT saves them.")
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        reason = "its weights are pickled (adapter_model.bin), and a pickle can run code" if pickled else f"it has no {WEIGHTS}"
        raise ValueError(f"the adapter {folder} is refused: {reason}. Save it with peft's save_pretrained (safetensors).")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = config.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / CONFIG} is not the JSON that PEFT writes ({error}). Copy or download it again.") from error
    if kind != "LORA":
        raise ValueError(f"the adapter {folder} is of type {kind}; LoRA, rsLoRA and DoRA are supported.")
    initialization = str(config.get("init_lora_weights")).lower()
    changes = {
        f"init_lora_weights={initialization!r}": initialization.startswith(_INITIALIZATIONS_THAT_CHANGE_THE_BASE),
        f"bias={config.get('bias')!r}": config.get("bias") not in (None, "none"),
        "layer_replication": bool(config.get("layer_replication")),
    }
    for setting, found in changes.items():
        if found:
            raise ValueError(
                f"the adapter {folder} changes its base's own weights ({setting}), so it cannot be switched off: merge it into "
                "its base (merge_and_unload, save_pretrained) and give the merged folder as the model."
            )
    return config


def attach(model: PreTrainedModel, folder: str | Path) -> tuple[PeftModel, dict[str, Any]]:
    """Put an adapter on a base model; returns the PeftModel and the adapter's provenance.

    The adapter may bring a vocabulary with another number of rows than the base's; each keeps its own.

    Raises
    ------
    ValueError
        When the adapter belongs to another base, or lacks or has surplus tensors.
    """
    folder = Path(os.path.expanduser(folder)).resolve()
    config = read_adapter_config(folder)
    places = getattr(model, "hf_device_map", None) or {}
    if "disk" in places.values():  # PEFT would write a second copy of the model, and forget DoRA's magnitudes
        raise ValueError(
            f"the adapter {folder} cannot sit on a model that lies partly on the disk: use --dtype bfloat16, a smaller model, or "
            "merge it into its base (merge_and_unload, save_pretrained) and give the merged folder as the model."
        )
    shapes = tensor_shapes(folder / WEIGHTS)
    own = _own_embeddings(model, shapes)
    try:
        lora = LoraConfig.from_pretrained(folder)
        _fit_vocabulary(model, lora, own, shapes)
        where = {"device_map": {f"{_PREFIX}{name}".removesuffix("."): place for name, place in places.items()}} if places else {}
        adapted = PeftModel.from_pretrained(model, folder, config=lora, is_trainable=False, torch_device="cpu", **where)
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise ValueError(
            f"the adapter {folder} does not fit the base model {type(model).__name__} (it was made for "
            f"{config.get('base_model_name_or_path')!r}): {_first_lines(error)}. Give the base that it was trained on."
        ) from error
    _give_back(model, own)
    copies = {f"{_PREFIX}{name}{copy}" for name in own for copy in _COPIES}
    _check_tensors(adapted, folder, set(shapes), copies)
    names = ("peft_type", "r", "lora_alpha", "use_dora", "use_rslora", "target_modules")
    described = {name: sorted(value) if isinstance(value := config.get(name), list) else value for name in names}
    return adapted, {"source": str(folder), "sha256": content_sha256([folder / CONFIG, folder / WEIGHTS]), **described}


def _own_embeddings(model: PreTrainedModel, shapes: dict[str, tuple[int, ...]]) -> dict[str, nn.Parameter]:
    """The base's own embeddings, input and output, of which the adapter's file brings a whole copy: module name -> weight."""
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    return {
        name: nn.Parameter(module.weight.detach().clone(), requires_grad=False)
        for name, module in model.named_modules()
        if any(module is embedding for embedding in embeddings) and any(f"{_PREFIX}{name}{copy}" in shapes for copy in _COPIES)
    }


def _fit_vocabulary(
    model: PreTrainedModel, lora: LoraConfig, own: dict[str, nn.Parameter], shapes: dict[str, tuple[int, ...]]
) -> None:
    """Give the model the adapter's vocabulary rows, and let PEFT keep the adapter's embeddings apart from the base's.

    PEFT saves whole embeddings, also untrained ones, when a vocabulary was extended; it would load them over the base's.
    """
    rows = {shapes[f"{_PREFIX}{name}{copy}"][0] for name in own for copy in _COPIES if f"{_PREFIX}{name}{copy}" in shapes}
    if not rows:
        return
    have = model.get_input_embeddings().weight.shape[0]
    in_place = [name for name in own if f"{_PREFIX}{name}.weight" not in shapes]
    if len(rows) > 1 or (in_place and rows != {have}):
        raise ValueError(f"its embeddings have {sorted(rows)} vocabulary rows and the base's {have}")
    kept_apart = lora.modules_to_save or []
    whole = [name for name in own if name not in in_place and not any(name.endswith(kept) for kept in kept_apart)]
    lora.modules_to_save = [*kept_apart, *whole] or None
    if rows != {have}:
        model.resize_token_embeddings(rows.pop(), mean_resizing=False)


def _give_back(model: PreTrainedModel, own: dict[str, nn.Parameter]) -> None:
    for name, weight in own.items():
        module = model.get_submodule(name)
        base = module.original_module if isinstance(module, ModulesToSaveWrapper) else module.get_base_layer()
        base.weight = weight


def _check_tensors(adapted: PeftModel, folder: Path, stored: set[str], copies: set[str]) -> None:
    expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    missing, surplus = sorted(expected - stored), sorted(stored - expected - copies)
    for word, names in (("lacks", missing), ("has surplus", surplus)):
        if names:
            raise ValueError(
                f"the adapter {folder} {word} {len(names)} tensors ({names[0]}, ...): its weights and its {CONFIG} do "
                "not belong together, or it was trained on another base. Save it again, or give its own base."
            )


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".")
