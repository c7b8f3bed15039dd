"""The couplings against an oracle that shares nothing with the product, and the properties of method.md section 2."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload
from peft import PeftModel
from torch import nn

from analysis import interaction
from analysis.heads import attention_layers, kv_groups
from analysis.interaction import Meter, block_sum, causal_loss, cosine, gradient_gram, invariant_gradient_gram, weight_gram
from tests.tiny import ARCHITECTURES, VOCAB, measured, padded_batch, tiny_model, tiny_rows, with_adapter

COUPLING_AND_GRADIENT = list(itertools.product(interaction.COUPLINGS, interaction.GRADIENTS))
WITH_SDPA = sorted(set(ARCHITECTURES) - {"gemma2"})  # whose scores are capped, which sdpa cannot do


# --- an oracle: float64, one row, one token, one head at a time, no hook --------------------------------------------

ORACLE_MODELS = {  # architecture -> (attention modules, output weight of one of them as [d_model, heads * width], head width)
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
    find, output_weight, width = ORACLE_MODELS[architecture]
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
@pytest.mark.parametrize("architecture", ORACLE_MODELS)
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


# --- the formulas -------------------------------------------------------------------------------------------------


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_gradient_grams_by_loops():
    gradient, weights = random(20, 12), random(3, 5, 4, seed=1)
    heads = [[gradient[t, 4 * h : 4 * h + 4].double() for t in range(20)] for h in range(3)]
    u = [[weights[h].double() @ vector for vector in heads[h]] for h in range(3)]
    for vectors, got in (
        (heads, gradient_gram(gradient, 3)),
        (u, invariant_gradient_gram(gradient, torch.cat(list(weights), 1).T @ torch.cat(list(weights), 1), 3)),
    ):
        expected = [[sum(float(a @ b) for a, b in zip(vectors[i], vectors[j], strict=True)) for j in range(3)] for i in range(3)]
        torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grams_are_float32_whatever_the_gradient(dtype):
    gradient = (200 * random(300, 12)).to(dtype)  # squares leave float16's range
    gram = gradient_gram(gradient, 3)
    assert gram.dtype == torch.float32
    heads = gradient.double().unflatten(1, (3, 4))
    torch.testing.assert_close(gram.double(), torch.einsum("tik,tjk->ij", heads, heads), rtol=1e-4, atol=10)
    weights = random(3, 5, 4).to(dtype)
    for coupling in interaction.COUPLINGS:
        gram = weight_gram(weights, coupling)
        assert gram.dtype == torch.float32
        torch.testing.assert_close(gram, weight_gram(weights.double().float(), coupling))


def test_weight_gram_by_hand():
    weights = torch.tensor([[[1.0], [0.0]], [[3.0], [4.0]]])  # two heads of width 1 in a plane
    torch.testing.assert_close(weight_gram(weights, "paper"), torch.tensor([[1.0, 3.0], [3.0, 25.0]]))
    torch.testing.assert_close(weight_gram(weights, "invariant"), torch.tensor([[1.0, 9.0], [9.0, 625.0]]))


def test_block_sum():
    torch.testing.assert_close(block_sum(torch.arange(16.0).view(4, 4), 2), torch.tensor([[10.0, 18.0], [42.0, 50.0]]))


def test_weight_gram_is_differentiable():
    weights = random(3, 4, 2).double().requires_grad_()
    for coupling in interaction.COUPLINGS:
        gram = weight_gram(weights, coupling)
        (gradient,) = torch.autograd.grad(cosine(gram)[0, 1], weights)
        assert gradient[:2].abs().max() > 1e-3 and gradient[2].abs().max() == 0


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_cosine_is_a_correlation_matrix(scale):
    vectors = random(6, 3)  # rank 3: singular
    got = cosine(scale * vectors @ vectors.T)
    assert torch.equal(got, got.T) and torch.equal(got.diagonal(), torch.ones(6))
    assert got.abs().max() <= 1
    assert torch.linalg.eigvalsh(got.double()).min() > -1e-5
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got, unit @ unit.T, atol=1e-5, rtol=0)


def test_cosine_of_parallel_vectors_stays_within_one():
    vectors = random(200, 3, seed=3)
    vectors[100:] = 3 * vectors[:100]
    got = cosine(vectors @ vectors.T)
    assert got.abs().max() <= 1
    torch.testing.assert_close(got[:100, 100:].diagonal(), torch.ones(100))


def test_cosine_of_a_zero_member():
    vectors = random(4, 3)
    vectors[2] = 0
    gram = (vectors @ vectors.T).requires_grad_()
    got = cosine(gram)
    assert torch.equal(got[2], torch.tensor([0.0, 0.0, 1.0, 0.0])) and torch.equal(got[:, 2], got[2])
    (gradient,) = torch.autograd.grad(got.sum(), gram)
    assert gradient.isfinite().all()
    assert torch.equal(cosine(torch.zeros(3, 3)), torch.eye(3))


def test_cosine_over_leading_dimensions():
    grams = torch.stack([random(4, 3, seed=s) @ random(4, 3, seed=s).T for s in range(6)]).view(2, 3, 4, 4)
    torch.testing.assert_close(cosine(grams)[1, 2], cosine(grams[1, 2]))


def test_interaction_strength():
    assert interaction.interaction_strength(torch.eye(5)) == 0
    assert interaction.interaction_strength(torch.ones(5, 5)) == pytest.approx(math.sqrt(20))
    assert interaction.interaction_strength(torch.stack([torch.eye(3), -torch.ones(3, 3)])).shape == (2,)
    assert interaction.interaction_strength(torch.tensor([[1.0, -0.6], [-0.6, 1.0]])) == pytest.approx(0.6 * math.sqrt(2))


# --- properties of the measurement --------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_G_is_a_psd_correlation_matrix(architecture, gradient):
    result = measured(tiny_model(architecture), [tiny_rows()], gradient=gradient)
    for coupling in interaction.COUPLINGS:
        view = result.view(coupling)
        for matrix in (view.omega, view.rho, view.G):
            assert matrix.shape == (2, 4, 4)
            assert np.array_equal(matrix, matrix.swapaxes(1, 2))
            assert np.array_equal(np.diagonal(matrix, axis1=1, axis2=2), np.ones((2, 4)))
            assert np.abs(matrix).max() <= 1
            assert np.linalg.eigvalsh(matrix).min() > -1e-6
        assert not view.heads_flagged.any()
        assert (view.gamma > 0).all() and (view.gamma_normalized < 1).all()


def permute_heads(model, order):
    """The same function with head `order[i]` of every layer in place i (Llama, as many kv heads as heads)."""
    with torch.no_grad():
        for block in model.model.layers:
            attention = block.self_attn
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(attention, name).weight
                weight.copy_(weight.unflatten(0, (4, 8))[order].flatten(0, 1))
            attention.o_proj.weight.copy_(attention.o_proj.weight.unflatten(1, (4, 8))[:, order].flatten(1))


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_permuting_heads_permutes_G(gradient):
    model, rows = tiny_model("llama", num_key_value_heads=4), tiny_rows()
    order = [2, 0, 3, 1]
    permuted = copy.deepcopy(model)
    permute_heads(permuted, order)
    with torch.no_grad():
        torch.testing.assert_close(permuted(rows).logits, model(rows).logits, atol=1e-5, rtol=1e-4)
    before, after = (measured(m, [rows], gradient=gradient) for m in (model, permuted))
    for coupling in interaction.COUPLINGS:
        expected = before.view(coupling).G[:, order][:, :, order]
        np.testing.assert_allclose(after.view(coupling).G, expected, atol=2e-5)
        assert np.abs(expected - before.view(coupling).G).max() > 0.01


def rotate_values(model, seed=0):
    """Rotate the value basis of every kv group: W_V -> R^T W_V and W_O -> W_O R for the heads that share it (Llama)."""
    with torch.no_grad():
        for index, block in enumerate(model.model.layers):
            attention, config = block.self_attn, model.config
            width, groups = attention.head_dim, kv_groups(config.num_attention_heads, config.num_key_value_heads)
            for group in set(groups):
                R = torch.linalg.qr(random(width, width, seed=seed + 10 * index + group))[0]
                values = attention.v_proj.weight[group * width : (group + 1) * width]
                values.copy_(R.T @ values)
                for head in (head for head, of in enumerate(groups) if of == group):
                    out = attention.o_proj.weight[:, head * width : (head + 1) * width]
                    out.copy_(out @ R)


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_only_the_invariant_coupling_ignores_the_value_basis(n_kv_heads, gradient):
    model, rows = tiny_model("llama", num_key_value_heads=n_kv_heads), tiny_rows()
    rotated = copy.deepcopy(model)
    rotate_values(rotated)
    with torch.no_grad():
        torch.testing.assert_close(rotated(rows).logits, model(rows).logits, atol=1e-4, rtol=1e-4)
    before, after = (measured(m, [rows], gradient=gradient) for m in (model, rotated))
    for name in ("omega", "rho", "G"):
        same = [getattr(result.view("invariant"), name) for result in (before, after)]
        np.testing.assert_allclose(*same, atol=5e-5)
        paper = np.abs(getattr(after, name) - getattr(before, name))
        between = np.not_equal.outer(kv_groups(4, n_kv_heads), kv_groups(4, n_kv_heads))
        assert paper[:, ~between].max() < 5e-5  # heads that share the basis turn together
        assert n_kv_heads == 1 or paper[:, between].max() > 0.2


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_a_row_counts_the_same_in_any_batch(gradient):
    model, rows = tiny_model("llama"), tiny_rows(5, 8)
    meter = Meter(model, interaction.COUPLINGS, gradient)
    whole = meter.measure({"input_ids": rows})
    assert whole.loss.shape == whole.tokens.shape == (5,) and whole.tokens.tolist() == [7] * 5
    for cut in ([1, 1, 1, 1, 1], [2, 3], [4, 1]):
        parts = [meter.measure({"input_ids": part}) for part in rows.split(cut)]
        torch.testing.assert_close(torch.cat([part.loss for part in parts]), whole.loss)
        for coupling in interaction.COUPLINGS:
            once = whole.gradient[coupling]
            assert once.shape[:3] == (5, 2, 4) and once.dtype == torch.float32
            again = torch.cat([part.gradient[coupling] for part in parts])
            torch.testing.assert_close(again, once, atol=1e-5 * float(once.abs().max()), rtol=0)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("architecture", "attention"), [*((name, "eager") for name in ARCHITECTURES), *((name, "sdpa") for name in WITH_SDPA)]
)
def test_a_padded_row_counts_as_it_does_alone(architecture, attention, side):
    meter = Meter(tiny_model(architecture, attention), interaction.COUPLINGS)
    rows = [tiny_rows(1, length, seed=length)[0] for length in (4, 9, 6)]
    together = meter.measure(padded_batch([*rows, rows[0][:0]], side))  # the last row is all padding
    assert together.tokens[3] == together.loss[3] == 0
    assert not any(together.gradient[coupling][3].any() for coupling in interaction.COUPLINGS)
    for index, row in enumerate(rows):
        alone = meter.measure({"input_ids": row[None]})
        assert together.tokens[index] == alone.tokens[0] == len(row) - 1
        torch.testing.assert_close(together.loss[index], alone.loss[0])
        for coupling in interaction.COUPLINGS:
            expected = alone.gradient[coupling][0]
            close = {"atol": 2e-5 * float(expected.abs().max()), "rtol": 0}
            torch.testing.assert_close(together.gradient[coupling][index], expected, **close)


@pytest.mark.parametrize("architecture", WITH_SDPA)
def test_eager_equals_sdpa(architecture):
    rows = tiny_rows(3, 12)
    batch = padded_batch([rows[0], rows[1, :7]], "left")
    eager, sdpa = (measured(tiny_model(architecture, attention), [rows, batch]) for attention in ("eager", "sdpa"))
    for coupling in interaction.COUPLINGS:
        np.testing.assert_allclose(eager.view(coupling).G, sdpa.view(coupling).G, atol=1e-4)


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


# --- heads of special kinds ---------------------------------------------------------------------------------------


def test_heads_with_equal_output_weights_are_one_player():
    model = tiny_model("llama", num_key_value_heads=4)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight[:, :8] = block.self_attn.o_proj.weight[:, 16:24]
    for gradient in interaction.GRADIENTS:
        result = measured(model, [tiny_rows()], gradient=gradient)
        for coupling in interaction.COUPLINGS:
            G = result.view(coupling).G
            np.testing.assert_allclose(G[:, 0, 2], 1, atol=1e-6)
            np.testing.assert_allclose(G[:, 0], G[:, 2], atol=1e-6)
            assert np.isfinite(result.view(coupling).gamma).all()


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_without_output_weight_is_flagged(dtype, gradient):
    model = tiny_model("llama").to(dtype)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0
    result = measured(model, [tiny_rows()], gradient=gradient)
    for coupling in interaction.COUPLINGS:
        view = result.view(coupling)
        assert view.heads_flagged.tolist() == [[False] * 4, [False, False, True, False]]
        for matrix in (view.omega, view.rho, view.G):
            assert matrix[1, 2].tolist() == matrix[1, :, 2].tolist() == [0, 0, 1, 0]
            assert np.isfinite(matrix).all()
        assert (np.abs(view.G[1, 0, [1, 3]]) > 0.01).all()


def test_a_head_without_values_still_receives_a_gradient():
    model = tiny_model("llama", num_key_value_heads=4)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight[8:16] = 0  # head 1 writes z = 0
    result = measured(model, [tiny_rows()])
    for coupling in interaction.COUPLINGS:
        assert np.isfinite(result.view(coupling).G).all() and not result.view(coupling).heads_flagged.any()


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_a_text_that_predicts_nothing_flags_every_head(gradient):
    for batch in ({"input_ids": tiny_rows(2, 1)}, {"input_ids": tiny_rows(), "labels": torch.full((3, 10), -100)}):
        result = measured(tiny_model("llama"), [batch], gradient=gradient)
        assert result.tokens == 0 and result.batch_loss.tolist() == [0]
        for coupling in interaction.COUPLINGS:
            assert result.view(coupling).heads_flagged.all()
            assert np.array_equal(result.view(coupling).G, np.stack([np.eye(4)] * 2))


def test_one_head():
    result = measured(tiny_model("llama", num_attention_heads=1, num_key_value_heads=1), [tiny_rows()])
    for coupling in interaction.COUPLINGS:
        view = result.view(coupling)
        assert np.array_equal(view.G, np.ones((2, 1, 1)))
        assert view.gamma.tolist() == view.gamma_normalized.tolist() == [0, 0]


def test_more_heads_than_model_width():
    settings = {"hidden_size": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 4}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        result = measured(tiny_model("qwen3", **settings).to(dtype), [tiny_rows()])
        for coupling in interaction.COUPLINGS:
            G = result.view(coupling).G
            assert G.shape == (2, 16, 16) and np.linalg.eigvalsh(G).min() > -1e-5


def test_labels_choose_what_is_predicted():
    """-100 is not predicted; a prompt's tokens pass gradients on without being predicted themselves."""
    model, rows = tiny_model("llama"), tiny_rows(2, 8)
    labels = rows.clone()
    labels[:, :5] = -100
    loss, tokens = causal_loss(model, {"input_ids": rows, "labels": labels})
    with torch.no_grad():
        log_p = torch.log_softmax(model(rows).logits.double(), -1)
    expected = -sum(float(log_p[row, t - 1, rows[row, t]]) for row in range(2) for t in range(5, 8))
    assert tokens.tolist() == [3, 3] and float(loss.sum()) == pytest.approx(expected, rel=1e-5)
    masked = measured(model, [{"input_ids": rows, "labels": labels}])
    assert masked.tokens == 6 and np.abs(masked.G - measured(model, [rows]).G).max() > 1e-3


