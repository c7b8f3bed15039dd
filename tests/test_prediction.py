"""From evaluations to the answer: per item, pooled, across checkpoints, relative change, the score table."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.evaluation import Evaluation
from analysis.hallucination.item_gamma import ItemGamma
from analysis.hallucination.prediction import (
    Checkpoint,
    analyse_checkpoints,
    analyse_items,
    changes,
    load_checkpoints,
    pool_benchmarks,
    predict,
    wrong,
)
from analysis.hallucination.table import PAPER_TABLE, latex_table, mean_changes, score_lines, score_table

HEADS = 3


def made(name, seed=0, effect=0.0, accuracy=0.0, items=200, strength=0.5, sha256="rows", scores=None):
    """An evaluation whose errors depend on Gamma of the middle one of three layers with log odds `effect` a deviation."""
    generator = np.random.default_rng(seed)
    gamma = generator.normal(size=(items, 3))
    records = []
    for score in scores or [name]:
        error = generator.random(items) < 1 / (1 + np.exp(accuracy - effect * gamma[:, 1]))
        records.append(
            pd.DataFrame(
                {
                    "score_name": score,
                    "row": np.arange(items) + 1,
                    "subset": generator.integers(0, 2, items).astype(str),
                    "value": 1.0 - error,
                    "weight": 1.0,
                    "unparsed": False,
                    "judged_length": 5,
                    "notes": "",
                    "prompt": "p",
                }
            )
        )
    grams = np.stack([strength * np.ones((HEADS, HEADS)) + (1 - strength) * np.eye(HEADS)] * 3)
    measured = ItemGamma(
        coupling="paper",
        layers=np.array([2, 5, 9]),
        gamma=gamma,
        null_gamma=generator.normal(size=(9, items, 3)).astype(np.float32),
        tokens=generator.integers(10, 50, items),
        cross_entropy=generator.normal(3, 0.3, items),
        gradient_sums=grams,
        weight_grams=grams,
    )
    provenance = {
        "model": {"sha256": str(strength)},
        "adapter": None,
        "items": {"sha256": sha256},
    }
    return Evaluation(BENCHMARKS[name], pd.concat(records, ignore_index=True), measured, provenance)


def checkpoint(name, *evaluations):
    return Checkpoint(name, {evaluation.benchmark.name: evaluation for evaluation in evaluations})


def test_items_are_analysed_layer_by_layer():
    found = analyse_items(made("memo_trap", effect=1.0), "memo_trap")
    assert found.layers == [2, 5, 9]
    assert found.p_holm[1] < 0.001 and found.by_layer[1].odds_ratio > 1.5 and min(found.p_holm[[0, 2]]) > 0.05
    assert found.null_by_layer.shape == (9, 3)
    assert analyse_items(made("memo_trap", effect=1.0), "memo_trap", with_null=False).null_by_layer.shape == (0, 3)


def test_items_without_a_score_are_no_errors():
    evaluation = made("memo_trap", effect=1.0)
    evaluation.records.loc[:9, "value"] = math.nan
    assert analyse_items(evaluation, "memo_trap").pooled.n == 190


def test_mass_below_a_half_is_an_error():
    assert wrong([0.0, 0.49, 0.5, 1.0]).tolist() == [True, True, False, False]


def test_without_gamma_it_is_said_what_to_do():
    with pytest.raises(ValueError, match="--per-item-gamma"):
        analyse_items(replace(made("memo_trap"), gamma=None), "memo_trap")


def test_pooling_counts_differences_inside_benchmarks_only():
    easy, hard = made("memo_trap", 1, accuracy=3.0), made("builtin_traps", 2, accuracy=-3.0)
    object.__setattr__(hard.gamma, "gamma", hard.gamma.gamma + 100)  # between benchmarks Gamma goes with errors
    found = pool_benchmarks([easy, hard])
    assert found.p > 0.05 and found.n == 400
    strong = pool_benchmarks([made("memo_trap", 3, effect=1.5), made("builtin_traps", 4, effect=1.5)])
    assert strong.p < 1e-6 and strong.odds_ratio > 1.3


def run(strengths, drop=()):
    """Checkpoints whose rate rises with their coupling."""
    points = []
    for number, strength in enumerate(strengths):
        evaluation = made("memo_trap", seed=number, accuracy=2 - 4 * strength, strength=strength, items=2000)
        other = made("truthfulqa_mc", 50, strength=strength, scores=["truthfulqa_mc1", "truthfulqa_mc2"])
        points.append(checkpoint(f"step-{number}", evaluation, *([] if number in drop else [other])))
    return points


def test_across_checkpoints_of_a_run():
    points = run([0.1, 0.3, 0.5, 0.7, 0.9])
    found = analyse_checkpoints(points)
    assert found.benchmarks == ["memo_trap", "truthfulqa_mc1", "truthfulqa_mc2"]
    assert found.checkpoints == [f"step-{i}" for i in range(5)]
    assert found.slope > 0 and found.p == pytest.approx(2 / 120)
    gamma = [math.sqrt(HEADS * (HEADS - 1)) * strength**2 for strength in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert found.centres["memo_trap"][0] == pytest.approx(np.mean(gamma))
    assert analyse_checkpoints(points, layer=5).slope == pytest.approx(found.slope)
    with pytest.raises(ValueError, match="layer 4 was not measured"):
        analyse_checkpoints(points, layer=4)


def test_only_benchmarks_that_all_checkpoints_have():
    assert analyse_checkpoints(run([0.1, 0.3, 0.5, 0.7], drop=(2,))).benchmarks == ["memo_trap"]
    with pytest.raises(ValueError, match="evaluate 2 more"):
        analyse_checkpoints(run([0.1, 0.3]))
    with pytest.raises(ValueError, match="no hallucination benchmark"):
        analyse_checkpoints([checkpoint("a", made("mmlu"))])


def test_changes_need_the_same_items():
    base = checkpoint("base", made("memo_trap", 1, accuracy=0.0), made("mmlu", 2, accuracy=1.0))
    tuned = checkpoint("tuned", made("memo_trap", 3, accuracy=0.5), made("mmlu", 4, accuracy=1.0), made("nq", 5))
    found = changes(tuned, base)
    before, after = (point.evaluations["memo_trap"].scores()[0].value for point in (base, tuned))
    assert found["hallucination"].mean.value == pytest.approx(after / before - 1)
    assert list(found["knowledge"].tasks) == ["mmlu"]
    with pytest.raises(ValueError, match="different items of MemoTrap"):
        changes(checkpoint("other", made("memo_trap", sha256="other rows")), base)


def test_one_poor_benchmark_does_not_hide_the_others():
    good = made("memo_trap", effect=1.0)
    poor = made("builtin_traps")
    poor.records["value"] = 1.0
    record = predict([checkpoint("base", good, poor)])
    assert record["per_item"]["base"]["memo_trap"]["pooled"]["words"]
    assert "all 200 items" in record["per_item"]["base"]["builtin_traps"]["refused"]
    assert "evaluate 3 more" in record["across_checkpoints"]["refused"]
    assert record["per_item"]["base"]["all hallucination benchmarks"]["n"] == 200
    assert record["relative_change"] == {}


def test_checkpoints_are_read_from_folders(tmp_path):
    for place in ("a/run", "b/run"):
        made("memo_trap").save(tmp_path / place)
    names = [point.name for point in load_checkpoints([tmp_path / "a/run", tmp_path / "b/run"])]
    assert names == [str(tmp_path / "a/run"), str(tmp_path / "b/run")]
    (single,) = load_checkpoints([tmp_path / "a/run"])
    assert single.name == "run" and single.gamma(["memo_trap"]).shape == (3,)
    with pytest.raises(ValueError, match="holds no evaluation"):
        load_checkpoints([tmp_path / "nowhere"])
    made("nq", strength=0.9).save(tmp_path / "a/run")
    with pytest.raises(ValueError, match="of 2 checkpoints"):
        load_checkpoints([tmp_path / "a/run"])
    (tmp_path / "b/run/memo_trap.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoints([tmp_path / "b/run"])


def test_the_table_has_the_papers_columns():
    table = score_table([checkpoint("base", made("memo_trap")), checkpoint("tuned", made("memo_trap"), made("builtin_traps"))])
    line = table.set_index("score").loc["memo_trap"]
    assert (line["paper: CE LoRA"], line["paper: GAME-LoRA"]) == PAPER_TABLE["memo_trap"]
    assert line["base: n"] == 200 and math.isnan(table.set_index("score").loc["builtin_traps", "base: value"])


def test_lines_say_the_change_against_the_baseline_and_what_was_noted():
    base = checkpoint("base", made("memo_trap", 1), made("mmlu", 2, accuracy=1.0))
    tuned = checkpoint("tuned", made("memo_trap", 3, accuracy=0.5), made("mmlu", 4, accuracy=1.0))
    tuned.evaluations["memo_trap"].records.loc[:2, "notes"] = "truncated"
    lines = score_lines([base, tuned], base).set_index(["score", "checkpoint"])
    change = changes(tuned, base)["hallucination"].tasks["memo_trap"]
    line = lines.loc[("memo_trap", "tuned")]
    assert (line["change"], line["low"], line["high"]) == (change.value, change.low, change.high)
    assert line["noted"] == "3 truncated" and lines.loc[("memo_trap", "base"), "noted"] == ""
    assert (line["paper: CE LoRA"], line["n"]) == (0.642, 200) and math.isnan(lines.loc[("memo_trap", "base"), "change"])
    assert lines.index.get_level_values("score").tolist() == ["memo_trap"] * 2 + ["mmlu"] * 2
    assert score_lines([base, tuned], None)["change"].isna().all()


def test_mean_changes_say_what_was_left_out():
    base = checkpoint("base", made("memo_trap", 1), made("mmlu", 2))
    base.evaluations["mmlu"].records["value"] = 0.0
    tuned = checkpoint("tuned", made("memo_trap", 3, accuracy=0.5), made("mmlu", 4))
    (line,) = mean_changes([base, tuned], base).to_dict("records")
    assert line["hallucination"] == changes(tuned, base)["hallucination"].mean.value
    assert line["left_out"] == ["mmlu"] and math.isnan(line["knowledge"])


def test_latex_survives_any_name():
    text = latex_table([checkpoint(r"my_run#1 50%&[x]\y~^{}$", made("memo_trap"))])
    assert r"my\_run\#1 50\%\&[x]\textbackslash{}y\textasciitilde{}\textasciicircum{}\{\}\$" in text
    assert text.count(r"\\") == 2 and r"$\pm$" in text and "0.642" in text
