"""One checkpoint on one benchmark: the records of its items, their Gamma, the scores, and the files of it all.

`<benchmark>.items.parquet` holds one row an item and score, `<benchmark>.gamma-<coupling>.npz` Gamma of the items, and
`<benchmark>.json`, written last, says that the rest is complete.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import ArrowException

from analysis.hallucination import statistics
from analysis.hallucination.benchmarks import BENCHMARKS, Benchmark
from analysis.hallucination.item_gamma import ItemGamma
from analysis.records import read_record, write_record
from analysis.workspace import atomic_path, workspace_root

KIND = "evaluation"
FOLDER = "evaluations"  # of the workspace


@dataclass(frozen=True)
class TaskScore:
    """One line of the score table.

    Attributes
    ----------
    name, title, kind : of the score; kind is "hallucination" or "knowledge".
    value, standard_error, n, invalid : see `statistics.Score`; bits per byte for WikiText, else a share of 1.
    unparsed : share of judge answers without a clear verdict (they count as wrong), None for other protocols.
    length_only : what the length of the judged text alone would score, None for other protocols.
    merged, truncated, too_long : items noted by harness.py; the too long ones are among the invalid.
    higher_is_better : False for bits per byte.
    """

    name: str
    title: str
    kind: str
    value: float
    standard_error: float
    n: int
    invalid: int
    unparsed: float | None
    length_only: float | None
    merged: int
    truncated: int
    too_long: int
    higher_is_better: bool


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One checkpoint on one benchmark.

    Attributes
    ----------
    benchmark : which.
    records : one row an item and score: score_name, row, subset, prompt_hash, prompt, continuation (the right one),
        choices, right, prediction, log_likelihoods, value, weight, unparsed, judged_length, notes. `value` is 1 for right and
        0 for wrong, the true mass for MC2, bits for WikiText (whose `weight` is bytes), NaN when it could not be scored.
    gamma : of the items in the order of the first score's records, or None.
    provenance : model, adapter, items, settings, versions; JSON-ready.
    """

    benchmark: Benchmark
    records: pd.DataFrame
    gamma: ItemGamma | None
    provenance: dict[str, Any]

    @property
    def score_names(self) -> list[str]:
        """Names of the scores, the first one is that whose records `gamma` follows."""
        return list(dict.fromkeys(self.records["score_name"]))

    def items(self, score_name: str) -> pd.DataFrame:
        """The records of one score."""
        return self.records[self.records["score_name"] == score_name].reset_index(drop=True)

    def scores(self) -> list[TaskScore]:
        """The scores with their errors and what must stand beside them."""
        return [_task_score(self.benchmark, name, self.items(name)) for name in self.score_names]

    def save(self, folder: str | Path) -> None:
        """Write the files, the .json last. Same evaluation, same bytes."""
        name, folder = self.benchmark.name, Path(folder)
        with atomic_path(folder / f"{name}.items.parquet") as temporary:
            self.records.to_parquet(temporary, index=False)
        if self.gamma is not None:
            save_gamma(self.gamma, folder, name)
        scores = [asdict(score) for score in self.scores()]
        write_record(folder / f"{name}.json", KIND, {"benchmark": name, "scores": scores, "provenance": self.provenance})

    @staticmethod
    def load(folder: str | Path, name: str, coupling: str | None = None) -> Evaluation:
        """Read the evaluation of one benchmark, with Gamma of the coupling when it was measured (any when None).

        Raises
        ------
        FileNotFoundError
            When it is not there, or not complete.
        ValueError
            When a file is damaged or from a newer version.
        """
        folder = Path(folder)
        record = read_record(folder / f"{name}.json", KIND)
        path = folder / f"{name}.items.parquet"
        try:
            records = pd.read_parquet(path)
        except (ArrowException, OSError) as error:
            raise ValueError(
                f"{path} is missing or damaged ({type(error).__name__}): delete {folder} and evaluate again."
            ) from error
        found = sorted(folder.glob(f"{name}.gamma-{coupling or '*'}.npz"), reverse=True)  # paper before invariant
        gamma = load_gamma(found[0]) if found else None
        return Evaluation(BENCHMARKS[record["benchmark"]], records, gamma, record["provenance"])


def save_gamma(gamma: ItemGamma, folder: Path, name: str) -> None:
    """Write Gamma of a benchmark's items."""
    with atomic_path(folder / f"{name}.gamma-{gamma.coupling}.npz") as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **{field.name: np.asarray(getattr(gamma, field.name)) for field in fields(gamma)})


def load_gamma(path: Path) -> ItemGamma:
    """Read Gamma of a benchmark's items."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {field.name: file[field.name] for field in fields(ItemGamma)}
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it and evaluate again.") from error
    return ItemGamma(**{**arrays, "coupling": str(arrays["coupling"])})


def score_title(name: str, benchmark: Benchmark) -> str:
    """What people call a score: the benchmark, and for truthful multiple choice which of the two."""
    return f"{benchmark.title} {name[-3:].upper()}" if name.endswith(("_mc1", "_mc2")) else benchmark.title


def _task_score(benchmark: Benchmark, name: str, items: pd.DataFrame) -> TaskScore:
    score = statistics.score(items["value"], items["weight"])
    judged = benchmark.judged is not None
    noted = items["notes"].str
    return TaskScore(
        name=name,
        title=score_title(name, benchmark),
        kind=benchmark.kind,
        value=score.value,
        standard_error=score.standard_error,
        n=score.n,
        invalid=score.invalid,
        unparsed=float(items["unparsed"].mean()) if judged else None,
        length_only=statistics.length_baseline(items["judged_length"], items["subset"] == "yes") if judged else None,
        merged=int(noted.contains("merged").sum()),
        truncated=int(noted.contains("truncated").sum()),
        too_long=int(noted.contains("too long").sum()),
        higher_is_better=benchmark.higher_is_better,
    )


@dataclass(frozen=True)
class StoredEvaluation:
    """What is known of an evaluation in the workspace without reading its items.

    Attributes
    ----------
    folder, name : where it is and its benchmark; `Evaluation.load(folder, name)` reads it.
    scores : the score table's lines, as in `evaluation.TaskScore`.
    provenance : model, adapter, items, settings, versions.
    couplings : the couplings that Gamma of its items was measured with.
    """

    folder: Path
    name: str
    scores: list[dict[str, Any]]
    provenance: dict[str, Any]
    couplings: list[str]


def stored_evaluations(folder: str | Path | None = None) -> tuple[list[StoredEvaluation], list[str]]:
    """The complete evaluations under a folder (the workspace's by default), and a notice for each file that is damaged."""
    root = Path(folder) if folder else workspace_root() / FOLDER
    found, notices = [], []
    for path in sorted(root.rglob("*.json")):
        if path.stem not in BENCHMARKS:
            continue
        try:
            record = read_record(path, KIND)
        except ValueError as error:
            notices.append(str(error))
            continue
        measured = sorted(path.parent.glob(f"{path.stem}.gamma-*.npz"), reverse=True)
        couplings = [file.stem.rsplit("-", 1)[1] for file in measured]
        found.append(StoredEvaluation(path.parent, path.stem, record["scores"], record["provenance"], couplings))
    return found, notices
