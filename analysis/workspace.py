"""The one folder that everything on disk lives under, safe names inside it, and atomic writes into it."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def workspace_root() -> Path:
    """The workspace folder: `GAMELORA_WORKSPACE`, or ./workspace. Not created by asking for it."""
    return Path(os.environ.get("GAMELORA_WORKSPACE") or "workspace").resolve()


def workspace_dir(*parts: str) -> Path:
    """A folder inside the workspace, created when missing: `workspace_dir("results")`."""
    path = workspace_root().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_safe_name(name: str) -> bool:
    """Whether `safe_name` takes it."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def safe_name(name: str, what: str = "name") -> str:
    """`name` itself when it can name a file inside the workspace.

    Raises
    ------
    ValueError
        When it holds anything but letters, digits, '.', '_', '-', starts with one of the three signs, or is longer than
        100 characters, so that no name can leave its folder.
    """
    if not is_safe_name(name):
        raise ValueError(
            f"{what} {name!r} cannot be used: a {what} is 1 to 100 letters, digits, '.', '_' or '-', "
            "and starts with a letter or a digit."
        )
    return name


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and is removed when it does not.

    A reader sees the old file or the whole new one, also when the power fails half-way.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike, data: bytes | str) -> None:
    """Write a whole file so that no reader ever sees half of it."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
