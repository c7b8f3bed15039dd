"""The hallucination page without a browser: its numbers are the library's, what is missing is said, and a link opens its view."""

import json

import numpy as np
import pytest

from analysis.hallucination.evaluation import stored_evaluations
from analysis.hallucination.places import data_folder
from analysis.progress import Progress
from gamelora import jobs
from tests.hallucination_workspace import EVERY, evaluated_checkpoint
from tests.made_up_runs import made_up_run
from tests.synthetic import synthetic_result
from tests.test_pages import DEFAULT, app, fine, job, known_jobs, started, words  # noqa: F401

TABS = ["Scores", "Errors by item", "Gain and cost", "Items", "Export"]
ALL = ",".join(EVERY)
STEPS = [f"/runs/other/step-{step}" for step in (20, 40, 60)]


@pytest.fixture
def results(workspace):
    """The default model is A and an adapter on it B; nothing is evaluated."""
    synthetic_result(n_layers=6).save(workspace / "results" / f"{DEFAULT}.npz")
    synthetic_result(n_layers=6, seed=1, adapter="/runs/laptop").save(workspace / "results" / "adapted.npz")
    return workspace


@pytest.fixture
def evaluated(results):
    """A, B and three more checkpoints, evaluated on hallucination and knowledge."""
    for number, adapter in enumerate([None, "/runs/laptop", *STEPS]):
        evaluated_checkpoint(number, adapter)
    return results


def table(test, column):
    return next(frame.value for frame in test.dataframe if column in frame.value)


def link_of(test):
    return {key: value if isinstance(value, str) else value[0] for key, value in test.query_params.items()}


# --- nothing there yet ----------------------------------------------------------------------------------------------------


def test_a_first_visit_offers_the_built_in_suite_with_its_cost(results, started):  # noqa: F811
    test = app("hallucination")
    said = words(test)
    assert fine(test) and "SmolLM2-135M-Instruct** has not been evaluated on built-in judged QA" in said
    assert "for the default model on one core" in said and "network" not in said
    test.button(key="evaluate").click().run()
    ((target, arguments),) = started
    assert target.startswith("evaluation:SmolLM2-135M-Instruct-")
    assert "--tasks=builtin_qa,builtin_mc,builtin_traps" in arguments and "--per-item-gamma" in arguments


def test_each_chosen_checkpoint_becomes_a_job(results, monkeypatch):
    asked = []
    monkeypatch.setattr(jobs, "start", lambda target, title, arguments: asked.append((target, arguments)))
    test = app("hallucination", b="adapted", items="7", coupling="invariant", tasks="memo_trap,builtin")
    test.button(key="evaluate").click().run()
    assert len({target for target, _ in asked}) == 2
    assert [any(part == "--adapter=/runs/laptop" for part in arguments) for _, arguments in asked] == [False, True]
    for _, arguments in asked:
        assert {"--limit=7", "--coupling=invariant", "--tasks=memo_trap,builtin_qa,builtin_mc,builtin_traps"} <= set(arguments)


def test_benchmarks_from_the_hub_say_that_they_need_the_network(results):
    said = words(app("hallucination", tasks="truthfulqa_mc"))
    assert "network is needed for hub truthfulqa/truthful_qa" in said


def target_of(monkeypatch):
    """The target of the job that a first visit would start."""
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "start", lambda target, *_: asked.append(target))
        app("hallucination").button(key="evaluate").click().run()
    return asked[0]


def test_a_live_job_shows_every_benchmark(results, monkeypatch):
    progress = Progress("scoring built-in multiple choice", 30, 120, "request", 1.0, 0.0)
    known_jobs(monkeypatch, job("running", target_of(monkeypatch), progress=progress, started=0.0))
    test = app("hallucination")
    said = words(test)
    assert fine(test) and "judged QA: done · built-in multiple choice: at work · built-in memorization traps: waiting" in said
    assert "evaluate" not in [button.key for button in test.button]


def test_waiting_jobs_are_one_line_and_all_can_be_stopped(results, monkeypatch):
    known_jobs(monkeypatch, job("queued", target_of(monkeypatch)))
    test = app("hallucination")
    assert fine(test) and "Waiting for their turn: SmolLM2-135M-Instruct." in words(test)
    stopped = []
    monkeypatch.setattr(jobs, "stop", lambda job_id, **_: stopped.append(job_id))
    test.button(key="stop_all").click().run()
    assert stopped == [job("queued").id]


