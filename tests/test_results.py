"""The result file: what goes in comes out, damage is told apart from content, and results over texts add up."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis import interaction
from analysis.interaction import cosine, weight_gram
from analysis.results import FORMAT, InteractionResult, merge
from tests.tiny import measured, tiny_model, tiny_rows

ARRAYS = ("layers", "omega", "rho", "G", "gamma", "heads_flagged", "batch_tokens", "batch_loss")


@pytest.fixture(scope="module")
def results():
    """gradient -> a result of three batches with both couplings, of a hybrid model whose attention layers are 1 and 3."""
    model = tiny_model("lfm2")
    return {name: measured(model, tiny_rows(3, 8).split(1), gradient=name) for name in interaction.GRADIENTS}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "result.npz"


def synthetic(batches=5, layers=2, heads=4, seed=0, **changes):
    """A result made of random vectors, without a model."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(layers, heads, 6, 3, generator=generator)
    vectors = torch.randn(batches, layers, heads, 5, generator=generator)
    fields = {
        "layers": np.arange(layers),
        "n_kv_heads": heads,
        "coupling": "paper",
        "gradient": "token",
        "weight_grams": {"paper": torch.stack([weight_gram(layer) for layer in weights]).numpy()},
        "gradient_sums": {"paper": (vectors @ vectors.mT).numpy()},
        "batch_tokens": np.full(batches, 7),
        "batch_loss": np.linspace(10, 20, batches),
        "provenance": {"model": {"source": "random", "d_model": 6, "d_head": 3}, "adapter": None, "text": f"seed {seed}"},
    }
    return InteractionResult(**{**fields, **changes})


def assert_same(left, right):
    for name in ARRAYS:
        ours, theirs = getattr(left, name), getattr(right, name)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), name
    for name in ("n_kv_heads", "coupling", "gradient", "provenance", "couplings", "tokens", "cross_entropy"):
        assert getattr(left, name) == getattr(right, name), name


# --- the file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", interaction.COUPLINGS)
@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_round_trip(results, gradient, coupling, path):
    result = results[gradient].view(coupling)
    result.save(path)
    loaded = InteractionResult.load(path)
    assert_same(loaded, result)
    for other in interaction.COUPLINGS:
        assert_same(loaded.view(other), result.view(other))
    weights = np.array([2.0, 0.0, 1.0])
    assert np.array_equal(loaded.G_of(weights), result.G_of(weights))


def test_the_file_holds_what_the_command_line_promises(results, path):
    results["token"].save(path)
    with np.load(path, allow_pickle=False) as file:
        assert {"omega", "rho", "G", "gamma", "layers", "heads_flagged", "provenance"} <= set(file.files)
        assert file["omega"].shape == file["rho"].shape == file["G"].shape == (2, 4, 4)
        assert file["gamma"].shape == (2,) and file["heads_flagged"].shape == (2, 4)
        assert file["layers"].tolist() == [1, 3]
        assert json.loads(str(file["provenance"])) == results["token"].provenance
        np.testing.assert_array_equal(file["G"], file["omega"] * file["rho"])


def test_the_same_result_gives_the_same_bytes(results, path, tmp_path):
    results["token"].save(path)
    first = path.read_bytes()
    results["token"].save(path)  # over the old file
    assert path.read_bytes() == first
    InteractionResult.load(path).save(tmp_path / "again" / "deeper.npz")
    assert (tmp_path / "again" / "deeper.npz").read_bytes() == first
    measured(tiny_model("lfm2"), tiny_rows(3, 8).split(1)).save(path)
    assert path.read_bytes() == first
    reordered = dict(reversed(results["token"].provenance.items()))
    replace(results["token"], provenance=reordered).save(path)
    assert path.read_bytes() == first
    results["token"].view("invariant").save(path)
    assert path.read_bytes() != first


