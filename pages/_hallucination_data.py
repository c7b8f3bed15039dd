"""What the hallucination page reads and computes, kept by the files that it was made of: evaluations, fits, item analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from analysis.hallucination.checkpoints import AcrossCheckpoints
from analysis.hallucination.evaluation import Evaluation, StoredEvaluation, stored_evaluations
from analysis.hallucination.pareto import Trade, trades
from analysis.hallucination.per_item import Association, ItemAnalysis
from analysis.hallucination.prediction import Checkpoint, analyse_checkpoints, analyse_items, pool_benchmarks
from analysis.hallucination.table import mean_changes, score_lines
from analysis.workspace import workspace_root
from pages._widgets import sentence

Stamp = tuple[str, str, str | None, tuple[int, ...]]
Key = tuple[tuple[str, tuple[Stamp, ...]], ...]


def known_evaluations() -> tuple[list[StoredEvaluation], list[str]]:
    """What the workspace holds, and a notice for each file that cannot be read."""
    root = workspace_root() / "evaluations"
    state = tuple(sorted((str(path), path.stat().st_mtime_ns) for path in root.rglob("*.*") if path.is_file()))
    return _known(str(root), state)


@st.cache_data(max_entries=8, show_spinner=False)
def _known(root: str, state: tuple) -> tuple[list[StoredEvaluation], list[str]]:
    return stored_evaluations(root)


def stamp_of(stored: StoredEvaluation, coupling: str) -> Stamp:
    """What an evaluation's content depends on: place, coupling, and the times of its files."""
    files = sorted(stored.folder.glob(f"{stored.name}.*"))
    wanted = coupling if coupling in stored.couplings else None
    return str(stored.folder), stored.name, wanted, tuple(path.stat().st_mtime_ns for path in files)


@st.cache_resource(max_entries=256, show_spinner="Reading the evaluations")
def load_evaluation(stamp: Stamp) -> Evaluation:
    """An evaluation with Gamma of the coupling, without Gamma when that coupling was not measured; shared, never written to."""
    folder, name, coupling, _ = stamp
    return Evaluation.load(Path(folder), name, coupling or "none")


def key_of(stamps: Mapping[str, Mapping[str, Stamp]]) -> Key:
    """Of all that is on screen: each checkpoint's name with the stamps of its evaluations."""
    return tuple((name, tuple(found.values())) for name, found in stamps.items())


@st.cache_data(max_entries=128, show_spinner="Permuting Gamma among the checkpoints")
def fit_of(key: Key, layer: int | None, normalized: bool, _checkpoints: Sequence[Checkpoint]) -> AcrossCheckpoints | str:
    """The fit across checkpoints, or the sentence that says what is missing."""
    try:
        return analyse_checkpoints(_checkpoints, layer, normalized)
    except ValueError as error:
        return sentence(error)


@st.cache_data(max_entries=64, show_spinner="Resampling the items")
def tables_of(key: Key, baseline: str, _checkpoints: Sequence[Checkpoint]) -> tuple[pd.DataFrame, pd.DataFrame | str]:
    """Scores, and mean changes against a baseline; without changes, and why, when they cannot be had."""
    before = next(point for point in _checkpoints if point.name == baseline)
    try:
        return score_lines(_checkpoints, before), mean_changes(_checkpoints, before)
    except ValueError as error:
        return score_lines(_checkpoints, None), sentence(error)


@st.cache_data(max_entries=64, show_spinner="Resampling the items")
def trades_of(key: Key, baseline: str, _checkpoints: Sequence[Checkpoint]) -> list[Trade] | str:
    """Gains and costs against a baseline, or why they cannot be had."""
    try:
        return trades(_checkpoints, next(point for point in _checkpoints if point.name == baseline))
    except ValueError as error:
        return sentence(error)


@st.cache_data(max_entries=128, show_spinner="Fitting a regression for each layer and each shuffle")
def item_analysis_of(stamp: Stamp, score: str) -> ItemAnalysis | str:
    """Errors of one score against Gamma of the items, or why that cannot be had."""
    try:
        return analyse_items(load_evaluation(stamp), score)
    except ValueError as error:
        return sentence(error)


@st.cache_data(max_entries=128, show_spinner=False)
def pooled_of(stamps: tuple[Stamp, ...]) -> Association | str:
    """The same over the items of several benchmarks at once."""
    try:
        return pool_benchmarks([load_evaluation(stamp) for stamp in stamps])
    except ValueError as error:
        return sentence(error)
