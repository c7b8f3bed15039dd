"""What can be taken out of a run: its adapter as a zip, its model card, and the merged model, which a job writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from analysis.archives import zip_bytes
from analysis.workspace import safe_name, workspace_dir, workspace_root
from gamelora import jobs
from gamelora.runs import Run

CARD = "README.md"
_TAKEN = {".json", ".safetensors", ".md"}  # of an adapter; a checkpoint also holds pickles of the optimizer, which stay here
_LEFT = {"complete.json", "objectives.json", "trainer_state.json"}
_TARGET = "merge:"
_BYTES = {"float32": 4, "bfloat16": 2}


def adapter_zip(folder: Path) -> bytes:
    """An adapter as PEFT loads it, also out of a checkpoint. Same files, same bytes.

    Raises
    ------
    OSError
        When the folder is gone or cannot be read.
    """
    files = [path for path in folder.iterdir() if path.suffix in _TAKEN and path.name not in _LEFT]
    return zip_bytes({path.name: path.read_bytes() for path in files if path.is_file() and not path.is_symlink()})


def model_card(run: Run) -> str | None:
    """The card of the finished adapter; None when there is none."""
    path = run.adapter / CARD
    return path.read_text(encoding="utf-8") if path.is_file() else None


def merged_folder(name: str) -> Path:
    """Where the merged model of a run lies, or will."""
    return workspace_root() / "merged" / safe_name(name, "run name")


def merge(name: str) -> jobs.Job:
    """Write the run's merged model as a job, `python -m gamelora merge`; the running job when it runs already.

    Raises
    ------
    ValueError
        When it is there already.
    OSError
        When the workspace cannot be written.
    """
    out = merged_folder(name)
    if out.exists():
        raise ValueError(f"{out} exists already: remove it before merging again.")
    workspace_dir("merged")
    return jobs.start(_TARGET + name, f"Merge {name}", ["gamelora", "merge", name, "--out", str(out)])


def merge_job(name: str) -> jobs.Job | None:
    """The newest job that merged or merges this run."""
    return jobs.latest(_TARGET + name)


def remove_merged(name: str) -> None:
    """Delete the merged model of a run; nothing when there is none."""
    folder = merged_folder(name)
    if folder.is_dir():
        hidden = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        shutil.rmtree(folder.rename(hidden))  # out of sight at once


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def merged_size(status: dict[str, Any]) -> int | None:
    """About how many bytes the merged model of a run with that status will have; None when its model is not known."""
    model = status.get("model") or {}
    known = "parameters" in model and model.get("dtype") in _BYTES
    return model["parameters"] * _BYTES[model["dtype"]] if known else None


def merged_is_older(run: Run) -> bool:
    """Whether the merged model was written before the adapter that there is now."""
    merged, adapter = merged_folder(run.name), run.adapter
    return merged.is_dir() and adapter.is_dir() and merged.stat().st_mtime < adapter.stat().st_mtime
