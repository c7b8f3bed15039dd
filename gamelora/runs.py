"""The run directory, `workspace/runs/<name>/`, and the only reader and writer of it.

    config.yaml     what runs; a resume may change how it is cut, watched and kept
    status.json     state, step, notes, provenance; replaced whole
    metrics.jsonl   a line for every optimizer step and every evaluation; only ever appended to, and cut back by a resume
    checkpoints/    checkpoint-<step>, each complete (gamelora/checkpoints.py)
    adapter/        the finished adapter in PEFT's format, with a model card
    tensorboard/    when asked for
    stop            appears when someone asked the run to save and end
    reserve         some room on the disk for the last status.json, should the disk be full by then
    alive           a file that the training process holds locked: the kernel frees it at any kind of death

A run is alive exactly as long as that lock is held; a status "running" without it reads as failed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.workspace import atomic_write, is_safe_name, safe_name, workspace_dir, workspace_root
from gamelora.checkpoints import complete_checkpoints, newest_checkpoint
from gamelora.config import GameLoraConfig
from gamelora.job_processes import is_alive

FORMAT = 1
STATES = ("running", "finished", "stopped", "failed")
_NUMBER, _TEXT = (int, float), (str, type(None))
# what a reader takes for granted of a status, where the field is there
_TYPES = {"format": int, "state": str, "step": int, "steps": int, "created": _NUMBER, "updated": _NUMBER, "reason": _TEXT}
_TYPES |= {"skipped_steps": int, "zero_gradients": dict}
_TYPES |= dict.fromkeys(("notes", "design_layers"), list) | dict.fromkeys(("latest", "model", "text", "bargains"), dict)
_RESERVE_BYTES = 64 * 1024
_NEW = ".new-"  # folders of runs in the making
_LEFTOVER_SECONDS = 3600.0
_LOCK_SECONDS = 1.0  # a page that asks whether a run is alive holds its lock for an instant
KILLED = "The process ended without a word: it was killed, or the machine went down."


@dataclass(frozen=True)
class MetricsPart:
    """Lines of metrics.jsonl as `Run.metrics_after` read them.

    Attributes
    ----------
    lines : one a step or evaluation, each with its "step".
    damaged : whole lines that are no such thing.
    end : byte behind the last whole line.
    last : that line; a file that has other bytes there was cut by a resume and written on.
    unfinished : bytes behind it, of a line still being written or cut off by a kill.
    from_start : the lines are all of the file, so that what was read before is void.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0
    end: int = 0
    last: bytes = b""
    unfinished: int = 0
    from_start: bool = False


