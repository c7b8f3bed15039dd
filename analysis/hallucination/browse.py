"""One item as every checkpoint answered it: what was asked, what is right, what each said, and each one's Gamma."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.hallucination.prediction import Checkpoint, wrong

SHOWN = ("all items", "checkpoints disagree", "all wrong", "all right", "not scored")


@dataclass(frozen=True)
class Answer:
    """What a checkpoint did with an item.

    Attributes
    ----------
    checkpoint : its name.
    prediction : the choice or the text that it gave; "" when it could not be scored.
    value : 1 right, 0 wrong, the mass on true choices for MC2; NaN when it could not be scored.
    gamma : mean over layers of the item's own Gamma, NaN when it was not measured.
    notes : what the harness noted ("truncated", "merged", ...).
    """

    checkpoint: str
    prediction: str
    value: float
    gamma: float
    notes: str


@dataclass(frozen=True)
class Item:
    """What was asked: prompt, choices, the right ones among them, the benchmark's own subset, and the answers."""

    row: int
    subset: str
    prompt: str
    choices: list[str]
    right: list[str]
    answers: list[Answer]


def rows_to_browse(checkpoints: Sequence[Checkpoint], benchmark: str, score: str, which: str = SHOWN[0]) -> list[int]:
    """Row numbers of the items that all these checkpoints were scored on and that are of the kind `which`, one of `SHOWN`."""
    values = [point.evaluations[benchmark].items(score).set_index("row")["value"] for point in checkpoints]
    together = pd.concat(values, axis=1, join="inner")
    scored = np.isfinite(together).all(axis=1)
    errors = pd.DataFrame(wrong(together.to_numpy()), index=together.index)
    chosen = {
        "all items": np.ones(len(together), dtype=bool),
        "checkpoints disagree": scored & (errors.nunique(axis=1) > 1),
        "all wrong": scored & errors.all(axis=1),
        "all right": scored & ~errors.any(axis=1),
        "not scored": ~scored,
    }[which]
    return together.index[chosen].tolist()


def item(checkpoints: Sequence[Checkpoint], benchmark: str, score: str, row: int) -> Item:
    """One item of a score, by its row number in the source."""
    answers, shown = [], None
    for point in checkpoints:
        evaluation = point.evaluations[benchmark]
        records = evaluation.items(score)
        place = int(np.flatnonzero(records["row"] == row)[0])
        record = records.iloc[place]
        shown = record if shown is None else shown
        gamma = np.nan if evaluation.gamma is None else float(evaluation.gamma.gamma[place].mean())
        answers.append(Answer(point.name, record["prediction"], float(record["value"]), gamma, record["notes"]))
    return Item(row, shown["subset"], shown["prompt"], list(shown["choices"]), list(shown["right"]), answers)
