"""The trainer: every task gradient from its definition, the same update however the batch is cut, and what stops a step."""

import itertools

import pytest
import torch
from transformers import Trainer, TrainerCallback

from analysis.interaction import COUPLINGS
from gamelora import nash
from gamelora import objectives as objectives_module
from gamelora import trainer as trainer_module
from gamelora.data import collate
from tests.tiny import ARCHITECTURES, padded_batch, tiny_model, tiny_rows
from tests.tiny_runs import adapter, recorded_gradients, slow_gradient, slow_losses, small_trainer

PADDED = [tiny_rows(1, length, seed=length)[0] for length in (10, 6, 9, 3, 8, 10, 5, 7)]


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def oracle_at_every_step(trainer) -> list[torch.Tensor]:
    """Fills with the Jacobian of every step to come, from the definitions."""
    found = []

    class Oracle(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            losses = slow_losses(trainer, trainer._step.batches[0])
            found.append(torch.stack([slow_gradient(trainer, losses[task]) for task in trainer.arbiter.tasks]))

    trainer.add_callback(Oracle())
    return found


# --- gradients against the definitions ----------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("method", ["game", "ldb", "bt", "naive"])
def test_each_task_gradient_is_that_of_its_definition(method, coupling, tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, PADDED, method=method, coupling=coupling, batch_size=8, steps=1)
    trainer.design.G = {1: torch.rand(4, 4, generator=torch.Generator().manual_seed(3))}
    losses = slow_losses(trainer, padded_batch(PADDED))
    expected = torch.stack([slow_gradient(trainer, losses[task]) for task in trainer.arbiter.tasks])
    with recorded_gradients(monkeypatch) as (jacobians, updates):
        trainer.train()
    assert len(jacobians) == 1
    for row, oracle in zip(jacobians[0], expected, strict=True):
        assert relative(row, oracle) < 2e-4
    assert updates[0].norm().item() == pytest.approx(
        expected[0].norm().item(), rel=1e-4
    )  # the step is as long as the cross-entropy's


def test_dora_and_its_magnitudes_take_part(tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, PADDED, use_dora=True, batch_size=8, steps=1)
    losses = slow_losses(trainer, padded_batch(PADDED))
    expected = torch.stack([slow_gradient(trainer, losses[task]) for task in trainer.arbiter.tasks])
    with recorded_gradients(monkeypatch) as (jacobians, _):
        trainer.train()
    assert any("magnitude" in name for name in adapter(trainer)) and relative(jacobians[0], expected) < 2e-4


def test_several_design_layers_average_and_lower_ones_see_the_cross_entropy_alone(tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, design_layers=(0, 1), steps=2, update_weights_every=50)
    expected = oracle_at_every_step(trainer)
    with recorded_gradients(monkeypatch) as (jacobians, updates):
        trainer.train()
    for jacobian, oracle, update in zip(jacobians, expected, updates, strict=True):
        assert relative(jacobian, oracle) < 2e-4
        weights = torch.tensor(list(trainer.arbiter.weights.values()))  # set in the first step, kept in the second
        assert relative(update, weights @ oracle) < 2e-4


def test_between_bargains_one_pass_gives_the_same_weighted_sum(tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, steps=3, update_weights_every=50)
    expected = oracle_at_every_step(trainer)
    with recorded_gradients(monkeypatch) as (jacobians, updates):
        trainer.train()
    assert len(jacobians) == 1 and len(updates) == 3
    weights = torch.tensor(list(trainer.arbiter.weights.values()))
    for oracle, update in zip(expected, updates, strict=True):
        assert relative(update, weights @ oracle) < 2e-4


@pytest.mark.parametrize("method", ["game", "ldb", "bt"])
def test_linear_arbitration_is_the_gradient_of_the_weighted_sum(method, tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, method=method, arbitration="linear", steps=1)
    losses = slow_losses(trainer, {"input_ids": torch.stack([row["input_ids"] for row in trainer.text.rows])})
    scales = {"ce": 1.0, "ldb": 0.352, "bt": 0.179 * 20 / losses["bt"].item()}
    expected = slow_gradient(trainer, sum(scales[task] * losses[task] for task in trainer.arbiter.tasks))
    with recorded_gradients(monkeypatch) as (_, updates):
        trainer.train()
    assert relative(updates[0], expected) < 2e-4
    assert trainer.arbiter.kind == "linear"


def test_cross_entropy_alone_is_transformers_own_trainer(tmp_path):
    rows = [{"input_ids": row, "labels": row} for row in PADDED * 3]
    ours = small_trainer(tmp_path, rows, method="ce", batch_size=8, micro_batch_size=4, steps=3)
    ours.train()
    twin = small_trainer(tmp_path, rows, method="ce", batch_size=8, micro_batch_size=4, steps=3)
    Trainer(model=twin.model, args=twin.args, train_dataset=twin.text.rows, data_collator=collate).train()
    for (name, part), other in zip(adapter(ours).items(), adapter(twin).values(), strict=True):
        torch.testing.assert_close(part, other, atol=1e-5, rtol=1e-4, msg=name)


# --- the same update however the batch is cut -----------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("method", ["game", "naive", "ce"])
@pytest.mark.parametrize("rows", ["whole", "padded"])
def test_accumulation_batch_cut_and_padding_do_not_change_the_update(rows, method, every, tmp_path):
    rows = tiny_rows(24, 10, seed=1) if rows == "whole" else PADDED * 3
    adapters = []
    for micro in (8, 4, 1):
        settings = {"batch_size": 8, "micro_batch_size": micro, "steps": 3, "update_weights_every": every, "method": method}
        trainer = small_trainer(tmp_path / str(micro), rows, **settings)
        trainer.train()
        adapters.append(adapter(trainer))
    start = adapter(small_trainer(tmp_path, rows, batch_size=8))
    for other in adapters[1:]:
        for name, part in adapters[0].items():
            moved = (part - start[name]).norm()
            assert (other[name] - part).norm() < 2e-3 * moved, name


def test_the_pass_ahead_draws_the_dropout_of_the_pass_itself(tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, lora_dropout=0.5, micro_batch_size=2, steps=1)
    ahead, seen = [], []
    look_ahead, backward = trainer._look_ahead, trainer._backward
    monkeypatch.setattr(trainer, "_look_ahead", lambda *given: ahead.append(look_ahead(*given)) or ahead[-1])
    monkeypatch.setattr(
        trainer,
        "_backward",
        lambda step, loss, z, v: seen.append({k: t.detach() for k, t in z.items()}) or backward(step, loss, z, v),
    )
    trainer.train()
    assert len(ahead) == len(seen) == 2
    for first, second in zip(ahead, seen, strict=True):
        assert torch.equal(first[1], second[1])
    assert not torch.equal(seen[0][1], seen[1][1])


def test_the_pass_ahead_goes_no_further_than_the_design_layer(tmp_path):
    trainer = small_trainer(tmp_path, design_layers=(0,), micro_batch_size=2, steps=1)
    calls = []
    trainer.model.get_submodule("base_model.model.model.layers.1").register_forward_hook(lambda *_: calls.append(1))
    trainer.train()
    assert len(calls) == 2


@pytest.mark.parametrize("method", ["game", "ce"])
def test_gradient_checkpointing_changes_no_gradient(method, tmp_path, monkeypatch):
    found = []
    for checkpointing in (False, True):
        settings = {"method": method, "steps": 2, "update_weights_every": 1, "micro_batch_size": 2}
        trainer = small_trainer(tmp_path, gradient_checkpointing=checkpointing, **settings)
        with recorded_gradients(monkeypatch) as (jacobians, updates):
            trainer.train()
        found.append([*jacobians, *updates])
        assert all(part.abs().sum() > 0 for name, part in adapter(trainer).items() if "lora_B" in name)
    for without, with_ in zip(*found, strict=True):
        torch.testing.assert_close(with_, without, atol=1e-5, rtol=1e-4)


def test_the_same_config_and_seed_give_the_same_adapter_bit_for_bit(tmp_path):
    settings = {"lora_dropout": 0.3, "micro_batch_size": 2, "update_weights_every": 2}
    adapters = []
    for _ in range(2):
        trainer = small_trainer(tmp_path, **settings)
        trainer.train()
        adapters.append(adapter(trainer))
    other = small_trainer(tmp_path, seed=7, **settings)
    other.train()
    assert all(torch.equal(adapters[0][name], adapters[1][name]) for name in adapters[0])
    assert not all(torch.equal(adapters[0][name], part) for name, part in adapter(other).items())


# --- what a step may meet -------------------------------------------------------------------------------------------


def spoil(monkeypatch, task: str, steps: set[int], value: float, trainer) -> None:
    """Make one loss, gradient included, `value` times itself in some steps."""
    if task == "ce":
        original = trainer_module.causal_loss

        def causal_loss(*given):
            losses, counts = original(*given)
            return losses * (value if trainer._step.index in steps and torch.is_grad_enabled() else 1.0), counts

        monkeypatch.setattr(trainer_module, "causal_loss", causal_loss)
        return
    name = {"bt": "barlow_twins", "ldb": "log_det_barrier"}[task]
    original = getattr(objectives_module, name)

    def loss(*given, **named):
        return original(*given, **named) * (value if trainer._step.index in steps else 1.0)

    monkeypatch.setattr(objectives_module, name, loss)


@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("task", ["ce", "ldb", "bt"])
def test_a_gradient_that_is_not_finite_skips_the_step_and_names_the_task(task, value, every, tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, steps=4, update_weights_every=every)
    spoil(monkeypatch, task, {2}, value, trainer)
    states = [adapter(trainer)]

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            states.append(adapter(trainer))

    trainer.add_callback(Watch())
    trainer.train()
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in itertools.pairwise(states)]
    assert same == [False, False, True, False]
    assert all(part.isfinite().all() for part in states[-1].values())
    assert trainer.skipped_steps == 1 and len(trainer.notes) == 1
    assert trainer.notes[0].startswith("Step 3 was skipped") and f" {task}" in trainer.notes[0]


