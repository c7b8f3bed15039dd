"""What a run will take, before it starts: by arithmetic from the model's config alone, no weight is read.

The model is built without numbers (torch's meta device) and gets its adapter as the run would put it there, so what PEFT
refuses is refused here. Memory of activations and seconds a step depend on the machine: gamelora/dry_step.py measures them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from analysis.heads import attention_layers
from analysis.models import DTYPES, LoadedModel
from analysis.pretrained import empty_model
from gamelora.build import add_adapter, choose_design_layers
from gamelora.config import GameLoraConfig, fields_by_name

_FLOAT = 4  # bytes; adapters, their gradients and AdamW's two moments are float32
_MOMENTS = 2
_METRICS_BYTES = 1600  # a step's line of metrics.jsonl with its part of the evaluations'
_TENSORBOARD_BYTES = 1800  # a step's scalars in the event file
_OVERHEAD = 100_000  # of a checkpoint: configs, scheduler and random state


@dataclass(frozen=True)
class Outline:
    """A model under its adapter, without its numbers.

    Attributes
    ----------
    layers : true indices of the attention layers.
    design_layers : those that the config chooses.
    parameters : of the base model.
    window : longest row that it takes, None when it does not say.
    a_rank, fixed : the adapter's trainable parameters are `a_rank * r + fixed`.
    """

    layers: tuple[int, ...]
    design_layers: tuple[int, ...]
    parameters: int
    window: int | None
    a_rank: int
    fixed: int

    def trainable(self, r: int) -> int:
        """Trainable parameters at rank r."""
        return self.a_rank * r + self.fixed


@dataclass(frozen=True)
class Estimate:
    """What a run takes.

    Attributes
    ----------
    trainable, parameters : numbers that are trained, and numbers of the base model.
    adapter_bytes : of the finished adapter.
    disk_bytes : of the whole run folder when it is largest.
    memory_bytes : of weights, adapter, its gradient and AdamW's state; activations come on top.
    """

    trainable: int
    parameters: int
    adapter_bytes: int
    disk_bytes: int
    memory_bytes: int


def outline(file: Path, config: GameLoraConfig) -> Outline:
    """The model of a config.json or .gguf file (`analysis.sources.config_file`) under the config's adapter; no weight is read.

    Raises
    ------
    ValueError
        When transformers does not know it, or when `target_modules` or `design_layers` do not fit it.
    """
    model = empty_model(config.model, file)
    text = model.config.get_text_config()
    loaded = LoadedModel(model, None, attention_layers(model), {"model": {"n_layers": text.num_hidden_layers}, "adapter": None})
    parameters = model.num_parameters()
    with torch.device("meta"), torch.random.fork_rng(devices=[]):  # PEFT's start of the adapter draws random numbers
        adapted = add_adapter(loaded, dataclasses.replace(config, r=1))
    ranks = fixed = 0
    for name, part in adapted.model.named_parameters():
        if part.requires_grad:
            of_rank = any(f".{kind}." in name for kind in ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"))
            ranks, fixed = (ranks + part.numel(), fixed) if of_rank else (ranks, fixed + part.numel())
    design = choose_design_layers(adapted, config)
    indices = (tuple(layer.index for layer in layers) for layers in (loaded.layers, design))
    return Outline(*indices, parameters, getattr(text, "max_position_embeddings", None), ranks, fixed)


def estimate(config: GameLoraConfig, model: Outline) -> Estimate:
    """What a run of that config takes."""
    trainable = model.trainable(config.r)
    adapter = trainable * _FLOAT
    checkpoint = adapter * (1 + _MOMENTS) + _OVERHEAD
    kept = min(config.keep_checkpoints, -(-config.steps // config.save_every)) + 1  # one more while the next is written
    log = config.steps * (_METRICS_BYTES + ("tensorboard" in config.report_to) * _TENSORBOARD_BYTES)
    return Estimate(
        trainable=trainable,
        parameters=model.parameters,
        adapter_bytes=adapter,
        disk_bytes=kept * checkpoint + adapter + log,
        memory_bytes=model.parameters * DTYPES[config.dtype].itemsize + trainable * _FLOAT * (2 + _MOMENTS),
    )


def evaluations(config: GameLoraConfig) -> int:
    """How often the held-out text is read: at the start, every `eval_every` steps, and at the end."""
    return 1 + -(-config.steps // config.eval_every)


def problems_with(config: GameLoraConfig, model: Outline) -> dict[str, str]:
    """What of a config this model cannot do, by field."""
    if model.window and config.seq_len > model.window:
        return {"seq_len": f"seq_len {config.seq_len} does not fit the model's window of {model.window:,}: give at most that."}
    return {}


def field_of(problem: str, otherwise: str) -> str:
    """The first field that a sentence about a config names, else `otherwise`."""
    return next((word for word in problem.replace(",", " ").split() if word in fields_by_name()), otherwise)
