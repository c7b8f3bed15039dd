"""A few real optimizer steps of a config, measured: memory at its peak, seconds a step, tokens a second of an evaluation.

    python -m gamelora measure-step --preset laptop

runs four steps on random token ids in a folder that is thrown away: the first one warms up; then come a plain step, one that
renews the weights, and a plain one. The outcome lies under the workspace and holds for every config that differs only in what
costs no memory and no time in a step (steps, seed, learning rate, text).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from transformers import TrainerCallback

from analysis.devices import available_memory, processes
from analysis.models import model_name
from analysis.pretrained import empty_model
from analysis.progress import report
from analysis.sources import resolve
from analysis.workspace import atomic_write, workspace_root
from gamelora import jobs
from gamelora.build import build_trainer
from gamelora.command_line import settings_arguments
from gamelora.config import GameLoraConfig
from gamelora.estimate import evaluations
from gamelora.memory import rows_at_once

_TARGET = "dry-step:"
_STEPS = 4
_FORMAT = 1
# What a step's cost depends on, beside the rows that are held at once.
_COSTLY = (
    "model",
    "revision",
    "dtype",
    "autocast",
    "gradient_checkpointing",
    "seq_len",
    "batch_size",
    "r",
    "lora_dropout",
    "target_modules",
    "modules_to_save",
    "use_dora",
    "method",
    "arbitration",
    "coupling",
    "design_layers",
)


@dataclass(frozen=True)
class DryStep:
    """What was measured.

    Attributes
    ----------
    plain, renewing : seconds of a step between two bargains, and of one that renews the weights.
    evaluation : seconds a row of the held-out text.
    peak_bytes, free_bytes : most memory that the steps took, and what is free for them on that device.
    device : "cpu" or "cuda".
    """

    plain: float
    renewing: float
    evaluation: float
    peak_bytes: int
    free_bytes: int
    device: str

    def seconds(self, config: GameLoraConfig) -> float:
        """How long a run of that config takes, without loading and saving."""
        renewals = -(-config.steps // config.update_weights_every) if len(config.objectives) > 1 else 0
        steps = renewals * self.renewing + (config.steps - renewals) * self.plain
        rows = max(1, config.eval_tokens // config.seq_len)
        return steps + evaluations(config) * rows * self.evaluation


def path_of(config: GameLoraConfig) -> Path:
    """Where the measurement of such a config lies."""
    return workspace_root() / "dry-steps" / f"{_digest(config)}.json"


def read(config: GameLoraConfig) -> DryStep | None:
    """The measurement that holds for a config; None when there is none, or when its file is damaged and must be made anew."""
    try:
        stored = json.loads(path_of(config).read_text(encoding="utf-8"))
        return DryStep(**stored["measured"]) if stored["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start(config: GameLoraConfig) -> jobs.Job:
    """Measure as a job; the live one when it runs already."""
    arguments = ["gamelora", "measure-step", *settings_arguments(config)]
    return jobs.start(_TARGET + _digest(config), f"One step of {model_name(config.model)}", arguments)


def latest(config: GameLoraConfig) -> jobs.Job | None:
    """The newest job that measures such a config."""
    return jobs.latest(_TARGET + _digest(config))


def share_of(config: GameLoraConfig, n_processes: int) -> GameLoraConfig:
    """The config of what one of several processes does; ValueError when the batch cannot be shared evenly."""
    rows = rows_at_once(config, n_processes)
    return dataclasses.replace(config, batch_size=config.batch_size // n_processes, micro_batch_size=rows)


def measure(config: GameLoraConfig) -> DryStep:
    """Run the steps in this process and keep what they took.

    Raises
    ------
    ValueError
        When the config cannot be run.
    """
    report("loading the model")
    free = available_memory({"": processes().device})
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(_dry(config, Path(folder)), Path(folder))
        clock = _Clock()
        trainer.add_callback(clock)
        trainer.args.eval_strategy = trainer.args.save_strategy = "no"
        trainer.train()
        began = time.perf_counter()
        trainer.evaluate()
        evaluation = (time.perf_counter() - began) / len(trainer.text.held_out.rows)
        peak = trainer.peak_memory()
    measured = DryStep(clock.seconds[1], clock.seconds[2], evaluation, peak, free, trainer.args.device.type)
    stored = {"format": _FORMAT, "config": config.to_dict(), "measured": asdict(measured)}
    atomic_write(path_of(config), json.dumps(stored, indent=1))
    return measured


class _Clock(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, args, state, control, **_):
        """From here the step counts."""
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        """To here."""
        self.seconds.append(time.perf_counter() - self._began)
        report("training on random tokens", len(self.seconds), _STEPS, "step")


def _dry(config: GameLoraConfig, folder: Path) -> GameLoraConfig:
    """The config with random token ids for a text, every loss at work from the first step, and nothing to watch or keep."""
    model = empty_model(config.model, resolve(config.model, config.revision).folder / "config.json")
    rows = _STEPS * config.batch_size + 1
    ids = np.random.default_rng(0).integers(0, model.config.get_text_config().vocab_size, rows * config.seq_len)
    np.save(folder / "ids.npy", ids)
    changes = {"text": str(folder / "ids.npy"), "eval_text": None, "eval_tokens": config.seq_len, "steps": _STEPS}
    changes |= {"update_weights_every": 2, "lambda_warmup": 0.0, "lambda_decay_start": 1.0, "report_to": []}
    return dataclasses.replace(config, **changes)


def _digest(config: GameLoraConfig) -> str:
    costly = {name: value for name, value in config.to_dict().items() if name in _COSTLY} | {"rows": rows_at_once(config, 1)}
    return hashlib.sha256(json.dumps(costly, sort_keys=True).encode()).hexdigest()[:16]
