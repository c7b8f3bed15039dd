"""The charts of a run while it trains: a grid of small panels, one idea each, redrawn without being built anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.figure_data import NEUTRAL_COLOR
from gamelora.run_metrics import RunMetrics, thin

ACCENT = "#7a6ac0"
POINTS = 400  # that a curve is drawn with at most
_COLUMNS = 3
_STYLES = ((ACCENT, "solid"), (NEUTRAL_COLOR, "solid"), (NEUTRAL_COLOR, "dot"), (ACCENT, "dot"), (ACCENT, "dash"))
_SHORT = {"ce": "cross-entropy", "ldb": "barrier", "bt": "Barlow Twins"}


@dataclass(frozen=True)
class _Kind:
    """A panel: the metrics whose names match, each under its own name for the legend."""

    title: str
    pattern: str
    label: Callable[[re.Match], str]
    log: bool = False


def _task(found: re.Match) -> str:
    return _SHORT.get(found[1], found[1])


_PANELS = (
    _Kind(
        "Cross-entropy, nats per token", r"(loss/ce|eval_loss)", lambda found: {"loss/ce": "training"}.get(found[1], "held-out")
    ),
    _Kind("Barrier above its floor", r"gap/(ldb)", _task),
    _Kind("Barlow Twins", r"loss/(bt)", _task),
    _Kind("Γ(G) at the design layer", r"gamma/L(\d+)", lambda found: f"layer {found[1]}"),
    _Kind("Bargaining powers λ", r"lambda/(\w+)", _task),
    _Kind("Weights of the gradients", r"weight/(\w+)", _task),
    _Kind(
        "Cosines between gradients",
        r"cosine/([a-z]+)_([a-z]+)",
        lambda found: " · ".join(_SHORT[part] for part in found.groups()),
    ),
    _Kind("Norms of the gradients", r"gradient_norm/(\w+)", _task, log=True),
    _Kind("Tokens per second", r"(tokens_per_second)", lambda found: "tokens per second"),
)


@dataclass(frozen=True)
class Grid:
    """The panels that a run's metrics fill.

    Attributes
    ----------
    panels : for each its title, whether its axis is logarithmic, and its curves as (name of the metric, label).
    """

    panels: tuple[tuple[str, bool, tuple[tuple[str, str], ...]], ...]

    @property
    def names(self) -> list[str]:
        """The metrics on screen, in the order of the figure's traces."""
        return [name for _, _, curves in self.panels for name, _ in curves]


def grid_of(metrics: RunMetrics) -> Grid:
    """Which panels there are to draw; a panel without any metric is left out."""
    panels = []
    for kind in _PANELS:
        found = [(name, match) for name in metrics.names if (match := re.fullmatch(kind.pattern, name))]
        curves = sorted((name, kind.label(match)) for name, match in found)
        if kind.title.startswith("Cross"):
            curves.reverse()  # training first
        if curves:
            panels.append((kind.title, kind.log, tuple(curves)))
    return Grid(tuple(panels))


def curve_of(metrics: RunMetrics, name: str) -> pd.Series:
    """One metric as it is drawn: at most `POINTS` values, without the steps that had none."""
    return thin(metrics.series(name), POINTS)


def draw(grid: Grid) -> go.Figure:
    """The figure of a grid, still without data: `fill` gives it that, as often as there is something new."""
    rows = -(-len(grid.panels) // _COLUMNS)
    height = 60 + 190 * rows
    figure = make_subplots(rows, _COLUMNS, vertical_spacing=min(0.5, 62 / height), horizontal_spacing=0.06)
    traces, legends, titles = [], {}, []
    for number, (title, log, curves) in enumerate(grid.panels):
        axis = "" if number == 0 else str(number + 1)
        place = figure.layout[f"xaxis{axis}"].domain[0], figure.layout[f"yaxis{axis}"].domain[1]
        titles.append(_note(title, *place))
        legend = f"legend{axis}"
        legends[legend] = _legend(*place)
        for position, (_, label) in enumerate(curves):
            style = _line(label, position)
            traces.append(
                {"type": "scatter", "x": [], "y": [], "name": label, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "legend": legend}
                | {"showlegend": len(curves) > 1, "hovertemplate": "step %{x}: %{y:.4g}"}
                | style
            )
        figure.layout[f"yaxis{axis}"].update(type="log" if log else "linear", nticks=4, exponentformat="power")
    figure.add_traces([go.Scatter(trace) for trace in traces])
    figure.update_layout(annotations=titles, **legends)
    figure.update_xaxes(showgrid=False, fixedrange=True, nticks=5, tickformat="d")
    figure.update_yaxes(fixedrange=True)
    margin = {"l": 10, "r": 10, "t": 44, "b": 10, "pad": 0}
    return figure.update_layout(height=height, margin=margin, hovermode="closest", dragmode=False)


def fill(figure: go.Figure, grid: Grid, metrics: RunMetrics) -> go.Figure:
    """Give the curves of a figure that `draw` made the values known so far."""
    with figure.batch_update():
        for trace, name in zip(figure.data, grid.names, strict=True):
            curve = curve_of(metrics, name)
            trace.x, trace.y = curve.index.to_numpy(), curve.to_numpy(dtype=float)
    return figure


def _line(label: str, position: int) -> dict:
    color, dash = _STYLES[position % len(_STYLES)]
    if label == "held-out":
        return {"mode": "lines+markers", "line": {"color": NEUTRAL_COLOR, "width": 2}, "marker": {"size": 6}}
    return {"mode": "lines+markers", "line": {"color": color, "dash": dash, "width": 1.5}, "marker": {"size": 3}}


def _note(title: str, x: float, y: float) -> dict:
    return {
        "text": title,
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 20,
        "showarrow": False,
        "font": {"size": 13},
    }


def _legend(x: float, y: float) -> dict:
    return {"orientation": "h", "x": x, "y": y, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}, "itemwidth": 30}
