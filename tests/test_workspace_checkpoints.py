"""The checkpoints of a workspace: base models, adapters, and the steps that runs have saved."""

import shutil

import pytest

from gamelora.__main__ import main
from gamelora.checkpoint_sources import CheckpointSource
from gamelora.runs import Run
from gamelora.workspace_checkpoints import workspace_checkpoints
from tests.synthetic import synthetic_result
from tests.test_gamelora_cli import arguments
from tests.tiny_files import save_folder, text_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A workspace with a finished run that kept three steps."""
    folder = tmp_path_factory.mktemp("sources")
    model = save_folder(text_model(), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(folder / "workspace"))
        settings = arguments(model, "steps=3", "save_every=1", "keep_checkpoints=3")
        assert main(["train", *settings, "--run", "mine"]) == 0
    return folder


@pytest.fixture
def run(trained, workspace):
    shutil.copytree(trained / "workspace", workspace)
    return Run.open("mine")


def titles(found):
    return [one.title for one in found]


def test_a_workspace_lists_the_default_model_bases_and_steps_once(run, trained):
    seen = [synthetic_result().provenance, synthetic_result(adapter="/runs/laptop").provenance]
    found, notices = workspace_checkpoints(seen)
    assert not notices and found[0] == CheckpointSource() and found[1].source == str(trained / "model")
    assert titles(found)[2:] == ["SmolLM2-135M-Instruct + laptop", "mine adapter", "mine step 1", "mine step 2"]
    assert len({one.id for one in found}) == len(found)
    step = {"model": {"source": str(trained / "model"), "dtype": "float32"}}
    step["adapter"] = {"source": str(run.checkpoints_folder / "checkpoint-2"), "sha256": "x"}
    again, _ = workspace_checkpoints([*seen, step])
    assert titles(again) == titles(found)


def test_a_damaged_run_is_named_and_hides_no_other(run):
    shutil.copytree(run.folder, run.folder.with_name("broken"))
    (run.folder.with_name("broken") / "config.yaml").write_text("r: [")
    found, notices = workspace_checkpoints()
    assert "mine step 1" in titles(found)
    assert len(notices) == 1 and notices[0].startswith("Run broken is left out:")


def test_an_unfinished_run_has_its_saved_steps_only(run):
    shutil.rmtree(run.adapter)
    (run.checkpoints_folder / "checkpoint-2" / "complete.json").unlink()
    assert titles(workspace_checkpoints()[0])[2:] == ["mine step 1", "mine step 3"]


def test_steps_are_sorted_as_numbers(run):
    shutil.copytree(run.checkpoints_folder / "checkpoint-2", run.checkpoints_folder / "checkpoint-10")
    assert titles(workspace_checkpoints()[0])[3:] == ["mine step 1", "mine step 2", "mine step 10"]
