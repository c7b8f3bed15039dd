"""Evaluations by content: what was evaluated once is read, so that an interrupted evaluation goes on where it stopped.

The name of a stored evaluation is a hash of all that its scores depend on: weights, adapter, dtype, tokenizer, rows and
protocol. Files are in `evaluations` of the workspace.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.hallucination.data import Items
from analysis.hallucination.evaluation import FOLDER, Evaluation, save_gamma
from analysis.hallucination.harness import WINDOW
from analysis.hallucination.scoring import evaluate_benchmark, measure_gamma
from analysis.hallucination.tasks import PROTOCOL
from analysis.models import LoadedModel, versions
from analysis.progress import report
from analysis.workspace import workspace_dir


def evaluations(
    loaded: LoadedModel, benchmarks: Sequence[Items], batch_size: int = 16, gamma: str | None = None
) -> Iterator[Evaluation]:
    """The evaluation of each benchmark in turn, from the workspace when it is there; each is stored before the next begins.

    Parameters
    ----------
    gamma : coupling of the per-item Gamma, "paper" or "invariant"; None measures none. WikiText never has one.
    """
    for number, items in enumerate(benchmarks):
        report("benchmarks", number, len(benchmarks), "benchmark")
        name, key = items.benchmark.name, evaluation_key(loaded, items)
        folder = workspace_dir(FOLDER, key)
        if (folder / f"{name}.json").is_file():
            evaluation = Evaluation.load(folder, name, gamma)
        else:
            settings = {"batch_size": batch_size, "window": WINDOW, "protocol": PROTOCOL}
            provenance = {
                **loaded.provenance,
                "items": items.provenance,
                "settings": settings,
                "key": key,
                "versions": {**versions(), "lm_eval": importlib.metadata.version("lm_eval")},
            }
            evaluation = replace(evaluate_benchmark(loaded, items, batch_size), provenance=provenance)
            evaluation.save(folder)
        if gamma and evaluation.gamma is None and items.benchmark.protocol != "wikitext":
            evaluation = measure_gamma(loaded, evaluation, gamma, batch_size)
            save_gamma(evaluation.gamma, folder, name)
        yield evaluation
    report("benchmarks", len(benchmarks), len(benchmarks), "benchmark")


def evaluation_key(loaded: LoadedModel, items: Items) -> str:
    """The name of an evaluation: a hash of everything that its scores depend on."""
    model, adapter = loaded.provenance["model"], loaded.provenance["adapter"]
    tokenizer = loaded.tokenizer
    content = {
        "model": [model["sha256"], model["dtype"]],
        "adapter": adapter and adapter["sha256"],
        "tokenizer": tokenizer and hashlib.sha256(_tokenizer_text(tokenizer).encode()).hexdigest(),
        "benchmark": items.benchmark.name,
        "items": items.provenance["sha256"],
        "protocol": [PROTOCOL, WINDOW, importlib.metadata.version("lm_eval")],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def _tokenizer_text(tokenizer) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return (backend.to_str() if backend else json.dumps(tokenizer.get_vocab(), sort_keys=True)) + str(
        tokenizer.special_tokens_map
    )
