"""A run from its first step to its end: train or resume, and leave adapter, model card and status behind."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from tqdm import tqdm
from transformers import TrainerCallback

from analysis.devices import processes
from analysis.models import versions
from analysis.progress import report
from gamelora.build import build_trainer
from gamelora.checkpoints import read_state, saying_disk_full, step_of
from gamelora.config import GameLoraConfig
from gamelora.jobs import stop_asked
from gamelora.memory import less_memory, rows_at_once
from gamelora.model_card import model_card
from gamelora.runs import Run
from gamelora.trainer import GameLoraTrainer

logger = logging.getLogger(__name__)

# What a resumed run may change: how it is cut, watched and kept, and nothing that it learns from.
RESUME_MAY_CHANGE = ("micro_batch_size", "gradient_checkpointing", "eval_every", "save_every", "keep_checkpoints", "report_to")
_SECONDS_BETWEEN_STATUSES = 1.0


class RunRecorder(TrainerCallback):
    """Keeps the run directory: a line of metrics a step, the status with its heartbeat, and the stop request."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trainer: GameLoraTrainer | None = None
        self.begun = False
        self.stopped = False
        self.terminated = False
        self.latest: dict[str, Any] = {}
        self._written = 0.0
        self._bar: tqdm | None = None

    def on_train_begin(self, args, state, control, **_):
        """The first status of this process."""
        self.begun = True
        if state.is_world_process_zero:
            self._status()
            report("training", state.global_step, state.max_steps, "step")
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self.run.name, unit="step")

    def on_train_end(self, args, state, control, **_):
        """No step follows."""
        if self._bar is not None:
            self._bar.close()

    def on_log(self, args, state, control, logs=None, **_):
        """A step's or an evaluation's numbers."""
        evaluation = any(name.startswith("eval_") for name in logs)
        if state.is_world_process_zero and (evaluation or "loss" in logs):
            numbers = {name: value for name, value in logs.items() if name != "epoch"}
            self.run.append_metrics({"step": state.global_step, "time": time.time(), **numbers})
            shown = {name: value for name, value in logs.items() if name in ("loss", "eval_loss") or name.startswith("gamma/")}
            self.latest |= shown

    def on_step_end(self, args, state, control, **_):
        """Progress, heartbeat, and the end when someone asked for it: all processes agree on the first one's view."""
        if state.is_world_process_zero:
            report("training", state.global_step, state.max_steps, "step")
            self._bar.set_postfix(self.latest, refresh=False)
            self._bar.update()
            if time.monotonic() - self._written >= _SECONDS_BETWEEN_STATUSES:
                self._status()
        asked = [self.terminated or stop_asked() or self.run.stop_requested()]
        if args.world_size > 1:
            broadcast_object_list(asked)
        if asked[0] and state.global_step < state.max_steps:
            self.stopped = control.should_training_stop = control.should_save = True

    @contextlib.contextmanager
    def ending_well(self) -> Iterator[None]:
        """Inside, SIGTERM (of a job that is stopped, or of a scheduler that wants the machine) also means: save, then end."""

        def asked(*_: object) -> None:
            self.terminated = True

        if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
            yield
            return
        before = signal.signal(signal.SIGTERM, asked)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _status(self) -> None:
        self._written = time.monotonic()
        self.run.write_status(state="running", **self.summary())

    def summary(self) -> dict[str, Any]:
        """What the trainer says about itself, for the status; nothing before it stands where the checkpoint left it."""
        trainer = self.trainer
        if not self.begun:
            return {}
        return {
            "step": trainer.state.global_step,
            "latest": self.latest,
            "notes": trainer.notes,
            "arbitration": trainer.arbiter.kind,
            "bargains": trainer.arbiter.outcomes,
            "zero_gradients": trainer.arbiter.zero_gradients,
            "skipped_steps": trainer.skipped_steps,
            "design_layers": [layer.index for layer in trainer.design.layers],
        }


def start_run(name: str, config: GameLoraConfig) -> Run:
    """Train a new run from its first step to its end.

    Raises
    ------
    ValueError
        When the name is taken or the config cannot be run; the run then stays behind as failed, with the reason.
    """
    run = _together(lambda: Run.create(name, config), lambda: Run.open(name))
    _train(run, config, None)
    return run


def resume_run(name: str, changes: dict[str, Any] | None = None) -> Run:
    """Go on with a run from its newest complete checkpoint, or from the start when there is none.

    Parameters
    ----------
    changes : settings of `RESUME_MAY_CHANGE`.

    Raises
    ------
    ValueError
        When there is no such run, it is finished, another process trains it, or a change would change what it learns.
    """
    run = Run.open(name)
    if run.status()["state"] == "finished":
        raise ValueError(f"run {name!r} is finished: there is nothing to resume. Its adapter is {run.adapter}.")
    config = run.config()
    refused = sorted(set(changes or {}) - set(RESUME_MAY_CHANGE))
    if refused:
        raise ValueError(
            f"a resumed run cannot change {', '.join(refused)}: only {', '.join(RESUME_MAY_CHANGE)}. Start a new run instead."
        )
    config = GameLoraConfig.from_dict({**config.to_dict(), **(changes or {})})
    checkpoint, skipped = run.newest_checkpoint()
    for passed, reason in skipped.items():
        logger.warning("%s is passed over: %s", passed, reason)
    if checkpoint is not None:
        _check_same_learning(config, read_state(checkpoint)["config"], checkpoint)
    _train(run, config, checkpoint, [f"{passed} was passed over: {reason}." for passed, reason in skipped.items()])
    return run


