"""What the coalitions page computes, kept by file, coupling and settings: clusterings, the stability of a layer, comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from analysis.coalitions import Coalitions, LayerCoalitions, find_coalitions
from analysis.compare import Comparison, compare
from analysis.results import InteractionResult
from analysis.stability import RESAMPLES, bootstrap
from pages._sides import Side
from pages._widgets import sentence

Stamp = tuple[str, int, str]


@dataclass(frozen=True)
class Settings:
    """How coalitions are found, as in `find_coalitions`; k None is the eigengap."""

    k: int | None
    affinity: str
    within_kv: bool


def coalitions_of(side: Side, settings: Settings) -> Coalitions:
    """The coalitions of every layer whose G is finite; a layer with a broken G is refused only when it is asked for."""
    return _coalitions(_stamp(side), settings, side.result)


def judged(side: Side, settings: Settings, layer: int) -> LayerCoalitions:
    """The coalitions of one layer with their stability, where it can be judged.

    Raises
    ------
    ValueError
        When the layer's G is not finite (names its heads).
    """
    found = coalitions_of(side, settings)
    if layer not in [entry.layer for entry in found.layers]:
        find_coalitions(side.result, settings.k, settings.affinity, [layer], settings.within_kv)  # says why
    return _judged(_stamp(side), settings, layer, side.result, found).layers[0]


def resampled(result: InteractionResult, found: Coalitions) -> Coalitions:
    """With the stability of each layer; as they are when the result holds one batch, which cannot be resampled."""
    return bootstrap(result, found, RESAMPLES) if len(result.batch_tokens) > 1 else found


def comparison_of(sides: list[Side], of: Side, settings: Settings) -> Comparison | str:
    """A against B with the coalitions of `of` held fixed, or the sentence that says why there is none."""
    if len(sides) < 2:
        return "There is no B to compare with: choose a second checkpoint of the same model in the sidebar."
    before, after = sides
    try:
        return _comparison((_stamp(before), _stamp(after)), of.label, settings, before.result, after.result)
    except ValueError as error:
        return sentence(error)


def only(found: Coalitions, layers: list[int]) -> Coalitions:
    """The same coalitions of some layers."""
    return replace(found, layers=tuple(found.of_layer(layer) for layer in layers))


def _stamp(side: Side) -> Stamp:
    path = side.measurement.path
    return str(path), path.stat().st_mtime_ns, side.result.coupling


@st.cache_data(max_entries=64, show_spinner="Clustering the heads of every layer")
def _coalitions(stamp: Stamp, settings: Settings, _result: InteractionResult) -> Coalitions:
    finite = np.isfinite(_result.G).all(axis=(1, 2))
    return find_coalitions(_result, settings.k, settings.affinity, _result.layers[finite], settings.within_kv)


@st.cache_data(max_entries=512, show_spinner=f"Clustering {RESAMPLES} resamples of the batches")
def _judged(stamp: Stamp, settings: Settings, layer: int, _result: InteractionResult, _found: Coalitions) -> Coalitions:
    return resampled(_result, only(_found, [layer]))


@st.cache_data(max_entries=64, show_spinner="Permuting the heads over the coalitions")
def _comparison(
    stamps: tuple[Stamp, Stamp], of: str, settings: Settings, _before: InteractionResult, _after: InteractionResult
) -> Comparison:
    fixed = "before" if of == "A" else "after"
    return compare(_before, _after, fixed, settings.k, settings.affinity, settings.within_kv)
