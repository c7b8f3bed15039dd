"""Coalitions as files for papers and other programs: one format of one layer, or the paper bundle of several.

No browser, no network; the same input gives the same bytes. Nothing here chooses or computes: graph, coalitions and figures
come from head_graph, coalitions, coalition_paper and latex.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import re
from collections.abc import Sequence

import networkx as nx
import numpy as np
import pandas as pd

from analysis.archives import zip_bytes
from analysis.coalition_paper import WIDTHS, comparison_figure, graph_figure, reordered_heatmap_figure
from analysis.coalition_style import Look, looks
from analysis.coalitions import Coalitions, LayerCoalitions
from analysis.compare import Comparison
from analysis.figure_data import head_names
from analysis.head_graph import head_graph, kv_groups_matter, layout
from analysis.heads import kv_groups
from analysis.latex import BIBTEX, BIBTEX_KEY, caption, escape, figure_environment, tikz
from analysis.paper_figures import FORMATS as FIGURE_FORMATS
from analysis.paper_figures import figure_bytes
from analysis.progress import track
from analysis.records import plain
from analysis.results import InteractionResult
from analysis.tables import matrices_csv, matrices_npz

# of one layer -> the ending of its file
LAYER_FORMATS = {
    "graphml": ".graphml",
    "gexf": ".gexf",
    "tikz": ".tex",
    "svg": ".svg",
    "pdf": ".pdf",
    "png": ".png",
    "json": ".json",
    "csv": ".csv",
    "matrix-csv": ".csv",
    "matrix-npz": ".npz",
}
_PACKAGES = ("numpy", "scipy", "scikit-learn", "networkx", "matplotlib")


def layer_file(
    result: InteractionResult, entry: LayerCoalitions, file_format: str, threshold: float = 0.0, width: str = "column"
) -> bytes:
    """One layer in one of `LAYER_FORMATS`: its coalition graph, or its G, omega and rho.

    Parameters
    ----------
    threshold : pairs below this |G| get no edge.
    width : of svg, pdf and png, of `WIDTHS`.

    Raises
    ------
    ValueError
        For an unknown format or width, and for a threshold that leaves no edge (says the largest |G|).
    """
    if file_format not in LAYER_FORMATS:
        raise ValueError(f"the format {file_format!r} is not one of {', '.join(LAYER_FORMATS)}.")
    if width not in WIDTHS:
        raise ValueError(f"the width {width!r} is not one of {', '.join(WIDTHS)}.")
    if file_format in ("matrix-csv", "matrix-npz"):
        return _matrices(result, entry.layer, file_format)
    graph, shown = exported_graph(result, entry, threshold), looks(entry)
    if file_format in FIGURE_FORMATS:
        return figure_bytes(graph_figure(graph, shown, WIDTHS[width]), file_format)
    if file_format in ("gexf", "tikz"):
        return gexf(graph, shown) if file_format == "gexf" else tikz(graph, shown).encode()
    return {"graphml": graphml, "json": node_link_json, "csv": edge_list}[file_format](graph)


def exported_graph(result: InteractionResult, entry: LayerCoalitions, threshold: float) -> nx.Graph:
    """The graph of a layer; refuses a threshold that leaves no edge."""
    graph = head_graph(result, entry, threshold)
    if not graph.edges and len(graph) > 1:
        off = np.abs(result.G[result.row_of(entry.layer)][np.triu_indices(len(graph), k=1)])
        raise ValueError(
            f"no pair of heads in layer {entry.layer} has |G| of at least {threshold:g}; the largest is {np.nanmax(off):.3g}. "
            "Lower the threshold."
        )
    return graph


# --- one writer a format ------------------------------------------------------------------------------------------


def graphml(graph: nx.Graph) -> bytes:
    """GraphML; each attribute has one type."""
    buffer = io.BytesIO()
    nx.readwrite.graphml.write_graphml_xml(graph, buffer)
    return buffer.getvalue()


def gexf(graph: nx.Graph, looks: Sequence[Look]) -> bytes:
    """GEXF 1.2 with the colours and positions of the figures, for Gephi; without the date that networkx writes.

    `looks` is one a node, in the graph's order.
    """
    shown = graph.copy()
    for (node, (x, y)), one in zip(layout(graph).items(), looks, strict=True):
        red, green, blue = (int(one.color[start : start + 2], 16) for start in (1, 3, 5))
        color = {"r": red, "g": green, "b": blue, "a": 1.0}
        shown.nodes[node]["viz"] = {"color": color, "position": {"x": 100 * x, "y": 100 * y, "z": 0.0}}
    buffer = io.BytesIO()
    nx.write_gexf(shown, buffer)
    return re.sub(rb' lastmodifieddate="[^"]*"', b"", buffer.getvalue(), count=1)


def node_link_json(graph: nx.Graph) -> bytes:
    """networkx's node-link JSON."""
    return _json(nx.node_link_data(graph, edges="edges"))


def edge_list(graph: nx.Graph) -> bytes:
    """A CSV row an edge, for Gephi's and pandas' readers: source, target, then the edge's attributes."""
    return _csv(pd.DataFrame([{"source": one, "target": other} | data for one, other, data in graph.edges(data=True)]))


