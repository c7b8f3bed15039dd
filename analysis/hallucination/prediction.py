"""Does Gamma predict hallucination? From stored evaluations of checkpoints to the answer by item and across checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.hallucination.checkpoints import AcrossCheckpoints, across_checkpoints
from analysis.hallucination.evaluation import Evaluation, TaskScore, stored_evaluations
from analysis.hallucination.item_gamma import checkpoint_gamma
from analysis.hallucination.per_item import Association, ItemAnalysis, association, item_analysis
from analysis.hallucination.statistics import PairedItems, RelativeChange, relative_change

_WRONG_BELOW = 0.5  # of the truthful mass; an accuracy is 0 or 1


@dataclass(frozen=True)
class Checkpoint:
    """The evaluations of one checkpoint.

    Attributes
    ----------
    name : what it is called.
    evaluations : benchmark name -> evaluation.
    """

    name: str
    evaluations: dict[str, Evaluation]

    def gamma(self, benchmarks: Sequence[str]) -> np.ndarray:
        """Gamma by layer over all items of these benchmarks, [layers]."""
        return checkpoint_gamma([self.evaluations[name].gamma for name in benchmarks])


@dataclass(frozen=True)
class Points:
    """One point a checkpoint and score, for the fit across checkpoints.

    Attributes
    ----------
    layers : true layer indices that Gamma was measured at.
    gamma : checkpoint -> Gamma over all items of the benchmarks together.
    rates, errors : score -> checkpoint -> hallucination rate, and its standard error.
    titles : score -> what people call it.
    n : score -> checkpoint -> scored items.
    """

    layers: list[int]
    gamma: dict[str, float]
    rates: dict[str, dict[str, float]]
    errors: dict[str, dict[str, float]]
    titles: dict[str, str]
    n: dict[str, dict[str, int]]


def load_checkpoints(folders: Sequence[str | Path], coupling: str | None = None) -> list[Checkpoint]:
    """One checkpoint a folder of evaluations, named after the folder (its whole path when two have the same name).

    Raises
    ------
    ValueError
        When a folder holds no evaluation, evaluations of different checkpoints, or a damaged file.
    """
    paths = [Path(folder) for folder in folders]
    names = [path.resolve().name for path in paths]
    checkpoints = []
    for path, name in zip(paths, names, strict=True):
        found, notices = stored_evaluations(path)
        if notices:
            raise ValueError(notices[0])
        if not found:
            raise ValueError(f"{path} holds no evaluation: write one with `python -m analysis evaluate --out {path} ...`.")
        models = {(stored.provenance["model"]["sha256"], (stored.provenance["adapter"] or {}).get("sha256")) for stored in found}
        if len(models) > 1:
            raise ValueError(f"{path} holds evaluations of {len(models)} checkpoints: give each checkpoint a folder of its own.")
        evaluations = {stored.name: Evaluation.load(stored.folder, stored.name, coupling) for stored in found}
        checkpoints.append(Checkpoint(str(path) if names.count(name) > 1 else name, evaluations))
    return checkpoints


def wrong(values: Sequence[float]) -> np.ndarray:
    """Which items count as errors: wrong answers, or less than half of the mass on true choices."""
    return np.asarray(values) < _WRONG_BELOW


def analyse_items(evaluation: Evaluation, score_name: str, with_null: bool = True) -> ItemAnalysis:
    """Logistic regression of one score's errors on Gamma of the items (method.md section 6), items without a score left out.

    Raises
    ------
    ValueError
        When Gamma of the items was not measured, or no item, or every item, is wrong.
    """
    gamma = _measured(evaluation)
    items = evaluation.items(score_name)
    scored = np.isfinite(items["value"].to_numpy())
    return item_analysis(
        wrong(items["value"][scored]),
        gamma.gamma[scored],
        gamma.covariates[scored],
        items["subset"][scored],
        gamma.layers.tolist(),
        gamma.null_gamma[:, scored].astype(np.float64) if with_null else None,
    )


def _measured(evaluation: Evaluation):
    if evaluation.gamma is None:
        raise ValueError(
            f"Gamma of the {evaluation.benchmark.title} items was not measured: evaluate again with --per-item-gamma "
            "(the scores are kept, only Gamma is added)."
        )
    return evaluation.gamma


def pool_benchmarks(evaluations: Sequence[Evaluation]) -> Association:
    """One regression over the items of several benchmarks, on Gamma averaged over layers.

    Gamma and covariates are standardized inside each benchmark and each subset has its own intercept, so that only
    differences inside benchmarks count. Each item once: of truthful multiple choice, MC1.
    """
    parts = []
    for evaluation in evaluations:
        gamma, items = _measured(evaluation), evaluation.items(evaluation.score_names[0])
        kept = np.isfinite(items["value"].to_numpy()) & np.isfinite(gamma.gamma).all(axis=1)
        numbers = np.column_stack([gamma.gamma.mean(axis=1), gamma.covariates])[kept]
        spread = numbers.std(axis=0)
        numbers = (numbers - numbers.mean(axis=0)) / np.where(spread > 0, spread, 1)
        subset = [f"{evaluation.benchmark.name}/{value}" for value in items["subset"][kept]]
        parts.append((wrong(items["value"][kept]), numbers, subset))
    numbers = np.concatenate([part[1] for part in parts])
    subsets = [name for part in parts for name in part[2]]
    return association(np.concatenate([part[0] for part in parts]), numbers[:, 0], numbers[:, 1:], subsets)


def checkpoint_points(checkpoints: Sequence[Checkpoint], layer: int | None = None, normalized: bool = False) -> Points:
    """Gamma and hallucination rate of checkpoints, on the benchmarks whose items every checkpoint measured.

    Gamma is that of all these items together; `layer` picks one by its true index, the mean over layers otherwise;
    `normalized` divides it by sqrt(H (H - 1)), which compares models with different numbers of heads.

    Raises
    ------
    ValueError
        When no benchmark is common to the checkpoints, or one of them has no such layer.
    """
    common = [
        name
        for name, evaluation in checkpoints[0].evaluations.items()
        if evaluation.benchmark.kind == "hallucination"
        and all(name in point.evaluations and point.evaluations[name].gamma is not None for point in checkpoints)
    ]
    if not common:
        raise ValueError(
            "no hallucination benchmark has Gamma of its items for every checkpoint: evaluate all of them on the same tasks "
            "with --per-item-gamma."
        )
    scores: dict[str, dict[str, TaskScore]] = {}
    for point in checkpoints:
        for score in [score for name in common for score in point.evaluations[name].scores()]:
            scores.setdefault(score.name, {})[point.name] = score
    return Points(
        layers=checkpoints[0].evaluations[common[0]].gamma.layers.tolist(),
        gamma={point.name: _gamma_of(point, common, layer, normalized) for point in checkpoints},
        rates={name: {point: 1 - score.value for point, score in found.items()} for name, found in scores.items()},
        errors={name: {point: score.standard_error for point, score in found.items()} for name, found in scores.items()},
        titles={name: next(iter(found.values())).title for name, found in scores.items()},
        n={name: {point: score.n for point, score in found.items()} for name, found in scores.items()},
    )


def _gamma_of(point: Checkpoint, benchmarks: Sequence[str], layer: int | None, normalized: bool) -> float:
    measured = point.evaluations[benchmarks[0]].gamma
    layers, heads = measured.layers.tolist(), measured.weight_grams.shape[-1]
    if layer is not None and layer not in layers:
        raise ValueError(f"layer {layer} was not measured: {point.name} has layers {', '.join(map(str, layers))}.")
    column = slice(None) if layer is None else [layers.index(layer)]
    largest = max(heads * (heads - 1), 1) ** 0.5 if normalized else 1.0
    return float(point.gamma(benchmarks)[column].mean() / largest)


def analyse_checkpoints(
    checkpoints: Sequence[Checkpoint], layer: int | None = None, normalized: bool = False
) -> AcrossCheckpoints:
    """Hallucination rate against Gamma over checkpoints, fitted to their `checkpoint_points`.

    Raises
    ------
    ValueError
        When there are too few checkpoints, or no benchmark is common to them.
    """
    points = checkpoint_points(checkpoints, layer, normalized)
    return across_checkpoints(points.gamma, points.rates, titles=points.titles)


def changes(checkpoint: Checkpoint, baseline: Checkpoint) -> dict[str, RelativeChange]:
    """Relative change of a checkpoint against a baseline, of hallucination and of knowledge scores; 0.08 is a gain of 8 %.

    Only scores that both have on the same items count.

    Raises
    ------
    ValueError
        When the two were scored on different items of a benchmark.
    """
    pairs: dict[str, dict[str, PairedItems]] = {"hallucination": {}, "knowledge": {}}
    for name, evaluation in checkpoint.evaluations.items():
        if name not in baseline.evaluations:
            continue
        other = baseline.evaluations[name]
        if evaluation.provenance["items"]["sha256"] != other.provenance["items"]["sha256"]:
            raise ValueError(
                f"{checkpoint.name} and {baseline.name} were scored on different items of {evaluation.benchmark.title}: "
                "evaluate both with the same data, limit and seed."
            )
        for score in evaluation.score_names:
            values, before = evaluation.items(score)["value"].to_numpy(), other.items(score)["value"].to_numpy()
            pairs[evaluation.benchmark.kind][score] = PairedItems(values, before, evaluation.benchmark.higher_is_better)
    return {kind: relative_change(items) for kind, items in pairs.items() if items}


def predict(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """Everything at once, as a JSON-ready record: per-item analyses, the fit across checkpoints, changes against the first.

    What cannot be had is a sentence under "refused" in its place, so that one poor benchmark does not hide the others.
    """
    return {
        "checkpoints": {point.name: _checkpoint_record(point) for point in checkpoints},
        "per_item": {point.name: _item_records(point) for point in checkpoints},
        "across_checkpoints": _or_refused(lambda: _across_record(analyse_checkpoints(checkpoints))),
        "relative_change": {
            point.name: _or_refused(
                lambda point=point: {kind: asdict(change) for kind, change in changes(point, checkpoints[0]).items()}
            )
            for point in checkpoints[1:]
        },
    }


def _or_refused(work) -> dict[str, Any]:
    try:
        return work()
    except ValueError as error:
        return {"refused": str(error)}


def _checkpoint_record(point: Checkpoint) -> dict[str, Any]:
    first = next(iter(point.evaluations.values()))
    return {
        "model": first.provenance["model"],
        "adapter": first.provenance["adapter"],
        "scores": [asdict(score) for evaluation in point.evaluations.values() for score in evaluation.scores()],
    }


def _item_records(point: Checkpoint) -> dict[str, Any]:
    with_answers = [evaluation for evaluation in point.evaluations.values() if evaluation.benchmark.protocol != "wikitext"]
    records = {
        score: _or_refused(lambda evaluation=evaluation, score=score: _analysis_record(analyse_items(evaluation, score)))
        for evaluation in with_answers
        for score in evaluation.score_names
    }
    kinds: Mapping[str, list[Evaluation]] = {
        kind: [evaluation for evaluation in with_answers if evaluation.benchmark.kind == kind]
        for kind in ("hallucination", "knowledge")
    }
    pooled = {
        f"all {kind} benchmarks": _or_refused(lambda evaluations=evaluations: _association_record(pool_benchmarks(evaluations)))
        for kind, evaluations in kinds.items()
        if len(evaluations) > 1
    }
    return {**records, **pooled}


def _association_record(found: Association) -> dict[str, Any]:
    return {**asdict(found), "words": found.in_words()}


def _analysis_record(analysis: ItemAnalysis) -> dict[str, Any]:
    return {
        "pooled": _association_record(analysis.pooled),
        "layers": analysis.layers,
        "by_layer": [asdict(layer) for layer in analysis.by_layer],
        "p_holm": analysis.p_holm,
        "null_odds_ratios": analysis.null_pooled,
        "null_by_layer": analysis.null_by_layer,
        "p_against_null": analysis.p_against_null,
    }


def _across_record(found: AcrossCheckpoints) -> dict[str, Any]:
    kept = {key: value for key, value in asdict(found).items() if key not in ("draws", "centre_draws")}
    return {**kept, "words": found.in_words()}
