"""The rows of a benchmark, from the built-in suite, a data folder or the hub: read, checked, sampled by seed, and hashed.

A local file holds one JSON object a line with the field names of the hub's dataset. It is looked for in the data folder
(places.py) and then on the hub; what was read is in the provenance.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError

from analysis.hallucination.benchmarks import BENCHMARKS, SEED, Benchmark
from analysis.hallucination.places import local_file, rows_folder
from analysis.hallucination.rows import CHECKS

SAMPLES = 1024  # a task [R]


@dataclass(frozen=True)
class Items:
    """The rows of one benchmark that are scored.

    Attributes
    ----------
    benchmark : which.
    rows : checked rows, each with `row`, its number in the source counted from 1, and `subset`.
    shots : few-shot rows, if the protocol wants any.
    provenance : source, rows there, limit, seed, sha256 of the scored rows and shots; JSON-ready.
    """

    benchmark: Benchmark
    rows: list[dict[str, Any]]
    shots: list[dict[str, Any]]
    provenance: dict[str, Any]


def load_items(benchmark: Benchmark, folder: str | Path | None = None, limit: int | None = None, seed: int = SEED) -> Items:
    """Read, check and sample a benchmark.

    Parameters
    ----------
    folder : data folder; the workspace's by default.
    limit : rows at most, `SAMPLES` by default; a judged benchmark keeps its two labels balanced within 1 as far as it can.
    seed : draws the sample, and for HaluEval's own files which of a pair is shown.

    Raises
    ------
    ValueError
        When the data is nowhere to be had, or a row is at fault (source and row number are named).
    """
    if limit is not None and limit < 1:
        raise ValueError(f"a limit of {limit} items scores nothing: give 1 or more.")
    source, rows = _read(benchmark, folder, benchmark.file, benchmark.hub[2] if benchmark.hub else None)
    shots_source, shots = None, []
    if benchmark.shots_file:
        shots_source, shots = _read(benchmark, folder, benchmark.shots_file, benchmark.shots_split)
    total = len(rows)
    chosen = sample(show_one_of_each_pair(rows, benchmark.judged, seed), limit or SAMPLES, seed, bool(benchmark.judged))
    digest = hashlib.sha256(json.dumps([chosen, shots], sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    provenance = {"source": source, "shots": shots_source, "rows": total, "scored": len(chosen), "seed": seed, "sha256": digest}
    return Items(benchmark, chosen, shots, provenance)


def read_rows(task: str, folder: str | Path | None = None) -> list[dict[str, Any]]:
    """All checked rows of a benchmark by name, unsampled."""
    benchmark = BENCHMARKS[task]
    return _read(benchmark, folder, benchmark.file, benchmark.hub[2] if benchmark.hub else None)[1]


def _read(benchmark: Benchmark, folder: str | Path | None, file: str, split: str | None) -> tuple[str, list[dict[str, Any]]]:
    root = rows_folder(benchmark, folder)
    if not benchmark.builtin and folder and not root.is_dir():
        raise ValueError(f"there is no data folder {root}: give one that holds {file}, or leave it out to use the hub.")
    local = local_file(benchmark, file, folder)
    if local:
        source = f"builtin:{file}" if benchmark.builtin else str(local)
        found = _json_lines(local)
    else:
        source = f"hub:{benchmark.hub[0]}"
        found = _hub_rows(benchmark, split, root / file)
    rows = [_checked(benchmark, source, number, row) for number, row in found]
    if not rows:
        raise ValueError(f"{source} holds no rows: {benchmark.title} needs at least one.")
    return source, rows


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json.loads(line)
        except (gzip.BadGzipFile, EOFError) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}). Copy or download it again.") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, row {number}, is not UTF-8 text. Save it as UTF-8.") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, row {number}, is not JSON ({error}).") from error


def _hub_rows(benchmark: Benchmark, split: str | None, local: Path) -> Iterator[tuple[int, Any]]:
    name, config, _ = benchmark.hub
    try:
        found = datasets.load_dataset(name, config, split=split)
    except (OSError, DatasetNotFoundError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise ValueError(
            f"{benchmark.title} ({benchmark.name}) has no data here: there is no file {local}, and the hub dataset {name} "
            f"cannot be had ({reason}). Connect to the network, or put the rows at {local} (one JSON object a "
            "line, the dataset's own field names), or name the folder that holds them with --data."
        ) from error
    yield from enumerate(found, start=1)


def _checked(benchmark: Benchmark, source: str, number: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"{source}, row {number}, is no object with named fields.")
    try:
        kept = CHECKS[benchmark.protocol](row)
    except ValueError as error:
        raise ValueError(f"{source}, row {number}: {error}.") from error
    subset = {**row, **kept}.get(benchmark.subset) if benchmark.subset else None
    return {**kept, "row": number, "subset": "" if subset is None else str(subset)}


def show_one_of_each_pair(rows: Sequence[dict[str, Any]], judged: str | None, seed: int) -> list[dict[str, Any]]:
    """Rows that hold a right and a hallucinated text become rows that show one of them; other rows stay as they are.

    The seed says which; the two labels are balanced within 1.
    """
    pairs = [position for position, row in enumerate(rows) if "pair" in row]
    hallucinated = set(random.Random(seed).sample(pairs, len(pairs) // 2))
    shown = []
    for position, row in enumerate(rows):
        if "pair" not in row:
            shown.append(row)
            continue
        wrong = position in hallucinated
        label = "yes" if wrong else "no"
        kept = {field: value for field, value in row.items() if field != "pair"}
        shown.append({**kept, judged: row["pair"][wrong], "hallucination": label, "subset": label})
    return shown


def sample(rows: Sequence[dict[str, Any]], limit: int, seed: int, balanced: bool) -> list[dict[str, Any]]:
    """`limit` rows drawn without replacement, in the order of the source; all of them when there are no more.

    `balanced` takes equally many of both labels (within 1); when one label has too few rows the other fills up.
    """
    if len(rows) <= limit:
        return list(rows)
    draw = random.Random(seed)
    if not balanced:
        return [rows[position] for position in sorted(draw.sample(range(len(rows)), limit))]
    by_label = {label: [i for i, row in enumerate(rows) if row["hallucination"] == label] for label in ("no", "yes")}
    no = min(len(by_label["no"]), max(limit // 2, limit - len(by_label["yes"])))
    chosen = draw.sample(by_label["no"], no) + draw.sample(by_label["yes"], limit - no)
    return [rows[position] for position in sorted(chosen)]
