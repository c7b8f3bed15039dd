"""The protocol of each benchmark as lm-evaluation-harness tasks over rows that were read already.

TruthfulQA, WinoGrande, WikiText, MMLU and NQ are the harness's own task files with our rows in place of its download, so
their scores are its scores. HaluEval, MemoTrap and PopQA are not in the harness; their protocols, in our words:

- HaluEval and the built-in judged QA: the model is shown the knowledge, the question and one answer, and must say Yes
  (hallucinated) or No; greedy until a newline or full stop. Yes is the positive class. An answer without a clear verdict
  counts as wrong and is counted (verdict.py).
- MemoTrap (v2) and the built-in traps: log-likelihood of prompt + class, one space between, no normalization.
- PopQA: as NQ, zero-shot, exact match with any of the answers.
- MMLU: five examples of the same subject, then the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import numpy as np
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
from scipy.special import softmax

from analysis.hallucination.data import Items
from analysis.hallucination.verdict import parse_verdict

PROTOCOL = 1  # a change of any protocol makes it greater, so that no stored score passes for a new one
SHOTS = 5  # MMLU examples
_ANSWER_TOKENS = 32  # no verdict or short answer needs more
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split", "dataset_path", "dataset_name", "tag")
_ACCURACY = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]

_JUDGED = {
    "halueval_qa": (
        "You judge answers. From the knowledge, the question and the answer below, decide whether the answer holds made-up or "
        'false information. Reply with "Yes" if it does and with "No" if it does not.',
        {"Knowledge": "knowledge", "Question": "question", "Answer": "answer"},
    ),
    "halueval_dialogue": (
        "You judge replies in a conversation. From the knowledge, the conversation so far and the reply below, decide whether "
        'the reply holds made-up or false information. Reply with "Yes" if it does and with "No" if it does not.',
        {"Knowledge": "knowledge", "Dialogue History": "dialogue_history", "Response": "response"},
    ),
    "halueval_summarization": (
        "You judge summaries. From the document and the summary below, decide whether the summary holds made-up or false "
        'information. Reply with "Yes" if it does and with "No" if it does not.',
        {"Document": "document", "Summary": "summary"},
    ),
}


def harness_tasks(items: Items) -> dict[str, ConfigurableTask]:
    """The harness tasks that score a benchmark, by the name of their score.

    One each, but two for a truthful multiple choice: `..._mc1` (the right choice is the likeliest) and `..._mc2`
    (probability of all true choices among all choices).
    """
    name, protocol = items.benchmark.name, items.benchmark.protocol
    configs = {name: _CONFIGS[protocol](items)} if protocol != "truthfulqa_mc" else _truthful_configs(name)
    rows = datasets.Dataset.from_list(items.rows)
    return {
        score: ConfigurableTask(
            config={
                "num_fewshot": 0,
                "metadata": {"version": PROTOCOL},
                **config,
                "task": score,
                "custom_dataset": lambda **_: {"test": rows},
                "test_split": "test",
            }
        )
        for score, config in configs.items()
    }


@cache
def _stock(file: str) -> Mapping[str, Any]:
    """A task file of the harness without its download."""
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / file, resolve_func=True)
    return {key: value for key, value in config.items() if key not in _SPLITS}


def judge_prompt(protocol: str, row: Mapping[str, Any]) -> str:
    """What a judge reads: the instruction, then the marked fields of the row, unstripped."""
    instruction, fields = _JUDGED[protocol]
    marked = "".join(f"\n#{mark}#: {row[field]}" for mark, field in fields.items())
    return f"{instruction}\n{marked}\n#Your Judgement#:"


def _judged_config(items: Items) -> dict[str, Any]:
    protocol = items.benchmark.protocol
    return {
        "output_type": "generate_until",
        "doc_to_text": lambda row: judge_prompt(protocol, row),
        "doc_to_target": lambda row: row["hallucination"].capitalize(),
        "generation_kwargs": {"until": ["\n", "."], "do_sample": False, "max_gen_toks": _ANSWER_TOKENS},
        "process_results": lambda row, results: {"acc": float(parse_verdict(results[0]) == row["hallucination"])},
        "metric_list": _ACCURACY,
    }


def _truthful_configs(name: str) -> dict[str, dict[str, Any]]:
    stem = name.removesuffix("_mc")
    return {
        f"{stem}_mc1": {
            **_stock("truthfulqa/truthfulqa_mc1.yaml"),
            "doc_to_target": lambda row: row["mc1_targets"]["labels"].index(1),
            "doc_to_choice": lambda row: row["mc1_targets"]["choices"],
        },
        f"{stem}_mc2": {
            **_stock("truthfulqa/truthfulqa_mc1.yaml"),
            "doc_to_target": lambda row: row["mc2_targets"]["labels"].index(1),
            "doc_to_choice": lambda row: row["mc2_targets"]["choices"],
            "process_results": truthful_mass,
        },
    }


def truthful_mass(row: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """MC2: probability of the true choices among all; through a softmax, which log-likelihoods of any size leave finite."""
    true = np.array(row["mc2_targets"]["labels"]) == 1
    return {"acc": float(softmax([log_likelihood for log_likelihood, _ in results])[true].sum())}


def _memo_trap_config(_: Items) -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": lambda row: row["prompt"],
        "doc_to_choice": lambda row: row["classes"],
        "doc_to_target": lambda row: row["answer_index"],
        "target_delimiter": "",
        "metric_list": _ACCURACY,
    }


def _mmlu_config(items: Items) -> dict[str, Any]:
    stock = _stock("mmlu/default/_default_template_yaml")
    examples: dict[str, list[str]] = {}
    for shot in items.shots:
        examples.setdefault(shot["subject"], []).append(f"{_mmlu_question(shot)} {'ABCD'[shot['answer']]}\n\n")

    def prompt(row: Mapping[str, Any]) -> str:
        subject = row["subject"].replace("_", " ")
        shown = "".join(examples.get(row["subject"], [])[:SHOTS])
        return f"The following are multiple choice questions (with answers) about {subject}.\n\n{shown}{_mmlu_question(row)}"

    return {**stock, "doc_to_text": prompt, "doc_to_target": lambda row: row["answer"]}


def _mmlu_question(row: Mapping[str, Any]) -> str:
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
    return f"{row['question'].strip()}\n{choices}\nAnswer:"


def _open_answer_config(_: Items) -> dict[str, Any]:
    stock = _stock("nq_open/nq_open.yaml")
    generation = {**stock["generation_kwargs"], "max_gen_toks": _ANSWER_TOKENS}
    return {**stock, "doc_to_target": lambda row: row["answer"], "generation_kwargs": generation}


_CONFIGS: dict[str, Callable[[Items], dict[str, Any]]] = {
    **dict.fromkeys(_JUDGED, _judged_config),
    "memo_trap": _memo_trap_config,
    "mmlu": _mmlu_config,
    "nq": _open_answer_config,
    "popqa": _open_answer_config,
    "winogrande": lambda _: dict(_stock("winogrande/default.yaml")),
    "wikitext": lambda _: dict(_stock("wikitext/wikitext.yaml")),
}
