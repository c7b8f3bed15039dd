"""Every cached read of the pages: result files, the measurements that the workspace knows, the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import streamlit as st

from analysis.ablation import AblationResult
from analysis.gauge import GaugeResult
from analysis.head_values import HeadValues
from analysis.results import InteractionResult
from analysis.workspace import workspace_dir, workspace_root
from gamelora.checkpoint_sources import CheckpointSource
from gamelora.jobs import Job
from gamelora.measurement_jobs import MeasurementRequest, latest_jobs
from gamelora.run_table import selectable
from gamelora.runs import Run, run_names

_CARD = ("name", "source", "architecture", "n_heads", "n_kv_heads", "d_head", "d_model", "dtype", "sha256", "parameters")


@dataclass(frozen=True)
class Measurement:
    """A checkpoint measured on a text: done when there is a file, otherwise as far as its job is.

    Attributes
    ----------
    name : in the pickers and in the link: the file's name, or its path when it lies outside the workspace.
    path, provenance : of the result, None when there is none.
    job : its newest job, if any.
    request : makes the result, for a checkpoint of a run, on the sidebar's text; None for a result by its own name.
    """

    name: str
    path: Path | None = None
    provenance: dict[str, Any] | None = None
    job: Job | None = None
    request: MeasurementRequest | None = None

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
    outside = Path(os.path.expanduser(folder)).resolve() if folder else own  # leaves an unknown `~name` as it is
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


def run_measurements(found: dict[str, Measurement], text: str, tokens: int) -> dict[str, Measurement]:
    """The adapters and saved steps of all runs by name, each with its result on that text and tokens if `found` has it.

    A result of an adapter that has been trained anew since does not count. Runs that cannot be read are left out; the Runs
    page says why.
    """
    jobs, entries = latest_jobs(), {}
    for name in run_names():
        for source in _checkpoints_of(name):
            request = request_of(source, text, tokens)
            measured = found.get(request.name)
            known = measured.provenance if measured and measured.provenance and source.made(measured.provenance) else None
            job = jobs.get(request.name)
            unfinished = job if job and job.state != "done" else None
            path = measured.path if known else None
            entries[source.title] = Measurement(source.title, path, known, unfinished, request)
    return entries


def request_of(source: CheckpointSource, text: str, tokens: int) -> MeasurementRequest:
    """What measures a checkpoint on a text."""
    return MeasurementRequest(source.source, source.revision, source.adapter, text, tokens, source.dtype)


def _checkpoints_of(name: str) -> list[CheckpointSource]:
    folder = workspace_root() / "runs" / name
    times = []
    for part in ("config.yaml", "checkpoints", "adapter"):  # a folder's time changes when a checkpoint comes or goes
        try:
            times.append((folder / part).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return _read_checkpoints(str(folder), tuple(times))


@st.cache_data(max_entries=1000, show_spinner=False)
def _read_checkpoints(folder: str, times: tuple[int, ...]) -> list[CheckpointSource]:
    try:
        run = Run.open(Path(folder).name)
        return selectable(run, run.config())
    except (ValueError, OSError):
        return []


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


Record = TypeVar("Record", GaugeResult, HeadValues, AblationResult)


def read_file(kind: type[Record], path: Path) -> Record | None:
    """A gauge check, head values or a causal check as its file stands; None when there is no such file.

    Raises
    ------
    ValueError
        When the file is damaged.
    """
    if not path.is_file():
        return None
    stat = path.stat()
    return _read_file(kind, str(path), stat.st_mtime_ns, stat.st_size)


@st.cache_resource(max_entries=32, show_spinner=False)
def _read_file(kind: type[Record], path: str, mtime_ns: int, size: int) -> Record:
    return kind.load(path)


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
