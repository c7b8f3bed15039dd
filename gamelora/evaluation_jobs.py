"""Evaluations as jobs: a checkpoint on benchmarks, what of it the workspace holds already, and the process that does the rest.

What was evaluated once is in the workspace by content (analysis/hallucination/store.py): a job that is started again reads the
finished benchmarks and goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from analysis.hallucination.benchmarks import BENCHMARKS, SEED, Benchmark
from analysis.hallucination.evaluation import StoredEvaluation
from analysis.hallucination.places import data_folder, local_file
from analysis.progress import Progress
from gamelora import jobs
from gamelora.checkpoint_sources import CheckpointSource

_TARGET = "evaluation:"
# Seconds of an item with its Gamma on one core, default model (135 M parameters, float32); the rest is loading.
_SECONDS = {"halueval_qa": 4.5, "halueval_dialogue": 3.5, "halueval_summarization": 5.0, "truthfulqa_mc": 3.5, "memo_trap": 1.0}
_SECONDS_OTHER = 5.0
_SECONDS_LOADING = 20.0


@dataclass(frozen=True)
class EvaluationRequest:
    """A checkpoint and what to evaluate it on, as `python -m analysis evaluate` takes them.

    Attributes
    ----------
    checkpoint : what to evaluate.
    benchmarks : names, in the order of the work.
    limit : items a benchmark, at most.
    seed : draws them.
    coupling : of the per-item Gamma, "paper" or "invariant".
    data : folder of local rows, the workspace's by default; what it lacks comes from the hub.
    """

    checkpoint: CheckpointSource
    benchmarks: tuple[str, ...]
    limit: int
    seed: int = SEED
    coupling: str = "paper"
    data: str = field(default_factory=lambda: str(data_folder()))

    @property
    def name(self) -> str:
        """The same for the same checkpoint and suite, another for any other."""
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", self.checkpoint.title).strip("-.")[-60:].lstrip("-.")
        content = asdict(self) | {"checkpoint": self.checkpoint.place}
        if all(BENCHMARKS[name].builtin for name in self.benchmarks):
            del content["data"]
        return f"{readable}-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]}"

    @property
    def target(self) -> str:
        """Of its job."""
        return _TARGET + self.name

    @property
    def title(self) -> str:
        """For people: what is evaluated on what."""
        what = BENCHMARKS[self.benchmarks[0]].title if len(self.benchmarks) == 1 else f"{len(self.benchmarks)} benchmarks"
        return f"{self.checkpoint.title} on {what}, {self.limit:,} items each"

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m`."""
        checkpoint = self.checkpoint
        given = {
            "--model": checkpoint.source,
            "--revision": checkpoint.revision,
            "--adapter": checkpoint.adapter,
            "--dtype": checkpoint.dtype,
            "--tasks": ",".join(self.benchmarks),
            "--limit": str(self.limit),
            "--seed": str(self.seed),
            "--coupling": self.coupling,
            "--data": self.data if Path(self.data).is_dir() else None,
        }
        return ["analysis", "evaluate", "--per-item-gamma", *(f"{option}={value}" for option, value in given.items() if value)]

    def start(self) -> jobs.Job:
        """Start it, again after an interruption too; the running job when it runs already."""
        return jobs.start(self.target, self.title, self.arguments)

    def stored(self, known: Sequence[StoredEvaluation]) -> dict[str, StoredEvaluation]:
        """What the workspace holds of it by benchmark, the newest where an older program left another: scores on these rows,
        with or without Gamma of the coupling.
        """
        found: dict[str, StoredEvaluation] = {}
        for one in known:
            if one.name in self.benchmarks and self._same_rows(one) and self.checkpoint.made(one.provenance):
                found[one.name] = max(one, found.get(one.name, one), key=_written)
        return found

    def missing(self, known: Sequence[StoredEvaluation]) -> list[str]:
        """The benchmarks that are still to be done, scores or Gamma of the coupling."""
        stored = self.stored(known)
        return [name for name in self.benchmarks if not self._complete(BENCHMARKS[name], stored.get(name))]

    def _complete(self, benchmark: Benchmark, one: StoredEvaluation | None) -> bool:
        return one is not None and (self.coupling in one.couplings or benchmark.protocol == "wikitext")

    def _same_rows(self, one: StoredEvaluation) -> bool:
        items, benchmark = one.provenance["items"], BENCHMARKS[one.name]
        local = None if benchmark.builtin else local_file(benchmark, benchmark.file, self.data)
        here = local is None or items["source"] == str(local)
        return here and items["seed"] == self.seed and items["scored"] == min(self.limit, items["rows"])

    def seconds(self, benchmarks: Sequence[str]) -> tuple[float, bool]:
        """About how long these benchmarks take, and whether that is known from this model's own evaluations here.

        Otherwise it is said for the default model on one core. A job that found part of its work done was shorter than it
        would have been, so the slowest of the model's jobs counts.
        """
        model = f"--model={self.checkpoint.source}"
        earlier = [job for job in evaluation_jobs().values() if job.state == "done" and model in job.argv]
        factors = [
            job.elapsed / _default_seconds(_option(job, "tasks").split(","), int(_option(job, "limit"))) for job in earlier
        ]
        return max(factors, default=1.0) * _default_seconds(benchmarks, self.limit), bool(factors)


def _default_seconds(benchmarks: Sequence[str], limit: int) -> float:
    return _SECONDS_LOADING + sum(limit * _SECONDS.get(BENCHMARKS[name].protocol, _SECONDS_OTHER) for name in benchmarks)


def _option(job: jobs.Job, name: str) -> str:
    return next(part.split("=", 1)[1] for part in job.argv if part.startswith(f"--{name}="))


def _written(one: StoredEvaluation) -> int:
    return (one.folder / f"{one.name}.json").stat().st_mtime_ns


def evaluation_jobs() -> dict[str, jobs.Job]:
    """The newest job of each evaluation, by its target."""
    found: dict[str, jobs.Job] = {}
    for job in jobs.jobs():
        if job.target.startswith(_TARGET):
            found.setdefault(job.target, job)
    return found


def benchmark_at_work(progress: Progress) -> str | None:
    """The benchmark that a job works on, read from its stage ("scoring MemoTrap"); None while it loads."""
    titled = {benchmark.title: name for name, benchmark in BENCHMARKS.items()}
    found = [name for title, name in titled.items() if title in progress.stage]
    return max(found, key=lambda name: len(BENCHMARKS[name].title), default=None)
