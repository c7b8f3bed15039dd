"""From a loaded model and token rows to an InteractionResult, in one process or shared by several."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from torch import nn

from analysis.corpus import TokenRows
from analysis.devices import processes
from analysis.interaction import COUPLINGS, InteractionSums, Meter, rows_to_batches
from analysis.models import LoadedModel, versions
from analysis.progress import track
from analysis.results import InteractionResult

MOST_GROUPS = 64


def measure_interaction(
    loaded: LoadedModel, text: TokenRows, batch_size: int = 8, coupling: str = "paper", gradient: str = "token"
) -> InteractionResult:
    """Measure omega, rho and G of every attention layer on a text.

    Under `accelerate launch` or `torchrun` the processes share the batches and each returns the whole result. With
    `coupling="invariant"` the sums of both couplings are kept, so that the result can show either.

    Parameters
    ----------
    batch_size : rows a forward pass; bounds memory, does not change G.
    coupling : the coupling that the result shows, of `interaction.COUPLINGS`.
    gradient : of `interaction.GRADIENTS`.

    Raises
    ------
    ValueError
        When the batch size is not positive, a coupling is unknown, the model has no room for the rows or their ids, or its
        gradients are not finite (the layers, and a weight that is not, are named).
    """
    if batch_size < 1:
        raise ValueError(f"the batch size is {batch_size}; it must be at least 1.")
    check_rows(loaded.model, text)
    process = processes()
    couplings = COUPLINGS if coupling == "invariant" else (coupling,)
    meter = Meter(loaded.model, couplings, gradient, loaded.layers)
    batches = rows_to_batches(text.rows, batch_size)
    mine = range(process.process_index, len(batches), process.num_processes)
    groups = _Groups(len(text.rows))
    for number in track(mine, "measuring", len(mine), "batch", shown=process.is_main_process):
        groups.add(number * batch_size, meter.measure(batches[number]))
    if process.num_processes > 1:
        groups = functools.reduce(_Groups.merge, gather_object([groups]))
    settings = {"coupling": coupling, "gradient": gradient, "batch_size": batch_size}
    provenance = {**loaded.provenance, "text": text.provenance, "settings": settings, "versions": versions()}
    return _result(meter, groups, coupling, provenance)


def check_rows(model: nn.Module, text: TokenRows) -> None:
    """Raise ValueError when the model has no such token id, or no position for rows as long."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if (largest := int(text.rows.max())) >= vocabulary:
        raise ValueError(
            f"the text holds token id {largest} and the model has ids below {vocabulary}: the ids, or the tokenizer that was "
            "given, are another model's."
        )
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if window and text.rows.shape[1] > window:
        raise ValueError(f"rows of {text.rows.shape[1]} tokens do not fit the model's window of {window}: use a smaller seq_len.")


class _Groups:
    """Sums over consecutive rows, at most `MOST_GROUPS` of them whatever the length of the text.

    They are what a bootstrap resamples, and do not depend on the batch size. Added up in float64.
    """

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.count = min(n_rows, MOST_GROUPS)
        self.gradient: dict[str, np.ndarray] = {}
        self.loss = np.zeros(self.count)
        self.tokens = np.zeros(self.count, dtype=np.int64)

    def add(self, first_row: int, sums: InteractionSums) -> None:
        for offset in range(len(sums.tokens)):
            group = (first_row + offset) * self.count // self.n_rows
            self.loss[group] += float(sums.loss[offset])
            self.tokens[group] += int(sums.tokens[offset])
            for coupling, rows in sums.gradient.items():
                if coupling not in self.gradient:
                    self.gradient[coupling] = np.zeros((self.count, *rows.shape[1:]))
                self.gradient[coupling][group] += rows[offset].numpy()

    def merge(self, other: _Groups) -> _Groups:
        for coupling, sums in other.gradient.items():
            self.gradient[coupling] = self.gradient[coupling] + sums if coupling in self.gradient else sums
        self.loss += other.loss
        self.tokens += other.tokens
        return self


def _result(meter: Meter, groups: _Groups, coupling: str, provenance: dict[str, Any]) -> InteractionResult:
    layers = np.array([layer.index for layer in meter.layers])
    bad = {int(layer) for sums in groups.gradient.values() for layer in layers[~np.isfinite(sums).all(axis=(0, 2, 3))]}
    if bad:
        named = f"the gradients of layers {', '.join(map(str, sorted(bad)))} are not finite"
        for name, weight in meter.model.named_parameters():
            if not weight.is_meta and not weight.isfinite().all():
                raise ValueError(f"{named}: {name} holds NaN or infinity. The checkpoint is damaged; use another one.")
        raise ValueError(
            f"{named} in {provenance['model']['dtype']}: the model's own activations overflow. Use --dtype bfloat16 or float32."
        )
    return InteractionResult(
        layers=layers,
        n_kv_heads=meter.layers[0].n_kv_heads,
        coupling=coupling,
        gradient=meter.gradient,
        weight_grams={name: gram.numpy() for name, gram in meter.weight_grams.items()},
        gradient_sums={name: sums.astype(np.float32) for name, sums in groups.gradient.items()},
        batch_tokens=groups.tokens,
        batch_loss=groups.loss,
        provenance=provenance,
    )
