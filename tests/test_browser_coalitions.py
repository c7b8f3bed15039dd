"""The coalitions page in a real Chromium: looks in both themes, the way to the invariant coupling, a click, downloads."""

import io
import json
import re
import zipfile
from pathlib import Path

import networkx as nx
import pytest

from tests.synthetic import synthetic_result
from tests.test_browser import DEFAULT, SHOTS, chromium, serving, visit  # noqa: F401

pytestmark = pytest.mark.browser
PATH = "head-coalitions"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with a model and an adapter on it."""
    workspace = tmp_path_factory.mktemp("coalitions") / "workspace"
    results = workspace / "results"
    shape = {"n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "batches": 8}
    synthetic_result(**shape).save(results / f"{DEFAULT}.npz")
    synthetic_result(**shape, seed=1, adapter="/runs/laptop").save(results / "adapted.npz")
    synthetic_result(n_layers=32, n_heads=32, n_kv_heads=8, batches=8, name="seven-b", source="/m").save(results / "32x32.npz")
    with serving(workspace) as found:
        yield found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_looks_right_in_both_themes(address, visit, theme):  # noqa: F811
    seen = visit(theme=theme)
    seen.open(f"{address}/{PATH}?b=adapted&layer=16", "strip")
    seen.look("coalitions")
    for tab, content in [
        ("A against B", "compared"),
        ("Flow", "flow_chart"),
        ("Eigengap", "eigenvalues"),
        ("Export", "download_bundle"),
        ("Stability", "coassignment"),
    ]:
        seen.page.get_by_role("tab", name=tab).click()
        seen.page.locator(f".st-key-{content}").wait_for()
        seen.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
        seen.page.locator(f".st-key-{content}").scroll_into_view_if_needed()
        seen.page.screenshot(path=SHOTS / f"coalitions_{tab.replace(' ', '_')}_{theme}.png")
        seen.check()


def test_32_layers_of_32_heads_draw(address, visit):  # noqa: F811
    seen = visit(width=1920, height=1080).open(f"{address}/{PATH}?a=32x32", "strip")
    seen.page.screenshot(path=SHOTS / "coalitions_32x32.png")
    assert seen.bytes <= 3_000_000
    seen.check()


def test_one_click_shows_the_invariant_coupling_and_its_link_opens_it_again(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?layer=16&k=3", "strip")
    seen.page.get_by_role("button", name="Show the invariant coupling").click()
    seen.page.get_by_text("G of layer 16, invariant coupling").wait_for()
    seen.page.get_by_role("slider", name="Edges from |G| of").press("ArrowRight")
    seen.page.wait_for_url(re.compile("threshold="))
    seen.settle("strip")
    seen.page.get_by_role("tab", name="Eigengap").click()
    seen.page.wait_for_url(re.compile("tab=Eigengap"))
    seen.settle("eigenvalues")
    edges = seen.page.get_by_text("edges left").inner_text()
    again = visit().open(seen.page.url, "eigenvalues")
    again.page.get_by_text("G of layer 16, invariant coupling").wait_for()
    assert again.page.get_by_text("edges left").inner_text() == edges
    seen.check()
    again.check()


def test_a_click_on_the_comparison_picks_the_layer_and_pages_share_it(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?b=adapted&layer=16&k=3&tab=A+against+B", "compared")
    seen.page.locator(".st-key-compared").scroll_into_view_if_needed()
    seen.pick("compared", "scatterlayer", 12)
    seen.page.get_by_text("G of layer 12,").wait_for()
    seen.page.get_by_role("link", name="Interaction").click()
    seen.page.get_by_text("Layer 12, G, paper coupling.").wait_for()
    seen.page.get_by_role("link", name="Coalitions").click()
    seen.page.get_by_text("G of layer 12,").wait_for()
    seen.check()


def test_the_downloads_open_elsewhere(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?layer=16&tab=Export&bundle=16", "strip")

    def download(name):
        with seen.page.expect_download() as caught:
            seen.page.get_by_role("button", name=name, exact=True).first.click()
        return caught.value.suggested_filename, Path(caught.value.path()).read_bytes()

    name, data = download("GraphML")
    assert name == f"graph_L16_{DEFAULT}_paper.graphml"
    assert nx.parse_graphml(data.decode()).number_of_nodes() == 9
    assert download("PDF")[1].startswith(b"%PDF") and download("SVG") == download("SVG")
    name, data = download("Paper bundle (ZIP)")
    assert name == f"coalitions_{DEFAULT}_paper.zip"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {"captions.tex", "references.bib", "L16/graph.gexf", "L16/heatmap_page.pdf"} <= set(archive.namelist())
        assert json.loads(archive.read("provenance.json"))["settings"]["layers"] == [16]
    seen.check()
