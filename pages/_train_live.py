"""A run on screen: how far it is, what can be done with it, how it goes, and what it left."""

from __future__ import annotations

import time

import streamlit as st

from analysis.models import model_name
from gamelora import dry_step, jobs, training_jobs
from gamelora.config import GameLoraConfig
from gamelora.health import health, seconds_left, step_seconds
from gamelora.measurement_jobs import text_name
from gamelora.model_card import TITLES
from gamelora.run_metrics import RunMetrics
from gamelora.training_figures import POINTS, height_of, option_of, panels_of
from gamelora.training_jobs import Training
from pages._attempt import show_refusal
from pages._frame import View
from pages._jobs import counted, seconds
from pages._runs_data import config_of
from pages._train_actions import actions
from pages._train_data import metrics_of
from pages._widgets import many, plain, sentence, three_digits

_TICK_SECONDS = 2.0
_LOG_LINES = 15
_MEAN_OF = 10  # steps that a number stands for: one step's value jumps about
_STATES = {"queued": "waiting", "unreadable": "cannot be read"}


def live(name: str, view: View) -> None:
    """The run; redrawn every two seconds while it is live, and the whole page once when its state changes."""
    now = training_jobs.look(name)
    st.fragment(run_every=_TICK_SECONDS if now.live else None)(_draw)(name, now.state, view)


def _draw(name: str, drawn_as: str, view: View) -> None:
    now = training_jobs.look(name) if name in training_jobs.names() else None
    if now is None or now.state != drawn_as:  # deleted, perhaps in another tab, or at its next state
        st.rerun()
    config = config_of(now.run) if now.run else None
    metrics = _metrics(now)
    _title(now, config)
    if isinstance(config, str):
        st.error(plain(config))
    _progress(now, config, metrics)
    actions(now, config if isinstance(config, GameLoraConfig) else None, view)
    show_refusal()
    if now.state == "failed" and now.job:
        st.caption("The last lines of its log")
        st.code(jobs.log_tail(now.job.id, _LOG_LINES) or "The log is empty.", language=None, wrap_lines=True)
    for note in health(metrics, now.status):
        st.warning(plain(note))
    panels = panels_of(metrics)
    if panels:
        _numbers(metrics)
        words = f"Losses, weights, Gamma and speed of run {name} by step"
        st.echarts_chart(option_of(panels, metrics), height=height_of(panels), key="run_chart", renderer="svg", alt=words)
    elif now.live:
        st.caption("The first points appear after the model is loaded and the held-out text is read once.")
    _details(now, config, metrics)


def _metrics(now: Training) -> RunMetrics:
    try:
        return metrics_of(now.run) if now.run else RunMetrics()
    except OSError as error:
        st.error(f"The metrics of {plain(now.name)} cannot be read ({plain(error.strerror)}): allow reading its folder.")
        return RunMetrics()


def _title(now: Training, config: GameLoraConfig | str | None) -> None:
    what = ""
    if isinstance(config, GameLoraConfig):
        text = text_name(config.text)
        what = f"{TITLES[config.method]} on {model_name(config.model)}, text {text}, {config.steps:,} steps"
    color = "red" if now.state in ("failed", "unreadable") else "violet" if now.live else "gray"
    state = _STATES.get(now.state, now.state)
    st.markdown(f"**{plain(now.name)}** :{color}-badge[{state}] :small[:gray[{plain(what)}]]")


def _progress(now: Training, config: GameLoraConfig | str | None, metrics: RunMetrics) -> None:
    """Step, elapsed and remaining; for a run that is not live why it ended."""
    steps = now.status.get("steps") or 0
    done = f"step {now.step:,} of {steps:,}" if steps else "not begun"
    if now.live and now.status.get("state") != "running" and now.resumes_from:  # a resume that still loads
        done = f"goes on from step {now.resumes_from:,} of {steps:,}"
    if now.state == "queued":
        place = next((number for number, job in enumerate(jobs.queue(), start=1) if job.id == now.job.id), 1)
        st.progress(0.0, text=f"Waiting for its turn, place {place} in the queue")
    elif now.live:
        progress = now.job.progress if now.job else None
        stage = "saving, then ending" if now.state == "stopping" else progress.stage if progress else "training"
        beside = f"{counted(progress)};" if progress and progress.total and progress.stage == stage != "training" else ","
        st.progress(min(1.0, now.step / steps) if steps else 0.0, text=f"{sentence(stage or 'starting')}{beside} {done}")
        st.caption(f"{_times(now, config, metrics)} You can leave this page or close the browser; it goes on.")
    elif now.state == "failed":
        st.error(f"Failed at {done}: {plain(now.reason)}")
    elif now.state == "unreadable":
        st.error(plain(now.reason))
    else:
        st.progress(min(1.0, now.step / steps) if steps else 0.0, text=f"{now.state.capitalize()} at {done}")
        took = step_seconds(metrics, config.batch_size * config.seq_len) if isinstance(config, GameLoraConfig) else ()
        if len(took):
            each = f"{three_digits(took.median())} s a step (median of {len(took)})"
            st.caption(f"{seconds(took.sum())} in its steps, {each}; evaluations come on top.")
        if now.reason:
            st.caption(plain(now.reason))


