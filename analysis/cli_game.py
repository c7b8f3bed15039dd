"""`python -m analysis game`, `ablate` and `gauge`: the head game of a result, its causal check, and its gauge noise."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from analysis.ablation import (
    FEWEST_RANDOM_SETS,
    MATCHES,
    MODES,
    AblationResult,
    Head,
    Scores,
    ablation_effects,
    benchmark_scores,
    cross_entropy,
    mean_outputs,
    parse_heads,
    random_sets,
)
from analysis.cli_interaction import add_model_options, add_text_options, load_from
from analysis.coalitions import find_coalitions
from analysis.corpus import TokenRows, token_rows
from analysis.game import LOW_EFFECT, VIF_THRESHOLD, free_riders, redundant
from analysis.game_result import BENEFITS, GameResult, play
from analysis.gauge import ROTATIONS, gauge_check
from analysis.hallucination.benchmarks import named
from analysis.hallucination.data import load_items
from analysis.head_values import HeadValues, measure_head_values
from analysis.heads import head_name
from analysis.interaction import COUPLINGS, rows_to_batches
from analysis.measurement import measure_interaction
from analysis.models import LoadedModel, load_model, versions
from analysis.progress import report
from analysis.results import InteractionResult


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Register `game`, `ablate` and `gauge`."""
    game = commands.add_parser("game", help="price of anarchy, charges and free riders of a saved result")
    game.add_argument("--result", type=Path, required=True, metavar="FILE.npz", help="what `interaction` wrote")
    game.add_argument("--coupling", choices=COUPLINGS, help="the result's own by default")
    game.add_argument("--benefits", choices=BENEFITS, default="equal", help="b: all 1, or each head's first-order value")
    help_text = "measured head values: read, and what the file lacks is measured with the result's model and written into it"
    game.add_argument("--values", type=Path, metavar="FILE.json", help=help_text)
    game.add_argument("--tokenizer", metavar="SOURCE", help="for measured benefits of a model without a tokenizer")
    game.add_argument("--layer", default="all", metavar="N|all")
    _add_thresholds(game)
    game.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    game.set_defaults(func=run_game)

    ablate = commands.add_parser("ablate", help="what ablating heads does to the loss, beside random sets of heads")
    add_model_options(ablate)
    add_text_options(ablate)
    what = "L3H7,L3H8, or coalition:LAYER:NUMBER, or free-riders"
    ablate.add_argument("--heads", required=True, metavar="HEADS", help=what)
    ablate.add_argument("--mode", choices=MODES, default="zero", help="heads write nothing, or their mean over the text")
    score_too = "score this benchmark too, whole and without each set of heads; see `evaluate --tasks`"
    ablate.add_argument("--benchmark", metavar="NAME", help=score_too)
    ablate.add_argument("--data", type=Path, metavar="DIR", help="folder with the benchmark's rows; as for `evaluate`")
    ablate.add_argument("--limit", type=int, metavar="N", help="items of the benchmark, at most")
    ablate.add_argument("--random-sets", type=int, default=FEWEST_RANDOM_SETS, help="sets of as many heads to compare with")
    ablate.add_argument("--match", choices=MATCHES, default="size", help="random heads from anywhere, or the same layers")
    ablate.add_argument("--seed", type=int, default=0, help="of the random sets")
    where = "finds coalitions and free riders in this result; measured anew by default"
    ablate.add_argument("--result", type=Path, metavar="FILE.npz", help=where)
    ablate.add_argument("--coupling", choices=COUPLINGS, default="paper", help="for coalitions and free riders")
    ablate.add_argument("--k", type=_count, default=None, metavar="auto|N", help="number of coalitions in the layer")
    _add_thresholds(ablate)
    ablate.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    ablate.set_defaults(func=run_ablate)

    gauge = commands.add_parser("gauge", help="how far the couplings move when the heads' value bases are rotated")
    add_model_options(gauge)
    add_text_options(gauge)
    gauge.add_argument("--rotations", type=int, default=ROTATIONS, help="random bases to try")
    gauge.add_argument("--seed", type=int, default=0, help="of the rotations")
    gauge.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    gauge.set_defaults(func=run_gauge)


def _add_thresholds(command: argparse.ArgumentParser) -> None:
    command.add_argument("--vif-threshold", type=float, default=VIF_THRESHOLD, help="a head above it is redundant")
    command.add_argument("--low-effect", type=float, default=LOW_EFFECT, help="free rider below it, nats per token")


def _count(text: str) -> int | None:
    return None if text == "auto" else int(text)


def _require_json(path: Path, option: str = "--out") -> None:
    if path.suffix != ".json":
        raise ValueError(f"{option} {path} must end in .json.")


