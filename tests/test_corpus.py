"""Text to token rows: the first tokens of the joined text whatever is read of it, and each bad file by name and row."""

import gzip
import itertools
import json
import pydoc_data.topics

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from analysis import corpus
from analysis.corpus import THE_PILE, check_request, documents, token_rows
from tests.tiny_files import Bomb, loopback_only, tiny_tokenizer

DOCUMENTS = ["class A:\n    pass", "\n\ndel x  \n", "assert 1 == 2\n\n\n", "é" * 50, "x"]


@pytest.fixture(autouse=True)
def offline():
    with loopback_only():
        yield


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


def whole(texts, tokenizer):
    """The ids of a text that is read to its end."""
    return tokenizer("\n\n".join(texts), add_special_tokens=False)["input_ids"]


def write(path, texts):
    """Write documents as a file of the kind that its name says."""
    lines = "".join(json.dumps({"text": text, "meta": 1}) + "\n" for text in texts)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"meta": [1] * len(texts), "text": texts}), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines if path.suffix == ".jsonl" else texts[0], encoding="utf-8", newline="")
    return str(path)


def serve(monkeypatch, rows):
    """Let `datasets` answer with these rows; returns what was asked for."""
    asked = []

    def load_dataset(name, split, streaming):
        asked.append((name, split, streaming))
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


# --- the kinds of source ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_files_of_many_documents(name, tokenizer, tmp_path):
    source = write(tmp_path / name, DOCUMENTS)
    assert list(documents(source)) == DOCUMENTS
    rows = token_rows(source, tokenizer, 24, 8)
    assert rows.rows.tolist() == np.reshape(whole(DOCUMENTS, tokenizer)[:24], (3, 8)).tolist()
    assert (rows.provenance["source"], rows.provenance["tokens"], rows.provenance["seq_len"]) == (source, 24, 8)


def test_a_text_file_is_one_document(tokenizer, tmp_path):
    source = write(tmp_path / "a.txt", ["one\n\ntwo\n"])
    assert list(documents(source)) == ["one\n\ntwo\n"]
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\r\n")  # a byte order mark and its line ends
    assert list(documents(str(tmp_path / "windows.txt"))) == ["one\n\ntwo\n"]


def test_blank_lines_between_rows_are_skipped_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n\n{"words": "c"}\n')
    read = documents(str(tmp_path / "a.jsonl"))
    assert (next(read), next(read)) == ("a", "b")
    with pytest.raises(ValueError, match="row 5, has no text"):
        next(read)


def test_the_builtin_text_is_pythons_own_manual_in_sorted_order(tokenizer):
    texts = list(documents("builtin"))
    assert texts == [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    assert sum(map(len, texts)) > 400_000
    assert token_rows("builtin", tokenizer, 64, 16).rows.flatten().tolist() == whole(texts[:3], tokenizer)[:64]


def test_stored_token_ids_need_no_tokenizer(tmp_path):
    ids = np.arange(100, dtype=np.uint16).reshape(4, 25)
    np.save(tmp_path / "ids.npy", ids)
    rows = token_rows(str(tmp_path / "ids.npy"), None, 64, 16)
    assert rows.rows.dtype == torch.int64 and rows.rows.flatten().tolist() == list(range(64))


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("pile", (THE_PILE, "train", True)),
        ("hub:lab/text", ("lab/text", "train", True)),
        ("hub:lab/text:test", ("lab/text", "test", True)),
    ],
)
def test_hub_text_is_streamed(source, asked, tokenizer, monkeypatch):
    log = serve(monkeypatch, [{"text": text, "meta": {}} for text in DOCUMENTS])
    assert token_rows(source, tokenizer, 24, 8).rows.flatten().tolist() == whole(DOCUMENTS, tokenizer)[:24]
    assert log == [asked]


def test_the_pile_by_name():
    assert THE_PILE == "monology/pile-uncopyrighted"


# --- the first tokens ---------------------------------------------------------------------------------------------


def test_no_special_token_is_added(tokenizer, tmp_path):
    """C08: no BOS, also of a tokenizer that adds one by itself, and none between documents."""
    with_bos = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    with_bos.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    eager = type(tokenizer)(tokenizer_object=with_bos, bos_token="<s>", eos_token="</s>")
    assert eager("x")["input_ids"][0] == 1
    rows = token_rows(write(tmp_path / "a.jsonl", DOCUMENTS), eager, 24, 8)
    assert rows.rows.flatten().tolist() == whole(DOCUMENTS, tokenizer)[:24] and rows.rows.min() > 2


