"""Tiny fine-tunes in this process: a trainer on a tiny model, its task gradients, and the same gradients from the definitions."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from analysis.corpus import TokenRows
from analysis.heads import attention_layers, head_outputs
from analysis.interaction import causal_loss
from analysis.models import LoadedModel
from gamelora import trainer as trainer_module
from gamelora.build import attention_targets, training_arguments
from gamelora.config import GameLoraConfig
from gamelora.data import TrainingText
from gamelora.losses import interaction_from_moment, log_det_barrier, pair_weights
from gamelora.trainer import GameLoraTrainer
from tests.tiny import randomize_adapter, tiny_model, tiny_rows

SMALL = {
    "autocast": "float32",
    "lora_dropout": 0.0,
    "r": 4,
    "lora_alpha": 8,
    "seq_len": 10,
    "eval_tokens": 10,
    "batch_size": 4,
    "steps": 4,
    "lambda_warmup": 0.0,
    "report_to": [],
    "learning_rate": 1e-2,
    "warmup": 0.0,
    "save_every": 1000,
    "eval_every": 1000,
}


def small_config(**values) -> GameLoraConfig:
    """Settings for a tiny run, float32 and without dropout; both lambdas at full power from the first step."""
    return GameLoraConfig.from_dict({**SMALL, **values})


class Rows(torch.utils.data.Dataset):
    """Given rows, each a mapping or token ids."""

    def __init__(self, rows) -> None:
        self.rows = [row if isinstance(row, dict) else {"input_ids": row} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return self.rows[position]


def small_trainer(folder: Path, rows=None, model=None, design_layers=(1,), **values) -> GameLoraTrainer:
    """A trainer on a tiny model whose adapter already changes it; `values` are settings of the config."""
    config = small_config(**values)
    model = tiny_model() if model is None else model
    targets = config.target_modules or attention_targets(attention_layers(model), model)
    settings = {"r": config.r, "lora_alpha": config.lora_alpha, "lora_dropout": config.lora_dropout}
    saved = {"modules_to_save": config.modules_to_save, "use_dora": config.use_dora}
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **settings, **saved))
    randomize_adapter(model)
    layers = attention_layers(model)
    described = {"sha256": "tiny", "dtype": "float32", "d_model": layers[0].d_model, "d_head": layers[0].d_head}
    loaded = LoadedModel(model, None, layers, {"model": described, "adapter": None})
    if rows is None:
        rows = tiny_rows(config.steps * config.batch_size, config.seq_len, seed=1)
    held_out = TokenRows(tiny_rows(1, config.seq_len, seed=2), {"source": "tiny"})
    text = TrainingText(Rows(rows), held_out, {"train": "tiny", "eval": "tiny"})
    chosen = [layer for layer in layers if layer.index in design_layers]
    args = training_arguments(config, folder)
    args.eval_strategy, args.save_strategy = "no", "no"
    return GameLoraTrainer(config, loaded, chosen, text, args)


def adapter(trainer: GameLoraTrainer) -> dict[str, Tensor]:
    """The trainable tensors, copied."""
    return {name: part.detach().clone() for name, part in trainer.model.named_parameters() if part.requires_grad}


@contextlib.contextmanager
def recorded_gradients(monkeypatch):
    """Inside the block every Jacobian that a trainer makes, and every final gradient, is kept."""
    jacobians, updates = [], []
    gramian, assign = trainer_module.gramian, trainer_module.TaskGradients.assign

    def keep_jacobian(jacobian: Tensor):
        jacobians.append(jacobian.clone())
        return gramian(jacobian)

    def keep_update(self, flat):
        updates.append(None if flat is None else flat.clone())
        assign(self, flat)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "gramian", keep_jacobian)
        patch.setattr(trainer_module.TaskGradients, "assign", keep_update)
        yield jacobians, updates


def slow_losses(trainer: GameLoraTrainer, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """L_CE, L_LDB and L_BT of one batch from the definitions, token by token and pair by pair, each on the autograd graph."""
    config, model, layers = trainer.config, trainer.model, trainer.design.layers
    valid = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones_like(batch["input_ids"]).bool()
    z, outputs, hooks = {}, {}, []
    for layer in layers:
        hooks.append(layer.projection.register_forward_hook(lambda _m, _i, out, layer=layer: outputs.update({layer.index: out})))
    with head_outputs(layers, lambda layer, value: z.update({layer.index: value})):
        losses, counts = causal_loss(model, batch)
    for hook in hooks:
        hook.remove()
    ce = losses.sum() / counts.sum()
    etas = torch.autograd.grad(ce, [outputs[layer.index] for layer in layers], retain_graph=True)
    barriers, decorrelations = [], []
    for layer, eta in zip(layers, etas, strict=True):
        eta = eta[valid]
        G = interaction_from_moment(layer.head_weights(), sum(torch.outer(token, token) for token in eta), config.coupling)
        barriers.append(log_det_barrier(G, config.epsilon))
        before = trainer.design.G.get(layer.index, torch.eye(layer.n_heads))
        weights = (
            torch.ones_like(before) if config.method == "naive" else pair_weights(before, config.bt_a, config.bt_b, config.bt_tau)
        )
        heads = layer.split_heads(z[layer.index][valid])  # [tokens, n_heads, d_head]
        heads = (heads - heads.mean(0)) / heads.std(0, correction=0)
        goal = torch.zeros(layer.d_head, layer.d_head) if config.method == "naive" else torch.eye(layer.d_head)
        pairs = [
            weights[i, j] * (heads[:, i].T @ heads[:, j] / len(heads) - goal).square().sum()
            for i in range(layer.n_heads)
            for j in range(i + 1, layer.n_heads)
        ]
        decorrelations.append(torch.stack(pairs).mean())
    return {"ce": ce, "ldb": torch.stack(barriers).mean(), "bt": torch.stack(decorrelations).mean()}


def slow_gradient(trainer: GameLoraTrainer, loss: Tensor) -> Tensor:
    """The gradient of a loss over the trainable parameters as one vector."""
    parameters = [part for part in trainer.model.parameters() if part.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    parts = zip(gradients, parameters, strict=True)
    return torch.cat([(torch.zeros_like(part) if gradient is None else gradient).flatten() for gradient, part in parts])
