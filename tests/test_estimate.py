"""What a run will take, by arithmetic: against real adapters on real models, real run folders, and what PEFT refuses."""

import dataclasses

import pytest

from analysis.models import load_model
from analysis.sources import config_file
from gamelora.build import add_adapter, choose_design_layers
from gamelora.config import GameLoraConfig
from gamelora.estimate import estimate, evaluations, field_of, outline, problems_with
from gamelora.training import start_run
from tests.test_runs import settings
from tests.tiny import tiny_model
from tests.tiny_files import save_folder, text_model, write_gguf


def config_for(folder, **values) -> GameLoraConfig:
    return GameLoraConfig.from_dict({"model": str(folder), **values})


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma3", "opt", "lfm2"])
def folder(request, tmp_path_factory):
    return save_folder(tiny_model(request.param), tmp_path_factory.mktemp("model") / request.param)


@pytest.mark.parametrize(
    "values", [{}, {"r": 3, "use_dora": True}, {"r": 5, "modules_to_save": ["lm_head"]}, {"use_rslora": True}], ids=str
)
def test_trainable_parameters_are_those_of_the_real_adapter(folder, values):
    config = config_for(folder, **values)
    real = add_adapter(load_model(str(folder)), config)
    trainable = sum(part.numel() for part in real.model.parameters() if part.requires_grad)
    found = outline(folder / "config.json", config)
    assert found.trainable(config.r) == trainable
    assert found.layers == tuple(layer.index for layer in real.layers)
    assert found.design_layers == tuple(layer.index for layer in choose_design_layers(real, config))


def test_the_rank_alone_needs_no_new_outline(folder):
    found = outline(folder / "config.json", config_for(folder, r=1))
    for r in (2, 7, 64):
        assert found == dataclasses.replace(outline(folder / "config.json", config_for(folder, r=r)))
        assert found.trainable(r) == estimate(config_for(folder, r=r), found).trainable


def test_no_weight_is_read(tmp_path):
    folder = save_folder(text_model(), tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    assert outline(folder / "config.json", config_for(folder)).parameters > 0


def test_a_gguf_needs_no_conversion(tmp_path, monkeypatch):
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(tmp_path / "workspace"))
    file = write_gguf(tmp_path / "tiny.gguf", text_model(), tokenizer=True)
    config = config_for(file)
    assert config_file(str(file)) == file
    before = outline(file, config)
    assert not list(tmp_path.glob("workspace/models/gguf-*")), "looking at it made nothing"
    load_model(str(file))
    assert config_file(str(file)).name == "config.json"
    assert outline(config_file(str(file)), config) == before


@pytest.mark.parametrize("kept", [0, 3, 40, 900])
def test_a_cut_off_gguf_is_a_sentence(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(tmp_path / "workspace"))
    file = write_gguf(tmp_path / "tiny.gguf", text_model(), tokenizer=True)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"tiny\.gguf could not be read"):
        outline(config_file(str(file)), config_for(file))


def test_what_peft_and_the_model_refuse_is_said_at_its_field(tmp_path):
    folder = save_folder(text_model(num_hidden_layers=2), tmp_path / "model")
    for values, field in [
        ({"target_modules": ["nothing"]}, "target_modules"),
        ({"design_layers": [7]}, "design_layers"),
        ({"target_modules": ["q_proj"]}, "target_modules"),
    ]:
        with pytest.raises(ValueError) as caught:
            outline(folder / "config.json", config_for(folder, **values))
        assert field_of(str(caught.value), "model") == field
    whole = outline(folder / "config.json", config_for(folder))
    window = problems_with(config_for(folder, seq_len=128), whole)
    assert "window of 64" in window["seq_len"]
    assert problems_with(config_for(folder, seq_len=64, eval_tokens=64), whole) == {}


def test_the_disk_of_a_real_run_is_what_was_said(tmp_path, workspace):
    folder = save_folder(text_model(num_hidden_layers=2), tmp_path / "model")
    config = settings(folder, steps=6, save_every=2, eval_every=3, keep_checkpoints=2, r=16, report_to=["tensorboard"])
    said = estimate(config, outline(folder / "config.json", config))
    run = start_run("run", config)
    size = sum(file.stat().st_size for file in run.folder.rglob("*") if file.is_file())
    assert size <= said.disk_bytes <= 2.5 * size
    assert said.adapter_bytes == pytest.approx((run.adapter / "adapter_model.safetensors").stat().st_size, rel=0.1)
    lines = run.metrics()[0]
    assert evaluations(config) == sum("eval_loss" in line for line in lines) == 3


@pytest.mark.parametrize(("steps", "every", "expected"), [(4, 4, 2), (5, 4, 3), (1, 100, 2), (150, 50, 4)])
def test_evaluations_are_those_of_the_trainer(steps, every, expected):
    assert evaluations(GameLoraConfig(steps=steps, eval_every=every)) == expected


def test_a_model_that_is_not_here_is_told_from_one_that_does_not_exist(tmp_path):
    assert config_file("nobody/nothing-of-that-name") is None
    folder = save_folder(text_model(), tmp_path / "model")
    assert config_file(str(folder)) == folder / "config.json"
    for wrong in (tmp_path / "none", tmp_path / "none.gguf"):
        with pytest.raises(ValueError, match=r"does not exist|there is no"):
            config_file(str(wrong))


def test_field_of_finds_the_field_that_a_sentence_names():
    assert field_of("design_layers [7] are no attention layers", "model") == "design_layers"
    assert field_of("the barrier acts through it, and target_modules ['q'] leave it frozen", "model") == "target_modules"
    assert field_of("nothing of that kind", "model") == "model"
