"""Coalitions of heads: who acts together in a layer, by spectral clustering of G (method.md section 3).

From G to labels: a named, non-negative affinity (a copy: G keeps its signs) -> the eigenvalues of its normalized Laplacian ->
their number, given or at the eigengap -> scikit-learn's spectral clustering -> labels numbered by their lowest head.
How sure the labels are is in analysis/stability.py, whether they are the kv groups in analysis/kv_agreement.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.heads import head_name, kv_groups
from analysis.kv_agreement import KvAgreement, kv_agreement
from analysis.records import write_record
from analysis.results import InteractionResult
from analysis.spectral import TIE, HeadSpectrum, affinity_matrix, laplacian_eigenvalues, modularity

if TYPE_CHECKING:
    from analysis.stability import Stability

ALPHA = 0.05  # level at which an eigengap counts as structure
SHUFFLES = 19  # the eigengap must be larger than in each of them


# --- how many -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """A number of coalitions among the coupled heads, whether it stands for structure, and why."""

    k: int
    gap_p: float
    structure: bool
    note: str


def _choose(spectrum: HeadSpectrum, trivial: int) -> _Choice:
    """The k at the largest eigengap, 2 <= k <= coupled heads / 2, when shuffled couplings do not give such a gap too.

    [D] The comparison with shuffles is this project's test of "there is a gap". `trivial` is the number of components that are
    there by construction: 1, or the kv groups of a clustering within them.
    """
    base, heads = spectrum.n_components, len(spectrum.coupled)
    apart = base > trivial
    candidates = np.arange(base if apart else base + 1, heads // 2 + 1)
    if not len(candidates):
        few = "no head is coupled to another" if not heads else f"{heads} coupled heads are too few for an eigengap"
        return _Choice(base, np.nan, False, f"no structure: {few}.")
    k = int(candidates[spectrum.gaps[candidates].argmax()])
    gap = spectrum.gaps[k]
    p = np.nan if k == base else _gap_p(spectrum, candidates, gap)
    if p <= ALPHA:
        note = f"the eigengap after {k} coalitions ({gap:.3g}) is larger than in shuffled couplings (p = {p:.2g})."
        return _Choice(k, p, True, note)
    if apart:
        return _Choice(base, p, True, f"the coupled heads fall into {base} sets with no coupling between them.")
    note = f"no structure: the largest eigengap ({gap:.3g}, after {k}) is no larger than shuffled couplings give (p = {p:.2g})."
    return _Choice(base, p, False, note)


def _given(spectrum: HeadSpectrum, k: int, trivial: int) -> _Choice:
    isolated = int(spectrum.isolated.sum())
    cut = spectrum.feasible(k - isolated)
    found = cut + isolated
    if found > k:
        note = f"{k} were asked for, but {found} sets of heads have no coupling between them and are not merged."
        return _Choice(cut, np.nan, cut > max(trivial, 1), note)
    if found < k:
        note = f"{k} were asked for, but only {found} can be told apart: beyond that the Laplacian's eigenvalues are equal."
        return _Choice(cut, np.nan, cut > max(trivial, 1), note)
    if cut == spectrum.n_components or cut == len(spectrum.coupled):
        note = f"{k} as asked for" + (f", {isolated} of them isolated heads." if isolated else ".")
        return _Choice(cut, np.nan, max(trivial, 1) < cut < len(spectrum.coupled), note)
    p = _gap_p(spectrum, np.array([cut]), spectrum.gaps[cut])
    compared = "is larger than" if p <= ALPHA else "is no larger than"
    note = f"{k} as asked for; the eigengap there ({spectrum.gaps[cut]:.3g}) {compared} in shuffled couplings (p = {p:.2g})."
    return _Choice(cut, p, p <= ALPHA, note)


def _gap_p(spectrum: HeadSpectrum, candidates: np.ndarray, gap: float) -> float:
    """Share of shuffles whose largest gap over the candidates reaches `gap`.

    A shuffle deals the affinities of each component out to its pairs anew. They are sorted first, so that the p does not
    depend on the order of the heads.
    """
    heads = len(spectrum.coupled)
    shuffled = np.zeros((SHUFFLES, heads, heads))
    generator = np.random.default_rng(0)
    affinity = spectrum.affinity[np.ix_(spectrum.coupled, spectrum.coupled)]
    for part in range(spectrum.n_components):
        members = np.flatnonzero(spectrum.component == part)
        first, second = (members[index] for index in np.triu_indices(len(members), k=1))
        values = np.tile(np.sort(affinity[first, second]), (SHUFFLES, 1))
        shuffled[:, first, second] = shuffled[:, second, first] = generator.permuted(values, axis=1)
    eigenvalues = laplacian_eigenvalues(shuffled)
    largest = (eigenvalues[:, candidates] - eigenvalues[:, candidates - 1]).max(axis=1)
    return float((1 + (largest >= gap - TIE).sum()) / (1 + SHUFFLES))


# --- the coalitions of a layer and of a result ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LayerCoalitions:
    """The coalitions of one layer.

    Attributes
    ----------
    layer : true layer index.
    labels : coalition of each head, canonical, int [heads].
    isolated : heads coupled to no other by the affinity, bool [heads]; each is its own coalition.
    eigenvalues : of the normalized Laplacian of the coupled heads, ascending in [0, 2].
    cut : number of coalitions among the coupled heads: the eigengap between `eigenvalues[cut - 1]` and `[cut]` is the chosen one.
    gap_p : share of shuffles of the couplings with an eigengap as large; NaN where no gap had to be judged.
    structure : False when nothing but chance (or the asked number) speaks for the coalitions.
    note : why this number, for people.
    modularity : Newman's, on the affinity, in [-1/2, 1).
    kv : agreement with the kv groups; None for a matrix without a model.
    stability : what a bootstrap over batches says; None until `stability.bootstrap` has run.
    """

    layer: int
    labels: np.ndarray
    isolated: np.ndarray
    eigenvalues: np.ndarray
    cut: int
    gap_p: float
    structure: bool
    note: str
    modularity: float
    kv: KvAgreement | None = None
    stability: Stability | None = None

    @property
    def k(self) -> int:
        """Coalitions found, isolated heads included."""
        return int(self.labels.max()) + 1

    @property
    def members(self) -> list[list[int]]:
        """The heads of each coalition."""
        return [np.flatnonzero(self.labels == label).tolist() for label in range(self.k)]

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        names = [[head_name(self.layer, head) for head in heads] for heads in self.members]
        nested = {"kv": self.kv and self.kv.record(), "stability": self.stability and vars(self.stability)}
        return {"k": self.k, "coalitions": names} | vars(self) | nested


def cluster_heads(
    G: np.ndarray, k: int | None = None, affinity: str = "positive", layer: int = 0, groups: Sequence[int] | None = None
) -> LayerCoalitions:
    """The coalitions of one layer.

    Parameters
    ----------
    G : head interaction matrix, [heads, heads], symmetric.
    k : number of coalitions, isolated heads included; None for the eigengap. More are found when more sets of heads have
        no coupling between them, fewer when nothing tells heads apart; `LayerCoalitions.k` is the number found.
    affinity : of `AFFINITIES`.
    layer : true layer index, for names and messages.
    groups : cluster only within these groups of heads (their kv groups): coupling between groups is left out.

    Raises
    ------
    ValueError
        For a k below 1 or above the number of heads, an unknown affinity, and a G that is not square, not symmetric, or not
        finite (names the layer and its heads).
    """
    spectrum = _spectrum(G, affinity, layer, groups)
    if k is not None and not 1 <= k <= len(G):
        raise ValueError(f"{k} coalitions were asked of the {len(G)} heads of layer {layer}: give 1 to {len(G)}, or auto.")
    trivial = 1 if groups is None else len(np.unique(np.asarray(groups)[spectrum.coupled]))
    choice = _choose(spectrum, trivial) if k is None else _given(spectrum, k, trivial)
    labels = spectrum.cut(choice.k)
    quality = modularity(spectrum.affinity, labels)
    return LayerCoalitions(
        layer, labels, spectrum.isolated, spectrum.eigenvalues, choice.k, choice.gap_p, choice.structure, choice.note, quality
    )


def labels_at(G: np.ndarray, k: int, affinity: str, layer: int = 0, groups: Sequence[int] | None = None) -> np.ndarray:
    """Only the labels of `cluster_heads` with a given k: what a bootstrap repeats."""
    spectrum = _spectrum(G, affinity, layer, groups)
    return spectrum.cut(spectrum.feasible(k - int(spectrum.isolated.sum())))


def _spectrum(G: np.ndarray, affinity: str, layer: int, groups: Sequence[int] | None) -> HeadSpectrum:
    _check(np.asarray(G), layer)
    matrix = affinity_matrix(G, affinity)
    return HeadSpectrum.of(matrix if groups is None else np.where(np.equal.outer(groups, groups), matrix, 0.0))


def _check(G: np.ndarray, layer: int) -> None:
    if G.ndim != 2 or G.shape[0] != G.shape[1] or not len(G):
        raise ValueError(f"layer {layer}: G is {G.shape}, not [heads, heads].")
    bad = ~np.isfinite(G)
    if bad.any():
        broken = (bad | np.eye(len(G), dtype=bool)).all(axis=1)  # one broken head spoils a column of all others
        heads = np.flatnonzero(broken if broken.any() else bad.any(axis=1))
        raise ValueError(
            f"layer {layer}: G is not a number at {', '.join(head_name(layer, int(head)) for head in heads)}. "
            "Measure this layer again, in float32 or bfloat16, or choose other layers."
        )
    if not np.allclose(G, G.T, atol=1e-6):
        raise ValueError(
            f"layer {layer}: G is not symmetric (off by {np.abs(G - G.T).max():.3g}), so it is no head interaction matrix."
        )


@dataclass(frozen=True, eq=False)
class Coalitions:
    """The coalitions of a measurement, one entry a layer, and how they were found.

    Attributes
    ----------
    layers : one a layer, in the order of the result.
    coupling, affinity : what was clustered.
    k : the number asked for; None for the eigengap.
    within_kv : clustered within each kv group only.
    n_heads, n_kv_heads : per layer.
    provenance : that of the measurement.
    """

    layers: tuple[LayerCoalitions, ...]
    coupling: str
    affinity: str
    k: int | None
    within_kv: bool
    n_heads: int
    n_kv_heads: int
    provenance: dict[str, Any]

    @property
    def groups(self) -> list[int] | None:
        """The groups that the clustering stayed within, a group a head; None when it went across all heads."""
        return kv_groups(self.n_heads, self.n_kv_heads) if self.within_kv else None

    def of_layer(self, layer: int) -> LayerCoalitions:
        """The entry of a layer, given by its true index; a ValueError where there is none."""
        found = {entry.layer: entry for entry in self.layers}
        if layer not in found:
            raise ValueError(f"layer {layer} was not clustered: layers {', '.join(map(str, found))} were.")
        return found[layer]

    def record(self) -> dict[str, Any]:
        """JSON-ready: settings, provenance, and for each layer the coalitions by head name, with all numbers."""
        return vars(self) | {"k": self.k or "auto", "layers": [entry.record() for entry in self.layers]}

    def save(self, path: str | PathLike) -> None:
        """Write `record` as JSON."""
        write_record(path, "coalitions", self.record())


def find_coalitions(
    result: InteractionResult,
    k: int | None = None,
    affinity: str = "positive",
    layers: Sequence[int] | None = None,
    within_kv: bool = False,
) -> Coalitions:
    """The coalitions of every layer of a result, or of `layers` (true indices), under the coupling that it shows.

    Raises
    ------
    ValueError
        For a layer that the result does not hold, and for what `cluster_heads` refuses.
    """
    groups = kv_groups(result.n_heads, result.n_kv_heads) if within_kv else None
    entries = []
    for layer in map(int, result.layers if layers is None else layers):
        found = cluster_heads(result.G[result.row_of(layer)], k, affinity, layer, groups)
        entries.append(replace(found, kv=kv_agreement(result, layer, found.labels, within_kv)))
    shape = result.n_heads, result.n_kv_heads
    return Coalitions(tuple(entries), result.coupling, affinity, k, within_kv, *shape, result.provenance)
