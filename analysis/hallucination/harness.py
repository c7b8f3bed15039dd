"""A loaded model as lm-evaluation-harness sees it: HFLM on our model, without a second copy and without a crash on one item.

What differs from HFLM is a documented rule for items that it cannot score, each of them noted:

- a continuation whose first characters merge with the context into one token is encoded alone ("merged");
- a continuation longer than the window, or of no token, is not scored ("too long", "empty");
- a context that does not fit is cut from the left, the scored tokens stay whole ("truncated");
- a model that is not finite on an item scores it with NaN ("not finite").
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from torch import nn
from tqdm import tqdm
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from analysis.hallucination.shared_contexts import SharedContexts, can_share, common_beginning
from analysis.models import LoadedModel
from analysis.progress import report

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings are about loading models and rows, which we do

WINDOW = 2048  # tokens at most, also for models that allow more: bounds the memory of the logits


class HarnessModel(HFLM):
    """HFLM on a LoadedModel.

    Attributes
    ----------
    notes : (context, continuation) -> what was noted of it; for generation the continuation is "".
    """

    def __init__(self, loaded: LoadedModel, batch_size: int = 16) -> None:
        if loaded.tokenizer is None:
            raise ValueError("this model carries no tokenizer: give one with --tokenizer (a folder or hub id).")
        if batch_size < 1:
            raise ValueError(f"the batch size is {batch_size}; it must be at least 1.")
        tokenizer = copy.deepcopy(loaded.tokenizer)  # HFLM sets a padding token on it
        self._ready = False
        super().__init__(pretrained=loaded.model, tokenizer=tokenizer, backend="causal", batch_size=batch_size)
        self._ready = True
        self._max_length = min(self.max_length, WINDOW)
        self._can_share = can_share(loaded.model, self._max_length)
        self.notes: dict[tuple[str, str], set[str]] = {}
        self.stage = "scoring"
        self._batch: Sequence[str] = ()
        self._beginning: list[int] = []
        self._cache_of_beginning: DynamicCache | None = None
        self._bar: tqdm | None = None

    @property
    def model(self) -> nn.Module | None:
        """The model; hidden from HFLM's constructor, which would tie weights again that an adapter has copies of."""
        return self._model if self._ready else None

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation and whether it is the greedy one; NaN for a continuation that is too long."""
        answers: list[tuple[float, bool]] = [(float("nan"), False)] * len(requests)
        places, encoded = [], []
        for place, request in enumerate(requests):
            context, continuation = self.encode(*request.args)
            if not 0 < len(continuation) <= self.max_length:
                self._note(request.args, "too long" if continuation else "empty")
                continue
            if len(context) + len(continuation) > self.max_length + 1:
                self._note(request.args, "truncated")
            places.append(place)
            encoded.append((request.args, context, continuation))
        with self._progress(len(encoded)):
            scored = self._loglikelihood_tokens(encoded, disable_tqdm=True) if encoded else []
        for place, answer in zip(places, scored, strict=True):
            answers[place] = answer
        return answers

    def _loglikelihood_tokens(self, requests: list[tuple], disable_tqdm: bool = False, **settings) -> list[tuple[float, bool]]:
        """HFLM's, but contexts that several requests share are read once (shared_contexts.py)."""
        answers: dict[int, tuple[float, bool]] = {}
        if self._can_share:
            fitting = {i: (one[1], one[2]) for i, one in enumerate(requests) if len(one[1]) + len(one[2]) <= self.max_length + 1}
            reader = SharedContexts(self.model, self.batch_size, self.softmax_dtype, self._advance)
            places = list(fitting)
            answers = {places[number]: answer for number, answer in reader.answer(list(fitting.values())).items()}
        rest = [place for place in range(len(requests)) if place not in answers]
        scored = super()._loglikelihood_tokens([requests[place] for place in rest], disable_tqdm, **settings) if rest else []
        answers |= dict(zip(rest, scored, strict=True))
        return [answers[place] for place in range(len(requests))]

    def encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of a context and its continuation, which the model reads one after the other.

        Blanks at the end of the context belong to the continuation, as HFLM has it, and an empty context is one BOS (or
        EOS) token. A continuation that shares a token with the context is encoded alone.
        """
        request, kept = (context, continuation), context.rstrip()
        whole, continuation = context + continuation, context[len(kept) :] + continuation
        context_ids = self.tok_encode(kept) if kept else []
        if not context_ids:
            ids = self.tok_encode(whole, add_special_tokens=False)
            return ([self.prefix_token_id], ids) if ids[0] != self.prefix_token_id else (ids[:1], ids[1:])
        ids = self.tok_encode(whole)
        if ids[: len(context_ids)] == context_ids and len(ids) > len(context_ids):
            return context_ids, ids[len(context_ids) :]
        self._note(request, "merged")
        return context_ids, self.tok_encode(continuation, add_special_tokens=False)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The greedy answer to each context; a context that leaves no room for it is cut from the left.

        What all contexts begin with, such as an instruction, is read once.
        """
        encoded = []
        for request in requests:
            context, settings = request.args
            room = self.max_length - settings["max_gen_toks"]
            if room < 1:
                raise ValueError(f"the model's window of {self.max_length} tokens has no room for a question and its answer.")
            encoded.append(self.tok_encode(context))
            if len(encoded[-1]) > room:
                self._note((context, ""), "truncated")
        self._beginning = encoded[0][: common_beginning(encoded)] if self._can_share and encoded else []
        self._cache_of_beginning = None
        with self._progress(len(requests)):
            return super().generate_until(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole documents, in windows that do not overlap."""
        with self._progress(None):
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def tok_batch_encode(self, strings: list[str], *arguments, **settings):
        """Remembers which contexts are being answered, for what `_model_generate` notes of them."""
        self._batch = strings
        return super().tok_batch_encode(strings, *arguments, **settings)

    def _model_call(self, inps: torch.Tensor, *arguments, **settings) -> torch.Tensor:
        self._advance(len(inps))
        return super()._model_call(inps, *arguments, **settings)

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **settings) -> torch.Tensor:
        watch = _NotFinite(len(context))
        context, settings = self._after_beginning(context, settings)
        tokens = super()._model_generate(context, max_length, stop, logits_processor=LogitsProcessorList([watch]), **settings)
        for prompt, bad in zip(self._batch, watch.rows.tolist(), strict=True):
            if bad:
                self._note((prompt, ""), "not finite")
        self._advance(len(context))
        return tokens

    def _after_beginning(self, context: torch.Tensor, settings: dict) -> tuple[torch.Tensor, dict]:
        """The same batch with the common beginning in front of the padding, and with the keys and values of it."""
        mask, length = settings["attention_mask"], len(self._beginning)
        rows = [row[kept.bool()].tolist() for row, kept in zip(context, mask, strict=True)]
        if not length or any(row[:length] != self._beginning or len(row) == length for row in rows):
            return context, settings  # nothing is common, or a row was cut from the left
        context, mask = context.clone(), mask.clone()
        for place, row in enumerate(rows):
            empty = context.shape[1] - len(row)
            context[place, length : length + empty] = context[place, 0]  # the padding token, if there is any
            context[place, :length] = torch.tensor(self._beginning)
            mask[place, :length], mask[place, length : length + empty] = 1, 0
        reader = SharedContexts(self.model, self.batch_size)
        if self._cache_of_beginning is None:
            self._cache_of_beginning = reader.read(None, [self._beginning])[1]
        return context, {**settings, "attention_mask": mask, "cache": reader.copies(self._cache_of_beginning, [0] * len(rows))}

    def _note(self, request: tuple[str, str], what: str) -> None:
        self.notes.setdefault(request, set()).add(what)

    @contextmanager
    def _progress(self, total: int | None) -> Iterator[None]:
        report(self.stage, 0, total, "request")
        with tqdm(desc=self.stage, total=total, unit="request", disable=not sys.stderr.isatty()) as self._bar:
            yield
        report(self.stage, total or 0, total, "request")

    def _advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)
            report(self.stage, self._bar.n, self._bar.total, "request")


class _NotFinite(LogitsProcessor):
    """Watches generation and remembers the rows in which a logit was not a number or infinite."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.rows |= ~scores.isfinite().all(dim=-1).cpu()
        return scores
