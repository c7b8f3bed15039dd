"""Interaction: how are the heads of a layer coupled?"""

import streamlit as st

from analysis import figures
from analysis.figure_data import NEUTRAL_COLOR, Panel, head_names, symmetric_limit
from pages import _interaction_tabs as tabs
from pages._frame import View
from pages._gauge import gauge_line
from pages._interaction_tabs import MATRICES, Screen
from pages._interaction_words import four_numbers, reading
from pages._sides import Side, gamma_curves, ready_sides, telling_layer
from pages._widgets import header, linked

TABS = {
    "Strongest pairs": tabs.pairs,
    "All layers": tabs.all_layers,
    "Spectrum": tabs.spectrum,
    "Data": tabs.data,
    "Provenance": tabs.provenance,
}


def main(view: View) -> None:
    header("Interaction", "How strongly the heads of a layer are coupled, by what they write and by what the loss asks of them.")
    sides = ready_sides(view)
    if not sides:
        return
    four_numbers(sides)
    layer, matrix = _controls(sides)
    screen = _screen(sides, layer, matrix)
    chart = figures.gamma_by_layer(screen.gamma, layer, screen.normalized)
    st.plotly_chart(
        chart, key="gamma", on_select=_pick_layer, selection_mode="points", alt="Gamma by layer; a click picks the layer"
    )
    gauge_line(sides)
    _heatmaps(screen)
    for tab, draw in zip(st.tabs(list(TABS), key="tab", bind="query-params"), TABS.values(), strict=True):
        if tab.open:
            with tab:
                draw(screen)


def _controls(sides: list[Side]) -> tuple[int, str]:
    """The layer, by slider, arrow keys or a click on a chart; and which matrix."""
    layers = sorted({int(layer) for side in sides for layer in side.result.layers})
    linked("layer", layers, telling_layer(sides))
    linked("matrix", list(MATRICES), "G")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        if len(layers) > 1:  # a slider needs two ends
            st.select_slider("Layer", layers, key="layer", persist_state="session", help="Arrow keys, or a click on the chart.")
        st.segmented_control(
            "Matrix",
            list(MATRICES),
            format_func=MATRICES.get,
            key="matrix",
            required=True,
            persist_state="session",
            help="ω: weight coupling. ρ: gradient coupling. G = ω ∘ ρ: both.",
        )
    return st.session_state["layer"], st.session_state["matrix"]


def _pick_layer() -> None:
    """The layer slider follows a click on the chart."""
    points = st.session_state["gamma"]["selection"]["points"]
    if points:
        st.session_state["layer"] = int(points[0]["x"])


def _screen(sides: list[Side], layer: int, matrix: str) -> Screen:
    panels = {}
    for side in sides:
        if layer in side.result.layers:
            values = getattr(side.result, matrix)[side.result.row_of(layer)]
            names = head_names(layer, side.result.n_heads)
            panels[side.label] = Panel(side.name, values, names, side.result.n_kv_heads, side.color)
    if len(panels) == 2 and len(panels["A"].names) == len(panels["B"].names):
        difference = panels["B"].matrix - panels["A"].matrix
        panels["B - A"] = Panel("B − A", difference, panels["B"].names, panels["B"].n_kv_heads, NEUTRAL_COLOR)
    limit = symmetric_limit(*(panel.matrix for panel in panels.values()))
    return Screen(sides, layer, matrix, panels, limit, *gamma_curves(sides))


def _heatmaps(screen: Screen) -> None:
    """The heatmaps, and what they tell: beside a single one, below several."""
    beside = {"horizontal": True, "vertical_alignment": "center", "wrap": False} if len(screen.panels) == 1 else {}
    with st.container(gap="medium", **beside):
        chart = figures.layer_heatmaps(list(screen.panels.values()), screen.limit)
        st.plotly_chart(chart, width="content", key="heatmaps", alt=f"{screen.matrix} in layer {screen.layer}")
        with st.container(gap="small"):
            for sentence in reading(screen):
                st.caption(sentence)


main(st.session_state["view"])
