"""Barrier and Barlow Twins: closed forms, a slow oracle, invariances, gradients, and the inputs that make them NaN elsewhere."""

import math

import pytest
import torch

from analysis.heads import attention_layers
from analysis.interaction import COUPLINGS, cosine, gradient_gram, interaction_strength, weight_gram
from gamelora.losses import (
    barlow_twins,
    barrier_floor,
    feature_correlation,
    interaction_from_moment,
    log_det_barrier,
    pair_weights,
)
from tests.tiny import tiny_model, with_adapter


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def moment(eta: torch.Tensor) -> torch.Tensor:
    return eta.T @ eta


# --- G from the moment of eta -------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_the_moment_gives_the_same_interaction_as_the_tokens_themselves(coupling):
    weights, eta = normal(4, 12, 5), normal(30, 12, seed=1)
    g = torch.einsum("hdk,td->thk", weights, eta)
    if coupling == "paper":
        gram = gradient_gram(g.flatten(1), 4)
    else:
        u = torch.einsum("hdk,thk->thd", weights, g).transpose(0, 1).flatten(1)
        gram = u @ u.T
    expected = cosine(weight_gram(weights, coupling)) * cosine(gram)
    torch.testing.assert_close(interaction_from_moment(weights, moment(eta), coupling), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_interaction_does_not_depend_on_the_loss_scale_and_permutes_with_the_heads(coupling):
    weights, M, order = normal(4, 12, 5), moment(normal(30, 12, seed=1)), torch.tensor([2, 0, 3, 1])
    G = interaction_from_moment(weights, M, coupling)
    torch.testing.assert_close(interaction_from_moment(weights, 1e-12 * M, coupling), G, atol=1e-5, rtol=0)
    torch.testing.assert_close(interaction_from_moment(weights[order], M, coupling), G[order][:, order])


def test_only_the_weights_carry_a_gradient():
    weights, M = normal(4, 12, 5).requires_grad_(), moment(normal(30, 12, seed=1)).requires_grad_()
    log_det_barrier(interaction_from_moment(weights, M)).backward()
    assert weights.grad.abs().sum() > 0 and M.grad is None


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_the_barrier_reaches_the_adapter_and_its_gradient_is_right(coupling):
    model = with_adapter(tiny_model(), use_dora=False).double()
    layer = attention_layers(model)[1]
    M = moment(normal(20, layer.d_model, seed=2))
    lora = [parameter for parameter in layer.projection.parameters() if parameter.requires_grad]

    def loss() -> torch.Tensor:
        return log_det_barrier(interaction_from_moment(layer.head_weights(), M, coupling))

    for parameter, gradient in zip(lora, torch.autograd.grad(loss(), lora), strict=True):
        direction, step = gradient / gradient.norm(), 2e-2 / parameter.numel() ** 0.5
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                values.append(float(loss()))
                parameter -= sign * step * direction
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=0.03)


# --- the barrier --------------------------------------------------------------------------------------------------


def test_the_barrier_of_the_identity_is_its_floor_and_nothing_is_below_it():
    assert float(log_det_barrier(torch.eye(6))) == pytest.approx(barrier_floor(6), abs=1e-5) == pytest.approx(-6 * math.log(1.01))
    for seed in range(20):
        G = cosine(moment(normal(8, 6, seed=seed)))
        assert float(log_det_barrier(G)) >= barrier_floor(6)


