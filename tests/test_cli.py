"""`python -m analysis interaction`: the file it writes, and one `error:` line with exit code 2 for every bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.models import load_model
from analysis.results import InteractionResult
from tests.loopback_hub import serve
from tests.tiny_files import (
    edit_json,
    edit_tensors,
    loopback_only,
    save_adapter,
    save_folder,
    text_model,
    tiny_tokenizer,
    write_gguf,
)

ROOT = Path(__file__).parents[1]
SIZES = ["--tokens", "64", "--seq-len", "16", "--batch-size", "3"]


@pytest.fixture(autouse=True)
def offline(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with loopback_only():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(text_model(), tmp_path_factory.mktemp("cli") / "model")


@pytest.fixture
def run(capsys):
    """Run the command line; returns (exit code, stdout, stderr)."""

    def run(*arguments):
        try:
            code = main([*map(str, arguments)])
        except SystemExit as stopped:  # argparse's own
            code = stopped.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(run):
    """Run a measurement that cannot be; returns what its one `error:` line says."""

    def refused(*arguments):
        code, out, err = run("interaction", "--out", "never.npz", *SIZES, *arguments)
        errors = [line for line in err.splitlines() if line.startswith(("error:", "python -m analysis interaction: error:"))]
        assert (code, out, len(errors)) == (2, "", 1), err
        assert "Traceback" not in err and not os.path.exists("never.npz")
        assert err.rstrip().endswith(errors[0])
        return errors[0]

    return refused


# --- what it writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["paper", "invariant"])
@pytest.mark.parametrize("gradient", ["token", "mean"])
def test_it_writes_the_result(coupling, gradient, folder, run):
    settings = ["--coupling", coupling, "--gradient", gradient]
    code, out, err = run("interaction", "--model", folder, *SIZES, *settings, "--out", "new/place/result.npz")
    assert code == 0, err
    assert re.fullmatch(r"new/place/result\.npz: 2 layers x 4 heads, 60 tokens, CE [\d.]+ nats, .*strongest layer [01] .*\n", out)
    assert "measuring: 100%" in err
    with np.load("new/place/result.npz") as file:
        assert {name: file[name].shape for name in ("omega", "rho", "G", "gamma", "layers", "heads_flagged")} == {
            **dict.fromkeys(("omega", "rho", "G"), (2, 4, 4)),
            **dict.fromkeys(("gamma", "layers"), (2,)),
            "heads_flagged": (2, 4),
        }
        kept = json.loads(str(file["provenance"]))
        np.testing.assert_allclose(file["G"], file["omega"] * file["rho"])
        np.testing.assert_allclose(file["gamma"], np.linalg.norm(file["G"] - np.eye(4), axis=(1, 2)))
    assert kept["settings"] == {"coupling": coupling, "gradient": gradient, "batch_size": 3}
    assert (kept["text"]["source"], kept["text"]["tokens"], kept["model"]["name"]) == ("builtin", 64, "model")


def test_the_same_input_gives_the_same_bytes(folder, run):
    for name in ("one.npz", "two.npz"):
        assert run("interaction", "--model", folder, *SIZES, "--coupling", "invariant", "--out", name)[0] == 0
    assert Path("one.npz").read_bytes() == Path("two.npz").read_bytes()


def test_an_adapter_a_tokenizer_and_a_dtype(folder, run, tmp_path):
    bare = save_folder(text_model(), tmp_path / "bare", tokenizer=False)
    tiny_tokenizer().save_pretrained(tmp_path / "tokens")
    save_adapter(load_model(str(folder)).model, tmp_path / "adapter")
    options = ["--adapter", "adapter", "--tokenizer", "tokens", "--dtype", "bfloat16", "--device", "cpu"]
    assert run("interaction", "--model", bare, *SIZES, *options, "--out", "result.npz")[0] == 0
    kept = InteractionResult.load("result.npz").provenance
    assert kept["model"]["dtype"] == "bfloat16" and kept["adapter"]["source"] == str(tmp_path / "adapter")


def test_a_gguf_without_a_tokenizer_on_token_ids(run, tmp_path):
    np.save("ids.npy", np.arange(64) + 3)
    write_gguf(tmp_path / "tiny.gguf", text_model())
    assert run("interaction", "--model", "tiny.gguf", "--text", "ids.npy", *SIZES, "--out", "result.npz")[0] == 0


def test_an_old_result_is_replaced_only_by_a_whole_new_one(folder, run, monkeypatch):
    arguments = ["interaction", "--model", folder, *SIZES, "--out", "result.npz"]
    assert run(*arguments)[0] == 0
    before = Path("result.npz").read_bytes()

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    code, _out, err = run(*arguments)
    assert code == 2 and "error: [Errno 28] No space left on device" in err
    assert Path("result.npz").read_bytes() == before and os.listdir(".").count("result.npz") == 1
    assert not [name for name in os.listdir(".") if name.endswith(".tmp")]


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_models_that_cannot_be(refused, folder, tmp_path):
    assert "no model was given" in refused("--model", "")
    assert "/no/such/model does not exist" in refused("--model", "/no/such/model")
    assert "is no model folder" in refused("--model", tmp_path)
    assert "not in the local hub cache" in refused("--model", "no-such-owner/no-such-model")
    assert "belongs to a hub id" in refused("--model", folder, "--revision", "main")
    assert "is no adapter folder" in refused("--model", folder, "--adapter", tmp_path)
    assert "there is no tokenizer in" in refused("--model", folder, "--tokenizer", "/no/such/tokenizer")
    assert "cannot be used on this machine" in refused("--model", folder, "--device", "abacus")
    assert "File name too long" in refused("--model", "/" + "x" * 300)


def test_damaged_models(refused, tmp_path):
    folder = save_folder(text_model(), tmp_path / "model")
    edit_json(folder / "config.json", hidden_size="wide")
    assert "expected int, got str" in refused("--model", folder)
    folder = save_folder(text_model(), tmp_path / "model")
    edit_tensors(folder / "model.safetensors", drop="o_proj")
    assert "lacks 2 of the tensors" in refused("--model", folder)


def test_gguf_files_have_four_different_messages(refused, tmp_path):
    model = text_model()
    file = write_gguf(tmp_path / "tiny.gguf", model)
    messages = [refused("--model", file)]  # it has no tokenizer, and the text is words
    messages.append(refused("--model", write_gguf(tmp_path / "strange.gguf", model, architecture="fictional")))
    file.write_bytes(file.read_bytes()[:2000])
    messages.append(refused("--model", file))
    expected = ["carries no tokenizer", "'fictional'", "truncated or corrupt"]
    assert all(word in message for word, message in zip(expected, messages, strict=True))


def test_texts_that_cannot_be(refused, folder, tmp_path):
    files = {
        "empty.txt": (b"", "is empty"),
        "short.txt": (b"x", "too few for one row of 16"),
        "latin.txt": (b"caf\xe9", "is not UTF-8"),
        "rows.jsonl": (b'{"text": "a"}\n{"words": "b"}\n', "row 2, has no text"),
        "cut.jsonl.gz": (b"\x1f\x8b\x08", "damaged gzip"),
        "cut.parquet": (b"PAR1", "no parquet file"),
        "cut.npy": (b"", "no .npy array"),
        "table.csv": (b"text\n", "of no known kind"),
    }
    for name, (data, expected) in files.items():
        (tmp_path / name).write_bytes(data)
        assert expected in refused("--model", folder, "--text", name)
    assert "there is no text" in refused("--model", folder, "--text", "gone.txt")
    assert "cannot be read from the hub" in refused("--model", folder, "--text", "pile")
    np.save("ids.npy", np.full(64, 10_000))
    assert "token id 10000" in refused("--model", folder, "--text", "ids.npy")


def test_numbers_that_cannot_be(refused, folder):
    assert "15 tokens do not fill one row of 16" in refused("--model", folder, "--tokens", "15")
    assert "do not fill one row of 1" in refused("--model", folder, "--seq-len", "1")
    assert "batch size is 0" in refused("--model", folder, "--batch-size", "0")
    assert "window of 64" in refused("--model", folder, "--seq-len", "128", "--tokens", "256")
    assert "invalid int value: 'many'" in refused("--model", folder, "--tokens", "many")
    assert "invalid choice: 'romantic'" in refused("--model", folder, "--coupling", "romantic")


def test_what_is_wrong_with_text_and_place_is_said_before_the_model_is_loaded(refused, folder, monkeypatch):
    monkeypatch.setattr("analysis.cli_interaction.load_model", None)
    assert "there is no text" in refused("--model", folder, "--text", "gone.txt")
    assert "do not fill one row" in refused("--model", folder, "--tokens", "3")
    assert "must end in .npz" in refused("--model", folder, "--out", "result.json")
    os.mkdir("taken.npz")
    assert "taken.npz cannot be written" in refused("--model", folder, "--out", "taken.npz")
    for place in ("/proc/here/result.npz", str(folder / "config.json" / "result.npz")):
        assert place.split("/")[1] in refused("--model", folder, "--out", place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else(refused, folder, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o555)
    assert "cannot be written" in refused("--model", folder, "--out", "theirs/result.npz")


def test_out_of_memory_says_what_to_lower(refused, folder, monkeypatch):
    def too_much(*_args):
        raise MemoryError("1.5 TiB")

    monkeypatch.setattr("analysis.cli_interaction.measure_interaction", too_much)
    assert "--batch-size" in (message := refused("--model", folder)) and "1.5 TiB" in message


def test_an_error_of_our_own_is_not_hidden(folder, monkeypatch):
    """Only what the input is at fault for becomes a sentence."""

    def broken(*_args):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("analysis.cli_interaction.measure_interaction", broken)
    with pytest.raises(ZeroDivisionError):
        main(["interaction", "--model", str(folder), *SIZES, "--out", "result.npz"])


def test_a_command_is_needed(run):
    for arguments in ((), ("interpret",), ("interaction",), ("interaction", "--model", "default")):
        code, _out, err = run(*arguments)
        assert code == 2 and "usage: python -m analysis" in err and "Traceback" not in err
    code, out, _err = run("interaction", "--help")
    assert code == 0 and all(word in out for word in ("--model", "--coupling", "builtin", "pile", "default"))


def test_a_message_of_many_lines_is_one(run, monkeypatch):
    def talkative(_options):
        raise ValueError("first\n  second\n\nthird")

    monkeypatch.setattr("analysis.cli_interaction.run_interaction", talkative)
    assert run("interaction", "--model", "default", "--out", "x.npz")[2] == "error: first second third\n"


# --- as a program, with a hub -------------------------------------------------------------------------------------


def test_a_hub_model_and_a_hub_text_in_a_fresh_process(folder, tmp_path):
    """HF_ENDPOINT alone leads there; what `datasets` sends elsewhere (it counts downloads) ends at a proxy that is none."""
    (tmp_path / "data").mkdir()
    rows = "".join(json.dumps({"text": f"class C{number}:\n    pass\n"}) + "\n" for number in range(200))
    (tmp_path / "data" / "train.jsonl").write_text(rows)
    options = ["--model", "lab/tiny", "--text", "hub:lab/text", *SIZES, "--out", "result.npz"]
    with serve() as hub:
        hub.add("lab/tiny", folder, "main")
        hub.add("lab/text", tmp_path / "data", "main", kind="datasets")
        place = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9") | {"NO_PROXY": "127.0.0.1"}
        ran = subprocess.run(
            [sys.executable, "-m", "analysis", "interaction", *options],
            env={**os.environ, **place, **proxies, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    assert ran.returncode == 0, ran.stderr
    kept = InteractionResult.load("result.npz").provenance
    assert (kept["model"]["kind"], kept["model"]["source"], kept["text"]["source"]) == ("hub", "lab/tiny", "hub:lab/text")
    assert len(kept["model"]["revision"]) == 40
