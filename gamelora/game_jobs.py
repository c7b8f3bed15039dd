"""The head game's long work as jobs: gauge check, head values and causal check of a measured checkpoint.

Each result lies in the workspace under a name that its checkpoint and text decide (weights, adapter, dtype and token ids, by
content), so that every page, coupling and measurement of the same checkpoint on the same text finds it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.ablation import FEWEST_RANDOM_SETS
from analysis.gauge import ROTATIONS
from analysis.models import adapter_name, model_name
from analysis.workspace import workspace_root
from gamelora import jobs

_GAUGE, _VALUES, _ABLATION = "gauge", "head-values", "ablations"  # folders of the workspace, and what targets begin with
_BACKWARD = 3.0  # passes that one forward and backward pass costs as much as


@dataclass(frozen=True)
class GameJob:
    """A piece of work whose result is one file.

    Attributes
    ----------
    target : of the job; at most one is live at a time.
    title : for people.
    arguments : of `python -m`.
    path : of the result.
    passes : forward passes over the text that it takes, without a benchmark.
    """

    target: str
    title: str
    arguments: list[str]
    path: Path
    passes: float

    def latest(self) -> jobs.Job | None:
        """Its newest job, whatever became of it."""
        return jobs.latest(self.target)

    def start(self) -> jobs.Job:
        """Start it; the running job when it runs already."""
        return jobs.start(self.target, self.title, self.arguments)


@dataclass(frozen=True)
class Check:
    """What a causal check ablates and measures, as `python -m analysis ablate` takes it."""

    heads: str  # L3H7,L3H8 or coalition:LAYER:NUMBER or free-riders
    mode: str = "zero"
    benchmark: str | None = None
    limit: int | None = None  # items of the benchmark
    random_sets: int = FEWEST_RANDOM_SETS
    match: str = "size"
    vif_threshold: float | None = None  # for free riders
    low_effect: float | None = None


def gauge_job(provenance: dict[str, Any]) -> GameJob:
    """The gauge check of a result's checkpoint on its text; both couplings.

    Raises
    ------
    ValueError
        When the result is merged from several texts, so that there is no one text to measure on.
    """
    name, path = _place(provenance, _GAUGE)
    arguments = ["analysis", "gauge", *_model(provenance), *_text(provenance), f"--out={path}"]
    return GameJob(f"{_GAUGE}:{name}", f"{_called(provenance)}, gauge check", arguments, path, _BACKWARD * (1 + ROTATIONS))


def values_job(result: Path, provenance: dict[str, Any], coupling: str, vif_threshold: float, redundant: int) -> GameJob:
    """Head values of a result's checkpoint: first-order values of all heads, and ablation of its redundant heads one by one.

    The file is shared by couplings and thresholds: a job adds the effects that it lacks. `redundant` heads are expected.

    Raises
    ------
    ValueError
        As `gauge_job`.
    """
    _text(provenance)
    name, path = _place(provenance, _VALUES)
    arguments = [
        *("analysis", "game", f"--result={result}", f"--coupling={coupling}", "--benefits=measured", f"--values={path}"),
        *(f"--vif-threshold={vif_threshold:g}", f"--out={path.with_suffix('')}.game.json"),
    ]
    title = f"{_called(provenance)}, head values"
    return GameJob(f"{_VALUES}:{name}", title, arguments, path, _BACKWARD + redundant + 1)


def ablation_job(result: Path, provenance: dict[str, Any], coupling: str, check: Check) -> GameJob:
    """A causal check of a result's checkpoint on its text; coalitions and free riders are those of the result.

    Raises
    ------
    ValueError
        As `gauge_job`.
    """
    given = {
        "--heads": check.heads,
        "--mode": check.mode,
        "--benchmark": check.benchmark,
        "--limit": check.limit if check.benchmark else None,
        "--random-sets": check.random_sets,
        "--match": check.match,
    }
    if not check.heads.startswith("L"):
        given |= {"--result": result, "--coupling": coupling}
    if check.heads == "free-riders":
        given |= {"--vif-threshold": check.vif_threshold, "--low-effect": check.low_effect}
    options = [f"{option}={value}" for option, value in given.items() if value is not None]
    name, path = _place(provenance, _ABLATION, [option for option in options if not option.startswith("--result=")])
    arguments = ["analysis", "ablate", *_model(provenance), *_text(provenance), *options, f"--out={path}"]
    title = f"{_called(provenance)}, ablation of {check.heads.replace(',', ', ')}"
    return GameJob(f"{_ABLATION}:{name}", title, arguments, path, 2.0 + check.random_sets)


def known_ablations(provenance: dict[str, Any]) -> list[Path]:
    """The causal checks of a checkpoint on its text that are done, newest first."""
    _, path = _place(provenance, _ABLATION, [])
    found = path.parent.glob(f"{path.stem.rsplit('-', 1)[0]}-*.json")
    return sorted(found, key=lambda one: one.stat().st_mtime_ns, reverse=True)


def expected_seconds(job: GameJob, provenance: dict[str, Any]) -> float | None:
    """About how long a job will take here, from the last time, else from how long the model's measurements took at the best.

    None when there was neither. At the best: others may have slowed down a measurement, nothing makes it faster.
    """
    done = [one for one in jobs.jobs() if one.state == "done"]
    again = next((one for one in done if one.target == job.target and one.argv[2:] == job.arguments), None)
    if again is not None:
        return again.elapsed
    model, measured = f"--model={provenance['model']['source']}", []
    for one in done:
        tokens = [int(part.removeprefix("--tokens=")) for part in one.argv if part.startswith("--tokens=")]
        if one.target.startswith("interaction:") and model in one.argv and tokens:
            measured.append(one.elapsed * max(1.0, provenance["text"]["tokens"] / tokens[0]))
    return min(measured) * max(1.0, job.passes / _BACKWARD) if measured else None


def _model(provenance: dict[str, Any]) -> list[str]:
    model, adapter = provenance["model"], provenance["adapter"]
    given = {"--model": model["source"], "--adapter": adapter and adapter["source"], "--dtype": model["dtype"]}
    given["--revision"] = model["revision"] if model["kind"] == "hub" else None
    return [f"{option}={value}" for option, value in given.items() if value]


def _text(provenance: dict[str, Any]) -> list[str]:
    text = provenance["text"]
    if "source" not in text:
        raise ValueError("This result is merged from several texts: measure its checkpoint on one text to check it further.")
    return [f"--text={text['source']}", f"--tokens={text['tokens']}", f"--seq-len={text['seq_len']}"]


def _place(provenance: dict[str, Any], folder: str, options: Sequence[str] | None = None) -> tuple[str, Path]:
    """Name and file of a result: the architecture, a hash of checkpoint and text, and one of the options when there are any."""
    model, adapter, text = (provenance[part] or {} for part in ("model", "adapter", "text"))
    name = re.sub(r"[^A-Za-z0-9]+", "-", model["architecture"])[:60].strip("-")
    name += "-" + _digest([model["sha256"], model["dtype"], adapter.get("sha256"), text.get("sha256")])
    if options is not None:
        name += "-" + _digest(list(options))
    return name, workspace_root() / folder / f"{name}.json"


def _digest(content: list) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _called(provenance: dict[str, Any]) -> str:
    adapter = provenance["adapter"]
    return model_name(provenance["model"]["source"]) + (f" + {adapter_name(adapter['source'])}" if adapter else "")