def test_two_heads_have_a_closed_form():
    G = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    assert float(log_det_barrier(G)) == pytest.approx(-math.log(1.01**2 - 0.36), rel=1e-5)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_a_step_down_the_barrier_pushes_near_duplicate_heads_apart(coupling):
    weights, M = normal(4, 12, 5), moment(normal(30, 12, seed=1))
    weights[1] = weights[0] + 0.05 * normal(12, 5, seed=3)
    weights.requires_grad_()
    before = interaction_from_moment(weights, M, coupling)
    loss = log_det_barrier(before)
    (gradient,) = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        after = interaction_from_moment(weights - 0.05 * gradient / gradient.norm(), M, coupling)
    assert after[0, 1] < before[0, 1] - 5e-4 and log_det_barrier(after) < loss
    assert interaction_strength(after) < interaction_strength(before)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_degenerate_heads_give_a_finite_barrier_and_gradient(coupling, dtype):
    for spoil in ("duplicate", "dead", "no gradient", "more heads than width"):
        weights, M = normal(4, 12, 5), moment(normal(30, 12, seed=1))
        if spoil == "duplicate":
            weights[1] = weights[0]
        elif spoil == "dead":
            weights[1] = 0
        elif spoil == "no gradient":
            M = torch.zeros_like(M)
        else:
            weights, M = normal(9, 3, 2), moment(normal(2, 3, seed=1))
        weights = weights.to(dtype).requires_grad_()
        loss = log_det_barrier(interaction_from_moment(weights, M, coupling))
        (gradient,) = torch.autograd.grad(loss, weights)
        assert loss.dtype == torch.float32 and loss.isfinite() and gradient.isfinite().all(), spoil
        if spoil == "duplicate":
            assert loss > -math.log(0.02) - 4 * math.log(1.01), "duplicates cost about log(1 / (2 epsilon))"


def test_bfloat16_weights_give_nearly_the_same_interaction():
    weights, M = normal(4, 12, 5), moment(normal(30, 12, seed=1))
    difference = interaction_from_moment(weights.bfloat16(), M) - interaction_from_moment(weights, M)
    assert difference.abs().max() < 0.02