def head_list(graph: nx.Graph) -> bytes:
    """A CSV row a head, with its attributes."""
    return _csv(pd.DataFrame([{"name": node} | data for node, data in graph.nodes(data=True)]))


def _matrices(result: InteractionResult, layer: int, file_format: str) -> bytes:
    names, row = head_names(layer, result.n_heads), result.row_of(layer)
    matrices = {name: getattr(result, name)[row] for name in ("G", "omega", "rho")}
    return matrices_csv(matrices, names) if file_format == "matrix-csv" else matrices_npz(matrices, names, result.provenance)


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode()


def _json(value) -> bytes:
    return (json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


# --- the paper bundle ---------------------------------------------------------------------------------------------


def bundle(
    result: InteractionResult,
    coalitions: Coalitions,
    threshold: float = 0.0,
    comparison: Comparison | None = None,
    shown: bool = False,
) -> bytes:
    """One zip with everything about the layers of `coalitions`: graphs, matrices, figures at both widths, captions, provenance.

    Parameters
    ----------
    coalitions : of the layers to include, with their stability if there is to be a word on it.
    comparison : adds its chart and its table.
    shown : draw a progress bar.

    Raises
    ------
    ValueError
        For a threshold that leaves a layer without an edge.
    """
    files: dict[str, bytes] = {}
    captions = [_CAPTIONS_HEAD]
    for entry in track(coalitions.layers, "writing the layers", len(coalitions.layers), "layer", shown=shown):
        folder = f"L{entry.layer}"
        files |= {f"{folder}/{name}": data for name, data in _layer_files(result, entry, threshold).items()}
        title = exported_graph(result, entry, threshold).name
        images = [f"{folder}/graph_column.pdf", f"{folder}/heatmap_column.pdf"]
        text = caption(title, entry, coalitions.affinity, threshold)
        captions.append(figure_environment(images, text, f"fig:coalitions-{folder}"))
    if comparison is not None:
        figures = {width: comparison_figure(comparison, width=inches) for width, inches in WIDTHS.items()}
        files |= {f"comparison_{width}.{end}": figure_bytes(one, end) for width, one in figures.items() for end in FIGURE_FORMATS}
        files["comparison.json"] = _json(comparison.record())
        text = f"{escape(comparison.sentence)}~\\cite{{{BIBTEX_KEY}}}."
        captions.append(figure_environment(["comparison_column.pdf"], text, "fig:coalitions-comparison"))
    files["captions.tex"] = "\n".join(captions).encode()
    files["references.bib"] = BIBTEX.encode()
    files["preview.tex"] = _PREVIEW.encode()
    files["coalitions.json"] = _json(coalitions.record())
    files["provenance.json"] = _json(_provenance(result, coalitions, threshold, files))
    return zip_bytes(files)


_CAPTIONS_HEAD = r"""% \input this file, or copy a figure from it. For page width take the *_page files and figure*.
% Needs \usepackage{graphicx} and references.bib; preview.tex compiles as it is.
"""
_PREVIEW = r"""\documentclass[twocolumn]{article}
\usepackage{graphicx}
\begin{document}
\input{captions}
\clearpage
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""


def _layer_files(result: InteractionResult, entry: LayerCoalitions, threshold: float) -> dict[str, bytes]:
    graph, shown, row = exported_graph(result, entry, threshold), looks(entry), result.row_of(entry.layer)
    files = {
        "graph.graphml": graphml(graph),
        "graph.gexf": gexf(graph, shown),
        "graph.tex": tikz(graph, shown).encode(),
        "graph.json": node_link_json(graph),
        "edges.csv": edge_list(graph),
        "heads.csv": head_list(graph),
        "matrices.csv": _matrices(result, entry.layer, "matrix-csv"),
        "matrices.npz": _matrices(result, entry.layer, "matrix-npz"),
    }
    groups = kv_groups(result.n_heads, result.n_kv_heads) if kv_groups_matter(graph) else None
    for width, inches in WIDTHS.items():
        figures = {
            "graph": graph_figure(graph, shown, inches),
            "heatmap": reordered_heatmap_figure(result.G[row], entry.labels, shown, groups, inches),
        }
        for name, figure in figures.items():
            files |= {f"{name}_{width}.{end}": figure_bytes(figure, end) for end in FIGURE_FORMATS}
    return files


def _provenance(result: InteractionResult, coalitions: Coalitions, threshold: float, files: dict[str, bytes]) -> dict:
    stability = next((entry.stability for entry in coalitions.layers if entry.stability), None)
    settings = {
        "layers": [entry.layer for entry in coalitions.layers],
        "coupling": result.coupling,
        "gradient": result.gradient,
        "affinity": coalitions.affinity,
        "k": coalitions.k or "auto",
        "within_kv": coalitions.within_kv,
        "threshold": threshold,
        "bootstrap": stability.resamples if stability else 0,
        "batches": len(result.batch_tokens),
        "tokens": result.tokens,
    }
    return {
        "measurement": result.provenance,
        "settings": settings,
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