def _times(now: Training, config: GameLoraConfig | str | None, metrics: RunMetrics) -> str:
    left = seconds_left(metrics, now.status.get("steps") or 0, time.time())
    since = f"{seconds(now.job.elapsed)} so far" if now.job and now.job.live else "Trained from a command line"
    if left is not None:
        return f"{since}, about {seconds(left)} left."
    step = dry_step.read(dry_step.share_of(config, now.processes)) if isinstance(config, GameLoraConfig) else None
    expected = f"about {seconds(step.seconds(config))} in all by the measured step" if step else "time left not known yet"
    return f"{since}, {expected}."


def _numbers(metrics: RunMetrics) -> None:
    """The latest values; of the held-out text also the change since the first evaluation."""
    held_out, training = metrics.series("eval_loss").dropna(), metrics.series("loss/ce").dropna()
    gamma = [name for name in metrics.names if name.startswith("gamma/L") and metrics.series(name).notna().any()]
    with st.container(horizontal=True, gap="large", key="run_numbers"):
        if len(held_out):
            change = f"{held_out.iloc[-1] - held_out.iloc[0]:+.3g}" if len(held_out) > 1 else None
            st.metric(
                "Held-out cross-entropy",
                f"{held_out.iloc[-1]:.3g}",
                change,
                delta_color="off",
                width="content",
                help=f"Nats per token after step {held_out.index[-1]}; below it the change since step {held_out.index[0]}.",
            )
        if len(training):
            mean = training.tail(_MEAN_OF).mean()
            words = f"Nats per token on the training text, mean of the last {min(_MEAN_OF, len(training))} steps."
            st.metric("Training cross-entropy", f"{mean:.3g}", width="content", help=words)
        for name in gamma[:2]:
            values = metrics.series(name).dropna().tail(_MEAN_OF)
            words = f"Interaction strength of that layer on the training text, mean of the last {len(values)} steps."
            st.metric(f"Γ(G), layer {name.removeprefix('gamma/L')}", f"{values.mean():.3g}", width="content", help=words)
        speed = metrics.series("tokens_per_second").dropna().tail(_MEAN_OF)
        if len(speed):
            st.metric("Tokens per second", f"{speed.median():,.0f}", width="content", help=f"Median of {len(speed)} steps.")


def _details(now: Training, config: GameLoraConfig | str | None, metrics: RunMetrics) -> None:
    log, settings, data = st.tabs(["Log", "Settings", "Data"], key="run_tab", on_change="rerun")
    if log.open:
        with log:
            if now.job is None:
                st.caption("It was started outside this dashboard: its log is where it was started.")
            else:
                lines = jobs.log_tail(now.job.id, 40)
                st.code(lines or "Nothing in the log yet.", language=None, wrap_lines=True, height=300)
    if settings.open:
        with settings:
            if isinstance(config, GameLoraConfig):
                st.code(config.to_yaml(), language="yaml")
            else:
                st.caption("Its settings cannot be read." if config else "It has not begun.")
    if data.open:
        with data:
            rows = f"{many(len(metrics.steps), 'step')} and {many(len(metrics.evaluations), 'evaluation')}, all digits"
            damage = f" Skipped: {many(metrics.damaged, 'damaged line')}." if metrics.damaged else ""
            st.caption(f"{rows}; the charts draw at most {POINTS} points a curve.{damage}")
            st.download_button(
                "Metrics (CSV)", metrics.to_csv, f"{now.name}.csv", "text/csv", key="metrics_csv", on_click="ignore"
            )
