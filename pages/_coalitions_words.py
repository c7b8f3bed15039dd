"""What the coalitions page says below its pictures: the kv groups, four numbers, the stability strip and the verdict."""

from __future__ import annotations

import math

import streamlit as st

from analysis.compare import Comparison
from analysis.stability_strip import stability_strip
from pages._coalitions_tabs import ONE_BATCH, Screen
from pages._widgets import plain, three_digits

_HELP = (
    r"Coalitions found, heads without any coupling among them. Automatic: $k$ at the largest gap "
    r"$\lambda_{k+1} - \lambda_k$ of the Laplacian $I - D^{-1/2} A D^{-1/2}$ of the affinity $A$, if larger than in shuffled "
    r"couplings.",
    r"Newman's modularity $Q = \frac{1}{2m}\sum_{ij}\left(A_{ij} - \frac{d_i d_j}{2m}\right)\delta(c_i, c_j)$ of the affinity, "
    r"below 1; 0 is what chance gives.",
    r"Mean adjusted Rand index between these coalitions and those of bootstrap resamples of the batches, at the same number of "
    r"coalitions: 1 when every resample finds the same ones, 0 when they agree by chance only.",
    r"Adjusted Rand index between coalitions and kv groups: 1 when they are the same, 0 when they agree by chance only. "
    r"Below: mean $|G_{ij}|$ over pairs of heads inside one kv group and between two.",
)


def agreement(screen: Screen) -> None:
    """Why this number of coalitions when there is no structure; what the kv groups have to do with it, and the way on."""
    if not screen.entry.structure:
        way_on = "" if screen.settings.k else " Give a number under “How many” to cut it all the same."
        st.info(f"Layer {screen.layer}: {plain(screen.entry.note)}{way_on}")
    paper = screen.side.result.coupling == "paper"
    with st.container(border=True, horizontal=True, vertical_alignment="center", wrap=False, key="kv_sentence"):
        st.markdown(plain(screen.entry.kv.sentence), width="stretch")
        if paper and "invariant" in screen.side.result.couplings:
            st.button(
                "Show the invariant coupling",
                key="to_invariant",
                on_click=st.session_state.update,
                args=({"coupling": "invariant"},),
            )


def numbers(screen: Screen) -> None:
    """Coalitions, modularity, stability and agreement with the kv groups, each with what carries it."""
    entry, kv, sure = screen.entry, screen.entry.kv, screen.entry.stability
    how = "as asked for" if screen.settings.k else "automatic"
    p = "" if math.isnan(entry.gap_p) else f", eigengap p = {entry.gap_p:.2g}"
    alone = f", {entry.isolated.sum()} heads alone" if entry.isolated.any() else ""
    told = [
        ("Coalitions", str(entry.k), f"of {len(entry.labels)} heads, {how}{p}{alone}"),
        ("Modularity", three_digits(entry.modularity), f"of the {screen.settings.affinity} affinity"),
        ("Stability", three_digits(sure.mean_ari), f"mean of {sure.resamples} resamples of {sure.batches} batches")
        if sure
        else ("Stability", "none", "nothing was resampled"),
        ("Agreement with kv groups", _number(kv.ari), _kv_detail(screen)),
    ]
    for column, (label, value, detail), about in zip(st.columns(4), told, _HELP, strict=True):
        with column.container(gap="xxsmall"):
            st.metric(label, value, help=about)
            st.caption(detail)


def _number(value: float) -> str:
    return "none" if math.isnan(value) else three_digits(value)


def _kv_detail(screen: Screen) -> str:
    kv = screen.entry.kv
    inside = "" if math.isnan(kv.inside) else f"|G| {kv.inside:.3g} inside"
    between = "" if math.isnan(kv.between) else f"{kv.between:.3g} between"
    noise = _gauge_noise(screen) if screen.side.result.coupling == "paper" and between else ""
    return plain(", ".join(part for part in (inside, between, noise) if part))


def _gauge_noise(screen: Screen) -> str:
    """Mean |G| between kv groups that the choice of value bases alone gives: from the gauge check, else from theory."""
    gauge, groups = screen.side.gauge, screen.entry.kv.groups
    if gauge is None:
        return f"gauge noise {screen.entry.kv.noise:.2g}, expected"
    level = gauge.level[screen.side.result.row_of(screen.layer)][groups[:, None] != groups].mean()
    return f"gauge noise {level:.2g}, measured"


def strip(screen: Screen) -> None:
    """How surely each head belongs to its coalition, or why that cannot be said."""
    if screen.entry.stability is None:
        few = len(screen.side.result.batch_tokens) < 2
        st.caption(ONE_BATCH if few else "No structure, so there is no membership to judge by resampling.")
        return
    least = float(screen.entry.stability.confidence.min())
    st.caption(f"How often a head stays in its coalition when the batches are resampled; the least sure head: {least:.0%}.")
    st.plotly_chart(stability_strip(screen.entry), key="strip", alt="Confidence of each head's membership")


def verdict(screen: Screen) -> None:
    """What the change from A to B did to the coalitions, in words with p and n; nothing without a B."""
    if len(screen.sides) < 2:
        return
    with st.container(border=True, key="verdict"):
        st.markdown(f":blue[**A**] against :orange[**B**]. {plain(sentence(screen.comparison))}")
        if isinstance(screen.comparison, Comparison):
            st.caption(carried_by(screen))


def sentence(compared: Comparison | str) -> str:
    """The verdict, or why there is none."""
    return compared if isinstance(compared, str) else compared.sentence


def carried_by(screen: Screen) -> str:
    """What the verdict rests on."""
    compared, heads = screen.comparison, screen.side.result.n_heads
    pairs = f"n = {len(compared.tested)} layers of {heads * (heads - 1) // 2:,} pairs of heads"
    return (
        f"Coalitions of {screen.side.label}, {compared.coupling} coupling; {pairs}; one-sided p from "
        f"{compared.permutations:,} permutations of the heads over the coalitions. What was found in "
        f"{screen.side.label} is strongest there: part of a difference inside is that choice, which no permutation takes out. "
        "Trust what the coalitions of both show."
    )
