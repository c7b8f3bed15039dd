"""Small results as JSON files: each says what kind of record it is, and a reader refuses any other.

JSON has no infinity, so a number without bound is written as the word "unbounded".
"""

from __future__ import annotations

import json
import math
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from analysis.workspace import atomic_write

FORMAT = 1
UNBOUNDED = "unbounded"


def plain(value: Any) -> Any:
    """The same value in JSON's own types: arrays as lists, an infinity as "unbounded", not-a-number (unknown) as null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else UNBOUNDED
    return value


def record_text(kind: str, record: dict[str, Any]) -> str:
    """The file of a record of the kind `kind`. Same record, same text."""
    document = {"kind": kind, "format": FORMAT, **plain(record)}
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_record(path: str | PathLike, kind: str, record: dict[str, Any]) -> None:
    """Write a record of the kind `kind`, whole or not at all."""
    atomic_write(path, record_text(kind, record))


def read_record(path: str | PathLike, kind: str) -> dict[str, Any]:
    """Read a record of the kind `kind`.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        When the file is damaged, holds another kind of record, or comes from a newer version.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {kind} file {path}.")
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error}).") from error
    found = record.get("kind") if isinstance(record, dict) else None
    if found != kind:
        raise ValueError(f"{path} is not a {kind} file: it is {f'a {found} file' if found else 'something else'}.")
    if record["format"] > FORMAT:
        raise ValueError(f"{path} has the format {record['format']}, newer than this program's {FORMAT}; update the program.")
    return record
