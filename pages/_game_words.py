"""What the game page says: whose claims these are, and the four numbers of the layer."""

from __future__ import annotations

import streamlit as st

from analysis.game import Price
from pages._game_data import Player
from pages._widgets import numbers_row, plain, three_digits

WHOSE = (
    "From the paper: G, and that heads lose less to anarchy the less they are coupled. This project's own model: the game "
    "played with that G, and so every price, charge, VIF and free rider on this page."
)
WHOSE_HELP = (
    r"Head $i$ chooses an effort $x_i$ with benefit $b_i$; the welfare of all is $W(x) = b^\top x - \frac{1}{2} x^\top G x$. "
    r"Without prices each head maximizes $b_i x_i - \frac{1}{2} x_i^2$ and the overlap it causes stays unpaid."
)
_HELP = (
    r"$W(x^*) / W(b) = b^\top G^{-1} b \,/\, b^\top (2I - G)\, b$: welfare at the optimum $x^* = G^{-1} b$ over welfare where "
    r"every head does what is best for itself, $x = b$. 1: nothing is lost.",
    r"Largest price over all benefits, $1 / (1 - \|G - I\|_2^2)$; below it the bound $1 / (1 - \Gamma(G)^2)$, which says nothing "
    r"from $\Gamma = 1$ on.",
    r"Heads of this layer with $\mathrm{VIF}_i = [G^{-1}]_{ii}$ above the threshold (tab Free riders): the others explain them.",
    r"Redundant heads of this layer whose ablation costs less than the threshold (tab Free riders).",
)
_LABELS = ("Price of anarchy", "Worst case", "Redundant heads", "Free riders")


def game_numbers(players: list[Player], layer: int) -> None:
    """Price of anarchy, worst case, redundant heads and free riders of the layer."""
    told = {player.side.label: _numbers(player, layer) for player in players if player.game(layer) is not None}
    if told:
        numbers_row(told, _HELP)


def _numbers(player: Player, layer: int) -> list[tuple[str, str, str]]:
    result, game = player.result, player.game(layer)
    row = list(result.layers).index(layer)
    price, worst, bound = game.price_of_anarchy, game.worst_case, game.gamma_bound
    redundant = result.redundant
    details = [
        _reason(price) or f"layer {layer}, {result.benefits} benefits",
        _reason(worst) or (f"bound by Γ {bound.value:.3g}" if bound.bounded else plain(bound.reason)),
        f"of {game.n_heads}, VIF above {result.vif_threshold:g}; {redundant.sum()} of {redundant.size} in all layers",
        _free_detail(player),
    ]
    riders = result.free_riders
    values = [_value(price), _value(worst), str(int(redundant[row].sum()))]
    values.append("not known" if _unknown(player) else str(0 if riders is None else int(riders[row].sum())))
    return list(zip(_LABELS, values, details, strict=True))


def _unknown(player: Player) -> bool:
    return bool(player.result.not_ablated.any())


def _free_detail(player: Player) -> str:
    result = player.result
    if _unknown(player):
        return f"{int(result.not_ablated.sum())} redundant heads are not ablated yet"
    if result.free_riders is None:
        return "no head is redundant"
    return f"ablation costs less than {result.low_effect:g} nats; {int(result.free_riders.sum())} in all layers"


def _value(price: Price) -> str:
    return three_digits(price.value) if price.bounded else "unbounded"


def _reason(price: Price) -> str:
    return plain(price.reason)


def notices(players: list[Player], layer: int) -> None:
    """Layers that are no game, and checkpoints that lack the layer."""
    for player in players:
        if layer in player.broken:
            st.warning(plain(f"{player.side.name}: {player.broken[layer]}"))
        elif player.game(layer) is None:
            st.info(f"{plain(player.side.name)} has no attention layer {layer}. Choose another layer.")
        others = [one for one in player.broken if one != layer]
        if others:
            said = f"{player.side.name}: G of layers {', '.join(map(str, others))} is not finite, so they are left out."
            st.caption(plain(said))
