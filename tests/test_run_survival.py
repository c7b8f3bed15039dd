"""kill -9 at any moment of a training run: the run stays readable, no complete checkpoint is lost, and a resume ends the same.

A tiny model under the settings of the smoke preset. `GAMELORA_SURVIVAL=default` takes the default model instead (20 minutes
and more on two cores).
"""

import os
import random

import pytest
import torch
from safetensors.torch import load_file

from gamelora import training_jobs
from gamelora.checkpoints import step_of
from gamelora.config import GameLoraConfig
from gamelora.presets import preset_values
from gamelora.runs import Run, run_names
from gamelora.training_jobs import look_all
from tests.killable import Killable
from tests.tiny_files import save_folder, text_model

KILLS = 30
AT_CHANGES = 22  # of them before a change of a file, the others after some computing
TINY = {"seq_len": 16, "eval_tokens": 32, "r": 4, "autocast": "float32", "learning_rate": 1e-2, "update_weights_every": 3}
TINY |= {"save_every": 2, "eval_every": 4, "keep_checkpoints": 3, "report_to": []}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A workspace with a run that nobody disturbed, `straight`."""
    folder = tmp_path_factory.mktemp("survival")
    values = preset_values("smoke")
    if os.environ.get("GAMELORA_SURVIVAL") != "default":
        values = values | TINY | {"model": str(save_folder(text_model(num_hidden_layers=2), folder / "model"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(folder / "workspace"))
        (folder / "workspace").mkdir()
        killable = Killable(folder / "workspace", GameLoraConfig.from_dict(values))
        assert killable.train("warm") == 0  # the first one also starts the process that the others are forked from
        assert killable.train("straight") == 0
        yield killable


def weights(run):
    return load_file(run.adapter / "adapter_model.safetensors")


def moments(count, end, seed):
    """Random moments from 0 to `end`, one in each of `count` equal stretches, so that all of the run's life is met."""
    chosen = random.Random(seed)
    return [(place + chosen.random()) / count * end for place in range(count)]


def test_thirty_kills_lose_nothing(runs):
    expected, steps = weights(Run.open("straight")), runs.config.steps
    at_changes = [1 + int(moment) for moment in moments(AT_CHANGES, runs.changes, seed=0)]
    after = moments(KILLS - AT_CHANGES, runs.seconds, seed=1)
    unborn = 0
    for number, moment in enumerate([*at_changes, *after]):
        name = f"run{number}"
        kill = {"kill_at": moment} if number < AT_CHANGES else {"kill_after": moment}
        ended = runs.train(name, **kill)
        while ended == 0 and number >= AT_CHANGES:  # computing took less time than in the undisturbed run: earlier, and anew
            assert check_readable(name, complete(runs, ended, False), ended, kill)
            training_jobs.delete(name)
            kill["kill_after"] *= 0.9
            ended = runs.train(name, **kill)
        assert ended == -9, f"{kill}: the process ended by itself with {ended}"
        unborn += not check_readable(name, complete(runs, ended, number < AT_CHANGES), ended, kill)
        assert runs.train(name) == 0, f"{kill}: it does not resume"
        run = Run.open(name)
        assert run.status()["state"] == "finished" and run.status()["step"] == steps, kill
        for tensor, part in weights(run).items():
            torch.testing.assert_close(part, expected[tensor], atol=1e-5, rtol=0, msg=f"{kill}: {tensor} differs")
        lines = [line for line in run.metrics()[0] if "loss" in line]
        assert [line["step"] for line in lines] == list(range(1, steps + 1)), kill
        assert step_of(run.checkpoints()[-1]) == steps
    print(f"{KILLS} kills, {unborn} of them before there was a run")
    assert unborn <= KILLS // 2  # loading takes the larger part of a tiny run's computing
    left = {now.name: now.state for now in look_all()}
    assert set(left.values()) == {"finished"} and len(left) == KILLS + 2


def complete(runs, ended, exactly):
    """Steps whose checkpoints must be there: the newest ones that are kept, of those that were certainly in their place."""
    keep = runs.config.keep_checkpoints
    if ended == 0 or exactly:
        return runs.published[-keep:]
    return runs.published[:-1][-keep + 1 :]  # the last one may have been about to come, or have pushed out another


def check_readable(name, kept, ended, kill):
    """Whether there is a run of that name; if so, all of it can be read and the checkpoints that were complete are there."""
    if name not in run_names():
        assert not (Run.open("straight").folder.parent / name).exists(), f"{kill}: half a run blocks its name"
        assert not kept
        return False
    run = Run.open(name)
    status = run.status()
    assert status["state"] == ("failed" if ended else "finished"), kill
    assert run.config().steps == status["steps"]
    there = [step_of(path) for path in run.checkpoints()]
    assert set(kept) <= set(there), f"{kill}: complete were {kept}, left are {there}"
    run.metrics()
    return True
