"""Nash arbitration: how much each task's gradient counts in a step (method.md section 4, after Navon et al., ICML 2022,
arXiv 2202.01017, with bargaining powers).

Everything here sees only the Gramian M = J J^T of the task gradients, in float64 on the CPU: a handful of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-10  # on a_k (M a)_k = p_k, relative to the powers
MAX_ITERATIONS = 100
LARGEST = 1e3  # beyond it, rounding in M a outweighs the tolerance
# |J^T a| at most this share of sum_k a_k |g_k|: weights so much larger than the step they make are not carried on.
OPPOSED = 0.05


class NotConverged(ArithmeticError):
    """The solver did not reach the bargaining solution."""


class Opposed(ArithmeticError):
    """The gradients cancel: no direction helps every task, and the bargain has no solution of moderate size."""


@dataclass(frozen=True)
class Bargain:
    """One arbitration.

    Attributes
    ----------
    weights : a, float64 [tasks], >= 0; 0 for a task outside the bargain.
    outcome : "solved"; "alone" (fewer than two tasks had power and a gradient); "opposed" (the gradients cancel, the
        reference task goes on alone); "failed" (the solver did not converge, the powers weigh the normalized gradients).
    zero : tasks with power but no gradient, which left the bargain.
    """

    weights: np.ndarray
    outcome: str
    zero: tuple[int, ...]


def bargaining_weights(gramian: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Weights a > 0 with a_k (M a)_k = p_k: the minimum of 1/2 a^T M a - sum_k p_k log a_k.

    All powers 1 is Nash-MTL up to scale. Damped Newton on the diagonally scaled M, so that gradients of very different
    length are no harder than equal ones; scaling task k by c divides a_k by c and changes nothing else.

    Parameters
    ----------
    gramian : M = J J^T, [tasks, tasks], positive semidefinite with a positive diagonal.
    powers : p > 0, [tasks].

    Raises
    ------
    Opposed
        When the solution is more than `LARGEST` times longer than that of tasks that do not meet; exactly opposite
        gradients have none.
    NotConverged
        When the condition is not met to `TOLERANCE`.
    """
    scale = 1 / np.sqrt(np.diag(gramian))
    matrix = gramian * scale[:, None] * scale  # unit diagonal
    weights = np.sqrt(powers)  # the solution when no two gradients meet
    for _ in range(MAX_ITERATIONS):
        pull = matrix @ weights
        if np.abs(weights * pull - powers).max() <= TOLERANCE * powers.max():
            return weights * scale
        if weights.max() > LARGEST * np.sqrt(powers.sum()):
            raise Opposed("the gradients cancel")
        slope = pull - powers / weights
        step = np.linalg.solve(matrix + np.diag(powers / weights**2), -slope)
        # With the largest relative change bounded like this, a stays positive and every step descends.
        weights = weights + step / (1 + np.abs(step / weights).max())
    raise NotConverged(f"no bargaining solution after {MAX_ITERATIONS} Newton steps")


def arbitrate(gramian: np.ndarray, powers: np.ndarray, reference: int = 0) -> Bargain:
    """Weights for one step, scaled so that the step is as long as the reference task's alone: |J^T a| = |g_reference|.

    A task without power or without gradient takes no part. When the gradients cancel to within `OPPOSED`, no direction
    helps every task, and the reference goes on alone. `outcome` says when that, or a failure of the solver, happened.

    Parameters
    ----------
    gramian : M = J J^T, [tasks, tasks].
    powers : p >= 0, [tasks].
    reference : the task whose gradient gives the step its length.

    Raises
    ------
    ValueError
        When the Gramian or the powers are not finite.
    """
    gramian, powers = np.asarray(gramian, dtype=np.float64), np.asarray(powers, dtype=np.float64)
    if not (np.isfinite(gramian).all() and np.isfinite(powers).all()):
        raise ValueError(f"cannot arbitrate between gradients that are not finite: Gramian {gramian.tolist()}.")
    norms = np.sqrt(np.diag(gramian).clip(0))
    zero = tuple(int(task) for task in np.flatnonzero((norms == 0) & (powers > 0)))
    active = np.flatnonzero((norms > 0) & (powers > 0))
    alone = np.zeros(len(powers))
    alone[reference] = 1.0
    if len(active) < 2 or reference not in active:
        return Bargain(alone, "alone", zero)
    matrix, weights = gramian[np.ix_(active, active)], alone.copy()
    try:
        solved, outcome = bargaining_weights(matrix, powers[active]), "solved"
    except Opposed:
        return Bargain(alone, "opposed", zero)
    except (NotConverged, np.linalg.LinAlgError):
        solved, outcome = powers[active] / norms[active], "failed"
    length = np.sqrt(max(solved @ matrix @ solved, 0.0))
    if length <= OPPOSED * (solved @ norms[active]):
        return Bargain(alone, "opposed", zero)
    weights[active] = solved * norms[reference] / length
    return Bargain(weights, outcome, zero)
