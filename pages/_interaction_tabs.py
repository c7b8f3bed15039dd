"""The tabs of the interaction page; each draws only while it is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st
from matplotlib.figure import Figure
from pandas.io.formats.style import Styler

from analysis import figures, paper_figures
from analysis.figure_data import NEUTRAL_COLOR, Curve, Panel, symmetric_limit
from analysis.results import InteractionResult
from analysis.tables import matrices_csv, matrices_npz, pair_table
from pages._downloads import download, figure_downloads
from pages._sides import Side
from pages._widgets import linked, plain

_PAIRS_SHOWN = 500
MATRICES = {"G": "G", "omega": "ω", "rho": "ρ"}


@dataclass(frozen=True)
class Screen:
    """What the page shows above the tabs, for the tabs to detail and to download.

    `panels` are the heatmaps on screen by "A", "B" and "B - A"; all are of one layer, and a side without that layer has none.
    """

    sides: list[Side]
    layer: int
    matrix: str  # "G", "omega" or "rho"
    panels: dict[str, Panel]
    limit: float
    gamma: list[Curve]
    normalized: bool

    @property
    def comparable(self) -> bool:
        """Whether B - A exists in every layer."""
        shapes = {(side.result.n_heads, tuple(side.result.layers)) for side in self.sides}
        return len(self.sides) == 2 and len(shapes) == 1


def pairs(screen: Screen) -> None:
    """The strongest pairs of A or B, of the layer or of all."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        side = _side_picker(screen, "pairs_of")
        scope = st.segmented_control(
            "Layers", ("this layer", "all layers"), default="this layer", key="pairs_scope", required=True, persist_state="page"
        )
    if scope == "this layer" and side.label not in screen.panels:
        st.info(f"{plain(side.name)} has no attention layer {screen.layer}.")
        return
    gauge = side.gauge
    table = pair_table(side.result, screen.layer if scope == "this layer" else None, gauge and gauge.noise_floor)
    if table.empty:
        st.info(f"{plain(side.name)} has one head a layer, so there is no pair of heads.")
        return
    number = partial(st.column_config.NumberColumn, format="%.3g")
    st.dataframe(
        _greyed(table.head(_PAIRS_SHOWN)),
        key="pairs_table",
        hide_index=True,
        height=380,
        column_config={
            "layer": "Layer",
            "head_i": "Head",
            "head_j": "with head",
            "omega": number("ω", help="Weight coupling"),
            "rho": number("ρ", help="Gradient coupling"),
            "G": number("G", help="G = ω · ρ"),
            "same_kv_group": st.column_config.CheckboxColumn("Same kv group"),
            "inactive": st.column_config.CheckboxColumn(
                "Inactive head", help="No output weight or no gradient: couplings are 0."
            ),
            "noise_floor": number("Noise floor", help="Half of the 95 % interval of G over random value bases (gauge check)."),
            "in_noise": None,
        },
        alt="Pairs of heads by falling |G|",
    )
    listed = f"The first {_PAIRS_SHOWN:,} of" if len(table) > _PAIRS_SHOWN else "All"
    st.caption(f"{listed} {len(table):,} pairs by falling |G|; click a column to sort by it. The download has all.")
    if gauge is not None:
        inside = f"{int(table['in_noise'].sum()):,} of {len(table):,} pairs are grey"
        st.caption(f"{inside}: their |G| is inside the noise floor, no more than the choice of value bases alone moves it by.")
    st.download_button(
        "All pairs as CSV",
        lambda: table.to_csv(index=False).encode(),
        file_name=f"pairs_{side.measurement.path.stem}.csv",
        mime="text/csv",
        key="pairs_csv",
        on_click="ignore",
    )


def _greyed(table: pd.DataFrame) -> pd.DataFrame | Styler:
    """With the pairs inside the noise floor in grey, where there is one."""
    if "in_noise" not in table:
        return table
    style = f"color: {NEUTRAL_COLOR}; opacity: 0.6"
    return table.style.apply(lambda row: [style if row["in_noise"] else ""] * len(row), axis=1)


def all_layers(screen: Screen) -> None:
    """Every layer of A, B or B - A in one raster; a click on a tile picks the layer."""
    shown, matrices, result = _glance(screen, picker=True)
    limit = symmetric_limit(matrices)
    scale = f"colour from {-limit:.3g} to {limit:.3g}, white at 0"
    st.caption(f"{shown}, {MATRICES[screen.matrix]}, {scale}. A click on a layer opens it above.")
    figure = figures.all_layers(matrices, result.layers, result.gamma, limit, screen.layer)
    alt = f"{screen.matrix} of every layer"
    st.plotly_chart(figure, width="content", key="tiles", on_select=_pick_layer_of_tile, selection_mode="points", alt=alt)