@pytest.mark.parametrize("error", ["MemoTrap (memo_trap) has no data here: there is no file x", "disk full"])
def test_a_failed_job_says_why_and_can_be_tried_again(results, monkeypatch, error):
    failed = job("failed", target_of(monkeypatch), error=error)
    known_jobs(monkeypatch, failed)
    monkeypatch.setattr(jobs, "log_tail", lambda *_, **__: "last words")
    test = app("hallucination")
    assert not test.exception and next(element.value.replace("\\", "") for element in test.error).endswith(error)
    asked = []
    monkeypatch.setattr(jobs, "start", lambda target, *_: asked.append(target))
    test.button(key=f"retry_{failed.id}").click().run()
    assert asked == [failed.target]


def test_a_runs_checkpoints_join_with_one_click(results, monkeypatch):
    made_up_run("first", checkpoints=[4, 8, 10])
    asked = []
    monkeypatch.setattr(jobs, "start", lambda target, title, arguments: asked.append(arguments))
    test = app("hallucination", a="first step 4")
    assert fine(test) and "first step 4** has not been evaluated" in words(test)
    test.button(key="add_first").click().run()
    assert "3 checkpoints** have not been evaluated" in words(test)
    test.button(key="evaluate").click().run()
    adapters = {next(part for part in arguments if part.startswith("--adapter=")).rsplit("/", 1)[-1] for arguments in asked}
    assert adapters == {"adapter", "checkpoint-4", "checkpoint-8"}


# --- the scatter ----------------------------------------------------------------------------------------------------------


def test_five_checkpoints_give_a_fit_in_words(evaluated):
    test = app("hallucination", b="adapted", tasks=ALL)
    said = words(test)
    assert fine(test) and "across 5 checkpoints (slope" in said and "exact permutation p =" in said
    assert "evaluate" not in [button.key for button in test.button]
    assert "standard error over items (n = 200 each)" in said


def test_fewer_than_four_checkpoints_get_points_and_what_is_missing(evaluated):
    known = app("hallucination", b="adapted", tasks=ALL)
    two = ",".join(known.session_state["points"][:2])
    test = app("hallucination", tasks=ALL, points=two)
    assert fine(test) and "No line is drawn" in words(test) and "evaluate 2 more" in words(test)


def test_gamma_of_a_layer_and_normalized_are_what_they_say(evaluated):
    for link, said in [
        ({"gamma_of": "design"}, "Γ(G), design layer 10, paper coupling"),
        ({"gamma_of": "5", "scale": "normalized"}, "Γ / √(H(H − 1)), layer 5, paper coupling"),
        ({"gamma_of": "77"}, "Γ(G), mean over layers, paper coupling"),
    ]:
        test = app("hallucination", tasks=ALL, **link)
        axis = json.loads(test.get("plotly_chart")[0].proto.spec)["layout"]["xaxis"]
        assert fine(test) and axis["title"]["text"] == said


def test_a_coupling_that_was_not_measured_is_offered(results):
    evaluated_checkpoint(0, benchmarks=("memo_trap",), couplings=("paper",))
    assert "and this coupling" not in words(app("hallucination", tasks="memo_trap"))
    test = app("hallucination", tasks="memo_trap", coupling="invariant")
    assert fine(test) and "and this coupling" in words(test) and "No scatter" in words(test)
    assert "value" in table(test, "value"), "the scores are shown all the same"


# --- tabs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("tasks", [ALL, "memo_trap", "halueval_qa,mmlu"])
def test_every_tab_draws(evaluated, tab, tasks):
    assert fine(app("hallucination", b="adapted", tasks=tasks, tab=tab))


