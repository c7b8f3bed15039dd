"""Runs side by side: rows that are right, rows of broken runs, filter, sort, tags, differences of settings, curves to draw."""

import errno
import functools
import io
import json
import os
import shutil
import zipfile

import numpy as np
import pandas as pd
import pytest

from gamelora import run_files, run_table, training_jobs
from gamelora.config import GameLoraConfig
from gamelora.run_figures import look_of, overlay_figure
from gamelora.run_metrics import RunMetrics, smooth
from gamelora.run_table import config_diff, matching, ordered, overlay, run_row, selectable, table
from gamelora.run_tags import read_tags, write_tags
from gamelora.runs import Run
from gamelora.training_jobs import look_all
from tests.made_up_runs import LAYER, evaluation_line, made_up_run, write_checkpoint
from tests.test_run_metrics import append


def rows():
    """The row of every run, read as the page reads it."""
    found = {}
    for now in look_all():
        config = None
        if now.run:
            try:
                config = now.run.config()
            except (ValueError, OSError) as error:
                config = str(error)
        metrics = RunMetrics().read_on(now.run) if now.run else RunMetrics()
        found[now.name] = run_row(now, metrics, config)
    return found


# --- rows -----------------------------------------------------------------------------------------------------------------


def test_a_row_says_what_ran_and_what_came_out(workspace):
    run = made_up_run("first", seed=7, method="ldb", model="org/small", coupling="invariant")
    write_tags(run.folder, ["good", "laptop"])
    row = rows()["first"]
    assert (row.state, row.method, row.arbitration, row.model) == ("finished", "ldb", "nash", "small")
    assert (row.step, row.steps, row.design_layers, row.tags) == (10, 10, (LAYER,), ("good", "laptop"))
    assert row.final_ce == pytest.approx(2.43)
    assert row.gamma_first == pytest.approx(1.0 + 0.1 * LAYER) and row.gamma_last == pytest.approx(0.6 + 0.1 * LAYER)
    assert row.gamma_change == pytest.approx(-0.4)
    assert row.note == "" and row.problems == ()


def test_gamma_is_of_the_runs_own_coupling_and_the_mean_of_its_design_layers(workspace):
    run = made_up_run("run", coupling="invariant", status={"design_layers": [1, 4]})
    line = evaluation_line(10)
    for layer, gamma in ((1, 5.0), (4, 7.0)):
        line[f"eval_gamma_invariant/L{layer}"] = gamma
    append(run, line)
    assert rows()["run"].gamma_last == pytest.approx(6.0)


