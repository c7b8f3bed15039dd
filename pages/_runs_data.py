"""What the Runs page reads, each file once: settings, metrics, rows; and the selectivity of adapters that are measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from analysis.compare import compare
from analysis.results import InteractionResult
from gamelora.checkpoint_sources import CheckpointSource
from gamelora.config import GameLoraConfig
from gamelora.run_metrics import RunMetrics
from gamelora.run_table import RunRow, run_row
from gamelora.runs import Run
from gamelora.training_jobs import Training, look_all
from pages._cache import Measurement
from pages._frame import View
from pages._train_data import metrics_of

_PERMUTATIONS = 99  # the selectivity is the same with any number; its p stands on the Coalitions page


@dataclass(frozen=True)
class KnownRun:
    """A run with what its files say; `config` is a sentence where they cannot be read, None where there are none."""

    now: Training
    config: GameLoraConfig | str | None
    metrics: RunMetrics
    row: RunRow

    @property
    def settings(self) -> GameLoraConfig | None:
        """Its config where that can be read."""
        return self.config if isinstance(self.config, GameLoraConfig) else None


def known_runs(view: View) -> dict[str, KnownRun]:
    """Every run of the workspace by name, whatever state its files are in."""
    measured = [one for one in view.found.values() if one.provenance and one.request is None]
    return {now.name: _known(now, measured, view.coupling) for now in look_all()}


def _known(now: Training, measured: list[Measurement], coupling: str) -> KnownRun:
    config = config_of(now.run) if now.run else None
    try:
        metrics = metrics_of(now.run) if now.run else RunMetrics()
    except OSError as error:
        metrics = f"its metrics cannot be read ({error.strerror})."
    selectivity = _selectivity_of(now.run, config, measured, coupling) if isinstance(config, GameLoraConfig) else None
    row = run_row(now, metrics, config, selectivity)
    return KnownRun(now, config, RunMetrics() if isinstance(metrics, str) else metrics, row)


def config_of(run: Run) -> GameLoraConfig | str:
    """A run's settings, or the sentence that says why they cannot be read."""
    try:
        stat = (run.folder / "config.yaml").stat()
    except OSError as error:
        return f"its config.yaml cannot be read ({error.strerror})."
    return _config(str(run.folder), stat.st_mtime_ns, stat.st_size)


@st.cache_data(max_entries=1000, show_spinner=False)
def _config(folder: str, mtime_ns: int, size: int) -> GameLoraConfig | str:
    try:
        return Run(Path(folder).name, Path(folder)).config()
    except (ValueError, OSError) as error:
        return str(error)


def _selectivity_of(run: Run, config: GameLoraConfig, measured: list[Measurement], coupling: str) -> float | None:
    """Of the adapter against its base on the longest text that both are measured on; None when there is none."""
    tuned = CheckpointSource(config.model, config.revision, str(run.adapter), config.dtype, run.name)
    after = [one for one in measured if one.provenance["adapter"] and tuned.made(one.provenance)]
    if not after:
        return None
    base = CheckpointSource(config.model, config.revision, None, config.dtype)
    before = [one for one in measured if base.made(one.provenance)]
    pairs = [(one, other) for one in before for other in after if one.provenance["text"] == other.provenance["text"]]
    if not pairs:
        return None
    pair = max(pairs, key=lambda pair: pair[0].provenance["text"].get("tokens", 0))
    return _selectivity(tuple(_stamp(one) for one in pair), coupling, *(one.load() for one in pair))


def _stamp(one: Measurement) -> tuple[str, int]:
    return str(one.path), one.path.stat().st_mtime_ns


@st.cache_data(max_entries=500, show_spinner="Comparing adapters with their bases")
def _selectivity(
    stamps: tuple[tuple[str, int], ...], coupling: str, _before: InteractionResult, _after: InteractionResult
) -> float | None:
    try:
        return compare(_before.view(coupling), _after, permutations=_PERMUTATIONS).overall.selectivity
    except ValueError:  # they cannot be compared; the Coalitions page says why
        return None
