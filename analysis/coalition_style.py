"""How a coalition looks, on screen and on paper: an Okabe-Ito colour and a marker, so that it also reads in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.coalitions import LayerCoalitions
from analysis.figure_data import DIVERGING, NEUTRAL_COLOR

# Okabe and Ito's colour-blind safe palette without black, in an order that keeps neighbours apart in grey.
OKABE_ITO = ("#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#F0E442", "#009E73", "#CC79A7")
POSITIVE_COLOR, NEGATIVE_COLOR = DIVERGING[-3], DIVERGING[2]  # the heatmap's colours, in tones seen on white and on dark
# (Matplotlib, Plotly, TikZ); 8 markers and 7 colours give 56 different looks
_MARKERS = (
    ("o", "circle", "circle"),
    ("s", "square", "rectangle"),
    ("D", "diamond", "diamond"),
    ("^", "triangle-up", "regular polygon, regular polygon sides=3"),
    ("p", "pentagon", "regular polygon, regular polygon sides=5"),
    ("v", "triangle-down", "regular polygon, regular polygon sides=3, shape border rotate=180"),
    ("h", "hexagon", "regular polygon, regular polygon sides=6"),
    ("8", "octagon", "regular polygon, regular polygon sides=8"),
)


@dataclass(frozen=True)
class Look:
    """Colour, text colour on it, and markers of one coalition; `hollow` for a head that is coupled to no other."""

    color: str
    text: str
    marker: str
    symbol: str
    shape: str
    hollow: bool


def look(coalition: int) -> Look:
    """The look of a coalition, by its canonical label."""
    color = OKABE_ITO[coalition % len(OKABE_ITO)]
    return Look(color, "white" if color == "#0072B2" else "black", *_MARKERS[coalition % len(_MARKERS)], hollow=False)


def looks(entry: LayerCoalitions) -> list[Look]:
    """The look of each head of a layer: its coalition's, or a hollow grey circle for an isolated head."""
    isolated = Look(NEUTRAL_COLOR, "black", *_MARKERS[0], hollow=True)
    return [isolated if alone else look(int(label)) for label, alone in zip(entry.labels, entry.isolated, strict=True)]


def block_order(labels: Sequence[int]) -> np.ndarray:
    """Heads sorted by coalition and then by index, int [heads]: the order of a reordered heatmap."""
    return np.argsort(labels, kind="stable")


def block_bounds(labels: Sequence[int]) -> list[tuple[float, float]]:
    """First and last edge of each coalition's block in a reordered heatmap, in cell units."""
    sizes = np.bincount(labels)
    ends = np.cumsum(sizes)
    return [(float(end - size) - 0.5, float(end) - 0.5) for size, end in zip(sizes, ends, strict=True)]
