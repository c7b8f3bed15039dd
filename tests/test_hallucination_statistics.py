"""Scores, length baseline and relative change against closed forms and brute force."""

import numpy as np
import pytest
from scipy import stats

from analysis.hallucination.data import read_rows
from analysis.hallucination.statistics import PairedItems, length_baseline, length_pick, relative_change, score


def test_an_accuracy_has_the_error_of_a_mean():
    values = np.random.default_rng(0).integers(0, 2, 300)
    result = score(values)
    assert result.value == pytest.approx(values.mean())
    assert result.standard_error == pytest.approx(stats.sem(values))
    assert (result.n, result.invalid) == (300, 0)


def test_bits_per_byte_is_a_ratio_of_sums_with_the_jackknife_error():
    generator = np.random.default_rng(1)
    weights = generator.integers(500, 1500, 200)
    bits = weights * generator.normal(0.9, 0.1, 200)
    result = score(bits, weights)
    assert result.value == pytest.approx(bits.sum() / weights.sum())
    left = np.array([(bits.sum() - bits[i]) / (weights.sum() - weights[i]) for i in range(200)])
    jackknife = np.sqrt(199 / 200 * np.square(left - left.mean()).sum())
    assert result.standard_error == pytest.approx(jackknife, rel=0.01)


def test_invalid_items_are_counted_and_never_scored():
    result = score([1, np.nan, 0, np.inf])
    assert (result.value, result.n, result.invalid) == (0.5, 2, 2)
    assert np.isnan(score([np.nan]).value) and score([np.nan]).n == 0
    assert np.isnan(score([1.0]).standard_error)


def test_length_baseline_tries_every_threshold():
    generator = np.random.default_rng(2)
    for _ in range(30):
        lengths, labels = generator.integers(1, 9, 25), generator.random(25) < 0.4
        brute = max(
            max(np.mean((lengths >= cut) == labels), np.mean((lengths < cut) == labels)) for cut in [*range(1, 10), 10**9]
        )
        assert length_baseline(lengths, labels) == pytest.approx(brute)


def test_length_baseline_of_the_real_files_is_what_their_readme_says(shared):
    for name, field, expected in (("halueval_qa", "answer", 0.94), ("halueval_dialogue", "response", 0.70)):
        rows = read_rows(name, shared / "data")
        found = length_baseline([len(row[field]) for row in rows], [row["hallucination"] == "yes" for row in rows])
        assert found == pytest.approx(expected, abs=0.01)


def test_length_pick_takes_the_better_extreme_and_shares_ties():
    assert length_pick([[3, 5, 5], [2, 4, 6]], [1, 2]) == 0.75
    assert length_pick([[1, 5], [2, 4]], [0, 0]) == 1.0


def test_relative_change_and_its_paired_interval():
    generator = np.random.default_rng(3)
    hard = generator.random(800)
    base = (hard + generator.normal(0, 0.05, 800) < 0.5).astype(float)
    tuned = (hard + generator.normal(0, 0.05, 800) < 0.55).astype(float)
    result = relative_change({"a": PairedItems(tuned, base), "b": PairedItems(base, base)})
    expected = tuned.mean() / base.mean() - 1
    assert result.tasks["a"].value == pytest.approx(expected)
    assert result.tasks["b"].value == result.tasks["b"].low == result.tasks["b"].high == 0
    assert result.mean.value == pytest.approx(expected / 2)
    assert result.tasks["a"].low < expected < result.tasks["a"].high
    unpaired = relative_change({"a": PairedItems(tuned, generator.permutation(base))}).tasks["a"]
    paired = result.tasks["a"]
    assert paired.high - paired.low < 0.6 * (unpaired.high - unpaired.low)
    assert result == relative_change({"a": PairedItems(tuned, base), "b": PairedItems(base, base)})


def test_lower_is_better_turns_the_sign_and_zero_is_left_out():
    result = relative_change(
        {
            "bpb": PairedItems(np.array([90.0, 80.0]), np.array([100.0, 100.0]), higher_is_better=False),
            "nothing": PairedItems(np.array([1.0, 0.0]), np.array([0.0, 0.0])),
            "invalid": PairedItems(np.array([np.nan, np.nan]), np.array([1.0, 0.0])),
        }
    )
    assert result.tasks["bpb"].value == pytest.approx(0.15)
    assert result.left_out == ["nothing", "invalid"]
    assert np.isnan(relative_change({}).mean.value)


def test_items_that_one_side_cannot_score_leave_both():
    change = relative_change({"a": PairedItems(np.array([1.0, np.nan, 0.0]), np.array([1.0, 1.0, 1.0]))}).tasks["a"]
    assert (change.n, change.value) == (2, -0.5)
