"""A checkpoint by where it lies: a base model, an adapter on one, or a step that a run has saved."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.adapters import CONFIG, WEIGHTS
from analysis.models import adapter_name, model_name
from analysis.sources import content_sha256, full_source

KINDS = ("base", "adapter", "run step")


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint by where it lies; nothing of it is loaded.

    Attributes
    ----------
    source, revision, adapter, dtype : as the options `--model`, `--revision`, `--adapter` and `--dtype`.
    run, step : of a checkpoint of a run; `step` None is its finished adapter.
    """

    source: str = "default"
    revision: str | None = None
    adapter: str | None = None
    dtype: str = "float32"
    run: str | None = None
    step: int | None = None

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return "base" if self.adapter is None else "adapter" if self.step is None else "run step"

    @property
    def title(self) -> str:
        """Its name for people."""
        if self.run:
            return f"{self.run} step {self.step}" if self.step is not None else f"{self.run} adapter"
        name = model_name(self.source) + (f" + {adapter_name(self.adapter)}" if self.adapter else "")
        details = [self.revision] * bool(self.revision) + [self.dtype] * (self.dtype != "float32")
        return f"{name} ({', '.join(details)})" if details else name

    @property
    def place(self) -> tuple[str, str | None, str | None, str]:
        """What tells two checkpoints apart, whatever they are called: source, revision, adapter, dtype."""
        adapter = str(Path(os.path.expanduser(self.adapter)).resolve()) if self.adapter else None
        return full_source(self.source), self.revision, adapter, self.dtype

    @property
    def id(self) -> str:
        """Eight letters and digits for links."""
        return hashlib.sha256(json.dumps(self.place).encode()).hexdigest()[:8]

    def adapter_sha256(self) -> str | None:
        """Hash of the adapter's files as provenance has it; None without an adapter, or when its files are gone."""
        files = [Path(self.place[2]) / name for name in (CONFIG, WEIGHTS)] if self.adapter else []
        if not files or not all(file.is_file() for file in files):
            return None
        return _content(tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files))

    def made(self, provenance: Mapping[str, Any]) -> bool:
        """Whether a result of that provenance is of this checkpoint, as its adapter is now."""
        model, adapter = provenance["model"], provenance["adapter"]
        source, revision, folder, dtype = self.place
        if (model["source"], model["dtype"], adapter and adapter["source"]) != (source, dtype, folder):
            return False
        if revision and revision != model.get("revision"):
            return False
        return adapter is None or self.adapter_sha256() in (None, adapter["sha256"])


@functools.lru_cache(maxsize=1024)
def _content(files: tuple[tuple[str, int, int], ...]) -> str:
    """Hash of files given with time and size, so that only a changed file is read again."""
    return content_sha256([Path(path) for path, _, _ in files])


def source_of(provenance: Mapping[str, Any]) -> CheckpointSource:
    """The checkpoint that a result or an evaluation was made of."""
    model, adapter = provenance["model"], provenance["adapter"]
    revision = model.get("revision") if model.get("kind") == "hub" else None
    return CheckpointSource(model["source"], revision, adapter and adapter["source"], model["dtype"])
