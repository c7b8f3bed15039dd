"""The settings of `--preset`, and the config of a YAML file or preset with settings on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gamelora.config import GameLoraConfig, read_settings, read_yaml

# What a preset changes from the defaults, which are the paper's. The laptop's few steps need a higher learning rate than 1,221
# of them: at 3e-4 they hardly move the design layer's Gamma (docs/results.md).
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"model": "Qwen/Qwen2.5-0.5B", "text": "pile", "eval_tokens": 65_536},
    "laptop": {
        "seq_len": 256,
        "batch_size": 4,
        "steps": 150,
        "learning_rate": 1e-3,
        "eval_every": 50,
        "save_every": 25,
        "keep_checkpoints": 6,
    },
    "smoke": {"seq_len": 128, "batch_size": 2, "steps": 10, "eval_tokens": 1024, "eval_every": 5, "save_every": 5},
}


def preset(name: str) -> GameLoraConfig:
    """The config of a preset: paper, laptop or smoke."""
    return GameLoraConfig.from_dict(preset_values(name))


def preset_values(name: str) -> dict[str, Any]:
    """What a preset changes from the defaults, by name."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose {', '.join(PRESETS)}.")
    return PRESETS[name]


def load_config(path: Path | None = None, preset_name: str | None = None, settings: list[str] | None = None) -> GameLoraConfig:
    """The config of a YAML file or preset, with `key=value` settings on top.

    Raises
    ------
    ValueError
        When the file is missing or unreadable, or the values cannot be used; all problems together.
    """
    values = preset_values(preset_name) if preset_name else {}
    if path is not None:
        if not path.is_file():
            raise ValueError(
                f"there is no config file {path}; `python -m gamelora show-config > {path.name}` writes one to start from."
            )
        values = {**values, **read_yaml(path.read_text(encoding="utf-8"), str(path))}
    return GameLoraConfig.from_dict({**values, **read_settings(settings or [])})
