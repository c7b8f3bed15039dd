"""Models from the hub: real downloads from a small hub on loopback, the cache without it, and what the hub refuses."""

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from analysis import sources
from analysis.models import load_model
from tests.loopback_hub import serve
from tests.tiny_files import (
    TEXT_VOCAB,
    edit_json,
    loopback_only,
    save_adapter,
    save_folder,
    text_model,
    tiny_tokenizer,
    write_bomb,
)

IDS = torch.randint(3, TEXT_VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def hub(tmp_path, monkeypatch, workspace):
    """A hub on loopback that this process is told to use, with an empty cache; nothing else is reached."""
    with serve() as hub, loopback_only():
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        huggingface_hub.close_session()
        yield hub


@pytest.fixture(scope="module")
def model():
    return text_model()


@pytest.fixture
def repo(hub, model, tmp_path):
    """A model under `lab/tiny`, with a second, different version under the tag v2, and files that are never wanted."""
    first = save_folder(model, tmp_path / "first")
    for name in ("pytorch_model.bin", "model.gguf", "model.fp16.safetensors", "README.md", "modeling_tiny.py"):
        (first / name).write_text("not wanted")
    hub.add("lab/tiny", first, "main")
    hub.add("lab/tiny", save_folder(text_model(seed=1), tmp_path / "second", max_shard_size="40KB"), "v2")
    return "lab/tiny"


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def go_offline(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.fail = (500, "Offline")


def test_a_model_is_downloaded_with_its_tokenizer_and_nothing_else(hub, repo, model):
    loaded = load_model(repo)
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=0)
    assert loaded.tokenizer("class C")["input_ids"] == tiny_tokenizer()("class C")["input_ids"]
    known = loaded.provenance["model"]
    assert (known["kind"], known["name"], known["source"]) == ("hub", "tiny", "lab/tiny")
    assert known["revision"] == hub.add("lab/tiny", hub.repositories["models", "lab/tiny"]["main"])
    fetched = {request.rsplit("/", 1)[-1] for request in hub.requests if request.startswith("GET") and "/resolve/" in request}
    assert "model.safetensors" in fetched and not fetched & {"pytorch_model.bin", "model.gguf", "modeling_tiny.py", "README.md"}
    assert "model.fp16.safetensors" not in fetched


def test_a_revision_is_its_own_model(hub, repo, model):
    second = load_model(repo, revision="v2")
    torch.testing.assert_close(logits(second.model), logits(text_model(seed=1)), atol=1e-5, rtol=0)
    commit = second.provenance["model"]["revision"]
    assert len(commit) == 40 and commit != load_model(repo).provenance["model"]["revision"]
    assert torch.equal(logits(load_model(repo, revision=commit).model), logits(second.model))


def test_the_second_time_nothing_is_downloaded(hub, repo):
    first = load_model(repo)
    hub.requests.clear()
    again = load_model(repo)
    assert again.provenance == first.provenance
    assert not [request for request in hub.requests if "/resolve/" in request and request.startswith("GET")]


@pytest.mark.parametrize("how", ["offline", "gone", "failing"])
def test_from_the_cache_without_the_hub(how, hub, repo, monkeypatch):
    first = load_model(repo, revision="v2")
    if how == "offline":
        go_offline(hub, monkeypatch)
    elif how == "gone":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.fail = (503, "Unavailable")
    again = load_model(repo, revision="v2")
    assert again.provenance == first.provenance and torch.equal(logits(again.model), logits(first.model))


def test_an_unknown_id_offline(hub, repo, monkeypatch):
    go_offline(hub, monkeypatch)
    with pytest.raises(ValueError, match=r"'lab/tiny' is no folder here, is not in the local hub cache.*Connect to the network"):
        load_model(repo)
    assert hub.requests == []


def test_an_unknown_id(hub, repo):
    with pytest.raises(ValueError, match="no folder and no hub model 'lab/large'"):
        load_model("lab/large")


def test_an_unknown_revision(hub, repo):
    with pytest.raises(ValueError, match="the hub model lab/tiny has no revision 'v3'"):
        load_model(repo, revision="v3")


def test_a_gated_model(hub, repo):
    hub.fail = (403, "GatedRepo")
    with pytest.raises(ValueError, match="lab/tiny is gated: accept its licence"):
        load_model(repo)


@pytest.mark.parametrize("failure", [(500, "Broken"), (429, "TooManyRequests"), (401, "Unauthorized")])
def test_a_hub_that_fails(failure, hub, repo, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its retries
    hub.fail = failure
    with pytest.raises(ValueError, match="lab/tiny"):
        load_model(repo)


def test_an_interrupted_download_is_not_a_model(hub, repo, monkeypatch):
    """What was fetched of a snapshot before the network went away is not loaded as if it were all."""
    answer = hub.answer
    monkeypatch.setattr(hub, "answer", lambda path: (500, {}, b"") if path.endswith(".safetensors") else answer(path))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with pytest.raises(ValueError, match="hub"):
        load_model(repo)
    go_offline(hub, monkeypatch)
    with pytest.raises(ValueError, match="hub"):
        load_model(repo)


def test_a_repository_of_pickles_is_not_even_downloaded(hub, model, tmp_path):
    folder = save_folder(model, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    write_bomb(folder / "pytorch_model.bin", tmp_path / "it-ran")
    hub.add("lab/pickled", folder, "main")
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        load_model("lab/pickled")
    assert not any(".bin" in request for request in hub.requests) and not (tmp_path / "it-ran").exists()


def test_code_on_the_hub_is_neither_fetched_nor_run(hub, model, tmp_path):
    folder = save_folder(model, tmp_path / "own-code")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')")
    edit_json(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    hub.add("lab/own-code", folder, "main")
    with pytest.raises(ValueError, match="brings its own Python code, which is never run here"):
        load_model("lab/own-code")
    assert not any("evil.py" in request for request in hub.requests) and not (tmp_path / "it-ran").exists()


def test_an_adapter_repository_is_no_model(hub, model, tmp_path):
    hub.add("lab/adapter", save_adapter(text_model(), tmp_path / "adapter"), "main")
    with pytest.raises(ValueError, match="is an adapter, not a model"):
        load_model("lab/adapter")


def test_a_tokenizer_from_the_hub_brings_no_weights(hub, repo, tmp_path):
    bare = save_folder(text_model(), tmp_path / "bare", tokenizer=False)
    tokenizer = load_model(str(bare), tokenizer=repo).tokenizer
    assert tokenizer("class C")["input_ids"] == tiny_tokenizer()("class C")["input_ids"]
    assert not any(request.endswith(".safetensors") for request in hub.requests)


def test_a_folder_wins_over_a_hub_id_of_the_same_name(hub, repo, model, tmp_path, monkeypatch):
    save_folder(text_model(seed=2), tmp_path / "here" / "lab" / "tiny")
    monkeypatch.chdir(tmp_path / "here")
    assert sources.resolve(repo).kind == "folder"
    assert hub.requests == []
