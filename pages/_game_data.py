"""What the game page shows of each checkpoint: its games with the chosen benefits and thresholds, and what is still missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.game import HeadGame
from analysis.game_figures import Series
from analysis.game_result import GameResult, play
from analysis.head_values import HeadValues
from gamelora.game_jobs import GameJob, values_job
from pages._cache import read_file
from pages._sides import Side


@dataclass(frozen=True)
class Settings:
    """What the controls choose. `benefits` is "equal" or "measured"; `head` is marked in the pictures, None for none."""

    layer: int
    benefits: str
    head: int | None
    vif_threshold: float
    low_effect: float


@dataclass(frozen=True)
class Player:
    """A checkpoint and its games.

    Attributes
    ----------
    side : the checkpoint.
    result : its games, of the layers whose G is finite.
    broken : layer -> why it has no game.
    values : head values of the checkpoint on its text, None while they are not measured.
    """

    side: Side
    result: GameResult
    broken: dict[int, str]
    values: HeadValues | None

    @property
    def series(self) -> Series:
        """As the figures take it."""
        return Series(self.side.name, self.result, self.side.color)

    def game(self, layer: int) -> HeadGame | None:
        """The game of a layer; None when there is none."""
        return dict(zip(self.result.layers, self.result.games, strict=True)).get(layer)

    @property
    def work(self) -> GameJob:
        """The job that measures what `values` lacks. ValueError when the result is merged from several texts."""
        measurement, missing = self.side.measurement, int(self.result.not_ablated.sum())
        coupling, threshold = self.side.result.coupling, self.result.vif_threshold
        return values_job(measurement.path, measurement.provenance, coupling, threshold, missing)


def values_of(side: Side) -> HeadValues | None:
    """The head values of a checkpoint on its text; None while they are not measured, or when its text is merged."""
    known = side.measurement.provenance
    if "source" not in known["text"]:
        return None
    found = read_file(HeadValues, values_job(side.measurement.path, known, side.result.coupling, 1.0, 0).path)
    return found if found is not None and np.array_equal(found.layers, side.result.layers) else None


def players(sides: list[Side], chosen: Settings) -> list[Player]:
    """The games of each checkpoint. With measured benefits, a checkpoint without them plays with equal ones, as all then do."""
    values = [values_of(side) for side in sides]
    benefits = "equal" if None in values else chosen.benefits
    return [_player(side, known, benefits, chosen) for side, known in zip(sides, values, strict=True)]


def _player(side: Side, values: HeadValues | None, benefits: str, chosen: Settings) -> Player:
    result = side.result
    finite = np.isfinite(result.G).all(axis=(1, 2))
    broken = {}
    for row in np.flatnonzero(~finite):
        try:
            play(result, rows=[int(row)])
        except ValueError as error:
            broken[int(result.layers[row])] = str(error)
    rows = [int(row) for row in np.flatnonzero(finite)]
    played = GameResult(
        layers=[int(result.layers[row]) for row in rows],
        games=play(result, values.first_order if benefits == "measured" else None, rows),
        benefits=benefits,
        effect=values.effect[rows] if values is not None else None,
        provenance={**result.provenance, "coupling": result.coupling, "values": values and values.provenance},
        vif_threshold=chosen.vif_threshold,
        low_effect=chosen.low_effect,
    )
    return Player(side, played, broken, values)
