"""The charts of a run while it trains: a grid of small panels, one idea each, as an option object of Apache ECharts.

ECharts, and not Plotly as elsewhere, because the page redraws it every two seconds: new points go into the chart that stands
there, where Plotly's would be made anew and flash.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.figure_data import ACCENT, NEUTRAL_COLOR
from gamelora.run_metrics import TASKS, RunMetrics, thin

POINTS = 300  # that a curve is drawn with at most
_MARKED_BELOW = 40  # points of a curve that are few enough to be marked each
_COLUMNS = 3
_ROW, _PLOT, _HEAD = 205, 128, 46  # pixels: of a row of panels, of a plot, of title and legend above it
_TITLE = {"fontSize": 13, "fontWeight": 500}
_SHORT = {"ce": "CE", "ldb": "barrier", "bt": "BT"}
# colour, dash, and the mark of a point: a curve of few points shows no dash
_LOOKS = (
    (ACCENT, "solid", "circle"),
    (NEUTRAL_COLOR, "solid", "circle"),
    (NEUTRAL_COLOR, "dotted", "triangle"),
    (ACCENT, "dotted", "triangle"),
    (ACCENT, "dashed", "diamond"),
)
_OF_TASK = {name: _LOOKS[position] for position, name in enumerate(TASKS.values())}
_SETS = {"loss/ce": "training", "eval_loss": "held-out"}
_NOW_AND_THEN = ("cosine/", "gradient_norm/")  # known only where weights are renewed


@dataclass(frozen=True)
class _Kind:
    """A panel: the metrics whose names match, each under its own name for the legend."""

    title: str
    pattern: str
    label: Callable[[re.Match], str]
    log: bool = False


def _task(found: re.Match) -> str:
    return TASKS.get(found[1], found[1])


def _pair(found: re.Match) -> str:
    return " · ".join(_SHORT.get(part, part) for part in found.groups())


_KINDS = (
    _Kind(
        "Cross-entropy, nats per token",
        r"(loss/ce|eval_loss)",
        lambda found: _SETS[found[1]],
    ),
    _Kind("Barrier above its floor", r"gap/(ldb)", _task),
    _Kind("Barlow Twins loss", r"loss/(bt)", _task),
    _Kind("Γ(G) at the design layer", r"gamma/L(\d+)", lambda found: f"layer {found[1]}"),
    _Kind("Bargaining powers λ", r"lambda/(\w+)", _task),
    _Kind("Weights of the gradients", r"weight/(\w+)", _task, log=True),
    _Kind("Cosines between gradients", r"cosine/([a-z]+)_([a-z]+)", _pair),
    _Kind("Norms of the gradients", r"gradient_norm/(\w+)", _task, log=True),
    _Kind("Tokens per second", r"(tokens_per_second)", lambda found: "tokens per second"),
)


@dataclass(frozen=True)
class Panel:
    """One panel with the curves that a run fills: (name of the metric, label) each."""

    title: str
    log: bool
    curves: tuple[tuple[str, str], ...]


def panels_of(metrics: RunMetrics) -> list[Panel]:
    """The panels that there are to draw, in order; one without any metric is left out."""
    panels = []
    for kind in _KINDS:
        found = [(name, match) for name in metrics.names if (match := re.fullmatch(kind.pattern, name))]
        curves = [(name, kind.label(match)) for name, match in found]
        order = list(TASKS.values())
        curves.sort(key=lambda curve: (curve[0] == "eval_loss", order.index(curve[1]) if curve[1] in order else 0))
        if curves:
            panels.append(Panel(kind.title, kind.log, tuple(curves)))
    return panels


def points_of(metrics: RunMetrics, name: str, log: bool = False) -> list[list[float | None]]:
    """[step, value] of one metric as it is drawn: at most `POINTS`, the lowest and highest of each stretch among them.

    A value that was not finite, or has no place on a logarithmic axis, is None and leaves a gap.
    """
    series = metrics.series(name)
    series = thin(series.dropna() if name.startswith(_NOW_AND_THEN) else series, POINTS)
    values = series.to_numpy(dtype=float)
    drawn = np.isfinite(values) & ((values > 0) | (not log))
    listed = [value if known else None for value, known in zip(values.tolist(), drawn.tolist(), strict=True)]
    return [[step, value] for step, value in zip(series.index.tolist(), listed, strict=True)]


def height_of(panels: list[Panel]) -> int:
    """Pixels that the grid takes."""
    return _ROW * -(-len(panels) // _COLUMNS)


def option_of(panels: list[Panel], metrics: RunMetrics) -> dict[str, Any]:
    """The grid as ECharts draws it."""
    option: dict[str, Any] = {name: [] for name in ("title", "legend", "grid", "xAxis", "yAxis", "series")}
    for number, panel in enumerate(panels):
        left, top = f"{33.5 * (number % _COLUMNS)}%", _ROW * (number // _COLUMNS)
        option["title"].append({"text": panel.title, "left": left, "top": top, "textStyle": _TITLE})
        if len(panel.curves) > 1:
            option["legend"].append(_legend(panel, left, top + 20))
        option["grid"].append({"left": left, "width": "31%", "top": top + _HEAD, "height": _PLOT, "containLabel": True})
        option["xAxis"].append(_axis(number) | _steps_of(metrics))
        option["yAxis"].append(_axis(number) | {"type": "log" if panel.log else "value", "scale": True, "splitNumber": 3})
        for position, (name, label) in enumerate(panel.curves):
            alone = len(panel.curves) == 1  # under a name of its own: legends take the look of the first curve of a name
            look = _LOOKS[0] if alone else _OF_TASK.get(label, _LOOKS[position % len(_LOOKS)])
            points = points_of(metrics, name, panel.log)
            option["series"].append(_curve(number, panel.title if alone else label, look, points))
    return option | {"animation": False, "tooltip": {"trigger": "axis", "valueFormatter": "%.4g", "confine": True}}


def _steps_of(metrics: RunMetrics) -> dict[str, Any]:
    """One axis for all panels: what is known only now and then stands below its step of the others."""
    known = [index for index in (metrics.steps.index, metrics.evaluations.index) if len(index)]
    first, last = min(int(index[0]) for index in known), max(int(index[-1]) for index in known)
    return {"type": "value", "minInterval": 1, "min": first, "max": max(last, first + 1), "splitLine": {"show": False}}


def _axis(number: int) -> dict[str, Any]:
    return {"gridIndex": number, "axisLabel": {"fontSize": 11, "hideOverlap": True}, "axisTick": {"show": False}}


def _legend(panel: Panel, left: str, top: int) -> dict[str, Any]:
    sizes = {"itemWidth": 22, "itemHeight": 8, "itemGap": 8, "padding": 0, "textStyle": {"fontSize": 11}}
    return {"data": [label for _, label in panel.curves], "left": left, "top": top} | sizes


def _curve(number: int, label: str, look: tuple[str, str, str], points: list[list[float | None]]) -> dict[str, Any]:
    color, dash, mark = look
    few = len(points) < _MARKED_BELOW
    return {
        "type": "line",
        "name": label,
        "xAxisIndex": number,
        "yAxisIndex": number,
        "data": points,
        "showSymbol": few,
        "symbol": mark,
        "symbolSize": 6 if label == "held-out" else 4,
        "lineStyle": {"color": color, "type": dash, "width": 2 if label == "held-out" else 1.4},
        "itemStyle": {"color": color},
    }
