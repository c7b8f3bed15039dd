"""The statistics behind a comparison of checkpoints: means inside and between coalitions, their intervals, permutation p, Holm.

With the coalitions held fixed, selectivity = change inside - change between (method.md section 3). Its p comes from permuting
the heads over the coalitions, the intervals from a jackknife over the batches of the text; neither needs a model pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from analysis.heads import kv_groups
from analysis.results import InteractionResult

_RESOLUTION = 1e-5  # of a mean of G from float32 sums: smaller changes are rounding
_JACKKNIFE_GROUPS = 20


@dataclass(frozen=True)
class Change:
    """A mean coupling before and after, and the 95 % interval of the change over batches (NaN with one batch)."""

    before: float
    after: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """after - before."""
        return self.after - self.before

    @property
    def direction(self) -> int:
        """+1 rises, -1 falls, 0 neither: the interval holds 0, or the change is rounding."""
        if not abs(self.change) >= _RESOLUTION or self.low <= 0 <= self.high:
            return 0
        return 1 if self.change > 0 else -1

    def record(self) -> dict[str, float]:
        """JSON-ready."""
        return {**vars(self), "change": self.change}


class PairMeans:
    """Mean coupling inside and between the coalitions of every layer: before, after, and with some batches left out.

    Parameters
    ----------
    strength : what a pair counts with, of G elementwise: G itself, or |G|.
    labels : coalition of each head, int [layers, heads].
    """

    def __init__(
        self,
        before: InteractionResult,
        after: InteractionResult,
        labels: np.ndarray,
        strength: Callable[[np.ndarray], np.ndarray],
    ):
        inside, between = _pair_weights(labels)

        def means(G: np.ndarray) -> np.ndarray:
            return np.stack([np.einsum("lij,lij->l", weights, strength(G)) for weights in (inside, between)])

        results = (before, after)
        self._values = [means(result.G) for result in results]  # before and after, each [inside/between, layers]
        self._left_out = [  # each [groups of batches, inside/between, layers]
            np.array([means(result.G_of(weights)) for weights in _jackknife_weights(len(result.batch_tokens))])
            for result in results
        ]
        same_text = before.provenance["text"] == after.provenance["text"]
        self._paired = same_text and np.array_equal(before.batch_tokens, after.batch_tokens)

    def change(self, which: int, rows: Sequence[int]) -> Change:
        """The mean over some layers of the coupling inside (`which` 0) or between coalitions (1)."""
        if not len(rows):
            return Change(*[np.nan] * 4)
        before, after = (float(values[which][rows].mean()) for values in self._values)
        if not all(map(len, self._left_out)):
            return Change(before, after, np.nan, np.nan)
        mine, theirs = (part[:, which][:, rows].mean(axis=1) for part in self._left_out)
        independent = [theirs - mine] if self._paired else [mine, theirs]
        variance = sum((len(values) - 1) * values.var() for values in independent)
        half = _t_quantile(min(len(mine), len(theirs)) - 1) * float(np.sqrt(variance))
        return Change(before, after, after - before - half, after - before + half)


@functools.cache
def _t_quantile(degrees: int) -> float:
    """Of the two-sided 95 % interval."""
    return float(student_t.ppf(0.975, degrees))


def _pair_weights(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights that turn a sum over G into the mean inside and between coalitions, [layers, heads, heads]; NaN without a pair."""
    same = labels[:, :, None] == labels[:, None, :]
    pair = np.triu(np.ones(same.shape[1:], dtype=bool), k=1)
    inside, between = (
        np.where(count > 0, chosen / np.maximum(count, 1), np.nan)
        for chosen in (same & pair, ~same & pair)
        for count in [chosen.sum(axis=(1, 2), keepdims=True)]
    )
    return inside, between


