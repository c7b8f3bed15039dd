"""The checkpoints of a workspace: base models, adapters, and the steps that runs have saved."""

import shutil

import pytest

from gamelora.__main__ import main
from gamelora.checkpoint_sources import CheckpointSource, run_checkpoints, source_of, workspace_checkpoints
from gamelora.runs import Run
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


def test_a_run_gives_a_curve_of_checkpoints(run, trained):
    found = run_checkpoints("mine")
    assert [(one.title, one.kind, one.step) for one in found] == [(f"mine step {n}", "run step", n) for n in (1, 2, 3)]
    assert {one.source for one in found} == {str(trained / "model")} and len({one.id for one in found}) == 3
    shutil.rmtree(run.checkpoints_folder / "checkpoint-3")
    assert [one.title for one in run_checkpoints("mine")] == ["mine step 1", "mine step 2", "mine adapter"]


def test_a_workspace_lists_the_default_model_bases_and_steps_once(run, trained):
    seen = [synthetic_result().provenance, synthetic_result(adapter="/runs/laptop").provenance]
    found, notices = workspace_checkpoints(seen)
    assert [one.kind for one in found] == ["base", "base", "adapter", *["run step"] * 3] and not notices
    assert found[0] == CheckpointSource() and found[1].source == str(trained / "model")
    assert found[2].title == "SmolLM2-135M-Instruct + laptop"
    step = {"model": {"source": str(trained / "model"), "dtype": "float32"}}
    step["adapter"] = {"source": str(run.checkpoints_folder / "checkpoint-2"), "sha256": "x"}
    again, _ = workspace_checkpoints([*seen, step])
    assert [one.title for one in again] == [one.title for one in found]


def test_a_damaged_run_is_named_and_hides_no_other(run):
    shutil.copytree(run.folder, run.folder.with_name("broken"))
    (run.folder.with_name("broken") / "config.yaml").write_text("r: [")
    found, notices = workspace_checkpoints()
    assert "mine step 1" in [one.title for one in found]
    assert len(notices) == 1 and notices[0].startswith("Run broken is left out:")


def test_an_unfinished_run_has_its_saved_steps_only(run):
    shutil.rmtree(run.adapter)
    (run.checkpoints_folder / "checkpoint-2" / "complete.json").unlink()
    assert [one.step for one in run_checkpoints("mine")] == [1, 3]


def test_a_checkpoint_knows_results_made_of_it(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    provenance = synthetic_result(source=str(tmp_path / "model")).provenance
    assert CheckpointSource("model").made(provenance) and CheckpointSource("./model/").made(provenance)
    assert not CheckpointSource("model", dtype="bfloat16").made(provenance)
    assert not CheckpointSource("model", adapter="/a").made(provenance)
    assert source_of(provenance).made(provenance)
    hub = {"model": {"source": "o/n", "dtype": "float32", "kind": "hub", "revision": "abc"}, "adapter": None}
    assert CheckpointSource("o/n").made(hub) and CheckpointSource("o/n", "abc").made(hub)
    assert not CheckpointSource("o/n", "v2").made(hub) and source_of(hub).revision == "abc"


def test_titles_say_what_tells_apart():
    assert CheckpointSource().title == "SmolLM2-135M-Instruct"
    assert CheckpointSource("o/n", "v1", dtype="bfloat16").title == "n (v1, bfloat16)"
    assert CheckpointSource("o/n", adapter="/x/laptop").title == "n + laptop"
    assert CheckpointSource("o/n", adapter="/x", run="first", step=40).title == "first step 40"
