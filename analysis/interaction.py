"""Weight coupling omega, gradient coupling rho, the head interaction matrix G = omega o rho and Gamma(G) = |G - I|_F.

The only definition of these four (method.md section 2, the paper's where marked [P] there). One forward and one
activation-only backward pass a batch: the gradient that reaches the output projection's input is g_{i,t} = W_i^T eta_t
already, and each layer's gradient is reduced to small sums inside its hook, so memory does not grow with the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from analysis.heads import AttentionLayer, attention_layers, frozen, head_outputs

COUPLINGS = ("paper", "invariant")
GRADIENTS = ("token", "mean")
_HALF_LOSS_SCALE = 2.0**15  # where float16 starts: the largest at which the gradient of the logits cannot overflow


# --- the formulas -------------------------------------------------------------------------------------------------


def weight_gram(weights: Tensor, coupling: str = "paper") -> Tensor:
    """Unnormalized weight coupling of a layer's heads, [n_heads, n_heads], float32.

    `weights` is [n_heads, d_model, d_head]. "paper": <W_i, W_j>_F. "invariant": |W_i^T W_j|_F^2, which does not change
    when a head's value basis is rotated (method.md section 2).
    """
    if coupling == "paper":
        flat = weights.float().flatten(1)
        return flat @ flat.T
    return block_sum(_weight_cross(weights).square(), weights.shape[0])


def _weight_cross(weights: Tensor) -> Tensor:
    """W^T W over all heads' columns, [n_heads * d_head, n_heads * d_head]: block (i, j) is W_i^T W_j."""
    columns = weights.float().permute(1, 0, 2).flatten(1)  # [d_model, n_heads * d_head]
    return columns.T @ columns


def block_sum(matrix: Tensor, n_heads: int) -> Tensor:
    """Sum each of the n_heads x n_heads equal blocks of a square matrix, [n_heads, n_heads]."""
    return matrix.unflatten(1, (n_heads, -1)).sum(-1).unflatten(0, (n_heads, -1)).sum(1)


def gradient_gram(gradient: Tensor, n_heads: int) -> Tensor:
    """sum_t <g_{i,t}, g_{j,t}>, float32 [n_heads, n_heads], of a gradient [tokens, n_heads * d_head] at the heads' outputs."""
    heads = gradient.float().unflatten(1, (n_heads, -1)).transpose(0, 1).flatten(1)  # [n_heads, tokens * d_head]
    return heads @ heads.T


def invariant_gradient_gram(gradient: Tensor, weight_cross: Tensor, n_heads: int) -> Tensor:
    """sum_t <u_{i,t}, u_{j,t}> with u_{i,t} = W_i g_{i,t}, float32 [n_heads, n_heads].

    u is never formed: <W_i g_i, W_j g_j> summed over tokens is the sum of block (i, j) of W^T W o (sum_t g_t g_t^T).
    """
    gradient = gradient.float()
    return block_sum((gradient.T @ gradient).mul_(weight_cross), n_heads)


def cosine(gram: Tensor) -> Tensor:
    """Cosines from inner products, [..., n, n]: symmetric, in [-1, 1], unit diagonal, PSD.

    A member of norm zero (a pruned head) has off-diagonals 0, and so has a matrix that this scales without bound.
    """
    squared = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squared > 0, torch.where(squared > 0, squared, 1.0).rsqrt(), 0.0)  # finite gradients at 0 too
    scaled = (inverse[..., :, None] * gram * inverse[..., None, :]).clamp(-1, 1)
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.where(eye.bool(), eye, (scaled + scaled.mT) / 2)


def head_interaction(omega: Tensor, rho: Tensor) -> Tensor:
    """The head interaction matrix G = omega o rho, elementwise, [..., n_heads, n_heads]."""
    return omega * rho


def interaction_strength(G: Tensor) -> Tensor:
    """Gamma(G) = |G - I|_F, [...]; 0 when no head is coupled to another, at most sqrt(H (H - 1))."""
    return torch.linalg.matrix_norm(G - torch.eye(G.shape[-1], dtype=G.dtype, device=G.device))


# --- the measurement ----------------------------------------------------------------------------------------------


@dataclass
class InteractionSums:
    """What one batch leaves behind, row by row; everything later is made of these.

    Attributes
    ----------
    gradient : coupling -> float32 [rows, layers, n_heads, n_heads] Gram sums for `gradient="token"`, or
        [rows, layers, n_heads, width] vector sums for `gradient="mean"` (width d_head for paper, d_model for invariant).
    loss : summed next-token cross-entropy of each row, nats, float32 [rows].
    tokens : number of predictions that the loss sums over, int64 [rows].
    """

    gradient: dict[str, Tensor]
    loss: Tensor
    tokens: Tensor


