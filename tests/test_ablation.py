"""Ablated heads against models without their weights, random sets, intervals; and what heads are worth to first order."""

import math

import numpy as np
import pytest
import torch

from analysis.ablation import (
    AblationResult,
    Effect,
    Scores,
    ablated,
    ablation_effects,
    benchmark_scores,
    cross_entropy,
    mean_outputs,
    parse_heads,
    random_sets,
)
from analysis.corpus import TokenRows
from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.data import load_items
from analysis.hallucination.scoring import evaluate_benchmark
from analysis.head_values import HeadValues, first_order_values, measure_head_values
from analysis.heads import attention_layers, head_outputs
from analysis.interaction import causal_loss, rows_to_batches
from analysis.models import LoadedModel
from tests.tiny import ARCHITECTURES, padded_batch, tiny_model, tiny_rows, with_adapter
from tests.tiny_text import tiny_loaded

PADDED = [padded_batch([tiny_rows(1, length, seed=length)[0] for length in (12, 7)])]


def logits(model):
    with torch.no_grad():
        return model(tiny_rows()).logits


def hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def loaded(model):
    return LoadedModel(model, None, attention_layers(model), {"model": {"source": "tiny"}, "adapter": None})


# --- the intervention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ablating_a_head_equals_a_model_whose_output_weights_are_zero(architecture):
    model = tiny_model(architecture)
    layers = attention_layers(model)
    layer, head = layers[1], 2
    with ablated(layers, [(layer.index, head)]):
        without = logits(model)
    weight = layer.projection.weight.T if architecture == "gpt2" else layer.projection.weight
    with torch.no_grad():
        weight[:, head * layer.d_head : (head + 1) * layer.d_head] = 0
    torch.testing.assert_close(without, logits(model), atol=1e-5, rtol=1e-5)


def test_ablation_takes_the_adapter_of_the_head_with_it():
    model = with_adapter(tiny_model("llama"))
    layers = attention_layers(model)
    with ablated(layers, [(0, 1), (0, 3), (1, 0)]):
        without = logits(model)
    with torch.no_grad():
        for layer, heads in ((layers[0], (1, 3)), (layers[1], (0,))):
            for head in heads:
                columns = slice(head * layer.d_head, (head + 1) * layer.d_head)
                layer.projection.base_layer.weight[:, columns] = 0
                layer.projection.lora_A["default"].weight[:, columns] = 0
    torch.testing.assert_close(without, logits(model), atol=1e-5, rtol=1e-5)


def test_hooks_are_removed_also_after_an_exception():
    model = tiny_model("llama")
    layers, before = attention_layers(model), logits(model)
    with pytest.raises(RuntimeError), ablated(layers, [(0, 0)]):
        assert hooks(model) == 1
        raise RuntimeError
    with pytest.raises(RuntimeError):
        ablation_effects(broken, layers, [(0, 0), (1, 2)], [[(0, 1), (1, 1)]])
    assert hooks(model) == 0
    torch.testing.assert_close(logits(model), before, atol=0, rtol=0)


def broken():
    raise RuntimeError


def test_mean_ablation_puts_the_mean_over_valid_tokens():
    model = tiny_model("llama")
    layers = attention_layers(model)
    seen = []
    with head_outputs([layers[1]], lambda layer, z: seen.append(layer.split_heads(z.detach()))):
        causal_loss(model, PADDED[0])
    valid = seen[0][PADDED[0]["attention_mask"].bool()]  # [tokens, n_heads, d_head]
    means = mean_outputs(model, layers, PADDED)
    torch.testing.assert_close(means[1], valid.mean(0), atol=1e-5, rtol=1e-5)

    replaced = []
    with (
        ablated(layers, [(1, 2)], means),
        head_outputs([layers[1]], lambda layer, z: replaced.append(layer.split_heads(z.detach()))),
    ):
        causal_loss(model, PADDED[0])
    torch.testing.assert_close(replaced[0][..., 2, :], means[1][2].expand_as(replaced[0][..., 2, :]))
    others = [0, 1, 3]
    torch.testing.assert_close(replaced[0][..., others, :], seen[0][..., others, :])


# --- heads and random sets ----------------------------------------------------------------------------------------


def test_heads_are_read_by_name():
    assert parse_heads("L1H3, L0H2,L1H3", {0: 4, 1: 4}) == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("L0H1,3.7", "'3.7' is no head: a head is written like L3H7"),
        ("", "'' is no head"),
        ("L0H4", r"no head L0H4: this model has attention layers 0 to 1, with heads 0 to 3"),
        ("L2H0", "no head L2H0"),
    ],
)
def test_unknown_heads_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_heads(text, {0: 4, 1: 4})


