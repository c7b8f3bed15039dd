"""The gradients of several tasks over the same trainable parameters, as rows of one Jacobian."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn


class TaskGradients:
    """Keeps the gradient of each task of one optimizer step, over the trainable parameters of a model.

    Attributes
    ----------
    names, parameters : the trainable parameters, in the model's order.
    """

    def __init__(self, model: nn.Module) -> None:
        trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.names = [name for name, _ in trainable]
        self.parameters = [parameter for _, parameter in trainable]
        self._rows: dict[str, list[Tensor | None]] = {}

    def clear(self) -> None:
        """Forget every task's gradient."""
        self._rows = {}

    def collect(self, task: str) -> None:
        """Move what a backward pass left in `.grad` to a task, adding to what it has."""
        row = self._rows.setdefault(task, [None] * len(self.parameters))
        for position, parameter in enumerate(self.parameters):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                row[position] = gradient if row[position] is None else row[position].add_(gradient)

    def put(self, task: str, gradients: Sequence[Tensor | None]) -> None:
        """Set a task's gradient, one tensor a parameter; None where the task does not reach it."""
        self._rows[task] = list(gradients)

    def jacobian(self, tasks: Sequence[str]) -> Tensor:
        """J, float32 [tasks, trainable numbers]; zeros where a task reaches nothing."""
        empty = [None] * len(self.parameters)
        return torch.stack([self.flat(self._rows.get(task, empty)) for task in tasks])

    def flat(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """One tensor a parameter to one vector, float32 [trainable numbers]."""
        parts = zip(gradients, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(like) if part is None else part).float().flatten() for part, like in parts])

    def unreached(self) -> list[str]:
        """Names of the parameters that no task's backward pass reached, nor left a gradient in `.grad`."""
        columns = zip(*self._rows.values(), [parameter.grad for parameter in self.parameters], strict=True)
        return [name for name, column in zip(self.names, columns, strict=True) if all(part is None for part in column)]

    def assign(self, flat: Tensor | None) -> None:
        """Set every parameter's `.grad` from one vector; None clears them, so that an optimizer leaves the parameters be."""
        if flat is None:
            for parameter in self.parameters:
                parameter.grad = None
            return
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)


def gramian(jacobian: Tensor) -> np.ndarray:
    """M = J J^T in float64, [tasks, tasks]."""
    total = np.zeros((len(jacobian), len(jacobian)))
    for part in jacobian.split(1 << 20, dim=1):  # bounds the float64 copy
        part = part.double() if part.device.type != "mps" else part.cpu().double()  # MPS has no float64
        total += (part @ part.T).cpu().numpy()
    return total
