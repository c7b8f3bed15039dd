"""The errors tab of the game page: price of anarchy against hallucination rate, over every checkpoint that has both."""

from __future__ import annotations

import streamlit as st

from analysis.game_errors import Player, fit, price_against_rate, rates_of
from analysis.game_result import play
from analysis.hallucination.evaluation import StoredEvaluation, stored_evaluations
from pages._game_tabs import Screen
from pages._widgets import checkpoint_name, plain, sentence


def errors(screen: Screen) -> None:
    """One point a checkpoint and benchmark, and the line through four or more checkpoints."""
    stored, notices = stored_evaluations()
    for notice in notices:
        st.warning(plain(notice))
    found = [player for player in _players(screen, stored) if player.rates]
    if not found:
        st.info(
            "No measured checkpoint has been evaluated on a hallucination benchmark. Evaluate some; each becomes a point here."
        )
        st.page_link("pages/hallucination.py", label="To the evaluations")
        return
    try:
        line, words = fit(found), ""
    except ValueError as error:
        line, words = None, sentence(error)
    chart = price_against_rate(found, line)
    st.plotly_chart(chart, key="errors", alt="Hallucination rate by price of anarchy, a point a checkpoint and benchmark")
    st.markdown(plain(line.in_words("price of anarchy") if line else words))
    st.caption(
        f"Price of anarchy of layer {screen.layer} with equal benefits; {len(found)} checkpoints. Bars: 95 % of the rate over "
        "items. A relation across checkpoints is no proof of a cause."
    )


def _players(screen: Screen, stored: list[StoredEvaluation]) -> list[Player]:
    """Every measured checkpoint once, with its price in the layer and its rates; A and B in their colours."""
    shown = {player.side.measurement.name: player.side for player in screen.players}
    found: dict[tuple[str, str | None], Player] = {}
    coupling = screen.view.coupling
    for name in sorted(screen.view.found, key=lambda one: one not in shown):
        one = screen.view.found[name]
        if one.provenance is None or not (rates := rates_of(stored, one.provenance)):
            continue
        result = one.load()
        if coupling not in result.couplings or screen.layer not in result.layers:
            continue
        content = one.provenance["model"]["sha256"], (one.provenance["adapter"] or {}).get("sha256")
        if content in found:
            continue
        try:
            game = play(result.view(coupling), rows=[result.row_of(screen.layer)])[0]
        except ValueError:  # a broken layer is said where its checkpoint is on screen
            continue
        side = shown.get(name)
        called = side.name if side else f"{checkpoint_name(one.provenance)} ({name})"
        color = {"color": side.color} if side else {}
        found[content] = Player(called, game.price_of_anarchy, rates, **color)
    return list(found.values())
