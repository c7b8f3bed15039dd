"""The figures of the head game: what they draw is what the games say, and an unbounded value is seen."""

import numpy as np
import pytest

from analysis.ablation import Effect
from analysis.figure_data import A_COLOR, B_COLOR, Panel, head_names
from analysis.game import best_responses
from analysis.game_figures import (
    Series,
    ablation_against_random,
    charges_and_vif,
    heatmaps_with_head,
    prices_by_layer,
    redundant_by_layer,
    two_dynamics,
)
from analysis.game_result import GameResult, play
from tests.synthetic import synthetic_result


def series(seed=0, name="a <b> model", color=A_COLOR, effect=None, **threshold):
    result = synthetic_result(seed=seed)
    result.G[2] = np.ones((6, 6))  # heads that repeat each other: every price is unbounded
    return Series(name, GameResult(list(result.layers), play(result), "equal", effect, result.provenance, **threshold), color)


def test_prices_are_drawn_and_unbounded_ones_stand_at_the_edge():
    part = series()
    figure = prices_by_layer([part, series(seed=1, name="B", color=B_COLOR)], selected=1)
    price = next(trace for trace in figure.data if trace.name == "a &lt;b&gt; model" and trace.line.dash == "solid")
    expected = [game.price_of_anarchy for game in part.result.games]
    assert list(price.y) == [each.value if each.bounded else None for each in expected]
    assert price.y[2] is None
    edges = [trace for trace in figure.data if trace.marker.symbol == "triangle-up" and trace.marker.color == A_COLOR]
    assert all(2 in trace.x and "<b>" not in trace.text[0] for trace in edges)
    drawn = [trace for trace in figure.data if trace.mode != "markers" and trace.x[0] is not None]
    assert {trace.line.color for trace in drawn} == {A_COLOR, B_COLOR} and len(drawn) == 6
    assert all("markers" in trace.mode for trace in drawn), "a click finds marks only, and a line may lie above another's marks"
    legend = [trace.name for trace in figure.data if trace.showlegend is not False]
    expected = [
        "a &lt;b&gt; model",
        "B",
        "price of anarchy",
        "worst case over benefits",
        "bound by Γ",
        "unbounded (hollow: the bound by Γ alone)",
    ]
    assert legend == expected, "a colour a checkpoint, a line a price"


def test_both_dynamics_end_where_the_game_says():
    game = series().result.games[1]
    figure = two_dynamics(game, 7, A_COLOR)
    lines = {axis: [trace for trace in figure.data if trace.mode == "lines" and trace.xaxis == axis] for axis in ("x", "x2")}
    assert [trace.name for trace in lines["x"]] == [f"L7H{head}" for head in range(6)]
    scale = abs(game.optimum).max()
    assert [trace.y[-1] for trace in lines["x"]] == pytest.approx(list(game.nash), abs=0.02 * scale)
    assert [trace.y[-1] for trace in lines["x2"]] == pytest.approx(list(game.optimum), abs=0.02 * scale)
    rounds = lines["x2"][0].x
    assert rounds[0] == 0 and (np.diff(rounds) == 1).all()


def test_dynamics_without_an_end_say_so():
    game = play(synthetic_result())[0]
    endless = type(game)(np.ones((6, 6)), np.arange(6.0))
    assert not best_responses(endless, priced=True).settled
    figure = two_dynamics(endless, 0, A_COLOR)
    assert "no end" in figure.layout.annotations[1].text
    assert all(np.isfinite(np.asarray(trace.y, dtype=float)).all() for trace in figure.data)


def test_charges_and_vif_of_one_layer_with_the_selected_head_in_full_colour():
    part = series()
    figure = charges_and_vif([part], 1, selected=4)
    charge, vif = figure.data
    np.testing.assert_array_equal(charge.y, part.result.games[1].charges)
    np.testing.assert_allclose(vif.y, part.result.games[1].vif)
    assert list(charge.x) == [f"L1H{head}" for head in range(6)] and list(charge.customdata) == list(range(6))
    assert np.flatnonzero(np.array(charge.marker.opacity) == 1).tolist() == [4]
    unbounded = charges_and_vif([part], 2)
    assert list(unbounded.data[1].text) == ["∞"] * 6 and np.isfinite(unbounded.data[1].y).all()


def test_free_riders_stand_inside_the_redundant():
    effect = np.zeros((4, 6))
    effect[2, :4] = 1.0
    figure = redundant_by_layer([series(effect=effect)])
    redundant, free = figure.data
    assert redundant.y[2] == 6 and free.y[2] == 2
    assert len(redundant_by_layer([series()]).data) == 1


def test_ablation_shows_the_set_with_its_interval_over_the_random_sets():
    rng = np.random.default_rng(0)
    whole = rng.normal(10, 1, 20)
    effect = Effect(whole, whole + rng.normal(1, 0.1, 20), whole + rng.normal(0.5, 0.1, (21, 20)), np.full(20, 8.0))
    figure = ablation_against_random(effect, "coalition 0 of layer 3", "cross-entropy, nats per token", A_COLOR)
    dots, chosen = figure.data
    assert len(dots.x) == 21 and chosen.x[0] == effect.effect
    low, high = effect.interval
    assert chosen.x[0] - chosen.error_x.arrayminus[0] == pytest.approx(low)
    assert chosen.x[0] + chosen.error_x.array[0] == pytest.approx(high)


def test_a_cell_of_the_heatmap_tells_the_head_of_its_row_and_the_selected_row_is_framed():
    result = synthetic_result()
    panels = [Panel("A", result.G[1], head_names(1, 6), 2, A_COLOR), Panel("B", result.G[2], head_names(1, 6), 2, B_COLOR)]
    figure = heatmaps_with_head(panels, 0.5, selected=4)
    cells = [trace for trace in figure.data if trace.type == "scatter"]
    assert len(cells) == 2 and [trace.xaxis for trace in cells] == ["x", "x2"]
    for place, row in enumerate(cells[0].customdata):
        assert cells[0].y[place] == f"L1H{row}"
    where = list(zip(cells[1].y, cells[1].x, strict=True)).index(("L1H3", "L1H5"))
    assert cells[1].text[where] == f"{result.G[2][3, 5]:.3g}"
    frames = [shape for shape in figure.layout.shapes if shape.y0 == 3.5 and shape.y1 == 4.5]
    assert [frame.line.color for frame in frames] == [A_COLOR, B_COLOR]
    plain = heatmaps_with_head(panels, 0.5)
    assert len(plain.layout.shapes) == len(figure.layout.shapes) - 2
