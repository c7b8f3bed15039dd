"""Coalitions: planted blocks, canonical labels, honest "no structure", kv groups, and cases C12 and C13."""

import json
import os
import subprocess
import sys
import warnings

import networkx as nx
import numpy as np
import pytest
from conftest import ROOT
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from analysis.coalitions import cluster_heads, find_coalitions
from analysis.records import read_record
from analysis.spectral import (
    AFFINITIES,
    HeadSpectrum,
    adjusted_rand,
    affinity_matrix,
    canonical,
    laplacian_eigenvalues,
    modularity,
)
from tests.planted import planted_result

BLOCK = 0.6
OPPOSED = np.outer([1, 1, 1, -1, -1, -1], [1, 1, 1, -1, -1, -1]).astype(float)


@pytest.fixture(autouse=True)
def no_warning_reaches_the_page():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def planted_matrix(seed: int, noise: float, heads: int = 32, blocks: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(heads) % blocks)
    added = np.triu(generator.normal(0, noise, (heads, heads)), k=1)
    G = np.clip(BLOCK * (labels[:, None] == labels) + added + added.T, -1, 1)
    np.fill_diagonal(G, 1)
    return G, labels


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("k", [4, None])
def test_planted_blocks_are_recovered_exactly(affinity, k):
    G, labels = planted_matrix(seed=0, noise=0.0)
    found = cluster_heads(G, k, affinity)
    assert adjusted_rand_score(labels, found.labels) == 1
    assert found.k == 4 and found.structure


@pytest.mark.parametrize("k", [4, None])
def test_planted_blocks_survive_noise_of_half_their_strength(k):
    for seed in range(20):
        G, labels = planted_matrix(seed, noise=BLOCK / 2)
        assert adjusted_rand_score(labels, cluster_heads(G, k).labels) >= 0.9


def test_noise_has_no_structure_and_shuffling_judges_at_its_level():
    found = [cluster_heads(planted_matrix(seed, noise=0.1, heads=16, blocks=16)[0]) for seed in range(100)]
    false = [entry for entry in found if entry.structure]
    assert len(false) <= 12  # the level is 5 %
    assert all(entry.k == 1 and "no structure" in entry.note for entry in found if not entry.structure)


def test_permuting_heads_permutes_coalitions():
    generator, doubtful = np.random.default_rng(1), 0
    for seed in range(12):
        G, _ = planted_matrix(seed, noise=0.5, heads=12, blocks=3)
        order = generator.permutation(len(G))
        before, after = cluster_heads(G), cluster_heads(G[np.ix_(order, order)])
        assert adjusted_rand_score(before.labels[order], after.labels) == 1
        assert before.gap_p == after.gap_p
        doubtful += before.gap_p > 0.05
    assert doubtful >= 3  # p itself was compared, not only its least value


def test_labels_are_canonical():
    assert canonical([7, 7, 2, 9, 2]).tolist() == [0, 0, 1, 2, 1]
    G, _ = planted_matrix(seed=5, noise=0.2)
    labels = cluster_heads(G).labels
    assert np.array_equal(labels, canonical(labels))


def test_same_labels_in_twenty_processes():
    """Two interpreters that differ in hash seed and threads, ten forked processes each."""
    program = (
        "import os, numpy as np; from analysis.spectral import HeadSpectrum, affinity_matrix\n"
        "g = np.random.default_rng(0); x = g.normal(size=(24, 3)); x /= np.linalg.norm(x, axis=1)[:, None]\n"
        "for _ in range(10):\n"
        "    if not os.fork():\n"
        "        os.write(1, f'{HeadSpectrum.of(affinity_matrix(x @ x.T)).cut(5).tolist()}\\n'.encode()); os._exit(0)\n"
        "for _ in range(10): os.wait()"
    )
    printed = []
    for number in "12":
        settings = os.environ | {"PYTHONHASHSEED": number, "OMP_NUM_THREADS": number}
        run = [sys.executable, "-c", program]
        printed += subprocess.check_output(run, cwd=ROOT, env=settings, text=True, timeout=300).splitlines()
    assert len(printed) == 20 and len(set(printed)) == 1
    assert len(set(json.loads(printed[0]))) == 5


# --- C12: signs and what is no number -----------------------------------------------------------------------------


def test_c12_heads_that_pull_against_each_other_share_no_coalition():
    for affinity in ("positive", "shifted"):
        assert cluster_heads(OPPOSED, 2, affinity).labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert cluster_heads(OPPOSED, None, affinity).labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert cluster_heads(OPPOSED, 2, "absolute").k == 1  # |G| cannot tell them apart, and says so


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_c12_affinity_is_a_nonnegative_copy(affinity):
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(8, 3))
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    G = vectors @ vectors.T
    kept = G.copy()
    matrix = affinity_matrix(G, affinity)
    assert (matrix >= 0).all() and not matrix.diagonal().any() and np.array_equal(matrix, matrix.T)
    assert cluster_heads(G, 2, affinity).k >= 2 and np.array_equal(G, kept)


