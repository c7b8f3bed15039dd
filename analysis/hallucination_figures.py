"""Plotly figures of evaluations: Gamma against the hallucination rate, odds ratios by layer, gains against costs.

Pure functions, as in analysis/figures.py. A colour is a checkpoint's, a symbol is a score's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from analysis.coalition_style import look
from analysis.figure_data import ACCENT, NEUTRAL_COLOR
from analysis.figures import calm, escaped
from analysis.hallucination.checkpoints import AcrossCheckpoints
from analysis.hallucination.pareto import Trade, front
from analysis.hallucination.per_item import Association, ItemAnalysis
from analysis.hallucination.prediction import Points

_BAND = "rgba(138,138,148,0.16)"
_NULL = "rgba(138,138,148,0.45)"
OTHER_COLOR = ACCENT  # of checkpoints that are neither A nor B
SIGNIFICANT = 0.05


def checkpoint_scatter(
    points: Points, fit: AcrossCheckpoints | None, colors: Mapping[str, str], gamma_title: str = "Γ(G)"
) -> go.Figure:
    """Hallucination rate (with its standard error) against Gamma, a point a checkpoint and score; line and band of each score.

    Parameters
    ----------
    fit : None draws the points alone.
    colors : checkpoint -> colour.
    """
    figure = go.Figure()
    names, gamma = list(points.gamma), np.array(list(points.gamma.values()))
    for number, (score, rates) in enumerate(points.rates.items()):
        if fit is not None and score in fit.benchmarks:
            _add_line(figure, fit, score, gamma)
        symbol, title = look(number).symbol, points.titles[score]
        figure.add_scatter(
            x=gamma,
            y=[rates[name] for name in names],
            error_y={"array": [points.errors[score][name] for name in names], "color": NEUTRAL_COLOR, "thickness": 1, "width": 0},
            mode="markers",
            marker={"symbol": symbol, "size": 11, "color": [colors[name] for name in names], "line": {"width": 0}},
            customdata=[[escaped(name), points.n[score][name], points.errors[score][name]] for name in names],
            hovertemplate="%{customdata[0]}<br>Γ %{x:.4g}<br>rate %{y:.3f} ± %{customdata[2]:.3f}, n = %{customdata[1]}"
            f"<extra>{escaped(title)}</extra>",
            showlegend=False,
        )
        marker = {"symbol": symbol, "size": 9, "color": NEUTRAL_COLOR}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=escaped(title), hoverinfo="skip")
    figure.update_layout(legend_traceorder="normal")  # Plotly turns it round when there are bands
    figure.update_xaxes(title=gamma_title, fixedrange=True, showgrid=False, nticks=8)
    figure.update_yaxes(title="hallucination rate", fixedrange=True, nticks=6)
    return calm(figure, height=350, legend=True)


def _add_line(figure: go.Figure, fit: AcrossCheckpoints, score: str, gamma: np.ndarray) -> None:
    ends = np.linspace(gamma.min(), gamma.max(), 40)
    low, high = fit.band(score, ends)
    around = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    figure.add_scatter(x=ends, y=low, **around)
    figure.add_scatter(x=ends, y=high, fill="tonexty", fillcolor=_BAND, **around)
    ends = ends[[0, -1]]
    line = {"color": NEUTRAL_COLOR, "width": 1.5}
    figure.add_scatter(x=ends, y=fit.line(score, ends), mode="lines", line=line, showlegend=False, hoverinfo="skip")


def odds_by_layer(analysis: ItemAnalysis, color: str) -> go.Figure:
    """Odds ratio of an error per standard deviation of Gamma with its 95 % interval, by layer and for the mean over layers.

    Filled where p is below 0.05 (of a layer: after Holm's correction); small grey dots are what shuffled heads give.
    """
    figure = go.Figure()
    layers, mean_at = np.array(analysis.layers, dtype=float), mean_place(analysis.layers)
    shuffles = len(analysis.null_by_layer)
    if shuffles:
        x = np.concatenate([np.tile(layers, shuffles), np.full(shuffles, mean_at)])
        y = np.concatenate([analysis.null_by_layer.ravel(), analysis.null_pooled])
        marker = {"color": _NULL, "size": 4}
        figure.add_scatter(x=x, y=y, mode="markers", marker=marker, name="heads shuffled", hoverinfo="skip")
    sure = analysis.p_holm < SIGNIFICANT
    _add_odds(figure, layers, analysis.by_layer, analysis.p_holm, sure, color, "layer %{x}", "each layer")
    pooled, p = analysis.pooled, analysis.pooled.p
    _add_odds(figure, [mean_at], [pooled], [p], [p < SIGNIFICANT], color, "mean over layers", "mean over layers", "diamond")
    figure.add_hline(y=1, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below")
    ticks = analysis.layers[:: max(1, -(-len(analysis.layers) // 12))]
    figure.update_xaxes(title="layer", tickvals=[*ticks, mean_at], ticktext=[*map(str, ticks), "mean"])
    figure.update_xaxes(showgrid=False, fixedrange=True)
    figure.update_yaxes(title="odds ratio of an error per SD of Γ", type="log", fixedrange=True, nticks=6)
    return calm(figure, height=330, legend=True)


def mean_place(layers: Sequence[int]) -> float:
    """Where the mean over layers stands: right of the last layer, apart from it."""
    return max(layers) + max(1.0, 0.06 * len(layers))


def _add_odds(
    figure: go.Figure,
    x: Sequence[float],
    found: Sequence[Association],
    p: Sequence[float],
    sure,
    color: str,
    where: str,
    name: str,
    symbol: str = "circle",
) -> None:
    ratio = np.array([one.odds_ratio for one in found])
    up, down = (np.array([getattr(one, end) for one in found]) - ratio for end in ("high", "low"))
    figure.add_scatter(
        x=x,
        y=ratio,
        error_y={"array": up, "arrayminus": -down, "color": color, "thickness": 1.2, "width": 0},
        mode="markers",
        marker={"symbol": [symbol if one else f"{symbol}-open" for one in sure], "size": 9, "color": color},
        customdata=[[one.low, one.high, value, one.auc] for one, value in zip(found, p, strict=True)],
        hovertemplate=f"{where}<br>odds ratio %{{y:.3g}} (%{{customdata[0]:.3g}} to %{{customdata[1]:.3g}})<br>"
        "p %{customdata[2]:.2g}, AUC %{customdata[3]:.2f}<extra></extra>",
        name=name,
    )


def trade_offs(found: Sequence[Trade], colors: Mapping[str, str]) -> go.Figure:
    """Change of hallucination scores against change of knowledge scores in per cent, both a gain when positive; the front."""
    figure = go.Figure()
    best = front(found)
    line = {"color": NEUTRAL_COLOR, "width": 1.5, "dash": "dot", "shape": "vh"}
    figure.add_scatter(
        x=[100 * trade.knowledge.value for trade in best],
        y=[100 * trade.hallucination.value for trade in best],
        mode="lines",
        line=line,
        name="Pareto front",
        hoverinfo="skip",
    )
    for trade in found:
        x, y = trade.knowledge, trade.hallucination
        figure.add_scatter(
            x=[100 * x.value],
            y=[100 * y.value],
            error_x=_percent_error(x),
            error_y=_percent_error(y),
            mode="markers+text",
            text=[escaped(trade.name)],
            textposition="top right",
            marker={"size": 11, "color": colors[trade.name]},
            hovertemplate=f"{escaped(trade.name)}<br>knowledge %{{x:+.2f}} %<br>hallucination %{{y:+.2f}} %<extra></extra>",
            showlegend=False,
        )
    grey = {"color": NEUTRAL_COLOR, "width": 1}
    figure.add_hline(y=0, line=grey, layer="below").add_vline(x=0, line=grey, layer="below")
    figure.update_xaxes(title="change of knowledge scores, %", fixedrange=True, zeroline=False)
    figure.update_yaxes(title="change of hallucination scores, %", fixedrange=True, zeroline=False)
    return calm(figure, height=380, legend=True)


def _percent_error(change) -> dict:
    up, down = 100 * (change.high - change.value), 100 * (change.value - change.low)
    return {"array": [up], "arrayminus": [down], "color": NEUTRAL_COLOR, "thickness": 1, "width": 0}
