"""Figures of evaluations: what is drawn is what was computed, on screen and on paper, and gaps break nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis import hallucination_figures as screen
from analysis import hallucination_paper as paper
from analysis.hallucination.pareto import front
from analysis.hallucination.prediction import analyse_checkpoints, analyse_items, checkpoint_points
from analysis.paper_figures import FORMATS, figure_bytes
from tests.test_pareto import trade
from tests.test_prediction import HEADS, made, run

STRENGTHS = [0.1, 0.3, 0.5, 0.7, 0.9]


@pytest.fixture(scope="module")
def points():
    return checkpoint_points(run(STRENGTHS))


@pytest.fixture(scope="module")
def fit():
    return analyse_checkpoints(run(STRENGTHS))


@pytest.fixture(scope="module")
def analysis():
    return analyse_items(made("memo_trap", effect=1.0), "memo_trap")


def colors(points):
    return {name: f"#00000{number}" for number, name in enumerate(points.gamma)}


def test_normalized_gamma_is_a_share_of_the_largest(points):
    small = checkpoint_points(run(STRENGTHS), normalized=True)
    for name, value in points.gamma.items():
        assert small.gamma[name] == pytest.approx(value / math.sqrt(HEADS * (HEADS - 1))) and 0 <= small.gamma[name] <= 1


def test_the_scatter_holds_every_point_with_its_error_and_colour(points, fit):
    drawn = [trace for trace in screen.checkpoint_scatter(points, fit, colors(points)).data if trace.customdata is not None]
    assert len(drawn) == len(points.rates) == 3
    for trace, (score, rates) in zip(drawn, points.rates.items(), strict=True):
        assert list(trace.x) == list(points.gamma.values()) and list(trace.y) == list(rates.values())
        assert list(trace.error_y.array) == list(points.errors[score].values())
        assert list(trace.marker.color) == list(colors(points).values())
    assert len({trace.marker.symbol for trace in drawn}) == 3


def test_line_and_band_are_the_fits_and_missing_without_one(points, fit):
    lines = [trace for trace in screen.checkpoint_scatter(points, fit, colors(points)).data if trace.mode == "lines"]
    low, high, line = lines[:3]
    assert np.array(line.y) == pytest.approx(fit.line("memo_trap", np.array(line.x)))
    assert list(line.x) == [min(points.gamma.values()), max(points.gamma.values())]
    band = fit.band("memo_trap", np.array(low.x))
    assert np.array(low.y) == pytest.approx(band[0]) and np.array(high.y) == pytest.approx(band[1])
    alone = screen.checkpoint_scatter(points, None, colors(points)).data
    assert not [trace for trace in alone if trace.mode == "lines"]


def test_odds_are_filled_where_they_are_certain_and_the_null_stands_beside(analysis):
    null, layers, mean = screen.odds_by_layer(analysis, "#123456").data
    assert len(null.x) == analysis.null_by_layer.size + len(analysis.null_pooled)
    assert list(layers.x) == analysis.layers and mean.x[0] > max(analysis.layers)
    assert list(layers.y) == [one.odds_ratio for one in analysis.by_layer] and mean.y[0] == analysis.pooled.odds_ratio
    up = np.array(layers.y) + np.array(layers.error_y.array)
    down = np.array(layers.y) - np.array(layers.error_y.arrayminus)
    assert up == pytest.approx([one.high for one in analysis.by_layer]) and down == pytest.approx(
        [one.low for one in analysis.by_layer]
    )
    assert ["open" in symbol for symbol in layers.marker.symbol] == [not p < 0.05 for p in analysis.p_holm]


def test_layers_without_an_estimate_break_nothing(analysis):
    gap = replace(analysis.by_layer[0], odds_ratio=math.nan, low=math.nan, high=math.nan, p=math.nan, reason="none")
    broken = replace(
        analysis, by_layer=[gap, *analysis.by_layer[1:]], p_holm=np.array([math.nan, *analysis.p_holm[1:]]), pooled=gap
    )
    screen.odds_by_layer(broken, "#123456").to_json()
    assert figure_bytes(paper.odds_figure(broken), "svg")
    without = replace(analysis, null_by_layer=np.empty((0, 3)), null_pooled=np.empty(0))
    assert len(screen.odds_by_layer(without, "#123456").data) == 2


def test_trade_offs_draw_everyone_and_the_front():
    found = [trade("base", 0, 0), trade("a $x$ <b>", -0.01, 0.1), trade("beaten", -0.02, 0.05)]
    figure = screen.trade_offs(found, {one.name: "#123456" for one in found})
    line, *dots = figure.data
    assert list(line.x) == [100 * one.knowledge.value for one in front(found)]
    assert [dot.text[0] for dot in dots] == ["base", "a $x$ &lt;b&gt;", "beaten"]
    assert [(dot.x[0], dot.y[0]) for dot in dots] == [pytest.approx(pair) for pair in ((0, 0), (-1, 10), (-2, 5))]
    assert figure_bytes(paper.trade_off_figure(found), "pdf").startswith(b"%PDF")


@pytest.mark.parametrize("kind", FORMATS)
def test_paper_figures_are_the_same_bytes_every_time(points, fit, analysis, kind):
    title = "Γ / √(H(H − 1)), design layer 24, paper coupling"
    for draw in (lambda: paper.scatter_figure(points, fit, title), lambda: paper.odds_figure(analysis)):
        assert figure_bytes(draw(), kind) == figure_bytes(draw(), kind)
    assert figure_bytes(paper.scatter_figure(points, None), kind)