def test_a_failed_save_leaves_the_old_file(results, path, monkeypatch):
    results["token"].save(path)
    first = path.read_bytes()

    def full_disk(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space left"):
        results["mean"].save(path)
    assert path.read_bytes() == first
    assert list(path.parent.iterdir()) == [path]


def test_a_provenance_that_json_cannot_hold_is_not_written(path):
    with pytest.raises(ValueError, match="JSON"):
        synthetic(provenance={"model": {"size": float("nan")}}).save(path)
    assert not path.exists()


def test_damage_is_always_a_value_error_or_harmless(path):
    """Flip a bit, cut off, blank out or remove bytes anywhere: never another exception, never other numbers."""
    result = synthetic(batches=2, layers=1, heads=2)
    result.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)

    def damaged():
        for start in range(0, len(whole), 11):
            yield whole[:start]
            yield whole[:start] + bytes([whole[start] ^ 1 << int(rng.integers(8))]) + whole[start + 1 :]
        for _ in range(60):
            start, length = int(rng.integers(len(whole))), int(rng.integers(1, 40))
            yield whole[:start] + bytes(len(whole[start : start + length])) + whole[start + length :]
            yield whole[:start] + whole[start + length :]

    refused = 0
    for content in damaged():
        path.write_bytes(content)
        try:
            assert_same(InteractionResult.load(path), result)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("content", [b"", b"PK", b"not a result\n" * 50, b"\x93NUMPY"], ids=["empty", "PK", "text", "npy"])
