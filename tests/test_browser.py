"""The dashboard in a real Chromium: looks, links, clicks, downloads, bytes sent, and a first start with the default model.

Each test fails on a console error, an exception box or a horizontal scrollbar. Screenshots go to tests/shots.
"""

import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.synthetic import synthetic_result

CHROMIUM = Path("/usr/bin/chromium")
SHOTS = ROOT / "tests" / "shots"
DEFAULT = "SmolLM2-135M-Instruct-builtin-2048"
PATHS = {"overview": "/", "interaction": "/head-interaction"}
PATIENCE = 180_000  # ms; the machine may be busy with other tests

# Whether nothing sticks out sideways.
FITS = """[document.documentElement, document.querySelector('[data-testid="stMain"]')]
    .every(part => part.scrollWidth <= part.clientWidth)"""

# Whether a mark is where it was at the last look.
AT_REST = """([marks, number]) => {
    const box = document.querySelectorAll(marks)[number]?.getBoundingClientRect()
    const place = box && [box.x, box.y].join()
    const same = place !== undefined && place === window.placeBefore
    window.placeBefore = place
    return same
}"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM.exists():
        reason = f"the browser tests need Chromium at {CHROMIUM}: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    SHOTS.mkdir(exist_ok=True)

    quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=quiet)
        yield browser
        browser.close()


@contextlib.contextmanager
def serving(workspace):
    """The app on a free port with that workspace; yields its address."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pages", f"--server.port={port}"]
    with open(workspace.parent / "server.log", "wb") as log:
        environment = os.environ | {"GAMELORA_WORKSPACE": str(workspace)}
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = f"http://localhost:{port}"
        end = time.monotonic() + PATIENCE / 1000
        while not healthy(f"{address}/_stcore/health"):
            assert server.poll() is None and time.monotonic() < end, (workspace.parent / "server.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def healthy(address):
    try:
        return urllib.request.urlopen(address, timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server whose workspace holds results of many kinds."""
    workspace = tmp_path_factory.mktemp("browser") / "workspace"
    results = workspace / "results"
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=8).save(results / f"{DEFAULT}.npz")
    adapted = synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=8, seed=1, adapter="/runs/laptop")
    adapted.save(results / "adapted.npz")
    synthetic_result(n_layers=32, n_heads=32, n_kv_heads=8, name="seven-b", source="/m").save(results / "32x32.npz")
    synthetic_result(n_layers=80, n_heads=64, n_kv_heads=8, batches=1, name="seventy-b", source="/m").save(results / "80x64.npz")
    (results / "damaged.npz").write_bytes((results / "adapted.npz").read_bytes()[:5000])
    with serving(workspace) as found:
        yield found


class Visit:
    """One browser page, with what went wrong on it and what it was sent."""

    def __init__(self, chromium, theme="light", width=1280, height=720):
        self.page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=theme, accept_downloads=True)
        self.page.set_default_timeout(PATIENCE)
        self.errors, self.bytes = [], 0
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))
        self.page.on("response", lambda response: self._count(response.body()) if "/media/" in response.url else None)

    def _listen(self, message):
        # On a deep link Streamlit first probes for its own endpoints below the page's path.
        if message.type == "error" and not re.search(r"/[a-z]+-[a-z]+/_stcore/", message.location.get("url", "")):
            self.errors.append(message.text)

    def _count(self, payload):
        self.bytes += len(payload)

    def open(self, address, chart):
        """Go there, and wait until that chart is drawn and the server has nothing more to say."""
        self.page.goto(address)
        self.settle(chart)
        return self

    def settle(self, chart):
        self.page.locator(f".st-key-{chart} .js-plotly-plot .main-svg").first.wait_for()
        self.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()

    def pick(self, chart, mark, number):
        """Click that mark of a chart, once the page no longer moves it: charts above it may still be growing.

        The marks lie below Plotly's own layer that catches the pointer, so Playwright's wait for a place in rest cannot be used.
        """
        marks = f".st-key-{chart} .{mark} .point"
        self.settle(chart)
        self.page.locator(marks).nth(number).wait_for()
        self.page.wait_for_function(AT_REST, arg=[marks, number], polling=300)
        self.page.locator(marks).nth(number).click(force=True)

    def look(self, name):
        """Pictures of the page in a large and in a small window; it stays in the small one."""
        theme = self.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
        for width, height in ((1920, 1080), (1280, 720)):
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.wait_for_function(f"innerWidth === {width} && ({FITS})")  # charts follow the window a moment later
            self.page.screenshot(path=SHOTS / f"{name}_{theme}_{width}x{height}.png")
            self.check()

    def check(self):
        page = self.page
        assert not self.errors
        assert page.locator('[data-testid="stException"]').count() == 0
        assert page.get_by_text("Page not found").count() == 0
        assert page.evaluate(FITS)


@pytest.fixture
def visit(chromium):
    visits = []

    def start(**view):
        visits.append(Visit(chromium, **view))
        return visits[-1]

    yield start
    for one in visits:
        one.page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PATHS)
def test_pages_look_right_in_both_themes(address, visit, page, theme):
    seen = visit(theme=theme)
    seen.open(f"{address}{PATHS[page]}?b=adapted", "every_layer_B" if page == "overview" else "heatmaps")
    seen.look(page)
    background = seen.page.locator('[data-testid="stApp"]').evaluate("element => getComputedStyle(element).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(23, 23, 28)"}[theme]
    assert seen.page.get_by_text("damaged.npz").is_visible()


def test_a_32x32_result_sends_at_most_3_MB_with_every_tab_open(address, visit):
    seen = visit().open(f"{address}/head-interaction?a=32x32", "heatmaps")
    for tab, content in [("All layers", ".st-key-tiles"), ("Spectrum", ".st-key-eigenvalues"), ("Data", ".stDownloadButton")]:
        seen.page.get_by_role("tab", name=tab).click()
        seen.page.locator(content).first.wait_for()
    seen.page.get_by_role("tab", name="Provenance").click()
    seen.page.locator(".stJson").wait_for()
    print(f"32 x 32: {seen.bytes / 1e6:.2f} MB sent")
    assert 50_000 < seen.bytes <= 3_000_000
    seen.check()


def test_80_layers_of_64_heads_draw(address, visit):
    seen = visit().open(f"{address}/head-interaction?a=80x64&tab=All+layers", "tiles")
    seen.page.locator(".st-key-tiles").scroll_into_view_if_needed()
    seen.page.screenshot(path=SHOTS / "all_layers_80x64.png")
    seen.check()


def layer_in_link(seen, layer):
    seen.page.wait_for_url(re.compile(rf"[?&]layer={layer}(&|$)"))


def test_a_click_or_an_arrow_key_picks_the_layer(address, visit):
    seen = visit().open(f"{address}/head-interaction?layer=3&tab=All+layers", "tiles")
    seen.pick("gamma", "scatterlayer", 12)
    layer_in_link(seen, 12)
    seen.settle("heatmaps")
    seen.page.get_by_role("slider").press("ArrowRight")
    layer_in_link(seen, 13)
    seen.settle("tiles")
    seen.page.locator(".st-key-tiles").scroll_into_view_if_needed()
    seen.pick("tiles", "scatterlayer", 20)
    layer_in_link(seen, 20)
    seen.page.locator(".st-key-heatmaps").get_by_text("L20H0").first.wait_for()
    seen.check()


def test_a_copied_link_opens_the_same_view_on_a_fresh_server(visit, tmp_path):
    results = tmp_path / "workspace" / "results"
    synthetic_result().save(results / f"{DEFAULT}.npz")
    synthetic_result(seed=1, adapter="/runs/laptop").save(results / "adapted.npz")
    with serving(tmp_path / "workspace") as address:
        link = f"{address}/head-interaction?a=adapted&b={DEFAULT}&coupling=invariant&layer=1&matrix=rho&tab=Spectrum"
        seen = visit().open(link, "eigenvalues")
        seen.page.locator(".st-key-heatmaps").get_by_text("L1H0").first.wait_for()
        seen.page.get_by_text("Layer 1, ρ, invariant coupling.").wait_for()
        seen.page.get_by_role("link", name="Overview").click()
        seen.settle("every_layer_B")
        assert "a=adapted" in seen.page.url and "coupling=invariant" in seen.page.url
        seen.page.get_by_role("link", name="Interaction").click()
        seen.page.get_by_text("Layer 1, ρ, invariant coupling.").wait_for()
        layer_in_link(seen, 1)
        seen.check()


def test_downloads_are_what_is_on_screen(address, visit):
    seen = visit().open(f"{address}/head-interaction?b=adapted&layer=7&tab=Data", "heatmaps")

    def download(name, position=0):
        with seen.page.expect_download() as caught:
            seen.page.get_by_role("button", name=name, exact=True).nth(position).click()
        return caught.value.suggested_filename, Path(caught.value.path()).read_bytes()

    a = synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=8).G[7]
    name, data = download("NPZ")
    assert name == "G_L7.npz"
    with np.load(io.BytesIO(data)) as stored:
        np.testing.assert_array_equal(stored["A"], a)
        np.testing.assert_array_equal(stored["B_minus_A"], stored["B"] - stored["A"])
    name, data = download("CSV")
    assert name == "G_L7.csv" and data.startswith(b"head_i,head_j,A,B,B_minus_A\nL7H0,L7H0,1.0,1.0,0.0\n")
    for position in range(4):  # heatmaps, Gamma, all layers, spectrum
        name, data = download("SVG", position)
        assert name.endswith("_G_L7.svg") and ElementTree.fromstring(data).tag.endswith("svg")
    assert download("PDF")[1].startswith(b"%PDF") and download("PNG")[1].startswith(b"\x89PNG")
    assert download("SVG") == download("SVG"), "same input, same bytes"
    seen.check()


def test_a_model_that_is_not_there_is_one_clear_sentence(address, visit):
    seen = visit().open(f"{address}/head-interaction", "heatmaps")
    page = seen.page
    page.get_by_role("button", name="Open another").click()
    page.get_by_label("Model", exact=True).fill("/no/such/model")
    page.get_by_label("Model", exact=True).press("Enter")
    page.get_by_role("button", name="Measure as B").click()
    page.get_by_text("the measurement failed").wait_for()
    assert "/no/such/model" in page.get_by_text("the measurement failed").inner_text()
    assert page.locator(".st-key-heatmaps").is_visible(), "A is still on screen"
    page.screenshot(path=SHOTS / "failed.png")
    page.get_by_role("button", name="Remove").click()
    page.get_by_text("the measurement failed").wait_for(state="detached")
    seen.check()


@pytest.mark.slow
def test_the_first_start_shows_the_default_model_without_a_click(visit, tmp_path):
    """The real model in real jobs: progress, stop, start again, a refresh, and the heatmaps appear by themselves."""
    with serving(tmp_path / "workspace") as address:
        seen = visit()
        page = seen.page
        page.goto(address)
        page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_text("was stopped before it was measured").wait_for()
        page.get_by_role("button", name="Measure it").click()
        page.get_by_role("button", name="Stop", exact=True).wait_for()
        page.screenshot(path=SHOTS / "first_start.png")
        page.reload()
        page.get_by_role("button", name="Stop", exact=True).wait_for()
        page.set_default_timeout(900_000)
        seen.settle("every_layer_A")
        assert len(list((tmp_path / "workspace" / "jobs").glob("2*"))) == 2, "a refresh starts no second job"
        before = seen.bytes
        page.wait_for_timeout(3000)
        assert seen.bytes - before < 1000, "nothing is redrawn once the job has ended"
        page.set_viewport_size({"width": 1280, "height": 1060})
        page.screenshot(path=SHOTS / "readme_overview.png")
        page.get_by_role("link", name="Interaction").click()
        seen.settle("heatmaps")
        page.screenshot(path=SHOTS / "readme_interaction.png")
        seen.check()
