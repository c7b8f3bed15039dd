"""The result of an interaction analysis: what it holds, how it merges, and the only reader and writer of its file."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analysis import interaction
from analysis.workspace import atomic_path

FORMAT = 1
_SHOWN = ("coupling", "gradient", "n_kv_heads")


@dataclass(frozen=True, eq=False)
class InteractionResult:
    """omega, rho, G and Gamma of every measured layer, with all that is needed to recompute them on other batches.

    Attributes
    ----------
    layers : true layer indices, int [layers].
    n_kv_heads : key/value heads per layer.
    coupling : the coupling shown by `omega`, `rho`, `G` and `gamma`; `view` switches it at no cost.
    gradient : "token" or "mean".
    weight_grams : coupling -> [layers, heads, heads], unnormalized weight coupling.
    gradient_sums : coupling -> sums over each batch, here a group of consecutive rows of the text whatever the batch size
        of the pass, the unit of a bootstrap: [batches, layers, heads, heads] Gram sums for "token", [batches, layers,
        heads, width] vector sums for "mean".
    batch_tokens, batch_loss : predictions and summed cross-entropy (nats) of each batch, [batches].
    provenance : JSON-ready: model, adapter, text, settings, versions.
    """

    layers: np.ndarray
    n_kv_heads: int
    coupling: str
    gradient: str
    weight_grams: dict[str, np.ndarray]
    gradient_sums: dict[str, np.ndarray]
    batch_tokens: np.ndarray
    batch_loss: np.ndarray
    provenance: dict[str, Any]

    @property
    def n_layers(self) -> int:
        """Number of measured layers."""
        return len(self.layers)

    @property
    def n_heads(self) -> int:
        """Query heads per layer."""
        return self.weight_grams[self.coupling].shape[-1]

    @property
    def couplings(self) -> tuple[str, ...]:
        """The couplings that this result can show, the paper's first."""
        return tuple(name for name in interaction.COUPLINGS if name in self.weight_grams)

    @property
    def tokens(self) -> int:
        """Number of predicted tokens that the gradient sums run over."""
        return int(self.batch_tokens.sum())

    @property
    def cross_entropy(self) -> float:
        """Mean next-token cross-entropy over the text, nats per token."""
        return float(self.batch_loss.sum() / self.batch_tokens.sum())

    @property
    def gauge_noise(self) -> float:
        """Size of omega between heads that share no value basis, about 1 / sqrt(d d_h), paper coupling (method.md section 2).

        0 for the invariant coupling, which has no such noise.
        """
        model = self.provenance["model"]
        return float((model["d_model"] * model["d_head"]) ** -0.5) if self.coupling == "paper" else 0.0

    @cached_property
    def omega(self) -> np.ndarray:
        """Weight coupling, float64 [layers, heads, heads]."""
        return interaction.cosine(torch.from_numpy(self.weight_grams[self.coupling]).double()).numpy()

    @cached_property
    def rho(self) -> np.ndarray:
        """Gradient coupling over all batches, float64 [layers, heads, heads]."""
        return self.rho_of(np.ones(len(self.batch_tokens)))

    @cached_property
    def G(self) -> np.ndarray:
        """Head interaction matrix, float64 [layers, heads, heads]."""
        return interaction.head_interaction(self.omega, self.rho)

    @cached_property
    def gamma(self) -> np.ndarray:
        """Interaction strength Gamma(G) = |G - I|_F, float64 [layers]."""
        return interaction.interaction_strength(torch.from_numpy(self.G)).numpy()

    @property
    def gamma_normalized(self) -> np.ndarray:
        """Gamma / sqrt(H (H - 1)), in [0, 1], comparable between models with different numbers of heads, [layers]."""
        return self.gamma / max(self.n_heads * (self.n_heads - 1), 1) ** 0.5

    @cached_property
    def heads_flagged(self) -> np.ndarray:
        """True for an inactive head (no output weight, or no gradient); its off-diagonals are 0. Bool [layers, heads]."""
        weight = np.diagonal(self.weight_grams[self.coupling], axis1=-2, axis2=-1)
        gradient = np.diagonal(self._gradient_gram(np.ones(len(self.batch_tokens))).numpy(), axis1=-2, axis2=-1)
        return (weight <= 0) | (gradient <= 0)

    def rho_of(self, batch_weights: np.ndarray) -> np.ndarray:
        """Gradient coupling with batch b counted `batch_weights[b]` times (a bootstrap draw), [layers, heads, heads]."""
        return interaction.cosine(self._gradient_gram(batch_weights)).numpy()

    def G_of(self, batch_weights: np.ndarray) -> np.ndarray:
        """Head interaction matrix of a resample of the batches, [layers, heads, heads]."""
        return interaction.head_interaction(self.omega, self.rho_of(batch_weights))

    def _gradient_gram(self, batch_weights: np.ndarray) -> torch.Tensor:
        sums = torch.from_numpy(self.gradient_sums[self.coupling]).double()
        total = torch.tensordot(torch.as_tensor(batch_weights, dtype=torch.float64), sums, dims=1)
        return total @ total.mT if self.gradient == "mean" else total

    def view(self, coupling: str) -> InteractionResult:
        """The same measurement seen through another coupling.

        Raises
        ------
        ValueError
            When the measurement did not sum that coupling.
        """
        if coupling == self.coupling:
            return self
        if coupling not in self.weight_grams:
            raise ValueError(
                f"this result holds the {' and '.join(self.couplings)} coupling, not {coupling!r}: "
                f"run the analysis again with --coupling {coupling}."
            )
        return replace(self, coupling=coupling)

    def row_of(self, layer: int) -> int:
        """Position of a layer, given by its true index, in the arrays."""
        found = np.flatnonzero(self.layers == layer)
        if not len(found):
            raise ValueError(f"layer {layer} is not in this result: it has layers {', '.join(map(str, self.layers))}.")
        return int(found[0])

    def save(self, path: str | PathLike) -> None:
        """Write the npz: the arrays of the shown coupling by name, and the sums. Same result, same bytes."""
        arrays = {
            "omega": self.omega,
            "rho": self.rho,
            "G": self.G,
            "gamma": self.gamma,
            "layers": self.layers,
            "heads_flagged": self.heads_flagged,
            "batch_tokens": self.batch_tokens,
            "batch_loss": self.batch_loss,
            "provenance": np.array(json.dumps(self.provenance, sort_keys=True, allow_nan=False)),
            "shown": np.array(json.dumps({"format": FORMAT} | {name: getattr(self, name) for name in _SHOWN})),
        }
        for name in self.couplings:
            arrays[f"weight_gram_{name}"] = self.weight_grams[name]
            arrays[f"gradient_sums_{name}"] = self.gradient_sums[name]
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)

    @staticmethod
    def load(path: str | PathLike) -> InteractionResult:
        """Read a result.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        ValueError
            When the file is damaged, is no result, or comes from a newer version.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no result file {path}.")
        try:
            return _from_arrays(_read_arrays(path))
        # RuntimeError is how zipfile reports flags that it cannot follow
        except (LookupError, ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ValueError(f"{path} is not a readable interaction result: {reason}.") from error


def _read_arrays(path: str | PathLike) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no npz file, or only a part of one")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _from_arrays(arrays: dict[str, np.ndarray]) -> InteractionResult:
    shown, provenance = json.loads(str(arrays["shown"])), json.loads(str(arrays["provenance"]))
    if not isinstance(shown, dict) or not isinstance(shown["format"], int) or not isinstance(provenance, dict):
        raise ValueError("its description is not one of an interaction result")
    if shown["format"] > FORMAT:
        raise ValueError(f"its format {shown['format']} is newer than this program's {FORMAT}; update the program")
    result = InteractionResult(
        layers=arrays["layers"],
        **{name: shown[name] for name in _SHOWN},
        weight_grams=_by_coupling(arrays, "weight_gram_"),
        gradient_sums=_by_coupling(arrays, "gradient_sums_"),
        batch_tokens=arrays["batch_tokens"],
        batch_loss=arrays["batch_loss"],
        provenance=provenance,
    )
    _check(result)
    return result


def _by_coupling(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name: arrays[prefix + name] for name in interaction.COUPLINGS if prefix + name in arrays}


def _check(result: InteractionResult) -> None:
    if result.coupling not in result.couplings or set(result.weight_grams) != set(result.gradient_sums):
        raise ValueError(f"it lacks the sums of the coupling {result.coupling!r}")
    if result.gradient not in interaction.GRADIENTS:
        raise ValueError(f"its gradient is {result.gradient!r}, not one of {', '.join(interaction.GRADIENTS)}")
    layers, heads, batches = result.layers.size, result.n_heads, result.batch_tokens.size
    if not isinstance(result.n_kv_heads, int) or result.n_kv_heads < 1 or heads % result.n_kv_heads:
        raise ValueError(f"its {heads} heads cannot share {result.n_kv_heads!r} kv heads")
    expected = {"layers": (result.layers, (layers,)), "batch_tokens": (result.batch_tokens, (batches,))}
    expected["batch_loss"] = (result.batch_loss, (batches,))
    for name in result.couplings:
        sums = result.gradient_sums[name]
        width = heads if result.gradient == "token" else sums.shape[-1]
        expected[f"weight_gram_{name}"] = (result.weight_grams[name], (layers, heads, heads))
        expected[f"gradient_sums_{name}"] = (sums, (batches, layers, heads, width))
    for name, (array, shape) in expected.items():
        if array.shape != shape or array.dtype.kind not in "iuf":
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not numbers {shape}")


def _content(described: dict[str, Any] | None) -> dict[str, Any] | None:
    """What decides the numbers: not where a model was found, nor the device that it ran on."""
    places = ("source", "kind", "name", "revision", "device")
    return described and {name: value for name, value in described.items() if name not in places}


def merge(results: Sequence[InteractionResult]) -> InteractionResult:
    """One result over the batches of several, of the same model and settings on different texts.

    Raises
    ------
    ValueError
        When there is nothing to merge, or the results are of different models, adapters, dtypes or settings; says which
        field differs.
    """
    if not results:
        raise ValueError("there are no results to merge: give at least one.")
    first = results[0]
    for other in results[1:]:
        for name in ("model", "adapter"):
            mine, theirs = (_content(result.provenance[name]) for result in (first, other))
            if mine != theirs:
                raise ValueError(f"results of different {name}s cannot be merged: {mine} and {theirs}.")
        for name in ("gradient", "couplings", "layers"):
            mine, theirs = getattr(first, name), getattr(other, name)
            if not np.array_equal(mine, theirs):
                raise ValueError(f"results with different {name} cannot be merged: {mine} and {theirs}.")
    return replace(
        first,
        gradient_sums={name: np.concatenate([result.gradient_sums[name] for result in results]) for name in first.couplings},
        batch_tokens=np.concatenate([result.batch_tokens for result in results]),
        batch_loss=np.concatenate([result.batch_loss for result in results]),
        provenance={**first.provenance, "text": {"merged": [result.provenance["text"] for result in results]}},
    )
