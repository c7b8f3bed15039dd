"""The head game: what a layer's heads lose because none of them pays for the overlap it causes.

method.md section 5: this project's local linear-quadratic model [D] with the paper's G; only the shape of the claim, that
the price of anarchy falls with the off-diagonal mass of G, is the paper's [P]. Head i chooses an effort x_i, has the benefit
b_i, and shares its welfare W(x) = b^T x - x^T G x / 2 with all others. In the implicit game (MultiHeadCE) its utility
b_i x_i - x_i^2 / 2 leaves the overlap out; in the priced one (MultiHeadPGAC) it is charged x_i sum_{j != i} G_ij x_j.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

VIF_THRESHOLD = 5.0
LOW_EFFECT = 1e-3  # nats per token
_DIAGONAL_TOLERANCE = 1e-4
_ROUNDS_ONE_BY_ONE = 256
_DOUBLINGS = 50


@dataclass(frozen=True)
class Price:
    """A price of anarchy or a bound on one: a ratio of at least 1.

    Attributes
    ----------
    value : the ratio; infinite when there is no bound.
    reason : why there is no bound; empty when there is one.
    """

    value: float
    reason: str = ""

    @staticmethod
    def unbounded(reason: str) -> Price:
        return Price(math.inf, reason)

    @property
    def bounded(self) -> bool:
        """Whether the ratio is a finite number."""
        return math.isfinite(self.value)


@dataclass(frozen=True, eq=False)
class HeadGame:
    """The game of one layer's heads, in closed form.

    Attributes
    ----------
    G : head interaction matrix, float64 [n_heads, n_heads], symmetric with unit diagonal. An eigenvalue that float32 Gram
        sums cannot tell from a border (0 for a singular G, 2 for the worst case) counts as being on it.
    benefits : b, float64 [n_heads]; only the ratios between them matter to a price of anarchy.

    Raises
    ------
    ValueError
        When G is no such matrix or the benefits do not fit it; names the heads with entries that are not finite.
    """

    G: np.ndarray
    benefits: np.ndarray

    def __post_init__(self) -> None:
        G = np.array(self.G, dtype=np.float64)
        benefits = np.array(self.benefits, dtype=np.float64)
        if G.ndim != 2 or G.shape[0] != G.shape[1] or not G.size:
            raise ValueError(f"G must be a square matrix of heads, not of shape {G.shape}.")
        if benefits.shape != G.shape[:1]:
            raise ValueError(f"there are {G.shape[0]} heads but the benefits have shape {benefits.shape}: give one a head.")
        bad = np.flatnonzero(~np.isfinite(G).all(axis=1) | ~np.isfinite(benefits))
        if len(bad):
            raise ValueError(f"G or the benefits are not finite at heads {', '.join(map(str, bad))}: measure them again.")
        if abs(G - G.T).max() > _DIAGONAL_TOLERANCE or abs(np.diagonal(G) - 1).max() > _DIAGONAL_TOLERANCE:
            raise ValueError("G must be symmetric with a unit diagonal, as a head interaction matrix is.")
        G = (G + G.T) / 2
        np.fill_diagonal(G, 1.0)
        object.__setattr__(self, "G", G)
        object.__setattr__(self, "benefits", benefits)

    @property
    def n_heads(self) -> int:
        """Number of heads that play."""
        return len(self.benefits)

    @cached_property
    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.eigh(self.G)

    @property
    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of G, ascending, [n_heads]; their mean is 1."""
        return self._eigen[0]

    @property
    def tolerance(self) -> float:
        """The rounding of an eigenvalue of G, from the float32 Gram sums that G is made of."""
        return float(np.finfo(np.float32).eps * self.n_heads * self.eigenvalues[-1])

    @property
    def spectral_norm(self) -> float:
        """|G - I|_2, the largest distance of an eigenvalue of G from 1."""
        return float(abs(self.eigenvalues - 1).max())

    @property
    def gamma(self) -> float:
        """Interaction strength Gamma(G) = |G - I|_F, here from the eigenvalues."""
        return float(np.linalg.norm(self.eigenvalues - 1))

    # --- the points -----------------------------------------------------------------------------------------------

    def welfare(self, efforts: np.ndarray) -> np.ndarray:
        """W(x) = b^T x - x^T G x / 2, [...] for efforts [..., n_heads]. The priced game's potential as well."""
        return efforts @ self.benefits - np.einsum("...i,ij,...j->...", efforts, self.G, efforts) / 2

    def potential(self, efforts: np.ndarray) -> np.ndarray:
        """The implicit game's exact potential b^T x - |x|^2 / 2, [...] for efforts [..., n_heads]."""
        return efforts @ self.benefits - np.square(efforts).sum(-1) / 2

    @property
    def nash(self) -> np.ndarray:
        """Nash point of the implicit game, x = b, [n_heads]: each head does what is best for itself."""
        return self.benefits

    @cached_property
    def optimum(self) -> np.ndarray | None:
        """x* = G^-1 b, [n_heads], which is also the priced game's Nash point; None when welfare has no maximum.

        Of the many optima of a singular G it is the one of least norm.
        """
        if self._no_maximum:
            return None
        values, vectors = self._eigen
        seen = values > self.tolerance
        return vectors[:, seen] @ (vectors[:, seen].T @ self.benefits / values[seen])

    @cached_property
    def _no_maximum(self) -> str:
        """Why welfare has no maximum; empty when it has one."""
        values, vectors = self._eigen
        if values[0] < -self.tolerance:
            return f"G has the eigenvalue {values[0]:.3g}, below 0, so welfare grows without limit"
        along = vectors[:, values <= self.tolerance].T @ self.benefits
        if np.linalg.norm(along) > self.tolerance * np.linalg.norm(self.benefits):
            return "G is singular (heads repeat each other) and their benefits differ, so welfare grows without limit"
        return ""

    # --- the prices of anarchy ------------------------------------------------------------------------------------

    @cached_property
    def price_of_anarchy(self) -> Price:
        """PoA(b) = W(x*) / W(b) = b^T G^-1 b / b^T (2I - G) b, at least 1; 1 when no head has a benefit.

        Unbounded when welfare has no maximum, or when it is not positive at the Nash point, which takes an eigenvalue of G
        of at least 2.
        """
        if not self.benefits.any():
            return Price(1.0)
        if self.optimum is None:
            return Price.unbounded(f"{self._no_maximum}.")
        at_nash = float(self.welfare(self.nash))
        if at_nash <= self.tolerance * float(self.benefits @ self.benefits):
            return Price.unbounded(f"the heads' own best efforts leave no welfare (W = {at_nash:.3g}).")
        return Price(max(1.0, float(self.benefits @ self.optimum) / (2 * at_nash)))

    @property
    def worst_case(self) -> Price:
        """The largest PoA over all benefits, 1 / (1 - |G - I|_2^2): the bound by the spectral norm is reached."""
        low, high = self.eigenvalues[[0, -1]]
        if high >= 2 - self.tolerance:
            return Price.unbounded(f"G has the eigenvalue {high:.3g}: at 2 or more, the heads can destroy all welfare.")
        if low <= self.tolerance:
            return Price.unbounded(f"G has the eigenvalue {max(low, 0.0):.3g}: heads repeat each other.")
        return Price(1 / (1 - self.spectral_norm**2))

    @property
    def worst_benefits(self) -> np.ndarray:
        """Benefits at which PoA is the worst case, [n_heads], norm 1: the eigenvector farthest from the eigenvalue 1."""
        values, vectors = self._eigen
        return vectors[:, abs(values - 1).argmax()]

    @property
    def gamma_bound(self) -> Price:
        """1 / (1 - Gamma(G)^2), never below the worst case; says nothing (unbounded) for Gamma of 1 or more."""
        if self.gamma >= 1 - self.tolerance:
            return Price.unbounded(f"Gamma(G) is {self.gamma:.3g}: the bound by Gamma says nothing at 1 or more.")
        return Price(1 / (1 - self.gamma**2))

    # --- charges and redundancy -----------------------------------------------------------------------------------

    @property
    def charge_rates(self) -> np.ndarray | None:
        """Pigouvian charge per unit of effort at the optimum, sum_{j != i} G_ij x*_j = b_i - x*_i, [n_heads].

        Negative for a head that the others should pay. None when welfare has no maximum.
        """
        return None if self.optimum is None else self.benefits - self.optimum

    @property
    def charges(self) -> np.ndarray | None:
        """What each head pays at the optimum, x*_i sum_{j != i} G_ij x*_j, [n_heads], in units of welfare."""
        return None if self.optimum is None else self.optimum * self.charge_rates

    @cached_property
    def vif(self) -> np.ndarray:
        """Variance inflation factor [G^-1]_ii = 1 / (1 - R_i^2) of each head, [n_heads], at least 1.

        R_i^2 is the part of head i that the others explain: 1 for an orthogonal head, infinite for one that they make up
        whole (a duplicate).
        """
        values, vectors = self._eigen
        seen = values > self.tolerance
        inside = (np.square(vectors[:, seen]) / values[seen]).sum(axis=1)
        explained = np.square(vectors[:, ~seen]).sum(axis=1) > self.tolerance
        return np.where(explained, np.inf, np.maximum(inside, 1.0))

    @property
    def marginal_charges(self) -> np.ndarray:
        """Marginal log-det charge log VIF_i, [n_heads]: how much -log det G falls when head i leaves."""
        return np.log(self.vif)


