"""What can be done with a run: stop, resume, retry with less memory, clone, delete, and look at what it changed."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from gamelora import training_jobs
from gamelora.config import GameLoraConfig
from gamelora.memory import less_memory
from gamelora.run_table import selectable
from gamelora.training_jobs import Training
from pages._analyse import analyse
from pages._attempt import attempt
from pages._frame import View
from pages._train_form import fill
from pages._widgets import many, plain


def actions(now: Training, config: GameLoraConfig | None, view: View) -> None:
    """The buttons of a run's state; the main one filled. `config` is None when it cannot be read."""
    with st.container(horizontal=True, vertical_alignment="center", key="run_actions"):
        if now.state == "queued":
            _button("Cancel", training_jobs.stop_and_keep, now.name)
        elif now.live:
            _stops(now)
        elif now.state == "finished" and config:
            _look_at(now, config, view)
        elif now.state in ("failed", "stopped"):
            _resumes(now, config)
        if config:
            help = "A new run with these settings, to change and start."
            st.button("Clone", key="run_clone", on_click=_fill_from, args=(now, config), help=help)
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


def _resumes(now: Training, config: GameLoraConfig | None) -> None:
    smaller = less_memory(config, now.processes) if now.out_of_memory and config else {}
    where = f"Resume from step {now.resumes_from:,}" if now.resumes_from else "Start again"
    if now.killed or not smaller:
        _button(where, training_jobs.resume, now.name, primary=True)
    if smaller:
        name, value = next(iter(smaller.items()))
        words = (
            f"{where} with {many(value, 'row')} at once"
            if name == "micro_batch_size"
            else f"{where} with gradient checkpointing"
        )
        _button(
            words,
            training_jobs.resume,
            now.name,
            smaller,
            primary=not now.killed,
            help=f"{name} {value}: less memory, and the update stays the same.",
        )
        if not now.killed:
            _button(where, training_jobs.resume, now.name)


def _look_at(now: Training, config: GameLoraConfig, view: View) -> None:
    """The adapter beside its base on the Interaction page; what is not measured yet is measured."""
    tuned = selectable(now.run, config)
    if not tuned:
        st.markdown(":gray[Its adapter was deleted.]")
        return
    help = "Measures both where that is not done, and opens the Interaction page with A = base and B = this adapter."
    if st.button("Analyse base and adapter", type="primary", key="run_compare", help=help):
        analyse(tuned[0], now.status.get("design_layers", []), view)


def _fill_from(now: Training, config: GameLoraConfig) -> None:
    fill(config, now.name)
    st.session_state.update(train_processes=now.processes, run=None)


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
        attempt(act, *arguments)
        st.rerun()
