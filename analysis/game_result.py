"""The head games of a measured model, layer by layer, and their file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from analysis.game import LOW_EFFECT, VIF_THRESHOLD, HeadGame, free_riders, redundant
from analysis.heads import head_name
from analysis.records import record_text
from analysis.results import InteractionResult
from analysis.workspace import atomic_write

BENEFITS = ("equal", "measured")


def play(result: InteractionResult, benefits: np.ndarray | None = None, rows: Sequence[int] | None = None) -> list[HeadGame]:
    """The game of every layer of a measurement, in its order, or of the layers in some of its `rows`.

    `benefits` is [layers, n_heads], such as `HeadValues.first_order`; equal benefits of 1 by default.
    """
    if benefits is None:
        benefits = np.ones((result.n_layers, result.n_heads))
    if benefits.shape != (result.n_layers, result.n_heads):
        raise ValueError(
            f"the benefits are {benefits.shape} (layers, heads), but the measurement has "
            f"{(result.n_layers, result.n_heads)}: measure both on the same model and layers."
        )
    games = []
    for row in range(result.n_layers) if rows is None else rows:
        try:
            games.append(HeadGame(result.G[row], benefits[row]))
        except ValueError as error:
            raise ValueError(f"layer {result.layers[row]}: {error}") from error
    return games


@dataclass(frozen=True, eq=False)
class GameResult:
    """The games of a model's layers, with free riders where ablation effects are known.

    Attributes
    ----------
    layers : true layer indices, one a game.
    games : one game a layer.
    benefits : "equal" or "measured".
    effect : rise of the cross-entropy when a head alone is ablated, nats per token, [layers, n_heads], NaN where it is not
        known; None when none was measured.
    provenance : that of the measurement, with its coupling.
    vif_threshold, low_effect : what makes a free rider (`analysis.game.free_riders`).
    """

    layers: Sequence[int]
    games: Sequence[HeadGame]
    benefits: str
    effect: np.ndarray | None
    provenance: dict[str, Any]
    vif_threshold: float = VIF_THRESHOLD
    low_effect: float = LOW_EFFECT

    @cached_property
    def vif(self) -> np.ndarray:
        """[layers, n_heads]."""
        return np.stack([game.vif for game in self.games])

    @property
    def redundant(self) -> np.ndarray:
        """Heads whose VIF is above the threshold, bool [layers, n_heads]."""
        return redundant(self.vif, self.vif_threshold)

    @property
    def free_riders(self) -> np.ndarray | None:
        """Redundant heads whose ablation costs next to nothing, bool [layers, n_heads]; None when effects are not known."""
        return None if self.effect is None else free_riders(self.vif, self.effect, self.vif_threshold, self.low_effect)

    def names(self, chosen: np.ndarray) -> list[str]:
        """The names of the heads that a [layers, n_heads] mask chooses."""
        return [head_name(int(self.layers[row]), int(head)) for row, head in np.argwhere(chosen)]

    @property
    def not_ablated(self) -> np.ndarray:
        """Redundant heads whose ablation effect is not known, bool [layers, n_heads]."""
        return self.redundant if self.effect is None else self.redundant & np.isnan(self.effect)

    def table(self) -> pd.DataFrame:
        """A row a head, all digits: layer, head (L3H7), benefit, effort at the optimum, charge, vif, marginal_charge (log VIF),
        effect, redundant, free_rider; NaN where there is no optimum or no effect is known.
        """
        effect = np.full(self.vif.shape, np.nan) if self.effect is None else self.effect
        blank = np.full(self.vif.shape[1], np.nan)
        columns = {
            "layer": np.repeat(np.asarray(self.layers), self.vif.shape[1]),
            "head": self.names(np.ones_like(self.vif, dtype=bool)),
            "benefit": np.concatenate([game.benefits for game in self.games]),
            "effort_at_optimum": np.concatenate([blank if game.optimum is None else game.optimum for game in self.games]),
            "charge": np.concatenate([blank if game.charges is None else game.charges for game in self.games]),
            "vif": self.vif.ravel(),
            "marginal_charge": np.log(self.vif).ravel(),
            "effect": effect.ravel(),
            "redundant": self.redundant.ravel(),
            "free_rider": np.zeros(effect.size, dtype=bool) if self.free_riders is None else self.free_riders.ravel(),
        }
        return pd.DataFrame(columns)

    def save(self, path: str | PathLike) -> None:
        """Write `text` to a file, whole or not at all."""
        atomic_write(path, self.text())

    def text(self) -> str:
        """The JSON: one entry a layer, arrays by head. "unbounded" with its reason where a price has no bound."""
        record = {
            "benefits": self.benefits,
            "vif_threshold": self.vif_threshold,
            "low_effect": self.low_effect,
            "redundant": self.names(self.redundant),
            "free_riders": None if self.free_riders is None else self.names(self.free_riders),
            "layers": [self._layer_record(row) for row in range(len(self.layers))],
            "provenance": self.provenance,
        }
        return record_text("game", record)

    def _layer_record(self, row: int) -> dict[str, Any]:
        game, layer = self.games[row], int(self.layers[row])
        prices = {"price_of_anarchy": game.price_of_anarchy, "worst_case": game.worst_case, "gamma_bound": game.gamma_bound}
        return {
            "layer": layer,
            "heads": [head_name(layer, head) for head in range(game.n_heads)],
            "gamma": game.gamma,
            "spectral_norm": game.spectral_norm,
            **{name: {"value": price.value, "reason": price.reason} for name, price in prices.items()},
            "nash": game.nash,
            "optimum": game.optimum,
            "welfare_at_nash": game.welfare(game.nash),
            "welfare_at_optimum": math.inf if game.optimum is None else game.welfare(game.optimum),
            "charge_rates": game.charge_rates,
            "charges": game.charges,
            "vif": game.vif,
            "marginal_charges": game.marginal_charges,
            "effect": None if self.effect is None else self.effect[row],
        }
