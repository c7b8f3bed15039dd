"""What stands on the hallucination page for evaluations that are not there: not done, queued, at work by benchmark, or failed."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.evaluation import StoredEvaluation
from analysis.hallucination.places import rows_from
from gamelora import jobs
from gamelora.evaluation_jobs import EvaluationRequest, benchmark_at_work, evaluation_jobs
from gamelora.jobs import Job
from pages._hallucination_controls import Choice
from pages._jobs import counted, seconds
from pages._widgets import plain

_TICK_SECONDS = 1.0


def evaluation_panel(choice: Choice, known: Sequence[StoredEvaluation]) -> None:
    """One box for all that is missing: the button that gets it with its cost, progress by benchmark, and what failed."""
    newest = evaluation_jobs()
    missing = {name: request.missing(known) for name, request in choice.requests.items()}
    missing = {name: todo for name, todo in missing.items() if todo}
    if not missing:
        return
    own = {name: newest.get(choice.requests[name].target) for name in missing}
    live = {name: job.id for name, job in own.items() if job and job.live}
    with st.container(border=True, key="evaluation_panel"):
        if live:
            st.fragment(run_every=_TICK_SECONDS)(_at_work)({name: choice.requests[name] for name in live}, live, known)
        for name, job in own.items():
            if job and job.state == "failed":
                _failed(name, job, choice.requests[name])
        waiting = {name: todo for name, todo in missing.items() if own[name] is None or own[name].state in ("stopped", "done")}
        if waiting:
            _offer(choice, waiting, len(missing) == len(choice.requests))


def _offer(choice: Choice, waiting: dict[str, list[str]], nothing_yet: bool) -> None:
    """What is not evaluated, the one button, and what it costs."""
    several = len(waiting) > 1
    who = f"{len(waiting)} checkpoints" if several else plain(next(iter(waiting)))
    tasks = list(dict.fromkeys(name for todo in waiting.values() for name in todo))
    what = ", ".join(BENCHMARKS[name].title for name in tasks)
    count = next(iter(choice.requests.values())).limit
    verb = "have not been" if several else "has not been"
    st.markdown(f"**{who}** {verb} evaluated on {plain(what)} with {count:,} items each and this coupling.")
    costs = [choice.requests[name].seconds(todo) for name, todo in waiting.items()]
    total, known_here = sum(cost for cost, _ in costs), all(known for _, known in costs)
    of = "on this machine, from earlier ones" if known_here else "for the default model on one core, longer for larger models"
    origin = sorted({rows_from(BENCHMARKS[name]) for name in tasks if rows_from(BENCHMARKS[name]).startswith("hub")})
    network = f" The network is needed for {plain(', '.join(origin))}, unless the data folder has the rows." if origin else ""
    st.caption(
        f"About {seconds(total)} {of}, Gamma of every item included. What is there already is not evaluated again.{network}"
    )
    if st.button("Evaluate" if nothing_yet else "Evaluate what is missing", type="primary", key="evaluate"):
        for name in waiting:
            choice.requests[name].start()
        st.rerun()


def _at_work(requests: dict[str, EvaluationRequest], live: dict[str, str], known: Sequence[StoredEvaluation]) -> None:
    """The jobs that run by benchmark, then those that wait; the sidebar's list reruns the page when one ends."""
    found = {name: jobs.get(job_id) for name, job_id in live.items()}
    for name, job in found.items():
        if job.state == "queued":
            continue
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(job.progress.fraction or 0.0, text=f"**{plain(name)}**: {_stage(job)}", width="stretch")
            if st.button("Stop", key=f"stop_{job.id}", disabled=job.stopping):
                jobs.stop(job.id, wait=False)
        st.caption(_by_benchmark(job, requests[name], known))
    queued = {name: job for name, job in found.items() if job.state == "queued"}
    with st.container(horizontal=True, vertical_alignment="center"):
        waiting = f"Waiting for their turn: {plain(', '.join(queued))}. " if queued else ""
        leave = "You can leave this page or close the browser; it goes on. What is finished stays when it is stopped."
        st.caption(waiting + leave, width="stretch")
        if queued and st.button("Stop all", key="stop_all"):
            for job in [*reversed(queued.values()), *(job for job in found.values() if job.state != "queued")]:
                jobs.stop(job.id, wait=False)


def _stage(job: Job) -> str:
    if job.stopping:
        return "stopping"
    progress = job.progress
    left = f", about {seconds(job.remaining)} left in this stage" if job.remaining is not None else ""
    return f"{progress.stage or 'starting'}{counted(progress)}; {seconds(job.elapsed)} so far{left}"


def _by_benchmark(job: Job, request: EvaluationRequest, known: Sequence[StoredEvaluation]) -> str:
    """Every benchmark of the request as done, at work or waiting: those before the present one are done."""
    at_work = benchmark_at_work(job.progress) if job.state == "running" else None
    order = list(request.benchmarks)
    reached = order.index(at_work) if at_work in order else 0
    missing = request.missing(known)
    words = []
    for place, name in enumerate(order):
        state = "at work" if name == at_work else "done" if name not in missing or place < reached else "waiting"
        words.append(f"{plain(BENCHMARKS[name].title)}: {state}")
    return " · ".join(words)


def _failed(name: str, job: Job, request: EvaluationRequest) -> None:
    st.error(f"{plain(name)}: the evaluation failed. {plain(job.error)}")
    with st.container(horizontal=True):
        if st.button("Try again", type="primary", key=f"retry_{job.id}"):
            request.start()
            st.rerun()
        if st.button("Remove", key=f"remove_{job.id}"):
            jobs.remove(job.id)
            st.rerun()
    with st.expander("The last lines of its log"):
        st.code(jobs.log_tail(job.id, lines=15) or "The log is empty.", language=None, wrap_lines=True)
