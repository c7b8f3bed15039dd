"""The stability strip: bars of the confidences, in the order and the colours of the heatmap."""

import numpy as np
import pytest

from analysis.coalition_style import OKABE_ITO
from analysis.coalitions import find_coalitions
from analysis.stability import bootstrap
from analysis.stability_strip import stability_strip
from tests.planted import planted_result

LABELS = [0, 1, 0, 1, 2, 2, 0, 1]


def test_a_bar_a_head_sorted_by_coalition():
    result = planted_result(LABELS, strength=0.5, noise=1.0)
    entry = bootstrap(result, find_coalitions(result, k=3)).layers[0]
    bars = stability_strip(entry).data[0]
    heads = [int(name.removeprefix("H")) for name in bars.x]
    assert heads == sorted(range(8), key=lambda head: (entry.labels[head], head))
    np.testing.assert_array_equal(bars.y, entry.stability.confidence[heads])
    assert list(bars.marker.color) == [OKABE_ITO[entry.labels[head]] for head in heads]


def test_without_a_bootstrap_it_is_refused():
    result = planted_result(LABELS)
    with pytest.raises(ValueError, match="layer 0 has no stability to show"):
        stability_strip(find_coalitions(result, k=3).layers[0])
