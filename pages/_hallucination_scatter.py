"""The picture that answers the page's question: Gamma of checkpoints against hallucination rates, and the sentence on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from analysis.hallucination.checkpoints import AcrossCheckpoints
from analysis.hallucination.prediction import Checkpoint, Points, checkpoint_points
from analysis.hallucination_figures import checkpoint_scatter
from gamelora.objectives import design_layer_among
from pages._hallucination_controls import Choice
from pages._hallucination_data import Key, Stamp, fit_of, key_of
from pages._widgets import linked, plain, sentence

_SILENT = 0.05  # share of answers without a verdict that is worth a word
_HELP = (
    r"Interaction strength $\Gamma(G) = \|G - I\|_F$ of the items' own gradients, added up over all items of the benchmarks. "
    r"**mean**: over layers. **design layer**: the one that GAME-LoRA regularizes, round(19/24 · layers)."
)


@dataclass(frozen=True)
class Screen:
    """What the page shows, for the tabs to detail and to download.

    Attributes
    ----------
    choice : what was asked for.
    coupling : of Gamma.
    checkpoints : those with at least one evaluation, in the order chosen.
    stamps : checkpoint -> benchmark -> stamp of its evaluation.
    points, fit : of the scatter; `points` None and `fit` a sentence when they cannot be had.
    gamma_title : what Gamma is on screen: of which layer, raw or divided by its largest value.
    """

    choice: Choice
    coupling: str
    checkpoints: list[Checkpoint]
    stamps: dict[str, dict[str, Stamp]]
    points: Points | None
    fit: AcrossCheckpoints | str
    gamma_title: str

    @property
    def key(self) -> Key:
        """What all numbers on screen depend on."""
        return key_of(self.stamps)

    @property
    def short(self) -> dict[str, str]:
        """Checkpoint -> its name in tables."""
        return short_names([point.name for point in self.checkpoints])


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names for narrow places: an adapter without its base where all adapters sit on the same one."""
    bases = {name.split(" + ")[0] for name in names if " + " in name}
    return {name: f"+ {name.split(' + ', 1)[1]}" if " + " in name and len(bases) == 1 else name for name in names}


def scatter(choice: Choice, coupling: str, checkpoints: list[Checkpoint], stamps: dict[str, dict[str, Stamp]]) -> Screen:
    """Pick Gamma, draw the scatter with its fit, say what it means; returns what is on screen."""
    layers = sorted({layer for point in checkpoints for one in point.evaluations.values() for layer in _layers(one)})
    with choice.row:
        which, layer, normalized = _gamma_picker(checkpoints, layers)
    title = ("Γ / √(H(H − 1))" if normalized else "Γ(G)") + f", {which}, {coupling} coupling"
    try:
        points = checkpoint_points(checkpoints, layer, normalized)
    except ValueError as error:
        said = sentence(error)
        st.info(f"No scatter: {plain(said.replace('with --per-item-gamma', 'in the box above'))}")
        return Screen(choice, coupling, checkpoints, stamps, None, said, title)
    fit = fit_of(key_of(stamps), layer, normalized, checkpoints)
    chart = checkpoint_scatter(points, None if isinstance(fit, str) else fit, choice.colors, title)
    st.plotly_chart(chart, key="scatter", alt="Hallucination rate against Gamma, one point a checkpoint and score")
    _words(points, fit, checkpoints)
    return Screen(choice, coupling, checkpoints, stamps, points, fit, title)


def _layers(evaluation) -> list[int]:
    return [] if evaluation.gamma is None else evaluation.gamma.layers.tolist()


def _gamma_picker(checkpoints: list[Checkpoint], layers: list[int]) -> tuple[str, int | None, bool]:
    """What is called Gamma: its words, the layer (None: the mean), and whether it is normalized."""
    linked("gamma_of", ["mean", "design", *layers], "mean")
    linked("scale", ["raw", "normalized"], "raw")
    model = next(iter(checkpoints[0].evaluations.values())).provenance["model"]
    design = design_layer_among(layers, model.get("n_layers", len(layers))) if layers else None
    words = {"mean": "mean over layers", "design": f"design layer {design}"}
    which = st.selectbox(
        "Gamma of",
        ["mean", "design", *layers],
        format_func=lambda one: words.get(one, f"layer {one}"),
        key="gamma_of",
        persist_state="session",
        width=175,
        help=_HELP,
    )
    scale = st.segmented_control(
        "Scale",
        ["raw", "normalized"],
        key="scale",
        required=True,
        persist_state="session",
        help="Normalized: Γ / √(H(H − 1)), in [0, 1], compares models with different numbers of heads.",
    )
    layer = {"mean": None, "design": design}.get(which, which)
    return words.get(which, f"layer {which}"), layer, scale == "normalized"


def _words(points: Points, fit: AcrossCheckpoints | str, checkpoints: list[Checkpoint]) -> None:
    if isinstance(fit, str):
        st.info(f"No line is drawn. {plain(fit)}")
    else:
        st.markdown(plain(fit.in_words()))
    scored = {name: min(found.values()) for name, found in points.n.items()}
    n = ", ".join(f"{plain(points.titles[name])} n = {count}" for name, count in scored.items())
    if len(set(scored.values())) == 1:
        n = f"n = {next(iter(scored.values()))} each"
    every = [score for point in checkpoints for one in point.evaluations.values() for score in one.scores()]
    silent = max((score.unparsed or 0.0 for score in every if score.name in points.rates), default=0.0)
    no_verdict = f" Answers without a verdict count as errors: up to {silent:.0%} of one score's." if silent > _SILENT else ""
    st.caption(
        f"One point a checkpoint and score; bars: standard error over items ({n}). :blue[**A**] blue, :orange[**B**] orange. "
        "Rate: 1 − score. One slope for all scores, each with its own level; grey: 95 % band from resampled checkpoints."
        + no_verdict
    )