def test_c12_what_is_no_number_is_named():
    G = np.eye(5)
    G[2, :] = G[:, 2] = np.nan
    with pytest.raises(ValueError, match=r"layer 7: G is not a number at L7H2\. Measure"):
        cluster_heads(G, layer=7)
    G = np.eye(5)
    G[1, 3] = G[3, 1] = np.inf
    with pytest.raises(ValueError, match=r"L7H1, L7H3\. "):
        cluster_heads(G, layer=7)


# --- C13: no structure to find ------------------------------------------------------------------------------------


def test_c13_identity_leaves_every_head_alone():
    for k in (2, None):
        for affinity in AFFINITIES:
            found = cluster_heads(np.eye(4), k, affinity)
            assert found.labels.tolist() == [0, 1, 2, 3] and found.isolated.all() and not found.structure
    assert cluster_heads(np.zeros((4, 4)), 2).labels.tolist() == [0, 1, 2, 3]


def test_c13_a_constant_matrix_is_one_coalition_whatever_is_asked():
    for k in (2, 3, 5, None):
        for affinity in AFFINITIES:
            found = cluster_heads(np.ones((6, 6)), k, affinity)
            assert found.k == 1 and not found.structure


def test_c13_components_are_neither_merged_nor_split_before_their_time():
    pairs = np.kron(np.eye(3), np.ones((2, 2)))
    for k in (2, 3, 4, None):
        found = cluster_heads(pairs, k)
        assert found.labels.tolist() == [0, 0, 1, 1, 2, 2] and found.structure
    assert "not merged" in cluster_heads(pairs, 2).note and "only 3" in cluster_heads(pairs, 4).note
    assert cluster_heads(pairs, 6).k == 6
    loose = np.kron(np.eye(2), np.ones((3, 3)))
    loose[0, 2] = loose[2, 0] = 0.1  # the first triple can be split, the second cannot
    assert cluster_heads(loose, 3).labels.tolist() in ([0, 0, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2])


def test_c13_an_isolated_head_is_its_own_coalition():
    G = np.eye(7)
    G[:3, :3] = G[4:, 4:] = 0.5
    np.fill_diagonal(G, 1)
    for k, affinity in ((3, "positive"), (None, "positive"), (3, "shifted")):
        found = cluster_heads(G, k, affinity)
        assert found.labels.tolist() == [0, 0, 0, 1, 2, 2, 2], (k, affinity)
        assert found.isolated.tolist() == [False] * 3 + [True] + [False] * 3


def test_c13_one_head_and_too_many_coalitions():
    for k in (1, None):
        found = cluster_heads(np.ones((1, 1)), k)
        assert found.k == 1 and not found.structure
    with pytest.raises(ValueError, match="5 coalitions were asked of the 3 heads of layer 2: give 1 to 3"):
        cluster_heads(np.ones((3, 3)), k=5, layer=2)
    with pytest.raises(ValueError, match="0 coalitions"):
        cluster_heads(np.ones((3, 3)), k=0)


@pytest.mark.parametrize(("G", "message"), [(np.ones((2, 3)), r"\(2, 3\)"), (np.triu(np.ones((3, 3))), "not symmetric")])
def test_what_is_no_matrix_of_heads_is_refused(G, message):
    with pytest.raises(ValueError, match=message):
        cluster_heads(G)


def test_unknown_affinity_is_refused():
    with pytest.raises(ValueError, match="'signed' is not one of positive"):
        cluster_heads(np.eye(3), affinity="signed")


# --- against independent oracles ----------------------------------------------------------------------------------


def test_modularity_is_that_of_networkx():
    G, labels = planted_matrix(seed=1, noise=0.3)
    affinity = affinity_matrix(G)
    communities = [set(np.flatnonzero(labels == label).tolist()) for label in range(4)]
    assert modularity(affinity, labels) == pytest.approx(nx.community.modularity(nx.from_numpy_array(affinity), communities))
    assert modularity(np.zeros((3, 3)), np.arange(3)) == 0


def test_adjusted_rand_is_that_of_scikit_learn():
    generator = np.random.default_rng(0)
    others = generator.integers(0, 4, (50, 11))
    for labels in (generator.integers(0, 3, 11), np.zeros(11, dtype=int), np.arange(11)):
        expected = [adjusted_rand_score(labels, other) for other in others]
        assert adjusted_rand(labels, others) == pytest.approx(expected)
    for trivial in (np.zeros(5, dtype=int), np.arange(5), np.zeros(1, dtype=int)):
        assert adjusted_rand(trivial, trivial) == adjusted_rand_score(trivial, trivial) == 1


def test_eigenvalues_are_those_of_networkx_and_components_are_zeros():
    G, _ = planted_matrix(seed=2, noise=0.3, heads=12, blocks=3)
    affinity = affinity_matrix(G)
    expected = np.sort(nx.normalized_laplacian_spectrum(nx.from_numpy_array(affinity)))
    assert laplacian_eigenvalues(affinity) == pytest.approx(expected, abs=1e-10)
    assert HeadSpectrum.of(affinity).eigenvalues == pytest.approx(expected, abs=1e-10)
    two = np.kron(np.eye(2), affinity)
    assert HeadSpectrum.of(two).eigenvalues == pytest.approx(np.sort(np.tile(expected, 2)), abs=1e-10)


