"""The item browser: one item, what is right, and what every checkpoint answered, with its Gamma."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from analysis.hallucination.browse import SHOWN, Item, item, rows_to_browse
from pages._hallucination_scatter import Screen
from pages._hallucination_tabs import YES, benchmark_of, score_titles
from pages._widgets import linked, plain


def browse(screen: Screen) -> None:
    """Pick a score and a kind of items, go through them."""
    titles = {score: title for point in screen.checkpoints for score, title in score_titles(point).items()}
    linked("score", list(titles), next(iter(titles)))
    linked("which", list(SHOWN), SHOWN[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        score = st.selectbox("Score", list(titles), format_func=titles.get, key="score", persist_state="session", width=280)
        which = st.selectbox("Items", SHOWN, key="which", persist_state="session", width=220)
        points = [point for point in screen.checkpoints if score in score_titles(point)]
        benchmark = benchmark_of(points[0], score)
        rows = rows_to_browse(points, benchmark, score, which)
        if rows:
            linked("row", rows, rows[0])
            st.button("Previous", on_click=_step, args=(rows, -1), disabled=st.session_state["row"] == rows[0])
            st.selectbox("Row", rows, key="row", persist_state="session", width=110, help="Its number in the source, from 1.")
            st.button("Next", on_click=_step, args=(rows, 1), disabled=st.session_state["row"] == rows[-1])
    if not rows:
        st.info(f"There is no item of the kind “{which}” that all these checkpoints were scored on. Choose another kind.")
        return
    st.caption(f"{len(rows)} items of this kind.")
    _show(item(points, benchmark, score, st.session_state["row"]), benchmark, screen.short)


def _step(rows: list[int], by: int) -> None:
    st.session_state["row"] = rows[rows.index(st.session_state["row"]) + by]


def _show(shown: Item, benchmark: str, names: dict[str, str]) -> None:
    left, right = st.columns([5, 4], gap="medium")
    with left:
        st.markdown("**Prompt**" + (f", subset {plain(shown.subset)}" if shown.subset else ""))
        st.code(shown.prompt, language=None, wrap_lines=True, height=360)
    with right:
        st.markdown("**Right**: " + plain("; ".join(text.strip() for text in shown.right)))
        if shown.choices:
            marked = [f"- {plain(choice.strip())}{' (right)' * (choice in shown.right)}" for choice in shown.choices]
            st.markdown("**Choices**\n" + "\n".join(marked))
        st.dataframe(
            pd.DataFrame(
                {
                    "Checkpoint": names[answer.checkpoint],
                    "Answer": answer.prediction.strip() or "none",
                    "Score": answer.value,
                    "Γ": answer.gamma,
                    "Notes": answer.notes,
                }
                for answer in shown.answers
            )
            .replace({"Notes": {"": None}})
            .dropna(axis="columns", how="all"),
            hide_index=True,
            key="answers",
            column_config={
                "Checkpoint": st.column_config.TextColumn(width=140),
                "Answer": st.column_config.TextColumn(width=80),
                "Score": st.column_config.NumberColumn(format="%.3g", width=54),
                "Γ": st.column_config.NumberColumn(format="%.4g", width=62, help="Of the item's own gradient, mean over layers."),
            },
            alt="What each checkpoint answered",
        )
        if benchmark.startswith("halueval") or benchmark == "builtin_qa":
            st.caption(YES)
