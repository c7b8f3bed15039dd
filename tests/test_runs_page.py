"""The Runs page without a browser: rows, filter, choice, charts, actions, bad input, and the view that a link names."""

import errno
import html
import json
import os
import shutil

import pytest
from streamlit.testing.v1 import AppTest

from analysis.sources import content_sha256
from gamelora import jobs
from gamelora.measurement_jobs import MeasurementRequest
from gamelora.run_tags import read_tags, write_tags
from tests.conftest import ROOT
from tests.made_up_runs import LAYER, made_up_run
from tests.synthetic import synthetic_result
from tests.test_pages import DEFAULT, app, fine, started, words  # noqa: F401
from tests.test_run_metrics import append


def rows(test):
    """The table, by run."""
    return test.dataframe[0].value.set_index("run")


def curves(test):
    """The runs whose curves the overlay shows."""
    spec = json.loads(next(chart.proto.spec for chart in test.get("plotly_chart") if chart.proto.id.endswith("overlay")))
    return [html.unescape(trace["name"]) for trace in spec["data"]]


@pytest.fixture
def results(workspace):
    """The default model, measured, so that no page starts a job by itself."""
    folder = workspace / "results"
    synthetic_result(n_layers=6).save(folder / f"{DEFAULT}.npz")
    return folder


@pytest.fixture
def three(results):
    write_tags(made_up_run("alpha", seed=1, method="ce", r=8).folder, ["good"])
    made_up_run("beta", seed=3)
    made_up_run("gamma", "failed", done=4, checkpoints=[4], seed=2, status={"reason": "disk full"})


# --- what it shows --------------------------------------------------------------------------------------------------------


def test_an_empty_workspace_says_what_to_do(results):
    test = app("runs")
    assert fine(test) and "There is no run in this workspace yet." in words(test)
    assert test.button(key="first_run").label == "Set up a fine-tune"


def test_every_run_is_a_row_newest_first_and_drawn(three):
    test = app("runs")
    assert fine(test)
    table = rows(test)
    assert table.index.tolist() == ["beta", "gamma", "alpha"]
    assert table.loc["gamma", "note"] == "disk full" and table.loc["gamma", "done"] == "4 of 10"
    assert table.loc["beta", "final_ce"] == pytest.approx(2.47)
    assert curves(test) == ["beta", "gamma", "alpha"]
    assert "Settings that differ" in words(test)
    differing = next(frame.value for frame in test.dataframe if "what it is" in frame.value)
    assert differing.index.tolist() == ["r", "method"] and differing.loc["r", "alpha"] == "8"


def test_filter_and_sort_are_in_the_link_and_come_from_it(three):
    test = app("runs", find="game", sort="final_ce", order="ascending")
    assert fine(test) and rows(test).index.tolist() == ["beta", "gamma"][::1]
    test.text_input(key="find").set_value("").run()
    assert rows(test).index.tolist() == ["beta", "gamma", "alpha"]
    test.multiselect(key="tags").set_value(["good"]).run()
    assert rows(test).index.tolist() == ["alpha"] and test.query_params["tags"] in ("good", ["good"])
    test.multiselect(key="tags").set_value([]).run()
    test.multiselect(key="states").set_value(["failed"]).run()
    assert rows(test).index.tolist() == ["gamma"] and "find" not in test.query_params
    test.text_input(key="find").set_value("nothing such").run()
    assert fine(test) and "No run holds all of these words" in words(test)


def test_a_link_opens_its_view(three):
    test = app("runs", runs=["gamma", "beta"], metric="loss/bt", smooth="0.9", of_run="gamma")
    assert fine(test) and curves(test) == ["beta", "beta", "gamma", "gamma"], "each with its unsmoothed curve below it"
    assert test.session_state["of_run"] == "gamma" and "gamma: disk full" in words(test)
    assert test.selectbox(key="metric").value == "loss/bt" and test.select_slider(key="smooth").value == 0.9


def test_a_link_to_what_is_not_here_says_so(three):
    test = app("runs", runs=["gone"], metric="odd", smooth="7", sort="x")
    said = words(test)
    assert fine(test) and "The link asks for gone, which is not in this workspace." in said and "sort x" in said
    assert "Choose runs by the boxes" in said
    assert "metric odd" in words(app("runs", metric="odd"))


def test_a_run_without_metrics_and_a_queued_one_are_no_trouble(results):
    run = made_up_run("new", "failed", done=0)
    (run.folder / "metrics.jsonl").unlink()
    test = app("runs", runs=["new"])
    assert fine(test) and "has written a metric yet" in words(test)


