"""The runs and other jobs that wait for their turn: order and cancel."""

from __future__ import annotations

import streamlit as st

from gamelora import jobs
from pages._attempt import attempt
from pages._widgets import plain


def queue() -> None:
    """The waiting jobs, next one first; nothing when none waits."""
    waiting = jobs.queue()
    if not waiting:
        return
    st.subheader("Waiting for their turn", anchor=False)
    st.caption("One heavy job runs at a time; GAMELORA_JOBS_AT_ONCE allows more, also by device.")
    for position, job in enumerate(waiting):
        with st.container(horizontal=True, vertical_alignment="center", key=f"waiting_{position}"):
            st.markdown(f"{position + 1}. {plain(job.title)}", width=320)
            earlier, later = position > 0, position + 1 < len(waiting)
            st.button(
                "Earlier", key=f"up_{job.id}", disabled=not earlier, on_click=attempt, args=(jobs.move, job.id, position - 1)
            )
            st.button("Later", key=f"down_{job.id}", disabled=not later, on_click=attempt, args=(jobs.move, job.id, position + 1))
            st.button("Cancel", key=f"cancel_{job.id}", on_click=attempt, args=(jobs.stop, job.id))
