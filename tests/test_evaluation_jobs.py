"""Evaluations as jobs: one a checkpoint and suite, what the workspace holds of it, and finished benchmarks that stay."""

import argparse
from dataclasses import replace

import pytest

from analysis import cli_evaluate
from analysis.__main__ import COMMANDS
from analysis.hallucination import store
from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.data import load_items
from analysis.hallucination.evaluation import stored_evaluations
from analysis.hallucination.places import use_data_folder
from analysis.hallucination.scoring import evaluate_benchmark
from analysis.hallucination.store import evaluations
from analysis.progress import Progress
from analysis.workspace import safe_name
from gamelora import evaluation_jobs, jobs
from gamelora.checkpoint_sources import CheckpointSource
from gamelora.evaluation_jobs import EvaluationRequest, benchmark_at_work
from gamelora.job_processes import until
from gamelora.jobs import Job
from tests.job_helpers import wait_for
from tests.tiny import tiny_model, with_adapter
from tests.tiny_files import save_adapter
from tests.tiny_text import VOCAB, loaded, save_tiny_folder, tiny_loaded

SUITE = ("builtin_traps", "builtin_mc")
TINY = CheckpointSource("/models/tiny")


def request(checkpoint=TINY, benchmarks=SUITE, limit=4, **changes):
    return EvaluationRequest(checkpoint, benchmarks, limit, **changes)


def of_source(tiny, source="/models/tiny", adapter=None):
    """The model as if it had been loaded from there."""
    model = {**tiny.provenance["model"], "source": source}
    return replace(tiny, provenance={"model": model, "adapter": adapter})


def evaluate(tiny, *names, limit=4, seed=42, gamma="paper", folder=None):
    return list(evaluations(tiny, [load_items(BENCHMARKS[name], folder, limit, seed) for name in names], gamma=gamma))


def known():
    found, notices = stored_evaluations()
    assert not notices
    return found


# --- the request ----------------------------------------------------------------------------------------------------------


def test_every_checkpoint_and_suite_has_a_name_of_its_own(workspace):
    base = request()
    others = [
        base,
        request(CheckpointSource("/models/other")),
        request(CheckpointSource("/models/tiny", dtype="bfloat16")),
        request(CheckpointSource("/models/tiny", adapter="/a")),
        request(CheckpointSource("/models/tiny", adapter="/b")),
        request(CheckpointSource("owner/name", revision="v1")),
        request(benchmarks=("builtin_mc",)),
        request(limit=5),
        request(seed=1),
        request(coupling="invariant"),
        request(CheckpointSource("/models/" + "x" * 300)),
        request(CheckpointSource("/modèles/模型 #1 <b>")),
        request(benchmarks=("memo_trap",)),
        request(benchmarks=("memo_trap",), data="/elsewhere"),
    ]
    names = [one.name for one in others]
    assert len(set(names)) == len(others)
    assert [safe_name(name) for name in names] == names
    assert request(CheckpointSource("/models/../models/tiny", run="r", step=3)).name.endswith(base.name[-8:])


@pytest.mark.parametrize("checkpoint", [TINY, CheckpointSource("o/n", "v1", "/runs/a", "bfloat16")], ids=["plain", "all"])
def test_the_command_line_reads_the_request_back(workspace, tmp_path, checkpoint):
    asked = request(checkpoint, limit=7, seed=3, coupling="invariant", data=str(tmp_path))
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in COMMANDS:
        module.add_commands(commands)
    assert asked.arguments[0] == "analysis"
    options = parser.parse_args(asked.arguments[1:])
    assert (options.model, options.revision, options.adapter) == (checkpoint.source, checkpoint.revision, checkpoint.adapter)
    assert (options.dtype, options.tasks.split(","), options.limit) == (checkpoint.dtype, list(SUITE), 7)
    assert (options.seed, options.coupling, options.per_item_gamma, options.out) == (3, "invariant", True, None)
    assert options.data == tmp_path
    assert parser.parse_args(request(data="/nowhere").arguments[1:]).data is None


def test_starting_twice_is_one_job(workspace, monkeypatch):
    monkeypatch.setattr(EvaluationRequest, "arguments", property(lambda self: ["this_module_does_not_exist"]))
    first, second = request().start(), request().start()
    assert first.id == second.id or not first.live
    assert first.title == "tiny on 2 benchmarks, 4 items each"
    assert list(evaluation_jobs.evaluation_jobs()) == [request().target]
    jobs.stop(first.id)


def test_the_stage_says_which_benchmark_is_at_work():
    def at_work(stage):
        return benchmark_at_work(Progress(stage))

    assert at_work("loading the model") is None and at_work("benchmarks") is None
    assert at_work("scoring TruthfulQA") == "truthfulqa_mc" and at_work("Gamma of MemoTrap items") == "memo_trap"
    assert at_work("scoring HaluEval QA") == "halueval_qa"
    assert at_work("scoring built-in multiple choice") == "builtin_mc"


def test_the_cost_comes_from_this_models_own_evaluations(workspace, monkeypatch):
    asked = request(limit=10)
    guess, known_here = asked.seconds(SUITE)
    assert not known_here and guess > asked.seconds(SUITE[:1])[0] > 0
    title, argv = asked.title, ["python", "-m", *asked.arguments]
    done = Job("x", asked.target, title, argv, workspace, "done", started=0.0, finished=3 * guess)
    monkeypatch.setattr(jobs, "jobs", lambda: [done])
    assert asked.seconds(SUITE) == (pytest.approx(3 * guess), True)
    assert request(CheckpointSource("/models/other"), limit=10).seconds(SUITE) == (pytest.approx(guess), False)