def test_an_endless_source_is_not_read_to_its_end(tokenizer, monkeypatch):
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield {"text": f"def f{number}(x):\n    return x + {number}"}

    serve(monkeypatch, endless())
    assert token_rows("pile", tokenizer, 256, 32).rows.shape == (8, 32)
    assert len(read) < 100


def test_documents_without_a_character_do_not_keep_it_reading(tokenizer, monkeypatch):
    serve(monkeypatch, itertools.repeat({"text": ""}))
    with pytest.raises(ValueError, match="is empty"):
        token_rows("pile", tokenizer, 64, 16)


def test_one_long_document_is_not_tokenized_to_its_end(tokenizer, tmp_path):
    lengths = []

    class Counting:
        def __call__(self, text, **settings):
            lengths.append(len(text))
            return tokenizer(text, **settings)

    source = write(tmp_path / "long.txt", ["spam and eggs, " * 200_000])
    assert token_rows(source, Counting(), 256, 32).rows.shape == (8, 32)
    assert sum(lengths) < 10_000


@pytest.mark.parametrize("seed", range(8))
def test_the_first_tokens_do_not_depend_on_how_much_is_read(seed, tokenizer, tmp_path):
    """Documents that end and begin in whitespace, which merges with the blank line between them."""
    random = np.random.default_rng(seed)
    pieces = ["\n", "\n\n", " ", "    ", "class", "del", "é", "x", "assert ", "\t", "", "in" * 9]
    texts = ["".join(random.choice(pieces, size=random.integers(0, 40))) for _ in range(60)]
    source, expected = write(tmp_path / "a.jsonl", texts), whole(texts, tokenizer)
    for tokens in range(4, 200, 7):
        assert token_rows(source, tokenizer, tokens, 2).rows.flatten().tolist() == expected[: tokens // 2 * 2]


def test_a_word_that_the_cut_goes_through_does_not_count(tmp_path):
    """Words of one token and many letters: half of such a word is several tokens, which the whole text does not have."""
    text = "internationalization interoperability " * 100
    long_words = Tokenizer(BPE())
    long_words.pre_tokenizer = ByteLevel(add_prefix_space=False)
    long_words.train_from_iterator([text], BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=long_words)
    expected = whole([text], tokenizer)
    assert len(expected) < len(text) / 15
    for tokens in range(2, 180, 2):
        assert token_rows(write(tmp_path / "a.txt", [text]), tokenizer, tokens, 2).rows.flatten().tolist() == expected[:tokens]


def test_the_cut_is_not_between_documents(tokenizer, tmp_path):
    """The same text in one document or in many is the same rows."""
    text = "\n\n".join(documents("builtin"))[:20_000]
    parts = text.split("\n\n")
    one, many = write(tmp_path / "one.jsonl", [text]), write(tmp_path / "many.jsonl", parts)
    assert torch.equal(token_rows(one, tokenizer, 500, 50).rows, token_rows(many, tokenizer, 500, 50).rows)


def test_the_source_leads_back_from_any_folder(tokenizer, tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", DOCUMENTS)
    monkeypatch.chdir(tmp_path)
    assert token_rows("a.jsonl", tokenizer, 24, 8).provenance["source"] == str(tmp_path / "a.jsonl")
    assert token_rows("builtin", tokenizer, 24, 8).provenance["source"] == "builtin"


def test_a_last_row_that_is_not_full_is_left_out(tokenizer, tmp_path):
    source = write(tmp_path / "a.jsonl", DOCUMENTS)
    available = len(whole(DOCUMENTS, tokenizer))
    assert token_rows(source, tokenizer, 31, 8).rows.shape == (3, 8)
    assert token_rows(source, tokenizer, 10_000, 8).rows.shape == (available // 8, 8)
    assert token_rows(source, tokenizer, available, available).rows.shape == (1, available)


def test_more_tokens_begin_with_fewer(tokenizer):
    short, long = (token_rows("builtin", tokenizer, tokens, 64).rows for tokens in (1024, 8192))
    assert torch.equal(long[:16], short)


def test_the_hash_is_of_the_ids(tokenizer, tmp_path):
    first = token_rows("builtin", tokenizer, 64, 16).provenance["sha256"]
    assert token_rows("builtin", tokenizer, 64, 16).provenance["sha256"] == first
    assert token_rows("builtin", tokenizer, 80, 16).provenance["sha256"] != first
    np.save(tmp_path / "ids.npy", token_rows("builtin", tokenizer, 64, 16).rows.numpy().astype(np.uint16))
    assert token_rows(str(tmp_path / "ids.npy"), None, 64, 16).provenance["sha256"] == first


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["", "  ", "nothing.txt", "/no/such/text.jsonl", "~no-such-user/a.txt", "nothing.npy", ".", "/tmp"]
)
def test_a_text_that_is_not_there(source, tokenizer):
    with pytest.raises(ValueError, match=r"there is no text .*A text is `builtin`"):
        check_request(source, 64, 16)
    with pytest.raises(ValueError, match=r"there is no text"):
        token_rows(source, tokenizer, 64, 16)


def test_a_file_of_an_unknown_kind(tmp_path):
    (tmp_path / "a.csv").write_text("text\nhello")
    with pytest.raises(ValueError, match=r"a.csv is of no known kind.*\.jsonl"):
        documents(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(("tokens", "seq_len"), [(15, 16), (0, 16), (-5, 16), (16, 1), (16, 0), (16, -2)])
def test_too_few_tokens_for_a_row(tokens, seq_len, tokenizer):
    with pytest.raises(ValueError, match=f"{tokens} tokens do not fill one row of {seq_len}"):
        token_rows("builtin", tokenizer, tokens, seq_len)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"])
@pytest.mark.parametrize("texts", [[""], [" \n\n\t "]], ids=["nothing", "blank"])
def test_an_empty_text(name, texts, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="is empty"):
        token_rows(write(tmp_path / name, texts), tokenizer, 64, 16)


def test_files_of_no_bytes(tokenizer, tmp_path):
    for name, expected in {"a.txt": "is empty", "a.jsonl": "is empty", "a.jsonl.gz": "is empty", "a.parquet": "damaged"}.items():
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(ValueError, match=expected):
            token_rows(str(tmp_path / name), tokenizer, 64, 16)


def test_a_text_too_short_for_one_row(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"has 1 tokens, too few for one row of 16: use a smaller seq-len"):
        token_rows(write(tmp_path / "a.txt", ["x"]), tokenizer, 64, 16)
    np.save(tmp_path / "ids.npy", np.arange(5))
    with pytest.raises(ValueError, match="has 5 tokens, too few"):
        token_rows(str(tmp_path / "ids.npy"), None, 64, 16)


def test_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc\xe9 caf\xe9")
    with pytest.raises(ValueError, match=r"a.txt is not UTF-8 text \(byte 3\)"):
        list(documents(str(tmp_path / "a.txt")))
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"a.jsonl, row 2, is not UTF-8"):
        list(documents(str(tmp_path / "a.jsonl")))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"words": "x"}', 'row 3, has no text: each row is an object with a field "text"'),
        ('{"text": null}', "row 3, has no text"),
        ('{"text": ["x"]}', "row 3, has no text"),
        ('"x"', "row 3, has no text"),
        ("3", "row 3, has no text"),
        ('{"text": "x"', "row 3, is not JSON"),
        ("plain words", "row 3, is not JSON"),
        ("[" * 100_000, "row 3, is not JSON"),
        (r'{"text": "half \ud83d"}', "row 3, holds half a character"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_bad_row_is_named_by_its_number(name, row, expected, tokenizer, tmp_path):
    data = f'{{"text": "good"}}\n{{"text": "good"}}\n{row}\n'.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(ValueError, match=expected):
        token_rows(str(tmp_path / name), tokenizer, 64, 16)


@pytest.mark.parametrize("size", [5, 60, 0.5, -1], ids=str)
def test_a_damaged_gzip_file(size, tokenizer, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    data = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in documents("builtin")).encode())
    path.write_bytes(data[: int(size * len(data)) if 0 < size < 1 else size])
    with pytest.raises(ValueError, match="is a damaged gzip file"):
        token_rows(str(path), tokenizer, 1_000_000, 16)


def test_a_gzip_file_with_other_bytes_inside_or_that_is_none(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    data = bytearray(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in documents("builtin")).encode()))
    data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
    for damaged in (bytes(data), b'{"text": "plain"}\n'):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is a damaged gzip file|row [0-9]+, is not"):
            token_rows(str(path), tokenizer, 1_000_000, 16)


