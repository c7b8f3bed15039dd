"""The model card of a finished adapter: what it is, what it was made from, and what came out."""

from __future__ import annotations

from typing import Any

import yaml

from gamelora.config import GameLoraConfig
from gamelora.runs import Run

# method -> its name in words
TITLES = {
    "game": "GAME-LoRA",
    "ce": "LoRA (cross-entropy alone)",
    "ldb": "LoRA with the log-determinant barrier",
    "bt": "LoRA with adaptive cross-head Barlow Twins",
    "naive": "LoRA with uniform decorrelation",
}
ARBITRATIONS = {
    "none": "one loss, nothing to arbitrate",
    "nash": "Nash bargaining over the task gradients",
    "linear": "weighted sum of the losses",
    "unsolved": "no Nash bargain was ever solved in this run: the cross-entropy, or normalized gradients by their powers, led",
}


def model_card(run: Run, config: GameLoraConfig, provenance: dict[str, Any], summary: dict[str, Any]) -> str:
    """The card as Markdown with the front matter that model hubs read.

    Parameters
    ----------
    run : its metrics give the table of Gamma before and after.
    provenance : model, text, versions.
    summary : notes, arbitration, counters, as `RunRecorder.summary`.
    """
    model = provenance["model"]
    front = {"base_model": model["source"], "library_name": "peft", "tags": ["lora", "game-lora", config.method]}
    lines = [f"# {TITLES[config.method]} adapter for {model['name']}", ""]
    lines += [f"- base model: `{model['source']}`, revision {model['revision'] or 'none'}, sha256 `{model['sha256']}`"]
    lines += [
        f"- text: `{config.text}`; {config.steps} steps of {config.batch_size} x {config.seq_len} tokens; seed {config.seed}"
    ]
    lines += [f"- arbitration: {ARBITRATIONS[summary['arbitration']]}"]
    lines += [f"- design layers: {', '.join(map(str, summary['design_layers']))}; coupling: {config.coupling}"]
    lines += [f"- {name} {version}" for name, version in provenance["versions"].items()]
    lines += [f"- note: {note}" for note in summary["notes"]]
    lines += ["", "```python", "from peft import PeftModel", 'model = PeftModel.from_pretrained(base, "this folder")', "```", ""]
    lines += _outcome(run, config)
    lines += ["", "## Settings", "", "```yaml", config.to_yaml().rstrip(), "```"]
    return f"---\n{yaml.safe_dump(front)}---\n\n" + "\n".join(lines) + "\n"


def _outcome(run: Run, config: GameLoraConfig) -> list[str]:
    evaluations = [line for line in run.metrics()[0] if "eval_loss" in line]
    if len(evaluations) < 2:
        return []
    first, last = evaluations[0], evaluations[-1]
    prefix = f"eval_gamma_{config.coupling}/L"
    lines = ["## Held-out text, before and after", "", f"| | step {first['step']} | step {last['step']} |", "|---|---|---|"]
    lines += [f"| cross-entropy, nats per token | {first['eval_loss']:.4f} | {last['eval_loss']:.4f} |"]
    names = [name for name in first if name.startswith(prefix)]
    lines += [f"| Gamma, layer {name.removeprefix(prefix)} | {first[name]:.4f} | {last[name]:.4f} |" for name in names]
    return lines
