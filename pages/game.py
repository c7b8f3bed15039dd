"""Game: what does the lack of prices cost?"""

import streamlit as st

from analysis.game_figures import prices_by_layer, two_dynamics
from pages import _game_check, _game_errors, _game_tabs
from pages._frame import View
from pages._game_controls import controls
from pages._game_data import Player, players
from pages._game_tabs import Screen
from pages._game_words import WHOSE, WHOSE_HELP, game_numbers, notices
from pages._gauge import cost
from pages._jobs import game_panel
from pages._sides import Side, ready_sides
from pages._widgets import header, many, plain

TABS = {
    "Charges and VIF": _game_tabs.charges,
    "Free riders": _game_tabs.free_riders,
    "Causal check": _game_check.check,
    "Errors": _game_errors.errors,
    "Data": _game_tabs.data,
}


def main(view: View) -> None:
    header("Game", "What the heads of a layer lose because none pays for the overlap it causes, and what a price would change.")
    st.caption(WHOSE, help=WHOSE_HELP)
    sides = _with_partners(ready_sides(view))
    if not sides:
        return
    chosen = controls(sides)
    found = players(sides, chosen)
    _missing_benefits(found, chosen.benefits)
    screen = Screen(view, found, chosen)
    chart = prices_by_layer([player.series for player in found], chosen.layer)
    alt = "Price of anarchy by layer with its bounds; a click picks the layer"
    st.plotly_chart(chart, key="prices", on_select=_pick_layer, selection_mode="points", alt=alt)
    notices(found, chosen.layer)
    game_numbers(found, chosen.layer)
    _dynamics(screen)
    for tab, draw in zip(st.tabs(list(TABS), key="tab", bind="query-params"), TABS.values(), strict=True):
        if tab.open:
            with tab:
                draw(screen)


def _with_partners(sides: list[Side]) -> list[Side]:
    """Sides with more than one head a layer; of the others it is said."""
    for side in sides:
        if side.result.n_heads == 1:
            st.info(f"{plain(side.name)} has one head a layer: there is no one to overlap with, and its price of anarchy is 1.")
    return [side for side in sides if side.result.n_heads > 1]


def _missing_benefits(found: list[Player], benefits: str) -> None:
    """What is asked for and not measured yet, with the button that measures it."""
    lacking = [player for player in found if player.values is None] if benefits == "measured" else []
    for player in lacking:
        side = player.side
        if "source" not in side.measurement.provenance["text"]:
            st.info(f"{side.label} is merged from several texts, so its heads' benefits cannot be measured. Benefits are equal.")
            continue
        words = f"{side.label}: what each head is worth is not measured yet; until then benefits are equal."
        what = f"One pass over the text and {many(int(player.result.not_ablated.sum()), 'ablation')}"
        game_panel(player.work, f"benefits_{side.label}", words, "Measure benefits", cost(player.work, side, what))


def _pick_layer() -> None:
    """The layer slider follows a click on the chart."""
    points = st.session_state["prices"]["selection"]["points"]
    if points:
        st.session_state["layer"] = int(points[0]["x"])


def _dynamics(screen: Screen) -> None:
    """Both games round by round, of A and of B beside each other."""
    for column, player in zip(st.columns(len(screen.here), gap="medium") if screen.here else [], screen.here, strict=True):
        with column:
            chart = two_dynamics(player.game(screen.layer), screen.layer, player.side.color)
            alt = f"Best-response dynamics of {player.side.label} without and with prices"
            st.plotly_chart(chart, key=f"dynamics_{player.side.label}", alt=alt)
    if screen.here:
        st.caption(
            f"Layer {screen.layer}: heads in turn move towards their best response, from no effort. Circles: efforts at the "
            "optimum; dotted: its welfare. Without prices every head ends at its own benefit; charged for the overlap it causes, "
            "at the optimum.",
            help=r"The charge of head $i$ is $x_i \sum_{j \neq i} G_{ij} x_j$. Each round every head moves 0.3 of the way to its "
            r"best response: $b_i$ without prices, $b_i - \sum_{j \neq i} G_{ij} x_j$ with them.",
        )


main(st.session_state["view"])
