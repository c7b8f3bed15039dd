"""What several test files share: the folder of shared test data, and a clean workspace for every test."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

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
