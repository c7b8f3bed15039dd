"""Figures for the screen and for papers, and the tables beside them: what they show is what the result holds."""

import hashlib
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest

from analysis import figure_data, figures, paper_figures, tables
from analysis.figure_data import Curve, Panel, head_names
from tests.conftest import ROOT
from tests.synthetic import synthetic_result

SPECIAL = r"my_model#1 50% & [x]\y $a_b$ <b>"


def panel_of(result, layer, title="A  model"):
    return Panel(title, result.G[layer], head_names(layer, result.n_heads), result.n_kv_heads, figure_data.A_COLOR)


@pytest.fixture(scope="module")
def result():
    return synthetic_result(n_layers=5, n_heads=6, n_kv_heads=2)


# --- shared data ----------------------------------------------------------------------------------------------------------


def test_off_diagonal_blanks_the_diagonal_of_a_copy(result):
    before = result.G.copy()
    blanked = figure_data.off_diagonal(result.G)
    assert np.isnan(np.diagonal(blanked, axis1=1, axis2=2)).all()
    assert np.isnan(blanked).sum() == 5 * 6
    np.testing.assert_array_equal(result.G, before)


@pytest.mark.parametrize("scale", [1e-6, 0.004, 0.0999, 0.123456, 0.97, 1.0, 2.0])
def test_the_limit_holds_every_value_and_little_more(scale):
    matrix = np.array([[1.0, -scale], [scale / 2, 1.0]])
    limit = figure_data.symmetric_limit(matrix, np.eye(3))
    assert max(scale, 0.01) <= limit <= max(scale, 0.01) * 1.1
    assert limit == float(f"{limit:.2g}")
    assert limit == figure_data.symmetric_limit(-matrix)


def test_the_limit_of_one_head_is_the_smallest():
    assert figure_data.symmetric_limit(np.ones((4, 1, 1))) == 0.01


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 5), (7, 3), (30, 9), (80, 64)])
def test_tiles_hold_every_matrix_once_and_nothing_else(layers, heads):
    matrices = np.random.default_rng(0).uniform(-1, 1, (layers, heads, heads))
    tiling = figure_data.tile(matrices)
    assert tiling.raster.dtype == np.float32
    for matrix, (row, column) in zip(figure_data.off_diagonal(matrices), tiling.corners, strict=True):
        shown = tiling.raster[row : row + heads, column : column + heads]
        np.testing.assert_allclose(shown, matrix, atol=6e-5)
    assert np.isfinite(tiling.raster).sum() == layers * heads * (heads - 1)


def test_kv_groups_are_outlined_only_where_they_say_something():
    assert figure_data.kv_group_bounds(6, 2) == [(-0.5, 2.5), (2.5, 5.5)]
    assert figure_data.kv_group_bounds(6, 6) == figure_data.kv_group_bounds(6, 1) == []


@pytest.mark.parametrize("heads", [1, 9, 12, 13, 32, 64, 128])
def test_an_axis_has_at_most_twelve_labels(heads):
    ticks = figure_data.tick_positions(heads)
    assert ticks[0] == 0 and ticks[-1] < heads and 1 <= len(ticks) <= 12


# --- the screen -----------------------------------------------------------------------------------------------------------


