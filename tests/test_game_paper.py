"""The head game's figures for papers: a journal's width, the same bytes each time, and nothing left out at the borders."""

import numpy as np
import pytest

from analysis.ablation import Effect
from analysis.figure_data import A_COLOR, B_COLOR
from analysis.game import HeadGame
from analysis.game_paper import ablation_figure, charges_figure, dynamics_figure, prices_figure
from analysis.paper_figures import COLUMN_WIDTH, FORMATS, PAGE_WIDTH, figure_bytes
from tests.test_game_figures import series

ENDLESS = HeadGame(np.ones((3, 3)), np.arange(3.0))


def effects():
    rng = np.random.default_rng(0)
    whole = rng.normal(10, 1, 20)
    effect = Effect(whole, whole + rng.normal(1, 0.1, 20), whole + rng.normal(0.5, 0.1, (20, 20)), np.full(20, 8.0))
    return {"cross-entropy, nats per token": effect, "accuracy of $x$": effect}


def pair():
    return [series(name="A  my_model $1$"), series(seed=1, name="B  tuned", color=B_COLOR)]


FIGURES = {
    "prices": (lambda: prices_figure(pair()), COLUMN_WIDTH),
    "dynamics": (lambda: dynamics_figure(series().result.games[1], A_COLOR), PAGE_WIDTH),
    "endless": (lambda: dynamics_figure(ENDLESS, A_COLOR), PAGE_WIDTH),
    "charges": (lambda: charges_figure(pair(), 1), COLUMN_WIDTH),
    "unbounded charges": (lambda: charges_figure(pair(), 2), COLUMN_WIDTH),
    "ablation": (lambda: ablation_figure(effects(), A_COLOR), COLUMN_WIDTH),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_have_a_journals_width_and_repeat(name):
    draw, width = FIGURES[name]
    assert draw().get_figwidth() == width
    for kind in FORMATS if name == "prices" else ("svg",):
        assert figure_bytes(draw(), kind) == figure_bytes(draw(), kind)


def test_prices_hold_every_layer_and_unbounded_ones_at_the_edge():
    part = series()
    axes = prices_figure([part]).axes[0]
    price, edge = axes.lines[0], axes.lines[1]
    expected = [game.price_of_anarchy.value if game.price_of_anarchy.bounded else np.nan for game in part.result.games]
    np.testing.assert_allclose(price.get_ydata(), expected)
    assert np.isnan(expected[2]) and list(edge.get_xdata()) == [2] and edge.get_marker() == "^"
    assert edge.get_ydata()[0] > np.nanmax(expected)


def test_bars_are_the_charges_and_an_infinite_vif_says_so():
    part = series()
    above, below = charges_figure([part], 1).axes
    game = part.result.games[1]
    np.testing.assert_allclose([bar.get_height() for bar in above.patches], game.charges)
    np.testing.assert_allclose([bar.get_height() for bar in below.patches], game.vif)
    unbounded = charges_figure([part], 2).axes[1]
    assert sum(text.get_text() == r"$\infty$" for text in unbounded.texts) == 6


def test_the_ablation_stands_over_its_random_sets_with_its_interval():
    found = effects()
    axes = ablation_figure(found, A_COLOR).axes[0]
    effect = found["cross-entropy, nats per token"]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), effect.random_effects)
    reach = axes.collections[0].get_paths()[0].vertices[:, 0]
    assert sorted(reach) == pytest.approx(effect.interval)
