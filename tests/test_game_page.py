"""The game page without a browser: its numbers, its empty states and refusals, its jobs, and the view that a link names."""

import numpy as np
import pandas as pd
import pytest

from analysis.ablation import AblationResult, Effect
from analysis.game_result import GameResult, play
from analysis.gauge import GaugeMoves, GaugeResult
from analysis.hallucination.evaluation import KIND
from analysis.head_values import HeadValues
from analysis.records import write_record
from gamelora.game_jobs import Check, ablation_job, gauge_job, values_job
from gamelora.jobs import Job
from tests.synthetic import synthetic_result
from tests.test_pages import DEFAULT, app, fine, job, known_jobs, numbers, started, words  # noqa: F401

TABS = ["Charges and VIF", "Free riders", "Causal check", "Errors", "Data"]
SHAPE = {"n_layers": 5, "n_heads": 9, "n_kv_heads": 3, "batches": 8}


@pytest.fixture
def results(workspace):
    """The default model's result, and an adapter's on it."""
    folder = workspace / "results"
    synthetic_result(**SHAPE).save(folder / f"{DEFAULT}.npz")
    synthetic_result(**SHAPE, seed=1, adapter="/runs/laptop").save(folder / "adapted.npz")
    return folder


def with_twins(layer, n_layers=5, n_heads=9, n_kv_heads=3, **settings):
    """A result whose heads 0 and 1 of a layer are the same."""
    result = synthetic_result(n_layers, n_heads, n_kv_heads, batches=8, **settings)
    for sums in (*result.weight_grams.values(), *result.gradient_sums.values()):
        sums[..., layer, 1, :] = sums[..., layer, 0, :]
        sums[..., layer, :, 1] = sums[..., layer, :, 0]
    return result


def keep_values(result, path, effect=np.nan, seed=0):
    """Head values of a result in the workspace, as the job would leave them."""
    shape = (result.n_layers, result.n_heads)
    first_order = np.random.default_rng(seed).uniform(0.1, 1.0, size=shape)
    values = HeadValues(result.layers, first_order, np.full(shape, effect), {"model": {}, "adapter": None})
    values.save(values_job(path, result.provenance, result.coupling, 5.0, 0).path)
    return values


# --- what it shows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["paper", "invariant"])
def test_the_numbers_are_those_of_the_library(results, coupling):
    result = synthetic_result(**SHAPE).view(coupling)
    game = play(result)[3]
    test = app("game", layer="3", coupling=coupling)
    assert fine(test)
    shown = numbers(test)
    assert shown["Price of anarchy"] == f"{game.price_of_anarchy.value:.3g}"
    worst = game.worst_case
    assert shown["Worst case"] == (f"{worst.value:.3g}" if worst.bounded else "unbounded")
    assert shown["Redundant heads"] == str(int((game.vif > 5).sum()))


def test_unbounded_is_a_value_with_its_reason(results):
    with_twins(2).save(results / f"{DEFAULT}.npz")
    test = app("game", layer="2")
    assert fine(test) and numbers(test)["Worst case"] == "unbounded"
    expected = play(with_twins(2))[2].worst_case
    assert not expected.bounded and expected.reason in words(test)


def test_it_says_whose_statements_these_are(results):
    said = words(app("game"))
    assert "From the paper: G, and that heads lose less to anarchy" in said and "This project's own model:" in said


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("link", [{}, {"b": "adapted"}, {"b": "other"}, {"vif": "1.05"}, {"head": "4"}], ids=str)
def test_every_tab_draws(results, tab, link):
    synthetic_result(n_layers=3, n_heads=4, n_kv_heads=4, name="other", source="/m").save(results / "other.npz")
    assert fine(app("game", tab=tab, layer="1", **link))


def test_a_layer_that_only_b_has_is_said_and_drawn(results):
    synthetic_result(n_layers=3, n_heads=4, n_kv_heads=4, name="other", source="/m").save(results / "other.npz")
    test = app("game", a="other", b=DEFAULT, layer="4")
    assert fine(test) and "other has no attention layer 4" in words(test) and "Price of anarchy" in numbers(test)


# --- benefits -------------------------------------------------------------------------------------------------------------


def test_measured_benefits_are_used_when_they_are_there(results):
    result = synthetic_result(**SHAPE)
    values = keep_values(result, results / f"{DEFAULT}.npz")
    expected = play(result, values.first_order)[3].price_of_anarchy.value
    assert f"{expected:.3g}" != f"{play(result)[3].price_of_anarchy.value:.3g}"
    test = app("game", layer="3", benefits="measured")
    assert fine(test) and numbers(test)["Price of anarchy"] == f"{expected:.3g}"
    assert "layer 3, measured benefits" in words(test)


