"""Checkpoints of a run: one that exists under its name is complete, and one that was damaged later is passed over.

A checkpoint is the folder `checkpoint-<step>` with the adapter in PEFT's format (loadable as it is), optimizer, scheduler and
random state as transformers' Trainer writes them, `objectives.json` (weights, moving average, G, counters) and `complete.json`
(every file with its size, written last).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors import SafetensorError

_COMPLETE = "complete.json"
_STATE = "objectives.json"
_NAME = re.compile(r"checkpoint-(\d+)")
FULL_BELOW = 1 << 20  # bytes: a disk with less room than this is why a write failed


@contextlib.contextmanager
def writing_checkpoint(root: str, name: str, keep: int, accelerator: Accelerator) -> Iterator[Path]:
    """Around the writing of a checkpoint: yields a folder that nobody reads, to write `name` into.

    When every process is done it takes its place under `root`, and the oldest beyond `keep` go. Whatever fails before that
    leaves nothing behind.

    Raises
    ------
    OSError
        When it cannot be written; a full disk always has errno ENOSPC, also when a library says it in its own way.
    """
    hidden = Path(root) / f".{name}.partial"
    if accelerator.is_main_process:
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
    accelerator.wait_for_everyone()
    try:
        with saying_disk_full(hidden):
            yield hidden
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                _publish(hidden / name, Path(root) / name)
                for old in complete_checkpoints(root)[:-keep]:
                    _remove(old)
        accelerator.wait_for_everyone()
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def saying_disk_full(folder: Path) -> Iterator[None]:
    """Turn what torch and safetensors raise when the disk is full into OSError ENOSPC."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        if "os error 28" not in str(error).lower() and shutil.disk_usage(folder).free > FULL_BELOW:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error


def _publish(written: Path, final: Path) -> None:
    sizes = {}
    for file in sorted(path for path in written.rglob("*") if path.is_file()):
        sizes[str(file.relative_to(written))] = file.stat().st_size
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    (written / _COMPLETE).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    if final.exists():
        _remove(final)
    os.replace(written, final)


def _remove(checkpoint: Path) -> None:
    """Out of sight first, so that a reader never finds half of it."""
    trash = checkpoint.with_name(f".{checkpoint.name}.removed")
    shutil.rmtree(trash, ignore_errors=True)
    os.replace(checkpoint, trash)
    shutil.rmtree(trash, ignore_errors=True)


def what_is_wrong(checkpoint: Path) -> str | None:
    """Why a checkpoint folder cannot be used, in a few words; None when it is complete."""
    try:
        sizes = json.loads((checkpoint / _COMPLETE).read_text(encoding="utf-8"))
        for name, size in sizes.items():
            found = (checkpoint / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
        read_state(checkpoint)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"it cannot be read ({error})"
    return None


def _all(root: str | Path) -> list[tuple[int, Path]]:
    found = [(int(match.group(1)), path) for path in Path(root).glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return sorted(found)


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint folder was written after."""
    return int(_NAME.fullmatch(checkpoint.name).group(1))


def complete_checkpoints(root: str | Path) -> list[Path]:
    """The complete checkpoints under `root`, oldest first."""
    return [path for _, path in _all(root) if what_is_wrong(path) is None]


def newest_checkpoint(root: str | Path) -> tuple[Path | None, dict[str, str]]:
    """The newest complete checkpoint, and why each newer folder was passed over, by name."""
    skipped = {}
    for _, path in reversed(_all(root)):
        reason = what_is_wrong(path)
        if reason is None:
            return path, skipped
        skipped[path.name] = reason
    return None, skipped


def write_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Write the state of the objectives into a checkpoint in the making."""
    (checkpoint / _STATE).write_text(json.dumps(state), encoding="utf-8")


def read_state(checkpoint: str | Path) -> dict[str, Any]:
    """The state of the objectives in a checkpoint."""
    return json.loads((Path(checkpoint) / _STATE).read_text(encoding="utf-8"))
