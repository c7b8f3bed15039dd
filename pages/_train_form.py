"""The form of a new run: made from the config's own fields and help texts, checked as one types."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

import streamlit as st

from analysis.workspace import safe_name
from gamelora import training_jobs
from gamelora.config import GameLoraConfig, default_values, fields_by_name, read_values
from gamelora.measurement_jobs import TEXTS, text_name
from gamelora.presets import PRESETS, preset
from pages._frame import View
from pages._train_plan import plan, problems_of
from pages._widgets import plain

GROUPS = {
    "model": "Model",
    "data": "Text",
    "adapter": "Adapter",
    "optimization": "Optimization",
    "objectives": "Objectives",
    "run": "Evaluations and checkpoints",
}
_LABELS = {  # where the field's own name says too little
    "dtype": "Base precision",
    "autocast": "Forward precision",
    "eval_text": "Held-out text",
    "eval_tokens": "Held-out tokens",
    "seq_len": "Tokens per row",
    "r": "Rank r",
    "lora_alpha": "LoRA alpha",
    "lora_dropout": "LoRA dropout",
    "use_dora": "DoRA",
    "use_rslora": "rsLoRA",
    "batch_size": "Rows per step",
    "micro_batch_size": "Rows at once",
    "lr_scheduler": "Schedule",
    "max_grad_norm": "Longest gradient",
    "update_weights_every": "Steps per bargain",
    "lambda_ldb": "λ barrier",
    "lambda_bt": "λ Barlow Twins",
    "lambda_warmup": "λ warm-up",
    "lambda_decay_start": "λ decay from",
    "epsilon": "Barrier ε",
    "bt_a": "Pair weight a",
    "bt_b": "Pair weight b",
    "bt_tau": "Pair weight τ",
    "bt_target": "Barlow Twins target",
    "bt_decay": "Barlow Twins decay",
    "eval_every": "Steps per evaluation",
    "save_every": "Steps per checkpoint",
    "report_to": "Trackers",
}
_WIDE = ("model", "text", "eval_text")
_COLUMNS = 3
_FIRST = "laptop"
# Start and what the run takes stay in sight beside the long form.
_STICKY = """<style>
[data-testid="stColumn"]:has(.st-key-train_plan) { position: sticky; top: 3.5rem; align-self: flex-start }
</style>"""


def form(view: View) -> None:
    """The form on the left; what it comes to, and Start, on the right."""
    if "train_preset" not in st.session_state:
        fill(preset(_FIRST), _FIRST)
    state = st.session_state
    if state.pop("train_started", None) == state["train_name"]:
        state["train_name"] = training_jobs.unused_name(state["train_name"])
    _draw(sorted({"default", *_measured_models(view)}))


@st.fragment
def _draw(models: list[str]) -> None:
    config, problems = read_form()
    st.html(_STICKY)
    left, right = st.columns([5, 4], gap="large")
    with left:
        _start_from()
        _name(problems)
        for advanced in (False, True):
            with st.expander("Advanced", key="train_advanced") if advanced else st.container():
                for group, title in GROUPS.items():
                    _group(group, title, advanced, models, problems)
    with right, st.container(key="train_plan"):
        plan(st.session_state["train_name"], config, int(st.session_state["train_processes"]), problems)


def fill(config: GameLoraConfig, name: str, base: str | None = None) -> None:
    """Put a config into the form, under a name that is free; to be called before the form is drawn, or from a callback."""
    state = st.session_state
    for field, value in config.to_dict().items():
        state[f"train_{field}"] = _shown(field, value)
    state["train_name"] = training_jobs.unused_name(name)
    state["train_preset"] = base or (name if name in PRESETS else None)
    state.setdefault("train_processes", 1)


def read_form() -> tuple[GameLoraConfig | None, dict[str, str]]:
    """The config that the form holds, None while it cannot be read; and all problems by field, "name" for the run's name."""
    given = {field: _given(field) for field in fields_by_name()}
    accepted, problems = read_values(given)
    config = None if problems else GameLoraConfig(**default_values() | accepted)
    if config is not None:
        problems = problems_of(config, int(st.session_state["train_processes"]))
    return config, problems | _name_problem(st.session_state["train_name"])


def _name_problem(name: str) -> dict[str, str]:
    try:
        safe_name(name, "run name")
    except ValueError as error:
        return {"name": str(error)}
    if name in training_jobs.names():
        return {"name": f"There is a run {name} already: choose another name, or open that one above."}
    return {}


def _start_from() -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            "Start from",
            list(PRESETS)[::-1],
            key="train_preset",
            on_change=_take_preset,
            persist_state="session",
            help="**smoke**: a minute, to see that all works. **laptop**: a real fine-tune of the default model on a CPU. "
            "**paper**: the paper's, for a GPU. Any setting may be changed afterwards.",
        )
        _load()