def test_missing_benefits_are_one_sentence_and_one_button(results, started):  # noqa: F811
    test = app("game", layer="3", benefits="measured", b="adapted")
    said = words(test)
    assert "A: what each head is worth is not measured yet; until then benefits are equal." in said
    assert "layer 3, equal benefits" in said
    test.button(key="start_benefits_B").click().run()
    (target, arguments) = started[0]
    assert target.startswith("head-values:") and "--benefits=measured" in arguments
    assert f"--result={results / 'adapted.npz'}" in arguments and "--coupling=paper" in arguments


# --- free riders ----------------------------------------------------------------------------------------------------------


def test_free_riders_are_the_librarys_and_their_effects_come_from_the_file(results):
    result = with_twins(2)
    result.save(results / f"{DEFAULT}.npz")
    values = keep_values(result, results / f"{DEFAULT}.npz", effect=0.0)
    expected = GameResult(list(result.layers), play(result), "equal", values.effect, {}, 5.0, 1e-3)
    assert expected.free_riders.any()
    test = app("game", layer="2", tab="Free riders")
    assert fine(test) and numbers(test)["Free riders"] == str(int(expected.free_riders[2].sum()))
    table = next(frame.value for frame in test.dataframe if "free_rider" in frame.value)
    assert table["head"].tolist()[:2] == ["L2H0", "L2H1"] and table["free_rider"].all()
    raised = app("game", layer="2", tab="Free riders", vif="20.0")
    assert numbers(raised)["Redundant heads"] == "2"


def test_heads_not_ablated_yet_are_one_button_away(results, started):  # noqa: F811
    with_twins(2).save(results / f"{DEFAULT}.npz")
    test = app("game", layer="2", tab="Free riders")
    assert numbers(test)["Free riders"] == "not known"
    assert "2 redundant heads are free riders is known only when they were ablated" in words(test)
    test.button(key="start_riders_A").click().run()
    assert started[0][0].startswith("head-values:") and "--vif-threshold=5" in started[0][1]


def test_no_redundant_head_names_the_nearest(results):
    game = play(synthetic_result(**SHAPE))
    vif = np.stack([one.vif for one in game])
    row, head = np.unravel_index(vif.argmax(), vif.shape)
    said = words(app("game", tab="Free riders", vif="20.0"))
    assert f"no head has a VIF above 20; the largest is {vif.max():.3g}, of L{row}H{head}" in said


# --- the causal check -----------------------------------------------------------------------------------------------------


def checked(result, path, **choice):
    """A causal check in the workspace, as the job would leave it."""
    rng = np.random.default_rng(0)
    whole = rng.normal(900, 10, 8)
    random = whole + rng.normal(2, 1, (20, 8))
    effect = Effect(whole, whole + rng.normal(9, 1, 8), random, np.full(8, 255.0))
    work = ablation_job(path, result.provenance, "paper", Check(**choice))
    names = [["L0H0"]] * 20
    AblationResult(["L3H2"], "zero", "size", names, {"cross-entropy": effect}, {}).save(work.path)
    return effect


def test_a_causal_check_starts_as_a_job(results, started):  # noqa: F811
    test = app("game", layer="3", tab="Causal check", check_heads="L3H2, L1H0", check_bench="builtin_mc")
    assert "What ablating L1H0, L3H2 does is not measured yet." in words(test)
    test.button(key="start_check").click().run()
    target, arguments = started[0]
    assert target.startswith("ablations:") and arguments[:2] == ["analysis", "ablate"]
    assert {"--heads=L1H0,L3H2", "--benchmark=builtin_mc", "--limit=50", "--random-sets=20", "--mode=zero"} <= set(arguments)


def test_a_check_that_is_done_is_drawn_with_its_interval(results):
    effect = checked(synthetic_result(**SHAPE), results / f"{DEFAULT}.npz", heads="L3H2", vif_threshold=5.0, low_effect=1e-3)
    test = app("game", layer="3", tab="Causal check", check_heads="L3H2")
    assert fine(test)
    said, (low, high) = words(test), effect.interval
    assert f"by {effect.effect:+.3g} (95 % {low:+.3g} to {high:+.3g})" in said
    assert f"20 random sets of 1 by {effect.random_effects.mean():+.3g} on average" in said
    assert len(test.dataframe) == 1 and test.dataframe[0].value["Ablated"].tolist() == ["L3H2"]


