"""The built-in suite: enough items, balanced, unique, well formed, and nothing to be had from lengths."""

import json
from collections import Counter

import pytest

from analysis.hallucination.benchmarks import BUILTIN_FOLDER, SUITES
from analysis.hallucination.data import read_rows
from analysis.hallucination.statistics import length_baseline, length_pick


@pytest.fixture(scope="module")
def suite():
    return {name: read_rows(name) for name in SUITES["builtin"]}


def test_at_least_sixty_items_each_from_several_topics(suite):
    for name, rows in suite.items():
        assert len(rows) >= 60, name
    for path in BUILTIN_FOLDER.glob("*.jsonl"):
        topics = Counter(json.loads(line)["topic"] for line in path.open(encoding="utf-8"))
        assert len(topics) >= 3 and min(topics.values()) >= 8, path.name


def test_no_question_twice(suite):
    for key, name in (("question", "builtin_qa"), ("knowledge", "builtin_qa"), ("question", "builtin_mc")):
        assert len({row[key].lower() for row in suite[name]}) == len(suite[name])
    endings = {row["prompt"].split(": ", 1)[1].lower() for row in suite["builtin_traps"]}
    assert len(endings) == len(suite["builtin_traps"])


def test_labels_are_balanced(suite):
    labels = Counter(row["hallucination"] for row in suite["builtin_qa"])
    answers = Counter(row["answer_index"] for row in suite["builtin_traps"])
    assert labels["yes"] == labels["no"]
    assert answers[0] == answers[1]
    for row in suite["builtin_mc"]:
        assert row["mc2_targets"]["labels"] == [1, 1, 0, 0]


def test_length_says_less_than_sixty_percent(suite):
    qa = suite["builtin_qa"]
    assert length_baseline([len(row["answer"]) for row in qa], [row["hallucination"] == "yes" for row in qa]) < 0.6
    mc2 = [row["mc2_targets"] for row in suite["builtin_mc"]]
    lengths = [len(choice) for targets in mc2 for choice in targets["choices"]]
    assert length_baseline(lengths, [label for targets in mc2 for label in targets["labels"]]) < 0.6
    mc1 = [[len(choice) for choice in row["mc1_targets"]["choices"]] for row in suite["builtin_mc"]]
    assert length_pick(mc1, [0] * len(mc1)) < 0.6
    traps = suite["builtin_traps"]
    classes = [[len(choice) for choice in row["classes"]] for row in traps]
    assert length_pick(classes, [row["answer_index"] for row in traps]) < 0.6


def test_a_short_right_answer_stands_in_its_knowledge(suite):
    """A name that the judge is asked about can be read off the knowledge."""
    for row in suite["builtin_qa"]:
        names = [word.strip(".,?") for word in row["answer"].split()[1:] if word[0].isupper()]
        if row["hallucination"] == "no":
            assert all(name in row["knowledge"] for name in names), row["question"]


def test_traps_ask_for_a_word_that_breaks_the_phrase(suite):
    for row in suite["builtin_traps"]:
        asked = row["prompt"].split('"')[1]
        assert row["classes"][row["answer_index"]] == f" {asked}."
        assert all(choice[0] == " " and choice[1] != " " for choice in row["classes"])
        assert len({choice.lower() for choice in row["classes"]}) == 2
        assert not row["prompt"][-1].isspace()


def test_choices_of_a_question_differ(suite):
    for row in suite["builtin_mc"]:
        for field in ("mc1_targets", "mc2_targets"):
            assert len(set(row[field]["choices"])) == len(row[field]["choices"])
        assert set(row["mc1_targets"]["choices"]) <= set(row["mc2_targets"]["choices"])


def test_no_sentence_is_copied_from_the_real_benchmarks(suite, shared):
    def texts(path, field):
        return {json.loads(line)[field].strip().lower() for line in (shared / "data" / path).open(encoding="utf-8")}

    assert not {row["question"].lower() for row in suite["builtin_mc"]} & texts("truthfulqa_mc.jsonl", "question")
    assert not {row["question"].lower() for row in suite["builtin_qa"]} & texts("halueval/qa_samples.jsonl", "question")
    assert not {row["prompt"].lower() for row in suite["builtin_traps"]} & texts("memo_trap.jsonl", "prompt")
