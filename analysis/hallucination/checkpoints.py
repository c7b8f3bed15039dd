"""Does Gamma predict the hallucination rate across checkpoints? One point a checkpoint and benchmark, one common slope.

Checkpoints are what could have been otherwise, so p comes from permuting Gamma among checkpoints (all benchmarks of a
checkpoint move together) and the interval from resampling checkpoints. Benchmarks have levels of their own and are centred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import permutation_test, rankdata

MIN_CHECKPOINTS = 4
DRAWS = 2000
PERMUTATIONS = 9999  # exact up to 7 checkpoints, which have 5,040 orders
SEED = 42


@dataclass(frozen=True)
class AcrossCheckpoints:
    """The fit over checkpoints.

    Attributes
    ----------
    checkpoints, benchmarks : names.
    slope : change of the rate per unit of Gamma, common to all benchmarks.
    low, high : its 95 % bootstrap interval over checkpoints.
    p : two-sided permutation p of the slope; `p_exact` says whether every order was tried.
    smallest_p : the smallest p that this number of checkpoints can give.
    spearman, p_spearman : rank correlation (within benchmarks) and its permutation p.
    centres : benchmark -> (mean Gamma, mean rate), the point that its line goes through.
    draws : bootstrap slopes [draws]; `centre_draws` benchmark -> [draws, 2].
    """

    checkpoints: list[str]
    benchmarks: list[str]
    slope: float
    low: float
    high: float
    p: float
    p_exact: bool
    smallest_p: float
    spearman: float
    p_spearman: float
    centres: dict[str, tuple[float, float]]
    draws: np.ndarray
    centre_draws: dict[str, np.ndarray]

    def line(self, benchmark: str, gamma: np.ndarray) -> np.ndarray:
        """The fitted rate of a benchmark at each Gamma."""
        middle, rate = self.centres[benchmark]
        return rate + self.slope * (np.asarray(gamma) - middle)

    def band(self, benchmark: str, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % band of that line at each Gamma, from the bootstrap."""
        middle, rate = self.centre_draws[benchmark].T
        lines = rate[:, None] + self.draws[:, None] * (np.asarray(gamma)[None, :] - middle[:, None])
        low, high = np.percentile(lines, [2.5, 97.5], axis=0)
        return low, high

    def in_words(self, quantity: str = "Gamma") -> str:
        """One sentence with the sign of the slope, its interval, p and the number of checkpoints.

        `quantity` is what stands on the horizontal axis.
        """
        certain = self.p < 0.05
        direction = "higher" if self.slope > 0 else "lower"
        sign = (
            f"Higher {quantity} goes with a {direction} rate"
            if certain
            else f"No certain relation between {quantity} and the rate"
        )
        kind = "exact permutation" if self.p_exact else "permutation"
        limit = (
            f"; {len(self.checkpoints)} checkpoints cannot give less than {self.smallest_p:.2g}" if self.smallest_p > 0.01 else ""
        )
        return (
            f"{sign} across {len(self.checkpoints)} checkpoints (slope {self.slope:.3g}, 95 % interval {self.low:.3g} to "
            f"{self.high:.3g}, {kind} p = {self.p:.2g}{limit}; Spearman {self.spearman:.2f}, p = {self.p_spearman:.2g})."
        )


def across_checkpoints(
    gamma: Mapping[str, float],
    rates: Mapping[str, Mapping[str, float]],
    draws: int = DRAWS,
    seed: int = SEED,
    titles: Mapping[str, str] | None = None,
) -> AcrossCheckpoints:
    """Fit rate against Gamma over checkpoints.

    Parameters
    ----------
    gamma : checkpoint -> Gamma (a layer's, or the mean).
    rates : benchmark -> checkpoint -> hallucination rate; a benchmark may lack some checkpoints.
    titles : benchmark -> what people call it, for the errors.

    Raises
    ------
    ValueError
        For fewer than `MIN_CHECKPOINTS` checkpoints in any benchmark, or when Gamma does not vary.
    """
    names = [name for name in gamma if any(name in values for values in rates.values())]
    x = np.array([gamma[name] for name in names], dtype=np.float64)
    y = {name: np.array([values.get(point, np.nan) for point in names], dtype=np.float64) for name, values in rates.items()}
    _refuse(names, x, {(titles or {}).get(name, name): rate for name, rate in y.items()})
    generator = np.random.default_rng(seed)
    slope = float(_slope(x, y))
    slopes, centre_draws = _bootstrap(x, y, draws, generator)
    p = _permutation_p(_slope, x, y, generator)
    p_spearman = _permutation_p(_spearman, x, y, generator)
    orders = math.factorial(len(names))
    low, high = np.percentile(slopes, [2.5, 97.5])
    return AcrossCheckpoints(
        checkpoints=names,
        benchmarks=list(y),
        slope=slope,
        low=float(low),
        high=float(high),
        p=p,
        p_exact=orders <= PERMUTATIONS,
        smallest_p=2 / min(orders, PERMUTATIONS + 1),
        spearman=float(_spearman(x, y)),
        p_spearman=p_spearman,
        centres={name: (float(x[~np.isnan(rate)].mean()), float(np.nanmean(rate))) for name, rate in y.items()},
        draws=slopes,
        centre_draws=centre_draws,
    )


