"""The harness on our models: equal to stock lm_eval, invariant to the batch size, and unharmed by a single bad item."""

import json
import math

import datasets
import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from analysis.hallucination.benchmarks import BENCHMARKS
from analysis.hallucination.data import Items, load_items
from analysis.hallucination.harness import HarnessModel
from analysis.hallucination.scoring import evaluate_benchmark
from analysis.hallucination.tasks import harness_tasks, judge_prompt, truthful_mass
from tests.stock_harness import stock_samples, stock_task
from tests.tiny import randomize_adapter, tiny_model, with_adapter
from tests.tiny_text import VOCAB, loaded, tiny_loaded, tiny_tokenizer


def some(name, limit, folder=None, **changes):
    return load_items(BENCHMARKS[name], folder, limit=limit, **changes)


def stock(tiny, file, splits, **changes):
    task = stock_task(file, splits, **changes)
    return stock_samples(tiny.model, tiny_tokenizer(), {"stock": task})["stock"]


def raw(path, rows):
    """The lines of a file that hold these row numbers, as the harness would get them from the hub."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return datasets.Dataset.from_list([json.loads(lines[row["row"] - 1]) for row in rows])


@pytest.mark.parametrize(
    ("benchmark", "score", "file", "path", "split", "metric"),
    [
        ("truthfulqa_mc", "truthfulqa_mc1", "truthfulqa/truthfulqa_mc1.yaml", "truthfulqa_mc.jsonl", "validation", "acc"),
        ("truthfulqa_mc", "truthfulqa_mc2", "truthfulqa/truthfulqa_mc2.yaml", "truthfulqa_mc.jsonl", "validation", "acc"),
        ("winogrande", "winogrande", "winogrande/default.yaml", "winogrande_validation.jsonl", "validation", "acc"),
        ("nq", "nq", "nq_open/nq_open.yaml", "nq_open_validation.jsonl", "validation", "exact_match"),
    ],
)
def test_equal_to_stock_lm_eval_on_the_same_rows(shared, benchmark, score, file, path, split, metric):
    tiny, items = tiny_loaded(), some(benchmark, 8, shared / "data")
    rows = raw(shared / "data" / path, items.rows)
    expected = stock(tiny, file, {"validation": rows}, training_split=None)
    found = evaluate_benchmark(tiny, items, batch_size=3).items(score)
    assert found["value"].to_numpy() == pytest.approx([sample[metric] for sample in expected], abs=1e-6)
    assert list(found["prompt_hash"]) == [sample["prompt_hash"] for sample in expected]
    for mine, sample in zip(found["log_likelihoods"], expected, strict=True):
        if len(mine):
            assert mine == pytest.approx([response[0][0] for response in sample["resps"]], rel=1e-5)


def test_mmlu_is_the_stock_five_shot_task(shared):
    tiny = tiny_loaded(max_position_embeddings=2048)
    items = some("mmlu", 1024, shared / "data")
    subject = "high_school_geography"
    items = Items(items.benchmark, [row for row in items.rows if row["subject"] == subject][:4], items.shots, items.provenance)
    dev = [shot for shot in items.shots if shot["subject"] == subject]
    splits = {"test": datasets.Dataset.from_list(items.rows), "dev": datasets.Dataset.from_list(dev)}
    described = "The following are multiple choice questions (with answers) about high school geography.\n\n"
    expected = stock(tiny, "mmlu/default/_default_template_yaml", splits, num_fewshot=5, description=described)
    found = evaluate_benchmark(tiny, items).items("mmlu")
    assert list(found["prompt_hash"]) == [sample["prompt_hash"] for sample in expected]
    assert list(found["value"]) == [sample["acc"] for sample in expected]


def test_wikitext_is_the_stock_bits_per_byte():
    tiny = tiny_loaded()
    pages = [{"page": f" = Page = \n \n Text number {i} @-@ one , two . \n " * 3, "row": i + 1, "subset": ""} for i in range(3)]
    rows = datasets.Dataset.from_list(pages)
    expected = stock(tiny, "wikitext/wikitext.yaml", {"train": rows, "validation": rows, "test": rows})
    evaluation = evaluate_benchmark(tiny, Items(BENCHMARKS["wikitext"], pages, [], {}))
    total, size = (sum(sample["bits_per_byte"][i] for sample in expected) for i in (0, 1))
    assert evaluation.scores()[0].value == pytest.approx(-total / size / math.log(2))
    assert list(evaluation.records["weight"]) == [len(page["page"].encode()) for page in pages]


@pytest.mark.parametrize("name", ["builtin_qa", "builtin_mc", "builtin_traps"])
def test_the_batch_size_does_not_matter(name):
    tiny, items = tiny_loaded(), some(name, 12)
    one, sixteen = evaluate_benchmark(tiny, items, 1), evaluate_benchmark(tiny, items, 16)
    assert one.records["value"].to_numpy() == pytest.approx(sixteen.records["value"].to_numpy(), abs=1e-6)
    assert list(one.records["prediction"]) == list(sixteen.records["prediction"])
    for mine, other in zip(one.records["log_likelihoods"], sixteen.records["log_likelihoods"], strict=True):
        assert list(mine) == pytest.approx(list(other), rel=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "opt", "gemma"])
@pytest.mark.parametrize("name", ["builtin_qa", "builtin_mc", "builtin_traps"])
def test_reading_what_is_shared_once_changes_nothing(architecture, name, monkeypatch):
    tiny, items, read = tiny_loaded(architecture), some(name, 10), []
    embeddings = tiny.model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _module, given, _out: read.append(given[0].numel()))
    together = evaluate_benchmark(tiny, items).records
    tokens_together = sum(read)
    monkeypatch.setattr("analysis.hallucination.harness.can_share", lambda *_: False)
    alone = evaluate_benchmark(tiny, items).records
    hook.remove()
    assert tokens_together < sum(read) - tokens_together
    mine, other = (records.groupby("score_name")["value"] for records in (together, alone))
    assert mine.mean().to_numpy() == pytest.approx(other.mean().to_numpy(), abs=1e-6)
    # one item: HFLM adds up float32 logs, so that its own MC2 moves by about 1e-6 with the batch size
    assert together["value"].to_numpy() == pytest.approx(alone["value"].to_numpy(), abs=5e-6)
    assert list(together["prediction"]) == list(alone["prediction"])
    for mine, other in zip(together["log_likelihoods"], alone["log_likelihoods"], strict=True):
        assert list(mine) == pytest.approx(list(other), rel=1e-5)


def test_a_shared_instruction_is_read_once_and_a_truncated_item_is_answered_all_the_same():
    answers = {}
    for window in (512, 110):  # the second cuts the longest prompts
        tiny, items = tiny_loaded(max_position_embeddings=window), some("builtin_qa", 10)
        with pytest.MonkeyPatch.context() as patch:
            shared = evaluate_benchmark(tiny, items)
            patch.setattr("analysis.hallucination.harness.can_share", lambda *_: False)
            alone = evaluate_benchmark(tiny, items)
        answers[window] = list(shared.records["prediction"])
        assert answers[window] == list(alone.records["prediction"])
        assert shared.scores() == alone.scores()


def test_a_trap_is_scored_as_prompt_and_class_with_one_space(shared):
    items = some("memo_trap", 60, shared / "data")
    task = harness_tasks(items)["memo_trap"]
    task.build_all_requests()
    asked = ["".join(instance.args) for instance in task.instances]
    assert asked == [row["prompt"] + choice for row in items.rows for choice in row["classes"]]
    assert all(instance.args[1][0] == " " != instance.args[1][1] for instance in task.instances)
    assert not any(instance.args[0][-1].isspace() for instance in task.instances)


def test_a_judge_reads_the_marked_fields_as_they_are(shared):
    row = some("halueval_dialogue", 5, shared / "data").rows[0]
    prompt = judge_prompt("halueval_dialogue", row)
    for mark, field in (("Knowledge", "knowledge"), ("Dialogue History", "dialogue_history"), ("Response", "response")):
        assert f"\n#{mark}#: {row[field]}\n" in prompt
    assert prompt.endswith("\n#Your Judgement#:") and '"Yes"' in prompt and '"No"' in prompt


def ends_of_words_merge():
    """A tokenizer in which the context `ans` and the continuation `w` are one token together."""
    vocab = {piece: number for number, piece in enumerate(["<s>", "a", "n", "s", "w", " ", "an", "ans", "answ"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "n"), ("an", "s"), ("ans", "w")]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>", pad_token="<s>")


def ask(harness, *pairs):
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    return harness.loglikelihood(requests)


def by_hand(model, context, continuation):
    """Log-likelihood of token ids after token ids, in one plain pass over the last 64 of them."""
    ids = torch.tensor([(context + continuation)[-65:]])
    logs = model(ids[:, :-1]).logits.detach().log_softmax(-1)[0, -len(continuation) :]
    return float(logs.gather(1, torch.tensor(continuation)[:, None]).sum())


def test_merged_too_long_and_truncated_items_harm_no_other():
    model = tiny_model("gpt2")
    harness = HarnessModel(loaded(model, ends_of_words_merge()), batch_size=2)
    long, endless = "a " * 99 + "a", " " + "w " * 100
    answers = ask(harness, ("ans", "w"), (long, " ans"), ("a", endless), ("an", " a"))
    assert harness.notes == {("ans", "w"): {"merged"}, (long, " ans"): {"truncated"}, ("a", endless): {"too long"}}
    assert math.isnan(answers[2][0])
    assert answers[0][0] == pytest.approx(by_hand(model, [7], [4]), rel=1e-5)
    assert answers[1][0] == pytest.approx(by_hand(model, [1, 5] * 99 + [1], [5, 7]), rel=1e-5)
    assert answers[3][0] == pytest.approx(by_hand(model, [6], [5, 1]), rel=1e-5)


def test_blanks_and_empty_contexts():
    model = tiny_model("gpt2")
    harness = HarnessModel(loaded(model, ends_of_words_merge()))
    spaced, empty, blank = ask(harness, ("an ", "a"), ("", "an"), (" ", "an"))
    assert spaced[0] == pytest.approx(by_hand(model, [6], [5, 1]), rel=1e-5)
    assert empty[0] == pytest.approx(by_hand(model, [0], [6]), rel=1e-5)
    assert blank[0] == pytest.approx(by_hand(model, [0], [5, 6]), rel=1e-5)
    assert not harness.notes


def test_at_most_one_beginning_of_text():
    harness = HarnessModel(tiny_loaded(bos=True))
    for context in ("Is it true?", "<s>Is it true?"):
        context_ids, continuation_ids = harness.encode(context, " yes")
        assert [*context_ids, *continuation_ids].count(1) == 1 and context_ids[0] == 1
    assert harness.encode("", "yes")[0] == [1] and 1 not in harness.encode("", "yes")[1]


def test_a_model_that_is_not_a_number_scores_nothing():
    tiny = tiny_loaded()
    with torch.no_grad():
        tiny.model.lm_head.weight[5] = math.nan
    for name in ("builtin_qa", "builtin_mc", "builtin_traps"):
        for score in evaluate_benchmark(tiny, some(name, 4)).scores():
            assert (score.n, score.invalid) == (0, 4) and math.isnan(score.value)


def test_truthful_mass_stays_finite_at_any_log_likelihood():
    row = {"mc2_targets": {"labels": [1, 0, 1]}}
    mass = truthful_mass(row, [(-5000.0, False), (-5001.0, False), (-5002.0, False)])["acc"]
    near = truthful_mass(row, [(-1.0, False), (-2.0, False), (-3.0, False)])["acc"]
    expected = (math.exp(-1) + math.exp(-3)) / (math.exp(-1) + math.exp(-2) + math.exp(-3))
    assert mass == pytest.approx(near) == pytest.approx(expected)


def test_base_and_adapter_share_one_model_that_comes_back_as_it_was():
    plain = evaluate_benchmark(tiny_loaded(), some("builtin_traps", 10)).records
    tuned = loaded(with_adapter(tiny_loaded().model), adapter="adapter")
    pad, flags = tuned.tokenizer.pad_token, [parameter.requires_grad for parameter in tuned.model.parameters()]
    adapted = evaluate_benchmark(tuned, some("builtin_traps", 10)).records
    with tuned.base() as base:
        off = evaluate_benchmark(base, some("builtin_traps", 10)).records
    flat = [np.concatenate(list(records["log_likelihoods"])) for records in (plain, off, adapted)]
    assert flat[0] == pytest.approx(flat[1], rel=1e-6)
    assert np.abs(flat[0] - flat[2]).max() > 0.01
    assert tuned.tokenizer.pad_token == pad and not tuned.model.training
    assert [parameter.requires_grad for parameter in tuned.model.parameters()] == flags


def test_the_harness_leaves_tied_weights_under_an_adapter_alone():
    model = tiny_model(vocab_size=VOCAB, tie_word_embeddings=True)
    config = LoraConfig(target_modules=["o_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    tuned = randomize_adapter(get_peft_model(model, config)).eval()
    with torch.no_grad():
        tuned.base_model.model.lm_head.modules_to_save["default"].weight += 1
        ids = torch.arange(5, 15)[None]
        before = tuned(ids).logits
        HarnessModel(loaded(tuned))
        assert torch.equal(tuned(ids).logits, before)


def test_settings_that_cannot_work_are_refused():
    tiny = tiny_loaded()
    with pytest.raises(ValueError, match="no tokenizer"):
        HarnessModel(type(tiny)(tiny.model, None, tiny.layers, tiny.provenance))
    with pytest.raises(ValueError, match="batch size is 0"):
        HarnessModel(tiny, 0)
