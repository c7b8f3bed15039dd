"""The hallucination page in a real Chromium: both themes, a first evaluation from the page, a run's curve, a table for LaTeX."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis.hallucination.benchmarks import SUITES
from gamelora.__main__ import main
from gamelora.checkpoint_sources import CheckpointSource
from tests.hallucination_workspace import evaluated_checkpoint
from tests.synthetic import synthetic_result
from tests.test_browser import DEFAULT, SHOTS, chromium, serving, visit  # noqa: F401
from tests.test_gamelora_cli import arguments
from tests.tiny_text import save_tiny_folder

pytestmark = pytest.mark.browser
PATH = "hallucination-rates"
TABLE = '[data-testid="stDataFrame"]'
TABS = {
    "Scores": TABLE,
    "Errors by item": ".st-key-odds .main-svg",
    "Gain and cost": ".st-key-trades .main-svg",
    "Items": TABLE,
    "Export": '[data-testid="stDownloadButton"]',
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server with six checkpoints evaluated on made-up items of both kinds, A and B among them."""
    workspace = tmp_path_factory.mktemp("hallucination") / "workspace"
    synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=8).save(workspace / "results" / f"{DEFAULT}.npz")
    adapted = synthetic_result(n_layers=30, n_heads=9, n_kv_heads=3, batches=8, seed=1, adapter="/runs/laptop")
    adapted.save(workspace / "results" / "adapted.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAMELORA_WORKSPACE", str(workspace))
        for number, adapter in enumerate([None, "/runs/laptop", *(f"/runs/other/step-{step}" for step in (20, 40, 60, 80))]):
            evaluated_checkpoint(number, adapter)
    with serving(workspace) as found:
        yield found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_looks_right_in_both_themes(address, visit, theme):  # noqa: F811
    seen = visit(theme=theme)
    seen.open(f"{address}/{PATH}?b=adapted&tasks=hallucination,mmlu", "scatter")
    seen.look("hallucination")
    for tab, content in TABS.items():
        seen.page.get_by_role("tab", name=tab, exact=True).click()
        seen.page.locator(content).last.wait_for()
        seen.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
        seen.page.locator(content).last.scroll_into_view_if_needed()
        seen.page.screenshot(path=SHOTS / f"hallucination_{tab.replace(' ', '_')}_{theme}.png")
        seen.check()


def test_a_link_opens_its_view_again(address, visit):  # noqa: F811
    seen = visit().open(f"{address}/{PATH}?tasks=memo_trap&items=200&gamma_of=design&scale=normalized", "scatter")
    seen.page.get_by_text("Γ / √(H(H − 1)), design layer", exact=False).first.wait_for()
    seen.page.get_by_role("tab", name="Items", exact=True).click()
    seen.page.get_by_role("button", name="Next", exact=True).click()
    seen.page.wait_for_url(re.compile("row=2"))  # row=1 stood there before the click
    seen.page.wait_for_url(re.compile("tab=Items"))
    again = visit().open(seen.page.url, "scatter")
    again.page.locator(TABLE).wait_for()
    assert "row=2" in again.page.url
    seen.check()
    again.check()


def latex_compiles(text: bytes, folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    (folder / "table.tex").write_bytes(text)
    (folder / "paper.tex").write_text(r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "paper.pdf").stat().st_size > 1000


@pytest.mark.slow
def test_a_runs_checkpoints_are_evaluated_from_the_page_and_give_a_curve(visit, tmp_path, monkeypatch):  # noqa: F811
    """Without network: base, adapter and steps of a tiny run on the built-in suite, the scatter, the table in LaTeX."""
    workspace = tmp_path / "workspace"
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(workspace))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    synthetic_result(n_layers=2).save(workspace / "results" / f"{DEFAULT}.npz")
    model = save_tiny_folder(tmp_path / "model")
    base = CheckpointSource(str(model)).id
    settings = arguments(model, "steps=4", "save_every=1", "keep_checkpoints=4", "learning_rate=0.3", "method=ce")
    assert main(["train", *settings, "--run", "tiny"]) == 0
    with serving(workspace) as place:
        seen = visit(width=1280, height=900)
        seen.page.goto(f"{place}/{PATH}?tasks=builtin&items=12&points={base}")
        seen.page.get_by_role("button", name="Evaluate", exact=True).wait_for()
        seen.page.screenshot(path=SHOTS / "hallucination_empty.png")
        seen.page.get_by_role("button", name="Add a run").click()
        seen.page.get_by_role("button", name="tiny: 4 checkpoints").click()
        seen.page.get_by_text("tiny adapter").first.wait_for()
        seen.page.keyboard.press("Escape")
        seen.page.locator(".st-key-evaluate").get_by_role("button").click()
        seen.page.get_by_text("Waiting for their turn").first.wait_for()
        seen.page.screenshot(path=SHOTS / "hallucination_at_work.png")
        seen.settle("scatter")
        seen.page.get_by_text("across 5 checkpoints").wait_for(timeout=900_000)
        seen.page.screenshot(path=SHOTS / "hallucination_run.png")
        assert seen.page.locator(".st-key-evaluation_panel").count() == 0
        names = [benchmark for benchmark in SUITES["builtin"] for _ in range(5)]
        assert sorted(path.stem for path in workspace.glob("evaluations/*/*.json")) == sorted(names)
        seen.page.get_by_role("tab", name="Export", exact=True).click()
        with seen.page.expect_download() as caught:
            seen.page.get_by_role("button", name="Scores (LaTeX)", exact=True).click()
        text = Path(caught.value.path()).read_bytes()
        assert b"tiny step 3" in text and b"tiny adapter" in text and b"built-in judged QA" in text
        if shutil.which("pdflatex"):
            assert latex_compiles(text, tmp_path / "paper")
        seen.check()
