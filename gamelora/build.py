"""From a config to a trainer: model, adapter, design layers, text and transformers' arguments."""

from __future__ import annotations

import dataclasses
import difflib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import TrainingArguments, set_seed
from transformers.pytorch_utils import Conv1D

from analysis.devices import processes
from analysis.heads import AttentionLayer, attention_layers
from analysis.measurement import check_rows
from analysis.models import LoadedModel, load_model
from analysis.progress import report
from gamelora.config import GameLoraConfig
from gamelora.data import read_text
from gamelora.memory import rows_at_once
from gamelora.objectives import default_design_layer
from gamelora.trainer import GameLoraTrainer

# tracker -> the modules of which one serves it
_TRACKER_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "trackio": ("trackio",)}


def attention_targets(layers: list[AttentionLayer], model: nn.Module) -> str:
    """A pattern for PEFT's `target_modules`: the projections of the attention layers, and nothing of the same name elsewhere."""
    last = sorted({layer.name.rsplit(".", 1)[-1] for layer in layers})
    children = {
        name
        for layer in layers
        for name, module in model.get_submodule(layer.name).named_children()
        if isinstance(module, (nn.Linear, Conv1D))
    }
    return rf".*\.({'|'.join(last)})\.({'|'.join(sorted(children))})"


def add_adapter(loaded: LoadedModel, config: GameLoraConfig) -> LoadedModel:
    """The model under a fresh adapter, seeded.

    Raises
    ------
    ValueError
        When a name of `target_modules` or `modules_to_save` matches no module, or PEFT cannot adapt it.
    """
    set_seed(config.seed)
    attention = attention_targets(loaded.layers, loaded.model)
    for setting in ("target_modules", "modules_to_save"):
        _check_matches(loaded.model, setting, getattr(config, setting) or [])
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=config.r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.target_modules or attention,
        modules_to_save=config.modules_to_save,
        use_dora=config.use_dora,
        use_rslora=config.use_rslora,
    )
    try:
        model = get_peft_model(loaded.model, lora)
    except ValueError as error:
        raise ValueError(
            f"target_modules {config.target_modules} do not fit {type(loaded.model).__name__} "
            f"({' '.join(str(error).split())[:200]}). Leave them empty for the attention projections ({attention})."
        ) from error
    return dataclasses.replace(loaded, model=model, layers=attention_layers(model))


def _check_matches(model: nn.Module, setting: str, names: list[str]) -> None:
    """PEFT itself complains only when none of the names matches, and trains without the others."""
    known = {name for name, _ in model.named_modules()}
    ends = sorted({name.rsplit(".", 1)[-1] for name in known if not name.rsplit(".", 1)[-1].isdigit()} - {""})
    missing = [name for name in names if name not in known and not any(one.endswith(f".{name}") for one in known)]
    if missing:
        near = [f"{name!r} (nearest: {', '.join(difflib.get_close_matches(name, ends, cutoff=0.0))})" for name in missing]
        raise ValueError(f"{setting} name no module of {type(model).__name__}: {' or '.join(near)}. Correct it or leave it out.")


def choose_design_layers(loaded: LoadedModel, config: GameLoraConfig) -> list[AttentionLayer]:
    """The layers that both terms act on.

    Raises
    ------
    ValueError
        When a named layer does not exist or has no heads, or when the barrier cannot move its output projection.
    """
    by_index = {layer.index: layer for layer in loaded.layers}
    default = default_design_layer(loaded.layers, loaded.provenance["model"]["n_layers"])
    wanted = config.design_layers or [default]
    missing = [index for index in wanted if index not in by_index]
    if missing:
        raise ValueError(
            f"design_layers {missing} are no attention layers of {config.model}: it has {', '.join(map(str, by_index))}; "
            f"the default is {default}."
        )
    chosen = [by_index[index] for index in sorted(wanted)]
    if "ldb" in config.objectives:
        still = [layer.index for layer in chosen if not any(part.requires_grad for part in layer.projection.parameters())]
        if still:
            raise ValueError(
                f"the barrier acts through the output projection of layer {still[0]}, and target_modules {config.target_modules} "
                "leave it frozen: add it, or leave target_modules empty."
            )
    return chosen


def autocast_dtype(config: GameLoraConfig, device: torch.device) -> str:
    """What `autocast` means on this device; without a bfloat16 unit a CPU would take many times as long as in float32."""
    if config.autocast != "auto":
        return config.autocast
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    unit = device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return "bfloat16" if unit else "float32"


def check_trackers(config: GameLoraConfig) -> None:
    """Raise ValueError when a tracker is not installed."""
    missing = [name for name in config.report_to if not any(find_spec(module) for module in _TRACKER_MODULES[name])]
    if missing:
        raise ValueError(f"report_to names {', '.join(missing)}, which is not installed: pip install it, or leave it out.")


def training_arguments(config: GameLoraConfig, folder: Path) -> TrainingArguments:
    """The config in transformers' words.

    Raises
    ------
    ValueError
        When the device cannot do what the config asks for, or a tracker is not installed.
    """
    process = processes()
    rows = rows_at_once(config, process.num_processes)
    check_trackers(config)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
    try:
        args = TrainingArguments(
            output_dir=str(folder / "checkpoints"),
            run_name=folder.name,
            use_cpu=process.device.type == "cpu",
            bf16=autocast_dtype(config, process.device) == "bfloat16",
            activation_checkpointing=config.gradient_checkpointing,
            activation_checkpointing_kwargs={"use_reentrant": False},  # with reentry a frozen base cuts the adapters off
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=config.batch_size // (rows * process.num_processes),
            max_steps=config.steps,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            lr_scheduler_type=config.lr_scheduler,
            warmup_steps=round(config.warmup * config.steps),
            max_grad_norm=config.max_grad_norm,
            seed=config.seed,
            train_sampling_strategy="sequential",  # gamelora.data has the order
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=process.device.type == "cuda",
            logging_steps=1,
            logging_first_step=True,
            eval_strategy="steps",
            eval_steps=config.eval_every,
            save_strategy="steps",
            save_steps=config.save_every,
            report_to=config.report_to or "none",
            disable_tqdm=True,  # RunRecorder draws the bar
        )
    except ValueError as error:
        raise ValueError(f"the config does not fit this machine: {' '.join(str(error).split())}") from error
    args._setup_devices  # noqa: B018 (sets n_gpu)
    args._n_gpu = min(args.n_gpu, 1)  # one process, one device: DataParallel would change what a batch is
    return args


def build_trainer(config: GameLoraConfig, folder: Path, **options: Any) -> GameLoraTrainer:
    """Model, adapter, text and trainer of a config, writing into `folder`; `options` go to transformers' Trainer.

    Raises
    ------
    ValueError
        When any of them cannot be had.
    """
    process = processes()
    args = training_arguments(config, folder)
    report("loading the model")
    with process.main_process_first():  # a GGUF is converted, a hub model downloaded, once
        loaded = load_model(config.model, revision=config.revision, dtype=config.dtype, device=_device(process))
    report("reading the text")
    text = read_text(config, loaded.tokenizer)
    for rows in text.stored():
        check_rows(loaded.model, rows)
    loaded = add_adapter(loaded, config)
    return GameLoraTrainer(config, loaded, choose_design_layers(loaded, config), text, args, **options)


def _device(process: PartialState) -> str:
    """The process's own device; alone on a machine with GPUs a model larger than one is spread over all of them."""
    return "auto" if process.device.type == "cuda" and process.num_processes == 1 else str(process.device)