@pytest.mark.parametrize("match", ["size", "layer"])
def test_random_sets_match_in_size_are_distinct_and_repeat(match):
    layers = attention_layers(tiny_model("llama", num_hidden_layers=3))
    heads = [(0, 1), (0, 2), (2, 3)]
    sets = random_sets(layers, heads, 20, seed=4, match=match)
    assert sets == random_sets(layers, heads, 20, seed=4, match=match) != random_sets(layers, heads, 20, seed=5, match=match)
    assert len(set(sets)) == 20 and tuple(heads) not in sets
    assert all(len(set(chosen)) == 3 for chosen in sets)
    if match == "layer":
        assert all([layer for layer, _ in chosen] == [0, 0, 2] for chosen in sets)
    else:
        assert {layer for chosen in sets for layer, _ in chosen} == {0, 1, 2}


def test_a_small_model_gives_all_the_sets_it_has():
    layers = attention_layers(tiny_model("llama"))
    assert random_sets(layers, [(0, 1)], 20) == [
        ((layer, head),) for layer in (0, 1) for head in range(4) if (layer, head) != (0, 1)
    ]
    assert random_sets(layers, [(0, 1)], 20, match="layer") == [((0, 0),), ((0, 2),), ((0, 3),)]
    in_both = random_sets(layers, [(0, 1), (1, 0)], 20, match="layer")
    assert len(set(in_both)) == 15
    with pytest.raises(ValueError, match="8 heads leave no other set"):
        random_sets(layers, [(layer, head) for layer in (0, 1) for head in range(4)], 20)
    with pytest.raises(ValueError, match="at least 20"):
        random_sets(layers, [(0, 1)], 19)


# --- effects ------------------------------------------------------------------------------------------------------


def test_effects_are_the_losses_with_and_without():
    model = tiny_model("llama")
    layers, batches = attention_layers(model), [*rows_to_batches(tiny_rows(5, 9), 2), *PADDED]
    heads = [(0, 0), (1, 1)]
    sets = random_sets(layers, heads, 20)
    effect = ablation_effects(lambda: {"ce": cross_entropy(model, batches)}, layers, heads, sets)["ce"]
    assert effect.random.shape == (20, 7) and effect.weights.tolist() == [8] * 5 + [11, 6]
    with torch.no_grad():
        whole, tokens = zip(*(causal_loss(model, batch) for batch in batches), strict=True)
    assert effect.baseline == pytest.approx(float(torch.cat(whole).sum() / torch.cat(tokens).sum()), rel=1e-6)
    with torch.no_grad(), ablated(layers, heads):
        without = torch.cat([causal_loss(model, batch)[0] for batch in batches])
    assert effect.effect == pytest.approx(float((without.sum() - torch.cat(whole).sum()) / 57), rel=1e-4)
    assert effect.excess == pytest.approx(effect.effect - effect.random_effects.mean())


def test_intervals_cover_and_p_counts_the_sets():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        whole, weights = rng.normal(10, 1, 60), np.full(60, 4.0)
        low, high = Effect(whole, whole + rng.normal(2.0, 1, 60), whole[None] + 1, weights).interval
        covered += low <= 0.5 <= high
    assert 88 <= covered <= 99
    zero = np.zeros(4)
    effect = Effect(zero, zero + 3, np.stack([zero + value for value in (1, 2, 3, 4)]), np.ones(4))
    assert (effect.p_larger, effect.p_smaller) == (3 / 5, 4 / 5)
    assert effect.excess == pytest.approx(0.5) and effect.excess_interval == pytest.approx((0.5, 0.5))
    assert Effect(zero[:1], zero[:1], zero[None, :1], np.ones(1)).interval is None


def test_units_that_some_trial_cannot_score_are_counted_and_left_out():
    weights = np.array([2.0, 2.0, 1.0, 0.0])  # a row without a prediction has no weight
    whole, without = Scores(np.array([1.0, 2.0, np.nan, 0.0]), weights), Scores(np.array([3.0, 2.0, 1.0, 0.0]), weights)
    effect = Effect.of("score", [whole, without, without])
    assert effect.left_out == 2 and effect.effect == pytest.approx(0.5) and effect.random.shape == (1, 2)
    with pytest.raises(ValueError, match="score: nothing was scored"):
        Effect.of("score", [Scores(np.full(2, np.nan), np.ones(2))] * 3)


