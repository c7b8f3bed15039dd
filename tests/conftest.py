"""What several test files share: the folder of shared test data, and a clean workspace for every test."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The files that take minutes begin first, so that no worker is left alone with one at the end.
LONGEST = ("test_browser_train", "test_browser_hallucination", "test_run_survival", "test_training_jobs", "test_browser_runs")
LONGEST += ("test_browser", "test_browser_coalitions", "test_browser_game", "test_golden", "test_gguf")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """../shared with golden matrices and benchmark files; a user's clone does not have it."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("needs ../shared (golden matrices and real benchmark files), which a clone does not carry")
    return SHARED


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    """An empty workspace of the test's own."""
    monkeypatch.setenv("GAMELORA_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path / "workspace"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest files first; the rest as collected."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
