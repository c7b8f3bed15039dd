"""Jobs on the pages: the list in the sidebar, and what stands in a measurement's place until it is there."""

from __future__ import annotations

import streamlit as st

from analysis.progress import Progress
from gamelora import jobs
from gamelora.game_jobs import GameJob
from gamelora.jobs import Job
from gamelora.measurement_jobs import MeasurementRequest, start_again
from pages._cache import Measurement
from pages._widgets import many, plain, sentence

_TICK_SECONDS = 1.0
_SHOWN_JOBS = 5


def sidebar_jobs() -> None:
    """The newest jobs; redrawn every second only while one is live, and one rerun of the page when any changes its state."""
    listed = jobs.jobs()
    seen = {job.id: job.state for job in listed}
    tick = _TICK_SECONDS if any(job.live for job in listed) else None

    @st.fragment(run_every=tick)
    def draw() -> None:
        now = jobs.jobs()
        if {job.id: job.state for job in now} != seen:
            st.rerun()
        for job in worth_a_line(now):
            _line(job)

    st.markdown("**Jobs**")
    if listed:
        draw()
    else:
        st.caption("None yet.")


def worth_a_line(listed: list[Job]) -> list[Job]:
    """What runs, what waits, then what ended last; of each target the newest job alone, and as many as there is room for."""
    newest: dict[str, Job] = {}
    for job in listed:
        newest.setdefault(job.target or job.id, job)
    order = ["running", "queued"]
    ranked = sorted(newest.values(), key=lambda job: order.index(job.state) if job.state in order else len(order))
    return ranked[:_SHOWN_JOBS]


def _line(job: Job) -> None:
    fraction = job.progress.fraction
    if job.state == "running":
        how_far = f"{fraction:.0%}" if fraction is not None else seconds(job.elapsed)
        words = "stopping" if job.stopping else f"{job.progress.stage or 'starting'}, {how_far}"
        st.progress(fraction or 0.0, text=f"{plain(job.title)}: {words}")
    else:
        st.caption(f"{plain(job.title)}: {job.state}", help=plain(job.error) if job.error else None)


def game_panel(work: GameJob, label: str, words: str, verb: str, cost: str) -> None:
    """What is shown for a result of the head game that is not there: what it is, computing, or failed; each with one next step.

    Parameters
    ----------
    label : ends the keys of the panel's widgets.
    words : one sentence on what is not known yet.
    verb : on the button.
    cost : what it takes, said while it is not running.
    """
    job = work.latest()
    with st.container(border=True, key=f"panel_{label}"):
        if job is not None and job.live:
            st.fragment(run_every=_TICK_SECONDS)(job_progress)(job.id, label, job.title)
        elif job is not None and job.state == "failed" and job.argv[2:] == work.arguments:
            _failed(job, label, f"{job.title} failed")
        else:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(f"{plain(words)} :small[:gray[{plain(cost)}]]", width="stretch")
                if st.button(verb, key=f"start_{label}"):
                    work.start()
                    st.rerun()


def measurement_panel(measurement: Measurement, request: MeasurementRequest, label: str) -> None:
    """What is shown for a measurement without a result: not computed, computing, or failed; each with its one next step.

    `request` measures it when it has never been started. `label` is A or B.
    """
    job = measurement.job
    with st.container(border=True, key=f"panel_{label}"):
        if job is None or job.state == "stopped":
            words = "was stopped before it was measured" if job else "has not been measured yet"
            st.markdown(f"**{label}, {plain(measurement.name)},** {words}.")
            st.caption(_cost(request))
            with st.container(horizontal=True):
                if st.button("Measure it", type="primary", key=f"measure_{label}"):
                    start_again(job) if job else request.start()
                    st.rerun()
                if job and st.button("Remove", key=f"remove_{label}"):
                    jobs.remove(job.id)
                    st.rerun()
        elif job.state == "failed":
            _failed(job, label, f"{label}, {job.title}: the measurement failed")
        else:
            st.fragment(run_every=_TICK_SECONDS)(job_progress)(job.id, label, f"{label}, {job.title}")


def _failed(job: Job, label: str, what: str) -> None:
    st.error(f"{plain(what)}. {plain(job.error)}")
    with st.container(horizontal=True):
        if st.button("Try again", type="primary", key=f"retry_{label}"):
            start_again(job)
            st.rerun()
        if st.button("Remove", key=f"remove_{label}"):
            jobs.remove(job.id)
            st.rerun()
    st.caption("The last lines of its log")
    st.code(jobs.log_tail(job.id, lines=15) or "The log is empty.", language=None, wrap_lines=True)


def job_progress(job_id: str, label: str, title: str) -> None:
    """How far a live job is, and Stop. The sidebar's list reruns the page when the job ends; this only draws."""
    job = jobs.get(job_id)
    st.markdown(f"**{plain(title)}**")
    progress = job.progress
    stage = "stopping" if job.stopping else progress.stage or "starting"
    if job.state == "queued":
        ahead = [one.title for one in jobs.jobs() if one.state == "running" and jobs.lane(one.device) == jobs.lane(job.device)]
        stage = f"waiting for its turn behind {plain(ahead[0])}" if ahead else "waiting for its turn"
    st.progress(progress.fraction or 0.0, text=f"{sentence(stage)}{counted(progress)}")
    left = f"about {seconds(job.remaining)} left in this stage" if job.remaining is not None else "time left not known yet"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{seconds(job.elapsed)} so far, {left}. You can leave this page or close the browser; it goes on.")
        if st.button("Stop", key=f"stop_{label}", disabled=job.stopping):
            jobs.stop(job_id, wait=False)


def counted(progress: Progress) -> str:
    """What of a stage is done, to go behind its name: ", 4 of 8 batches"; nothing when its length is not known."""
    if not progress.total:
        return ""
    total = many(progress.total, progress.unit) if progress.unit else f"{progress.total:,.0f}"
    return f", {progress.done:,.0f} of {total}"


def _cost(request: MeasurementRequest) -> str:
    """What a measurement will take, scaled from the last one of the same model; said as unknown when there was none."""
    earlier = [job for job in jobs.jobs() if job.state == "done" and f"--model={request.source}" in job.argv]
    for job in earlier:
        tokens = [int(part.removeprefix("--tokens=")) for part in job.argv if part.startswith("--tokens=")]
        if tokens:
            return (
                f"Takes about {seconds(job.elapsed * max(1.0, request.tokens / tokens[0]))} on this machine, from the last time."
            )
    return (
        "One forward and one backward pass over the text: about a minute for the default model on two cores. "
        "The time left is shown once it runs."
    )


def seconds(value: float) -> str:
    """A duration for people: 42 s, 3 min 20 s, 2 h 5 min."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
