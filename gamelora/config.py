# ruff: noqa: RUF009 (_setting is dataclasses.field with its metadata)
"""GameLoraConfig: the one place of hyperparameters, with the help texts and ranges that the form and the command line reuse.

Defaults are the paper's (method.md section 4). A config says what is learned and not where it runs: `batch_size` counts the
rows of one optimizer step over all processes, so the same config gives the same update on any number of machines.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from analysis.interaction import COUPLINGS

METHODS = ("game", "ce", "ldb", "bt", "naive")
ARBITRATIONS = ("nash", "linear")
DTYPES = ("float32", "bfloat16")
TRACKERS = ("tensorboard", "wandb", "trackio")
# method -> the losses it trains beside the cross-entropy; the order of the bargain
OBJECTIVES = {"game": ("ldb", "bt"), "ce": (), "ldb": ("ldb",), "bt": ("bt",), "naive": ("bt",)}


def _setting(default: Any, help: str, group: str, advanced: bool = False, **limits: Any) -> Any:
    """A field with its help, the part of the form it belongs to, and `minimum`, `maximum`, `above`, `below` or `choices`."""
    metadata = {"help": help, "group": group, "advanced": advanced, **limits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class GameLoraConfig:
    """Everything that decides what a fine-tune learns; JSON- and YAML-ready.

    Raises
    ------
    ValueError
        When values are out of range or contradict each other: all problems at once, each with its remedy.
    """

    model: str = _setting("default", "Model to fine-tune: default, a hub id, a folder or a .gguf file.", "model")
    revision: str | None = _setting(None, "Branch, tag or commit of a hub model.", "model", True)
    dtype: str = _setting("float32", "Number format of the frozen base weights.", "model", True, choices=DTYPES)
    autocast: str = _setting(
        "auto",
        "Number format of the forward pass; losses and adapters stay in float32. auto: bfloat16 where the hardware has it.",
        "model",
        True,
        choices=("auto", *DTYPES),
    )
    gradient_checkpointing: bool = _setting(
        False, "Recompute activations in the backward pass: less memory, about a third more time.", "model", True
    )

    text: str = _setting(
        "builtin", "Training text: builtin, pile, hub:ID, a .txt, .jsonl, .jsonl.gz or .parquet file, or .npy token ids.", "data"
    )
    eval_text: str | None = _setting(None, "Held-out text; empty takes the text's first rows, not trained on then.", "data")
    eval_tokens: int = _setting(8192, "Tokens of the held-out text that each evaluation reads.", "data", minimum=2)
    seq_len: int = _setting(1024, "Tokens per row.", "data", minimum=2)
    shuffle_buffer: int = _setting(
        10_000,
        "Documents that a streamed text is shuffled within; a text on this disk is shuffled whole.",
        "data",
        True,
        minimum=1,
    )
    seed: int = _setting(42, "Seed of the order of the text, of the adapter's start and of dropout.", "data", minimum=0)

    r: int = _setting(16, "Rank of the adapter.", "adapter", minimum=1)
    lora_alpha: int = _setting(32, "The adapter's delta is scaled by lora_alpha / r.", "adapter", minimum=1)
    lora_dropout: float = _setting(0.1, "Dropout at the adapter's input.", "adapter", minimum=0.0, below=1.0)
    target_modules: list[str] | None = _setting(
        None, "Names of the modules that get an adapter; empty takes all projections of every attention layer.", "adapter", True
    )
    modules_to_save: list[str] | None = _setting(None, "Modules that are trained whole, such as lm_head.", "adapter", True)
    use_dora: bool = _setting(False, "DoRA: learn the magnitude of each output row apart.", "adapter", True)
    use_rslora: bool = _setting(False, "rsLoRA: scale by lora_alpha / sqrt(r).", "adapter", True)

    steps: int = _setting(1221, "Optimizer steps.", "optimization", minimum=1)
    batch_size: int = _setting(16, "Rows of one optimizer step, over all processes.", "optimization", minimum=1)
    micro_batch_size: int | None = _setting(
        None,
        "Rows that one process holds at once: bounds memory and does not change the update; empty takes its whole share.",
        "optimization",
        minimum=1,
    )
    learning_rate: float = _setting(3e-4, "Peak learning rate of AdamW.", "optimization", above=0.0)
    weight_decay: float = _setting(0.1, "Weight decay of AdamW.", "optimization", True, minimum=0.0)
    lr_scheduler: str = _setting(
        "cosine", "Learning rate after warm-up.", "optimization", True, choices=("cosine", "linear", "constant_with_warmup")
    )
    warmup: float = _setting(
        0.02, "Share of the steps over which the learning rate rises.", "optimization", True, minimum=0.0, below=1.0
    )
    max_grad_norm: float = _setting(1.0, "Gradients longer than this are cut to it.", "optimization", True, above=0.0)

    method: str = _setting(
        "game",
        "game: cross-entropy, barrier and Barlow Twins; ce: LoRA alone, the implicit game; ldb: with the barrier; bt: with "
        "Barlow Twins; naive: uniform decorrelation to zero.",
        "objectives",
        choices=METHODS,
    )
    arbitration: str = _setting(
        "nash",
        "nash: bargaining over the task gradients; linear: weighted sum of the losses.",
        "objectives",
        choices=ARBITRATIONS,
    )
    update_weights_every: int = _setting(10, "Steps between two bargains; the weights stay in between.", "objectives", minimum=1)
    coupling: str = _setting("paper", "Which G the barrier and the pair weights use.", "objectives", choices=COUPLINGS)
    design_layers: list[int] | None = _setting(
        None, "Layers that both terms act on; empty takes round(19/24 * layers).", "objectives"
    )
    lambda_ldb: float = _setting(0.352, "Bargaining power (nash) or weight (linear) of the barrier.", "objectives", above=0.0)
    lambda_bt: float = _setting(0.179, "Bargaining power (nash) or weight (linear) of Barlow Twins.", "objectives", above=0.0)
    lambda_warmup: float = _setting(
        0.02, "Share of the steps over which both lambdas rise from 0.", "objectives", True, minimum=0.0, below=1.0
    )
    lambda_decay_start: float = _setting(
        0.879, "Share of the steps after which both lambdas fall to 0.", "objectives", True, above=0.0, maximum=1.0
    )
    epsilon: float = _setting(0.01, "eps of the barrier -log det(G + eps I).", "objectives", True, above=0.0)
    bt_a: float = _setting(0.929, "Pair weight of a strongly coupled pair.", "objectives", True, minimum=0.0, maximum=1.0)
    bt_b: float = _setting(15.99, "How fast the pair weight grows as coupling falls below bt_tau.", "objectives", True, above=0.0)
    bt_tau: float = _setting(
        0.0, "Coupling at which the pair weight starts to grow.", "objectives", True, minimum=-1.0, maximum=1.0
    )
    bt_target: float = _setting(
        20.0, "Value that the moving average of Barlow Twins is scaled to.", "objectives", True, above=0.0
    )
    bt_decay: float = _setting(
        0.1, "Share of the newest value in that moving average.", "objectives", True, above=0.0, maximum=1.0
    )

    eval_every: int = _setting(
        100, "Steps between two evaluations; the first and the last step always have one.", "run", minimum=1
    )
    save_every: int = _setting(100, "Steps between two checkpoints; the last step always has one.", "run", minimum=1)
    keep_checkpoints: int = _setting(3, "How many of the newest checkpoints are kept.", "run", True, minimum=1)
    report_to: list[str] = field(
        default_factory=lambda: ["tensorboard"],
        metadata={"help": "Trackers beside metrics.jsonl.", "group": "run", "advanced": True, "choices": TRACKERS},
    )

    def __post_init__(self) -> None:
        _raise(_problems(vars(self)))

    @property
    def objectives(self) -> tuple[str, ...]:
        """The losses in the bargain, cross-entropy first: ("ce", "ldb", "bt") for the full method."""
        return ("ce", *OBJECTIVES[self.method])

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return self.steps * self.batch_size * self.seq_len

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)

    def to_yaml(self) -> str:
        """YAML that `from_yaml` reads back to the same config, fields in the order of this file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, allow_unicode=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GameLoraConfig:
        """A config from values by name; what is not given keeps its default, and text is read as the field's type.

        Raises
        ------
        ValueError
            Lists every unknown name (with the nearest known one), wrong type and value out of range together.
        """
        accepted, problems = read_values(values)
        _raise(problems)
        return cls(**accepted)

    @classmethod
    def from_yaml(cls, text: str, name: str = "config") -> GameLoraConfig:
        """A config from YAML text; `name` is what errors call it."""
        return cls.from_dict(read_yaml(text, name))


