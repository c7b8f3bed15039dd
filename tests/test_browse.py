"""Items as every checkpoint answered them."""

import math

import numpy as np
import pytest

from analysis.hallucination.browse import SHOWN, item, rows_to_browse
from analysis.hallucination.prediction import load_checkpoints
from tests.hallucination_workspace import ITEMS, evaluated_checkpoint


@pytest.fixture
def points(workspace):
    for number, adapter in enumerate([None, "/a", "/b"]):
        evaluated_checkpoint(number, adapter, benchmarks=("memo_trap",), couplings=("paper",))
    points = load_checkpoints([workspace / "evaluations" / f"{number:02d}-memo_trap" for number in range(3)])
    points[0].evaluations["memo_trap"].records.loc[4, "value"] = math.nan
    return points


def values(points):
    return np.array([point.evaluations["memo_trap"].records["value"] for point in points])


def test_every_item_is_of_the_kind_that_it_is_listed_under(points):
    kinds = {which: rows_to_browse(points, "memo_trap", "memo_trap", which) for which in SHOWN}
    assert kinds["all items"] == list(range(1, ITEMS + 1)) and kinds["not scored"] == [5]
    right = values(points)
    assert kinds["all wrong"] == [row for row in kinds["all items"] if (right[:, row - 1] == 0).all()]
    assert kinds["all right"] == [row for row in kinds["all items"] if (right[:, row - 1] == 1).all()]
    rest = set(kinds["all items"]) - {5}
    assert sorted(kinds["all wrong"] + kinds["all right"] + kinds["checkpoints disagree"]) == sorted(rest)
    assert all(kinds.values())


def test_an_item_shows_what_was_asked_and_each_answer_with_its_gamma(points):
    shown = item(points, "memo_trap", "memo_trap", 7)
    assert shown.prompt.startswith("Question 7:") and shown.right == ["Rome"] and "It is Lyon" in shown.choices
    assert [answer.checkpoint for answer in shown.answers] == [point.name for point in points]
    for point, answer in zip(points, shown.answers, strict=True):
        evaluation = point.evaluations["memo_trap"]
        assert answer.value == evaluation.records["value"][6] and answer.prediction == evaluation.records["prediction"][6]
        assert answer.gamma == pytest.approx(evaluation.gamma.gamma[6].mean())


def test_without_gamma_an_item_is_shown_all_the_same(workspace):
    evaluated_checkpoint(0, benchmarks=("memo_trap",), couplings=())
    (point,) = load_checkpoints([workspace / "evaluations" / "00-memo_trap"])
    assert math.isnan(item([point], "memo_trap", "memo_trap", 1).answers[0].gamma)