def test_a_damaged_or_foreign_parquet_file(tokenizer, tmp_path):
    path = tmp_path / "a.parquet"
    write(path, DOCUMENTS)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="is damaged or no parquet file"):
        token_rows(str(path), tokenizer, 64, 16)
    pyarrow.parquet.write_table(pyarrow.table({"words": ["a"], "n": [1]}), path)
    with pytest.raises(ValueError, match='has no column "text": it has words, n'):
        token_rows(str(path), tokenizer, 64, 16)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
    with pytest.raises(ValueError, match='row 2, has no text: its "text" is None'):
        token_rows(str(path), tokenizer, 64, 16)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"no array", b"PK\x03\x04"], ids=repr)
def test_a_damaged_npy_file(data, tmp_path):
    (tmp_path / "ids.npy").write_bytes(data)
    with pytest.raises(ValueError, match=r"ids.npy is damaged or no .npy array"):
        token_rows(str(tmp_path / "ids.npy"), None, 64, 16)


def test_arrays_that_are_no_token_ids(tmp_path):
    marker = tmp_path / "it-ran"
    for array in (np.ones(100), np.full(100, -1), np.array(["a"] * 100), np.ones(100, bool)):
        np.save(tmp_path / "ids.npy", array)
        with pytest.raises(ValueError, match="not token ids: save an array of non-negative integers"):
            token_rows(str(tmp_path / "ids.npy"), None, 64, 16)
    np.save(tmp_path / "ids.npy", np.array([Bomb(marker)] * 100, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is damaged or no"):
        token_rows(str(tmp_path / "ids.npy"), None, 64, 16)
    np.savez(tmp_path / "archive.npz", np.arange(100))
    (tmp_path / "archive.npz").rename(tmp_path / "ids.npy")
    with pytest.raises(ValueError, match="is damaged or no"):
        token_rows(str(tmp_path / "ids.npy"), None, 64, 16)
    assert not marker.exists()


def test_no_tokenizer():
    with pytest.raises(ValueError, match=r"give token ids \(a \.npy file\).*--tokenizer"):
        token_rows("builtin", None, 64, 16)


def test_hub_rows_without_text(tokenizer, monkeypatch):
    serve(monkeypatch, [{"text": "a"}, {"words": "b", "n": 1}])
    with pytest.raises(ValueError, match=r'hub:lab/text, row 2, has no field "text": it has words, n'):
        token_rows("hub:lab/text", tokenizer, 64, 16)


@pytest.mark.parametrize("source", ["pile", "hub:lab/text", "hub:lab/text:test"])
def test_hub_text_offline(source, tokenizer):
    with pytest.raises(ValueError, match=rf"the text '{source}' cannot be read from the hub.*Connect to the network"):
        token_rows(source, tokenizer, 64, 16)


@pytest.mark.parametrize("source", ["hub:", "hub::train", "hub:a--b", "hub:/etc", "hub:../x", "hub:two words"])
def test_hub_text_of_no_possible_name(source, tokenizer):
    with pytest.raises(ValueError, match=r"cannot be read from the hub"):
        token_rows(source, tokenizer, 64, 16)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("gone"),
        datasets.exceptions.DatasetNotFoundError("no such\ndata set"),
        ValueError("Bad split: dev"),
        datasets.exceptions.DatasetGenerationError("broken"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_text_that_fails_half_way(error, tokenizer, monkeypatch):
    def rows():
        yield {"text": "a good one"}
        raise error

    serve(monkeypatch, rows())
    with pytest.raises(ValueError, match=rf"cannot be read from the hub \({type(error).__name__}: ") as refused:
        token_rows("hub:lab/text", tokenizer, 64, 16)
    assert "\n" not in str(refused.value)


def test_check_request_reads_nothing(monkeypatch):
    monkeypatch.setattr(corpus, "_hub_rows", None)
    for source in ("builtin", "pile", "hub:lab/text"):
        check_request(source, 64, 16)
