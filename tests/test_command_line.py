"""A run as a command: what it says is what the config holds, whatever the values."""

import itertools
import shlex

import pytest

from gamelora.command_line import processes_of, resume_arguments, shell, train_arguments
from gamelora.config import GameLoraConfig, read_settings
from gamelora.presets import PRESETS, load_config, preset

ODD = {
    "model": "/models/my model#1: 'x'",
    "revision": "1.0",
    "text": "true",
    "eval_text": "null",
    "learning_rate": 1.2345678901e-5,
    "design_layers": [3, 7],
    "target_modules": ["q_proj", "a: b"],
    "micro_batch_size": 2,
    "batch_size": 8,
    "gradient_checkpointing": True,
    "report_to": [],
}


def understood(arguments: list[str]) -> GameLoraConfig:
    """The config that `python -m gamelora` makes of the command."""
    options = arguments[arguments.index("train") + 1 :]
    settings = [word for option, word in itertools.pairwise(options) if option == "--set"]
    name = options[options.index("--preset") + 1] if "--preset" in options else None
    return load_config(None, name, settings)


@pytest.mark.parametrize("values", [{}, ODD, *PRESETS.values()], ids=["defaults", "odd", *PRESETS])
def test_the_command_says_the_config(values):
    config = GameLoraConfig.from_dict(values)
    assert understood(train_arguments("run", config)) == config


def test_a_preset_is_named_and_only_what_differs_follows():
    assert train_arguments("x", preset("smoke")) == ["gamelora", "train", "--preset", "smoke", "--run", "x"]
    assert train_arguments("x", GameLoraConfig()) == ["gamelora", "train", "--run", "x"]
    changed = GameLoraConfig.from_dict(PRESETS["laptop"] | {"steps": 7})
    assert train_arguments("x", changed) == ["gamelora", "train", "--preset", "laptop", "--set", "steps=7", "--run", "x"]


def test_several_processes_go_through_accelerate_and_one_does_not():
    arguments = train_arguments("x", preset("smoke"), processes=2)
    assert processes_of(arguments) == 2 and arguments[-6:] == ["gamelora", "train", "--preset", "smoke", "--run", "x"]
    assert shell(arguments).startswith("accelerate launch --multi_gpu --num_processes 2 ")
    assert processes_of(train_arguments("x", preset("smoke"))) == 1


def test_the_shown_command_survives_a_shell():
    arguments = train_arguments("x", GameLoraConfig.from_dict(ODD))
    assert shlex.split(shell(arguments).replace("\\\n", " ")) == ["python", "-m", *arguments]


def test_a_resume_names_its_changes():
    arguments = resume_arguments("x", {"micro_batch_size": 1, "gradient_checkpointing": True})
    assert arguments[:3] == ["gamelora", "resume", "x"]
    assert read_settings(arguments[4::2]) == {"micro_batch_size": 1, "gradient_checkpointing": True}