# --- game ---------------------------------------------------------------------------------------------------------


def run_game(options: argparse.Namespace) -> None:
    """Play the game of a saved result; needs a model only to measure benefits that no file holds."""
    _require_json(options.out)
    result = _load_result(options.result, options.coupling)
    values = _head_values(options, result) if options.benefits == "measured" else None
    first_order, effect = (None, None) if values is None else (values.first_order, values.effect)
    games = play(result, first_order)
    rows = list(range(result.n_layers)) if options.layer == "all" else [result.row_of(_layer(options.layer))]
    played = GameResult(
        layers=[int(result.layers[row]) for row in rows],
        games=[games[row] for row in rows],
        benefits=options.benefits,
        effect=None if effect is None else effect[rows],
        provenance={**result.provenance, "coupling": result.coupling, "values": values and values.provenance},
        vif_threshold=options.vif_threshold,
        low_effect=options.low_effect,
    )
    played.save(options.out)
    print(f"{options.out}: {_game_in_words(played)}")


def _game_in_words(played: GameResult) -> str:
    prices = [game.price_of_anarchy for game in played.games]
    bounded = [price.value for price in prices if price.bounded]
    words = [f"{len(prices)} layers, {played.benefits} benefits"]
    if bounded:
        words.append(f"price of anarchy {min(bounded):.3g} to {max(bounded):.3g}")
    if len(bounded) < len(prices):
        words.append(f"unbounded in {len(prices) - len(bounded)} layers")
    words.append(f"{int(played.redundant.sum())} heads with VIF above {played.vif_threshold:g}")
    if played.free_riders is not None:
        words.append(f"{int(played.free_riders.sum())} free riders")
    return ", ".join(words)


def _load_result(path: Path, coupling: str | None) -> InteractionResult:
    result = InteractionResult.load(path)
    return result.view(coupling) if coupling else result


def _layer(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"--layer {text} is neither a layer's number nor all.")
    return int(text)


def _head_values(options: argparse.Namespace, result: InteractionResult) -> HeadValues:
    chosen, known = _named(result, redundant(_vif(result), options.vif_threshold)), None
    if options.values is not None:
        _require_json(options.values, "--values")
        if options.values.is_file():
            known = HeadValues.load(options.values)
            _require_same(known.provenance, result.provenance, str(options.values))
            chosen = known.not_ablated(chosen)
            if not chosen:
                return known
    loaded, text = _reopen(result, options.tokenizer)
    values = measure_head_values(loaded, text, ablate=chosen)
    if known is not None:
        values = known.completed_by(values)
    if options.values is not None:
        values.save(options.values)
    return values


def _reopen(result: InteractionResult, tokenizer: str | None) -> tuple[LoadedModel, TokenRows]:
    """The model and text that a result was measured on, when they are still what they were."""
    model, adapter, text = (result.provenance[name] for name in ("model", "adapter", "text"))
    if "source" not in text:
        raise ValueError("this result is merged from several texts: measure the head values of one of them, and give --values.")
    report("loading the model")
    adapter_source = adapter and adapter["source"]
    loaded = load_model(model["source"], model["revision"], adapter_source, model["dtype"], tokenizer=tokenizer)
    _require_same(loaded.provenance, result.provenance, model["source"])
    rows = token_rows(text["source"], loaded.tokenizer, text["tokens"], text["seq_len"])
    if rows.provenance["sha256"] != text["sha256"]:
        raise ValueError(f"the text {text['source']} has changed since the result was measured: measure it again.")
    return loaded, rows


