"""G in half precision, and for a loss of any size."""

import numpy as np
import pytest
import torch

from analysis import interaction
from analysis.interaction import Meter, causal_loss
from tests.tiny import measured, tiny_model, tiny_rows


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-6, 300.0])
def test_scaling_the_loss_leaves_G(scale, dtype, gradient, monkeypatch):
    """A loss of any size, also one whose gradients are below what float16 can hold (C16)."""
    model, rows = tiny_model("llama").to(dtype), tiny_rows()
    plain = measured(model, [rows], gradient=gradient)

    def scaled(*arguments):
        loss, tokens = causal_loss(*arguments)
        return loss * scale, tokens

    monkeypatch.setattr(interaction, "causal_loss", scaled)
    result = measured(model, [rows], gradient=gradient)
    for coupling in interaction.COUPLINGS:
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
        np.testing.assert_allclose(result.view(coupling).G, plain.view(coupling).G, atol=tolerance)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "opt", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_cpu(architecture, dtype):
    exact = measured(tiny_model(architecture), [tiny_rows()])
    model = tiny_model(architecture).to(dtype)
    result = measured(model, [tiny_rows()])
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for coupling in interaction.COUPLINGS:
        assert result.weight_grams[coupling].dtype == result.gradient_sums[coupling].dtype == np.float32
        assert np.abs(result.view(coupling).G - exact.view(coupling).G).max() < (0.02 if dtype == torch.bfloat16 else 0.005)


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_float16_batches_are_summed_on_one_scale(gradient, monkeypatch):
    """A batch whose gradients overflow is measured again at a smaller scale; its sums still count like the others'."""
    scales = []

    def ever_larger(model, batch):
        loss, tokens = causal_loss(model, batch)
        scales.append(float(batch["input_ids"].float().mean()))
        return loss * 4 ** (len(set(scales)) - 1), tokens

    monkeypatch.setattr(interaction, "causal_loss", ever_larger)
    batches = tiny_rows(4, 10).split(1)
    exact = measured(tiny_model("llama"), batches, gradient=gradient)
    assert len(scales) == 4
    scales.clear()
    result = measured(tiny_model("llama").half(), batches, gradient=gradient)
    assert len(scales) > 6 and scales.count(scales[-1]) > 1  # later batches, too, had to be repeated
    for coupling in interaction.COUPLINGS:
        for got, expected in zip(result.gradient_sums[coupling], exact.gradient_sums[coupling], strict=True):
            np.testing.assert_allclose(got, expected, atol=0.02 * np.abs(expected).max(), rtol=0)
        np.testing.assert_allclose(result.view(coupling).G, exact.view(coupling).G, atol=0.005)


def test_a_model_that_overflows_does_not_hang():
    model = tiny_model("llama").half()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(60000.0)
    sums = Meter(model).measure({"input_ids": tiny_rows()})
    assert not sums.gradient["paper"].isfinite().all()