def _refuse(names: Sequence[str], x: np.ndarray, y: Mapping[str, np.ndarray]) -> None:
    if not y:
        raise ValueError("no benchmark has a rate: evaluate the checkpoints first.")
    if not np.isfinite(x).all():
        raise ValueError(f"Gamma is not finite for {', '.join(np.array(names)[~np.isfinite(x)])}: leave them out.")
    for benchmark, rate in y.items():
        found = int(np.isfinite(rate).sum())
        if found < MIN_CHECKPOINTS:
            points = f"{found} checkpoint{'s' * (found != 1)}"
            raise ValueError(
                f"{benchmark} has {points}, and a line through fewer than {MIN_CHECKPOINTS} says nothing: "
                f"evaluate {MIN_CHECKPOINTS - found} more (the checkpoints saved inside a training run count)."
            )
        if np.ptp(x[np.isfinite(rate)]) == 0:
            raise ValueError(f"Gamma is the same for all {found} checkpoints of {benchmark}: choose another layer.")


def _sums(x: np.ndarray, y: Mapping[str, np.ndarray], ranks: bool = False) -> tuple[np.ndarray, np.ndarray, float]:
    """Sums over benchmarks of the centred products xy, xx and yy; x may be [..., checkpoints]."""
    xy, xx, yy = 0.0, 0.0, 0.0
    for rate in y.values():
        there = np.isfinite(rate)
        a, b = x[..., there], rate[there]
        if ranks:
            a, b = rankdata(a, axis=-1), rankdata(b)
        a, b = a - a.mean(axis=-1, keepdims=True), b - b.mean()
        xy, xx, yy = xy + (a * b).sum(axis=-1), xx + (a * a).sum(axis=-1), yy + (b * b).sum()
    return xy, xx, yy


def _slope(x: np.ndarray, y: Mapping[str, np.ndarray]) -> np.ndarray:
    xy, xx, _ = _sums(x, y)
    return xy / xx


def _spearman(x: np.ndarray, y: Mapping[str, np.ndarray]) -> np.ndarray:
    xy, xx, yy = _sums(x, y, ranks=True)
    return xy / np.sqrt(xx * yy) if yy > 0 else np.zeros_like(xy)


def _permutation_p(statistic, x: np.ndarray, y: Mapping[str, np.ndarray], generator: np.random.Generator) -> float:
    result = permutation_test(
        (x,),
        lambda permuted, axis=-1: statistic(np.moveaxis(permuted, axis, -1), y),
        permutation_type="pairings",
        n_resamples=PERMUTATIONS,
        vectorized=True,
        axis=-1,
        rng=generator,
    )
    return float(result.pvalue)


def _bootstrap(
    x: np.ndarray, y: Mapping[str, np.ndarray], draws: int, generator: np.random.Generator
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Slopes and centres of resampled checkpoints; a draw in which Gamma does not vary fixes no line and is drawn again."""
    slopes, centres = np.empty(0), {name: np.empty((0, 2)) for name in y}
    while len(slopes) < draws:
        counts = generator.multinomial(len(x), np.full(len(x), 1 / len(x)), size=draws).astype(np.float64)
        counts = counts[np.all([counts[:, np.isfinite(rate)].any(axis=1) for rate in y.values()], axis=0)]
        xy, xx, drawn = 0.0, 0.0, {}
        for name, rate in y.items():
            there = np.isfinite(rate)
            weight, a, b = counts[:, there], x[there], rate[there]
            total = weight.sum(axis=1)
            mean_a, mean_b = weight @ a / total, weight @ b / total
            off = a - mean_a[:, None]
            xy, xx = xy + (weight * off * b).sum(axis=1), xx + (weight * off * off).sum(axis=1)
            drawn[name] = np.column_stack([mean_a, mean_b])
        varies = xx > 1e-12 * np.square(x - x.mean()).sum()
        slopes = np.concatenate([slopes, xy[varies] / xx[varies]])[:draws]
        centres = {name: np.concatenate([centres[name], drawn[name][varies]])[:draws] for name in y}
    return slopes, centres
