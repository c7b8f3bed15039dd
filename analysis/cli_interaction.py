"""`python -m analysis interaction`: measure a model and write the result."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from analysis.corpus import check_request, token_rows
from analysis.devices import processes
from analysis.interaction import COUPLINGS, GRADIENTS
from analysis.measurement import measure_interaction
from analysis.models import DTYPES, LoadedModel, load_model
from analysis.progress import report


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Register `interaction`."""
    command = commands.add_parser("interaction", help="measure omega, rho, G and Gamma of every layer of a model")
    add_model_options(command)
    add_text_options(command)
    command.add_argument("--coupling", choices=COUPLINGS, default="paper", help="shown coupling; `invariant` keeps both")
    command.add_argument("--gradient", choices=GRADIENTS, default="token", help="per token (the paper's), or the token mean")
    command.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    command.set_defaults(func=run_interaction)


def add_model_options(command: argparse.ArgumentParser) -> None:
    """The options that name a model; every command that loads one has them."""
    command.add_argument("--model", required=True, metavar="SOURCE", help="default, hub id, model folder or .gguf file")
    command.add_argument("--revision", help="branch, tag or commit of a hub id")
    command.add_argument("--adapter", metavar="DIR", help="PEFT adapter to put on the model")
    command.add_argument("--tokenizer", metavar="SOURCE", help="folder or hub id, for a model without a tokenizer")
    command.add_argument("--dtype", choices=DTYPES, default="float32")
    command.add_argument("--device", default="auto", help="auto (cuda, then mps, then cpu) or a torch device")


def add_text_options(command: argparse.ArgumentParser) -> None:
    """The options that name a text and how it is cut."""
    help_text = "builtin, pile, hub:ID, a .txt, .jsonl, .jsonl.gz or .parquet file, or token ids in a .npy file"
    command.add_argument("--text", default="builtin", metavar="TEXT", help=help_text)
    command.add_argument("--tokens", type=int, default=2048, help="tokens of the text to use")
    command.add_argument("--seq-len", type=int, default=256, help="tokens a row")
    command.add_argument("--batch-size", type=int, default=8, help="rows a pass; bounds memory, does not change G")


def load_from(options: argparse.Namespace) -> LoadedModel:
    """Load the model that the options of `add_model_options` name; several processes take one device each.

    A text that does not exist and a result that could not be written are found first.
    """
    check_request(options.text, options.tokens, options.seq_len)
    _check_output(options.out)
    process = processes()
    device = str(process.device) if options.device == "auto" and process.num_processes > 1 else options.device
    report("loading the model")
    with process.main_process_first():  # a GGUF is converted, a hub model downloaded, once
        return load_model(
            options.model,
            revision=options.revision,
            adapter=options.adapter,
            dtype=options.dtype,
            device=device,
            tokenizer=options.tokenizer,
        )


def _check_output(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--out {path} cannot be written: give a file name in a folder of yours.")


def run_interaction(options: argparse.Namespace) -> None:
    """Measure and write; the first process alone writes."""
    if options.out.suffix != ".npz":
        raise ValueError(f"--out {options.out} must end in .npz.")
    loaded = load_from(options)
    text = token_rows(options.text, loaded.tokenizer, options.tokens, options.seq_len)
    result = measure_interaction(loaded, text, options.batch_size, options.coupling, options.gradient)
    if processes().is_main_process:
        result.save(options.out)
        strongest = int(result.gamma.argmax())
        print(
            f"{options.out}: {result.n_layers} layers x {result.n_heads} heads, {result.tokens:,} tokens, "
            f"CE {result.cross_entropy:.3f} nats, mean Gamma {result.gamma.mean():.3g}, "
            f"strongest layer {result.layers[strongest]} ({result.gamma[strongest]:.3g})"
        )
