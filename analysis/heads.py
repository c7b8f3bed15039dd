"""Where each architecture keeps its heads.

Head i of a layer writes z_{i,t} in R^{d_h} into the input of the layer's output projection, which sends it to the residual
stream through W_i, the head's own d x d_h block of the projection's weight (method.md section 1). To add an architecture,
add its attention class to `OUTPUT_PROJECTION`; tests/test_heads.py then checks that the blocks add up to the module.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from accelerate.utils import align_module_device
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

# attention class -> attribute that holds its output projection
OUTPUT_PROJECTION = {
    "LlamaAttention": "o_proj",
    "Qwen2Attention": "o_proj",
    "Qwen3Attention": "o_proj",
    "MistralAttention": "o_proj",
    "GemmaAttention": "o_proj",
    "Gemma2Attention": "o_proj",
    "Gemma3Attention": "o_proj",
    "Phi3Attention": "o_proj",
    "PhiAttention": "dense",
    "GPT2Attention": "c_proj",
    "GPTNeoXAttention": "dense",
    "OPTAttention": "out_proj",
    "FalconAttention": "dense",
    "Lfm2Attention": "out_proj",
}


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer of a model: its true index, and where its heads write.

    Attributes
    ----------
    index : the layer's index in the model's own code, counted from 0.
    name : the attention module's path in the model.
    projection : the output projection as it stands in the model, a PEFT layer when an adapter sits on it.
    n_heads, n_kv_heads : query heads and key/value heads.
    d_head, d_model : width of z_i (the projection's input width / n_heads) and of the residual stream.
    """

    index: int
    name: str
    projection: nn.Module
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int

    def head_weights(self) -> Tensor:
        """The effective W_i of every head, float32, [n_heads, d_model, d_head]; carries gradients to the adapter."""
        weight = effective_weight(self.projection)  # [d_model, n_heads * d_head]
        return weight.unflatten(1, (self.n_heads, self.d_head)).transpose(0, 1)

    def split_heads(self, z: Tensor) -> Tensor:
        """[..., n_heads * d_head] at the projection's input -> [..., n_heads, d_head]."""
        return z.unflatten(-1, (self.n_heads, self.d_head))


def head_name(layer: int, head: int) -> str:
    """The name of a head everywhere: L3H7 is head 7 of layer 3, both counted from 0."""
    return f"L{layer}H{head}"


