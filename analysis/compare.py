"""What a change of checkpoint does to coalitions: selective coordination against uniform decorrelation (method.md section 3).

The coalitions of one checkpoint are held fixed; mean G inside and between them, before and after, layer by layer and over all
layers, ends in a verdict. The statistics are in analysis/selectivity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from analysis.coalitions import ALPHA, Coalitions, find_coalitions
from analysis.heads import head_name
from analysis.records import write_record
from analysis.results import InteractionResult
from analysis.selectivity import Change, PairMeans, SelectivityTest, holm

PERMUTATIONS = 10_000
SIDES = ("before", "after")
NOT_TESTED = "not tested"
VERDICTS = ("selective", "uniform decorrelation", "no change", "other change", NOT_TESTED)
_FEWEST_PERMUTATIONS = 99
_SAME_SHAPE = ("architecture", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_head")


@dataclass(frozen=True, eq=False)
class Effect:
    """What happened to coalitions.

    Attributes
    ----------
    inside, between : mean coupling over pairs of heads in one coalition, and in two.
    p : share of permutations of the heads with a selectivity at least as large (one-sided); NaN where not tested.
    p_within_kv : the same with heads permuted within their kv group only, so that kv groups cannot be the reason; 1 when the
        coalitions are the kv groups, NaN when each head is a kv group.
    verdict : of `VERDICTS`.
    """

    inside: Change
    between: Change
    p: float
    p_within_kv: float
    verdict: str

    @property
    def selectivity(self) -> float:
        """Change inside - change between."""
        return self.inside.change - self.between.change

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        changes = {"inside": self.inside.record(), "between": self.between.record()}
        return vars(self) | changes | {"selectivity": self.selectivity}


@dataclass(frozen=True, eq=False)
class LayerComparison(Effect):
    """What happened to the coalitions of one layer; its verdict uses the adjusted p.

    Attributes
    ----------
    layer : true layer index.
    labels : coalition of each head in the checkpoint that they are taken from, int [heads].
    p_holm, p_within_kv_holm : adjusted over the tested layers (Holm).
    """

    layer: int
    labels: np.ndarray
    p_holm: float
    p_within_kv_holm: float

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        members = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        names = [[head_name(self.layer, int(head)) for head in heads] for heads in members]
        return super().record() | {"coalitions": names}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two checkpoints compared.

    Attributes
    ----------
    layers : one a layer.
    overall : means over the tested layers; its p is of the mean selectivity, every layer permuted on its own.
    coalitions_from : the checkpoint whose coalitions are held fixed, "before" or "after".
    strength : "G", or "|G|" when the coalitions come from the absolute affinity.
    same_text : both were measured on one text.
    sentence : the verdict in words, with the numbers that carry it.
    """

    layers: tuple[LayerComparison, ...]
    overall: Effect
    coalitions_from: str
    coupling: str
    affinity: str
    k: int | None
    within_kv: bool
    strength: str
    permutations: int
    same_text: bool
    sentence: str
    provenance: dict[str, Any]

    @property
    def verdict(self) -> str:
        """Of `VERDICTS`, over all tested layers."""
        return self.overall.verdict

    @property
    def tested(self) -> list[LayerComparison]:
        """The layers with pairs of heads both inside and between coalitions."""
        return [entry for entry in self.layers if entry.verdict != NOT_TESTED]

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        entries = {"overall": self.overall.record(), "layers": [entry.record() for entry in self.layers]}
        return vars(self) | {"k": self.k or "auto", "verdict": self.verdict} | entries

    def save(self, path: str | PathLike) -> None:
        """Write `record` as JSON."""
        write_record(path, "comparison", self.record())


def compare(
    before: InteractionResult,
    after: InteractionResult,
    coalitions_from: str = "before",
    k: int | None = None,
    affinity: str = "positive",
    within_kv: bool = False,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    coalitions: Coalitions | None = None,
) -> Comparison:
    """Compare two checkpoints of one architecture under the coupling that `before` shows.

    Coalitions were chosen because they are strong in their own checkpoint, so chance alone makes the coupling inside fall away
    from it: coalitions from "before" make the test of selectivity a strict one, those from "after" a lenient one.

    Parameters
    ----------
    coalitions_from : whose coalitions are held fixed.
    k, affinity, within_kv : as in `find_coalitions`.
    permutations : at least 99.
    coalitions : the coalitions of that checkpoint, all layers, when they are at hand, found with their own k and affinity.

    Raises
    ------
    ValueError
        When the two differ in architecture, layers, heads, gradient or coupling (says in which), and for what
        `find_coalitions` refuses.
    """
    if coalitions_from not in SIDES:
        raise ValueError(f"coalitions can be taken from {' or '.join(SIDES)}, not from {coalitions_from!r}.")
    if permutations < _FEWEST_PERMUTATIONS:
        raise ValueError(f"{permutations} permutations are too few for a p below 0.05: give at least {_FEWEST_PERMUTATIONS}.")
    check_comparable(before, after)
    after = after.view(before.coupling)
    if coalitions is None:
        coalitions = find_coalitions(before if coalitions_from == "before" else after, k, affinity, within_kv=within_kv)
    if [entry.layer for entry in coalitions.layers] != before.layers.tolist():
        raise ValueError("the coalitions are not of all the layers that the two results hold: find them for every layer.")
    absolute = coalitions.affinity == "absolute"
    layers, overall = _effects(before, after, coalitions, np.abs if absolute else np.asarray, permutations, seed)
    same_text = before.provenance["text"] == after.provenance["text"]
    return Comparison(
        layers=layers,
        overall=overall,
        coalitions_from=coalitions_from,
        coupling=before.coupling,
        affinity=coalitions.affinity,
        k=coalitions.k,
        within_kv=coalitions.within_kv,
        strength="|G|" if absolute else "G",
        permutations=permutations,
        same_text=same_text,
        sentence=_sentence(overall, layers, same_text),
        provenance={"before": before.provenance, "after": after.provenance},
    )


