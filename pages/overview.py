"""Overview: what am I looking at?"""

from pathlib import Path

import streamlit as st

from analysis import figures
from analysis.figure_data import symmetric_limit
from analysis.workspace import workspace_root
from gamelora.measurement_jobs import MeasurementRequest, latest_jobs
from pages._cache import machine
from pages._frame import View
from pages._sides import Side, gamma_curves, ready_sides
from pages._widgets import checkpoint_kind, checkpoint_name, header, measured_on, plain, three_digits

IDEA = (
    "Every attention head of a layer writes into the same residual stream, and all are trained on one loss: heads are players "
    "whose moves spill over on each other. The head interaction matrix $G$ measures that spill-over from the model's weights "
    "and one backward pass. It is 1 on the diagonal; off it, positive entries mark heads that duplicate each other's work, "
    "negative ones heads that work against each other, and zeros heads that do not meet."
)
FORMULAS = {
    r"\omega_{ij} = \frac{\langle W_i, W_j\rangle_F}{\|W_i\|_F\,\|W_j\|_F}": (
        "**Weight coupling.** Do two heads write into the same directions?"
    ),
    r"\rho_{ij} = \frac{\sum_t \langle g_{i,t}, g_{j,t}\rangle}{\sqrt{\sum_t \|g_{i,t}\|^2\,\sum_t \|g_{j,t}\|^2}}": (
        "**Gradient coupling.** Does the loss pull two heads the same way?"
    ),
    r"\begin{gathered} G = \omega \circ \rho \\ \Gamma(G) = \|G - I\|_F \end{gathered}": (
        r"**Interaction.** Both at once; $\Gamma$ is all of a layer's coupling in one number."
    ),
}
SYMBOLS = (
    r"$W_i$: head $i$'s columns of the output projection. $g_{i,t} = W_i^\top \eta_t$: the loss gradient at what head $i$ "
    "writes at token $t$. From *Multi-Head Attention is a Multi-Player Game*, arXiv 2602.00861."
)


def main(view: View) -> None:
    header("Overview", "Which checkpoint is open, how strongly its heads interact, and where to look next.")
    _first_start(view)
    sides = ready_sides(view)
    if len(sides) == 1:
        card, strip = st.columns([5, 6], gap="medium")
        with card:
            _model_card(sides[0])
        with strip:
            _strip(sides, height=390)
    elif sides:
        for column, side in zip(st.columns(2), sides, strict=True):
            with column:
                _model_card(side)
        _strip(sides, height=230)
    if sides:
        _every_layer(sides)
    _method()
    if sides:
        _what_next(sides[0])


def _first_start(view: View) -> None:
    """Nobody should have to click to see the default model: its measurement starts by itself, once."""
    untouched = view.default == MeasurementRequest() and view.a.name == view.default.name
    if untouched and view.a.path is None and view.a.name not in latest_jobs():
        view.default.start()
        st.rerun()


def _model_card(side: Side) -> None:
    known, result = side.measurement.provenance, side.result
    model, adapter = known["model"], known["adapter"]
    gib = model["parameters"] * (4 if model["dtype"] == "float32" else 2) / 2**30
    rows = {
        "Architecture": plain(model["architecture"]),
        "Layers": f"{result.n_layers} with attention, counted from 0",
        "Heads": f"{model['n_heads']} query, {model['n_kv_heads']} key/value",
        "Widths": f"head {model['d_head']}, residual {model['d_model']:,}",
        "Parameters": f"{model['parameters'] / 1e6:,.0f} M, {gib:.2f} GiB as {model['dtype']}",
        "Source": plain(model["source"]) + (f" at {model['revision'][:10]}" if model.get("revision") else ""),
        "SHA-256": f"`{model['sha256'][:16]}`",
        "Adapter": f"{plain(_near(adapter['source']))}, r {adapter.get('r')}" if adapter else "none",
        "Text": plain(measured_on(known)),
        "Loss": f"{three_digits(result.cross_entropy)} nats a token, {result.tokens:,} tokens",
        "Measured on": plain(model.get("device", "unknown")),
        "Here": plain(machine()),
    }
    color, kind = ("blue" if side.label == "A" else "orange"), checkpoint_kind(known)
    with st.container(border=True, key=f"card_{side.label}"):
        st.markdown(f":{color}[**{side.label}  {plain(checkpoint_name(known))}**] :{color}-badge[{kind}]")
        st.table({"": rows}, border="horizontal", hide_header=True)


def _near(path: str) -> str:
    """A path inside the workspace without what leads there: a card is narrow."""
    place, root = Path(path), workspace_root()
    return str(place.relative_to(root.parent) if place.is_relative_to(root) else place)


def _strip(sides: list[Side], height: int) -> None:
    st.subheader("Interaction strength by layer", anchor=False)
    for side in sides:
        result, strongest = side.result, int(side.result.gamma.argmax())
        mean, least, most = (f"{value:.3g}" for value in (result.gamma.mean(), result.gamma.min(), result.gamma.max()))
        where = f"from {least} to {most} in layer {result.layers[strongest]}"
        st.caption(f"{side.label}: mean Γ {mean}, {where}, {result.coupling} coupling.")
    curves, normalized = gamma_curves(sides)
    chart = figures.gamma_by_layer(curves, normalized=normalized, height=height)
    st.plotly_chart(chart, key="strip", alt="Gamma by layer")


def _every_layer(sides: list[Side]) -> None:
    """G of every layer of A and B, on one scale."""
    limit = symmetric_limit(*(side.result.G for side in sides))
    scale = f"Colour runs from {-limit:.3g} to {limit:.3g}, white at 0; the diagonal, always 1, is left out."
    for side in sides:
        result = side.result
        st.subheader(f"Head interaction matrix G of every layer, {side.label}", anchor=False)
        st.caption(f"{plain(checkpoint_name(side.measurement.provenance))}, {result.coupling} coupling. {scale}")
        chart = figures.all_layers(result.G, result.layers, result.gamma, limit)
        st.plotly_chart(chart, width="content", key=f"every_layer_{side.label}", alt=f"G of every layer of {side.label}")


def _method() -> None:
    st.subheader("The idea of the method", anchor=False)
    st.markdown(IDEA)
    for column, (formula, words) in zip(st.columns(3), FORMULAS.items(), strict=True):
        with column:
            st.latex(formula)
            st.caption(words)
    st.caption(SYMBOLS)


def _what_next(side: Side) -> None:
    """Three ways on; each sets the state of the page that it opens."""
    strongest = int(side.result.layers[side.result.gamma.argmax()])
    steps = {
        f"Look into layer {strongest}, the strongest": {"layer": strongest, "tab": "Strongest pairs"},
        "See coupling across kv groups": {"coupling": "invariant"},
        "Compare all layers at a glance": {"tab": "All layers"},
    }
    st.subheader("What next", anchor=False)
    with st.container(horizontal=True):
        for words, state in steps.items():
            if st.button(words, on_click=st.session_state.update, args=(state,)):
                st.switch_page("pages/interaction.py")


main(st.session_state["view"])
