"""Clicks that may be refused: the run may have changed since it was drawn, or the workspace cannot be written."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages._widgets import plain

_KEY = "train_refusal"


def attempt(act: Callable, *arguments) -> bool:
    """Do it; whether it could be done. `show_refusal` says why not, once."""
    try:
        act(*arguments)
    except (ValueError, OSError) as error:
        st.session_state[_KEY] = str(error)
        return False
    return True


def show_refusal() -> None:
    """Why the last click could not be done."""
    if sentence := st.session_state.pop(_KEY, None):
        st.error(plain(sentence))
