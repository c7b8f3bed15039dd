"""Evaluations as they lie in a workspace, made of numbers alone: what the hallucination page is tested on, with no model."""

import numpy as np
import pandas as pd

from analysis.hallucination.benchmarks import BENCHMARKS, SUITES, Benchmark
from analysis.hallucination.evaluation import FOLDER, Evaluation
from analysis.hallucination.item_gamma import ItemGamma
from analysis.workspace import workspace_dir

HEADS, LAYERS, ITEMS = 4, 12, 200
SCORES = {"truthfulqa_mc": ("truthfulqa_mc1", "truthfulqa_mc2"), "builtin_mc": ("builtin_mc1", "builtin_mc2")}
EVERY = (*SUITES["hallucination"], "mmlu")


def evaluated_checkpoint(
    number: int,
    adapter: str | None = None,
    benchmarks=EVERY,
    couplings=("paper", "invariant"),
    items: int = ITEMS,
    always: float | None = None,
    **model,
) -> None:
    """Store the evaluations of a made-up checkpoint; a later `number` has more coupling and makes more errors.

    Gamma of an item's layer 5 goes with its errors. `always` is the value of every item (NaN: a model that is not finite, which
    has no Gamma either); `model` replaces fields of the provenance.
    """
    for place, name in enumerate(benchmarks):
        folder = workspace_dir(FOLDER, f"{number:02d}-{name}")
        for coupling in couplings or (None,):
            evaluation = _evaluation(BENCHMARKS[name], place, number, adapter, coupling, items, model)
            if always is not None:
                evaluation.records["value"] = always
                if np.isnan(always):
                    evaluation.gamma.gamma[:], evaluation.gamma.gradient_sums[:] = np.nan, 0
            evaluation.save(folder)


def _evaluation(
    benchmark: Benchmark, place: int, number: int, adapter: str | None, coupling: str | None, items: int, model: dict
) -> Evaluation:
    generator = np.random.default_rng([place, 7])  # the same items for every checkpoint
    own = np.random.default_rng([place, number])
    hardness, gamma = generator.normal(size=items), own.normal(2, 0.3, size=(items, LAYERS))
    answers = ["Yes", "No"] if benchmark.judged else ["Paris", "Rome", "It is Lyon"]
    records = []
    for score in SCORES.get(benchmark.name, (benchmark.name,)):
        odds = 0.3 * place - 0.6 + hardness + 3 * (gamma[:, 5] - 2) + 0.12 * number
        error = own.random(items) < 1 / (1 + np.exp(-odds))
        right = np.where(np.arange(items) % 2, answers[0], answers[1])
        records.append(
            pd.DataFrame(
                {
                    "score_name": score,
                    "row": np.arange(items) + 1,
                    "subset": np.where(np.arange(items) % 2, "yes", "no"),
                    "prompt_hash": [f"{row:064x}" for row in range(items)],
                    "prompt": [f"Question {row + 1}: which of the two cities is the capital?\nAnswer:" for row in range(items)],
                    "continuation": [f" {answer}" for answer in right],
                    "choices": [answers] * items,
                    "right": [[answer] for answer in right],
                    "prediction": np.where(error, answers[-1], right),
                    "log_likelihoods": [[-1.0, -2.0]] * items,
                    "value": 1.0 - error,
                    "weight": 1.0,
                    "unparsed": (own.random(items) < 0.05) if benchmark.judged else False,
                    "judged_length": generator.integers(5, 60, items) if benchmark.judged else 0,
                    "notes": "",
                }
            )
        )
    return Evaluation(
        benchmark,
        pd.concat(records, ignore_index=True),
        coupling and _gamma(coupling, gamma, 0.3 + 0.05 * number, own),
        {
            "model": {
                "source": "default",
                "name": "SmolLM2-135M-Instruct",
                "kind": "default",
                "revision": None,
                "sha256": "0" * 64,
                "dtype": "float32",
                "n_layers": LAYERS,
                **model,
            },
            "adapter": adapter and {"source": adapter, "sha256": f"{number:064x}"},
            "items": {"source": f"builtin:{benchmark.file}", "shots": None, "rows": items, "scored": items, "seed": 42}
            | {"sha256": f"{place:064x}"},
        },
    )


def _gamma(coupling: str, gamma: np.ndarray, strength: float, generator: np.random.Generator) -> ItemGamma:
    items, layers = gamma.shape
    grams = np.stack([strength * np.ones((HEADS, HEADS)) + (1 - strength) * np.eye(HEADS)] * layers)
    return ItemGamma(
        coupling=coupling,
        layers=np.arange(layers),
        gamma=gamma,
        null_gamma=generator.normal(2, 0.3, size=(6, items, layers)).astype(np.float32),
        tokens=generator.integers(20, 60, items),
        cross_entropy=generator.normal(3, 0.3, items),
        gradient_sums=grams,
        weight_grams=grams,
    )
