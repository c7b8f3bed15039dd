"""From a checkpoint of a run to what it changed: it and its base measured, and shown as B and A."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from gamelora.checkpoint_sources import CheckpointSource
from pages._cache import request_of
from pages._frame import View


def analyse(tuned: CheckpointSource, design_layers: Sequence[int], view: View) -> None:
    """Open the Interaction page with A = the base and B = the checkpoint, and measure what is not measured yet.

    On the text and tokens of the sidebar, at the first of the layers that the run regularized.

    Raises
    ------
    OSError
        When the workspace cannot be written.
    """
    base = replace(tuned, adapter=None, run=None, step=None)
    for key, source in (("a", base), ("b", tuned)):
        request = request_of(source, view.default.text, view.default.tokens)
        known = view.found.get(request.name)
        if known is None or known.provenance is None or not source.made(known.provenance):
            request.start()
        st.session_state[f"next_{key}"] = source.title if source.run else request.name
    if design_layers:
        st.session_state["layer"] = design_layers[0]
    st.switch_page("pages/interaction.py")
