"""From a text source to rows of token ids.

Documents are joined by a blank line and tokenized without special tokens; the first tokens are cut into equal rows.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pydoc_data.topics
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet
import torch
from huggingface_hub.utils import validate_repo_id
from pyarrow import ArrowInvalid
from torch import Tensor
from transformers import PreTrainedTokenizerBase

THE_PILE = "monology/pile-uncopyrighted"
_JOIN = "\n\n"
_MARGIN = 64  # tokens: the text that follows a cut can change only the last few before it
_WHAT_A_TEXT_IS = "A text is `builtin`, a .txt, .jsonl, .jsonl.gz or .parquet file, `pile`, or hub:ID (optionally hub:ID:split)."


@dataclass(frozen=True)
class TokenRows:
    """Token ids cut into rows.

    Attributes
    ----------
    rows : int64 [n_rows, seq_len].
    provenance : source (a path in full), number of tokens, seq_len, sha256 of the ids; JSON-ready.
    """

    rows: Tensor
    provenance: dict[str, Any]


def documents(source: str) -> Iterator[str]:
    """The documents of a text source, read as they are asked for.

    A .txt file is one document; a .jsonl row and a .parquet row are one each, in the field `text`.

    Raises
    ------
    ValueError
        When the source does not exist or a row has no text; names the row, counted from 1.
    """
    if source == "builtin":
        return iter([text for _, text in sorted(pydoc_data.topics.topics.items())])
    if source == "pile" or source.startswith("hub:"):
        return _hub_documents(source)
    path = _file(source)
    readers = {".txt": _text_file, ".jsonl": _json_lines, ".jsonl.gz": _json_lines, ".parquet": _parquet}
    for ending, reader in readers.items():
        if path.name.endswith(ending):
            return reader(path)
    raise ValueError(f"the text {path.name} is of no known kind. {_WHAT_A_TEXT_IS}")


def _file(source: str) -> Path:
    path = Path(os.path.expanduser(source))
    if not path.is_file():
        raise ValueError(f"there is no text {source!r}. {_WHAT_A_TEXT_IS}")
    return path


def _text_file(path: Path) -> Iterator[str]:
    try:
        yield path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start:,}). Save it as UTF-8.") from error


def _json_lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _row_text(path, number, line)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}). Copy or download it again.") from error


def _row_text(path: Path, number: int, line: bytes) -> str:
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, row {number}, is not UTF-8 text. Save it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, row {number}, is not JSON ({error}).") from error
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f'{path}, row {number}, has no text: each row is an object with a field "text".')
    try:
        row["text"].encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path}, row {number}, holds half a character (\\ud8.. without its other half).") from error
    return row["text"]


def _parquet(path: Path) -> Iterator[str]:
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is damaged or no parquet file ({error}).") from error
    if "text" not in file.schema_arrow.names:
        raise ValueError(f'{path} has no column "text": it has {", ".join(file.schema_arrow.names)}.')
    number = 0
    for batch in file.iter_batches(columns=["text"]):
        for value in batch.column(0).to_pylist():
            number += 1
            if not isinstance(value, str):
                raise ValueError(f'{path}, row {number}, has no text: its "text" is {value!r}.')
            yield value


def _hub_documents(source: str) -> Iterator[str]:
    name, _, split = (THE_PILE if source == "pile" else source.removeprefix("hub:")).partition(":")
    for number, row in enumerate(_hub_rows(source, name, split or "train"), start=1):
        if not isinstance(row.get("text"), str):
            raise ValueError(f'{source}, row {number}, has no field "text": it has {", ".join(row)}.')
        yield row["text"]


def _hub_rows(source: str, name: str, split: str) -> Iterator[dict[str, Any]]:
    try:
        validate_repo_id(name)
        yield from datasets.load_dataset(name, split=split, streaming=True)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(
            f"the text {source!r} cannot be read from the hub ({type(error).__name__}: {' '.join(str(error).split())[:200]}). "
            "Connect to the network, check the name, or use `builtin` or a local file."
        ) from error


def check_request(source: str, tokens: int, seq_len: int) -> None:
    """Find what is wrong with a request for token rows that can be known without a model.

    Raises
    ------
    ValueError
        When `tokens` < `seq_len`, or there is no such text.
    """
    if seq_len < 2 or tokens < seq_len:
        raise ValueError(f"{tokens} tokens do not fill one row of {seq_len}: give at least seq-len (2 or more) tokens.")
    if source.endswith(".npy"):
        _file(source)
    else:
        documents(source)


def token_rows(source: str, tokenizer: PreTrainedTokenizerBase | None, tokens: int, seq_len: int) -> TokenRows:
    """The first `tokens` of a text, as rows of `seq_len`; a last row that would be shorter is left out.

    A .npy file holds token ids itself and needs no tokenizer.

    Raises
    ------
    ValueError
        When `tokens` < `seq_len`, the text is empty or too short for one row, or there is no tokenizer.
    """
    check_request(source, tokens, seq_len)
    wanted = tokens - tokens % seq_len
    ids = _stored_ids(source) if source.endswith(".npy") else _tokenize(documents(source), source, tokenizer, wanted)
    if len(ids) < seq_len:
        raise ValueError(f"the text {source!r} has {len(ids):,} tokens, too few for one row of {seq_len}: use a smaller seq-len.")
    rows = torch.as_tensor(ids[: min(wanted, len(ids) - len(ids) % seq_len)], dtype=torch.int64).view(-1, seq_len)
    digest = hashlib.sha256(np.ascontiguousarray(rows.numpy().astype("<i8")).tobytes()).hexdigest()
    where = source if source in ("builtin", "pile") or source.startswith("hub:") else str(_file(source).resolve())
    return TokenRows(rows, {"source": where, "tokens": rows.numel(), "seq_len": seq_len, "sha256": digest})


def _stored_ids(source: str) -> np.ndarray:
    path = _file(source)
    try:
        with open(path, "rb") as file:
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no .npy array ({error}). Save it with numpy.save.") from error
    if ids.dtype.kind not in "iu" or (ids < 0).any():
        raise ValueError(f"{path} holds {ids.dtype}, not token ids: save an array of non-negative integers.")
    return ids.ravel().astype(np.int64)


def _tokenize(texts: Iterable[str], source: str, tokenizer: PreTrainedTokenizerBase | None, wanted: int) -> np.ndarray:
    """The first tokens of the joined text, `wanted` of them or more, or all.

    Documents are read, and the text tokenized, until there are enough tokens: a long or endless source is not read further
    than needed. The cut is made in the text, not between documents, and lies so far behind the tokens that count that they
    are those of the whole text.
    """
    if tokenizer is None:
        raise ValueError(
            "this model carries no tokenizer: give token ids (a .npy file) as the text, or a tokenizer where there is a "
            "field or option for it (--tokenizer, a folder or hub id)."
        )
    documents_left, parts, length, most = iter(texts), [], 0, 4 * (wanted + _MARGIN)
    while True:
        while length < most and (document := next(documents_left, None)) is not None:
            parts.append(document)
            length += len(document) + len(_JOIN)
        text = _JOIN.join(parts)
        ids = tokenizer(text[:most], add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= wanted + _MARGIN or length < most:
            break
        most *= 2
    if not text.strip():
        raise ValueError(f"the text {source!r} is empty.")
    return np.asarray(ids, dtype=np.int64)
