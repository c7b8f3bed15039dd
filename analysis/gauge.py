"""The gauge check: how far the couplings move when only the heads' value bases do.

Rotating the value basis of a kv group (W_V -> R^T W_V and its bias, W_i -> W_i R for the group's heads) leaves the model's
function as it is. The paper's coupling between heads of different groups moves with it, the invariant one does not
(method.md section 2 [D]); what moves is noise of the basis that training happened to end in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from scipy.stats import t
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from analysis.corpus import TokenRows
from analysis.heads import AttentionLayer, frozen, kv_groups
from analysis.interaction import COUPLINGS, Meter, cosine, head_interaction, interaction_strength, rows_to_batches
from analysis.models import LoadedModel, versions
from analysis.progress import track
from analysis.records import read_record, write_record

_LAST, _GROUPED = "last", "grouped"
# attention class -> (attribute that projects to the values, where the values lie among its outputs): `_LAST`, after all
# queries and keys or alone; `_GROUPED`, after the queries and the key of each kv group
VALUE_PROJECTION = {
    "LlamaAttention": ("v_proj", _LAST),
    "Qwen2Attention": ("v_proj", _LAST),
    "Qwen3Attention": ("v_proj", _LAST),
    "MistralAttention": ("v_proj", _LAST),
    "GemmaAttention": ("v_proj", _LAST),
    "Gemma2Attention": ("v_proj", _LAST),
    "Gemma3Attention": ("v_proj", _LAST),
    "Phi3Attention": ("qkv_proj", _LAST),
    "PhiAttention": ("v_proj", _LAST),
    "GPT2Attention": ("c_attn", _LAST),
    "GPTNeoXAttention": ("query_key_value", _GROUPED),
    "OPTAttention": ("v_proj", _LAST),
    "FalconAttention": ("query_key_value", _GROUPED),
    "Lfm2Attention": ("v_proj", _LAST),
}
_WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROTATIONS = 8
_NOISE_LEVEL = 0.95


# --- the rotation -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def rotated(model: nn.Module, layers: Sequence[AttentionLayer], generator: torch.Generator) -> Iterator[None]:
    """Inside the block every kv group's value basis is turned by a random rotation (Haar measure over O(d_head)).

    The weights change in place, adapters included, and are put back bit for bit after the block, also after an exception; the
    copies take the memory of the value and output projections. The function of the model stays what it was up to the
    rounding of its weights.

    Raises
    ------
    ValueError
        When it is not known where an attention module keeps its values, or a weight cannot be turned in place (quantized,
        offloaded, or under an adapter that is not one low-rank matrix on each side); nothing has changed then.
    """
    plan = []
    for layer in layers:
        turns = [torch.empty(layer.d_head, layer.d_head) for _ in range(layer.n_kv_heads)]
        rotations = torch.stack([nn.init.orthogonal_(turn, generator=generator) for turn in turns])
        groups = kv_groups(layer.n_heads, layer.n_kv_heads)
        columns = torch.arange(layer.n_heads * layer.d_head).view(layer.n_heads, layer.d_head)
        values, rows = _value_projection(model, layer)
        plan += [(weight, rows, rotations) for weight in _output_side(values, f"the value projection of {layer.name}")]
        inputs = _input_side(layer.projection, f"the output projection of {layer.name}")
        plan += [(weight, columns, rotations[groups]) for weight in inputs]
    saved = [weight.detach().clone() for weight, _, _ in plan]
    try:
        with torch.no_grad():
            for weight, rows, rotations in plan:
                part = weight[rows.to(weight.device)]  # [groups, d_head, ...]
                turned = torch.einsum("gab,ga...->gb...", rotations.to(weight.device), part.float())
                weight[rows.to(weight.device)] = turned.to(weight.dtype)
        yield
    finally:
        with torch.no_grad():
            for (weight, _, _), original in zip(plan, saved, strict=True):
                weight.copy_(original)


def _value_projection(model: nn.Module, layer: AttentionLayer) -> tuple[nn.Module, Tensor]:
    """The module that makes the layer's values, and which of its outputs they are, [n_kv_heads, d_head]."""
    attention = model.get_submodule(layer.name)
    kind = type(attention).__name__
    if kind not in VALUE_PROJECTION:
        raise ValueError(
            f"{layer.name} is a {kind}, and it is not known where it keeps its values. Supported: {', '.join(VALUE_PROJECTION)}."
        )
    attribute, place = VALUE_PROJECTION[kind]
    module = getattr(attention, attribute)
    base = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
    outputs = torch.arange(base.nf if isinstance(base, Conv1D) else base.out_features)
    if place == _GROUPED:
        return module, outputs.view(layer.n_kv_heads, -1, layer.d_head)[:, -1]
    return module, outputs[-layer.n_kv_heads * layer.d_head :].view(layer.n_kv_heads, layer.d_head)


