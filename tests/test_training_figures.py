"""The charts of a run: which panels there are, what they hold, and how much of it."""

import json

import pytest

from gamelora.run_metrics import RunMetrics
from gamelora.training_figures import POINTS, height_of, option_of, panels_of, points_of
from tests.made_up_runs import LAYER, made_up_run


def metrics_of(**values) -> RunMetrics:
    return RunMetrics().read_on(made_up_run("run", **values))


def metrics_from(text: str) -> RunMetrics:
    run = made_up_run("run", steps=2)
    (run.folder / "metrics.jsonl").write_text(text)
    return RunMetrics().read_on(run)


def test_every_metric_of_a_step_has_its_panel(workspace):
    panels = panels_of(metrics_of(steps=20))
    assert len({panel.title for panel in panels}) == len(panels) == 9
    expected = {"loss/ce", "eval_loss", "gap/ldb", "loss/bt", f"gamma/L{LAYER}", "tokens_per_second"}
    expected |= {f"{kind}/{task}" for kind in ("weight", "gradient_norm") for task in ("ce", "ldb", "bt")}
    expected |= {"lambda/ldb", "lambda/bt", "cosine/ce_ldb", "cosine/ce_bt", "cosine/ldb_bt"}
    assert {name for panel in panels for name, _ in panel.curves} == expected


def test_a_panel_without_metrics_is_left_out_and_layers_are_told_apart(workspace):
    first, second = panels_of(metrics_from('{"step": 1, "loss/ce": 2.0, "gamma/L9": 1.0, "gamma/L24": 2.0}\n'))
    assert first.title.startswith("Cross-entropy") and [label for _, label in second.curves] == ["layer 9", "layer 24"]
    assert panels_of(RunMetrics()) == [] and height_of([]) == 0


def test_the_option_is_json_and_its_parts_belong_together(workspace):
    metrics = metrics_of(steps=20)
    panels = panels_of(metrics)
    option = json.loads(json.dumps(option_of(panels, metrics), allow_nan=False))
    assert [title["text"] for title in option["title"]] == [panel.title for panel in panels]
    assert len(option["grid"]) == len(option["xAxis"]) == len(option["yAxis"]) == 9
    bottom = max(grid["top"] + grid["height"] for grid in option["grid"])
    assert bottom < height_of(panels) < bottom + 60
    curves = [(number, *curve) for number, panel in enumerate(panels) for curve in panel.curves]
    single = {number: panel.title for number, panel in enumerate(panels) if len(panel.curves) == 1}
    for series, (number, name, label) in zip(option["series"], curves, strict=True):
        assert (series["xAxisIndex"], series["yAxisIndex"], series["name"]) == (number, number, single.get(number, label))
        assert series["data"] == [[step, value] for step, value in metrics.series(name).dropna().items()]


def test_a_task_has_one_look_in_every_panel_of_several(workspace):
    metrics = metrics_of(steps=20)
    panels, looks = panels_of(metrics), {}
    several = [series for series in option_of(panels, metrics)["series"] if len(panels[series["xAxisIndex"]].curves) > 1]
    for series in several:
        looks.setdefault(series["name"], set()).add((series["lineStyle"]["color"], series["lineStyle"]["type"]))
    assert all(len(looks[task]) == 1 for task in ("cross-entropy", "barrier", "Barlow Twins"))
    assert len(set.union(*(looks[task] for task in ("cross-entropy", "barrier", "Barlow Twins")))) == 3


@pytest.mark.parametrize("steps", [500, 20_000])
def test_long_runs_are_thinned_and_keep_their_extremes(workspace, steps):
    metrics = metrics_of(steps=steps)
    option = option_of(panels_of(metrics), metrics)
    assert max(len(series["data"]) for series in option["series"]) <= POINTS
    values = [value for _, value in points_of(metrics, "loss/ce")]
    series = metrics.series("loss/ce")
    assert (min(values), max(values), values[-1]) == (series.min(), series.max(), series.iloc[-1])
    assert len(json.dumps(option)) < 300_000


def test_a_loss_that_was_not_finite_leaves_a_gap_and_zero_has_no_place_on_a_logarithmic_axis(workspace):
    metrics = metrics_from('{"step": 1, "loss/ce": 2.0}\n{"step": 2, "loss/ce": null}\n{"step": 3, "loss/ce": 0.0}\n')
    assert points_of(metrics, "loss/ce") == [[1, 2.0], [2, None], [3, 0.0]]
    assert points_of(metrics, "loss/ce", log=True) == [[1, 2.0], [2, None], [3, None]]
