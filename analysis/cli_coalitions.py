"""`python -m analysis coalitions`, `compare` and `export`: coalitions of saved results, without a model."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from analysis.coalition_paper import WIDTHS
from analysis.coalitions import find_coalitions
from analysis.compare import PERMUTATIONS, SIDES, compare
from analysis.export import LAYER_FORMATS, bundle, layer_file
from analysis.interaction import COUPLINGS
from analysis.results import InteractionResult
from analysis.spectral import AFFINITIES
from analysis.stability import RESAMPLES, bootstrap
from analysis.workspace import atomic_write


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Register `coalitions`, `compare` and `export`."""
    _add_coalitions(commands.add_parser("coalitions", help="find the coalitions of heads of a result, and how sure they are"))
    _add_compare(commands.add_parser("compare", help="what a change of checkpoint does to coalitions"))
    _add_export(commands.add_parser("export", help="write a layer's coalition graph, or a paper bundle"))


def _add_coalitions(command: argparse.ArgumentParser) -> None:
    command.add_argument("--result", type=Path, required=True, metavar="FILE.npz", help="of `python -m analysis interaction`")
    command.add_argument("--layer", default="all", metavar="N|all", help="a layer's true index, several with commas, or all")
    _add_clustering(command)
    help_text = f"resamples of the batches, at least {RESAMPLES}; 0 for none"
    command.add_argument("--bootstrap", type=int, default=RESAMPLES, metavar="N", help=help_text)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    command.set_defaults(func=run_coalitions)


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("--before", type=Path, required=True, metavar="A.npz")
    command.add_argument("--after", type=Path, required=True, metavar="B.npz")
    command.add_argument("--coalitions-from", choices=SIDES, default="before", help="whose coalitions are held fixed")
    command.add_argument("--permutations", type=int, default=PERMUTATIONS, metavar="N", help="of the heads, for p")
    _add_clustering(command)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    command.set_defaults(func=run_compare)


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("--result", type=Path, required=True, metavar="FILE.npz")
    help_text = "a layer's true index; for a bundle also several with commas, or all"
    command.add_argument("--layer", required=True, metavar="N", help=help_text)
    command.add_argument("--format", choices=(*LAYER_FORMATS, "bundle"), required=True)
    command.add_argument("--threshold", type=float, default=0.0, metavar="X", help="pairs below this |G| get no edge")
    command.add_argument("--width", choices=tuple(WIDTHS), default="column", help="of svg, pdf and png: 3.25 or 6.75 inches")
    _add_clustering(command)
    command.add_argument("--out", type=Path, required=True, metavar="PATH")
    command.set_defaults(func=run_export)


def _add_clustering(command: argparse.ArgumentParser) -> None:
    command.add_argument("--k", type=_number_of_coalitions, default=None, metavar="auto|N", help="number of coalitions")
    command.add_argument("--affinity", choices=AFFINITIES, default="positive")
    command.add_argument("--within-kv", action="store_true", help="cluster within each kv group only")
    command.add_argument("--coupling", choices=COUPLINGS, help="the coupling to use, when the result holds both")


def _number_of_coalitions(text: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number") from error


def run_coalitions(options: argparse.Namespace) -> None:
    """Find, resample and write; one line a layer."""
    _check_out(options.out)
    result = _load(options.result, options.coupling)
    layers = _layers(options.layer, result)
    coalitions = find_coalitions(result, options.k, options.affinity, layers, options.within_kv)
    if options.bootstrap:
        coalitions = bootstrap(result, coalitions, options.bootstrap, shown=True)
    coalitions.save(options.out)
    for entry in coalitions.layers:
        sure = f", mean ARI {entry.stability.mean_ari:.2f}" if entry.stability else ""
        print(f"layer {entry.layer}: {entry.k} coalition{'s' * (entry.k > 1)}{sure}; {entry.note} {entry.kv.sentence}")
    print(options.out)


def run_compare(options: argparse.Namespace) -> None:
    """Compare and write; prints the verdict."""
    _check_out(options.out)
    before, after = (_load(path, options.coupling) for path in (options.before, options.after))
    comparison = compare(
        before, after, options.coalitions_from, options.k, options.affinity, options.within_kv, options.permutations
    )
    comparison.save(options.out)
    print(comparison.sentence)
    print(options.out)


def run_export(options: argparse.Namespace) -> None:
    """Cluster and write one format of one layer, or the bundle of several."""
    _check_out(options.out)
    result = _load(options.result, options.coupling)
    layers = _layers(options.layer, result)
    if options.format != "bundle" and len(layers) != 1:
        raise ValueError(
            f"--layer {options.layer} names {len(layers)} layers: --format {options.format} takes one, a bundle any."
        )
    coalitions = find_coalitions(result, options.k, options.affinity, layers, options.within_kv)
    if options.format == "bundle":
        if len(result.batch_tokens) > 1:
            coalitions = bootstrap(result, coalitions, shown=True)
        data = bundle(result, coalitions, options.threshold, shown=True)
    else:
        data = layer_file(result, coalitions.layers[0], options.format, options.threshold, options.width)
    atomic_write(options.out, data)
    print(f"{options.out}: {len(data):,} bytes")


def _load(path: Path, coupling: str | None) -> InteractionResult:
    result = InteractionResult.load(path)
    return result.view(coupling) if coupling else result


def _layers(text: str, result: InteractionResult) -> list[int]:
    if text == "all":
        return result.layers.tolist()
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--layer {text} is neither all nor layer numbers.") from error


def _check_out(path: Path) -> None:
    """Refuse a place that cannot be written before any work is done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
    except OSError as error:
        raise OSError(f"--out {path} cannot be written: {error.strerror or error}. Choose another place.") from error