def _pick_layer_of_tile() -> None:
    """The layer slider follows a click on a tile."""
    points = st.session_state["tiles"]["selection"]["points"]
    if points:
        st.session_state["layer"] = int(points[0]["customdata"][0])


def spectrum(screen: Screen) -> None:
    """Eigenvalues of G of the layer."""
    st.plotly_chart(figures.spectrum(_eigenvalues(screen)), key="eigenvalues", alt="Eigenvalues of G")
    st.caption(
        f"Eigenvalues of G in layer {screen.layer}, largest first. They add up to the number of heads; all are 1 when no head is "
        "coupled to another. A few large ones mean that few independent directions carry the layer."
    )


def data(screen: Screen) -> None:
    """Downloads of what is on screen; each file is made on the click."""
    stem = f"{screen.matrix}_L{screen.layer}"
    st.markdown(f"**Layer {screen.layer}, {MATRICES[screen.matrix]}**: the matrices above, all digits.")
    with st.container(horizontal=True):
        _matrix_downloads(screen, stem)
        for side in screen.sides:
            path = side.measurement.path
            download(f"Whole result {side.label} (NPZ)", path.read_bytes, path.name, "application/zip")
    st.markdown("**Figures**, at a journal's column or page width, fonts embedded.")
    for name, draw in _paper_figures(screen).items():
        figure_downloads(name, draw, f"{name.lower().replace(' ', '_')}_{stem}")


def _matrix_downloads(screen: Screen, stem: str) -> None:
    """CSV and NPZ of the heatmaps: together when they are of the same heads, else one a side."""
    together = len({len(panel.names) for panel in screen.panels.values()}) == 1
    told = {side.label: side.measurement.provenance for side in screen.sides}
    for group in [screen.panels] if together else [{label: panel} for label, panel in screen.panels.items()]:
        matrices = {label.replace(" - ", "_minus_"): panel.matrix for label, panel in group.items()}
        names = next(iter(group.values())).names
        of = "" if together else f"_{next(iter(group))}"
        download(f"CSV{of.replace('_', ' ')}", partial(matrices_csv, matrices, names), f"{stem}{of}.csv", "text/csv")
        download(f"NPZ{of.replace('_', ' ')}", partial(matrices_npz, matrices, names, told), f"{stem}{of}.npz", "application/zip")


def provenance(screen: Screen) -> None:
    """Where the numbers come from."""
    for column, side in zip(st.columns(len(screen.sides)), screen.sides, strict=True):
        with column:
            st.markdown(f"**{plain(side.name)}**  \n{plain(side.measurement.path)}")
            st.json(side.measurement.provenance, expanded=2)


def _paper_figures(screen: Screen) -> dict[str, Callable[[], Figure]]:
    shown, matrices, result = _glance(screen, picker=False)
    label = MATRICES[screen.matrix]
    return {
        "Layer heatmaps": lambda: paper_figures.heatmap_figure(list(screen.panels.values()), screen.limit, label),
        "Gamma by layer": lambda: paper_figures.gamma_figure(screen.gamma, screen.normalized),
        f"All layers of {shown}": lambda: paper_figures.all_layers_figure(
            matrices, result.layers, symmetric_limit(matrices), label
        ),
        "Spectrum": lambda: paper_figures.spectrum_figure(_eigenvalues(screen)),
    }


def _side_picker(screen: Screen, key: str) -> Side:
    if len(screen.sides) == 1:
        return screen.sides[0]
    labels = [side.label for side in screen.sides]
    chosen = st.segmented_control("Checkpoint", labels, default="A", key=key, required=True, persist_state="page")
    return screen.sides[labels.index(chosen)]


def _glance(screen: Screen, picker: bool) -> tuple[str, np.ndarray, InteractionResult]:
    """What the raster of all layers shows: its name, matrices [layers, heads, heads], and a result for layers and Gamma."""
    options = [side.label for side in screen.sides] + (["B - A"] if screen.comparable else [])
    if picker and len(options) > 1:
        linked("glance", options, "A")
        st.segmented_control("Shown", options, key="glance", required=True, persist_state="session")
    shown = st.session_state.get("glance", "A")
    shown = shown if shown in options else "A"
    first = screen.sides[0].result
    if shown == "B - A":
        second = screen.sides[1].result
        return shown, getattr(second, screen.matrix) - getattr(first, screen.matrix), second
    side = next(side for side in screen.sides if side.label == shown)
    return shown, getattr(side.result, screen.matrix), side.result


def _eigenvalues(screen: Screen) -> list[Curve]:
    curves = []
    for side in screen.sides:
        if screen.layer in side.result.layers:
            values = np.linalg.eigvalsh(side.result.G[side.result.row_of(screen.layer)])[::-1]
            curves.append(Curve(side.name, np.arange(1, len(values) + 1), values, side.color))
    return curves
