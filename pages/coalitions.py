"""Coalitions: who acts together in a layer, and how sure are we?"""

import numpy as np
import streamlit as st

from analysis.coalition_figures import coalition_graph
from analysis.coalition_style import looks
from analysis.figure_data import symmetric_limit
from analysis.head_graph import head_graph
from pages import _coalitions_export
from pages import _coalitions_tabs as tabs
from pages._coalitions_controls import THRESHOLDS, chosen_threshold, controls
from pages._coalitions_data import coalitions_of, comparison_of, judged
from pages._coalitions_tabs import Screen
from pages._coalitions_words import agreement, numbers, strip, verdict
from pages._frame import View
from pages._sides import ready_sides
from pages._widgets import header, linked, plain

TABS = {
    "Stability": tabs.stability,
    "A against B": tabs.comparison,
    "Flow": tabs.flow,
    "Eigengap": tabs.eigengap,
    "Export": _coalitions_export.export,
}


def main(view: View) -> None:
    header("Coalitions", "Which heads of a layer act together, how sure that is, and what a change of checkpoint does to them.")
    sides = ready_sides(view)
    if not sides:
        return
    side, layer, settings = controls(sides)
    if layer not in side.result.layers:
        st.info(f"{plain(side.name)} has no attention layer {layer}. Choose another layer, or the other checkpoint.")
        return
    if side.result.n_heads == 1:
        st.info(f"{plain(side.name)} has one head a layer, so there is no one for it to act with.")
        return
    entry, found = judged(side, settings, layer), coalitions_of(side, settings)
    G = side.result.G[side.result.row_of(layer)]
    threshold = chosen_threshold(G)
    screen = Screen(sides, side, layer, settings, threshold, G, entry, found, comparison_of(sides, side, settings))
    _pictures(screen)
    agreement(screen)
    numbers(screen)
    strip(screen)
    verdict(screen)
    for tab, draw in zip(st.tabs(list(TABS), key="tab", bind="query-params"), TABS.values(), strict=True):
        if tab.open:
            with tab:
                draw(screen)


def _pictures(screen: Screen) -> None:
    """The reordered heatmap beside the graph; below each how to read it."""
    left, right = st.columns(2, gap="medium")
    limit, k = symmetric_limit(screen.G), screen.entry.k
    graph = head_graph(screen.side.result, screen.entry, screen.threshold)
    with left:
        chart = tabs.heatmap(screen, screen.G, limit)
        st.plotly_chart(chart, key="reordered", alt=f"G of layer {screen.layer}, heads sorted into {k} coalitions")
        st.caption(
            f"G of layer {screen.layer}, {screen.side.result.coupling} coupling, heads sorted by coalition, blocks outlined. "
            f"Colour runs from {-limit:.3g} to {limit:.3g}, white at 0; the diagonal, always 1, is left out."
        )
    with right:
        st.plotly_chart(
            coalition_graph(graph, looks(screen.entry)), key="graph", alt=f"Graph of the heads of layer {screen.layer}"
        )
        options = sorted({*THRESHOLDS, screen.threshold})
        linked("threshold", options, screen.threshold)
        st.select_slider(
            "Edges from |G| of",
            options,
            format_func="{:g}".format,
            key="threshold",
            persist_state="session",
            help="Wide edges: large |G|. Purple: G > 0. Green and dashed: G < 0. Colour and shape of a head: its coalition.",
        )
        pairs = screen.pairs
        st.caption(
            f"{graph.number_of_edges()} of {len(pairs)} edges left."
            if graph.number_of_edges()
            else f"No edge left: the largest |G| is {np.abs(pairs).max():.3g}. Lower the threshold."
        )


main(st.session_state["view"])