@dataclass
class Meter:
    """Measures batches on one model; holds what does not change between them.

    Attributes
    ----------
    model : causal language model; it comes back exactly as it was after each batch.
    couplings : which of `COUPLINGS` to sum. The invariant one needs W^T W of every layer, about the size of the output
        projections in float32.
    gradient : "token" sums over tokens of <g_i, g_j>; "mean" takes g_i from the token mean of eta.
    layers : attention layers to measure, all by default.
    """

    model: nn.Module
    couplings: Sequence[str] = ("paper",)
    gradient: str = "token"
    layers: Sequence[AttentionLayer] | None = None
    weight_grams: dict[str, Tensor] = field(init=False)  # coupling -> [layers, n_heads, n_heads]
    _scale: float = field(init=False, default=1.0)  # factor on the loss during the backward pass, taken out of the sums

    def __post_init__(self) -> None:
        for value, allowed in [(self.gradient, GRADIENTS), *((coupling, COUPLINGS) for coupling in self.couplings)]:
            if value not in allowed:
                raise ValueError(f"{value!r} is not one of {', '.join(allowed)}.")
        self.layers = attention_layers(self.model) if self.layers is None else list(self.layers)
        self._weight_cross: dict[int, Tensor] = {}
        grams: dict[str, list[Tensor]] = {coupling: [] for coupling in self.couplings}
        with torch.no_grad():
            for layer in self.layers:
                weights = layer.head_weights()
                for coupling in self.couplings:
                    grams[coupling].append(weight_gram(weights, coupling).cpu())
                if "invariant" in self.couplings and self.gradient == "token":
                    self._weight_cross[layer.index] = _weight_cross(weights)
        self.weight_grams = {coupling: torch.stack(rows) for coupling, rows in grams.items()}
        self._half = next(self.model.parameters()).dtype == torch.float16
        if self._half:
            self._scale = _HALF_LOSS_SCALE

    def measure(self, batch: Mapping[str, Tensor]) -> InteractionSums:
        """One forward and one activation-only backward pass over a batch.

        Parameters
        ----------
        batch : `input_ids` [rows, seq_len], optionally `attention_mask` (padding is 0) and `labels` (-100 is not predicted).

        Notes
        -----
        Gradients below 6e-8 are lost in float16, so there the loss is scaled up during the backward pass, by a power of two
        that is halved until the gradients are finite and kept for the batches that follow. The sums do not contain it.
        When the model itself overflows, what is not finite is returned as it is.
        """
        while True:
            sums = self._pass(batch)
            finite = all(part.isfinite().all() for part in sums.gradient.values())
            if finite or not self._half or not sums.loss.isfinite().all() or self._scale < 2**-24:
                return sums
            self._scale /= 2

    def _pass(self, batch: Mapping[str, Tensor]) -> InteractionSums:
        rows: dict[str, dict[int, Tensor]] = {coupling: {} for coupling in self.couplings}

        def reduce(layer: AttentionLayer, gradient: Tensor) -> None:  # 0 at padding: no valid prediction depends on it
            for coupling in self.couplings:
                rows[coupling][layer.index] = self._reduce(layer, gradient, coupling).cpu()

        def watch(layer: AttentionLayer, z: Tensor) -> Tensor:
            if not z.requires_grad:  # the first measured layer: nothing below it needs a gradient
                z = z.detach().requires_grad_(True)
            z.register_hook(lambda gradient: reduce(layer, gradient))
            return z

        with frozen(self.model), head_outputs(self.layers, watch), torch.enable_grad():
            loss, tokens = causal_loss(self.model, batch)
            (loss.sum() * self._scale).backward()
        scale = self._scale**2 if self.gradient == "token" else self._scale
        stacked = {
            coupling: torch.stack([per_layer[layer.index] for layer in self.layers], dim=1) / scale
            for coupling, per_layer in rows.items()
        }
        return InteractionSums(stacked, loss.detach().cpu(), tokens.cpu())

    def _reduce(self, layer: AttentionLayer, gradient: Tensor, coupling: str) -> Tensor:
        """Each row's sums from the gradient [rows, seq_len, n_heads * d_head]."""
        if self.gradient == "mean":
            total = layer.split_heads(gradient.sum(1, dtype=torch.float32))  # [rows, n_heads, d_head]; the mean up to a factor
            return total if coupling == "paper" else torch.einsum("hdk,rhk->rhd", layer.head_weights(), total)
        if coupling == "paper":
            return torch.stack([gradient_gram(row, layer.n_heads) for row in gradient])
        cross = self._weight_cross[layer.index]
        return torch.stack([invariant_gradient_gram(row, cross, layer.n_heads) for row in gradient])


def causal_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Next-token cross-entropy in nats, *summed* over each row's valid predictions, float32 [rows], and their numbers [rows].

    A prediction is valid when neither its label nor the token it is made from is padding (attention_mask 0) and its label is
    not -100. Positions count from the first valid token, so that padding on the left moves nothing. Summed, so that sums
    over batches do not depend on how the text is cut into batches.
    """
    device = next(model.parameters()).device
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    if "attention_mask" in batch:
        inputs.setdefault("position_ids", (batch["attention_mask"].long().cumsum(1) - 1).clamp_min(0))
    if device.type != "meta":  # of an offloaded model, whose inputs Accelerate moves
        inputs = {name: value.to(device) for name, value in inputs.items()}
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    targets = prediction_targets(batch).to(logits.device)
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return losses.view_as(targets).sum(1), (targets != -100).sum(1)


def prediction_targets(batch: Mapping[str, Tensor]) -> Tensor:
    """What each position but the last predicts, int64 [rows, seq_len - 1]; -100 where the prediction is not valid."""
    targets = batch.get("labels", batch["input_ids"])[:, 1:]
    if "attention_mask" not in batch:
        return targets
    mask = batch["attention_mask"]
    return targets.masked_fill(mask[:, 1:] * mask[:, :-1] == 0, -100)


def rows_to_batches(rows: Tensor, batch_size: int) -> Iterable[dict[str, Tensor]]:
    """Cut token rows [rows, seq_len] into batches of at most `batch_size` rows."""
    return [{"input_ids": part} for part in rows.split(batch_size)]