def test_a_run_evaluated_once_has_no_change_and_one_never_evaluated_nothing(workspace):
    made_up_run("once", "stopped", done=0)
    run = made_up_run("never", "stopped", done=3)
    lines = [line for line in (run.folder / "metrics.jsonl").read_text().splitlines() if "eval_loss" not in line]
    (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = rows()
    assert found["once"].gamma_first == pytest.approx(1.3) and found["once"].final_ce is None  # the base's
    assert found["once"].gamma_last is None and found["once"].gamma_change is None
    assert found["never"].final_ce is None and found["never"].gamma_first is None


def test_a_killed_run_is_failed_with_its_reason(workspace):
    made_up_run("killed", "running", done=4)
    row = rows()["killed"]
    assert row.state == "failed" and "killed" in row.note and row.step == 4


# --- bad input: each on its own row, the others unharmed ------------------------------------------------------------------

NEWER = json.dumps({"format": 99, "state": "finished"})


def alter_status(run, name, value):
    path = run.folder / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run.folder / "status.json").write_text('{"format": 1, "sta'), "the status of run 'bad' cannot be read"),
        (lambda run: (run.folder / "status.json").write_text(NEWER), "format 99 is newer than this program's 1"),
        (lambda run: (run.folder / "status.json").unlink(), "the status of run 'bad' cannot be read"),
        (lambda run: (run.folder / "config.yaml").write_text("r: [1"), "is not readable YAML"),
        (lambda run: (run.folder / "config.yaml").write_text("new_setting: 1"), "there is no setting 'new_setting'"),
        (
            lambda run: (run.folder / "config.yaml").write_bytes(b"\xff\xfe\xff"),
            "config.yaml of run 'bad' cannot be used: 'utf-8'",
        ),
        (lambda run: (run.folder / "config.yaml").write_text(" \n"), "the file is empty"),
        (lambda run: (run.folder / "status.json").write_text("[1]"), "holds no format and state"),
        *[
            (functools.partial(alter_status, name=name, value=value), f"its {name} is {value!r}")
            for name, value in {"step": "seven", "steps": 2.5, "notes": 5, "design_layers": 5, "latest": [], "reason": 3}.items()
        ],
        (functools.partial(alter_status, name="step", value=-3), "at step -3 of"),
        (functools.partial(alter_status, name="step", value=10**6), "at step 1000000 of"),
        (lambda run: append(run, b"[" * 100_000 + b"\n", b'{"step": true}\n'), "2 lines of its metrics are damaged"),
        (lambda run: append(run, b'{"step": 3, "lo\n', b"[]\n"), "2 lines of its metrics are damaged and left out."),
        (lambda run: append(run, b'{"step": 3, "lo'), "The last line of its metrics was cut off and is left out."),
        (lambda run: shutil.rmtree(run.adapter), "Its adapter was deleted; checkpoint 10 is still there."),
        (lambda run: (run.adapter / "adapter_model.safetensors").unlink(), "Its adapter was deleted"),
        (lambda run: (run.folder / "tags.json").write_text("nonsense"), "Its tags cannot be read"),
        (lambda run: (run.folder / "tags.json").write_text('{"format": 9, "tags": []}'), "newer than this program's"),
        (lambda run: (run.folder / "tags.json").write_text('{"format": 1, "tags": [1]}'), "Its tags cannot be read"),
    ],
)
def test_damage_is_told_on_its_row_and_the_rest_is_read(damage, said, workspace):
    made_up_run("good")
    bad = made_up_run("bad", checkpoints=[10])
    damage(bad)
    found = rows()
    assert said in found["bad"].note
    assert found["bad"].final_ce == 2.5, "what can be read is shown"
    assert found["good"].note == "" and found["good"].state == "finished"


@pytest.mark.parametrize("name", ["a b", "x" * 120, "-dash", "ünicode", "a#b?c&d", "new\nline", "*"])
def test_a_folder_with_an_odd_name_is_a_row_that_says_so(name, workspace):
    made_up_run("good")
    os.rename(made_up_run("odd").folder, workspace / "runs" / name)
    found = rows()
    assert "cannot be used" in found[name].note and "Rename its folder." in found[name].note
    assert found[name].final_ce == 2.5 and found["good"].note == ""


def test_folders_that_are_no_runs_say_so_and_files_and_hidden_folders_are_none(workspace):
    made_up_run("good")
    for name in ("empty", ".hidden"):
        (workspace / "runs" / name).mkdir()
    (workspace / "runs" / "file").write_text("")
    found = rows()
    assert set(found) == {"good", "empty"} and found["empty"].state == "unreadable"


def test_no_workspace_has_no_runs(workspace):
    assert look_all() == []


# --- filter, sort, table --------------------------------------------------------------------------------------------------


@pytest.fixture
def three(workspace):
    made_up_run("alpha", seed=1, method="ce")
    write_tags(made_up_run("beta", seed=3).folder, ["Paper", "good"])
    write_tags(made_up_run("gamma", "failed", done=0, seed=2, status={"reason": "disk full"}).folder, ["good"])
    return list(rows().values())


def names(found):
    return [row.name for row in found]


def test_a_filter_wants_every_word_a_state_and_all_tags(three):
    assert names(matching(three, "SMOLLM2")) == ["alpha", "beta", "gamma"]
    assert names(matching(three, "paper game")) == ["beta"] and names(matching(three, "paper ce")) == []
    assert names(matching(three, "", ["failed", "stopped"])) == ["gamma"]
    assert names(matching(three, "", tags=["good"])) == ["beta", "gamma"]
    assert names(matching(three, "", tags=["good", "Paper"])) == ["beta"]


