"""The game page in a real Chromium: looks in both themes, clicks that mark a head and pick a layer, downloads, a refusal."""

import json
import re
from pathlib import Path

import pytest

from tests.synthetic import synthetic_result
from tests.test_browser import DEFAULT, SHOTS, chromium, serving, visit  # noqa: F401
from tests.test_game_page import checked, keep_gauge, keep_values

pytestmark = pytest.mark.browser
PATH = "head-game"
SHAPE = {"n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "batches": 8}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with a model and an adapter on it; head values, a gauge check and a causal check of the model."""
    workspace = tmp_path_factory.mktemp("game") / "workspace"
    results = workspace / "results"
    result = synthetic_result(**SHAPE)
    result.save(results / f"{DEFAULT}.npz")
    synthetic_result(**SHAPE, seed=1, adapter="/runs/laptop").save(results / "adapted.npz")
    synthetic_result(n_layers=32, n_heads=32, n_kv_heads=8, batches=8, name="seven-b", source="/m").save(results / "32x32.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(workspace))
        keep_gauge(result)
        keep_values(result, results / f"{DEFAULT}.npz", effect=5e-4)
        checked(result, results / f"{DEFAULT}.npz", heads="L16H2", vif_threshold=5.0, low_effect=1e-3)
    with serving(workspace) as found:
        yield found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_looks_right_in_both_themes(address, visit, theme):  # noqa: F811
    seen = visit(theme=theme)
    seen.open(f"{address}/{PATH}?b=adapted&layer=16&vif=1.2&check_heads=L16H2", "dynamics_B")
    seen.look("game")
    for tab, content in [
        ("Free riders", "riders"),
        ("Causal check", "effect_cross-entropy"),
        ("Errors", "stAlert"),
        ("Data", "download_game"),
        ("Charges and VIF", "game_heatmap"),
    ]:
        seen.page.get_by_role("tab", name=tab).click()
        place = '[data-testid="stAlert"]' if content == "stAlert" else f'[class*="st-key-{content}"]'
        seen.page.locator(place).first.wait_for()
        seen.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
        seen.page.locator(place).first.scroll_into_view_if_needed()
        seen.page.screenshot(path=SHOTS / f"game_{tab.replace(' ', '_')}_{theme}.png")
        seen.check()


def test_one_checkpoint_and_32_layers_of_32_heads_draw(address, visit):  # noqa: F811
    seen = visit(width=1920, height=1080).open(f"{address}/{PATH}?a=32x32&head=7", "game_heatmap")
    seen.page.screenshot(path=SHOTS / "game_32x32.png")
    assert seen.bytes <= 3_000_000
    seen.check()


def in_link(seen, name, value):
    seen.page.wait_for_url(re.compile(rf"[?&]{name}={value}(&|$)"))


def test_a_click_picks_the_layer_and_marks_the_head_in_both_pictures(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?layer=16", "game_heatmap")
    seen.pick("prices", "scatterlayer", 12)
    in_link(seen, "layer", 12)
    seen.settle("game_heatmap")
    seen.page.locator(".st-key-charges").get_by_text("L12H0").first.wait_for()
    seen.pick("charges", "barlayer", 9 + 4)
    in_link(seen, "head", 4)
    seen.settle("game_heatmap")
    seen.page.locator(".st-key-game_heatmap").scroll_into_view_if_needed()
    seen.pick("game_heatmap", "scatterlayer", 7 * 9 + 1)
    in_link(seen, "head", 7)
    seen.settle("charges")
    opacity = "points => points.map(point => Number(getComputedStyle(point.querySelector('path')).opacity))"
    seen.page.wait_for_function(
        f"(({opacity})([...document.querySelectorAll('.st-key-charges .barlayer .point')])).filter(one => one === 1).length === 2"
    )
    seen.page.get_by_role("link", name="Interaction").click()
    seen.page.get_by_text("Layer 12, G, paper coupling.").wait_for()
    seen.check()


def test_a_copied_link_opens_the_check_and_its_downloads_are_what_is_on_screen(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?layer=16&tab=Causal+check&check_heads=L16H2", "effect_cross-entropy")
    seen.page.get_by_text("Zero-ablating L16H2 changes").wait_for()

    def download(name, position=0):
        with seen.page.expect_download() as caught:
            seen.page.get_by_role("button", name=name, exact=True).nth(position).click()
        return caught.value.suggested_filename, Path(caught.value.path()).read_bytes()

    assert json.loads(download("JSON")[1])["kind"] == "ablation"
    assert download("PDF")[1].startswith(b"%PDF") and download("SVG") == download("SVG")
    seen.page.get_by_role("tab", name="Data").click()
    seen.page.get_by_role("button", name="CSV", exact=True).wait_for()
    name, data = download("JSON")
    assert name == f"game_{DEFAULT}_paper_equal.json" and len(json.loads(data)["layers"]) == 30
    name, data = download("CSV")
    assert name.endswith(".csv") and data.count(b"\n") == 1 + 30 * 9
    seen.check()


def test_an_unknown_head_is_one_clear_sentence(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?layer=16&tab=Causal+check", "prices")
    field = seen.page.get_by_label("Heads", exact=True)
    field.fill("L99H0")
    field.press("Enter")
    seen.page.get_by_text("There is no head L99H0").wait_for()
    seen.check()


def test_the_gauge_band_and_the_grey_pairs_are_on_the_interaction_page(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/head-interaction?layer=16", "heatmaps")
    seen.page.get_by_text("the band is Γ over 3 value bases").wait_for()
    seen.page.get_by_text("pairs are grey").wait_for()
    seen.page.screenshot(path=SHOTS / "gauge_band.png")
    seen.page.get_by_text("pairs are grey").scroll_into_view_if_needed()
    seen.page.screenshot(path=SHOTS / "gauge_pairs.png")
    seen.check()
