"""How a batch is cut to fit into memory, and what to change when it does not."""

from __future__ import annotations

from typing import Any

from gamelora.config import GameLoraConfig


def rows_at_once(config: GameLoraConfig, n_processes: int) -> int:
    """Rows of a micro-batch; ValueError when the batch cannot be shared evenly."""
    share, rest = divmod(config.batch_size, n_processes)
    rows = min(config.micro_batch_size or share, share) or 1
    if rest or share % rows:
        raise ValueError(
            f"batch_size {config.batch_size} cannot be shared by {n_processes} processes that hold {rows} rows at once: "
            f"use a batch_size that {n_processes * rows} divides."
        )
    return rows


def less_memory(config: GameLoraConfig, n_processes: int) -> dict[str, Any]:
    """What a resume may change so that a run needs less memory and learns the same; {} when nothing is left of that kind."""
    rows = rows_at_once(config, n_processes)
    if rows > 1:
        return {"micro_batch_size": next(divisor for divisor in range(rows // 2, 0, -1) if rows % divisor == 0)}
    return {} if config.gradient_checkpointing else {"gradient_checkpointing": True}
