"""Evaluations on disk: read back as written, never done twice, resumed after an interruption; then predictions from them."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from analysis.hallucination import scoring, store
from analysis.hallucination.benchmarks import BENCHMARKS, named
from analysis.hallucination.data import Items, load_items
from analysis.hallucination.evaluation import Evaluation, stored_evaluations
from analysis.hallucination.scoring import evaluate_benchmark, measure_gamma
from analysis.hallucination.store import evaluation_key, evaluations
from analysis.records import write_record
from tests.tiny import with_adapter
from tests.tiny_text import loaded, tiny_loaded


def builtin(*names, limit=6, seed=42):
    return [load_items(BENCHMARKS[name], limit=limit, seed=seed) for name in names]


@pytest.fixture
def counted(monkeypatch):
    """How often a model was really scored."""
    calls = []

    def scored(*arguments):
        calls.append(arguments[1].benchmark.name)
        return evaluate_benchmark(*arguments)

    monkeypatch.setattr(store, "evaluate_benchmark", scored)
    return calls


def test_what_is_written_is_read_back(workspace, tmp_path):
    (first,) = evaluations(tiny_loaded(), builtin("builtin_mc"), gamma="paper")
    first.save(tmp_path / "out")
    again = Evaluation.load(tmp_path / "out", "builtin_mc")
    assert again.scores() == first.scores() and again.provenance == first.provenance
    assert again.score_names == ["builtin_mc1", "builtin_mc2"] and again.benchmark is BENCHMARKS["builtin_mc"]
    for field in ("gamma", "null_gamma", "tokens", "cross_entropy", "gradient_sums", "weight_grams", "layers"):
        assert np.array_equal(getattr(again.gamma, field), getattr(first.gamma, field))
    columns = set(pd.read_parquet(tmp_path / "out" / "builtin_mc.items.parquet").columns)
    assert {"prompt_hash", "prediction", "value", "prompt", "choices", "notes", "row"} <= columns
    for path in (tmp_path / "out").iterdir():
        before = path.read_bytes()
        again.save(tmp_path / "out")
        assert path.read_bytes() == before


def test_the_same_checkpoint_and_rows_are_never_scored_twice(workspace, counted):
    tiny = tiny_loaded()
    first = list(evaluations(tiny, builtin("builtin_traps", "builtin_qa")))
    again = list(evaluations(tiny_loaded(), builtin("builtin_traps", "builtin_qa"), batch_size=3))
    assert counted == ["builtin_traps", "builtin_qa"]
    assert [one.scores() for one in first] == [one.scores() for one in again]
    list(evaluations(tiny, builtin("builtin_traps"), gamma="invariant"))
    assert counted == ["builtin_traps", "builtin_qa"]  # Gamma is added to what is there
    (kept,) = evaluations(tiny, builtin("builtin_traps"), gamma="invariant")
    assert kept.gamma.coupling == "invariant"


def test_finished_benchmarks_stay_when_the_next_one_is_interrupted(workspace, counted, monkeypatch):
    tiny, items = tiny_loaded(), builtin("builtin_traps", "builtin_mc")
    real = scoring.evaluate

    def interrupted(harness, tasks, **settings):
        if "builtin_mc1" in tasks["tasks"]:
            raise KeyboardInterrupt
        return real(harness, tasks, **settings)

    monkeypatch.setattr(scoring, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(evaluations(tiny, items))
    monkeypatch.setattr(scoring, "evaluate", real)
    assert [stored.name for stored in stored_evaluations()[0]] == ["builtin_traps"]
    assert len(list(evaluations(tiny, items))) == 2
    assert counted == ["builtin_traps", "builtin_mc", "builtin_mc"]


def test_the_key_knows_all_that_a_score_depends_on(workspace):
    tiny, (items,) = tiny_loaded(), builtin("builtin_traps")
    keys = {
        evaluation_key(tiny, items),
        evaluation_key(tiny_loaded(seed=1), items),
        evaluation_key(loaded(tiny.model, dtype="bfloat16"), items),
        evaluation_key(loaded(tiny.model, adapter="a"), items),
        evaluation_key(loaded(tiny.model, adapter="b"), items),
        evaluation_key(tiny_loaded(bos=True), items),
        evaluation_key(tiny, builtin("builtin_traps", limit=7)[0]),
        evaluation_key(tiny, builtin("builtin_traps", seed=1)[0]),
    }
    assert len(keys) == 8
    assert evaluation_key(tiny, items) == evaluation_key(tiny_loaded(), builtin("builtin_traps")[0])


def test_damaged_files_are_named(workspace, tmp_path):
    folder = tmp_path / "out"
    (good,) = evaluations(tiny_loaded(), builtin("builtin_traps"), gamma="paper")
    good.save(folder)
    (folder / "builtin_traps.items.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"delete .* and evaluate again"):
        Evaluation.load(folder, "builtin_traps")
    good.save(folder)
    (folder / "builtin_traps.gamma-paper.npz").write_bytes(b"PK no")
    with pytest.raises(ValueError, match=r"gamma-paper.npz is damaged"):
        Evaluation.load(folder, "builtin_traps")
    (folder / "builtin_qa.json").write_text("{")
    write_record(folder / "memo_trap.json", "coalitions", {})
    found, notices = stored_evaluations(folder)
    assert [stored.name for stored in found] == ["builtin_traps"] and len(notices) == 2
    assert found[0].couplings == ["paper"] and found[0].scores[0]["name"] == "builtin_traps"


def test_scores_count_what_must_stand_beside_them():
    tiny, (items,) = tiny_loaded(max_position_embeddings=64), builtin("builtin_qa")
    (score,) = evaluate_benchmark(tiny, items).scores()
    assert score.truncated == 6 and score.unparsed == 1.0 and 0.5 <= score.length_only <= 1.0
    assert score.value == 0.0 and score.title == "built-in judged QA"
    mc1, mc2 = evaluate_benchmark(tiny, builtin("builtin_mc")[0]).scores()
    assert (mc1.title, mc2.title) == ("built-in multiple choice MC1", "built-in multiple choice MC2")
    assert mc1.unparsed is None and mc1.length_only is None


def test_a_judge_that_answers_is_scored_by_its_verdict(monkeypatch):
    answers = iter([" Yes", "no", " Yes and No", ""])
    monkeypatch.setattr(scoring.HarnessModel, "generate_until", lambda self, requests: [next(answers) for _ in requests])
    rows = [{**row, "hallucination": "yes", "subset": "yes"} for row in load_items(BENCHMARKS["builtin_qa"], limit=4).rows]
    evaluation = evaluate_benchmark(tiny_loaded(), Items(BENCHMARKS["builtin_qa"], rows, [], {}))
    assert list(evaluation.records["value"]) == [1, 0, 0, 0]
    assert list(evaluation.records["unparsed"]) == [False, False, True, True]
    assert set(evaluation.records["continuation"]) == {" Yes"}
    assert evaluation.scores()[0].unparsed == 0.5


def test_gamma_reads_the_prompt_and_the_right_continuation(monkeypatch):
    tiny, (items,) = tiny_loaded(), builtin("builtin_traps")
    seen = []
    monkeypatch.setattr(scoring, "measure_items", lambda loaded, texts, *rest, **more: seen.extend(texts))
    measure_gamma(tiny, evaluate_benchmark(tiny, items))
    right = [row["prompt"] + row["classes"][row["answer_index"]] for row in items.rows]
    assert [tiny.tokenizer.decode(text) for text in seen] == right


def test_results_are_read_without_the_harness():
    code = "import sys, analysis.hallucination.prediction, analysis.hallucination.table; print('lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_window_without_room_for_an_answer_is_refused():
    with pytest.raises(ValueError, match="window of 32 tokens"):
        evaluate_benchmark(tiny_loaded(max_position_embeddings=32), builtin("builtin_qa")[0])


def test_documents_have_no_gamma_of_items():
    page = {"page": "one two three four", "row": 1, "subset": ""}
    evaluation = evaluate_benchmark(tiny_loaded(), Items(BENCHMARKS["wikitext"], [page], [], {}))
    with pytest.raises(ValueError, match="no right and wrong answers"):
        measure_gamma(tiny_loaded(), evaluation)


def test_an_item_without_a_score_stays_in_the_records():
    tiny = tiny_loaded(max_position_embeddings=16)
    rows = load_items(BENCHMARKS["builtin_traps"], limit=3).rows
    rows[1] = {**rows[1], "classes": [" x" * 40, " y"], "answer_index": 1}
    evaluation = evaluate_benchmark(tiny, Items(BENCHMARKS["builtin_traps"], rows, [], {}))
    (score,) = evaluation.scores()
    assert (score.n, score.invalid, score.too_long) == (2, 1, 1)
    assert math.isnan(evaluation.records["value"][1]) and evaluation.records["prediction"][1] == ""


def test_base_and_adapter_are_different_checkpoints(workspace, counted):
    tuned = loaded(with_adapter(tiny_loaded().model), adapter="run/step-4")
    (adapted,) = evaluations(tuned, builtin("builtin_traps"))
    with tuned.base() as base:
        (plain,) = evaluations(base, builtin("builtin_traps"))
    assert counted == ["builtin_traps"] * 2
    assert adapted.provenance["adapter"]["source"] == "run/step-4" and plain.provenance["adapter"] is None


def test_a_suite_is_one_folder_of_files(workspace, tmp_path):
    folder = tmp_path / "out"
    for evaluation in evaluations(tiny_loaded(), [load_items(one, limit=4) for one in named(["builtin"])]):
        evaluation.save(folder)
    assert [stored.name for stored in stored_evaluations(folder)[0]] == ["builtin_mc", "builtin_qa", "builtin_traps"]
    record = json.loads((folder / "builtin_qa.json").read_text())
    assert record["provenance"]["items"]["scored"] == 4 and record["provenance"]["versions"]["lm_eval"]
