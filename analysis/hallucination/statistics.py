"""Scores with their errors, what length alone would score, and relative change against a baseline.

A score is a ratio of sums over items: right answers over items for an accuracy, bits over bytes for bits per byte. An item
whose value is not finite (a NaN model) is counted and never scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

DRAWS = 2000
SEED = 42


@dataclass(frozen=True)
class Score:
    """A score over items.

    Attributes
    ----------
    value : sum of values / sum of weights over the scored items; NaN when there is none.
    standard_error : of `value`, treating the items as a random sample; NaN for fewer than two.
    n : scored items.
    invalid : items whose value is not finite; they are in no sum.
    """

    value: float
    standard_error: float
    n: int
    invalid: int


def score(values: ArrayLike, weights: ArrayLike | None = None) -> Score:
    """Score items; `weights` are 1 for an accuracy and bytes for bits per byte, [items].

    The standard error is that of a ratio estimator, sqrt(n / (n - 1) sum (v - r w)^2) / sum w, which for weights of 1 is the
    sample deviation over sqrt(n), as lm-evaluation-harness has it.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    valid = np.isfinite(values)
    v, w, n = values[valid], weights[valid], int(valid.sum())
    if n == 0:
        return Score(np.nan, np.nan, 0, len(values))
    ratio = v.sum() / w.sum()
    error = np.sqrt(n / (n - 1) * np.square(v - ratio * w).sum()) / w.sum() if n > 1 else np.nan
    return Score(float(ratio), float(error), n, len(values) - n)


def length_baseline(lengths: ArrayLike, labels: ArrayLike) -> float:
    """Best accuracy that any threshold on the length reaches, in either direction, on the items themselves.

    `lengths` [items] of the judged texts, `labels` [items] of two kinds. A judge that does no better has read no more than
    the length. Never below the share of the commoner label.
    """
    lengths, labels = np.asarray(lengths), np.asarray(labels)
    positive = labels == labels.max()
    order = np.argsort(lengths, kind="stable")
    below = np.concatenate([[0], np.cumsum(positive[order])])  # positives among the k shortest
    cut = np.concatenate([[True], np.diff(lengths[order]) > 0, [True]])  # k may not part equal lengths
    k = np.arange(len(labels) + 1)
    right = (k - below) + (positive.sum() - below)  # short is negative, long is positive
    return float(np.maximum(right, len(labels) - right)[cut].max() / len(labels))


def length_pick(lengths: Sequence[Sequence[int]], right: Sequence[int]) -> float:
    """Best expected accuracy of always picking the shortest, or always the longest, choice of each item; ties are drawn."""
    scores = []
    for extreme in (min, max):
        hits = [
            (choices[answer] == extreme(choices)) / list(choices).count(extreme(choices))
            for choices, answer in zip(lengths, right, strict=True)
        ]
        scores.append(float(np.mean(hits)))
    return max(scores)


@dataclass(frozen=True)
class PairedItems:
    """The same items of one task under a baseline and a checkpoint.

    Attributes
    ----------
    values, baseline : [items], NaN where an item could not be scored. Weights (bytes) are the same for both and cancel.
    higher_is_better : False turns the sign, so that a positive change is always a gain.
    """

    values: np.ndarray
    baseline: np.ndarray
    higher_is_better: bool = True


@dataclass(frozen=True)
class Change:
    """A relative change with its 95 % bootstrap interval; 0.08 is a gain of 8 %."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class RelativeChange:
    """Relative change of each task and its mean over tasks.

    Attributes
    ----------
    tasks : task -> its own change.
    mean : mean over `tasks`; NaN when every task is left out.
    left_out : tasks whose baseline score is 0, so that they have no relative change.
    """

    tasks: dict[str, Change]
    mean: Change
    left_out: list[str]


def relative_change(tasks: Mapping[str, PairedItems], draws: int = DRAWS, seed: int = SEED) -> RelativeChange:
    """(score - baseline) / baseline of each task and its mean over tasks (method.md section 6), with paired intervals.

    Each bootstrap draw resamples the items of a task, the same ones for both checkpoints, so that what makes an item hard
    cancels. Items that either could not score are left out of both.
    """
    generator = np.random.default_rng(seed)
    changes, resampled, left_out = {}, [], []
    for name, items in tasks.items():
        both = np.isfinite(items.values) & np.isfinite(items.baseline)
        n = int(both.sum())
        if n == 0 or items.baseline[both].sum() == 0:
            left_out.append(name)
            continue
        counts = generator.multinomial(n, np.full(n, 1 / n), size=draws)  # [draws, items]
        after, before = counts @ items.values[both], counts @ items.baseline[both]
        sign = 1 if items.higher_is_better else -1
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn = sign * (after / before - 1)
        point = sign * (items.values[both].sum() / items.baseline[both].sum() - 1)
        drawn[~np.isfinite(drawn)] = np.nan
        changes[name] = _change(point, drawn, n)
        resampled.append(drawn)
    if not changes:
        return RelativeChange({}, Change(np.nan, np.nan, np.nan, 0), left_out)
    mean = float(np.mean([change.value for change in changes.values()]))
    total = sum(change.n for change in changes.values())
    return RelativeChange(changes, _change(mean, np.mean(resampled, axis=0), total), left_out)


def _change(value: float, drawn: np.ndarray, n: int) -> Change:
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Change(float(value), float(low), float(high), n)
