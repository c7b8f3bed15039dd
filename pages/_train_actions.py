"""What can be done with a run: stop, resume, retry with less memory, clone, delete, and look at what it changed."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from gamelora import training_jobs
from gamelora.command_line import processes_of
from gamelora.measurement_jobs import MeasurementRequest
from gamelora.training_jobs import Training
from pages._train_form import fill
from pages._widgets import plain


def actions(now: Training) -> None:
    """The buttons of a run's state; the main one filled."""
    with st.container(horizontal=True, vertical_alignment="center", key="run_actions"):
        if now.state == "queued":
            _button("Cancel", training_jobs.stop_and_keep, now.name)
        elif now.live:
            _stops(now)
        elif now.state == "finished":
            _look_at(now)
        elif now.state in ("failed", "stopped"):
            _resumes(now)
        _clone(now)
        if not now.live:
            _delete(now)


def _stops(now: Training) -> None:
    _button(
        "Stop and keep",
        training_jobs.stop_and_keep,
        now.name,
        disabled=now.state == "stopping",
        help="Writes a checkpoint after the step that it is in, then ends.",
    )
    if now.job:
        _button(
            "Stop now",
            training_jobs.stop_now,
            now.name,
            help="Ends within seconds; steps after the newest checkpoint are done again by a resume.",
        )


def _resumes(now: Training) -> None:
    smaller = now.smaller() if now.out_of_memory and now.run else {}
    where = f"Resume from step {now.resumes_from:,}" if now.resumes_from else "Start again"
    if smaller:
        name, value = next(iter(smaller.items()))
        words = f"Retry with {value} rows at once" if name == "micro_batch_size" else "Retry with gradient checkpointing"
        _button(
            words,
            training_jobs.resume,
            now.name,
            smaller,
            primary=True,
            help=f"{where}, {name} {value}; the update stays the same.",
        )
    _button(where, training_jobs.resume, now.name, primary=not smaller)


def _look_at(now: Training) -> None:
    """The adapter beside its base on the Interaction page; what is not measured yet is measured."""
    if not now.run.adapter.is_dir():
        st.markdown(":gray[Its adapter was deleted.]")
        return
    if st.button(
        "Compare with its base", type="primary", key="run_compare", help="Measures both and opens the Interaction page."
    ):
        config = now.config()
        asked = {"source": config.model, "revision": config.revision, "dtype": config.dtype}
        for key, adapter in (("a", None), ("b", str(now.run.adapter))):
            request = MeasurementRequest(adapter=adapter, **asked)
            if not request.path.is_file():
                request.start()
            st.session_state[f"next_{key}"] = request.name
        st.switch_page("pages/interaction.py")


def _clone(now: Training) -> None:
    if now.run and now.state != "unreadable":
        st.button(
            "Clone", key="run_clone", on_click=_fill_from, args=(now,), help="A new run with these settings, to change and start."
        )


def _fill_from(now: Training) -> None:
    fill(now.config(), now.name)
    st.session_state["train_processes"] = processes_of(now.job.argv) if now.job else 1
    st.session_state["run"] = None


def _delete(now: Training) -> None:
    with st.popover("Delete", key="run_delete"):
        st.markdown(f"Delete **{plain(now.name)}** with its checkpoints and adapter? This cannot be undone.")
        _button("Delete it", training_jobs.delete, now.name, primary=True)


def _button(
    words: str, act: Callable, *arguments, primary: bool = False, disabled: bool = False, help: str | None = None
) -> None:
    """A button whose refusal is said and not raised: the run may have changed since it was drawn."""
    key = f"run_{words.lower().replace(' ', '_')}"
    if st.button(words, type="primary" if primary else "secondary", disabled=disabled, help=help, key=key):
        try:
            act(*arguments)
        except ValueError as error:
            st.toast(plain(error))
        st.rerun()
