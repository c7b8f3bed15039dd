"""Scoring a checkpoint on a benchmark through the harness, and measuring Gamma of the same items."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate

from analysis.hallucination.benchmarks import Benchmark
from analysis.hallucination.data import Items
from analysis.hallucination.evaluation import Evaluation
from analysis.hallucination.harness import HarnessModel
from analysis.hallucination.item_gamma import measure_items
from analysis.hallucination.tasks import harness_tasks
from analysis.hallucination.verdict import parse_verdict
from analysis.models import LoadedModel


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
