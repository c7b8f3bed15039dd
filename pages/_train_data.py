"""The metrics of runs, read once and then only what is new, shared by all sessions."""

from __future__ import annotations

import threading

import streamlit as st

from gamelora.run_metrics import RunMetrics
from gamelora.runs import Run


class _Reader:
    """The metrics of one run, shared by all sessions that watch it."""

    def __init__(self) -> None:
        self._metrics = RunMetrics()
        self._lock = threading.Lock()

    def read(self, run: Run) -> RunMetrics:
        with self._lock:
            self._metrics = self._metrics.read_on(run)
            return self._metrics


@st.cache_resource(max_entries=1000, show_spinner=False)
def _reader(folder: str) -> _Reader:
    return _Reader()


def metrics_of(run: Run) -> RunMetrics:
    """All that the run has told so far."""
    return _reader(str(run.folder)).read(run)
