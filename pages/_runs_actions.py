"""What can be done with one run of the table: analyse, open, take its files, tag, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from gamelora import jobs, run_files, training_jobs
from gamelora.checkpoints import step_of
from gamelora.run_table import has_adapter, selectable
from gamelora.run_tags import LONGEST, write_tags
from pages._analyse import analyse
from pages._attempt import attempt, refusal
from pages._downloads import download
from pages._frame import View
from pages._runs_data import KnownRun
from pages._widgets import linked, plain, size


def actions(chosen: list[KnownRun], every_tag: list[str], view: View) -> None:
    """The buttons of one of the chosen runs, and what is to be known about it."""
    names = [one.now.name for one in chosen]
    linked("of_run", names, names[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="run_row"):
        st.selectbox("Run", names, key="of_run", persist_state="session", width=200)
        one = chosen[names.index(st.session_state["of_run"])]
        _analyse(one, view)
        if st.button("Open in Train", key="open_train", help="Its charts, log and settings; stop, resume or clone it."):
            st.session_state["next_run"] = one.now.name
            st.switch_page("pages/train.py")
        _files(one)
        _tags(one, every_tag)
        _delete(one)
    if one.row.note:
        again = " Open in Train shows its log and resumes it." if one.now.state in ("failed", "stopped") and one.now.run else ""
        st.caption(f"{plain(one.now.name)}: {plain(one.row.note)}{again}")


def _analyse(one: KnownRun, view: View) -> None:
    """The adapter, or the newest step of a run that has none yet, beside its base."""
    sources = selectable(one.now.run, one.settings) if one.now.run and one.settings else []
    what = "adapter" if not sources or sources[0].step is None else f"step {sources[0].step:,}"
    clicked = st.button(
        f"Analyse base and {what}",
        type="primary",
        key="analyse",
        disabled=not sources,
        help="Measures both where that is not done, and opens the Interaction page with A = base and B = this run."
        if sources
        else "This run has no checkpoint yet.",
    )
    if clicked and (said := refusal(analyse, sources[0], one.now.status.get("design_layers", []), view)):
        st.toast(plain(said))


def _act(act: Callable, *arguments) -> None:
    """Do it on a click, and draw the page anew; a refusal stays on screen."""
    attempt(act, *arguments)
    st.rerun()


# --- files ----------------------------------------------------------------------------------------------------------------


def _files(one: KnownRun) -> None:
    run, name = one.now.run, one.now.name
    with st.popover("Files", key="run_files"):
        if run is None:
            st.caption("This run has not begun, so it has no files.")
            return
        checkpoints = run.checkpoints()
        folder = run.adapter if has_adapter(run) else checkpoints[-1] if checkpoints else None
        what = "Adapter" if folder == run.adapter else f"Step {step_of(folder):,}" if folder else "Adapter"
        _download(f"{what} (ZIP)", partial(run_files.adapter_zip, folder), f"{name}.zip", "application/zip", folder is None)
        _download("Metrics (CSV)", one.metrics.to_csv, f"{name}_metrics.csv", "text/csv", not one.metrics.names)
        card = run_files.model_card(run)
        _download("Model card (Markdown)", (card or "").encode, f"{name}_model_card.md", "text/markdown", card is None)
        st.divider()
        _merged(one, folder is not None)


def _download(label: str, make: Callable[[], bytes], file_name: str, mime: str, disabled: bool) -> None:
    none = "This run has none yet." if disabled else None
    download(label, make, file_name, mime, key=f"download_{label.split(' (')[0]}", disabled=disabled, width="stretch", help=none)


def _merged(one: KnownRun, possible: bool) -> None:
    """The merged model: made by a job, because it takes the memory of a model; its size and place."""
    name = one.now.name
    try:
        folder = run_files.merged_folder(name)
    except ValueError as error:
        st.caption(plain(error))
        return
    job = run_files.merge_job(name)
    if folder.is_dir():
        st.markdown(f"Merged model, {size(run_files.size_of(folder))}, lies in")
        st.code(str(folder), language=None, wrap_lines=True)
        if run_files.merged_is_older(one.now.run):
            st.caption("It is older than the adapter: remove it to merge again.")
        if st.button("Remove it", key="remove_merged"):
            _act(run_files.remove_merged, name)
        return
    if job and job.live:
        st.progress(job.progress.fraction or 0.0, text="Merging" if job.state == "running" else "Waiting for its turn")
        if st.button("Stop", key="stop_merge", disabled=job.stopping):
            jobs.stop(job.id, wait=False)
        return
    if job and job.state == "failed":
        st.error(f"The last merge failed: {plain(job.error)}")
    takes = run_files.merged_size(one.now.status)
    st.caption(f"The base with the adapter in its weights, loadable without PEFT{f', about {size(takes)}' if takes else ''}.")
    if st.button("Merge into one model", key="merge", disabled=not possible, width="stretch"):
        _act(run_files.merge, name)


# --- tags and deletion ----------------------------------------------------------------------------------------------------


def _tags(one: KnownRun, every_tag: list[str]) -> None:
    with st.popover("Tags", key="run_tags", disabled=one.now.run is None):
        key = f"tags_of_{one.now.name}"
        options = sorted({*every_tag, *one.row.tags, *st.session_state.get(key, ())})
        tags = st.multiselect(
            "Tags",
            options,
            default=list(one.row.tags),
            key=key,
            accept_new_options=True,
            placeholder="type one and press Enter",
            help=f"Words of your own, up to {LONGEST} letters; the filter above the table finds them.",
        )
        if st.button("Save", type="primary", key="save_tags", disabled=tuple(sorted(tags)) == one.row.tags):
            st.session_state.pop(key, None)
            _act(write_tags, one.now.run.folder, tags)


def _delete(one: KnownRun) -> None:
    with st.popover("Delete", key="run_delete", disabled=one.now.live):
        merged = "" if not one.now.run else " A merged model and results measured on it stay."
        st.markdown(f"Delete **{plain(one.now.name)}** with its checkpoints, adapter and metrics? This cannot be undone.{merged}")
        if st.button("Delete it", type="primary", key="delete_it"):
            _act(training_jobs.delete, one.now.name)
