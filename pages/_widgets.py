"""What several pages share: state in the link, names for people, notices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from analysis.models import adapter_name
from gamelora.measurement_jobs import MeasurementRequest, text_name

# a tenth of a GiB and more is told in GiB, so that what is needed and what is free read alike
_UNITS = ((2**30 / 10, 2**30, "GiB"), (2**20, 2**20, "MiB"), (2**10, 2**10, "KiB"))


def plain(text: object) -> str:
    """Text that Streamlit's Markdown shows as it is: names, paths and errors may hold any sign."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&^=-])", r"\\\1", str(text))


def sentence(text: object) -> str:
    """An error or a note as a sentence of its own: with a capital."""
    return str(text)[:1].upper() + str(text)[1:]


def many(count: float, noun: str) -> str:
    """A number with its noun: 1 checkpoint, 2,048 checkpoints, 3 batches."""
    several = "bases" if noun == "basis" else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,.0f} {noun if count == 1 else several}"


def size(count: float) -> str:
    """Bytes for people: 0.53 GiB, 7.03 MiB."""
    for least, unit, word in _UNITS:
        if count >= least:
            return f"{count / unit:.2f} {word}"
    return f"{count:.0f} bytes"


def linked(key: str, options: Sequence[Any], default: Any) -> None:
    """Give the widget `key` its value before it is drawn: its own, else the link's, else the default; and keep the link up.

    A value that is not among the options becomes the default.
    """
    wanted = st.session_state[key] if key in st.session_state else st.query_params.get(key)
    value = {str(option): option for option in options}.get(str(wanted), default)
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
    if value is None:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != str(value):
        st.query_params[key] = str(value)


def linked_or_said(key: str, options: Sequence[Any], default: Any) -> None:
    """`linked`, and a word when the link asks for what is not there."""
    wanted = st.query_params.get(key)
    if wanted and key not in st.session_state and wanted not in map(str, options):
        some = f"{options[0]} to {options[-1]}" if len(options) > 1 else str(options[0])
        st.warning(f"The link asks for {key} {plain(wanted)}; there is {plain(some)}. Shown is {plain(default)}.")
    linked(key, options, default)


def choose(key: str, request: MeasurementRequest) -> None:
    """Show that request's measurement as `a` or `b`; start it when there is none."""
    if not request.path.is_file():
        request.start()
    st.session_state[f"next_{key}"] = request.name
    st.rerun()


def take_choices() -> None:
    """Put what `choose` left into the pickers, before they are drawn."""
    for key in "ab":
        if f"next_{key}" in st.session_state:
            st.session_state[key] = st.session_state.pop(f"next_{key}")


def header(title: str, sentence: str) -> None:
    """A page's title and its one plain sentence."""
    st.title(title, anchor=False)
    st.markdown(f":gray[{sentence}]")


def numbers_row(told: dict[str, list[tuple[str, str, str]]], helps: Sequence[str]) -> None:
    """Numbers of A side by side, those of B in small below them.

    Parameters
    ----------
    told : "A" or "B" -> (label, value, detail) of each number.
    helps : of each number, on hover.
    """
    first, *others = told
    for position, column in enumerate(st.columns(len(helps))):
        label, value, detail = told[first][position]
        with column.container(gap="xxsmall"):
            st.metric(label, value, help=helps[position])
            if not others:
                st.caption(detail)
                continue
            _, other, its_detail = told[others[0]][position]
            below = f":small[:orange[**{others[0]} {other}**] :gray[{its_detail}]]"
            st.markdown(f":small[:blue[**{first} {value}**] :gray[{detail}]]  \n{below}")


def checkpoint_name(provenance: dict[str, Any]) -> str:
    """Model, and adapter on it."""
    adapter = provenance["adapter"]
    return provenance["model"]["name"] + (f" + {adapter_name(adapter['source'])}" if adapter else "")


def checkpoint_kind(provenance: dict[str, Any]) -> str:
    """base, adapter, or run step: a checkpoint that a run saved on its way."""
    adapter = provenance["adapter"]
    if not adapter:
        return "base"
    return "run step" if re.fullmatch(r"checkpoint-\d+", Path(adapter["source"]).name) else "adapter"


def measured_on(provenance: dict[str, Any]) -> str:
    """The text of a result in words; several when it was merged."""
    texts = provenance["text"].get("merged", [provenance["text"]])
    return " and ".join(f"{text_name(text['source'])}, {text['tokens']:,} tokens" for text in texts)


def three_digits(value: float) -> str:
    """A number as the pages show it; downloads keep all digits."""
    return f"{value:.3g}"
