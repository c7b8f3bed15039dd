"""GameLoraTrainer: transformers' Trainer with the gradients of method.md section 4.

Accumulation, schedulers, mixed precision, checkpointing, trackers and Accelerate are the library's. What differs is how one
optimizer step gets its gradient:

- together: between two bargains one backward pass of the weighted sum. The gradient of Barlow Twins enters the graph at the
  head outputs, so it rides along with the cross-entropy's; the barrier depends on the output projections alone and is
  differentiated once at the end of the step.
- apart: when weights are due, each task's own gradient. Barlow Twins goes backward from the design layer down, the
  cross-entropy from the top; J, its Gramian and the new weights follow. With several design layers every step is like this:
  in one pass the upper layer's Barlow Twins would reach the lower one and pass there for eta.

The forward pass goes through the bare model and not through DistributedDataParallel: task gradients, moments and correlations
are added over processes here, once a step, so that several processes give the update of one.
"""

from __future__ import annotations

import itertools
import logging
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from analysis.heads import AttentionLayer, attention_layers
from analysis.interaction import causal_loss, prediction_targets
from analysis.measurement import measure_interaction
from analysis.models import LoadedModel
from gamelora.arbiter import Arbiter
from gamelora.checkpoints import read_state, write_state, writing_checkpoint
from gamelora.config import GameLoraConfig
from gamelora.data import TrainingText, collate
from gamelora.objectives import DesignLayers
from gamelora.task_gradients import TaskGradients, gramian

logger = logging.getLogger(__name__)

MOST_SKIPPED_IN_A_ROW = 10


@dataclass
class _Step:
    """One optimizer step in the making.

    Attributes
    ----------
    index : optimizer steps done before it.
    batches : micro-batches of this process.
    predictions, tokens : valid predictions and valid tokens, over all processes and micro-batches.
    apart : whether each task's gradient is kept by itself.
    decorrelation : the gradient of L_BT at the head outputs, by micro-batch; None until it is known.
    ce : cross-entropy so far, this process's part of the mean.
    bad : tasks whose gradient is not finite.
    """

    index: int
    batches: list[Mapping[str, Tensor]]
    predictions: int
    tokens: int
    apart: bool
    started: float = field(default_factory=time.perf_counter)
    done: int = 0
    decorrelation: list[dict[int, Tensor]] | None = None
    ce: Tensor | float = 0.0
    bad: list[str] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


