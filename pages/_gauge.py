"""The gauge check on the pages: what it says of a checkpoint, or the button that computes it."""

from __future__ import annotations

import streamlit as st

from analysis.gauge import ROTATIONS
from gamelora.game_jobs import expected_seconds, gauge_job
from pages._jobs import game_panel, seconds
from pages._sides import Side
from pages._widgets import plain

_HELP = (
    r"Turning the value basis of a kv group ($W_V \to R^\top W_V$, $W_i \to W_i R$) leaves the model's function as it is. The "
    r"paper's $\omega$, $\rho$ and $G$ between heads of different groups move with it; the invariant form does not."
)


def gauge_line(sides: list[Side]) -> None:
    """Under a chart of Gamma: how wide the band is, for each side; not yet computed: one sentence, one button, its cost."""
    for side in sides:
        if side.gauge is not None:
            st.caption(_known(side), help=_HELP)
        elif side.result.coupling == "invariant":
            continue  # it does not move, as the page says already: 9 passes would only show rounding
        elif "source" not in side.measurement.provenance["text"]:
            st.caption(f"{side.label} is merged from several texts; the gauge check wants one.", help=_HELP)
        elif side.result.gradient != "token":
            st.caption(f"The gauge check measures gradients per token; {side.label} holds their mean.", help=_HELP)
        else:
            work = gauge_job(side.measurement.provenance)
            words = f"{side.label}: how far Γ moves when only the heads' value bases do is not known yet."
            game_panel(work, f"gauge_{side.label}", words, "Check the gauge", cost(work, side, f"{1 + ROTATIONS} bases"))


def cost(work, side: Side, what: str) -> str:
    """What a job takes, in words."""
    expected = expected_seconds(work, side.measurement.provenance)
    return f"{what}, about {seconds(expected)}." if expected else f"{what}; the time left is shown once it runs."


def _known(side: Side) -> str:
    gauge, layers = side.gauge, side.result.layers
    bases = 1 + len(gauge.gamma_rotated)
    if side.result.coupling == "invariant":
        return (
            f"{side.label}: over {bases} value bases an entry of the invariant G moves by at most {gauge.G.max():.2g}, which is "
            "rounding: no band to draw."
        )
    low, high = gauge.band
    widest = int((high - low).argmax())
    moved = f"Γ of {gauge.gamma[widest]:.3g} moves by {high[widest] - low[widest]:.2g}"
    return plain(
        f"{side.label}: the band is Γ over {bases} value bases of the same function. It is widest in layer {layers[widest]}, "
        f"where {moved}; an entry of G moves by at most {gauge.G.max():.2g}."
    )