def test_unknown_settings_are_refused():
    model = tiny_model("llama")
    with pytest.raises(ValueError, match="'tokens' is not one of token, mean"):
        Meter(model, gradient="tokens")
    with pytest.raises(ValueError, match="'gauge' is not one of paper, invariant"):
        Meter(model, ("paper", "gauge"))


def test_a_choice_of_layers():
    model, rows = tiny_model("llama", num_hidden_layers=3), {"input_ids": tiny_rows()}
    every = Meter(model, ("paper", "invariant")).measure(rows)
    some = Meter(model, ("paper", "invariant"), layers=attention_layers(model)[1:]).measure(rows)
    for coupling in interaction.COUPLINGS:
        torch.testing.assert_close(some.gradient[coupling], every.gradient[coupling][:, 1:])


# --- the model comes back as it was -------------------------------------------------------------------------------


def state(model):
    """All that a measurement could leave behind, by name."""
    kinds = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
    return {
        "flags": [(name, p.requires_grad, p.is_meta) for name, p in model.named_parameters()],
        "gradients": [(name, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()],
        "values": [(name, value.clone()) for name, value in model.state_dict().items()],
        "modes": [(name, m.training) for name, m in model.named_modules()],
        "hooks": [(name, kind, list(getattr(m, kind).values())) for name, m in model.named_modules() for kind in kinds],
    }


def assert_same_state(before, after):
    for kind, entries in before.items():
        assert len(entries) == len(after[kind])
        for left, right in zip(entries, after[kind], strict=True):
            for a, b in zip(left, right, strict=True):
                same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
                assert same, (kind, left[0])


def prepared():
    """A model in the middle of a training: mixed flags, train mode, gradients there, checkpointing on, a hook of its own."""
    model = with_adapter(tiny_model("llama"), modules_to_save=["lm_head"], lora_dropout=0.2)
    model.train()
    model.base_model.model.model.layers[1].mlp.eval()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tiny_rows(), use_cache=False).logits.square().mean().backward()
    model.get_submodule(attention_layers(model)[0].name).register_forward_hook(lambda *_: None)
    assert sum(p.grad is not None for p in model.parameters()) > 4
    return model


