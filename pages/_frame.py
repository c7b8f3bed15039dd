"""The sidebar that all pages share: checkpoints A and B, text, coupling, jobs, machine; and the view that it chooses."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import streamlit as st

from analysis.interaction import COUPLINGS
from analysis.models import DTYPES
from analysis.workspace import workspace_root
from gamelora.measurement_jobs import SEQ_LEN, TEXTS, MeasurementRequest, text_name
from pages._cache import Measurement, machine, measurements, run_measurements
from pages._jobs import sidebar_jobs
from pages._widgets import checkpoint_kind, checkpoint_name, choose, linked, plain, take_choices

# Streamlit collects garbage after every run of a page or fragment, which takes 0.3 s with torch and transformers loaded:
# their objects stay, so the collector need not look at them again.
gc.freeze()


@dataclass(frozen=True)
class View:
    """What the sidebar has chosen.

    Attributes
    ----------
    a, b : the measurements on screen; `b` may be None.
    coupling : of `interaction.COUPLINGS`.
    default : the request that measures the default model on the sidebar's text.
    found : every measurement by name.
    """

    a: Measurement
    b: Measurement | None
    coupling: str
    default: MeasurementRequest
    found: dict[str, Measurement]


def frame() -> View:
    """Draw the sidebar and return what it has chosen."""
    take_choices()
    state = st.session_state
    with st.sidebar:
        default = MeasurementRequest(text=state.get("text", "builtin"), tokens=state.get("tokens", 2048))
        found, notices = measurements(state.get("folder", st.query_params.get("folder", "")))
        name = _default_name(found, default)
        found.setdefault(name, Measurement(name))
        of_runs = run_measurements(found, default.text, default.tokens)
        found |= {key: one for key, one in of_runs.items() if key not in found}
        twice = {one.request.name for one in of_runs.values() if one.path}  # the same file under its own name
        a, b = _checkpoint_pickers(found, name, twice)
        _follow(found[a])
        request = _text_pickers()
        coupling = _coupling_picker()
        _open_another(request)
        st.divider()
        sidebar_jobs()
        for notice in notices:
            st.warning(plain(notice))
        st.divider()
        st.caption(f"Workspace {plain(workspace_root())}  \n{plain(machine())}")
    return View(found[a], found[b] if b else None, coupling, request, found)


def _default_name(found: dict[str, Measurement], default: MeasurementRequest) -> str:
    """The default model's measurement: on the sidebar's text when there is one, else any, else the one to be made."""
    own = [name for name, one in found.items() if one.of_default_model]
    return default.name if default.name in found or not own else own[0]


def _checkpoint_pickers(found: dict[str, Measurement], default: str, twice: set[str]) -> tuple[str, str | None]:
    """A and B among `found`, less what stands there `twice` unless it is chosen already."""
    for key in "ab":
        wanted = st.query_params.get(key)
        if wanted and key not in st.session_state and wanted not in found:
            st.warning(f"The link asks for {plain(wanted)}, which is not in this workspace. Measure it, or choose another.")
    chosen = {default, *(st.session_state.get(key, st.query_params.get(key)) for key in "ab")}
    names = [name for name in found if name not in twice - chosen]
    linked("a", names, default)
    linked("b", names, None)
    a = st.selectbox(":blue[**A**] checkpoint", names, key="a", persist_state="session")
    _identity(found[a], "blue")
    b = st.selectbox(":orange[**B**] checkpoint", names, index=None, key="b", placeholder="none", persist_state="session")
    if b:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            with st.container(width="stretch"):
                _identity(found[b], "orange")
            st.button("Swap", on_click=_swap, help="Exchange A and B.")
    return a, b


def _swap() -> None:
    st.session_state["a"], st.session_state["b"] = st.session_state["b"], st.session_state["a"]


def _identity(measurement: Measurement, color: str) -> None:
    known = measurement.provenance
    if known is None:
        st.markdown(f":{color}-badge[{measurement.job.state if measurement.job else 'not measured'}]")
        return
    model = known["model"]
    shape = f"{model['architecture']}, {model['n_heads']} heads, {model['n_kv_heads']} kv heads, head width {model['d_head']}"
    st.markdown(f":{color}-badge[{checkpoint_kind(known)}] :small[{plain(checkpoint_name(known))}]", help=plain(shape))


def _follow(measurement: Measurement) -> None:
    """When another A is chosen, text and tokens become those that it was measured on: changing them asks for something else."""
    known = measurement.provenance
    own = known and measurement.request is None  # a checkpoint of a run is looked for on the sidebar's text already
    if own and "source" in known["text"] and st.session_state.get("followed") != measurement.name:
        tokens = max(SEQ_LEN, known["text"]["tokens"])
        st.session_state.update(text=known["text"]["source"], tokens=tokens, followed=measurement.name)


def _text_pickers() -> MeasurementRequest:
    st.session_state.setdefault("text", "builtin")
    st.session_state.setdefault("tokens", 2048)
    left, right = st.columns([3, 2], gap="small")
    with left:
        text = st.selectbox(
            "Text",
            list(TEXTS),
            format_func=text_name,
            accept_new_options=True,
            key="text",
            persist_state="session",
            help="What is measured on: a choice, or type hub:ID or the path of a .txt, .jsonl, .jsonl.gz, .parquet or .npy file.",
        )
    with right:
        tokens = st.number_input("Tokens", SEQ_LEN, step=SEQ_LEN, key="tokens", persist_state="session")
    return MeasurementRequest(text=text, tokens=int(tokens))


def _coupling_picker() -> str:
    linked("coupling", COUPLINGS, "paper")
    return st.segmented_control(
        "Coupling",
        COUPLINGS,
        key="coupling",
        required=True,
        persist_state="session",
        width="stretch",
        help="**paper**: cosines of the heads' output weights and gradients as they stand. **invariant**: the same, of what the "
        "heads write into the residual stream; it does not change when a head's value basis is rotated, and sees coupling "
        "across kv groups.",
    )


def _open_another(request: MeasurementRequest) -> None:
    with st.popover("Open another", width="stretch"):
        source = st.text_input("Model", key="source", placeholder="default, owner/name, folder or .gguf file").strip()
        adapter = st.text_input("Adapter", key="adapter", placeholder="none, or a PEFT folder").strip()
        with st.container(horizontal=True):
            revision = st.text_input("Revision", key="revision", placeholder="main", help="Of a hub model.", width=90).strip()
            dtype = st.selectbox("Precision", list(DTYPES), key="dtype", width=110)
            gradient = st.selectbox("Gradient", ("token", "mean"), key="gradient", help="Per token is the paper's.", width=110)
        wanted = MeasurementRequest(source, revision or None, adapter or None, request.text, request.tokens, dtype, gradient)
        with st.container(horizontal=True):
            for key in "ab":
                if st.button(f"Measure as {key.upper()}", disabled=not source, key=f"measure_as_{key}"):
                    choose(key, wanted)
        st.session_state.setdefault("folder", st.query_params.get("folder", ""))
        folder = st.text_input(
            "Folder of results", key="folder", persist_state="session", placeholder="a path; its .npz files join the list"
        )
    if folder:
        st.query_params["folder"] = folder
