"""The pages, run without a browser: every state that a workspace can be in, and the view that a link names."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.figure_data import off_diagonal
from analysis.progress import Progress
from analysis.results import InteractionResult
from gamelora import jobs
from gamelora.jobs import Job
from pages._jobs import worth_a_line
from tests.conftest import ROOT
from tests.synthetic import synthetic_result

DEFAULT = "SmolLM2-135M-Instruct-builtin-2048"
BASIC = ("overview", "interaction")  # pages without tests of their own


def app(page="overview", **link):
    """The app on one page, opened by a link."""
    test = AppTest.from_file(str(ROOT / "app.py"), default_timeout=180)
    test.query_params.update(link)
    test.run()
    if page != "overview":
        test.switch_page(f"pages/{page}.py")
        test.query_params.update(link)
        if "tab" in link:
            test.session_state["tab"] = link["tab"]
        test.run()
    return test


def fine(test):
    """Whether the page drew without an error."""
    return not test.exception and not test.error


def numbers(test):
    """The page's metrics by label."""
    return {metric.label: metric.value for metric in test.metric}


def words(test):
    """All that the page says, as one text without Markdown's escapes."""
    kinds = ("title", "markdown", "caption", "subheader", "error", "warning", "info")
    said = [element.value for kind in kinds for element in getattr(test, kind)]
    said += [f"{metric.label} {metric.value}" for metric in test.metric]
    return "\n".join(said).replace("\\", "")


@pytest.fixture
def results(workspace) -> Path:
    """The workspace's results: the default model's, and an adapter on it."""
    folder = workspace / "results"
    synthetic_result(n_layers=6).save(folder / f"{DEFAULT}.npz")
    synthetic_result(n_layers=6, seed=1, adapter="/runs/laptop/adapter").save(folder / "adapted.npz")
    return folder


def job(state, target=f"interaction:{DEFAULT}", arguments=("analysis",), **fields):
    """A job as `gamelora.jobs` would read it from disk."""
    return Job(
        "20260101-000000-000000-x", target, "SmolLM2, built-in", ["python", "-m", *arguments], Path("/nowhere"), state, **fields
    )


def known_jobs(monkeypatch, *known):
    monkeypatch.setattr(jobs, "jobs", lambda: list(known))
    monkeypatch.setattr(jobs, "get", lambda job_id: next(one for one in known if one.id == job_id))


@pytest.fixture
def started(monkeypatch):
    """The jobs that the pages start, none of which really runs: (target, arguments) of each."""
    asked = []

    def start(target, title, module_args, env=None, device=""):
        asked.append((target, module_args))
        made = job("queued", target, module_args)
        known_jobs(monkeypatch, made)
        return made

    monkeypatch.setattr(jobs, "start", start)
    return asked


# --- results on screen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", BASIC)
@pytest.mark.parametrize("link", [{}, {"b": "adapted"}, {"a": "adapted", "coupling": "invariant"}], ids=str)
def test_pages_draw_one_and_two_checkpoints(results, started, page, link):
    test = app(page, **link)
    assert not test.exception and not test.error
    assert not started, "nothing has to be measured"


def test_the_overview_tells_the_model_and_its_text(results):
    test = app(b="adapted")
    table = test.table[0].value.to_dict()[""]
    assert table["Heads"] == "6 query, 2 key/value" and table["SHA-256"] == "`0000000000000000`"
    assert table["Text"].replace("\\", "") == "built-in, 2,048 tokens"
    assert "SmolLM2-135M-Instruct + laptop adapter" in words(test)
    assert len(test.latex) == 3


def test_the_four_numbers_are_the_results(results):
    result = synthetic_result(n_layers=6)
    test = app("interaction")
    strongest = int(result.gamma.argmax())
    pair = np.abs(result.G - np.eye(6)).max(axis=(1, 2)).argmax()
    assert test.metric[0].value == f"{result.gamma.mean():.3g}"
    assert test.metric[1].value == f"L{strongest}" and test.session_state["layer"] == strongest
    assert test.metric[2].value.startswith(f"L{pair}H")
    assert test.metric[3].value == f"{result.tokens:,}"