def test_new_points_and_new_runs_are_seen_on_the_next_draw(three):
    test = app("runs")
    before = rows(test).loc["gamma", "final_ce"]
    run = made_up_run("late")
    append(run, {"step": 11, "time": 1.0, "eval_loss": 1.25})
    test.run()
    assert rows(test).loc["late", "final_ce"] == 1.25 and rows(test).loc["gamma", "final_ce"] == before


# --- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run.folder / "status.json").write_text('{"form'), "cannot be read"),
        (lambda run: (run.folder / "status.json").write_text('{"format": 99, "state": "finished"}'), "newer than this program's"),
        (lambda run: (run.folder / "config.yaml").write_text("unknown: 1"), "there is no setting 'unknown'"),
        (lambda run: append(run, b"{half\n"), "1 line of its metrics is damaged"),
        (lambda run: shutil.rmtree(run.adapter), "Its adapter was deleted"),
        (lambda run: os.rename(run.folder, run.folder.with_name("bro ken #%?&")), "cannot be used"),
        (lambda run: (run.folder / "config.yaml").unlink(), "config.yaml cannot be read"),
    ],
)
def test_a_broken_run_says_so_on_its_row_and_can_be_chosen(damage, said, three, workspace):
    damage(made_up_run("broken", seed=9))
    name = next(folder.name for folder in (workspace / "runs").glob("bro*"))
    test = app("runs", runs=[name, "beta"], of_run=name)
    assert fine(test)
    table = rows(test)
    assert said in table.loc[name, "note"] and len(table) == 4
    assert table.loc["beta", "final_ce"] == pytest.approx(2.47)
    assert said in words(test), "also below the table, in full"
    assert set(curves(test)) == {name, "beta"}


@pytest.mark.parametrize(("code", "reason"), [(errno.EROFS, "Read-only file system"), (errno.ENOSPC, "No space left on device")])
def test_a_workspace_that_takes_no_writing_shows_all_and_refuses_with_the_reason(code, reason, three, workspace, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("analysis.workspace.tempfile.mkstemp", refuse)
    test = app("runs", of_run="alpha")
    assert fine(test) and len(rows(test)) == 3
    test.multiselect(key="tags_of_alpha").set_value(["good", "better"]).run()
    test.button(key="save_tags").click().run()
    assert not test.exception and f"the workspace cannot be written ({reason})" in words(test)
    assert len(rows(test)) == 3 and read_tags(workspace / "runs" / "alpha") == ("good",)


# --- one run --------------------------------------------------------------------------------------------------------------


def test_tags_are_saved_and_shown(three, workspace):
    test = app("runs", of_run="alpha")
    assert test.button(key="save_tags").disabled
    test.multiselect(key="tags_of_alpha").set_value([]).run()
    test.button(key="save_tags").click().run()
    assert fine(test) and read_tags(workspace / "runs" / "alpha") == () and len(rows(test).loc["alpha", "tags"]) == 0


def test_delete_asks_once_and_removes_the_run(three, workspace):
    test = app("runs", of_run="gamma")
    assert "Delete gamma with its checkpoints" in words(test).replace("**", "") and (workspace / "runs" / "gamma").is_dir()
    test.button(key="delete_it").click().run()
    assert fine(test) and not (workspace / "runs" / "gamma").exists()
    assert rows(test).index.tolist() == ["beta", "alpha"] and curves(test) == ["beta", "alpha"]


def test_the_downloads_are_there_where_there_is_something_to_take(three):
    def offered(run):
        found = {button.proto.label: button.proto.disabled for button in app("runs", of_run=run).get("download_button")}
        return {label: not disabled for label, disabled in found.items()}

    assert offered("beta") == {
        "Table (CSV)": True,
        "Adapter (ZIP)": True,
        "Metrics (CSV)": True,
        "Model card (Markdown)": True,
    }
    assert offered("gamma") == {
        "Table (CSV)": True,
        "Step 4 (ZIP)": True,
        "Metrics (CSV)": True,
        "Model card (Markdown)": False,
    }


def test_a_merged_model_is_made_by_a_job_and_says_where_it_lies(three, workspace, started):  # noqa: F811
    test = app("runs", of_run="beta")
    assert "about 0.50 GiB" in words(test)
    test.button(key="merge").click().run()
    assert [target for target, _ in started] == ["merge:beta"] and started[0][1][:3] == ["gamelora", "merge", "beta"]
    folder = workspace / "merged" / "beta"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"x" * 2048)
    test = app("runs", of_run="beta")
    assert fine(test) and "Merged model, 2.00 KiB, lies in" in words(test) and str(folder) in [code.value for code in test.code]
    test.button(key="remove_merged").click().run()
    assert fine(test) and not folder.exists()


