"""The benchmarks by name: where their rows come from, what they measure, and which part of a row the length baseline reads.

Protocols are in tasks.py, the checks of the rows in rows.py. `builtin_*` is the project's own suite: facts in our own words,
balanced, with lengths matched, so that everything runs without a network; its scores compare with no published ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUILTIN_FOLDER = Path(__file__).parent / "builtin"
SEED = 42  # draws the items [R]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes
    ----------
    name : what the command line calls it.
    title : what people call it.
    kind : "hallucination" or "knowledge".
    protocol : key of the protocol in tasks.py and of the row check in rows.py.
    file : its rows, relative to a data folder (or to the built-in one); `.gz` may follow.
    hub : (dataset, config, split) on the Hugging Face hub, None for the built-in suite.
    shots_file, shots_split : rows that become few-shot examples, if the protocol wants any.
    subset : field that names the benchmark's own subset, a covariate of the per-item analysis.
    judged : field with the text that a judge reads, for the length-only baseline.
    higher_is_better : False for bits per byte.
    """

    name: str
    title: str
    kind: str
    protocol: str
    file: str
    hub: tuple[str, str | None, str] | None = None
    shots_file: str | None = None
    shots_split: str | None = None
    subset: str | None = None
    judged: str | None = None
    higher_is_better: bool = True

    @property
    def builtin(self) -> bool:
        """Whether the rows come with the program."""
        return self.hub is None


def _halueval(part: str, title: str, judged: str) -> Benchmark:
    return Benchmark(
        name=f"halueval_{part}",
        title=f"HaluEval {title}",
        kind="hallucination",
        protocol=f"halueval_{part}",
        file=f"halueval/{part}_samples.jsonl",
        hub=("pminervini/HaluEval", f"{part}_samples", "data"),
        subset="hallucination",
        judged=judged,
    )


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _halueval("dialogue", "dialogue", "response"),
        _halueval("qa", "QA", "answer"),
        _halueval("summarization", "summarization", "summary"),
        Benchmark(
            "truthfulqa_mc",
            "TruthfulQA",
            "hallucination",
            "truthfulqa_mc",
            "truthfulqa_mc.jsonl",
            ("truthfulqa/truthful_qa", "multiple_choice", "validation"),
        ),
        Benchmark(
            "memo_trap",
            "MemoTrap",
            "hallucination",
            "memo_trap",
            "memo_trap.jsonl",
            ("pminervini/inverse-scaling", "memo-trap", "data"),
            subset="part",
        ),
        Benchmark(
            "mmlu",
            "MMLU",
            "knowledge",
            "mmlu",
            "mmlu_test_sample.jsonl",
            ("cais/mmlu", "all", "test"),
            shots_file="mmlu_dev.jsonl",
            shots_split="dev",
            subset="subject",
        ),
        Benchmark(
            "nq",
            "Natural Questions",
            "knowledge",
            "nq",
            "nq_open_validation.jsonl",
            ("google-research-datasets/nq_open", None, "validation"),
        ),
        Benchmark("popqa", "PopQA", "knowledge", "popqa", "popqa_sample.jsonl", ("akariasai/PopQA", None, "test")),
        Benchmark(
            "winogrande",
            "WinoGrande",
            "knowledge",
            "winogrande",
            "winogrande_validation.jsonl",
            ("allenai/winogrande", "winogrande_xl", "validation"),
        ),
        Benchmark(
            "wikitext",
            "WikiText",
            "knowledge",
            "wikitext",
            "text/wikitext2_raw_test.jsonl",
            ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
            higher_is_better=False,
        ),
        Benchmark(
            "builtin_qa",
            "built-in judged QA",
            "hallucination",
            "halueval_qa",
            "judged_qa.jsonl",
            subset="hallucination",
            judged="answer",
        ),
        Benchmark(
            "builtin_mc", "built-in multiple choice", "hallucination", "truthfulqa_mc", "multiple_choice.jsonl", subset="topic"
        ),
        Benchmark(
            "builtin_traps",
            "built-in memorization traps",
            "hallucination",
            "memo_trap",
            "memorization_traps.jsonl",
            subset="topic",
        ),
    )
}

SUITES = {
    "builtin": ("builtin_qa", "builtin_mc", "builtin_traps"),
    "hallucination": ("halueval_dialogue", "halueval_qa", "halueval_summarization", "truthfulqa_mc", "memo_trap"),
    "knowledge": ("mmlu", "nq", "popqa", "winogrande", "wikitext"),
}


def named(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks that `names` lists, suites taken apart, each once, in order.

    Raises
    ------
    ValueError
        When a name is neither a benchmark nor a suite, or there is none.
    """
    single = [part for name in names for part in SUITES.get(name.strip(), (name.strip(),)) if part]
    unknown = [name for name in single if name not in BENCHMARKS]
    if unknown or not single:
        said = f"there is no benchmark {', '.join(map(repr, unknown))}" if unknown else "no benchmark was given"
        raise ValueError(f"{said}. Benchmarks: {', '.join(BENCHMARKS)}; suites: {', '.join(SUITES)}.")
    return [BENCHMARKS[name] for name in dict.fromkeys(single)]