def test_the_heatmaps_are_A_B_and_B_minus_A_on_one_scale(results):
    test = app("interaction", b="adapted", layer="4")
    spec = json.loads(next(chart.proto.spec for chart in test.get("plotly_chart") if chart.proto.id.endswith("heatmaps")))
    shown = [np.frombuffer(base64.b64decode(trace["z"]["bdata"]), trace["z"]["dtype"]).reshape(6, 6) for trace in spec["data"]]
    a, b = (off_diagonal(synthetic_result(n_layers=6, seed=seed).G[4]) for seed in (0, 1))
    for matrix, expected in zip(shown, (a, b, b - a), strict=True):
        np.testing.assert_allclose(matrix, expected, atol=1e-6)
    axis = spec["layout"]["coloraxis"]
    assert axis["cmin"] == -axis["cmax"] <= -np.nanmax(np.abs([a, b, b - a]))


def test_the_coupling_changes_the_numbers(results):
    paper, invariant = app("interaction"), app("interaction", coupling="invariant")
    expected = synthetic_result(n_layers=6).view("invariant").gamma.mean()
    assert invariant.metric[0].value == f"{expected:.3g}" != paper.metric[0].value
    assert "Gauge noise" in words(paper) and "Gauge noise" not in words(invariant)


def test_a_link_opens_its_view_and_the_view_writes_its_link(results):
    test = app("interaction", a="adapted", b=DEFAULT, layer="2", matrix="rho", coupling="invariant")
    chosen = {key: test.session_state[key] for key in ("a", "b", "layer", "matrix", "coupling")}
    assert chosen == {"a": "adapted", "b": DEFAULT, "layer": 2, "matrix": "rho", "coupling": "invariant"}
    test.select_slider(key="layer").set_value(4).run()
    assert test.query_params["layer"] in ("4", ["4"])
    next(button for button in test.button if button.label == "Swap").click().run()
    assert (test.session_state["a"], test.session_state["b"]) == (DEFAULT, "adapted")


def test_a_link_to_what_is_not_here_says_so_and_shows_the_default(results):
    test = app("interaction", a="gone", layer="99", matrix="H", coupling="odd")
    assert test.session_state["a"] == DEFAULT and test.session_state["matrix"] == "G"
    assert not test.exception
    first = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    first.query_params["a"] = "gone"
    assert "The link asks for gone, which is not in this workspace" in words(first.run())


def test_two_checkpoints_open_at_the_layer_where_they_differ_most_and_its_gamma_is_said(results):
    a, b = (InteractionResult.load(results / f"{name}.npz") for name in (DEFAULT, "adapted"))
    layer = int(abs(b.gamma - a.gamma).argmax())
    assert layer != a.gamma.argmax(), "else this shows nothing"
    test = app("interaction", b="adapted")
    assert test.session_state["layer"] == layer
    change = b.gamma[layer] - a.gamma[layer]
    assert f"Γ(G) of layer {layer}: A {a.gamma[layer]:.3g}, B {b.gamma[layer]:.3g}, B − A {change:+.3g}." in words(test)


def test_the_sidebar_lists_what_runs_first_and_of_a_target_the_newest_job_alone():
    known = [job("queued", f"run:waits{number}") for number in range(6)]
    known += [job("running", "run:works"), job("done", "run:twice"), job("failed", "run:twice", error="an older attempt")]
    shown = worth_a_line(known)
    assert [one.state for one in shown] == ["running", "queued", "queued", "queued", "queued"]
    assert [one.state for one in worth_a_line(known[6:])] == ["running", "done"]