def test_open_in_train_goes_there_with_the_run(three):
    test = app("runs", of_run="beta")
    test.button(key="open_train").click().run()
    assert not test.exception and test.session_state["run"] == "beta"


# --- its checkpoints on the other pages -----------------------------------------------------------------------------------


def test_analyse_starts_what_is_missing_and_opens_base_and_adapter(three, workspace, started):  # noqa: F811
    test = app("runs", of_run="beta")
    test.button(key="analyse").click().run()
    assert not test.exception
    assert [target.startswith("interaction:SmolLM2-135M-Instruct-") for target, _ in started] == [True], "the base is measured"
    assert f"--adapter={workspace / 'runs' / 'beta' / 'adapter'}" in started[0][1]
    assert (test.session_state["a"], test.session_state["b"]) == (DEFAULT, "beta adapter")
    assert test.session_state["layer"] == LAYER, "the layer that the run regularized"
    written = {key: value if isinstance(value, str) else value[0] for key, value in test.query_params.items()}
    assert (written["a"], written["b"]) == (DEFAULT, "beta adapter")


def test_a_run_without_an_adapter_offers_its_newest_step_and_one_without_any_offers_nothing(three, started):  # noqa: F811
    test = app("runs", of_run="gamma")
    assert test.button(key="analyse").label == "Analyse base and step 4"
    test.button(key="analyse").click().run()
    assert test.session_state["b"] == "gamma step 4"
    made_up_run("none", "failed", done=1)
    assert app("runs", runs=["none"]).button(key="analyse").disabled


def adapter_result(run, results, **settings):
    """A result as the measurement of a run's adapter would leave it."""
    request = MeasurementRequest(adapter=str(run.adapter))
    result = synthetic_result(n_layers=6, seed=1, adapter=str(run.adapter), **settings)
    files = [run.adapter / "adapter_config.json", run.adapter / "adapter_model.safetensors"]
    result.provenance["adapter"]["sha256"] = content_sha256(files)
    result.save(results / f"{request.name}.npz")
    return request.name


@pytest.mark.parametrize("page", ["interaction", "coalitions"])
def test_a_finished_adapter_is_at_once_a_checkpoint_of_the_other_pages(results, started, page):  # noqa: F811
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=180).run()
    test.switch_page(f"pages/{page}.py").run()
    assert "done adapter" not in test.selectbox(key="b").options
    run = made_up_run("done", checkpoints=[5, 10])
    test.run()
    assert {"done adapter", "done step 5"} < set(test.selectbox(key="b").options)
    test.selectbox(key="b").set_value("done adapter").run()
    assert fine(test) and "has not been measured yet" in words(test)
    test.button(key="measure_B").click().run()
    assert f"--adapter={run.adapter}" in started[0][1]
    name = adapter_result(run, results)
    assert started[0][0] == f"interaction:{name}"
    test.run()
    assert fine(test) and "has not been measured yet" not in words(test)
    assert test.session_state["b"] == "done adapter"
    assert name not in test.selectbox(key="b").options, "it stands there as done adapter"
    assert app(page, b=name).session_state["b"] == name, "a link to the result itself still opens it"


def test_an_adapter_that_was_trained_anew_is_not_shown_with_the_old_result(results, started):  # noqa: F811
    run = made_up_run("done")
    adapter_result(run, results)
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=180).run()
    test.switch_page("pages/interaction.py").run()
    test.selectbox(key="b").set_value("done adapter").run()
    assert "has not been measured yet" not in words(test)
    weights = run.adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert "done adapter, has not been measured yet" in words(test.run()).replace("**", "")


def test_the_selectivity_of_a_measured_adapter_is_in_its_row(three, results, workspace):
    from analysis.compare import compare
    from gamelora.runs import Run

    assert rows(app("runs")).loc["beta", "selectivity"] is not None
    adapter_result(Run.open("beta"), results)
    expected = compare(synthetic_result(n_layers=6), synthetic_result(n_layers=6, seed=1), permutations=99).overall.selectivity
    table = rows(app("runs"))
    assert table.loc["beta", "selectivity"] == pytest.approx(expected)
    assert table["selectivity"].isna().tolist() == [False, True, True]


def test_a_job_that_trains_is_seen_live(three, monkeypatch):
    from tests.test_pages import job, known_jobs

    known_jobs(monkeypatch, job("running", "run:gamma"), job("queued", "run:next"))
    test = app("runs", of_run="gamma", runs=["gamma", "next"])
    assert fine(test)
    table = rows(test)
    assert table.loc["gamma", "state"] == "running" and table.loc["next", "state"] == "queued"
    assert jobs.jobs()
