"""Buttons whose file is made on the click."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from matplotlib.figure import Figure

from analysis.paper_figures import FORMATS, figure_bytes


def download(label: str, make: Callable[[], bytes | str], file_name: str, mime: str, **options) -> None:
    """One button; `options` as `st.download_button` takes them."""
    options = {"key": f"download_{file_name}", "on_click": "ignore"} | options
    st.download_button(label, make, file_name=file_name, mime=mime, **options)


def figure_downloads(name: str, draw: Callable[[], Figure], stem: str, width: int = 260) -> None:
    """One row of buttons for a figure, a format each, behind its name of that width in pixels."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(name, width=width)
        for kind, mime in FORMATS.items():
            download(kind.upper(), lambda kind=kind: figure_bytes(draw(), kind), f"{stem}.{kind}", mime)
