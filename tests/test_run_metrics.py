"""Metrics of a run as tables: read once, then only what is new; damage counted; smoothing and thinning by their properties."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gamelora import runs
from gamelora.config import GameLoraConfig
from gamelora.run_metrics import RunMetrics, smooth, thin, title
from gamelora.runs import Run


@pytest.fixture
def run(workspace):
    return Run.create("run", GameLoraConfig())


def step(number, **more):
    return {"step": number, "time": 1e9 + number, "loss": 1.0, "loss/ce": 3.0 - number / 100, **more}


def evaluation(number, loss):
    return {"step": number, "time": 1e9 + number, "eval_loss": loss, "eval_gamma_paper/L1": loss / 10}


def append(run, *lines):
    with open(run.folder / "metrics.jsonl", "ab") as file:
        file.write(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))


def same(one, other):
    pd.testing.assert_frame_equal(one.steps, other.steps)
    pd.testing.assert_frame_equal(one.evaluations, other.evaluations)
    assert one.damaged == other.damaged


# --- reading --------------------------------------------------------------------------------------------------------------


def test_steps_and_evaluations_become_two_tables(run):
    append(run, evaluation(0, 3.0), step(1), step(2, skipped=1.0), evaluation(2, 2.5))
    metrics = RunMetrics().read_on(run)
    assert metrics.steps.index.tolist() == [1, 2] and metrics.evaluations.index.tolist() == [0, 2]
    assert metrics.series("loss/ce").tolist() == [2.99, 2.98]
    assert np.isnan(metrics.series("skipped")[1]) and metrics.series("skipped")[2] == 1.0
    assert metrics.names == ["eval_loss", "loss/ce", "eval_gamma_paper/L1", "skipped"]
    assert metrics.series("no such metric").empty


def test_what_is_read_in_parts_is_what_is_read_at_once(run):
    metrics = RunMetrics()
    for number in range(1, 30):
        append(run, step(number), *([evaluation(number, 2.0)] if number % 7 == 0 else []))
        if number % 3 == 0:
            metrics = metrics.read_on(run)
    same(metrics.read_on(run), RunMetrics().read_on(run))


def test_only_new_bytes_are_parsed(run, monkeypatch):
    append(run, *(step(number) for number in range(1, 1001)))
    metrics = RunMetrics().read_on(run)
    parsed = []
    monkeypatch.setattr(runs, "_metric", lambda line, original=runs._metric: parsed.append(line) or original(line))
    assert metrics.read_on(run) is metrics and not parsed
    append(run, step(1001))
    assert metrics.read_on(run).steps.index[-1] == 1001 and len(parsed) == 1


def test_a_resume_that_cuts_the_file_and_writes_past_the_old_end_is_noticed(run):
    append(run, *(step(number) for number in range(1, 21)))
    before = RunMetrics().read_on(run)
    run.cut_metrics(10)
    append(run, *(step(number, retrained=1.0) for number in range(11, 41)))
    after = before.read_on(run)
    same(after, RunMetrics().read_on(run))
    assert after.steps.index.tolist() == list(range(1, 41))
    run.cut_metrics(5)
    same(after.read_on(run), RunMetrics().read_on(run))
    (run.folder / "metrics.jsonl").unlink()
    same(after.read_on(run), RunMetrics())


def test_damaged_lines_are_counted_and_the_rest_is_read(run):
    append(run, step(1), b'{"step": 2, "lo\n', b"[1, 2]\n", b"5\n", b"\xff\xfe\n", b'{"loss": 1}\n', b'{"step": "x"}\n', step(3))
    append(run, b'{"step": 1e9}\n', b"\n", b'{"step": 4, "loss/ce": "text", "grad_norm": [1], "big": 1' + b"0" * 400 + b"}\n")
    metrics = RunMetrics().read_on(run)
    assert metrics.steps.index.tolist() == [1, 3, 4] and metrics.damaged == 8
    assert np.isnan(metrics.series("loss/ce")[4]) and metrics.series("big").isna().all()


def test_an_unfinished_line_waits_for_its_rest(run):
    append(run, step(1), b'{"step": 2, "loss/ce"')
    metrics = RunMetrics().read_on(run)
    assert metrics.steps.index.tolist() == [1] and metrics.read.unfinished == 21 and metrics.damaged == 0
    append(run, b": 2.5}\n")
    metrics = metrics.read_on(run)
    assert metrics.series("loss/ce").tolist() == [2.99, 2.5] and metrics.read.unfinished == 0


def test_a_run_without_metrics_has_none(run):
    metrics = RunMetrics().read_on(run)
    assert metrics.names == [] and metrics.steps.empty and metrics.damaged == 0
    assert RunMetrics().to_csv().startswith(b"step,kind")


def test_the_csv_has_every_line_with_all_digits(run):
    append(run, evaluation(0, 1 / 3), step(1), step(2), evaluation(2, 2 / 7))
    table = pd.read_csv(io.BytesIO(RunMetrics().read_on(run).to_csv()))
    assert table["kind"].tolist() == ["evaluation", "step", "step", "evaluation"]
    assert table["eval_loss"].dropna().tolist() == [1 / 3, 2 / 7]


# --- names ----------------------------------------------------------------------------------------------------------------


def test_names_are_told_in_words_and_unknown_ones_stay():
    assert title("cosine/ce_ldb") == "Gradient cosine, cross-entropy and barrier"
    assert title("eval_gamma_invariant/L24") == "Γ of layer 24, held-out, invariant coupling"
    assert title("weight/bt") == "Weight of Barlow Twins"
    assert title("some/thing") == "some/thing"


def test_layers_are_listed_by_number(run):
    append(run, step(1, **{f"gamma/L{layer}": 1.0 for layer in (10, 9, 2)}, other=1.0))
    assert RunMetrics().read_on(run).names == ["loss/ce", "gamma/L2", "gamma/L9", "gamma/L10", "other"]


def test_every_name_that_a_trainer_writes_has_words():
    """The names are those of trainer.py's source: a new metric without a title would show as code."""
    source = Path(runs.__file__).with_name("trainer.py").read_text()
    for name in ("tokens_per_second", "peak_memory", "scale/bt", "skipped/bt", "skipped", "gap/ldb"):
        assert f'"{name}"' in source and title(name) != name


