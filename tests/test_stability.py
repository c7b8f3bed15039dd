"""Bootstrap of coalitions over batches: exact counts by hand, certainty and doubt where they belong, clear refusals."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.coalitions import find_coalitions
from analysis.records import read_record
from analysis.stability import bootstrap, stability_of
from tests.planted import planted_result

LABELS = np.arange(9) // 3


@pytest.mark.parametrize("gradient", ["token", "mean"])
@pytest.mark.parametrize("coupling", ["paper", "invariant"])
def test_clear_coalitions_are_certain(coupling, gradient):
    result = planted_result(LABELS, layers=2, gradient=gradient).view(coupling)
    for entry in bootstrap(result, find_coalitions(result, k=3)).layers:
        assert entry.stability.mean_ari == 1
        assert (entry.stability.confidence == 1).all()
        assert np.array_equal(entry.stability.coassignment, (LABELS[:, None] == LABELS).astype(float))


def hesitating():
    """Head 0 takes the side of the one coalition in half of the batches, of the other in the rest; all share their weights."""
    sides = [planted_result([side, 0, 0, 0, 1, 1, 1, 1], seed=1, batches=12) for side in (0, 1)]
    even = (np.arange(12) % 2)[:, None, None, None]
    sums = np.where(even, *(side.gradient_sums["paper"] for side in sides))
    weights = np.full((1, 8, 8), 0.9, dtype=np.float32)
    weights[:, range(8), range(8)] = 1
    return replace(sides[0], weight_grams={"paper": weights}, gradient_sums={"paper": sums})


def test_a_head_between_two_coalitions_is_the_uncertain_one():
    result = hesitating()
    stability = bootstrap(result, find_coalitions(result, k=2)).layers[0].stability
    assert 0.3 < stability.confidence[0] < 0.95 and (stability.confidence[1:] == 1).all()
    assert stability.mean_ari < 1
    assert 0.05 < stability.coassignment[0, 1] < 0.95
    assert stability.coassignment[0, 1] + stability.coassignment[0, 5] == pytest.approx(1)
    assert np.array_equal(stability.coassignment, stability.coassignment.T)


def test_counts_by_hand():
    resampled = np.array([[0, 0, 1, 1], [0, 1, 2, 2], [0, 0, 0, 1], [1, 1, 0, 0]])
    stability = stability_of([0, 0, 1, 1], resampled, batches=5)
    assert stability.coassignment[0].tolist() == [1, 0.75, 0.25, 0]
    assert stability.coassignment[2].tolist() == [0.25, 0.25, 1, 0.75]
    # the third resample keeps 0, 1 and 3; the second keeps one of 0 and 1, the lower; names of coalitions do not matter
    assert stability.confidence.tolist() == [1, 0.75, 0.75, 1]
    assert stability.resamples == 4 and stability.batches == 5


def test_same_seed_same_resamples():
    result = hesitating()
    found = find_coalitions(result, k=2)
    first, second, third = (bootstrap(result, found, seed=seed).layers[0].stability for seed in (0, 0, 1))
    assert np.array_equal(first.coassignment, second.coassignment)
    assert not np.array_equal(first.coassignment, third.coassignment)


def test_identical_batches_leave_no_doubt():
    result = planted_result(LABELS, batches=1, noise=2.0, strength=0.3)
    result = replace(
        result,
        gradient_sums={name: np.repeat(sums, 6, axis=0) for name, sums in result.gradient_sums.items()},
        batch_tokens=np.full(6, 255),
        batch_loss=np.full(6, 700.0),
    )
    assert bootstrap(result, find_coalitions(result, k=3)).layers[0].stability.mean_ari == 1


def test_a_layer_without_structure_is_not_judged_unless_a_number_was_asked_for():
    result = planted_result(np.arange(12), strength=0.0)
    assert bootstrap(result, find_coalitions(result)).layers[0].stability is None
    judged = bootstrap(result, find_coalitions(result, k=3)).layers[0].stability
    assert judged.mean_ari < 0.9


def test_resampled_within_kv_groups_stays_within_them():
    result = planted_result(np.arange(12) // 6, n_kv_heads=4, noise=1.0)
    found = bootstrap(result, find_coalitions(result, k=6, within_kv=True)).layers[0]
    across = np.not_equal.outer(found.kv.groups, found.kv.groups)
    assert not found.stability.coassignment[across].any()


def test_refusals():
    result = planted_result(LABELS)
    with pytest.raises(ValueError, match=r"49 resamples are too few.*at least 50"):
        bootstrap(result, find_coalitions(result), resamples=49)
    single = planted_result(LABELS, batches=1)
    with pytest.raises(ValueError, match="holds one batch"):
        bootstrap(single, find_coalitions(single))


def test_the_record_holds_stability(tmp_path):
    result = planted_result(LABELS)
    bootstrap(result, find_coalitions(result)).save(tmp_path / "c.json")
    stability = read_record(tmp_path / "c.json", "coalitions")["layers"][0]["stability"]
    assert stability["resamples"] == 50 and len(stability["coassignment"]) == 9 and stability["confidence"] == [1] * 9
