"""A checkpoint by where it lies: which results are made of it, and what it is called."""

from gamelora.checkpoint_sources import CheckpointSource, source_of
from tests.synthetic import synthetic_result


def test_a_checkpoint_knows_results_made_of_it(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    provenance = synthetic_result(source=str(tmp_path / "model")).provenance
    assert CheckpointSource("model").made(provenance) and CheckpointSource("./model/").made(provenance)
    assert not CheckpointSource("model", dtype="bfloat16").made(provenance)
    assert not CheckpointSource("model", adapter="/a").made(provenance)
    assert source_of(provenance).made(provenance)
    hub = {"model": {"source": "o/n", "dtype": "float32", "kind": "hub", "revision": "abc"}, "adapter": None}
    assert CheckpointSource("o/n").made(hub) and CheckpointSource("o/n", "abc").made(hub)
    assert not CheckpointSource("o/n", "v2").made(hub) and source_of(hub).revision == "abc"


def test_titles_say_what_tells_apart():
    assert CheckpointSource().title == "SmolLM2-135M-Instruct"
    assert CheckpointSource("o/n", "v1", dtype="bfloat16").title == "n (v1, bfloat16)"
    assert CheckpointSource("o/n", adapter="/x/laptop").title == "n + laptop"
    assert CheckpointSource("o/n", adapter="/x", run="first", step=40).title == "first step 40"
