"""Hallucination: does Gamma predict errors here?"""

import streamlit as st

from analysis.hallucination.evaluation import StoredEvaluation
from analysis.hallucination.prediction import Checkpoint
from pages import _hallucination_tabs as tabs
from pages._frame import View
from pages._hallucination_controls import Choice, controls
from pages._hallucination_data import Stamp, known_evaluations, load_evaluation, stamp_of
from pages._hallucination_export import export
from pages._hallucination_items import browse
from pages._hallucination_jobs import evaluation_panel
from pages._hallucination_scatter import scatter
from pages._widgets import header, plain

TABS = {
    "Scores": tabs.scores,
    "Errors by item": tabs.per_item,
    "Gain and cost": tabs.trade_off,
    "Items": browse,
    "Export": export,
}


def main(view: View) -> None:
    header("Hallucination", "Do checkpoints, and single items, with more interaction between heads make more errors?")
    known, notices = known_evaluations()
    for notice in notices:
        st.warning(f"Skipped: {plain(notice)}")
    choice = controls(view, known)
    if choice is None:
        return
    evaluation_panel(choice, known)
    checkpoints, stamps = _load(choice, known, view.coupling)
    if not checkpoints:
        return
    screen = scatter(choice, view.coupling, checkpoints, stamps)
    for tab, draw in zip(st.tabs(list(TABS), key="tab", bind="query-params"), TABS.values(), strict=True):
        if tab.open:
            with tab:
                draw(screen)


def _load(choice: Choice, known: list[StoredEvaluation], coupling: str) -> tuple[list[Checkpoint], dict[str, dict[str, Stamp]]]:
    """The checkpoints that have an evaluation, and what each evaluation was read from; a damaged one is said and left out."""
    checkpoints, stamps = [], {}
    for name, request in choice.requests.items():
        evaluations, own = {}, {}
        for benchmark, one in request.stored(known).items():
            stamp = stamp_of(one, coupling)
            try:
                evaluations[benchmark], own[benchmark] = load_evaluation(stamp), stamp
            except (ValueError, FileNotFoundError) as error:
                st.warning(f"Skipped: {plain(error)}")
        if evaluations:
            in_order = {benchmark: evaluations[benchmark] for benchmark in request.benchmarks if benchmark in evaluations}
            checkpoints.append(Checkpoint(name, in_order))
            stamps[name] = own
    return checkpoints, stamps


main(st.session_state["view"])
