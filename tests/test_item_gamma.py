"""Gamma of items against the one definition of Gamma, row by row; the shuffled-head null; items that are not finite."""

import math

import numpy as np
import pytest
import torch

from analysis.hallucination import item_gamma
from analysis.hallucination.item_gamma import checkpoint_gamma, measure_items
from tests.tiny import measured
from tests.tiny_text import loaded, tiny_loaded


def texts(lengths, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 400, length).tolist() for length in lengths]


@pytest.mark.parametrize("coupling", ["paper", "invariant"])
def test_each_item_is_measured_as_if_alone(coupling):
    tiny, items = tiny_loaded(), texts([9, 30, 2, 17, 30])
    found = measure_items(tiny, items, coupling, batch_size=3)
    for row, text in enumerate(items):
        alone = measured(tiny.model, [torch.tensor([text])]).view(coupling)
        assert found.gamma[row] == pytest.approx(alone.gamma, rel=1e-4)
        assert found.cross_entropy[row] == pytest.approx(alone.cross_entropy, rel=1e-5)
        assert found.tokens[row] == alone.tokens == len(text) - 1
    assert found.layers.tolist() == [0, 1]
    assert found.covariates == pytest.approx(np.column_stack([np.log(found.tokens), found.cross_entropy]))


def test_the_batch_does_not_matter(monkeypatch):
    tiny, items = tiny_loaded(), texts([40, 25, 40, 10, 8, 31])
    one, six = measure_items(tiny, items, batch_size=1), measure_items(tiny, items, batch_size=6)
    monkeypatch.setattr(item_gamma, "_TOKENS_A_BATCH", 80)
    assert [len(batch) for batch in item_gamma._batches(items, 6)] == [2, 2, 2]
    cut = measure_items(tiny, items, batch_size=6)
    for other in (six, cut):
        assert other.gamma == pytest.approx(one.gamma, rel=1e-4)
        assert other.null_gamma == pytest.approx(one.null_gamma, rel=1e-4)


def test_gram_sums_over_items_make_the_gamma_of_the_checkpoint():
    tiny, items = tiny_loaded(), texts([12, 20, 16])
    whole = measured(tiny.model, [torch.tensor([text]) for text in items])
    parts = [measure_items(tiny, items[:1]), measure_items(tiny, items[1:])]
    assert checkpoint_gamma(parts) == pytest.approx(whole.gamma, rel=1e-4)


def test_shuffled_heads_keep_the_couplings_and_lose_their_pairing():
    tiny, items = tiny_loaded(), texts([25] * 6)
    found = measure_items(tiny, items, shuffles=200)
    assert found.null_gamma.shape == (200, 6, 2)
    omega = torch.rand(3, 4, 4)
    drawn = item_gamma._shuffled(omega, 50)
    assert torch.equal(drawn.flatten(2).sort().values, omega.flatten(1).sort().values.expand(50, 3, 16))
    assert torch.equal(
        drawn.diagonal(dim1=2, dim2=3).sort().values, omega.diagonal(dim1=1, dim2=2).sort().values.expand(50, 3, 4)
    )
    again = measure_items(tiny, items, shuffles=200)
    assert np.array_equal(found.null_gamma, again.null_gamma)
    # over all orders the mean of Gamma^2 is what independent pairing gives: sum omega^2 sum rho^2 / (H (H - 1))
    grams = measured(tiny.model, [torch.tensor([items[0]])])
    off = ~np.eye(4, dtype=bool)
    expected = [np.square(grams.omega[k][off]).sum() * np.square(grams.rho[k][off]).sum() / 12 for k in range(2)]
    assert np.square(found.null_gamma[:, 0]).mean(0) == pytest.approx(expected, rel=0.1)


def test_items_that_are_not_finite_are_nan_and_harm_no_other():
    tiny, items = tiny_loaded(), texts([12, 12, 12])
    items = [[token if token != 7 else 8 for token in text] for text in items]
    expected = measure_items(tiny, items[:2])
    with torch.no_grad():
        tiny.model.model.embed_tokens.weight[7] = math.nan
    found = measure_items(tiny, [items[0], [*items[2][:5], 7], items[1]])
    assert np.isnan(found.gamma[1]).all() and np.isnan(found.null_gamma[:, 1]).all()
    assert found.gamma[[0, 2]] == pytest.approx(expected.gamma, rel=1e-4)
    assert np.isfinite(found.gradient_sums).all()


def test_the_model_comes_back_as_it_was():
    tiny = tiny_loaded("gpt2", n_positions=64)
    flags = [parameter.requires_grad for parameter in tiny.model.parameters()]
    measure_items(loaded(tiny.model), texts([10, 12]))
    assert [parameter.requires_grad for parameter in tiny.model.parameters()] == flags
    assert all(parameter.grad is None for parameter in tiny.model.parameters())
