"""bfloat16 products for a CPU without bfloat16 arithmetic, whose own backward products take eighty times as long as float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch


class _Product(torch.autograd.Function):
    """A bfloat16 product added up in float32 and rounded once, as every bfloat16 unit does it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return (x.float() @ weight.float().T).bfloat16()

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return (gradient.float() @ weight.float()).bfloat16(), None


def has_bfloat16_unit() -> bool:
    """Whether this CPU multiplies bfloat16 itself."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextlib.contextmanager
def bfloat16_unit() -> Iterator[None]:
    """Inside the block, linear layers of a frozen bfloat16 model multiply as on a CPU that has such a unit."""
    if has_bfloat16_unit():
        yield
    else:
        with mock.patch.object(torch.nn.functional, "linear", lambda x, weight, bias=None: _Product.apply(x, weight)):
            yield
