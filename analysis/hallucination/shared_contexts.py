"""Log-likelihoods of continuations, where what several of them share is read once and kept as keys and values.

Choices of one question share its prompt, and questions share few-shot examples: read anew for every choice they are nearly all
of the work. The rows of a pass are of equal length up to their last tokens, so that nothing is padded before what counts and no
mask is needed. The last layer's logits are made for continuations only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

Tokens = tuple[int, ...]
Request = tuple[Sequence[int], Sequence[int]]
Answer = tuple[float, bool]

_LEAST_PREFIX = 16  # tokens that a family of contexts must share
_LEAST_SAVED = 64  # tokens that must be saved to be worth a pass of its own


class SharedContexts:
    """Answers those requests whose context, or a long beginning of it, is shared.

    Parameters
    ----------
    model : a causal model whose cache holds every token (`can_share`).
    rows : of one pass, at most.
    softmax_dtype : as torch's log_softmax takes it.
    advance : told how many requests were answered.
    """

    def __init__(
        self,
        model: nn.Module,
        rows: int,
        softmax_dtype: torch.dtype | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.model, self.rows, self.softmax_dtype, self.advance = model, rows, softmax_dtype, advance
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(base.forward).parameters else {}
        self._device = next(model.parameters()).device

    def answer(self, requests: Sequence[Request]) -> dict[int, Answer]:
        """Log-likelihood and greediness by position in `requests`; those without anything to share are not among them."""
        asked: dict[Tokens, list[int]] = {}
        for place, (context, _) in enumerate(requests):
            asked.setdefault(tuple(context), []).append(place)
        found: dict[int, Answer] = {}
        for prefix, contexts in families(list(asked)):
            start = self.read(None, [contexts[0][:prefix]])[1] if prefix else None
            for same_length in _by_length(contexts):
                saved = sum((len(_rows(requests, asked[one])) - 1) * (len(one) - 1) for one in same_length)
                if prefix or saved >= _LEAST_SAVED:
                    for batch in _pieces(same_length, self.rows):
                        found |= self._answer_batch(requests, asked, start, prefix, batch)
        return found

    def _answer_batch(
        self,
        requests: Sequence[Request],
        asked: dict[Tokens, list[int]],
        start: DynamicCache | None,
        prefix: int,
        contexts: Sequence[Tokens],
    ) -> dict[int, Answer]:
        """The requests of some contexts of one length, whose first `prefix` tokens `start` holds."""
        cache = self.copies(start, [0] * len(contexts))
        if len(contexts[0]) - 1 > prefix:
            cache = self.read(cache, [context[prefix:-1] for context in contexts])[1]
        lines = [(number, row) for number, context in enumerate(contexts) for row in _rows(requests, asked[context])]
        lines.sort(key=lambda line: -len(line[1]))
        found = {}
        for chunk in _pieces(lines, self.rows):
            width = 1 + len(chunk[0][1])
            ids = [[contexts[number][-1], *row, *[0] * (width - 1 - len(row))] for number, row in chunk]
            logits, _ = self.read(self.copies(cache, [number for number, _ in chunk]), ids, every=True)
            for (number, row), line in zip(chunk, logits, strict=True):
                served = [place for place in asked[contexts[number]] if _serves(row, requests[place][1]) and place not in found]
                for place in served:
                    found[place] = self._score(line, requests[place][1])
                self.advance(len(served))
        return found

    def _score(self, logits: Tensor, continuation: Sequence[int]) -> Answer:
        """Of a continuation, from the logits [tokens, vocabulary] that start at the token before it."""
        wanted = torch.tensor(continuation, device=logits.device)
        exact = torch.float64 if logits.dtype == torch.float32 and logits.device.type != "mps" else None
        logs = functional.log_softmax(logits[: len(wanted)], dim=-1, dtype=self.softmax_dtype or exact)
        return float(logs.gather(1, wanted[:, None]).sum()), bool((logs.argmax(-1) == wanted).all())

    def read(self, cache: DynamicCache | None, ids: Sequence[Sequence[int]], every: bool = False) -> tuple[Tensor, DynamicCache]:
        """Logits [rows, tokens, vocabulary] of rows that follow the cache, of their last token unless `every`; and the cache."""
        cache = DynamicCache(config=self.model.config) if cache is None else cache
        given = torch.tensor([list(row) for row in ids], device=self._device)
        with torch.no_grad():
            output = self.model(input_ids=given, cache=cache, use_cache=True, **({} if every else self._last_only))
        return output.logits, output.cache

    def copies(self, cache: DynamicCache | None, rows: Sequence[int]) -> DynamicCache | None:
        """A cache of its own that holds those rows of another."""
        if cache is None:
            return None
        copied = DynamicCache(config=self.model.config)
        for number, layer in enumerate(cache.layers):
            copied.update(layer.keys[list(rows)], layer.values[list(rows)], number)
        return copied


def can_share(model: nn.Module, length: int) -> bool:
    """Whether the model's cache holds all that a later token of a text of `length` may look at, as keys and values alone."""
    layers = DynamicCache(config=model.config).layers
    return all(
        type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window > length)
        for layer in layers
    )


def families(contexts: Sequence[Tokens]) -> Iterator[tuple[int, list[Tokens]]]:
    """Contexts that share a long beginning, with its length; all others together with length 0."""
    alone: list[Tokens] = []
    family: list[Tokens] = []
    prefix = 0
    for context in [*sorted(contexts), ()]:
        shared = min(_shared(family[0], context), prefix) if family else 0
        if family and shared >= max(_LEAST_PREFIX, len(context) / 2):
            family.append(context)
            prefix = shared
            continue
        if (len(family) - 1) * prefix >= _LEAST_SAVED:
            yield prefix, family
        else:
            alone += family
        family, prefix = [context], len(context) - 1
    if alone:
        yield 0, alone


def common_beginning(contexts: Sequence[Sequence[int]]) -> int:
    """How many tokens all contexts begin with, the last token of each left out; 0 when that is too few to be worth a pass."""
    low, high = min(contexts), max(contexts)  # what the first and the last in order share, all share
    shared = _shared(low, high)
    return shared if shared >= _LEAST_PREFIX and shared * (len(contexts) - 1) >= _LEAST_SAVED else 0


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with, the last token of either left out: the first continuation is predicted from it."""
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return min(length, len(one) - 1, len(other) - 1)


def _by_length(contexts: Sequence[Tokens]) -> list[list[Tokens]]:
    groups: dict[int, list[Tokens]] = {}
    for context in contexts:
        groups.setdefault(len(context), []).append(context)
    return [groups[length] for length in sorted(groups, reverse=True)]


def _pieces(items: Sequence, size: int) -> Iterator[Sequence]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _rows(requests: Sequence[Request], places: Sequence[int]) -> list[Tokens]:
    """What must be read after a context: each continuation without its last token, unless another one begins with it."""
    kept: list[Tokens] = []
    for row in sorted({tuple(requests[place][1][:-1]) for place in places}, key=lambda row: (-len(row), row)):
        if not any(longer[: len(row)] == row for longer in kept):
            kept.append(row)
    return kept


def _serves(row: Tokens, continuation: Sequence[int]) -> bool:
    """Whether a row was read that predicts every token of the continuation."""
    return row[: len(continuation) - 1] == tuple(continuation[:-1])
