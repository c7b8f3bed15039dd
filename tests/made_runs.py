"""Runs as an earlier training left them on disk, and jobs of them, without any training."""

import json
import math
import sys
from pathlib import Path

from analysis.workspace import atomic_write
from gamelora import jobs
from gamelora.config import GameLoraConfig
from gamelora.runs import Run


def made_job(name: str, state: str, target: str = "run:mine", arguments=("gamelora", "train", "--run", "mine"), **status) -> Path:
    """A job's folder with that outcome; names sort by age."""
    folder = jobs.workspace_root() / "jobs" / name
    folder.mkdir(parents=True)
    spec = {
        "target": target,
        "title": f"title of {target}",
        "argv": [sys.executable, "-m", *arguments],
        "device": "",
        "created": 5.0,
    }
    atomic_write(folder / "job.json", json.dumps({"format": 1} | spec))
    jobs.write_status(folder, state, **status)
    (folder / "log.txt").write_text("first\nlast words\n")
    return folder


def made_run(name: str = "mine", state: str = "finished", steps: int = 20, done: int | None = None, **values) -> Run:
    """A run with a line of metrics a step, as the trainer writes them; `values` are settings of its config."""
    config = GameLoraConfig.from_dict({"steps": steps, "eval_every": 10, "report_to": [], **values})
    run = Run.create(name, config)
    done = steps if done is None else done
    lines = []
    for step in range(done + 1):
        if step % 10 == 0 or step == steps:
            lines.append({"step": step, "time": 100.0 + step, "eval_loss": 3.0 - step / (2 * steps), "eval_gamma_paper/L24": 0.5})
        if step:
            lines.append({"step": step, "time": 100.0 + step, **_step(step, steps)})
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.write_status(
        state=state, step=done, design_layers=[24], notes=[], bargains={"solved": done // 10, "failed": 0, "opposed": 0}
    )
    return run


def _step(step: int, steps: int) -> dict[str, float]:
    wave = math.sin(step / 7)
    found = {"loss": 3.0 - step / steps, "loss/ce": 3.0 - step / steps + 0.1 * wave, "loss/ldb": 0.4, "loss/bt": 50 + wave}
    found |= {"gap/ldb": 0.3 + 0.01 * wave, "gamma/L24": 0.8 + 0.1 * wave, "tokens_per_second": 400.0 + wave, "grad_norm": 1.0}
    found |= {"lambda/ldb": 0.352, "lambda/bt": 0.179, "weight/ce": 0.9, "weight/ldb": 1.5, "weight/bt": 0.01}
    if step % 10 == 1:
        found |= {"gradient_norm/ce": 1.0, "gradient_norm/ldb": 0.2, "gradient_norm/bt": 8.0}
        found |= {"cosine/ce_ldb": 0.1 * wave, "cosine/ce_bt": 0.05, "cosine/ldb_bt": -0.2}
    return found
