"""What G costs beside a bare forward and activation-only backward pass of the same batches, in time and in memory."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import torch

from analysis.corpus import token_rows
from analysis.heads import frozen
from analysis.interaction import COUPLINGS, Meter, causal_loss, rows_to_batches
from analysis.models import load_model
from tests.bench import ratio
from tests.bfloat16_unit import bfloat16_unit, has_bfloat16_unit

RUNS = 5


def bare_pass(model, batch) -> None:
    """Forward, and backward down to the embeddings' output, with every parameter frozen: what any gradient method pays."""

    def track(_module, _inputs, output):
        return output.requires_grad_(True)

    handle = model.get_input_embeddings().register_forward_hook(track)
    try:
        with frozen(model), torch.enable_grad():
            causal_loss(model, batch)[0].sum().backward()
    finally:
        handle.remove()


def run() -> Iterator[tuple[str, float, float, int]]:
    """4 x 256 tokens of the default model, float32 and bfloat16; memory in fresh processes."""
    for dtype in ("float32", "bfloat16"):
        yield from _times(dtype)
    peaks = {name: _peak(name) for name in ("bare 1024", "paper 1024", "invariant 1024", "paper 2048", "paper 16384")}
    for coupling in COUPLINGS:
        yield f"peak memory of G, {coupling} coupling / bare pass", peaks[f"{coupling} 1024"] / peaks["bare 1024"], 1.10, 1
    yield "peak memory of G, 16,384 tokens / 2,048 tokens", peaks["paper 16384"] / peaks["paper 2048"], 1.05, 1


def _times(dtype: str) -> Iterator[tuple[str, float, float, int]]:
    loaded = load_model("default", dtype=dtype)
    batch = rows_to_batches(token_rows("builtin", loaded.tokenizer, 1024, 256).rows, 4)[0]
    emulated = dtype == "bfloat16" and not has_bfloat16_unit()
    arithmetic = "bfloat16 (emulated on both sides)" if emulated else dtype
    with bfloat16_unit() if emulated else contextlib.nullcontext():
        for couplings, target in ((("paper",), 1.05), (COUPLINGS, 1.20)):
            meter = Meter(loaded.model, couplings, layers=loaded.layers)
            value = ratio(partial(meter.measure, batch), partial(bare_pass, loaded.model, batch), RUNS)
            yield f"time of G, all layers, {couplings[-1]} coupling, {arithmetic} / bare pass", value, target, RUNS


def _peak(what: str) -> int:
    """Peak resident memory, bytes, of a fresh process that does `what`."""
    done = subprocess.run([sys.executable, "-m", "tests.bench_interaction", *what.split()], capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure_peak(what: str, tokens: int) -> int:
    loaded = load_model("default")
    batches = rows_to_batches(token_rows("builtin", loaded.tokenizer, tokens, 256).rows, 4)
    meter = None if what == "bare" else Meter(loaded.model, ("paper",) if what == "paper" else COUPLINGS, layers=loaded.layers)
    for batch in batches:
        bare_pass(loaded.model, batch) if meter is None else meter.measure(batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(_measure_peak(sys.argv[1], int(sys.argv[2])))
