"""The coalitions page without a browser: its numbers, its refusals, and the view that a link names."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.coalitions import find_coalitions
from analysis.compare import compare
from analysis.stability import bootstrap
from tests.planted import planted_result
from tests.synthetic import synthetic_result
from tests.test_pages import DEFAULT, app, fine, numbers, words

TABS = ["Stability", "A against B", "Flow", "Eigengap", "Export"]
THREE_GROUPS = {"n_layers": 5, "n_heads": 9, "n_kv_heads": 3, "batches": 8}


@pytest.fixture
def results(workspace):
    """The default model with coalitions that are its kv groups, and an adapter on it."""
    folder = workspace / "results"
    synthetic_result(**THREE_GROUPS).save(folder / f"{DEFAULT}.npz")
    synthetic_result(**THREE_GROUPS, seed=1, adapter="/runs/laptop").save(folder / "adapted.npz")
    return folder


# --- what it shows --------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_library(results):
    result = synthetic_result(**THREE_GROUPS)
    expected = bootstrap(result, find_coalitions(result, layers=[4])).layers[0]
    test = app("coalitions", layer="4")
    assert fine(test)
    shown = numbers(test)
    assert shown["Coalitions"] == str(expected.k) == "3"
    assert shown["Modularity"] == f"{expected.modularity:.3g}"
    assert shown["Stability"] == f"{expected.stability.mean_ari:.3g}"
    assert shown["Agreement with kv groups"] == f"{expected.kv.ari:.3g}" == "1"
    said = words(test)
    assert "mean of 50 resamples of 8 batches" in said
    assert f"|G| {expected.kv.inside:.3g} inside, {expected.kv.between:.3g} between, gauge noise {expected.kv.noise:.2g}" in said


def test_kv_groups_are_said_and_the_invariant_coupling_is_one_click_away(results):
    test = app("coalitions", layer="4")
    assert "These three coalitions are the model's three kv groups; the paper's coupling cannot see across them" in words(test)
    test.button(key="to_invariant").click().run()
    assert fine(test) and test.session_state["coupling"] == "invariant"
    assert "invariant coupling, heads sorted by coalition" in words(test)
    assert "to_invariant" not in [button.key for button in test.button]


def test_k_affinity_and_scope_are_used(results):
    result = synthetic_result(**THREE_GROUPS)
    expected = find_coalitions(result, 5, "absolute", layers=[4]).layers[0]
    test = app("coalitions", layer="4", k="5", affinity="absolute")
    shown = numbers(test)
    assert (shown["Coalitions"], shown["Modularity"]) == ("5", f"{expected.modularity:.3g}")
    inside = app("coalitions", layer="4", k="5", scope="kv")
    expected = find_coalitions(result, 5, "positive", [4], within_kv=True).layers[0]
    assert numbers(inside)["Modularity"] == f"{expected.modularity:.3g}" != shown["Modularity"]


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("link", [{}, {"b": "adapted", "of": "B"}, {"b": "other"}, {"k": "9"}, {"k": "1"}], ids=str)
def test_every_tab_draws(results, tab, link):
    synthetic_result(n_layers=3, n_heads=4, n_kv_heads=4, name="other", source="/m").save(results / "other.npz")
    assert fine(app("coalitions", tab=tab, layer="1", **link))


# --- two checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "fixed"), [("A", "before"), ("B", "after")])
def test_the_verdict_is_that_of_the_comparison(results, of, fixed):
    before, after = synthetic_result(**THREE_GROUPS), synthetic_result(**THREE_GROUPS, seed=1, adapter="/runs/laptop")
    expected = compare(before, after, fixed, k=4)
    assert expected.sentence != compare(before, after, "before" if fixed == "after" else "after", k=4).sentence
    test = app("coalitions", b="adapted", of=of, k="4", tab="A against B")
    said = words(test)
    assert expected.sentence in said
    assert f"Coalitions of {of}, paper coupling; n = {len(expected.tested)} layers of 36 pairs of heads" in said
    table = next(frame.value for frame in test.dataframe if "selectivity" in frame.value)
    np.testing.assert_allclose(table["selectivity"], [entry.selectivity for entry in expected.layers])


def test_another_model_is_refused_with_what_differs(results):
    synthetic_result(n_layers=3, n_heads=4, n_kv_heads=4, name="other", source="/m").save(results / "other.npz")
    test = app("coalitions", b="other", layer="1", tab="A against B")
    assert fine(test)
    assert "they differ in" in words(test) and "n_heads (9 and 4)" in words(test)
    assert numbers(test)["Coalitions"], "A is shown all the same"
    test = app("coalitions", b="other", layer="4", of="B")
    assert "has no attention layer 4" in words(test)


def test_the_flow_goes_from_A_to_B_when_they_compare(results):
    test = app("coalitions", b="adapted", layer="4", tab="Flow", flow="checkpoints")
    assert fine(test) and "Adjusted Rand index of the two: 1 (1: the same coalitions)" in words(test)
    assert test.query_params["flow"] in ("checkpoints", ["checkpoints"])


# --- what there is nothing to say of, and bad input -----------------------------------------------------------------------


def test_no_structure_is_said_with_the_way_on(results):
    planted = synthetic_result(n_layers=1, n_heads=8, n_kv_heads=8, batches=4, name="loose", source="/m")
    planted.save(results / "loose.npz")
    test = app("coalitions", a="loose")
    assert fine(test) and "no structure" in words(test) and "How many" in words(test)
    asked = app("coalitions", a="loose", k="3")
    assert numbers(asked)["Coalitions"] == "3" and "Give a number" not in words(asked)


def test_one_head_a_layer_is_a_sentence(results):
    synthetic_result(n_layers=2, n_heads=1, n_kv_heads=1, name="one", source="/m").save(results / "one.npz")
    test = app("coalitions", a="one")
    assert fine(test) and "has one head a layer" in words(test)


def test_one_batch_cannot_be_resampled_and_says_so(results):
    synthetic_result(**{**THREE_GROUPS, "batches": 1}, name="short", source="/m").save(results / "short.npz")
    test = app("coalitions", a="short", layer="4")
    assert fine(test) and numbers(test)["Stability"] == "none"
    assert "one batch of rows, which cannot be resampled" in words(test)


def test_a_broken_layer_names_its_heads_and_spoils_no_other(results):
    broken = synthetic_result(**THREE_GROUPS)
    for sums in broken.gradient_sums.values():
        sums[:, 2, 1, :] = np.nan
        sums[:, 2, :, 1] = np.nan
    broken.save(results / f"{DEFAULT}.npz")
    test = app("coalitions", layer="2")
    assert not test.exception and "L2H1" in words(test) and "not a number" in words(test)
    assert fine(app("coalitions", layer="4", tab="Export"))


def test_a_threshold_that_leaves_no_edge_is_said_and_exports_no_graph(results):
    test = app("coalitions", layer="4", threshold="1.0", tab="Export")
    assert fine(test) and "No edge left: the largest |G| is" in words(test)
    assert "At this threshold no edge is left in layer 4" in words(test)


def test_a_link_with_values_that_are_not_there_says_so_and_shows_the_default(results):
    test = app("coalitions", k="99", affinity="odd", scope="x", layer="77", threshold="many")
    assert fine(test)
    said = words(test)
    for sentence in ("k 99; there is auto to 9", "affinity odd", "scope x", "layer 77; there is 0 to 4", "which is no number"):
        assert sentence in said
    assert (test.session_state["k"], test.session_state["affinity"]) == ("auto", "positive")
    assert "|G| lies between 0 and 1" in words(app("coalitions", threshold="-3"))
    assert "|G| lies between 0 and 1" in words(app("coalitions", threshold="nan"))


def test_names_with_every_sign_are_shown_as_they_are(results):
    name = "my_model#1 50%&[x] $a$ *b* <i>"
    for file, seed in (("signs", 0), ("signs2", 1)):
        synthetic_result(**THREE_GROUPS, name=name, source="/m", seed=seed).save(results / f"{file}.npz")
    for tab in ("A against B", "Flow", "Export"):
        test = app("coalitions", a="signs", b="signs2", tab=tab)
        assert fine(test) and name in words(test)


# --- links ----------------------------------------------------------------------------------------------------------------


def test_a_link_opens_its_view_and_the_view_writes_its_link(results):
    link = {"a": "adapted", "b": DEFAULT, "of": "B", "layer": "2", "k": "4", "affinity": "absolute", "scope": "kv"}
    link |= {"threshold": "0.037", "coupling": "invariant"}
    test = app("coalitions", **link)
    state = {key: str(test.session_state[key]) for key in link}
    assert state == link
    test.select_slider(key="layer").set_value(3).run()
    test.selectbox(key="k").set_value(2).run()
    test.select_slider(key="threshold").set_value(0.1).run()
    written = {key: value if isinstance(value, str) else value[0] for key, value in test.query_params.items()}
    assert written == link | {"layer": "3", "k": "2", "threshold": "0.1"}
    assert fine(test)


def test_the_bundle_asks_for_layers_by_link(results):
    test = app("coalitions", tab="Export", bundle="1,3,99")
    assert test.multiselect(key="bundle").value == [1, 3]
    test.multiselect(key="bundle").set_value([]).run()
    assert fine(test)


def test_a_planted_partition_is_found(results):
    planted = planted_result([0, 0, 1, 1, 2, 2, 0, 1], strength=0.8, layers=2, n_kv_heads=8)
    replace(planted, provenance=synthetic_result().provenance).save(results / "planted.npz")
    test = app("coalitions", a="planted", layer="1", tab="Stability")
    members = next(frame.value for frame in test.dataframe if "heads" in frame.value)
    assert members["heads"].tolist() == ["L1H0, L1H1, L1H6", "L1H2, L1H3, L1H7", "L1H4, L1H5"]
