"""The export tab of the coalitions page: one layer in any format, or the paper bundle of chosen layers, made on the click."""

from __future__ import annotations

from functools import partial

import numpy as np
import streamlit as st

from analysis.coalition_paper import WIDTHS
from analysis.compare import Comparison
from analysis.export import LAYER_FORMATS, bundle, layer_file
from analysis.paper_figures import FORMATS as FIGURE_FORMATS
from pages._coalitions_data import only, resampled
from pages._coalitions_tabs import Screen
from pages._widgets import plain

_LABELS = {
    "graphml": "GraphML",
    "gexf": "GEXF",
    "tikz": "TikZ",
    "json": "JSON",
    "csv": "Edges (CSV)",
    "matrix-csv": "Matrices (CSV)",
    "matrix-npz": "Matrices (NPZ)",
}


def export(screen: Screen) -> None:
    """Every format of the layer on screen, then the bundle."""
    stem = f"{screen.side.measurement.path.stem}_{screen.side.result.coupling}"
    st.markdown(f"**Layer {screen.layer}** of {plain(screen.side.name)}, edges with |G| of at least {screen.threshold:g}")
    empty = _without_edge(screen, [screen.layer])
    if empty:
        st.info(empty)
    with st.container(horizontal=True):
        for kind, label in _LABELS.items():
            disabled = bool(empty) and not kind.startswith("matrix")
            _download(screen, kind, "column", label, f"{_part(kind)}_L{screen.layer}_{stem}", disabled)
    for width, inches in WIDTHS.items():
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"Graph at {width} width, {inches:g} in", width=250)
            for kind in FIGURE_FORMATS:
                _download(screen, kind, width, kind.upper(), f"graph_{width}_L{screen.layer}_{stem}", bool(empty))
    st.divider()
    _paper_bundle(screen, stem)


def _part(kind: str) -> str:
    return "matrices" if kind.startswith("matrix") else "edges" if kind == "csv" else "graph"


def _download(screen: Screen, kind: str, width: str, label: str, name: str, disabled: bool) -> None:
    make = partial(layer_file, screen.side.result, screen.entry, kind, screen.threshold, width)
    name += LAYER_FORMATS[kind]
    st.download_button(label, make, file_name=name, key=f"download_{name}", on_click="ignore", disabled=disabled)


def _paper_bundle(screen: Screen, stem: str) -> None:
    """The bundle of the chosen layers; it takes seconds a layer, so that is said."""
    st.markdown(
        "**Paper bundle**: one zip with all of the above, figures at both widths with embedded fonts, captions.tex, BibTeX and "
        "provenance.json."
    )
    every = [entry.layer for entry in screen.found.layers]
    if "bundle" not in st.session_state:
        asked = st.query_params.get("bundle", "").split(",")
        st.session_state["bundle"] = [layer for layer in every if str(layer) in asked] or [screen.layer]
    st.session_state["bundle"] = [layer for layer in st.session_state["bundle"] if layer in every]
    layers = st.multiselect("Layers", every, key="bundle", persist_state="session", format_func="L{}".format)
    st.query_params["bundle"] = ",".join(map(str, layers))
    compared = screen.comparison if isinstance(screen.comparison, Comparison) else None
    if compared is not None and not st.toggle("With the comparison of A and B", True, key="bundle_compared"):
        compared = None
    empty = _without_edge(screen, layers)
    if empty:
        st.info(empty)
    st.download_button(
        "Paper bundle (ZIP)",
        lambda: bundle(screen.side.result, resampled(screen.side.result, only(screen.found, layers)), screen.threshold, compared),
        file_name=f"coalitions_{stem}.zip",
        mime="application/zip",
        key="download_bundle",
        on_click="ignore",
        type="primary",
        disabled=bool(empty) or not layers,
    )
    st.caption("Made on the click, some seconds a layer; the same bytes every time.")


def _without_edge(screen: Screen, layers: list[int]) -> str:
    """Which of the layers the threshold leaves without an edge, and what to do; empty when none."""
    result = screen.side.result
    largest = {layer: np.abs(result.G[result.row_of(layer)][np.triu_indices(result.n_heads, k=1)]).max() for layer in layers}
    bare = [f"{layer} (largest |G| {value:.3g})" for layer, value in largest.items() if value < screen.threshold]
    return f"At this threshold no edge is left in layer {', '.join(bare)}: lower it to export a graph." if bare else ""
