"""The tabs of the hallucination page that show numbers: scores, errors by item, and what a gain costs in knowledge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from analysis.hallucination.pareto import front
from analysis.hallucination.per_item import ItemAnalysis
from analysis.hallucination.prediction import Checkpoint
from analysis.hallucination.table import PAPER_COLUMNS
from analysis.hallucination_figures import SIGNIFICANT, odds_by_layer, trade_offs
from pages._hallucination_data import item_analysis_of, pooled_of, tables_of, trades_of
from pages._hallucination_scatter import Screen
from pages._widgets import linked, plain

_PAPER = (
    "The paper's own changes: +8.0 to +8.1 % on hallucination and −0.1 % on knowledge (GAME-LoRA against CE LoRA, Qwen2.5-0.5B). "
    "Its Table 1 is shown as a public re-implementation reports it; the built-in suite is not in it."
)
YES = "In HaluEval and the built-in judged QA, “yes” means hallucinated, and an error is a wrong verdict of either kind. "

_LETTER = 7  # pixels of a letter in a table
_three = partial(st.column_config.NumberColumn, format="%.3f")
_PERCENT = ("unparsed", "change")  # shares, shown times 100
_SCORE_COLUMNS = {
    "checkpoint": st.column_config.TextColumn("Checkpoint", width=150),
    "value": _three("Value", width=54, help="Share right; mass on true choices for MC2; bits per byte for WikiText."),
    "standard_error": _three("SE", width=50, help="Standard error over items."),
    "n": st.column_config.NumberColumn("n", width=42, help="Scored items."),
    "invalid": st.column_config.NumberColumn("Invalid", width=60, help="Not finite or too long: counted, in no score."),
    "noted": st.column_config.TextColumn("Noted", help="Items whose prompt was cut, or whose tokens had to be cut apart."),
    "unparsed": st.column_config.NumberColumn(
        "Unparsed", format="%.0f %%", width=74, help="Verdicts that are neither yes nor no; they count as wrong."
    ),
    "length_only": _three("Length", width=60, help="Length only: what the length of the judged text alone would score."),
    "change": st.column_config.NumberColumn(
        "Change", format="%+.1f %%", width=72, help="(score − baseline) / baseline; positive is a gain."
    ),
    "interval": st.column_config.TextColumn("95 %", width=98, help="Of the change, in per cent: paired bootstrap over items."),
    PAPER_COLUMNS[0]: _three("CE", width=50, help="The paper's Table 1: CE LoRA on Qwen2.5-0.5B."),
    PAPER_COLUMNS[1]: _three("GAME", width=54, help="The paper's Table 1: GAME-LoRA on Qwen2.5-0.5B."),
}


def baseline_picker(screen: Screen) -> Checkpoint:
    """The checkpoint that changes are against."""
    names = [point.name for point in screen.checkpoints]
    linked("baseline", names, names[0])
    st.selectbox("Baseline", names, key="baseline", persist_state="session", width=340, help="What changes are measured against.")
    return chosen_baseline(screen)


def chosen_baseline(screen: Screen) -> Checkpoint:
    """The baseline as chosen, the first checkpoint otherwise."""
    wanted = st.session_state.get("baseline")
    return next((point for point in screen.checkpoints if point.name == wanted), screen.checkpoints[0])


def scores(screen: Screen) -> None:
    """Every score of every checkpoint, with what must stand beside it, and the mean changes."""
    baseline = baseline_picker(screen)
    lines, means = tables_of(screen.key, baseline.name, screen.checkpoints)
    if isinstance(means, str):
        st.info(f"Shown without changes. {plain(means)}")
    lines["interval"] = [_interval(low, high) for low, high in zip(lines["low"], lines["high"], strict=True)]
    lines.loc[lines["checkpoint"] == baseline.name, "interval"] = "baseline"
    empty = [name for name in lines if lines[name].replace("", np.nan).isna().all()]
    empty += ["invalid"] * (not lines["invalid"].any()) + ["interval"] * ("change" in empty)
    shown = ["title", *(name for name in _SCORE_COLUMNS if name not in empty)]
    named = lines[shown].replace({"checkpoint": screen.short})
    named[[name for name in _PERCENT if name in shown]] *= 100
    title = st.column_config.TextColumn("Score", width=20 + _LETTER * int(named["title"].str.len().max()))
    columns = {"title": title, **_SCORE_COLUMNS}
    st.dataframe(named, hide_index=True, key="scores", column_config=columns, placeholder="", alt="Scores of every checkpoint")
    for line in lines[lines["n"] == 0].itertuples():
        st.info(
            f"{plain(line.title)}: no item could be scored with {plain(line.checkpoint)}, which gives no finite numbers there."
        )
    for sentence in [] if isinstance(means, str) else _mean_sentences(means):
        st.markdown(sentence)
    paper = _PAPER if not set(PAPER_COLUMNS) <= set(empty) else "None of these benchmarks is in the paper's Table 1."
    st.caption(("No item was invalid. " if "invalid" in empty else "") + paper)


def _interval(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{100 * low:+.1f} to {100 * high:+.1f}"


def _mean_sentences(means: pd.DataFrame) -> list[str]:
    """One sentence a checkpoint: mean change of both kinds of benchmark against the baseline."""
    said = []
    for line in means.to_dict("records"):
        parts = [
            f"{kind} benchmarks {100 * line[kind]:+.1f} % ({_interval(line[f'{kind}_low'], line[f'{kind}_high'])} %)"
            for kind in ("hallucination", "knowledge")
            if not np.isnan(line.get(kind, np.nan))
        ]
        without = f"; left out, because the baseline has 0 or no item to compare: {', '.join(line['left_out'])}"
        words = (", ".join(parts) or "none can be said") + (without if line["left_out"] else "")
        said.append(f"**{plain(line['checkpoint'])}**, mean change of scores, above 0 is better: {plain(words)}.")
    return said


def per_item(screen: Screen) -> None:
    """Does an item's own Gamma say whether the model errs on it? By layer, pooled, beside shuffled heads."""
    point, score = score_picker(screen)
    benchmark = benchmark_of(point, score)
    found = item_analysis_of(screen.stamps[point.name][benchmark], score)
    if isinstance(found, str):
        st.info(plain(found.replace("evaluate again with --per-item-gamma", "evaluate what is missing in the box above")))
        return
    chart = odds_by_layer(found, screen.choice.colors[point.name])
    st.plotly_chart(chart, key="odds", alt="Odds ratio of an error per standard deviation of Gamma, by layer")
    st.markdown(f"**Mean over layers.** {plain(found.pooled.in_words())}")
    st.markdown(plain(_layers_in_words(found)))
    st.caption(plain(_beside(found)))
    kinds = [one for name, one in point.evaluations.items() if one.benchmark.kind == "hallucination" and one.gamma is not None]
    if len(kinds) > 1:
        together = pooled_of(tuple(screen.stamps[point.name][one.benchmark.name] for one in kinds))
        words = together if isinstance(together, str) else together.in_words("mean Gamma of all layers")
        st.markdown(f"**All {len(kinds)} hallucination benchmarks together.** {plain(words)}")
    st.caption(
        YES + "Logistic regression of the error on Gamma of the item's own gradient; length, cross-entropy and the benchmark's "
        "own subset are held. Filled: p below 0.05, for layers after Holm's correction. Grey dots: heads of ω shuffled against ρ."
    )


