"""Gamma of each item's own gradient, all layers in the same pass, with a shuffled-head null beside it (method.md section 6).

The text of an item is its prompt and the right continuation; the loss is the summed cross-entropy of all its tokens. The
gradient of a row in a batch is the row's own, so batching changes nothing but the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from analysis.interaction import Meter, cosine, head_interaction, interaction_strength
from analysis.models import LoadedModel
from analysis.progress import track

SHUFFLES = 20
SEED = 42
_TOKENS_A_BATCH = 2048  # bounds the memory of the logits


@dataclass(frozen=True, eq=False)
class ItemGamma:
    """Gamma of items.

    Attributes
    ----------
    coupling : "paper" or "invariant".
    layers : true layer indices, int [layers].
    gamma : Gamma(G) of each item, NaN where the model was not finite, float64 [items, layers].
    null_gamma : the same with the heads of omega shuffled against those of rho, [shuffles, items, layers].
    tokens : predicted tokens of each item, int [items].
    cross_entropy : mean over them, nats, [items].
    gradient_sums : Gram sums over all finite items, float64 [layers, heads, heads].
    weight_grams : unnormalized weight coupling, [layers, heads, heads].
    """

    coupling: str
    layers: np.ndarray
    gamma: np.ndarray
    null_gamma: np.ndarray
    tokens: np.ndarray
    cross_entropy: np.ndarray
    gradient_sums: np.ndarray
    weight_grams: np.ndarray

    @property
    def covariates(self) -> np.ndarray:
        """Log length and cross-entropy, [items, 2]."""
        return np.column_stack([np.log(self.tokens), self.cross_entropy])


def checkpoint_gamma(measured: Sequence[ItemGamma]) -> np.ndarray:
    """Gamma of a checkpoint over all items of several benchmarks, [layers]: their Gram sums add up."""
    total = sum(torch.from_numpy(items.gradient_sums) for items in measured)
    omega = cosine(torch.from_numpy(measured[0].weight_grams).double())
    return interaction_strength(head_interaction(omega, cosine(total))).numpy()


def measure_items(
    loaded: LoadedModel,
    texts: Sequence[Sequence[int]],
    coupling: str = "paper",
    batch_size: int = 16,
    shuffles: int = SHUFFLES,
    stage: str = "Gamma of items",
) -> ItemGamma:
    """Measure Gamma of each text, given as token ids of length 2 or more.

    The shuffles are the same for all items; each layer has its own. A shuffled matrix has the couplings of the real one but
    not their pairing of heads, so its association with errors is what the sizes of the gradients alone give.
    """
    meter = Meter(loaded.model, (coupling,), layers=loaded.layers)
    omega = cosine(meter.weight_grams[coupling].double())  # [layers, heads, heads]
    layers, heads = omega.shape[:2]
    shuffled = _shuffled(omega, shuffles)  # [shuffles, layers, heads, heads]
    gamma, null = np.full((len(texts), layers), np.nan), np.full((shuffles, len(texts), layers), np.nan)
    loss, total = np.full(len(texts), np.nan), np.zeros((layers, heads, heads))
    tokens = np.array([len(text) - 1 for text in texts])
    batches = list(_batches(texts, batch_size))
    for places in track(batches, stage, len(batches), "batch"):
        sums = meter.measure(_padded([texts[place] for place in places]))
        grams = sums.gradient[coupling].double()  # [rows, layers, heads, heads]
        loss[places] = sums.loss.numpy()
        finite = (grams.isfinite().flatten(1).all(dim=1) & sums.loss.isfinite()).numpy()
        there, rho = np.array(places)[finite], cosine(grams[torch.from_numpy(finite)])
        gamma[there] = interaction_strength(head_interaction(omega, rho)).numpy()
        for draw in range(shuffles):
            null[draw, there] = interaction_strength(head_interaction(shuffled[draw], rho)).numpy()
        total += grams[torch.from_numpy(finite)].sum(0).numpy()
    return ItemGamma(
        coupling=coupling,
        layers=np.array([layer.index for layer in meter.layers]),
        gamma=gamma,
        null_gamma=null.astype(np.float32),
        tokens=tokens,
        cross_entropy=loss / tokens,
        gradient_sums=total,
        weight_grams=meter.weight_grams[coupling].numpy(),
    )


def _shuffled(omega: Tensor, shuffles: int) -> Tensor:
    """omega [layers, heads, heads] with the heads of each layer in `shuffles` random orders."""
    layers, heads = omega.shape[:2]
    generator = np.random.default_rng(SEED)
    orders = np.argsort(generator.random((shuffles, layers, heads)), axis=-1)
    index = torch.from_numpy(orders)
    layer = torch.arange(layers)[None, :, None, None]
    return omega[layer, index[..., :, None], index[..., None, :]]


def _batches(texts: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Positions of texts of similar length, the longest first, at most `_TOKENS_A_BATCH` padded tokens a batch."""
    batch: list[int] = []
    for place in sorted(range(len(texts)), key=lambda position: (-len(texts[position]), position)):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * len(texts[batch[0]]) > _TOKENS_A_BATCH):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _padded(texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    width = max(map(len, texts))
    ids = torch.zeros(len(texts), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask}
