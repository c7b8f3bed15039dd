"""The formulas by hand, and the properties of method.md section 2 on tiny models; tests/test_oracle.py has the values."""

import copy
import math

import numpy as np
import pytest
import torch

from analysis import interaction
from analysis.heads import attention_layers, kv_groups
from analysis.interaction import Meter, block_sum, causal_loss, cosine, gradient_gram, invariant_gradient_gram, weight_gram
from tests.tiny import ARCHITECTURES, measured, padded_batch, tiny_model, tiny_rows

WITH_SDPA = sorted(set(ARCHITECTURES) - {"gemma2"})  # whose scores are capped, which sdpa cannot do


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


def test_memory_of_the_sums_does_not_grow_with_the_text():
    model = tiny_model("llama")
    short, long = (Meter(model, ("paper", "invariant")).measure({"input_ids": tiny_rows(1, n)}) for n in (4, 60))
    for coupling in interaction.COUPLINGS:
        assert short.gradient[coupling].shape == long.gradient[coupling].shape == (1, 2, 4, 4)
