"""The design layers during one optimizer step: what they show to the losses, and the losses made of it.

Exact however the batch is cut. The barrier needs eta only through its second moment, which every backward pass of the
cross-entropy adds to. Barlow Twins needs the correlation over all tokens of the step before any of its gradients: with one
micro-batch that is at hand after the forward pass; with several, a pass without gradients up to the last design layer goes
ahead (`GameLoraTrainer`). Its pair weights use the G measured in the step before, so that nothing waits for a backward pass;
lambda is 0 in the first step of a warm-up, and without one the weights of an uncoupled pair start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from analysis.heads import AttentionLayer, head_outputs
from analysis.interaction import interaction_strength
from gamelora.config import GameLoraConfig
from gamelora.losses import Reduce, barlow_twins, barrier_floor, interaction_from_moment, log_det_barrier, pair_weights
from gamelora.schedule import moving_average

# A barrier below this mean square of the off-diagonal G sees no interaction: omega alone is noise of about this size.
NO_INTERACTION = 1e-4


def default_design_layer(layers: Sequence[AttentionLayer], n_layers: int) -> int:
    """round(19/24 * n_layers), as the paper's 19 of 24; in a hybrid model the attention layer nearest to it."""
    return design_layer_among([layer.index for layer in layers], n_layers)


def design_layer_among(indices: Sequence[int], n_layers: int) -> int:
    """The default design layer among attention layers given by their index."""
    wanted = round(19 / 24 * n_layers)
    return min(indices, key=lambda index: (abs(index - wanted), index))


class _FarEnough(Exception):
    """Ends a forward pass at the layer that was asked for."""


def _stop(_module: Any, _inputs: Any) -> None:
    raise _FarEnough


