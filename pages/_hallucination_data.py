"""What the hallucination page reads and computes, kept by the files that it was made of: evaluations, fits, item analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from analysis.hallucination.checkpoints import AcrossCheckpoints
from analysis.hallucination.evaluation import Evaluation, StoredEvaluation, stored_evaluations
from analysis.hallucination.per_item import Association, ItemAnalysis
from analysis.hallucination.prediction import Checkpoint, analyse_checkpoints, analyse_items, pool_benchmarks
from analysis.workspace import workspace_root

Stamp = tuple[str, str, str | None, tuple[int, ...]]


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


def fit_of(
    stamps: Sequence[Stamp], checkpoints: Sequence[Checkpoint], layer: int | None, normalized: bool
) -> AcrossCheckpoints | str:
    """The fit across checkpoints, or the sentence that says what is missing."""
    return _fit(tuple(stamps), tuple(point.name for point in checkpoints), layer, normalized, list(checkpoints))


@st.cache_data(max_entries=128, show_spinner="Permuting Gamma among the checkpoints")
def _fit(
    stamps: tuple[Stamp, ...], names: tuple[str, ...], layer: int | None, normalized: bool, _checkpoints: list[Checkpoint]
) -> AcrossCheckpoints | str:
    try:
        return analyse_checkpoints(_checkpoints, layer, normalized)
    except ValueError as error:
        return _sentence(error)


@st.cache_data(max_entries=128, show_spinner="Fitting a regression for each layer and each shuffle")
def item_analysis_of(stamp: Stamp, score: str) -> ItemAnalysis | str:
    """Errors of one score against Gamma of the items, or why that cannot be had."""
    try:
        return analyse_items(load_evaluation(stamp), score)
    except ValueError as error:
        return _sentence(error)


@st.cache_data(max_entries=128, show_spinner=False)
def pooled_of(stamps: tuple[Stamp, ...]) -> Association | str:
    """The same over the items of several benchmarks at once."""
    try:
        return pool_benchmarks([load_evaluation(stamp) for stamp in stamps])
    except ValueError as error:
        return _sentence(error)


def _sentence(error: ValueError) -> str:
    return str(error)[:1].upper() + str(error)[1:]
