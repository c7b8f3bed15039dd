"""What coalitions cost: two checkpoints of 32 layers x 32 heads clustered, compared, one layer resampled and the page drawn.

    python -m tests.bench bench_coalitions

The other side is scikit-learn alone: the same fits of the same affinities with the same settings, nothing else.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sklearn.cluster import SpectralClustering

from analysis.coalition_figures import coalition_graph, coassignment, comparison_chart, eigenvalue_chart, flow, reordered_heatmap
from analysis.coalition_style import looks
from analysis.coalitions import find_coalitions
from analysis.compare import compare
from analysis.figure_data import symmetric_limit
from analysis.head_graph import head_graph
from analysis.results import InteractionResult
from analysis.spectral import affinity_matrix
from analysis.stability import RESAMPLES, bootstrap
from tests.planted import planted_result

TARGET = 3.0
RUNS = 9
_LAYER = 16


def run() -> list[tuple[str, float, float, int]]:
    """(name, ratio of medians, target, runs); the two sides alternate, so that a busy machine slows both."""
    labels = np.arange(32) % 8  # across the kv groups, so that both permutation tests have work to do
    before, after = (planted_result(labels, layers=32, n_kv_heads=8, noise=1.0, strength=strength) for strength in (0.4, 0.5))
    fits = [(G, entry.k) for result in (before, after) for G, entry in zip(result.G, find_coalitions(result).layers, strict=True)]
    fits += [fits[_LAYER]] * RESAMPLES
    affinities = [(affinity_matrix(G), k) for G, k in fits]
    ours, alone = [], []
    for _ in range(RUNS):
        ours.append(_seconds(lambda: _page(before, after)))
        alone.append(_seconds(lambda: _fits(affinities)))
    ratio = statistics.median(ours) / statistics.median(alone)
    return [("coalitions page, 32 layers x 32 heads / scikit-learn's fits alone", ratio, TARGET, RUNS)]


def _page(before: InteractionResult, after: InteractionResult) -> None:
    one, other = find_coalitions(before), find_coalitions(after)
    comparison = compare(before, after, coalitions=one)
    entry = bootstrap(before, replace(one, layers=(one.layers[_LAYER],))).layers[0]
    G = before.G[_LAYER]
    reordered_heatmap(G, entry, symmetric_limit(G), entry.kv.groups)
    coalition_graph(head_graph(before, entry), looks(entry))
    eigenvalue_chart(entry)
    coassignment(entry)
    flow([("A", entry), ("B", other.layers[_LAYER])])
    comparison_chart(comparison, selected=_LAYER)


def _fits(affinities: list[tuple[np.ndarray, int]]) -> None:
    for matrix, k in affinities:
        SpectralClustering(k, affinity="precomputed", assign_labels="cluster_qr", random_state=0).fit(matrix)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