def test_a_measurement_leaves_no_trace():
    model = prepared()
    before = state(model)
    for coupling, gradient in COUPLING_AND_GRADIENT:
        Meter(model, (coupling,), gradient).measure({"input_ids": tiny_rows()})
    assert_same_state(before, state(model))


@pytest.mark.parametrize("place", ["forward", "loss", "backward", "second batch"])
def test_an_exception_leaves_no_trace(place, monkeypatch):
    model = prepared()
    meter = Meter(model)

    def fail(*_, **__):
        raise RuntimeError("on purpose")

    batches = [{"input_ids": tiny_rows()}]
    if place == "forward":
        model.base_model.model.model.layers[1].mlp.forward = fail
    elif place == "loss":
        monkeypatch.setattr(interaction.F, "cross_entropy", fail)
    elif place == "backward":
        monkeypatch.setattr(interaction, "gradient_gram", fail)
    else:
        batches.append({"input_ids": torch.full((1, 4), VOCAB + 5)})
    before = state(model)
    with pytest.raises((RuntimeError, IndexError)):
        for batch in batches:
            meter.measure(batch)
    assert_same_state(before, state(model))


@pytest.mark.parametrize("adapter", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_frozen_trainable_loaded_and_merged_models_agree(adapter, tmp_path):
    """A freshly loaded adapter takes no gradient anywhere; G is the same all the same (C02)."""
    rows = tiny_rows()
    trained = with_adapter(tiny_model("llama"), target_modules=["q_proj", "v_proj", "o_proj"], **adapter)
    trained.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny_model("llama"), tmp_path)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    results = [measured(trained, [rows]), measured(loaded, [rows])]
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert any(parameter.requires_grad for parameter in trained.parameters())
    trained.requires_grad_(True)
    results.append(measured(trained.train(), [rows]))
    with loaded.disable_adapter():
        base = measured(loaded, [rows])
    results.append(measured(loaded.merge_and_unload(), [rows]))
    for coupling in interaction.COUPLINGS:
        for result in results[1:]:
            np.testing.assert_allclose(result.view(coupling).G, results[0].view(coupling).G, atol=2e-5)
        np.testing.assert_allclose(base.view(coupling).G, measured(tiny_model("llama"), [rows]).view(coupling).G, atol=1e-6)
        assert np.abs(base.view(coupling).G - results[0].view(coupling).G).max() > 0.01


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_gradient_checkpointing_changes_nothing(architecture, reentrant):
    model = tiny_model(architecture)
    plain = measured(model, [tiny_rows()])
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    result = measured(model, [tiny_rows()])
    assert model.is_gradient_checkpointing and model.training
    for coupling in interaction.COUPLINGS:
        assert np.array_equal(result.view(coupling).G, plain.view(coupling).G)


