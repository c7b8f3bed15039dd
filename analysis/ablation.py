"""The causal check: what the loss, or a benchmark, does when a set of heads writes nothing, or only its mean.

The set's effect stands beside that of random sets of the same size, since any heads of a model cost something.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import bootstrap
from torch import Tensor, nn

from analysis.heads import AttentionLayer, frozen, head_name, head_outputs
from analysis.interaction import causal_loss
from analysis.models import LoadedModel
from analysis.progress import track
from analysis.records import read_record, write_record

if TYPE_CHECKING:  # pages read effects from here, and need no data sets
    from analysis.hallucination.data import Items

Head = tuple[int, int]  # layer and head, both counted from 0
Means = dict[int, Tensor]  # layer index -> [n_heads, d_head]

MODES = ("zero", "mean")
MATCHES = ("size", "layer")
FEWEST_RANDOM_SETS = 20
_RESAMPLES = 2000


# --- heads and sets of heads --------------------------------------------------------------------------------------


def parse_heads(text: str, n_heads: Mapping[int, int]) -> tuple[Head, ...]:
    """The heads that a list of names such as "L3H7,L3H8" gives, sorted, each once.

    `n_heads` is layer -> number of heads, of every attention layer.

    Raises
    ------
    ValueError
        When a name is no head's name, or the model has no such head.
    """
    heads = set()
    for name in text.split(","):
        match = re.fullmatch(r"L(\d+)H(\d+)", name.strip())
        if match is None:
            raise ValueError(f"{name.strip()!r} is no head: a head is written like L3H7, several are parted by commas.")
        layer, head = int(match.group(1)), int(match.group(2))
        if head >= n_heads.get(layer, 0):
            whole = list(n_heads) == list(range(len(n_heads)))  # a hybrid model has attention in some layers only
            layers = f"0 to {len(n_heads) - 1}" if whole else ", ".join(map(str, n_heads))
            known = f"attention layers {layers}, with heads 0 to {max(n_heads.values()) - 1}"
            raise ValueError(f"there is no head {head_name(layer, head)}: this model has {known}.")
        heads.add((layer, head))
    return tuple(sorted(heads))


def random_sets(
    layers: Sequence[AttentionLayer], heads: Sequence[Head], count: int, seed: int = 0, match: str = "size"
) -> list[tuple[Head, ...]]:
    """Distinct random sets of as many heads as `heads`, none of them equal to it.

    `match="size"` draws from all heads of the model, "layer" as many from each layer as `heads` has there. When the model
    has no more than `count` such sets, these are all of them, in order.

    Raises
    ------
    ValueError
        When fewer than 20 are asked for, or the model has no other set of that kind.
    """
    if count < FEWEST_RANDOM_SETS:
        raise ValueError(f"{count} random sets are too few to compare with: ask for at least {FEWEST_RANDOM_SETS}.")
    if match not in MATCHES:
        raise ValueError(f"{match!r} is not one of {', '.join(MATCHES)}.")
    every = [(layer.index, head) for layer in layers for head in range(layer.n_heads)]
    pools = [(every, len(heads))] if match == "size" else _pools_by_layer(every, heads)
    own = tuple(sorted(heads))
    available = math.prod(math.comb(len(pool), size) for pool, size in pools) - 1
    if not available:
        raise ValueError(f"{len(own)} heads leave no other set of that size to compare with: ablate fewer heads.")
    if available <= count:
        parts = itertools.product(*(itertools.combinations(pool, size) for pool, size in pools))
        return [found for found in (tuple(sorted(itertools.chain(*part))) for part in parts) if found != own]
    rng, drawn = np.random.default_rng(seed), {}
    while len(drawn) < count:
        chosen = [pool[i] for pool, size in pools for i in rng.choice(len(pool), size, replace=False)]
        if (found := tuple(sorted(chosen))) != own:
            drawn[found] = None
    return list(drawn)


def _pools_by_layer(every: Sequence[Head], heads: Sequence[Head]) -> list[tuple[list[Head], int]]:
    sizes: dict[int, int] = defaultdict(int)
    for layer, _ in heads:
        sizes[layer] += 1
    return [([head for head in every if head[0] == layer], size) for layer, size in sorted(sizes.items())]


# --- the intervention ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ablated(layers: Sequence[AttentionLayer], heads: Sequence[Head], means: Means | None = None) -> Iterator[None]:
    """Inside the block the heads write nothing into the output projection, or their mean when `means` are given.

    Equal to a model whose W_i are zero. The hooks are gone after the block, also after an exception.
    """
    chosen: dict[int, list[int]] = defaultdict(list)
    for layer, head in heads:
        chosen[layer].append(head)

    def replace(layer: AttentionLayer, z: Tensor) -> Tensor:
        z = layer.split_heads(z.clone())
        z[..., chosen[layer.index], :] = 0 if means is None else means[layer.index][chosen[layer.index]].to(z)
        return z.flatten(-2)

    with head_outputs([layer for layer in layers if layer.index in chosen], replace):
        yield


def mean_outputs(model: nn.Module, layers: Sequence[AttentionLayer], batches: Sequence[Mapping[str, Tensor]]) -> Means:
    """The mean of z_i over the valid tokens of the batches, float32; layer index -> [n_heads, d_head]."""
    sums: dict[int, Tensor] = {}
    tokens, mask = 0, None

    def add(layer: AttentionLayer, z: Tensor) -> None:
        total = z.float().masked_fill(mask.to(z.device)[..., None] == 0, 0).sum(dim=(0, 1)).cpu().double()
        sums[layer.index] = sums.get(layer.index, 0) + layer.split_heads(total)

    with torch.no_grad(), frozen(model), head_outputs(layers, add):
        for batch in batches:
            mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
            tokens += int(mask.sum())
            causal_loss(model, batch)
    return {index: (total / tokens).float() for index, total in sums.items()}


# --- what is measured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scores:
    """One measurement of a model, over rows of text or items of a benchmark.

    Attributes
    ----------
    sums : what each unit adds, float64 [units]: summed nats of a row, or an item's score.
    weights : what it is divided by, [units]: predictions of a row, or 1 for an item.
    """

    sums: np.ndarray
    weights: np.ndarray


Measure = Callable[[], dict[str, Scores]]  # scores the model as it is at the moment of the call, by name


def cross_entropy(model: nn.Module, batches: Sequence[Mapping[str, Tensor]]) -> Scores:
    """Next-token cross-entropy of each row: nats, and predictions."""
    with torch.no_grad(), frozen(model):
        rows = [causal_loss(model, batch) for batch in batches]
    loss, tokens = (torch.cat(parts).cpu().numpy().astype(np.float64) for parts in zip(*rows, strict=True))
    return Scores(loss, tokens)


def benchmark_scores(loaded: LoadedModel, items: Items, batch_size: int) -> dict[str, Scores]:
    """Every score of a benchmark, by item; NaN for an item that cannot be scored."""
    from analysis.hallucination.scoring import evaluate_benchmark  # here, because lm_eval takes seconds to import

    evaluation = evaluate_benchmark(loaded, items, batch_size)
    scored = {name: evaluation.items(name) for name in evaluation.score_names}
    return {name: Scores(rows["value"].to_numpy(float), rows["weight"].to_numpy(float)) for name, rows in scored.items()}


@dataclass(frozen=True, eq=False)
class Effect:
    """How one measure changes; differences are ablated - whole, per unit of weight.

    Attributes
    ----------
    whole, ablated : sums of the whole model and without the set, [units].
    random : sums without each random set, [sets, units].
    weights : [units].
    left_out : units that are in none of these, because some trial could not score them.
    """

    whole: np.ndarray
    ablated: np.ndarray
    random: np.ndarray
    weights: np.ndarray
    left_out: int = 0

    @staticmethod
    def of(name: str, trials: Sequence[Scores]) -> Effect:
        """From the scores of the whole model, without the set, and without each random set.

        Raises
        ------
        ValueError
            When there is no unit that every trial could score.
        """
        sums, weights = np.stack([trial.sums for trial in trials]), trials[0].weights
        scored = np.isfinite(sums).all(axis=0) & (weights > 0)
        if not scored.any():
            raise ValueError(f"{name}: nothing was scored by the model both whole and ablated; is the model finite?")
        sums = sums[:, scored]
        return Effect(sums[0], sums[1], sums[2:], weights[scored], int((~scored).sum()))

    @property
    def baseline(self) -> float:
        """The measure of the whole model."""
        return float(self.whole.sum() / self.weights.sum())

    @property
    def effect(self) -> float:
        """The change that the set makes."""
        return _ratio(self.ablated - self.whole, self.weights)

    @property
    def random_effects(self) -> np.ndarray:
        """The change that each random set makes, [sets]."""
        return (self.random - self.whole).sum(axis=1) / self.weights.sum()

    @property
    def excess(self) -> float:
        """How much more the set changes than the mean random set."""
        return self.effect - float(self.random_effects.mean())

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the effect over units; None for a single unit."""
        return _interval(self.ablated - self.whole, self.weights)

    @property
    def excess_interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the excess over units, for these random sets; None for a single unit."""
        return _interval(self.ablated - self.random.mean(axis=0), self.weights)

    @property
    def p_larger(self) -> float:
        """One-sided p that a random set changes at least as much: (1 + sets as large) / (1 + sets)."""
        return (1 + int((self.random_effects >= self.effect).sum())) / (1 + len(self.random))

    @property
    def p_smaller(self) -> float:
        """One-sided p that a random set changes at most as much: (1 + sets as small) / (1 + sets)."""
        return (1 + int((self.random_effects <= self.effect).sum())) / (1 + len(self.random))

    def in_words(self) -> str:
        """The change with its interval, that of the random sets, both p, and the number of units."""
        low, high = self.interval or (math.nan, math.nan)
        random = self.random_effects
        return (
            f"{self.baseline:.4f} changes by {self.effect:+.4f} (95 % {low:+.4f} to {high:+.4f}), random sets by "
            f"{random.mean():+.4f} on average ({random.min():+.4f} to {random.max():+.4f}); p as large {self.p_larger:.3f}, "
            f"p as small {self.p_smaller:.3f}, n = {len(self.weights)}"
        )


def _ratio(sums: np.ndarray, weights: np.ndarray, axis: int = -1) -> float:
    return sums.sum(axis=axis) / weights.sum(axis=axis)


def _interval(differences: np.ndarray, weights: np.ndarray) -> tuple[float, float] | None:
    if len(differences) < 2:
        return None
    found = bootstrap(
        (differences, weights), _ratio, paired=True, n_resamples=_RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


# --- the check ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AblationResult:
    """The effect of ablating a set of heads, beside random sets.

    Attributes
    ----------
    heads : the set, as names.
    mode : "zero" or "mean".
    match : how the random sets match it, of `MATCHES`.
    random_heads : each random set, as names.
    effects : measure -> Effect; "cross-entropy" is in nats per token, a benchmark's score in its own unit.
    provenance : model, adapter, text, seed and versions.
    """

    heads: Sequence[str]
    mode: str
    match: str
    random_heads: Sequence[Sequence[str]]
    effects: dict[str, Effect]
    provenance: dict[str, Any]

    def save(self, path: str | PathLike) -> None:
        """Write the JSON: what every unit gave, and the numbers that follow from it."""
        derived = ("baseline", "effect", "interval", "random_effects", "excess", "excess_interval", "p_larger", "p_smaller")
        effects = {
            measure: {**asdict(effect), **{name: getattr(effect, name) for name in derived}}
            for measure, effect in self.effects.items()
        }
        settings = {"heads": self.heads, "mode": self.mode, "match": self.match, "random_heads": self.random_heads}
        write_record(path, "ablation", {**settings, "effects": effects, "provenance": self.provenance})

    @staticmethod
    def load(path: str | PathLike) -> AblationResult:
        """Read what `save` wrote; FileNotFoundError or ValueError as `read_record`."""
        record = read_record(path, "ablation")
        parts = ("whole", "ablated", "random", "weights")
        effects = {
            measure: Effect(*(np.array(values[part], dtype=np.float64) for part in parts), values["left_out"])
            for measure, values in record["effects"].items()
        }
        settings = {name: record[name] for name in ("heads", "mode", "match", "random_heads", "provenance")}
        return AblationResult(effects=effects, **settings)


def ablation_effects(
    measure: Measure,
    layers: Sequence[AttentionLayer],
    heads: Sequence[Head],
    sets: Sequence[Sequence[Head]],
    means: Means | None = None,
) -> dict[str, Effect]:
    """Score the model whole, without `heads`, and without each of the random `sets`.

    Parameters
    ----------
    measure : scores the model, such as `lambda: {"cross-entropy": cross_entropy(model, batches)}`.
    means : from `mean_outputs`, for mean ablation; zero ablation otherwise.

    Raises
    ------
    ValueError
        When a measure has no unit that all trials could score.
    """
    trials: list[Sequence[Head]] = [(), heads, *sets]
    scores = []
    for trial in track(trials, "ablating", len(trials), "set"):
        with ablated(layers, trial, means):
            scores.append(measure())
    return {name: Effect.of(name, [trial[name] for trial in scores]) for name in scores[0]}
