"""Gains against costs: relative to the baseline, and the front that nobody beats in both."""

import math

import pytest

from analysis.hallucination.pareto import Trade, front, trades
from analysis.hallucination.prediction import changes
from analysis.hallucination.statistics import Change
from tests.test_prediction import checkpoint, made


def trade(name, knowledge, hallucination):
    return Trade(name, *(Change(value, value, value, 10) for value in (knowledge, hallucination)))


def test_a_trade_is_the_mean_change_of_each_kind_and_the_baseline_lies_at_zero():
    base = checkpoint("base", made("memo_trap", 1), made("mmlu", 2, accuracy=1.0))
    tuned = checkpoint("tuned", made("memo_trap", 3, accuracy=0.5), made("mmlu", 4, accuracy=0.8))
    first, second = trades([base, tuned], base)
    assert (first.name, first.knowledge.value, first.hallucination.value) == ("base", 0, 0)
    expected = changes(tuned, base)
    assert (second.knowledge, second.hallucination) == (expected["knowledge"].mean, expected["hallucination"].mean)


def test_without_a_kind_there_is_no_trade():
    base, tuned = checkpoint("base", made("memo_trap", 1)), checkpoint("tuned", made("memo_trap", 2))
    with pytest.raises(ValueError, match=r"no knowledge benchmark .* shared by tuned and base: .*knowledge suite"):
        trades([base, tuned], base)


def test_the_front_holds_what_nobody_beats():
    found = [trade("base", 0, 0), trade("good", -0.01, 0.1), trade("beaten", -0.02, 0.05), trade("safe", 0.01, 0.02)]
    assert [one.name for one in front(found)] == ["good", "safe"]
    assert [one.name for one in front(found[::-1])] == ["good", "safe"]


def test_equals_do_not_beat_each_other_and_the_unknown_beats_nobody():
    found = [trade("a", 0.1, 0.1), trade("b", 0.1, 0.1), trade("unknown", math.nan, 0.9)]
    assert [one.name for one in front(found)] == ["a", "b"]
    assert front([trade("unknown", math.nan, 0.9)]) == [] == front([])