class DesignLayers:
    """The layers that both regularizers act on.

    Attributes
    ----------
    layers : the design layers, lowest first.
    G : layer index -> head interaction matrix of the latest step, float32 [n_heads, n_heads].
    average : moving average of L_BT, None before the first.
    """

    def __init__(self, layers: Sequence[AttentionLayer], config: GameLoraConfig, reduce: Reduce | None = None) -> None:
        self.layers = sorted(layers, key=lambda layer: layer.index)
        self.config = config
        self.reduce = reduce
        self.G: dict[int, Tensor] = {}
        self.average: float | None = None
        self._moments: dict[int, Tensor] = {}
        self._measuring = False

    # --- what the passes leave behind -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the moments of the step before."""
        self._moments = {}

    @contextlib.contextmanager
    def watch(self, batch: Mapping[str, Tensor], ahead: bool = False) -> Iterator[dict[int, Tensor]]:
        """Around one forward pass: yields layer index -> head outputs z at the valid tokens, [tokens, n_heads * d_head].

        z hangs on the graph of that pass, so a gradient may enter the backward pass there. The gradient that reaches the
        layer's output inside `measuring_eta` adds to the moment of eta. A recomputation by gradient checkpointing falls
        outside the block and is not seen.

        Parameters
        ----------
        ahead : no backward pass follows this one, which ends at the last design layer.

        Raises
        ------
        ValueError
            When the backward pass would not reach a design layer.
        """
        valid = batch["attention_mask"].bool() if "attention_mask" in batch else None
        seen: dict[int, Tensor] = {}

        def keep(layer: AttentionLayer, z: Tensor) -> None:
            seen[layer.index] = _at(z, valid)

        def output(layer: AttentionLayer) -> Any:
            def hook(_module, _inputs, attention_output: Tensor) -> None:
                if not attention_output.requires_grad:
                    raise ValueError(
                        f"no gradient reaches design layer {layer.index}: gradient checkpointing with reentry cuts it off (use "
                        "use_reentrant=False), or nothing up to that layer is trained (choose a higher one)."
                    )
                attention_output.register_hook(lambda eta: self._add_moment(layer, _at(eta, valid)))

            return hook

        with contextlib.ExitStack() as hooks, head_outputs(self.layers, keep):
            if ahead:
                hooks.callback(self.layers[-1].projection.register_forward_pre_hook(_stop).remove)
            else:
                for layer in self.layers:
                    hooks.callback(layer.projection.register_forward_hook(output(layer)).remove)
            with contextlib.suppress(_FarEnough):
                yield seen

    @contextlib.contextmanager
    def measuring_eta(self) -> Iterator[None]:
        """Inside the block a backward pass is the cross-entropy's own, and its gradients count as eta."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def _add_moment(self, layer: AttentionLayer, eta: Tensor) -> None:
        if not self._measuring:
            return
        moment = self._moments.setdefault(layer.index, eta.new_zeros(layer.d_model, layer.d_model, dtype=torch.float32))
        for part in eta.split(4096):  # bounds the float32 copy
            part = part.float()
            moment.addmm_(part.T, part)

    # --- the losses -----------------------------------------------------------------------------------------------

    def barrier(self) -> Tensor:
        """L_LDB at the weights of now and the eta of this step, mean over the design layers; sets `G`.

        Differentiable in the output projections' adapters. The same on every process.
        """
        losses = []
        for layer in self.layers:
            moment = self._moments[layer.index]
            moment = moment if self.reduce is None else self.reduce(moment)
            G = interaction_from_moment(layer.head_weights(), moment, self.config.coupling)
            self.G[layer.index] = G.detach()
            losses.append(log_det_barrier(G, self.config.epsilon))
        return torch.stack(losses).mean()

    def decorrelation(self, outputs: Mapping[int, Tensor], tokens: int) -> tuple[float, dict[int, Tensor]]:
        """L_BT, mean over the design layers, and its gradient at the head outputs.

        Parameters
        ----------
        outputs : layer index -> z of this process, [its tokens, n_heads * d_head].
        tokens : valid tokens over all processes.
        """
        value, gradients = torch.zeros(()), {}
        for layer in self.layers:
            z = outputs[layer.index].detach().requires_grad_(True)
            with torch.enable_grad():
                target = "zero" if self.config.method == "naive" else "identity"
                loss = barlow_twins(z, self._pair_weights(layer, z.device), target, tokens, self.reduce) / len(self.layers)
                (gradients[layer.index],) = torch.autograd.grad(loss, z)
            value = value.to(loss.device) + loss.detach()
        return value.item(), gradients

    def _pair_weights(self, layer: AttentionLayer, device: torch.device) -> Tensor:
        if self.config.method == "naive":
            return torch.ones(layer.n_heads, layer.n_heads, device=device)
        G = self.G.get(layer.index, torch.eye(layer.n_heads)).to(device)
        return pair_weights(G, self.config.bt_a, self.config.bt_b, self.config.bt_tau)

    def scale_of_decorrelation(self, value: float) -> float:
        """Takes L_BT of this step into its moving average, and returns the factor that brings the average to `bt_target`."""
        if value > 0 and value < float("inf"):
            self.average = moving_average(self.average, value, self.config.bt_decay)
        return self.config.bt_target / self.average if self.average else 1.0

    # --- what is said about them ----------------------------------------------------------------------------------

    @property
    def floor(self) -> float:
        """The barrier's minimum, mean over the design layers."""
        return sum(barrier_floor(layer.n_heads, self.config.epsilon) for layer in self.layers) / len(self.layers)

    def gamma(self) -> dict[int, float]:
        """Layer index -> Gamma(G) of the latest step."""
        return {index: interaction_strength(G).item() for index, G in self.G.items()}

    def blind_layers(self) -> list[int]:
        """Design layers in which G is the identity up to noise, so that the barrier has nothing to act on."""
        pairs = {layer.index: max(layer.n_heads * (layer.n_heads - 1), 1) for layer in self.layers}
        return [index for index, gamma in self.gamma().items() if gamma**2 / pairs[index] < NO_INTERACTION]

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, JSON-ready and exact."""
        return {"average": self.average, "G": {str(index): G.tolist() for index, G in self.G.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `state` returned."""
        self.average = state["average"]
        self.G = {int(index): torch.tensor(G) for index, G in state["G"].items()}


def _at(values: Tensor, valid: Tensor | None) -> Tensor:
    """[rows, seq_len, width] -> [valid tokens, width]."""
    return values.flatten(0, 1) if valid is None else values[valid.to(values.device)]
