"""Interaction results made from small random arrays: what pages, figures and exports are tested on, with no model."""

import numpy as np

from analysis.interaction import COUPLINGS
from analysis.results import InteractionResult

D_HEAD = 8


def synthetic_result(
    n_layers: int = 4,
    n_heads: int = 6,
    n_kv_heads: int = 2,
    batches: int = 3,
    seed: int = 0,
    couplings: tuple[str, ...] = COUPLINGS,
    name: str = "SmolLM2-135M-Instruct",
    source: str = "default",
    adapter: str | None = None,
    tokens: int = 2048,
) -> InteractionResult:
    """A result whose heads are coupled inside kv groups, more in later layers; provenance as the command line writes it."""
    random = np.random.default_rng(seed)
    group = np.arange(n_heads) // (n_heads // n_kv_heads)

    def vectors(*shape: int, width: int) -> np.ndarray:
        """[*shape, n_layers, n_heads, width], sharing a part inside each kv group."""
        own = random.normal(size=(*shape, n_layers, n_heads, width))
        shared = random.normal(size=(*shape, n_layers, n_kv_heads, width))
        return own + np.linspace(0.3, 1.2, n_layers)[:, None, None] * shared[..., group, :]

    def gram(rows: np.ndarray) -> np.ndarray:
        return (rows @ np.swapaxes(rows, -1, -2)).astype(np.float32)

    return InteractionResult(
        layers=np.arange(n_layers),
        n_kv_heads=n_kv_heads,
        coupling=couplings[0],
        gradient="token",
        weight_grams={coupling: gram(vectors(width=200)) for coupling in couplings},
        gradient_sums={coupling: gram(vectors(batches, width=40)) for coupling in couplings},
        batch_tokens=np.full(batches, 255 * 8),
        batch_loss=np.full(batches, 255 * 8 * 2.9),
        provenance={
            "model": {
                "source": source,
                "kind": "default" if source == "default" else "folder",
                "name": name,
                "revision": None,
                "sha256": f"{seed:064x}",
                "architecture": "LlamaForCausalLM",
                "n_layers": n_layers,
                "n_heads": n_heads,
                "n_kv_heads": n_kv_heads,
                "d_head": D_HEAD,
                "d_model": n_heads * D_HEAD,
                "parameters": 134_515_008,
                "dtype": "float32",
                "device": "cpu",
            },
            "adapter": adapter and {"source": adapter, "sha256": "0" * 64, "peft_type": "LORA", "r": 16, "lora_alpha": 32},
            "text": {"source": "builtin", "tokens": tokens, "seq_len": 256, "sha256": "1" * 64},
            "settings": {"coupling": couplings[-1], "gradient": "token", "batch_size": 8},
            "versions": {"python": "3.11", "torch": "2.13.0", "transformers": "5.24.0", "peft": "0.21.2", "numpy": "2.3"},
        },
    )
