"""The Runs page in a real Chromium: looks in both themes, 50 long runs, choice by click, downloads, the way to Interaction."""

import io
import re
import zipfile
from pathlib import Path

import pytest

from gamelora.run_tags import write_tags
from tests.made_up_runs import made_up_run
from tests.synthetic import synthetic_result
from tests.test_browser import DEFAULT, SHOTS, chromium, serving, visit  # noqa: F401

pytestmark = pytest.mark.browser
PATH = "gamelora-runs"
METHODS = ("game", "ce", "ldb", "bt", "naive")


def fill(workspace, runs, steps):
    """A workspace with the default model measured and that many runs, one of them failed and one without its adapter."""
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=4).save(workspace / "results" / f"{DEFAULT}.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(workspace))
        for number in range(runs):
            method = METHODS[number % len(METHODS)]
            made_up_run(f"{method}-{number}", steps=steps, seed=number, method=method, r=8 if number % 3 else 16)
        write_tags(workspace / "runs" / "game-0", ["baseline", "paper"])
        made_up_run("out-of-memory", "failed", steps, steps // 3, [steps // 4], {"reason": "out of memory with 4 rows"}, 99)
        (workspace / "runs" / "ce-1" / "adapter" / "adapter_config.json").unlink()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("runs") / "workspace"
    fill(workspace, runs=8, steps=150)
    with serving(workspace) as found:
        yield found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_looks_right_in_both_themes(address, visit, theme):  # noqa: F811
    seen = visit(theme=theme)
    seen.open(f"{address}/{PATH}?metric=loss%2Fce&smooth=0.9&runs=game-0&runs=ce-1&runs=ldb-2&runs=bt-3", "overlay")
    seen.look("runs")
    seen.page.get_by_text("Settings that differ").scroll_into_view_if_needed()
    seen.page.screenshot(path=SHOTS / f"runs_diff_{theme}.png")
    seen.page.locator(".st-key-run_files button").first.click()
    seen.page.get_by_role("button", name="Merge into one model").wait_for()
    seen.page.screenshot(path=SHOTS / f"runs_files_{theme}.png")
    seen.check()


def test_fifty_runs_of_2000_points_send_less_than_2_MB_a_draw(visit, tmp_path):  # noqa: F811
    fill(tmp_path / "workspace", runs=50, steps=2000)
    names = [f"{METHODS[number % len(METHODS)]}-{number}" for number in range(50)]
    with serving(tmp_path / "workspace") as address:
        link = "&".join(f"runs={name}" for name in names)
        seen = visit(width=1920, height=1080).open(f"{address}/{PATH}?{link}&metric=loss%2Fce", "overlay")
        first = seen.bytes
        seen.page.screenshot(path=SHOTS / "runs_50.png")
        seen.page.get_by_role("slider", name="Smoothing").press("ArrowRight")
        seen.page.wait_for_url(re.compile("smooth=0.5"))
        seen.settle("overlay")
        second = seen.bytes - first
        print(f"50 runs x 2,000 points: {first / 1e6:.2f} MB at first, {second / 1e6:.2f} MB on a change")
        assert 100_000 < first < 2_000_000 and 50_000 < second < 2_000_000
        seen.check()


def test_a_click_in_the_table_chooses_a_run_and_the_link_opens_it_again(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?runs=game-0&sort=name&order=ascending", "overlay")
    box = seen.page.locator('[class*="st-key-runs_table"] canvas').first.bounding_box()
    seen.page.mouse.click(box["x"] + 15, box["y"] + 35 * 1.5)  # the box of the first row, which the canvas draws
    seen.page.wait_for_url(re.compile("runs=bt-3"))
    seen.settle("overlay")
    assert "runs=game-0" in seen.page.url
    again = visit().open(seen.page.url, "overlay")
    assert again.page.locator(".st-key-overlay .legend text").all_text_contents() == ["bt-3", "game-0"]
    seen.check()
    again.check()


def test_the_adapter_downloads_as_the_same_bytes_each_time(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?runs=game-0", "overlay")
    seen.page.locator(".st-key-run_files button").first.click()

    def download():
        with seen.page.expect_download() as caught:
            seen.page.get_by_role("button", name="Adapter (ZIP)").click()
        return caught.value.suggested_filename, Path(caught.value.path()).read_bytes()

    name, data = download()
    assert name == "game-0.zip" and download()[1] == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert "adapter_model.safetensors" in archive.namelist()
    seen.check()


def test_a_refusal_and_a_deletion_are_seen_in_the_table(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?runs=naive-4&runs=game-0", "overlay")
    seen.page.locator(".st-key-run_delete button").first.click()
    seen.page.get_by_role("button", name="Delete it").click()
    seen.page.get_by_text("8 runs.").wait_for()
    seen.settle("overlay")
    assert "naive-4" not in seen.page.url
    seen.check()


def test_one_click_opens_base_and_adapter_on_the_interaction_page(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?runs=game-0", "overlay")
    seen.page.get_by_role("button", name="Analyse base and adapter").click()
    seen.page.wait_for_url(re.compile(r"head-interaction.*b=game-0\+adapter"))
    assert f"a={DEFAULT}" in seen.page.url
    seen.settle("heatmaps")
    seen.page.get_by_text(re.compile("measurement failed")).first.wait_for()  # a made-up adapter fits no model
    seen.check()
