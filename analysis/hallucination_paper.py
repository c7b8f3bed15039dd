"""Matplotlib figures of evaluations for papers; the files are made by `paper_figures.figure_bytes`.

A symbol is a score's, and a checkpoint is written beside its point, so that all read in grey.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.coalition_style import look
from analysis.figure_data import A_COLOR, NEUTRAL_COLOR
from analysis.hallucination.checkpoints import AcrossCheckpoints
from analysis.hallucination.pareto import Trade, front
from analysis.hallucination.per_item import ItemAnalysis
from analysis.hallucination.prediction import Points
from analysis.hallucination_figures import SIGNIFICANT, mean_place
from analysis.paper_figures import COLUMN_WIDTH, literal, one_axes


def scatter_figure(points: Points, fit: AcrossCheckpoints | None, gamma_title: str = "Γ(G)") -> Figure:
    """Hallucination rate with its standard error against Gamma; line and 95 % band of each score when there is a fit.

    `gamma_title` says which Gamma: of which layer, raw or normalized.
    """
    figure, axes = one_axes(COLUMN_WIDTH, 2.6)
    names, gamma = list(points.gamma), np.array(list(points.gamma.values()))
    ends = np.linspace(gamma.min(), gamma.max(), 40)
    for number, (score, rates) in enumerate(points.rates.items()):
        y, error = [rates[name] for name in names], [points.errors[score][name] for name in names]
        style = {"fmt": look(number).marker, "markersize": 4, "color": look(number).color, "elinewidth": 0.6}
        axes.errorbar(gamma, y, error, markeredgecolor="black", markeredgewidth=0.4, label=literal(points.titles[score]), **style)
        if fit is not None and score in fit.benchmarks:
            axes.fill_between(ends, *fit.band(score, ends), color="0.85", linewidth=0, zorder=0)
            axes.plot(ends, fit.line(score, ends), color="0.4", linewidth=0.8, zorder=1)
    axes.set(xlabel=literal(gamma_title), ylabel="hallucination rate")
    axes.xaxis.set_major_locator(MaxNLocator(4))  # more of these labels do not fit a column
    figure.legend(loc="outside lower center", ncols=2, fontsize=6, frameon=False)
    return figure


def odds_figure(analysis: ItemAnalysis) -> Figure:
    """Odds ratios by layer with 95 % intervals and the shuffled-head null; filled where p (Holm) is below 0.05."""
    figure, axes = one_axes(COLUMN_WIDTH, 2.2)
    mean_at = mean_place(analysis.layers)
    for drawn, mean in zip(analysis.null_by_layer, analysis.null_pooled, strict=True):
        axes.plot([*analysis.layers, mean_at], [*drawn, mean], ".", color="0.75", markersize=2, zorder=0)
    places = [*analysis.layers, mean_at]
    for x, one, p in zip(places, [*analysis.by_layer, analysis.pooled], [*analysis.p_holm, analysis.pooled.p], strict=True):
        if np.isfinite(one.odds_ratio):
            axes.plot([x, x], [one.low, one.high], color=A_COLOR, linewidth=0.8)
            face = A_COLOR if p < SIGNIFICANT else "white"
            mark = "D" if x == mean_at else "o"
            axes.plot(x, one.odds_ratio, mark, color=A_COLOR, markerfacecolor=face, markersize=3.5, markeredgewidth=0.8)
    axes.axhline(1, color=NEUTRAL_COLOR, linewidth=0.6, linestyle=":")
    axes.set_yscale("log")
    ticks = analysis.layers[:: max(1, -(-len(analysis.layers) // 8))]
    axes.set_xticks([*ticks, mean_at], [*map(str, ticks), "mean"])
    axes.set(xlabel="layer", ylabel=r"odds ratio of an error per SD of $\Gamma$")
    return figure


def trade_off_figure(found: Sequence[Trade]) -> Figure:
    """Change of hallucination scores against change of knowledge scores, per cent; the Pareto front dotted."""
    figure, axes = one_axes(COLUMN_WIDTH, 2.6)
    best = front(found)
    corners = [(100 * trade.knowledge.value, 100 * trade.hallucination.value) for trade in best]
    if corners:
        axes.step(*zip(*corners, strict=True), where="pre", color="0.5", linewidth=0.8, linestyle=":")
    for trade in found:
        x, y = trade.knowledge, trade.hallucination
        bars = [[[100 * (end.value - end.low)], [100 * (end.high - end.value)]] for end in (x, y)]
        place = (100 * x.value, 100 * y.value)
        axes.errorbar(*place, yerr=bars[1], xerr=bars[0], fmt="o", markersize=3.5, color=A_COLOR, ecolor="0.6", elinewidth=0.6)
        axes.annotate(literal(trade.name), place, xytext=(3, 3), textcoords="offset points", fontsize=6)
    axes.axhline(0, color="0.8", linewidth=0.6, zorder=0)
    axes.axvline(0, color="0.8", linewidth=0.6, zorder=0)
    axes.set(xlabel="change of knowledge scores, %", ylabel="change of hallucination scores, %")
    return figure
