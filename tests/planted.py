"""Results with planted coalitions: heads of one coalition share a direction, in weights and gradients."""

import numpy as np

from analysis.results import InteractionResult

D_MODEL, D_HEAD = 64, 8


def planted_result(
    labels,
    strength: float = 0.7,
    common: float = 0.0,
    noise: float = 0.0,
    layers: int = 1,
    batches: int = 8,
    n_kv_heads: int | None = None,
    gradient: str = "token",
    seed: int = 0,
    name: str = "planted",
) -> InteractionResult:
    """A result whose heads share `strength` of their variance within the coalitions `labels`, [heads], in both couplings.

    `common` is the share of the variance that all heads have in common, `noise` the standard deviation of what is added to
    each batch's gradients. The result has `layers` layers and `batches` batches of equal size.
    """
    labels = np.asarray(labels)
    heads, generator = len(labels), np.random.default_rng(seed)

    def vectors(width: int, extra: float = 0.0) -> np.ndarray:  # [heads, width]
        shared = generator.normal(size=(labels.max() + 1, width))[labels]
        own, everyone = generator.normal(size=(heads, width)), generator.normal(size=width)
        together = np.sqrt(common) * everyone + np.sqrt(strength) * shared + np.sqrt(1 - strength - common) * own
        return together + extra * generator.normal(size=(heads, width))

    def gram(width: int, extra: float = 0.0) -> np.ndarray:
        v = vectors(width, extra)
        return (v @ v.T).astype(np.float32)

    if gradient == "token":
        sums = np.stack([[gram(400, noise) for _ in range(layers)] for _ in range(batches)])
    else:
        sums = np.stack([[vectors(D_HEAD * 40, noise) for _ in range(layers)] for _ in range(batches)]).astype(np.float32)
    weights = np.stack([gram(D_MODEL * D_HEAD) for _ in range(layers)])
    model = {"name": name, "source": name, "sha256": "0" * 64, "architecture": "Planted", "n_heads": heads, "n_layers": layers}
    model |= {"n_kv_heads": n_kv_heads or heads, "d_model": D_MODEL, "d_head": D_HEAD}
    return InteractionResult(
        layers=np.arange(layers),
        n_kv_heads=n_kv_heads or heads,
        coupling="paper",
        gradient=gradient,
        weight_grams={"paper": weights, "invariant": weights**2},
        gradient_sums={"paper": sums, "invariant": sums},
        batch_tokens=np.full(batches, 255),
        batch_loss=np.full(batches, 700.0),
        provenance={
            "model": model,
            "adapter": None,
            "text": {"source": "planted", "tokens": 255 * batches},
            "settings": {"gradient": gradient},
            "versions": {"numpy": np.__version__},
        },
    )