def test_inside_no_grad_and_inference_settings():
    model, rows = tiny_model("llama"), tiny_rows()
    plain = measured(model, [rows])
    with torch.no_grad():
        assert np.array_equal(measured(model, [rows]).G, plain.G)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_offloaded_model(where, tmp_path):
    """Accelerate replaces parameters at each forward pass; the result and every flag are as without it."""
    model, rows = tiny_model("llama"), tiny_rows()
    plain = measured(model, [rows])
    if where == "cpu":
        cpu_offload(model, execution_device="cpu")
    else:
        disk_offload(model, str(tmp_path), execution_device="cpu")
    assert next(model.parameters()).is_meta
    model.lm_head.weight.requires_grad_(False)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    result = measured(model, [rows])
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert next(model.parameters()).is_meta
    for coupling in interaction.COUPLINGS:
        np.testing.assert_allclose(result.view(coupling).G, plain.view(coupling).G, atol=1e-6)


def test_memory_of_the_sums_does_not_grow_with_the_text():
    model = tiny_model("llama")
    short, long = (Meter(model, ("paper", "invariant")).measure({"input_ids": tiny_rows(1, n)}) for n in (4, 60))
    for coupling in interaction.COUPLINGS:
        assert short.gradient[coupling].shape == long.gradient[coupling].shape == (1, 2, 4, 4)
