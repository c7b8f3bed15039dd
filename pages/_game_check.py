"""The causal check of the game page: what ablating heads does to the loss or a benchmark, beside random sets of as many."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from analysis import game_paper
from analysis.ablation import FEWEST_RANDOM_SETS, MATCHES, MODES, AblationResult, Effect, parse_heads
from analysis.coalitions import find_coalitions
from analysis.figure_data import head_names
from analysis.game_figures import ablation_against_random
from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.places import data_folder, rows_from
from analysis.heads import head_name
from gamelora.game_jobs import Check, GameJob, ablation_job, known_ablations
from pages._cache import read_file
from pages._downloads import download, figure_downloads
from pages._game_data import Player
from pages._game_tabs import Screen
from pages._gauge import cost
from pages._jobs import game_panel
from pages._widgets import linked_or_said, plain, sentence

_WHAT = {"heads": "heads", "coalition": "a coalition", "free-riders": "the free riders"}
_NO_BENCHMARK = "none"
_UNITS = {"cross-entropy": "cross-entropy, nats per token"}


def check(screen: Screen) -> None:
    """Choose what is ablated and measured; then its result, or the button that computes it; then earlier checks."""
    player = _player(screen)
    if "source" not in player.side.measurement.provenance["text"]:
        st.info(
            f"{player.side.label} is merged from several texts; a causal check wants one. Measure the checkpoint on one text."
        )
        return
    heads, called = _heads(screen, player)
    wanted = _measured(heads, screen) if heads else None
    if wanted is not None:
        measurement = player.side.measurement
        work = ablation_job(measurement.path, measurement.provenance, player.side.result.coupling, wanted)
        found = read_file(AblationResult, work.path)
        if found is None:
            sets = f"The model whole, without the set, and without each of {wanted.random_sets} random sets"
            words = f"What ablating {called} does is not measured yet."
            game_panel(work, "check", words, "Run the check", cost(work, player.side, sets))
        else:
            _result(found, called, player, work)
    _earlier(player)


def _player(screen: Screen) -> Player:
    if len(screen.players) == 1:
        return screen.players[0]
    labels = [player.side.label for player in screen.players]
    linked_or_said("check_of", labels, labels[0])
    st.segmented_control("Checkpoint", labels, key="check_of", required=True, persist_state="session")
    return screen.players[labels.index(st.session_state["check_of"])]


def _heads(screen: Screen, player: Player) -> tuple[str, str]:
    """What is ablated, as the command takes it and in words; empty when that is not possible, which is said."""
    linked_or_said("check", list(_WHAT), "heads")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        what = st.segmented_control(
            "Ablate", list(_WHAT), format_func=_WHAT.get, key="check", required=True, persist_state="session"
        )
        if what == "coalition":
            return _coalition(screen, player)
        if what == "heads":
            return _named(screen, player)
    return _free_riders(player)


def _named(screen: Screen, player: Player) -> tuple[str, str]:
    result = player.side.result
    default = head_names(screen.layer, result.n_heads)[screen.chosen.head or 0]
    st.session_state.setdefault("check_heads", st.query_params.get("check_heads", ""))
    typed = st.text_input(
        "Heads", key="check_heads", placeholder=default, persist_state="session", help="Such as L3H7, L3H8."
    ).strip()
    if typed:
        st.query_params["check_heads"] = typed
    else:
        st.query_params.pop("check_heads", None)
    try:
        heads = parse_heads(typed or default, dict.fromkeys(map(int, result.layers), result.n_heads))
    except ValueError as error:
        st.error(plain(sentence(error)))
        return "", ""
    names = [head_name(layer, head) for layer, head in heads]
    return ",".join(names), ", ".join(names)


def _coalition(screen: Screen, player: Player) -> tuple[str, str]:
    if player.game(screen.layer) is None:
        st.info(f"{plain(player.side.name)} has no game in layer {screen.layer}, and so no coalition to ablate there.")
        return "", ""
    entry = find_coalitions(player.side.result, layers=[screen.layer]).of_layer(screen.layer)
    names = head_names(screen.layer, player.side.result.n_heads)
    members = {number: ", ".join(names[head] for head in heads) for number, heads in enumerate(entry.members)}
    linked_or_said("check_coalition", list(members), 0)
    number = st.selectbox(
        "Coalition",
        list(members),
        format_func=lambda one: f"{one}: {members[one]}",
        key="check_coalition",
        persist_state="session",
    )
    return f"coalition:{screen.layer}:{number}", f"coalition {number} of layer {screen.layer} ({members[number]})"


def _free_riders(player: Player) -> tuple[str, str]:
    result = player.result
    if not result.redundant.any():
        top = result.table().nlargest(1, "vif").iloc[0]
        st.info(
            f"There are no free riders to ablate: no head has a VIF above {result.vif_threshold:g}. The largest is "
            f"{top['vif']:.3g}, of {top['head']}; lower the threshold in the tab Free riders."
        )
        return "", ""
    if not result.not_ablated.any() and not result.free_riders.any():
        st.info(
            f"There are no free riders to ablate: ablating any of the {int(result.redundant.sum())} redundant heads costs "
            f"{result.low_effect:g} nats per token or more. Raise that threshold in the tab Free riders."
        )
        return "", ""
    return "free-riders", f"the free riders (VIF above {result.vif_threshold:g})"


def _measured(heads: str, screen: Screen) -> Check | None:
    """How it is ablated, and what is measured besides the cross-entropy."""
    linked_or_said("check_mode", MODES, "zero")
    linked_or_said("check_match", MATCHES, "size")
    linked_or_said("check_sets", [FEWEST_RANDOM_SETS, 50, 100, 200], FEWEST_RANDOM_SETS)
    linked_or_said("check_bench", [_NO_BENCHMARK, *BENCHMARKS], _NO_BENCHMARK)
    linked_or_said("check_items", [20, 50, 100, 200, 500, 1024], 50)
    state, keep = st.session_state, {"persist_state": "session"}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        help_mode = "**zero**: the heads write nothing. **mean**: each writes its mean over the text."
        st.segmented_control("Heads write", MODES, key="check_mode", required=True, help=help_mode, **keep)
        help_match = "Random sets of as many heads. **size**: from anywhere. **layer**: as many from each layer."
        st.segmented_control("Random sets", MATCHES, key="check_match", required=True, help=help_match, **keep)
        st.selectbox("How many", [FEWEST_RANDOM_SETS, 50, 100, 200], key="check_sets", width=100, **keep)
        titles = {name: benchmark.title for name, benchmark in BENCHMARKS.items()}
        options = [_NO_BENCHMARK, *BENCHMARKS]
        st.selectbox("Benchmark too", options, format_func=lambda one: titles.get(one, one), key="check_bench", width=220, **keep)
        if state["check_bench"] != _NO_BENCHMARK:
            st.selectbox("Items", [20, 50, 100, 200, 500, 1024], key="check_items", width=100, **keep)
    benchmark = None if state["check_bench"] == _NO_BENCHMARK else state["check_bench"]
    if benchmark and (origin := rows_from(BENCHMARKS[benchmark])).startswith("hub"):
        st.caption(
            f"There are no rows of {plain(titles[benchmark])} on this machine: they come from the {plain(origin)}, or put "
            f"{BENCHMARKS[benchmark].file} into {plain(data_folder())}."
        )
    chosen = screen.chosen
    return Check(
        heads=heads,
        mode=state["check_mode"],
        benchmark=benchmark,
        limit=state["check_items"] if benchmark else None,
        random_sets=state["check_sets"],
        match=state["check_match"],
        vif_threshold=chosen.vif_threshold,
        low_effect=chosen.low_effect,
    )


def _beside_random(effect: Effect) -> str:
    """p with its side, and the least that so many sets can give."""
    p, side = min((effect.p_larger, "at least"), (effect.p_smaller, "at most"))
    least = 1 / (1 + len(effect.random))
    return f"p = {p:.2g} for a random set that changes it by {side} as much (one-sided; {least:.2g} is the least here)"


def _result(found: AblationResult, called: str, player: Player, work: GameJob) -> None:
    for measure, effect in found.effects.items():
        chart = ablation_against_random(effect, "ablated", f"change of {_unit(measure)}", player.side.color)
        st.plotly_chart(chart, key=f"effect_{measure}", alt=f"Change of {measure} beside {len(effect.random)} random sets")
        low, high = effect.interval or (float("nan"), float("nan"))
        nats = " nats per token" if measure in _UNITS else ""
        left_out = f" {effect.left_out} could not be scored and are left out." if effect.left_out else ""
        st.markdown(
            plain(
                f"{found.mode.capitalize()}-ablating {called} changes {measure} by {effect.effect:+.3g} (95 % {low:+.3g} "
                f"to {high:+.3g}){nats}, from {effect.baseline:.4g}; {len(effect.random)} random sets of {len(found.heads)} by "
                f"{effect.random_effects.mean():+.3g} on average. {_beside_random(effect)}; "
                f"n = {len(effect.weights):,} {'rows' if measure == 'cross-entropy' else 'items'}.{left_out}"
            )
        )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("Every row, item and random set", width=260)
        download("JSON", work.path.read_bytes, work.path.name, "application/json")
    effects = {_unit(name): one for name, one in found.effects.items()}
    draw = partial(game_paper.ablation_figure, effects, player.side.color)
    figure_downloads("Causal check", draw, f"check_{work.path.stem}")


def _unit(measure: str) -> str:
    return _UNITS.get(measure, measure)


def _earlier(player: Player) -> None:
    """All causal checks of the checkpoint on its text."""
    rows = []
    for path in known_ablations(player.side.measurement.provenance):
        found = read_file(AblationResult, path)
        for measure, effect in found.effects.items():
            low, high = effect.interval or (None, None)
            rows.append(
                {
                    "Ablated": ", ".join(found.heads),
                    "Mode": found.mode,
                    "Measure": _unit(measure),
                    "Effect": effect.effect,
                    "95 % from": low,
                    "to": high,
                    "Random sets": effect.random_effects.mean(),
                    "Sets": len(effect.random),
                    "p": min(effect.p_larger, effect.p_smaller),
                }
            )
    if rows:
        st.caption(f"Causal checks of {plain(player.side.name)} on this text, newest first")
        number = st.column_config.NumberColumn(format="%.3g")
        names = ("Effect", "95 % from", "to", "Random sets", "p")
        st.dataframe(pd.DataFrame(rows), hide_index=True, key="checks", column_config=dict.fromkeys(names, number))
