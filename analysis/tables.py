"""Interaction results as tables and files: pairs of heads, the strongest first, and the matrices of a layer."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.heads import head_name, kv_groups
from analysis.results import InteractionResult


def pair_table(result: InteractionResult, layer: int | None = None, floor: np.ndarray | None = None) -> pd.DataFrame:
    """Every pair of different heads of a layer, or of all layers, by falling |G|; no row when a layer has one head.

    Columns: layer, head_i, head_j (L3H7), omega, rho, G, same_kv_group, inactive (one of the two heads has no output
    weight or no gradient, so that its couplings are 0). Ties keep the order of the heads. With `floor`, the noise floor of
    every pair of every layer, [layers, heads, heads] (`GaugeMoves.noise_floor`), also noise_floor and in_noise (|G| is not
    above it).

    Raises
    ------
    ValueError
        When the result does not hold that layer.
    """
    rows = np.arange(result.n_layers) if layer is None else np.array([result.row_of(layer)])
    first, second = np.triu_indices(result.n_heads, k=1)
    group = np.array(kv_groups(result.n_heads, result.n_kv_heads))
    names = np.array([[head_name(number, head) for head in range(result.n_heads)] for number in result.layers[rows]])
    flagged = result.heads_flagged[rows]
    table = pd.DataFrame(
        {
            "layer": np.repeat(result.layers[rows], len(first)),
            "head_i": names[:, first].ravel(),
            "head_j": names[:, second].ravel(),
            "omega": result.omega[rows][:, first, second].ravel(),
            "rho": result.rho[rows][:, first, second].ravel(),
            "G": result.G[rows][:, first, second].ravel(),
            "same_kv_group": np.tile(group[first] == group[second], len(rows)),
            "inactive": (flagged[:, first] | flagged[:, second]).ravel(),
        }
    )
    if floor is not None:
        table["noise_floor"] = floor[rows][:, first, second].ravel()
        table["in_noise"] = table["G"].abs() <= table["noise_floor"]
    return table.sort_values("G", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def matrices_csv(matrices: Mapping[str, np.ndarray], names: Sequence[str]) -> bytes:
    """Matrices [heads, heads] of the same heads as CSV, all digits: one row a cell, one column a matrix."""
    cells = {"head_i": np.repeat(names, len(names)), "head_j": np.tile(names, len(names))}
    return pd.DataFrame(cells | {name: matrix.ravel() for name, matrix in matrices.items()}).to_csv(index=False).encode()


def matrices_npz(matrices: Mapping[str, np.ndarray], names: Sequence[str], provenance: Mapping[str, Any]) -> bytes:
    """The same as NPZ, with `heads` and `provenance` (JSON) beside them."""
    buffer = io.BytesIO()
    described = np.array(json.dumps(provenance, sort_keys=True))
    np.savez_compressed(buffer, heads=np.array(names), provenance=described, **matrices)
    return buffer.getvalue()
