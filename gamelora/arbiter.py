"""The weights of the task gradients over a run: renewed by bargaining every few steps, kept in between, counted and saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gamelora.config import GameLoraConfig
from gamelora.nash import arbitrate
from gamelora.schedule import ramp

OUTCOMES = ("solved", "alone", "opposed", "failed")


class Arbiter:
    """Decides how much each task's gradient counts (method.md section 4).

    Attributes
    ----------
    tasks : cross-entropy first, as `GameLoraConfig.objectives`.
    weights : the weights in force, by task.
    outcomes : how often a bargain ended in each of `OUTCOMES`.
    zero_gradients : how often a task left the bargain because its gradient was zero, by task.
    """

    def __init__(self, config: GameLoraConfig) -> None:
        self.config = config
        self.tasks = config.objectives
        self.weights = {task: 1.0 if task == "ce" else 0.0 for task in self.tasks}
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.zero_gradients = dict.fromkeys(self.tasks, 0)
        self._settled_for: tuple[str, ...] | None = None  # the tasks with power when the weights were set

    def powers(self, step: int) -> dict[str, float]:
        """Bargaining powers before optimizer step `step`, counted from 0: 1 for the cross-entropy, lambda(t) for the others."""
        config = self.config
        factor = ramp(step / config.steps, config.lambda_warmup, config.lambda_decay_start)
        full = {"ce": 1.0, "ldb": config.lambda_ldb * factor, "bt": config.lambda_bt * factor}
        return {task: full[task] for task in self.tasks}

    def due(self, step: int) -> bool:
        """Whether this step needs each task's own gradient: every `update_weights_every` steps, and when a task joins."""
        if len(self.tasks) == 1:
            return False
        return step % self.config.update_weights_every == 0 or self._active(step) != self._settled_for

    def _active(self, step: int) -> tuple[str, ...]:
        return tuple(task for task, power in self.powers(step).items() if power > 0)

    def bargain(self, gramian: np.ndarray, step: int) -> str:
        """Set the weights from the Gramian of the task gradients, [tasks, tasks]; returns the outcome."""
        result = arbitrate(gramian, list(self.powers(step).values()))
        self.weights = dict(zip(self.tasks, result.weights.tolist(), strict=True))
        self.outcomes[result.outcome] += 1
        for task in result.zero:
            self.zero_gradients[self.tasks[task]] += 1
        self._settled_for = self._active(step)
        return result.outcome

    def sum_up(self, step: int, scales: Mapping[str, float]) -> None:
        """Set the weights of the plain weighted sum: lambda times the scale of the loss, such as that of its average."""
        self.weights = {task: power * scales.get(task, 1.0) for task, power in self.powers(step).items()}
        self._settled_for = self._active(step)

    def unsettle(self) -> None:
        """Ask for each task's own gradient in the next step, to find out which one is not finite."""
        self._settled_for = None

    @property
    def kind(self) -> str:
        """What this run may call itself: "none", "linear", "nash" once a bargain was solved, and "unsolved" before."""
        if len(self.tasks) == 1:
            return "none"
        if self.config.arbitration == "linear":
            return "linear"
        return "nash" if self.outcomes["solved"] else "unsolved"

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, JSON-ready and exact."""
        settled = None if self._settled_for is None else list(self._settled_for)
        counts = {"outcomes": self.outcomes, "zero_gradients": self.zero_gradients}
        return {"weights": self.weights, "settled_for": settled, **counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `state` returned."""
        self.weights = dict(state["weights"])
        self.outcomes, self.zero_gradients = dict(state["outcomes"]), dict(state["zero_gradients"])
        self._settled_for = None if state["settled_for"] is None else tuple(state["settled_for"])