def test_the_score_table_is_that_of_the_library(evaluated):
    test = app("hallucination", b="adapted", tasks=ALL, tab="Scores")
    shown = table(test, "value").set_index(["title", "checkpoint"])
    for stored in stored_evaluations()[0]:
        adapter = stored.provenance["adapter"]
        name = f"+ {adapter['source'].rsplit('/', 1)[-1]}" if adapter else "SmolLM2-135M-Instruct"
        for score in stored.scores:
            line = shown.loc[(score["title"], name)]
            for field in ("value", "standard_error", "n"):
                assert line[field] == pytest.approx(score[field])
            if score["unparsed"] is not None:
                assert (line["unparsed"], line["length_only"]) == pytest.approx((100 * score["unparsed"], score["length_only"]))
    base = shown.loc[("MemoTrap", "SmolLM2-135M-Instruct")]
    tuned = shown.loc[("MemoTrap", "+ laptop")]
    assert np.isnan(base["change"]) and tuned["change"] == pytest.approx(100 * (tuned["value"] / base["value"] - 1))
    assert (base["paper: CE LoRA"], base["paper: GAME-LoRA"]) == (0.642, 0.650)
    assert "above 0 is better: hallucination benchmarks" in words(test) and "Its Table 1" in words(test)
    assert "No item was invalid." in words(test) and base["interval"] == "baseline"


def test_another_baseline_turns_the_change_round(evaluated):
    test = app("hallucination", b="adapted", tasks="memo_trap", tab="Scores", baseline="SmolLM2-135M-Instruct + laptop")
    shown = table(test, "value").set_index("checkpoint")
    assert np.isnan(shown.loc["+ laptop", "change"]) and shown.loc["SmolLM2-135M-Instruct", "change"] > 0


def test_the_built_in_suite_has_no_paper_column(results):
    evaluated_checkpoint(0, benchmarks=("builtin_qa", "builtin_mc", "builtin_traps"))
    test = app("hallucination", tasks="builtin", tab="Scores")
    assert "None of these benchmarks is in the paper's Table 1" in words(test)
    assert not any("paper" in column for column in table(test, "value"))


def test_items_are_analysed_with_sign_null_and_what_yes_means(evaluated):
    test = app("hallucination", tasks=ALL, tab="Errors by item", score="halueval_qa", gamma_of="5")
    said = words(test)
    assert fine(test) and "Strongest is layer 5: higher Gamma goes with more errors" in said
    assert "“yes” means hallucinated" in said and "6 shuffles of the heads give odds ratios from" in said
    assert "All 5 hallucination benchmarks together" in said and "AUC of Gamma alone" in said


def test_a_benchmark_without_errors_is_a_sentence(results):
    evaluated_checkpoint(0, benchmarks=("memo_trap",), items=1)
    test = app("hallucination", tasks="memo_trap", items="1", tab="Errors by item")
    assert fine(test) and "nothing tells errors from right answers" in words(test)


def test_the_trade_off_needs_both_kinds(evaluated):
    test = app("hallucination", tasks=ALL, tab="Gain and cost")
    assert fine(test) and "On the front, which no other checkpoint beats in both" in words(test)
    test = app("hallucination", tasks="memo_trap", tab="Gain and cost")
    assert fine(test) and "no knowledge benchmark" in words(test).lower() and "knowledge suite" in words(test)


def test_the_browser_shows_what_each_checkpoint_answered(evaluated):
    test = app("hallucination", b="adapted", tasks=ALL, tab="Items", score="memo_trap", which="checkpoints disagree")
    answers = table(test, "Answer")
    assert fine(test) and len(answers) == 5 and set(answers["Score"]) == {0.0, 1.0}
    before = test.session_state["row"]
    following = next(button for button in test.button if button.label == "Next")
    following.click().run()
    assert test.session_state["row"] > before and link_of(test)["row"] == str(test.session_state["row"])
    assert any(f"Question {test.session_state['row']}:" in code.value for code in test.code)
    empty = app("hallucination", tasks=ALL, tab="Items", which="not scored")
    assert fine(empty) and "There is no item of the kind" in words(empty)


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("value", [np.nan, 0.0, 1.0], ids=["not finite", "all wrong", "all right"])
def test_a_checkpoint_without_a_score_or_without_both_outcomes_breaks_nothing(results, tab, value):
    evaluated_checkpoint(0, always=value)
    for number, adapter in enumerate(["/runs/laptop", *STEPS], start=1):
        evaluated_checkpoint(number, adapter)
    test = app("hallucination", b="adapted", tasks=ALL, tab=tab, score="memo_trap")
    said = words(test)
    assert fine(test)
    if tab == "Scores":
        line = table(test, "value").set_index(["title", "checkpoint"]).loc[("MemoTrap", "SmolLM2-135M-Instruct")]
        assert (line["n"], line.get("invalid", 0)) == ((0, 200) if np.isnan(value) else (200, 0))
        assert ("left out, because the baseline has 0 or no item to compare" in said) == (value != 1.0)
        assert ("MemoTrap: no item could be scored with SmolLM2-135M-Instruct" in said) == np.isnan(value)
    if tab == "Errors by item":
        why = "no item has both a score and a finite Gamma" if np.isnan(value) else "nothing tells errors from right answers"
        assert why in said.replace("No item", "no item")


