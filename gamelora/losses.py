"""The two regularizers of GAME-LoRA as pure functions (method.md section 4): log-determinant barrier and cross-head Barlow Twins.

Both are functions of sums over tokens, the moment of eta and the correlation of the heads' features. `reduce` adds such a
sum over processes, so that a loss and its gradient are those of the whole batch however it is cut. Computed in float32 or
better whatever the inputs' dtype, outside autocast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from analysis.interaction import block_sum, cosine, head_interaction, weight_gram

Reduce = Callable[[Tensor], Tensor]
# A feature whose deviation is below this share of its mean is constant: what is left of it is rounding.
CONSTANT = 1e-5


def _full_precision(function: Callable) -> Callable:
    @functools.wraps(function)
    def outside_autocast(first: Tensor, *arguments, **options):
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *arguments, **options)

    return outside_autocast


# --- the barrier --------------------------------------------------------------------------------------------------


@_full_precision
def interaction_from_moment(weights: Tensor, moment: Tensor, coupling: str = "paper") -> Tensor:
    """G = omega o rho as a function of the heads' weights, eta held fixed; [n_heads, n_heads], differentiable in `weights`.

    rho needs eta only through its second moment: sum_t <W_i^T eta_t, W_j^T eta_t> = <W_i, M W_j>_F, and for the
    invariant coupling sum_t <W_i W_i^T eta_t, W_j W_j^T eta_t> sums block (i, j) of W^T W o W^T M W. Moments add up over
    micro-batches and processes, so G does not depend on how the batch is cut.

    Parameters
    ----------
    weights : effective W_i, [n_heads, d_model, d_head].
    moment : M = sum_t eta_t eta_t^T over the valid tokens, [d_model, d_model]; its scale does not matter.
    coupling : "paper" or "invariant".
    """
    weights, moment = weights.float(), moment.detach().float()
    n_heads = weights.shape[0]
    omega = cosine(weight_gram(weights, coupling))
    columns = weights.permute(1, 0, 2).flatten(1)  # [d_model, n_heads * d_head]
    if coupling == "paper":
        flat = weights.flatten(1)
        gram = flat @ (moment @ columns).unflatten(1, (n_heads, -1)).transpose(0, 1).flatten(1).T
    else:
        gram = block_sum((columns.T @ columns) * (columns.T @ (moment @ columns)), n_heads)
    return head_interaction(omega, cosine(gram))


@_full_precision
def log_det_barrier(G: Tensor, epsilon: float = 0.01) -> Tensor:
    """L_LDB = -log det(G + epsilon I), a scalar; large when heads are coupled, finite also for duplicate heads.

    Two near-duplicate heads are pushed apart; at an exact duplicate, where omega and rho are at their maximum, the
    gradient is 0 and finite.
    """
    G = G.to(torch.promote_types(G.dtype, torch.float32))
    return -torch.logdet(G + epsilon * torch.eye(G.shape[-1], dtype=G.dtype, device=G.device))


def barrier_floor(n_heads: int, epsilon: float = 0.01) -> float:
    """The barrier's minimum, at G = I: -n_heads log(1 + epsilon)."""
    return -n_heads * math.log1p(epsilon)


# --- cross-head Barlow Twins --------------------------------------------------------------------------------------


class _SumOverProcesses(torch.autograd.Function):
    """Add a tensor over processes. Every process computes the same loss of the sum, so the gradient passes as it is."""

    @staticmethod
    def forward(ctx, part: Tensor, reduce: Reduce) -> Tensor:
        return reduce(part.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gram(torch.autograd.Function):
    """z^T z, [width, width]; its gradient costs one product, not the two of autograd's own rule."""

    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.T @ z

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return z @ (gradient + gradient.T)


@_full_precision
def feature_correlation(z: Tensor, tokens: int | None = None, reduce: Reduce | None = None) -> Tensor:
    """Correlation of every pair of head features over tokens, [width, width] with width = n_heads * d_head.

    Block (i, j) is C_ij = (1/N) Z_i^T Z_j of the z-scored outputs of heads i and j. The outputs are centred and multiplied
    once, and the deviations divided out of the product: the z-scored copy is never made. A constant feature correlates
    with nothing.

    Parameters
    ----------
    z : head outputs at the valid tokens, [tokens, width].
    tokens : N over all processes, the rows of `z` by default.
    reduce : adds a tensor over processes.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    tokens = tokens or max(z.shape[0], 1)
    with torch.no_grad():  # centred outputs add up to 0, so no gradient passes through their mean
        total = z.sum(0)
        mean = (total if reduce is None else reduce(total)) / tokens
    gram = _Gram.apply(z - mean)
    if reduce is not None:
        gram = _SumOverProcesses.apply(gram, reduce)
    constant = gram.detach().diagonal() <= tokens * (CONSTANT * mean).square()
    return cosine(gram.masked_fill(constant | constant[:, None], 0.0))


def pair_weights(G: Tensor, a: float = 0.929, b: float = 15.99, tau: float = 0.0) -> Tensor:
    """w_ij = a + (1 - a) softplus(-b (G_ij - tau)), [n_heads, n_heads]: strongly coupled pairs pay less.

    G is detached: otherwise the weight itself would push coupling up.
    """
    return a + (1 - a) * F.softplus(-b * (G.detach() - tau))


@_full_precision
def barlow_twins(
    z: Tensor, weights: Tensor, target: str = "identity", tokens: int | None = None, reduce: Reduce | None = None
) -> Tensor:
    """L_BT = mean over pairs i < j of w_ij |C_ij - target|_F^2, a scalar; one matrix product for all pairs.

    0 without a gradient for fewer than two tokens or two heads.

    Parameters
    ----------
    z : head outputs at the valid tokens, padding left out, [tokens, n_heads * d_head].
    weights : w, [n_heads, n_heads], such as `pair_weights`; only i < j is read.
    target : "identity" (the paper's), or "zero" (uniform decorrelation).
    tokens : their number over all processes, the rows of `z` by default.
    reduce : adds a tensor over processes; the loss and the gradient at z are then those of all tokens together.
    """
    n_heads = weights.shape[0]
    if n_heads < 2 or (z.shape[0] if tokens is None else tokens) < 2:
        return z.sum() * 0.0
    deviation = feature_correlation(z, tokens, reduce)
    if target == "identity":
        block = torch.eye(z.shape[1] // n_heads, dtype=deviation.dtype, device=z.device)
        deviation = deviation - block.repeat(n_heads, n_heads)
    distances = block_sum(deviation.square(), n_heads)  # [n_heads, n_heads], |C_ij - target|_F^2
    pairs = torch.ones_like(distances).triu(1)
    return (distances * weights * pairs).sum() / pairs.sum()
