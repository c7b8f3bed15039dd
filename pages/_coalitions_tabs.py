"""The tabs of the coalitions page; each draws only while it is open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from analysis.coalition_figures import coassignment, comparison_chart, eigenvalue_chart, reordered_heatmap
from analysis.coalition_figures import flow as flow_chart
from analysis.coalitions import Coalitions, LayerCoalitions
from analysis.compare import Comparison
from analysis.figure_data import symmetric_limit
from analysis.heads import head_name
from analysis.spectral import adjusted_rand
from pages._coalitions_data import Settings, coalitions_of
from pages._sides import Side
from pages._widgets import linked, plain, sentence

ONE_BATCH = (
    "This result holds one batch of rows, which cannot be resampled, so it says nothing of stability. Measure it again on a text "
    "of at least 8 rows (2,048 tokens)."
)
_AROUND = 3  # layers before and after the one on screen in the flow


@dataclass(frozen=True)
class Screen:
    """What the page shows above the tabs, for the tabs to detail and to download.

    Attributes
    ----------
    sides : the checkpoints on screen; `side` is the one whose coalitions are shown.
    G : of the layer, [heads, heads].
    entry : the layer's coalitions, with their stability.
    found : those of every layer, without.
    comparison : A against B with the coalitions of `side`, or why there is none.
    """

    sides: list[Side]
    side: Side
    layer: int
    settings: Settings
    threshold: float
    G: np.ndarray
    entry: LayerCoalitions
    found: Coalitions
    comparison: Comparison | str

    @property
    def pairs(self) -> np.ndarray:
        """G of every pair of heads."""
        return self.G[np.triu_indices(len(self.G), k=1)]

    @property
    def groups(self) -> np.ndarray | None:
        """kv group of each head; None where groups say nothing."""
        return self.entry.kv.groups if 1 < self.side.result.n_kv_heads < self.side.result.n_heads else None


def heatmap(screen: Screen, G: np.ndarray, limit: float) -> go.Figure:
    """G in the order of the coalitions on screen, beside its colour bar however wide the window is."""
    return reordered_heatmap(G, screen.entry, limit, screen.groups).update_xaxes(constraintoward="right")


def stability(screen: Screen) -> None:
    """Who is in which coalition, and how often two heads share one over the resamples."""
    st.dataframe(_members(screen), hide_index=True, key="members", column_config=_MEMBERS, alt="Coalitions and their heads")
    if screen.entry.stability is None:
        return
    st.plotly_chart(coassignment(screen.entry), key="coassignment", alt="Co-assignment of the heads")
    sure = screen.entry.stability
    st.caption(
        f"Left: share of {sure.resamples} bootstrap resamples of the {sure.batches} batches in which two heads are in one "
        "coalition. Right: share in which a head stays in its coalition. No pass through the model: the result keeps its sums."
    )


_three = partial(st.column_config.NumberColumn, format="%.3g")
_MEMBERS = {
    "coalition": "Coalition",
    "heads": st.column_config.TextColumn("Heads", width="medium"),
    "size": "Size",
    "kv": "kv groups",
    "inside": _three("Mean G inside", help="Over pairs of its heads."),
    "outside": _three("Mean G to others", help="Over pairs of one of its heads and one of another coalition."),
    "confidence": st.column_config.NumberColumn("Confidence", format="percent", help="Mean over its heads."),
}


def _members(screen: Screen) -> pd.DataFrame:
    rows = []
    for label, heads in enumerate(screen.entry.members):
        own = screen.G[np.ix_(heads, heads)][np.triu_indices(len(heads), k=1)]
        outside = np.delete(screen.G[heads], heads, axis=1)
        row = {"coalition": label, "heads": ", ".join(head_name(screen.layer, head) for head in heads), "size": len(heads)}
        if screen.groups is not None:
            row["kv"] = ", ".join(map(str, np.unique(screen.groups[heads])))
        row |= {"inside": own.mean() if own.size else np.nan, "outside": outside.mean() if outside.size else np.nan}
        if screen.entry.stability is not None:
            row["confidence"] = screen.entry.stability.confidence[heads].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def comparison(screen: Screen) -> None:
    """Inside and between coalitions, before and after, by layer; and both matrices in the order of the coalitions."""
    compared = screen.comparison
    if isinstance(compared, str):
        st.info(plain(compared))
        return
    if compared.tested:
        chart = comparison_chart(compared, *(side.name for side in screen.sides), screen.layer)
        alt = "Mean coupling inside and between coalitions by layer; a click picks the layer"
        st.plotly_chart(chart, key="compared", on_select=_pick_layer, selection_mode="points", alt=alt)
        st.caption("A star: selective by itself after Holm. Bars: 95 % interval of the change. A click opens the layer above.")
    st.dataframe(comparison_table(compared), hide_index=True, key="compared_table", column_config=_COMPARED, height=300)
    matrices = [side.result.G[side.result.row_of(screen.layer)] for side in screen.sides]
    limit = symmetric_limit(*matrices)
    for column, side, G in zip(st.columns(2, gap="medium"), screen.sides, matrices, strict=True):
        with column:
            st.markdown(f":{'blue' if side.label == 'A' else 'orange'}[**{plain(side.name)}**], layer {screen.layer}")
            figure = heatmap(screen, G, limit)
            st.plotly_chart(figure, key=f"compared_{side.label}", alt=f"G of {side.label} in the order of the coalitions")
    st.caption(f"Both in the order of the coalitions of {screen.side.label}, on one scale.")


_COMPARED = {
    "layer": "Layer",
    "coalitions": "Coalitions",
    "inside_before": _three("Inside, A"),
    "inside_after": _three("Inside, B"),
    "between_before": _three("Between, A"),
    "between_after": _three("Between, B"),
    "selectivity": _three("Selectivity", help="Change inside − change between."),
    "p": _three("p", help="Share of permutations of the heads with a selectivity at least as large."),
    "p_holm": _three("p, Holm", help="Adjusted over the tested layers."),
    "p_within_kv": _three(
        "p within kv", help="Heads permuted within their kv group only, so that kv groups cannot be the reason."
    ),
    "verdict": st.column_config.TextColumn("Verdict", width="medium"),
}


def comparison_table(compared: Comparison) -> pd.DataFrame:
    """A row a layer."""
    rows = []
    for one in compared.layers:
        row = {"layer": one.layer, "coalitions": int(one.labels.max()) + 1}
        for which in ("inside", "between"):
            row |= {f"{which}_{side}": getattr(getattr(one, which), side) for side in ("before", "after")}
        row |= {name: getattr(one, name) for name in ("selectivity", "p", "p_holm", "p_within_kv", "verdict")}
        rows.append(row)
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def _pick_layer() -> None:
    """The layer slider follows a click on the chart."""
    points = st.session_state["compared"]["selection"]["points"]
    if points:
        st.session_state["layer"] = int(points[0]["x"])


def flow(screen: Screen) -> None:
    """How membership changes across layers, or from A to B."""
    paired = isinstance(screen.comparison, Comparison)
    views = {"near": "layers around this one", "all": "all layers"} | ({"checkpoints": "from A to B"} if paired else {})
    linked("flow", list(views), "near")
    st.segmented_control("Flow", list(views), format_func=views.get, key="flow", required=True, persist_state="session")
    if st.session_state["flow"] == "checkpoints":
        _flow_between(screen)
        return
    entries, here = screen.found.layers, [entry.layer for entry in screen.found.layers].index(screen.layer)
    shown = entries if st.session_state["flow"] == "all" else entries[max(here - _AROUND, 0) : here + _AROUND + 1]
    chart = flow_chart([(f"L{entry.layer}", entry) for entry in shown])
    st.plotly_chart(chart, key="flow_chart", alt="Membership of the heads across layers")
    st.caption(
        f"Coalitions of {plain(screen.side.name)}; a band is the heads that go from one to the next. Across layers a head is "
        "followed by its index, which is only a convention of the model's code."
    )


def _flow_between(screen: Screen) -> None:
    pair = [coalitions_of(side, screen.settings) for side in screen.sides]
    columns = [(side.name, found.of_layer(screen.layer)) for side, found in zip(screen.sides, pair, strict=True)]
    st.plotly_chart(flow_chart(columns), key="flow_chart", alt=f"Membership in layer {screen.layer} from A to B")
    same = adjusted_rand(columns[0][1].labels, columns[1][1].labels)
    st.caption(
        f"Layer {screen.layer}, each checkpoint clustered by itself; a band is the heads that go from one to the other. "
        f"Adjusted Rand index of the two: {float(same):.3g} (1: the same coalitions)."
    )


def eigengap(screen: Screen) -> None:
    """The eigenvalues that the number of coalitions was read from."""
    if not len(screen.entry.eigenvalues):
        st.info(f"No two heads of layer {screen.layer} are coupled by this affinity, so there are no eigenvalues to read.")
        return
    st.plotly_chart(eigenvalue_chart(screen.entry), key="eigenvalues", alt="Eigenvalues of the Laplacian with the chosen gap")
    note = plain(sentence(screen.entry.note))
    st.caption(
        f"{note} Eigenvalues of the normalized Laplacian of the {len(screen.entry.eigenvalues)} coupled heads, smallest "
        "first: as many are near 0 as there are coalitions with little coupling between them. p: share of 19 shuffles of the "
        "couplings with a gap as large, the layer's own counted."
    )
