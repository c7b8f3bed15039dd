"""The train page in a real Chromium: fill the form, start, watch, refresh, stop and keep, resume, finish, see what it changed."""

import pytest
from playwright import sync_api as playwright

from tests.job_helpers import made_up_job
from tests.made_up_runs import made_up_run, step_line
from tests.synthetic import synthetic_result
from tests.test_browser import DEFAULT, SHOTS, chromium, serving, visit  # noqa: F401

pytestmark = pytest.mark.browser
PATH = "gamelora-train"
LENGTH = (
    """[...document.querySelectorAll(".st-key-run_chart svg path")].map(path => path.getAttribute("d") || "").join("").length"""
)


def write(seen, label, value):
    """Type into a field of the form, letter by letter as people do."""
    box = seen.page.get_by_label(label, exact=True)
    box.fill(value)
    box.press("Tab")


def quiet(seen):
    seen.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()


def step_after(page, step):
    """Wait until the page says a later step."""
    page.wait_for_function(
        "step => { const said = document.body.innerText.match(/step ([\\d,]+) of/); "
        "return said && +said[1].replaceAll(',', '') > step }",
        arg=step,
    )


def length_of_curves(page):
    """How much is drawn, in letters of the paths of the chart."""
    page.locator(".st-key-run_chart svg path").first.wait_for()
    return page.evaluate(LENGTH)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with the default model's result, a finished run, one that failed, and one at work at step 20,000."""
    workspace = tmp_path_factory.mktemp("train") / "workspace"
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3).save(workspace / "results" / f"{DEFAULT}.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(workspace))
        made_up_run("finished", steps=150, status={"notes": ["Step 7 was skipped: the gradient of bt was not finite."]})
        made_up_run("broken", "running", steps=150, done=80, checkpoints=(60,))
        made_up_job(
            "20260101-x", "run:broken", state="failed", error="killed by signal 9 (often the system running out of memory)"
        )
    with serving(workspace) as found:
        yield found


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("run", ["", "finished", "broken"])
def test_the_page_looks_right_in_both_themes(address, visit, run, theme):  # noqa: F811
    seen = visit(theme=theme)
    seen.page.goto(f"{address}/{PATH}?run={run}" if run else f"{address}/{PATH}")
    if not run:
        seen.page.get_by_text("Failed at step 80 of 150").wait_for()  # a visit finds the run that wants a look
        seen.page.get_by_role("button", name="New run").click()
    seen.page.locator(".st-key-run_chart svg" if run else ".st-key-train_plan table").first.wait_for()
    quiet(seen)
    seen.look(f"train_{run or 'new'}")


def test_new_points_go_into_the_chart_that_stands_there(visit, tmp_path, monkeypatch):  # noqa: F811
    """At 20,000 steps; a chart that is made anew at each tick flashes, and sends everything again."""
    workspace = tmp_path / "workspace"
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3).save(workspace / "results" / f"{DEFAULT}.npz")
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(workspace))
    run = made_up_run("long", "running", steps=30_000, done=20_000)
    with run.training(), serving(workspace) as address:
        seen = visit()
        seen.page.goto(f"{address}/{PATH}")
        step_after(seen.page, 19_999)
        before = length_of_curves(seen.page)
        seen.page.locator(".st-key-run_chart svg").first.evaluate("element => { element.mark = 1 }")
        seen.bytes = 0
        for number in range(20_001, 20_041):
            run.append_metrics(step_line(number, 30_000, **{"loss/ce": 9.0}))
        run.write_status(step=20_040)
        step_after(seen.page, 20_039)
        seen.page.wait_for_function("before => " + LENGTH + " != before", arg=before)
        assert seen.page.locator(".st-key-run_chart svg").first.evaluate("element => element.mark") == 1
        assert 10_000 < seen.bytes < 600_000
        seen.check()
    with run.training(), serving(workspace) as address:  # another server, another session, no link
        again = visit()
        again.page.goto(f"{address}/{PATH}")
        step_after(again.page, 20_039)
        again.check()


@pytest.mark.slow
def test_a_run_from_the_form_to_its_adapter_beside_its_base(visit, tmp_path):  # noqa: F811
    """The default model, the smoke preset with few short steps."""
    workspace = tmp_path / "workspace"
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3).save(workspace / "results" / f"{DEFAULT}.npz")
    with serving(workspace) as address:
        seen = visit()
        page = seen.page
        page.set_default_timeout(400_000)
        page.goto(f"{address}/{PATH}")
        page.get_by_role("radio", name="smoke").click()
        playwright.expect(page.get_by_label("Name", exact=True)).to_have_value("smoke")
        write(seen, "Name", "first")
        for label, value in {"Tokens per row": "48", "Held-out tokens": "96", "Steps": "20"}.items():
            write(seen, label, value)
        write(seen, "Rows per step", "0")
        page.get_by_text("batch_size is 0: give at least 1.").first.wait_for()
        playwright.expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
        write(seen, "Rows per step", "1")
        page.get_by_text("--set steps=20").or_(page.get_by_text("steps: 20")).first.wait_for()
        quiet(seen)
        assert page.get_by_role("button", name="Start", exact=True).bounding_box()["y"] > 0, "in sight at the form's end"
        page.screenshot(path=SHOTS / "train_form.png")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**run=first**")
        step_after(page, 2)
        before = length_of_curves(page)
        page.screenshot(path=SHOTS / "train_live.png")
        page.reload()
        step_after(page, 5)
        assert length_of_curves(page) > before > 0
        page.get_by_role("button", name="Stop and keep").click()
        page.get_by_role("button", name="Resume from step").wait_for()
        page.screenshot(path=SHOTS / "train_stopped.png")
        page.get_by_role("button", name="Resume from step").click()
        page.get_by_role("button", name="Stop and keep").wait_for()
        page.get_by_role("button", name="Analyse base and adapter").wait_for()
        seen.check()
        page.screenshot(path=SHOTS / "train_finished.png")
        page.get_by_role("button", name="Analyse base and adapter").click()
        page.wait_for_url("**/head-interaction**")
        page.locator(".st-key-heatmaps .js-plotly-plot .main-svg").first.wait_for()
        page.get_by_text("B − A").first.wait_for()
        page.screenshot(path=SHOTS / "train_compared.png")
        seen.check()