# --- links and bad input --------------------------------------------------------------------------------------------------


def test_a_link_opens_its_view_and_the_view_writes_its_link(evaluated):
    link = {"tasks": "memo_trap,mmlu", "gamma_of": "3", "scale": "normalized", "coupling": "invariant", "score": "mmlu"}
    test = app("hallucination", tab="Errors by item", **link)
    assert fine(test)
    written = link_of(test)
    assert {key: written[key] for key in link} == link
    test.session_state["points"] = test.session_state["points"][:4]
    test.run()
    assert len(link_of(test)["points"].split(",")) == 4 and fine(app("hallucination", **link_of(test)))


def test_what_a_link_asks_for_and_is_not_there_is_said(evaluated):
    test = app("hallucination", points="nobody", tasks="nothing", items="many")
    said = words(test)
    assert fine(test)
    for sentence in ("the checkpoint nobody", "the benchmark nothing", "items many, which is no number from 1"):
        assert sentence in said


def test_nothing_chosen_is_a_sentence(evaluated):
    test = app("hallucination", tasks=ALL)
    test.multiselect(key="points").set_value([]).run()
    assert fine(test) and "Choose a checkpoint above" in words(test)
    test = app("hallucination", tasks=ALL)
    test.multiselect(key="tasks").set_value([]).run()
    assert fine(test) and "Choose a benchmark above" in words(test)


def test_the_data_folder_is_a_setting_of_the_workspace(results, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "memo_trap.jsonl").write_text("{}")
    test = app("hallucination", tasks="memo_trap")
    field = next(one for one in test.text_input if one.label == "Data folder")
    field.set_value(str(tmp_path / "rows")).run()
    assert fine(test) and data_folder() == tmp_path / "rows"
    test = app("hallucination", tasks="memo_trap")
    assert "network" not in words(test)
    field = next(one for one in test.text_input if one.label == "Data folder")
    field.set_value(str(tmp_path / "none")).run()
    assert not test.exception and "there is no data folder" in words(test) and data_folder() == tmp_path / "rows"


def test_a_damaged_evaluation_is_named_and_hides_no_other(evaluated):
    (evaluated / "evaluations" / "00-memo_trap" / "memo_trap.items.parquet").write_bytes(b"PAR1 no")
    (evaluated / "evaluations" / "01-memo_trap" / "memo_trap.json").write_text("{")
    test = app("hallucination", tasks="memo_trap")
    said = words(test)
    assert fine(test) and "memo_trap.items.parquet is missing or damaged" in said and "memo_trap.json is damaged" in said
    assert len(table(test, "value")) == 3


def test_checkpoints_scored_on_other_rows_are_refused_by_name(results):
    evaluated_checkpoint(0, benchmarks=("memo_trap",))
    evaluated_checkpoint(1, "/runs/laptop", benchmarks=("memo_trap",))
    path = results / "evaluations" / "01-memo_trap" / "memo_trap.json"
    path.write_text(path.read_text().replace("0" * 63 + "0", "f" * 64))
    test = app("hallucination", b="adapted", tasks="memo_trap", tab="Scores")
    assert fine(test) and "scored on different items of MemoTrap" in words(test)
    assert len(table(test, "value")) == 2 and "change" not in table(test, "value"), "the scores are shown all the same"


def test_two_checkpoints_of_one_name_are_told_apart(results):
    for number, place in enumerate(("/a/tuned", "/b/tuned")):
        evaluated_checkpoint(number, place, benchmarks=("memo_trap",))
    shown = table(app("hallucination", tasks="memo_trap", tab="Scores"), "value")["checkpoint"]
    assert shown.nunique() == 2 and all("tuned [" in name for name in shown)


def test_names_with_every_sign_are_shown_as_they_are(results):
    for number, name in enumerate(("/m/a_b#1 50%&[x] $a$ *b* <i>", "/m/other")):
        evaluated_checkpoint(number, benchmarks=EVERY, source=name, name=name, kind="folder")
    for tab in TABS:
        test = app("hallucination", tasks=ALL, tab=tab)
        assert fine(test), tab