def _output_side(module: nn.Module, what: str) -> list[Tensor]:
    """All tensors of a projection whose first axis is its outputs."""
    base, adapters = _parts(module, what)
    sides = [base.weight.T if isinstance(base, Conv1D) else base.weight, base.bias]
    if isinstance(module, LoraLayer):
        if module.lora_variant:
            raise ValueError(f"{what} carries a {_variants(module)}, which cannot be turned: merge the adapter first.")
        for adapter in adapters:
            sides += [module.lora_B[adapter].weight, module.lora_B[adapter].bias]
    return [side for side in sides if side is not None]


def _input_side(module: nn.Module, what: str) -> list[Tensor]:
    """All tensors of a projection, turned so that the first axis is its inputs. DoRA's norms do not see a rotation there."""
    base, adapters = _parts(module, what)
    sides = [base.weight if isinstance(base, Conv1D) else base.weight.T]
    return sides + [module.lora_A[adapter].weight.T for adapter in adapters]


def _variants(module: LoraLayer) -> str:
    return ", ".join(sorted({type(variant).__name__ for variant in module.lora_variant.values()}))


def _parts(module: nn.Module, what: str) -> tuple[nn.Module, list[str]]:
    """The base layer and the names of its adapters, when all of them can be turned."""
    adapted = isinstance(module, BaseTunerLayer)
    if adapted and not isinstance(module, LoraLayer):
        raise ValueError(f"{what} carries the adapter layer {type(module).__name__}; only LoRA can be turned: merge it first.")
    base = module.get_base_layer() if adapted else module
    if base.weight.dtype not in _WEIGHT_DTYPES:
        raise ValueError(f"{what} is stored as {base.weight.dtype}: load the model without quantization to turn it.")
    if base.weight.is_meta:
        raise ValueError(f"{what} is offloaded: load the model on devices that hold all of it to turn it.")
    return base, list(module.lora_A) if adapted else []


# --- the check ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GaugeMoves:
    """How one coupling moves under the rotations.

    Attributes
    ----------
    gamma : Gamma(G) as the model stands, [layers].
    gamma_rotated : Gamma(G) after each rotation, [rotations, layers].
    omega, rho, G : largest absolute change of an entry over all rotations, [layers].
    noise : standard deviation of G over the rotations, [layers, n_heads, n_heads]; 0 inside kv groups, whose heads turn
        together.
    """

    gamma: np.ndarray
    gamma_rotated: np.ndarray
    omega: np.ndarray
    rho: np.ndarray
    G: np.ndarray
    noise: np.ndarray

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest Gamma over all bases tried, the model's own among them, two of [layers]."""
        every = np.vstack([self.gamma, self.gamma_rotated])
        return every.min(axis=0), every.max(axis=0)

    @property
    def level(self) -> np.ndarray:
        """Mean |G_ij| that the choice of basis alone gives a pair whose G scatters around 0, [layers, n_heads, n_heads]."""
        return (2 / np.pi) ** 0.5 * self.noise

    @property
    def noise_floor(self) -> np.ndarray:
        """Half-width of the 95 % interval for G in one more random basis (Student's t), [layers, n_heads, n_heads].

        A pair with |G_ij| at or below it is coupled no more than the choice of basis alone moves it by.
        """
        count = len(self.gamma_rotated)
        return t.ppf((1 + _NOISE_LEVEL) / 2, count - 1) * (1 + 1 / count) ** 0.5 * self.noise


