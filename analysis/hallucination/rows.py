"""Checking one row of each benchmark: the fields that its protocol needs, of the right type, the known traps undone.

Each check takes the row as read and returns the fields that the task uses. Text is kept as it is, blanks at its ends
included, because the protocols use it so (../shared/data/README.md lists where it matters).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def text(row: Row, field: str) -> str:
    """A field that must hold text."""
    value = _present(row, field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the field {field!r} must be text that is not empty, and is {_shown(value)}")
    return value


def _present(row: Row, field: str) -> Any:
    if field not in row:
        raise ValueError(f"the field {field!r} is missing (it has {', '.join(map(str, row)) or 'none'})")
    return row[field]


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _texts(value: Any, field: str, at_least: int) -> list[str]:
    if not isinstance(value, list) or len(value) < at_least or not all(isinstance(item, str) and item.strip() for item in value):
        raise ValueError(f"the field {field!r} must be a list of at least {at_least} texts, and is {_shown(value)}")
    return value


def _index(row: Row, field: str, length: int) -> int:
    value = _present(row, field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < length:
        raise ValueError(f"the field {field!r} must be a whole number from 0 to {length - 1}, and is {_shown(value)}")
    return value


def _judged(*fields: str) -> Callable[[Row], dict[str, Any]]:
    """HaluEval: `fields`, the last of them judged, and `hallucination`.

    A row of the authors' own files holds both texts (`right_answer` and `hallucinated_answer`) and no label; it comes back
    with `pair`, and data.py draws by the seed which of the two is shown.
    """
    *context, judged = fields

    def check(row: Row) -> dict[str, Any]:
        kept = {field: text(row, field) for field in context}
        if "hallucination" not in row and f"right_{judged}" in row:
            return {**kept, "pair": [text(row, f"right_{judged}"), text(row, f"hallucinated_{judged}")]}
        label = text(row, "hallucination").strip().lower()
        if label not in ("yes", "no"):
            raise ValueError(f"the field 'hallucination' must be yes or no, and is {_shown(row['hallucination'])}")
        return {**kept, judged: text(row, judged), "hallucination": label}

    return check


def _truthfulqa(row: Row) -> dict[str, Any]:
    kept: dict[str, Any] = {"question": text(row, "question")}
    for field in ("mc1_targets", "mc2_targets"):
        targets = _present(row, field)
        if not isinstance(targets, Mapping):
            raise ValueError(f"the field {field!r} must hold choices and labels, and is {_shown(targets)}")
        choices = _texts(_present(targets, "choices"), f"{field}.choices", 2)
        labels = _present(targets, "labels")
        if not isinstance(labels, list) or len(labels) != len(choices) or not set(labels) <= {0, 1}:
            raise ValueError(f"the field '{field}.labels' must hold one 0 or 1 for each of the {len(choices)} choices")
        if not 0 < sum(labels) < len(labels):
            raise ValueError(f"the field '{field}.labels' needs a right (1) and a wrong (0) choice, and is {_shown(labels)}")
        kept[field] = {"choices": choices, "labels": labels}
    if sum(kept["mc1_targets"]["labels"]) != 1:
        raise ValueError("the field 'mc1_targets.labels' must mark exactly one choice as right")
    return kept


def _memo_trap(row: Row) -> dict[str, Any]:
    """Classes that start with one space after a prompt that ends in a word, as the protocol (v2) joins them."""
    prompt = text(row, "prompt")
    classes = _present(row, "classes")
    if isinstance(classes, str):  # upstream stores the list as the text of a Python list
        try:
            classes = ast.literal_eval(classes)
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"the field 'classes' is text that is no list: {_shown(classes)}") from error
    classes = _texts(classes, "classes", 2)
    answer = _index(row, "answer_index", len(classes))
    space = "" if prompt[-1].isspace() else " "
    spaced = [space + choice.lstrip(" ") for choice in classes]
    return {"prompt": prompt, "classes": spaced, "answer_index": answer}


def _mmlu(row: Row) -> dict[str, Any]:
    choices = _texts(_present(row, "choices"), "choices", 4)
    if len(choices) != 4:
        raise ValueError(f"the field 'choices' must hold four texts, and holds {len(choices)}")
    return {
        "question": text(row, "question"),
        "subject": text(row, "subject"),
        "choices": choices,
        "answer": _index(row, "answer", 4),
    }


def _nq(row: Row) -> dict[str, Any]:
    return {"question": text(row, "question"), "answer": _texts(_present(row, "answer"), "answer", 1)}


def _popqa(row: Row) -> dict[str, Any]:
    answers = _present(row, "possible_answers")
    if isinstance(answers, str):  # the hub stores the list as JSON text
        try:
            answers = json.loads(answers)
        except ValueError as error:
            raise ValueError(f"the field 'possible_answers' is text that is no JSON list: {_shown(answers)}") from error
    return {"question": text(row, "question").rstrip("?"), "answer": _texts(answers, "possible_answers", 1)}


def _winogrande(row: Row) -> dict[str, Any]:
    sentence = text(row, "sentence")
    if sentence.count("_") != 1:
        raise ValueError(f"the field 'sentence' must hold exactly one '_', and is {_shown(sentence)}")
    if str(_present(row, "answer")) not in ("1", "2"):
        raise ValueError(f'the field \'answer\' must be "1" or "2", and is {_shown(row["answer"])}')
    return {
        "sentence": sentence,
        "option1": text(row, "option1"),
        "option2": text(row, "option2"),
        "answer": str(row["answer"]),
    }


CHECKS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "halueval_qa": _judged("knowledge", "question", "answer"),
    "halueval_dialogue": _judged("knowledge", "dialogue_history", "response"),
    "halueval_summarization": _judged("document", "summary"),
    "truthfulqa_mc": _truthfulqa,
    "memo_trap": _memo_trap,
    "mmlu": _mmlu,
    "nq": _nq,
    "popqa": _popqa,
    "winogrande": _winogrande,
    "wikitext": lambda row: {"page": text(row, "page")},
}