def check_comparable(before: InteractionResult, after: InteractionResult) -> None:
    """Refuse two results whose layers and heads do not correspond; the message says what differs."""
    pairs = {name: (before.provenance["model"].get(name), after.provenance["model"].get(name)) for name in _SAME_SHAPE}
    pairs |= {name: (getattr(before, name), getattr(after, name)) for name in ("n_heads", "n_kv_heads", "gradient")}
    pairs["layers"] = before.layers.tolist(), after.layers.tolist()
    different = [f"{name} ({mine} and {theirs})" for name, (mine, theirs) in pairs.items() if mine != theirs]
    if different:
        raise ValueError(
            f"the two results cannot be compared, they differ in {', '.join(different)}. "
            "Compare two checkpoints of one model, measured with the same settings."
        )


def _effects(
    before: InteractionResult, after: InteractionResult, coalitions: Coalitions, strength, permutations: int, seed: int
) -> tuple[tuple[LayerComparison, ...], Effect]:
    labels = np.stack([entry.labels for entry in coalitions.layers])
    means = PairMeans(before, after, labels, strength)
    change = strength(after.G) - strength(before.G)
    over_heads = SelectivityTest(change, labels, permutations, seed)
    has_groups = before.n_kv_heads < before.n_heads
    within_kv = SelectivityTest(change, labels, permutations, seed, before.n_kv_heads) if has_groups else None

    def effect(rows: list[int]) -> Effect:
        inside, between, p = means.change(0, rows), means.change(1, rows), over_heads.p(rows)
        return Effect(inside, between, p, within_kv.p(rows) if within_kv else np.nan, verdict_of(inside, between, p))

    effects = [effect([row]) for row in range(len(labels))]
    adjusted = holm([one.p for one in effects]), holm([one.p_within_kv for one in effects])
    layers = [
        LayerComparison(**vars(one), layer=entry.layer, labels=entry.labels, p_holm=float(p), p_within_kv_holm=float(p_within))
        for one, entry, p, p_within in zip(effects, coalitions.layers, *adjusted, strict=True)
    ]
    judged = tuple(replace(entry, verdict=verdict_of(entry.inside, entry.between, entry.p_holm)) for entry in layers)
    return judged, effect(np.flatnonzero(over_heads.tested).tolist())


def verdict_of(inside: Change, between: Change, p: float) -> str:
    """One of `VERDICTS`, from the changes and the p of the selectivity.

    "selective": inside rises, between does not, and the selectivity is beyond chance. "uniform decorrelation": both fall, with
    no selectivity beyond chance. "no change": neither changes. What is none of these is "other change".
    """
    if np.isnan(p):
        return NOT_TESTED
    if p < ALPHA and inside.direction > 0 >= between.direction:
        return "selective"
    if p >= ALPHA and inside.direction < 0 and between.direction < 0:
        return "uniform decorrelation"
    if inside.direction == 0 and between.direction == 0:
        return "no change"
    return "other change"


def _sentence(overall: Effect, layers: tuple[LayerComparison, ...], same_text: bool) -> str:
    tested = [entry for entry in layers if entry.verdict != NOT_TESTED]
    if not tested:
        return "Not tested: no layer has pairs of heads both inside and between coalitions. Ask for a number of coalitions."
    alone = sum(entry.p_holm < ALPHA for entry in tested)
    kv = "" if np.isnan(overall.p_within_kv) else f" ({overall.p_within_kv:.2g} within kv groups)"
    text = (
        f"{overall.verdict.capitalize()}: over {len(tested)} of {len(layers)} layers, mean coupling inside coalitions "
        f"{_moves(overall.inside)}, between them {_moves(overall.between)}; selectivity {overall.selectivity:.3g}, permutation "
        f"p = {overall.p:.2g}{kv}; {alone} of the {len(tested)} layers stand alone after Holm."
    )
    if not same_text:
        text += " The two were measured on different texts, so a part of the change is the text's."
    if np.isnan(overall.inside.low):
        text += " There is no interval: a result holds one batch of rows only; measure on a longer text."
    return text


def _moves(change: Change) -> str:
    verb = {1: "rises", -1: "falls", 0: "does not change"}[change.direction]
    interval = "" if np.isnan(change.low) else f"; 95 % interval of the change {change.low:.2g} to {change.high:.2g}"
    return f"{verb} ({change.before:.3g} to {change.after:.3g}{interval})"