def test_a_benchmark_is_scored_with_and_without_the_heads():
    tiny = tiny_loaded()
    items = load_items(BENCHMARKS["builtin_mc"], limit=6)
    heads, sets = [(0, 1), (1, 2)], [[(0, 0), (1, 0)], [(0, 2), (1, 3)]]
    effects = ablation_effects(lambda: benchmark_scores(tiny, items, 4), tiny.layers, heads, sets)
    assert list(effects) == ["builtin_mc1", "builtin_mc2"] and hooks(tiny.model) == 0
    with torch.no_grad():
        for layer, head in heads:
            width = tiny.layers[layer].d_head
            tiny.layers[layer].projection.weight[:, head * width : (head + 1) * width] = 0
    without = evaluate_benchmark(tiny, items, 4)
    for name, effect in effects.items():
        assert effect.random.shape == (2, 6)
        np.testing.assert_allclose(effect.ablated, without.items(name)["value"], atol=1e-5)
    assert (effects["builtin_mc2"].ablated != effects["builtin_mc2"].whole).any()


def test_result_file_reads_back_and_repeats(tmp_path):
    model = tiny_model("llama")
    layers, batches = attention_layers(model), rows_to_batches(tiny_rows(4), 2)
    for name in ("a", "b"):
        effects = ablation_effects(lambda: {"cross-entropy": cross_entropy(model, batches)}, layers, [(0, 0)], [((1, 1),)])
        AblationResult(["L0H0"], "zero", "size", [["L1H1"]], effects, {"seed": 0}).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    read = AblationResult.load(tmp_path / "a")
    assert read.effects["cross-entropy"].interval == effects["cross-entropy"].interval
    assert read.heads == ["L0H0"] and read.random_heads == [["L1H1"]] and read.provenance == {"seed": 0}


# --- what heads are worth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_first_order_value_is_the_slope_of_the_loss_as_the_head_fades(architecture):
    model = tiny_model(architecture).double()
    layers, step = attention_layers(model), 2e-3  # RMSNorm and softmax round to float32
    values, tokens = first_order_values(model, layers, PADDED[0])
    assert values.shape == (2, 4) and tokens == 17

    def loss_at(row, head, scale):
        def fade(layer, z):
            z = layer.split_heads(z.clone())
            z[..., head, :] *= scale
            return z.flatten(-2)

        with torch.no_grad(), head_outputs([layers[row]], fade):
            logits = model(**PADDED[0]).logits[:, :-1].log_softmax(-1)
        targets, mask = PADDED[0]["input_ids"][:, 1:], PADDED[0]["attention_mask"][:, 1:]
        return float(-(logits.gather(-1, targets[..., None])[..., 0] * mask).sum())

    for row, head in np.ndindex(2, 4):
        slope = (loss_at(row, head, 1 - step) - loss_at(row, head, 1 + step)) / (2 * step)
        assert values[row, head] == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_head_values_sum_over_batches_and_ablate_the_chosen_heads(tmp_path):
    model = tiny_model("qwen2")
    flags = [parameter.requires_grad for parameter in model.parameters()]
    text = TokenRows(tiny_rows(5, 9), {"source": "tiny"})
    values = measure_head_values(loaded(model), text, batch_size=2, ablate=[(1, 2)])
    together = measure_head_values(loaded(model), text, batch_size=5)
    np.testing.assert_allclose(values.first_order, together.first_order, atol=1e-6)
    summed, tokens = first_order_values(model, attention_layers(model), {"input_ids": text.rows})
    np.testing.assert_allclose(values.first_order, summed / tokens, atol=1e-6)
    assert np.argwhere(np.isfinite(values.effect)).tolist() == [[1, 2]] and np.isnan(together.effect).all()
    batches = rows_to_batches(text.rows, 5)
    base = cross_entropy(model, batches)
    with ablated(attention_layers(model), [(1, 2)]):
        without = cross_entropy(model, batches)
    assert values.effect[1, 2] == pytest.approx((without.sums - base.sums).sum() / 40, rel=1e-5)
    assert flags == [parameter.requires_grad for parameter in model.parameters()] and hooks(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())

    values.save(tmp_path / "values.json")
    read = HeadValues.load(tmp_path / "values.json")
    np.testing.assert_array_equal(read.first_order, values.first_order)
    np.testing.assert_array_equal(read.effect, values.effect)


def test_a_head_that_writes_nothing_is_worth_nothing():
    model = tiny_model("llama")
    layers = attention_layers(model)
    with torch.no_grad():
        layers[0].projection.weight[:, : layers[0].d_head] = 0
    values = measure_head_values(loaded(model), TokenRows(tiny_rows(), {}), ablate=[(0, 0)])
    assert values.first_order[0, 0] == 0 and values.effect[0, 0] == 0


def test_gradients_that_are_not_finite_name_the_layer():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.fill_(math.inf)
    with pytest.raises(ValueError, match=r"gradients of layers 0(, 1)? are not finite"):
        measure_head_values(loaded(model), TokenRows(tiny_rows(), {}))