def score_picker(screen: Screen) -> tuple[Checkpoint, str]:
    """Whose items, and which score of them."""
    names = [point.name for point in screen.checkpoints]
    linked("of_point", names, names[0])
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        st.selectbox("Checkpoint", names, key="of_point", persist_state="session", width=300)
        point = screen.checkpoints[names.index(st.session_state["of_point"])]
        titles = score_titles(point)
        linked("score", list(titles), next(iter(titles)))
        st.selectbox("Score", list(titles), format_func=titles.get, key="score", persist_state="session", width=300)
    return point, st.session_state["score"]


def score_titles(point: Checkpoint) -> dict[str, str]:
    """Every score of a checkpoint that has right and wrong items, with its title."""
    return {
        score.name: score.title
        for evaluation in point.evaluations.values()
        if evaluation.benchmark.protocol != "wikitext"
        for score in evaluation.scores()
    }


def benchmark_of(point: Checkpoint, score: str) -> str:
    """The benchmark that a score belongs to."""
    return next(name for name, evaluation in point.evaluations.items() if score in evaluation.score_names)


def _layers_in_words(found: ItemAnalysis) -> str:
    estimated = np.isfinite(found.p_holm)
    sure = [layer for layer, p in zip(found.layers, found.p_holm, strict=True) if p < SIGNIFICANT]
    missing = f"; {(~estimated).sum()} layers have no estimate" if not estimated.all() else ""
    if not estimated.any():
        return "No layer has an estimate."
    if not sure:
        return f"No layer by itself is certain after Holm's correction over {estimated.sum()} layers{missing}."
    strongest = min(zip(found.p_holm, found.layers, found.by_layer, strict=True), key=lambda one: np.nan_to_num(one[0], nan=2.0))
    p, layer, one = strongest
    more = "more" if one.odds_ratio > 1 else "fewer"
    return (
        f"Certain by itself after Holm's correction: layer {', '.join(map(str, sure))}. Strongest is layer {layer}: higher Gamma "
        f"goes with {more} errors (odds ratio {one.odds_ratio:.3g}, {one.low:.3g} to {one.high:.3g}, p = {p:.2g}){missing}."
    )


def _beside(found: ItemAnalysis) -> str:
    pooled = found.pooled
    null = found.null_pooled[np.isfinite(found.null_pooled)]
    of = f"n = {pooled.n}, {pooled.errors} wrong"
    parts = [f"AUC of Gamma alone {pooled.auc:.2f} ({of}; 0.5: says nothing; below: higher Gamma, fewer errors)"]
    if len(null) and not pooled.reason:
        parts.append(
            f"{len(null)} shuffles of the heads give odds ratios from {null.min():.3g} to {null.max():.3g}; "
            f"as strong an effect in a share of {found.p_against_null:.2g}, its own counted"
        )
    parts.append(f"{pooled.left_out} items left out")
    return "; ".join(parts) + "."


def trade_off(screen: Screen) -> None:
    """What each checkpoint gains against hallucination and pays in knowledge, against the baseline."""
    baseline = baseline_picker(screen)
    if len(screen.checkpoints) < 2:
        st.info("One checkpoint has no change: choose a second one above.")
        return
    found = trades_of(screen.key, baseline.name, screen.checkpoints)
    if isinstance(found, str):
        st.info(plain(found))
        return
    found = [replace(trade, name=screen.short[trade.name]) for trade in found]
    chart = trade_offs(found, {screen.short[name]: screen.choice.colors[name] for name in screen.short})
    st.plotly_chart(chart, key="trades", alt="Change of hallucination scores against change of knowledge scores")
    best = ", ".join(trade.name for trade in front(found))
    st.caption(
        f"Mean relative change against {plain(baseline.name)}; up and right is better. Bars: 95 % paired bootstrap over items. "
        f"On the front, which no other checkpoint beats in both: {plain(best)}."
    )