def _check_same_learning(config: GameLoraConfig, before: dict[str, Any], checkpoint: Path) -> None:
    now = config.to_dict()
    changed = [name for name in now if name not in RESUME_MAY_CHANGE and now[name] != before.get(name)]
    if changed:
        listed = ", ".join(f"{name} (was {before.get(name)!r}, is {now[name]!r})" for name in changed)
        raise ValueError(f"{checkpoint.name} was trained with another config: {listed}. Put it back, or start a new run.")


def _together(first: Callable[[], Run], others: Callable[[], Run]) -> Run:
    """`first` in the first process, then `others` in the rest."""
    process = processes()
    if process.is_main_process:
        run = first()
    process.wait_for_everyone()
    return run if process.is_main_process else others()


def _train(run: Run, config: GameLoraConfig, checkpoint: Path | None, notes: list[str] | None = None) -> None:
    main = processes().is_main_process
    recorder = RunRecorder(run)
    with run.training() if main else contextlib.nullcontext(), _recording_failure(recorder, config, main):
        trainer = build_trainer(config, run.folder, callbacks=[recorder])
        recorder.trainer = trainer
        if checkpoint is not None:
            _check_same_model(trainer, checkpoint)
        trainer.notes += notes or []
        if main:
            step = step_of(checkpoint) if checkpoint else 0
            run.write_config(config)
            run.cut_metrics(step if checkpoint else -1)
            text, model = trainer.text.provenance, trainer.loaded.provenance["model"]
            run.write_status(state="running", reason=None, step=step, model=model, text=text, versions=versions())
        trainer.args.eval_on_start = checkpoint is None
        with recorder.ending_well():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if main:
            _close(run, trainer, recorder)


def _check_same_model(trainer: GameLoraTrainer, checkpoint: Path) -> None:
    before, now = read_state(checkpoint)["model_sha256"], trainer.loaded.provenance["model"]["sha256"]
    if before != now:
        raise ValueError(
            f"{checkpoint.name} was trained on another model than {trainer.config.model} is now "
            f"(sha256 {before[:12]}, {now[:12]}): put that model back, or start a new run."
        )


def _close(run: Run, trainer: GameLoraTrainer, recorder: RunRecorder) -> None:
    """The adapter under its name, complete or not at all, and the last status."""
    if recorder.stopped:
        run.write_last_status(state="stopped", **recorder.summary())
        return
    hidden = run.folder / ".adapter.partial"
    shutil.rmtree(hidden, ignore_errors=True)
    with saying_disk_full(run.folder):
        trainer.save_model(str(hidden))
        provenance = {**trainer.loaded.provenance, "text": trainer.text.provenance, "versions": versions()}
        card = model_card(run, trainer.config, provenance, recorder.summary())
        (hidden / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(run.adapter, ignore_errors=True)
    os.replace(hidden, run.adapter)
    run.write_last_status(state="finished", **recorder.summary())


@contextlib.contextmanager
def _recording_failure(recorder: RunRecorder, config: GameLoraConfig, main: bool) -> Iterator[None]:
    """Write why the run failed, in words, and let the error go on as one that the command line prints."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            _failed(recorder, main, f"{type(error).__name__}: {error}")
            raise
        _failed(recorder, main, reason := _out_of_memory(config))
        raise ValueError(reason) from error
    except OSError as error:
        reason = f"disk full ({error})" if error.errno == errno.ENOSPC else str(error)
        _failed(recorder, main, reason)
        raise
    except KeyboardInterrupt:
        _failed(recorder, main, "interrupted from the keyboard", state="stopped")
        raise
    except BaseException as error:
        _failed(recorder, main, str(error) or type(error).__name__)
        raise


def _failed(recorder: RunRecorder, main: bool, reason: str, state: str = "failed") -> None:
    if main:
        recorder.run.write_last_status(state=state, reason=reason, **recorder.summary())


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _out_of_memory(config: GameLoraConfig) -> str:
    rows = rows_at_once(config, processes().num_processes)
    changes = [f"--set {name}={str(value).lower()}" for name, value in less_memory(config, processes().num_processes).items()]
    remedy = "start a new run with a smaller seq_len or dtype bfloat16"
    if changes:
        remedy = f"resume with {' '.join(changes)}, which does not change the update"
    return f"out of memory with {rows} row{'s' if rows > 1 else ''} of {config.seq_len} tokens at once: {remedy}."