def test_a_connected_layer_is_cut_as_scikit_learn_cuts_it():
    G, _ = planted_matrix(seed=4, noise=0.4)
    expected = SpectralClustering(4, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    expected = expected.fit_predict(affinity_matrix(G))
    assert adjusted_rand_score(expected, cluster_heads(G, 4).labels) == 1


# --- results, kv groups -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["token", "mean"])
@pytest.mark.parametrize("coupling", ["paper", "invariant"])
def test_a_result_is_clustered_under_the_coupling_that_it_shows(coupling, gradient):
    planted = np.random.default_rng(0).permutation(np.arange(12) % 3)
    result = planted_result(planted, layers=2, gradient=gradient).view(coupling)
    found = find_coalitions(result)
    assert found.coupling == coupling and [entry.layer for entry in found.layers] == [0, 1]
    assert all(adjusted_rand_score(planted, entry.labels) == 1 for entry in found.layers)
    only = find_coalitions(result, layers=[1])
    assert [entry.layer for entry in only.layers] == [1] and only.of_layer(1).k == 3
    with pytest.raises(ValueError, match="layer 0 was not clustered: layers 1 were"):
        only.of_layer(0)


def test_coalitions_that_are_the_kv_groups_are_said_to_be():
    result = planted_result(np.arange(9) // 3, n_kv_heads=3)
    kv = find_coalitions(result).layers[0].kv
    assert kv.exact and kv.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert kv.sentence == (
        "These three coalitions are the model's three kv groups; the paper's coupling cannot see across them; "
        "the invariant one can."
    )
    assert kv.inside > 100 * kv.between
    invariant = find_coalitions(result.view("invariant")).layers[0].kv
    assert invariant.exact and "cannot" not in invariant.sentence and invariant.noise == 0


def test_coalitions_across_kv_groups_are_said_not_to_be_them():
    kv = find_coalitions(planted_result(np.arange(12) % 3, n_kv_heads=4)).layers[0].kv
    assert not kv.exact and kv.ari < 0.1 and "not the model's kv groups" in kv.sentence


@pytest.mark.parametrize(("n_kv_heads", "word"), [(1, "share one value head"), (12, "a value head of its own")])
def test_where_kv_groups_say_nothing_there_is_no_index(n_kv_heads, word):
    kv = find_coalitions(planted_result(np.arange(12) // 4, n_kv_heads=n_kv_heads)).layers[0].kv
    assert np.isnan(kv.ari) and not kv.exact and word in kv.sentence


def test_gauge_noise_level_is_what_unrelated_heads_show():
    result = planted_result(np.arange(24), strength=0.0, layers=30)
    kv = [entry.kv for entry in find_coalitions(result).layers]
    assert np.mean([one.between for one in kv]) == pytest.approx(np.mean([one.noise for one in kv]), rel=0.05)


def test_clustering_within_kv_groups_never_crosses_them():
    planted = np.array([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1])  # kv groups of 8: half of each in either coalition
    result = planted_result(planted, n_kv_heads=2)
    assert find_coalitions(result).layers[0].k == 2
    within = find_coalitions(result, within_kv=True)
    assert within.layers[0].labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 and within.layers[0].structure
    assert "no finding" in within.layers[0].kv.sentence
    plain = find_coalitions(planted_result(np.arange(16) // 8, n_kv_heads=2), within_kv=True).layers[0]
    assert plain.labels.tolist() == [0] * 8 + [1] * 8 and not plain.structure


def test_golden_coalitions_are_the_kv_groups_under_the_papers_coupling(shared):
    golden = json.loads((shared / "golden" / "smollm2_135m_interaction.json").read_text())
    groups = np.arange(9) // 3
    paper = [cluster_heads(np.array(layer["G"]), 3, layer=layer["layer"]).labels for layer in golden["layers"]]
    assert sum(adjusted_rand_score(groups, labels) == 1 for labels in paper) >= 24
    automatic = [cluster_heads(np.array(layer["G"])) for layer in golden["layers"]]
    assert sum(entry.k == 3 and entry.structure for entry in automatic) >= 24
    invariant = [cluster_heads(np.array(layer["G_invariant"]), 3).labels for layer in golden["layers"]]
    assert sum(adjusted_rand_score(groups, labels) == 1 for labels in invariant) < 20


def test_the_record_holds_everything_by_name(tmp_path):
    result = planted_result(np.arange(9) // 3, n_kv_heads=3, layers=2)
    find_coalitions(result, k=3).save(tmp_path / "c.json")
    record = read_record(tmp_path / "c.json", "coalitions")
    assert record["layers"][1]["coalitions"][2] == ["L1H6", "L1H7", "L1H8"]
    assert record["layers"][0]["kv"]["exact"] is True and record["layers"][0]["gap_p"] is not None
    assert record["provenance"] == result.provenance and record["k"] == 3
    first = (tmp_path / "c.json").read_bytes()
    find_coalitions(result, k=3).save(tmp_path / "c.json")
    assert (tmp_path / "c.json").read_bytes() == first
