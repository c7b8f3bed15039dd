"""Scoring one checkpoint on one benchmark: the records of its items, their Gamma, the scores, and the files of it all.

`<benchmark>.items.parquet` holds one row an item and score, `<benchmark>.gamma-<coupling>.npz` Gamma of the items, and
`<benchmark>.json`, written last, says that the rest is complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from pyarrow import ArrowException

from analysis.hallucination import statistics
from analysis.hallucination.benchmarks import BENCHMARKS, Benchmark
from analysis.hallucination.data import Items
from analysis.hallucination.harness import HarnessModel
from analysis.hallucination.item_gamma import ItemGamma, measure_items
from analysis.hallucination.tasks import harness_tasks
from analysis.hallucination.verdict import parse_verdict
from analysis.models import LoadedModel
from analysis.records import read_record, write_record
from analysis.workspace import atomic_path

KIND = "evaluation"


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


def evaluate_benchmark(loaded: LoadedModel, items: Items, batch_size: int = 16) -> Evaluation:
    """Score a checkpoint on a benchmark.

    Raises
    ------
    ValueError
        When the model has no tokenizer or the batch size is not positive.
    """
    harness, tasks = HarnessModel(loaded, batch_size), harness_tasks(items)
    harness.stage = f"scoring {items.benchmark.title}"
    samples = evaluate(harness, {"tasks": tasks}, log_samples=True, bootstrap_iters=0)["samples"]
    records = [
        {"score_name": name, **_record(tasks[name], items.benchmark, sample, harness.notes)}
        for name in tasks
        for sample in samples[name]
    ]
    return Evaluation(items.benchmark, pd.DataFrame(records), None, {})


def _record(
    task: ConfigurableTask, benchmark: Benchmark, sample: Mapping[str, Any], notes: Mapping[tuple[str, str], set[str]]
) -> dict[str, Any]:
    row, arguments = sample["doc"], [tuple(argument) for argument in sample["arguments"]]
    kinds = {"multiple_choice": _choice_record, "generate_until": _answer_record, "loglikelihood_rolling": _document_record}
    generated = task.OUTPUT_TYPE == "generate_until"
    noted = set().union(*(notes.get((argument[0], "" if generated else argument[-1]), set()) for argument in arguments))
    record = kinds[task.OUTPUT_TYPE](task, row, arguments, sample)
    if "not finite" in noted:
        record["value"] = math.nan
    return {
        "row": row["row"],
        "subset": row["subset"],
        "prompt_hash": sample["prompt_hash"],
        "judged_length": len(row[benchmark.judged]) if benchmark.judged else 0,
        "notes": ", ".join(sorted(noted)),
        "weight": 1.0,
        "unparsed": False,
        **record,
    }


def _choice_record(task: ConfigurableTask, row: Mapping, arguments: Sequence[tuple], sample: Mapping) -> dict[str, Any]:
    log_likelihoods = [answers[0][0] for answers in sample["resps"]]
    right = task.doc_to_text(row) if task.multiple_input else task.doc_to_target(row)
    finite = bool(np.isfinite(log_likelihoods).all())
    choices = ["".join(argument) if task.multiple_input else argument[1] for argument in arguments]
    return {
        "prompt": arguments[right][0],
        "continuation": arguments[right][1],
        "choices": choices,
        "right": [choices[right]],
        "prediction": choices[int(np.argmax(log_likelihoods))] if finite else "",
        "log_likelihoods": log_likelihoods,
        "value": float(sample["acc"]) if finite else math.nan,
    }


def _answer_record(task: ConfigurableTask, row: Mapping, arguments: Sequence[tuple], sample: Mapping) -> dict[str, Any]:
    answer, target = sample["resps"][0][0], task.doc_to_target(row)
    right = target if isinstance(target, list) else [target]
    judged = "hallucination" in row
    return {
        "prompt": arguments[0][0],
        "continuation": f" {right[0]}",
        "choices": [" Yes", " No"] if judged else [],
        "right": right,
        "prediction": answer,
        "log_likelihoods": [],
        "value": float(sample["acc"] if judged else sample["exact_match"]),
        "unparsed": judged and parse_verdict(answer) is None,
    }


def _document_record(task: ConfigurableTask, row: Mapping, arguments: Sequence[tuple], sample: Mapping) -> dict[str, Any]:
    log_likelihood, length = sample["bits_per_byte"]
    return {
        "prompt": arguments[0][0],
        "continuation": "",
        "choices": [],
        "right": [],
        "prediction": "",
        "log_likelihoods": [log_likelihood],
        "value": -log_likelihood / math.log(2) if math.isfinite(log_likelihood) else math.nan,
        "weight": float(length),
    }


def measure_gamma(loaded: LoadedModel, evaluation: Evaluation, coupling: str = "paper", batch_size: int = 16) -> Evaluation:
    """The same evaluation with Gamma of each item's prompt and right continuation, cut from the left to the window.

    Raises
    ------
    ValueError
        For a benchmark of documents, which has no right and wrong answers.
    """
    items = evaluation.items(evaluation.score_names[0])
    if not items["continuation"].all():
        raise ValueError(f"{evaluation.benchmark.title} has no right and wrong answers, so no Gamma of items against errors.")
    harness = HarnessModel(loaded, batch_size)
    encoded = [harness.encode(*pair) for pair in zip(items["prompt"], items["continuation"], strict=True)]
    texts = [(context + continuation)[-harness.max_length :] for context, continuation in encoded]
    stage = f"Gamma of {evaluation.benchmark.title} items"
    return replace(evaluation, gamma=measure_items(loaded, texts, coupling, batch_size, stage=stage))