# --- what is there already ------------------------------------------------------------------------------------------------


def test_only_what_was_scored_on_the_same_rows_counts(workspace):
    evaluate(of_source(tiny_loaded()), "builtin_traps")
    assert set(request().stored(known())) == {"builtin_traps"} and request().missing(known()) == ["builtin_mc"]
    for other in (
        request(limit=5),
        request(seed=1),
        request(CheckpointSource("/models/other")),
        request(CheckpointSource("/models/tiny", adapter="/a")),
        request(CheckpointSource("/models/tiny", dtype="bfloat16")),
    ):
        assert not other.stored(known()) and other.missing(known()) == list(SUITE)


def test_a_limit_beyond_the_rows_takes_all_of_them(workspace):
    rows = len(load_items(BENCHMARKS["builtin_traps"]).rows)
    evaluate(of_source(tiny_loaded()), "builtin_traps", limit=rows, gamma=None)
    assert set(request(limit=5000).stored(known())) == {"builtin_traps"}
    assert not request(limit=rows - 1).stored(known())


def test_gamma_of_the_coupling_belongs_to_it(workspace):
    evaluate(of_source(tiny_loaded()), *SUITE, gamma=None)
    assert set(request().stored(known())) == set(SUITE) and request().missing(known()) == list(SUITE)
    evaluate(of_source(tiny_loaded()), *SUITE)
    assert request().missing(known()) == [] and request(coupling="invariant").missing(known()) == list(SUITE)


def test_rows_of_another_data_folder_are_another_evaluation(workspace, tmp_path):
    row = '{"prompt": "Say", "classes": [" no.", " yes."], "answer_index": 1}\n'
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "memo_trap.jsonl").write_text(row * 3)
    use_data_folder(tmp_path / "a")
    asked = request(benchmarks=("memo_trap",))
    evaluate(of_source(tiny_loaded()), "memo_trap", folder=None)
    assert asked.missing(known()) == []
    use_data_folder(tmp_path / "b")
    assert asked.missing(known()) == [] and request(benchmarks=("memo_trap",)).missing(known()) == ["memo_trap"]


def test_an_adapter_that_was_trained_again_is_another_checkpoint(workspace, tmp_path):
    folder = save_adapter(tiny_model(vocab_size=VOCAB), tmp_path / "adapter")
    source = CheckpointSource("/models/tiny", adapter=str(folder))
    tuned = loaded(with_adapter(tiny_loaded().model))
    evaluate(of_source(tuned, adapter={"source": str(folder), "sha256": source.adapter_sha256()}), "builtin_traps")
    assert set(request(source).stored(known())) == {"builtin_traps"}
    save_adapter(tiny_model(vocab_size=VOCAB), folder, seed=1)
    assert not request(source).stored(known())
    for file in folder.iterdir():
        file.unlink()
    assert set(request(source).stored(known())) == {"builtin_traps"}, "what was evaluated stays when the adapter is gone"


# --- the work -------------------------------------------------------------------------------------------------------------


def run(asked):
    parser = argparse.ArgumentParser()
    cli_evaluate.add_commands(parser.add_subparsers())
    options = parser.parse_args(asked.arguments[1:])
    options.func(options)


def test_the_command_leaves_what_the_request_looks_for_and_scores_nothing_twice(workspace, monkeypatch):
    scored = []

    def counted(*arguments):
        scored.append(arguments[1].benchmark.name)
        return evaluate_benchmark(*arguments)

    monkeypatch.setattr(store, "evaluate_benchmark", counted)
    monkeypatch.setattr(cli_evaluate, "load_model", lambda source, **_: of_source(tiny_loaded(), source))
    run(request(benchmarks=("builtin_traps",)))
    assert request().missing(known()) == ["builtin_mc"]
    run(request())
    run(request())
    run(request(coupling="invariant"))
    assert scored == ["builtin_traps", "builtin_mc"]
    assert request().missing(known()) == request(coupling="invariant").missing(known()) == []


@pytest.mark.slow
def test_a_stopped_job_goes_on_where_it_was(workspace, tmp_path):
    asked = request(
        CheckpointSource(str(save_tiny_folder(tmp_path / "model"))), ("builtin_traps", "builtin_mc", "builtin_qa"), limit=60
    )
    job = asked.start()
    assert until(lambda: "builtin_traps" not in asked.missing(known()) or not jobs.get(job.id).live, 300), jobs.log_tail(job.id)
    jobs.stop(job.id, grace=0.0)
    first = asked.stored(known())
    assert "builtin_traps" in first
    before = {name: (one.folder / f"{name}.json").stat().st_mtime_ns for name, one in first.items()}
    again = asked.start()
    assert again.id != job.id
    assert wait_for(again, "done", "failed", seconds=600).state == "done", jobs.log_tail(again.id)
    assert asked.missing(known()) == [] and len(known()) == 3
    assert {name: (first[name].folder / f"{name}.json").stat().st_mtime_ns for name in before} == before


def test_no_data_and_no_network_fails_with_a_sentence_before_the_model_loads(workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = request(CheckpointSource(str(tmp_path / "no-model")), ("memo_trap",))
    ended = wait_for(asked.start(), "failed", "done", seconds=300)
    assert ended.state == "failed" and "MemoTrap (memo_trap) has no data here" in ended.error
    assert str(workspace / "data" / "memo_trap.jsonl") in jobs.log_tail(ended.id) and "no-model" not in ended.error