class GameLoraTrainer(Trainer):
    """Trains the adapter of `loaded.model` on `text` as `config` says.

    Attributes
    ----------
    design : the design layers and their losses.
    arbiter : the weights of the tasks.
    notes : what a person should know about this run, in words, as it happened.
    """

    def __init__(
        self,
        config: GameLoraConfig,
        loaded: LoadedModel,
        design_layers: Sequence[AttentionLayer],
        text: TrainingText,
        args: TrainingArguments,
        **options: Any,
    ) -> None:
        super().__init__(
            model=loaded.model,
            args=args,
            train_dataset=text.rows,
            eval_dataset=text.held_out,
            data_collator=collate,
            **options,
        )
        self.remove_callback(PrinterCallback)  # 30 numbers a step belong into metrics.jsonl
        self.config, self.loaded, self.text = config, loaded, text
        self.design = DesignLayers(design_layers, config, self._total if self.accelerator.num_processes > 1 else None)
        self.arbiter = Arbiter(config)
        self.notes: list[str] = []
        self.skipped_steps = 0
        self._skipped_in_a_row = 0
        self._reached_all = False
        self._gradients = TaskGradients(self.model)
        self._step: _Step | None = None
        self._partial_folder: str | None = None

    # --- one optimizer step ---------------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The micro-batches of one optimizer step; here, because the step is planned when all of them are known."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        counts = torch.zeros(2, dtype=torch.float64 if device.type != "mps" else torch.float32, device=device)
        for batch in batches:
            mask = batch.get("attention_mask")
            valid = batch["input_ids"].numel() if mask is None else mask.sum()
            counts += torch.stack([(prediction_targets(batch) != -100).sum(), torch.as_tensor(valid, device=device)]).to(device)
        predictions, tokens = self._total(counts).tolist()
        index = self.state.global_step
        several_layers = len(self.design.layers) > 1 and "bt" in self.arbiter.tasks
        self._step = _Step(index, batches, int(predictions), int(tokens), self.arbiter.due(index) or several_layers)
        self.design.begin()
        return batches, items

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> None:
        """Not Trainer's count, which takes its own rule for labels and needs them in every batch."""

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; the last one of a step also leaves the step's gradient.

        Returns this micro-batch's part of the mean cross-entropy.
        """
        step = self._step
        self.model.train()
        inputs = self._prepare_inputs(inputs)
        decorrelates = "bt" in self.arbiter.tasks
        if decorrelates and len(step.batches) > 1 and step.done == 0:
            self._decorrelate(step, [self._look_ahead(number, batch) for number, batch in enumerate(step.batches)])
        self._seed_dropout(step.index, step.done)
        with self.design.watch(inputs) as outputs:
            losses, _ = causal_loss(self.model, inputs)
        loss = losses.sum() / max(step.predictions, 1)
        if decorrelates and step.decorrelation is None:
            self._decorrelate(step, [outputs])
        if self.config.arbitration == "linear" and step.done == 0:
            self.arbiter.sum_up(step.index, {"bt": step.metrics.get("scale/bt", 1.0)})
        self._backward(step, loss, outputs, step.decorrelation[step.done] if decorrelates else {})
        step.ce = step.ce + loss.detach()
        step.done += 1
        if step.done == len(step.batches):
            self._finish(step)
        return loss.detach() * self.accelerator.num_processes  # Trainer takes the mean over processes

    def _seed_dropout(self, index: int, number: int) -> None:
        """Dropout depends on seed, step, micro-batch and process alone: resumed runs and the pass ahead draw the same."""
        sequence = np.random.SeedSequence([self.config.seed, index, number, self.accelerator.process_index])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def _look_ahead(self, number: int, batch: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Head outputs of a micro-batch at the design layers, from a pass that goes no further and keeps no graph."""
        batch = self._prepare_inputs(dict(batch))
        self._seed_dropout(self._step.index, number)
        with torch.no_grad(), self.design.watch(batch, ahead=True) as outputs:
            causal_loss(self.model, batch)
        return {index: z.clone() for index, z in outputs.items()}

    def _decorrelate(self, step: _Step, outputs: list[Mapping[int, Tensor]]) -> None:
        """L_BT over all tokens of the step and its gradient at the head outputs of each micro-batch."""
        together = {layer.index: torch.cat([part[layer.index].detach() for part in outputs]) for layer in self.design.layers}
        step.losses["bt"], gradients = self.design.decorrelation(together, step.tokens)
        step.metrics["scale/bt"] = self.design.scale_of_decorrelation(step.losses["bt"])
        cuts = {index: gradient.split([len(part[index]) for part in outputs]) for index, gradient in gradients.items()}
        step.decorrelation = [{index: parts[number] for index, parts in cuts.items()} for number in range(len(outputs))]
        if step.tokens < 2:
            step.metrics["skipped/bt"] = 1.0

    def _backward(self, step: _Step, loss: Tensor, outputs: Mapping[int, Tensor], decorrelation: Mapping[int, Tensor]) -> None:
        """Leaves the micro-batch's gradients with their tasks (apart) or, weighted, in `.grad` (together)."""
        entries = []
        if self.arbiter.powers(step.index).get("bt"):
            at = [(outputs[index], gradient) for index, gradient in decorrelation.items() if outputs[index].requires_grad]
            entries = [(z, gradient.to(z.dtype)) for z, gradient in at]
        if step.apart:
            if entries:
                torch.autograd.backward(*zip(*entries, strict=True), retain_graph=True)
                self._gradients.collect("bt")
            with self.design.measuring_eta():
                loss.backward()
            self._gradients.collect("ce")
            return
        weights = self.arbiter.weights
        roots, seeds = [loss], [torch.full_like(loss, weights["ce"])]
        for z, gradient in entries if weights.get("bt") else []:
            roots.append(z)
            seeds.append(weights["bt"] * gradient)
        with self.design.measuring_eta():
            torch.autograd.backward(roots, seeds)

    # --- the end of a step ----------------------------------------------------------------------------------------

    def _finish(self, step: _Step) -> None:
        """From what the micro-batches left behind to the gradient that the optimizer sees."""
        powers, previous = self.arbiter.powers(step.index), dict(self.design.G)
        barrier = self._barrier_gradient(step, bool(powers.get("ldb")))
        if step.apart:
            self._gradients.put("ldb", barrier)
        self._check_all_reached()
        step.losses["ce"] = float(self._total(torch.as_tensor(step.ce, device=self.args.device)))
        gradient = self._combine_apart(step) if step.apart else self._combine_together(step, barrier)
        self._gradients.clear()
        step.bad = step.bad or [task for task, power in powers.items() if power and not np.isfinite(step.losses[task])]
        if step.bad:
            self.design.G = previous
            self._skip(step)
        else:
            self._skipped_in_a_row = 0
            self._gradients.assign(gradient)
        self._describe(step, powers)

    def _barrier_gradient(self, step: _Step, wanted: bool) -> list[Tensor | None]:
        """Sets the step's G; the gradient of L_LDB, the same on every process."""
        with torch.set_grad_enabled(wanted):
            loss = self.design.barrier()
        step.losses["ldb"] = loss.item()
        if not wanted:
            return [None] * len(self._gradients.parameters)
        return list(torch.autograd.grad(loss, self._gradients.parameters, allow_unused=True))

    def _combine_apart(self, step: _Step) -> Tensor:
        """New weights from the Gramian of the task gradients, then their weighted sum."""
        tasks = self.arbiter.tasks
        jacobian = self._gradients.jacobian(tasks)  # [tasks, trainable numbers]
        mine = [position for position, task in enumerate(tasks) if task != "ldb"]
        jacobian[mine] = self._total(jacobian[mine])
        M = gramian(jacobian)
        step.bad = [task for task, square in zip(tasks, np.diag(M), strict=True) if not np.isfinite(square)]
        if not step.bad:
            self._arbitrate(step, M)
        return jacobian.new_tensor([self.arbiter.weights[task] for task in tasks]) @ jacobian

    def _arbitrate(self, step: _Step, M: np.ndarray) -> None:
        tasks = self.arbiter.tasks
        if self.config.arbitration == "nash" and self.arbiter.due(step.index):
            outcome = self.arbiter.bargain(M, step.index)
            step.metrics[f"bargain/{outcome}"] = 1.0
            if outcome in ("failed", "opposed"):
                logger.warning("step %d: the bargain was not solved (%s); Gramian %s", step.index + 1, outcome, M.tolist())
        norms = np.sqrt(np.diag(M))
        step.metrics |= {f"gradient_norm/{task}": float(norm) for task, norm in zip(tasks, norms, strict=True)}
        for row, column in itertools.combinations(range(len(tasks)), 2):
            if norms[row] and norms[column]:
                step.metrics[f"cosine/{tasks[row]}_{tasks[column]}"] = float(M[row, column] / (norms[row] * norms[column]))

    def _combine_together(self, step: _Step, barrier: list[Tensor | None]) -> Tensor:
        """The weighted sum that the backward passes left in `.grad`, and the barrier's part."""
        flat = self._total(self._gradients.flat([parameter.grad for parameter in self._gradients.parameters]))
        if any(part is not None for part in barrier):
            flat.add_(self._gradients.flat(barrier), alpha=self.arbiter.weights["ldb"])
        if not flat.norm().isfinite():
            step.bad = [task for task in self.arbiter.tasks if not np.isfinite(step.losses[task])] or ["the weighted sum"]
        return flat

    def _total(self, tensor: Tensor) -> Tensor:
        return self.accelerator.reduce(tensor, "sum") if self.accelerator.num_processes > 1 else tensor

    def _check_all_reached(self) -> None:
        """Stop before the first update when a trainable tensor cannot learn: the loss would fall and nobody would notice."""
        if self._reached_all:
            return
        unreached = self._gradients.unreached()
        if unreached:
            raise ValueError(
                f"{len(unreached)} of {len(self._gradients.names)} trainable tensors got no gradient from any loss, such as "
                f"{unreached[0]}: the backward pass does not reach them. Use gradient checkpointing without reentry "
                "(use_reentrant=False), and target_modules that the model's forward pass uses."
            )
        self._reached_all = True

    def _skip(self, step: _Step) -> None:
        """No update: without gradients AdamW leaves the parameters as they are."""
        self._gradients.assign(None)
        self.arbiter.unsettle()
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        step.metrics["skipped"] = 1.0
        names = ", ".join(step.bad)
        self._note(f"Step {step.index + 1} was skipped: the gradient of {names} was not finite.")
        if self._skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise ValueError(
                f"the gradient of {names} was not finite in {MOST_SKIPPED_IN_A_ROW} steps in a row, up to step {step.index + 1}. "
                "Use a smaller learning_rate, or autocast float32."
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            logger.warning(text)

    def _describe(self, step: _Step, powers: Mapping[str, float]) -> None:
        """The step's line in metrics.jsonl."""
        gap = step.losses["ldb"] - self.design.floor
        step.metrics |= {f"loss/{task}": loss for task, loss in step.losses.items()} | {"gap/ldb": gap}
        step.metrics |= {f"lambda/{task}": power for task, power in powers.items() if task != "ce"}
        step.metrics |= {f"weight/{task}": weight for task, weight in self.arbiter.weights.items()}
        step.metrics |= {f"gamma/L{index}": gamma for index, gamma in self.design.gamma().items()}
        blind = self.design.blind_layers()
        if step.index == 0 and blind and len(self.arbiter.tasks) > 1:
            which, other = (
                ("paper's", "use the invariant one") if self.config.coupling == "paper" else ("invariant", "choose another layer")
            )
            layers = f"layer{'s' if len(blind) > 1 else ''} {', '.join(map(str, blind))}"
            self._note(f"The barrier starts at its floor: the {which} coupling sees no interaction in {layers}; {other}.")

    # --- logs, evaluation, checkpoints ----------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's logs with the step's own numbers; not kept in the trainer's state, metrics.jsonl holds them."""
        step = self._step
        if "loss" in logs and step is not None:
            seconds = time.perf_counter() - step.started
            logs |= step.metrics | {"tokens_per_second": step.tokens / seconds, "peak_memory": float(self.peak_memory())}
        super().log(logs, start_time)
        self.state.log_history.clear()

    def peak_memory(self) -> int:
        """Most memory so far, bytes: allocated on the GPU, or resident for a process on the CPU."""
        if self.args.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.args.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Held-out cross-entropy (nats per token) and Gamma of all layers under both couplings, from one pass."""
        layers = attention_layers(self.model)
        measured = LoadedModel(self.model, None, layers, self.loaded.provenance)
        result = measure_interaction(measured, self.text.held_out, self.args.per_device_train_batch_size, "invariant")
        metrics = {f"{metric_key_prefix}_loss": result.cross_entropy}
        for coupling in result.couplings:
            gammas = zip(result.layers, result.view(coupling).gamma, strict=True)
            metrics |= {f"{metric_key_prefix}_gamma_{coupling}/L{index}": float(gamma) for index, gamma in gammas}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _get_output_dir(self, trial: Any) -> str:
        """The folder that checkpoints are written to: one that nobody reads, while a checkpoint is in the making."""
        return self._partial_folder or super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Trainer's checkpoint, visible only when it is complete, with the state of the objectives beside the optimizer's."""
        name = f"checkpoint-{self.state.global_step}"
        with writing_checkpoint(self.args.output_dir, name, self.config.keep_checkpoints, self.accelerator) as folder:
            self._partial_folder = str(folder)
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._partial_folder = None
            if self.accelerator.is_main_process:
                write_state(folder / name, self._state())

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """The adapter alone, as PEFT saves it; without Trainer's pickled arguments."""
        if self.args.should_save:
            self.model.save_pretrained(output_dir, state_dict=state_dict, save_embedding_layers=False)

    def _state(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "model_sha256": self.loaded.provenance["model"]["sha256"],
            "arbiter": self.arbiter.state(),
            "design": self.design.state(),
            "skipped_steps": self.skipped_steps,
            "notes": self.notes,
        }

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Trainer's checkpoint and the state of the objectives."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        state = read_state(resume_from_checkpoint)
        self.arbiter.load_state(state["arbiter"])
        self.design.load_state(state["design"])
        self.skipped_steps = state["skipped_steps"]
        self.notes[:0] = state["notes"]