def _require_same(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Refuse what belongs to another model or adapter than a result."""
    for part in ("model", "adapter"):
        hashes = [provenance[part] and provenance[part]["sha256"] for provenance in (found, wanted)]
        if hashes[0] != hashes[1]:
            ours, theirs = (provenance[part] and provenance[part]["source"] for provenance in (found, wanted))
            raise ValueError(
                f"{what} is of the {part} {ours}, but the result is of {theirs}, or its files have changed: measure it again."
            )


def _vif(result: InteractionResult) -> np.ndarray:
    return np.stack([game.vif for game in play(result)])


def _named(result: InteractionResult, chosen: np.ndarray) -> list[Head]:
    return [(int(result.layers[row]), int(head)) for row, head in np.argwhere(chosen)]


# --- ablate -------------------------------------------------------------------------------------------------------


def run_ablate(options: argparse.Namespace) -> None:
    """Ablate a set of heads and random sets, and measure the loss on one text and a benchmark if there is one."""
    _require_json(options.out)
    benchmarks = named([options.benchmark]) if options.benchmark else []
    items = [load_items(benchmark, options.data, options.limit) for benchmark in benchmarks]  # before the model takes its time
    loaded, text = _open(options)
    batches = rows_to_batches(text.rows, options.batch_size)
    heads = _chosen_heads(options, loaded, text)
    sets = random_sets(loaded.layers, heads, options.random_sets, options.seed, options.match)
    means = mean_outputs(loaded.model, loaded.layers, batches) if options.mode == "mean" else None

    def measure() -> dict[str, Scores]:
        scores = {"cross-entropy": cross_entropy(loaded.model, batches)}
        for part in items:
            scores |= benchmark_scores(loaded, part, options.batch_size)
        return scores

    effects = ablation_effects(measure, loaded.layers, heads, sets, means)
    settings = {"heads": options.heads, "seed": options.seed, "coupling": options.coupling}
    read = {part.benchmark.name: part.provenance for part in items}
    result = AblationResult(
        heads=[head_name(*head) for head in heads],
        mode=options.mode,
        match=options.match,
        random_heads=[[head_name(*head) for head in chosen] for chosen in sets],
        effects=effects,
        provenance={
            **loaded.provenance,
            "text": text.provenance,
            "benchmarks": read,
            "settings": settings,
            "versions": versions(),
        },
    )
    result.save(options.out)
    print(f"{options.out}: {options.mode} ablation of {', '.join(result.heads)} beside {len(sets)} random sets")
    for name, effect in effects.items():
        print(f"{name}: {effect.in_words()}")


def _open(options: argparse.Namespace) -> tuple[LoadedModel, TokenRows]:
    loaded = load_from(options)
    return loaded, token_rows(options.text, loaded.tokenizer, options.tokens, options.seq_len)


def _chosen_heads(options: argparse.Namespace, loaded: LoadedModel, text: TokenRows) -> tuple[Head, ...]:
    if options.heads != "free-riders" and not options.heads.startswith("coalition:"):
        return parse_heads(options.heads, {layer.index: layer.n_heads for layer in loaded.layers})
    if options.result is None:
        result = measure_interaction(loaded, text, options.batch_size, options.coupling)
    else:
        result = _load_result(options.result, options.coupling)
        _require_same(loaded.provenance, result.provenance, options.model)
    if options.heads == "free-riders":
        return _free_riders(options, loaded, text, result)
    return _coalition(options.heads, result, options.k)


def _coalition(text: str, result: InteractionResult, k: int | None) -> tuple[Head, ...]:
    match = re.fullmatch(r"coalition:(\d+):(\d+)", text)
    if match is None:
        raise ValueError(f"{text!r} names no coalition: it is written coalition:LAYER:NUMBER, such as coalition:3:0.")
    layer, number = map(int, match.groups())
    found = find_coalitions(result, k, layers=[layer]).of_layer(layer)
    if number >= found.k:
        raise ValueError(f"layer {layer} has no coalition {number}: {found.k} were found, counted from 0. {found.note}")
    return tuple((layer, head) for head in found.members[number])


def _free_riders(
    options: argparse.Namespace, loaded: LoadedModel, text: TokenRows, result: InteractionResult
) -> tuple[Head, ...]:
    vif = _vif(result)
    candidates = _named(result, redundant(vif, options.vif_threshold))
    if not candidates:
        row, head = np.unravel_index(vif.argmax(), vif.shape)
        raise ValueError(
            f"there are no free riders to ablate: no head has a VIF above {options.vif_threshold:g}. The largest is "
            f"{vif.max():.3g}, of {head_name(int(result.layers[row]), int(head))}; lower --vif-threshold to see more."
        )
    values = measure_head_values(loaded, text, options.batch_size, candidates)
    found = _named(result, free_riders(vif, values.effect, options.vif_threshold, options.low_effect))
    if not found:
        raise ValueError(
            f"there are no free riders to ablate: {len(candidates)} heads have a VIF above {options.vif_threshold:g}, but "
            f"ablating any of them costs {options.low_effect:g} nats per token or more (--low-effect)."
        )
    return tuple(found)


# --- gauge --------------------------------------------------------------------------------------------------------


def run_gauge(options: argparse.Namespace) -> None:
    """Measure both couplings under random rotations of the value bases."""
    _require_json(options.out)
    loaded, text = _open(options)
    result = gauge_check(loaded, text, options.batch_size, options.rotations, options.seed)
    result.save(options.out)
    moves = ", ".join(f"{name} {part.G.max():.2g}" for name, part in result.couplings.items())
    print(
        f"{options.out}: {len(result.layers)} layers, {options.rotations} rotations; the logits change by {result.logits:.2g}; "
        f"largest change of an entry of G: {moves}"
    )
