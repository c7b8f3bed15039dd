"""A run's metrics as tables that grow with the run: read once, then only what is new; smoothed and thinned for charts."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from gamelora.runs import MetricsPart, Run

TASKS = {"ce": "cross-entropy", "ldb": "barrier", "bt": "Barlow Twins"}
# The names in metrics.jsonl, in the order that a picker lists them, and what they are; {} is filled from the name.
_TITLES = {
    r"eval_loss": "Held-out cross-entropy, nats per token",
    r"loss/ce": "Training cross-entropy, nats per token",
    r"loss/ldb": "Log-determinant barrier",
    r"gap/ldb": "Barrier above its floor",
    r"loss/bt": "Barlow Twins",
    r"gamma/L(\d+)": "Γ of layer {}, training batch",
    r"eval_gamma_(\w+)/L(\d+)": "Γ of layer {1}, held-out, {0} coupling",
    r"weight/(\w+)": "Weight of {}",
    r"lambda/(\w+)": "Bargaining power of {}",
    r"cosine/([a-z]+)_([a-z]+)": "Gradient cosine, {} and {}",
    r"gradient_norm/(\w+)": "Gradient norm of {}",
    r"grad_norm": "Gradient norm of the update",
    r"learning_rate": "Learning rate",
    r"tokens_per_second": "Tokens per second",
    r"peak_memory": "Peak memory, bytes",
    r"scale/bt": "Scale of Barlow Twins",
    r"bargain/(\w+)": "Bargain {}",
    r"skipped/(\w+)": "Step without {}",
    r"skipped": "Step skipped",
}
_HIDDEN = ("loss", "time", "step")  # "loss" is loss/ce, as Trainer rounds it


@dataclass(frozen=True)
class RunMetrics:
    """All that metrics.jsonl of one run has told so far.

    Attributes
    ----------
    steps : a row for each optimizer step, indexed by step; float columns by name, NaN where a number was not finite.
    evaluations : the same for each evaluation.
    damaged : lines that could not be read.
    read : how far the file has been read.
    """

    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    damaged: int = 0
    read: MetricsPart = field(default_factory=MetricsPart)

    def read_on(self, run: Run) -> RunMetrics:
        """With what was written since; read from the start when a resume has cut the file. `self` when nothing is new."""
        part = run.metrics_after(self.read)
        before = RunMetrics() if part.from_start else self
        read = replace(part, lines=[])
        if not part.lines and not part.damaged and before is self:
            return self if read.unfinished == self.read.unfinished else replace(self, read=read)
        evaluations = [line for line in part.lines if "eval_loss" in line]
        steps = [line for line in part.lines if "eval_loss" not in line]
        return RunMetrics(
            _longer(before.steps, steps), _longer(before.evaluations, evaluations), before.damaged + part.damaged, read
        )

    @property
    def names(self) -> list[str]:
        """The metrics that there are, in the order of a picker."""
        return in_order({*self.steps.columns, *self.evaluations.columns} - {*_HIDDEN})

    def series(self, name: str) -> pd.Series:
        """One metric by step; empty when this run has none of that name."""
        table = self.evaluations if name in self.evaluations.columns else self.steps
        return table[name] if name in table.columns else pd.Series(dtype=float)

    def to_csv(self) -> bytes:
        """Every step and evaluation, all digits, as they followed each other."""
        table = pd.concat([self.steps.assign(kind="step"), self.evaluations.assign(kind="evaluation")])
        table = table.rename_axis("step").reset_index()
        table = table.sort_values("step", kind="stable")[["step", "kind", *table.columns.drop(["step", "kind"])]]
        return table.to_csv(index=False).encode()


def _longer(table: pd.DataFrame, lines: list[dict[str, Any]]) -> pd.DataFrame:
    if not lines:
        return table
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    columns = {name: [_number(line.get(name)) for line in lines] for name in names}
    new = pd.DataFrame(columns, index=[line["step"] for line in lines], dtype=float)
    return pd.concat([table, new]) if len(table) else new


def _number(value: Any) -> float:
    return value if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) else np.nan


def title(name: str) -> str:
    """A metric for people, with its unit; the name itself when it is not one of ours."""
    for pattern, words in _TITLES.items():
        found = re.fullmatch(pattern, name)
        if found:
            return words.format(*(TASKS.get(part, part) for part in found.groups()))
    return name


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics in the order of a picker, layers by their number."""
    return sorted(names, key=_place)


@functools.lru_cache(maxsize=4096)
def _place(name: str) -> tuple:
    kind = next((place for place, pattern in enumerate(_TITLES) if re.fullmatch(pattern, name)), len(_TITLES))
    return kind, [int(part) if part.isdigit() else -1 for part in re.split(r"(\d+)", name)], name


def smooth(series: pd.Series, weight: float) -> pd.Series:
    """Exponential moving average in which a value counts `weight` (0 to below 1) of the one after it; gaps stay gaps.

    Corrected for the start, where few values have been seen.
    """
    if weight == 0:
        return series
    return series.ewm(alpha=1 - weight, ignore_na=True).mean().where(series.notna())


def thin(series: pd.Series, points: int) -> pd.Series:
    """At most `points` (4 or more) of the values to draw: the lowest and highest of each stretch, so that no spike is lost."""
    count = len(series)
    if count <= points:
        return series
    stretches = points // 2 - 1
    width = -(-count // stretches)
    values = np.full(stretches * width, np.nan)
    values[:count] = series.to_numpy(dtype=float)
    stretched = values.reshape(stretches, width)
    low = np.where(np.isnan(stretched), np.inf, stretched).argmin(axis=1)
    high = np.where(np.isnan(stretched), -np.inf, stretched).argmax(axis=1)
    starts = np.arange(stretches) * width
    kept = np.unique(np.concatenate([[0, count - 1], starts + low, starts + high]))
    return series.iloc[kept[kept < count]]