# what only that tab holds
TABS = {
    "Strongest pairs": lambda test: len(test.dataframe) == 1,
    "All layers": lambda test: "A click on a layer opens it above" in words(test),
    "Spectrum": lambda test: "Eigenvalues of G in layer" in words(test),
    "Data": lambda test: len(test.get("download_button")) >= 15,
    "Provenance": lambda test: len(test.json) > 0,
}


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("link", [{}, {"b": "adapted"}, {"b": "other"}], ids=str)
def test_every_tab_draws_and_only_while_it_is_open(results, tab, link):
    synthetic_result(n_layers=3, n_heads=4, n_kv_heads=4, name="other", source="/m").save(results / "other.npz")
    test = app("interaction", **link)
    test.session_state["tab"] = tab
    test.run()
    assert not test.exception and not test.error
    assert [name for name, drawn in TABS.items() if drawn(test)] == [tab]


def test_different_numbers_of_heads_are_shown_but_not_subtracted(results):
    synthetic_result(n_layers=3, n_heads=4, name="other", source="/m").save(results / "other.npz")
    said = words(app("interaction", b="other", layer="1"))
    assert "A has 6 heads a layer and B 4: their matrices have no difference" in said


def test_different_texts_are_said(results):
    other = synthetic_result(n_layers=6)
    other.provenance["text"].update(sha256="2" * 64, source="/texts/a.txt")
    other.save(results / "other.npz")
    assert "A and B were measured on different texts" in words(app("interaction", b="other"))


def test_one_head_and_one_layer_are_no_trouble(results):
    synthetic_result(n_layers=1, n_heads=1, n_kv_heads=1, name="one", source="/m").save(results / "one.npz")
    for page in BASIC:
        test = app(page, a="one")
        assert not test.exception and not test.error
    assert "Strongest pair none" in words(test)


def test_an_inactive_head_is_named(results):
    result = synthetic_result(n_layers=6)
    for sums in result.gradient_sums.values():
        sums[:, 3, 1, :] = 0
        sums[:, 3, :, 1] = 0
    result.save(results / f"{DEFAULT}.npz")
    assert "Inactive in A (no output weight or no gradient), so 0 off the diagonal: L3H1." in words(app("interaction", layer="3"))


def test_a_result_with_one_coupling_is_shown_with_it_and_says_so(results):
    synthetic_result(n_layers=6, couplings=("paper",)).save(results / f"{DEFAULT}.npz")
    test = app("interaction", coupling="invariant")
    assert "A holds the paper coupling only and is shown with it" in words(test) and not test.exception


def test_names_with_every_sign_are_shown_as_they_are(results):
    name = "my_model#1 50%&[x]\\y $a$ *b*"
    synthetic_result(n_layers=6, name=name, source="/m").save(results / "signs.npz")
    for page in BASIC:
        test = app(page, a="signs")
        assert not test.exception and name.replace("\\", "") in words(test)


# --- the workspace --------------------------------------------------------------------------------------------------------


def test_damaged_and_foreign_files_are_skipped_with_a_notice(results):
    (results / "damaged.npz").write_bytes((results / "adapted.npz").read_bytes()[:3000])
    (results / "empty.npz").write_bytes(b"")
    np.savez(results / "foreign.npz", weights=np.ones(3))
    anonymous = synthetic_result()
    anonymous.provenance["model"].pop("architecture")
    anonymous.save(results / "anonymous.npz")
    test = app("interaction")
    assert not test.exception
    said = [warning.value.replace("\\", "") for warning in test.sidebar.warning]
    for name in ("damaged", "empty", "foreign", "anonymous"):
        assert any(f"{name}.npz" in sentence for sentence in said), name
    assert set(test.selectbox(key="a").options) == {DEFAULT, "adapted"}


def test_a_folder_of_results_joins_the_list_and_the_link(results, tmp_path):
    synthetic_result(n_layers=2, name="far", source="/m").save(tmp_path / "elsewhere" / "far.npz")
    path = str(tmp_path / "elsewhere" / "far.npz")
    test = app("interaction", folder=str(tmp_path / "elsewhere"), a=path)
    assert test.session_state["a"] == path and not test.exception
    assert path in test.selectbox(key="a").options


def test_a_folder_that_is_not_there_is_said(results):
    assert "There is no folder /no/such/folder" in words(app(folder="/no/such/folder"))


