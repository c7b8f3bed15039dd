"""Does an item's own Gamma say whether the model errs on it? Logistic regression over items, layer by layer and pooled.

Always two-sided and with its sign in words: "higher Gamma goes with fewer errors" is as much a finding as the other one.
The model is statsmodels' Logit; Gamma and covariates are standardized, so that the odds ratio is per standard deviation.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from statsmodels.discrete.discrete_model import Logit
from statsmodels.stats.multitest import multipletests
from statsmodels.tools.sm_exceptions import ConvergenceWarning, HessianInversionWarning, PerfectSeparationWarning

_UNBOUNDED = 12.0  # no log odds per standard deviation that data can show: the fit is running away
_P_SHOWN = 0.05


@dataclass(frozen=True)
class Association:
    """Gamma against error over items.

    Attributes
    ----------
    odds_ratio : of an error, per standard deviation of Gamma, covariates held; above 1 higher Gamma goes with more errors.
    low, high : its 95 % Wald interval.
    p : two-sided Wald p.
    auc : of Gamma alone for telling errors from right answers; below 0.5 higher Gamma goes with fewer errors.
    n, errors : items used, and how many of them are wrong.
    left_out : items without a finite Gamma or covariate, or in a subset where all items are right or all are wrong.
    reason : why there is no estimate (the numbers are NaN then), else "".
    """

    odds_ratio: float
    low: float
    high: float
    p: float
    auc: float
    n: int
    errors: int
    left_out: int
    reason: str = ""

    def in_words(self, what: str = "Gamma") -> str:
        """One sentence with the sign of the effect, its size, interval, p and n."""
        if self.reason:
            return f"No estimate for {what}: {self.reason}."
        if self.p >= _P_SHOWN:
            sign = f"{what} says nothing certain about errors here"
        else:
            sign = f"Higher {what} goes with {'more' if self.odds_ratio > 1 else 'fewer'} errors here"
        return (
            f"{sign} (odds ratio {self.odds_ratio:.3g} per standard deviation, 95 % interval {self.low:.3g} to {self.high:.3g}, "
            f"p = {self.p:.2g}, n = {self.n}, {self.errors} wrong)."
        )


@dataclass(frozen=True)
class ItemAnalysis:
    """The association of every layer.

    Attributes
    ----------
    layers : true layer indices.
    by_layer : one association a layer.
    p_holm : their p, Holm-corrected over layers; NaN where there is no estimate.
    pooled : the association of Gamma averaged over layers.
    null_by_layer : odds ratios with shuffled heads, [shuffles, layers]; empty without shuffles.
    null_pooled : the same for the average, [shuffles].
    """

    layers: list[int]
    by_layer: list[Association]
    p_holm: np.ndarray
    pooled: Association
    null_by_layer: np.ndarray
    null_pooled: np.ndarray

    @property
    def p_against_null(self) -> float:
        """Share of shuffles whose pooled effect is at least as strong, the observed one counted among them."""
        drawn = self.null_pooled[np.isfinite(self.null_pooled)]
        if self.pooled.reason or not len(drawn):
            return np.nan
        stronger = np.abs(np.log(drawn)) >= abs(np.log(self.pooled.odds_ratio))
        return float((1 + stronger.sum()) / (1 + len(drawn)))


def association(error: np.ndarray, gamma: np.ndarray, covariates: np.ndarray, subset: Sequence[str]) -> Association:
    """Logistic regression of the error on Gamma.

    Parameters
    ----------
    error : bool [items], True for a wrong answer.
    gamma : [items].
    covariates : [items, k], for example log length and cross-entropy.
    subset : [items], the benchmark's own subset; each gets an intercept of its own.

    Raises
    ------
    ValueError
        When no item is wrong, or none is right, or there is none at all: there is nothing to tell apart.
    """
    error, gamma, subset = np.asarray(error, dtype=bool), np.asarray(gamma, dtype=np.float64), np.asarray(subset, dtype=str)
    covariates = np.asarray(covariates, dtype=np.float64)
    finite = np.isfinite(gamma) & np.isfinite(covariates).all(axis=1)
    _refuse_one_outcome(error[finite])
    used = finite & _in_mixed_subset(error, subset, finite)
    left_out, n, errors = int((~used).sum()), int(used.sum()), int(error[used].sum())
    if n == 0:
        return _no_estimate("inside each of the benchmark's subsets all items are right or all are wrong", 0, 0, left_out)
    if np.ptp(gamma[used]) == 0:
        return _no_estimate("Gamma is the same for every item", n, errors, left_out)
    auc = _auc(error[used], gamma[used])
    fit, reason = _fit(error[used].astype(np.float64), _design(gamma[used], covariates[used], subset[used]))
    if reason:
        return _no_estimate(reason, n, errors, left_out, auc)
    low, high = fit.conf_int()[0]
    ratio, low, high = np.exp([fit.params[0], low, high])
    return Association(float(ratio), float(low), float(high), float(fit.pvalues[0]), auc, n, errors, left_out)


def _refuse_one_outcome(error: np.ndarray) -> None:
    if not len(error):
        raise ValueError("no item has both a score and a finite Gamma: the model gives no finite numbers on them.")
    if error.all() or not error.any():
        kind = "wrong" if error.all() else "right"
        raise ValueError(
            f"all {len(error)} items with a finite Gamma are {kind}: nothing tells errors from right answers. "
            "Use more items or another benchmark."
        )


def _in_mixed_subset(error: np.ndarray, subset: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Items whose subset holds both outcomes; the others say nothing once each subset has its own intercept."""
    return np.isin(subset, np.intersect1d(subset[finite & error], subset[finite & ~error]))