# --- smoothing and thinning -----------------------------------------------------------------------------------------------


def test_smoothing_follows_its_recursion_and_keeps_gaps():
    values = [1.0, 2.0, np.nan, 4.0]
    weight, total, seen, expected = 0.6, 0.0, 0.0, []
    for value in values:
        if np.isnan(value):
            expected.append(np.nan)
            continue
        total, seen = weight * total + value, weight * seen + 1
        expected.append(total / seen)
    np.testing.assert_allclose(smooth(pd.Series(values), weight), expected)
    constant = pd.Series(np.full(50, 3.0))
    np.testing.assert_allclose(smooth(constant, 0.99), constant)
    assert smooth(constant, 0.0) is constant


@pytest.mark.parametrize("count", [1, 5, 999, 1000, 1001, 20_000, 20_001])
def test_thinning_keeps_ends_and_extremes_in_order(count):
    series = pd.Series(np.random.default_rng(count).normal(size=count), index=np.arange(1, count + 1))
    thinned = thin(series, 1000)
    assert len(thinned) <= 1000 and thinned.index.is_monotonic_increasing and thinned.index.is_unique
    assert thinned.index[[0, -1]].tolist() == [1, count]
    assert thinned.max() == series.max() and thinned.min() == series.min()
    pd.testing.assert_series_equal(thinned, series.loc[thinned.index])
    if count <= 1000:
        assert thinned is series


def test_thinning_keeps_long_gaps_and_shows_every_spike():
    series = pd.Series(np.zeros(20_000))
    series.iloc[5000:15_000] = np.nan
    series.iloc[[77, 19_000]] = [9.0, -9.0]
    thinned = thin(series, 200)
    assert thinned[77] == 9.0 and thinned[19_000] == -9.0
    assert thinned.loc[5200:14_800].isna().all() and len(thinned.loc[5200:14_800])