def _jackknife_weights(batches: int) -> np.ndarray:
    """Batch weights that leave out one of at most 20 groups of batches at a time, [groups, batches]; no row for one batch."""
    groups = min(batches, _JACKKNIFE_GROUPS)
    if groups < 2:
        return np.empty((0, batches))
    return (np.arange(batches) * groups // batches != np.arange(groups)[:, None]).astype(float)


class SelectivityTest:
    """Selectivity under permutations of the heads, of every layer at once.

    Parameters
    ----------
    change : change of the coupling, symmetric [layers, heads, heads].
    labels : coalition of each head, int [layers, heads].
    n_kv_heads : heads are permuted within kv groups only; None permutes all heads.

    Attributes
    ----------
    tested : layers with pairs both inside and between coalitions, bool [layers].
    """

    def __init__(self, change: np.ndarray, labels: np.ndarray, permutations: int, seed: int, n_kv_heads: int | None = None):
        heads = labels.shape[1]
        groups = np.zeros(heads) if n_kv_heads is None else np.array(kv_groups(heads, n_kv_heads))
        self.tested = np.array([1 < len(np.unique(row)) < heads for row in labels])
        self._observed = np.full(len(labels), np.nan)
        self._observed[self.tested] = selectivities(change[self.tested], labels[self.tested], np.arange(heads)[:, None])[:, 0]
        self._null = np.repeat(self._observed[:, None], permutations, axis=1)
        varied = self.tested & ~np.array([_are_unions(row, groups) for row in labels])  # else no permutation changes a label
        if varied.any():
            self._null[varied] = selectivities(change[varied], labels[varied], _orders(permutations, groups, seed))

    def p(self, rows: Sequence[int]) -> float:
        """One-sided p of the mean selectivity of some layers; NaN when there is none, or one cannot be tested."""
        if not len(rows) or not self.tested[rows].all():
            return float("nan")
        # each layer takes the permutations in another order, so that the layers are permuted independently of each other
        together = sum(np.roll(self._null[row], place * len(self._null[row]) // len(rows)) for place, row in enumerate(rows))
        return permutation_p(sum(self._observed[row] for row in rows), together)


def _orders(permutations: int, groups: np.ndarray, seed: int) -> np.ndarray:
    """Random orders of the heads that keep each group's places to the group, int [heads, permutations]; groups ascend."""
    keys = np.random.default_rng(seed).random((permutations, len(groups))) + groups
    return np.ascontiguousarray(np.argsort(keys, axis=1).T)


def _are_unions(labels: np.ndarray, groups: np.ndarray) -> bool:
    """Whether every coalition is a union of groups."""
    return all(len(np.unique(labels[groups == group])) == 1 for group in np.unique(groups))


def selectivities(change: np.ndarray, labels: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Mean change inside - mean change between coalitions when they hold the heads in other orders, [layers, orders].

    Parameters
    ----------
    change : change of the coupling, symmetric [layers, heads, heads].
    labels : coalition of each place, int [layers, heads]; at least two coalitions, and one of two heads or more.
    orders : the head at each place, int [heads, orders].
    """
    heads = labels.shape[1]
    first, second = np.triu_indices(heads, k=1)
    flat, row_start = change.reshape(len(change), heads * heads), orders * heads
    inside, gathered = np.zeros((len(change), orders.shape[1])), np.empty(orders.shape[1])
    partitions, rows_of = np.unique(labels, axis=0, return_inverse=True)
    for number, partition in enumerate(partitions):  # layers with the same coalitions share their indices
        together, rows = partition[first] == partition[second], np.flatnonzero(rows_of == number)
        for one, other in zip(first[together], second[together], strict=True):  # a pair at a time, which bounds memory
            index = row_start[one] + orders[other]
            for row in rows:
                inside[row] += flat[row].take(index, out=gathered, mode="clip")  # clip: no check, no copy
    same = labels[:, first] == labels[:, second]
    total, pairs = change[:, first, second].sum(axis=1, keepdims=True), same.sum(axis=1, keepdims=True)
    return inside / pairs - (total - inside) / (same.shape[1] - pairs)


def permutation_p(observed: float, null: np.ndarray) -> float:
    """Share of null values at least as large, the observed one counted among them; ties up to rounding count as ties."""
    return float((1 + (null >= observed - 1e-12).sum()) / (1 + len(null)))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down adjustment of p values, [n]; NaN (not tested) stays NaN and is not counted."""
    p = np.asarray(p, dtype=float)
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p, kind="stable")[: np.isfinite(p).sum()]  # NaN sorts last
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted
