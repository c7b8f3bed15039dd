"""Run folders as a training process leaves them, without training: what tables, charts and pages of runs are tested on."""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from gamelora.config import GameLoraConfig
from gamelora.runs import Run

LAYER = 3


def step_line(number, steps=10, seed=0, **more):
    """A line of metrics.jsonl for one optimizer step, with the names that a trainer writes."""
    noise = math.sin(97 * number + seed)
    line = {"step": number, "time": 1.76e9 + number, "loss": 3.0, "grad_norm": 1.5, "learning_rate": 3e-4 * number / steps}
    line |= {
        "loss/ce": 3.0 - number / steps + 0.1 * noise,
        "loss/ldb": 1.0 + noise,
        "loss/bt": 20 + noise,
        "gap/ldb": 1.1 + noise,
    }
    line |= {"weight/ce": 1.0, "weight/ldb": 0.3, "weight/bt": 0.2, "lambda/ldb": 0.352, "lambda/bt": 0.179, "scale/bt": 1.0}
    line |= {f"gamma/L{LAYER}": 1.0 - 0.5 * number / steps, "tokens_per_second": 900.0 + noise, "peak_memory": 1e9}
    if number % 10 == 1:  # where the weights are renewed
        line |= {"gradient_norm/ce": 1.0, "gradient_norm/ldb": 0.2, "gradient_norm/bt": 8.0}
        line |= {"cosine/ce_ldb": 0.1 * noise, "cosine/ce_bt": 0.05, "cosine/ldb_bt": -0.2}
    return line | more


def evaluation_line(number, loss=3.0, gamma=1.0, layers=6):
    """A line of an evaluation: held-out cross-entropy, and Gamma of every layer under both couplings."""
    gammas = {f"eval_gamma_{coupling}/L{n}": gamma + 0.1 * n for coupling in ("paper", "invariant") for n in range(layers)}
    return {"step": number, "time": 1.76e9 + number, "eval_loss": loss} | gammas


def write_adapter(folder: Path, seed: int = 0) -> Path:
    """The files of a LoRA adapter, tiny, fit for no model."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    save_file({"lora_A": torch.from_numpy(np.random.default_rng(seed).normal(size=(4, 8)))}, folder / "adapter_model.safetensors")
    (folder / "README.md").write_text(f"# A card of seed {seed}\n")
    return folder


def write_checkpoint(run: Run, step: int) -> Path:
    """A complete checkpoint: an adapter with the trainer's state, pickles among it."""
    folder = write_adapter(run.checkpoints_folder / f"checkpoint-{step}", step)
    (folder / "optimizer.pt").write_bytes(b"pickle")
    (folder / "objectives.json").write_text("{}")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / "complete.json").write_text(json.dumps(sizes))
    return folder


def made_up_run(name, state="finished", steps=10, done=None, checkpoints=(), status=None, seed=0, **settings) -> Run:
    """A run that stands at step `done` of `steps`, evaluated at both ends; `settings` are of its config."""
    done = steps if done is None else done
    run = Run.create(name, GameLoraConfig.from_dict({"steps": steps, **settings}))
    lines = [evaluation_line(0), *(step_line(number, steps, seed) for number in range(1, done + 1))]
    lines += [evaluation_line(done, 2.5 - 0.01 * seed, 0.6)] * (done > 0)
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in checkpoints:
        write_checkpoint(run, step)
    if state == "finished":
        write_adapter(run.adapter, done)
    told = {"step": done, "arbitration": "nash", "design_layers": [LAYER], "notes": [], "created": 1.76e9 + seed}
    run.write_status(state=state, **told | {"model": {"parameters": 134_515_008, "dtype": "float32"}} | (status or {}))
    return run
