"""Scoring through the harness beside stock lm_eval on the same rows, and Gamma of items beside a bare pass over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import datasets
import numpy as np

from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.data import Items, load_items
from analysis.hallucination.evaluation import Evaluation
from analysis.hallucination.harness import HarnessModel
from analysis.hallucination.item_gamma import _batches, _padded, measure_items
from analysis.hallucination.scoring import evaluate_benchmark
from analysis.models import LoadedModel, load_model
from tests.bench import ratio
from tests.bench_interaction import bare_pass
from tests.stock_harness import stock_samples, stock_task

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RUNS = 3
BATCH = 8
_STOCK = {
    "truthfulqa_mc": {"mc1": "truthfulqa/truthfulqa_mc1.yaml", "mc2": "truthfulqa/truthfulqa_mc2.yaml"},
    "winogrande": {"winogrande": "winogrande/default.yaml"},
}


def run() -> Iterator[tuple[str, float, float, int]]:
    """Default model, float32; the real benchmarks when ../shared is there, else the built-in rows under their protocols."""
    loaded = load_model("default")
    for name, limit in (("truthfulqa_mc", 2), ("winogrande", 16)):
        items = _items(name, limit)
        if items is None:
            continue
        ours, theirs = partial(evaluate_benchmark, loaded, items, BATCH), partial(_stock, loaded, items)
        value = ratio(ours, theirs, RUNS)
        title = items.benchmark.title
        yield f"largest difference of a score from stock lm_eval, {title}", _difference(ours(), theirs()), 1e-6, 1
        yield f"time of {title} / stock lm_eval on the same {len(items.rows)} rows", value, 1 / 0.95, RUNS
    yield "time of Gamma of items, all layers / bare pass over them", _gamma_ratio(loaded), 1.3, RUNS


def _items(name: str, limit: int) -> Items | None:
    if DATA.is_dir():
        return load_items(BENCHMARKS[name], DATA, limit)
    return load_items(BENCHMARKS["builtin_mc"], limit=limit) if name == "truthfulqa_mc" else None


def _stock(loaded: LoadedModel, items: Items) -> dict[str, list[dict]]:
    rows = {"validation": datasets.Dataset.from_list(items.rows)}
    tasks = {
        name: stock_task(file, rows, training_split=None, task=name) for name, file in _STOCK[items.benchmark.protocol].items()
    }
    return stock_samples(loaded.model, copy.deepcopy(loaded.tokenizer), tasks, BATCH)


def _difference(ours: Evaluation, theirs: dict[str, list[dict]]) -> float:
    """Of a score, not of an item: one item's MC2 moves by 1e-6 between two batch sizes of the stock harness, too."""
    return max(
        abs(ours.items(score)["value"].mean() - np.mean([sample["acc"] for sample in samples]))
        for score, samples in zip(ours.score_names, theirs.values(), strict=True)
    )


def _gamma_ratio(loaded: LoadedModel) -> float:
    harness = HarnessModel(loaded)
    rows = load_items(BENCHMARKS["builtin_traps"], limit=16).rows
    encoded = [harness.encode(row["prompt"], row["classes"][row["answer_index"]]) for row in rows]
    texts = [context + continuation for context, continuation in encoded]
    batches = [_padded([texts[place] for place in places]) for places in _batches(texts, 16)]

    def bare() -> None:
        for batch in batches:
            bare_pass(loaded.model, batch)

    return ratio(partial(measure_items, loaded, texts), bare, RUNS)