@dataclass(frozen=True)
class Run:
    """One run on disk. `Run.create` and `Run.open` make it."""

    name: str
    folder: Path

    @staticmethod
    def create(name: str, config: GameLoraConfig) -> Run:
        """Make the folder of a new run.

        Raises
        ------
        ValueError
            When the name cannot be used or is taken.
        """
        folder = workspace_dir("runs") / safe_name(name, "run name")
        taken = f"there is a run {name!r} already ({folder}): choose another --run, or `python -m gamelora resume {name}`."
        if folder.exists():
            raise ValueError(taken)
        hidden = Path(tempfile.mkdtemp(prefix=_NEW, dir=folder.parent))
        try:
            run = Run(name, hidden)
            run.write_config(config)
            (hidden / "reserve").write_bytes(b"\0" * _RESERVE_BYTES)
            run.write_status(state="running", step=0, steps=config.steps, created=time.time())
            hidden.chmod(0o755)
            os.rename(hidden, folder)  # whoever is killed before this has made no run, and no half of one
        except OSError as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise ValueError(taken) from None
            raise
        _sweep(folder.parent)
        return Run(name, folder)

    @staticmethod
    def open(name: str) -> Run:
        """A run that exists; ValueError when there is none of that name."""
        folder = workspace_root() / "runs" / safe_name(name, "run name")
        if not (folder / "config.yaml").is_file():
            raise ValueError(f"there is no run {name!r} in {folder.parent}; there are: {', '.join(run_names()) or 'none'}.")
        return Run(name, folder)

    # --- what it holds --------------------------------------------------------------------------------------------

    @property
    def checkpoints_folder(self) -> Path:
        """Where checkpoints lie."""
        return self.folder / "checkpoints"

    @property
    def adapter(self) -> Path:
        """Where the finished adapter lies, or will."""
        return self.folder / "adapter"

    def config(self) -> GameLoraConfig:
        """The run's config; ValueError when the file is damaged or from another version."""
        try:
            text = (self.folder / "config.yaml").read_text(encoding="utf-8")
            if not text.strip():
                raise ValueError("the file is empty")
            return GameLoraConfig.from_yaml(text, "it")
        except ValueError as error:
            words = str(error).removeprefix("the config cannot be used: ").rstrip(".")
            known = f"the config.yaml of run {self.name!r} cannot be used: {words}."
            raise ValueError(f"{known} The file is damaged, or another version of this program wrote it.") from error

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first; each is a PEFT adapter folder too."""
        return complete_checkpoints(self.checkpoints_folder)

    def newest_checkpoint(self) -> tuple[Path | None, dict[str, str]]:
        """The checkpoint to resume from, and why newer ones are passed over."""
        return newest_checkpoint(self.checkpoints_folder)

    def status(self) -> dict[str, Any]:
        """The status as written, with "failed" for a run that says it runs and has no process.

        Raises
        ------
        ValueError
            When the file is damaged or comes from a newer version.
        """
        status = self._written_status()
        if status["state"] == "running" and not self.is_alive():
            status = self._written_status()  # its last one may have come between the two
            if status["state"] == "running":
                status |= {"state": "failed", "reason": KILLED}
        return status

    def _written_status(self) -> dict[str, Any]:
        try:
            status = json.loads((self.folder / "status.json").read_text(encoding="utf-8"))
            _check_status(status)
        except (OSError, RecursionError, ValueError) as error:
            raise ValueError(f"the status of run {self.name!r} cannot be read: {error}.") from error
        return status

    def is_alive(self) -> bool:
        """Whether a process trains this run."""
        return is_alive(self.folder)

    def metrics(self, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """The lines from byte `offset` on, and where to read on next time; a line still being written is left for then.

        A whole line that is damaged is skipped. After a resume the file may be shorter than `offset`: then it is read from the
        start again.
        """
        part = self.metrics_after(MetricsPart(end=offset))
        return part.lines, part.end

    def metrics_after(self, before: MetricsPart) -> MetricsPart:
        """The lines that follow an earlier part, or all lines when a resume has cut the file since."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return MetricsPart(from_start=True)
        with open(path, "rb") as file:
            last = b""
            if before.end <= os.fstat(file.fileno()).st_size:
                file.seek(before.end - len(before.last))
                last = file.read(len(before.last))
            from_start = before.end == 0 or file.tell() != before.end or last != before.last
            if from_start:
                file.seek(0)
            start, data = file.tell(), file.read()
        whole = data[: data.rfind(b"\n") + 1]
        read = whole.splitlines(keepends=True)
        lines = [line for line in map(_metric, read) if line is not None]
        last = read[-1] if read else b"" if from_start else before.last
        return MetricsPart(lines, len(read) - len(lines), start + len(whole), last, len(data) - len(whole), from_start)

    # --- writing --------------------------------------------------------------------------------------------------

    def write_config(self, config: GameLoraConfig) -> None:
        """Replace config.yaml."""
        atomic_write(self.folder / "config.yaml", config.to_yaml())

    def write_status(self, **changes: Any) -> None:
        """Replace status.json by itself with `changes` on top."""
        path = self.folder / "status.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        status = {**before, "format": FORMAT, "name": self.name, "updated": time.time(), **changes}
        atomic_write(path, json.dumps(status, indent=1))

    def write_last_status(self, **changes: Any) -> None:
        """`write_status` at the end of a run, in the room that was kept for it when the disk is full."""
        (self.folder / "reserve").unlink(missing_ok=True)
        self.write_status(**changes)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl; a number that is not finite is written as null."""
        finite = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
        with open(self.folder / "metrics.jsonl", "ab") as file:
            file.write((json.dumps(finite, allow_nan=False) + "\n").encode())

    def cut_metrics(self, step: int) -> None:
        """Drop what was written after `step`, and a half line at the end: a resumed run goes on from there."""
        lines, _ = self.metrics()
        kept = [json.dumps(line) + "\n" for line in lines if line["step"] <= step]
        atomic_write(self.folder / "metrics.jsonl", "".join(kept))

    def request_stop(self) -> None:
        """Ask the training process to save a checkpoint and end after the step that it is in."""
        (self.folder / "stop").touch()

    def stop_requested(self) -> bool:
        """Whether someone asked for that."""
        return (self.folder / "stop").exists()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Around the training process: the run counts as alive, and no second process can train it.

        Raises
        ------
        ValueError
            When another process trains it.
        """
        lock = os.open(self.folder / "alive", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            until = time.monotonic() + _LOCK_SECONDS
            while not _locked(lock):
                if time.monotonic() > until:
                    raise ValueError(f"another process trains run {self.name!r} right now.")
                time.sleep(0.01)
            (self.folder / "stop").unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)


def _locked(handle: int) -> bool:
    """Take the lock, unless somebody has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_status(status: Any) -> None:
    """ValueError says what is wrong with it."""
    if not isinstance(status, dict) or not {"format", "state"} <= status.keys():
        raise ValueError("it holds no format and state")
    for name, kind in _TYPES.items():
        if name in status and (not isinstance(status[name], kind) or isinstance(status[name], bool)):
            raise ValueError(f"its {name} is {status[name]!r:.40}")
    if status["format"] > FORMAT:
        raise ValueError(f"its format {status['format']} is newer than this program's {FORMAT}; update the program")
    if status["state"] not in STATES:
        raise ValueError(f"its state is {status['state']!r}")
    if not 0 <= status.get("step", 0) <= status.get("steps", math.inf):
        raise ValueError(f"it is at step {status['step']} of {status.get('steps')}")


def _metric(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; None when it is damaged."""
    try:
        metric = json.loads(line)
    except (RecursionError, ValueError):
        return None
    step = metric.get("step") if isinstance(metric, dict) else None
    return metric if type(step) is int and 0 <= step < 2**53 else None


def _sweep(runs: Path) -> None:
    """Remove what a start that was killed half-way left behind, long ago."""
    for leftover in runs.glob(f"{_NEW}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def run_names() -> list[str]:
    """Names of the runs in the workspace, sorted; a folder whose name cannot be one is none."""
    found = (path.parent.name for path in (workspace_root() / "runs").glob("*/config.yaml"))
    return sorted(name for name in found if is_safe_name(name))


def free_name(wanted: str, taken: Iterable[str] = ()) -> str:
    """`wanted`, or the first of wanted-2, wanted-3, ... that no run has and that is not `taken`; laptop-3 follows laptop-2."""
    taken = {*run_names(), *taken}
    if wanted not in taken:
        return wanted
    stem = re.sub(r"-\d+$", "", wanted)
    return next(name for number in itertools.count(2) if (name := f"{stem}-{number}") not in taken)
