"""The export tab of the hallucination page: tables and figures, each file made on the click."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import streamlit as st
from matplotlib.figure import Figure

from analysis.hallucination.table import latex_table, score_lines
from analysis.hallucination_paper import odds_figure, scatter_figure, trade_off_figure
from pages._downloads import download, figure_downloads
from pages._hallucination_data import item_analysis_of, trades_of
from pages._hallucination_scatter import Screen
from pages._hallucination_tabs import benchmark_of, chosen_baseline, score_titles
from pages._widgets import plain


def export(screen: Screen) -> None:
    """Tables, then every figure that can be drawn, in every format."""
    baseline = chosen_baseline(screen)
    st.markdown(f"**Tables**, all digits, changes against {plain(baseline.name)}.")
    with st.container(horizontal=True):
        make = partial(_csv, lambda: score_lines(screen.checkpoints, baseline))
        download("Scores (CSV)", make, "hallucination_scores.csv", "text/csv")
        download("Scores (LaTeX)", lambda: latex_table(screen.checkpoints).encode(), "hallucination_scores.tex", "text/x-tex")
        download("Items (CSV)", partial(_csv, lambda: _items(screen)), "hallucination_items.csv", "text/csv")
    st.caption("The LaTeX table needs \\\\usepackage{booktabs}.")
    st.markdown("**Figures**, at a journal's column width, fonts embedded.")
    for name, draw in _figures(screen).items():
        figure_downloads(name, draw, name.split(",")[0].lower().replace(" ", "_"), width=330)


def _figures(screen: Screen) -> dict[str, Callable[[], Figure]]:
    """What can be drawn of what is on screen."""
    found: dict[str, Callable[[], Figure]] = {}
    if screen.points is not None:
        fit = None if isinstance(screen.fit, str) else screen.fit
        found["Gamma against rate"] = partial(scatter_figure, screen.points, fit, screen.gamma_title)
    point = next((one for one in screen.checkpoints if one.name == st.session_state.get("of_point")), screen.checkpoints[0])
    titles = score_titles(point)
    score = st.session_state.get("score") if st.session_state.get("score") in titles else next(iter(titles), None)
    if score is not None and point.evaluations[benchmark_of(point, score)].gamma is not None:
        analysis = item_analysis_of(screen.stamps[point.name][benchmark_of(point, score)], score)
        if not isinstance(analysis, str):
            found[f"Odds by layer, {plain(titles[score])} of {plain(point.name)}"] = partial(odds_figure, analysis)
    gains = trades_of(screen.key, chosen_baseline(screen).name, screen.checkpoints)
    if not isinstance(gains, str) and len(gains) > 1:
        found["Gain and cost"] = partial(trade_off_figure, gains)
    return found


def _items(screen: Screen) -> pd.DataFrame:
    """The records of every item, score and checkpoint, with the item's Gamma (mean over layers) where it was measured."""
    parts = []
    for point in screen.checkpoints:
        for evaluation in point.evaluations.values():
            for score in evaluation.score_names:
                records = evaluation.items(score)
                if evaluation.gamma is not None:
                    records = records.assign(gamma_mean=evaluation.gamma.gamma.mean(axis=1))
                parts.append(records.assign(checkpoint=point.name))
    return pd.concat(parts, ignore_index=True)


def _csv(make: Callable[[], pd.DataFrame]) -> bytes:
    return make().to_csv(index=False).encode()
