"""The score table: one line a score (and checkpoint), the paper's Table 1 beside it; as CSV and as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.hallucination.evaluation import TaskScore
from analysis.hallucination.prediction import Checkpoint, changes
from analysis.hallucination.statistics import Change
from analysis.latex import escape

# score -> (CE LoRA, GAME-LoRA) on Qwen2.5-0.5B (method.md section 7) [R]
PAPER_TABLE = {
    "halueval_dialogue": (0.458, 0.491),
    "halueval_qa": (0.376, 0.445),
    "halueval_summarization": (0.438, 0.500),
    "memo_trap": (0.642, 0.650),
    "truthfulqa_mc1": (0.252, 0.263),
    "truthfulqa_mc2": (0.401, 0.412),
    "mmlu": (0.477, 0.469),
    "nq": (0.066, 0.067),
    "popqa": (0.111, 0.112),
    "winogrande": (0.573, 0.565),
    "wikitext": (0.784, 0.786),
}
PAPER_COLUMNS = ("paper: CE LoRA", "paper: GAME-LoRA")
_FIELDS = ("value", "standard_error", "n", "invalid", "unparsed", "length_only")


def score_table(checkpoints: Sequence[Checkpoint]) -> pd.DataFrame:
    """All scores of the checkpoints, a line each: score, kind, title, then for each checkpoint value, error, n, invalid,
    unparsed and length_only, and the paper's two columns (NaN where the paper has none).
    """
    lines: dict[str, dict] = {}
    for point in checkpoints:
        for evaluation in point.evaluations.values():
            for score in evaluation.scores():
                line = lines.setdefault(score.name, {"score": score.name, "kind": score.kind, "title": score.title})
                for field in _FIELDS:
                    line[f"{point.name}: {field}"] = getattr(score, field)
    for name, line in lines.items():
        line.update(zip(PAPER_COLUMNS, PAPER_TABLE.get(name, (math.nan, math.nan)), strict=True))
    return pd.DataFrame(list(lines.values())).sort_values(["kind", "score"], ignore_index=True)


def score_lines(checkpoints: Sequence[Checkpoint], baseline: Checkpoint | None) -> pd.DataFrame:
    """A line a score and checkpoint: score, kind, title, checkpoint, value, standard_error, n, invalid, unparsed,
    length_only, noted (items that were truncated, merged or too long), the relative change against the baseline with its
    95 % paired bootstrap interval (change, low, high; NaN for the baseline itself, where it is 0, and without a baseline),
    and the paper's two columns.

    Raises
    ------
    ValueError
        When a checkpoint and the baseline were scored on different items.
    """
    unknown = Change(math.nan, math.nan, math.nan, 0)
    lines = []
    for point in checkpoints:
        found = {} if baseline is None or point is baseline else changes(point, baseline)
        changed = {name: change for kind in found.values() for name, change in kind.tasks.items()}
        for score in [score for evaluation in point.evaluations.values() for score in evaluation.scores()]:
            change = changed.get(score.name, unknown)
            line = {"score": score.name, "kind": score.kind, "title": score.title, "checkpoint": point.name}
            line |= {field: getattr(score, field) for field in _FIELDS}
            line |= {"noted": _noted(score), "change": change.value, "low": change.low, "high": change.high}
            lines.append(line | dict(zip(PAPER_COLUMNS, PAPER_TABLE.get(score.name, (math.nan, math.nan)), strict=True)))
    return pd.DataFrame(lines).sort_values(["kind", "score"], kind="stable", ignore_index=True)


def _noted(score: TaskScore) -> str:
    """How many items were not scored as they stand, and why; "" when none."""
    counts = {"truncated": score.truncated, "merged with the prompt": score.merged, "too long": score.too_long}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def mean_changes(checkpoints: Sequence[Checkpoint], baseline: Checkpoint) -> pd.DataFrame:
    """A line a checkpoint but the baseline: mean relative change over hallucination and over knowledge scores with its 95 %
    paired bootstrap interval (hallucination, hallucination_low, hallucination_high, and the same for knowledge), and the
    scores `left_out` of it because the baseline has 0 or no item that both could score.

    Raises
    ------
    ValueError
        When a checkpoint and the baseline were scored on different items.
    """
    lines = []
    for point in checkpoints:
        if point is not baseline:
            line: dict = {"checkpoint": point.name, "left_out": []}
            for kind, change in changes(point, baseline).items():
                line |= {kind: change.mean.value, f"{kind}_low": change.mean.low, f"{kind}_high": change.mean.high}
                line["left_out"] = [*line["left_out"], *change.left_out]
            lines.append(line)
    return pd.DataFrame(lines)


def latex_table(checkpoints: Sequence[Checkpoint]) -> str:
    """The table for a paper (booktabs): value and standard error of each checkpoint, the paper's own values last."""
    scores: dict[str, dict[str, TaskScore]] = {}
    for point in checkpoints:
        for evaluation in point.evaluations.values():
            for score in evaluation.scores():
                scores.setdefault(score.name, {})[point.name] = score
    head = ["Task", *(escape(point.name) for point in checkpoints), *map(escape, PAPER_COLUMNS)]
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
    for name, found in sorted(scores.items(), key=lambda item: (next(iter(item[1].values())).kind, item[0])):
        some = next(iter(found.values()))
        title = escape(some.title) + ("" if some.higher_is_better else r" BPB $\downarrow$")
        cells = [_latex_score(found.get(point.name)) for point in checkpoints]
        paper = [f"{value:.3f}" for value in PAPER_TABLE.get(name, ())] or ["--", "--"]
        lines.append(" & ".join([title, *cells, *paper]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_score(score: TaskScore | None) -> str:
    if score is None or math.isnan(score.value):
        return "--"
    return f"{score.value:.3f}" if math.isnan(score.standard_error) else rf"{score.value:.3f} $\pm$ {score.standard_error:.3f}"
