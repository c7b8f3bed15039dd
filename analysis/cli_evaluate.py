"""`python -m analysis evaluate` and `python -m analysis predict`: benchmarks, and Gamma against their errors."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.cli_interaction import add_model_options
from analysis.hallucination.benchmarks import BENCHMARKS, SUITES, named
from analysis.hallucination.data import SAMPLES, SEED, load_items
from analysis.hallucination.evaluation import TaskScore
from analysis.interaction import COUPLINGS
from analysis.models import load_model
from analysis.progress import report

_TASKS = f"comma-separated; suites: {', '.join(SUITES)}; benchmarks: {', '.join(BENCHMARKS)}"


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Register `evaluate` and `predict`."""
    command = commands.add_parser("evaluate", help="score a checkpoint on hallucination and knowledge benchmarks")
    add_model_options(command)
    command.add_argument("--tasks", default="builtin", metavar="NAME,...", help=_TASKS)
    command.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with local rows; the workspace's (data), then the hub, otherwise"
    )
    command.add_argument("--limit", type=int, metavar="N", help=f"items a benchmark, at most; {SAMPLES} otherwise")
    command.add_argument("--seed", type=int, default=SEED, help="draws the items")
    command.add_argument("--batch-size", type=int, default=16, help="bounds memory, does not change scores")
    command.add_argument("--per-item-gamma", action="store_true", help="measure Gamma of each item's own gradient too")
    command.add_argument("--coupling", choices=COUPLINGS, default="paper", help="of the per-item Gamma")
    command.add_argument("--out", type=Path, metavar="DIR", help="one folder a checkpoint, beside what the workspace keeps")
    command.set_defaults(func=run_evaluate)

    command = commands.add_parser("predict", help="does Gamma predict errors, item by item and across checkpoints?")
    command.add_argument("--results", nargs="+", required=True, metavar="DIR", help="folders of `evaluate`, the baseline first")
    command.add_argument("--coupling", choices=COUPLINGS, help="which per-item Gamma, when both were measured")
    command.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    command.set_defaults(func=run_predict)


def run_evaluate(options: argparse.Namespace) -> None:
    """Read all rows, then load the model, then score; what the workspace already holds is not scored again."""
    items = [load_items(benchmark, options.data, options.limit, options.seed) for benchmark in named(options.tasks.split(","))]
    if options.batch_size < 1:
        raise ValueError(f"--batch-size {options.batch_size} must be at least 1.")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    from analysis.hallucination.store import evaluations  # lm_eval takes seconds to import: after the input was checked

    report("loading the model")
    loaded = load_model(
        options.model,
        revision=options.revision,
        adapter=options.adapter,
        dtype=options.dtype,
        device=options.device,
        tokenizer=options.tokenizer,
    )
    for evaluation in evaluations(loaded, items, options.batch_size, options.coupling if options.per_item_gamma else None):
        if options.out:
            evaluation.save(options.out)
        for score in evaluation.scores():
            print(f"{score.title}: {_in_words(score)}", flush=True)


def _in_words(score: TaskScore) -> str:
    """A score with its error and what must stand beside it."""
    if score.n == 0:
        return f"no score, none of {score.invalid} items could be scored (not finite, or too long for the model's window)"
    notes = [f"{score.invalid} not scored"] * (score.invalid > 0)
    if score.unparsed is not None:
        notes.append(f"{score.unparsed:.0%} without a verdict, length alone scores {score.length_only:.3f}")
    said = f" ({'; '.join(notes)})" if notes else ""
    return f"{score.value:.3f} +- {score.standard_error:.3f}, n = {score.n}{said}"


def run_predict(options: argparse.Namespace) -> None:
    """Analyse stored evaluations and write the record."""
    from analysis.hallucination.prediction import load_checkpoints, predict
    from analysis.records import write_record

    record = predict(load_checkpoints(options.results, options.coupling))
    write_record(options.out, "prediction", record)
    for name, scores in record["per_item"].items():
        for score, found in scores.items():
            print(f"{name}, {score}: {found.get('refused') or found.get('pooled', found)['words']}")
    across = record["across_checkpoints"]
    print(f"across checkpoints: {across.get('refused') or across['words']}")
