"""The table of the Runs page: what is filtered and sorted, and which runs are chosen; all of it in the link."""

from __future__ import annotations

import hashlib

import streamlit as st

from gamelora.run_table import SORTS, RunRow, matching, ordered, table
from pages._runs_data import KnownRun
from pages._widgets import linked_or_said, plain

_ROWS_SHOWN = 7
_ROW_HEIGHT = 35  # pixels
_CHOSEN_AT_FIRST = 5
_BROKEN_SHOWN = 4  # below the table; all notes are in it


def filtered(known: dict[str, KnownRun]) -> list[RunRow]:
    """The rows that the filter leaves, in the chosen order."""
    rows = [one.row for one in known.values()]
    state = st.session_state
    states = sorted({row.state for row in rows})
    tags = sorted({tag for row in rows for tag in row.tags})
    linked_or_said("sort", list(SORTS), "created")
    linked_or_said("order", ["descending", "ascending"], "descending")
    _linked_list("states", states)
    _linked_list("tags", tags)
    if "find" not in state:
        state["find"] = st.query_params.get("find", "")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Find",
            key="find",
            persist_state="session",
            placeholder="name, model, method, tag",
            help="Runs that hold all of these words.",
        )
        chosen_states = st.multiselect("State", states, key="states", persist_state="session", placeholder="any", width=170)
        chosen_tags = st.multiselect(
            "Tags", tags, key="tags", persist_state="session", placeholder="any", width=170, disabled=not tags
        )
        by = st.selectbox("Sort by", list(SORTS), format_func=SORTS.get, key="sort", persist_state="session", width=150)
        order = st.segmented_control(
            "Order",
            ["descending", "ascending"],
            format_func={"descending": "↓", "ascending": "↑"}.get,
            key="order",
            required=True,
            persist_state="session",
            help="↓ largest or newest first, ↑ smallest or oldest first.",
        )
    _into_link("find", text)
    _into_link("states", chosen_states)
    _into_link("tags", chosen_tags)
    return ordered(matching(rows, text, chosen_states, chosen_tags), by, order == "descending")


def _linked_list(key: str, options: list[str]) -> None:
    """The values of a multiselect before it is drawn: its own, else the link's; what is no option any more goes."""
    wanted = st.session_state[key] if key in st.session_state else st.query_params.get_all(key)
    st.session_state[key] = [one for one in wanted if one in options]


def _into_link(key: str, value: str | list[str]) -> None:
    if not value:
        st.query_params.pop(key, None)
    elif (st.query_params.get_all(key) if isinstance(value, list) else st.query_params.get(key)) != value:
        st.query_params[key] = value


def draw_table(rows: list[RunRow], known: dict[str, KnownRun]) -> list[KnownRun]:
    """Draw the table, and return the chosen runs in its order; those that the filter hides stay chosen, at the end."""
    chosen = _chosen(known)
    names = [row.name for row in rows]
    # The widget knows rows by place: another list of runs is another widget, which starts with the runs that are chosen.
    key = "runs_table_" + hashlib.sha256("\0".join(names).encode()).hexdigest()[:12]

    def pick() -> None:
        picked = [names[place] for place in st.session_state[key]["selection"]["rows"] if place < len(names)]
        st.session_state["runs"] = picked + [name for name in chosen if name not in names]

    st.dataframe(
        _shown(rows),
        key=key,
        on_select=pick,
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(name) for name in chosen if name in names]}},
        hide_index=True,
        height=_ROW_HEIGHT * (1 + max(1, min(_ROWS_SHOWN, len(rows)))) + 3,
        column_config=_COLUMNS,
        placeholder="",
        alt="Every run with its method, state, cross-entropy and Gamma",
    )
    _into_link("runs", chosen)
    _broken(rows)
    return [known[name] for name in [*(name for name in names if name in chosen), *(n for n in chosen if n not in names)]]


def _broken(rows: list[RunRow]) -> None:
    """What is wrong with runs, below a table that may be too narrow to show its last columns."""
    broken = [row for row in rows if row.problems or row.state == "unreadable"]
    for row in broken[:_BROKEN_SHOWN]:
        st.caption(f"**{plain(row.name)}** {plain(row.note)}")
    if len(broken) > _BROKEN_SHOWN:
        st.caption(f"{len(broken) - _BROKEN_SHOWN} more runs have such a note, in the last columns of the table.")


def _chosen(known: dict[str, KnownRun]) -> list[str]:
    """The chosen runs: as picked, else the link's, else the newest that have something to draw."""
    state = st.session_state
    if "runs" not in state:
        asked = st.query_params.get_all("runs")
        gone = [name for name in asked if name not in known]
        if gone:
            st.warning(f"The link asks for {plain(', '.join(gone))}, which is not in this workspace.")
        newest = [row.name for row in ordered([one.row for one in known.values()])]
        state["runs"] = asked or [name for name in newest if known[name].metrics.names][:_CHOSEN_AT_FIRST]
    state["runs"] = [name for name in state["runs"] if name in known]
    return state["runs"]


def _shown(rows: list[RunRow]):
    """The columns on screen; the download has all."""
    data = table(rows)
    data["done"] = [f"{row.step:,} of {row.steps:,}" if row.steps else f"{row.step:,}" for row in rows]
    return data[list(_COLUMNS)]


def _number(label: str, help: str):
    return st.column_config.NumberColumn(label, format="%.4g", help=help, width=75)


_COLUMNS = {
    "run": st.column_config.TextColumn("Run", pinned=True, width=150),
    "state": st.column_config.TextColumn("State", width=75),
    "method": st.column_config.TextColumn("Method", width=60, help="The losses that were trained."),
    "done": st.column_config.TextColumn("Steps", width=90),
    "final_ce": _number("Final CE", "Held-out cross-entropy of the last evaluation, nats per token."),
    "gamma_first": _number(
        "Γ first", "Γ(G) = ‖G − I‖_F on the held-out text in the first evaluation, run's coupling, mean over the design layers."
    ),
    "gamma_last": _number("Γ last", "The same in the last evaluation."),
    "gamma_change": _number("Γ change", "Last minus first; below 0: heads interact less."),
    "selectivity": _number(
        "Selectivity",
        "Change of mean G inside coalitions minus between them, adapter against base, in the sidebar's coupling. "
        "There once both are measured on one text.",
    ),
    "tags": st.column_config.ListColumn("Tags", width=120),
    "note": st.column_config.TextColumn("Note", width=260, help="Why it ended, and what is wrong with its files."),
    "model": st.column_config.TextColumn("Model", width=150),
    "arbitration": st.column_config.TextColumn("Arbiter", width=60, help="How the gradients of the losses were weighed."),
    "design_layers": st.column_config.TextColumn("Design layers", width=90),
    "created": st.column_config.DatetimeColumn("Created", format="YYYY-MM-DD HH:mm", width=125),
}
