"""What is chosen on the coalitions page, each in the link: whose coalitions, of which layer, found how, and the threshold."""

from __future__ import annotations

import numpy as np
import streamlit as st

from analysis.spectral import AFFINITIES
from pages._coalitions_data import Settings
from pages._sides import Side, telling_layer
from pages._widgets import linked_or_said, plain

SCOPES = {"all": "all heads", "kv": "within kv groups"}
THRESHOLDS = (0.0, *(float(f"{digit}e-{power}") for power in (4, 3, 2, 1) for digit in (1, 2, 3, 5, 7)), 1.0)
_EDGES_A_HEAD = 2  # at most, in the graph of a first visit


def controls(sides: list[Side]) -> tuple[Side, int, Settings]:
    """Whose coalitions, of which layer, found how."""
    labels = [side.label for side in sides]
    linked_or_said("of", labels, labels[0])
    side = sides[labels.index(st.session_state["of"])]
    result, layers = side.result, sorted({int(layer) for one in sides for layer in one.result.layers})
    linked_or_said("layer", layers, telling_layer(sides))
    linked_or_said("k", ["auto", *range(1, result.n_heads + 1)], "auto")
    linked_or_said("affinity", AFFINITIES, "positive")
    shared = 1 < result.n_kv_heads < result.n_heads
    linked_or_said("scope", list(SCOPES) if shared else ["all"], "all")
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


def chosen_threshold(G: np.ndarray) -> float:
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
