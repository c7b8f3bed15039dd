"""Coalitions: who acts together in a layer, and how sure are we?"""

import numpy as np
import streamlit as st

from analysis.coalition_figures import coalition_graph
from analysis.coalition_style import looks
from analysis.figure_data import symmetric_limit
from analysis.head_graph import head_graph
from analysis.spectral import AFFINITIES
from pages import _coalitions_export
from pages import _coalitions_tabs as tabs
from pages._coalitions_data import Settings, coalitions_of, comparison_of, judged
from pages._coalitions_tabs import Screen
from pages._coalitions_words import agreement, numbers, strip, verdict
from pages._frame import View
from pages._sides import Side, ready_sides
from pages._widgets import header, linked, plain

TABS = {
    "Stability": tabs.stability,
    "A against B": tabs.comparison,
    "Flow": tabs.flow,
    "Eigengap": tabs.eigengap,
    "Export": _coalitions_export.export,
}
SCOPES = {"all": "all heads", "kv": "within kv groups"}
THRESHOLDS = (0.0, *(float(f"{digit}e-{power}") for power in (4, 3, 2, 1) for digit in (1, 2, 3, 5, 7)), 1.0)
_EDGES_A_HEAD = 2  # at most, in the graph of a first visit


def main(view: View) -> None:
    header("Coalitions", "Which heads of a layer act together, how sure that is, and what a change of checkpoint does to them.")
    sides = ready_sides(view)
    if not sides:
        return
    side, layer, settings = _controls(sides)
    if layer not in side.result.layers:
        st.info(f"{plain(side.name)} has no attention layer {layer}. Choose another layer, or the other checkpoint.")
        return
    if side.result.n_heads == 1:
        st.info(f"{plain(side.name)} has one head a layer, so there is no one for it to act with.")
        return
    entry, found = judged(side, settings, layer), coalitions_of(side, settings)
    G = side.result.G[side.result.row_of(layer)]
    threshold = _threshold(G)
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


def _controls(sides: list[Side]) -> tuple[Side, int, Settings]:
    """Whose coalitions, of which layer, found how."""
    labels = [side.label for side in sides]
    _linked("of", labels, labels[0])
    side = sides[labels.index(st.session_state["of"])]
    result, layers = side.result, sorted({int(layer) for one in sides for layer in one.result.layers})
    _linked("layer", layers, int(result.layers[result.gamma.argmax()]))
    _linked("k", ["auto", *range(1, result.n_heads + 1)], "auto")
    _linked("affinity", AFFINITIES, "positive")
    shared = 1 < result.n_kv_heads < result.n_heads
    _linked("scope", list(SCOPES) if shared else ["all"], "all")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if len(sides) > 1:
            st.segmented_control("Coalitions of", labels, key="of", required=True, persist_state="session")
        if len(layers) > 1:  # a slider needs two ends
            st.select_slider("Layer", layers, key="layer", persist_state="session", width=180, help="Arrow keys move it.")
        st.selectbox(
            "How many",
            ["auto", *range(1, result.n_heads + 1)],
            key="k",
            persist_state="session",
            width=95,
            help="auto: at the largest gap between eigenvalues of the Laplacian, when it is larger than shuffled couplings give.",
        )
        st.selectbox(
            "Affinity",
            AFFINITIES,
            key="affinity",
            persist_state="session",
            width=120,
            help="What draws two heads together: **positive** max(G, 0); **absolute** |G|; **shifted** (1 + G)/2.",
        )
        if shared:
            st.segmented_control(
                "Scope",
                list(SCOPES),
                format_func=SCOPES.get,
                key="scope",
                required=True,
                persist_state="session",
                help="Within kv groups: coupling between heads of different key/value heads is left out.",
            )
    state = st.session_state
    return side, state["layer"], Settings(None if state["k"] == "auto" else state["k"], state["affinity"], state["scope"] == "kv")


def _linked(key: str, options: list, default: object) -> None:
    """`linked`, and a word when the link asks for what is not there."""
    wanted = st.query_params.get(key)
    if wanted and key not in st.session_state and wanted not in map(str, options):
        some = f"{options[0]} to {options[-1]}" if len(options) > 1 else str(options[0])
        st.warning(f"The link asks for {key} {plain(wanted)}; there is {plain(some)}. Shown is {plain(default)}.")
    linked(key, options, default)


def _threshold(G: np.ndarray) -> float:
    """The threshold of the graph: as chosen, else the link's, else one that leaves a graph to look at."""
    state, pairs = st.session_state, np.abs(G[np.triu_indices(len(G), k=1)])
    default = next((one for one in THRESHOLDS if (pairs >= one).sum() <= _EDGES_A_HEAD * len(G)), 0.0)
    if "threshold" not in state:
        state["threshold"] = default
        if wanted := st.query_params.get("threshold"):
            try:
                state["threshold"] = float(wanted)
            except ValueError:
                st.warning(f"The link asks for a threshold of {plain(wanted)}, which is no number. Shown is {default:g}.")
    if not 0 <= state["threshold"] <= 1:
        st.warning(f"The link asks for a threshold of {state['threshold']:g}; |G| lies between 0 and 1. Shown is {default:g}.")
        state["threshold"] = default
    return state["threshold"]


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