def test_coalitions_are_those_of_the_layer(results, started):  # noqa: F811
    test = app("game", layer="4", tab="Causal check", check="coalition")
    options = test.selectbox(key="check_coalition").options
    assert options[0] == "0: L4H0, L4H1, L4H2" and len(options) == 3
    test.button(key="start_check").click().run()
    assert {"--heads=coalition:4:0", "--coupling=paper"} <= set(started[0][1])


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ({"check_heads": "L9H0"}, "There is no head L9H0: this model has attention layers 0 to 4, with heads 0 to 8"),
        ({"check_heads": "head three"}, "'head three' is no head: a head is written like L3H7"),
        ({"check": "coalition", "check_coalition": "77"}, "The link asks for check_coalition 77; there is 0 to 2"),
        ({"check": "free-riders", "vif": "20.0"}, "There are no free riders to ablate: no head has a VIF above 20"),
        ({"check_bench": "quiz"}, "The link asks for check_bench quiz"),
        ({"layer": "77"}, "The link asks for layer 77; there is 0 to 4"),
        ({"vif": "odd"}, "The link asks for vif odd"),
    ],
    ids=str,
)
def test_bad_input_is_a_sentence(results, started, link, sentence):  # noqa: F811
    test = app("game", **{"layer": "4", "tab": "Causal check"} | link)
    assert not test.exception and sentence in words(test) and not started


def test_a_benchmark_without_rows_fails_with_its_sentence(results, monkeypatch):
    result, path = synthetic_result(**SHAPE), results / f"{DEFAULT}.npz"
    choice = Check("L3H0", benchmark="mmlu", limit=50, vif_threshold=5.0, low_effect=1e-3)
    work = ablation_job(path, result.provenance, "paper", choice)
    failed = Job("x", work.target, work.title, ["python", "-m", *work.arguments], results, "failed", "MMLU has no data here")
    known_jobs(monkeypatch, failed)
    monkeypatch.setattr("gamelora.jobs.log_tail", lambda *_, **__: "")
    test = app("game", layer="3", tab="Causal check", check_bench="mmlu", check_heads="L3H0")
    assert "MMLU has no data here" in words(test) and "retry_check" in [button.key for button in test.button]


# --- what there is nothing to say of --------------------------------------------------------------------------------------


def test_one_head_a_layer_is_a_sentence(results):
    synthetic_result(n_layers=2, n_heads=1, n_kv_heads=1, name="one", source="/m").save(results / "one.npz")
    test = app("game", a="one")
    assert fine(test) and "has one head a layer: there is no one to overlap with" in words(test)


def test_a_broken_layer_names_its_heads_and_spoils_no_other(results):
    broken = synthetic_result(**SHAPE)
    for sums in broken.gradient_sums.values():
        sums[:, 2, 1, :] = np.nan
        sums[:, 2, :, 1] = np.nan
    broken.save(results / f"{DEFAULT}.npz")
    test = app("game", layer="2")
    assert fine(test) and "layer 2: G or the benefits are not finite at heads" in words(test)
    other = app("game", layer="4")
    assert fine(other) and "G of layers 2 is not finite" in words(other) and "Price of anarchy" in numbers(other)


def test_a_merged_result_says_that_one_text_is_wanted(results):
    merged = synthetic_result(**SHAPE)
    merged.provenance["text"] = {"merged": [merged.provenance["text"]] * 2}
    merged.save(results / f"{DEFAULT}.npz")
    for tab in TABS:
        assert fine(app("game", tab=tab, benefits="measured", vif="1.05"))
    assert "merged from several texts; a causal check wants one" in words(app("game", tab="Causal check"))


def test_names_with_every_sign_are_shown_as_they_are(results):
    name = "my_model#1 50%&[x] $a$ *b* <i>"
    synthetic_result(**SHAPE, name=name, source="/m").save(results / "signs.npz")
    for tab in TABS:
        assert fine(app("game", a="signs", tab=tab))
    assert name in words(app("game", a="signs", tab="Data"))


# --- errors ---------------------------------------------------------------------------------------------------------------


