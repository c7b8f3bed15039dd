"""The text of a fine-tune: rows in an order that the seed alone decides, a held-out part, and batches with padding masked.

Position p of the run always holds the same row, whatever the batch is cut into and however many processes share it, so a
resumed run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from analysis.corpus import THE_PILE, TokenRows, documents, token_rows
from gamelora.config import GameLoraConfig


@dataclass(frozen=True)
class TrainingText:
    """What a run reads.

    Attributes
    ----------
    rows : dataset of {"input_ids": int64 [seq_len]}; item p is the row at position p of the run.
    held_out : rows for evaluation that training never sees.
    provenance : JSON-ready.
    """

    rows: Dataset
    held_out: TokenRows
    provenance: dict[str, Any]

    def stored(self) -> list[TokenRows]:
        """The rows that are known before training; those of a stream are not."""
        return [self.held_out, *([TokenRows(self.rows.rows, {})] if isinstance(self.rows, ShuffledRows) else [])]


class ShuffledRows(Dataset):
    """`length` positions over a fixed set of rows, shuffled anew in every pass over them.

    Attributes
    ----------
    rows : int64 [n_rows, seq_len].
    """

    def __init__(self, rows: Tensor, length: int, seed: int) -> None:
        self.rows, self.length, self.seed = rows, length, seed
        self._order: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        if not 0 <= position < self.length:
            raise IndexError(position)
        epoch, place = divmod(position, len(self.rows))
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self.rows), generator=generator))
        return {"input_ids": self.rows[self._order[1][place]]}


class StreamedRows(IterableDataset):
    """Rows of a text too large to hold: documents shuffled within a buffer, joined by a blank line, cut as they come.

    A text that ends before the run does is read again in another order.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerBase, config: GameLoraConfig, skip: int) -> None:
        self.source, self.tokenizer, self.config, self.skip = source, tokenizer, config, skip

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for row in itertools.islice(self._endless(), self.config.steps * self.config.batch_size):
            yield {"input_ids": row}

    def _endless(self) -> Iterator[Tensor]:
        stream = datasets.IterableDataset.from_generator(_texts, gen_kwargs={"source": self.source}).skip(self.skip)
        for epoch in itertools.count():
            shuffled = stream.shuffle(seed=self.config.seed + epoch, buffer_size=self.config.shuffle_buffer)
            row = None
            for row in _pack((item["text"] for item in shuffled), self.tokenizer, self.config.seq_len):
                yield row
            if row is None:
                raise ValueError(f"the text {self.source!r} has no row of {self.config.seq_len} tokens beside the held-out ones.")


def _texts(source: str) -> Iterator[dict[str, str]]:
    for text in documents(source):
        yield {"text": text}


def _pack(texts: Iterator[str], tokenizer: PreTrainedTokenizerBase, seq_len: int) -> Iterator[Tensor]:
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text + "\n\n", add_special_tokens=False, verbose=False)["input_ids"]
        for start in range(0, len(ids) - seq_len + 1, seq_len):
            yield torch.tensor(ids[start : start + seq_len])
        ids = ids[len(ids) - len(ids) % seq_len :]


def read_text(config: GameLoraConfig, tokenizer: PreTrainedTokenizerBase | None) -> TrainingText:
    """The rows that a run trains on and those that it is evaluated on.

    Raises
    ------
    ValueError
        When a text does not exist, or is too short for one step beside what is held out.
    """
    if config.text == "pile" or config.text.startswith("hub:"):
        return _streamed(config, tokenizer)
    length = config.steps * config.batch_size
    held = 0 if config.eval_text else config.eval_tokens // config.seq_len
    text = token_rows(config.text, tokenizer, (length + held) * config.seq_len, config.seq_len)
    if len(text.rows) < held + config.batch_size:
        raise ValueError(
            f"the text {config.text!r} makes {len(text.rows)} rows of {config.seq_len} tokens; one step needs "
            f"batch_size {config.batch_size} and evaluation holds out {held}. Use a longer text, a smaller seq_len or "
            f"batch_size, fewer eval_tokens, or a text of its own as eval_text."
        )
    held_out = _rows_as_text(text.rows[:held], f"{config.text}, first rows") if held else _evaluation(config, tokenizer)
    rows = ShuffledRows(text.rows[held:], length, config.seed)
    return TrainingText(rows, held_out, {"train": {**text.provenance, "held_out_rows": held}, "eval": held_out.provenance})


def _evaluation(config: GameLoraConfig, tokenizer: PreTrainedTokenizerBase | None) -> TokenRows:
    return token_rows(config.eval_text, tokenizer, config.eval_tokens, config.seq_len)


def _streamed(config: GameLoraConfig, tokenizer: PreTrainedTokenizerBase | None) -> TrainingText:
    if tokenizer is None:
        raise ValueError(f"the model {config.model!r} carries no tokenizer: train on token ids, --set text=FILE.npy.")
    taken: list[str] = []
    if config.eval_text:
        held_out = _evaluation(config, tokenizer)
    else:  # whole documents from the front of the stream
        packed = _pack(_taking(config.text, taken), tokenizer, config.seq_len)
        rows = list(itertools.islice(packed, config.eval_tokens // config.seq_len))
        if not rows:
            raise ValueError(
                f"the text {config.text!r} has too few tokens for one row of {config.seq_len}: use a smaller seq_len."
            )
        held_out = _rows_as_text(torch.stack(rows), f"{config.text}, first {len(taken)} documents")
    source = THE_PILE if config.text == "pile" else config.text
    described = {"source": source, "shuffle_buffer": config.shuffle_buffer, "seq_len": config.seq_len, "skipped": len(taken)}
    rows = StreamedRows(config.text, tokenizer, config, skip=len(taken))
    return TrainingText(rows, held_out, {"train": described, "eval": held_out.provenance})


def _taking(source: str, taken: list[str]) -> Iterator[str]:
    for text in documents(source):
        taken.append(text)
        yield text


def _rows_as_text(rows: Tensor, source: str) -> TokenRows:
    digest = hashlib.sha256(rows.numpy().astype("<i8").tobytes()).hexdigest()
    return TokenRows(rows, {"source": source, "tokens": rows.numel(), "seq_len": rows.shape[1], "sha256": digest})


def collate(items: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Rows to one batch; rows of different length are padded on the right.

    The mask, and never the token id, says what is padding: padding is not predicted (-100), a real end-of-text token is,
    and labels of -100 that come with the rows stay.
    """
    if all("labels" not in item for item in items) and len({len(item["input_ids"]) for item in items}) == 1:
        return {"input_ids": torch.stack([item["input_ids"] for item in items])}
    ids = [item["input_ids"] for item in items]
    labels = [item.get("labels", item["input_ids"]) for item in items]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
