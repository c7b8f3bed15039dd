"""What a person should know about a run's course, in words, from its metrics and its status."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gamelora.run_metrics import RunMetrics

_RECENT = 20  # steps that a judgement looks at
_PACE_OF = 100  # steps that tell how fast the run is
_INTERRUPTED = 50  # times as long as a step
_LITTLE_WEIGHT = 0.05
_FELL = 0.1  # of Gamma: a fall that is worth a word
_FOLLOWED = 0.25  # of that fall, under the other coupling: less is no fall with it
_FLOOR = 1e-3  # of the barrier's gap: below it no pair of heads couples enough to matter
_LOSSES = {"loss/ce": "cross-entropy", "loss/ldb": "barrier", "loss/bt": "Barlow Twins loss"}


def health(metrics: RunMetrics, status: dict[str, Any]) -> list[str]:
    """Sentences, the most serious first; [] when nothing stands out.

    Parameters
    ----------
    metrics : of the run so far.
    status : as the run wrote it; its own notes come last.
    """
    found = [*_not_finite(metrics), *_unsolved(status), *_little_weight(metrics), *_at_its_floor(metrics)]
    found += [*_paper_coupling_only(metrics, status), *_overfitting(metrics)]
    return [*found, *(note for note in status.get("notes", []) if note not in found)]


def seconds_left(metrics: RunMetrics, steps: int, now: float) -> float | None:
    """Until the last of `steps`, at the pace of the latest steps with their evaluations; None before there are two.

    Parameters
    ----------
    now : Unix seconds; counts down between two steps.
    """
    times = metrics.steps.get("time", pd.Series(dtype=float)).dropna().tail(_PACE_OF + 1)  # evaluations have times too
    pauses = times.diff().dropna()
    pauses = pauses[pauses <= _INTERRUPTED * pauses.median()]  # a run that was stopped and resumed
    if pauses.empty:
        return None
    return max(0.0, float(pauses.mean()) * (steps - int(times.index[-1])) - max(0.0, now - float(times.iloc[-1])))


def step_seconds(metrics: RunMetrics, tokens: int) -> pd.Series:
    """Seconds that each step took, by step; `tokens` are those of a step. Evaluations and interruptions do not count."""
    return tokens / metrics.series("tokens_per_second").dropna()


def _recent(metrics: RunMetrics, name: str) -> pd.Series:
    return metrics.series(name).tail(_RECENT)


def _not_finite(metrics: RunMetrics) -> list[str]:
    notes = []
    for name, words in _LOSSES.items():
        values = _recent(metrics, name)
        bad = values.index[values.isna()]
        if len(bad):
            notes.append(
                f"The {words} was not finite in {len(bad)} of the last {len(values)} steps, last in step {bad[-1]}: such a step "
                "changes nothing. If it goes on, use a smaller learning rate, or autocast float32."
            )
    return notes


def _unsolved(status: dict[str, Any]) -> list[str]:
    counts = status.get("bargains") or {}
    failed, all_of_them = sum(counts.get(outcome, 0) for outcome in ("failed", "opposed")), sum(counts.values())
    if not failed:
        return []
    return [
        f"{failed} of {all_of_them} bargains between the gradients were not solved "
        f"({counts.get('failed', 0)} by the solver, {counts.get('opposed', 0)} because the gradients oppose each other)."
    ]


def _little_weight(metrics: RunMetrics) -> list[str]:
    share = _share_of_cross_entropy(metrics)
    if share is None or share >= _LITTLE_WEIGHT:
        return []
    return [
        f"The cross-entropy has {share:.1%} of the weight: the run hardly learns its text. Lower lambda_ldb and lambda_bt, or "
        "look whether its gradient is far larger than the others'."
    ]


def _share_of_cross_entropy(metrics: RunMetrics) -> float | None:
    """Its part of the combined gradient's length, were the parts added up; over the latest bargain."""
    tasks = [name.removeprefix("weight/") for name in metrics.names if name.startswith("weight/")]
    if len(tasks) < 2 or "ce" not in tasks:
        return None
    lengths = {}
    for task in tasks:
        norms, weights = metrics.series(f"gradient_norm/{task}").dropna(), metrics.series(f"weight/{task}").dropna()
        if norms.empty or weights.empty:
            return None
        lengths[task] = abs(float(weights.iloc[-1]) * float(norms.iloc[-1]))
    total = sum(lengths.values())
    return lengths["ce"] / total if total > 0 and np.isfinite(total) else None


def _at_its_floor(metrics: RunMetrics) -> list[str]:
    gap = _recent(metrics, "gap/ldb").dropna()
    if gap.empty or gap.max() >= _FLOOR:
        return []
    return [
        f"The barrier is at its floor (gap {gap.iloc[-1]:.2g}): G shows no coupling that it could lower. With the paper's "
        "coupling that is usual where heads share no key/value group; the invariant coupling sees more."
    ]


def _paper_coupling_only(metrics: RunMetrics, status: dict[str, Any]) -> list[str]:
    """The paper's coupling takes <W_i, W_j>_F, the trace of W_i^T W_j; the invariant one all of that matrix."""
    layers = status.get("design_layers", [])
    paper, invariant = (_change_of_gamma(metrics, coupling, layers) for coupling in ("paper", "invariant"))
    if paper is None or invariant is None or paper > -_FELL or invariant <= _FOLLOWED * paper:
        return []
    return [
        f"Held-out Γ of the design layer changed by {paper:+.0%} under the paper's coupling and by {invariant:+.0%} under "
        "the invariant one: the traces of WᵢᵀWⱼ were trained away and not the overlap of what the heads write. "
        "To act on all of it, train with the setting “coupling: invariant”."
    ]


def _change_of_gamma(metrics: RunMetrics, coupling: str, layers: list[int]) -> float | None:
    """From the first evaluation to the last one, as a part of the first; None before there are two."""
    names = [f"eval_gamma_{coupling}/L{layer}" for layer in layers]
    if not names or not set(names) <= set(metrics.evaluations.columns):
        return None
    gamma = metrics.evaluations[names].mean(axis=1, skipna=False).dropna()
    return float(gamma.iloc[-1] / gamma.iloc[0] - 1) if len(gamma) > 1 and gamma.iloc[0] > 0 else None


def _overfitting(metrics: RunMetrics) -> list[str]:
    held_out = metrics.series("eval_loss").dropna()
    if len(held_out) < 3 or held_out.iloc[-1] <= held_out.min() * 1.02:
        return []
    best = held_out.idxmin()
    return [
        f"The held-out cross-entropy rose from {held_out.min():.3g} after step {best} to {held_out.iloc[-1]:.3g}: the run fits "
        "its text too closely."
    ]
