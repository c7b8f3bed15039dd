"""Gamma against rate across checkpoints: scipy as oracle, exact permutations, refusals, and calibration."""

import itertools

import numpy as np
import pytest
from scipy import stats

from analysis.hallucination.checkpoints import across_checkpoints


def points(x, *rates):
    names = [f"step-{i}" for i in range(len(x))]
    gamma = dict(zip(names, x, strict=True))
    return gamma, {f"task{k}": dict(zip(names, rate, strict=True)) for k, rate in enumerate(rates)}


def test_one_benchmark_is_scipys_regression_and_rank_correlation():
    x, y = np.array([0.3, 0.9, 0.4, 0.7, 0.6, 0.2]), np.array([0.52, 0.71, 0.5, 0.6, 0.66, 0.55])
    found = across_checkpoints(*points(x, y))
    assert found.slope == pytest.approx(stats.linregress(x, y).slope)
    assert found.spearman == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.line("task0", x) == pytest.approx(np.polyval(np.polyfit(x, y, 1), x))
    low, high = found.band("task0", x)
    assert (low < found.line("task0", x)).all() and (found.line("task0", x) < high).all()


def test_p_is_the_share_of_all_orders():
    x, y = np.array([1.0, 2.0, 4.0, 5.0, 7.0]), np.array([0.2, 0.3, 0.25, 0.5, 0.45])
    found = across_checkpoints(*points(x, y))
    slopes = np.array([stats.linregress(order, y).slope for order in itertools.permutations(x)])
    above = np.mean(slopes >= found.slope - 1e-12)
    assert found.p == pytest.approx(min(1, 2 * above)) and found.p_exact
    assert found.smallest_p == pytest.approx(2 / 120)


def test_levels_of_the_benchmarks_do_not_matter():
    x, y = np.arange(6.0), np.array([0.1, 0.15, 0.12, 0.2, 0.22, 0.3])
    one, shifted = across_checkpoints(*points(x, y, y)), across_checkpoints(*points(x, y, y + 0.5))
    assert one.slope == pytest.approx(shifted.slope) == pytest.approx(np.polyfit(x, y, 1)[0])
    assert one.p == shifted.p
    assert shifted.centres["task1"][1] == pytest.approx(y.mean() + 0.5)


def test_a_benchmark_may_lack_a_checkpoint():
    x = np.arange(6.0)
    gamma, rates = points(x, 0.1 * x, 0.1 * x + 0.3)
    del rates["task1"]["step-2"]
    assert across_checkpoints(gamma, rates).slope == pytest.approx(0.1)


def test_fewer_than_four_checkpoints_are_refused():
    with pytest.raises(ValueError, match=r"task0 has 3 checkpoints.*evaluate 1 more.*training run count"):
        across_checkpoints(*points([1.0, 2.0, 3.0], [0.1, 0.2, 0.3]))
    gamma, rates = points([1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, np.nan])
    with pytest.raises(ValueError, match="evaluate 1 more"):
        across_checkpoints(gamma, rates)
    with pytest.raises(ValueError, match="no benchmark"):
        across_checkpoints(gamma, {})
    with pytest.raises(ValueError, match="the same for all 4"):
        across_checkpoints(*points([1.0] * 4, [0.1, 0.2, 0.3, 0.4]))
    with pytest.raises(ValueError, match="not finite for step-1"):
        across_checkpoints(*points([1.0, np.nan, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4]))


def test_four_checkpoints_say_how_small_p_can_be():
    found = across_checkpoints(*points([1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.31, 0.4]))
    assert found.p == pytest.approx(2 / 24)
    assert "4 checkpoints cannot give less than 0.083" in found.in_words()
    assert "No certain relation" in found.in_words()


def test_same_input_same_numbers_and_flat_rates_have_no_slope():
    gamma, rates = points(np.arange(9.0), np.random.default_rng(0).random(9))
    first, again = across_checkpoints(gamma, rates), across_checkpoints(gamma, rates)
    assert (first.p, first.low, first.high) == (again.p, again.low, again.high) and not first.p_exact
    flat = across_checkpoints(*points(np.arange(5.0), [0.4] * 5))
    assert (flat.slope, flat.spearman, flat.p) == (0, 0, 1)


def test_p_is_calibrated_without_an_effect():
    generator = np.random.default_rng(1)
    p = [across_checkpoints(*points(generator.random(6), *generator.random((2, 6))), draws=10).p for _ in range(400)]
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.08
