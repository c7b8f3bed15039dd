"""Runs side by side: one row a run, what differs between their settings, and curves of one metric for a chart.

A run that is damaged, in part or whole, has its row like any other, with what is wrong in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.adapters import CONFIG, WEIGHTS
from analysis.models import model_name
from analysis.workspace import safe_name
from gamelora.checkpoint_sources import CheckpointSource
from gamelora.checkpoints import step_of
from gamelora.config import GameLoraConfig, fields_by_name
from gamelora.run_metrics import RunMetrics, in_order, smooth, thin
from gamelora.run_tags import read_tags
from gamelora.runs import Run
from gamelora.training_jobs import Training

POINTS_IN_ALL = 24_000  # that a chart is drawn with, shared by its curves
_POINTS = 2_000  # of one curve, at most


@dataclass(frozen=True)
class RunRow:
    """A run in the table; what is not known is None.

    Attributes
    ----------
    state : as `Training.state`.
    model : its name for people.
    final_ce : held-out cross-entropy of the last evaluation, nats per token.
    gamma_first, gamma_last : Gamma on the held-out text under the run's coupling, mean over the design layers, in the first and
        in the last evaluation; the last is None when there was one evaluation only.
    design_layers : those layers.
    selectivity : of adapter against base (`analysis.compare`), when both are measured on one text.
    created : Unix seconds.
    problems : what is wrong with its files, a sentence each.
    """

    name: str
    state: str
    reason: str | None
    method: str | None
    arbitration: str | None
    model: str | None
    step: int
    steps: int | None
    final_ce: float | None
    gamma_first: float | None
    gamma_last: float | None
    design_layers: tuple[int, ...]
    selectivity: float | None
    tags: tuple[str, ...]
    created: float | None
    problems: tuple[str, ...]

    @property
    def gamma_change(self) -> float | None:
        """gamma_last - gamma_first."""
        return None if self.gamma_first is None or self.gamma_last is None else self.gamma_last - self.gamma_first

    @property
    def note(self) -> str:
        """Why it ended, and what is wrong with it."""
        return " ".join(filter(None, (self.reason, *self.problems)))

    @property
    def words(self) -> str:
        """What a filter looks through."""
        said = (self.name, self.state, self.method, self.arbitration, self.model, *self.tags)
        return " ".join(one for one in said if one).casefold()


def run_row(
    now: Training, metrics: RunMetrics | str, config: GameLoraConfig | str | None, selectivity: float | None = None
) -> RunRow:
    """The row of a run.

    Parameters
    ----------
    metrics : all that it has told, or the sentence that says why that cannot be read.
    config : its settings, such a sentence, or None before it has any.
    """
    unreadable = tuple(_sentence(one) for one in (config, metrics) if isinstance(one, str))
    metrics = RunMetrics() if isinstance(metrics, str) else metrics
    known = config if isinstance(config, GameLoraConfig) else None
    layers = _design_layers(now.status, metrics)
    first, last = _gammas(metrics, known.coupling if known else "paper", layers)
    losses = metrics.series("eval_loss").dropna()
    tags, of_tags = _tags(now)
    return RunRow(
        name=now.name,
        state=now.state,
        reason=now.reason,
        method=known and known.method,
        arbitration=now.status.get("arbitration") or (known and known.arbitration),
        model=known and model_name(known.model),
        step=now.step,
        steps=now.status.get("steps") or (known and known.steps),
        final_ce=float(losses.iloc[-1]) if len(losses) and losses.index[-1] > 0 else None,  # at step 0 it is the base's
        gamma_first=first,
        gamma_last=last,
        design_layers=layers,
        selectivity=selectivity,
        tags=tags,
        created=now.status.get("created") or (now.job.created if now.job else None),
        problems=(*_folder_problems(now), *unreadable, *_metric_problems(now, metrics), *of_tags),
    )


def _design_layers(status: Mapping[str, Any], metrics: RunMetrics) -> tuple[int, ...]:
    told = status.get("design_layers") or [int(name[7:]) for name in metrics.names if re.fullmatch(r"gamma/L\d+", name)]
    return tuple(sorted(layer for layer in told if isinstance(layer, int)))


def _gammas(metrics: RunMetrics, coupling: str, layers: Sequence[int]) -> tuple[float | None, float | None]:
    names = [f"eval_gamma_{coupling}/L{layer}" for layer in layers]
    if not names or not set(names) <= set(metrics.evaluations.columns):
        return None, None
    means = metrics.evaluations[names].mean(axis=1, skipna=False).dropna()
    first = float(means.iloc[0]) if len(means) else None
    return first, float(means.iloc[-1]) if len(means) > 1 else None


def _tags(now: Training) -> tuple[tuple[str, ...], list[str]]:
    try:
        return (read_tags(now.run.folder) if now.run else ()), []
    except ValueError as error:
        return (), [_sentence(str(error))]


def _folder_problems(now: Training) -> list[str]:
    """What is wrong with its name and with its adapter."""
    problems = []
    try:
        safe_name(now.name, "run name")
    except ValueError as error:
        problems.append(f"{_sentence(str(error))} Rename its folder.")
    if now.state == "finished" and not has_adapter(now.run):
        left = now.run.checkpoints()
        instead = f"checkpoint {step_of(left[-1])} is still there." if left else "no checkpoint is left."
        problems.append(f"Its adapter was deleted; {instead}")
    return problems


def _metric_problems(now: Training, metrics: RunMetrics) -> list[str]:
    problems = []
    if metrics.damaged:
        lines = "1 line of its metrics is" if metrics.damaged == 1 else f"{metrics.damaged} lines of its metrics are"
        problems.append(f"{lines} damaged and left out.")
    if metrics.read.unfinished and not now.live:
        problems.append("The last line of its metrics was cut off and is left out.")
    return problems


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def has_adapter(run: Run) -> bool:
    """Whether the finished adapter is there, by its files."""
    return all((run.adapter / name).is_file() for name in (CONFIG, WEIGHTS))


def selectable(run: Run, config: GameLoraConfig) -> list[CheckpointSource]:
    """The checkpoints that a run has to offer: its finished adapter, then its saved steps, newest first.

    The last step of a finished run is the adapter, and is not listed again.
    """
    about = {"source": config.model, "revision": config.revision, "dtype": config.dtype, "run": run.name}
    finished = has_adapter(run)
    steps = [path for path in reversed(run.checkpoints()) if not (finished and step_of(path) == config.steps)]
    adapter = [CheckpointSource(adapter=str(run.adapter), **about)] if finished else []
    return adapter + [CheckpointSource(adapter=str(path), step=step_of(path), **about) for path in steps]


# --- filter, sort, table --------------------------------------------------------------------------------------------------

# what a table can be sorted by -> its words
SORTS = {
    "created": "Newest",
    "name": "Name",
    "final_ce": "Cross-entropy",
    "gamma_last": "Γ last",
    "gamma_change": "Γ change",
    "selectivity": "Selectivity",
    "state": "State",
}


def matching(rows: Iterable[RunRow], text: str, states: Sequence[str] = (), tags: Sequence[str] = ()) -> list[RunRow]:
    """The rows that hold every word of `text`, have one of the states (any when none is named) and all of the tags."""
    words = text.casefold().split()
    return [
        row
        for row in rows
        if all(word in row.words for word in words) and (not states or row.state in states) and set(tags) <= set(row.tags)
    ]


def ordered(rows: Iterable[RunRow], by: str = "created", descending: bool = True) -> list[RunRow]:
    """The rows by a key of `SORTS`; those that lack it come last either way, equal ones by name."""
    rows = sorted(rows, key=lambda row: row.name)
    known = [row for row in rows if getattr(row, by) is not None]
    known.sort(key=lambda row: getattr(row, by), reverse=descending)
    return known + [row for row in rows if getattr(row, by) is None]


def table(rows: Sequence[RunRow]) -> pd.DataFrame:
    """The rows as they are shown and downloaded, all digits."""
    columns = {
        "run": [row.name for row in rows],
        "state": [row.state for row in rows],
        "method": [row.method for row in rows],
        "arbitration": [row.arbitration for row in rows],
        "model": [row.model for row in rows],
        "step": [row.step for row in rows],
        "steps": pd.array([row.steps for row in rows], dtype="Int64"),
        "final_ce": pd.array([row.final_ce for row in rows], dtype="Float64"),
        "gamma_first": pd.array([row.gamma_first for row in rows], dtype="Float64"),
        "gamma_last": pd.array([row.gamma_last for row in rows], dtype="Float64"),
        "gamma_change": pd.array([row.gamma_change for row in rows], dtype="Float64"),
        "design_layers": [", ".join(f"L{layer}" for layer in row.design_layers) for row in rows],
        "selectivity": pd.array([row.selectivity for row in rows], dtype="Float64"),
        "tags": [list(row.tags) for row in rows],
        "created": pd.to_datetime([row.created for row in rows], unit="s", utc=True),
        "note": [row.note for row in rows],
    }
    return pd.DataFrame(columns)


# --- several runs beside each other ---------------------------------------------------------------------------------------


def config_diff(configs: Mapping[str, GameLoraConfig]) -> pd.DataFrame:
    """The settings in which runs differ: index setting, one column a run as text, and `what it is`."""
    rows = {}
    for name, entry in fields_by_name().items():
        values = [getattr(config, name) for config in configs.values()]
        if any(value != values[0] for value in values):
            rows[name] = [*map(_shown, values), entry.metadata["help"]]
    return pd.DataFrame.from_dict(rows, orient="index", columns=[*configs, "what it is"])


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "default" if value is None else str(value)


def metric_names(metrics: Iterable[RunMetrics]) -> list[str]:
    """The metrics that at least one of the runs has, in the order of a picker."""
    return in_order({name for one in metrics for name in one.names})


def overlay(metrics: Mapping[str, RunMetrics], name: str, weight: float = 0.0) -> dict[str, pd.Series]:
    """One metric of several runs, smoothed, then thinned so that all curves together stay within `POINTS_IN_ALL`.

    Runs without that metric are left out.
    """
    series = {run: one.series(name).dropna() for run, one in metrics.items()}
    series = {run: one for run, one in series.items() if len(one)}
    points = max(4, min(_POINTS, POINTS_IN_ALL // max(len(series), 1)))
    return {run: thin(smooth(one, weight), points) for run, one in series.items()}
