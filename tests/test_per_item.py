"""Logistic regression of errors on Gamma: an independent oracle, simulated coverage, Holm, and data without an answer."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from analysis.hallucination.per_item import association, holm, item_analysis


def simulated(generator, items=400, effect=0.4, subsets=1):
    """Items whose error depends on Gamma (log odds `effect` per standard deviation), length and cross-entropy."""
    covariates = generator.normal(size=(items, 2))
    gamma = 0.3 * covariates[:, 0] + generator.normal(size=items) * np.sqrt(1 - 0.09)
    subset = generator.integers(0, subsets, items)
    log_odds = -0.3 + effect * gamma + 0.5 * covariates[:, 0] - 0.4 * covariates[:, 1] + 0.8 * subset
    error = generator.random(items) < 1 / (1 + np.exp(-log_odds))
    return error, 2.5 + 0.4 * gamma, covariates, [str(value) for value in subset]


def test_the_interval_covers_the_truth_in_95_percent_of_draws():
    truth, covered, generator = np.exp(0.4), 0, np.random.default_rng(0)
    for _ in range(500):
        found = association(*simulated(generator))
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / 500 <= 0.97


def test_without_effect_p_is_below_5_percent_in_5_percent_of_draws():
    generator = np.random.default_rng(8)
    p = [association(*simulated(generator, effect=0.0, subsets=2)).p for _ in range(500)]
    assert 0.03 <= np.mean(np.array(p) < 0.05) <= 0.07


def test_agrees_with_a_plain_maximization_of_the_likelihood():
    error, gamma, covariates, subset = simulated(np.random.default_rng(1), subsets=3)
    indicators = np.array([[value == level for level in "012"] for value in subset], dtype=float)
    design = np.column_stack([gamma, covariates])
    design = np.column_stack([(design - design.mean(0)) / design.std(0, ddof=1), indicators])
    loss = lambda w: np.logaddexp(0, design @ w).sum() - error @ (design @ w)  # noqa: E731
    oracle = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-8})
    found = association(error, gamma, covariates, subset)
    assert np.log(found.odds_ratio) == pytest.approx(oracle.x[0], abs=1e-4)
    assert (found.n, found.errors, found.left_out) == (400, error.sum(), 0)


def test_the_scale_of_gamma_does_not_matter_but_its_sign_does():
    error, gamma, covariates, subset = simulated(np.random.default_rng(2))
    first = association(error, gamma, covariates, subset)
    assert association(error, 1000 * gamma + 5, covariates, subset).odds_ratio == pytest.approx(first.odds_ratio)
    turned = association(error, -gamma, covariates, subset)
    assert turned.odds_ratio == pytest.approx(1 / first.odds_ratio) and turned.auc == pytest.approx(1 - first.auc)
    assert "more errors" in first.in_words() and "fewer errors" in turned.in_words()
    assert f"n = {first.n}" in first.in_words() and f"{first.low:.3g}" in first.in_words()


def test_auc_counts_ordered_pairs():
    error, gamma, covariates, subset = simulated(np.random.default_rng(3), items=60)
    pairs = gamma[error][:, None] > gamma[~error][None, :]
    assert association(error, gamma, covariates, subset).auc == pytest.approx(pairs.mean())


def test_an_effect_of_the_subset_alone_is_no_effect_of_gamma():
    generator = np.random.default_rng(4)
    subset = generator.integers(0, 2, 600)
    gamma = subset + generator.normal(size=600)
    error = generator.random(600) < np.where(subset == 1, 0.8, 0.2)
    one = ["all"] * 600
    assert association(error, gamma, np.empty((600, 0)), one).p < 1e-6
    assert association(error, gamma, np.empty((600, 0)), subset.astype(str)).p > 0.05


@pytest.mark.parametrize(("error", "kind"), [(np.zeros(30, bool), "right"), (np.ones(30, bool), "wrong")])
def test_a_suite_without_wrong_or_right_items_is_refused(error, kind):
    with pytest.raises(ValueError, match=f"all 30 items with a finite Gamma are {kind}"):
        association(error, np.arange(30.0), np.empty((30, 0)), [""] * 30)


def test_a_judge_that_always_says_no_has_no_estimate():
    label = np.array(["yes", "no"] * 50)
    found = association(label == "yes", np.random.default_rng(5).normal(size=100), np.empty((100, 0)), label)
    assert np.isnan(found.odds_ratio) and found.n == 0 and found.left_out == 100
    assert "all items are right or all are wrong" in found.in_words()


def test_separation_and_constant_gamma_are_said_and_not_fitted():
    error = np.arange(40) >= 20
    separated = association(error, np.arange(40.0), np.empty((40, 0)), [""] * 40)
    assert np.isnan(separated.odds_ratio) and "no bound" in separated.reason and separated.auc == 1
    constant = association(error, np.ones(40), np.empty((40, 0)), [""] * 40)
    assert np.isnan(constant.p) and "the same for every item" in constant.reason
    twin = association(error, np.sin(np.arange(40.0)), np.sin(np.arange(40.0))[:, None], [""] * 40)
    assert "cannot be told apart" in twin.reason


def test_a_model_that_is_not_finite_is_named_as_the_reason():
    with pytest.raises(ValueError, match="no item has both a score and a finite Gamma"):
        association(np.array([True, False]), np.full(2, np.nan), np.ones((2, 1)), ["", ""])


def test_items_without_gamma_are_left_out_and_counted():
    error, gamma, covariates, subset = simulated(np.random.default_rng(6))
    holes = gamma.copy()
    holes[:7] = np.nan
    found = association(error, holes, covariates, subset)
    assert found == replace(association(error[7:], gamma[7:], covariates[7:], subset[7:]), left_out=7)
    assert (found.n, found.left_out) == (393, 7)


def test_holm_is_the_step_down_rule():
    p = np.array([0.01, 0.04, np.nan, 0.03, 0.005])
    expected = [0.03, 0.06, np.nan, 0.06, 0.02]
    np.testing.assert_allclose(holm(p), expected)
    assert np.isnan(holm([np.nan])).all()


def test_layers_and_the_shuffled_null():
    generator = np.random.default_rng(9)
    error, gamma, covariates, subset = simulated(generator, effect=0.8)
    layers = np.column_stack([5 * gamma, generator.normal(size=400), generator.normal(size=400)])
    null = generator.normal(size=(19, 400, 3))
    result = item_analysis(error, layers, covariates, subset, [0, 1, 5], null)
    assert result.layers == [0, 1, 5] and result.null_by_layer.shape == (19, 3)
    assert result.p_holm[0] < 0.001 and (result.p_holm >= [layer.p for layer in result.by_layer]).all()
    assert result.pooled == association(error, layers.mean(1), covariates, subset)
    assert result.p_against_null == pytest.approx(1 / 20)
    assert np.isnan(item_analysis(error, layers, covariates, subset, [0, 1, 5]).p_against_null)
