"""Every checkpoint that this workspace knows: base models, adapters, and the steps that its runs have saved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gamelora.checkpoint_sources import KINDS, CheckpointSource, source_of
from gamelora.run_table import selectable
from gamelora.runs import Run, run_names


def workspace_checkpoints(seen: Iterable[Mapping[str, Any]] = ()) -> tuple[list[CheckpointSource], list[str]]:
    """The default model, the base of every run with what the run has saved, and the checkpoints of results already `seen`.

    `seen` are provenances. A checkpoint that is known under a run's name keeps that name. The second value says of each run
    that cannot be read why.
    """
    found, notices = [CheckpointSource()], []
    for name in run_names():
        try:
            run = Run.open(name)
            config = run.config()
        except (ValueError, OSError) as error:
            notices.append(f"Run {name} is left out: {error}")
            continue
        found += [CheckpointSource(config.model, config.revision, None, config.dtype), *selectable(run, config)]
    found += [source_of(provenance) for provenance in seen]
    by_place: dict[tuple, CheckpointSource] = {}
    for one in found:
        by_place.setdefault(one.place, one)
    default = CheckpointSource()
    return sorted(by_place.values(), key=lambda one: (one != default, KINDS.index(one.kind), _natural(one))), notices


def _natural(one: CheckpointSource) -> list[tuple[str, int]]:
    """Sorts titles with numbers as numbers: step 4 before step 20."""
    return [(word, int(part or 0)) for word, part in re.findall(r"(\D*)(\d*)", one.title)]
