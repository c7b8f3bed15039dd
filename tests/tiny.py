"""Tiny random models of every supported architecture, batches for them, and what the tests measure on them.

A model is seeded, float32 and in eval mode, with two attention layers of four heads; its biases are random, so that a bias
counted for a head, or left out, shows.
"""

import math

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.pytorch_utils import Conv1D

from analysis.heads import OUTPUT_PROJECTION, attention_layers
from analysis.interaction import Meter
from analysis.results import InteractionResult

VOCAB = 64

_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_MHA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **_SPECIAL,
}
_GQA = {**_MHA, "num_key_value_heads": 2}
_FALCON = {key: value for key, value in _MHA.items() if key not in ("intermediate_size", "max_position_embeddings")}

# architecture -> (config class, its settings)
ARCHITECTURES = {
    "llama": (LlamaConfig, _GQA),
    "qwen2": (Qwen2Config, _GQA),
    "qwen3": (Qwen3Config, {**_GQA, "hidden_size": 48, "head_dim": 24}),  # o_proj 96 -> 48
    "mistral": (MistralConfig, _GQA),
    "gemma": (GemmaConfig, {**_GQA, "head_dim": 16}),
    "gemma2": (Gemma2Config, {**_GQA, "head_dim": 16}),
    "gemma3": (Gemma3TextConfig, {**_GQA, "head_dim": 16}),
    "phi": (PhiConfig, _GQA),
    "phi3": (Phi3Config, _GQA),
    "gpt2": (GPT2Config, {"vocab_size": VOCAB, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, **_SPECIAL}),
    "gpt_neox": (GPTNeoXConfig, _MHA),
    "opt": (OPTConfig, {**_MHA, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon": (FalconConfig, {**_FALCON, "multi_query": True, "bias": True}),
    "falcon_new": (FalconConfig, {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "lfm2": (Lfm2Config, {**_GQA, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}),
}


def tiny_model(architecture: str = "llama", attention: str = "eager", seed: int = 0, **settings) -> PreTrainedModel:
    """A causal language model with random weights; `settings` replace those of `ARCHITECTURES`.

    Matrices are drawn at 1/sqrt(width), so that heads attend to something and gradients do not vanish, and the heads of a
    layer share a part of their output weights, so that G is far from the identity.
    """
    config_class, defaults = ARCHITECTURES[architecture]
    model = AutoModelForCausalLM.from_config(config_class(**{**defaults, **settings}), attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                width = parameter.numel() / max(parameter.shape)
                parameter.normal_(std=1 / math.sqrt(width), generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3, generator=generator)
        for layer in attention_layers(model):
            weight = layer.projection.weight.T if isinstance(layer.projection, Conv1D) else layer.projection.weight
            weight += weight[:, : layer.d_head].repeat(1, layer.n_heads)
    return model.float().eval()


def tiny_rows(rows: int = 3, seq_len: int = 10, seed: int = 0) -> torch.Tensor:
    """Random token ids [rows, seq_len] that hold no special token."""
    return torch.randint(3, VOCAB, (rows, seq_len), generator=torch.Generator().manual_seed(seed))


def padded_batch(rows: list[torch.Tensor], side: str = "right") -> dict[str, torch.Tensor]:
    """Token rows of different lengths as one batch, the padding (token 0) on one side and masked."""
    width = max(len(row) for row in rows)
    blank = [torch.zeros(width - len(row), dtype=torch.long) for row in rows]
    order = (lambda row, pad: torch.cat([row, pad])) if side == "right" else (lambda row, pad: torch.cat([pad, row]))
    ids = torch.stack([order(row, pad) for row, pad in zip(rows, blank, strict=True)])
    mask = torch.stack([order(torch.ones_like(row), pad) for row, pad in zip(rows, blank, strict=True)])
    return {"input_ids": ids, "attention_mask": mask}


def projection_name(model: torch.nn.Module) -> str:
    """What the model calls its output projection, a name for LoRA's `target_modules`."""
    return OUTPUT_PROJECTION[type(model.get_submodule(attention_layers(model)[0].name)).__name__]


def with_adapter(model: PreTrainedModel, seed: int = 0, **settings) -> PeftModel:
    """The model under a LoRA adapter on its output projections that changes them (B and the magnitudes are not zero)."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": [projection_name(model)], **settings}
    return randomize_adapter(get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings)), seed).eval()


def randomize_adapter(model: PeftModel, seed: int = 0) -> PeftModel:
    """Give every adapter tensor a seeded random value of the size that training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, LoraLayer):
                continue
            for part in (*module.lora_A.values(), *module.lora_B.values()):
                for parameter in part.parameters():
                    parameter.normal_(std=0.2, generator=generator)
            for magnitude in module.lora_magnitude_vector.values():
                magnitude.weight.mul_(1 + 0.3 * torch.rand(magnitude.weight.shape, generator=generator))
    return model


def measured(model, batches, couplings=("paper", "invariant"), gradient="token", **provenance) -> InteractionResult:
    """The result of measuring token rows [rows, seq_len], or batches, on a model; the rows of a batch are added up."""
    batches = [batch if isinstance(batch, dict) else {"input_ids": batch} for batch in batches]
    meter = Meter(model, couplings, gradient)
    sums = [meter.measure(batch) for batch in batches]
    layer = meter.layers[0]
    return InteractionResult(
        layers=torch.tensor([layer.index for layer in meter.layers]).numpy(),
        n_kv_heads=layer.n_kv_heads,
        coupling=couplings[0],
        gradient=gradient,
        weight_grams={name: meter.weight_grams[name].numpy() for name in couplings},
        gradient_sums={name: torch.stack([batch.gradient[name].sum(0) for batch in sums]).numpy() for name in couplings},
        batch_tokens=torch.stack([batch.tokens.sum() for batch in sums]).numpy(),
        batch_loss=torch.stack([batch.loss.sum() for batch in sums]).double().numpy(),
        provenance={
            "model": {"source": "tiny", "d_model": layer.d_model, "d_head": layer.d_head},
            "adapter": None,
            "text": "tiny",
            **provenance,
        },
    )