def evaluated(workspace, result, value, name="builtin_mc", score="builtin_mc1", n=50):
    """A stored evaluation of a result's checkpoint."""
    key = f"{result.provenance['model']['sha256'][-6:]}-{bool(result.provenance['adapter'])}-{name}"
    folder = workspace / "evaluations" / key
    line = {"name": score, "title": "built-in MC1", "kind": "hallucination", "value": value, "standard_error": 0.05, "n": n}
    write_record(folder / f"{name}.json", KIND, {"benchmark": name, "scores": [line], "provenance": result.provenance})


def test_without_evaluations_a_sentence_links_to_them(results):
    assert "Evaluate some; each becomes a point here" in words(app("game", tab="Errors"))


def test_price_stands_against_the_rate_and_four_checkpoints_make_a_line(results, workspace):
    evaluated(workspace, synthetic_result(**SHAPE), 0.4)
    test = app("game", tab="Errors", layer="3")
    assert fine(test) and "1 checkpoint has both a bounded price in this layer and an evaluation" in words(test)
    for seed in range(2, 6):
        result = synthetic_result(**SHAPE, seed=seed, name=f"m{seed}", source=f"/m{seed}")
        result.save(results / f"m{seed}.npz")
        evaluated(workspace, result, 0.1 * seed)
    test = app("game", tab="Errors", layer="1")
    assert fine(test) and "across 5 checkpoints (slope" in words(test) and "price of anarchy" in words(test)


# --- the gauge check on other pages ---------------------------------------------------------------------------------------


def keep_gauge(result, noise=0.005):
    """A gauge check of a result in the workspace: Gamma moves by 0.1 up and down, and every pair has that noise."""
    gamma = result.gamma
    shape = result.G.shape
    rotated = np.stack([gamma - 0.1, gamma + 0.1])
    flat = np.full(len(gamma), 0.01)
    moves = GaugeMoves(gamma, rotated, flat, flat, flat, np.full(shape, noise))
    still = GaugeMoves(gamma, np.stack([gamma, gamma]), 0 * flat, 0 * flat, 0 * flat + 1e-7, np.zeros(shape))
    known = GaugeResult(result.layers, {"paper": moves, "invariant": still}, 1e-6, {})
    known.save(gauge_job(result.provenance).path)
    return moves


def test_the_gauge_band_is_said_and_pairs_inside_the_floor_are_grey(results):
    result = synthetic_result(**SHAPE)
    moves = keep_gauge(result)
    test = app("interaction", layer="3")
    assert fine(test) and "A: the band is Γ over 3 value bases" in words(test)
    table = test.dataframe[0].value
    frame = table.data if hasattr(table, "data") else table
    assert isinstance(frame, pd.DataFrame)
    floor = moves.noise_floor[3][0, 1]
    inside = int((np.abs(result.G[3][np.triu_indices(9, 1)]) <= floor).sum())
    assert 0 < inside < 36 and f"{inside} of 36 pairs are grey" in words(test)
    assert "an entry of the invariant G moves by at most 1e-07" in words(app("interaction", layer="3", coupling="invariant"))


def test_without_a_gauge_check_there_is_one_button(results, started):  # noqa: F811
    test = app("interaction", b="adapted")
    assert "A: how far Γ moves when only the heads' value bases do is not known yet" in words(test)
    assert "pairs are grey" not in words(test)
    test.button(key="start_gauge_B").click().run()
    assert started[0][0].startswith("gauge:") and "--adapter=/runs/laptop" in started[0][1]


def test_coalitions_use_the_measured_gauge_noise(results):
    result = synthetic_result(**SHAPE)
    moves = keep_gauge(result)
    test = app("coalitions", layer="4")
    assert f"gauge noise {moves.level[4][0, 4]:.2g}, measured" in words(test)


# --- links ----------------------------------------------------------------------------------------------------------------


def test_a_link_opens_its_view_and_the_view_writes_its_link(results):
    link = {"a": "adapted", "b": DEFAULT, "layer": "2", "benefits": "measured", "head": "4", "vif": "2.0", "low": "0.003"}
    link |= {"check": "coalition", "check_coalition": "1", "check_mode": "mean", "check_of": "B", "coupling": "invariant"}
    test = app("game", tab="Causal check", **link)
    assert {key: str(test.session_state[key]) for key in link} == link
    test.select_slider(key="layer").set_value(3).run()
    test.selectbox(key="head").set_value(7).run()
    written = {key: value if isinstance(value, str) else value[0] for key, value in test.query_params.items()}
    assert {key: written[key] for key in link} == link | {"layer": "3", "head": "7"}
    assert fine(test)
