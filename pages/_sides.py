"""Checkpoints A and B with their results, as every page shows them, and what stands in the place of one that has none."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from analysis.figure_data import A_COLOR, B_COLOR, Curve
from analysis.gauge import GaugeMoves, GaugeResult
from analysis.results import InteractionResult
from gamelora.game_jobs import gauge_job
from gamelora.measurement_jobs import MeasurementRequest, request_like, text_name
from pages._cache import Measurement, read_file
from pages._frame import View
from pages._jobs import measurement_panel
from pages._widgets import checkpoint_name, choose, measured_on, plain


@dataclass(frozen=True)
class Side:
    """A checkpoint on screen with its result; `label` is A or B."""

    label: str
    measurement: Measurement
    result: InteractionResult

    @property
    def name(self) -> str:
        """A or B and what it is, as charts write it."""
        return f"{self.label}  {checkpoint_name(self.measurement.provenance)}"

    @property
    def color(self) -> str:
        """The colour of all that belongs to it."""
        return A_COLOR if self.label == "A" else B_COLOR

    @property
    def gauge(self) -> GaugeMoves | None:
        """How its coupling moves with the heads' value bases alone; None while that was not measured on its text."""
        known = self.measurement.provenance
        if "source" not in known["text"] or self.result.gradient != "token":
            return None
        found = read_file(GaugeResult, gauge_job(known).path)
        return found and found.couplings[self.result.coupling]


def ready_sides(view: View) -> list[Side]:
    """The sides that have a result, seen through the chosen coupling.

    In the place of a side that has none stands how far its job is; beside one that was measured otherwise than the sidebar
    asks, or cannot show the coupling, stands a notice.
    """
    sides = []
    for label, one in [("A", view.a)] + ([("B", view.b)] if view.b else []):
        if one.path is None:
            measurement_panel(one, one.request or view.default, label)
            continue
        _stale_notice(label, one, view.default)
        result = one.load()
        if view.coupling in result.couplings:
            result = result.view(view.coupling)
        else:
            st.info(f"{label} holds the {result.coupling} coupling only and is shown with it. Measure it again to have both.")
        sides.append(Side(label, one, result))
    return sides


def telling_layer(sides: list[Side]) -> int:
    """The layer to look at first: of two checkpoints where Gamma differs most, of one where it is largest."""
    first = sides[0].result
    if len(sides) == 2 and list(first.layers) == list(sides[1].result.layers):
        return int(first.layers[abs(sides[1].result.gamma_normalized - first.gamma_normalized).argmax()])
    return int(first.layers[first.gamma.argmax()])


def gamma_curves(sides: list[Side]) -> tuple[list[Curve], bool]:
    """Gamma by layer of each side with its gauge band where known, and whether all is normalized.

    It is when the sides have different numbers of heads.
    """
    normalized = len({side.result.n_heads for side in sides}) > 1
    curves = []
    for side in sides:
        result, gauge = side.result, side.gauge
        values = result.gamma_normalized if normalized else result.gamma
        scale = max(result.n_heads * (result.n_heads - 1), 1) ** -0.5 if normalized else 1.0
        band = gauge and tuple(edge * scale for edge in gauge.band)
        curves.append(Curve(side.name, result.layers, values, side.color, band))
    return curves, normalized


def _stale_notice(label: str, measurement: Measurement, asked: MeasurementRequest) -> None:
    """Say when the sidebar asks for another text than the one on screen was measured on, with the button that gets it."""
    known = measurement.provenance
    text, request = known["text"], request_like(known, asked.text, asked.tokens)
    merged = "merged" in text  # there is no one text to compare with
    if merged or request.name == measurement.name:
        return
    if text["source"] == asked.text and text["tokens"] == asked.tokens - asked.tokens % text["seq_len"]:
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"stale_{label}"):
        wanted = f"{text_name(asked.text)}, {asked.tokens:,} tokens"
        st.markdown(
            f"{label} was measured on {plain(measured_on(known))}; the sidebar asks for {plain(wanted)}.", width="stretch"
        )
        verb = "Show that one" if request.path.is_file() else "Measure that"
        if st.button(verb, key=f"remeasure_{label}"):
            choose(label.lower(), request)
