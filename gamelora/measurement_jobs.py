"""Interaction measurements as jobs: what to measure, the name and file of its result, and the process that makes it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis.models import adapter_name, model_name
from analysis.workspace import workspace_dir
from gamelora import jobs

SEQ_LEN = 256
TEXTS = {"builtin": "built-in", "pile": "The Pile"}  # the texts that have a name, as people read it
_TARGET = "interaction:"


@dataclass(frozen=True)
class MeasurementRequest:
    """A checkpoint and the text to measure it on, as `python -m analysis interaction` takes them.

    Attributes
    ----------
    source : model: `default`, hub id, folder or GGUF file.
    revision : of a hub id.
    adapter : PEFT folder.
    text : `builtin`, `pile`, hub:ID or a file.
    tokens : at least `SEQ_LEN`.
    dtype, gradient : as the command's options.
    """

    source: str = "default"
    revision: str | None = None
    adapter: str | None = None
    text: str = "builtin"
    tokens: int = 2048
    dtype: str = "float32"
    gradient: str = "token"

    @property
    def checkpoint(self) -> str:
        """The checkpoint's name for people: model, and adapter on it."""
        return model_name(self.source) + (f" + {adapter_name(self.adapter)}" if self.adapter else "")

    @property
    def name(self) -> str:
        """The result's name, the same for the same request: readable, with a hash of whatever the readable part leaves out."""
        adapter = adapter_name(self.adapter) if self.adapter else ""
        parts = [model_name(self.source), adapter, Path(self.text).stem, str(self.tokens)]
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in parts if part)).strip("-.")[-80:].lstrip("-.")
        if self == MeasurementRequest(text="builtin", tokens=self.tokens):
            return readable
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{readable}-{digest[:6]}"

    @property
    def path(self) -> Path:
        """Where the result goes."""
        return workspace_dir("results") / f"{self.name}.npz"

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m`. The sums of both couplings are kept, so that the pages can show either."""
        given = {
            "--model": self.source,
            "--revision": self.revision,
            "--adapter": self.adapter,
            "--text": self.text,
            "--tokens": str(self.tokens),
            "--seq-len": str(SEQ_LEN),
            "--batch-size": str(min(8, max(1, self.tokens // SEQ_LEN // 8))),  # 8 steps of progress or more; same G
            "--dtype": self.dtype,
            "--coupling": "invariant",
            "--gradient": self.gradient,
            "--out": str(self.path),
        }
        return ["analysis", "interaction", *(f"{option}={value}" for option, value in given.items() if value)]

    def start(self) -> jobs.Job:
        """Start it; the running job when it runs already."""
        return jobs.start(
            _TARGET + self.name, f"{self.checkpoint}, {text_name(self.text)}, {self.tokens:,} tokens", self.arguments
        )


def text_name(source: str) -> str:
    """A text source for people."""
    return TEXTS.get(source) or (source.removeprefix("hub:") if source.startswith("hub:") else Path(source).name)


def latest_jobs() -> dict[str, jobs.Job]:
    """The newest job of each measurement, by the name of its result."""
    found: dict[str, jobs.Job] = {}
    for job in jobs.jobs():
        if job.target.startswith(_TARGET):
            found.setdefault(job.target.removeprefix(_TARGET), job)
    return found


def start_again(job: jobs.Job) -> jobs.Job:
    """Run the same command as an earlier job."""
    return jobs.start(job.target, job.title, job.argv[2:])


def request_like(provenance: dict, text: str, tokens: int) -> MeasurementRequest:
    """The request that measures an existing result's checkpoint, in the same way, on another text or more tokens."""
    model, adapter = provenance["model"], provenance["adapter"]
    return MeasurementRequest(
        source=model["source"],
        revision=model["revision"] if model["kind"] == "hub" else None,
        adapter=adapter["source"] if adapter else None,
        text=text,
        tokens=tokens,
        dtype=model["dtype"],
        gradient=provenance["settings"]["gradient"],
    )
