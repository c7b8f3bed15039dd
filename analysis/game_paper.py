"""Matplotlib figures of the head game for papers; the files are made by `paper_figures.figure_bytes`.

The same content as game_figures.py draws on screen. B is dashed or hatched, so that the figures also read in grey.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.ablation import Effect
from analysis.figure_data import NEUTRAL_COLOR, tick_positions
from analysis.game import HeadGame, best_responses
from analysis.game_figures import PRICES, STEP, Series, rounds_to_show
from analysis.paper_figures import COLUMN_WIDTH, PAGE_WIDTH, literal, one_axes

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_HATCHES = ("", "////")
_LINE = {"color": NEUTRAL_COLOR, "linewidth": 0.6, "linestyle": ":"}


def prices_figure(series: Sequence[Series]) -> Figure:
    """Price of anarchy, its worst case and its bound by layer; an unbounded value is a triangle at the upper edge."""
    figure, axes = one_axes(COLUMN_WIDTH, 2.3)
    every = [price(game).value for part in series for game in part.result.games for _, _, price in PRICES]
    edge = 1.15 * max([value for value in every if np.isfinite(value)], default=1.0)
    for part, marker in zip(series, "os", strict=False):
        layers = np.asarray(part.result.layers)
        for _, dash, price in PRICES:
            values = np.array([price(game).value for game in part.result.games])
            bounded = np.isfinite(values)
            style = {"marker": marker, "markersize": 2.5, "linewidth": 1.0} if dash == "solid" else {"linewidth": 0.8}
            axes.plot(layers, np.where(bounded, values, np.nan), _DASHES[dash], color=part.color, **style)
            face = "none" if dash == "dot" else part.color
            above = np.full((~bounded).sum(), edge)
            axes.plot(layers[~bounded], above, "^", color=part.color, markerfacecolor=face, markersize=3.5, clip_on=False)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="minor", labelsize=6)
    axes.set(xlabel="layer", ylabel="price of anarchy")
    axes.xaxis.get_major_locator().set_params(integer=True)
    handles = [Line2D([], [], color="black", linestyle=_DASHES[dash], linewidth=1) for _, dash, _ in PRICES]
    labels = [label.replace("Γ", r"$\Gamma$") for label, _, _ in PRICES]
    handles.append(Line2D([], [], color="black", marker="^", linestyle="none", markersize=3.5))
    for part, marker in zip(series, "os", strict=False):
        handles.append(Line2D([], [], color=part.color, marker=marker, linewidth=1, markersize=2.5))
    labels += ["unbounded", *(literal(part.name) for part in series)]
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=6, frameon=False)
    return figure


def dynamics_figure(game: HeadGame, color: str) -> Figure:
    """Efforts and welfare by round: without prices on the left, with the charge on the right; circles mark the optimum."""
    figure = Figure(figsize=(PAGE_WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[3, 2])
    paths = [best_responses(game, priced, STEP) for priced in (False, True)]
    rounds = rounds_to_show(paths)
    titles = ("implicit game: ends at $x = b$", "priced game: ends at the optimum" if paths[1].settled else "priced game: no end")
    for column, (path, title) in enumerate(zip(paths, titles, strict=True)):
        shown = path.rounds <= rounds
        above, below = panels[:, column]
        above.plot(path.rounds[shown], path.efforts[shown], color=color, linewidth=0.8, alpha=0.7)
        below.plot(path.rounds[shown], path.welfare[shown], color=color, linewidth=1.2)
        if game.optimum is not None:
            above.plot(np.full(game.n_heads, rounds), game.optimum, "o", color=NEUTRAL_COLOR, fillstyle="none", markersize=4)
            below.axhline(float(game.welfare(game.optimum)), **_LINE)
        above.set_title(title, fontsize=8)
        below.set_xlabel("round", fontsize=8)
        for axes in (above, below):
            _calm(axes)
    panels[0, 0].set_ylabel("effort", fontsize=8)
    panels[1, 0].set_ylabel("welfare", fontsize=8)
    return figure


def charges_figure(series: Sequence[Series], layer: int) -> Figure:
    """Each head's charge (above) and VIF (below) in one layer; an infinite VIF reaches the upper edge and says so."""
    figure = Figure(figsize=(COLUMN_WIDTH, 3.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    games = [part.result.games[list(part.result.layers).index(layer)] for part in series]
    threshold = series[0].result.vif_threshold
    edge = 1.15 * max([threshold, *(value for game in games for value in game.vif if np.isfinite(value))])
    width = 0.8 / len(series)
    for place, (part, game, hatch) in enumerate(zip(series, games, _HATCHES, strict=False)):
        x = np.arange(game.n_heads) + (place - (len(series) - 1) / 2) * width
        style = {"width": width, "color": part.color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}
        if game.charges is not None:
            above.bar(x, game.charges, label=literal(part.name), **style)
        bars = below.bar(x, np.minimum(game.vif, edge), **style)
        below.bar_label(bars, [r"$\infty$" if np.isinf(value) else "" for value in game.vif], fontsize=6)
    above.axhline(0, color="black", linewidth=0.5)
    below.axhline(threshold, **_LINE)
    above.set_ylabel("charge", fontsize=8)
    below.set_ylabel("VIF", fontsize=8)
    ticks = tick_positions(max(game.n_heads for game in games))
    below.set_xticks(ticks, [f"L{layer}H{tick}" for tick in ticks], rotation=90)
    for axes in (above, below):
        _calm(axes)
    if len(series) > 1 and above.get_legend_handles_labels()[0]:
        figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=1, fontsize=6, frameon=False)
    return figure


def ablation_figure(effects: dict[str, Effect], color: str) -> Figure:
    """The change that ablating a set makes in each measure, with its 95 % interval, over those of the random sets (grey)."""
    figure = Figure(figsize=(COLUMN_WIDTH, 0.4 + 0.85 * len(effects)), layout="constrained")
    panels = figure.subplots(len(effects), 1, squeeze=False)[:, 0]
    for axes, (measure, effect) in zip(panels, effects.items(), strict=True):
        random = effect.random_effects
        axes.plot(random, np.zeros(len(random)), "o", color=NEUTRAL_COLOR, alpha=0.6, markersize=3.5, markeredgewidth=0)
        low, high = effect.interval or (effect.effect, effect.effect)
        reach = [[effect.effect - low], [high - effect.effect]]
        axes.errorbar([effect.effect], [1], xerr=reach, fmt="o", color=color, markersize=4.5, elinewidth=1, capsize=2)
        axes.axvline(0, **_LINE)
        axes.set_yticks([0, 1], ["random sets", "ablated"])
        axes.set_ylim(-0.6, 1.6)
        axes.set_xlabel(literal(f"change of {measure}"), fontsize=8)
        _calm(axes)
    return figure


def _calm(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
