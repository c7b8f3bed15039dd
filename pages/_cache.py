"""Every cached read of the pages: result files, the measurements that the workspace knows, the machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import streamlit as st

from analysis.results import InteractionResult
from analysis.workspace import workspace_dir
from gamelora.jobs import Job
from gamelora.measurement_jobs import latest_jobs

_CARD = ("name", "source", "architecture", "n_heads", "n_kv_heads", "d_head", "d_model", "dtype", "sha256", "parameters")


@dataclass(frozen=True)
class Measurement:
    """A checkpoint measured on a text: done when there is a file, otherwise as far as its job is.

    Attributes
    ----------
    name : in the pickers and in the link: the file's name, or its path when it lies outside the workspace.
    path, provenance : of the result, None when there is none.
    job : its newest job, if any.
    """

    name: str
    path: Path | None = None
    provenance: dict[str, Any] | None = None
    job: Job | None = None

    @property
    def of_default_model(self) -> bool:
        """Whether this is a finished measurement of the default model without an adapter."""
        known = self.provenance
        return known is not None and known["model"]["source"] == "default" and known["adapter"] is None

    def load(self) -> InteractionResult:
        """The result, shared between sessions: it is frozen and never written to."""
        stat = self.path.stat()
        return _load(str(self.path), stat.st_mtime_ns, stat.st_size)


def measurements(folder: str) -> tuple[dict[str, Measurement], list[str]]:
    """All measurements, done or not, by name, and a notice for each file that could not be read.

    `folder` adds the results of another folder, "" none.
    """
    jobs = latest_jobs()
    found: dict[str, Measurement] = {}
    notices = []
    own = workspace_dir("results")
    outside = Path(folder).expanduser().resolve() if folder else own
    if not outside.is_dir():
        notices.append(f"There is no folder {outside}. Give a folder that holds .npz results.")
    for place in dict.fromkeys((own, outside)):
        for path in sorted(place.glob("*.npz")):
            name = path.stem if place == own else str(path)
            stat = path.stat()
            read = _provenance(str(path), stat.st_mtime_ns, stat.st_size)
            if isinstance(read, str):
                notices.append(f"Skipped: {read}")
            else:
                found[name] = Measurement(name, path, read, jobs.get(name))
    for name, job in jobs.items():
        if job.state != "done":  # done without a file: somebody deleted the result
            found.setdefault(name, Measurement(name, job=job))
    return found, notices


@st.cache_data(max_entries=2000, show_spinner=False)
def _provenance(path: str, mtime_ns: int, size: int) -> dict[str, Any] | str:
    """A result's provenance, or the sentence that says why it cannot be shown."""
    try:
        provenance = InteractionResult.load(path).provenance
    except (ValueError, OSError) as error:
        return str(error)
    missing = [name for name in _CARD if name not in provenance.get("model", {})]
    missing += [name for name in ("adapter", "text", "settings") if name not in provenance]
    return f"{path} does not say its {', '.join(missing)}. Measure it again." if missing else provenance


@st.cache_resource(max_entries=8, show_spinner=False)
def _load(path: str, mtime_ns: int, size: int) -> InteractionResult:
    return InteractionResult.load(path)


@st.cache_data(ttl=10, show_spinner=False)
def machine() -> str:
    """The devices of this machine and their free memory, in words.

    Asked of nvidia-smi, so that the page's own process holds no GPU memory.
    """
    memory = psutil.virtual_memory()
    words = [f"CPU, {psutil.cpu_count()} cores, {memory.available / 2**30:.1f} of {memory.total / 2**30:.0f} GiB free"]
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        for line in answer.stdout.splitlines() if answer.returncode == 0 else []:
            name, free, total = line.split(", ")
            shared = not free.isdigit()  # a GPU without memory of its own says [N/A]
            words.append(name if shared else f"{name}, {int(free) / 1024:.1f} of {int(total) / 1024:.0f} GiB free")
    return "; ".join(reversed(words))
