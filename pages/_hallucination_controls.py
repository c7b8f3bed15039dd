"""What is chosen on the hallucination page, each in the link: checkpoints, benchmarks, items, and where rows come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analysis.figure_data import A_COLOR, B_COLOR
from analysis.hallucination.benchmarks import BENCHMARKS, SEED, SUITES, named
from analysis.hallucination.evaluation import StoredEvaluation
from analysis.hallucination.places import data_folder, rows_from, use_data_folder
from analysis.hallucination_figures import OTHER_COLOR
from gamelora.checkpoint_sources import CheckpointSource, source_of
from gamelora.evaluation_jobs import EvaluationRequest
from gamelora.measurement_jobs import MeasurementRequest
from gamelora.runs import run_names
from gamelora.workspace_checkpoints import workspace_checkpoints
from pages._attempt import refusal
from pages._cache import Measurement
from pages._frame import View
from pages._widgets import many, plain

SUITE_TITLES = {
    "builtin": "Built-in suite",
    "hallucination": "Hallucination suite",
    "knowledge": "Knowledge suite",
}
_ITEMS = 40  # a benchmark, on a first visit
_MOST_ITEMS = 100_000


@dataclass(frozen=True)
class Choice:
    """What is to be shown, and evaluated where it is not yet.

    Attributes
    ----------
    requests : name on screen -> its request, in the order chosen.
    colors : name on screen -> colour: A's, B's, or that of all others.
    row : the second row of pickers, which has room for more.
    """

    requests: dict[str, EvaluationRequest]
    colors: dict[str, str]
    row: DeltaGenerator


def controls(view: View, known: Sequence[StoredEvaluation]) -> Choice | None:
    """The pickers in two rows; None when no checkpoint or no benchmark is chosen, which is said."""
    seen = [one.provenance for one in [*view.found.values(), *known] if one.provenance is not None]
    sources, notices = workspace_checkpoints(seen)
    for notice in notices:
        st.warning(plain(notice))
    by_id = {one.id: one for one in sources}
    names = _names(sources)
    sides = {_id(one): color for one, color in ((view.b, B_COLOR), (view.a, A_COLOR)) if one and _id(one) in by_id}
    tasks = _read_link("tasks", [*SUITES, *BENCHMARKS], ["builtin"], "benchmark")
    chosen = named(tasks) if tasks else []
    about = [one for one in known if one.name in {benchmark.name for benchmark in chosen}]
    evaluated = [one.id for one in sources if any(one.made(found.provenance) for found in about)]
    points = _read_link("points", list(by_id), list(dict.fromkeys([*reversed(sides), *evaluated])), "checkpoint")
    _set_items(about)
    row = _draw(names, by_id)
    points, tasks = st.session_state["points"], st.session_state["tasks"]
    for key, values in (("points", points), ("tasks", tasks)):
        st.query_params[key] = ",".join(values)
    for key in ("items", "seed"):
        st.query_params[key] = str(st.session_state[key])
    if not points or not tasks:
        st.info(f"Choose {'a checkpoint' if not points else 'a benchmark'} above: there is nothing to show without one.")
        return None
    benchmarks = tuple(benchmark.name for benchmark in named(tasks))
    limit, seed = int(st.session_state["items"]), int(st.session_state["seed"])
    requests = {names[one]: EvaluationRequest(by_id[one], benchmarks, limit, seed, view.coupling) for one in points}
    colors = {names[one]: sides.get(one, OTHER_COLOR) for one in points}
    return Choice(requests, colors, row)


def _draw(names: dict[str, str], by_id: dict[str, CheckpointSource]) -> DeltaGenerator:
    """Two rows: checkpoints; benchmarks with their items. Returns the second."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.multiselect(
            "Checkpoints",
            list(by_id),
            format_func=lambda one: f"{names[one]} ({by_id[one].kind})",
            key="points",
            persist_state="session",
            help="Base models, adapters, and every step that a run has saved. “Open another” in the sidebar adds a model.",
        )
        with st.popover("Add a run", disabled=not run_names(), width=130):
            for run in run_names():
                steps = [one.id for one in by_id.values() if one.run == run]
                words = f"{run}: {many(len(steps), 'checkpoint')}"
                st.button(words, key=f"add_{run}", on_click=_add, args=(steps,), disabled=not steps)
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    with row:
        st.multiselect(
            "Benchmarks",
            [*SUITES, *BENCHMARKS],
            format_func=lambda name: SUITE_TITLES.get(name) or BENCHMARKS[name].title,
            key="tasks",
            persist_state="session",
            help="The built-in suite is this project's own: it needs no network and no file, and its scores compare with no "
            "published ones.",
        )
        with st.popover(f"{st.session_state['items']:,} items each", width=150):
            _items_and_data()
    return row


