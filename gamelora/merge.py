"""A tuned model as one folder: the adapter's delta in the weights, loadable without PEFT."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from analysis.models import load_model
from gamelora.checkpoints import saying_disk_full
from gamelora.runs import Run


def merge_run(run: Run, out: Path) -> Path:
    """Write base model plus adapter of a run as a model folder with safetensors and tokenizer; returns the folder.

    The finished adapter, or that of the newest complete checkpoint of a run that is not finished.

    Raises
    ------
    ValueError
        When the run has no adapter yet, or `out` exists.
    """
    if out.exists():
        raise ValueError(f"{out} exists already: give --out a folder that does not.")
    adapter = run.adapter if run.adapter.is_dir() else run.newest_checkpoint()[0]
    if adapter is None:
        raise ValueError(f"run {run.name!r} has neither an adapter nor a complete checkpoint yet.")
    config = run.config()
    loaded = load_model(config.model, revision=config.revision, adapter=str(adapter), dtype=config.dtype, device="cpu")
    model = loaded.model.merge_and_unload(safe_merge=True)
    hidden = out.with_name(f".{out.name}.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    try:
        with saying_disk_full(hidden):
            model.save_pretrained(hidden, safe_serialization=True)
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(hidden)
        os.replace(hidden, out)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return out
