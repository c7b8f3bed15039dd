"""The fine-tunes behind docs/results.md: every method on the same text, and a table of what came out.

    python -m tests.experiment_training [--data ../shared/data/text] [--only game-1,ce-1]

Runs that are finished are kept, interrupted ones go on, so the command can be repeated until all are there; the table is printed
as Markdown from the run directories.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median

from gamelora.presets import preset
from gamelora.runs import Run, run_names

SEEDS = (1, 2, 3)
VARIANTS = {
    "game": {},
    "ce": {"method": "ce"},
    "ldb": {"method": "ldb"},
    "bt": {"method": "bt"},
    "naive": {"method": "naive"},
    "linear": {"arbitration": "linear"},
    "invariant": {"coupling": "invariant"},
}
SETTINGS = {"steps": 200, "batch_size": 2, "eval_tokens": 4096, "eval_every": 200, "save_every": 50, "report_to": "[]"}
DESIGN_LAYER = 24
PAPER, INVARIANT = "eval_gamma_paper", "eval_gamma_invariant"


def names() -> dict[str, dict[str, object]]:
    """Run name -> what it changes: three seeds of game and ce, one of every other method."""
    both = {f"{variant}-{seed}": {**VARIANTS[variant], "seed": seed} for seed in SEEDS for variant in ("game", "ce")}
    once = {f"{variant}-1": {**changes, "seed": 1} for variant, changes in VARIANTS.items() if variant not in ("game", "ce")}
    return both | once


def command(name: str, data: Path) -> list[str]:
    """The command line of a run."""
    texts = {"text": data / "train_mixed.jsonl.gz", "eval_text": data / "valid_mixed.jsonl"}
    settings = SETTINGS | texts | names()[name]
    return ["train", "--preset", "laptop", "--run", name, *(f"--set={key}={value}" for key, value in settings.items())]


def train(name: str, data: Path) -> None:
    """Start or resume a run, unless it is finished."""
    known = name in run_names()
    if known and Run.open(name).status()["state"] == "finished":
        return
    arguments = ["resume", name] if known else command(name, data)
    print(f"python -m gamelora {' '.join(arguments)}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "gamelora", *arguments], check=True)


def evaluations(name: str) -> tuple[dict, dict]:
    """The first and the last evaluation of a run."""
    lines = [line for line in Run.open(name).metrics()[0] if "eval_loss" in line]
    return lines[0], lines[-1]


def change(before: float, after: float) -> str:
    """A relative change for people."""
    return f"{(after / before - 1) * 100:+.1f} %"


def summary(finished: list[str]) -> str:
    """One row a run."""
    head = "| run | held-out CE before | after | Γ layer 24, paper: before | after | change | Γ layer 24, invariant: before "
    rows = [head + "| after | change | mean Γ of all layers, paper: change | s a step |", "|---" * 11 + "|"]
    for name in finished:
        first, last = evaluations(name)
        cells = [name, f"{first['eval_loss']:.4f}", f"{last['eval_loss']:.4f}"]
        for coupling in (PAPER, INVARIANT):
            before, after = (line[f"{coupling}/L{DESIGN_LAYER}"] for line in (first, last))
            cells += [f"{before:.4f}", f"{after:.4f}", change(before, after)]
        means = [sum(value for key, value in line.items() if key.startswith(f"{PAPER}/")) for line in (first, last)]
        steps = [line for line in Run.open(name).metrics()[0] if "tokens_per_second" in line]
        tokens = SETTINGS["batch_size"] * preset("laptop").seq_len
        cells += [change(*means), f"{median(tokens / line['tokens_per_second'] for line in steps):.2f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def against_ce(finished: list[str]) -> str:
    """game against ce at the same seed: the two figures of the issue."""
    head = "| seed | Γ layer 24, paper: game | ce | game against ce | held-out CE: game | ce | game against ce |"
    rows = [head, "|---" * 7 + "|"]
    for seed in SEEDS:
        if {f"game-{seed}", f"ce-{seed}"} <= set(finished):
            game, ce = (evaluations(f"{method}-{seed}")[1] for method in ("game", "ce"))
            cells = [str(seed)]
            for key in (f"{PAPER}/L{DESIGN_LAYER}", "eval_loss"):
                cells += [f"{game[key]:.4f}", f"{ce[key]:.4f}", change(ce[key], game[key])]
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def by_layer(finished: list[str]) -> str:
    """Gamma of every layer, paper coupling: before (the same for all) and after each run."""
    first, _ = evaluations(finished[0])
    layers = [int(key.rsplit("/L", 1)[1]) for key in first if key.startswith(f"{PAPER}/")]
    last = {name: evaluations(name)[1] for name in finished}
    rows = [f"| layer | before | {' | '.join(finished)} |", "|---" * (len(finished) + 2) + "|"]
    for layer in layers:
        key = f"{PAPER}/L{layer}"
        rows.append(f"| {layer} | {first[key]:.4f} | " + " | ".join(f"{last[name][key]:.4f}" for name in finished) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/text"), help="folder of train_mixed and valid_mixed")
    parser.add_argument("--only", default=",".join(names()), help="names of runs, comma between")
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        train(name, options.data)
    print("\n\n".join([summary(chosen), against_ce(chosen), by_layer(chosen)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
