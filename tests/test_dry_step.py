"""Measured dry steps: real ones on a tiny model, what their outcome holds for, and the time of a run that follows."""

import dataclasses

import pytest

from analysis.workspace import atomic_write
from gamelora import dry_step
from gamelora.__main__ import main
from gamelora.config import GameLoraConfig
from gamelora.dry_step import DryStep
from tests.test_runs import settings
from tests.tiny_files import save_folder, text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_folder(text_model(num_hidden_layers=2), tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("values", [{}, {"method": "ce"}, {"text": "pile", "steps": 100_000, "micro_batch_size": None}], ids=str)
def test_a_real_step_is_measured_without_the_text_and_nothing_is_left_behind(values, model, workspace):
    config = settings(model, **values)
    assert dry_step.read(config) is None
    measured = dry_step.measure(config)
    assert min(measured.plain, measured.renewing, measured.evaluation) > 0
    assert measured.peak_bytes > 10_000_000 and measured.free_bytes > 0 and measured.device == "cpu"
    assert dry_step.read(config) == measured
    assert [path.name for path in workspace.iterdir()] == ["dry-steps"]


def test_it_holds_for_what_costs_the_same_and_for_nothing_else(model, workspace):
    config = settings(model)
    place = dry_step.path_of(config)
    for same in ({"steps": 99}, {"learning_rate": 1e-5}, {"seed": 1}, {"text": "pile"}, {"update_weights_every": 1}):
        assert dry_step.path_of(dataclasses.replace(config, **same)) == place, same
    for other in ({"r": 8}, {"seq_len": 8}, {"batch_size": 2}, {"micro_batch_size": 1}, {"method": "ce"}, {"dtype": "bfloat16"}):
        assert dry_step.path_of(dataclasses.replace(config, **other)) != place, other
    whole = dataclasses.replace(config, micro_batch_size=None)
    assert dry_step.path_of(whole) == dry_step.path_of(dataclasses.replace(config, micro_batch_size=config.batch_size))


def test_a_process_does_its_share(model):
    one = dry_step.share_of(settings(model, batch_size=8, micro_batch_size=None), 2)
    assert (one.batch_size, one.micro_batch_size) == (4, 4)
    with pytest.raises(ValueError, match="cannot be shared by 3 processes"):
        dry_step.share_of(settings(model, batch_size=8), 3)


def test_the_time_of_a_run_counts_renewals_and_evaluations():
    step = DryStep(plain=1.0, renewing=4.0, evaluation=0.5, peak_bytes=0, free_bytes=0, device="cpu")
    config = GameLoraConfig(steps=25, update_weights_every=10, eval_every=10, eval_tokens=2048, seq_len=1024)
    assert step.seconds(config) == 22 * 1.0 + 3 * 4.0 + 4 * 2 * 0.5
    assert step.seconds(dataclasses.replace(config, method="ce")) == 25 + 4 * 2 * 0.5


@pytest.mark.parametrize("damage", ["", "{half", '{"format": 9}', '{"format": 1, "measured": {"odd": 1}}'])
def test_a_damaged_outcome_is_measured_again(damage, model, workspace):
    atomic_write(dry_step.path_of(settings(model)), damage)
    assert dry_step.read(settings(model)) is None


def test_the_command_says_memory_and_time(model, workspace, capsys):
    changes = {"model": model, "seq_len": 16, "eval_tokens": 32, "batch_size": 2, "steps": 600, "r": 4}
    options = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    assert main(["measure-step", *options]) == 0
    said = capsys.readouterr().out
    assert "GiB at its peak" in said and "all 600 steps: about" in said
    assert main(["measure-step", "--set", "model=/no/such/model"]) == 2