def read_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that can be read, as their fields' types, and what is wrong with all of them, by the field to change."""
    known, accepted, unreadable = fields_by_name(), {}, {}
    for name, value in values.items():
        if name not in known:
            unreadable[str(name)] = _unknown(str(name), list(known))
            continue
        try:
            accepted[name] = _read(value, known[name])
        except ValueError as error:
            unreadable[name] = str(error)
    return accepted, unreadable | _problems({**default_values(), **accepted}, list(unreadable))


def default_values() -> dict[str, Any]:
    """Every field's default, by name."""
    known = fields_by_name()
    return {name: entry.default_factory() if name == "report_to" else entry.default for name, entry in known.items()}


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; ValueError when it holds something else."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not readable YAML: {' '.join(str(error).split())}.") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{name} holds a {type(values).__name__}; a config is lines of `key: value`.")
    return values


def fields_by_name() -> dict[str, dataclasses.Field]:
    """The config's fields in their order; `.metadata` has help, group, advanced, and limits."""
    return {entry.name: entry for entry in dataclasses.fields(GameLoraConfig)}


def read_settings(settings: list[str]) -> dict[str, Any]:
    """`key=value` texts, as --set gives them, to values by name; a value is YAML, so lists are [24, 25].

    Raises
    ------
    ValueError
        When a text has no `=`, or its value is not YAML.
    """
    values = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise ValueError(f"--set {setting!r} has no `=`: write key=value, such as learning_rate=1e-4.")
        try:
            values[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {setting!r}: the value cannot be read ({' '.join(str(error).split())}).") from error
    return values


def _raise(problems: Mapping[str, str]) -> None:
    if problems:
        raise ValueError("the config cannot be used: " + " ".join(problems.values()))


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`python -m gamelora show-config` lists them all."
    return f"there is no setting {name!r}; {hint}"


def _read(value: Any, entry: dataclasses.Field) -> Any:
    """The value as the field's type; ValueError says what was expected."""
    kind = typing.get_type_hints(GameLoraConfig)[entry.name]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None or value == "":
        if type(None) in options:
            return None
        raise ValueError(f"{entry.name} is empty: give {_words(options[0])}.")
    wanted = options[0]
    if typing.get_origin(wanted) is list:
        members = value if isinstance(value, (list, tuple)) else [value]
        return [_read_one(member, typing.get_args(wanted)[0], entry.name) for member in members]
    return _read_one(value, wanted, entry.name)


def _read_one(value: Any, wanted: type, name: str) -> Any:
    if wanted is bool:
        if isinstance(value, bool):
            return value
    elif isinstance(value, (bool, list, dict)):
        pass
    elif wanted is str:
        return str(value)
    else:
        try:
            number = float(value)  # YAML 1.1 reads 1e-4 as text
            if wanted is float or number.is_integer():
                return wanted(number)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{name} is {value!r}: give {_words(wanted)}.")


def _words(kind: Any) -> str:
    if typing.get_origin(kind) is list:
        return f"a list of {'whole numbers' if typing.get_args(kind)[0] is int else 'names'}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _range_problems(values: Mapping[str, Any]) -> dict[str, str]:
    problems = {}
    for name, entry in fields_by_name().items():
        limits, value = entry.metadata, values[name]
        if "choices" in limits:
            wrong = [member for member in (value if isinstance(value, list) else [value]) if member not in limits["choices"]]
            if wrong:
                problems[name] = f"{name} is {', '.join(map(repr, wrong))}: choose {' or '.join(limits['choices'])}."
        elif isinstance(value, (int, float)) and not _within(value, limits):
            problems[name] = f"{name} is {value:g}: give {_range_words(limits)}."
    return problems


def _within(value: float, limits: Mapping[str, Any]) -> bool:
    return (  # a NaN fails each comparison
        float("-inf") < value < float("inf")
        and value >= limits.get("minimum", value)
        and value <= limits.get("maximum", value)
        and value > limits.get("above", float("-inf"))
        and value < limits.get("below", float("inf"))
    )


def _range_words(limits: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "above": "more than", "maximum": "at most", "below": "less than"}
    return " and ".join(f"{word} {limits[name]:g}" for name, word in words.items() if name in limits) or "a finite number"


def _batch_cut(batch_size: int, micro_batch_size: int | None) -> str | None:
    if micro_batch_size is None or batch_size % micro_batch_size == 0:
        return None
    fits = next(divisor for divisor in range(min(batch_size, micro_batch_size), 0, -1) if batch_size % divisor == 0)
    return (
        f"batch_size {batch_size} cannot be cut into rows of micro_batch_size {micro_batch_size}: use {fits}, which divides it."
    )


def _evaluation_rows(eval_tokens: int, seq_len: int) -> str | None:
    if eval_tokens >= seq_len:
        return None
    return f"eval_tokens {eval_tokens} do not fill one row of seq_len {seq_len}: give at least {seq_len}."


def _schedule_order(lambda_warmup: float, lambda_decay_start: float) -> str | None:
    if lambda_warmup <= lambda_decay_start:
        return None
    return f"lambda_warmup {lambda_warmup:g} ends after lambda_decay_start {lambda_decay_start:g}: make it smaller."


def _layer_numbers(design_layers: list[int] | None) -> str | None:
    if design_layers is None or (design_layers and min(design_layers) >= 0 and len(set(design_layers)) == len(design_layers)):
        return None
    return f"design_layers is {design_layers}: name each layer once, counted from 0, or leave it empty for the default."


_RULES = (_batch_cut, _evaluation_rows, _schedule_order, _layer_numbers)


def _problems(values: Mapping[str, Any], unreadable: Sequence[str] = ()) -> dict[str, str]:
    """What is wrong, by field. A rule between fields is asked when each is right by itself, and stands at its first one."""
    wrong = _range_problems(values)
    rules = [(rule, list(inspect.signature(rule).parameters)) for rule in _RULES]
    sound = [(rule, names) for rule, names in rules if not any(name in wrong or name in unreadable for name in names)]
    broken = {names[0]: rule(*(values[name] for name in names)) for rule, names in sound}
    return wrong | {name: sentence for name, sentence in broken.items() if sentence}
