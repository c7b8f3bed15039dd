"""Exports of coalitions: what other programs read back, LaTeX that compiles, the same bytes twice, cases C22 and C23."""

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from PIL import Image

from analysis import cli_coalitions
from analysis.coalition_style import look, looks
from analysis.coalitions import cluster_heads, find_coalitions
from analysis.compare import compare
from analysis.export import LAYER_FORMATS, bundle, gexf, graphml, layer_file
from analysis.head_graph import head_graph, layout
from analysis.latex import escape, tikz
from analysis.stability import bootstrap
from tests.planted import planted_result

AWKWARD = 'my_model#1 50%&[x]\\y {a}$b^c~d <é> "中" |\x07`\''
PLAIN_TYPES = (int, float, bool, str)


@pytest.fixture(scope="module")
def result():
    """Two coalitions across three kv groups, a signed G, and a head (5) without gradient, in layers 0 and 1."""
    made = planted_result([0, 0, 1, 1, 1, 0], layers=2, n_kv_heads=3, strength=0.6, noise=1.0, seed=1, name=AWKWARD)
    for sums in made.gradient_sums.values():
        sums[:, :, 5, :] = sums[:, :, :, 5] = 0
    return made


@pytest.fixture(scope="module")
def coalitions(result):
    return bootstrap(result, find_coalitions(result, k=3))


@pytest.fixture(scope="module")
def graph(result, coalitions):
    return head_graph(result, coalitions.layers[1])


@pytest.fixture
def saved(tmp_path, result):
    result.save(tmp_path / "r.npz")
    return tmp_path / "r.npz"


def export(result, coalitions, file_format, **options):
    return layer_file(result, coalitions.layers[1], file_format, **options)


# --- graphs that other programs read ------------------------------------------------------------------------------


def test_c22_every_attribute_has_one_plain_type(graph):
    for attributes in (graph.nodes.values(), graph.edges.values()):
        types = [{name: type(value) for name, value in data.items()} for data in attributes]
        assert all(one == types[0] for one in types) and set(types[0].values()) <= set(PLAIN_TYPES)
    assert set(map(type, graph.graph.values())) <= set(PLAIN_TYPES)
    assert list(graph) == ["L1H0", "L1H1", "L1H2", "L1H3", "L1H4", "L1H5"] and len(graph.edges) == 15
    weights = nx.get_edge_attributes(graph, "weight")
    assert min(weights.values()) < 0 and weights["L1H0", "L1H5"] == 0.0
    assert graph.nodes["L1H5"]["isolated"] is True


@pytest.mark.parametrize("file_format", ["graphml", "gexf"])
def test_c22_graphs_read_back_the_same(result, coalitions, graph, file_format):
    data = export(result, coalitions, file_format)
    read = {"graphml": nx.read_graphml, "gexf": nx.read_gexf}[file_format](io.BytesIO(data))
    assert list(read) == list(graph) and {frozenset(edge) for edge in read.edges} == {frozenset(edge) for edge in graph.edges}
    for kept, found in ((graph.nodes, read.nodes), (graph.edges, read.edges)):
        for key, attributes in kept.items():
            for name, value in attributes.items():
                assert type(found[key][name]) is type(value), name
                assert found[key][name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value)


def test_gexf_carries_the_figures_colours_and_no_date(result, coalitions):
    data = export(result, coalitions, "gexf")
    nodes = nx.read_gexf(io.BytesIO(data)).nodes
    assert nodes["L1H0"]["viz"]["color"]["r"] == int(look(0).color[1:3], 16)
    assert b"lastmodified" not in data


def test_c22_nan_weights_are_left_out_and_counted(result):
    sums = {name: part.copy() for name, part in result.gradient_sums.items()}
    sums["paper"][0, 0, 2, :] = sums["paper"][0, 0, :, 2] = np.nan
    entry = cluster_heads(np.eye(6))
    made = head_graph(replace(result, gradient_sums=sums), entry)
    assert made.graph["edges_omitted"] == 5 and len(made.edges) == 10
    assert nx.read_graphml(io.BytesIO(graphml(made))).graph["edges_omitted"] == 5
    assert len(nx.read_gexf(io.BytesIO(gexf(made, looks(entry)))).edges) == 10


def test_json_and_edge_list_hold_the_graph(result, coalitions, graph):
    read = nx.node_link_graph(json.loads(export(result, coalitions, "json")), edges="edges")
    assert nx.utils.graphs_equal(read, graph)
    table = pd.read_csv(io.BytesIO(export(result, coalitions, "csv")))
    assert table.columns[:3].tolist() == ["source", "target", "weight"] and len(table) == 15
    assert table.weight.tolist() == [weight for *_, weight in graph.edges(data="weight")]


