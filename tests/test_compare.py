"""Comparison of checkpoints: the three verdicts on planted changes, a calibrated p, Holm, intervals, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.coalitions import find_coalitions
from analysis.compare import compare, verdict_of
from analysis.records import read_record
from analysis.selectivity import Change, SelectivityTest, holm, permutation_p, selectivities
from tests.planted import planted_result

LABELS = np.arange(12) // 4


def planted(**options):
    return planted_result(LABELS, **{"layers": 3, "n_kv_heads": 6, **options})


def random_changes(draws: int, heads: int, seed: int) -> np.ndarray:
    change = np.random.default_rng(seed).normal(size=(draws, heads, heads))
    return change + change.transpose(0, 2, 1)


# --- verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["token", "mean"])
@pytest.mark.parametrize("coupling", ["paper", "invariant"])
def test_inside_up_is_selective(coupling, gradient):
    before, after = (planted(strength=one, gradient=gradient).view(coupling) for one in (0.4, 0.6))
    found = compare(before, after, k=3)
    assert found.verdict == "selective" and found.coupling == coupling
    assert all(entry.verdict == "selective" and entry.p_holm < 0.05 for entry in found.layers)
    assert found.overall.inside.low > 0 and found.overall.selectivity > 0.05
    assert found.sentence.startswith("Selective: over 3 of 3 layers, mean coupling inside coalitions rises (")


def test_both_down_is_uniform_decorrelation():
    found = compare(planted(strength=0.4, common=0.4), planted(strength=0.3, common=0.2), k=3)
    assert found.verdict == "uniform decorrelation"
    assert found.overall.inside.high < 0 and found.overall.between.high < 0 and found.overall.p > 0.5


def test_the_same_checkpoint_is_no_change():
    result = planted(noise=1.0)
    found = compare(result, result)
    assert found.verdict == "no change" and found.overall.p == 1 and found.overall.selectivity == 0
    assert all(entry.verdict == "no change" for entry in found.layers)


def test_inside_down_alone_is_neither_of_the_three():
    found = compare(planted(strength=0.6), planted(strength=0.4), k=3)
    assert found.verdict == "other change" and "inside coalitions falls" in found.sentence


def test_verdicts_follow_their_numbers():
    up, down, flat = Change(0.1, 0.2, 0.05, 0.15), Change(0.2, 0.1, -0.15, -0.05), Change(0.1, 0.12, -0.01, 0.05)
    table = [
        (up, down, 0.01, "selective"),
        (up, flat, 0.01, "selective"),
        (up, down, 0.06, "other change"),
        (up, up, 0.01, "other change"),
        (down, down, 0.5, "uniform decorrelation"),
        (down, down, 0.01, "other change"),
        (flat, flat, 0.5, "no change"),
        (flat, flat, float("nan"), "not tested"),
    ]
    assert [verdict_of(*row[:3]) for row in table] == [row[3] for row in table]


def test_layers_without_two_coalitions_are_not_tested():
    alone = planted_result(np.arange(12), strength=0.0, layers=2)
    found = compare(alone, alone)
    assert found.verdict == "not tested" and not found.tested and np.isnan(found.overall.p)
    assert "Ask for a number of coalitions" in found.sentence


def test_coalitions_are_those_of_the_chosen_checkpoint():
    before, after = planted_result(np.arange(12) % 3), planted_result(LABELS)
    assert compare(before, after, "before", k=3).layers[0].labels.tolist() == (np.arange(12) % 3).tolist()
    found = compare(before, after, "after", k=3)
    assert found.layers[0].labels.tolist() == LABELS.tolist() and found.coalitions_from == "after"
    given = find_coalitions(after, k=3)
    assert compare(before, after, "after", coalitions=given).overall.p == found.overall.p


def test_absolute_coalitions_are_measured_in_absolute_coupling():
    signs = np.where(np.arange(12) % 2, -1, 1)
    result = planted(strength=0.6)
    flipped = {name: gram * np.outer(signs, signs).astype(np.float32) for name, gram in result.weight_grams.items()}
    result = replace(result, weight_grams=flipped)
    found = compare(result, result, k=3, affinity="absolute")
    assert found.strength == "|G|" and found.layers[0].inside.before == pytest.approx(0.36, abs=0.05)
    assert found.layers[0].labels.tolist() == LABELS.tolist()


# --- permutation p ------------------------------------------------------------------------------------------------


def test_selectivity_is_the_difference_of_means_for_every_order():
    change = random_changes(3, 7, seed=0)
    labels = np.array([[0, 1, 0, 2, 1, 0, 0], [0, 0, 1, 1, 1, 2, 3], [0, 1, 0, 2, 1, 0, 0]])
    orders = np.random.default_rng(1).permuted(np.tile(np.arange(7)[:, None], 20), axis=0)
    found = selectivities(change, labels, orders)
    for row, column in np.ndindex(3, 20):
        coalition = dict(zip(orders[:, column].tolist(), labels[row].tolist(), strict=True))
        pairs = [(i, j) for i in range(7) for j in range(i)]
        inside = [change[row, i, j] for i, j in pairs if coalition[i] == coalition[j]]
        between = [change[row, i, j] for i, j in pairs if coalition[i] != coalition[j]]
        assert found[row, column] == pytest.approx(np.mean(inside) - np.mean(between))


@pytest.mark.parametrize("n_kv_heads", [None, 2])
def test_p_is_calibrated_on_permuted_labels(n_kv_heads):
    labels = np.random.default_rng(2).permuted(np.tile(np.arange(16) // 4, (1000, 1)), axis=1)
    test = SelectivityTest(random_changes(1000, 16, seed=3), labels, 999, seed=4, n_kv_heads=n_kv_heads)
    assert 0.03 <= np.mean([test.p([row]) < 0.05 for row in range(1000)]) <= 0.07


def test_p_over_layers_is_calibrated_and_gains_power():
    labels = np.tile(np.arange(12) // 4, (4, 1))
    same = labels[0][:, None] == labels[0]
    null = [SelectivityTest(random_changes(4, 12, seed), labels, 199, seed=0).p(range(4)) for seed in range(300)]
    assert 0.02 <= np.mean(np.array(null) < 0.05) <= 0.09
    test = SelectivityTest(random_changes(4, 12, seed=5) + 0.5 * same, labels, 999, seed=0)
    assert test.p(range(4)) < min(test.p([row]) for row in range(4)) + 0.01
    assert test.p(range(4)) < 0.01


def test_within_kv_groups_the_groups_themselves_cannot_be_selective():
    same = (LABELS[:, None] == LABELS).astype(float)
    change = (same + 0.01 * random_changes(1, 12, seed=0)[0])[None]
    over_heads, within = (SelectivityTest(change, LABELS[None], 199, 0, n_kv_heads=n) for n in (None, 3))
    assert over_heads.p([0]) == 1 / 200 and within.p([0]) == 1


def test_within_kv_groups_heads_never_leave_them():
    labels = np.arange(8) % 2  # half of each kv group of four
    change = np.zeros((1, 8, 8))
    change[0, :4, :4] = -1  # a change of one kv group as a whole is no selectivity within kv groups
    over_heads, within = (SelectivityTest(change, labels[None], 199, 0, n_kv_heads=n).p([0]) for n in (None, 2))
    assert over_heads < 0.7 and within == 1


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, np.nan])[:3].tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert np.isnan(holm([0.01, np.nan])[1]) and holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([np.nan]).shape == (1,) and holm([]).shape == (0,)


def test_a_layer_alone_is_judged_by_its_adjusted_p():
    """Eight heads in two coalitions have 35 partitions, so that p is about 0.03 at best, and 0.09 over three layers."""
    before, after = (planted_result(np.arange(8) // 4, layers=3, strength=one) for one in (0.4, 0.6))
    found = compare(before, after, k=2)
    assert all(entry.p < 0.05 < entry.p_holm and entry.verdict == "other change" for entry in found.layers)
    assert found.verdict == "selective" and "0 of the 3 layers stand alone" in found.sentence


def test_ties_count_against_the_observed():
    assert permutation_p(1.0, np.array([1.0 - 1e-15, 0.0, 0.0])) == 0.5


# --- intervals ----------------------------------------------------------------------------------------------------


def test_intervals_cover_no_change_as_often_as_they_say():
    covered = []
    for seed in range(80):
        before, after = (planted(layers=1, noise=1.0, seed=2 * seed + one) for one in (0, 1))
        after = replace(after, weight_grams=before.weight_grams)
        inside = compare(before, after, k=3, permutations=99).overall.inside
        covered.append(inside.low <= 0 <= inside.high)
    assert 0.86 <= np.mean(covered) <= 1


def test_intervals_of_different_texts_are_wider_and_it_is_said():
    before = planted(noise=1.0)
    after = replace(before, provenance=before.provenance | {"text": {"source": "another"}})
    paired, unpaired = compare(before, before), compare(before, after)
    assert paired.overall.inside.low == paired.overall.inside.high == 0
    assert unpaired.overall.inside.low < 0 < unpaired.overall.inside.high
    assert not unpaired.same_text and "different texts" in unpaired.sentence


def test_many_batches_are_left_out_in_groups():
    before, after = planted(batches=50, strength=0.4, layers=1), planted(batches=50, strength=0.6, layers=1)
    assert compare(before, after, k=3).verdict == "selective"


def test_one_batch_has_no_interval(tmp_path):
    before, after = planted(batches=1, strength=0.4), planted(batches=1, strength=0.6)
    found = compare(before, after, k=3)
    assert np.isnan(found.overall.inside.low) and found.verdict == "selective" and "no interval" in found.sentence
    found.save(tmp_path / "c.json")
    assert read_record(tmp_path / "c.json", "comparison")["overall"]["inside"]["low"] is None


# --- input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (planted_result(np.arange(9) // 3, layers=3, n_kv_heads=3), r"n_heads \(12 and 9\), n_kv_heads \(6 and 3\)"),
        (planted(n_kv_heads=3), r"n_kv_heads \(6 and 3\)"),
        (planted(layers=2), r"layers \(\[0, 1, 2\] and \[0, 1\]\)"),
        (planted(gradient="mean"), r"gradient \(token and mean\)"),
    ],
)
def test_what_differs_is_said(other, message):
    with pytest.raises(ValueError, match=message):
        compare(planted(), other)


def test_another_architecture_is_refused():
    other = planted()
    model = other.provenance["model"] | {"architecture": "GPT2LMHeadModel"}
    with pytest.raises(ValueError, match=r"differ in architecture \(Planted and GPT2LMHeadModel\)"):
        compare(planted(), replace(other, provenance=other.provenance | {"model": model}))


def test_a_coupling_that_was_not_measured_is_refused():
    after = planted()
    only = {"weight_grams": {"paper": after.weight_grams["paper"]}, "gradient_sums": {"paper": after.gradient_sums["paper"]}}
    with pytest.raises(ValueError, match="not 'invariant'"):
        compare(planted().view("invariant"), replace(after, **only))


def test_refused_options():
    with pytest.raises(ValueError, match="98 permutations are too few"):
        compare(planted(), planted(), permutations=98)
    with pytest.raises(ValueError, match="not of all the layers"):
        compare(planted(), planted(), coalitions=find_coalitions(planted(), layers=[1]))
    with pytest.raises(ValueError, match="not from 'both'"):
        compare(planted(), planted(), coalitions_from="both")


def test_the_record_is_whole_and_the_same_twice(tmp_path):
    before, after = planted(strength=0.4), planted(strength=0.6)
    for name in ("one", "two"):
        compare(before, after, k=3).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    record = read_record(tmp_path / "one", "comparison")
    assert record["verdict"] == "selective" and record["layers"][2]["coalitions"][0] == ["L2H0", "L2H1", "L2H2", "L2H3"]
    assert record["overall"]["selectivity"] == pytest.approx(
        record["overall"]["inside"]["change"] - record["overall"]["between"]["change"]
    )
    assert set(record["provenance"]) == {"before", "after"}
