"""The tabs of the game page but the causal check; each draws only while it is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import streamlit as st
from matplotlib.figure import Figure

from analysis import game_paper
from analysis.figure_data import Panel, head_names, symmetric_limit
from analysis.game_figures import charges_and_vif, heatmaps_with_head, redundant_by_layer
from pages._downloads import download, figure_downloads
from pages._frame import View
from pages._game_controls import pick_head, thresholds
from pages._game_data import Player, Settings
from pages._gauge import cost
from pages._jobs import game_panel
from pages._widgets import many, plain


@dataclass(frozen=True)
class Screen:
    """What the page shows above the tabs: the players, and what the controls choose."""

    view: View
    players: list[Player]
    chosen: Settings

    @property
    def layer(self) -> int:
        """The layer on screen."""
        return self.chosen.layer

    @property
    def here(self) -> list[Player]:
        """The players that have a game in the layer."""
        return [player for player in self.players if player.game(self.layer) is not None]


def charges(screen: Screen) -> None:
    """Charge and VIF of each head beside G; a click on a bar or on a row of G marks the head in both."""
    if not screen.here:
        return
    head, heads = screen.chosen.head, max(player.side.result.n_heads for player in screen.players)
    bars = charges_and_vif([player.series for player in screen.here], screen.layer, head)
    panels = [_panel(player, screen.layer) for player in screen.here]
    limit = symmetric_limit(*(panel.matrix for panel in panels))
    maps = heatmaps_with_head(panels, limit, head)
    single = len(panels) == 1
    left, right = st.columns([5, 4], gap="medium") if single else (st.container(), st.container())
    with left:
        alt = "Charge and VIF of each head; a click marks a head"
        picked = partial(pick_head, "charges", heads)
        st.plotly_chart(bars, key="charges", on_select=picked, selection_mode="points", alt=alt)
    with right:
        alt = f"G of layer {screen.layer}; a click marks the head of that row"
        picked = partial(pick_head, "game_heatmap", heads)
        st.plotly_chart(maps, width="content", key="game_heatmap", on_select=picked, selection_mode="points", alt=alt)
    st.caption(
        "A positive charge is what a head would pay for overlap that it causes, a negative one what it would be paid for "
        f"cancelling others'. Colour of G runs from {-limit:.3g} to {limit:.3g}, white at 0.",
        help=r"Pigouvian charge at the optimum: $x^*_i \sum_{j \neq i} G_{ij} x^*_j$ with $x^* = G^{-1} b$. "
        r"$\mathrm{VIF}_i = [G^{-1}]_{ii}$; $\log \mathrm{VIF}_i$ is what $-\log\det G$ falls by when head $i$ leaves.",
    )


def _panel(player: Player, layer: int) -> Panel:
    result = player.side.result
    return Panel(
        player.side.name,
        result.G[result.row_of(layer)],
        head_names(layer, result.n_heads),
        result.n_kv_heads,
        player.side.color,
    )


def free_riders(screen: Screen) -> None:
    """Redundant heads and free riders: number by layer of A and B, then the heads one by one."""
    thresholds()
    for player in screen.players:
        _not_ablated(player)
    drawn = [player for player in screen.players if player.result.redundant.any()]
    if drawn:
        chart = redundant_by_layer([player.series for player in drawn])
        st.plotly_chart(chart, key="riders", alt="Number of redundant heads and free riders by layer")
    for player in screen.players:
        _table(player)


def _not_ablated(player: Player) -> None:
    """Redundant heads of which no one knows whether they are missed, and the button that finds out."""
    missing, side = int(player.result.not_ablated.sum()), player.side
    if not missing:
        return
    if "source" not in side.measurement.provenance["text"]:
        st.info(f"{side.label} is merged from several texts, so its redundant heads cannot be ablated.")
        return
    heads = f"{missing} redundant heads" if missing > 1 else "one redundant head"
    words = f"{side.label}: whether {heads} are free riders is known only when they were ablated one by one."
    game_panel(player.work, f"riders_{side.label}", words, "Ablate them", cost(player.work, side, many(missing, "ablation")))


_COLUMNS = {
    "head": "Head",
    "vif": st.column_config.NumberColumn("VIF", format="%.3g"),
    "marginal_charge": st.column_config.NumberColumn(
        "log VIF", format="%.3g", help="Marginal charge: what −log det G falls by when the head leaves."
    ),
    "charge": st.column_config.NumberColumn("Charge", format="%.3g", help="At the optimum, in units of welfare."),
    "effect": st.column_config.NumberColumn(
        "Ablation effect", format="%.3g", help="Rise of the cross-entropy, nats per token, when the head alone writes nothing."
    ),
    "free_rider": st.column_config.CheckboxColumn("Free rider"),
}


def _table(player: Player) -> None:
    result, side = player.result, player.side
    table = result.table()
    if not result.redundant.any():
        top = table.loc[table["vif"].idxmax()]
        st.info(
            f"{plain(side.name)}: no head has a VIF above {result.vif_threshold:g}; the largest is {top['vif']:.3g}, of "
            f"{top['head']}. Lower the threshold to see the heads that come nearest."
        )
        return
    chosen = table[table["redundant"]].sort_values("vif", ascending=False, kind="stable")
    color = "blue" if side.label == "A" else "orange"
    count = "" if result.free_riders is None else f", {int(chosen['free_rider'].sum())} of them free riders"
    st.markdown(f":{color}[**{plain(side.name)}**] :gray[{len(chosen)} redundant heads of {len(table)}{count}]")
    shown = [name for name in _COLUMNS if name not in ("effect", "free_rider") or result.effect is not None]
    st.dataframe(
        chosen[shown],
        hide_index=True,
        key=f"riders_{side.label}",
        column_config=_COLUMNS,
        height=min(300, 38 + 35 * len(chosen)),
        alt=f"Redundant heads of {side.label}",
    )


def data(screen: Screen) -> None:
    """Downloads: every head and layer, all digits, and figures for papers; each file is made on the click."""
    for player in screen.players:
        stem = _stem(player)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(player.side.name)}**, all layers, all digits", width=420)
            csv = partial(_csv, player)
            download("CSV", csv, f"game_{stem}.csv", "text/csv")
            download("JSON", player.result.text, f"game_{stem}.json", "application/json")
    st.markdown("**Figures**, at a journal's column or page width, fonts embedded.")
    for name, draw in _figures(screen).items():
        figure_downloads(name, draw, f"{name.lower().replace(' ', '_')}_{_stem(screen.players[0])}")


def _csv(player: Player) -> bytes:
    return player.result.table().to_csv(index=False).encode()


def _stem(player: Player) -> str:
    return f"{player.side.measurement.path.stem}_{player.side.result.coupling}_{player.result.benefits}"


def _figures(screen: Screen) -> dict[str, Callable[[], Figure]]:
    found = {"Prices by layer": partial(game_paper.prices_figure, [player.series for player in screen.players])}
    for player in screen.here:
        draw = partial(game_paper.dynamics_figure, player.game(screen.layer), player.side.color)
        found[f"Dynamics {player.side.label} L{screen.layer}"] = draw
    if screen.here:
        series = [player.series for player in screen.here]
        found[f"Charges and VIF L{screen.layer}"] = partial(game_paper.charges_figure, series, screen.layer)
    return found
