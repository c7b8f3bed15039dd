"""Clicks that may be refused: what they act on may have changed since it was drawn, or the workspace cannot be written."""

from __future__ import annotations

import errno
from collections.abc import Callable

import streamlit as st

from pages._widgets import plain

_KEY = "refusal"
_CANNOT_WRITE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


def refusal(act: Callable, *arguments) -> str | None:
    """Do it; the sentence that says why it could not be done."""
    try:
        act(*arguments)
    except OSError as error:
        if error.errno in _CANNOT_WRITE:
            return f"the workspace cannot be written ({error.strerror}): free space or allow writing there."
        return str(error)
    except ValueError as error:
        return str(error)
    return None


def attempt(act: Callable, *arguments) -> bool:
    """Do it; whether it could be done. `show_refusal` says why not, once."""
    st.session_state[_KEY] = refusal(act, *arguments)
    return st.session_state[_KEY] is None


def show_refusal() -> None:
    """Why the last click could not be done."""
    if sentence := st.session_state.pop(_KEY, None):
        st.error(plain(sentence))
