"""How sure coalitions are: cluster again on bootstrap resamples of the batches (method.md section 3).

No model pass: a resample re-weights the per-batch Gram sums that the result keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from analysis.coalitions import Coalitions, labels_at
from analysis.progress import track
from analysis.results import InteractionResult
from analysis.spectral import adjusted_rand

RESAMPLES = 50  # the least, and the default


@dataclass(frozen=True, eq=False)
class Stability:
    """What the resamples say about the coalitions of a layer, at the same number of coalitions.

    Attributes
    ----------
    resamples, batches : number of resamples, and of batches that they draw from with replacement.
    coassignment : share of resamples in which two heads are in one coalition, [heads, heads], in [0, 1].
    mean_ari : mean adjusted Rand index of the resamples and the coalitions, at most 1.
    confidence : share of resamples in which a head stays in its coalition, [heads], in [0, 1]; a resample's coalitions are
        matched to these so that most heads stay.
    """

    resamples: int
    batches: int
    coassignment: np.ndarray
    mean_ari: float
    confidence: np.ndarray


def bootstrap(
    result: InteractionResult, coalitions: Coalitions, resamples: int = RESAMPLES, seed: int = 0, shown: bool = False
) -> Coalitions:
    """The same coalitions with the stability of every layer that has structure, or whose number was asked for.

    Parameters
    ----------
    result : the measurement that the coalitions come from.
    resamples : at least 50.
    shown : draw a progress bar.

    Raises
    ------
    ValueError
        For fewer resamples, or a result of one batch, which cannot be resampled.
    """
    batches = len(result.batch_tokens)
    if resamples < RESAMPLES:
        raise ValueError(f"{resamples} resamples are too few to judge stability: give at least {RESAMPLES}.")
    if batches < 2:
        raise ValueError(
            "stability resamples the rows of the text, and this result holds one batch of them only: measure again on a text of "
            "at least 8 rows (more --tokens, or a smaller --seq-len), or do without with --bootstrap 0."
        )
    result = result.view(coalitions.coupling)
    judged = [entry for entry in coalitions.layers if entry.structure or coalitions.k is not None]
    draws = np.random.default_rng(seed).multinomial(batches, np.full(batches, 1 / batches), size=resamples)
    labels = np.empty((len(judged), resamples, result.n_heads), dtype=int)
    for draw, weights in enumerate(track(draws, "resampling the batches", resamples, "resample", shown=shown)):
        G = result.G_of(weights)
        for position, entry in enumerate(judged):
            matrix = G[result.row_of(entry.layer)]
            labels[position, draw] = labels_at(matrix, entry.k, coalitions.affinity, entry.layer, coalitions.groups)
    found = {entry.layer: stability_of(entry.labels, labels[row], batches) for row, entry in enumerate(judged)}
    entries = [replace(entry, stability=found.get(entry.layer)) for entry in coalitions.layers]
    return replace(coalitions, layers=tuple(entries))


def stability_of(labels: Sequence[int], resampled: np.ndarray, batches: int) -> Stability:
    """Judge the coalitions `labels`, int [heads], by those of the resamples, int [resamples, heads]."""
    labels = np.asarray(labels)
    together = (resampled[:, :, None] == resampled[:, None, :]).mean(axis=0)
    ari = float(adjusted_rand(labels, resampled).mean())
    stayed = np.mean([_stayed(labels, other) for other in resampled], axis=0)
    return Stability(len(resampled), batches, together, ari, stayed)


def _stayed(labels: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which heads are in the coalition of `other` that is matched to their own, bool [heads]."""
    overlap = (labels == np.unique(labels)[:, None]).astype(int) @ (other[:, None] == np.unique(other))
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    match = dict(zip(np.unique(labels)[rows], np.unique(other)[columns], strict=True))
    return np.array([match.get(label) == found for label, found in zip(labels, other, strict=True)])