def kv_groups(n_heads: int, n_kv_heads: int) -> list[int]:
    """The kv group of each query head: head h shares its values with the heads of group h // (n_heads / n_kv_heads)."""
    return [head // (n_heads // n_kv_heads) for head in range(n_heads)]


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The attention layers of a causal language model in order, under their true indices.

    A hybrid model's other layers (convolution, state space) are not listed.

    Raises
    ------
    ValueError
        When an attention module is of a class that `OUTPUT_PROJECTION` does not know, or when there is none.
    """
    layers, unknown = [], set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        position = re.search(r"\.(\d+)\.", f".{name}.")
        if not kind.endswith("Attention") or position is None or getattr(module, "is_cross_attention", False):
            continue
        if kind not in OUTPUT_PROJECTION:
            unknown.add(kind)
            continue
        layers.append(_describe(int(position.group(1)), name, module, OUTPUT_PROJECTION[kind]))
    if unknown or not layers:
        found = ", ".join(sorted(unknown)) or "no attention module"
        raise ValueError(
            f"{type(model).__name__} holds {found}, and it is not known where such a module keeps its heads. Supported: "
            f"{', '.join(OUTPUT_PROJECTION)}. To add one, add its class and its output projection to "
            "OUTPUT_PROJECTION in analysis/heads.py."
        )
    return sorted(layers, key=lambda layer: layer.index)


def _describe(index: int, name: str, module: nn.Module, attribute: str) -> AttentionLayer:
    projection = getattr(module, attribute)
    d_model, width = _weight_shape(_base_layer(projection))
    n_heads = module.config.num_attention_heads
    if width % n_heads:
        raise ValueError(f"{name}.{attribute} takes {width} inputs, which {n_heads} heads cannot share evenly.")
    return AttentionLayer(index, name, projection, n_heads, _n_kv_heads(module.config), width // n_heads, d_model)


def _n_kv_heads(config) -> int:
    if config.model_type == "falcon":
        if config.new_decoder_architecture:
            return config.num_kv_heads
        return 1 if config.multi_query else config.num_attention_heads
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _base_layer(projection: nn.Module) -> nn.Module:
    return projection.get_base_layer() if isinstance(projection, BaseTunerLayer) else projection


def _weight_shape(base: nn.Module) -> tuple[int, int]:
    """(outputs, inputs), also when the stored weight is transposed (GPT-2) or packed (quantized)."""
    if isinstance(base, Conv1D):
        return base.nf, base.nx
    return base.out_features, base.in_features


def effective_weight(projection: nn.Module) -> Tensor:
    """What the output projection does to its input, bias aside: float32, [d_model, n_heads * d_head].

    The base weight plus the delta of the active LoRA adapters, equal to the merged model's weight and differentiable with
    respect to the adapter. GPT-2's Conv1D stores its weight transposed, so its heads are rows there and columns here.

    Raises
    ------
    ValueError
        For an adapter whose delta is not one matrix (aLoRA, Arrow and other token-dependent variants, or not LoRA).
    """
    base = _base_layer(projection)
    with contextlib.ExitStack() as parts:
        for part in projection.modules():  # brings what Accelerate keeps elsewhere, the adapter's parts too
            parts.enter_context(align_module_device(part))
        weight = dequantize_module_weight(base).float()
        weight = weight.T if isinstance(base, Conv1D) else weight
        if isinstance(projection, BaseTunerLayer) and not projection.disable_adapters and not projection.merged:
            weight = _with_adapters(projection, weight)
    return weight


def _with_adapters(projection: BaseTunerLayer, weight: Tensor) -> Tensor:
    if not isinstance(projection, LoraLayer):
        raise ValueError(f"the adapter layer {type(projection).__name__} is not supported: LoRA, rsLoRA and DoRA are.")
    delta = torch.zeros_like(weight)
    for adapter in projection.active_adapters:
        if adapter not in projection.lora_A:
            continue
        lora_a, lora_b = projection.lora_A[adapter].weight.float(), projection.lora_B[adapter].weight.float()
        low_rank = projection.scaling[adapter] * (lora_b @ lora_a)  # [d_model, n_heads * d_head]
        if adapter in projection.lora_variant:
            low_rank = _dora_delta(projection, adapter, weight, low_rank)
        delta = delta + low_rank
    return weight + delta


def _dora_delta(projection: LoraLayer, adapter: str, weight: Tensor, low_rank: Tensor) -> Tensor:
    """DoRA (arXiv 2402.09353) rescales each output row of W + BA to a learned magnitude; the norm carries no gradient."""
    variant = type(projection.lora_variant[adapter]).__name__
    if variant != "DoraLinearVariant":
        raise ValueError(f"the LoRA variant {variant} is not one matrix per layer: plain LoRA, rsLoRA and DoRA are.")
    directed = weight + low_rank
    magnitude = projection.lora_magnitude_vector[adapter].weight.float()
    return (magnitude / directed.norm(dim=1).detach())[:, None] * directed - weight


@contextlib.contextmanager
def head_outputs(layers: Sequence[AttentionLayer], visit: Callable[[AttentionLayer, Tensor], Tensor | None]) -> Iterator:
    """Call `visit(layer, z)` with z [batch, seq_len, n_heads * d_head] at every forward pass inside the block.

    A tensor that `visit` returns takes the place of z. The hooks are gone after the block, also after an exception.
    """
    with contextlib.ExitStack() as hooks:
        for layer in layers:

            def hook(_module, inputs, layer=layer):
                replaced = visit(layer, inputs[0])
                return None if replaced is None else (replaced, *inputs[1:])

            hooks.callback(layer.projection.register_forward_pre_hook(hook).remove)
        yield


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside the block no parameter takes a gradient and no module trains; afterwards every flag is as it was."""
    flags = [  # by name: Accelerate replaces an offloaded parameter at every forward pass
        (module, name, parameter.requires_grad)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.requires_grad_(False)
        model.eval()
        yield
    finally:
        for module, name, flag in flags:
            getattr(module, name).requires_grad_(flag)
        for module, mode in modes:
            module.training = mode
