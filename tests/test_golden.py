"""The default model against matrices that a separate plain program computed (../shared/golden/README.md)."""

import json

import numpy as np
import pytest
import torch

from analysis.corpus import TokenRows, token_rows
from analysis.measurement import measure_interaction
from analysis.models import load_model
from tests.bfloat16_unit import bfloat16_unit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def golden(shared):
    """The golden numbers: name -> array over the layers."""
    document = json.loads((shared / "golden" / "smollm2_135m_interaction.json").read_text(encoding="utf-8"))
    names = ("layer", "gamma", "gamma_mean", "gamma_invariant", "omega", "rho", "rho_mean", "G", "G_invariant")
    arrays = {name: np.array([layer[name] for layer in document["layers"]]) for name in names}
    return {**arrays, "mean_ce": document["mean_ce"]}


@pytest.fixture(scope="module")
def text(shared):
    """The text's file."""
    return str(shared / "data" / "text" / "valid_mixed.jsonl")


@pytest.fixture(scope="module")
def loaded():
    """The default model in float32."""
    return load_model("default", device="cpu")


@pytest.fixture(scope="module")
def rows(loaded, text) -> TokenRows:
    """The 8 rows of 256 tokens."""
    return token_rows(text, loaded.tokenizer, tokens=2048, seq_len=256)


@pytest.fixture(scope="module")
def result(loaded, rows):
    """Both couplings with the token gradient."""
    return measure_interaction(loaded, rows, coupling="invariant")


def test_the_rows_are_the_golden_text(loaded, rows, text):
    with open(text, encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for _, line in zip(range(8), file, strict=False)]
    ids = loaded.tokenizer("\n\n".join(documents), add_special_tokens=False)["input_ids"]
    assert rows.rows.shape == (8, 256)
    assert rows.rows.flatten().tolist() == ids[:2048]


def test_token_gradient_paper_coupling(result, golden):
    paper = result.view("paper")
    assert paper.layers.tolist() == golden["layer"].tolist() == list(range(30))
    assert paper.tokens == 8 * 255 and paper.cross_entropy == pytest.approx(golden["mean_ce"], rel=1e-5)
    np.testing.assert_allclose(paper.omega, golden["omega"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(paper.rho, golden["rho"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(paper.G, golden["G"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(paper.gamma, golden["gamma"], rtol=2e-3)
    assert not paper.heads_flagged.any()


def test_token_gradient_invariant_coupling(result, golden):
    invariant = result.view("invariant")
    np.testing.assert_allclose(invariant.G, golden["G_invariant"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(invariant.gamma, golden["gamma_invariant"], rtol=2e-3)


def test_mean_gradient(loaded, rows, golden):
    mean = measure_interaction(loaded, rows, gradient="mean")
    np.testing.assert_allclose(mean.omega, golden["omega"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(mean.rho, golden["rho_mean"], atol=1e-3, rtol=0)
    np.testing.assert_allclose(mean.gamma, golden["gamma_mean"], rtol=2e-3)


def test_bfloat16(rows, golden):
    loaded = load_model("default", dtype="bfloat16", device="cpu")
    assert next(loaded.model.parameters()).dtype == torch.bfloat16
    with bfloat16_unit():
        half = measure_interaction(loaded, rows, coupling="invariant")
    np.testing.assert_allclose(half.view("paper").G, golden["G"], atol=0.01, rtol=0)
    np.testing.assert_allclose(half.view("invariant").G, golden["G_invariant"], atol=0.01, rtol=0)
