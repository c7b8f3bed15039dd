"""What the form comes to: Start, what is in the way of it, what the run takes, and the run as YAML and as a command."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import streamlit as st

from analysis.models import model_name
from analysis.sources import config_file
from analysis.workspace import workspace_root
from gamelora import dry_step, training_jobs
from gamelora.build import check_trackers
from gamelora.command_line import shell, train_arguments
from gamelora.config import GameLoraConfig
from gamelora.dry_step import DryStep
from gamelora.estimate import Estimate, Outline, estimate, evaluations, field_of, outline, problems_with
from pages._attempt import attempt, show_refusal
from pages._jobs import job_progress, seconds
from pages._widgets import many, plain, size

_TICK_SECONDS = 1.0


def problems_of(config: GameLoraConfig, processes: int) -> dict[str, str]:
    """What of a config cannot be run here, by field: the model, what its adapter asks of it, and the share of each process."""
    try:
        check_trackers(config)
        dry_step.share_of(config, processes)
        model = _outline_of(config)
        return problems_with(config, model) if model else {}
    except ValueError as error:
        sentence = str(error)
        return {field_of(sentence, "model"): sentence}


def plan(name: str, config: GameLoraConfig | None, processes: int, problems: dict[str, str]) -> None:
    """The right side of the form."""
    with st.container(horizontal=True, vertical_alignment="center"):
        start = st.button("Start", type="primary", disabled=bool(problems), key="train_start")
        if problems:
            st.markdown(
                f":red[{len(problems)} settings need a change.]" if len(problems) > 1 else ":red[One setting needs a change.]"
            )
    for sentence in problems.values():
        st.caption(f":red[{plain(sentence)}]")
    if start and not problems and attempt(training_jobs.start, name, config, processes):
        st.session_state.update(next_run=name, train_started=name)
        st.rerun()
    show_refusal()
    if config is None:
        return
    if not set(problems) - {"name"}:
        _takes(config, processes)
    yaml, command = st.tabs(["YAML", "Command line"])
    with yaml:
        st.code(config.to_yaml(), language="yaml", height=360)
    with command:
        st.code(shell(train_arguments(name, config, processes)), language="bash", wrap_lines=True)


def _takes(config: GameLoraConfig, processes: int) -> None:
    """The estimate as a table, and the measured step beside it or the button that makes it."""
    model, one = _outline_of(config), dry_step.share_of(config, processes)
    measured, job = dry_step.read(one), dry_step.latest(one)
    st.markdown("**What it takes**")
    text = {"Text": f"{config.tokens:,} tokens in {many(config.steps, 'step')}, {many(evaluations(config), 'evaluation')}"}
    rows = text | (_rows(config, estimate(config, model), processes) if model else {})
    if model is None:
        name = plain(model_name(config.model))
        st.caption(f"{name} is not on this machine yet: disk and memory are known once it has been downloaded.")
    st.table({"": rows | _measured_rows(config, measured, processes)}, border="horizontal", hide_header=True)
    if measured is None and job is not None and job.live:
        st.fragment(run_every=_TICK_SECONDS)(job_progress)(job.id, "dry_step", "Measuring a step")
        return
    if measured is None and job is not None and job.state == "failed":
        st.caption(f":red[{plain(job.error)}]")
    words = "Measure again" if measured else "Measure a step"
    help = "Runs four steps on random tokens and throws them away: memory at the peak and seconds a step on this machine."
    if st.button(words, key="train_measure", help=help) and attempt(dry_step.start, one):
        st.rerun()


def _rows(config: GameLoraConfig, takes: Estimate, processes: int) -> dict[str, str]:
    free = shutil.disk_usage(workspace_root() if workspace_root().exists() else workspace_root().parent).free
    part = takes.trainable / takes.parameters
    return {
        "Trainable": f"{takes.trainable:,} numbers, {part:.2%} of the model",
        "Disk": f"{size(takes.disk_bytes)} of {size(free)} free, adapter {size(takes.adapter_bytes)}",
        "Memory": f"{size(takes.memory_bytes)} for weights and optimizer, activations on top"
        + (" (each process)" * (processes > 1)),
    }


def _measured_rows(config: GameLoraConfig, measured: DryStep | None, processes: int) -> dict[str, str]:
    if measured is None:
        return {"Time": "not known before a step is measured"}
    free = measured.free_bytes if measured.device == "cuda" else psutil.virtual_memory().available
    fits = "" if measured.peak_bytes * processes <= free or measured.device == "cuda" else " :red[more than is free]"
    several = f", in each of {processes} processes" if processes > 1 else ""
    return {
        "Memory at peak": f"{size(measured.peak_bytes)} of {size(free)} free{several}{fits}",
        "A step": f"{measured.plain:.2g} s; {measured.renewing:.2g} s when it renews the weights",
        "Time": f"about {seconds(measured.seconds(config))} on this machine",
    }


def _outline_of(config: GameLoraConfig) -> Outline | None:
    """The model of a config without its numbers; None when it is not on this disk."""
    file = config_file(config.model, config.revision)
    if file is None:
        return None
    asked = ("model", "target_modules", "modules_to_save", "use_dora", "design_layers", "method")
    return _outlined(str(file), file.stat().st_mtime_ns, {name: getattr(config, name) for name in asked})


@st.cache_data(max_entries=64, show_spinner="Reading how the model is built", show_time=True)
def _outlined(file: str, mtime_ns: int, asked: dict) -> Outline:
    return outline(Path(file), GameLoraConfig.from_dict(asked))
