"""What is chosen on the game page, each in the link: layer, benefits, a head, and what makes a free rider."""

from __future__ import annotations

import streamlit as st

from analysis.figure_data import head_names
from analysis.game import LOW_EFFECT, VIF_THRESHOLD
from analysis.game_result import BENEFITS
from pages._game_data import Settings
from pages._sides import Side, telling_layer
from pages._widgets import linked_or_said

VIF_THRESHOLDS = (1.05, 1.1, 1.2, 1.5, 2.0, 3.0, VIF_THRESHOLD, 10.0, 20.0)
LOW_EFFECTS = (1e-4, 3e-4, LOW_EFFECT, 3e-3, 1e-2, 3e-2)
_NO_HEAD = "none"


def controls(sides: list[Side]) -> Settings:
    """The controls above the pictures; those of free riders are in their tab (`thresholds`)."""
    state = st.session_state
    layers = sorted({int(layer) for side in sides for layer in side.result.layers})
    heads = [_NO_HEAD, *range(max(side.result.n_heads for side in sides))]
    linked_or_said("layer", layers, telling_layer(sides))
    linked_or_said("benefits", BENEFITS, "equal")
    linked_or_said("head", heads, _NO_HEAD)
    linked_or_said("vif", VIF_THRESHOLDS, VIF_THRESHOLD)
    linked_or_said("low", LOW_EFFECTS, LOW_EFFECT)
    names = head_names(state["layer"], len(heads) - 1)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        if len(layers) > 1:  # a slider needs two ends
            st.select_slider("Layer", layers, key="layer", persist_state="session", width=240, help="Or a click on the chart.")
        st.segmented_control(
            "Benefits",
            BENEFITS,
            key="benefits",
            required=True,
            persist_state="session",
            help="What a head's effort is worth, $b_i$. **equal**: 1 for all. **measured**: the rise of the cross-entropy when "
            r"the head is removed, to first order, $-\sum_t \langle g_{i,t}, z_{i,t}\rangle$ per token.",
        )
        st.selectbox(
            "Head",
            heads,
            format_func=lambda head: head if head == _NO_HEAD else names[head],
            key="head",
            persist_state="session",
            width=110,
            help="Marked in bars and heatmap; a click on either picks it too.",
        )
    head = None if state["head"] == _NO_HEAD else state["head"]
    return Settings(state["layer"], state["benefits"], head, state["vif"], state["low"])


def thresholds() -> None:
    """The two thresholds that make a free rider."""
    with st.container(horizontal=True, gap="large"):
        st.select_slider(
            "Redundant above a VIF of",
            VIF_THRESHOLDS,
            format_func="{:g}".format,
            key="vif",
            persist_state="session",
            width=300,
            help=r"$\mathrm{VIF}_i = [G^{-1}]_{ii} = 1/(1 - R_i^2)$: 1 for a head that the others do not explain.",
        )
        st.select_slider(
            "Free rider below a loss of",
            LOW_EFFECTS,
            format_func="{:g}".format,
            key="low",
            persist_state="session",
            width=300,
            help="Nats per token that the cross-entropy rises by when the head alone writes nothing.",
        )


def pick_head(chart: str, count: int) -> None:
    """The head follows a click on a bar or a cell; a click on the head that is marked already unmarks it."""
    points = st.session_state[chart]["selection"]["points"]
    if points:
        clicked = points[0]["customdata"]
        head = int(clicked[0] if isinstance(clicked, list) else clicked)
        if head < count:
            st.session_state["head"] = _NO_HEAD if st.session_state["head"] == head else head