def _add(ids: list[str]) -> None:
    st.session_state["points"] = list(dict.fromkeys([*st.session_state["points"], *ids]))


def _items_and_data() -> None:
    """How many items, drawn by which seed, from which data folder; where the rows of every benchmark come from."""
    st.number_input("Items each", 1, _MOST_ITEMS, key="items", persist_state="session", help="Of each benchmark, at most.")
    st.session_state.setdefault("seed", _number_in_link("seed", SEED, 0))
    st.number_input("Seed", 0, key="seed", persist_state="session", help="Draws the items; 42 is the paper's.")
    folder = st.text_input(
        "Data folder",
        str(data_folder()),
        help="Holds files such as memo_trap.jsonl with the field names of the hub's datasets. A setting of this workspace, used "
        "by the command line too; empty is the folder data of the workspace.",
    )
    if folder != str(data_folder()) and (said := refusal(use_data_folder, folder)):
        st.error(plain(said))
    st.table(
        {"": {benchmark.title: plain(rows_from(benchmark)) for benchmark in BENCHMARKS.values()}},
        border="horizontal",
        hide_header=True,
    )


def _set_items(about: Sequence[StoredEvaluation]) -> None:
    """On the first visit as many items as the link says, else as were scored before."""
    if "items" not in st.session_state:
        before = max((one.provenance["items"]["scored"] for one in about), default=_ITEMS)
        st.session_state["items"] = _number_in_link("items", before, 1)


def _number_in_link(key: str, default: int, least: int) -> int:
    wanted = st.query_params.get(key, str(default))
    if wanted.isdecimal() and least <= int(wanted) <= _MOST_ITEMS:
        return int(wanted)
    st.warning(f"The link asks for {key} {plain(wanted)}, which is no number from {least} to {_MOST_ITEMS:,}. Used is {default}.")
    return default


def _read_link(key: str, options: Sequence[str], default: list[str], what: str) -> list[str]:
    """Give a multiselect its value before it is drawn: its own, else the link's, else the default; without what is not there."""
    if key not in st.session_state:
        wanted = [part for part in st.query_params.get(key, "").split(",") if part]
        lost = [part for part in wanted if part not in options]
        if lost:
            st.warning(f"The link asks for the {what} {plain(', '.join(lost))}, which is not here. Choose another one.")
        st.session_state[key] = [part for part in wanted if part in options] or default
    st.session_state[key] = [part for part in st.session_state[key] if part in options]
    return st.session_state[key]


def _names(sources: Sequence[CheckpointSource]) -> dict[str, str]:
    """id -> name on screen; the id itself joins a name that two checkpoints have."""
    count = Counter(one.title for one in sources)
    return {one.id: one.title if count[one.title] == 1 else f"{one.title} [{one.id}]" for one in sources}


def _id(measurement: Measurement) -> str:
    """Of the checkpoint that a measurement is, or would be, of; the default model's when nothing says."""
    if measurement.provenance is not None:
        return source_of(measurement.provenance).id
    asked = measurement.request or MeasurementRequest()
    return CheckpointSource(asked.source, asked.revision, asked.adapter, asked.dtype).id