def test_heatmaps_share_one_scale_that_is_white_at_zero(result):
    figure = figures.layer_heatmaps([panel_of(result, 1), panel_of(result, 2, "B")], 0.4)
    axis = figure.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (-0.4, 0.4)
    positions, colors = zip(*axis.colorscale, strict=True)
    assert colors[positions.index(0.5)] == "#ffffff"
    assert {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    assert list(axis.colorbar.ticktext) == ["-0.4", "-0.2", "0", "0.2", "0.4"]


def test_a_heatmap_shows_G_by_head_name_in_square_cells(result):
    figure = figures.layer_heatmaps([panel_of(result, 3)], 0.5)
    trace = figure.data[0]
    assert list(trace.x) == list(trace.y) == ["L3H0", "L3H1", "L3H2", "L3H3", "L3H4", "L3H5"]
    expected = figure_data.off_diagonal(result.G[3])
    np.testing.assert_allclose(np.asarray(trace.z, dtype=float), expected, atol=1e-6)
    assert figure.layout.yaxis.scaleanchor == "x" and list(figure.layout.yaxis.range) == [5.5, -0.5]
    outlines = [(shape.x0, shape.x1) for shape in figure.layout.shapes]
    assert outlines == [(-0.5, 5.5), (-0.5, 2.5), (2.5, 5.5)], "the matrix and its two kv groups"


def test_gamma_by_layer_keeps_the_checkpoints_colours_and_marks_the_layer(result):
    curves = [Curve(f"A  {SPECIAL}", result.layers, result.gamma, figure_data.A_COLOR)]
    curves.append(Curve("B", result.layers, result.gamma / 2, figure_data.B_COLOR))
    figure = figures.gamma_by_layer(curves, selected=2)
    assert [trace.line.color for trace in figure.data] == [figure_data.A_COLOR, figure_data.B_COLOR]
    np.testing.assert_array_equal(figure.data[0].y, result.gamma)
    assert "<b>" not in figure.data[0].name, "Plotly would read the tag"
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (2, 2)


def test_the_gauge_band_lies_behind_its_curve_and_is_told_on_hover(result):
    low, high = result.gamma - 0.1, result.gamma + 0.2
    curve = Curve("A", result.layers, result.gamma, figure_data.A_COLOR, (low, high))
    band, line = figures.gamma_by_layer([curve]).data
    np.testing.assert_allclose(band.y, [*high, *low[::-1]])
    np.testing.assert_allclose(band.x, [*result.layers, *result.layers[::-1]])
    assert band.fill == "toself" and band.showlegend is False and band.line.color == figure_data.A_COLOR
    np.testing.assert_allclose(line.customdata, np.column_stack([low, high]))
    assert "over value bases" in line.hovertemplate
    assert len(figures.gamma_by_layer([Curve("A", result.layers, result.gamma, "#000000")]).data) == 1
    drawn = paper_figures.gamma_figure([curve]).axes[0].collections[0].get_paths()[0].vertices
    assert drawn[:, 1].min() == pytest.approx(low.min()) and drawn[:, 1].max() == pytest.approx(high.max())


def test_a_tile_tells_its_true_layer():
    result = synthetic_result(n_layers=6)
    layers = np.array([1, 4, 7, 10, 13, 16])  # a hybrid model's attention layers
    figure = figures.all_layers(result.G, layers, result.gamma, 0.5, selected=7)
    markers = figure.data[2]
    np.testing.assert_array_equal(np.asarray(markers.customdata)[:, 0], layers)
    assert list(figure.data[1].text) == ["L1", "L4", "L7", "L10", "L13", "L16"]
    framed = [shape for shape in figure.layout.shapes if shape.line.width and shape.line.width > 2]
    assert len(framed) == 1
    assert framed[0].x0 < markers.x[2] < framed[0].x1 and framed[0].y0 < markers.y[2] < framed[0].y1


@pytest.mark.parametrize(("layers", "heads", "most"), [(32, 32, 400_000), (80, 64, 4_000_000)])
def test_the_raster_of_all_layers_is_light(layers, heads, most):
    """float32 cells in base64 and no text per cell."""
    matrices = np.random.default_rng(0).uniform(-1, 1, (layers, heads, heads))
    figure = figures.all_layers(matrices, np.arange(layers), np.ones(layers), 1.0)
    assert len(figure.to_json()) < most
    assert figure.data[0].text is None and figure.data[0].hovertext is None


def test_one_head_and_one_layer_draw_everywhere():
    result = synthetic_result(n_layers=1, n_heads=1, n_kv_heads=1)
    curve = Curve("A", result.layers, result.gamma, figure_data.A_COLOR)
    panel = panel_of(result, 0)
    json.loads(figures.layer_heatmaps([panel], 0.01).to_json())
    json.loads(figures.all_layers(result.G, result.layers, result.gamma, 0.01).to_json())
    json.loads(figures.gamma_by_layer([curve]).to_json())
    json.loads(figures.spectrum([curve]).to_json())
    for figure in (paper_figures.heatmap_figure([panel], 0.01), paper_figures.all_layers_figure(result.G, result.layers, 0.01)):
        assert paper_figures.figure_bytes(figure, "png").startswith(b"\x89PNG")
    assert tables.pair_table(result).empty


# --- the paper ------------------------------------------------------------------------------------------------------------


def paper_bytes(kind):
    """All four figures of one result as files."""
    result = synthetic_result(n_layers=3, n_heads=4, n_kv_heads=2)
    curves = [Curve(f"A  {SPECIAL}", result.layers, result.gamma, figure_data.A_COLOR)]
    curves.append(Curve("B", result.layers, result.gamma / 2, figure_data.B_COLOR))
    panels = [panel_of(result, 1, f"A  {SPECIAL}"), panel_of(result, 2, "B")]
    drawn = [
        paper_figures.heatmap_figure(panels, 0.5, "G"),
        paper_figures.gamma_figure(curves),
        paper_figures.spectrum_figure(curves),
        paper_figures.all_layers_figure(result.G, result.layers, 0.5),
    ]
    return [paper_figures.figure_bytes(figure, kind) for figure in drawn]


@pytest.mark.parametrize("kind", paper_figures.FORMATS)
def test_paper_figures_are_the_same_bytes_each_time_and_carry_no_date(kind):
    first = paper_bytes(kind)
    assert first == paper_bytes(kind)
    for data in first:
        assert b"CreationDate" not in data and b"<dc:date>" not in data


def test_paper_figures_are_the_same_bytes_in_another_process():
    program = (
        "import hashlib, tests.test_figures as t; "
        "print(hashlib.sha256(b''.join(d for k in t.paper_figures.FORMATS for d in t.paper_bytes(k))).hexdigest())"
    )
    env = os.environ | {"PYTHONHASHSEED": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env, cwd=ROOT)
    here = hashlib.sha256(b"".join(data for kind in paper_figures.FORMATS for data in paper_bytes(kind))).hexdigest()
    assert done.stdout.strip() == here


def test_fonts_are_embedded_as_truetype_and_svg_is_well_formed():
    for data in paper_bytes("pdf"):
        assert data.startswith(b"%PDF") and b"/Type3" not in data and b"/FontFile2" in data
    for data in paper_bytes("svg"):
        assert ElementTree.fromstring(data).tag.endswith("svg")


def test_paper_figures_have_a_journals_width():
    result = synthetic_result()
    assert paper_figures.heatmap_figure([panel_of(result, 0)], 1).get_figwidth() == paper_figures.COLUMN_WIDTH
    assert paper_figures.heatmap_figure([panel_of(result, 0)] * 3, 1).get_figwidth() == paper_figures.PAGE_WIDTH


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(ValueError, match="'gif' is not one of svg, pdf, png"):
        paper_figures.figure_bytes(paper_figures.all_layers_figure(np.eye(2)[None], np.array([0]), 1), "gif")


# --- tables ---------------------------------------------------------------------------------------------------------------


def test_the_pair_table_holds_every_pair_once_by_falling_G(result):
    table = tables.pair_table(result)
    assert len(table) == 5 * 15
    assert (table.G.abs().diff().dropna() <= 0).all()
    for row in table.itertuples():
        i, j = int(row.head_i.split("H")[1]), int(row.head_j.split("H")[1])
        assert i < j and row.head_i.startswith(f"L{row.layer}H")
        for name in ("omega", "rho", "G"):
            assert getattr(row, name) == getattr(result, name)[row.layer, i, j]
        assert row.same_kv_group == (i // 3 == j // 3)


def test_the_pair_table_of_one_layer_goes_by_true_index():
    result = synthetic_result(n_layers=3)
    object.__setattr__(result, "layers", np.array([2, 5, 8]))
    table = tables.pair_table(result, layer=5)
    assert set(table.layer) == {5} and table.head_i.str.startswith("L5H").all()
    assert set(table.G) == set(result.G[1][np.triu_indices(6, 1)])
    with pytest.raises(ValueError, match="layer 4 is not in this result"):
        tables.pair_table(result, layer=4)


def test_the_pair_table_tells_which_pairs_are_inside_the_noise_floor(result):
    floor = np.abs(result.G) + np.where(np.arange(6) % 2, 1e-3, -1e-3)  # pairs with an odd second head are inside
    table = tables.pair_table(result, layer=3, floor=floor)
    assert "noise_floor" not in tables.pair_table(result)
    for row in table.itertuples():
        first, second = int(row.head_i[-1]), int(row.head_j[-1])
        assert row.noise_floor == floor[3, first, second] and row.in_noise == bool(second % 2)
    everything = tables.pair_table(result, floor=np.abs(result.G))
    assert everything["in_noise"].all() and len(everything) == 5 * 15, "a value on the floor is inside it"


def test_a_dead_head_is_flagged_and_its_pairs_are_zero():
    result = synthetic_result()
    for sums in result.gradient_sums.values():
        sums[:, 1, 4, :] = 0
        sums[:, 1, :, 4] = 0
    table = tables.pair_table(result)
    dead = (table.layer == 1) & ((table.head_i == "L1H4") | (table.head_j == "L1H4"))
    assert (table.inactive == dead).all() and (table.G[dead] == 0).all()


def test_downloads_keep_all_digits(result):
    matrices, names = {"A": result.G[2], "B_minus_A": result.G[3] - result.G[2]}, head_names(2, 6)
    csv = pd.read_csv(io.BytesIO(tables.matrices_csv(matrices, names)))
    np.testing.assert_array_equal(csv.A.to_numpy().reshape(6, 6), matrices["A"])
    assert list(csv.iloc[7][["head_i", "head_j"]]) == ["L2H1", "L2H1"]
    data = tables.matrices_npz(matrices, names, {"A": result.provenance})
    assert data == tables.matrices_npz(matrices, names, {"A": result.provenance})
    with np.load(io.BytesIO(data)) as stored:
        np.testing.assert_array_equal(stored["B_minus_A"], matrices["B_minus_A"])
        assert json.loads(str(stored["provenance"]))["A"] == result.provenance