def _auc(error: np.ndarray, gamma: np.ndarray) -> float:
    """Chance that a wrong item has the higher Gamma than a right one, ties counted half (the rank-sum statistic)."""
    wrong = error.sum()
    return float((rankdata(gamma)[error].mean() - (wrong + 1) / 2) / (len(error) - wrong))


def _design(gamma: np.ndarray, covariates: np.ndarray, subset: np.ndarray) -> np.ndarray:
    """Standardized Gamma, standardized covariates that vary, one indicator a subset; [items, columns], Gamma first."""
    numbers = np.column_stack([gamma, covariates[:, np.ptp(covariates, axis=0) > 0]])
    standard = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0, ddof=1)
    return np.column_stack([standard, subset[:, None] == np.unique(subset)])


def _fit(outcome: np.ndarray, design: np.ndarray):
    """The fitted model, or why it cannot be had."""
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return None, "Gamma, the covariates and the subsets cannot be told apart with these items"
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, HessianInversionWarning, PerfectSeparationWarning, RuntimeWarning):
            warnings.simplefilter("ignore", kind)  # what they warn of is asked of the fit below
        try:
            fit = Logit(outcome, design).fit(disp=False, maxiter=100)
        except np.linalg.LinAlgError:
            return None, _SEPARATED
        if not fit.mle_retvals["converged"] or not np.isfinite(fit.bse).all() or np.abs(fit.params).max() > _UNBOUNDED:
            return None, _SEPARATED
    return fit, ""


_SEPARATED = "Gamma and the covariates part wrong from right without error, so the odds ratio has no bound; use more items"


def _no_estimate(reason: str, n: int, errors: int, left_out: int, auc: float = np.nan) -> Association:
    return Association(np.nan, np.nan, np.nan, np.nan, auc, n, errors, left_out, reason)


def item_analysis(
    error: np.ndarray,
    gamma: np.ndarray,
    covariates: np.ndarray,
    subset: Sequence[str],
    layers: Sequence[int],
    null_gamma: np.ndarray | None = None,
) -> ItemAnalysis:
    """The association of each layer's Gamma [items, layers] with the error, Holm over layers, and that of their mean.

    `null_gamma` [shuffles, items, layers] is Gamma with the heads of omega and rho shuffled against each other
    (item_gamma.py); its odds ratios show what a matrix without the true pairing of heads would give.
    """
    by_layer = [association(error, gamma[:, column], covariates, subset) for column in range(gamma.shape[1])]
    shuffles = np.empty((0, *gamma.shape)) if null_gamma is None else null_gamma
    null_by_layer = [
        [association(error, drawn[:, column], covariates, subset).odds_ratio for column in range(gamma.shape[1])]
        for drawn in shuffles
    ]
    return ItemAnalysis(
        layers=list(layers),
        by_layer=by_layer,
        p_holm=holm([layer.p for layer in by_layer]),
        pooled=association(error, gamma.mean(axis=1), covariates, subset),
        null_by_layer=np.array(null_by_layer).reshape(len(shuffles), gamma.shape[1]),
        null_pooled=np.array([association(error, drawn.mean(axis=1), covariates, subset).odds_ratio for drawn in shuffles]),
    )


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values corrected for their number by Holm's step-down method; NaN stays NaN and counts for nothing."""
    corrected = np.array(p, dtype=np.float64)
    known = np.isfinite(corrected)
    if known.any():
        corrected[known] = multipletests(corrected[known], method="holm")[1]
    return corrected
