"""Tags of a run: short words of one's own, in `tags.json` of the run folder; the only reader and writer of that file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from analysis.workspace import atomic_write

FORMAT = 1
LONGEST = 40
MOST = 20
_FILE = "tags.json"


def read_tags(folder: Path) -> tuple[str, ...]:
    """The tags of the run in that folder, sorted; none when it was never given any.

    Raises
    ------
    ValueError
        When the file is damaged or comes from a newer version.
    """
    try:
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        if found["format"] > FORMAT:
            raise ValueError(f"its format {found['format']} is newer than this program's {FORMAT}; update the program")
        return _clean(found["tags"])
    except FileNotFoundError:
        return ()
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its tags cannot be read ({_FILE}: {error}): give it new ones.") from error


def write_tags(folder: Path, tags: Iterable[str]) -> tuple[str, ...]:
    """Replace the tags; returns them as they are kept: trimmed, each once, sorted.

    Raises
    ------
    ValueError
        When one is longer than 40 signs, or there are more than 20.
    OSError
        When the folder cannot be written.
    """
    kept = _clean(tags)
    atomic_write(folder / _FILE, json.dumps({"format": FORMAT, "tags": kept}))
    return kept


def _clean(tags: Iterable[str]) -> tuple[str, ...]:
    kept = sorted({" ".join(tag.split()) for tag in tags} - {""})
    too_long = next((tag for tag in kept if len(tag) > LONGEST), None)
    if too_long:
        raise ValueError(f"a tag has at most {LONGEST} letters; {too_long[:LONGEST]!r}... has {len(too_long)}.")
    if len(kept) > MOST:
        raise ValueError(f"a run has at most {MOST} tags; these are {len(kept)}.")
    return tuple(kept)
