"""Plotly figures of the head game: prices by layer, the two dynamics, charges and redundancy, and the causal check.

Pure functions from games to figures, as in analysis/figures.py. An unbounded value is drawn as a triangle at the upper edge
with its reason on hover, never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from analysis.ablation import Effect
from analysis.figure_data import NEUTRAL_COLOR, Panel, head_names
from analysis.figures import calm, escaped, layer_heatmaps
from analysis.game import HeadGame, Price, best_responses
from analysis.game_result import GameResult

STEP = 0.3  # of a best response, so that the way is seen and not only its end
_ARRIVED = 0.01  # of the largest effort: from here on a path looks flat
_FEWEST_ROUNDS, _MOST_ROUNDS = 8, 100
PRICES: tuple[tuple[str, str, Callable[[HeadGame], Price]], ...] = (
    ("price of anarchy", "solid", lambda game: game.price_of_anarchy),
    ("worst case over benefits", "dash", lambda game: game.worst_case),
    ("bound by Γ", "dot", lambda game: game.gamma_bound),
)


@dataclass(frozen=True, eq=False)
class Series:
    """The games of one checkpoint, its name and its colour."""

    name: str
    result: GameResult
    color: str


def prices_by_layer(series: Sequence[Series], selected: int | None = None) -> go.Figure:
    """Price of anarchy, its worst case and its bound by Gamma, by layer, on a logarithmic axis; one colour a checkpoint.

    A click gives the layer in `x`. `selected` marks a layer with a line.
    """
    figure = go.Figure()
    every = [price(game).value for part in series for game in part.result.games for _, _, price in PRICES]
    edge = 1.15 * max([value for value in every if np.isfinite(value)], default=1.0)
    for part in series:
        layers = np.asarray(part.result.layers)
        for label, dash, price in PRICES:
            prices = [price(game) for game in part.result.games]
            bounded = np.array([each.bounded for each in prices])
            figure.add_scatter(
                x=layers,
                y=[each.value if each.bounded else None for each in prices],
                name=label if len(series) == 1 else escaped(part.name),
                showlegend=len(series) == 1 or dash == "solid",
                mode="lines+markers",  # only markers can be clicked, so the dashed lines have them too, unseen
                line={"color": part.color, "width": 2 if dash == "solid" else 1.5, "dash": dash},
                marker={"size": 7, "opacity": 1.0 if dash == "solid" else 0.0},
                hovertemplate=f"layer %{{x}}: {label} %{{y:.4g}}<extra>{escaped(part.name)}</extra>",
            )
            figure.add_scatter(
                x=layers[~bounded],
                y=np.full((~bounded).sum(), edge),
                text=[each.reason for each in prices if not each.bounded],
                mode="markers",
                marker={"symbol": "triangle-up-open" if dash == "dot" else "triangle-up", "size": 9, "color": part.color},
                showlegend=False,
                hovertemplate=f"layer %{{x}}: {label} unbounded<br>%{{text}}<extra>{escaped(part.name)}</extra>",
            )
    for label, dash, _ in PRICES if len(series) > 1 else ():  # what the lines are, once for both colours
        style = {"color": NEUTRAL_COLOR, "width": 1.5, "dash": dash}
        figure.add_scatter(x=[None], y=[None], mode="lines", line=style, name=label)
    if not all(np.isfinite(every)):
        mark = {"symbol": "triangle-up", "size": 9, "color": NEUTRAL_COLOR}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=mark, name="unbounded (hollow: the bound by Γ alone)")
    if selected is not None:
        figure.add_vline(x=selected, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below")
    ends = [layer for part in series for layer in (min(part.result.layers), max(part.result.layers))]
    axis = {"range": [min(ends) - 0.7, max(ends) + 0.7], "tickformat": "d", "showgrid": False, "fixedrange": True}
    figure.update_xaxes(title="layer", **axis)
    top = np.log10(edge) + 0.06 * max(np.log10(edge), 0.1)  # room for a triangle at the edge
    figure.update_yaxes(title="price of anarchy", type="log", range=[-0.03 * top, top], fixedrange=True)
    figure.update_yaxes(dtick="D2", tickformat="~g")
    return calm(figure, height=300, legend=True)


def two_dynamics(game: HeadGame, layer: int, color: str) -> go.Figure:
    """Efforts (above) and welfare (below) round by round: without prices on the left, with the charge on the right.

    Heads start at no effort and move part of the way to their best response, in turn. Circles mark the optimum, the dotted
    line its welfare; both are left out when welfare has no maximum.
    """
    paths = [best_responses(game, priced, STEP) for priced in (False, True)]
    rounds = rounds_to_show(paths)
    titles = ("implicit game: ends at x = b", "priced game: ends at the optimum" if paths[1].settled else "priced game: no end")
    figure = make_subplots(
        2, 2, subplot_titles=titles, shared_xaxes=True, shared_yaxes="rows", row_heights=[0.6, 0.4], vertical_spacing=0.08
    )
    figure.update_layout(
        xaxis3={"title": "round"}, xaxis4={"title": "round"}, yaxis={"title": "effort"}, yaxis3={"title": "welfare"}
    )
    for column, path in enumerate(paths, start=1):
        shown = path.rounds <= rounds
        for head, name in enumerate(head_names(layer, game.n_heads)):
            figure.add_scatter(
                x=path.rounds[shown],
                y=path.efforts[shown, head],
                name=name,
                mode="lines",
                line={"color": color, "width": 1.5},
                opacity=0.65,
                hovertemplate=f"{name}, round %{{x}}: effort %{{y:.3g}}<extra></extra>",
                row=1,
                col=column,
            )
        figure.add_scatter(
            x=path.rounds[shown],
            y=path.welfare[shown],
            mode="lines",
            line={"color": color, "width": 2},
            hovertemplate="round %{x}: welfare %{y:.4g}<extra></extra>",
            row=2,
            col=column,
        )
        if game.optimum is not None:
            best = float(game.welfare(game.optimum))
            figure.add_hline(y=best, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, row=2, col=column)
            figure.add_scatter(
                x=np.full(game.n_heads, rounds),
                y=game.optimum,
                text=head_names(layer, game.n_heads),
                mode="markers",
                marker={"symbol": "circle-open", "size": 8, "color": NEUTRAL_COLOR},
                hovertemplate="%{text}: optimum %{y:.3g}<extra></extra>",
                row=1,
                col=column,
            )
    figure.update_xaxes(showgrid=False, fixedrange=True, tickformat="d")
    figure.update_yaxes(fixedrange=True, nticks=5)
    return calm(figure, height=420, top=40)


def rounds_to_show(paths: Sequence) -> int:
    """Rounds until every path looks flat, within what a reader takes in."""
    needed = 0
    for path in paths:
        far = abs(path.efforts - path.efforts[-1]).max(axis=1) > _ARRIVED * max(abs(path.efforts[-1]).max(), 1e-12)
        needed = max(needed, int(path.rounds[far].max(initial=0)) + 1)
    return int(np.clip(needed, _FEWEST_ROUNDS, _MOST_ROUNDS))


def charges_and_vif(series: Sequence[Series], layer: int, selected: int | None = None) -> go.Figure:
    """Each head's Pigouvian charge (above) and VIF (below) in one layer, bars side by side by checkpoint.

    Parameters
    ----------
    layer : true layer index, held by every series.
    selected : head whose bars keep their full colour, as picked in the heatmap. A click gives the head in `customdata`.
    """
    titles = ("charge at the optimum, in units of welfare", "variance inflation factor (VIF)")
    figure = make_subplots(2, 1, subplot_titles=titles, shared_xaxes=True, vertical_spacing=0.16)
    games = [part.result.games[list(part.result.layers).index(layer)] for part in series]
    threshold = series[0].result.vif_threshold
    finite = [value for game in games for value in game.vif if np.isfinite(value)]
    edge = 1.15 * max([threshold, *finite])
    for part, game in zip(series, games, strict=True):
        names, heads = head_names(layer, game.n_heads), np.arange(game.n_heads)
        opacity = np.where((heads == selected) | (selected is None), 1.0, 0.35)
        shared = {
            "x": names,
            "customdata": heads,
            "marker": {"color": part.color, "opacity": opacity},
            "name": escaped(part.name),
            "legendgroup": part.name,
            "offsetgroup": part.name,
        }
        charges = np.full(game.n_heads, np.nan) if game.charges is None else game.charges
        figure.add_bar(y=charges, hovertemplate="%{x}: charge %{y:.3g}", **shared, row=1, col=1)
        figure.add_bar(
            y=np.minimum(game.vif, edge),
            text=["∞" if np.isinf(value) else "" for value in game.vif],
            hovertext=["unbounded" if np.isinf(value) else f"{value:.3g}" for value in game.vif],
            hovertemplate="%{x}: VIF %{hovertext}",
            showlegend=False,
            **shared,
            row=2,
            col=1,
        )
        if game.charges is None:
            why = escaped(f"{part.name}: {game.price_of_anarchy.reason}")
            figure.add_annotation(text=why, x=0.5, y=0.5, xref="x domain", yref="y domain", showarrow=False)
    line = {"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}
    figure.add_hline(y=threshold, line=line, annotation_text=f"redundant above {threshold:g}", row=2, col=1)
    figure.update_xaxes(fixedrange=True, showgrid=False, type="category")
    figure.update_yaxes(fixedrange=True, nticks=5, rangemode="tozero")
    figure.update_layout(barmode="group")
    calm(figure, height=420, legend=len(series) > 1, top=40)
    return figure.update_layout(margin={"t": 64}, legend={"y": 1.09}) if len(series) > 1 else figure  # above the upper title


def heatmaps_with_head(panels: Sequence[Panel], limit: float, selected: int | None = None) -> go.Figure:
    """G of one layer, as `layer_heatmaps`, with the row of the selected head framed. A click gives the row's head in
    `customdata`.
    """
    figure = layer_heatmaps(panels, limit)
    frames = []
    for column, panel in enumerate(panels, start=1):
        heads = len(panel.names)
        rows, columns = (index.ravel() for index in np.indices((heads, heads)))
        figure.add_scatter(
            x=[panel.names[head] for head in columns],
            y=[panel.names[head] for head in rows],
            customdata=rows.tolist(),
            text=[f"{value:.3g}" for value in panel.matrix.ravel()],
            mode="markers",
            marker={"symbol": "square", "size": 14, "opacity": 0},
            selected={"marker": {"opacity": 0}},
            unselected={"marker": {"opacity": 0}},
            hovertemplate="%{y} and %{x}: %{text}<extra></extra>",
            showlegend=False,
            row=1,
            col=column,
        )
        if selected is not None and selected < heads:
            anchor = "x" if column == 1 else f"x{column}"
            edge = {"xref": anchor, "yref": anchor.replace("x", "y"), "line": {"color": panel.color, "width": 2}}
            frames.append({"type": "rect", "x0": -0.5, "x1": heads - 0.5, "y0": selected - 0.5, "y1": selected + 0.5, **edge})
    return figure.update_layout(shapes=[*figure.layout.shapes, *frames])


def redundant_by_layer(series: Sequence[Series]) -> go.Figure:
    """Number of redundant heads by layer (outlined) and of free riders among them (filled, where effects are known)."""
    figure = go.Figure()
    for part in series:
        result = part.result
        counts = {"redundant": result.redundant.sum(axis=1)}
        if result.free_riders is not None:
            counts["free riders"] = result.free_riders.sum(axis=1)
        for label, count in counts.items():
            fill = part.color if label == "free riders" else "rgba(0,0,0,0)"
            figure.add_bar(
                x=list(result.layers),
                y=count,
                name=escaped(f"{part.name}: {label}"),
                offsetgroup=part.name,
                marker={"color": fill, "line": {"color": part.color, "width": np.where(count, 1.5, 0)}},  # none is no line
                hovertemplate=f"layer %{{x}}: %{{y}} {label}<extra>{escaped(part.name)}</extra>",
            )
    figure.update_xaxes(title="layer", tickformat="d", showgrid=False, fixedrange=True)
    figure.update_yaxes(title="heads", rangemode="tozero", tickformat="d", nticks=5, fixedrange=True)
    figure.update_layout(barmode="group")
    return calm(figure, height=240, legend=True)


def ablation_against_random(effect: Effect, name: str, measure: str, color: str) -> go.Figure:
    """The change that ablating a set makes, with its 95 % interval, over those of the random sets (grey).

    `name` says what was ablated, `measure` what changes and in which unit.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=effect.random_effects,
        y=np.full(len(effect.random), "random sets"),
        mode="markers",
        marker={"color": NEUTRAL_COLOR, "size": 9, "opacity": 0.6},
        hovertemplate="a random set: %{x:+.4g}<extra></extra>",
    )
    interval = effect.interval
    bars = None
    if interval is not None:
        bars = {"array": [interval[1] - effect.effect], "arrayminus": [effect.effect - interval[0]], "color": color}
    figure.add_scatter(
        x=[effect.effect],
        y=[escaped(name)],
        error_x=bars,
        mode="markers",
        marker={"color": color, "size": 11},
        hovertemplate="%{y}: %{x:+.4g}<extra></extra>",
    )
    figure.add_vline(x=0, line={"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}, layer="below")
    figure.update_xaxes(title=escaped(measure), fixedrange=True, nticks=7)
    figure.update_yaxes(fixedrange=True, showgrid=False)
    return calm(figure, height=190)
