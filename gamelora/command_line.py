"""A training run as the command that starts it, and back: what the pages show is what their jobs run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from gamelora.config import GameLoraConfig, default_values
from gamelora.presets import PRESETS

_LAUNCH = ["accelerate.commands.launch", "--multi_gpu"]  # its word for several processes, also on a CPU
_ONE_MACHINE = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]


def train_arguments(name: str, config: GameLoraConfig, processes: int = 1) -> list[str]:
    """Arguments of `python -m` that train the run `name`."""
    return launched(["gamelora", "train", *settings_arguments(config), "--run", name], processes)


def settings_arguments(config: GameLoraConfig) -> list[str]:
    """A config as options: the preset that is nearest, and every other setting on top."""
    values = config.to_dict()
    changed = {preset: _changes(values, default_values() | PRESETS.get(preset, {})) for preset in (None, *PRESETS)}
    base = min(changed, key=lambda preset: len(changed[preset]) + (preset is not None))
    return (["--preset", base] if base else []) + _settings(changed[base])


def resume_arguments(name: str, changes: dict[str, Any] | None = None, processes: int = 1) -> list[str]:
    """Arguments of `python -m` that go on with a run, with `changes` of its settings."""
    return launched(["gamelora", "resume", name, *_settings(changes or {})], processes)


def launched(arguments: list[str], processes: int) -> list[str]:
    """The same through `accelerate launch` when it takes several processes."""
    if processes == 1:
        return arguments
    return [*_LAUNCH, "--num_processes", str(processes), *_ONE_MACHINE, "-m", *arguments]


def processes_of(arguments: Sequence[str]) -> int:
    """How many processes a command starts."""
    return int(arguments[arguments.index("--num_processes") + 1]) if "--num_processes" in arguments else 1


def shell(arguments: Sequence[str]) -> str:
    """The command as one types it, a setting a line."""
    words = ["accelerate", "launch", *arguments[1:]] if arguments[0] == _LAUNCH[0] else ["python", "-m", *arguments]
    lines: list[list[str]] = [[]]
    for word in words:
        if word in ("--preset", "--set", "--run"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(map(shlex.join, lines))


def _changes(values: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != base[name]}


def _settings(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name}={_written(value)}")]


def _written(value: Any) -> str:
    """A value as `config.read_settings` reads it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").strip()
