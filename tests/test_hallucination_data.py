"""Reading benchmark rows: the known traps of the files, errors with row numbers, seeded samples, refusal without data."""

import gzip
import json
import re

import pytest

from analysis.hallucination.benchmarks import BENCHMARKS, SUITES, named
from analysis.hallucination.data import load_items, read_rows, sample, show_one_of_each_pair

QA = {"knowledge": "k", "question": "q", "answer": "a", "hallucination": "no"}
MC = {
    "question": "q",
    "mc1_targets": {"choices": ["a", "b"], "labels": [1, 0]},
    "mc2_targets": {"choices": ["a", "b"], "labels": [1, 0]},
}
TRAP = {"prompt": "Say it", "classes": [" no.", " yes."], "answer_index": 1}


def write(folder, name, rows, encoding="utf-8"):
    path = folder / BENCHMARKS[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding))
    return folder


@pytest.mark.parametrize(
    ("name", "good", "change", "said"),
    [
        ("halueval_qa", QA, {"answer": None}, "'answer' must be text"),
        ("halueval_qa", QA, {"hallucination": "maybe"}, "must be yes or no, and is 'maybe'"),
        ("halueval_qa", QA, {"knowledge": ...}, "'knowledge' is missing"),
        ("truthfulqa_mc", MC, {"mc2_targets": {"choices": ["a", "b"]}}, "'labels' is missing"),
        ("truthfulqa_mc", MC, {"mc1_targets": {"choices": ["a", "b"], "labels": [1]}}, "one 0 or 1 for each of the 2"),
        ("truthfulqa_mc", MC, {"mc2_targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "a wrong (0) choice"),
        ("truthfulqa_mc", MC, {"mc1_targets": {"choices": ["a", "b", "c"], "labels": [1, 1, 0]}}, "exactly one"),
        ("memo_trap", TRAP, {"answer_index": 2}, "from 0 to 1, and is 2"),
        ("memo_trap", TRAP, {"classes": "[' no.'"}, "text that is no list"),
        ("memo_trap", TRAP, {"classes": [" no."]}, "at least 2 texts"),
        ("nq", {"question": "q", "answer": ["a"]}, {"answer": []}, "at least 1 texts"),
        ("popqa", {"question": "q", "possible_answers": '["a"]'}, {"possible_answers": "a, b"}, "no JSON list"),
        (
            "winogrande",
            {"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "1"},
            {"sentence": "_ _"},
            "exactly one '_'",
        ),
        ("winogrande", {"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "1"}, {"answer": 3}, "and is 3"),
        ("wikitext", {"page": "p"}, {"page": ...}, "'page' is missing"),
    ],
)
def test_a_bad_row_is_named_by_its_number(tmp_path, name, good, change, said):
    bad = {key: value for key, value in {**good, **change}.items() if value is not ...}
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        read_rows(name, write(tmp_path, name, [good, good, bad]))
    assert "row 3" in str(caught.value) and BENCHMARKS[name].file in str(caught.value)


def test_files_that_are_no_json_lines_are_refused_with_the_row(tmp_path):
    path = tmp_path / BENCHMARKS["memo_trap"].file
    path.write_text(json.dumps(TRAP) + "\n\n{broken\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 3, is not JSON"):
        read_rows("memo_trap", tmp_path)
    write(tmp_path, "memo_trap", [{**TRAP, "prompt": "naïve"}], encoding="latin-1")
    with pytest.raises(ValueError, match="row 1, is not UTF-8"):
        read_rows("memo_trap", tmp_path)
    path.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="row 1, is no object"):
        read_rows("memo_trap", tmp_path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no rows"):
        read_rows("memo_trap", tmp_path)


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path):
    rows = read_rows("wikitext", write(tmp_path, "wikitext", [{"page": "one\u2028two\u0085three"}, {"page": "next"}]))
    assert [row["page"] for row in rows] == ["one\u2028two\u0085three", "next"]


def test_gzip_is_read_and_a_cut_one_refused(tmp_path):
    path = tmp_path / (BENCHMARKS["wikitext"].file + ".gz")
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps({"page": "p" * 5000}).encode()))
    assert len(read_rows("wikitext", tmp_path)) == 1
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match="damaged gzip"):
        read_rows("wikitext", tmp_path)


def test_text_keeps_its_blanks_and_labels_lose_their_case(tmp_path):
    row = {"knowledge": " k ", "dialogue_history": "h ", "response": "r ", "hallucination": "Yes"}
    (read,) = read_rows("halueval_dialogue", write(tmp_path, "halueval_dialogue", [row]))
    assert (read["knowledge"], read["dialogue_history"], read["response"]) == (" k ", "h ", "r ")
    assert read["hallucination"] == read["subset"] == "yes"


@pytest.mark.parametrize(
    ("prompt", "classes", "expected"),
    [
        ("ends in a word", [" no.", " yes."], [" no.", " yes."]),
        ("ends in a word", ["no.", "  yes."], [" no.", " yes."]),
        ('ends in a quote "', "[' no.', ' yes.']", [" no.", " yes."]),
        ("ends in a newline\n", [" no.", "yes."], ["no.", "yes."]),
    ],
)
def test_one_space_between_a_trap_and_its_class(tmp_path, prompt, classes, expected):
    row = {"prompt": prompt, "classes": classes, "answer_index": 0}
    (read,) = read_rows("memo_trap", write(tmp_path, "memo_trap", [row]))
    assert (read["prompt"], read["classes"]) == (prompt, expected)


def test_popqa_answers_are_parsed_and_the_question_mark_is_not_doubled(tmp_path):
    row = {"question": "Who wrote it?", "possible_answers": '["A", "B"]'}
    (read,) = read_rows("popqa", write(tmp_path, "popqa", [row]))
    assert (read["question"], read["answer"]) == ("Who wrote it", ["A", "B"])


def test_mmlu_words_stay_words_and_the_shots_come_along(tmp_path):
    row = {"question": "q", "subject": "s", "choices": ["None", "TRUE", "FALSE", "1"], "answer": 0}
    write(tmp_path, "mmlu", [row])
    (tmp_path / BENCHMARKS["mmlu"].shots_file).write_text(json.dumps(row) + "\n", encoding="utf-8")
    items = load_items(BENCHMARKS["mmlu"], tmp_path)
    assert items.rows[0]["choices"] == items.shots[0]["choices"] == ["None", "TRUE", "FALSE", "1"]
    assert items.rows[0]["subset"] == "s"


def test_all_real_files_are_read(shared):
    counts = {name: len(read_rows(name, shared / "data")) for name in BENCHMARKS if not BENCHMARKS[name].builtin}
    assert counts == {
        "halueval_dialogue": 400,
        "halueval_qa": 400,
        "halueval_summarization": 120,
        "truthfulqa_mc": 517,
        "memo_trap": 836,
        "mmlu": 1140,
        "nq": 3610,
        "popqa": 1000,
        "winogrande": 1267,
        "wikitext": 62,
    }
    assert {row["subset"] for row in read_rows("memo_trap", shared / "data")} == {"1", "3"}


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if not BENCHMARKS[name].builtin])
def test_without_network_and_file_it_is_said_what_to_put_where(tmp_path, workspace, name):
    benchmark = BENCHMARKS[name]
    with pytest.raises(ValueError, match="no data here") as caught:
        load_items(benchmark, tmp_path)
    for part in (benchmark.title, benchmark.name, str(tmp_path / benchmark.file), benchmark.hub[0], "--data"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(str(workspace / "data" / benchmark.file))):
        load_items(benchmark)