def redundant(vif: np.ndarray, vif_threshold: float = VIF_THRESHOLD) -> np.ndarray:
    """Heads that the others explain: VIF above the threshold; bool, same shape."""
    return vif > vif_threshold


def free_riders(
    vif: np.ndarray, effect: np.ndarray, vif_threshold: float = VIF_THRESHOLD, low_effect: float = LOW_EFFECT
) -> np.ndarray:
    """Redundant heads whose ablation costs less than `low_effect`; bool, same shape.

    `effect` is the rise of the cross-entropy, nats per token, when the head alone is ablated; NaN where it is not known,
    which makes no head a free rider.
    """
    return redundant(vif, vif_threshold) & (effect < low_effect)


# --- best responses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Where best responses lead.

    Attributes
    ----------
    rounds : rounds played at each point kept, int [points]: every one of the first 256, later ones doubling.
    efforts : [points, n_heads].
    welfare : W of the efforts, [points].
    settled : whether no head wants to move any more at the last point.
    """

    rounds: np.ndarray
    efforts: np.ndarray
    welfare: np.ndarray
    settled: bool


def best_responses(game: HeadGame, priced: bool, step: float = 1.0) -> Dynamics:
    """Heads in turn move towards their best response to the others, from no effort, until none wants to move.

    Without prices the best response is b_i and the path ends at the Nash point b. With the charge it is
    b_i - sum_{j != i} G_ij x_j, and the path ends at the optimum for every G with positive eigenvalues (successive
    over-relaxation with a factor below 2, Ostrowski 1954). A round is one sweep over all heads.

    Parameters
    ----------
    priced : whether heads pay the charge.
    step : how far a head moves towards its best response, in (0, 1]; smaller steps show the way better.
    """
    if not 0 < step <= 1:
        raise ValueError(f"a step of {step} is not in (0, 1]: 1 goes to the best response at once.")
    eye = np.eye(game.n_heads)
    felt = game.G - eye if priced else np.zeros_like(eye)  # what a head feels of the others
    turn_by_turn = eye + step * np.tril(felt, -1)
    M = np.linalg.solve(turn_by_turn, (1 - step) * eye - step * np.triu(felt, 1))
    c = np.linalg.solve(turn_by_turn, step * game.benefits)
    small = max(1e-9 * game.eigenvalues[0], 1e-14) if priced else 1e-12  # so that x is right to 1e-9
    has_end = not priced or game.optimum is not None

    rounds, points, settled = [], [], False
    with np.errstate(over="ignore"):  # without an end the efforts grow, at worst out of float64
        for played, x in _rounds(M, c):
            if not np.isfinite(x).all() or (not has_end and played > _ROUNDS_ONE_BY_ONE):
                break
            rounds.append(played)
            points.append(x)
            wish = game.benefits - x - felt @ x
            settled = has_end and bool(abs(wish).max() <= small * max(abs(game.benefits).max(), abs(x).max()))
            if settled:
                break
    efforts = np.array(points)
    return Dynamics(np.array(rounds), efforts, game.welfare(efforts), settled)


def _rounds(M: np.ndarray, c: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(rounds played, efforts) of x -> M x + c from x = 0: the first rounds one by one, then ever twice as many.

    n rounds are an affine map again, and from x = 0 they lead to its constant part; two such maps in a row are 2n rounds.
    """
    x = np.zeros_like(c)
    yield 0, x
    for played in range(1, _ROUNDS_ONE_BY_ONE + 1):
        x = M @ x + c
        yield played, x
    M, c, played = np.linalg.matrix_power(M, _ROUNDS_ONE_BY_ONE), x, _ROUNDS_ONE_BY_ONE
    for _ in range(_DOUBLINGS):
        M, c, played = M @ M, M @ c + c, 2 * played
        yield played, c
