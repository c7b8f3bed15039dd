"""What GAME-LoRA costs beside LoRA: a step's time and memory, Barlow Twins beside a loop over pairs, and the bargain.

    python -m tests.bench bench_training

Default model, 2 x 256 tokens, bfloat16 autocast (emulated on both sides where the CPU has none), LoRA on q, k, v, o, design
layer 24. Steps of `ce` and `game` are alternated in one process; memory is that of processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from gamelora.build import build_trainer
from gamelora.config import GameLoraConfig
from gamelora.losses import barlow_twins
from gamelora.nash import arbitrate
from gamelora.trainer import GameLoraTrainer
from tests.bench import ratio
from tests.bfloat16_unit import has_bfloat16_unit

RUNS = 7
EVERY = 10


def run() -> Iterator[tuple[str, float, float, int]]:
    """Lines of `make bench`."""
    plain, refreshed = _step_times()
    cycle = ((EVERY - 1) * plain + refreshed) / EVERY
    yield f"time of a step, game with weights refreshed every {EVERY} steps / ce", cycle, 1.08, RUNS
    yield "time of a step, game with weights refreshed every step / ce", refreshed, 1.45, RUNS
    yield "peak memory of training, game / ce", _peak("game") / _peak("ce"), 1.10, 1
    yield "time of Barlow Twins, 8,192 tokens x 32 heads x 64 / loop over pairs", _barlow_twins(), 0.1, 3
    yield "time of the bargain between 3 tasks / 1 ms", _bargain(), 1.0, 200


# --- a step -----------------------------------------------------------------------------------------------------------


def _trainer(method: str, folder: str) -> GameLoraTrainer:
    settings = {"method": method, "autocast": "bfloat16", "seq_len": 256, "batch_size": 2, "steps": 1000, "report_to": []}
    config = GameLoraConfig.from_dict({**settings, "lambda_warmup": 0.0, "eval_tokens": 256})
    return build_trainer(config, Path(folder))


def _stepper(trainer: GameLoraTrainer) -> Callable[[bool], float]:
    """A function that does one optimizer step as Trainer's loop does, and returns its seconds."""
    rows = iter(trainer.get_train_dataloader())
    model, _ = trainer._prepare_for_training(1000, None, None)

    def step(refresh: bool = False) -> float:
        with mock.patch.object(trainer.arbiter, "due", lambda _step: refresh and len(trainer.arbiter.tasks) > 1):
            start = time.perf_counter()
            (batch,), _ = trainer.get_batch_samples(rows, 1, trainer.args.device)
            trainer.training_step(model, batch)
            trainer._clip_grad_norm(model)
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
            model.zero_grad()
            seconds = time.perf_counter() - start
        trainer.state.global_step += 1
        return seconds

    return step


def _step_times() -> tuple[float, float]:
    """(plain, refreshed): median time of a game step between bargains, and of one with a bargain, over a ce step."""
    with tempfile.TemporaryDirectory() as folder, _bfloat16_autocast():
        ce, game = (_stepper(_trainer(method, folder)) for method in ("ce", "game"))
        ce(), game(True), game()
        plain, refreshed = [], []
        for number in range(RUNS):
            order = [lambda: ce(), lambda: game(), lambda: game(True)]
            order = order[number % 3 :] + order[: number % 3]
            seconds = {position: step() for position, step in zip([(number + k) % 3 for k in range(3)], order, strict=True)}
            plain.append(seconds[1] / seconds[0])
            refreshed.append(seconds[2] / seconds[0])
    return statistics.median(plain), statistics.median(refreshed)


class _Product(torch.autograd.Function):
    """A bfloat16 product added up in float32 and rounded once, as every bfloat16 unit does it."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return (x.float() @ weight.float().T).bfloat16()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.float()
        at_weight = gradient.flatten(0, -2).T @ x.float().flatten(0, -2) if ctx.needs_input_grad[1] else None
        at_x = (gradient @ weight.float()).bfloat16() if ctx.needs_input_grad[0] else None
        return at_x, None if at_weight is None else at_weight.bfloat16()


@contextlib.contextmanager
def _bfloat16_autocast() -> Iterator[None]:
    """Inside the block, linear layers under autocast multiply as on a CPU with a bfloat16 unit; nothing where there is one."""
    if has_bfloat16_unit():
        yield
        return
    linear = torch.nn.functional.linear

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return linear(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            result = _Product.apply(x.bfloat16(), weight.bfloat16())
        return result if bias is None else result + bias.bfloat16()

    with mock.patch.object(torch.nn.functional, "linear", product):
        yield


# --- memory -----------------------------------------------------------------------------------------------------------


def _peak(method: str) -> int:
    """Peak resident memory, bytes, of a fresh process that trains a few steps; a bargain in each."""
    done = subprocess.run([sys.executable, "-m", "tests.bench_training", method], capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure_peak(method: str) -> int:
    with tempfile.TemporaryDirectory() as folder, _bfloat16_autocast():
        step = _stepper(_trainer(method, folder))
        for _ in range(3):
            step(True)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# --- the parts --------------------------------------------------------------------------------------------------------


def _barlow_twins() -> float:
    """Loss and gradient by one product over the definition pair by pair: eight pairs, times as many as there are."""
    tokens, n_heads, width, few = 8192, 32, 64, 8
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(tokens, n_heads * width, generator=generator) + torch.randn(tokens, 1, generator=generator)
    pairs = n_heads * (n_heads - 1) // 2
    eight = torch.zeros(n_heads, n_heads)
    eight[0, 1 : 1 + few] = 1.0

    def together(weights: Tensor) -> tuple[Tensor, Tensor]:
        leaf = z.clone().requires_grad_()
        loss = barlow_twins(leaf, weights)
        return loss, torch.autograd.grad(loss, leaf)[0]

    def pair_by_pair() -> tuple[Tensor, Tensor]:
        leaf, total = z.clone().requires_grad_(), 0.0
        heads = leaf.unflatten(1, (n_heads, width))
        for other in range(1, 1 + few):
            views = [(view - view.mean(0)) / view.std(0, correction=0) for view in (heads[:, 0], heads[:, other])]
            total = total + (views[0].T @ views[1] / tokens - torch.eye(width)).square().sum() / pairs
        return total, torch.autograd.grad(total, leaf)[0]

    (ours, gradient), (slow, oracle) = together(eight), pair_by_pair()
    assert abs(ours / slow - 1) < 1e-5 and (gradient - oracle).norm() / oracle.norm() < 1e-4
    return ratio(lambda: together(torch.ones(n_heads, n_heads)), pair_by_pair, 3) * few / pairs


def _bargain() -> float:
    J = np.random.default_rng(0).normal(size=(3, 50))
    M, powers = J @ J.T, np.array([1.0, 0.352, 0.179])
    return statistics.median(timeit.repeat(lambda: arbitrate(M, powers), number=1, repeat=200)) * 1000


if __name__ == "__main__":
    print(_measure_peak(sys.argv[1]))