def test_autocast_does_not_reach_the_losses():
    weights, M, z = normal(4, 12, 5), moment(normal(30, 12, seed=1)), normal(40, 20, seed=2)
    expected = interaction_from_moment(weights, M), barlow_twins(z, torch.ones(4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = interaction_from_moment(weights, M), barlow_twins(z, torch.ones(4, 4))
    assert torch.equal(inside[0], expected[0]) and torch.equal(inside[1], expected[1])


# --- Barlow Twins -------------------------------------------------------------------------------------------------


def slow_barlow_twins(z: torch.Tensor, weights: torch.Tensor, target: str = "identity") -> torch.Tensor:
    """The definition, pair by pair, every view z-scored by itself."""
    n_heads, pairs = weights.shape[0], []
    heads = z.unflatten(1, (n_heads, -1))
    for i in range(n_heads):
        for j in range(i + 1, n_heads):
            first, second = ((view - view.mean(0)) / view.std(0, correction=0) for view in (heads[:, i], heads[:, j]))
            C = first.T @ second / len(z)
            goal = torch.eye(len(C), dtype=C.dtype) if target == "identity" else 0.0
            pairs.append(weights[i, j] * (C - goal).square().sum())
    return torch.stack(pairs).mean()


@pytest.mark.parametrize("target", ["identity", "zero"])
def test_one_product_equals_the_loop_over_pairs_and_so_does_its_gradient(target):
    weights = pair_weights(cosine(moment(normal(9, 4, seed=5))))
    z = (normal(50, 20) @ normal(20, 20, seed=1) + 3 * normal(20, seed=2)).requires_grad_()
    loss, expected = barlow_twins(z, weights, target), slow_barlow_twins(z, weights, target)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    ours, oracle = torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, z)[0]
    torch.testing.assert_close(ours, oracle, rtol=1e-3, atol=1e-5 * float(oracle.abs().max()))


def test_the_gradient_agrees_with_finite_differences():
    z, weights = normal(7, 6, dtype=torch.float64).requires_grad_(), torch.tensor([[1.0, 2.0, 0.5]] * 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: barlow_twins(z, weights), z)


def test_features_are_compared_after_their_own_standardization():
    x = normal(60, 8)
    same = barlow_twins(torch.cat([x, x], 1), torch.ones(2, 2))
    scaled = barlow_twins(torch.cat([x, 2 * x + 4], 1), torch.ones(2, 2))
    assert float(scaled) == pytest.approx(float(same), abs=1e-4)


def test_the_identity_target_is_reached_by_heads_that_share_an_orthonormal_basis_and_the_zero_target_by_unrelated_ones():
    q = torch.linalg.qr(normal(64, 9) - normal(64, 9).mean(0))[0]
    q = torch.linalg.qr(q - q.mean(0))[0] - torch.linalg.qr(q - q.mean(0))[0].mean(0)
    shared, apart = torch.cat([q[:, :3], q[:, :3], q[:, :3]], 1), q
    ones = torch.ones(3, 3)
    assert float(barlow_twins(shared, ones)) == pytest.approx(0, abs=1e-2)
    assert float(barlow_twins(apart, ones, "zero")) == pytest.approx(0, abs=1e-2)
    assert (
        float(barlow_twins(shared, ones, "zero"))
        == pytest.approx(3, abs=1e-2)
        == pytest.approx(float(barlow_twins(apart, ones)), abs=2e-2)
    )


def test_token_order_and_head_order_do_not_matter():
    z, order = normal(40, 20), torch.tensor([3, 1, 0, 2])
    weights = pair_weights(cosine(moment(normal(9, 4, seed=5))))
    expected = float(barlow_twins(z, weights))
    assert float(barlow_twins(z.flip(0), weights)) == pytest.approx(expected, rel=1e-5)
    moved = z.unflatten(1, (4, 5))[:, order].flatten(1)
    assert float(barlow_twins(moved, weights[order][:, order])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tokens", [0, 1])
def test_fewer_than_two_tokens_make_no_loss_and_no_gradient(tokens):
    z = normal(tokens, 20).requires_grad_()
    loss = barlow_twins(z, torch.ones(4, 4))
    loss.backward()
    assert loss.item() == 0 and not z.grad.any()


@pytest.mark.parametrize("value", [0.0, 0.1, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_constant_features_are_finite_and_correlate_with_nothing(value, dtype):
    z = normal(40, 20)
    z[:, 5:10] = value  # a whole head
    z = z.to(dtype).requires_grad_()
    correlation = feature_correlation(z)
    assert not correlation[5:10, :5].any()
    barlow_twins(z, torch.ones(4, 4)).backward()
    assert z.grad.isfinite().all() and not z.grad[:, 5:10].any()


def test_half_precision_inputs_are_summed_in_float32():
    z = normal(3000, 20, dtype=torch.bfloat16)
    assert barlow_twins(z, torch.ones(4, 4)).dtype == torch.float32
    assert float(barlow_twins(z, torch.ones(4, 4))) == float(barlow_twins(z.float(), torch.ones(4, 4)))


def test_pair_weights_fall_with_coupling_and_are_detached():
    G = torch.tensor([-0.5, 0.0, 0.5, 1.0], requires_grad=True)
    weights = pair_weights(G)
    assert (weights.diff() < 0).all() and not weights.requires_grad
    assert float(weights[1]) == pytest.approx(0.929 + 0.071 * math.log(2)) and float(weights[3]) == pytest.approx(0.929, abs=1e-5)
    assert torch.equal(pair_weights(G, a=1.0), torch.ones(4))


def test_the_parts_of_a_batch_add_up_to_the_gradient_of_the_whole():
    """Two processes, played one after the other: each adds the other's sums and gets the loss and gradient of all tokens."""
    weights = pair_weights(cosine(moment(normal(9, 4, seed=5))))
    z = normal(50, 20).requires_grad_()
    loss = barlow_twins(z, weights)
    (whole,) = torch.autograd.grad(loss, z)
    parts = [part.detach().requires_grad_() for part in z.split([20, 30])]
    mean = z.detach().mean(0)
    others = {0: [parts[1].sum(0), moment(parts[1] - mean)], 1: [parts[0].sum(0), moment(parts[0] - mean)]}
    for rank, part in enumerate(parts):
        waiting = iter(others[rank])
        local = barlow_twins(part, weights, tokens=50, reduce=lambda tensor, waiting=waiting: tensor + next(waiting).detach())
        assert float(local) == pytest.approx(float(loss), rel=1e-5)
        torch.testing.assert_close(torch.autograd.grad(local, part)[0], whole.split([20, 30])[rank], rtol=1e-3, atol=1e-6)
