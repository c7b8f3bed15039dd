"""GGUF files: what one holds, whether it can be read here, and its conversion to a safetensors folder.

Reading a GGUF takes 15 s or more, a safetensors copy 2 s: a file is converted once and found again by its content hash.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from filelock import FileLock
from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

from analysis.devices import check_memory
from analysis.pretrained import load_tokenizer, load_weights
from analysis.workspace import workspace_dir, workspace_root

_ARCHITECTURES = sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"})  # two sections of the header
_PLAIN_TYPES = {"F32", "F16", "F64", "I8", "I16", "I32", "I64"}


@dataclass(frozen=True)
class GGUFInfo:
    """What the header of a GGUF file says.

    Attributes
    ----------
    architecture : e.g. "llama".
    parameters : number of weights; float32 needs four bytes for each.
    has_tokenizer : whether the file carries its vocabulary.
    """

    architecture: str
    parameters: int
    has_tokenizer: bool


def inspect_gguf(path: Path) -> GGUFInfo:
    """Read the header of a GGUF file and check that its weights can be loaded.

    Raises
    ------
    ValueError
        Four different ones: the file is truncated or corrupt; its architecture or its quantization is not supported.
        (A missing tokenizer is no error here: G needs only token ids.)
    """
    try:
        reader = gguf.GGUFReader(path)
        field = reader.fields["general.architecture"]
        architecture = bytes(field.parts[field.data[0]]).decode()
    except (ValueError, IndexError, KeyError, OSError) as error:
        if "GGMLQuantizationType" in str(error):
            raise ValueError(f"{path.name} uses a quantization that is not known here ({error}). {_QUANTIZATION_HELP}") from error
        raise ValueError(f"{path.name} is truncated or corrupt ({error}). {_CORRUPT_HELP}") from error
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path.name} holds the architecture {architecture!r}, which transformers cannot read from GGUF. Supported: "
            f"{', '.join(_ARCHITECTURES)}. Use the model's safetensors folder instead."
        )
    _check_quantizations(path, {tensor.tensor_type for tensor in reader.tensors})
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return GGUFInfo(architecture, parameters, "tokenizer.ggml.model" in reader.fields)


_CORRUPT_HELP = "Copy or download the GGUF file again."
_QUANTIZATION_HELP = "Quantize the model to one of Q4_0 to Q8_0, Q2_K to Q6_K, F16 or F32, or use its safetensors folder."


def _check_quantizations(path: Path, types: set[gguf.GGMLQuantizationType]) -> None:
    readable = _PLAIN_TYPES | {kind.name for kind in gguf.quants._type_traits}
    unknown = sorted(kind.name for kind in types if kind.name not in readable)
    if unknown:
        raise ValueError(f"{path.name} uses the quantization {', '.join(unknown)}, which cannot be read. {_QUANTIZATION_HELP}")


def converted_folder(path: Path, sha256: str) -> Path:
    """The safetensors copy (float32) of a GGUF file, made on the first call: workspace/models/gguf-<hash>.

    The folder appears only when it is complete, so a conversion that was killed leaves nothing that is taken for a model.

    Raises
    ------
    ValueError
        When the file cannot be read (see `inspect_gguf`) or does not fit into memory.
    """
    folder = conversion_of(sha256)
    if folder.is_dir():
        return folder
    workspace_dir("models")
    info = inspect_gguf(path)
    check_memory(path.name, info.parameters * 4, {"": "cpu"}, "float32, which it is dequantized to")
    with FileLock(folder.parent / f".{folder.name}.lock"):  # the system frees it when its process dies
        if not folder.is_dir():  # another process may have been first
            _convert(path, info, folder)
    return folder


def conversion_of(sha256: str) -> Path:
    """Where the safetensors copy of a GGUF file of that hash lies, once it is made."""
    return workspace_root() / "models" / f"gguf-{sha256[:16]}"


def _convert(path: Path, info: GGUFInfo, folder: Path) -> None:
    temporary = folder.parent / f".{folder.name}.converting"
    shutil.rmtree(temporary, ignore_errors=True)  # of a conversion that was killed
    try:
        model = load_weights(path.name, path.parent, gguf_file=path.name, dtype=torch.float32)
        _check_all_read(path, info, model.num_parameters())
        del model.config.quantization_config  # with it, and with its quantizer, the model would refuse to be saved
        model.hf_quantizer = None
        model.save_pretrained(temporary)
        if info.has_tokenizer:
            load_tokenizer(path.name, path.parent, gguf_file=path.name).save_pretrained(temporary)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_all_read(path: Path, info: GGUFInfo, read: int) -> None:
    if read != info.parameters:  # transformers leaves out without a word what it has no place for
        raise ValueError(
            f"{path.name} holds {info.parameters:,} weights and the {info.architecture} model that transformers makes of it has "
            f"{read:,}: it would not be the same model. Use the model's safetensors folder instead."
        )
