"""Are the coalitions just the model's kv groups? What a coupling can see, in numbers and in one plain sentence.

Heads that share a key/value head share a value basis. Between heads that do not, the paper's weight coupling is noise of the
size `InteractionResult.gauge_noise` (method.md section 2), so coalitions found with it are often the kv groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.heads import kv_groups
from analysis.results import InteractionResult
from analysis.spectral import adjusted_rand

_MOSTLY = 0.5  # adjusted Rand index from which coalitions are said to follow the kv groups
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True, eq=False)
class KvAgreement:
    """How the coalitions of a layer and its kv groups agree.

    Attributes
    ----------
    groups : kv group of each head, int [heads].
    ari : adjusted Rand index of coalitions and kv groups, at most 1; NaN where groups say nothing (one head each, or one group).
    inside, between : mean |G| over pairs of heads in one kv group, and in two; NaN without such a pair.
    noise : mean |G| between kv groups that the choice of value bases alone would give; 0 for the invariant coupling.
    sentence : what this means, for people.
    """

    groups: np.ndarray
    ari: float
    inside: float
    between: float
    noise: float
    sentence: str

    @property
    def exact(self) -> bool:
        """The coalitions are the kv groups, head for head."""
        return self.ari == 1.0

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self) | {"exact": self.exact}


def kv_agreement(result: InteractionResult, layer: int, labels: np.ndarray, within_kv: bool = False) -> KvAgreement:
    """Compare a layer's coalitions, int [heads], with its kv groups under the result's coupling.

    `within_kv` says that the groups were clustered each by itself, so that agreement is no finding.
    """
    row = result.row_of(layer)
    groups = np.array(kv_groups(result.n_heads, result.n_kv_heads))
    first, second = np.triu_indices(result.n_heads, k=1)
    same = groups[first] == groups[second]
    strength = np.abs(result.G[row][first, second])
    rho = np.abs(result.rho[row][first, second])
    # omega between value bases is about normal with standard deviation gauge_noise, and independent of rho
    noise = result.gauge_noise * math.sqrt(2 / math.pi) * _mean(rho[~same]) if (~same).any() else 0.0
    comparable = 1 < result.n_kv_heads < result.n_heads
    ari = float(adjusted_rand(labels, groups)) if comparable else math.nan
    inside, between = _mean(strength[same]), _mean(strength[~same])
    sentence = _sentence(result, labels, ari, between, noise)
    if within_kv and comparable:
        sentence = "Every kv group was clustered by itself: that the coalitions follow the groups is no finding."
    return KvAgreement(groups, ari, inside, between, noise, sentence)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _sentence(result: InteractionResult, labels: np.ndarray, ari: float, between: float, noise: float) -> str:
    paper, n_kv = result.coupling == "paper", result.n_kv_heads
    cannot = "the paper's coupling cannot see across them; the invariant one can"
    if n_kv == 1:
        return "All heads of this model share one value head, so kv groups cannot stand behind its coalitions."
    if math.isnan(ari) and not paper:
        return "Every head of this model has a value head of its own, so kv groups cannot stand behind its coalitions."
    if math.isnan(ari):
        return (
            f"Every head of this model has a value head of its own: mean |G| is {between:.3g} where the choice of value bases "
            f"alone gives {noise:.3g}. The paper's coupling cannot compare such heads; the invariant one can."
        )
    if ari == 1.0:
        those = f"These {in_words(n_kv)} coalitions are the model's {in_words(n_kv)} kv groups"
        return f"{those}; {cannot}." if paper else f"{those}, seen by the invariant coupling, which can see across them."
    if len(np.unique(labels)) == 1:
        return "The heads are in one coalition, whatever their kv group."
    if ari >= _MOSTLY:
        return f"These coalitions mostly follow the model's kv groups (adjusted Rand index {ari:.2f})" + (
            f"; {cannot}." if paper else ", seen by the invariant coupling, which can see across them."
        )
    return f"These coalitions are not the model's kv groups (adjusted Rand index {ari:.2f})." + (
        " But the paper's coupling sees little across kv groups; compare with the invariant one." if paper else ""
    )


def in_words(number: int) -> str:
    """A count as a word, up to twelve."""
    return _WORDS[number] if number < len(_WORDS) else str(number)