def test_a_workspace_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(tmp_path / "file"))
    test = app()
    assert not test.exception and len(test.error) == 1


# --- measurements that are not there yet -----------------------------------------------------------------------------------


def test_the_first_start_measures_the_default_model_by_itself(workspace, started):
    test = app("overview")
    assert not test.exception and len(started) == 1
    target, arguments = started[0]
    assert target == f"interaction:{DEFAULT}"
    assert "--model=default" in arguments and "--text=builtin" in arguments and "--tokens=2048" in arguments


def test_nothing_starts_by_itself_when_there_is_a_result_or_a_job(results, started, monkeypatch):
    app()
    (results / f"{DEFAULT}.npz").unlink()
    for state in ("queued", "running", "failed", "stopped"):
        known_jobs(monkeypatch, job(state, error="it broke" if state == "failed" else None))
        app()
    assert not started


def test_a_result_that_was_deleted_is_not_measured_again_unasked(workspace, started, monkeypatch):
    known_jobs(monkeypatch, job("done"))
    test = app()
    assert not started and "has not been measured yet" in words(test)
    test.button(key="measure_A").click().run()
    assert len(started) == 1


def test_a_running_job_shows_how_far_it_is(workspace, monkeypatch):
    progress = Progress("measuring", 3, 8, "batch", time=100.0, began=70.0)
    known_jobs(monkeypatch, job("running", started=60.0, progress=progress))
    said = words(app("interaction"))
    assert "so far" in said and "left in this stage" in said
    assert "You can leave this page" in said


def test_stop_asks_the_job_to_end(workspace, monkeypatch):
    stopped = []
    monkeypatch.setattr(jobs, "stop", lambda job_id, wait=True: stopped.append((job_id, wait)))
    known_jobs(monkeypatch, job("running", started=60.0))
    test = app("interaction")
    test.button(key="stop_A").click().run()
    assert stopped == [("20260101-000000-000000-x", False)], "the page does not wait for it"


def test_a_failed_job_says_why_and_starts_again(workspace, started, monkeypatch):
    arguments = ["analysis", "interaction", "--model=/x"]
    known_jobs(monkeypatch, job("failed", arguments=arguments, error="there is no model '/x'."))
    monkeypatch.setattr(jobs, "log_tail", lambda job_id, lines: "the last line")
    test = app("interaction")
    assert "there is no model '/x'." in words(test)
    assert test.code[0].value == "the last line"
    test.button(key="retry_A").click().run()
    assert started == [(f"interaction:{DEFAULT}", arguments)]


def test_other_settings_than_those_on_screen_are_said_and_measured(results, started):
    test = app("interaction")
    assert "the sidebar asks for" not in words(test)
    test.number_input(key="tokens").set_value(4096).run()
    assert "A was measured on built-in, 2,048 tokens; the sidebar asks for built-in, 4,096 tokens." in words(test)
    test.button(key="remeasure_A").click().run()
    assert "--tokens=4096" in started[0][1]


def test_a_measurement_with_those_settings_is_shown_at_once(results, started):
    longer = synthetic_result(n_layers=6, tokens=4096)
    longer.save(results / "SmolLM2-135M-Instruct-builtin-4096.npz")
    test = app("interaction", a=DEFAULT)
    test.number_input(key="tokens").set_value(4096).run()
    test.button(key="remeasure_A").click().run()
    assert test.session_state["a"] == "SmolLM2-135M-Instruct-builtin-4096" and not started


def test_opening_another_checkpoint_starts_its_measurement_as_B(results, started):
    test = app("interaction")
    test.text_input(key="source").set_value("/models/mine").run()
    test.text_input(key="adapter").set_value("/runs/mine").run()
    test.button(key="measure_as_b").click().run()
    target, arguments = started[0]
    assert "--model=/models/mine" in arguments and "--adapter=/runs/mine" in arguments
    assert target.startswith("interaction:mine-mine-builtin-2048-")
