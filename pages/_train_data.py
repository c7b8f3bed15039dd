"""What the live view of a run reads: its metrics, once and then only what is new, and the figure that they fill."""

from __future__ import annotations

import threading

import plotly.graph_objects as go
import streamlit as st

from gamelora.run_metrics import RunMetrics
from gamelora.runs import Run
from gamelora.training_figures import Grid, draw, fill, grid_of


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


def chart(name: str, metrics: RunMetrics) -> go.Figure | None:
    """The run's figure, built once a session and then only filled; None before the first metric."""
    grid = grid_of(metrics)
    if not grid.panels:
        return None
    kept: tuple[str, Grid, go.Figure] | None = st.session_state.get("train_figure")
    if kept is None or kept[:2] != (name, grid):
        kept = (name, grid, draw(grid))
        st.session_state["train_figure"] = kept
    return fill(kept[2], grid, metrics)
