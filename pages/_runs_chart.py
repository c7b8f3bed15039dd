"""The charts of the Runs page: one metric of the chosen runs over each other, and the settings in which they differ."""

from __future__ import annotations

import streamlit as st

from gamelora.run_figures import overlay_figure
from gamelora.run_metrics import title
from gamelora.run_table import config_diff, metric_names, overlay
from pages._runs_data import KnownRun
from pages._widgets import linked_or_said, plain

_SMOOTHING = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_RAW_AT_MOST = 4  # runs whose unsmoothed curve is drawn too, before lines cover each other


def draw_overlay(chosen: list[KnownRun]) -> None:
    """One metric of all chosen runs, smoothed as asked."""
    names = metric_names(one.metrics for one in chosen)
    if not names:
        st.info("None of the chosen runs has written a metric yet. The first comes once its model is loaded.")
        return
    linked_or_said("metric", names, names[0])
    linked_or_said("smooth", _SMOOTHING, 0.0)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        metric = st.selectbox("Metric", names, format_func=title, key="metric", persist_state="session", width=380)
        smoothing = st.select_slider(
            "Smoothing",
            _SMOOTHING,
            format_func="{:g}".format,
            key="smooth",
            persist_state="session",
            width=220,
            help="Exponential moving average: a value counts this much of the one after it. 0 shows the values as they are.",
        )
    metrics = {one.now.name: one.metrics for one in chosen}
    curves = overlay(metrics, metric, smoothing)
    raw = overlay(metrics, metric) if smoothing and len(curves) <= _RAW_AT_MOST else None
    st.plotly_chart(overlay_figure(curves, title(metric), raw), key="overlay", alt=f"{title(metric)} of {len(curves)} runs")
    without = [name for name in metrics if name not in curves]
    if without:
        st.caption(f"Without this metric: {plain(', '.join(without))}.")


def draw_diff(chosen: list[KnownRun]) -> None:
    """The settings in which the chosen runs differ."""
    known = {one.now.name: one.settings for one in chosen if one.settings}
    unknown = [one.now.name for one in chosen if not one.settings]
    if unknown:
        st.caption(f"Left out, because its settings cannot be read: {plain(', '.join(unknown))}.")
    if len(known) < 2:
        st.info("Choose two or more runs in the table to see in which settings they differ.")
        return
    differing = config_diff(known)
    if differing.empty:
        st.info("These runs have the same settings.")
        return
    st.dataframe(
        differing.rename_axis("setting"),
        key="diff",
        column_config={"what it is": st.column_config.TextColumn(width=420)},
        alt="Settings in which the chosen runs differ",
    )
