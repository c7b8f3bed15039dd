"""What each head is worth to the loss: to first order for all heads in one pass, and exactly for chosen ones by ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.ablation import Head, ablated, cross_entropy
from analysis.corpus import TokenRows
from analysis.heads import AttentionLayer, frozen, head_outputs
from analysis.interaction import causal_loss, rows_to_batches
from analysis.models import LoadedModel, versions
from analysis.progress import track
from analysis.records import read_record, write_record

_HALF_LOSS_SCALE = 256.0  # gradients below 6e-8 are lost in float16


@dataclass(frozen=True, eq=False)
class HeadValues:
    """Benefits and ablation effects of a model's heads on a text; positive is helpful.

    Attributes
    ----------
    layers : true layer indices, int [layers].
    first_order : rise of the cross-entropy when the head is removed, to first order in its output: -sum_t <g_{i,t}, z_{i,t}>
        per predicted token, nats, float64 [layers, n_heads]. The benefits b of the head game [D].
    effect : that rise measured by zero-ablating the head alone, nats per token; NaN for a head that was not ablated.
    provenance : model, adapter, text and versions.
    """

    layers: np.ndarray
    first_order: np.ndarray
    effect: np.ndarray
    provenance: dict[str, Any]

    def not_ablated(self, heads: Sequence[Head]) -> list[Head]:
        """Those of the heads whose effect is not known."""
        row_of = {int(layer): row for row, layer in enumerate(self.layers)}
        return [(layer, head) for layer, head in heads if np.isnan(self.effect[row_of[layer], head])]

    def completed_by(self, other: HeadValues) -> HeadValues:
        """With the effects that `other`, of the same model and text, knows and this one does not."""
        return replace(self, effect=np.where(np.isnan(self.effect), other.effect, self.effect))

    def save(self, path: str | PathLike) -> None:
        """Write the JSON."""
        arrays = {"layers": self.layers, "first_order": self.first_order, "effect": self.effect}
        write_record(path, "head values", {**arrays, "provenance": self.provenance})

    @staticmethod
    def load(path: str | PathLike) -> HeadValues:
        """Read what `save` wrote; FileNotFoundError or ValueError as `read_record`."""
        record = read_record(path, "head values")
        floats = [np.array(record[name], dtype=np.float64) for name in ("first_order", "effect")]
        return HeadValues(np.array(record["layers"]), *floats, record["provenance"])


def measure_head_values(loaded: LoadedModel, text: TokenRows, batch_size: int = 8, ablate: Sequence[Head] = ()) -> HeadValues:
    """One forward and one activation-only backward pass over the text, and a forward pass for each head of `ablate`.

    Raises
    ------
    ValueError
        When a gradient is not finite; names the layers.
    """
    batches = rows_to_batches(text.rows, batch_size)
    total, tokens = np.zeros((len(loaded.layers), loaded.layers[0].n_heads)), 0
    for batch in track(batches, "measuring head values", len(batches), "batch"):
        values, counted = first_order_values(loaded.model, loaded.layers, batch)
        total += values
        tokens += counted
    layers = np.array([layer.index for layer in loaded.layers])
    bad = layers[~np.isfinite(total).all(axis=1)]
    if len(bad):
        raise ValueError(f"the gradients of layers {', '.join(map(str, bad))} are not finite: use --dtype bfloat16 or float32.")
    effect = _single_effects(loaded, batches, ablate)
    provenance = {**loaded.provenance, "text": text.provenance, "versions": versions()}
    return HeadValues(layers, total / tokens, effect, provenance)


def first_order_values(model: nn.Module, layers: Sequence[AttentionLayer], batch: Mapping[str, Tensor]) -> tuple[np.ndarray, int]:
    """-sum_t <g_{i,t}, z_{i,t}> of every head over one batch, nats, float64 [layers, n_heads], and the predictions counted.

    z is what the head writes before the output projection and g the gradient of the summed next-token cross-entropy there,
    so the value is the derivative of the loss along scaling the head down from its own output to zero. Padding never counts.
    """
    values: dict[int, Tensor] = {}
    scale = _HALF_LOSS_SCALE if next(model.parameters()).dtype == torch.float16 else 1.0

    def watch(layer: AttentionLayer, z: Tensor) -> Tensor:
        if not z.requires_grad:
            z = z.detach().requires_grad_(True)

        def reduce(gradient: Tensor) -> None:
            removed = -gradient.float() / scale * z.detach().float()
            if "attention_mask" in batch:
                removed = removed.masked_fill(batch["attention_mask"].to(removed.device)[..., None] == 0, 0)
            values[layer.index] = layer.split_heads(removed).sum(dim=(0, 1, 3)).cpu().double()

        z.register_hook(reduce)
        return z

    with frozen(model), head_outputs(layers, watch), torch.enable_grad():
        loss, tokens = causal_loss(model, batch)
        (loss.sum() * scale).backward()
    return torch.stack([values[layer.index] for layer in layers]).numpy(), int(tokens.sum())


def _single_effects(loaded: LoadedModel, batches: Sequence[Mapping[str, Tensor]], heads: Sequence[Head]) -> np.ndarray:
    effect = np.full((len(loaded.layers), loaded.layers[0].n_heads), np.nan)
    if not heads:
        return effect
    row_of = {layer.index: row for row, layer in enumerate(loaded.layers)}
    base = cross_entropy(loaded.model, batches)
    for layer, head in track(heads, "ablating heads one by one", len(heads), "head"):
        with ablated(loaded.layers, [(layer, head)]):
            rise = cross_entropy(loaded.model, batches).sums - base.sums
        effect[row_of[layer], head] = rise.sum() / base.weights.sum()
    return effect
