"""Does a costlier game go with more errors? Price of anarchy against hallucination rate, one point a checkpoint and benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analysis.figure_data import NEUTRAL_COLOR
from analysis.figures import calm, escaped
from analysis.game import Price
from analysis.hallucination.checkpoints import MIN_CHECKPOINTS, AcrossCheckpoints, across_checkpoints
from analysis.hallucination.evaluation import StoredEvaluation

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "x", "star")
_NORMAL = 1.96  # standard errors in half a 95 % interval


@dataclass(frozen=True)
class Rate:
    """Hallucination rate, 1 - score, of a checkpoint on a benchmark, with the score's standard error, over n items."""

    title: str
    value: float
    standard_error: float
    n: int


@dataclass(frozen=True)
class Player:
    """A checkpoint: its name, the price of anarchy of a layer, its rates by score name, and its colour on screen."""

    name: str
    price: Price
    rates: dict[str, Rate]
    color: str = NEUTRAL_COLOR


def rates_of(stored: Sequence[StoredEvaluation], provenance: Mapping[str, Any]) -> dict[str, Rate]:
    """The hallucination rates of a measured checkpoint among stored evaluations, by score name; of several, that of most items.

    An evaluation belongs to a checkpoint when weights and adapter have the same content.
    """
    found: dict[str, Rate] = {}
    for one in stored:
        if _content(one.provenance) != _content(provenance):
            continue
        for score in one.scores:
            known = found.get(score["name"])
            if score["kind"] == "hallucination" and (known is None or score["n"] > known.n):
                rate = Rate(score["title"], 1 - score["value"], score["standard_error"], score["n"])
                found[score["name"]] = rate
    return found


def _content(provenance: Mapping[str, Any]) -> tuple[str, str | None]:
    return provenance["model"]["sha256"], (provenance["adapter"] or {}).get("sha256")


def fit(players: Sequence[Player]) -> AcrossCheckpoints:
    """Rate against price over the checkpoints whose price is bounded, on the benchmarks that enough of them have.

    Raises
    ------
    ValueError
        When no benchmark has 4 such checkpoints, or their prices are all the same.
    """
    prices = {player.name: player.price.value for player in players if player.price.bounded}
    rates: dict[str, dict[str, float]] = {}
    for player in players:
        for score, rate in player.rates.items() if player.price.bounded else ():
            rates.setdefault(score, {})[player.name] = rate.value
    enough = {score: values for score, values in rates.items() if len(values) >= MIN_CHECKPOINTS}
    if not enough:
        most = max((len(values) for values in rates.values()), default=0)
        raise ValueError(
            f"{most} checkpoint{'s have' if most != 1 else ' has'} both a bounded price in this layer and an evaluation; a line "
            f"through fewer than {MIN_CHECKPOINTS} says nothing. Evaluate more checkpoints."
        )
    used = {name for values in enough.values() for name in values}
    if len({prices[name] for name in used}) == 1:
        raise ValueError("the price of anarchy is the same for all checkpoints in this layer: choose another layer.")
    return across_checkpoints({name: price for name, price in prices.items() if name in used}, enough)


def price_against_rate(players: Sequence[Player], line: AcrossCheckpoints | None = None) -> go.Figure:
    """Hallucination rate by price of anarchy with 95 % intervals: a symbol a benchmark, a colour a checkpoint on screen.

    A checkpoint without a bounded price stands at the right edge as an open symbol, with the reason on hover.
    """
    figure = go.Figure()
    scores = list(dict.fromkeys(score for player in players for score in player.rates))
    bounded = [player.price.value for player in players if player.price.bounded]
    edge = max(bounded, default=1.0) + 0.08 * (np.ptp(bounded) if np.ptp(bounded or [1]) else 1.0)
    for score, symbol in zip(scores, _cycle(len(scores)), strict=True):
        shown = [player for player in players if score in player.rates]
        rates = [player.rates[score] for player in shown]
        symbols = [symbol if player.price.bounded else f"{symbol}-open" for player in shown]
        colors = [player.color for player in shown]
        figure.add_scatter(
            x=[player.price.value if player.price.bounded else edge for player in shown],
            y=[rate.value for rate in rates],
            error_y={"array": [_NORMAL * rate.standard_error for rate in rates], "color": NEUTRAL_COLOR, "thickness": 1},
            text=[
                f"{escaped(player.name)}<br>{player.price.reason or f'price of anarchy {player.price.value:.4g}'}, n = {rate.n:,}"
                for player, rate in zip(shown, rates, strict=True)
            ],
            name=escaped(rates[0].title),
            mode="markers",
            marker={"symbol": symbols, "size": 10, "color": colors},
            hovertemplate="%{text}<br>rate %{y:.3f}",
        )
        if line is not None and score in line.benchmarks:
            ends = np.array([min(bounded), max(bounded)])
            style = {"color": NEUTRAL_COLOR, "width": 1, "dash": "dot"}
            figure.add_scatter(x=ends, y=line.line(score, ends), mode="lines", line=style, hoverinfo="skip", showlegend=False)
    figure.update_xaxes(title="price of anarchy", showgrid=False, fixedrange=True, nticks=6)
    figure.update_yaxes(title="hallucination rate", fixedrange=True, nticks=6)
    return calm(figure, height=320, legend=True)


def _cycle(count: int) -> list[str]:
    return [_SYMBOLS[place % len(_SYMBOLS)] for place in range(count)]