def _load() -> None:
    """A config from a file or from what was pasted, into the form; what cannot be used is said and the form stays."""
    with st.popover("Load a config", key="train_load"):
        uploaded = st.file_uploader("YAML file", type=["yaml", "yml"], key="train_upload")
        pasted = st.text_area("or paste it", key="train_paste", height=180, placeholder="steps: 300")
        text = uploaded.getvalue().decode("utf-8", errors="replace") if uploaded else pasted
        name = uploaded.name.rsplit(".", 1)[0] if uploaded else "pasted"
        st.button("Use it", key="train_use", disabled=not text.strip(), on_click=_take_text, args=(text, name))
        if "train_load_error" in st.session_state:
            st.error(plain(st.session_state["train_load_error"]))


def _take_text(text: str, name: str) -> None:
    st.session_state.pop("train_load_error", None)
    try:
        config = GameLoraConfig.from_yaml(text, name)
    except ValueError as error:
        st.session_state["train_load_error"] = str(error)
        return
    fill(config, re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-.") or "loaded")


def _take_preset() -> None:
    chosen = st.session_state["train_preset"]
    if chosen:
        fill(preset(chosen), chosen)


def _name(problems: dict[str, str]) -> None:
    name, processes = st.columns([2, 1])
    with name:
        st.text_input("Name", key="train_name", live=True, persist_state="session", help="Of the run and its folder.")
        _problem(problems.get("name"))
    with processes:
        st.number_input(
            "Processes",
            1,
            key="train_processes",
            persist_state="session",
            help="More than one starts through `accelerate launch`, one a device; the update stays that of one process.",
        )


def _group(group: str, title: str, advanced: bool, models: list[str], problems: dict[str, str]) -> None:
    fields = [
        field for field in fields_by_name().values() if (field.metadata["group"], field.metadata["advanced"]) == (group, advanced)
    ]
    if not fields:
        return
    if title != _label(fields[0].name):  # a heading over a field of the same name says nothing
        st.markdown(f"**{title}**")
    for field in (field for field in fields if field.name in _WIDE):
        _field(field, models, problems.get(field.name))
    narrow = [field for field in fields if field.name not in _WIDE]
    for first in range(0, len(narrow), _COLUMNS):
        for column, field in zip(st.columns(_COLUMNS), narrow[first : first + _COLUMNS], strict=False):
            with column:
                _field(field, models, problems.get(field.name))


def _field(field: dataclasses.Field, models: list[str], problem: str | None) -> None:
    """The widget of one field, by its type, with its help and what is wrong with it."""
    name, choices = field.name, field.metadata.get("choices")
    label = _label(name)
    options: dict[str, Any] = {
        "key": f"train_{name}",
        "persist_state": "session",
        "help": f"{field.metadata['help']} In files: `{name}`.",
    }
    kind = _kind(name)
    if kind is bool:
        st.checkbox(label, **options)
    elif choices and kind is list:
        st.multiselect(label, list(choices), **options)
    elif choices:
        st.selectbox(label, list(choices), **options)
    elif name == "model":
        st.selectbox(label, _with_own(models, options["key"]), accept_new_options=True, **options)
    elif name in _WIDE:
        empty = {"index": None, "placeholder": "the first rows of the training text"} if name == "eval_text" else {}
        texts = _with_own(list(TEXTS), options["key"])
        st.selectbox(label, texts, format_func=text_name, accept_new_options=True, **empty, **options)
    else:
        st.text_input(label, live=True, placeholder="automatic" if field.default is None else None, **options)
    _problem(problem)


def _label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " ").capitalize())


def _with_own(choices: list[str], key: str) -> list[str]:
    """The choices of a picker, and what was typed into it."""
    own = st.session_state[key]
    return choices if own is None or own in choices else [*choices, own]


def _problem(sentence: str | None) -> None:
    if sentence:
        st.caption(f":red[{plain(sentence)}]")


def _kind(name: str) -> type:
    """bool, list, or another type: which widget a field gets."""
    hint = typing.get_type_hints(GameLoraConfig)[name]
    first = (typing.get_args(hint) or (hint,))[0] if typing.get_origin(hint) is not list else hint
    return list if typing.get_origin(first) is list else first


def _shown(name: str, value: Any) -> Any:
    """A value as its widget holds it."""
    field = fields_by_name()[name]
    if "choices" in field.metadata or isinstance(value, bool) or name in _WIDE:
        return value
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _given(name: str) -> Any:
    """A widget's value for the config to read."""
    value = st.session_state[f"train_{name}"]
    if _kind(name) is list and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()] or None
    return value.strip() if isinstance(value, str) else value


def _measured_models(view: View) -> list[str]:
    """The base models that this workspace has results of."""
    return [one.provenance["model"]["source"] for one in view.found.values() if one.provenance]
