"""Figures of coalitions: what is drawn is what was computed, in the right order, and nothing breaks at the edges."""

import numpy as np
import pytest

from analysis import coalition_figures, coalition_paper
from analysis.coalition_style import POSITIVE_COLOR, block_bounds, block_order, look, looks
from analysis.coalitions import cluster_heads, find_coalitions
from analysis.compare import compare
from analysis.head_graph import head_graph
from analysis.paper_figures import figure_bytes
from analysis.stability import bootstrap
from tests.planted import planted_result

PLANTED = np.arange(12) % 3


@pytest.fixture(scope="module")
def result():
    return planted_result(PLANTED, layers=2, n_kv_heads=4, noise=1.0, strength=0.5)


@pytest.fixture(scope="module")
def entry(result):
    return bootstrap(result, find_coalitions(result, k=3)).layers[1]


def test_blocks_of_a_reordered_heatmap():
    labels = np.array([0, 1, 0, 2, 1])
    assert block_order(labels).tolist() == [0, 2, 1, 4, 3]
    assert block_bounds(labels) == [(-0.5, 1.5), (1.5, 3.5), (3.5, 4.5)]


def test_heatmap_shows_g_by_coalition_with_kv_groups(result, entry):
    figure = coalition_figures.reordered_heatmap(result.G[1], entry, 0.5, entry.kv.groups)
    heat, strip, kv = figure.data
    order = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    drawn = np.array(heat.z)
    assert np.isnan(drawn.diagonal()).all()
    assert np.nan_to_num(drawn) == pytest.approx(
        np.nan_to_num(np.where(np.eye(12), 0, result.G[1][np.ix_(order, order)])), abs=1e-6
    )
    assert [(box.x0, box.x1) for box in figure.layout.shapes] == [(-0.5, 3.5), (3.5, 7.5), (7.5, 11.5)]
    assert list(kv.text) == [str(head // 3) for head in order]
    assert list(strip.marker.symbol) == [look(label).symbol for label in np.repeat([0, 1, 2], 4)]
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-0.5, 0.5)


def test_graph_draws_each_edge_once_with_its_sign(result, entry):
    for threshold in (0.0, 0.05):
        graph = head_graph(result, entry, threshold)
        lines = [trace for trace in coalition_figures.coalition_graph(graph, looks(entry)).data if trace.mode == "lines"]
        positive = sum(len(trace.x) // 3 for trace in lines if trace.line.color == POSITIVE_COLOR)
        assert positive == sum(weight >= 0 for *_, weight in graph.edges(data="weight"))
        assert sum(len(trace.x) // 3 for trace in lines) == len(graph.edges)
        assert all(trace.line.dash == "dash" for trace in lines if trace.line.color != POSITIVE_COLOR)


def test_graph_without_an_edge_still_shows_the_heads(result, entry):
    figure = coalition_figures.coalition_graph(head_graph(result, entry, 1.0), looks(entry))
    assert len(figure.data) == 1 and len(figure.data[0].x) == 12


def test_isolated_heads_are_hollow():
    entry = cluster_heads(np.eye(4))
    assert all(one.hollow for one in looks(entry))


def test_eigenvalue_chart_marks_the_chosen_gap(entry):
    figure = coalition_figures.eigenvalue_chart(entry)
    (gap,) = figure.layout.shapes
    assert (gap.x0, gap.y0, gap.y1) == (3.5, entry.eigenvalues[2], entry.eigenvalues[3])
    assert "gap after 3" in figure.layout.annotations[0].text
    assert not coalition_figures.eigenvalue_chart(cluster_heads(np.eye(3))).layout.shapes


def test_coassignment_is_in_the_heatmaps_order(entry):
    figure = coalition_figures.coassignment(entry)
    order = block_order(entry.labels)
    assert np.array(figure.data[0].z) == pytest.approx(entry.stability.coassignment[np.ix_(order, order)])
    assert list(figure.data[1].x) == entry.stability.confidence[order].tolist()
    with pytest.raises(ValueError, match="layer 0 has no stability"):
        coalition_figures.coassignment(cluster_heads(np.eye(3)))


def test_flow_follows_every_head_to_its_coalition(result):
    one, two, three = (cluster_heads(planted_result(labels).G[0], 3) for labels in (PLANTED, np.arange(12) // 4, PLANTED))
    sankey = coalition_figures.flow([("A", one), ("B", two), ("C", three)]).data[0]
    links = list(zip(sankey.link.source, sankey.link.target, sankey.link.value, strict=True))
    assert sum(value for *_, value in links) == 24
    assert (0, 3, 2) in links  # heads 0 and 3 of coalition 0 = {0, 3, 6, 9} go to {0, 1, 2, 3}
    assert len(sankey.node.color) == 9 and max(sankey.link.target) == 8
    assert coalition_figures.flow([("A", one)]).data[0].link.value == ()


def test_comparison_chart_has_both_checkpoints_and_stars():
    before, after = (planted_result(PLANTED, layers=2, strength=one) for one in (0.4, 0.6))
    comparison = compare(before, after, k=3, permutations=99)
    figure = coalition_figures.comparison_chart(comparison, "<base>", "tuned", selected=1)
    inside_before, inside_after, _, between_after = figure.data
    assert inside_before.name == "&lt;base&gt;" and list(inside_after.marker.symbol) == ["star", "star"]
    assert list(inside_after.y) == [entry.inside.after for entry in comparison.layers]
    assert list(between_after.error_y.array) == [entry.between.high - entry.between.change for entry in comparison.layers]


@pytest.mark.parametrize("heads", [1, 2, 64])
def test_figures_hold_at_the_edges(heads):
    result = planted_result(np.arange(heads) // 3, strength=0.9)
    entry = find_coalitions(result, affinity="absolute").layers[0]
    graph, shown = head_graph(result, entry), looks(entry)
    coalition_figures.coalition_graph(graph, shown)
    coalition_figures.reordered_heatmap(result.G[0], entry, 0.1)
    coalition_figures.eigenvalue_chart(entry)
    for figure in (
        coalition_paper.graph_figure(graph, shown),
        coalition_paper.reordered_heatmap_figure(result.G[0], entry.labels, shown),
    ):
        assert len(figure_bytes(figure, "svg")) > 1000


def test_paper_comparison_names_checkpoints_verbatim():
    before, after = (planted_result(PLANTED, layers=2, strength=one) for one in (0.4, 0.6))
    comparison = compare(before, after, k=3, permutations=99)
    figure = coalition_paper.comparison_figure(comparison, "a_$b$", "50%")
    assert len(figure_bytes(figure, "pdf")) > 1000
    single = compare(planted_result(PLANTED, batches=1), planted_result(PLANTED, batches=1), k=3, permutations=99)
    assert len(figure_bytes(coalition_paper.comparison_figure(single), "png")) > 1000
