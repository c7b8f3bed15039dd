"""The head game's jobs: a file a checkpoint and text, a command that makes it, and what it is expected to take."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import COMMANDS
from analysis.ablation import AblationResult
from analysis.corpus import token_rows
from analysis.gauge import GaugeResult
from analysis.head_values import HeadValues
from analysis.measurement import measure_interaction
from analysis.models import load_model
from analysis.results import InteractionResult
from gamelora import game_jobs, jobs
from gamelora.game_jobs import Check, ablation_job, expected_seconds, gauge_job, known_ablations, values_job
from gamelora.jobs import Job
from tests.synthetic import synthetic_result
from tests.tiny import tiny_model, tiny_rows

RESULT = Path("/results/one.npz")
EVERY_CHECK = [
    Check("L3H7,L3H8"),
    Check("L3H7"),
    Check("L3H7", mode="mean"),
    Check("L3H7", match="layer"),
    Check("L3H7", random_sets=50),
    Check("L3H7", benchmark="builtin_mc", limit=20),
    Check("L3H7", benchmark="builtin_mc", limit=50),
    Check("coalition:3:0"),
    Check("free-riders", vif_threshold=5.0, low_effect=1e-3),
    Check("free-riders", vif_threshold=3.0, low_effect=1e-3),
]


def options_of(work):
    """What the command line reads from a job's arguments."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in COMMANDS:
        module.add_commands(commands)
    assert work.arguments[0] == "analysis"
    return parser.parse_args(work.arguments[1:])


def provenance(**changes):
    """Of the default model's measurement, with some of its parts changed."""
    known = synthetic_result().provenance
    return {part: {**(known[part] or {}), **changes[part]} if part in changes else known[part] for part in known}


# --- names ----------------------------------------------------------------------------------------------------------------


def test_a_file_belongs_to_the_content_of_checkpoint_and_text(workspace):
    own = gauge_job(provenance()).path
    assert own.parent == workspace / "gauge" and own.name.startswith("LlamaForCausalLM-")
    same = [provenance(model={"device": "cuda", "source": "/a copy"}), provenance(text={"source": "/other/place.txt"})]
    assert {gauge_job(known).path for known in same} == {own}
    others = [
        provenance(model={"sha256": "f" * 64}),
        provenance(model={"dtype": "bfloat16"}),
        provenance(adapter={"source": "/runs/laptop", "sha256": "a" * 64}),
        provenance(text={"sha256": "2" * 64}),
    ]
    assert len({gauge_job(known).path for known in [provenance(), *others]}) == 5


def test_head_values_are_shared_by_couplings_and_thresholds(workspace):
    works = [values_job(RESULT, provenance(), *settings, 3) for settings in (("paper", 5.0), ("invariant", 5.0), ("paper", 2.0))]
    assert len({work.path for work in works}) == len({work.target for work in works}) == 1
    assert len({tuple(work.arguments) for work in works}) == 3


def test_every_check_has_a_file_of_its_own_and_is_found_again(workspace):
    works = [ablation_job(RESULT, provenance(), "paper", check) for check in EVERY_CHECK]
    works.append(ablation_job(RESULT, provenance(), "invariant", Check("coalition:3:0")))
    assert len({work.path for work in works}) == len(works) == len({work.target for work in works})
    moved = ablation_job(Path("/elsewhere.npz"), provenance(), "paper", Check("coalition:3:0"))
    assert moved.path == ablation_job(RESULT, provenance(), "paper", Check("coalition:3:0")).path
    assert known_ablations(provenance()) == [] and not workspace.exists()  # looking makes no folder
    works[0].path.parent.mkdir(parents=True)
    for work in works[:2]:
        work.path.write_text("{}")
    assert set(known_ablations(provenance())) == {work.path for work in works[:2]}
    assert known_ablations(provenance(text={"sha256": "2" * 64})) == []


def test_a_merged_result_is_refused(workspace):
    merged = provenance() | {"text": {"merged": []}}
    for make in (gauge_job, lambda known: values_job(RESULT, known, "paper", 5.0, 0)):
        with pytest.raises(ValueError, match="merged from several texts"):
            make(merged)