def test_a_foreign_file(content, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.npz is not a readable interaction result: it is no npz file"):
        InteractionResult.load(path)


def test_a_numpy_file_that_is_no_archive(path):
    with open(path, "wb") as file:
        np.save(file, np.eye(3))
    with pytest.raises(ValueError, match="it is no npz file"):
        InteractionResult.load(path)


def test_an_npz_of_something_else(path):
    np.savez(path, weights=np.eye(3))
    with pytest.raises(ValueError, match="it has no 'shown'"):
        InteractionResult.load(path)


def test_pickled_content_is_never_run(path, tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    np.savez(path, shown=np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        InteractionResult.load(path)
    assert not (tmp_path / "sprung").exists()


def test_no_file(tmp_path):
    for missing in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no result file"):
            InteractionResult.load(missing)


def rewritten(path, **changes):
    """The file at `path` with entries replaced, or removed (None)."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays.update(changes)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


def described(**changes):
    return np.array(json.dumps({"format": FORMAT, "coupling": "paper", "gradient": "token", "n_kv_heads": 4} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shown": described(format=FORMAT + 1)}, f"its format {FORMAT + 1} is newer than this program's {FORMAT}; update"),
        ({"shown": described(format="2")}, "its description"),
        ({"shown": np.array("[1, 2]")}, "its description"),
        ({"shown": np.array("{")}, "Expecting property name"),
        ({"shown": np.array('{"format": 1}')}, "it has no 'coupling'"),
        ({"shown": described(coupling="invariant")}, "lacks the sums of the coupling 'invariant'"),
        ({"shown": described(coupling=["paper"])}, r"lacks the sums of the coupling \['paper'\]"),
        ({"shown": described(gradient="sum")}, "its gradient is 'sum', not one of token, mean"),
        ({"shown": described(n_kv_heads=3)}, "its 4 heads cannot share 3 kv heads"),
        ({"shown": described(n_kv_heads=0)}, "its 4 heads cannot share 0 kv heads"),
        ({"shown": described(n_kv_heads="4")}, "its 4 heads cannot share '4' kv heads"),
        ({"provenance": np.array("null")}, "its description"),
        ({"provenance": None}, "it has no 'provenance'"),
        ({"batch_loss": None}, "it has no 'batch_loss'"),
        ({"batch_loss": np.zeros(3)}, r"batch_loss is float64 \(3,\), not numbers \(5,\)"),
        ({"batch_loss": np.array(["a"] * 5)}, r"batch_loss is <U1 \(5,\), not numbers \(5,\)"),
        ({"batch_tokens": np.ones((5, 1))}, r"batch_tokens is float64 \(5, 1\), not numbers \(5,\)"),
        ({"layers": np.arange(3)}, r"weight_gram_paper is float32 \(2, 4, 4\), not numbers \(3, 4, 4\)"),
        ({"weight_gram_paper": np.zeros((2, 4, 3))}, "cannot share|weight_gram_paper is"),
        ({"weight_gram_paper": np.float32(1)}, "tuple index out of range"),
        ({"gradient_sums_paper": None}, "lacks the sums"),
        ({"gradient_sums_paper": np.zeros((5, 2, 4))}, r"gradient_sums_paper is float64 \(5, 2, 4\), not numbers"),
        ({"gradient_sums_paper": np.zeros((5, 2, 4, 6))}, r"gradient_sums_paper is float64 .* not numbers \(5, 2, 4, 4\)"),
        ({"gradient_sums_paper": np.zeros((4, 2, 4, 4))}, r"not numbers \(5, 2, 4, 4\)"),
    ],
)
def test_a_file_that_contradicts_itself(changes, message, path):
    synthetic().save(path)
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=message) as refusal:
        InteractionResult.load(path)
    assert str(refusal.value).startswith(f"{path} is not a readable interaction result: ")


def test_an_older_reader_ignores_additions(path):
    """Entries that it does not know do not stop a reader."""
    synthetic().save(path)
    rewritten(path, notes=np.array("hello"))
    assert_same(InteractionResult.load(path), synthetic())


# --- what it shows ------------------------------------------------------------------------------------------------


def test_view(results):
    result = results["token"]
    assert result.couplings == ("paper", "invariant") and result.view("paper") is result
    invariant = result.view("invariant")
    assert invariant.coupling == "invariant" and invariant.view("paper").coupling == "paper"
    assert np.abs(invariant.G - result.G).max() > 0.01
    assert_same(invariant.view("paper"), result)
    alone = measured(tiny_model("lfm2"), tiny_rows(3, 8).split(1), couplings=("invariant",))
    assert alone.couplings == ("invariant",)
    np.testing.assert_allclose(alone.G, invariant.G, atol=1e-6)
    with pytest.raises(ValueError, match=r"holds the paper coupling, not 'invariant': .* --coupling invariant"):
        synthetic().view("invariant")
    with pytest.raises(ValueError, match="paper and invariant coupling, not 'gauge'"):
        result.view("gauge")


def test_row_of(results):
    result = results["token"]
    assert [result.row_of(layer) for layer in result.layers] == [0, 1]
    assert result.row_of(3) == 1
    for missing in (0, 2, -1, 4):
        with pytest.raises(ValueError, match=f"layer {missing} is not in this result: it has layers 1, 3"):
            result.row_of(missing)


@pytest.mark.parametrize("coupling", interaction.COUPLINGS)
@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_bootstrap_weights(results, gradient, coupling):
    """A weight counts a batch that many times; ones are the result itself."""
    result = results[gradient].view(coupling)
    assert np.array_equal(result.rho_of(np.ones(3)), result.rho)
    assert np.array_equal(result.G_of(np.ones(3)), result.G)
    for drawn in ([0, 0, 1], [2, 2, 0, 1], [1, 1, 1]):
        weights = np.bincount(drawn, minlength=3).astype(float)
        rows = tiny_rows(3, 8)[drawn]
        again = measured(tiny_model("lfm2"), [rows], gradient=gradient).view(coupling)
        np.testing.assert_allclose(result.rho_of(weights), again.rho, atol=2e-5)
        np.testing.assert_allclose(result.G_of(weights), again.G, atol=2e-5)
    assert np.abs(result.rho_of(np.array([1.0, 0, 0])) - result.rho).max() > 1e-3


def test_numbers_are_float64_and_symmetric_whatever_was_measured(results):
    for result in results.values():
        assert {result.weight_grams["paper"].dtype, result.gradient_sums["paper"].dtype} == {np.dtype("float32")}
        for matrix in (result.omega, result.rho, result.G):
            assert matrix.dtype == np.float64 and np.array_equal(matrix, matrix.swapaxes(1, 2))


def test_flags():
    """A head without weight or without gradient is flagged, its off-diagonals are 0, the others do not notice."""
    plain = synthetic(heads=5)
    grams, sums = plain.weight_grams["paper"].copy(), plain.gradient_sums["paper"].copy()
    grams[0, 1], grams[0, :, 1] = 0, 0
    sums[:, 1, 3], sums[:, 1, :, 3] = 0, 0
    result = synthetic(heads=5, weight_grams={"paper": grams}, gradient_sums={"paper": sums})
    assert result.heads_flagged.tolist() == [[False, True, False, False, False], [False, False, False, True, False]]
    expected = plain.G.copy()
    for layer, head in ((0, 1), (1, 3)):
        expected[layer, head], expected[layer, :, head] = 0, 0
        expected[layer, head, head] = 1
    np.testing.assert_array_equal(result.G, expected)
    assert not plain.heads_flagged.any()


def test_gamma_and_gauge_noise():
    result = synthetic(layers=3)
    off = result.G[:, ~np.eye(4, dtype=bool)]
    np.testing.assert_allclose(result.gamma, np.sqrt((off**2).sum(1)))
    np.testing.assert_allclose(result.gamma_normalized, np.sqrt((off**2).mean(1)))  # the root mean square of the couplings
    assert result.gauge_noise == pytest.approx(1 / np.sqrt(18))
    ones = np.ones((5, 2, 4, 4))
    coupled = synthetic(weight_grams={"paper": ones[0]}, gradient_sums={"paper": ones})
    np.testing.assert_allclose(coupled.gamma_normalized, 1)


def test_invariant_coupling_has_no_gauge_noise(results):
    assert results["token"].gauge_noise > 0 and results["token"].view("invariant").gauge_noise == 0


def test_gauge_noise_is_the_size_of_omega_between_random_heads():
    weights = torch.randn(40, 32, 8, generator=torch.Generator().manual_seed(0))
    omega = cosine(weight_gram(weights)).numpy()
    noise = synthetic(provenance={"model": {"d_model": 32, "d_head": 8}}).gauge_noise
    assert omega[~np.eye(40, dtype=bool)].std() == pytest.approx(noise, rel=0.1)


# --- merging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", interaction.GRADIENTS)
def test_merged_results_are_one_measurement_over_the_union(gradient, path):
    model, rows = tiny_model("llama"), tiny_rows(6, 8)
    whole = measured(model, [rows], gradient=gradient)
    parts = [measured(model, list(part.split(2)), gradient=gradient, text=n) for n, part in enumerate(rows.split([3, 2, 1]))]
    merged = merge(parts)
    for coupling in interaction.COUPLINGS:
        np.testing.assert_allclose(merged.view(coupling).rho, whole.view(coupling).rho, atol=2e-5)
        np.testing.assert_allclose(merged.view(coupling).gamma, whole.view(coupling).gamma, rtol=1e-4)
    assert merged.tokens == whole.tokens == 42 and merged.cross_entropy == pytest.approx(whole.cross_entropy)
    assert len(merged.batch_tokens) == 4
    assert merged.provenance["text"] == {"merged": [0, 1, 2]}
    assert np.abs(merged.rho - parts[0].rho).max() > 1e-3
    merged.save(path)
    assert_same(InteractionResult.load(path), merged)
    assert_same(merge([whole]).view("invariant").view("paper"), replace(whole, provenance=merge([whole]).provenance))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            synthetic(provenance={"model": {"sha256": "B"}, "adapter": None, "text": ""}),
            "different models cannot be merged: .*'B'",
        ),
        (synthetic(provenance=synthetic().provenance | {"adapter": {"r": 8}}), "different adapters cannot be merged: None and"),
        (synthetic(gradient="mean"), "different gradient cannot be merged: token and mean"),
        (synthetic(layers=3), "different layers cannot be merged"),
        (
            synthetic(weight_grams={"invariant": np.ones((2, 4, 4))}, gradient_sums={}, coupling="invariant"),
            "different couplings cannot be merged",
        ),
    ],
)
def test_results_of_different_measurements_do_not_merge(other, message):
    with pytest.raises(ValueError, match=message):
        merge([synthetic(), other])
    with pytest.raises(ValueError, match="cannot be merged"):
        merge([other, synthetic()])


def test_nothing_to_merge():
    with pytest.raises(ValueError, match="no results to merge"):
        merge([])


def test_the_same_model_from_another_place_or_device_merges():
    here, there = synthetic(), synthetic()
    there.provenance["model"] |= {"source": "elsewhere", "device": "cuda:0"}
    assert merge([here, there]).tokens == 2 * here.tokens
