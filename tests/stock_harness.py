"""Stock lm-evaluation-harness on local rows: its own task files, its own HFLM. What our scores must equal."""

from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml

FOLDER = Path(lm_eval.tasks.__file__).parent


def stock_task(file: str, splits: dict[str, datasets.Dataset], **changes: Any) -> ConfigurableTask:
    """A task of the harness that reads these rows instead of its download."""
    config = {**load_yaml(FOLDER / file, resolve_func=True), "custom_dataset": lambda **_: splits, "num_fewshot": 0, **changes}
    task = ConfigurableTask(config={"task": "stock", **{key: value for key, value in config.items() if key != "tag"}})
    task.set_fewshot_seed(0)
    return task


def stock_samples(model, tokenizer, tasks: dict[str, ConfigurableTask], batch_size: int = 4) -> dict[str, list[dict]]:
    """The logged samples of each task."""
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    return evaluate(lm, {"tasks": tasks}, log_samples=True, bootstrap_iters=0)["samples"]
