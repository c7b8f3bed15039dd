"""Where the rows of a benchmark lie: in the program, in a data folder, or on the hub. Only looks; data.py reads.

The data folder is the one that a command names, else the one that was chosen for the workspace (`use_data_folder`), else
`data` in the workspace.
"""

from __future__ import annotations

import os
from pathlib import Path

from analysis.hallucination.benchmarks import BUILTIN_FOLDER, Benchmark
from analysis.records import read_record, write_record
from analysis.workspace import workspace_root

_SETTING = "data-folder.json"
_KIND = "data folder"


def data_folder() -> Path:
    """The data folder of the workspace; it need not exist.

    Raises
    ------
    ValueError
        When the setting is damaged.
    """
    setting = workspace_root() / _SETTING
    if setting.is_file():
        return Path(read_record(setting, _KIND)["folder"])
    return workspace_root() / "data"


def use_data_folder(folder: str | Path) -> Path:
    """Choose the data folder of the workspace, an empty one for `data` in the workspace; returns it.

    Raises
    ------
    ValueError
        When there is no such folder.
    """
    if not str(folder).strip():
        (workspace_root() / _SETTING).unlink(missing_ok=True)
        return data_folder()
    chosen = Path(os.path.expanduser(str(folder).strip())).resolve()
    if not chosen.is_dir():
        raise ValueError(f"there is no data folder {chosen}: give one that holds benchmark files such as memo_trap.jsonl.")
    write_record(workspace_root() / _SETTING, _KIND, {"folder": str(chosen)})
    return chosen


def rows_folder(benchmark: Benchmark, folder: str | Path | None = None) -> Path:
    """The folder that a benchmark's files are looked for in; `folder` is a data folder instead of the workspace's."""
    if benchmark.builtin:
        return BUILTIN_FOLDER
    return Path(os.path.expanduser(folder)).resolve() if folder else data_folder()


def local_file(benchmark: Benchmark, file: str, folder: str | Path | None = None) -> Path | None:
    """A file of a benchmark, or its gzip, when it is on this disk."""
    root = rows_folder(benchmark, folder)
    return next((path for path in (root / file, root / f"{file}.gz") if path.is_file()), None)


def rows_from(benchmark: Benchmark, folder: str | Path | None = None) -> str:
    """Where the rows come from, for people: "built-in", "file memo_trap.jsonl" or "hub pminervini/HaluEval"."""
    if benchmark.builtin:
        return "built-in"
    found = local_file(benchmark, benchmark.file, folder)
    return f"file {found.name}" if found else f"hub {benchmark.hub[0]}"