def test_a_missing_data_folder_is_an_error_and_not_the_hub(tmp_path):
    with pytest.raises(ValueError, match="there is no data folder"):
        load_items(BENCHMARKS["memo_trap"], tmp_path / "nowhere")


def test_the_same_seed_draws_the_same_rows(shared):
    first, again, other = (load_items(BENCHMARKS["memo_trap"], shared / "data", limit=50, seed=seed) for seed in (42, 42, 43))
    assert first.rows == again.rows and first.provenance == again.provenance
    assert first.rows != other.rows and first.provenance["sha256"] != other.provenance["sha256"]
    numbers = [row["row"] for row in first.rows]
    assert numbers == sorted(set(numbers)) and len(numbers) == 50
    assert len(load_items(BENCHMARKS["nq"], shared / "data").rows) == 1024


@pytest.mark.parametrize("limit", [1, 7, 100, 376])
def test_judged_samples_are_balanced_within_one(shared, limit):
    rows = load_items(BENCHMARKS["halueval_qa"], shared / "data", limit=limit).rows
    wrong = sum(row["hallucination"] == "yes" for row in rows)
    assert len(rows) == limit and abs(2 * wrong - limit) <= 1


def test_a_scarce_label_is_filled_up_by_the_other():
    rows = [{"hallucination": "yes"}] * 2 + [{"hallucination": "no"}] * 20
    drawn = sample(rows, 10, 0, balanced=True)
    assert sorted(row["hallucination"] for row in drawn) == ["no"] * 8 + ["yes"] * 2


def test_pairs_show_one_text_each_by_seed(tmp_path):
    pairs = [{"knowledge": "k", "question": f"q{i}", "right_answer": f"r{i}", "hallucinated_answer": f"h{i}"} for i in range(21)]
    rows = read_rows("halueval_qa", write(tmp_path, "halueval_qa", pairs))
    shown = show_one_of_each_pair(rows, "answer", 42)
    assert shown == show_one_of_each_pair(rows, "answer", 42) != show_one_of_each_pair(rows, "answer", 43)
    assert abs(sum(1 if row["hallucination"] == "yes" else -1 for row in shown)) == 1
    for i, row in enumerate(shown):
        assert row["answer"] == (f"h{i}" if row["hallucination"] == "yes" else f"r{i}")
        assert row["subset"] == row["hallucination"] and "pair" not in row


def test_names_and_suites():
    assert [benchmark.name for benchmark in named(["builtin", " memo_trap", "builtin_qa"])] == [*SUITES["builtin"], "memo_trap"]
    with pytest.raises(ValueError, match=r"no benchmark 'memo'.*memo_trap"):
        named(["memo"])
    with pytest.raises(ValueError, match="no benchmark was given"):
        named([""])
    with pytest.raises(ValueError, match="give 1 or more"):
        load_items(BENCHMARKS["builtin_qa"], limit=0)
