"""What a checkpoint gains against hallucination and what it pays in knowledge: one point a checkpoint, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.hallucination.prediction import Checkpoint, changes
from analysis.hallucination.statistics import Change


@dataclass(frozen=True)
class Trade:
    """The mean relative changes of a checkpoint against a baseline, each a gain when positive (0.08 is 8 %)."""

    name: str
    knowledge: Change
    hallucination: Change


def trades(checkpoints: Sequence[Checkpoint], baseline: Checkpoint) -> list[Trade]:
    """One trade a checkpoint; the baseline itself lies at (0, 0).

    Raises
    ------
    ValueError
        When one of the two kinds of benchmark has no score that can change, or two checkpoints were scored on different items.
    """
    found = []
    for point in checkpoints:
        if point is baseline:
            found.append(Trade(point.name, Change(0.0, 0.0, 0.0, 0), Change(0.0, 0.0, 0.0, 0)))
            continue
        changed = changes(point, baseline)
        for kind in ("hallucination", "knowledge"):
            if kind not in changed or not changed[kind].tasks:
                raise ValueError(
                    f"no {kind} benchmark on which the baseline scores above 0 is shared by {point.name} and {baseline.name}: "
                    f"evaluate both on one, such as the {kind} suite."
                )
        found.append(Trade(point.name, changed["knowledge"].mean, changed["hallucination"].mean))
    return found


def front(found: Sequence[Trade]) -> list[Trade]:
    """The trades that no other one beats in both changes, by rising knowledge; a trade that is not finite beats nothing."""
    values = np.array([(trade.knowledge.value, trade.hallucination.value) for trade in found]).reshape(-1, 2)
    kept = []
    for trade, own in zip(found, values, strict=True):
        beaten = ((values >= own).all(axis=1) & (values > own).any(axis=1)).any()
        if np.isfinite(own).all() and not beaten:
            kept.append(trade)
    return sorted(kept, key=lambda trade: trade.knowledge.value)