def test_rows_without_a_value_come_last_whatever_the_order(three):
    assert names(ordered(three)) == ["beta", "gamma", "alpha"]
    assert names(ordered(three, "final_ce", descending=False)) == ["beta", "alpha", "gamma"]
    assert names(ordered(three, "gamma_change")) == ["alpha", "beta", "gamma"], "gamma has none"
    assert names(ordered(three, "gamma_change", descending=False)) == ["alpha", "beta", "gamma"]
    for key in run_table.SORTS:
        assert len(ordered(three, key)) == 3


def test_the_table_keeps_all_digits_and_what_is_not_known_is_empty(three):
    read = pd.read_csv(io.StringIO(table(three).to_csv(index=False)))
    assert read["final_ce"].tolist()[:2] == [row.final_ce for row in three[:2]] and np.isnan(read["final_ce"][2])
    assert np.isnan(read["gamma_change"][2]) and read["note"][2] == "disk full"
    assert table([]).empty


# --- tags -----------------------------------------------------------------------------------------------------------------


def test_tags_are_trimmed_sorted_and_once(workspace):
    folder = made_up_run("run").folder
    assert read_tags(folder) == ()
    assert write_tags(folder, ["b", " a  c ", "", "b"]) == ("a c", "b") == read_tags(folder)
    assert write_tags(folder, ["[x] *y* \\ /../ €"]) == read_tags(folder)
    with pytest.raises(ValueError, match="at most 40 letters"):
        write_tags(folder, ["x" * 41])
    with pytest.raises(ValueError, match="at most 20 tags"):
        write_tags(folder, map(str, range(21)))
    assert read_tags(folder) == ("[x] *y* \\ /../ €",), "a refusal changes nothing"


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
def test_tags_that_cannot_be_written_leave_the_old_ones(code, workspace, monkeypatch):
    folder = made_up_run("run").folder
    write_tags(folder, ["old"])

    def refuse(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("analysis.workspace.tempfile.mkstemp", refuse)
    with pytest.raises(OSError):
        write_tags(folder, ["new"])
    assert read_tags(folder) == ("old",)


# --- differences and curves -----------------------------------------------------------------------------------------------


def test_only_what_differs_is_listed():
    base = {"steps": 10, "r": 1}
    configs = {"one": base, "two": base | {"lr_scheduler": "linear", "r": 8}, "three": base | {"design_layers": [1, 2]}}
    found = config_diff({name: GameLoraConfig.from_dict(values) for name, values in configs.items()})
    assert found.index.tolist() == ["r", "lr_scheduler", "design_layers"]
    assert found.loc["r", ["one", "two", "three"]].tolist() == ["1", "8", "1"]
    assert found.loc["design_layers", ["one", "three"]].tolist() == ["default", "1, 2"]
    assert "Rank" in found.loc["r", "what it is"]
    assert config_diff({"one": GameLoraConfig(), "two": GameLoraConfig()}).empty


def test_values_that_differ_in_a_late_digit_differ():
    configs = {name: GameLoraConfig(learning_rate=rate) for name, rate in (("one", 1e-4), ("two", 1.0000000001e-4))}
    assert len(set(config_diff(configs).loc["learning_rate", ["one", "two"]])) == 2


@pytest.fixture
def many(workspace):
    return {f"run{n}": RunMetrics().read_on(made_up_run(f"run{n}", steps=3000, seed=n)) for n in range(20)}


def test_curves_of_many_runs_stay_within_their_budget(many):
    curves = overlay(many, "loss/ce")
    assert len(curves) == 20 and sum(map(len, curves.values())) <= run_table.POINTS_IN_ALL
    for name, curve in curves.items():
        whole = many[name].series("loss/ce")
        assert curve.max() == whole.max() and curve.min() == whole.min() and curve.index[-1] == 3000


def test_smoothing_goes_before_thinning(many):
    metrics = {"run3": many["run3"]}
    curve = overlay(metrics, "loss/ldb", 0.9)["run3"]
    pd.testing.assert_series_equal(curve, smooth(many["run3"].series("loss/ldb"), 0.9).loc[curve.index])


def test_a_metric_of_some_runs_leaves_the_others_out(many):
    assert overlay(many, "no such metric") == {}
    assert set(overlay(many | {"bare": RunMetrics()}, "eval_loss")) == set(many)


def test_the_chart_has_a_look_for_each_run_and_few_bytes(many):
    curves = overlay(many, "loss/ce")
    figure = overlay_figure(curves, "Cross-entropy")
    assert [trace.name for trace in figure.data] == list(many)
    assert len({(trace.line.color, trace.line.dash) for trace in figure.data}) == 20
    assert len({look_of(position) for position in range(35)}) == 35
    assert len(figure.to_json()) < 500_000
    smoothed = overlay_figure(curves, "Cross-entropy", curves)
    assert [trace.showlegend for trace in smoothed.data[:2]] == [False, None]
    assert overlay_figure({"<b>": curves["run0"]}, "x").data[0].name == "&lt;b&gt;"


# --- what a run has to give -----------------------------------------------------------------------------------------------


def test_the_adapter_and_its_steps_are_checkpoints_newest_first(workspace):
    config = GameLoraConfig(steps=10)
    run = made_up_run("run", checkpoints=[4, 8, 10])
    assert [one.title for one in selectable(run, config)] == ["run adapter", "run step 8", "run step 4"]
    shutil.rmtree(run.adapter)
    assert [one.title for one in selectable(run, config)] == ["run step 10", "run step 8", "run step 4"]
    (write_checkpoint(run, 12) / "optimizer.pt").unlink()
    assert len(selectable(run, config)) == 3, "a half-written checkpoint is not offered"


def test_a_zip_of_an_adapter_is_the_same_bytes_and_holds_no_pickle(workspace):
    run = made_up_run("run", checkpoints=[5])
    first = run_files.adapter_zip(run.adapter)
    for path in run.adapter.iterdir():
        os.utime(path, (1, 1))
    assert run_files.adapter_zip(run.adapter) == first
    for folder in (run.adapter, run.checkpoints()[0]):
        with zipfile.ZipFile(io.BytesIO(run_files.adapter_zip(folder))) as archive:
            assert set(archive.namelist()) == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
            assert archive.read("adapter_model.safetensors") == (folder / "adapter_model.safetensors").read_bytes()


def test_a_link_in_an_adapter_folder_is_not_followed(workspace, tmp_path):
    run = made_up_run("run")
    (tmp_path / "secret.json").write_text("secret")
    (run.adapter / "linked.json").symlink_to(tmp_path / "secret.json")
    with zipfile.ZipFile(io.BytesIO(run_files.adapter_zip(run.adapter))) as archive:
        assert "linked.json" not in archive.namelist()


def test_a_merge_is_one_job_into_the_workspace(workspace, monkeypatch):
    run, asked = made_up_run("run"), []
    monkeypatch.setattr(run_files.jobs, "start", lambda *given: asked.append(given))
    run_files.merge("run")
    folder = run_files.merged_folder("run")
    assert asked == [("merge:run", "Merge run", ["gamelora", "merge", "run", "--out", str(folder)])]
    assert folder == workspace / "merged" / "run" and run_files.merged_size(run.status()) == 4 * 134_515_008
    assert run_files.merged_size({}) is None
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    assert run_files.size_of(folder) == 1000
    with pytest.raises(ValueError, match="exists already"):
        run_files.merge("run")
    os.utime(folder, (1, 1))
    assert run_files.merged_is_older(run)
    run_files.remove_merged("run")
    assert not folder.exists() and not list(folder.parent.iterdir())
    with pytest.raises(ValueError, match="run name"):
        run_files.merged_folder("../x")


def test_a_deleted_run_is_gone_from_the_table(workspace):
    made_up_run("keep")
    made_up_run("go")
    training_jobs.delete("go")
    assert set(rows()) == {"keep"} and not Run("go", workspace / "runs" / "go").folder.exists()