def test_matrices_keep_sign_and_digits(result, coalitions):
    with np.load(io.BytesIO(export(result, coalitions, "matrix-npz"))) as file:
        assert np.array_equal(file["G"], result.G[1]) and np.array_equal(file["omega"], result.omega[1])
    table = pd.read_csv(io.BytesIO(export(result, coalitions, "matrix-csv")))
    assert np.array_equal(table.G.to_numpy().reshape(6, 6), result.G[1])


def test_the_threshold_is_on_the_absolute_coupling(result, coalitions):
    kept = head_graph(result, coalitions.layers[1], 0.05)
    first, second = np.triu_indices(6, k=1)
    assert len(kept.edges) == (np.abs(result.G[1][first, second]) >= 0.05).sum() > 0


def test_layout_is_finite_and_keeps_heads_apart(graph):
    for one in (graph, head_graph(planted_result(np.zeros(1, int)), cluster_heads(np.ones((1, 1))))):
        places = np.array(list(layout(one).values()))
        assert np.isfinite(places).all()
        distance = np.linalg.norm(places[:, None] - places, axis=-1) + np.eye(len(places))
        assert distance.min() > 0.1


# --- LaTeX --------------------------------------------------------------------------------------------------------


def pdflatex(folder, source: str, name: str = "main") -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-recommended, texlive-pictures)")
    (folder / f"{name}.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", f"{name}.tex"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    assert run.returncode == 0, run.stdout[-2000:]
    assert (folder / f"{name}.pdf").stat().st_size > 5000


def test_c23_tikz_compiles_alone_and_inside_a_paper(tmp_path, result, coalitions):
    graph_source = export(result, coalitions, "tikz").decode()
    pdflatex(tmp_path, graph_source, "graph")
    paper = (
        "\\documentclass{article}\\usepackage{tikz}\\usetikzlibrary{backgrounds,shapes.geometric}\\begin{document}"
        "\\begin{figure}\\input{graph}\\caption{One}\\end{figure}After it.\\input{graph}\\end{document}"
    )
    pdflatex(tmp_path, paper)


def test_c23_every_look_compiles(tmp_path):
    many = planted_result(np.arange(24) // 2, strength=0.9)
    entry = find_coalitions(many, k=12).layers[0]
    pdflatex(tmp_path, tikz(head_graph(many, entry), looks(entry)))


def test_c23_every_special_character_is_escaped(tmp_path):
    signs = "".join(map(chr, range(32, 127))) + "".join(map(chr, range(0xA0, 0x180))) + "中\U0001f600\t\n"
    pdflatex(tmp_path, f"\\documentclass{{article}}\\begin{{document}}{escape(signs)} x\\end{{document}}")


def test_c23_without_latex_the_escapes_still_hold():
    assert escape("a_b%c&d#e$f") == r"a\_b\%c\&d\#e\$f"
    assert escape("\\{}~^") == r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}"
    assert escape("中é") == "[U+4E2D]é"


def test_c23_node_names_are_letters_and_digits(result, coalitions):
    source = export(result, coalitions, "tikz").decode()
    assert "(L1H0){H0" in source and "(L1H0) to (L1H1)" in source


# --- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "points"), [("column", 234), ("page", 486)])
def test_pdf_has_the_columns_width_and_its_fonts(result, coalitions, width, points):
    data = export(result, coalitions, "pdf", width=width)
    box = data[data.index(b"/MediaBox") :][:60].split(b"[")[1].split(b"]")[0].split()
    assert float(box[2]) == points
    assert b"/FontFile2" in data and b"/Type3" not in data and b"/CreationDate" not in data


def test_c23_figures_need_no_browser(result, coalitions, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert ElementTree.fromstring(export(result, coalitions, "svg")).tag.endswith("svg")
    assert Image.open(io.BytesIO(export(result, coalitions, "png"))).width == 975


def test_looks_differ_in_marker_as_well_as_in_colour():
    assert len({look(coalition).marker for coalition in range(8)}) == 8
    assert len({(look(coalition).marker, look(coalition).color) for coalition in range(56)}) == 56


# --- the bundle ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paper_bundle(result, coalitions):
    return bundle(result, replace(coalitions, layers=coalitions.layers[:1]))


def test_the_bundle_is_whole(paper_bundle, result):
    with zipfile.ZipFile(io.BytesIO(paper_bundle)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    figures = [
        f"{what}_{width}.{end}" for what in ("graph", "heatmap") for width in ("column", "page") for end in ("svg", "pdf", "png")
    ]
    tables = ["edges.csv", "heads.csv", "matrices.csv", "matrices.npz"]
    graphs = ["graph.graphml", "graph.gexf", "graph.tex", "graph.json"]
    assert {name for name in files if name.startswith("L0/")} == {f"L0/{name}" for name in figures + tables + graphs}
    assert {"captions.tex", "references.bib", "provenance.json", "coalitions.json"} <= set(files)
    provenance = json.loads(files["provenance.json"])
    assert provenance["measurement"] == result.provenance
    assert provenance["settings"]["k"] == 3 and provenance["settings"]["bootstrap"] == 50
    assert "matplotlib" in provenance["versions"]
    assert all(hashlib.sha256(files[name]).hexdigest() == known for name, known in provenance["sha256"].items())
    assert set(provenance["sha256"]) == set(files) - {"provenance.json"}
    assert "2602.00861" in files["references.bib"].decode() and "\\cite{" in files["captions.tex"].decode()


def test_the_bundle_compiles(tmp_path, paper_bundle):
    with zipfile.ZipFile(io.BytesIO(paper_bundle)) as archive:
        archive.extractall(tmp_path)
    pdflatex(tmp_path, (tmp_path / "preview.tex").read_text())


def test_the_command_writes_the_same_bytes_in_another_process(tmp_path, saved, paper_bundle):
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from test_export import command; command(*sys.argv[1:])"
    arguments = ["export", "--result", saved, "--layer", "0", "--k", "3", "--format", "bundle", "--out", tmp_path / "b.zip"]
    settings = os.environ | {"PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, env=settings, check=True, timeout=300)
    assert (tmp_path / "b.zip").read_bytes() == paper_bundle


def test_a_comparison_joins_the_bundle(result, coalitions):
    changed = replace(result, weight_grams={name: 0.9 * gram for name, gram in result.weight_grams.items()})
    comparison = compare(result, changed, coalitions=coalitions, permutations=99)
    with zipfile.ZipFile(io.BytesIO(bundle(result, replace(coalitions, layers=()), comparison=comparison))) as archive:
        assert {"comparison_page.pdf", "comparison_column.svg", "comparison.json"} <= set(archive.namelist())
        assert "{comparison_column.pdf}" in archive.read("captions.tex").decode()


# --- refusals and the command line --------------------------------------------------------------------------------


def test_refusals(result, coalitions):
    with pytest.raises(ValueError, match=r"layer 1 has \|G\| of at least 0.99; the largest is 0\.\d+"):
        export(result, coalitions, "svg", threshold=0.99)
    with pytest.raises(ValueError, match=r"threshold is 1\.5"):
        export(result, coalitions, "svg", threshold=1.5)
    with pytest.raises(ValueError, match="threshold is nan"):
        export(result, coalitions, "svg", threshold=float("nan"))
    with pytest.raises(ValueError, match="'bmp' is not one of graphml"):
        export(result, coalitions, "bmp")
    with pytest.raises(ValueError, match="'wide' is not one of column, page"):
        export(result, coalitions, "svg", width="wide")


@pytest.mark.parametrize("file_format", LAYER_FORMATS)
def test_a_layer_of_one_head_exports(file_format):
    single = planted_result([0])
    assert layer_file(single, find_coalitions(single).layers[0], file_format)


def command(*arguments) -> None:
    parser = argparse.ArgumentParser()
    cli_coalitions.add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args([str(one) for one in arguments])
    options.func(options)


def test_commands_do_what_the_library_does(tmp_path, saved, result, capsys):
    command(
        "coalitions", "--result", saved, "--layer", 1, "--k", 3, "--affinity", "shifted", "--out", tmp_path / "new" / "c.json"
    )
    expected = bootstrap(result, find_coalitions(result, 3, "shifted", [1]))
    expected.save(tmp_path / "expected.json")
    assert (tmp_path / "new" / "c.json").read_bytes() == (tmp_path / "expected.json").read_bytes()
    assert "layer 1: 3 coalitions, mean ARI" in capsys.readouterr().out
    command("compare", "--before", saved, "--after", saved, "--k", 2, "--permutations", 99, "--out", tmp_path / "d.json")
    assert "No change: over 2 of 2 layers" in capsys.readouterr().out
    command(
        "export", "--result", saved, "--layer", 0, "--format", "graphml", "--coupling", "invariant", "--out", tmp_path / "g.xml"
    )
    assert nx.read_graphml(tmp_path / "g.xml").graph["coupling"] == "invariant"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "7"], "layer 7 is not in this result"),
        (["--layer", "first"], "--layer first is neither all nor layer numbers"),
        (["--layer", "0,1"], "names 2 layers"),
        (["--layer", "0", "--k", "7"], "7 coalitions were asked of the 6 heads of layer 0"),
        (["--layer", "0", "--threshold", "0.99"], "Lower the threshold"),
    ],
)
def test_commands_refuse_clearly(tmp_path, saved, arguments, message):
    with pytest.raises(ValueError, match=message):
        command("export", "--result", saved, "--format", "png", "--out", tmp_path / "x.png", *arguments)
    assert not (tmp_path / "x.png").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, saved):
    for out in (saved / "x.json", tmp_path):
        with pytest.raises(OSError, match=r"cannot be written.*Choose another place"):
            command("coalitions", "--result", "missing.npz", "--out", out)
