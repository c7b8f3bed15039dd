"""Spectral clustering of an affinity between heads: Laplacian, components, eigengaps, cuts, modularity.

Pure functions of one layer's matrix (method.md section 3; von Luxburg, A tutorial on spectral clustering, 2007,
doi 10.1007/s11222-007-9033-z). How many coalitions to cut, and what they mean, is in analysis/coalitions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import SpectralClustering

AFFINITIES = ("positive", "absolute", "shifted")
TIE = 1e-8  # eigenvalues nearer than this are equal: a cut between them would be arbitrary
_UNCOUPLED = 1e-12  # below the rounding of a cosine in float64


def affinity_matrix(G: np.ndarray, name: str = "positive") -> np.ndarray:
    """Non-negative affinity of a layer's heads, a copy of the symmetric, finite G with zero diagonal, [heads, heads].

    "positive" max(G, 0): heads that pull against each other have none. "absolute" |G|: they have as much as heads that pull
    together. "shifted" (1 + G) / 2. A head without any coupling (pruned, or off-diagonals all 0) has no affinity in any.

    Raises
    ------
    ValueError
        When the affinity is unknown.
    """
    if name not in AFFINITIES:
        raise ValueError(f"the affinity {name!r} is not one of {', '.join(AFFINITIES)}.")
    G = np.array(G, dtype=np.float64)
    np.fill_diagonal(G, 0)
    uncoupled = np.abs(G).max(axis=1) <= _UNCOUPLED
    affinity = {"positive": np.maximum(G, 0), "absolute": np.abs(G), "shifted": np.maximum((1 + G) / 2, 0)}[name]
    affinity[uncoupled, :] = affinity[:, uncoupled] = 0
    np.fill_diagonal(affinity, 0)
    return affinity


def laplacian_eigenvalues(affinity: np.ndarray) -> np.ndarray:
    """Eigenvalues of I - D^-1/2 A D^-1/2, ascending in [0, 2], [..., heads]; one 0 for each connected component."""
    degree = affinity.sum(-1)
    alone = degree <= _UNCOUPLED
    scale = np.where(alone, 0.0, 1 / np.sqrt(np.where(alone, 1.0, degree)))
    laplacian = -scale[..., :, None] * affinity * scale[..., None, :]
    heads = np.arange(affinity.shape[-1])
    laplacian[..., heads, heads] += ~alone
    return np.linalg.eigvalsh(laplacian).clip(0, 2)


@dataclass(frozen=True, eq=False)
class HeadSpectrum:
    """The affinity of a layer's coupled heads, the connected components among them, and their eigenvalues.

    Attributes
    ----------
    affinity : [heads, heads], of all heads.
    coupled : indices of the heads with any affinity, int [coupled].
    component : connected component of each coupled head, int [coupled].
    eigenvalues : of the normalized Laplacian of the coupled heads, ascending, [coupled].
    owner : component that each eigenvalue belongs to, int [coupled].
    """

    affinity: np.ndarray
    coupled: np.ndarray
    component: np.ndarray
    eigenvalues: np.ndarray
    owner: np.ndarray

    @classmethod
    def of(cls, affinity: np.ndarray) -> HeadSpectrum:
        """Take an affinity apart."""
        coupled = np.flatnonzero(affinity.sum(axis=1) > _UNCOUPLED)
        inner = affinity[np.ix_(coupled, coupled)]
        eigenvalues, component = laplacian_eigenvalues(inner), np.zeros(len(coupled), dtype=int)
        if not (eigenvalues[1:2] > TIE).all():  # a second 0: look for the components
            component = connected_components(inner > _UNCOUPLED, directed=False)[1]
            for part in np.unique(component):
                heads = component == part
                eigenvalues[heads] = laplacian_eigenvalues(inner[np.ix_(heads, heads)])
        first = np.isin(np.arange(len(coupled)), np.unique(component, return_index=True)[1])
        eigenvalues[first] = 0  # a component's smallest, up to rounding
        order = np.lexsort((~first, eigenvalues))  # before any other 0, so that every component gets a coalition
        return cls(affinity, coupled, component, eigenvalues[order], component[order])

    @cached_property
    def n_components(self) -> int:
        """Connected components among the coupled heads."""
        return int(self.component.max(initial=-1)) + 1

    @property
    def isolated(self) -> np.ndarray:
        """Heads without affinity to any other, bool [heads]."""
        return ~np.isin(np.arange(len(self.affinity)), self.coupled)

    @cached_property
    def gaps(self) -> np.ndarray:
        """gaps[k] is the eigengap after k coalitions of coupled heads, [coupled]; gaps[0] is 0."""
        return np.diff(self.eigenvalues, prepend=self.eigenvalues[:1])

    def feasible(self, k: int) -> int:
        """The largest number of coalitions of coupled heads, at most k, that is not arbitrary.

        Components are never merged, and equal eigenvalues are never parted: a constant matrix has one coalition.
        """
        k = min(k, len(self.eigenvalues))
        while self.n_components < k < len(self.eigenvalues) and self.gaps[k] < TIE:
            k -= 1
        return max(k, self.n_components)

    def cut(self, k: int) -> np.ndarray:
        """Canonical labels of all heads, int [heads], with the coupled ones cut into k and the isolated ones alone.

        The Laplacian is block-diagonal over the components, so each is cut into as many coalitions as it has
        eigenvalues among the k smallest.
        """
        share = np.bincount(self.owner[:k], minlength=self.n_components)
        labels = np.arange(len(self.affinity))  # an isolated head keeps a label of its own
        for part, pieces in enumerate(share):
            heads = self.coupled[self.component == part]
            labels[heads] = len(self.affinity) * (part + 1) + self._cut_component(heads, int(pieces))
        return canonical(labels)

    def _cut_component(self, heads: np.ndarray, pieces: int) -> np.ndarray:
        if pieces == 1:
            return np.zeros(len(heads), dtype=int)
        if pieces == len(heads):
            return np.arange(len(heads))
        clustering = SpectralClustering(pieces, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
        return clustering.fit(self.affinity[np.ix_(heads, heads)]).labels_


def canonical(labels: Sequence[int]) -> np.ndarray:
    """The same partition, numbered so that coalition 0 holds the lowest head, 1 the lowest of the rest, and so on."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def adjusted_rand(labels: Sequence[int], others: np.ndarray) -> np.ndarray:
    """Adjusted Rand index of one partition, int [heads], with each of others, int [..., heads]: 1 when equal, 0 by chance, [...].

    That of sklearn.metrics.adjusted_rand_score, for many partitions at once; 1 for two trivial partitions alike.
    """
    labels, others = np.asarray(labels), np.asarray(others)
    first, second = np.triu_indices(len(labels), k=1)
    mine = labels[first] == labels[second]
    theirs = others[..., first] == others[..., second]
    both, expected = (mine & theirs).sum(-1), mine.sum() * theirs.sum(-1) / max(len(first), 1)
    possible = (mine.sum() + theirs.sum(-1)) / 2
    trivial = possible == expected
    return np.where(trivial, 1.0, (both - expected) / np.where(trivial, 1.0, possible - expected))


def modularity(affinity: np.ndarray, labels: np.ndarray) -> float:
    """Newman's modularity of a partition of the affinity graph, in [-1/2, 1); 0 for one coalition, or without affinity."""
    total = affinity.sum()
    if total == 0:
        return 0.0
    inside = affinity[labels[:, None] == labels].sum() / total
    ends = np.bincount(labels, weights=affinity.sum(axis=1)) / total  # share of edge ends in each coalition
    return float(inside - (ends**2).sum())
