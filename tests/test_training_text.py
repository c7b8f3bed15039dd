"""The text of a run: every position decided by the seed, held-out rows apart, padding masked and nothing else."""

import json

import pytest
import torch

from gamelora import data
from gamelora.config import GameLoraConfig
from gamelora.data import ShuffledRows, collate, read_text
from tests.tiny_files import tiny_tokenizer


def config(**values) -> GameLoraConfig:
    return GameLoraConfig.from_dict({"seq_len": 16, "eval_tokens": 64, "batch_size": 4, "steps": 5, **values})


def all_rows(text) -> torch.Tensor:
    return torch.stack([item["input_ids"] for item in text.rows])


def test_every_pass_shows_each_row_once_in_an_order_that_only_the_seed_decides():
    rows = torch.arange(12).view(6, 2)
    shuffled = ShuffledRows(rows, 15, seed=1)
    order = [int(shuffled[position]["input_ids"][0]) // 2 for position in range(15)]
    assert sorted(order[:6]) == sorted(order[6:12]) == list(range(6)) and order[:6] != order[6:12]
    again = ShuffledRows(rows, 15, seed=1)
    assert [int(again[position]["input_ids"][0]) // 2 for position in reversed(range(15))] == order[::-1]
    other = ShuffledRows(rows, 15, seed=2)
    assert [int(other[position]["input_ids"][0]) // 2 for position in range(15)] != order


def test_held_out_rows_are_never_trained_on():
    text = read_text(config(steps=40), tiny_tokenizer())
    held, trained = ({tuple(row.tolist()) for row in rows} for rows in (text.held_out.rows, all_rows(text)))
    assert len(text.held_out.rows) == 4 and len(text.rows) == 160 and not held & trained
    assert text.provenance["train"]["sha256"] and text.provenance["eval"]["sha256"] == text.held_out.provenance["sha256"]


def test_a_held_out_text_of_its_own(tmp_path):
    path = tmp_path / "held.txt"
    path.write_text("the quick brown fox " * 100)
    text = read_text(config(eval_text=str(path)), tiny_tokenizer())
    assert text.held_out.provenance["source"] == str(path) and text.held_out.rows.shape == (4, 16)


def test_a_text_shorter_than_one_step_says_what_it_makes_and_what_it_takes(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("the quick brown fox jumps over the lazy dog " * 6)
    with pytest.raises(ValueError, match=r"makes \d+ rows of 16 tokens; one step needs batch_size 99 and evaluation holds out 4"):
        read_text(config(text=str(path), batch_size=99), tiny_tokenizer())
    with pytest.raises(ValueError, match="there is no text"):
        read_text(config(text=str(tmp_path / "none.txt")), tiny_tokenizer())
    with pytest.raises(ValueError, match="tokenizer"):
        read_text(config(), None)


@pytest.fixture
def stream(monkeypatch, tmp_path):
    """A hub text that streams from a local file; yields its documents."""
    documents = [f"document {number} says {number * 7} and more words to fill a row or two of tokens" for number in range(60)]
    path = tmp_path / "stream.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    original = data.documents
    monkeypatch.setattr(data, "documents", lambda source: original(str(path)))
    return documents


def test_a_stream_is_shuffled_by_the_seed_and_skips_the_documents_it_holds_out(stream):
    first, again = (all_rows(read_text(config(text="pile"), tiny_tokenizer())) for _ in range(2))
    assert torch.equal(first, again) and first.shape == (20, 16)
    other = read_text(config(text="pile", seed=7), tiny_tokenizer())
    assert not torch.equal(first, all_rows(other))
    decode = tiny_tokenizer().decode
    held, skipped = decode(other.held_out.rows.flatten()), other.provenance["train"]["skipped"]
    assert held.startswith(stream[0][:30]) and skipped >= 1
    assert not any(document[:14] in decode(first.flatten()) for document in (stream[0],))
    assert other.provenance["train"]["source"] == "monology/pile-uncopyrighted"


def test_a_stream_that_ends_early_is_read_again_in_another_order(stream):
    rows = all_rows(read_text(config(text="pile", steps=200), tiny_tokenizer()))
    assert len(rows) == 800 and not torch.equal(rows[:100], rows[-100:])


def test_a_stream_that_is_all_held_out_says_so(stream):
    text = read_text(config(text="pile", eval_tokens=16 * 10_000), tiny_tokenizer())
    with pytest.raises(ValueError, match="beside the held-out ones"):
        next(iter(text.rows))


def test_a_stream_without_a_row_or_a_tokenizer_is_refused(monkeypatch):
    monkeypatch.setattr(data, "documents", lambda source: iter(["a"]))
    with pytest.raises(ValueError, match="too few tokens for one row"):
        read_text(config(text="hub:x/y"), tiny_tokenizer())
    with pytest.raises(ValueError, match="no tokenizer"):
        read_text(config(text="hub:x/y"), None)


def test_rows_of_one_length_need_no_mask():
    batch = collate([{"input_ids": torch.tensor([5, 6])}, {"input_ids": torch.tensor([7, 8])}])
    assert batch.keys() == {"input_ids"}


def test_the_mask_says_what_is_padding_and_never_the_token():
    """The tokenizer's padding is its end-of-text token 2; a real one keeps its label."""
    given = torch.tensor([-100, 6, 2])
    batch = collate([{"input_ids": torch.tensor([5, 6, 7, 2])}, {"input_ids": torch.tensor([5, 6, 2]), "labels": given}])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, 2], [-100, 6, 2, -100]]
