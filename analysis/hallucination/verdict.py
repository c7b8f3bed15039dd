"""Reading a yes/no verdict out of a model's free text."""

from __future__ import annotations

import re

_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?\n]+")
_CLAUSE_END = re.compile(r"[,;:]|\s[-–—]+\s|—")


def parse_verdict(text: str) -> str | None:
    """The first verdict of an answer: "yes", "no", or None when it holds none or contradicts itself.

    Only whole words count, in any case: "Not sure" and "Nothing suggests so" hold no verdict. What stands inside
    <think>...</think> is skipped; a thinking block that never ends holds the whole answer. The first sentence that holds a
    verdict decides, and in it the first clause: "Yes, there is no proof" is a yes, but "Yes and No" and "Yes, No" are None.
    """
    answer = text.rsplit("</think>", 1)[-1]
    if "<think>" in answer:
        return None
    for sentence in _SENTENCE_END.split(answer):
        clauses = [clause for clause in _CLAUSE_END.split(sentence) if _WORD.search(clause)]
        if clauses:
            bare = {clause.strip().lower() for clause in clauses} & {"yes", "no"}
            said = {word.lower() for word in _WORD.findall(clauses[0])} | bare
            return said.pop() if len(said) == 1 else None
    return None
