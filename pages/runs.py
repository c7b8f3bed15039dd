"""Runs: every fine-tune of the workspace side by side."""

import streamlit as st

from gamelora.run_table import RunRow, table
from pages._attempt import show_refusal
from pages._frame import View
from pages._runs_actions import actions
from pages._runs_chart import draw_diff, draw_overlay
from pages._runs_data import KnownRun, known_runs
from pages._runs_table import draw_table, filtered
from pages._widgets import header

_TICK_SECONDS = 10.0


def main(view: View) -> None:
    header("Runs", "Every fine-tune of this workspace: how it went, how far apart two of them are, and what they left to use.")
    show_refusal()
    known = known_runs(view)
    if not known:
        _empty()
        return
    _follow_live(known, view)
    rows = filtered(known)
    if not rows:
        st.info("No run holds all of these words, states and tags. Take one away to see more.")
    chosen = draw_table(rows, known)
    _count(rows, known)
    if not chosen:
        st.info("Choose runs by the boxes at the left of the table: their curves are drawn over each other here.")
        return
    every_tag = sorted({tag for one in known.values() for tag in one.row.tags})
    actions(chosen, every_tag, view)
    draw_overlay(chosen)
    st.subheader("Settings that differ", anchor=False)
    draw_diff(chosen)


def _empty() -> None:
    with st.container(border=True, key="no_runs"):
        st.markdown("**There is no run in this workspace yet.** A fine-tune appears here as soon as it is started.")
        if st.button("Set up a fine-tune", type="primary", key="first_run"):
            st.switch_page("pages/train.py")


def _count(rows: list[RunRow], known: dict[str, KnownRun]) -> None:
    """How many of how many, and the table as a file."""
    shown = f"{len(rows)} of {len(known)} runs" if len(rows) < len(known) else f"{len(known)} run{'s' * (len(known) != 1)}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{shown}. Layers count from 0; the download has all digits.", width="stretch")
        st.download_button(
            "Table (CSV)",
            lambda: table(rows).to_csv(index=False).encode(),
            file_name="runs.csv",
            mime="text/csv",
            key="table_csv",
            on_click="ignore",
            disabled=not rows,
        )


def _follow_live(known: dict[str, KnownRun], view: View) -> None:
    """While a run is at work, look every ten seconds whether there is something new, and draw the page anew when there is."""
    if not any(one.now.live for one in known.values()):
        return
    seen = {name: (one.row.state, one.row.step) for name, one in known.items()}

    @st.fragment(run_every=_TICK_SECONDS)
    def look() -> None:
        if {name: (one.row.state, one.row.step) for name, one in known_runs(view).items()} != seen:
            st.rerun()

    look()


main(st.session_state["view"])
