"""omega, rho, G and Gamma against an oracle that shares nothing with the product.

In float64, one row, one token, one head at a time, and without a hook.
"""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from analysis import interaction
from tests.tiny import measured, padded_batch, tiny_model, tiny_rows

COUPLING_AND_GRADIENT = list(itertools.product(interaction.COUPLINGS, interaction.GRADIENTS))

MODELS = {  # architecture -> (attention modules, output weight of one of them as [d_model, heads * width], head width)
    "llama": (lambda m: [b.self_attn for b in m.model.layers], lambda a: a.o_proj.weight, 8),
    "qwen3": (lambda m: [b.self_attn for b in m.model.layers], lambda a: a.o_proj.weight, 24),
    "gpt2": (lambda m: [b.attn for b in m.transformer.h], lambda a: a.c_proj.weight.T, 8),
    "gpt_neox": (lambda m: [b.attention for b in m.gpt_neox.layers], lambda a: a.dense.weight, 8),
    "falcon_new": (lambda m: [b.self_attention for b in m.transformer.h], lambda a: a.dense.weight, 8),
    "lfm2": (lambda m: [b.self_attn for b in m.model.layers if hasattr(b, "self_attn")], lambda a: a.out_proj.weight, 8),
}


def attention_gradients(model, modules, row):
    """eta_t of one row at each attention module's output, [seq_len, d_model] each, through a zero added to that output."""
    if len(row) == 1:  # predicts nothing
        return [torch.zeros(1, model.config.hidden_size, dtype=torch.float64) for _ in modules], 0.0
    shifts = [torch.zeros(len(row), model.config.hidden_size, dtype=torch.float64, requires_grad=True) for _ in modules]

    def shifted(call, shift):
        def forward(*args, **kwargs):
            output = call(*args, **kwargs)
            return (output[0] + shift, *output[1:]) if isinstance(output, tuple) else output + shift

        return forward

    originals = [module.forward for module in modules]
    for module, original, shift in zip(modules, originals, shifts, strict=True):
        module.forward = shifted(original, shift)
    logits = model(input_ids=row[None]).logits[0]
    for module, original in zip(modules, originals, strict=True):
        module.forward = original
    loss = sum(-torch.log_softmax(logits[t].double(), -1)[row[t + 1]] for t in range(len(row) - 1))
    return torch.autograd.grad(loss, shifts), float(loss)


def oracle(architecture, model, rows, coupling, gradient):
    """(omega, rho, loss) with omega and rho as nested loops over heads and tokens write them, [layers, heads, heads]."""
    find, output_weight, width = MODELS[architecture]
    model = copy.deepcopy(model).double()
    modules = find(model)
    per_row, loss = [], 0.0
    for row in rows:
        etas, row_loss = attention_gradients(model, modules, row)
        per_row.append(etas)
        loss += row_loss
    omegas, rhos = [], []
    for index, module in enumerate(modules):
        weight = output_weight(module).detach()
        W = [weight[:, h * width : (h + 1) * width] for h in range(weight.shape[1] // width)]
        eta = [token for etas in per_row for token in etas[index]]
        if gradient == "mean":
            eta = [sum(eta) / len(eta)]
        g = [[W_i.T @ token for token in eta] for W_i in W]
        if coupling == "invariant":
            g = [[W_i @ vector for vector in of_head] for W_i, of_head in zip(W, g, strict=True)]
        H = len(W)
        omega, rho = np.empty((H, H)), np.empty((H, H))
        for i, j in itertools.product(range(H), range(H)):
            if coupling == "paper":
                omega[i, j] = float((W[i] * W[j]).sum() / (W[i].norm() * W[j].norm()))
            else:
                omega[i, j] = float((W[i].T @ W[j]).norm() ** 2 / ((W[i].T @ W[i]).norm() * (W[j].T @ W[j]).norm()))
            inner = sum(float(a @ b) for a, b in zip(g[i], g[j], strict=True))
            rho[i, j] = inner / math.sqrt(sum(float(a @ a) for a in g[i]) * sum(float(b @ b) for b in g[j]))
        omegas.append(omega)
        rhos.append(rho)
    return np.stack(omegas), np.stack(rhos), loss


@pytest.mark.parametrize(("coupling", "gradient"), COUPLING_AND_GRADIENT)
@pytest.mark.parametrize("architecture", MODELS)
def test_matches_the_oracle(architecture, coupling, gradient):
    model, rows = tiny_model(architecture), tiny_rows(3, 7)
    omega, rho, loss = oracle(architecture, model, rows, coupling, gradient)
    result = measured(model, [rows[:2], rows[2:]], gradient=gradient).view(coupling)
    np.testing.assert_allclose(result.omega, omega, atol=1e-5)
    np.testing.assert_allclose(result.rho, rho, atol=5e-5)
    np.testing.assert_allclose(result.G, omega * rho, atol=5e-5)
    gamma = [math.sqrt(((G - np.eye(4)) ** 2).sum()) for G in omega * rho]
    np.testing.assert_allclose(result.gamma, gamma, rtol=2e-4)
    assert result.tokens == 3 * 6 and result.cross_entropy == pytest.approx(loss / 18, rel=1e-5)
    off_diagonal = np.abs(result.G[:, ~np.eye(4, dtype=bool)])
    assert off_diagonal.mean() > 0.1  # far from the identity, or agreement would say nothing


@pytest.mark.parametrize(("coupling", "gradient"), COUPLING_AND_GRADIENT)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "lfm2"])
def test_padding_never_counts(architecture, side, coupling, gradient):
    """Rows of unequal length in one padded batch give what the oracle finds on each row alone."""
    model = tiny_model(architecture)
    rows = [tiny_rows(1, length, seed=length)[0] for length in (4, 7, 1, 5)]
    omega, rho, loss = oracle(architecture, model, rows, coupling, gradient)
    result = measured(model, [padded_batch(rows, side)], gradient=gradient).view(coupling)
    assert result.tokens == sum(len(row) - 1 for row in rows)
    assert result.batch_loss.sum() == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(result.omega, omega, atol=1e-5)
    np.testing.assert_allclose(result.rho, rho, atol=5e-5)