@dataclass(frozen=True, eq=False)
class GaugeResult:
    """The gauge check of a model.

    Attributes
    ----------
    layers : true layer indices, int [layers].
    couplings : coupling -> GaugeMoves, for "paper" and "invariant".
    logits : largest absolute change of a logit over all rotations, which only rounding makes.
    provenance : model, adapter, text, rotations, seed and versions.
    """

    layers: np.ndarray
    couplings: dict[str, GaugeMoves]
    logits: float
    provenance: dict[str, Any]

    def save(self, path: str | PathLike) -> None:
        """Write the JSON."""
        couplings = {name: asdict(moves) for name, moves in self.couplings.items()}
        record = {"layers": self.layers, "couplings": couplings, "logits": self.logits, "provenance": self.provenance}
        write_record(path, "gauge", record)

    @staticmethod
    def load(path: str | PathLike) -> GaugeResult:
        """Read what `save` wrote; FileNotFoundError or ValueError as `read_record`."""
        record = read_record(path, "gauge")
        couplings = {
            name: GaugeMoves(**{part: np.array(values, dtype=np.float64) for part, values in moves.items()})
            for name, moves in record["couplings"].items()
        }
        return GaugeResult(np.array(record["layers"]), couplings, record["logits"], record["provenance"])


def gauge_check(
    loaded: LoadedModel, text: TokenRows, batch_size: int = 8, rotations: int = ROTATIONS, seed: int = 0
) -> GaugeResult:
    """Measure both couplings as the model stands and under random rotations of all value bases.

    One forward and backward pass over the text for each of `rotations` + 1 bases. The model comes back bit for bit.

    Raises
    ------
    ValueError
        For fewer than 2 rotations, and as `rotated`.
    """
    if rotations < 2:
        raise ValueError(f"{rotations} rotations give no spread: ask for at least 2.")
    batches = rows_to_batches(text.rows, batch_size)
    generator = torch.Generator().manual_seed(seed)
    trials = []
    for turn in track(range(rotations + 1), "turning value bases", rotations + 1, "basis"):
        basis = rotated(loaded.model, loaded.layers, generator) if turn else contextlib.nullcontext()
        with basis:
            trials.append((_couplings(loaded, batches), _logits(loaded, text)))
    measured, logits = zip(*trials, strict=True)
    settings = {"rotations": rotations, "seed": seed, "batch_size": batch_size}
    return GaugeResult(
        layers=np.array([layer.index for layer in loaded.layers]),
        couplings={name: _moves([trial[name] for trial in measured]) for name in COUPLINGS},
        logits=max(float((turned - logits[0]).abs().max()) for turned in logits[1:]),
        provenance={**loaded.provenance, "text": text.provenance, "settings": settings, "versions": versions()},
    )


def _couplings(loaded: LoadedModel, batches: Sequence[Mapping[str, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
    """coupling -> (omega, rho), float64 [layers, n_heads, n_heads], of the model as it stands."""
    meter = Meter(loaded.model, COUPLINGS, "token", loaded.layers)
    grams: dict[str, Tensor] = {}
    for batch in batches:
        for name, rows in meter.measure(batch).gradient.items():
            grams[name] = grams.get(name, 0) + rows.double().sum(0)
    return {name: (cosine(meter.weight_grams[name].double()), cosine(gram)) for name, gram in grams.items()}


def _logits(loaded: LoadedModel, text: TokenRows) -> Tensor:
    """Logits of the first row, float32 [1, seq_len, vocabulary]."""
    row = text.rows[:1].to(next(loaded.model.parameters()).device)
    with torch.no_grad(), frozen(loaded.model):
        return loaded.model(input_ids=row, use_cache=False).logits.float().cpu()


def _moves(trials: Sequence[tuple[Tensor, Tensor]]) -> GaugeMoves:
    """`trials` are (omega, rho) of the model as it stands, then of each rotation."""
    omega, rho = (torch.stack(parts) for parts in zip(*trials, strict=True))  # [1 + rotations, layers, n_heads, n_heads]
    G = head_interaction(omega, rho)
    gamma = interaction_strength(G).numpy()
    omega_moves, rho_moves, G_moves = ((part[1:] - part[0]).abs().amax(dim=(0, 2, 3)).numpy() for part in (omega, rho, G))
    return GaugeMoves(gamma[0], gamma[1:], omega_moves, rho_moves, G_moves, G[1:].std(dim=0, correction=1).numpy())
