"""Train: set up a fine-tune, start it, and watch it in the same place."""

import streamlit as st

from gamelora import training_jobs
from pages._frame import View
from pages._train_form import form
from pages._train_live import live
from pages._train_queue import queue
from pages._widgets import header, linked, plain


def main(view: View) -> None:
    header("Train", "Fine-tune a checkpoint with GAME-LoRA or one of its baselines; a run goes on when the browser is closed.")
    names = training_jobs.names()
    _choose(names)
    if names:
        _picker(names)
    if st.session_state["run"]:
        live(st.session_state["run"], view)
    else:
        form(view)
    queue()


def _choose(names: list[str]) -> None:
    """Which run is on screen, in the link; none shows the form. A visit without a link finds what happened last."""
    state, wanted = st.session_state, st.query_params.get("run")
    if "next_run" in state:
        state["run"] = state.pop("next_run")
        if state["run"] not in names:
            st.warning(f"Run {plain(state['run'])} cannot be opened: its folder holds no config.yaml.")
    elif "run" not in state and wanted is None:
        state["run"] = _latest(names)
    elif "run" not in state and wanted not in names:
        st.warning(f"The link asks for run {plain(wanted)}, which is not in this workspace. Choose another, or start a new one.")
    linked("run", names, None)


def _latest(names: list[str]) -> str | None:
    """The run that is at work, else the last one that was started here: whoever comes back wants to know how it went."""
    known = [training_jobs.look(name) for name in names]
    return next((now.name for now in known if now.live), next((now.name for now in known[:1] if now.job), None))


def _picker(names: list[str]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.selectbox("Run", names, key="run", placeholder="A new run", persist_state="session", width=320)
        if st.session_state["run"] is not None:
            st.button("New run", on_click=st.session_state.update, args=({"run": None},))


main(st.session_state["view"])