# --- commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", EVERY_CHECK, ids=str)
def test_the_command_line_reads_a_check_back(workspace, check):
    known = provenance(adapter={"source": "/runs/laptop", "sha256": "a" * 64})
    work = ablation_job(RESULT, known, "invariant", check)
    options = options_of(work)
    assert (options.model, options.adapter, options.dtype) == ("default", "/runs/laptop", "float32")
    assert (options.text, options.tokens, options.seq_len, options.out) == ("builtin", 2048, 256, work.path)
    assert (options.heads, options.mode, options.match) == (check.heads, check.mode, check.match)
    assert (options.benchmark, options.limit, options.random_sets) == (check.benchmark, check.limit, check.random_sets)
    if check.heads == "free-riders":
        assert (options.vif_threshold, options.low_effect) == (check.vif_threshold, check.low_effect)
    if not check.heads.startswith("L"):
        assert (options.result, options.coupling) == (RESULT, "invariant")


def test_a_hub_model_keeps_its_revision(workspace):
    known = provenance(model={"source": "owner/name", "kind": "hub", "revision": "abc"})
    options = options_of(gauge_job(known))
    assert (options.model, options.revision) == ("owner/name", "abc")


@pytest.fixture
def measured(tmp_path, workspace):
    """A tiny model in a folder, measured: path and provenance of the result."""
    tiny_model("llama", num_key_value_heads=4).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "text.npy", tiny_rows(6, 16).numpy())
    text = token_rows(str(tmp_path / "text.npy"), None, 96, 16)
    path = tmp_path / "result.npz"
    measure_interaction(load_model(str(tmp_path / "model")), text, coupling="invariant").save(path)
    return path, InteractionResult.load(path).provenance


def run(work):
    options = options_of(work)
    options.func(options)


def test_the_commands_leave_their_results_where_the_pages_look(measured):
    path, known = measured
    run(gauge_job(known))
    gauge = GaugeResult.load(gauge_job(known).path)
    assert gauge.couplings["paper"].gamma.shape == (2,) and gauge.provenance["text"]["sha256"] == known["text"]["sha256"]

    work = ablation_job(path, known, "paper", Check("coalition:1:0"))
    run(work)
    assert known_ablations(known) == [work.path] and AblationResult.load(work.path).heads[0] == "L1H0"


def test_head_values_grow_with_the_threshold_and_keep_what_they_know(measured):
    path, known = measured
    first = values_job(path, known, "paper", 1e9, 0)
    run(first)
    assert np.isnan(HeadValues.load(first.path).effect).all()
    second = values_job(path, known, "paper", 0.5, 8)
    run(second)
    values = HeadValues.load(second.path)
    assert np.isfinite(values.effect).all(), "every head has a VIF of 1 or more"
    marked = replace(values, effect=np.full_like(values.effect, 7.0))
    marked.save(first.path)
    run(first)
    run(second)
    assert (HeadValues.load(first.path).effect == 7).all(), "what is known is not measured again"


# --- what it takes, and one job a result ----------------------------------------------------------------------------------


def test_the_cost_comes_from_the_last_time_else_from_the_measurement(workspace, monkeypatch):
    known = provenance()
    work = gauge_job(known)

    def done(target, arguments, seconds):
        return Job("x", target, "t", ["python", "-m", *arguments], RESULT, "done", started=0.0, finished=seconds)

    monkeypatch.setattr(jobs, "jobs", list)
    assert expected_seconds(work, known) is None
    measurement = done("interaction:one", ["analysis", "interaction", "--model=default", "--tokens=1024"], 10.0)
    monkeypatch.setattr(jobs, "jobs", lambda: [measurement])
    assert expected_seconds(work, known) == pytest.approx(10 * 2 * 9)  # twice the tokens, nine bases
    monkeypatch.setattr(jobs, "jobs", lambda: [done(work.target, work.arguments, 33.0), measurement])
    assert expected_seconds(work, known) == 33.0


def test_starting_twice_is_one_job(workspace, monkeypatch):
    work = replace(gauge_job(provenance()), arguments=["this_module_does_not_exist"])
    first, second = work.start(), work.start()
    assert first.id == second.id or not first.live
    assert work.latest().target == first.target == work.target and work.target.startswith("gauge:")
    assert first.title == "SmolLM2-135M-Instruct, gauge check"
    jobs.stop(first.id)


def test_a_check_compares_with_as_many_sets_as_the_command_wants():
    assert Check("L0H0").random_sets >= 20 and game_jobs.ROTATIONS >= 2