def test_a_loss_that_stays_non_finite_ends_the_run_with_its_name(tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, steps=20, batch_size=1)
    spoil(monkeypatch, "bt", set(range(3, 20)), float("nan"), trainer)
    with pytest.raises(ValueError, match=r"gradient of bt was not finite in 10 steps in a row, up to step 13.*learning_rate"):
        trainer.train()


@pytest.mark.parametrize("task", ["ldb", "bt"])
def test_a_task_without_gradient_leaves_the_bargain_and_is_counted(task, tmp_path, monkeypatch):
    trainer = small_trainer(tmp_path, steps=2, update_weights_every=1)
    spoil(monkeypatch, task, {0}, 0.0, trainer)
    with recorded_gradients(monkeypatch) as (jacobians, _):
        trainer.train()
    assert trainer.arbiter.zero_gradients == {"ce": 0, "ldb": 0, "bt": 0} | {task: 1}
    assert trainer.arbiter.outcomes["solved"] == 2 and trainer.arbiter.kind == "nash"
    assert not jacobians[0][trainer.arbiter.tasks.index(task)].any()


def test_the_weights_are_renewed_when_a_task_joins_and_when_it_leaves(tmp_path):
    """Warm-up over half a step and decay at the end: lambda is 0 before the first step alone."""
    trainer = small_trainer(tmp_path, steps=6, lambda_warmup=0.1, update_weights_every=50)
    lines = []

    class Keep(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            lines.append(logs)

    trainer.add_callback(Keep())
    trainer.train()
    assert [trainer.arbiter.powers(step)["ldb"] > 0 for step in range(7)] == [False, *[True] * 5, False]
    assert lines[0]["weight/ldb"] == lines[0]["weight/bt"] == 0 and lines[0]["bargain/alone"] == 1
    assert lines[1]["weight/ldb"] > 0 and lines[1]["bargain/solved"] == 1
    assert trainer.arbiter.outcomes == {"solved": 1, "alone": 1, "opposed": 0, "failed": 0}
    assert len({line["weight/ldb"] for line in lines[1:6]}) == 1


def test_a_run_whose_arbitration_never_worked_does_not_call_itself_nash(tmp_path, monkeypatch):
    def fails(gramian, powers):
        raise nash.NotConverged("on purpose")

    monkeypatch.setattr(nash, "bargaining_weights", fails)
    trainer = small_trainer(tmp_path, steps=2, update_weights_every=1)
    trainer.train()
    assert trainer.arbiter.outcomes["failed"] == 2 and trainer.arbiter.kind == "unsolved"


def test_a_trainable_tensor_that_no_loss_reaches_stops_the_run_before_the_first_update(tmp_path):
    trainer = small_trainer(tmp_path)
    cut_off = next(name for name, _ in trainer.model.named_modules() if name.endswith("layers.0.self_attn.q_proj.lora_B.default"))
    trainer.model.get_submodule(cut_off).register_forward_hook(lambda _module, _inputs, output: output.detach())
    before = adapter(trainer)
    with pytest.raises(ValueError, match=r"2 of 16 trainable tensors got no gradient from any loss, such as .*q_proj.lora_A"):
        trainer.train()
    assert all(torch.equal(part, before[name]) for name, part in adapter(trainer).items())


def test_checkpointing_with_reentry_is_refused_before_it_hides_the_design_layer(tmp_path):
    trainer = small_trainer(tmp_path, gradient_checkpointing=True, modules_to_save=["lm_head"])
    trainer.args.activation_checkpointing_kwargs = {"use_reentrant": True}
    with pytest.raises(ValueError, match=r"no gradient reaches design layer 1.*use_reentrant=False"):
        trainer.train()


def test_a_row_without_labels_and_fewer_than_two_tokens_add_no_nan(tmp_path):
    rows = [{"input_ids": row, "labels": torch.full_like(row, -100)} for row in tiny_rows(2, 10, seed=1)]
    rows += [{"input_ids": row} for row in tiny_rows(2, 10, seed=2)]
    trainer = small_trainer(tmp_path, rows, steps=1, micro_batch_size=1)
    trainer.train()
    assert all(part.isfinite().all() for part in adapter(trainer).values()) and trainer.skipped_steps == 0
    lonely = small_trainer(tmp_path, [torch.tensor([5])] * 2, steps=2, batch_size=1)
    before = adapter(lonely)
    lonely.train()
    assert lonely.arbiter.zero_gradients["ce"] == 1 and all(part.isfinite().all() for part in adapter(lonely).values())
    assert before.keys() == adapter(lonely).keys()


def test_the_barrier_of_an_uncoupled_layer_says_so_and_the_invariant_one_moves_it(tmp_path, monkeypatch):
    for coupling, note in (("paper", True), ("invariant", False)):
        model = tiny_model(num_key_value_heads=4, hidden_size=64)
        with torch.no_grad():  # heads of an ordinary MHA model share no value basis
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.normal_(generator=torch.Generator().manual_seed(1))
        trainer = small_trainer(tmp_path, model=model, coupling=coupling, steps=1, target_modules=["o_proj"], lora_alpha=1)
        with recorded_gradients(monkeypatch) as (jacobians, _):
            trainer.train()
        said = "The barrier starts at its floor: the paper's coupling sees no interaction in layer 1; use the invariant one."
        assert (trainer.notes == [said]) is note
        assert jacobians[0][1].norm() > 0


# --- every architecture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_trains_its_attention_projections_and_nothing_else(architecture, tmp_path, monkeypatch):
    model = tiny_model(architecture)
    design = 3 if architecture == "lfm2" else 1
    trainer = small_trainer(tmp_path, model=model, design_layers=(design,), steps=2, update_weights_every=1)
    before = adapter(trainer)
    with recorded_gradients(monkeypatch) as (jacobians, _):
        trainer.train()
    assert jacobians[0].norm(dim=1).min() > 0
    after = adapter(trainer)
    assert all(not torch.equal(after[name], part) for name, part in before.items())
    assert not any("mlp" in name or "conv" in name for name in after)
    inputs = {name.rsplit(".lora_", 1)[0] for name in after if f".{design}." in name}
    assert len(inputs) == {"gpt2": 2, "gpt_neox": 2, "falcon": 2, "falcon_new": 2, "phi3": 2}.get(architecture, 4)


# --- what is written down -------------------------------------------------------------------------------------------


def test_every_step_logs_every_number(tmp_path):
    trainer = small_trainer(tmp_path, steps=2, update_weights_every=1)
    lines = []

    class Keep(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            lines.append(dict(logs))

    trainer.add_callback(Keep())
    trainer.train()
    wanted = {"loss", "grad_norm", "learning_rate", "tokens_per_second", "peak_memory", "gamma/L1", "gap/ldb", "scale/bt"}
    wanted |= {f"{kind}/{task}" for kind in ("loss", "weight", "gradient_norm") for task in ("ce", "ldb", "bt")}
    wanted |= {"lambda/ldb", "lambda/bt", "cosine/ce_ldb", "cosine/ce_bt", "cosine/ldb_bt"}
    assert wanted <= lines[0].keys() and wanted <= lines[1].keys()
    assert lines[0]["loss"] == pytest.approx(lines[0]["loss/ce"]) and lines[0]["gap/ldb"] > 0
    assert trainer.state.log_history == []


def test_evaluation_measures_held_out_loss_and_every_layer_and_leaves_the_model_as_it_was(tmp_path):
    trainer = small_trainer(tmp_path, lora_dropout=0.5)
    flags = [(name, part.requires_grad) for name, part in trainer.model.named_parameters()]
    metrics = trainer.evaluate()
    assert metrics == trainer.evaluate()
    names = {f"eval_gamma_{coupling}/L{layer}" for coupling in COUPLINGS for layer in (0, 1)}
    assert metrics.keys() - {"epoch"} == names | {"eval_loss"}
    assert [(name, part.requires_grad) for name, part in trainer.model.named_parameters()] == flags


def test_mixed_precision_keeps_losses_and_adapter_in_float32(tmp_path):
    exact = small_trainer(tmp_path, steps=1)
    exact.train()
    mixed = small_trainer(tmp_path, steps=1, autocast="bfloat16")
    mixed.train()
    assert all(part.dtype == torch.float32 for part in adapter(mixed).values())
    for (name, part), (_, other) in zip(exact.design.G.items(), mixed.design.G.items(), strict=True):
        assert other.dtype == torch.float32 and (part - other).abs().max() < 0.05, name
