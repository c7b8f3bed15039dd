"""Price of anarchy against hallucination rate: which evaluation belongs to whom, the line, and what is drawn without a price."""

from pathlib import Path

import numpy as np
import pytest

from analysis.figure_data import A_COLOR
from analysis.game import Price
from analysis.game_errors import Player, Rate, fit, price_against_rate, rates_of
from analysis.hallucination.evaluation import StoredEvaluation
from tests.synthetic import synthetic_result


def stored(provenance, value=0.6, n=50, name="builtin_mc1", kind="hallucination"):
    score = {"name": name, "title": "built-in MC1", "kind": kind, "value": value, "standard_error": 0.05, "n": n}
    return StoredEvaluation(Path("/x"), "builtin_mc", [score], provenance, [])


def players(prices, slope=0.5, names="abcdefgh"):
    """Checkpoints whose rate is a line of the price."""
    return [
        Player(name, Price(price), {"mc1": Rate("MC1", 0.1 + slope * (price - 1), 0.02, 100)})
        for name, price in zip(names, prices, strict=False)
    ]


def test_an_evaluation_belongs_to_the_checkpoint_of_the_same_weights_and_adapter():
    base, tuned = synthetic_result().provenance, synthetic_result(adapter="/runs/laptop").provenance
    other = synthetic_result(seed=1).provenance
    moved = base | {"model": {**base["model"], "source": "/elsewhere", "name": "copy"}}
    known = [stored(moved, 0.6), stored(tuned, 0.7), stored(other, 0.2), stored(base, 0.9, kind="knowledge", name="mmlu")]
    assert {name: rate.value for name, rate in rates_of(known, base).items()} == pytest.approx({"builtin_mc1": 0.4})
    assert rates_of(known, tuned)["builtin_mc1"].value == pytest.approx(0.3)
    assert rates_of(known[:1], other) == {}


def test_of_several_evaluations_the_one_of_most_items_counts():
    base = synthetic_result().provenance
    for known in ([stored(base, 0.1, 20), stored(base, 0.6, 50)], [stored(base, 0.6, 50), stored(base, 0.1, 20)]):
        assert rates_of(known, base)["builtin_mc1"] == Rate("built-in MC1", 0.4, 0.05, 50)


def test_the_line_is_found_and_said_of_the_price():
    line = fit(players([1.1, 1.2, 1.4, 1.7, 2.0]))
    assert line.slope == pytest.approx(0.5)
    assert line.in_words("price of anarchy").startswith("Higher price of anarchy goes with a higher rate across 5 checkpoints")


def test_a_checkpoint_without_a_bounded_price_is_no_point_of_the_line():
    found = players([1.1, 1.2, 1.4, 1.7])
    unbounded = Player("z", Price.unbounded("heads repeat each other."), {"mc1": Rate("MC1", 0.9, 0.02, 100)})
    assert fit([*found, unbounded]).checkpoints == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="3 checkpoints have both a bounded price in this layer and an evaluation"):
        fit([*found[:3], unbounded])
    with pytest.raises(ValueError, match="price of anarchy is the same for all checkpoints"):
        fit(players([1.3] * 4))


def test_points_have_intervals_and_unbounded_prices_stand_open_at_the_edge():
    found = players([1.1, 1.5, 1.3, 1.7])
    found[1] = Player("b <i>", found[1].price, found[1].rates, A_COLOR)
    found.append(Player("z", Price.unbounded("heads repeat each other."), {"mc1": Rate("MC1", 0.9, 0.02, 100)}))
    figure = price_against_rate(found, fit(found))
    points, line = figure.data
    assert list(points.y) == [player.rates["mc1"].value for player in found]
    np.testing.assert_allclose(points.error_y.array, 1.96 * 0.02)
    assert points.x[4] > 1.7 and points.marker.symbol[4] == "circle-open" and "heads repeat" in points.text[4]
    assert points.marker.color[1] == A_COLOR and "b &lt;i&gt;" in points.text[1]
    assert list(line.x) == [1.1, 1.7]
    alone = price_against_rate(found[-1:])
    assert np.isfinite(alone.data[0].x).all()
