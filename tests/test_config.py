"""GameLoraConfig: defaults of the paper, round trips, and every problem said at once with its remedy."""

import dataclasses

import pytest

from gamelora.config import GameLoraConfig, fields_by_name, read_settings
from gamelora.presets import PRESETS, load_config, preset


def problems(**values) -> str:
    with pytest.raises(ValueError) as caught:
        GameLoraConfig.from_dict(values)
    return str(caught.value)


def test_the_paper_preset_is_section_4_exactly():
    config = preset("paper")
    assert (config.model, config.text) == ("Qwen/Qwen2.5-0.5B", "pile")
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 32, 0.1)
    assert (config.learning_rate, config.weight_decay, config.lr_scheduler, config.warmup) == (3e-4, 0.1, "cosine", 0.02)
    assert (config.batch_size, config.seq_len) == (16, 1024) and round(config.tokens / 1e6, 1) == 20.0
    assert (config.lambda_ldb, config.lambda_bt, config.epsilon) == (0.352, 0.179, 0.01)
    assert (config.lambda_warmup, config.lambda_decay_start) == (0.02, 0.879)
    assert (config.bt_a, config.bt_b, config.bt_tau, config.bt_target, config.bt_decay) == (0.929, 15.99, 0.0, 20.0, 0.1)
    assert (config.method, config.arbitration, config.update_weights_every, config.coupling) == ("game", "nash", 10, "paper")
    assert config.objectives == ("ce", "ldb", "bt")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_yaml(name):
    assert GameLoraConfig.from_yaml(preset(name).to_yaml()) == preset(name)


def test_every_field_explains_itself_and_its_default_is_in_range():
    for name, entry in fields_by_name().items():
        assert entry.metadata["help"].endswith("."), name
        assert entry.metadata["group"] in ("model", "data", "adapter", "optimization", "objectives", "run"), name
    GameLoraConfig()


def test_an_unknown_name_gets_the_nearest_one():
    assert "did you mean 'learning_rate'?" in problems(learningrate=1e-4)
    assert "show-config" in problems(zzz=1)


def test_all_problems_come_at_once_and_each_says_what_to_do():
    message = problems(learningrate=1, seed="x", r=0, method="gam", lora_dropout=float("nan"), batch_size=4, micro_batch_size=3)
    for part in (
        "'learning_rate'",
        "seed is 'x': give a whole number",
        "r is 0: give at least 1",
        "method is 'gam': choose game or ce",
        "lora_dropout is nan: give at least 0 and less than 1",
        "micro_batch_size 3: use 2",
    ):
        assert part in message


def test_rules_between_fields_hold_back_when_a_field_is_wrong_by_itself():
    message = problems(batch_size=4, micro_batch_size=0)
    assert "micro_batch_size is 0" in message and "cannot be cut" not in message


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"eval_tokens": 10, "seq_len": 64}, "give at least 64"),
        ({"lambda_warmup": 0.9}, "make it smaller"),
        ({"design_layers": [1, 1]}, "each layer once"),
        ({"design_layers": []}, "leave it empty"),
        ({"design_layers": [-1]}, "from 0"),
        ({"steps": 1.5}, "a whole number"),
        ({"bt_a": True}, "a number"),
        ({"gradient_checkpointing": "maybe"}, "true or false"),
        ({"steps": None}, "steps is empty"),
        ({"learning_rate": 0}, "more than 0"),
        ({"report_to": ["tensorboard", "floppy"]}, "'floppy': choose tensorboard or wandb or trackio"),
    ],
)
def test_wrong_values_are_refused_with_a_remedy(values, part):
    assert part in problems(**values)


def test_a_config_built_in_python_is_checked_too():
    with pytest.raises(ValueError, match="r is 0"):
        GameLoraConfig(r=0)
    with pytest.raises(ValueError, match="cannot be cut"):
        dataclasses.replace(GameLoraConfig(), micro_batch_size=5)


def test_values_given_as_text_take_the_type_of_their_field():
    config = GameLoraConfig.from_dict({"learning_rate": "1e-4", "steps": "7", "design_layers": 3, "target_modules": "o_proj"})
    assert (config.learning_rate, config.steps, config.design_layers, config.target_modules) == (1e-4, 7, [3], ["o_proj"])
    assert GameLoraConfig.from_dict({"eval_text": ""}).eval_text is None


def test_settings_lie_on_top_of_the_file_and_the_file_on_top_of_the_preset(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("steps: 30\nseed: 7\n")
    config = load_config(path, "smoke", ["seed=8", "design_layers=[1, 2]"])
    assert (config.steps, config.seed, config.design_layers, config.seq_len) == (30, 8, [1, 2], PRESETS["smoke"]["seq_len"])


def test_a_missing_or_unreadable_config_says_so(tmp_path):
    with pytest.raises(ValueError, match="there is no config file"):
        load_config(tmp_path / "none.yaml")
    path = tmp_path / "mine.yaml"
    for text, part in (("a: [", "not readable YAML"), ("- 1\n", "lines of `key: value`")):
        path.write_text(text)
        with pytest.raises(ValueError, match=part):
            load_config(path)
    with pytest.raises(ValueError, match="choose paper, laptop, smoke"):
        preset("papers")
    with pytest.raises(ValueError, match="key=value"):
        read_settings(["steps"])
